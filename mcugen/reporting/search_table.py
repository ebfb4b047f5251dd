# SPDX-License-Identifier: Apache-2.0
"""The trace of a program search as a table: which candidates were tried, what they cost, and why one was chosen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from mcugen.core.errors import printable
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_table
from mcugen.search.trace import SearchTrace, TraceEntry

EXPLANATION = (
    "time: estimated cycles of a call, by which candidates are compared, or instructions plus stalls where the core is "
    "unknown. stalls: the part of it that the core waits for weights in slow memory. RAM and flash: bytes, RAM without "
    "the stack, code by estimate unless it was compiled. * marks the chosen program."
)
"""Explanation of the columns, printed below the tables of a program search."""
NO_SEARCH = "no search: the program must work for all sizes, so that there is one candidate"
"""Text that is printed in place of the table of candidates if only one program was possible."""


def print_search(trace: SearchTrace, console: Console) -> None:
    """Print the candidates of each search in their order; the chosen one is marked and bold."""
    for search in dict.fromkeys(entry.search for entry in trace.entries):
        console.print(f"search: {escape(printable(search))}", highlight=False)
        print_table(search_table(list(trace.of(search))), console)
    console.print(EXPLANATION if trace.entries else NO_SEARCH, highlight=False)


def search_table(entries: Sequence[TraceEntry]) -> TextTable:
    """Return the table of one search, with a row for each candidate.

    The texts on a candidate are below each other in one cell, so that the table fits into 80 columns.
    """
    ranks = {"stalls": 2, "flash": 1}
    columns = [TableColumn(head, rank=ranks.get(head, 0)) for head in ("#", "time", "stalls", "RAM", "flash")]
    columns.append(TableColumn("candidate (transformation), decisions, verdict", CellKind.TEXT))
    return TextTable(columns, [_row(e) for e in entries], styles=["bold" if e.is_chosen else None for e in entries])


def _row(entry: TraceEntry) -> tuple[str, ...]:
    metrics, decisions = entry.metrics, [f"- {text}" for text in entry.plan.decisions()]
    return (
        f"{entry.number}{'*' if entry.is_chosen else ''}",
        f"{round(metrics.time):,}",
        f"{round(metrics.stall_cycles):,}",
        f"{metrics.ram:,}",
        f"{metrics.flash:,}",
        "\n".join([f"{entry.candidate} ({entry.transformation})", *decisions, entry.verdict]),
    )
