# SPDX-License-Identifier: Apache-2.0
"""Parts that the sections of the page are made of. All texts are set as text, never as markup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nicegui import ui
from nicegui.element import Element

from mcugen.core.errors import McugenError, printable, shortened
from mcugen.ui.jobs import Job, JobFailure, Jobs, JobState

MAX_TEXT_CHARACTERS = 4000
"""Largest number of characters of a text on the page."""

_BY_NUMBER = "(a, b) => (parseFloat(a.replace(/,/g, '')) || 0) - (parseFloat(b.replace(/,/g, '')) || 0)"
"""JavaScript that orders the cells of a column of numbers."""


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
    """Make a section with a heading, and with this id in the document, within the block."""
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


def table(content: Mapping[str, Any]) -> None:
    """Show a table, as TextTable.to_json gives it, which can be sorted by its columns."""
    columns = [
        {"name": str(i), "field": str(i), "label": printable(head), "sortable": True}
        | ({"align": "right", ":sort": _BY_NUMBER} if is_number else {"align": "left"})
        for i, (head, is_number) in enumerate(zip(content["heads"], content["numbers"], strict=True))
    ]
    rows = [
        {"key": number, **{str(i): printable(cell) for i, cell in enumerate(row)}}
        for number, row in enumerate(content["rows"])
    ]
    with ui.element("div").classes("scroll").props("tabindex=0 role=region aria-label=Table"):
        ui.table(rows=rows, columns=columns, row_key="key").props("dense flat")


def line() -> Element:
    """Return a row of parts, which wraps where it is narrow."""
    return ui.element("div").classes("line")


def drop_zone(place: str, prompt: str, suffixes: Sequence[str], *, has_folders: bool = False) -> Element:
    """Show a place to drop files, with buttons that choose some, and return the row of buttons.

    Args:
        place: What is dropped, as templates/ui/page.js knows it.
        prompt: What the user should do.
        suffixes: Ends of the names of files that the dialog offers.
        has_folders: Whether folders may be chosen, too.
    """
    kinds = {"files": f'multiple accept="{",".join(suffixes)}"'} | (
        {"folder": "webkitdirectory"} if has_folders else {}
    )
    with ui.element("div").classes("drop").props(f"data-drop={place}"):
        text(prompt, "")
        for kind, properties in kinds.items():
            control = ui.element("input").classes(f"hidden-input {kind}")
            control.props(f'type=file {properties} tabindex=-1 aria-label="Choose {kind} of {place}"')
        with line() as buttons:
            for kind in kinds:
                label = "Choose a folder" if kind == "folder" else "Choose files"
                ui.button(label).props(f'outline data-pick={kind} aria-label="{label}: {place}"')
    return buttons


def show_failure(failure: JobFailure) -> None:
    """Show an error: what is wrong, what was found, and what to do."""
    with ui.element("div").props("role=alert"):
        text(failure.rule, "text bad strong")
        for label, part in (("Found", failure.found), ("To do", failure.remedy)):
            if part:
                text(f"{label}: {part}")


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
        small_button("Cancel", lambda: jobs.cancel(job), job.request.kind.value)
    share = finished / total if total else 0
    ui.linear_progress(share, show_value=False).props('aria-label="Progress"' + " indeterminate" * (not total))


def small_button(label: str, action: Callable[[], Any], about: str = "") -> None:
    """Show a small button, with a word for screen readers on what it is about."""
    button = ui.button(label, on_click=action).props("outline dense size=sm")
    button.props.update({"aria-label": f"{label}: {about}"} if about else {})


def show_state(job: Job | None, jobs: Jobs) -> Mapping[str, Any] | None:
    """Show progress, failure or end of a job, and return its result, or what is known of it; None if nothing is."""
    if job is None:
        return None
    if job.losses:
        text("A process of this job was lost. It was started again.", "warn")
    if job.state.is_open:
        show_progress(job, jobs)
        return job.parts[-1] if job.parts and isinstance(job.parts[-1], Mapping) else None
    if job.state is JobState.DONE:
        return job.result
    if job.failure is not None:
        show_failure(job.failure)
    else:
        text(f"This job was {job.state.value}. Start it again to get a result.", "warn")
    small_button("Start again", lambda: jobs.submit(job.request, again=True), job.request.kind.value)
    return None


def download(job: Job, file: str, label: str) -> None:
    """Show a link that downloads a file of a job's results."""
    ui.link(label, f"/results/{job.key}/{file}").props("download").classes("download")


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
        text(words, "command").style("flex: 1").props('tabindex=0 role=region aria-label="Command"')
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
