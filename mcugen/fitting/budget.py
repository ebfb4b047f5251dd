# SPDX-License-Identifier: Apache-2.0
"""How much RAM and flash a user allows: what programs take of both, and which of several is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcugen.board import Board
from mcugen.errors import DoesNotFitError, UsageError
from mcugen.kernels.cost import cost_table
from mcugen.lir.program import Control, Program, Space
from mcugen.memory.peak import busiest, largest, moments, shortened
from mcugen.memory.place import copied_bytes
from mcugen.options import CompileOptions

BASE = 1024
"""Bytes of code that any model takes."""

CALL = 24
"""Bytes of code that calling a kernel takes; its parameters take four each."""


@dataclass(frozen=True)
class Budget:
    """The most bytes that a model may take; None is no limit. UsageError unless they are positive.

    `ram` counts all of the arena, the state and copies of weights, not the stack; `flash` counts weights and an
    estimate of code.
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

    def excess(self, use: Use) -> float:
        """By how much more than allowed a program takes, as shares of what is allowed, added up; 0 if it fits."""
        pairs = ((use.ram, self.ram), (use.flash, self.flash))
        return sum(max(taken - allowed, 0) / allowed for taken, allowed in pairs if allowed is not None)


@dataclass(frozen=True)
class Use:
    """Bytes of RAM and flash that a program takes; that of flash is an estimate."""

    ram: int
    flash: int


@dataclass(frozen=True)
class Attempt:
    """A planned program, and the name of the step that it was made by."""

    step: str
    program: Program
    use: Use

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
        """What was taken."""
        return self.taken.program

    def placed(self, board: Board, options: CompileOptions) -> Fit:
        """As it is in the board's memories: an arena in several may take more. DoesNotFitError if that is too much."""
        taken = replace(self.taken, use=use_of(self.program, board, options))
        return replace(self, taken=cheapest([taken], self.budget))

    @property
    def rows_slowdown(self) -> float | None:
        """By which share computing layers row by row made it slower, by estimate; None without such layers."""
        return self.taken.instructions / self.layer_by_layer - 1 if self.layer_by_layer else None

    @property
    def slowdown(self) -> float | None:
        """By which share of the instructions the budget made it slower, by estimate; None where that is unknown."""
        return self.taken.instructions / self.asked.instructions - 1 if self.asked.instructions else None


def use_of(program: Program, board: Board, options: CompileOptions) -> Use:
    """What a planned program takes."""
    costs = cost_table(board.cpu)
    calls = [i for i in program.instrs if i.control is Control.NONE and not i.moves_nothing]
    functions = {i.function_key: i.kernel for i in calls}
    code = BASE + sum(costs.code_of(kernel) for kernel in functions.values())
    code += sum(CALL + 4 * len(i.params.keys() - i.baked) for i in calls)
    copies = copied_bytes(program, board, options.place)
    return Use(sum(program.area_sizes) + program.state_size + copies, program.weights_size + code)


def cheapest(attempts: Sequence[Attempt], budget: Budget) -> Attempt:
    """Of those that fit the one with the fewest instructions, the first of several. DoesNotFitError if none fits."""
    fitting = [a for a in attempts if not budget.excess(a.use)]
    if not fitting:
        raise _refusal(min(attempts, key=lambda a: budget.excess(a.use)), budget)
    return min(fitting, key=lambda a: a.instructions)


def _refusal(nearest: Attempt, budget: Budget) -> DoesNotFitError:
    """What the nearest that was found takes, and what dominates it."""
    use, program = nearest.use, nearest.program
    found = []
    if budget.ram is not None and use.ram > budget.ram:
        peak = busiest(moments(program))
        names = [shortened(i.name) for i in program.instrs]
        where = f"layer '{names[peak.index]}'" if 0 <= peak.index < len(names) else "the call"
        state = f", {program.state_size:,} of state" if program.state_size else ""
        copied = use.ram - sum(program.area_sizes) - program.state_size
        copies = f", {copied:,} of copied weights" if copied else ""
        found.append(f"{use.ram:,} bytes of RAM ({where}: {largest(peak.buffers)}{state}{copies})")
    if budget.flash is not None and use.flash > budget.flash:
        constants = [b for b in program.buffers if b.space is Space.CONST]
        found.append(f"about {use.flash:,} bytes of flash, {program.weights_size:,} of weights ({largest(constants)})")
    what = "the least is" if len(budget.limits) == 1 else "the nearest is"
    return DoesNotFitError(
        f"the model must fit {budget}",
        f"{what} {' and '.join(found)}, {nearest.step}",
        "allow more, or use a smaller or a quantized model",
    )
