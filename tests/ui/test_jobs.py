# SPDX-License-Identifier: Apache-2.0
"""The jobs of a project: kept by content, ended on request, started again if their process is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcugen.distributed.job_process import JobLimits
from mcugen.distributed.sharing import ONLY_THIS_PROCESS
from mcugen.ui.jobs import Job, Jobs, JobState
from mcugen.ui.project import Project
from mcugen.ui.work import JobKind, JobRequest

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
REQUEST = JobRequest(JobKind.MODEL, "digits_f32.onnx")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    shutil.copy(DIGITS / "digits_f32.onnx", tmp_path)
    return Project(tmp_path)


@pytest.fixture
def start() -> Iterator[Callable[[Project], Jobs]]:
    """Returns a function that opens a project; all are closed at the end."""
    opened: list[Jobs] = []

    def open_project(project: Project) -> Jobs:
        opened.append(Jobs(project, JobLimits(8 << 30, 60), ONLY_THIS_PROCESS))
        return opened[-1]

    yield open_project
    for jobs in opened:
        jobs.close()


def wait_for(job: Job, condition: Callable[[Job], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition(job):
        assert time.monotonic() < deadline, job
        time.sleep(0.01)


def ended(job: Job) -> bool:
    return not job.state.is_open


def test_a_result_is_kept_by_content(project: Project, start: Callable[[Project], Jobs]) -> None:
    job = start(project).submit(REQUEST)
    wait_for(job, ended)
    assert job.state is JobState.DONE and job.result is not None and job.result["parameters"] == 5362
    again = start(project)  # after a restart
    known = again.submit(REQUEST)
    assert known.state is JobState.DONE and known.result == json.loads(json.dumps(job.result))
    model = project.root / REQUEST.model
    model.write_bytes(model.read_bytes() + b"\x00")
    assert again.submit(REQUEST).key != job.key


def test_a_job_whose_process_is_lost_is_started_again(project: Project, start: Callable[[Project], Jobs]) -> None:
    job = start(project).submit(REQUEST)
    wait_for(job, lambda job: job.process is not None and job.step[0])
    os.kill(job.process.pid or 0, signal.SIGKILL)  # type: ignore[union-attr]
    wait_for(job, ended)
    assert (job.state, job.losses) == (JobState.DONE, 1)


def test_a_job_that_is_lost_again_and_again_fails(project: Project, start: Callable[[Project], Jobs]) -> None:
    job = start(project).submit(REQUEST)
    for losses in range(3):
        wait_for(job, lambda job, losses=losses: job.losses == losses and job.process is not None and job.process.pid)
        os.kill(job.process.pid or 0, signal.SIGKILL)  # type: ignore[union-attr]
    wait_for(job, ended)
    assert job.state is JobState.FAILED
    assert job.failure is not None and job.failure.found == "its process was lost 3 times"


def test_jobs_are_cancelled_and_others_go_on(project: Project, start: Callable[[Project], Jobs]) -> None:
    jobs = start(project)
    running = jobs.submit(REQUEST)
    waiting = jobs.submit(JobRequest(JobKind.MODEL, REQUEST.model, options={"name": "other"}))
    last = jobs.submit(JobRequest(JobKind.MODEL, REQUEST.model, options={"name": "last"}))
    assert waiting.state is JobState.WAITING
    jobs.cancel(waiting)
    wait_for(running, lambda job: job.process)
    jobs.cancel(running)
    wait_for(last, ended)
    states = (running.state, waiting.state, last.state)
    assert states == (JobState.CANCELLED, JobState.CANCELLED, JobState.DONE)
    repeated = jobs.submit(REQUEST)
    wait_for(repeated, ended)
    assert repeated.state is JobState.DONE


def test_what_ran_at_the_end_is_interrupted(project: Project, start: Callable[[Project], Jobs]) -> None:
    jobs = start(project)
    job = jobs.submit(REQUEST)
    wait_for(job, lambda job: job.process)
    jobs.close()
    wait_for(job, ended)
    known = start(project).find(job.key)
    assert known is not None and known.state is JobState.INTERRUPTED


def test_a_damaged_or_hostile_record_is_no_job(project: Project, start: Callable[[Project], Jobs]) -> None:
    for number, text in enumerate(("", "{", "[]", '{"request": 3}', '{"state": "done"}')):
        folder = project.root / "results" / f"{number:032x}"
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(text)
    job = json.dumps({"request": {"kind": "model", "model": "a.onnx"}, "state": "done"})
    for name in ('"onload="alert(1)', "A" * 32, "0" * 31):
        (project.root / "results" / name).mkdir()
        (project.root / "results" / name / "job.json").write_text(job)
    assert start(project).all() == []
    (project.root / "results" / ("0" * 31 + "a")).mkdir()
    (project.root / "results" / ("0" * 31 + "a") / "job.json").write_text(job)
    assert [job.state for job in start(project).all()] == [JobState.DONE]


def test_an_error_keeps_its_parts(project: Project, start: Callable[[Project], Jobs]) -> None:
    (project.root / "bad.onnx").write_bytes(b"no model")
    job = start(project).submit(JobRequest(JobKind.MODEL, "bad.onnx"))
    wait_for(job, ended)
    assert job.state is JobState.FAILED and job.failure is not None
    assert "bad.onnx" in job.failure.rule
