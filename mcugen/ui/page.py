# SPDX-License-Identifier: Apache-2.0
"""The page: its sections in the order of a user's work, the list of jobs, and what keeps them up to date."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from nicegui import ui

from mcugen.core.cache import code_digest
from mcugen.reporting.pages import source
from mcugen.ui.build_sections import PackageSection, ReportSection
from mcugen.ui.choice_section import ChoiceSection
from mcugen.ui.desk import Desk
from mcugen.ui.explore_section import ExploreSection
from mcugen.ui.model_section import ModelSection
from mcugen.ui.sample_section import SampleSection
from mcugen.ui.section import PageSection
from mcugen.ui.validate_section import ValidateSection
from mcugen.ui.watch_section import WatchSection
from mcugen.ui.widgets import Panel, box, line, small_button, text

_UPDATE_SECONDS = 0.5
"""Time in seconds between two looks for changes."""
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
                    small_button("Cancel", partial(self.desk.jobs.cancel, job), request.kind.value)


ROWS: Sequence[Sequence[type[PageSection]]] = (
    (ModelSection, SampleSection),
    (ChoiceSection,),
    (ExploreSection,),
    (ReportSection,),
    (PackageSection, ValidateSection),
    (WatchSection,),
    (QueueSection,),
)
"""The sections of the page; those of one row stand beside each other on a wide screen."""


def build_page(desk: Desk) -> None:
    """Build the page for one browser tab."""
    ui.add_css(source("../ui/page.css"))
    ui.add_head_html(f'<script src="/assets/{code_digest()[:12]}/page.js" defer></script>')
    ui.add_body_html(f"<script>document.body.dataset.maxUpload = {desk.limits.file_bytes}</script>")
    panels, sections = list[Panel](), list[PageSection]()
    with ui.element("main").classes("shell"):
        with ui.element("header").classes("topbar"):
            with ui.element("h1"):
                text("mcugen", "")
            text(f"Project {desk.project.root}", "quiet")
            toggle = ui.button("Light or dark").props("flat dense size=sm").style("margin-left: auto")
            toggle.on("click", js_handler="() => Quasar.Dark.toggle()")
        text("", "text").props("id=upload-status role=status aria-live=polite")
        panels.append(Panel(desk.fault, lambda: _show_fault(desk)))
        for row in ROWS:
            with ui.element("div").classes("pair" if len(row) > 1 else "panel"):
                for section in row:
                    with box(section.title, section.name):
                        sections.append(section(desk))
                        panels += sections[-1].build()

    def update() -> None:
        for part in sections:
            part.check()
        for panel in panels:
            panel.update()

    update()
    ui.timer(_UPDATE_SECONDS, update)


def _show_fault(desk: Desk) -> None:
    fault = desk.fault()
    if fault:
        text(fault, "text bad strong").props("role=alert")
