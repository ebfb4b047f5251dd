# SPDX-License-Identifier: Apache-2.0
"""The jobs of a project: a queue, their progress, and their results, which are kept by content."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from mcugen.core.errors import DoesNotFitError, Interrupted, McugenError, printable
from mcugen.core.limits import read_bounded
from mcugen.distributed.job_process import JobLimits, JobProcess, LostProcessError, start_process_server
from mcugen.distributed.pace import Pace
from mcugen.distributed.processes import MAX_LOSSES
from mcugen.distributed.sharing import Workers
from mcugen.ui.project import RESULTS, Project
from mcugen.ui.work import KEY_CHARACTERS, JobKind, JobRequest, JobTask, run_job

_FILE = "job.json"
"""Name of the file that records a job in its folder of results."""
_KEY = re.compile(f"[0-9a-f]{{{KEY_CHARACTERS}}}")
"""Names of folders of results."""
_MAX_RECORD_BYTES = 16 << 20
"""Largest size of such a file in bytes: a result may have pictures of samples."""
_MAX_JOBS = 500
"""Largest number of jobs that a project remembers; the oldest ones are forgotten, and their results removed."""


class JobState(StrEnum):
    """States of a job."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"

    @property
    def is_open(self) -> bool:
        """Return whether the job may still change by itself."""
        return self in (JobState.WAITING, JobState.RUNNING)


class JobFailure(NamedTuple):
    """The `rule`, `found` and `remedy` of the error that ended a job (McugenError); "" for none."""

    rule: str
    found: str = ""
    remedy: str = ""


@dataclass
class JobRecord:
    """A job as its file in the folder of results records it.

    Attributes:
        request: What is computed.
        state: Its state.
        result: Its result as JSON data; None until it is done.
        failure: Why it failed; None if it did not.
        created: Time of the request in seconds since 1970.
    """

    request: JobRequest
    state: JobState = JobState.WAITING
    result: dict[str, Any] | None = None
    failure: JobFailure | None = None
    created: float = field(default_factory=time.time)


@dataclass
class Job(JobRecord):
    """A job and its progress.

    Attributes:
        key: Digest of everything that the result depends on.
        step: Name of the present task, finished steps and all steps.
        seconds_left: Estimated remaining time of the present task; None if unknown.
        parts: Parts of the result that have arrived while it runs.
        losses: Number of processes that were lost while they ran it.
        version: A number that grows with each change.
        process: Its process while it runs.
        is_cancelled: Whether a user wants it to end.
    """

    key: str = ""
    step: tuple[str, int, int] = ("", 0, 0)
    seconds_left: float | None = None
    parts: list[Any] = field(default_factory=list)
    losses: int = 0
    version: int = 0
    process: JobProcess | None = None
    is_cancelled: bool = False

    @property
    def stamp(self) -> tuple[str, int]:
        """Return a value that changes with each change of the job."""
        return self.key, self.version


_ADAPTER = TypeAdapter(JobRecord)


class Jobs:
    """The jobs of a project. The jobs of each queue run one after the other.

    Args:
        project: The project.
        limits: Limits of each job.
        workers: The processes or computers that share the work of a job.
    """

    def __init__(self, project: Project, limits: JobLimits, workers: Workers) -> None:
        self._project, self._limits, self._workers = project, limits, workers
        self._jobs: dict[str, Job] = {}
        self._queues = {kind.queue: ThreadPoolExecutor(1) for kind in JobKind}
        self._change = threading.Lock()
        self._is_closed = False
        start_process_server([run_job.__module__])
        self._load()

    def all(self) -> Sequence[Job]:
        """Return all jobs, the latest first."""
        with self._change:
            return sorted(self._jobs.values(), key=lambda job: -job.created)

    def find(self, key: str) -> Job | None:
        """Return a job by its key; None if there is none."""
        return self._jobs.get(key)

    def folder(self, job: Job) -> Path:
        """Return the folder of a job's results."""
        return self._project.root / RESULTS / job.key

    def submit(self, request: JobRequest, *, again: bool = False) -> Job:
        """Return the job of a request: a known one if it is not to be computed again, or a new one.

        Raises:
            McugenError: A file of the request cannot be read.
        """
        try:
            key = request.key(self._project.root)
        except OSError as error:
            name = Path(str(error.filename)).name
            raise McugenError("files of a job must be readable", f"'{name}': {error.strerror}", "") from error
        with self._change:
            known = self._jobs.get(key)
            is_kept = known is not None and known.state in (JobState.DONE, JobState.FAILED) and not again
            if known is not None and (known.state.is_open or is_kept):
                return known
            job = self._jobs[key] = Job(request, key=key)
            self._record(job)
            self._queues[request.kind.queue].submit(self._serve, job)
        self._forget_oldest()
        return job

    def cancel(self, job: Job) -> None:
        """End a job that waits or runs; others are not changed."""
        with self._change:
            if job.state is JobState.WAITING:
                self._finish(job, JobState.CANCELLED)
            job.is_cancelled, process = True, job.process
        if process is not None:
            process.cancel()

    def close(self) -> None:
        """End all jobs, with the processes that they started; they count as interrupted."""
        self._is_closed = True
        for queue in self._queues.values():
            queue.shutdown(wait=False, cancel_futures=True)
        for job in self.all():
            if job.state is JobState.RUNNING:
                self.cancel(job)

    def _load(self) -> None:
        """Read the jobs of earlier runs; those that had not ended are interrupted."""
        for path in sorted(self._project.root.glob(f"{RESULTS}/*/{_FILE}")):
            key = path.parent.name
            with suppress(OSError, ValueError, ValidationError):
                if not _KEY.fullmatch(key):
                    continue
                record = _ADAPTER.validate_json(read_bounded(path, _MAX_RECORD_BYTES))
                record.state = JobState.INTERRUPTED if record.state.is_open else record.state
                self._jobs[key] = Job(**vars(record), key=key)

    def _record(self, job: Job) -> None:
        """Write the file of a job; without room on the disk the job is forgotten at the end."""
        record = JobRecord(**{one.name: getattr(job, one.name) for one in fields(JobRecord)})
        folder = self.folder(job)
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            fresh = folder / f".{_FILE}"
            fresh.write_text(json.dumps(asdict(record), allow_nan=True), encoding="utf-8")
            fresh.replace(folder / _FILE)

    def _forget_oldest(self) -> None:
        for job in self.all()[_MAX_JOBS:]:
            if not job.state.is_open:
                self._jobs.pop(job.key, None)
                shutil.rmtree(self.folder(job), ignore_errors=True)

    def _serve(self, job: Job) -> None:
        """Run a job, unless it was cancelled while it waited."""
        with self._change:
            if job.state is not JobState.WAITING or self._is_closed:
                return
            job.state = JobState.RUNNING
            job.version += 1
        state = self._run(job)
        with self._change:
            self._finish(job, state)

    def _run(self, job: Job) -> JobState:
        """Run a job, again if its process is lost, and return its last state."""
        try:
            while job.result is None:
                try:
                    job.result = self._run_once(job)
                except LostProcessError as error:
                    job.losses += 1
                    if job.losses >= MAX_LOSSES or self._is_closed:
                        rule, remedy = "a job must fit this computer's memory", "allow it more: --job-memory"
                        raise DoesNotFitError(rule, f"its process was lost {job.losses} times", remedy) from error
            return JobState.DONE
        except Interrupted:
            return JobState.INTERRUPTED if self._is_closed else JobState.CANCELLED
        except McugenError as error:
            parts = error.rule, error.found, error.remedy
        except Exception as error:  # The page must go on; the job shows what happened.
            parts = "internal error: this must not happen", f"{type(error).__name__}: {error}", ""
        job.failure = JobFailure(*map(printable, parts))
        return JobState.FAILED

    def _run_once(self, job: Job) -> dict[str, Any]:
        """Run a job in a new process, and return its result.

        Raises:
            McugenError: The job failed, or was cancelled.
            LostProcessError: Its process was lost.
        """
        folder = self.folder(job)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*"):
            if old.name != _FILE:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        job.parts, pace = [], Pace()
        task = JobTask(self._project.root, folder, job.request, self._workers)
        process = job.process = JobProcess(run_job, task, self._limits)
        if job.is_cancelled:  # Before its process began.
            process.cancel()
        try:
            for event in process.events():
                if isinstance(event, tuple):
                    what, finished, total = event
                    job.step = (printable(what), finished, total)
                    job.seconds_left = pace.seconds_left(what, finished, total, time.monotonic())
                else:
                    job.parts.append(event)
                job.version += 1
        finally:
            job.process = None
        result: dict[str, Any] = process.result()
        return result

    def _finish(self, job: Job, state: JobState) -> None:
        job.state, job.process = state, None
        job.version += 1
        self._record(job)
