# SPDX-License-Identifier: Apache-2.0
"""Work on a Dask cluster, whose scheduler gives the tasks of a lost worker to another one (docs/how-to/cluster.md)."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from mcugen.core.errors import DoesNotFitError, ToolMissingError, UsageError, printable, shortened
from mcugen.distributed.environment import environment, require_same
from mcugen.distributed.parcel import Parcel, UnpackedParcel, pack_parcel
from mcugen.distributed.processes import run_in_other_processes

if TYPE_CHECKING:
    from distributed import Client, Future

_T = TypeVar("_T")
_R = TypeVar("_R")

_ENCRYPTED = ("tls://", "wss://")
"""Schemes of scheduler addresses with mutual authentication by certificates."""

ANSWER_TIMEOUT_SECONDS = 30
"""Time limit in seconds for the answer of a scheduler, and then for the answer of its first worker."""

NO_WORKER_TIMEOUT_SECONDS = 10
"""Longest time in seconds that a scheduler may have no worker; a supervisor restarts a lost worker within this time."""


@dataclass(frozen=True)
class SharedData:
    """Data that all tasks of a cluster share. The scheduler keeps one copy, which workers can fetch again at any time.

    Attributes:
        digest: SHA-256 of the data, by which two copies are compared.
        parcel: The data with the files that they name.
        environment: Versions of the packages on the computer that sent the data.
    """

    digest: str
    parcel: Parcel = field(compare=False)
    environment: Mapping[str, str] = field(compare=False)


def run_on_cluster(work: Callable[[_T], _R], tasks: Sequence[_T], address: str, jobs: int) -> Iterator[tuple[_T, _R]]:
    """Run tasks on the workers of a Dask scheduler, and yield each task with its result in the order of arrival.

    If all workers are lost, `jobs` processes of this computer finish the work.

    Args:
        work: The function to run.
        tasks: Its arguments, one for each task.
        address: The address of the scheduler.
        jobs: Number of local processes for unfinished tasks.

    Raises:
        ToolMissingError: If Dask is not installed, or workers have other versions.
        UsageError: If no scheduler or no worker answers.
        DoesNotFitError: If a task was lost with several workers in a row.
    """
    if not tasks:
        return
    parcel = pack_parcel(work)
    held = SharedData(parcel.digest, parcel, environment())
    unfinished = dict(enumerate(tasks))
    _warn_without_tls(address)
    with _connected(address) as client:
        common = client.submit(_kept, held, pure=False)
        futures = {
            client.submit(_done, common, task, pure=False, priority=-index): index for index, task in unfinished.items()
        }
        for index, result in _each_result(client, futures, address):
            yield unfinished.pop(index), result
    yield from run_in_other_processes(work, list(unfinished.values()), jobs)


def _each_result(client: Client, futures: Mapping[Future, int], address: str) -> Iterator[tuple[int, Any]]:
    """Yield results as they arrive; stop if there was no worker for NO_WORKER_TIMEOUT_SECONDS.

    Dask would wait for a worker forever. Finished results can be lost as well, as they stay with workers until they
    are fetched.
    """
    from distributed import wait

    pending, last = set(futures), time.monotonic()
    while pending and time.monotonic() < last + NO_WORKER_TIMEOUT_SECONDS:
        results = dict[Any, Any]()
        with _told_plainly(address), suppress(TimeoutError), client.as_current():
            for future in wait(pending, timeout=1, return_when="FIRST_COMPLETED").done:
                results[future] = future.result(timeout=NO_WORKER_TIMEOUT_SECONDS)
        pending -= results.keys()
        yield from ((futures[future], result) for future, result in results.items())
        with _told_plainly(address):
            last = time.monotonic() if results or client.nthreads() else last


def _kept(held: SharedData) -> SharedData:
    """Return the argument: as the result of a task, it is sent to workers that need it."""
    return held


def _done(held: SharedData, task: Any) -> Any:
    """Run one task on a worker."""
    require_same(held.environment)
    return _arrived(held).value(task)


@lru_cache(maxsize=2)
def _arrived(held: SharedData) -> UnpackedParcel:
    return UnpackedParcel(held.parcel)


@cache
def _warn_without_tls(address: str) -> None:
    """Warn once that anyone may use the scheduler, unless its address requires certificates."""
    if not address.startswith(_ENCRYPTED):
        where = printable(shortened(address, 200))
        risk = "whoever reaches the scheduler can run programs on its workers and read what is sent"
        print(
            f"warning: --cluster {where} is not protected by TLS: {risk}; see docs/how-to/cluster.md", file=sys.stderr
        )


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    """Yield a client of a cluster that has a worker; the cluster forgets its tasks at the end."""
    try:
        from distributed import Client
    except ImportError as error:
        rule = "--cluster needs Dask"
        raise ToolMissingError(rule, "not installed", "pip install 'mcugen[cluster]'") from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # Lost workers are handled here.
    warnings.filterwarnings("ignore", module="distributed")
    with ExitStack() as stack:
        try:
            client = stack.enter_context(_client(Client, address))
        except (OSError, ValueError, TypeError, ImportError) as error:
            problem = f"'{shortened(address, 200)}': {shortened(str(error) or type(error).__name__, 200)}"
            remedy = "start one: dask scheduler; or take this computer alone: --cluster local"
            raise UsageError("--cluster must be the address of a Dask scheduler, or local", problem, remedy) from error
        _require_worker(client, address)
        yield client


def _client(kind: Any, where: Any) -> Client:
    """Return a client of class `kind`, closed here if it cannot connect.

    Otherwise the garbage collector would close it, perhaps in the thread that starts the next client, and both would
    wait for each other.
    """
    client: Client = kind.__new__(kind)
    try:
        client.__init__(where, timeout=ANSWER_TIMEOUT_SECONDS, set_as_default=False)
    except BaseException:
        with suppress(AttributeError):  # It may have failed early, for example without certificates.
            client.close()
        raise
    return client


def _require_worker(client: Client, address: str) -> None:
    """Raise UsageError if no worker answers in time."""
    try:
        client.wait_for_workers(1, timeout=ANSWER_TIMEOUT_SECONDS)
    except TimeoutError as error:
        problem = f"none in {ANSWER_TIMEOUT_SECONDS} s at '{shortened(address, 200)}'"
        raise UsageError("the cluster must have a worker", problem, f"start one: dask worker {address}") from error


@contextmanager
def _told_plainly(address: str) -> Iterator[None]:
    """Turn Dask's errors about lost workers and schedulers into errors of mcugen."""
    from distributed import CancelledError
    from distributed.client import FutureCancelledError
    from distributed.comm import CommClosedError
    from distributed.scheduler import KilledWorker

    try:
        yield
    except KilledWorker as error:
        rule, remedy = "the work must fit a worker's memory", "give workers more memory, or take this computer"
        raise DoesNotFitError(rule, shortened(str(error), 300), remedy) from error
    except ModuleNotFoundError as error:
        remedy = "install it there: pip install 'mcugen[cluster]'"
        raise ToolMissingError("scheduler and workers must have mcugen", str(error), remedy) from error
    except (CancelledError, FutureCancelledError, CommClosedError) as error:
        problem, remedy = f"nothing any more at '{shortened(address, 200)}'", "start it again, and repeat the command"
        raise ToolMissingError("the cluster's scheduler must live as long as the work", problem, remedy) from error
