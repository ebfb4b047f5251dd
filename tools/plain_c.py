# SPDX-License-Identifier: Apache-2.0
"""What plain C costs beside the board's kernels: a table of docs/reference/figures/performance.md (`make plain-c`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmark.subjects import DIGITS, INT8_MODELS
from markers import markdown_table, rewrite_passage

from mcugen.api.compilation import Compilation
from mcugen.core.board import Board, load_board
from mcugen.core.options import PORTABLE, CompileOptions

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "reference" / "figures" / "performance.md"
HEADINGS = ("", "instructions: as ever", "twins", "plain", "code: as ever", "twins", "plain", "arena: as ever", "plain")


def with_portable_twins(board: Board) -> Board:
    """Return the board with the portable C twins of its kernels in place of assembly."""
    return replace(board, cflags=(*board.cflags, "-DMCUGEN_PLAIN_C"))


def main() -> None:
    """Measure the models and write the table."""
    rows = [HEADINGS, *(table_row(path) for path in INT8_MODELS if path.parent != DIGITS)]
    rewrite_passage(DOCUMENT, "plain", markdown_table(rows, 1))


def table_row(path: Path) -> tuple[str, ...]:
    """Return the table row of a model."""
    board = load_board("nrf52840")
    own, of_twins = (Compilation(path, target).report() for target in (board, with_portable_twins(board)))
    of_plain = Compilation(path, board, CompileOptions(family=PORTABLE)).report()
    count = own.instructions or 0
    times = [f"{report.instructions:,} ({(report.instructions or 0) / count:.1f}x)" for report in (of_twins, of_plain)]
    code = [f"{report.flash.code:,}" for report in (own, of_twins, of_plain)]
    return (path.stem, f"{count:,}", *times, *code, f"{own.ram.arena:,}", f"{of_plain.ram.arena:,}")


if __name__ == "__main__":
    main()
