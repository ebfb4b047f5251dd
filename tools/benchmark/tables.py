# SPDX-License-Identifier: Apache-2.0
"""Tables before they are rendered, for the console and for Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table as RichTable
from rich.text import Text

from benchmark.figures import Figures, Row

Cell = str | float | None
"""Text, a ratio, or nothing."""


@dataclass(frozen=True)
class Table:
    """A table. Column titles may have two lines; columns of text have no figures."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Measure:
    """A group of three columns: a figure, its parts as text, and a title."""

    title: str
    of: Callable[[Figures], float | None]
    show: Callable[[Figures], str]


INSTRUCTIONS = Measure("instructions", lambda f: f.instructions, lambda f: f"{f.instructions:,}")
CYCLES = Measure("cycles, estimate", lambda f: f.cycles, lambda f: format_number(f.cycles))
FLASH = Measure("flash (code + weights)", lambda f: f.flash, lambda f: f"{f.code:,} + {f.weights:,}")
RAM = Measure("RAM (arena + static + stack)", lambda f: f.ram, lambda f: f"{f.arena:,} + {f.static:,} + {f.stack:,}")
ARENA = Measure("arena", lambda f: f.arena, lambda f: f"{f.arena:,}")
CODE = Measure("code", lambda f: f.code, lambda f: f"{f.code:,}")
FLASH_TOTAL = Measure("flash", lambda f: f.flash, lambda f: f"{f.flash:,}")
RAM_TOTAL = Measure("RAM", lambda f: f.ram, lambda f: f"{f.ram:,}")


def format_number(number: float | None) -> str:
    """Return a number with thousands separators; a dash if it is unknown."""
    return "-" if number is None else f"{round(number):,}"


def format_ratio(ratio: float) -> str:
    """Return a ratio with two decimals, or three for small ratios."""
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.3f}x"


def ratio_style(ratio: float) -> str:
    """Return the colour of a ratio: green if mcugen is better, red if worse, yellow within half a percent."""
    return "green" if ratio < 0.995 else "red" if ratio > 1.005 else "yellow"


def geometric_mean(ratios: Sequence[float | None]) -> float | None:
    """Return the geometric mean of the known ratios; None if there are none."""
    known = [ratio for ratio in ratios if ratio]
    return statistics.geometric_mean(known) if known else None


def comparison(title: str, peer: str, rows: Sequence[Row], measures: Sequence[Measure]) -> Table:
    """Return a table of both figures and their ratio for each measure, and the mean ratio for each CPU."""
    columns = ["model", "CPU"]
    for measure in measures:
        columns += [f"{measure.title}\nmcugen", f"\n{peer}", "\nratio"]
    body = [_row(row, measures) for row in rows]
    body += [_means(cpu, [row for row in rows if row.cpu == cpu], measures) for cpu in _compared(rows)]
    return Table(title, (*columns, "notes"), body)


def _compared(rows: Sequence[Row]) -> list[str]:
    """Return the CPUs with figures of both sides."""
    return list(dict.fromkeys(row.cpu for row in rows if row.mcugen.figures and row.peer.figures))


def _means(cpu: str, rows: Sequence[Row], measures: Sequence[Measure]) -> list[Cell]:
    mean: list[Cell] = ["geometric mean", short_cpu_name(cpu)]
    for measure in measures:
        mean += ["", "", geometric_mean([row.ratio(measure.of) for row in rows])]
    return [*mean, ""]


def _row(row: Row, measures: Sequence[Measure]) -> list[Cell]:
    cells: list[Cell] = [row.model, short_cpu_name(row.cpu)]
    for measure in measures:
        both = (row.mcugen.figures, row.peer.figures)
        cells += [*(measure.show(f) if f else "-" for f in both), row.ratio(measure.of)]
    return [*cells, notes(row)]


def notes(row: Row) -> str:
    """Return the notes on both sides of a row."""
    return "; ".join(outcome.note for outcome in (row.mcugen, row.peer) if outcome.note)


def short_cpu_name(cpu: str) -> str:
    """Return a short name of a CPU, such as M4 for cortex-m4."""
    return cpu.removeprefix("cortex-").upper().replace("PLUS", "+")


def timing(seconds: Mapping[str, Mapping[str, float | None]]) -> Table:
    """Run time of the compilers themselves."""
    rows: list[list[Cell]] = [
        [model, *(f"{taken[key]:.1f}" if taken[key] is not None else "-" for key in ("mcugen", "emx"))]
        for model, taken in seconds.items()
    ]
    return Table("Seconds to compile, for information", ("model", "mcugen", "emx"), rows)


_TEXT_COLUMNS = ("model", "CPU", "goal", "layer", "output", "kernel", "notes")


def _is_text(column: str) -> bool:
    return column.split("\n")[-1] in _TEXT_COLUMNS


def to_rich(table: Table) -> RichTable:
    """Return the table for the console, with figures aligned to the right and coloured ratios."""
    rich = RichTable(title=table.title, title_justify="left")
    for column in table.columns:
        justify: Literal["left", "right"] = "left" if _is_text(column) else "right"
        rich.add_column(column, justify=justify, overflow="fold")
    for row in table.rows:
        rich.add_row(*(_rich_cell(cell) for cell in row))
    return rich


def _rich_cell(cell: Cell) -> Text:
    if isinstance(cell, float):
        return Text(format_ratio(cell), style=ratio_style(cell))
    return Text(cell or "", style="red" if cell and "WRONG" in cell else "")


def to_markdown(table: Table) -> str:
    """Return the table in Markdown, with ratios in bold where mcugen is better."""
    titles = (column.replace("\n", " ").strip() for column in table.columns)
    lines = [f"### {table.title}", "", _line(titles)]
    lines.append(_line("---" if _is_text(column) else "--:" for column in table.columns))
    return "\n".join([*lines, *(_line(map(_markdown_cell, row)) for row in table.rows)]) + "\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"**{format_ratio(cell)}**" if cell < 0.995 else format_ratio(cell)
    return (cell or "").replace("|", "\\|")
