# SPDX-License-Identifier: Apache-2.0
"""A section of the page, and a section whose content is the result of a job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from nicegui import ui

from mcugen.ui.desk import Desk
from mcugen.ui.jobs import Job
from mcugen.ui.widgets import Panel, show_state, tell
from mcugen.ui.work import JobKind, JobRequest


class PageSection(ABC):
    """A section of the page in one browser tab.

    Attributes:
        title: Its heading.
        name: Its id in the document.
        desk: What all tabs share.
    """

    title: ClassVar[str]
    name: ClassVar[str]

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    @abstractmethod
    def build(self) -> Sequence[Panel]:
        """Build the content below the heading, and return the panels that must be kept up to date."""

    def set(self, name: str, value: Any) -> None:
        """Change an option of mcugen.toml; None and "" remove it."""
        tell(lambda: self.desk.project.change({name: value}))


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
        """Show the result of a job that is done."""

    def request(self) -> JobRequest | None:
        """Return the job for the present choices; None if something is missing."""
        return self.desk.request(self.kind, self.arguments())

    def start(self) -> None:
        """Start the job, or say what is missing."""
        request = self.request()
        if request is None:
            ui.notify("Drop a model and choose a board first.", type="warning")
        else:
            tell(lambda: self.desk.jobs.submit(request, again=self.is_repeated))

    def result_panel(self) -> Panel:
        """Return a panel with the progress, the failure or the result of the job."""
        return Panel(lambda: stamp_of(self.desk.job(self.request())), self._draw)

    def _draw(self) -> None:
        job = self.desk.job(self.request())
        if show_state(job, self.desk.jobs) and job is not None and job.result is not None:
            self.show(job, job.result)


def stamp_of(job: Job | None) -> object:
    """Return a value that changes with a job."""
    return None if job is None else job.stamp
