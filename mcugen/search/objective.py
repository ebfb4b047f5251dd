# SPDX-License-Identifier: Apache-2.0
"""The objective of a program search: goal, budgets of RAM and flash, and the tolerances of all comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.kernels.choose import AMPLE_MEMORY_FRACTION, MAX_BALANCED_SLOWDOWN, MAX_FLASH_EXCESS_RATIO

NO_EVIDENCE = "chosen by judgement; no measurement is recorded"
"""Evidence of a tolerance without a measurement behind it."""


def _tolerance(default: float, *, unit: str, meaning: str, evidence: str = NO_EVIDENCE) -> float:
    """Return a dataclass field with a default and its documentation; the declared type is that of the default."""
    documented: float = field(default=default, metadata={"unit": unit, "meaning": meaning, "evidence": evidence})
    return documented


@dataclass(frozen=True)
class Tolerance:
    """One row of the table of tolerances: a number by which the search accepts or rejects a candidate."""

    name: str
    value: float
    unit: str
    meaning: str
    evidence: str
    """The measurement behind the value, or NO_EVIDENCE."""


@dataclass(frozen=True)
class Tolerances:
    """All tolerances of the program search, each with its unit, meaning and evidence; see `rows`."""

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
        evidence="on the nRF5340, one network takes 3 % more time with two cores (docs/two_cores.md)",
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

    def rows(self) -> Iterator[Tolerance]:
        """Yield the table, one row per tolerance."""
        for entry in fields(self):
            yield Tolerance(entry.name, getattr(self, entry.name), **entry.metadata)


TOLERANCES = Tolerances()
"""The tolerances that all modules of the search use."""


@dataclass(frozen=True)
class Use:
    """The RAM and flash that a program uses, in bytes, and by how much the board lacks them.

    Flash is an estimate unless the code was built. RAM is lacking where less than STACK_RESERVE_BYTES would remain.
    """

    ram: int
    flash: int
    ram_lacking: int = 0
    flash_lacking: int = 0
    lacking_in: str = ""
    """The memories that lack RAM, where the user chose memories."""

    @property
    def lacks(self) -> bool:
        """Return whether the board has no room for the program."""
        return bool(self.ram_lacking or self.flash_lacking)


@dataclass(frozen=True)
class Budget:
    """The RAM and flash in bytes that a model may use; None means no limit.

    `ram` counts the whole arena, the state and copies of weights, but not the stack. `flash` counts weights and code.
    The code is an estimate, or measured by compiling where no program would fit by the estimate.

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
        """Return the budget that the user set."""
        return cls(options.max_ram, options.max_flash)

    def __str__(self) -> str:
        limits = (("--max-ram", self.ram), ("--max-flash", self.flash))
        return " and ".join(f"{option} {value:,}" for option, value in limits if value is not None)

    @property
    def limits(self) -> tuple[str, ...]:
        """Return which of `ram` and `flash` are limited."""
        return tuple(name for name, value in (("ram", self.ram), ("flash", self.flash)) if value is not None)

    def narrowed(self, use: Use) -> Budget:
        """Return the budget lowered to what the board has, for each memory that the program exceeds."""
        ram = _narrowed(self.ram, use.ram, use.ram_lacking)
        return Budget(ram, _narrowed(self.flash, use.flash, use.flash_lacking))

    def excess(self, use: Use) -> float:
        """Return the excess of RAM and of flash, each as a share of its limit, added up; 0 if all fits."""
        limits = self.narrowed(use)
        pairs = ((use.ram, limits.ram), (use.flash, limits.flash))
        return sum(max(used - allowed, 0) / allowed for used, allowed in pairs if allowed is not None)


def _narrowed(limit: int | None, used: int, lacking: int) -> int | None:
    if not lacking:
        return limit
    room = max(used - lacking, 1)
    return room if limit is None else min(limit, room)


@dataclass(frozen=True)
class Objective:
    """The objective of a search: the goal, the budgets that a program must keep to, and the tolerances."""

    goal: str
    budget: Budget
    tolerances: Tolerances = TOLERANCES

    @classmethod
    def of(cls, options: CompileOptions) -> Objective:
        """Return the objective that the user set."""
        return cls(options.optimize, Budget.of(options))

    def is_clearly_faster(self, time: float, incumbent_time: float) -> bool:
        """Return whether a candidate is so much faster than another that errors of the estimates cannot be the reason.

        Args:
            time: Estimated time of the candidate, in cycles or instructions.
            incumbent_time: Estimated time, in the same unit, of the program that the candidate would replace.
        """
        return time < self.tolerances.max_replacement_time_ratio * incumbent_time
