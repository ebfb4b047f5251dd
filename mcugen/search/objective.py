# SPDX-License-Identifier: Apache-2.0
"""The objective of a program search: goal, budgets of RAM and flash, and the tolerances of all comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

from mcugen.core.board import Board
from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.kernels.choose import AMPLE_MEMORY_FRACTION, MAX_BALANCED_SLOWDOWN, MAX_FLASH_EXCESS_RATIO, Cost
from mcugen.search.metrics import Metrics, Use

NO_EVIDENCE = "chosen by judgement; no measurement is recorded"
"""Text in place of evidence for a tolerance whose value no recorded measurement supports."""


def _tolerance(default: float, *, unit: str, meaning: str, evidence: str = NO_EVIDENCE) -> float:
    """Return a dataclass field with a default and its documentation; the declared type is that of the default."""
    documented: float = field(default=default, metadata={"unit": unit, "meaning": meaning, "evidence": evidence})
    return documented


@dataclass(frozen=True)
class Tolerance:
    """A threshold by which the search accepts or rejects candidates, with its documentation."""

    name: str
    """The field of Tolerances."""
    value: float
    """The threshold, in `unit`."""
    unit: str
    """The unit of the value; for a ratio, the units of both terms, such as "bytes / bytes"."""
    meaning: str
    """What the value limits, as a sentence."""
    evidence: str
    """The measurement that supports the value, or NO_EVIDENCE."""


@dataclass(frozen=True)
class Tolerances:
    """All thresholds of the program search; the default of each field states its unit, meaning and evidence."""

    ample_memory_fraction: float = _tolerance(
        AMPLE_MEMORY_FRACTION,
        unit="bytes / bytes of the board",
        meaning="RAM or flash is ample where a program uses at most this share: to save more of it has no value.",
    )
    max_balanced_slowdown: float = _tolerance(
        MAX_BALANCED_SLOWDOWN,
        unit="time / time",
        meaning="Largest slowdown of `balanced` against the fastest program in ample memory.",
    )
    max_flash_excess_ratio: float = _tolerance(
        MAX_FLASH_EXCESS_RATIO,
        unit="bytes / bytes",
        meaning="Largest ratio of the flash of a `flash` program to the least flash: the excess may buy speed.",
    )
    max_ram_excess_ratio: float = _tolerance(
        1 + 1 / 64,
        unit="bytes / bytes",
        meaning="Largest ratio of the arena of a `ram` program to the least arena: the excess may buy speed.",
    )
    cycle_estimate_margin: float = _tolerance(
        0.985,
        unit="cycles / cycles",
        meaning="Safety factor on max_balanced_slowdown, as cycle estimates may be too low.",
        evidence="estimates are up to 1.5 % too low (make costs, 2026-11)",
    )
    instruction_estimate_error: float = _tolerance(
        0.04,
        unit="instructions / instructions",
        meaning="Largest error of estimated instructions where the kernels of all layers were measured.",
        evidence="estimates err by 4 % (MAX_FLASH_SLOWDOWN in kernels/choose.py)",
    )
    max_replacement_time_ratio: float = _tolerance(
        0.97,
        unit="time / time",
        meaning="For `speed`, largest ratio of a replacement's estimated time to that of the program it replaces.",
        evidence="the 3 % cover errors of the estimates",
    )
    max_trade_ratio: float = _tolerance(
        0.95,
        unit="(time * RAM * flash) / (time * RAM * flash)",
        meaning="Largest ratio to the unchanged program at which `balanced` tiles or compresses weights.",
    )
    max_grouped_trade_ratio: float = _tolerance(
        0.85,
        unit="(time * RAM * flash) / (time * RAM * flash)",
        meaning="Largest ratio to layers one by one at which `balanced` uses line-buffered groups. For less, layers "
        "stay separate in code and reports.",
    )
    max_patched_ram_ratio: float = _tolerance(
        0.97,
        unit="bytes / bytes",
        meaning="Largest ratio of estimated RAM with one more spatial tiling to that without, at which `ram` goes on.",
    )
    max_pairs_time_ratio: float = _tolerance(
        0.8,
        unit="instructions / instructions",
        meaning="Largest ratio of the time for two rows at once to that for single rows at which line-buffered groups "
        "compute rows in pairs.",
    )
    ram_estimate_margin: float = _tolerance(
        1.1,
        unit="bytes / bytes",
        meaning="Largest ratio of an estimated to a planned arena that still counts as a fit.",
        evidence="estimates of line-buffered groups are up to 10 % too high",
    )
    planned_arena_ratio: float = _tolerance(
        17 / 16,
        unit="bytes / bytes",
        meaning="Assumed ratio of a planned arena to the bytes that are live at once.",
        evidence="plans take some percent more than the live bytes",
    )
    min_code_ratio: float = _tolerance(
        0.75,
        unit="bytes / bytes",
        meaning="Least ratio of real to estimated code: a program that does not fit even then is not compiled.",
    )
    optimistic_code_ratio: float = _tolerance(
        0.9,
        unit="bytes / bytes",
        meaning="Ratio of real to estimated code that one more fallback assumes; its code is then compiled.",
    )
    min_slowdown_to_build: float = _tolerance(
        1.25,
        unit="time / time",
        meaning="Candidates that may fit are compiled if the candidate that surely fits is so many times as slow.",
        evidence="to compile a program takes seconds",
    )
    min_saved_stalls_per_instruction: float = _tolerance(
        0.1,
        unit="stall cycles / instruction",
        meaning="Least saving by all output-channel tiles together, as tiles add calls and code.",
    )
    min_copy_saving: float = _tolerance(
        0.01,
        unit="cycles / instruction",
        meaning="Least saving by all start-up copies of a part of the weights.",
    )
    min_stall_cycles: float = _tolerance(
        10_000,
        unit="cycles / call",
        meaning="Least stall cycles for weights at which `balanced` copies weights at start-up.",
    )
    max_copied_share: float = _tolerance(
        2 / 3,
        unit="bytes / bytes of the arena's memory",
        meaning="Largest share of a memory that start-up copies of weights take without being asked for.",
    )
    min_saved_cycles: float = _tolerance(
        200,
        unit="cycles / call",
        meaning="Least saving by one copy of a constant before its layer.",
        evidence="the code of a copy takes 20 to 50 bytes",
    )
    min_saved_share: float = _tolerance(
        0.001,
        unit="cycles / instruction",
        meaning="Least saving by one copy of a constant before its layer, as a share of the program's instructions.",
    )
    max_shared_ram_ratio: float = _tolerance(
        1.1,
        unit="bytes / bytes",
        meaning="Largest ratio of the RAM for two cores to that for one core, unless only speed counts.",
    )
    min_two_core_saving: float = _tolerance(
        0.02,
        unit="time / time",
        meaning="Least share of the estimated time that two cores must save to be used.",
        evidence="on the nRF5340, one network takes 3 % more time with two cores (docs/reference/figures/two_cores.md)",
    )
    max_constants_ratio: float = _tolerance(
        4 / 3,
        unit="bytes / bytes",
        meaning="Largest ratio of the constants of a layer's portions for two cores to those of the layer.",
    )
    max_large_form_time_ratio: float = _tolerance(
        0.75,
        unit="time / time",
        meaning="Largest ratio of the time of a partition with many more constants to that of one without.",
    )
    min_uneven_instructions: float = _tolerance(
        50_000,
        unit="instructions / call",
        meaning="Least instructions of a layer for which portions by two different kernels are tried.",
    )
    max_close_arena_ratio: float = _tolerance(
        1.05,
        unit="bytes / bytes",
        meaning="Largest ratio of an arena to the least one at which `ram` still tries faster kernels.",
    )
    min_part_memory_bytes: float = _tolerance(
        64 * 1024,
        unit="bytes",
        meaning="Smallest memory to which only some weights are copied: the firmware needs most of a smaller one.",
    )
    certain_weights_share: float = _tolerance(
        0.9,
        unit="bytes / bytes",
        meaning="Share of the weight bytes of a model quantized with few samples that the final model surely has. "
        "With all samples, more channels may turn out to be constant and need no weights.",
    )
    min_hinted_share: float = _tolerance(
        0.1,
        unit="cycles / cycle of a call",
        meaning="Least saving by an option for a hint to it.",
    )
    min_hinted_input_bytes: float = _tolerance(
        4096,
        unit="bytes",
        meaning="Smallest float input for which a hint to a smaller type is given.",
    )

    deadline_margin: float = _tolerance(
        0.95,
        unit="instructions / instructions",
        meaning="Safety factor on the instructions at which --max-latency expects the deadline, as cycles do not grow "
        "with instructions exactly.",
    )
    min_trial_share: float = _tolerance(
        0.01,
        unit="instructions / instructions",
        meaning="Least distance of two programs for which --max-latency builds one between them.",
        evidence="errors of the estimates",
    )
    max_cpi_ratio: float = _tolerance(
        2.0,
        unit="(cycles / instruction) / (cycles / instruction)",
        meaning="Largest ratio of cycles per instruction of two precisions of a model, up to which an estimate decides "
        "on a deadline without a run.",
        evidence="float32 stalls longer for results",
    )
    min_reported_ratio: float = _tolerance(
        1.02,
        unit="figure / figure",
        meaning="Least ratio of a figure of the quantized program to that of the float32 one to be reported.",
        evidence="errors of the estimates",
    )
    min_cost_growth: float = _tolerance(
        1e-3,
        unit="relative growth",
        meaning="Growth of cost below which raising a layer's precision counts as equally expensive as others.",
    )
    max_negligible_noise: float = _tolerance(
        0.05,
        unit="noise / noise of all layers",
        meaning="Largest share of noise that the quietest layers add together for their costs not to be computed.",
    )
    min_coding_saving: float = _tolerance(
        0.85,
        unit="bytes / bytes",
        meaning="Least ratio of the flash saved by an entropy code to the saving computed from its bit counts.",
    )
    max_coded_size_ratio: float = _tolerance(
        1.1,
        unit="bytes / bytes",
        meaning="Largest ratio of the constants with entropy codes to those with 4-bit weights, for an equal share of "
        "bytes.",
    )
    flash_estimate_margin: float = _tolerance(
        1.05,
        unit="bytes / bytes",
        meaning="Largest ratio of a flash estimate to the limit at which a program may still turn out to fit.",
    )
    max_widened_share: float = _tolerance(
        0.05,
        unit="bytes / bytes in int8",
        meaning="Excess of the program's constants over --max-weights that gets no note.",
        evidence="biases and multipliers count as well",
    )

    def rows(self) -> Iterator[Tolerance]:
        """Yield each tolerance with its name, value, unit, meaning and evidence."""
        for entry in fields(self):
            yield Tolerance(entry.name, getattr(self, entry.name), **entry.metadata)


TOLERANCES = Tolerances()
"""The tolerances that all modules of the search use."""


@dataclass(frozen=True)
class Budget:
    """The RAM and flash in bytes that a model may use; None means no limit.

    `ram` counts the whole arena, the state and copies of weights, but not the stack. `flash` counts weights and code.
    The size of the code is an estimate; it is measured by compiling if no program fits by the estimate.

    Raises:
        UsageError: If a limit is not positive.
    """

    ram: int | None = None
    flash: int | None = None

    def __post_init__(self) -> None:
        for option, value in (("--max-ram", self.ram), ("--max-flash", self.flash)):
            if value is not None and value <= 0:
                raise UsageError(f"{option} must be a positive number of bytes", f"{value}", "e.g. 20000, or 20KB")

    @classmethod
    def of(cls, options: CompileOptions) -> Budget:
        """Return the limits of RAM and flash that the user's options set."""
        return cls(options.max_ram, options.max_flash)

    def __str__(self) -> str:
        limits = (("--max-ram", self.ram), ("--max-flash", self.flash))
        return " and ".join(f"{option} {value:,}" for option, value in limits if value is not None)

    @property
    def limits(self) -> tuple[str, ...]:
        """Return the names of the memories that have a limit: "ram", "flash", both or none."""
        return tuple(name for name, value in (("ram", self.ram), ("flash", self.flash)) if value is not None)

    def narrowed(self, use: Use) -> Budget:
        """Return the budget with each limit lowered to what the board has, if a program needs more than that.

        Args:
            use: RAM and flash of the program, with the bytes that the board lacks for it.
        """
        ram = _narrowed(self.ram, use.ram, use.ram_lacking)
        return Budget(ram, _narrowed(self.flash, use.flash, use.flash_lacking))

    def excess(self, use: Use) -> float:
        """Return by how much a program exceeds the limits: relative excess of RAM plus that of flash, 0.1 for 10 %.

        The sum is 0 if the program fits. If a program needs more than the board has, the board's size is the limit.

        Args:
            use: RAM and flash of the program, with the bytes that the board lacks for it.
        """
        limits = self.narrowed(use)
        pairs = ((use.ram, limits.ram), (use.flash, limits.flash))
        return sum(max(used - allowed, 0) / allowed for used, allowed in pairs if allowed is not None)


def _narrowed(limit: int | None, used: int, lacking: int) -> int | None:
    if not lacking:
        return limit
    room = max(used - lacking, 1)
    return room if limit is None else min(limit, room)


@dataclass(frozen=True)
class Deadline:
    """The most cycles that a call may take on a board, and the option that set them."""

    cycles: int
    text: str
    """The option with its value, for messages, such as "--max-latency 20ms"."""

    @classmethod
    def of(cls, options: CompileOptions, board: Board) -> Deadline | None:
        """Return the deadline that the options set, in cycles of the board's clock; None if they set no deadline.

        Raises:
            UsageError: If there are two deadlines, or one of less than a cycle.
        """
        if options.max_cycles is not None and options.max_latency is not None:
            raise UsageError("only one deadline can be given", "--max-cycles and --max-latency", "leave one out")
        if options.max_latency is not None:
            text, cycles = f"--max-latency {1e3 * options.max_latency:g}ms", round(options.max_latency * board.clock_hz)
        elif options.max_cycles is not None:
            text, cycles = f"--max-cycles {options.max_cycles:,}", options.max_cycles
        else:
            return None
        if cycles < 1:
            raise UsageError("a deadline must be at least a cycle", text, "e.g. --max-latency 20ms")
        return cls(cycles, text)


@dataclass(frozen=True)
class Objective:
    """The objective of a search: the goal, the limits that a program must keep to, and the tolerances."""

    goal: str
    """What to optimize: one of the values of the option `optimize`, such as `balanced`."""
    budget: Budget
    """The limits of RAM and flash."""
    deadline: Deadline | None = None
    """The limit on the simulated cycles of a call; None for no limit."""
    max_step_cycles: int | None = None
    """The limit on the simulated cycles of each step of a call; None for no limit."""
    tolerances: Tolerances = TOLERANCES
    """The thresholds of all comparisons of candidates."""

    @classmethod
    def of(cls, options: CompileOptions) -> Objective:
        """Return the objective with the goal and the budget that the options set; it has no deadlines."""
        return cls(options.optimize, Budget.of(options))

    def order(self, metrics: Metrics) -> tuple[float, float]:
        """Return a sort key for candidates, the best first: the excess over the budget, then the time."""
        return self.budget.excess(metrics.use), metrics.time

    def rank(self, metrics: Metrics) -> float:
        """Return the logarithm of time · RAM · flash, weighted as the goal demands; a smaller rank is better."""
        return Cost(metrics.time, metrics.ram, metrics.flash).rank(self.goal)

    def serves_better(self, metrics: Metrics, incumbent: Metrics) -> bool:
        """Return whether a candidate serves the goal better than the incumbent and is not slower.

        Args:
            metrics: Metrics of the candidate.
            incumbent: Metrics of the program that the candidate would replace, of the same accuracy.
        """
        return metrics.time <= incumbent.time and self.rank(metrics) < self.rank(incumbent)

    def is_in_time(self, metrics: Metrics) -> bool:
        """Return whether simulated metrics keep to the limits on the cycles of a call and of its steps."""
        max_cycles = None if self.deadline is None else self.deadline.cycles
        limits = ((max_cycles, metrics.cycles), (self.max_step_cycles, metrics.step_cycles))
        return all(limit is None or (cycles is not None and cycles <= limit) for limit, cycles in limits)

    def is_clearly_faster(self, metrics: Metrics, incumbent: Metrics) -> bool:
        """Return whether a candidate is faster than the incumbent by more than the errors of the estimates.

        Args:
            metrics: Metrics of the candidate.
            incumbent: Metrics of the program that the candidate would replace, of the same accuracy.
        """
        return metrics.time < self.tolerances.max_replacement_time_ratio * incumbent.time

    def has_ample_ram(self, ram: int, board: Board) -> bool:
        """Return whether `ram` bytes are at most the share ample_memory_fraction of the board's RAM.

        To save more RAM then has no value.
        """
        return ram <= self.tolerances.ample_memory_fraction * board.total_ram


Item = TypeVar("Item")


def pareto_front(items: Sequence[Item], costs: Callable[[Item], tuple[float, ...]]) -> list[Item]:
    """Return the items that are not dominated: no other item is better in one cost and worse in none.

    Args:
        items: The items; of several items with equal costs, all are returned.
        costs: Returns the costs of an item, of which less is better.
    """
    known = [(item, costs(item)) for item in items]

    def is_dominated(own: tuple[float, ...]) -> bool:
        return any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for _, other in known)

    return [item for item, own in known if not is_dominated(own)]
