# SPDX-License-Identifier: Apache-2.0
"""The page: its sections in the order of a user's work, and what keeps them up to date."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui

from mcugen.core.cache import code_digest
from mcugen.reporting.pages import source
from mcugen.ui.build_sections import PackageSection, ReportSection
from mcugen.ui.choice_section import ChoiceSection
from mcugen.ui.desk import Desk
from mcugen.ui.explore_section import ExploreSection
from mcugen.ui.model_section import ModelSection
from mcugen.ui.queue_section import QueueSection
from mcugen.ui.sample_section import SampleSection
from mcugen.ui.section import PageSection
from mcugen.ui.validate_section import ValidateSection
from mcugen.ui.watch_section import WatchSection
from mcugen.ui.widgets import Panel, box, text

_UPDATE_SECONDS = 0.5
"""Time in seconds between two looks for changes."""


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
        _header(desk)
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


def _header(desk: Desk) -> None:
    with ui.element("header").classes("topbar"):
        with ui.element("h1"):
            text("mcugen", "")
        text(f"Project {desk.project.root}", "quiet")
        toggle = ui.button("Light or dark").props("flat dense size=sm").style("margin-left: auto")
        toggle.on("click", js_handler="() => Quasar.Dark.toggle()")
    text("", "text").props("id=upload-status role=status aria-live=polite")


def _show_fault(desk: Desk) -> None:
    fault = desk.fault()
    if fault:
        text(fault, "text bad strong").props("role=alert")
