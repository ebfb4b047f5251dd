# SPDX-License-Identifier: Apache-2.0
"""A job in a process of its own: its events, its errors, its limits, and its end at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mcugen.core.errors import DoesNotFitError, InternalError, Interrupted, McugenError, UsageError
from mcugen.distributed.job_process import Emit, JobLimits, JobProcess, LostProcessError

LIMITS = JobLimits(4 << 30, 60)


def work(task: Any, emit: Emit) -> Any:
    """Do what a task says: a word and its argument."""
    word, argument = task
    emit(("begun", 0, 1))
    if word == "sleep":
        children = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
        emit([child.pid for child in children])
        time.sleep(60)
    elif word == "allocate":
        return len(bytearray(argument))
    elif word == "die":
        os._exit(9)
    elif word == "refuse":
        raise UsageError("a rule", "found", "remedy")
    elif word == "fail":
        return [][0]
    elif word == "modules":
        return argument in sys.modules
    elif word == "leave":
        Path(tempfile.mkdtemp(), "file").write_text("left")
        return tempfile.gettempdir()
    return argument


def end(job: JobProcess) -> list[Any]:
    return list(job.events())


def test_events_come_before_the_result() -> None:
    job = JobProcess(work, ("return", {"a": 1}), LIMITS)
    assert end(job) == [("begun", 0, 1)]
    assert job.result() == {"a": 1} and job.pid is None


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (("refuse", 0), UsageError, "a rule. found: found. try: remedy."),
        (("fail", 0), InternalError, "IndexError: list index out of range"),
        (("allocate", 8 << 30), DoesNotFitError, "a job must fit its memory"),
    ],
)
def test_an_error_is_that_of_the_job(task: tuple[str, int], error: type[McugenError], message: str) -> None:
    with pytest.raises(error, match=message.replace(".", r"\.")):
        end(JobProcess(work, task, LIMITS))


def test_a_job_ends_in_its_time() -> None:
    with pytest.raises(DoesNotFitError, match="a job must end in its time"):
        end(JobProcess(work, ("sleep", 0), JobLimits(4 << 30, 2)))


def test_a_process_that_dies_is_no_cancelled_job() -> None:
    with pytest.raises(LostProcessError):
        end(JobProcess(work, ("die", 0), LIMITS))


def runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_cancelled_job_ends_with_all_its_processes() -> None:
    job = JobProcess(work, ("sleep", 0), LIMITS)
    events = job.events()
    next(events)
    children = next(events)
    threading.Timer(0.1, job.cancel).start()
    with pytest.raises(Interrupted):
        next(events)
    deadline = time.monotonic() + 30
    while any(map(runs, children)) and time.monotonic() < deadline:
        time.sleep(0.05)  # A process that was killed may take a moment to end.
    assert not any(map(runs, children))


def test_temporary_files_go_with_the_job() -> None:
    job = JobProcess(work, ("leave", 0), LIMITS)
    end(job)
    assert not Path(job.result()).exists()


def test_jobs_have_the_modules_of_the_process_server() -> None:
    code = """
from mcugen.distributed.job_process import JobLimits, JobProcess, start_process_server
from test_job_process import LIMITS, work
if __name__ == "__main__":
    start_process_server(["colorsys"])
    job = JobProcess(work, ("modules", "colorsys"), LIMITS)
    list(job.events())
    print(job.result())
"""
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder.parents[1]), str(folder)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
