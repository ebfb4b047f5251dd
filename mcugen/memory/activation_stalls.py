# SPDX-License-Identifier: Apache-2.0
"""Stall model of activations: estimates the stall cycles of each buffer of the arena for each memory of a board.

Loads stall according to the memory's wait states and caches (Board). Stores do not count, since a write buffer or a
cache takes them.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from mcugen.core.board import USABLE_CACHE_FRACTION, Board, Cache, Memory
from mcugen.lir.program import PREPARATION_KERNELS, WORD, Access, Buffer, Control, Gathered, Instr, Operand, Program
from mcugen.memory.traffic import DEFAULT_LOADS_PER_WORD, accesses, loads_in_pass, runs_of, touched_bytes

CYCLES_BETWEEN_LOADS = 4
"""Assumed cycles that the CPU computes between the loads of two neighbouring words of a cache line."""
REUSE_FRACTION = 1 / 8
"""Share of a layer's other working data that the layer uses between two uses of the same part of its working memory.

From simulations of an RP2350's cache (tests/memory/test_waiting_simulated.py).
"""
CONFLICT_MISS_RATE = 1 / 64
"""Share of cache lines that other data evict although the cache has sufficient capacity."""


@dataclass(frozen=True)
class BufferReads:
    """The reads of one arena buffer by one instruction, from which the stall model estimates stall cycles.

    Attributes:
        buffer: The buffer that is read.
        times: Number of times that the instruction runs in one inference.
        nbytes: Bytes of the buffer that each run of the instruction reads, in order.
        reloaded_bytes: Bytes among `nbytes` that each run of the instruction loads a second time.
        before: Reuse distances in bytes, for the buffer's first byte and for its last byte: how much data is used since
            the last use. None if no instruction has used the buffer before, because the caller has written it.
        advances: Whether each run of the instruction reads other bytes of the buffer than the run before.
        gathers: Access pattern of an instruction that reads the image in blocks of channels; None for other
            instructions.
        result_bytes: Bytes of results that the instruction writes without overlapping this buffer.
        scratch_bytes: Bytes of scratch memory that the instruction uses.
        cyclic_bytes: Bytes that one run of the instruction reads repeatedly in a cycle, if the buffer is part of that
            cycle; else 0.
    """

    buffer: Buffer
    times: int
    nbytes: int
    reloaded_bytes: int
    before: tuple[int, int] | None
    advances: bool
    gathers: Gathered | None
    result_bytes: int
    scratch_bytes: int
    cyclic_bytes: int

    def cycles(self, board: Board, memory: Memory) -> float:
        """Return the stall cycles of these reads in one inference if the buffer lies in `memory`.

        If the board file has no timing of that memory, the cycles are derived from the memory's relative `speed`.
        """
        loads = self.nbytes + self.reloaded_bytes
        if board.sequential_read_cycles(memory, WORD) is None:
            return self.times * (memory.speed - 1) * loads / WORD
        cache = board.cache(memory, "data")
        if cache is None:
            return self.times * float(board.sequential_read_cycles(memory, loads) or 0)
        if self.gathers is not None and (evicted := self._evicted_share(cache, self.gathers.pitch)):
            comes_back = min(cache.line, self.gathers.pitch) / self.gathers.taken
            return self.times * evicted * comes_back * (board.sequential_read_cycles(memory, self.nbytes) or 0)
        room = USABLE_CACHE_FRACTION * cache.size
        misses = _lines(board, memory, cache, self.nbytes)
        hits = cache.hit_wait_states * self.nbytes / WORD + CONFLICT_MISS_RATE * misses
        first = hits + (misses - hits) * self._miss_share(cache.size)
        later_runs = first if self.advances else hits if self.nbytes <= room else misses
        missed = cache.evicted_share(self.cyclic_bytes)
        again = missed * _lines(board, memory, cache, self.reloaded_bytes)
        again += (1 - missed) * cache.hit_wait_states * self.reloaded_bytes / WORD
        return first + (self.times - 1) * later_runs + self.times * again

    def _miss_share(self, size: int) -> float:
        """Return the share of the buffer that a cache of this size no longer holds.

        The reuse distance is assumed to change linearly from the first to the last byte.
        """
        if self.before is None:
            return 1.0
        nearest, farthest = sorted(self.before)
        return min(max((farthest - size) / max(farthest - nearest, 1), 0.0), 1.0)

    def _evicted_share(self, cache: Cache, pitch: int) -> float:
        """Return the share of lines read in turn that are evicted before they are read again.

        With a pitch that is a multiple of a power of two, the lines fall into few sets; a set with more lines than its
        ways loses all of them.
        """
        reach = cache.sets * cache.line
        step = max(math.gcd(pitch, reach), cache.line)
        lines = (self.nbytes + self.result_bytes) / max(pitch, cache.line)
        load = lines / (reach / step) + self.scratch_bytes / reach
        full = min(max(load - cache.ways, 0.0), 1.0)  # Share of sets with one line too many.
        return full * max(cache.ways + 1, load) / load


def _lines(board: Board, memory: Memory, cache: Cache, nbytes: int) -> float:
    """Return the stall cycles of cache line fills when the CPU reads the words of each line in order."""
    line_cycles = board.wait_cycles(memory, cache.line) or 0
    if cache.critical_word_first:
        line_cycles = max(
            line_cycles - CYCLES_BETWEEN_LOADS * (cache.line // WORD - 1), board.wait_cycles(memory, WORD) or 0
        )
    return line_cycles * nbytes / cache.line


def arena_reads(program: Program) -> Iterator[BufferReads]:
    """Yield the reads of each arena buffer by each instruction of a planned program, in execution order."""
    used, last = 0, dict[Buffer, tuple[int, int]]()
    held = {
        o.buffer
        for i in program.instrs
        if i.kernel in PREPARATION_KERNELS
        for o in i.operands
        if o.access is Access.OUT
    }
    for instr, times in runs_of(program):
        if instr.control is not Control.NONE or instr.is_offloaded:
            continue
        operands = [(operand, nbytes) for operand, nbytes in accesses(instr) if operand.buffer.nbytes]
        spread = _union(instr, [operand for operand, _ in operands])
        results = [o.buffer for o, _ in operands if o.access is Access.OUT]
        worked = [o for o, _ in operands if o.access is Access.SCRATCH or o.buffer in held]
        for operand, nbytes in operands:
            buffer, through = operand.buffer, touched_bytes(instr, operand)
            writes = through * (operand.access in (Access.OUT, Access.INOUT, Access.SCRATCH))
            if not buffer.planned or nbytes <= writes:
                continue
            passes = (
                instr.macs // buffer.count if buffer in held else max(nbytes - writes - through, 0) / max(through, 1)
            )
            yield BufferReads(
                buffer,
                times,
                through,
                reloaded_bytes=round(
                    (loads_in_pass(instr) if buffer in held else DEFAULT_LOADS_PER_WORD) * passes * through
                ),
                before=(0, spread) if operand.access is Access.SCRATCH else _between(used, spread, last.get(buffer)),
                advances=through < buffer.nbytes,
                gathers=instr.gathers if operand.role.startswith("x") else None,
                result_bytes=sum(y.nbytes for y in results if not share_bytes(y, buffer)),
                scratch_bytes=sum(o.buffer.nbytes for o, _ in operands if o.access is Access.SCRATCH),
                cyclic_bytes=_cyclic_bytes(operand, worked, held),
            )
        last.update((operand.buffer, (used, used + spread)) for operand, _ in operands)
        used += spread


def _cyclic_bytes(operand: Operand, worked: Sequence[Operand], held: Container[Buffer]) -> int:
    """Return BufferReads.cyclic_bytes, the bytes used before an operand's data are used again.

    Weights are used again after all working data; prepared input is used again for every few results.
    """
    if operand not in worked:
        return 0
    own, total = operand.buffer.nbytes, sum(o.buffer.nbytes for o in worked)
    return total if operand.buffer in held else own + round(REUSE_FRACTION * (total - own))


def _between(used: int, spread: int, last: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return `BufferReads.before`, the reuse distances of a buffer's first and last bytes; None at the first use.

    `used` counts the bytes that the program used before this instruction, which uses `spread` bytes. `last` holds the
    same count at the last use of the buffer's first and last bytes.
    """
    return None if last is None else (used - last[0], used + spread - last[1])


def _union(instr: Instr, operands: Sequence[Operand]) -> int:
    """Return the bytes that an instruction uses; bytes that operands share in the memory plan count once."""
    parts = [(o.buffer, touched_bytes(instr, o)) for o in operands]
    total, reached = sum(nbytes for buffer, nbytes in parts if buffer.offset is None), (0, 0)
    for area, start, nbytes in sorted((b.area, b.offset, nbytes) for b, nbytes in parts if b.offset is not None):
        begin = max(start, reached[1]) if area == reached[0] else start
        total += max(start + nbytes - begin, 0)
        reached = area, max(start + nbytes, begin)
    return total


def share_bytes(a: Buffer, b: Buffer) -> bool:
    """Return whether two buffers share bytes in the memory plan; False if one of them has no address yet."""
    if a.offset is None or b.offset is None or a.area != b.area:
        return False
    return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def arena_stall_cycles(program: Program, board: Board, memory: Memory) -> dict[Buffer, float]:
    """Return the stall cycles on reads of each arena buffer in one inference, as if all lay in one memory.

    Args:
        program: A planned program.
        board: The board with the timing of its memories.
        memory: The memory.
    """
    stall_cycles = dict.fromkeys((b for b in program.buffers if b.planned), 0.0)
    for reading in arena_reads(program):
        stall_cycles[reading.buffer] += reading.cycles(board, memory)
    return stall_cycles
