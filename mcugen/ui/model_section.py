# SPDX-License-Identifier: Apache-2.0
"""The section of the model: drop it, look at it, and see which boards it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from mcugen.options.settings import MODEL
from mcugen.ui.desk import Desk, has_example
from mcugen.ui.jobs import Job, JobState
from mcugen.ui.project import MODEL_SUFFIXES
from mcugen.ui.section import JobSection, stamp_of
from mcugen.ui.widgets import Panel, facts, frame, line, notices, show_state, tell, text
from mcugen.ui.work import NETWORK, JobKind

_COLUMNS = (
    ("board", "Board", "left"),
    ("verdict", "Fits", "left"),
    ("ram", "RAM: needs / has", "right"),
    ("flash", "Flash: needs / has", "right"),
    ("reason", "Reason", "left"),
)
"""Columns of the table of boards: key, title and alignment."""


class ModelSection(JobSection):
    """The section of the model."""

    title, name, kind = "1. Model", "model", JobKind.MODEL

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        desk = self.desk
        _drop_zone(desk)
        choice = Panel(lambda: (desk.project.models(), desk.settings().get(MODEL)), self.choose)
        verdict = self.result_panel()
        fits = Panel(lambda: stamp_of(desk.job(desk.request(JobKind.FITS))), self.show_fits)
        return [choice, verdict, fits]

    def choose(self) -> None:
        """Show the models of the project to choose from."""
        models = self.desk.project.models()
        if models:
            chosen = self.desk.settings().get(MODEL)
            ui.select(
                models,
                label="Model of this project",
                value=chosen if chosen in models else None,
                on_change=lambda event: self.set(MODEL, event.value),
            ).props("outlined dense")

    def show(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show what the model is."""
        operators = ", ".join(f"{count} {name}" for name, count in result["operators"].items())
        facts(
            [
                *((f"Input '{end['name']}'", _endpoint(end)) for end in result["inputs"]),
                *((f"Output '{end['name']}'", _endpoint(end)) for end in result["outputs"]),
                ("Parameters", f"{result['parameters']:,}"),
                ("Multiply-accumulates", f"{result['macs']:,}"),
                ("Operators", operators),
            ]
        )
        notices(result["warnings"], result["notes"])
        with ui.expansion("Graph, as given and as compiled").props("dense") as graph:
            graph.on_value_change(lambda event: _fill(graph, event.value, f"/results/{job.key}/{NETWORK}"))

    def show_fits(self) -> None:
        """Show how many boards the model fits, and the table of all boards."""
        job = self.desk.job(self.desk.request(JobKind.FITS))
        if job is None:
            return
        is_done = show_state(job, self.desk.jobs)
        fits = job.result["fits"] if is_done and job.result else [fit for part in job.parts for fit in part]
        if not fits:
            return
        count = sum(fit["fits"] for fit in fits)
        more = "" if job.state is JobState.DONE else " so far"
        precision = "int8" if job.request.options.get("calibration") else "float32"
        text(f"Fits {count} of {len(fits)} boards{more} in {precision} (estimates without the stack)", "text strong")
        if is_done:
            with ui.expansion("All boards").props("dense"), ui.element("div").classes("scroll"):
                _table(fits)


def _endpoint(end: dict[str, Any]) -> str:
    return f"{' x '.join(map(str, end['shape']))} {end['type']}"


def _fill(parent: ui.expansion, is_open: bool, url: str) -> None:
    """Load the page of the graph when it is opened for the first time."""
    if is_open and not parent.default_slot.children:
        with parent:
            frame(url, "Graph of the model")


def _table(fits: Sequence[dict[str, Any]]) -> None:
    rows = [
        {
            "board": fit["board"],
            "verdict": "yes" if fit["fits"] else "no",
            "ram": f"{_bytes(fit['ram_needed'])} / {fit['ram_available']:,}",
            "flash": f"{_bytes(fit['flash_needed'])} / {fit['flash_available']:,}",
            "reason": fit["reason"][:200],
        }
        for fit in fits
    ]
    columns = [
        {"name": key, "label": title, "field": key, "align": align, "sortable": True} for key, title, align in _COLUMNS
    ]
    ui.table(rows=rows, columns=columns, row_key="board").props("dense flat")


def _bytes(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _drop_zone(desk: Desk) -> None:
    with ui.element("div").classes("drop").props("data-drop=model"):
        text(f"Drop a model here ({', '.join(MODEL_SUFFIXES)})", "")
        accepted = ",".join((*MODEL_SUFFIXES, ".data"))
        ui.element("input").classes("hidden-input files").props(
            f'type=file multiple accept="{accepted}" tabindex=-1 aria-label="Files of a model"'
        )
        with line():
            ui.button("Choose a model").props("outline data-pick=files")
            if has_example():
                ui.button("Take the example", on_click=lambda: tell(desk.take_example)).props("flat")
