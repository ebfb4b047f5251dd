# SPDX-License-Identifier: Apache-2.0
"""The section of all jobs of the project, with their states."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mcugen.ui.section import PageSection
from mcugen.ui.widgets import Panel, cancel_button, line, text

_MAX_SHOWN = 12
"""Largest number of jobs that are listed."""


class QueueSection(PageSection):
    """The section of all jobs."""

    title, name = "Jobs of this project", "jobs"

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panel."""
        jobs = self.desk.jobs
        return [Panel(lambda: [(job.key, job.state) for job in jobs.all()[:_MAX_SHOWN]], self.show)]

    def show(self) -> None:
        """List the latest jobs; those that wait or run can be cancelled."""
        jobs = self.desk.jobs.all()[:_MAX_SHOWN]
        if not jobs:
            text("None yet.", "quiet")
        for job in jobs:
            request = job.request
            about = f" of {request.model}" * bool(request.model) + f" for {request.board}" * bool(request.board)
            began = time.strftime("%H:%M", time.localtime(job.created))
            with line():
                text(f"{began}  {request.kind.value}{about}: {job.state.value}")
                if job.state.is_open:
                    cancel_button(job, self.desk.jobs)
