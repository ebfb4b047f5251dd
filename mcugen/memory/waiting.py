# SPDX-License-Identifier: Apache-2.0
"""What the CPU waits for activations, by the memory that a buffer lies in: an estimate, made from the program alone.

Loads count, by what lies between the core and the memory (mcugen.board); stores do not, as a buffer or a cache takes
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcugen.board import ROOM_IN_CACHE, Board, Cache, Memory
from mcugen.lir.program import BRINGING, WORD, Access, Buffer, Control, Program
from mcugen.memory.traffic import accesses, loads_in_pass, runs_of, touched

EVICTED = 1 / 64
"""Of what a cache should still hold, the share that it does not: other data took the place."""


@dataclass(frozen=True)
class Reading:
    """An instruction reads a buffer, which may run several times."""

    buffer: Buffer
    times: int
    nbytes: int
    """Those that it goes through each time."""
    again: int
    """Further bytes that it loads each time, of these."""
    distance: int | None
    """Bytes that were used since the buffer was; None: the caller has written it."""
    goes_on: bool
    """Whether each time has bytes of its own."""
    gathers: int
    """Bytes that it goes through before it comes back for the next word of a line; 0: it takes a line at once."""
    works_on: bool
    """Whether it goes through all of them again and again; else through some of them, then others."""

    def cycles(self, board: Board, memory: Memory) -> float:
        """That the CPU waits if the buffer lies in this memory; where the board tells no waits, by its `speed`."""
        loads = self.nbytes + self.again
        if board.reading(memory, WORD) is None:
            return self.times * (memory.speed - 1) * loads / WORD
        cache = board.cache(memory, "data")
        if cache is None:
            return self.times * float(board.reading(memory, loads) or 0)
        misses = board.reading(memory, self.nbytes) or 0
        hits = cache.hit_wait_states * self.nbytes / WORD + EVICTED * misses
        return self._through(board, memory, cache, float(misses), hits)

    def _through(self, board: Board, memory: Memory, cache: Cache, misses: float, hits: float) -> float:
        room = ROOM_IN_CACHE * cache.size
        if self.gathers > room:
            return self.times * misses * cache.line / WORD
        first = hits if self.distance is not None and self.distance + self.nbytes <= room else misses
        others = first if self.goes_on else hits if self.nbytes <= room else misses
        again = cache.hit_wait_states * self.again / WORD
        if self.works_on and self.nbytes > room / 2:  # other data goes through the cache meanwhile
            again = float(board.reading(memory, self.again) or 0)
        return first + (self.times - 1) * others + self.times * again


def readings_of(program: Program) -> Iterator[Reading]:
    """All of what the arena holds, in order."""
    used, last = 0, dict[Buffer, int]()
    held = {o.buffer for i in program.instrs if i.kernel in BRINGING for o in i.operands if o.access is Access.OUT}
    for instr, times in runs_of(program):
        if instr.control is not Control.NONE:
            continue
        each = [(operand, nbytes) for operand, nbytes in accesses(instr) if operand.buffer.nbytes]
        for operand, nbytes in each:
            buffer, through, loads = operand.buffer, touched(instr, operand), loads_in_pass(instr)
            writes = through * (operand.access in (Access.OUT, Access.INOUT, Access.SCRATCH))
            if not buffer.planned or nbytes <= writes:
                continue
            passes = (
                instr.macs // buffer.count if buffer in held else max(nbytes - writes - through, 0) / max(through, 1)
            )
            at = used if operand.access is Access.SCRATCH else last.get(buffer)
            yield Reading(
                buffer,
                times,
                through,
                again=round(loads * passes * through),
                distance=None if at is None else used - at,
                goes_on=through < buffer.nbytes,
                gathers=instr.gathers if operand.role.startswith("x") else 0,
                works_on=operand.access is Access.SCRATCH or buffer in held,
            )
        used += sum(touched(instr, operand) for operand, _ in each)
        last.update((operand.buffer, used) for operand, _ in each)


def waits_for_arena(program: Program, board: Board, memory: Memory) -> dict[Buffer, float]:
    """Cycles that one inference waits for each buffer, if that lies in a memory."""
    found = dict.fromkeys((b for b in program.buffers if b.planned), 0.0)
    for reading in readings_of(program):
        found[reading.buffer] += reading.cycles(board, memory)
    return found
