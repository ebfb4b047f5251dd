# SPDX-License-Identifier: Apache-2.0
"""Work in several processes of this computer; the tasks of a process that dies are repeated."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from mcugen.core.errors import DoesNotFitError

_T = TypeVar("_T")
_R = TypeVar("_R")

MAX_LOSSES = 3
"""Largest number of worker processes that may die one after the other without any result in between."""


def run_in_processes(work: Callable[[_T], _R], tasks: Sequence[_T], jobs: int) -> Iterator[tuple[_T, _R]]:
    """Run tasks in processes of this computer, and yield each task with its result in the order of arrival.

    A single task, or all tasks if `jobs` is 1, run in this process.

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
    yield from run_in_other_processes(work, tasks, jobs)


def run_in_other_processes(work: Callable[[_T], _R], tasks: Sequence[_T], jobs: int) -> Iterator[tuple[_T, _R]]:
    """Run tasks in other processes even if `jobs` is 1, and yield each task with its result in the order of arrival.

    Tasks of a process that dies are repeated.

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


def _finished(futures: dict[Future[_R], int]) -> Iterator[tuple[int, _R]]:
    """Yield results as they arrive; raise BrokenProcessPool after the valid ones if a process was lost."""
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, return_when=FIRST_COMPLETED)
        lost = [future for future in finished if isinstance(future.exception(), BrokenProcessPool)]
        for future in sorted(finished - set(lost), key=futures.__getitem__):
            yield futures[future], future.result()
        if lost:
            lost[0].result()
