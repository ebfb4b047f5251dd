# SPDX-License-Identifier: Apache-2.0
"""The section of choices: board, goal, precision and limits, which mcugen.toml holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from mcugen.core.board import board_names, load_board
from mcugen.core.options import GOALS, MIXED, PRECISIONS
from mcugen.ui.project import SAMPLES
from mcugen.ui.section import PageSection
from mcugen.ui.widgets import Panel, tell, text

CHOICES = ("board", "optimize", "precision")
"""Options that are chosen from lists."""
LIMITS = {
    "max-ram": ("Most RAM", "20KB"),
    "max-flash": ("Most flash", "100KB"),
    "max-latency": ("Longest call", "20ms"),
}
"""Options that limit a program: label and example."""

_AUTOMATIC = "by the samples"
"""Text for the precision that follows from the samples: int8 if there are some, else float32."""


class ChoiceSection(PageSection):
    """The section of choices."""

    title, name = "3. Board, goal and limits", "choices"

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        return [Panel(lambda: [self.desk.settings().get(name) for name in CHOICES], self.draw), self.fields(LIMITS)]

    def draw(self) -> None:
        """Show the controls with the values of mcugen.toml."""
        settings = self.desk.settings()
        board, known = settings.get("board"), board_names()
        with ui.element("div").classes("fields"):
            names = [*known, *([str(board)] if board and board not in known else [])]
            self.select("board", "Board", names, board, with_input=True)
            self.select("optimize", "Goal", GOALS, settings.get("optimize", GOALS[0]))
            precisions = [_AUTOMATIC, *PRECISIONS, MIXED]
            self.select("precision", "Precision", precisions, settings.get("precision", _AUTOMATIC))
        if board in known:
            chip = load_board(str(board))
            memory = f"{chip.total_ram:,} bytes of RAM, {chip.total_flash:,} bytes of flash"
            text(f"{chip.description}: {chip.cpu} at {chip.clock_hz / 1e6:g} MHz, {memory}", "quiet")

    def set(self, name: str, value: Any) -> None:
        """Change an option, and what follows from it."""
        follows = self._samples_for(str(value)) if name == "precision" else {}
        tell(lambda: self.desk.project.change({name: "" if value == _AUTOMATIC else value, **follows}))

    def _samples_for(self, precision: str) -> dict[str, Any]:
        """Return the changes that a precision needs: float32 takes no calibration samples, other precisions do."""
        settings = self.desk.settings()
        if precision == "float32":
            kept = settings.get("data") or settings.get("calibration", "")
            return {"calibration": "", "data": kept}
        files = self.desk.project.files(SAMPLES)
        if "calibration" in settings or not files:
            return {}
        return {"calibration": next((file for file in files if "calib" in file), files[0])}
