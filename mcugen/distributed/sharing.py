# SPDX-License-Identifier: Apache-2.0
"""Workers: processes of this computer or of a cluster that run independent tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mcugen.distributed.processes import run_in_other_processes, run_in_processes

_T = TypeVar("_T")
_R = TypeVar("_R")

LOCAL = "local"
"""Value of `--cluster` that stands for processes of this computer instead of a Dask scheduler.

These processes communicate by pipes, which no other user can open. A Dask scheduler on a loopback address would be
open to all local users, who could run code through it.
"""


@dataclass(frozen=True)
class Workers:
    """The processes or computers that run independent tasks.

    Attributes:
        jobs: Number of processes of this computer, if `cluster` is empty.
        cluster: Address of a Dask scheduler whose workers run the tasks; "" for none.
    """

    jobs: int = 1
    cluster: str = ""

    def run_tasks(self, work: Callable[[_T], _R], tasks: Sequence[_T]) -> Iterator[tuple[_T, _R]]:
        """Run a function on each task, and yield each task with its result in the order of arrival.

        Tasks start in order. The first exception of a task ends all. Tasks of a lost process are repeated.

        Args:
            work: The function, which must be picklable. Files that it names by paths are sent to a cluster as well.
            tasks: The picklable arguments, one for each task.

        Raises:
            DoesNotFitError: If processes keep getting lost.
        """
        if not self.cluster:
            yield from run_in_processes(work, tasks, self.jobs)
            return
        if self.cluster == LOCAL:
            yield from run_in_other_processes(work, tasks, self.jobs)
            return
        from mcugen.distributed.cluster import run_on_cluster

        yield from run_on_cluster(work, tasks, self.cluster, self.jobs)


ONLY_THIS_PROCESS = Workers()
"""Workers for callers that want no other process: all tasks run in this one."""
