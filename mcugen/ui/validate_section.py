# SPDX-License-Identifier: Apache-2.0
"""The section of the validation: run the model on a connected board, and compare it layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from mcugen.deploy.validation.links import list_ports
from mcugen.deploy.validation.session import SIMULATOR_PORT
from mcugen.ui.desk import Desk
from mcugen.ui.jobs import Job
from mcugen.ui.section import JobSection
from mcugen.ui.widgets import Panel, facts, frame, line, notices, text
from mcugen.ui.work import PAGE, JobKind

BAUD_RATES = (9_600, 57_600, 115_200, 230_400, 460_800, 921_600, 1_000_000)
"""Usual bits per second of a serial port."""


class ValidateSection(JobSection):
    """The section of the validation.

    Attributes:
        port: Chosen port.
        baud: Bits per second.
    """

    title, name, kind, is_repeated = "7. Validate on the board", "validate", JobKind.VALIDATE, True

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.port, self.baud = SIMULATOR_PORT, 115_200

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        text("Flash firmware with the code of `mcugen compile --validation` (docs/how-to/validate.md).", "quiet")
        with ui.element("div").classes("fields"):
            ports = ui.select(self.ports(), label="Port").bind_value(self, "port").props("outlined dense")
            ui.select(list(BAUD_RATES), label="Baud").bind_value(self, "baud").props("outlined dense")
        with line():
            ui.button("Validate", on_click=self.start)
            ui.button("Look for ports", on_click=lambda: ports.set_options(self.ports())).props("outline")
        return [self.result_panel()]

    def ports(self) -> dict[str, str]:
        """Return the serial ports of this computer with their descriptions, and the simulator."""
        return {SIMULATOR_PORT: "the simulator, without a board", **list_ports()}

    def arguments(self) -> Mapping[str, Any]:
        """Return the connection."""
        return {"port": self.port, "baud": self.baud}

    def show(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show the result of the validation."""
        facts([(label, f"{value} {note}".strip()) for label, value, note in result["totals"]])
        notices((), result["notes"])
        with ui.expansion("Layer by layer").props("dense"):
            frame(f"/results/{job.key}/{PAGE}", "Validation")
