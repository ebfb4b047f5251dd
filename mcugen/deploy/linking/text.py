# SPDX-License-Identifier: Apache-2.0
"""The text form of a firmware's report."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mcugen.core.errors import printable
from mcugen.deploy.linking.figures import LinkFigure, LinkReport


def print_link(report: LinkReport, console: Console) -> None:
    """Print a line for each model, then the totals of separate and of linked models, and the difference."""
    shared = "; ".join(f"{a} and {b} never run together" for a, b in report.exclusive)
    title = f"{report.name} on {report.board} ({report.cpu}){f': {shared}' * bool(shared)}"
    table = Table(title=escape(printable(title)))
    table.add_column("bytes")
    for head in ("arena", "state", "weights", "code", "flash"):
        table.add_column(head, justify="right")
    for number, model in enumerate(report.models):
        code = report.model_code[number] if report.model_code else None
        flash = None if code is None else code + model.flash.weights
        figures = (model.ram.arena, model.ram.state, model.flash.weights, code, flash)
        table.add_row(escape(printable(model.model.name)), *map(_number, figures))
    table.add_section()
    sums = (report.arena, LinkFigure(report.state, report.state), report.weights, report.code, report.flash)
    table.add_row("apart", *(_number(one.apart if one else None) for one in sums))
    table.add_row("linked", *(_number(one.linked if one else None) for one in sums), style="bold")
    table.add_row("saved", *(_number(one.saved if one else None) for one in sums))
    console.print(table)
    kernels, apart = report.kernels.linked, report.kernels.apart
    console.print(f"kernels: {kernels} C functions, apart {apart}", highlight=False)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
