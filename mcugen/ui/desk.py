# SPDX-License-Identifier: Apache-2.0
"""The state that all open pages share: the project, its jobs, and the jobs that belong to the present choices."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcugen.core.errors import McugenError
from mcugen.core.resources import resource_dir
from mcugen.explore.demands import Demands, Prices
from mcugen.explore.measure import read_outcomes
from mcugen.explore.point import Outcome
from mcugen.explore.search import Explored
from mcugen.options.keywords import Keywords, settings_keywords
from mcugen.options.settings import MODEL
from mcugen.ui.jobs import Job, Jobs, JobState
from mcugen.ui.project import MODELS, SAMPLES, Project
from mcugen.ui.uploads import UploadLimits
from mcugen.ui.work import OUTCOMES, JobKind, JobRequest

EXAMPLE_FILES = {"digits_f32.onnx": MODELS, "calibration.npz": SAMPLES, "eval.npz": SAMPLES}
"""Files of the example, and the folders of a project that they are copied to."""

_CHECKED_WITHOUT = ("data", "precision", "monitor")
_LEFT_OUT: Mapping[JobKind, Sequence[str]] = {
    JobKind.MODEL: (*_CHECKED_WITHOUT, "calibration", "input-pipeline", "preprocess", "pixel-scale"),
    JobKind.SAMPLES: (*_CHECKED_WITHOUT, "calibration"),
    JobKind.FITS: _CHECKED_WITHOUT,
}
"""Options that a check does not depend on: all others need the whole compilation."""


@dataclass
class Desk:
    """The project, its jobs, and the limits of uploads."""

    project: Project
    jobs: Jobs
    limits: UploadLimits

    def settings(self) -> dict[str, Any]:
        """Return the options in mcugen.toml; empty if the file is not valid, which `fault` explains."""
        try:
            return self.project.settings()
        except McugenError:
            return {}

    def fault(self) -> str:
        """Return why mcugen.toml cannot be read; "" if it can."""
        try:
            self.project.settings()
        except McugenError as error:
            return str(error)
        return ""

    def request(self, kind: JobKind, more: Mapping[str, Any] | None = None, **changes: Any) -> JobRequest | None:
        """Return a job of a kind for the present choices; None if there is no model, or no board if one is needed.

        `changes` are options that differ from mcugen.toml, by the name of the option; "" leaves an option out.
        """
        settings = {name: value for name, value in {**self.settings(), **changes}.items() if value != ""}
        model, board = str(settings.get(MODEL, "")), str(settings.get("board", ""))
        needs_board = kind in (JobKind.REPORT, JobKind.PACKAGE, JobKind.VALIDATE)
        if not model or not (self.project.root / model).is_file() or (needs_board and not board):
            return None
        left_out = _LEFT_OUT.get(kind, ())
        options = {name: value for name, value in settings.items() if name not in left_out}
        return JobRequest(kind, model, board * needs_board, settings_keywords("compile", options), more or {})

    def job(self, request: JobRequest | None) -> Job | None:
        """Return the known job of a request; None if there is none."""
        if request is None:
            return None
        try:
            return self.jobs.find(request.key(self.project.root))
        except OSError:
            return None

    def ensure(self, request: JobRequest | None) -> Job | None:
        """Return the job of a request, which starts unless it was started before; None if it cannot start."""
        known = self.job(request)
        if request is None or (known is not None and known.state is not JobState.INTERRUPTED):
            return known
        try:
            return self.jobs.submit(request)
        except McugenError:
            return None

    def explored(self, job: Job | None) -> Explored | None:
        """Return what a job of exploration has found so far; None if that is nothing."""
        if job is None:
            return None
        parts = [part for part in job.parts if isinstance(part, Outcome)]
        is_done = job.state is JobState.DONE
        outcomes = _stored_outcomes(self.jobs.folder(job) / OUTCOMES, job.version) if is_done else parts
        if not any(outcome.figures for outcome in outcomes):
            return None
        demands = Demands.of_options(Keywords("compile", job.request.options).task.options)
        return Explored(Path(job.request.model).stem, tuple(outcomes), demands, Prices())

    def take_example(self) -> None:
        """Copy the example to the project, and choose it."""
        for name, folder in EXAMPLE_FILES.items():
            (self.project.root / folder).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(resource_dir("examples") / "digits" / name, self.project.root / folder / name)
        names = [f"{folder}/{name}" for name, folder in EXAMPLE_FILES.items()]
        self.project.change({MODEL: names[0], "calibration": names[1], "data": names[2]})

    def use_samples(self, file: str) -> None:
        """Choose a new file of samples: for calibration if none is chosen, else for evaluation."""
        settings = self.settings()
        is_first = "calibration" not in settings and settings.get("precision") != "float32"
        looks_judging = any(word in Path(file).stem.lower() for word in ("eval", "test", "valid"))
        names = ["calibration"] * (is_first and not looks_judging) + ["data"] * ("data" not in settings)
        self.project.change(dict.fromkeys(names or ["data"], file))


def has_example() -> bool:
    """Return whether the files of the example are there."""
    return all((resource_dir("examples") / "digits" / name).is_file() for name in EXAMPLE_FILES)


@lru_cache(maxsize=4)
def _stored_outcomes(path: Path, version: int) -> Sequence[Outcome]:
    """Return the outcomes in a file of results; a new version of the job has others."""
    return read_outcomes(path)
