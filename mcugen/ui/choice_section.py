# SPDX-License-Identifier: Apache-2.0
"""The section of choices: board, goal, precision and limits, which mcugen.toml holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import ui

from mcugen.core.board import board_names, load_board
from mcugen.core.options import GOALS, MIXED, PRECISIONS
from mcugen.ui.section import PageSection
from mcugen.ui.widgets import Panel, tell, text

_LIMITS = {
    "max-ram": ("Most RAM", "20KB"),
    "max-flash": ("Most flash", "100KB"),
    "max-latency": ("Longest call", "20ms"),
}
"""Options that limit a program: label and example."""

CHOICES = ("board", "optimize", "precision", *_LIMITS)
"""Options of this section."""

_AUTOMATIC = "by the samples"
"""Text for the precision that follows from the samples: int8 if there are some, else float32."""


class ChoiceSection(PageSection):
    """The section of choices."""

    title, name = "3. Board, goal and limits", "choices"

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panel."""
        self._panel = Panel(lambda: [self.desk.settings().get(name) for name in CHOICES], self.draw)
        return [self._panel]

    def draw(self) -> None:
        """Show the controls with the values of mcugen.toml."""
        settings = self.desk.settings()
        board = settings.get("board")
        with ui.element("div").classes("fields"):
            names = [*board_names(), *([board] if board and board not in board_names() else [])]
            self._select("board", "Board", names, board)
            self._select("optimize", "Goal", GOALS, settings.get("optimize", GOALS[0]))
            precisions = [_AUTOMATIC, *PRECISIONS, MIXED]
            self._select("precision", "Precision", precisions, settings.get("precision", _AUTOMATIC))
            for name in _LIMITS:
                self._text(name, str(settings.get(name, "")))
        if board in board_names():
            chip = load_board(board)
            memory = f"{chip.total_ram:,} bytes of RAM, {chip.total_flash:,} bytes of flash"
            text(f"{chip.description}: {chip.cpu} at {chip.clock_hz / 1e6:g} MHz, {memory}", "quiet")

    def _select(self, name: str, label: str, values: Sequence[str], value: object) -> None:
        chosen = value if value in values else None
        control = ui.select(list(values), label=label, value=chosen, with_input=name == "board").props("outlined dense")
        control.on_value_change(lambda event: self.choose(name, event.value))

    def _text(self, name: str, value: str) -> None:
        label, example = _LIMITS[name]
        control = ui.input(label, value=value, placeholder=f"e.g. {example}").props("outlined dense stack-label")
        control.on("change", lambda: self.choose(name, str(control.value or "").strip()))

    def choose(self, name: str, value: Any) -> None:
        """Change an option, and what follows from it."""
        values: dict[str, Any] = {name: "" if value in (None, _AUTOMATIC) else value}
        if name == "precision":
            values |= self._samples_for(str(value))
        tell(lambda: self.desk.project.change(values))
        if name != "board":  # The control shows the value; to draw it again would take the focus away.
            self._panel.accept()

    def _samples_for(self, precision: str) -> dict[str, Any]:
        """Return the changes that a precision needs: float32 takes no calibration samples, other precisions do."""
        settings = self.desk.settings()
        if precision == "float32":
            kept = settings.get("data") or settings.get("calibration", "")
            return {"calibration": "", "data": kept}
        files = self.desk.project.sample_files()
        if "calibration" in settings or not files:
            return {}
        return {"calibration": next((file for file in files if "calib" in file), files[0])}
