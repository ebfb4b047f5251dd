# SPDX-License-Identifier: Apache-2.0
"""Text of an exploration: a table for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mcugen.core.errors import printable, shortened
from mcugen.explore.point import Figures, Outcome
from mcugen.explore.search import Explored

MOST_REFUSED = 3
"""Lines about what could not be made."""

COLUMNS = ("accuracy", "ms", "RAM", "flash", "µJ")


def print_explored(explored: Explored, console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print a line for each outcome with the demands it misses, then the cheapest board that meets all demands."""
    misses = any(map(explored.missed, outcomes))
    table = Table(title=escape(printable(heading(explored))), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in ("board", "precision", "goal"):
        table.add_column(head, no_wrap=True)
    for head in COLUMNS:
        table.add_column(head, justify="right", no_wrap=True)
    if misses:
        table.add_column("misses")
    for outcome in outcomes:
        point = outcome.point
        missed = explored.missed(outcome)
        why = [", ".join(missed)] * misses
        cells = (point.board, point.precision, point.optimize, *cells_of(explored, outcome), *why)
        table.add_row(*(escape(printable(cell)) for cell in cells), style="dim" if missed else None)
    console.print(table)
    for line in verdict(explored):
        console.print(escape(printable(line)), highlight=False, soft_wrap=True)


def heading(explored: Explored) -> str:
    """Return the title: what was explored, and the measure of accuracy."""
    yardstick, metric = explored.yardstick, explored.metric
    by = f", {metric.title} on {yardstick.samples} samples" if metric and yardstick else ""
    return f"{explored.model}: {len(explored.front)} of {len(explored.outcomes)} combinations on the Pareto front{by}"


def cells_of(explored: Explored, outcome: Outcome) -> list[str]:
    """Return a text for each of COLUMNS; "≥" marks lower bounds."""
    figures, metric = outcome.figures, explored.metric
    if figures is None:
        return [""] * len(COLUMNS)
    at_least = "≥ " * figures.by_instructions
    accuracy = "" if figures.accuracy is None or metric is None else metric.show(figures.accuracy)
    ms, energy = ("" if n is None else f"{at_least}{_three(n)}" for n in (figures.ms, figures.microjoules))
    return [accuracy, ms, f"{figures.ram:,}", f"{figures.flash:,}", energy]


def _three(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def verdict(explored: Explored) -> list[str]:
    """Return lines that name the cheapest board and its figures, and the combinations that failed."""
    told = _refused(explored)
    more = [f"and {len(told) - MOST_REFUSED:,} more that could not be made"] if len(told) > MOST_REFUSED else []
    told = told[:MOST_REFUSED]
    best = explored.cheapest
    if best is None or best.figures is None:
        return ["no combination meets the demands", *told, *more]
    ranked = "cheapest" if explored.prices.known else "smallest"
    return [f"{ranked} board that meets the demands: {best.point}: {summary(best.figures)}", *told, *more]


def _refused(explored: Explored) -> list[str]:
    """Return the failed combinations with reasons, one line for all goals of a board and precision that fail alike."""
    goals: dict[tuple[str, str, str], list[str]] = {}
    for outcome in explored.outcomes:
        if outcome.refusal:
            reason = outcome.refusal.reason
            goals.setdefault((outcome.point.board, outcome.point.precision, reason), []).append(outcome.point.optimize)
    return [
        f"{board}, {precision}, {' and '.join(names)}: {shortened(reason, 200)}"
        for (board, precision, reason), names in goals.items()
    ]


def summary(figures: Figures) -> str:
    """Time, RAM and flash in a line."""
    time = "" if figures.ms is None else f"{'at least ' * figures.by_instructions}{_three(figures.ms)} ms, "
    return f"{time}{figures.ram:,} bytes of RAM, {figures.flash:,} of flash"
