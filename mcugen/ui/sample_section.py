# SPDX-License-Identifier: Apache-2.0
"""The section of samples: drop them, look at them, and choose what they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from nicegui import ui

from mcugen.ui.jobs import Job
from mcugen.ui.project import SAMPLES
from mcugen.ui.section import PageSection
from mcugen.ui.uploads import SAMPLE_PARTS
from mcugen.ui.widgets import Panel, drop_zone, facts, notices, text
from mcugen.ui.work import JobKind, JobRequest

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
        prompt = "Drop samples here: .npz, .npy, or a folder or .zip of images or WAV files, one folder a class"
        drop_zone(SAMPLES, prompt, SAMPLE_PARTS, has_folders=True)
        panels = [Panel(lambda: (self.desk.project.files(SAMPLES), self.chosen()), self.choose)]
        for role in ROLES:
            panels.append(self.result_panel(partial(self.job, role), partial(self.show, role)))
        text("How the firmware prepares the model's input from raw data (docs/how-to/pipelines.md):", "quiet")
        return [*panels, self.fields(_PREPARATION)]

    def check(self) -> None:
        """Look at the chosen samples."""
        for role in ROLES:
            self.desk.ensure(self.request(role))

    def chosen(self) -> list[object]:
        """Return the chosen files, by role."""
        settings = self.desk.settings()
        return [settings.get(role) for role in ROLES]

    def request(self, role: str) -> JobRequest | None:
        """Return the job that looks at the samples of a role; of two equal files only the first is looked at."""
        calibration, data = self.chosen()
        file = calibration if role == "calibration" else data
        is_known = role == "data" and calibration == file
        return self.desk.request(JobKind.SAMPLES, {"source": str(file)}) if file and not is_known else None

    def job(self, role: str) -> Job | None:
        """Return the job that looks at the samples of a role; None if there is none."""
        return self.desk.job(self.request(role))

    def choose(self) -> None:
        """Show the files of samples to choose from."""
        files, chosen = self.desk.project.files(SAMPLES), self.chosen()
        if not files and not any(chosen):
            text("Samples are needed for int8, and to measure accuracy.", "quiet")
            return
        with ui.element("div").classes("fields"):
            for (role, label), value in zip(ROLES.items(), chosen, strict=True):
                self.select(role, label, list(dict.fromkeys([_NONE, *files, str(value or _NONE)])), value or _NONE)
        if chosen[0] and chosen[0] == chosen[1]:
            text("The same samples calibrate and judge the model: its accuracy may look too good.", "text warn")

    def set(self, name: str, value: Any) -> None:
        """Change an option of mcugen.toml; "none" removes it."""
        super().set(name, "" if value == _NONE else value)

    def show(self, role: str, _job: Job, summary: Mapping[str, Any]) -> None:
        """Show what the samples of a role hold."""
        text(f"{ROLES[role]}: {summary['file']}", "text strong")
        labels = [f"{name} ({count})" for name, count in summary["labels"]]
        more = f", and {len(labels) - _MAX_LABELS} more" if len(labels) > _MAX_LABELS else ""
        ranges = [
            (f"'{one['name']}'", f"{' x '.join(map(str, one['shape']))}, from {one['low']:.4g} to {one['high']:.4g}")
            for one in summary["inputs"]
        ]
        known = ", ".join(labels[:_MAX_LABELS]) + more or "none"
        facts([("Samples", f"{summary['count']:,}"), *ranges, ("Labels", known)])
        notices(summary["warnings"], summary["notes"])
        with ui.element("div").classes("thumbs"):
            for picture in summary["pictures"]:
                with ui.element("figure"):
                    if picture["source"].startswith("data:image/png;base64,"):
                        ui.element("img").props.update(src=picture["source"], alt="")
                    with ui.element("figcaption"):
                        text(picture["caption"], "")
