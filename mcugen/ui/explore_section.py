# SPDX-License-Identifier: Apache-2.0
"""The section of the exploration: a Pareto chart that fills while it computes, and two combinations side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import run, ui

from mcugen.core.board import chip_names
from mcugen.core.options import GOALS, MIXED, PRECISIONS
from mcugen.explore.page import explored_chart
from mcugen.explore.point import Outcome
from mcugen.explore.search import Explored
from mcugen.explore.text import FIGURE_COLUMNS, figure_cells
from mcugen.options.settings import MODEL
from mcugen.reporting.charts import Chart, script_data
from mcugen.ui.desk import Desk
from mcugen.ui.jobs import Job, JobState
from mcugen.ui.section import JobSection
from mcugen.ui.widgets import Panel, facts, frame, line, show_state, small_button, tell, text
from mcugen.ui.work import EXPLORED, PAGE, JobKind, JobRequest

COMMON_BOARDS = ("rp2040", "nrf52840", "stm32f446", "stm32h743", "esp32c3", "rp2350")
"""Boards that are chosen at first."""

_REDRAW_SECONDS = 2.0
"""Least time in seconds between two drawings of a chart that fills."""

_CHART = "pareto"
"""Id of the chart in the document."""


class ExploreSection(JobSection):
    """The section of the exploration: its choices, and the names of up to two clicked combinations."""

    title, name, kind = "4. Explore", "explore", JobKind.EXPLORE

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.boards = [name for name in COMMON_BOARDS if name in chip_names()]
        self.precisions, self.goals, self.simulate = ["float32", "int8"], [GOALS[0]], True
        self.picks = list[str]()
        self._drawn: object = None
        self._drawn_at = 0.0

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        self._build_choices()
        verdict = self.own_panel()
        ui.element("div").classes("chart").props(f'id={_CHART} role=figure aria-label="Combinations by cost"')
        picks = Panel(self.pick_stamp, self.show_picks)
        ui.on("pick", lambda event: self.pick(str(event.args)))
        ui.timer(0.7, self.draw_chart)
        return [verdict, picks]

    def _build_choices(self) -> None:
        text("Compare boards, precisions and goals by accuracy, time, RAM, flash and energy.", "quiet")
        with ui.element("div").classes("fields"):
            for label, values, key in (
                ("Boards", chip_names(), "boards"),
                ("Precisions", [*PRECISIONS, MIXED], "precisions"),
                ("Goals", list(GOALS), "goals"),
            ):
                ui.select(values, label=label, multiple=True).bind_value(self, key).props("outlined dense use-chips")
        with line():
            ui.checkbox("Simulate (slower, measured)").bind_value(self, "simulate")
            ui.button("Explore", on_click=lambda: self.start())
            ui.button("All boards, estimated", on_click=self.start_all).props("outline")

    def request(self) -> JobRequest | None:
        """Return the exploration of the chosen combinations; None if something is missing."""
        precisions = [name for name in (*PRECISIONS, MIXED) if name in self.precisions]
        goals = [goal for goal in GOALS if goal in self.goals]
        more = {"boards": list(self.boards), "precisions": precisions, "goals": goals, "simulate": self.simulate}
        return self.desk.request(self.kind, more) if self.boards and precisions and goals else None

    def start_all(self) -> None:
        """Start the exploration of all boards without simulation."""
        self.boards, self.simulate = chip_names(), False
        self.start()

    def job(self) -> Job | None:
        """Return the exploration of the chosen combinations, or else the latest one of the model."""
        model = self.desk.settings().get(MODEL)
        jobs = (job for job in self.desk.jobs.all() if job.request.kind is self.kind and job.request.model == model)
        return super().job() or next(jobs, None)

    def show(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show the verdict of the exploration."""
        text(result["heading"], "text strong")
        for sentence in result["verdict"]:
            text(sentence)
        ui.link("All combinations as a page", f"/results/{job.key}/{EXPLORED}", new_tab=True)

    async def draw_chart(self) -> None:
        """Draw the chart again if outcomes have arrived, but not too often."""
        job = self.job()
        if job is None:
            return
        number = len([part for part in job.parts if isinstance(part, Outcome)])
        state = (job.key, number, job.state is JobState.DONE)
        if state == self._drawn or (not state[2] and time.monotonic() - self._drawn_at < _REDRAW_SECONDS):
            return
        self._drawn, self._drawn_at = state, time.monotonic()
        spec = await run.io_bound(self._chart)
        if spec is not None:
            ui.run_javascript(f"mcugenChart({_CHART!r}, {script_data(spec)})")

    def _chart(self) -> Chart | None:
        """Return the chart, in which the combination that was clicked last stays chosen."""
        explored = self.desk.explored(self.job())
        if explored is None:
            return None
        spec = explored_chart(explored)
        for _, outcome in self.outcomes()[:1]:
            spec["params"][0]["value"] = [{"id": str(outcome.point)}]
        return spec

    def pick(self, name: str) -> None:
        """Show a combination that was clicked, beside the one before it."""
        self.picks = [name, *(other for other in self.picks if other != name)][:2]

    def outcomes(self) -> list[tuple[int, Outcome]]:
        """Return the clicked outcomes with their numbers, the latest click first."""
        explored = self.desk.explored(self.job()) if self.picks else None
        outcomes = () if explored is None else explored.outcomes
        by_name = {str(outcome.point): (index, outcome) for index, outcome in enumerate(outcomes)}
        return [by_name[name] for name in self.picks if name in by_name]

    def pick_stamp(self) -> object:
        """Return a value that changes with the clicked combinations and their reports."""
        jobs = [(index, self.desk.job(self.report(outcome))) for index, outcome in self.outcomes()]
        return [(index, job and job.stamp) for index, job in jobs]

    def report(self, outcome: Outcome) -> JobRequest | None:
        """Return the job of the full report of a combination: layers, memory map, table of quantization."""
        chosen = _choices(outcome)
        return self.desk.request(JobKind.REPORT, {"command": self.desk.project.command("report", chosen)}, **chosen)

    def show_picks(self) -> None:
        """Show the clicked combinations side by side, and their differences."""
        job, explored, outcomes = self.job(), self.desk.explored(self.job()), self.outcomes()
        if job is None or explored is None or not outcomes:
            return
        reports = [self.desk.job(self.report(outcome)) for _, outcome in outcomes]
        with ui.element("div").classes("pair"):
            for (index, outcome), known in zip(outcomes, reports, strict=True):
                with ui.element("div").classes("panel"):
                    self._show_outcome(explored, outcome, known, f"/results/{job.key}/points/{index}.html")
        keys = [known.key for known in reports if known is not None and known.state is JobState.DONE]
        if len(keys) == 2:
            with ui.expansion("Differences of both reports").props("dense"):
                frame(f"/results/differences/{keys[0]}/{keys[1]}.html", "Differences")

    def _show_outcome(self, explored: Explored, outcome: Outcome, known: Job | None, page: str) -> None:
        """Show the figures of a combination, its full report if there is one, or else the page of its layers."""
        text(str(outcome.point), "text strong")
        cells = figure_cells(explored, outcome)
        facts([(head, cell) for head, cell in zip(FIGURE_COLUMNS, cells, strict=True) if cell])
        with line():
            small_button("Use this", lambda: tell(lambda: self.desk.project.change(_choices(outcome))))
            if known is None:
                small_button("Full report with quantization", lambda: self.start(self.report(outcome)))
        is_done = known is not None and show_state(known, self.desk.jobs) is not None
        if outcome.report is not None:
            title = "Layers, memory and quantization" if is_done else "Layers and memory"
            with ui.expansion(title, value=True).props("dense"):
                frame(f"/results/{known.key}/{PAGE}" if is_done and known else page, f"{title}: {outcome.point}")


def _choices(outcome: Outcome) -> dict[str, str]:
    """Return the options that choose a combination, by name; "" leaves an option out."""
    point = outcome.point
    removed = {"calibration": ""} if point.precision == "float32" else {}
    return {"board": point.board, "precision": point.precision, "optimize": point.optimize, **removed}
