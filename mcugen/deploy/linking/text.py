# SPDX-License-Identifier: Apache-2.0
"""The text form of a firmware's report."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from mcugen.core.errors import printable
from mcugen.deploy.linking.figures import LinkFigure, LinkReport
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_table


def print_link(report: LinkReport, console: Console, wide: bool = False) -> None:
    """Print the report of a firmware of several models on a terminal.

    There is a line for each model, then the totals of separate and of linked models, and the difference.

    Args:
        report: The report.
        console: Where to print.
        wide: Whether to print all columns, however wide the console is.
    """
    shared = "; ".join(f"{a} and {b} never run together" for a, b in report.exclusive)
    title = f"{report.name} on {report.board} ({report.cpu}){f': {shared}' * bool(shared)}"
    console.print(escape(printable(title)), highlight=False, soft_wrap=True)
    print_table(link_table(report), console, wide)
    kernels, apart = report.kernels.linked, report.kernels.apart
    console.print(f"kernels: {kernels} C functions, apart {apart}", highlight=False)


def link_table(report: LinkReport) -> TextTable:
    """Return the table of the bytes of each model, and of their sums."""
    heads = (("arena", 0), ("state", 2), ("weights", 1), ("code", 1), ("flash", 0))
    columns = (TableColumn("bytes", CellKind.NAME), *(TableColumn(head, rank=rank) for head, rank in heads))
    rows = []
    for number, model in enumerate(report.models):
        code = report.model_code[number] if report.model_code else None
        flash = None if code is None else code + model.flash.weights
        figures = (model.ram.arena, model.ram.state, model.flash.weights, code, flash)
        rows.append((model.model.name, *map(_number, figures)))
    sums = (report.arena, LinkFigure(report.state, report.state), report.weights, report.code, report.flash)
    totals = [
        ("apart", *(_number(one.apart if one else None) for one in sums)),
        ("linked", *(_number(one.linked if one else None) for one in sums)),
        ("saved", *(_number(one.saved if one else None) for one in sums)),
    ]
    styles = [*[None] * len(rows), None, "bold", None]
    return TextTable(columns, [*rows, *totals], styles=styles, sections=frozenset({len(rows)}))


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
