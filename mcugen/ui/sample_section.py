# SPDX-License-Identifier: Apache-2.0
"""The section of samples: drop them, look at them, and choose what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from nicegui import ui

from mcugen.ui.jobs import Job
from mcugen.ui.section import PageSection, stamp_of
from mcugen.ui.widgets import Panel, facts, line, notices, show_state, text
from mcugen.ui.work import JobKind

ROLES = {"calibration": "Calibration samples", "data": "Evaluation samples"}
"""Options that name files of samples, with their labels on the page."""

_PREPARATION = {
    "preprocess": ("Preprocessing", "scale=1/255, mean=0.5, std=0.25"),
    "input-pipeline": ("Input pipeline in C", "image=rgb565, rgb, scale=1/255"),
}
"""Options that prepare samples: label and example."""

_NONE = "none"
_MAX_LABELS = 24
"""Largest number of classes whose numbers of samples are listed."""


class SampleSection(PageSection):
    """The section of samples."""

    title, name = "2. Samples", "samples"

    def build(self) -> Sequence[Panel]:
        """Build the content, and return its panels."""
        _drop_zone()
        panels = [Panel(lambda: (self.desk.project.sample_files(), self.chosen()), self.choose)]
        panels += [Panel(partial(self.stamp, role), partial(self.show, role)) for role in ROLES]
        text("How the firmware prepares the model's input from raw data (docs/how-to/pipelines.md):", "quiet")
        self._fields = Panel(lambda: [self.desk.settings().get(name) for name in _PREPARATION], self.draw_fields)
        return [*panels, self._fields]

    def chosen(self) -> list[object]:
        """Return the chosen files, by role."""
        settings = self.desk.settings()
        return [settings.get(role) for role in ROLES]

    def job(self, role: str) -> Job | None:
        """Return the job that looks at the samples of a role; of two equal files only the first is looked at."""
        settings = self.desk.settings()
        file = settings.get(role)
        if not file or (role == "data" and settings.get("calibration") == file):
            return None
        return self.desk.job(self.desk.request(JobKind.SAMPLES, {"source": str(file)}))

    def stamp(self, role: str) -> object:
        """Return a value that changes with the job of a role."""
        return stamp_of(self.job(role))

    def choose(self) -> None:
        """Show the files of samples to choose from."""
        files = self.desk.project.sample_files()
        settings = self.desk.settings()
        if not files and not any(self.chosen()):
            text("Samples are needed for int8, and to measure accuracy.", "quiet")
            return
        with ui.element("div").classes("fields"):
            for role, label in ROLES.items():
                value = settings.get(role) or _NONE
                ui.select(
                    list(dict.fromkeys([_NONE, *files, value])),
                    label=label,
                    value=value,
                    on_change=lambda event, role=role: self.set(role, "" if event.value == _NONE else event.value),
                ).props("outlined dense")
        if settings.get("calibration") and settings.get("calibration") == settings.get("data"):
            text("The same samples calibrate and judge the model: its accuracy may look too good.", "text warn")

    def draw_fields(self) -> None:
        """Show text fields for the options that prepare samples."""
        with ui.element("div").classes("fields"):
            for name, (label, example) in _PREPARATION.items():
                known = str(self.desk.settings().get(name, ""))
                control = ui.input(label, value=known, placeholder=example).props("outlined dense stack-label")
                control.on("change", partial(self.change_field, name, control))

    def change_field(self, name: str, control: ui.input) -> None:
        """Take the text of a field, which stays as it is, so that it keeps the focus."""
        self.set(name, str(control.value or "").strip())
        self._fields.accept()

    def show(self, role: str) -> None:
        """Show what the samples of a role hold."""
        job = self.job(role)
        if not show_state(job, self.desk.jobs) or job is None or job.result is None:
            return
        summary = job.result
        text(f"{ROLES[role]}: {summary['file']}", "text strong")
        labels = [f"{name} ({count})" for name, count in summary["labels"]]
        more = f", and {len(labels) - _MAX_LABELS} more" if len(labels) > _MAX_LABELS else ""
        facts(
            [
                ("Samples", f"{summary['count']:,}"),
                *(
                    (f"'{one['name']}'", f"{_shape(one)}, from {one['low']:.4g} to {one['high']:.4g}")
                    for one in summary["inputs"]
                ),
                ("Labels", ", ".join(labels[:_MAX_LABELS]) + more or "none"),
            ]
        )
        notices(summary["warnings"], summary["notes"])
        with ui.element("div").classes("thumbs"):
            for picture in summary["pictures"]:
                with ui.element("figure"):
                    if picture["source"].startswith("data:image/png;base64,"):
                        ui.element("img").props.update(src=picture["source"], alt="")
                    with ui.element("figcaption"):
                        text(picture["caption"], "")


def _shape(one: dict[str, Any]) -> str:
    return " x ".join(map(str, one["shape"]))


def _drop_zone() -> None:
    with ui.element("div").classes("drop").props("data-drop=samples"):
        text("Drop samples here: .npz, .npy, or a folder or .zip of images or WAV files, one folder a class", "")
        ui.element("input").classes("hidden-input files").props(
            'type=file multiple accept=".npz,.npy,.zip,.png,.jpg,.jpeg,.bmp,.wav,.csv" tabindex=-1 '
            'aria-label="Files of samples"'
        )
        ui.element("input").classes("hidden-input folder").props(
            'type=file webkitdirectory tabindex=-1 aria-label="Folder of samples"'
        )
        with line():
            ui.button("Choose files").props("outline data-pick=files")
            ui.button("Choose a folder").props("outline data-pick=folder")
