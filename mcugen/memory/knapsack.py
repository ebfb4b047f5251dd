# SPDX-License-Identifier: Apache-2.0
"""Of buffers that do not all fit side by side, those that are worth most together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcugen.lir.program import ALIGNMENT, Buffer, aligned

STEPS = 1 << 16
"""Of sizes, that are told apart at most."""


def most_valuable(values: Mapping[Buffer, float], nbytes: int) -> list[Buffer]:
    """Buffers that lie side by side in so many bytes, with the greatest sum of values, in their order; none that is
    worth nothing.

    Exact, as long as there are no more than STEPS sizes; beyond that what they take is rounded up. Each buffer in turn:
    what is worth most in each number of bytes, with it or without it.
    """
    left = {b: value for b, value in values.items() if value > 0}
    if sum(aligned(b.nbytes) for b in left) <= nbytes:
        return list(left)
    unit = ALIGNMENT * max(-(-nbytes // (ALIGNMENT * STEPS)), 1)
    room = max(nbytes, 0) // unit
    needed = {b: units for b in left if (units := -(-b.nbytes // unit)) <= room}
    best, with_it = np.zeros(room + 1), dict[Buffer, np.ndarray]()
    for buffer, units in needed.items():
        more = best[: room + 1 - units] + left[buffer]
        with_it[buffer] = more > best[units:]
        best[units:] = np.maximum(more, best[units:])
    found = list[Buffer]()
    for buffer, is_better in reversed(with_it.items()):
        units = needed[buffer]
        if room >= units and is_better[room - units]:
            found.append(buffer)
            room -= units
    return found[::-1]
