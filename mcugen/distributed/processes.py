# SPDX-License-Identifier: Apache-2.0
"""Work in several processes of this computer; the tasks of a process that dies are repeated."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from mcugen.core.errors import DoesNotFitError

T = TypeVar("T")
R = TypeVar("R")

MAX_LOSSES = 3
"""Largest number of processes in a row that may die without a result in between."""


def done_by_processes(work: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Iterator[tuple[T, R]]:
    """Yield tasks with their results (see Workers.each_done); a single task or job runs in this process.

    Args:
        work: The function to run.
        tasks: Its arguments, one for each task.
        jobs: Number of processes.

    Raises:
        DoesNotFitError: If processes keep getting lost.
    """
    if jobs <= 1 or len(tasks) <= 1:
        yield from ((task, work(task)) for task in tasks)
        return
    yield from done_by_others(work, tasks, jobs)


def done_by_others(work: Callable[[T], R], tasks: Sequence[T], jobs: int) -> Iterator[tuple[T, R]]:
    """Yield each task with its result, computed by other processes. Tasks of a lost process are repeated.

    Args:
        work: The function to run.
        tasks: Its arguments, one for each task.
        jobs: Number of processes.

    Raises:
        DoesNotFitError: If processes keep getting lost.
    """
    unfinished, losses = list(range(len(tasks))), 0
    while unfinished:
        pool = ProcessPoolExecutor(min(jobs, len(unfinished)), multiprocessing.get_context("spawn"))
        try:
            futures = {pool.submit(work, tasks[index]): index for index in unfinished}
            for index, result in _finished(futures):
                unfinished.remove(index)
                losses = 0
                yield tasks[index], result
        except BrokenProcessPool as error:
            losses += 1
            if losses >= MAX_LOSSES:
                rule, remedy = "the work must fit this computer's memory", "take fewer processes: --jobs 1"
                raise DoesNotFitError(rule, f"processes were lost {losses} times", remedy) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _finished(futures: dict[Future[R], int]) -> Iterator[tuple[int, R]]:
    """Yield results as they arrive; raise BrokenProcessPool after the valid ones if a process was lost."""
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, return_when=FIRST_COMPLETED)
        lost = [future for future in finished if isinstance(future.exception(), BrokenProcessPool)]
        for future in sorted(finished - set(lost), key=futures.__getitem__):
            yield futures[future], future.result()
        if lost:
            lost[0].result()
