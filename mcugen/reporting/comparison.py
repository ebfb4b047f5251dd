# SPDX-License-Identifier: Apache-2.0
"""Output of a comparison of two reports: on a terminal, as Markdown for a pull request, and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from mcugen.core.errors import printable, shortened
from mcugen.hir.layer_names import shorten_name
from mcugen.reporting.differences import MAX_SHOWN_LAYERS, Change, Differences, LayerChange, number
from mcugen.reporting.figures import ReportedLayer
from mcugen.reporting.pages import render_template
from mcugen.reporting.tables import CellKind, TableColumn, TextTable, print_table

LONGEST_NAME = 48
"""Largest number of characters of a name (of a layer, for example) in a comparison."""


@dataclass(frozen=True)
class ComparisonTable:
    """A table of the comparison of two reports: the first column has names, the others figures as text.

    Attributes:
        key: "figures", "causes" or "layers".
        title: The title.
        heads: Headings of the columns.
        rows: Texts of the cells, by row.
    """

    key: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def title(differences: Differences) -> str:
    """Return the title of a comparison: model, board and precision of both reports."""
    before, after = (f"{r.model.name} on {r.board}, {r.precision}" for r in (differences.before, differences.after))
    return before if before == after else f"{before} -> {after}"


def tables(differences: Differences) -> Iterator[ComparisonTable]:
    """Yield the tables of the comparison: figures, changed causes (such as versions), and changed layers.

    The tables of causes and layers are left out if there are none.
    """
    yield ComparisonTable(
        "figures", "Figures", ("", "before", "after", "change", ""), tuple(map(_figure, differences.changes))
    )
    if differences.causes:
        rows = tuple((name, *(shortened(printable(t), 60) for t in texts)) for name, *texts in differences.causes)
        yield ComparisonTable("causes", "What they rest on", ("", "before", "after"), rows)
    if differences.layers:
        shown = differences.layers[:MAX_SHOWN_LAYERS]
        count = (
            f"{len(shown)} of {len(differences.layers)}" if len(shown) < len(differences.layers) else str(len(shown))
        )
        time = "cycles" if differences.before.cycles_estimate and differences.after.cycles_estimate else "instructions"
        rows = tuple(_layer(change, "cycles_estimate" if time == "cycles" else time) for change in shown)
        yield ComparisonTable(
            "layers", f"Layers that changed: {count}", ("layer", "kernel", time, "flash", "RAM"), rows
        )


def print_differences(differences: Differences, console: Console, wide: bool = False) -> None:
    """Print the comparison of two reports on a terminal, as tables.

    Args:
        differences: The differences of the reports.
        console: Where to print.
        wide: Whether to print all columns, however wide the console is.
    """
    console.print(escape(printable(title(differences))), highlight=False, soft_wrap=True)
    for table in tables(differences):
        print_table(_terminal_table(table), console, wide)


def _terminal_table(table: ComparisonTable) -> TextTable:
    """Return a table for terminals: pairs of figures stand on two lines, texts are wrapped."""
    first = TableColumn(table.heads[0], CellKind.NAME if table.key == "layers" else CellKind.WORD)
    kinds = {"causes": CellKind.TEXT, "kernel": CellKind.WORD}
    further_columns = (
        TableColumn(head, kinds.get(table.key, kinds.get(head, CellKind.NUMBER))) for head in table.heads[1:]
    )
    rows = [tuple(cell.replace(" -> ", " ->\n") for cell in row) for row in table.rows]
    return TextTable((first, *further_columns), rows, table.title)


def markdown(differences: Differences) -> str:
    """Return the comparison of two reports as Markdown, for a comment in a pull request."""
    lines = [f"### {_cell(title(differences))}", ""]
    for table in tables(differences):
        lines += [f"**{_cell(table.title)}**", "", _row(table.heads), _row(("---",) * len(table.heads))]
        lines += [*map(_row, table.rows), ""]
    return "\n".join(lines)


def differences_page(differences: Differences) -> str:
    """Return the comparison of two reports as one self-contained HTML page."""
    return render_template("differences.html.j2", title=title(differences), tables=list(tables(differences)))


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    """Return text for a Markdown cell; text of a model can neither end the cell nor be markup."""
    safe = "".join(f"&#{ord(c)};" if c in "|<>&`*_[]\\#!~@" else c for c in printable(text))
    return safe.replace("\n", " ")


def _figure(change: Change) -> tuple[str, ...]:
    """Return name, before, after and change of a figure, and whether the change is better."""
    worse = change.delta is not None and change.delta * change.figure.better < 0
    verdict = "" if not change.delta else "worse" if worse else "better"
    return (change.figure.title, number(change.before), number(change.after), _delta(change), verdict)


def _delta(change: Change) -> str:
    if not change.delta:
        return "" if change.delta is None else "="
    share = "" if change.share is None else f" ({100 * change.share:+.1f} %)"
    return f"{change.delta:+,}{share}" if isinstance(change.delta, int) else f"{change.delta:+,.4g}{share}"


def _layer(change: LayerChange, time: str) -> tuple[str, ...]:
    def pair(name: str) -> str:
        was, now = (_value(layer, name) for layer in (change.before, change.after))
        return now if was == now else f"{was} -> {now}"

    figures = (pair(name) for name in (time, "flash", "ram"))
    return (shorten_name(printable(change.title), LONGEST_NAME), change.what, *figures)


def _value(layer: ReportedLayer | None, name: str) -> str:
    value = getattr(layer, name) if layer else None
    return "-" if value is None else number(value)
