# SPDX-License-Identifier: Apache-2.0
"""All package formats."""

from __future__ import annotations

from mcugen.codegen.identifiers import comment
from mcugen.core.board import Board
from mcugen.core.errors import UsageError
from mcugen.export.arduino import ARDUINO, PLATFORMIO
from mcugen.export.build_systems import CMAKE, MAKE
from mcugen.export.declaration import Format
from mcugen.export.frameworks import ESP_IDF, PICO_SDK, ZEPHYR
from mcugen.export.ides import IAR, KEIL, MCUXPRESSO, STM32CUBE
from mcugen.export.kits import KIT
from mcugen.export.packs import CMSIS_PACK

_ALL = (CMAKE, MAKE, ARDUINO, PLATFORMIO, ZEPHYR, ESP_IDF, PICO_SDK, CMSIS_PACK, MCUXPRESSO, STM32CUBE, IAR, KEIL, KIT)

FORMATS: dict[str, Format] = {format_.name: format_ for format_ in _ALL}
"""All package formats by the value of `--format`, in the order of docs/how-to/export.md."""


def require_supported(format_: Format, board: Board) -> None:
    """Check that the tool of a format can build for a board.

    Raises:
        UsageError: It cannot; the message names the formats that fit the board.
    """
    if not format_.supports(board):
        fitting = ", ".join(f.name for f in FORMATS.values() if f.supports(board))
        seen = f"'{board.name}' ({comment(board.cpu)})"
        raise UsageError(f"--format {format_.name} is for {format_.tool}, which has no such board", seen, fitting)


def format_table() -> str:
    """Return the Markdown table of docs/how-to/export.md: formats, the tools that use them, and how they are tested."""
    rows = ["| `--format` | for | how it is checked |", "|---|---|---|"]
    rows += [f"| `{f.name}` | {f.tool} | {f.testing} |" for f in FORMATS.values()]
    return "\n".join(rows) + "\n"
