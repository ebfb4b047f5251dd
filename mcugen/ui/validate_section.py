# SPDX-License-Identifier: Apache-2.0
"""The section of the validation: run the model on a connected board, and compare it layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from mcugen.deploy.validation.links import list_ports
from mcugen.deploy.validation.session import SIMULATOR_PORT
from mcugen.ui.desk import Desk
from mcugen.ui.jobs import Job, JobState
from mcugen.ui.section import JobSection
from mcugen.ui.widgets import Panel, download, facts, line, notices, table, text
from mcugen.ui.work import PAGE, VALIDATION, JobKind, JobRequest

BAUD_RATES = (9_600, 57_600, 115_200, 230_400, 460_800, 921_600, 1_000_000)
"""Usual bits per second of a serial port."""


class ValidateSection(JobSection):
    """The section of the validation."""

    title, name, kind, is_repeated = "7. Validate on the board", "validate", JobKind.VALIDATE, True

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.port, self.baud = SIMULATOR_PORT, 115_200

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        text("Firmware for your board is this code and two functions of yours (docs/how-to/validate.md).", "quiet")
        with line():
            ui.button("Make the code", on_click=lambda: self.start(self.firmware())).props("outline")
        firmware = self.result_panel(lambda: self.desk.job(self.firmware()), self.show_firmware)
        with ui.element("div").classes("fields"):
            ports = ui.select(self.ports(), label="Port", new_value_mode="add-unique", with_input=True)
            ports.bind_value(self, "port").props("outlined dense")
            ui.select(list(BAUD_RATES), label="Baud").bind_value(self, "baud").props("outlined dense")
        with line():
            ui.button("Validate", on_click=lambda: self.start())
            ui.button("Look for ports", on_click=lambda: ports.set_options(self.ports())).props("outline")
        return [firmware, self.own_panel()]

    def firmware(self) -> JobRequest | None:
        """Return the job that makes the code of the firmware; None if something is missing."""
        return self.desk.request(JobKind.PACKAGE, {"format": VALIDATION})

    def show_firmware(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show the link to the code."""
        download(job, result["file"], f"Download {result['file']}")

    def ports(self) -> dict[str, str]:
        """Return the serial ports of this computer with their descriptions, and the simulator."""
        return {SIMULATOR_PORT: "the simulator, without a board", **list_ports()}

    def arguments(self) -> Mapping[str, Any]:
        """Return the connection."""
        return {"port": self.port, "baud": self.baud}

    def show(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show what the board has computed, beside this computer, by now or in the end."""
        facts([(label, f"{value} {note}".strip()) for label, value, note in result["totals"]])
        for finding in result["findings"]:
            text(finding, "text bad")
        table(result["layers"])
        notices((), result["notes"])
        if job.state is JobState.DONE:
            ui.link("Validation as a page", f"/results/{job.key}/{PAGE}", new_tab=True)
