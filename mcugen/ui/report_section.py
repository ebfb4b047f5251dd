# SPDX-License-Identifier: Apache-2.0
"""The section of the run: compile, build, simulate, and show the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from mcugen.ui.jobs import Job
from mcugen.ui.section import JobSection
from mcugen.ui.widgets import Panel, download, frame, line, notices, text
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
