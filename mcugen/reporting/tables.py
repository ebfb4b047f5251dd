# SPDX-License-Identifier: Apache-2.0
"""Tables on terminals and in logs: columns are chosen by the width, and no number is ever cut.

Columns that do not fit are left out, those of the highest rank first, and a line below the table names them. Names are
shortened in the middle, texts are wrapped. `--wide` prints all columns, however wide the terminal is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rich import box
from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from mcugen.core.errors import printable
from mcugen.hir.layer_names import shorten_names

MIN_NAME_CHARACTERS = 16
"""Smallest width in characters to which a column of names shrinks before other columns are left out."""

MIN_TEXT_CHARACTERS = 20
"""Smallest width in characters to which a column of wrapped text shrinks before other columns are left out."""

_COLUMN_GAP = 2
"""Characters between two columns: the padding of a cell, and the space that takes the place of a line."""

_BORDER = 2
"""Characters before the first and behind the last column."""

Cell = str | Text
"""The content of a cell, of one or several lines; a str may be untrusted text."""


Fact = tuple[str, str, str]
"""Three texts on a figure: its label, its value and a note."""


class CellKind(Enum):
    """Kind of contents of a column, which decides whether cells may be shortened or wrapped if a table is too wide."""

    NUMBER = "number"
    """Figures, aligned to the right; never shortened or wrapped."""
    WORD = "word"
    """Short words, such as the name of a kernel; never shortened or wrapped."""
    NAME = "name"
    """Names from a model, shortened in the middle."""
    TEXT = "text"
    """Sentences, wrapped between words."""


@dataclass(frozen=True)
class TableColumn:
    """A column of a table.

    Attributes:
        head: Its heading.
        kind: What its cells hold.
        rank: Order in which columns are left out of a table that is too wide, the highest rank first; 0: never.
    """

    head: str
    kind: CellKind = CellKind.NUMBER
    rank: int = 0


@dataclass(frozen=True)
class TextTable:
    """A table for terminals.

    Attributes:
        columns: Its columns.
        rows: The cells of each row.
        title: Its title.
        styles: Style of each row, if any row has one.
        sections: Numbers of the rows before which a line is drawn.
    """

    columns: Sequence[TableColumn]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    styles: Sequence[str | None] = ()
    sections: frozenset[int] = field(default=frozenset())

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON data: its headings, which of them are above numbers, and its rows."""
        numbers = [column.kind is CellKind.NUMBER for column in self.columns]
        rows = [[str(cell) for cell in row] for row in self.rows]
        return {"heads": [column.head for column in self.columns], "numbers": numbers, "rows": rows}

    def natural_width(self, index: int) -> int:
        """Return the width in characters with which no cell of column `index` is shortened or wrapped."""
        cells = (self.columns[index].head, *(row[index] for row in self.rows))
        return max(line.cell_len for cell in cells for line in _text(cell).split("\n", allow_blank=True))

    def least_width(self, index: int) -> int:
        """Return the smallest width in characters at which column `index` can be read."""
        natural, kind = self.natural_width(index), self.columns[index].kind
        if kind is CellKind.NAME:
            return min(natural, max(MIN_NAME_CHARACTERS, len(self.columns[index].head)))
        if kind is CellKind.TEXT:
            return min(natural, MIN_TEXT_CHARACTERS)
        return natural


WIDE_HINT = "--wide and --json have all"
"""Text below a table that says how to see the columns that were left out, for commands with --wide and --json."""


def print_table(table: TextTable, console: Console, wide: bool = False, hint: str = WIDE_HINT) -> None:
    """Print a table with the columns that fit the console, and name the columns that were left out.

    Args:
        table: The table.
        console: Where to print.
        wide: Whether to print all columns, even if lines are longer than the console is wide.
        hint: Where the columns that are left out can be seen.
    """
    shown = list(range(len(table.columns))) if wide else _fitting_columns(table, console.width)
    widths = _column_widths(table, shown, None if wide else console.width)
    grid = Table(
        title=Text(printable(table.title)) if table.title else None,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        show_header=any(column.head for column in table.columns),
    )
    for index, width in zip(shown, widths, strict=True):
        column, is_text = table.columns[index], table.columns[index].kind is CellKind.TEXT
        justify = "right" if column.kind is CellKind.NUMBER else "left"
        grid.add_column(Text(column.head), justify=justify, no_wrap=not is_text, width=width)  # type: ignore[arg-type]
    cells_by_column = [_shown_cells(table, index, width) for index, width in zip(shown, widths, strict=True)]
    for number, cells in enumerate(zip(*cells_by_column, strict=True)):
        if number in table.sections:
            grid.add_section()
        grid.add_row(*cells, style=table.styles[number] if table.styles else None)
    _print_uncropped(grid, console, sum(widths) + _COLUMN_GAP * len(widths) + _BORDER)
    omitted = [column.head for index, column in enumerate(table.columns) if index not in shown]
    if omitted:
        line = f"left out for the width: {', '.join(omitted)}{f' ({hint})' * bool(hint)}"
        console.print(Text(line), soft_wrap=True)


def print_facts(heading: str, rows: Sequence[Fact], console: Console) -> None:
    """Print labels, values and notes; where there is little room for the notes, they follow their values.

    Args:
        heading: The title.
        rows: Label, value and note of each fact; all may be untrusted text.
        console: Where to print.
    """
    label, value = (max((len(printable(row[i])) for row in rows), default=0) for i in (0, 1))
    if console.width - label - value - 3 * _COLUMN_GAP - _BORDER >= MIN_TEXT_CHARACTERS:
        columns = (TableColumn("", CellKind.WORD), TableColumn("", CellKind.NUMBER), TableColumn("", CellKind.TEXT))
        print_table(TextTable(columns, rows, heading), console)
        return
    joined = [(name, ", ".join(filter(None, (figure.strip(), note)))) for name, figure, note in rows]
    print_table(TextTable((TableColumn("", CellKind.NAME), TableColumn("", CellKind.TEXT)), joined, heading), console)


def _fitting_columns(table: TextTable, width: int) -> list[int]:
    """Return the indices of the columns to show in `width` characters."""
    shown = list(range(len(table.columns)))
    while sum(map(table.least_width, shown)) + _COLUMN_GAP * len(shown) + _BORDER > width:
        droppable = [index for index in shown if table.columns[index].rank]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda index: (table.columns[index].rank, index)))
    return shown


def _column_widths(table: TextTable, shown: Sequence[int], width: int | None) -> list[int]:
    """Return the widths of columns; names and texts share what the figures leave of `width`, if that is given."""
    natural = {index: table.natural_width(index) for index in shown}
    if width is None:
        return list(natural.values())
    flexible = [index for index in shown if table.columns[index].kind in (CellKind.NAME, CellKind.TEXT)]
    room = width - _COLUMN_GAP * len(shown) - _BORDER - sum(natural[i] for i in shown if i not in flexible)
    for position, index in enumerate(sorted(flexible, key=lambda i: natural[i])):
        share = max(room // (len(flexible) - position), table.least_width(index))
        natural[index] = min(natural[index], share)
        room -= natural[index]
    return list(natural.values())


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(printable(cell))


def _shown_cells(table: TextTable, index: int, width: int) -> list[Text]:
    """Return the cells of a column; in a column of names, longer ones are shortened to `width` characters."""
    texts = [_text(row[index]) for row in table.rows]
    if table.columns[index].kind is not CellKind.NAME or all(text.cell_len <= width for text in texts):
        return texts
    cells = [text.split("\n", allow_blank=True) for text in texts]
    names = shorten_names((line.plain for lines in cells for line in lines), width)
    return [Text("\n").join(Text(names[line.plain], _style_of(line)) for line in lines) for lines in cells]


def _style_of(line: Text) -> str:
    return str(line.spans[0].style if line.spans else line.style)


def _print_uncropped(grid: Table, console: Console, width: int) -> None:
    """Print a grid of `width` characters, even where the console is narrower: a number must not be cut."""
    options = console.options.update(width=max(width, console.width))
    for line in console.render_lines(grid, options, pad=False):
        console.print(Segments([*line, Segment.line()]), crop=False, soft_wrap=True, end="")
