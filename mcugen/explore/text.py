# SPDX-License-Identifier: Apache-2.0
"""Text of an exploration: a table for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from mcugen.core.errors import printable, shortened
from mcugen.explore.point import Figures, Outcome
from mcugen.explore.search import Explored
from mcugen.reporting.tables import WIDE_HINT, CellKind, TableColumn, TextTable, print_table

MAX_REFUSALS = 3
"""Largest number of lines in the summary that name combinations that could not be compiled."""

FIGURE_COLUMNS = ("accuracy", "ms", "RAM", "flash", "µJ")
"""Titles of the columns with figures, in the table of combinations on the terminal."""


def print_explored(
    explored: Explored, console: Console, outcomes: Sequence[Outcome], wide: bool = False, hint: str = WIDE_HINT
) -> None:
    """Print a line for each outcome with the limits it exceeds, then the cheapest board that keeps to all limits.

    Args:
        explored: All outcomes, with limits and prices.
        console: Where to print.
        outcomes: The outcomes to list.
        wide: Whether to print all columns, however wide the console is.
        hint: Where the columns that are left out can be seen.
    """
    console.print(escape(printable(heading(explored))), highlight=False, soft_wrap=True)
    print_table(outcome_table(explored, outcomes), console, wide, hint)
    for line in verdict_lines(explored):
        console.print(escape(printable(line)), highlight=False, soft_wrap=True)


def outcome_table(explored: Explored, outcomes: Sequence[Outcome]) -> TextTable:
    """Return the table of combinations with their figures, and with the limits that they exceed if any does."""
    misses = any(map(explored.missed, outcomes))
    columns = [TableColumn(head, CellKind.WORD) for head in ("board", "precision", "goal")]
    columns += [TableColumn(head, rank=int(head == "µJ")) for head in FIGURE_COLUMNS]
    columns += [TableColumn("misses", CellKind.TEXT, 2)] * misses
    rows = []
    for outcome in outcomes:
        point, missed_text = outcome.point, [", ".join(explored.missed(outcome))] * misses
        rows.append((point.board, point.precision, point.optimize, *figure_cells(explored, outcome), *missed_text))
    return TextTable(columns, rows, styles=["dim" if explored.missed(outcome) else None for outcome in outcomes])


def heading(explored: Explored) -> str:
    """Return the table's title: the model, the size of the Pareto front, and the accuracy metric with its samples."""
    baseline, metric = explored.baseline, explored.metric
    by = f", {metric.title} on {baseline.samples} samples" if metric and baseline else ""
    return f"{explored.model}: {len(explored.front)} of {len(explored.outcomes)} combinations on the Pareto front{by}"


def figure_cells(explored: Explored, outcome: Outcome) -> list[str]:
    """Return the texts of an outcome's figures, one for each of FIGURE_COLUMNS; all are "" if it has no figures.

    "≥" marks times and energies that are lower bounds, "≈" those that were not simulated.
    """
    figures, metric = outcome.figures, explored.metric
    if figures is None:
        return [""] * len(FIGURE_COLUMNS)
    mark = "≥ " if figures.by_instructions else "≈ " * (not outcome.simulated)
    accuracy = "" if figures.accuracy is None or metric is None else metric.show(figures.accuracy)
    ms, energy = ("" if n is None else f"{mark}{_three(n)}" for n in (figures.ms, figures.microjoules))
    return [accuracy, ms, f"{figures.ram:,}", f"{figures.flash:,}", energy]


def _three(value: float) -> str:
    """Return the number with three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def verdict_lines(explored: Explored) -> list[str]:
    """Return lines of text that name the cheapest board with its figures, and the combinations that failed."""
    failures = _refused(explored)
    more = [f"and {len(failures) - MAX_REFUSALS:,} more that could not be made"] if len(failures) > MAX_REFUSALS else []
    failures = failures[:MAX_REFUSALS]
    best = explored.cheapest
    if best is None or best.figures is None:
        return ["no combination meets the demands", *failures, *more]
    ranked = "cheapest" if explored.prices.known else "smallest"
    return [f"{ranked} board that meets the demands: {best.point}: {cost_phrase(best.figures)}", *failures, *more]


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


def cost_phrase(figures: Figures) -> str:
    """Return the time per call, the RAM and the flash of a combination as one phrase."""
    time = "" if figures.ms is None else f"{'at least ' * figures.by_instructions}{_three(figures.ms)} ms, "
    return f"{time}{figures.ram:,} bytes of RAM, {figures.flash:,} of flash"
