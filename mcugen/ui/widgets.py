# SPDX-License-Identifier: Apache-2.0
"""Parts that the sections of the page are made of. All texts are set as text, never as markup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nicegui import ui
from nicegui.element import Element

from mcugen.core.errors import McugenError, printable, shortened
from mcugen.ui.jobs import Job, JobFailure, Jobs, JobState

MAX_TEXT_CHARACTERS = 4000
"""Largest number of characters of a text on the page."""


class Panel:
    """A part of the page that is drawn again when what it shows changes.

    Args:
        stamp: Returns a value that changes with what is shown.
        draw: Draws the content.
    """

    def __init__(self, stamp: Callable[[], object], draw: Callable[[], None]) -> None:
        self._stamp, self._draw = stamp, draw
        self._shown: object = self  # No stamp is equal to it: the first update draws.
        self._box = ui.element("div").classes("panel")
        self.update()

    def update(self) -> None:
        """Draw the content again if it has changed."""
        stamp = self._stamp()
        if stamp == self._shown:
            return
        self._shown = stamp
        self._box.clear()
        with self._box:
            self._draw()

    def accept(self) -> None:
        """Take what is shown as up to date, after a control itself changed a value."""
        self._shown = self._stamp()


@contextmanager
def box(title: str, name: str) -> Iterator[None]:
    """Make a section with a heading within the block.

    Args:
        title: The heading.
        name: Its id in the document.
    """
    with ui.element("section").classes("box").props(f"id={name} aria-labelledby={name}-title"):
        with ui.element("h2").props(f"id={name}-title"):
            text(title, "")
        yield


def text(content: object, classes: str = "text") -> ui.label:
    """Show a text."""
    return ui.label(shortened(printable(str(content)), MAX_TEXT_CHARACTERS)).classes(classes)


def facts(rows: Sequence[tuple[str, object]]) -> None:
    """Show labels and values in two columns."""
    with ui.element("div").classes("facts"):
        for label, value in rows:
            text(label, "quiet")
            text(value)


def line() -> Element:
    """Return a row of parts, which wraps where it is narrow."""
    return ui.element("div").classes("line")


def show_failure(failure: JobFailure) -> None:
    """Show an error: what is wrong, what was found, and what to do."""
    with ui.element("div").props("role=alert"):
        text(failure.rule, "text bad strong")
        if failure.found:
            text(f"Found: {failure.found}")
        if failure.remedy:
            text(f"To do: {failure.remedy}")


def show_progress(job: Job, jobs: Jobs) -> None:
    """Show the progress of a job that waits or runs, with a button that cancels it."""
    what, finished, total = job.step
    with line():
        if job.state is JobState.WAITING:
            text("Waiting for other work …", "quiet")
        else:
            left = "" if job.seconds_left is None else f", {job.seconds_left:,.0f} s left"
            count = f": {finished:,} of {total:,}" if total > 1 else ""
            text(f"{(what or 'starting').capitalize()}{count}{left}", "quiet")
        ui.button("Cancel", on_click=lambda: jobs.cancel(job)).props(
            f'outline dense size=sm aria-label="Cancel: {job.request.kind.value}"'
        )
    share = finished / total if total else 0
    ui.linear_progress(share, show_value=False).props('aria-label="Progress"' + " indeterminate" * (not total))
    if job.losses:
        text("A process of this job was lost. It was started again.", "warn")


def show_state(job: Job | None, jobs: Jobs) -> bool:
    """Show progress, failure or end of a job without a result; return whether there is a result to show."""
    if job is None:
        return False
    if job.state.is_open:
        show_progress(job, jobs)
    elif job.failure is not None:
        show_failure(job.failure)
    elif job.state is not JobState.DONE:
        text(f"This job was {job.state.value}. Start it again to get a result.", "warn")
    if not job.state.is_open and job.state is not JobState.DONE:
        ui.button("Start again", on_click=lambda: jobs.submit(job.request, again=True)).props("outline dense size=sm")
    if job.losses and job.state is JobState.DONE:
        text("A process of this job was lost. It was started again.", "warn")
    return job.state is JobState.DONE and job.result is not None


def frame(url: str, title: str) -> None:
    """Show a page of results, which has no access to this page, with a link to it."""
    ui.link("Open in a new tab", url, new_tab=True)
    shown = ui.element("iframe").classes("view").props("sandbox=allow-scripts loading=lazy")
    shown.props.update(src=url, title=title)


def notices(warnings: Sequence[str], notes: Sequence[str] = ()) -> None:
    """Show warnings, and notes that open on demand."""
    for warning in dict.fromkeys(warnings):
        text(f"Warning: {warning}", "text warn")
    distinct = list(dict.fromkeys(notes))
    if distinct:
        with ui.expansion(f"{len(distinct)} note{'s' * (len(distinct) != 1)}").props("dense"):
            for note in distinct:
                text(note)


def command(words: str) -> None:
    """Show a command for a shell, with a button that copies it."""
    with line().style("flex-wrap: nowrap"):
        text(words, "command").style("flex: 1")
        ui.button(icon="content_copy", on_click=lambda: ui.clipboard.write(words)).props(
            'flat dense aria-label="Copy the command"'
        )


def tell(action: Callable[[], Any]) -> Any:
    """Run an action of the user, and show its error as a notification if it has one."""
    try:
        return action()
    except McugenError as error:
        ui.notify(str(error), type="negative", multi_line=True)
        return None
