# SPDX-License-Identifier: Apache-2.0
"""The section of devices in the field: drop snapshots of their monitors, and see drift by device and time."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcugen.ui.jobs import Job, JobState
from mcugen.ui.project import RESULTS, SNAPSHOTS, SUFFIXES
from mcugen.ui.section import JobSection
from mcugen.ui.widgets import Panel, command, drop_zone, frame, line, small_button, text
from mcugen.ui.work import PAGE, REPORT, JobKind, JobRequest


class WatchSection(JobSection):
    """The section of devices in the field."""

    title, name, kind = "8. Watch devices", "watch", JobKind.WATCH

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        prompt = "Drop snapshots of devices here, and the report of their firmware unless it was compiled on this page"
        drop_zone(SNAPSHOTS, f"{prompt} ({', '.join(SUFFIXES[SNAPSHOTS])})", SUFFIXES[SNAPSHOTS])
        switch = self.switch("monitor", "Add the monitor to the code (docs/how-to/monitor.md), then compile again")
        return [switch, Panel(self.files, self.show_files), self.own_panel()]

    def files(self) -> tuple[list[str], list[str]]:
        """Return the snapshots and the reports of monitored models: dropped ones and those of this project."""
        dropped = self.desk.project.files(SNAPSHOTS)
        reports = [name for name in dropped if Path(name).suffix.lower() == ".json"]
        for job in self.desk.jobs.all():
            if job.state is JobState.DONE and (job.result or {}).get("is_monitored"):
                reports.append(f"{RESULTS}/{job.key}/{REPORT}")
        return [name for name in dropped if name not in reports], reports

    def request(self) -> JobRequest | None:
        """Return the comparison of all snapshots with all reports; None without one of both."""
        snapshots, reports = self.files()
        more = {"snapshots": snapshots, "reports": reports}
        return JobRequest(self.kind, more=more) if snapshots and reports else None

    def check(self) -> None:
        """Compare snapshots as soon as they arrive."""
        self.desk.ensure(self.request())

    def show_files(self) -> None:
        """Show how many files there are, the command that compares them, and a button that removes them."""
        snapshots, reports = self.files()
        if not snapshots and not self.desk.project.files(SNAPSHOTS):
            return
        with line():
            text(f"Files of snapshots: {len(snapshots):,}. Reports of monitored models: {len(reports):,}.", "quiet")
            small_button("Remove all", self.remove, "snapshots and dropped reports")
        if not reports:
            text("No report is of a monitored model: drop NAME_report.json, or add the monitor and compile.", "warn")
        elif snapshots:
            words = [word for report in reports for word in ("--report", report)]
            command(f"mcugen monitor {SNAPSHOTS}/* {shlex.join(words)}")

    def remove(self) -> None:
        """Remove the dropped files."""
        for name in self.desk.project.files(SNAPSHOTS):
            (self.desk.project.root / name).unlink(missing_ok=True)

    def show(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show the alarms, and the charts of devices over time."""
        alarms = result["alarms"]
        number = f"{len(alarms)} alarm{'s' * (len(alarms) != 1)}" if alarms else "No alarms"
        about = f"{number} in {result['snapshots']:,} snapshots of {result['devices']:,} devices"
        text(about, f"text strong{' bad' * bool(alarms)}")
        for alarm in alarms[:20]:
            text(alarm)
        frame(f"/results/{job.key}/{PAGE}", "Drift of devices over time")
