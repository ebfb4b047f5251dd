# SPDX-License-Identifier: Apache-2.0
"""A function that runs in a process of its own, with limits of memory and time, and that can be ended at any moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from mcugen.core.errors import DoesNotFitError, InternalError, Interrupted, McugenError, shortened

Emit: TypeAlias = Callable[[Any], None]
"""Function that sends a picklable event from the process of a job to its owner."""
Work: TypeAlias = Callable[[Any, Emit], Any]
"""Function that a job runs: from its argument and a function that sends events to its result; it must be picklable."""


_PARTING_SECONDS = 5.0
"""Longest time in seconds that a process may take to end after it sent its result."""


@dataclass(frozen=True)
class JobLimits:
    """Limits of one job.

    Attributes:
        memory_bytes: Largest address space of each process of the job in bytes; it is not limited on Windows.
        seconds: Longest time of the job in seconds.
    """

    memory_bytes: int
    seconds: float


def start_process_server(modules: Sequence[str]) -> None:
    """Start the process that jobs are copied from, so that a job need not import the modules first.

    Does nothing on Windows, where each job imports what it needs.

    Args:
        modules: Names of modules that jobs use; to import them must not start threads.
    """
    if sys.platform != "win32":
        multiprocessing.set_forkserver_preload(list(modules))
        forkserver.ensure_running()


class LostProcessError(Exception):
    """The process of a job ended without a result: it crashed, or the operating system killed it."""


class JobProcess:
    """A running job. The processes that it starts, such as compilers, end together with it.

    Args:
        work: The function to run.
        task: Its argument, which must be picklable.
        limits: Limits of memory and time.
    """

    def __init__(self, work: Work, task: Any, limits: JobLimits) -> None:
        context: Any = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
        self._limits = limits
        self._deadline = time.monotonic() + limits.seconds
        self._folder = tempfile.TemporaryDirectory(prefix="mcugen-job-", ignore_cleanup_errors=True)
        self._events, child = context.Pipe(duplex=False)
        arguments = (child, work, task, limits.memory_bytes, self._folder.name)
        self._process = context.Process(target=_run, args=arguments)
        self._is_cancelled = False
        self._result: Any = None
        self._process.start()
        child.close()

    @property
    def pid(self) -> int | None:
        """Return the number of the process; None after it ended."""
        return self._process.pid if self._process.is_alive() else None

    def events(self) -> Iterator[Any]:
        """Yield the events that the job sends, until it has its result.

        Raises:
            McugenError: The job raised it, exceeded its time (DoesNotFitError), or was cancelled (Interrupted).
            LostProcessError: The process ended without a result.
        """
        try:
            while True:
                kind, value = self._receive()
                if kind == "failed":
                    raise value
                if kind == "done":
                    self._result = value
                    self._process.join(_PARTING_SECONDS)
                    return
                yield value
        finally:
            self._end()

    def result(self) -> Any:
        """Return the value that the function returned; `events` must have come to its end."""
        return self._result

    def cancel(self) -> None:
        """End the job and all processes that it started; `events` raises Interrupted."""
        self._is_cancelled = True
        self._kill()

    def _receive(self) -> tuple[str, Any]:
        """Return the next message of the process: its kind, and an event, a result or an error."""
        try:
            if not self._events.poll(max(0.0, self._deadline - time.monotonic())):
                rule, remedy = "a job must end in its time", "choose less work, or allow more minutes for a job"
                raise DoesNotFitError(rule, f"it ran for {self._limits.seconds:,.0f} s", remedy)
            message: tuple[str, Any] = self._events.recv()
        except (EOFError, OSError) as error:
            if self._is_cancelled:
                raise Interrupted("the job was cancelled") from error
            raise LostProcessError("the process of a job was lost") from error
        return message

    def _kill(self) -> None:
        """Kill the process and, where it has a process group of its own, the processes that it started."""
        if self._process.pid is not None and sys.platform != "win32":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _end(self) -> None:
        self._kill()
        self._process.join()
        self._events.close()
        self._folder.cleanup()


def _run(connection: Connection, work: Work, task: Any, memory_bytes: int, folder: str) -> None:
    """Run a job in its own process, and send its result or its error.

    Args:
        connection: Receives the messages.
        work: The function to run.
        task: Its argument.
        memory_bytes: Largest address space of the process in bytes.
        folder: Folder for temporary files, which the owner removes.
    """
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    if sys.platform != "win32":
        import resource

        os.setsid()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        message = ("done", work(task, lambda event: connection.send(("event", event))))
    except BaseException as error:
        message = ("failed", _known(error))
    with suppress(BrokenPipeError):  # The owner has ended.
        connection.send(message)


def _known(error: BaseException) -> McugenError:
    """Return the error of mcugen for any exception of a job."""
    if isinstance(error, McugenError):
        return error
    if isinstance(error, MemoryError):
        remedy = "use smaller shapes or fewer samples, or allow more memory for a job"
        return DoesNotFitError("a job must fit its memory", shortened(str(error), 200) or "no memory left", remedy)
    place = _last_place(error)
    reason = shortened(f"{type(error).__name__}: {error}".split("\n")[0], 300)
    return InternalError("internal error: this must not happen", f"{reason} ({place})", "report it with the model")


def _last_place(error: BaseException) -> str:
    """Return file name and line of the last frame of an exception."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "nowhere" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
