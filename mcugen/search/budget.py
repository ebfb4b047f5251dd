# SPDX-License-Identifier: Apache-2.0
"""Budgets of RAM and flash: what a program uses of both, and the choice among candidate programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from mcugen.core.board import Board
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import CompileOptions, Places
from mcugen.hir.layer_names import shorten_name
from mcugen.kernels.cost import cost_table
from mcugen.lir.kernel import HARD_FLOATS
from mcugen.lir.layer_titles import titles_of
from mcugen.lir.program import DECODE_WEIGHTS, Control, Instr, Program, Space
from mcugen.memory.areas import split_arena_stall_cycles
from mcugen.memory.constant_stalls import constant_reads
from mcugen.memory.peak import busiest, largest, moments
from mcugen.memory.place import copied_bytes, flash_lacking, place, ram_lacking
from mcugen.memory.plan import Planned
from mcugen.search.metrics import Metrics, Use
from mcugen.search.objective import TOLERANCES, Budget
from mcugen.search.plan import ProgramCandidate

BASE_CODE_BYTES = 512
"""Estimated bytes of code that every program needs besides its kernels, with common parts of the C library."""

MAX_BASE_CODE_BYTES = 1024
"""Upper estimate of BASE_CODE_BYTES, used if the real code must not exceed the estimate."""

CALL_CODE_BYTES = 24
"""Bytes of code per call of a function that has several callers, without the call's parameters of four bytes each."""

STACK_RESERVE_BYTES = 512
"""Bytes of RAM kept free for the stack: nearly all models need less. The exact depth is known only from a run."""


@dataclass(frozen=True)
class Fit:
    """The result of a program search: the chosen program, and the program for the requested goal without a budget.

    Attributes:
        budget: The limits that the chosen program keeps to.
        chosen: The chosen program with its cost.
        requested: The program that the goal alone would give.
        layer_by_layer: Estimated instructions per call if all layers are computed one by one; None if the chosen
            program computes no layers together row by row.
    """

    budget: Budget
    chosen: ProgramCandidate
    requested: ProgramCandidate
    layer_by_layer: float | None = None

    @property
    def program(self) -> Program:
        """Return the chosen program."""
        return self.chosen.program

    def placed(self, board: Board, options: CompileOptions) -> Fit:
        """Return the result with the RAM and flash that the program takes once it is placed in the board's memories.

        An arena that is split over several memories may take more bytes than one in a single memory.

        Args:
            board: The board with its memories.
            options: Options with the choice of memories.

        Raises:
            DoesNotFitError: If the placed program exceeds the budget or the board.
        """
        metrics = self.chosen.metrics
        use = use_of(self.program, board, options, metrics.code_bytes)
        candidate = replace(self.chosen, metrics=replace(metrics, use=use))
        return replace(self, chosen=cheapest([candidate], self.budget, board))

    @property
    def line_buffering_slowdown(self) -> float | None:
        """Return the estimated slowdown by line buffering, 0.1 for 10 % more instructions.

        Return None if the program has no line-buffered groups: layers that are computed together row by row.
        """
        return self.chosen.instructions / self.layer_by_layer - 1 if self.layer_by_layer else None

    @property
    def slowdown(self) -> float | None:
        """Return the share of instructions that the budget adds to the requested program, 0.1 for 10 %.

        Return None if there is no estimate of the instructions.
        """
        return self.chosen.instructions / self.requested.instructions - 1 if self.requested.instructions else None

    def notes(self, board: Board, goal: str) -> list[str]:
        """Return notes for the user on what was changed to make the program fit the board, and what the change costs.

        The list is empty if nothing was changed. `goal` is the requested optimization goal, which the note names.
        """
        requested_use, final_use = self.requested.use, self.chosen.use
        if not requested_use.lacks or self.chosen.name == self.requested.name:  # It fits with its measured code.
            return []
        excesses = [f"{requested_use.ram:,} bytes of RAM"] * bool(requested_use.ram_lacking)
        excesses += [f"about {requested_use.flash:,} bytes of flash"] * bool(requested_use.flash_lacking)
        price = f", about {100 * self.slowdown:+.0f} % instructions" if self.slowdown else ""
        summary = f"{final_use.ram:,} bytes of RAM, about {final_use.flash:,} of flash{price}"
        reason = f"--optimize {goal} as such takes {' and '.join(excesses)}, more than board '{board.name}' has"
        return [f"{reason}: {self.chosen.name}, {summary}"]


def calls_of(program: Program) -> list[list[Instr]]:
    """Return the instructions of a program, one list for each kernel function that they call."""
    calls_by_function: dict[object, list[Instr]] = {}
    for instr in program.instrs:
        if instr.control is Control.NONE and not instr.moves_nothing:
            calls_by_function.setdefault(instr.function_key, []).append(instr)
    return list(calls_by_function.values())


def call_code_bytes(calls: Sequence[Instr]) -> int:
    """Return the estimated bytes of code and parameters of all calls of one function.

    Calls with equal parameters share one copy of the parameters.
    """
    return CALL_CODE_BYTES * len(calls) + 4 * sum(
        {tuple(i.params.values()): len(i.params.keys() - i.baked) for i in calls}.values()
    )


def max_code_bytes(program: Program, board: Board) -> int:
    """Return an upper estimate of the bytes of a program's code, as if no function were inlined into its caller."""
    costs, functions = cost_table(board.cpu), calls_of(program)
    code = costs.code_of({calls[0].function_key: calls[0].kernel for calls in functions})
    called = sum(code.values()) + sum(call_code_bytes(calls) for calls in functions)
    return max(MAX_BASE_CODE_BYTES + _soft_floats(functions, board) + called, likely_code_bytes(program, board))


def likely_code_bytes(program: Program, board: Board) -> int:
    """Return the likely bytes of a program's code, as if the compiler inlines each function with only one caller."""
    costs, functions = cost_table(board.cpu), calls_of(program)
    several = [calls for calls in functions if len(calls) > 1]
    code = BASE_CODE_BYTES + sum(costs.code_once(calls[0].kernel) for calls in functions if len(calls) == 1)
    code += sum(costs.code_of_several(calls[0].kernel) + call_code_bytes(calls) for calls in several)
    code += sum(costs.code_of_helpers(kernel) for kernel in {calls[0].kernel for calls in several})
    return code + _soft_floats(functions, board)


def _soft_floats(functions: Sequence[Sequence[Instr]], board: Board) -> int:
    """Return the bytes of the C library's software floating point, if functions need it and the CPU has no FPU."""
    has_floats = any(o.buffer.dtype.is_float for calls in functions for o in calls[0].operands)
    has_fpu = bool(board.features & {"fpu", HARD_FLOATS})
    return cost_table(board.cpu).soft_floats * (has_floats and not has_fpu)


def use_of(program: Program, board: Board, options: CompileOptions, code: int | None = None) -> Use:
    """Return the RAM and flash that a planned program uses.

    Args:
        program: A program with a memory plan.
        board: The board that it must fit.
        options: Options with the placement of arena and weights.
        code: Bytes of its code; None for an upper estimate, so that a program that fits by the estimate really fits.
    """
    code = max_code_bytes(program, board) if code is None else code
    copies = copied_bytes(program, board, options.place)
    ram, flash = sum(program.area_sizes) + program.state_size + copies, program.weights_size + code
    in_memories = ram_lacking(program, board, options.place, options.may_spill)
    ram_lacks, lacking_in = max(in_memories, (ram + STACK_RESERVE_BYTES - board.total_ram, ""))
    flash_lacks = max(flash_lacking(program, board, options.place), flash - board.total_flash)
    return Use(ram, flash, max(ram_lacks, 0), max(flash_lacks, 0), lacking_in)


def optimistic_use(program: Program, board: Board, options: CompileOptions) -> Use:
    """Return the RAM and flash that a program uses if its code is smaller than estimated, by a likely ratio.

    The ratio is Tolerances.optimistic_code_ratio.

    Args:
        program: A program with a memory plan.
        board: The board that it must fit.
        options: Options with the placement of arena and weights.
    """
    return use_of(program, board, options, round(TOLERANCES.optimistic_code_ratio * likely_code_bytes(program, board)))


def placed_stall_cycles(program: Program, board: Board, places: Places) -> tuple[float, float]:
    """Return the stall cycles per call for reading constants and for accessing the arena, once both are placed.

    Args:
        program: A program with a memory plan, which is restored afterwards.
        board: The board with its memories.
        places: The memories requested for arena and weights.

    Returns:
        The stall cycles for constants and those for the arena; both are infinite if the program cannot be placed.
    """
    saved_plan = Planned.of(program)
    try:
        placement = place(program, board, places)
        constants = constant_reads(program, board, placement.weights)
        waits = (c.stall_cycles(board, placement.copies.get(c.buffer, placement.weights)) or 0.0 for c in constants)
        return sum(waits), split_arena_stall_cycles(program, board, placement.arenas)
    except DoesNotFitError:
        return math.inf, math.inf
    finally:
        saved_plan.restore(program)


def cheapest(
    candidates: Sequence[ProgramCandidate],
    budget: Budget,
    board: Board | None = None,
    metrics: Callable[[ProgramCandidate], Metrics] = attrgetter("metrics"),
    built: Callable[[ProgramCandidate], ProgramCandidate] | None = None,
) -> ProgramCandidate:
    """Return the fastest candidate that fits the budget; of equally fast ones, the first.

    The size of a candidate's code is an estimate, which may be too large. With `built`, candidates are therefore
    compiled, the fastest first, and the first that fits is returned. A candidate is compiled only if no candidate fits
    by estimate, or if it is faster than the best one that does by more than the factor
    Tolerances.min_slowdown_to_build. If that best one has compressed weights, no candidate is compiled.

    Args:
        candidates: The candidates.
        budget: The limits that they must keep to.
        board: The board, for the text of the error.
        metrics: Returns the metrics whose time is minimized.
        built: Returns a candidate with its measured code size; None to use estimates only.

    Raises:
        DoesNotFitError: If no candidate fits.
    """

    def time(candidate: ProgramCandidate) -> float:
        return metrics(candidate).time

    fitting = [a for a in candidates if not budget.excess(a.use)]
    best_fit = min(fitting, key=time, default=None)
    candidates = sorted(candidates, key=time)
    for number, candidate in enumerate(candidates if built else ()):
        if best_fit is not None and (
            TOLERANCES.min_slowdown_to_build * time(candidate) >= time(best_fit) or _decodes(best_fit)
        ):
            break
        assert built is not None
        candidates[number] = built(candidate)
        if not budget.excess(candidates[number].use):
            return candidates[number]
    if best_fit is None:
        raise _refusal(min(candidates, key=lambda a: budget.excess(a.use)), budget, board)
    return best_fit


def _decodes(candidate: ProgramCandidate) -> bool:
    return any(instr.kernel == DECODE_WEIGHTS for instr in candidate.program.instrs)


def _refusal(nearest: ProgramCandidate, budget: Budget, board: Board | None) -> DoesNotFitError:
    """Return the error that names the nearest candidate, its excess, and the largest buffers at its peak."""
    use, program = nearest.use, nearest.program
    limits = budget.narrowed(use)
    excesses = []
    if limits.ram is not None and use.ram > limits.ram:
        peak = busiest(moments(program))
        titles = titles_of(program)
        names = [shorten_name(titles[i.name]) for i in program.instrs]
        where = f"layer '{names[peak.index]}'" if 0 <= peak.index < len(names) else "the call"
        state = f", {program.state_size:,} of state" if program.state_size else ""
        copied = use.ram - sum(program.area_sizes) - program.state_size
        copies = f", {copied:,} of copied weights" if copied else ""
        than = f"{use.lacking_in} can hold" if use.lacking_in else "there are beside the stack"
        excess_text = f", {use.ram_lacking:,} more than {than}" if use.ram_lacking else ""
        excesses.append(
            f"{use.ram:,} bytes of RAM{excess_text} ({where}: {largest(program, peak.buffers)}{state}{copies})"
        )
    if limits.flash is not None and use.flash > limits.flash:
        constants = [b for b in program.buffers if b.space is Space.CONST]
        excess_text = f", {use.flash_lacking:,} more than there are" if use.flash_lacking else ""
        weights = f"{program.weights_size:,} of weights ({largest(program, constants)})"
        excesses.append(f"about {use.flash:,} bytes of flash{excess_text}, {weights}")
    prefix = "the least is" if len(limits.limits) == 1 else "the nearest is"
    step_text = f"{nearest.name} (--optimize {nearest.goal})" if nearest.goal else nearest.name
    rules, remedy = [str(budget)] * bool(budget.limits), "allow more, or use a smaller or a quantized model"
    if board and use.lacks:
        rules.insert(0, f"board '{board.name}'")
        has_room = use.ram_lacking > 0 and use.ram + STACK_RESERVE_BYTES <= board.total_ram
        several = "let it lie in several memories with --place auto, or " if has_room else ""
        remedy = f"{several}use a smaller or a quantized model, or a board with more memory"
    return DoesNotFitError(
        f"the model must fit {' and '.join(rules)}", f"{prefix} {' and '.join(excesses)}, {step_text}", remedy
    )
