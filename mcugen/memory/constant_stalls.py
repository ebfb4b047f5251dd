# SPDX-License-Identifier: Apache-2.0
"""Stall model of constants: estimates the stall cycles of weight reads for each memory of a board."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcugen.core.board import DMA_COPY_OVERHEAD_CYCLES, Board, Memory
from mcugen.lir.program import Buffer, Control, Instr, Program, Space
from mcugen.memory.traffic import loads_in_pass, passes_of, runs_of, sweeps_in_pass

COPY_CYCLES_PER_BYTE = 1.0
"""Upper estimate of the cycles for copying one byte, without the stall cycles of reading it."""


@dataclass(frozen=True)
class ConstantReads:
    """The reads of one constant by one instruction, from which the stall model estimates stall cycles.

    Attributes:
        instr: The instruction that reads the constant.
        buffer: The constant that is read.
        whole: Indices of the instructions of the outermost block around the instruction, or of the instruction itself
            outside of blocks (Program.wholes).
        runs: Number of times that the instruction runs in one inference.
        passes: Number of times that one run of the instruction reads the whole constant.
        between: Reuse distance in bytes: size of all constants that the instructions of `whole` read, which pass
            through the cache between two runs.
        cold: Share (0 to 1) of the constant that no cache holds any more when the model is called again.
    """

    instr: Instr
    buffer: Buffer
    whole: range
    runs: int
    passes: float
    between: int
    cold: float

    def stall_cycles(self, board: Board, memory: Memory) -> float | None:
        """Return the stall cycles of these reads in one inference if the constant lies in `memory`.

        Return None if the board file has no timing of the memory.
        """
        nbytes, first = self.buffer.nbytes, board.sequential_read_cycles(memory, self.buffer.nbytes)
        if first is None:
            return None
        later_passes = (self.passes - 1) * (board.repeated_read_cycles(memory, nbytes) or 0)
        later = (board.repeated_read_cycles(memory, self.between) or 0) * nbytes / max(self.between, 1)
        return self.cold * first + (self.runs - 1) * later + self.runs * later_passes

    def saved_by_copy(self, board: Board, slow: Memory, fast: Memory, hidden: float | None = None) -> float:
        """Return the cycles per inference that a copy of the constant to a faster memory saves.

        The copy is made in each inference, before the instructions that read it; its own cycles are subtracted. The
        result is 0 if the board file has no timing of the memories.

        Args:
            board: The board.
            slow: The memory that holds the constant.
            fast: The memory of the copy.
            hidden: For a copy by DMA, the share (0 to 1) of its time that overlaps with computation; None for a copy by
                the CPU.
        """
        stall_cycles, once = self.stall_cycles(board, slow), board.sequential_read_cycles(slow, self.buffer.nbytes)
        fast_waits = board.repeated_read_cycles(fast, self.buffer.nbytes)
        if stall_cycles is None or once is None or fast_waits is None:
            return 0.0
        reading = self.cold * once
        copy = (
            reading + COPY_CYCLES_PER_BYTE * self.buffer.nbytes
            if hidden is None
            else DMA_COPY_OVERHEAD_CYCLES + (1 - hidden) * reading
        )
        return stall_cycles - copy - self.runs * self.passes * fast_waits


def constant_reads(program: Program, board: Board, memory: Memory) -> Iterator[ConstantReads]:
    """Yield the reads of each constant by each instruction, in program order, as if all constants lay in one memory.

    Args:
        program: The program.
        board: The board with the timing of its memories.
        memory: The memory of the constants.
    """
    runs, cold = {id(instr): times for instr, times in runs_of(program)}, _cold(program, board, memory)
    for whole in program.wholes():
        reading = [(i, b) for i in (program.instrs[index] for index in whole) for b in _constants(i)]
        between = sum(b.nbytes for b in dict.fromkeys(b for _, b in reading))
        for instr, buffer in reading:
            yield ConstantReads(instr, buffer, whole, runs[id(instr)], _readings(instr, board, memory), between, cold)


def _cold(program: Program, board: Board, memory: Memory) -> float:
    """Return ConstantReads.cold, the share of constants that is not cached at the start of an inference.

    A data cache holds what fits, together with the arena if that goes through it, too. A cache that also holds code is
    assumed to hold nothing.
    """
    cache = board.cache(memory, "data")
    if cache is None or cache.holds == "both":
        return 1.0
    nbytes = sum(b.nbytes for b in program.buffers if b.space is Space.CONST)
    is_shared = board.cache(board.memory(board.arena_memory), "data") is cache
    return cache.evicted_share(nbytes + is_shared * program.arena_size)


def _constants(instr: Instr) -> dict[Buffer, None]:
    if instr.moves_nothing or instr.is_offloaded or instr.control is not Control.NONE:
        return {}
    return dict.fromkeys(o.buffer for o in instr.operands if o.buffer.space is Space.CONST and o.buffer.nbytes)


def _readings(instr: Instr, board: Board, memory: Memory) -> float:
    """Return how often a layer reads its constants.

    They are read word by word, or by lines where a cache serves several loads at once.
    """
    is_cached = board.cache(memory, "data") is not None
    return max((sweeps_in_pass if is_cached else loads_in_pass)(instr) * passes_of(instr), 1.0)


def constant_stall_cycles(program: Program, board: Board, slow: Memory, fast: Memory | None = None) -> float:
    """Return the stall cycles of one inference on constants that lie in memory `slow`; unknown stalls count as 0.

    Args:
        program: The program.
        board: The board with the timing of its memories.
        slow: The memory of the constants.
        fast: A memory to which each constant is assumed to be copied before its use if that saves cycles; None for no
            copies.
    """
    total = 0.0
    for constant in constant_reads(program, board, slow):
        saved = constant.saved_by_copy(board, slow, fast) if fast else 0.0
        total += (constant.stall_cycles(board, slow) or 0.0) - max(saved, 0.0)
    return total


def saved_by_copies(program: Program, board: Board, slow: Memory, fast: Memory) -> dict[Buffer, float]:
    """Return the stall cycles per inference that each constant saves if it lies in `fast` instead of `slow` memory.

    The value is 0 for a constant whose stall cycles are unknown. The cycles of copying constants there are not
    subtracted.
    """
    saved = dict.fromkeys((b for b in program.buffers if b.space is Space.CONST), 0.0)
    for constant in constant_reads(program, board, slow):
        stall_cycles, less = constant.stall_cycles(board, slow), constant.stall_cycles(board, fast)
        if stall_cycles is not None and less is not None:
            saved[constant.buffer] += stall_cycles - less
    return saved
