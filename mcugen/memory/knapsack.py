# SPDX-License-Identifier: Apache-2.0
"""Knapsack: the most valuable buffers that fit side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mcugen.lir.program import ALIGNMENT, Buffer, aligned

MAX_DISTINCT_SIZES = 1 << 16
"""Largest number of capacity steps of the dynamic program; for larger capacities, sizes are rounded up to larger
steps."""


def most_valuable(values: Mapping[Buffer, float], nbytes: int) -> list[Buffer]:
    """Return the set of buffers with the greatest total value that fits in `nbytes`, in the order of `values`.

    Buffers with a value of 0 or less are left out. The result of the dynamic program is optimal if `nbytes` is at most
    MAX_DISTINCT_SIZES · ALIGNMENT; beyond that, sizes are rounded up, so that the set may be worse but still fits.

    Args:
        values: The value of each buffer, such as saved cycles.
        nbytes: Capacity in bytes; each buffer takes its aligned size.
    """
    left = {b: value for b, value in values.items() if value > 0}
    if sum(aligned(b.nbytes) for b in left) <= nbytes:
        return list(left)
    unit = ALIGNMENT * max(-(-nbytes // (ALIGNMENT * MAX_DISTINCT_SIZES)), 1)
    room = max(nbytes, 0) // unit
    needed = {b: units for b in left if (units := -(-b.nbytes // unit)) <= room}
    best, with_it = np.zeros(room + 1), dict[Buffer, np.ndarray]()
    for buffer, units in needed.items():
        more = best[: room + 1 - units] + left[buffer]
        with_it[buffer] = more > best[units:]
        best[units:] = np.maximum(more, best[units:])
    chosen = list[Buffer]()
    for buffer, is_better in reversed(with_it.items()):
        units = needed[buffer]
        if room >= units and is_better[room - units]:
            chosen.append(buffer)
            room -= units
    return chosen[::-1]
