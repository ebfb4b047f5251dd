# SPDX-License-Identifier: Apache-2.0
"""The sections of the report (compile, build and simulate) and of the package (code, settings, commands)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from mcugen.core.board import load_board
from mcugen.core.errors import McugenError
from mcugen.export.formats import FORMATS
from mcugen.options.settings import FILE
from mcugen.ui.desk import Desk
from mcugen.ui.jobs import Job
from mcugen.ui.section import JobSection
from mcugen.ui.widgets import Panel, command, download, frame, line, notices, text
from mcugen.ui.work import PAGE, REPORT, JobKind


class ReportSection(JobSection):
    """The section of the run."""

    title, name, kind = "5. Compile and simulate", "report", JobKind.REPORT

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        with line():
            ui.button("Compile and simulate", on_click=lambda: self.start())
            text("builds the C code, runs every sample in the simulator, and measures", "quiet")
        return [self.own_panel()]

    def arguments(self) -> Mapping[str, Any]:
        """Return the command line that the report shows."""
        return {"command": self.desk.project.command("report", {})}

    def show(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show the verdict and the report."""
        with ui.element("div").props("id=verdict"):
            for is_kept, sentence in result["verdict"]:
                text(sentence, "text strong" if is_kept else "text strong bad")
        notices(result["warnings"], result["notes"])
        download(job, REPORT, "Report as data (JSON)")
        frame(f"/results/{job.key}/{PAGE}", "Report")


class PackageSection(JobSection):
    """The section of the package."""

    title, name, kind = "6. Take it", "package", JobKind.PACKAGE

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.format = next(iter(FORMATS))

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        formats = Panel(lambda: self.desk.settings().get("board"), self.choose)
        ui.button("Make the package", on_click=lambda: self.start()).style("align-self: start")
        commands = Panel(lambda: (self.desk.settings(), self.format), self.show_commands)
        return [formats, self.own_panel(), commands]

    def choose(self) -> None:
        """Show the formats that suit the board to choose from, with the tools that use them."""
        try:
            board = load_board(str(self.desk.settings().get("board") or "host"))
        except McugenError:
            return
        known = {name: f"{name}: {one.tool}" for name, one in FORMATS.items() if one.supports(board)}
        self.format = self.format if self.format in known else next(iter(known))
        ui.select(known, label="Package for").bind_value(self, "format").props("outlined dense")

    def arguments(self) -> Mapping[str, Any]:
        """Return the format."""
        return {"format": self.format}

    def show(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show the link to the package, and the next steps."""
        download(job, result["file"], f"Download {result['file']}")
        for number, step in enumerate(result["steps"], 1):
            text(f"{number}. {step}")
        notices((), result["notes"])

    def show_commands(self) -> None:
        """Show the settings file, and the commands that repeat what was done here."""
        if self.desk.settings():
            ui.link(f"Download {FILE}", f"/{FILE}").props("download")
            text("These commands, in the folder of the project, do the same:", "quiet")
            command(self.desk.project.command("report", {}))
            command(self.desk.project.command("export", {"format": self.format}))
