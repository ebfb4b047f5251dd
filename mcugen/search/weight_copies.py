# SPDX-License-Identifier: Apache-2.0
"""Copies of constants to the arena before what reads them, or while what stands before that runs: what each saves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from mcugen.core.board import Board, Memory
from mcugen.core.options import GOALS, CompileOptions
from mcugen.kernels.choose import Cost
from mcugen.lir.program import READ_ROWS, STOP, Buffer, Control, Program, aligned
from mcugen.lir.weights import Staged, is_read
from mcugen.memory.constant_stalls import Constant, constants_of
from mcugen.memory.peak import moments
from mcugen.memory.place import memory_of_arena, memory_of_weights

LEAST = 200
LEAST_SHARE = 0.001
"""Cycles that a copy must save, and their share of all instructions: it takes 20 to 50 bytes of code."""

DEPTH = 3
"""Of what runs before a layer, so much at most while weights for it are copied."""


@dataclass(frozen=True)
class Gain:
    """A copy that pays."""

    copy: Staged
    whole: range
    """The indices of the instruction or block that reads it (Program.wholes)."""
    cycles: float
    """That it saves."""
    hidden: float = 0.0
    """Those that it takes while the CPU computes."""

    @property
    def span(self) -> range:
        """The indices at which it lies in the arena."""
        return range(self.whole.start if self.copy.beside is None else self.copy.beside, self.whole.stop)

    def crosses(self, other: Gain) -> bool:
        """Whether of two copies that go on meanwhile the one that begins first would be needed last."""
        mine, others = self.copy.beside, other.copy.beside
        if mine is None or others is None:
            return False
        return (mine < others and self.whole.start > other.whole.start) or (
            mine > others and self.whole.start < other.whole.start
        )

    @property
    def nbytes(self) -> int:
        """Those that it takes there."""
        return aligned(self.copy.constant.nbytes)


@dataclass(frozen=True)
class Copies:
    """Of constants: those that start-up makes, by the options, or those before layers."""

    options: CompileOptions
    gains: Sequence[Gain]
    """Those before layers."""
    most: int
    """Bytes that the arena may take with these."""
    waits: float
    """Cycles that the CPU still waits for constants, by estimate."""
    ram: int
    """Bytes of the arena, and of start-up's copies."""

    def rank(self, program: Program) -> float:
        """As `balanced` sees it."""
        return rank_of(program, self.waits, self.ram)


def rank_of(program: Program, waits: float, ram: int) -> float:
    """How `balanced` sees a program that waits so long for constants and takes so much RAM: less is better."""
    return Cost((program.instructions_estimate or 0.0) + waits, ram, program.weights_size).rank(GOALS[0])


def by_readers(gains: Iterable[Gain]) -> dict[int, list[Staged]]:
    """The copies by the first index of what reads them."""
    found: dict[int, list[Staged]] = {}
    for gain in gains:
        found.setdefault(gain.whole.start, []).append(gain.copy)
    return found


def side_by_side(program: Program, gains: Sequence[Gain], most: int) -> list[Gain]:
    """What fits if the arena takes at most so much, as far as buffers can lie side by side: what gains most for its
    bytes, and of each constant one copy for what reads it.
    """
    taken = [moment.nbytes for moment in moments(program)[1:]] if gains else []
    found: dict[tuple[int, Buffer], Gain] = {}
    for gain in sorted(gains, key=lambda gain: -gain.cycles / gain.copy.constant.nbytes):
        key = gain.whole.start, gain.copy.constant
        has_room = max(taken[index] for index in gain.span) + gain.nbytes <= most
        if has_room and key not in found and not any(gain.crosses(other) for other in found.values()):
            found[key] = gain
            for index in gain.span:
                taken[index] += gain.nbytes
    return [gain for gain in gains if found.get((gain.whole.start, gain.copy.constant)) is gain]


def gains_of(program: Program, board: Board, options: CompileOptions) -> list[Gain]:
    """Of all copies that are worth it: of some constants two, of which one goes on while something else runs."""
    places = options.place
    is_told = bool(options.weights_reader or places.hot_weights) or program.handover is not None
    if options.optimize == "flash" or is_told:
        return []
    memories = memory_of_weights(board, places), memory_of_arena(board, places)
    least = max(LEAST, LEAST_SHARE * (program.instructions_estimate or 0))
    windows = _windows(program) if options.copy_ahead else {}
    found = list[Gain]()
    for whole, constants in groupby(constants_of(program, board, memories[0]), key=lambda constant: constant.whole):
        if program.instrs[whole.start].control in (Control.IF, Control.FORK):
            continue  # it may not run; the other core reads them as well
        read = [constant for constant in constants if is_read(constant.buffer)]
        ahead = _ahead(read, windows[whole.start], board, memories) if read and whole.start in windows else []
        found += [gain for gain in ahead if gain.cycles > least]
        found += _before(read, board, memories, options, least) if read else []
    return found


def _before(
    constants: Sequence[Constant], board: Board, memories: tuple[Memory, Memory], options: CompileOptions, least: float
) -> list[Gain]:
    """Copies of constants of an instruction or a block, just before it: those that save more than `least` cycles."""
    instr, whole = constants[0].instr, constants[0].whole
    saved = _sums((c.buffer, c.saved_by_copy(board, *memories)) for c in constants)
    times = options.times.get((instr.name, instr.kernel))
    if times is not None:
        least = -math.inf if times.plain - times.copied > LEAST else math.inf
    return [Gain(Staged(buffer), whole, cycles) for buffer, cycles in saved.items() if cycles > least]


def _ahead(
    constants: Sequence[Constant], windows: Sequence[_Window], board: Board, memories: tuple[Memory, Memory]
) -> Iterator[Gain]:
    """The same while something else runs: what is just before them, or more. What the CPU reads there comes first, so
    that only the time in which it computes is hidden, of which each copy takes a part.
    """
    times = {c.buffer: float(board.reading(memories[0], c.buffer.nbytes) or 0) for c in constants}
    share, total = 0.0, max(sum(times.values()), 1.0)
    for window in windows:
        share += window.take((1 - share) * total) / total
        saved = _sums((c.buffer, c.saved_by_copy(board, *memories, hidden=share)) for c in constants)
        for buffer, cycles in saved.items():
            yield Gain(Staged(buffer, window.start), constants[0].whole, cycles, share * times[buffer])


def _sums(pairs: Iterable[tuple[Buffer, float]]) -> dict[Buffer, float]:
    found: dict[Buffer, float] = {}
    for buffer, cycles in pairs:
        found[buffer] = found.get(buffer, 0.0) + cycles
    return found


@dataclass
class _Window:
    """What runs while a copy goes on: its first index, and the cycles that it computes at least, not yet taken."""

    start: int
    work: float

    def take(self, cycles: float) -> float:
        """So many of these cycles are hidden."""
        taken = min(cycles, self.work)
        self.work -= taken
        return taken


def _windows(program: Program) -> dict[int, Sequence[_Window]]:
    """For each instruction or block the last ones before it whose time is known, the nearest first, none before which
    the call may end: no copy must go on then. What may not run hides nothing.
    """
    found, windows = dict[int, Sequence[_Window]](), list[_Window]()
    for whole in program.wholes():
        found[whole.start] = windows[:DEPTH]
        instrs = [program.instrs[index] for index in whole]
        work = sum(program.layer_estimates.get(name, 0.0) for name in dict.fromkeys(i.name for i in instrs))
        if any(i.library or i.kernel in (READ_ROWS, STOP) or i.control is Control.FORK for i in instrs):
            windows = []
        elif work and not any(o.role == "cond" for o in instrs[0].operands):
            windows = [_Window(whole.start, work), *windows]
    return found
