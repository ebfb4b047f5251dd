# SPDX-License-Identifier: Apache-2.0
"""A section of the page, and a section whose content is the result of a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from nicegui import ui

from mcugen.ui.desk import Desk
from mcugen.ui.jobs import Job
from mcugen.ui.widgets import Panel, show_state, tell
from mcugen.ui.work import JobKind, JobRequest


class PageSection(ABC):
    """A section of the page in one browser tab, with its heading and its id in the document."""

    title: ClassVar[str]
    name: ClassVar[str]

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    @abstractmethod
    def build(self) -> Sequence[Panel]:
        """Build the content below the heading, and return the panels that must be kept up to date."""

    def check(self) -> None:  # noqa: B027 - most sections check nothing.
        """Start the checks that the present choices need."""

    def set(self, name: str, value: Any) -> None:
        """Change an option of mcugen.toml; None and "" remove it."""
        tell(lambda: self.desk.project.change({name: value}))

    def select(self, name: str, label: str, values: Sequence[str], value: object, **properties: Any) -> ui.select:
        """Show a list of values of an option to choose from, and return the control."""
        chosen = value if value in values else None
        control = ui.select(list(values), label=label, value=chosen, **properties).props("outlined dense")
        return control.on_value_change(lambda event: self.set(name, event.value))

    def fields(self, options: Mapping[str, tuple[str, str]]) -> Panel:
        """Return a panel with text fields of options, whose labels and examples are given."""

        def values() -> dict[str, str]:
            return {name: str(self.desk.settings().get(name, "")) for name in options}

        def take(name: str, control: ui.input) -> None:
            self.set(name, str(control.value or "").strip())
            panel.accept()  # The field shows the value; to draw it again would lose what is typed meanwhile.

        def draw() -> None:
            with ui.element("div").classes("fields"):
                for name, known in values().items():
                    label, example = options[name]
                    control = ui.input(label, value=known, placeholder=f"e.g. {example}")
                    control.props("outlined dense stack-label").on("change", partial(take, name, control))

        panel = Panel(values, draw)
        return panel

    def switch(self, name: str, label: str) -> Panel:
        """Return a panel with a box to check for an option that is a flag."""

        def draw() -> None:
            is_on = bool(self.desk.settings().get(name))
            ui.checkbox(label, value=is_on, on_change=lambda event: self.set(name, event.value or ""))

        return Panel(lambda: self.desk.settings().get(name), draw)

    def result_panel(self, find: Callable[[], Job | None], show: Callable[[Job, Mapping[str, Any]], None]) -> Panel:
        """Return a panel that shows progress and failure of a job, and its result, or what is known of the result."""

        def draw() -> None:
            job = find()
            known = show_state(job, self.desk.jobs)
            if job is not None and known is not None:
                show(job, known)

        return Panel(lambda: (job := find()) and job.stamp, draw)


class JobSection(PageSection):
    """A section that starts one kind of job for the present choices, and shows its result."""

    kind: ClassVar[JobKind]
    is_repeated: ClassVar[bool] = False
    """Whether a new start computes a known result again."""

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of this kind of job."""
        return {}

    @abstractmethod
    def show(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show the result of a job, or the part of it that is known."""

    def request(self) -> JobRequest | None:
        """Return the job for the present choices; None if something is missing."""
        return self.desk.request(self.kind, self.arguments())

    def job(self) -> Job | None:
        """Return the job to show; None if there is none."""
        return self.desk.job(self.request())

    def start(self, request: JobRequest | None = None) -> Job | None:
        """Start a job, by default that for the present choices, and return it; or say what is missing."""
        submitted = request or self.request()
        if submitted is None:
            ui.notify("Drop a model and choose a board first.", type="warning")
            return None
        job: Job | None = tell(lambda: self.desk.jobs.submit(submitted, again=self.is_repeated))
        return job

    def own_panel(self) -> Panel:
        """Return the panel of the section's own job."""
        return self.result_panel(self.job, self.show)
