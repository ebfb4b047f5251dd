# SPDX-License-Identifier: Apache-2.0
"""The section of the exploration: a Pareto chart that fills while it computes, and two combinations side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nicegui import run, ui

from mcugen.core.board import board_names
from mcugen.core.options import GOALS, MIXED, PRECISIONS
from mcugen.explore.page import explored_chart
from mcugen.explore.point import Outcome
from mcugen.explore.search import Explored
from mcugen.explore.text import FIGURE_COLUMNS, figure_cells
from mcugen.reporting.charts import Chart, script_data
from mcugen.ui.desk import Desk
from mcugen.ui.jobs import Job, JobState
from mcugen.ui.section import PageSection, stamp_of
from mcugen.ui.widgets import Panel, facts, frame, line, show_state, tell, text
from mcugen.ui.work import EXPLORED, JobKind

COMMON_BOARDS = ("rp2040", "nrf52840", "stm32f446", "stm32h743", "esp32c3", "rp2350")
"""Boards that are chosen at first."""

_REDRAW_SECONDS = 2.0
"""Least time in seconds between two drawings of a chart that fills."""

_CHART = "pareto"
"""Id of the chart in the document."""


class ExploreSection(PageSection):
    """The section of the exploration.

    Attributes:
        boards: Chosen boards.
        precisions: Chosen precisions.
        goals: Chosen goals.
        simulate: Whether combinations run in the simulator.
        key: Key of the shown job.
        picks: Names of the combinations that were clicked, at most two, the latest first.
    """

    title, name = "4. Explore", "explore"

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.boards = [name for name in COMMON_BOARDS if name in board_names()]
        self.precisions, self.goals, self.simulate = ["float32", "int8"], [GOALS[0]], True
        self.key, self.picks = "", list[str]()
        self._drawn: object = None
        self._drawn_at = 0.0

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        self.controls()
        verdict = Panel(lambda: stamp_of(self.job()), self.show)
        ui.element("div").classes("chart").props(f'id={_CHART} role=figure aria-label="Combinations by cost"')
        picks = Panel(self.pick_stamp, self.show_picks)
        ui.on("pick", lambda event: self.pick(str(event.args)))
        ui.timer(0.7, self.draw_chart)
        return [verdict, picks]

    def controls(self) -> None:
        """Show what is explored."""
        text("Compare boards, precisions and goals by accuracy, time, RAM, flash and energy.", "quiet")
        with ui.element("div").classes("fields"):
            names = [name for name in board_names() if name != "host"]
            for label, values, key in (
                ("Boards", names, "boards"),
                ("Precisions", [*PRECISIONS, MIXED], "precisions"),
                ("Goals", list(GOALS), "goals"),
            ):
                ui.select(values, label=label, multiple=True).bind_value(self, key).props("outlined dense use-chips")
        with line():
            ui.checkbox("Simulate (slower, measured)").bind_value(self, "simulate")
            ui.button("Explore", on_click=lambda: tell(self.start))
            ui.button("All boards, estimated", on_click=lambda: tell(self.start_all)).props("outline")

    def start(self) -> None:
        """Start the exploration of the chosen combinations."""
        precisions = [name for name in (*PRECISIONS, MIXED) if name in self.precisions]
        goals = [goal for goal in GOALS if goal in self.goals]
        more = {"boards": list(self.boards), "precisions": precisions, "goals": goals, "simulate": self.simulate}
        request = self.desk.request(JobKind.EXPLORE, more)
        if request is None:
            ui.notify("Drop a model first.", type="warning")
        elif not self.boards or not self.precisions or not self.goals:
            ui.notify("Choose a board, a precision and a goal.", type="warning")
        else:
            self.key = self.desk.jobs.submit(request).key

    def start_all(self) -> None:
        """Start the exploration of all boards without simulation."""
        self.boards = [name for name in board_names() if name != "host"]
        self.simulate = False
        self.start()

    def job(self) -> Job | None:
        """Return the shown job: that of this tab, or else the latest exploration of the model."""
        known = self.desk.jobs.find(self.key)
        if known is not None:
            return known
        model = self.desk.settings().get("model")
        jobs = (job for job in self.desk.jobs.all() if job.request.kind is JobKind.EXPLORE)
        return next((job for job in jobs if job.request.model == model), None)

    def show(self) -> None:
        """Show progress or the verdict of the exploration."""
        job = self.job()
        if not show_state(job, self.desk.jobs) or job is None or job.result is None:
            return
        text(job.result["heading"], "text strong")
        for sentence in job.result["verdict"]:
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
        spec = await run.io_bound(self._chart, job)
        if spec is not None:
            ui.run_javascript(f"mcugenChart({_CHART!r}, {script_data(spec)})")

    def _chart(self, job: Job) -> Chart | None:
        explored = self.desk.explored(job)
        return None if explored is None else explored_chart(explored)

    def pick(self, name: str) -> None:
        """Show a combination that was clicked, beside the one before it."""
        self.picks = [name, *(other for other in self.picks if other != name)][:2]

    def pick_stamp(self) -> object:
        """Return a value that changes with the clicked combinations and their reports."""
        job = self.job()
        if job is None or not self.picks:
            return None
        explored = self.desk.explored(job)
        outcomes = [] if explored is None else _picked(explored, self.picks)
        reports = [self.report_job(outcome) for _, outcome in outcomes]
        return job.key, [i for i, _ in outcomes], [report and report.stamp for report in reports]

    def report_job(self, outcome: Outcome) -> Job | None:
        """Return the job of the full report of a combination."""
        point = outcome.point
        for job in self.desk.jobs.all():
            options = job.request.options
            same = (job.request.board, options.get("precision"), options.get("optimize"))
            is_report = job.request.kind is JobKind.REPORT
            if is_report and same == (point.board, point.precision, point.optimize):
                return job
        return None

    def show_picks(self) -> None:
        """Show the clicked combinations side by side, and their differences."""
        job = self.job()
        explored = None if job is None else self.desk.explored(job)
        if job is None or explored is None:
            return
        outcomes = _picked(explored, self.picks)
        with ui.element("div").classes("pair"):
            for index, outcome in outcomes:
                with ui.element("div").classes("panel"):
                    self._show_outcome(explored, job, index, outcome)
        reports = [report for _, outcome in outcomes if (report := self.report_job(outcome)) is not None]
        if len(reports) == 2 and all(report.state is JobState.DONE for report in reports):
            url = f"/results/differences/{reports[0].key}/{reports[1].key}.html"
            with ui.expansion("Differences of both reports").props("dense"):
                frame(url, "Differences")

    def _show_outcome(self, explored: Explored, job: Job, index: int, outcome: Outcome) -> None:
        text(str(outcome.point), "text strong")
        cells = figure_cells(explored, outcome)
        facts([(head, cell) for head, cell in zip(FIGURE_COLUMNS, cells, strict=True) if cell])
        point = outcome.point
        chosen = {"board": point.board, "precision": point.precision, "optimize": point.optimize}
        with line():
            ui.button("Use this", on_click=lambda: tell(lambda: self.use(outcome))).props("outline dense")
            ui.button("Full report", on_click=lambda: tell(lambda: self.report(chosen))).props("outline dense")
        known = self.report_job(outcome)
        if known is not None and known.state is not JobState.DONE:
            show_state(known, self.desk.jobs)
        folder = f"/results/{job.key}/points/{index}.html"
        url = f"/results/{known.key}/report.html" if known and known.state is JobState.DONE else folder
        if outcome.report is not None:
            with ui.expansion("Layers and memory").props("dense"):
                frame(url, f"Report of {point}")

    def use(self, outcome: Outcome) -> None:
        """Choose the board, precision and goal of a combination."""
        point = outcome.point
        calibration = {"calibration": ""} if point.precision == "float32" else {}
        chosen = {"board": point.board, "precision": point.precision, "optimize": point.optimize}
        self.desk.project.change({**chosen, **calibration})

    def report(self, chosen: dict[str, str]) -> None:
        """Start the full report of a combination: layers, memory map, table of quantization."""
        removed = {"calibration": ""} if chosen["precision"] == "float32" else {}
        changes = {**chosen, **removed}
        more = {"command": self.desk.project.command("report", changes)}
        request = self.desk.request(JobKind.REPORT, more, **changes)
        if request is not None:
            self.desk.jobs.submit(request)


def _picked(explored: Explored, picks: Sequence[str]) -> list[tuple[int, Outcome]]:
    """Return the clicked outcomes with their numbers, the latest click first."""
    by_name = {str(outcome.point): (index, outcome) for index, outcome in enumerate(explored.outcomes)}
    return [by_name[name] for name in picks if name in by_name]
