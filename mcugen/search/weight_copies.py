# SPDX-License-Identifier: Apache-2.0
"""Copies of constants to the arena just before their readers, or during earlier layers, and what each copy saves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from mcugen.core.board import Board, Memory
from mcugen.core.options import GOALS, CompileOptions
from mcugen.kernels.choose import Cost
from mcugen.lir.program import READ_ROWS, STOP, Buffer, Control, Program, aligned
from mcugen.lir.weights import StagedConstant, is_read
from mcugen.memory.constant_stalls import ConstantReads, constant_reads
from mcugen.memory.peak import moments
from mcugen.memory.place import memory_of_arena, memory_of_weights
from mcugen.search.objective import TOLERANCES

MAX_PREFETCH_DISTANCE = 3
"""Largest number of instructions or outermost blocks by which a copy may begin before the layer that reads it."""


@dataclass(frozen=True)
class ConstantCopy:
    """A possible copy of a constant to the arena during a call, with the cycles that the copy saves."""

    copy: StagedConstant
    """The constant to copy and, for a prefetch by DMA, the instruction before which the copy begins."""
    whole: range
    """Index range of the instruction that reads the copy, or of the outermost loop or branch that contains it."""
    cycles: float
    """Cycles that the copy saves per call."""
    hidden: float = 0.0
    """Cycles of copying per call that take no time, because the CPU computes while DMA copies."""

    @property
    def span(self) -> range:
        """Return the indices of the instructions during which the copy occupies the arena."""
        return range(self.whole.start if self.copy.beside is None else self.copy.beside, self.whole.stop)

    def crosses(self, other: ConstantCopy) -> bool:
        """Return whether two prefetches cross: one begins before the other but is read after it.

        A prefetch is a copy by DMA that begins while earlier layers still run. The result is False if one of the copies
        is no prefetch.
        """
        own_start, other_start = self.copy.beside, other.copy.beside
        if own_start is None or other_start is None:
            return False
        return (own_start < other_start and self.whole.start > other.whole.start) or (
            own_start > other_start and self.whole.start < other.whole.start
        )

    @property
    def nbytes(self) -> int:
        """Return the bytes that the copy takes in the arena, rounded up to the alignment of buffers."""
        return aligned(self.copy.constant.nbytes)


@dataclass(frozen=True)
class Copies:
    """The chosen copies of constants to RAM: those that start-up code makes, and those to the arena during a call."""

    options: CompileOptions
    """The options of the compilation, with a placement that contains the copies by start-up code."""
    gains: Sequence[ConstantCopy]
    """Copies to the arena during a call, before the layers that read them."""
    max_arena: int
    """Largest allowed size of the arena in bytes, which has to hold the copies during a call too."""
    waits: float
    """Estimated stall cycles per call for reading constants if these copies are made."""
    ram: int
    """Bytes of the arena plus those of the copies made by start-up code."""

    def keeping(self, gains: Sequence[ConstantCopy]) -> Copies:
        """Return these copies with only `gains` as copies during a call.

        The stall cycles that dropped copies would have saved are added to `waits`.
        """
        lost_cycles = sum(gain.cycles for gain in self.gains) - sum(gain.cycles for gain in gains)
        return replace(self, gains=gains, waits=self.waits + lost_cycles)

    def rank(self, program: Program) -> float:
        """Return the logarithm of time · RAM · flash, weighted for `balanced`, of a program with these copies.

        A smaller rank is better.
        """
        return rank_of(program, self.waits, self.ram)


def rank_of(program: Program, waits: float, ram: int) -> float:
    """Return the logarithm of time · RAM · flash, weighted for `balanced`; a smaller rank is better.

    Args:
        program: The planned program.
        waits: Stall cycles per call for reading constants.
        ram: Bytes of RAM with all copies.
    """
    return Cost((program.instructions_estimate or 0.0) + waits, ram, program.weights_size).rank(GOALS[0])


def by_readers(gains: Iterable[ConstantCopy]) -> dict[int, list[StagedConstant]]:
    """Return the constants to copy to the arena, by the index of the instruction that reads them.

    If the instruction is in a loop or branch, the index is that of the first instruction of the outermost block.

    Args:
        gains: The copies.
    """
    copies_by_index: dict[int, list[StagedConstant]] = {}
    for gain in gains:
        copies_by_index.setdefault(gain.whole.start, []).append(gain.copy)
    return copies_by_index


def choose_copies_that_fit(program: Program, gains: Sequence[ConstantCopy], max_arena: int) -> list[ConstantCopy]:
    """Choose the copies that fit an arena of `max_arena` bytes, assuming that live buffers leave no gaps between them.

    Copies that save the most cycles per byte are chosen first. Each reader has at most one copy of a constant.

    Args:
        program: The planned program.
        gains: The possible copies.
        max_arena: Largest arena in bytes.
    """
    live_bytes = [moment.nbytes for moment in moments(program)[1:]] if gains else []
    kept: dict[tuple[int, Buffer], ConstantCopy] = {}
    for gain in sorted(gains, key=lambda gain: -gain.cycles / gain.copy.constant.nbytes):
        key = gain.whole.start, gain.copy.constant
        has_room = max(live_bytes[index] for index in gain.span) + gain.nbytes <= max_arena
        if has_room and key not in kept and not any(gain.crosses(other) for other in kept.values()):
            kept[key] = gain
            for index in gain.span:
                live_bytes[index] += gain.nbytes
    return [gain for gain in gains if kept.get((gain.whole.start, gain.copy.constant)) is gain]


def gains_of(program: Program, board: Board, options: CompileOptions) -> list[ConstantCopy]:
    """Return all copies of constants to the arena that would save enough cycles, whether they fit or not.

    A constant may have several alternatives: a copy just before its reader, and prefetches (copies by DMA that begin
    while earlier instructions run). The list is empty for the goal `flash`, in a two-core pipeline over frames, and if
    the user chose the copies or a file of weights that a callback reads.

    Args:
        program: The planned program.
        board: The board, with the speed of its memories.
        options: Options with goal, placement and prefetching.
    """
    places = options.place
    is_told = bool(options.weights_reader or places.hot_weights) or program.handover is not None
    if options.optimize == "flash" or is_told:
        return []
    memories = memory_of_weights(board, places), memory_of_arena(board, places)
    min_saved = max(TOLERANCES.min_saved_cycles, TOLERANCES.min_saved_share * (program.instructions_estimate or 0))
    windows = _windows(program) if options.copy_ahead else {}
    gains = list[ConstantCopy]()
    for whole, constants in groupby(constant_reads(program, board, memories[0]), key=lambda constant: constant.whole):
        if program.instrs[whole.start].control in (Control.IF, Control.FORK):
            continue  # A branch may not run; the other core of a fork reads the constants as well.
        read = [constant for constant in constants if is_read(constant.buffer)]
        ahead = _ahead(read, windows[whole.start], board, memories) if read and whole.start in windows else []
        gains += [gain for gain in ahead if gain.cycles > min_saved]
        gains += _before(read, board, memories, options, min_saved) if read else []
    return gains


def _before(
    constants: Sequence[ConstantReads],
    board: Board,
    memories: tuple[Memory, Memory],
    options: CompileOptions,
    min_saved: float,
) -> list[ConstantCopy]:
    """Return copies just before the instruction or block that reads the constants, if they save enough."""
    instr, whole = constants[0].instr, constants[0].whole
    saved = _sums((c.buffer, c.saved_by_copy(board, *memories)) for c in constants)
    times = options.times.get((instr.name, instr.kernel))
    if times is not None:
        min_saved = -math.inf if times.plain - times.copied > TOLERANCES.min_saved_cycles else math.inf
    return [
        ConstantCopy(StagedConstant(buffer), whole, cycles) for buffer, cycles in saved.items() if cycles > min_saved
    ]


def _ahead(
    constants: Sequence[ConstantReads], windows: Sequence[_Window], board: Board, memories: tuple[Memory, Memory]
) -> Iterator[ConstantCopy]:
    """Yield prefetches of constants during the instructions before their reader.

    What the CPU reads itself from that memory comes first. Hence only the CPU's computing time hides copying, and the
    copies of a reader share that time.
    """
    times = {c.buffer: float(board.sequential_read_cycles(memories[0], c.buffer.nbytes) or 0) for c in constants}
    share, total = 0.0, max(sum(times.values()), 1.0)
    for window in windows:
        share += window.take((1 - share) * total) / total
        saved = _sums((c.buffer, c.saved_by_copy(board, *memories, hidden=share)) for c in constants)
        for buffer, cycles in saved.items():
            yield ConstantCopy(StagedConstant(buffer, window.start), constants[0].whole, cycles, share * times[buffer])


def _sums(pairs: Iterable[tuple[Buffer, float]]) -> dict[Buffer, float]:
    totals: dict[Buffer, float] = {}
    for buffer, cycles in pairs:
        totals[buffer] = totals.get(buffer, 0.0) + cycles
    return totals


@dataclass
class _Window:
    """An instruction or block during which copies can run: its first index, and its computing cycles not yet used."""

    start: int
    work: float

    def take(self, cycles: float) -> float:
        """Use up to so many of the cycles, and return how many are hidden."""
        hidden = min(cycles, self.work)
        self.work -= hidden
        return hidden


def _windows(program: Program) -> dict[int, Sequence[_Window]]:
    """Return for each instruction or block the preceding ones that can hide a copy, the nearest first.

    Their time must be known, and they must run in every call. A call may not end in between, while a copy is running.
    """
    windows_before, windows = dict[int, Sequence[_Window]](), list[_Window]()
    for whole in program.wholes():
        windows_before[whole.start] = windows[:MAX_PREFETCH_DISTANCE]
        instrs = [program.instrs[index] for index in whole]
        work = sum(program.layer_estimates.get(name, 0.0) for name in dict.fromkeys(i.name for i in instrs))
        if any(i.library or i.kernel in (READ_ROWS, STOP) or i.control is Control.FORK for i in instrs):
            windows = []
        elif work and not any(o.role == "cond" for o in instrs[0].operands):
            windows = [_Window(whole.start, work), *windows]
    return windows_before
