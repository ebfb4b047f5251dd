# SPDX-License-Identifier: Apache-2.0
"""The section of the model: drop it, look at it, and see which boards it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from mcugen.explore.fits import BoardFit, fit_table
from mcugen.options.settings import MODEL
from mcugen.ui.desk import has_example
from mcugen.ui.jobs import Job, JobState
from mcugen.ui.project import MODELS, SUFFIXES
from mcugen.ui.section import JobSection
from mcugen.ui.widgets import Panel, drop_zone, facts, frame, notices, table, tell, text
from mcugen.ui.work import NETWORK, JobKind


class ModelSection(JobSection):
    """The section of the model."""

    title, name, kind = "1. Model", "model", JobKind.MODEL

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        desk, suffixes = self.desk, SUFFIXES[MODELS]
        with drop_zone(MODELS, f"Drop a model here ({', '.join(suffixes)})", (*suffixes, ".data")):
            if has_example():
                ui.button("Take the example", on_click=lambda: tell(desk.take_example)).props("flat")
        choice = Panel(lambda: (desk.project.files(MODELS), desk.settings().get(MODEL)), self.choose)
        verdict = self.own_panel()
        return [choice, verdict, self.result_panel(self.fits, self.show_fits)]

    def check(self) -> None:
        """Look at the model, and start the check of all boards, which ends one for another model or other samples."""
        known = self.desk.ensure(self.request())
        if known is not None and known.state is JobState.DONE:
            for other in self.desk.jobs.all():
                if other.request.kind is JobKind.FITS and other.state.is_open and other is not self.fits():
                    self.desk.jobs.cancel(other)
            self.desk.ensure(self.desk.request(JobKind.FITS))

    def choose(self) -> None:
        """Show the models of the project to choose from."""
        models = self.desk.project.files(MODELS)
        if models:
            self.select(MODEL, "Model of this project", models, self.desk.settings().get(MODEL))

    def show(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show what the model is, and a first estimate of the boards that it fits."""
        counts = [("Parameters", f"{result['parameters']:,}"), ("Multiply-accumulates", f"{result['macs']:,}")]
        known = [("Operators", result["operators"]), ("First estimate", result["estimate"])]
        facts([*result["ends"], *counts, *known])
        notices(result["warnings"], result["notes"])
        with ui.expansion("Graph, as given and as compiled").props("dense"):
            frame(f"/results/{job.key}/{NETWORK}", "Graph of the model")

    def fits(self) -> Job | None:
        """Return the job that checks all boards; None if there is none."""
        return self.desk.job(self.desk.request(JobKind.FITS))

    def show_fits(self, job: Job, result: Mapping[str, Any]) -> None:
        """Show how many boards the model fits, and the table of all boards."""
        fits, is_done = [BoardFit(**fit) for fit in result["fits"]], job.state is JobState.DONE
        about = f"{sum(fit.fits for fit in fits)} of {len(fits)} boards{'' if is_done else ' so far'}"
        text(f"Fits {about} {result['precision']} (estimates without the stack)", "text strong")
        if is_done:
            with ui.expansion("All boards").props("dense"):
                table(fit_table("", fits).to_json())
