# SPDX-License-Identifier: Apache-2.0
"""How much RAM and flash a user allows: what programs take of both, and which of several is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions, Places
from mcugen.kernels.cost import cost_table
from mcugen.lir.program import DECODE_WEIGHTS, Control, Instr, Program, Space
from mcugen.memory.areas import waits_of
from mcugen.memory.constant_stalls import constants_of
from mcugen.memory.peak import busiest, largest, moments, shortened
from mcugen.memory.place import copied_bytes, flash_lacking, place, ram_lacking
from mcugen.memory.plan import Planned
from mcugen.search.weight_copies import Copies

BASE = 512
"""Bytes of code that any model takes, and of what most need of the C library."""

MOST_BASE = 1024
"""The same, where code shall not exceed what is said."""

CALL = 24
"""Bytes of code that calling a function takes which others call, too; its parameters take four each."""

MISJUDGED_CODE = 0.75
"""Share of the code that is estimated which a program may turn out to take: with more it is not built to know."""

HOPED_CODE = 0.9
"""Share of the code that is estimated which a program of several takes, that then is built."""

DEAR = 1.25
"""Times as long as another way what fits for sure must take for that to be built, which takes seconds: it may fit."""

STACK = 512
"""Bytes of stack that a call takes at most, of nearly all models; only a run knows."""


@dataclass(frozen=True)
class Budget:
    """The most bytes that a model may take; None is no limit. UsageError unless they are positive.

    `ram` counts all of the arena, the state and copies of weights, not the stack; `flash` counts weights and code, by
    an estimate, or as built where no program would fit by that.
    """

    ram: int | None = None
    flash: int | None = None

    def __post_init__(self) -> None:
        for option, value in (("--max-ram", self.ram), ("--max-flash", self.flash)):
            if value is not None and value <= 0:
                raise UsageError(f"{option} must be a positive number of bytes", f"{value}", "e.g. 20000, or 20KB")

    @classmethod
    def of(cls, options: CompileOptions) -> Budget:
        """What a user asks for."""
        return cls(options.max_ram, options.max_flash)

    def __str__(self) -> str:
        limits = (("--max-ram", self.ram), ("--max-flash", self.flash))
        return " and ".join(f"{option} {value:,}" for option, value in limits if value is not None)

    @property
    def limits(self) -> tuple[str, ...]:
        """The goals that serve what is limited."""
        return tuple(name for name, value in (("ram", self.ram), ("flash", self.flash)) if value is not None)

    def narrowed(self, use: Use) -> Budget:
        """With a limit for what a program takes more of than the board has; that of the board, if it is the lower."""
        ram = _narrowed(self.ram, use.ram, use.ram_lacking)
        return Budget(ram, _narrowed(self.flash, use.flash, use.flash_lacking))

    def excess(self, use: Use) -> float:
        """By how much more than allowed a program takes, or than the board has, as shares of that, added up; 0 if it
        fits.
        """
        narrow = self.narrowed(use)
        pairs = ((use.ram, narrow.ram), (use.flash, narrow.flash))
        return sum(max(taken - allowed, 0) / allowed for taken, allowed in pairs if allowed is not None)


def _narrowed(limit: int | None, taken: int, lacking: int) -> int | None:
    if not lacking:
        return limit
    room = max(taken - lacking, 1)
    return room if limit is None else min(limit, room)


@dataclass(frozen=True)
class Use:
    """Bytes of RAM and flash that a program takes; that of flash is an estimate. So many of them the board has not,
    beside STACK.
    """

    ram: int
    flash: int
    ram_lacking: int = 0
    flash_lacking: int = 0
    lacking_in: str = ""
    """The memories that RAM is lacking in, where some were asked for."""

    @property
    def lacks(self) -> bool:
        """Whether the board has no room for the program."""
        return bool(self.ram_lacking or self.flash_lacking)


@dataclass(frozen=True)
class Attempt:
    """A planned program, and the name of the step that it was made by."""

    step: str
    program: Program
    use: Use
    goal: str = ""
    """What the step makes it for, if that is all it does."""
    copies: Copies | None = None
    """Of its constants, those that pay; None before that is known."""
    built: int | None = None
    """Bytes of its code, where it was built to know them."""

    @property
    def waits(self) -> float:
        """Cycles that the CPU waits for constants with these copies, by estimate."""
        return self.copies.waits if self.copies else 0.0

    @property
    def time(self) -> float:
        """Instructions, and cycles of waiting, by estimate."""
        return self.instructions + self.waits

    @property
    def instructions(self) -> float:
        """As estimated; 0 where no layer has a choice of kernels."""
        return self.program.instructions_estimate or 0.0


@dataclass(frozen=True)
class Fit:
    """What was taken for a budget, and what it would have been without one.

    Where layers are computed row by row, `layer_by_layer` are the instructions without that, by estimate.
    """

    budget: Budget
    taken: Attempt
    asked: Attempt
    layer_by_layer: float | None = None

    @property
    def program(self) -> Program:
        """The compiled program of the attempt that was taken."""
        return self.taken.program

    def placed(self, board: Board, options: CompileOptions) -> Fit:
        """As it is in the board's memories: an arena in several may take more. DoesNotFitError if that is too much."""
        taken = replace(self.taken, use=use_of(self.program, board, options, self.taken.built))
        return replace(self, taken=cheapest([taken], self.budget, board))

    @property
    def rows_slowdown(self) -> float | None:
        """By which share computing layers row by row made it slower, by estimate; None without such layers."""
        return self.taken.instructions / self.layer_by_layer - 1 if self.layer_by_layer else None

    @property
    def slowdown(self) -> float | None:
        """By which share of the instructions the budget made it slower, by estimate; None where that is unknown."""
        return self.taken.instructions / self.asked.instructions - 1 if self.asked.instructions else None

    def notes(self, board: Board, goal: str) -> list[str]:
        """What was done to make a program fit the board that did not as asked for, and what it costs."""
        asked, taken = self.asked.use, self.taken.use
        if not asked.lacks or self.taken.step == self.asked.step:  # as built it fits
            return []
        found = [f"{asked.ram:,} bytes of RAM"] * bool(asked.ram_lacking)
        found += [f"about {asked.flash:,} bytes of flash"] * bool(asked.flash_lacking)
        price = f", about {100 * self.slowdown:+.0f} % instructions" if self.slowdown else ""
        got = f"{taken.ram:,} bytes of RAM, about {taken.flash:,} of flash{price}"
        why = f"--optimize {goal} as such takes {' and '.join(found)}, more than board '{board.name}' has"
        return [f"{why}: {self.taken.step}, {got}"]


def calls_of(program: Program) -> list[list[Instr]]:
    """The calls of each function of kernels."""
    found: dict[object, list[Instr]] = {}
    for instr in program.instrs:
        if instr.control is Control.NONE and not instr.moves_nothing:
            found.setdefault(instr.function_key, []).append(instr)
    return list(found.values())


def code_of_calls(calls: Sequence[Instr]) -> int:
    """Bytes that calling a function takes, by estimate; parameters once for calls that are alike."""
    return CALL * len(calls) + 4 * sum(
        {tuple(i.params.values()): len(i.params.keys() - i.baked) for i in calls}.values()
    )


def most_code(program: Program, board: Board) -> int:
    """Bytes that a program's code hardly exceeds: as if each function were called by several layers."""
    costs, functions = cost_table(board.cpu), calls_of(program)
    code = costs.code_of({calls[0].function_key: calls[0].kernel for calls in functions})
    called = sum(code.values()) + sum(code_of_calls(calls) for calls in functions)
    return max(MOST_BASE + _soft_floats(functions, board) + called, code_of(program, board))


def code_of(program: Program, board: Board) -> int:
    """Bytes of a program's code, by estimate. Functions that are called once are inlined, calls and all."""
    costs, functions = cost_table(board.cpu), calls_of(program)
    several = [calls for calls in functions if len(calls) > 1]
    code = BASE + sum(costs.code_once(calls[0].kernel) for calls in functions if len(calls) == 1)
    code += sum(costs.code_of_several(calls[0].kernel) + code_of_calls(calls) for calls in several)
    code += sum(costs.code_of_helpers(kernel) for kernel in {calls[0].kernel for calls in several})
    return code + _soft_floats(functions, board)


def _soft_floats(functions: Sequence[Sequence[Instr]], board: Board) -> int:
    """Bytes of the C library's arithmetic of floats, where functions need it and the CPU has none."""
    has_floats = any(o.buffer.dtype.is_float for calls in functions for o in calls[0].operands)
    return cost_table(board.cpu).soft_floats * (has_floats and "fpu" not in board.features)


def use_of(program: Program, board: Board, options: CompileOptions, code: int | None = None) -> Use:
    """What a planned program takes, whose `code` takes so many bytes, or else hardly more: what is taken shall fit."""
    code = most_code(program, board) if code is None else code
    copies = copied_bytes(program, board, options.place)
    ram, flash = sum(program.area_sizes) + program.state_size + copies, program.weights_size + code
    in_memories = ram_lacking(program, board, options.place, options.may_spill)
    ram_lacks, lacking_in = max(in_memories, (ram + STACK - board.total_ram, ""))
    flash_lacks = max(flash_lacking(program, board, options.place), flash - board.total_flash)
    return Use(ram, flash, max(ram_lacks, 0), max(flash_lacks, 0), lacking_in)


def likely_use(program: Program, board: Board, options: CompileOptions) -> Use:
    """The same, with as much code as is likely."""
    return use_of(program, board, options, code_of(program, board))


def hoped_use(program: Program, board: Board, options: CompileOptions) -> Use:
    """The same, with the code that it may take with luck."""
    return use_of(program, board, options, round(HOPED_CODE * code_of(program, board)))


def waits_when_placed(program: Program, board: Board, places: Places) -> tuple[float, float]:
    """Cycles that a call waits for constants and for what the arena holds, in the memories where all that would lie;
    infinite where it cannot.
    """
    before = Planned.of(program)
    try:
        placement = place(program, board, places)
        constants = constants_of(program, board, placement.weights)
        waits = (c.waits(board, placement.copies.get(c.buffer, placement.weights)) or 0.0 for c in constants)
        return sum(waits), waits_of(program, board, placement.arenas)
    except DoesNotFitError:
        return math.inf, math.inf
    finally:
        before.restore(program)


def cheapest(
    attempts: Sequence[Attempt],
    budget: Budget,
    board: Board | None = None,
    time: Callable[[Attempt], float] = attrgetter("time"),
    built: Callable[[Attempt], Attempt] | None = None,
) -> Attempt:
    """Of those that fit the one that takes the least time, the first of several. DoesNotFitError if none fits.

    Where none fits by estimate, or what does is DEAR beside others, these take as much code as they have where they are
    `built`, the fastest first. Weights by a code are not thought dear: a limit of flash asks for them.
    """
    fitting = [a for a in attempts if not budget.excess(a.use)]
    surely = min(fitting, key=time, default=None)
    attempts = sorted(attempts, key=time)
    for number, attempt in enumerate(attempts if built else ()):
        if surely is not None and (DEAR * time(attempt) >= time(surely) or _decodes(surely)):
            break
        assert built is not None
        attempts[number] = built(attempt)
        if not budget.excess(attempts[number].use):
            return attempts[number]
    if surely is None:
        raise _refusal(min(attempts, key=lambda a: budget.excess(a.use)), budget, board)
    return surely


def _decodes(made: Attempt) -> bool:
    return any(instr.kernel == DECODE_WEIGHTS for instr in made.program.instrs)


def _refusal(nearest: Attempt, budget: Budget, board: Board | None) -> DoesNotFitError:
    """What the nearest that was found takes, and what dominates it."""
    use, program = nearest.use, nearest.program
    limits = budget.narrowed(use)
    found = []
    if limits.ram is not None and use.ram > limits.ram:
        peak = busiest(moments(program))
        names = [shortened(i.name) for i in program.instrs]
        where = f"layer '{names[peak.index]}'" if 0 <= peak.index < len(names) else "the call"
        state = f", {program.state_size:,} of state" if program.state_size else ""
        copied = use.ram - sum(program.area_sizes) - program.state_size
        copies = f", {copied:,} of copied weights" if copied else ""
        than = f"{use.lacking_in} can hold" if use.lacking_in else "there are beside the stack"
        more = f", {use.ram_lacking:,} more than {than}" if use.ram_lacking else ""
        found.append(f"{use.ram:,} bytes of RAM{more} ({where}: {largest(peak.buffers)}{state}{copies})")
    if limits.flash is not None and use.flash > limits.flash:
        constants = [b for b in program.buffers if b.space is Space.CONST]
        more = f", {use.flash_lacking:,} more than there are" if use.flash_lacking else ""
        weights = f"{program.weights_size:,} of weights ({largest(constants)})"
        found.append(f"about {use.flash:,} bytes of flash{more}, {weights}")
    what = "the least is" if len(limits.limits) == 1 else "the nearest is"
    how = f"{nearest.step} (--optimize {nearest.goal})" if nearest.goal else nearest.step
    rules, remedy = [str(budget)] * bool(budget.limits), "allow more, or use a smaller or a quantized model"
    if board and use.lacks:
        rules.insert(0, f"board '{board.name}'")
        has_room = use.ram_lacking > 0 and use.ram + STACK <= board.total_ram
        several = "let it lie in several memories with --place auto, or " if has_room else ""
        remedy = f"{several}use a smaller or a quantized model, or a board with more memory"
    return DoesNotFitError(f"the model must fit {' and '.join(rules)}", f"{what} {' and '.join(found)}, {how}", remedy)
