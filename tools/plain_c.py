# SPDX-License-Identifier: Apache-2.0
"""What plain C costs beside the board's kernels: a table of docs/reference/figures/performance.md (`make plain-c`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmark.subjects import DIGITS, INT8_MODELS
from markers import markdown_table, replace_between_markers

from mcugen.api.compilation import Compilation
from mcugen.core.board import Board, load_board
from mcugen.reporting.figures import Report

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "figures" / "performance.md"
HEADINGS = ("", "instructions: as ever", "twins", "plain", "code: as ever", "twins", "plain", "arena: as ever", "plain")


def twins(board: Board) -> Board:
    """The board with the C of its own kernels, which reads what their assembly does."""
    return replace(board, cflags=(*board.cflags, "-DMCUGEN_PLAIN_C"))


def plain(board: Board) -> Board:
    """The board with kernels that were written for C, as the board file of docs/how-to/firmware.md has it."""
    return replace(twins(board), features=frozenset())


def main() -> None:
    """Measures, and writes the table."""
    rows = [HEADINGS, *(measured(path) for path in INT8_MODELS if path.parent != DIGITS)]
    DOCUMENT.write_text(replace_between_markers(DOCUMENT.read_text(), "plain", markdown_table(rows, 1)))


def measured(path: Path) -> tuple[str, ...]:
    """A row of the table."""
    board = load_board("nrf52840")
    own, of_twins, of_plain = (_report(path, target) for target in (board, twins(board), plain(board)))
    count = own.instructions or 0
    times = [f"{report.instructions:,} ({(report.instructions or 0) / count:.1f}x)" for report in (of_twins, of_plain)]
    code = [f"{report.flash.code:,}" for report in (own, of_twins, of_plain)]
    return (path.stem, f"{count:,}", *times, *code, f"{own.ram.arena:,}", f"{of_plain.ram.arena:,}")


def _report(path: Path, board: Board) -> Report:
    return Compilation(path, board).report()


if __name__ == "__main__":
    main()
