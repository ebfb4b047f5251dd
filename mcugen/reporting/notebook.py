# SPDX-License-Identifier: Apache-2.0
"""Figures as tables for Python programs: text for a terminal, and HTML for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from mcugen.core.errors import printable
from mcugen.reporting.figures import Report, ReportedLayer
from mcugen.reporting.pages import render_template
from mcugen.reporting.text import LAYER_COLUMNS, title, totals

UNKNOWN = "-"
"""Text of a figure that is not known before the model runs."""


@dataclass(frozen=True)
class FigureTable:
    """A table of texts, which may be names from an untrusted model.

    Attributes:
        title: Its title.
        heads: Titles of the columns; none for a list of labels and values.
        rows: The texts of each row.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Return the title, and aligned columns below it."""
        lines = [[printable(cell) for cell in row] for row in (self.heads, *self.rows) if row]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        body = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([printable(self.title), *(f"  {line}".rstrip() for line in body)])


def tables_html(tables: Sequence[FigureTable]) -> str:
    """Return tables as HTML; all texts are escaped."""
    return render_template("notebook.html.j2", tables=tables)


def fact_table(report: Report) -> FigureTable:
    """Return the figures of the whole model that are known: accuracy, time and memory."""
    return FigureTable(title(report), (), [row for row in totals(report) if row[1] not in ("", UNKNOWN)])


def memory_table(report: Report) -> FigureTable:
    """Return the bytes of flash and RAM that a model takes, in all and in each memory of the board."""
    parts = {"flash": asdict(report.flash), "RAM": asdict(report.ram)}
    sizes = [(f"{kind}: {name.replace('_', ' ')}", size) for kind, part in parts.items() for name, size in part.items()]
    rows = [(label, f"{size:,}", "") for label, size in sizes if isinstance(size, int) and size]
    uses = [(f"{use.kind} '{use.name}'", f"{use.used:,}", f"{use.size:,}") for use in report.memories]
    return FigureTable(title(report), ("memory", "bytes used", "of"), [*rows, *uses])


def layer_table(layers: Sequence[ReportedLayer]) -> FigureTable:
    """Return the figures of each layer, in the order of computation."""
    rows = [
        (str(number), layer.name, *(show(layer) for _, show in LAYER_COLUMNS)) for number, layer in enumerate(layers)
    ]
    return FigureTable(f"{len(rows)} layers", ("#", "layer", *(column.head for column, _ in LAYER_COLUMNS)), rows)


def precision_table(heading: str, layers: Sequence[Mapping[str, str]]) -> FigureTable:
    """Return the precision of each layer of a quantized model, and the reason if it is not the model's main precision.

    Args:
        heading: The title of the table.
        layers: Name, operator, precision and perhaps reason of each layer (quantization.summary.layer_precisions).
    """
    keys = ("name", "op", "precision", "reason")
    return FigureTable(heading, keys, [[layer[key] for key in keys] for layer in layers])
