# SPDX-License-Identifier: Apache-2.0
"""Order of copies that must have the effect of simultaneous copies: a state may get another state's old value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mcugen.lir.program import Buffer

BufferCopy = tuple[Buffer, Buffer]
"""A copy between two buffers: source and target."""


def order_moves(moves: Sequence[BufferCopy], spare: Callable[[Buffer], Buffer]) -> Iterator[BufferCopy]:
    """Yield copies in an order in which none overwrites a buffer that a later one reads.

    The copies then have the effect of simultaneous ones. Copies of a buffer to itself are left out. A cycle needs one
    more copy: the old value of one target is first copied to the buffer `spare(target)`.

    Args:
        moves: Source and target buffer of each copy.
        spare: Returns a new buffer for the old value of a given target.
    """
    pending = [(source, target) for source, target in moves if source is not target]
    while pending:
        read = [source for source, _ in pending]
        free = next((move for move in pending if move[1] not in read), None)
        if free is None:
            target = pending[0][1]
            aside = spare(target)
            yield target, aside
            pending = [(aside if source is target else source, end) for source, end in pending]
        else:
            yield free
            pending.remove(free)
