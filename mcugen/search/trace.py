# SPDX-License-Identifier: Apache-2.0
"""The trace of a program search: each candidate, its plan and metrics, and why it was chosen or rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mcugen.search.metrics import Metrics, Use
from mcugen.search.objective import Budget
from mcugen.search.plan import ProgramPlan


@dataclass(frozen=True)
class TraceEntry:
    """One candidate of a search, as it was last evaluated."""

    number: int
    """Its number among the candidates of the compilation, from 1."""
    search: str
    """The search that evaluated it, for example "balanced"; one compilation may run several."""
    candidate: str
    """Name of the candidate in messages."""
    transformation: str
    """Name of the kind of decision that led to the candidate."""
    plan: ProgramPlan
    """The decisions that made the candidate."""
    metrics: Metrics
    """The cost of the candidate."""
    verdict: str = ""
    """Why the candidate was chosen or rejected, in one sentence; "" until that is known."""
    is_chosen: bool = False
    """Whether it is the result of the compilation."""

    def to_json(self) -> dict[str, object]:
        """Return the candidate's decisions, metrics and verdict as a dictionary for JSON."""
        return {
            "number": self.number,
            "search": self.search,
            "candidate": self.candidate,
            "transformation": self.transformation,
            **self.metrics.to_json(),
            "chosen": self.is_chosen,
            "verdict": self.verdict,
            "plan": self.plan.to_json(),
        }


@dataclass
class SearchTrace:
    """A record of all candidates that the searches of one compilation evaluated, in their order.

    The trace has no effect on the searches.

    Attributes:
        entries: The candidates, numbered from 1.
    """

    entries: list[TraceEntry] = field(default_factory=list)

    def record(self, entry: TraceEntry) -> int:
        """Add a candidate and return its number.

        If a rejected candidate equals one that is recorded already, it is not added again; the number of the recorded
        one is returned.

        Args:
            entry: The candidate; its number is set by the trace.
        """
        if entry.verdict:
            for known in self.entries:
                if replace(known, number=entry.number) == entry:
                    return known.number
        number = len(self.entries) + 1
        self.entries.append(replace(entry, number=number))
        return number

    def update(self, number: int | None, plan: ProgramPlan, metrics: Metrics) -> None:
        """Replace the plan and metrics of a candidate that was evaluated again.

        Args:
            number: The number of the candidate; None does nothing.
            plan: Its decisions.
            metrics: Its cost.
        """
        if number is not None:
            self.entries[number - 1] = replace(self.entries[number - 1], plan=plan, metrics=metrics)

    def judge(self, number: int | None, verdict: str) -> None:
        """Set the verdict on the candidate with a number; if `number` is None, do nothing."""
        if number is not None:
            self.entries[number - 1] = replace(self.entries[number - 1], verdict=verdict)

    def choose(self, number: int | None, verdict: str) -> None:
        """Mark the candidate with a number as the only chosen one, and set its verdict; None does nothing."""
        if number is None:
            return
        self.entries = [replace(entry, is_chosen=entry.number == number) for entry in self.entries]
        self.judge(number, verdict)

    def close(self, search: str, chosen: int | None, budget: Budget) -> None:
        """Set the missing verdicts of a search that has ended: why each candidate was rejected.

        Args:
            search: The search that has ended.
            chosen: The number of its result; None if no candidate fits.
            budget: The limits of the search.
        """
        best = None if chosen is None else self.entries[chosen - 1]
        for entry in self.entries:
            if entry.search == search and not entry.verdict and entry is not best:
                self.judge(entry.number, rejection(entry, best, budget))

    def of(self, search: str) -> Iterator[TraceEntry]:
        """Yield the candidates of the search with the name `search`."""
        return (entry for entry in self.entries if entry.search == search)

    def to_json(self) -> dict[str, object]:
        """Return the candidates of all searches as a dictionary for JSON."""
        return {"search": [entry.to_json() for entry in self.entries]}


def rejection(entry: TraceEntry, best: TraceEntry | None, budget: Budget) -> str:
    """Return a sentence that says why a candidate was rejected.

    Args:
        entry: The rejected candidate.
        best: The chosen candidate, which the sentence compares with; None if no candidate fits.
        budget: The limits of RAM and flash, which the sentence names if the candidate exceeds them.
    """
    if excess := excess_of(entry.metrics.use, budget):
        return f"Rejected: {excess}."
    if best is None:
        return "Rejected."
    name, times = f"number {best.number}", (entry.metrics.time, best.metrics.time)
    if times[0] > times[1] > 0:
        return f"Rejected: fits, but takes {_percent(times[0] / times[1])} more time than {name}."
    if times[0] == times[1]:
        return f"Rejected: fits, but is not faster than {name}."
    return f"Rejected: fits, but {name} serves the goal better."


def excess_of(use: Use, budget: Budget) -> str:
    """Return a phrase that says by how much a program exceeds its RAM and flash limits; "" if it fits."""
    limits = budget.narrowed(use)
    pairs = (("RAM", use.ram, limits.ram), ("flash", use.flash, limits.flash))
    return " and ".join(
        f"{used:,} bytes of {name} exceed the limit of {limit:,}"
        for name, used, limit in pairs
        if limit is not None and used > limit
    )


def _percent(ratio: float) -> str:
    share = 100 * (ratio - 1)
    return f"{share:.0f} %" if share >= 10 else f"{share:.1f} %"
