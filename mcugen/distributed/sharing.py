# SPDX-License-Identifier: Apache-2.0
"""Workers: processes of this computer or of a cluster that run independent tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mcugen.distributed.processes import done_by_others, done_by_processes

T = TypeVar("T")
R = TypeVar("R")

LOCAL = "local"
"""Address that stands for processes of this computer.

They communicate by pipes, which no one else can open. A scheduler on a loopback address would run code of any local
user.
"""


@dataclass(frozen=True)
class Workers:
    """A number of processes of this computer, or the workers of a Dask scheduler at an address."""

    jobs: int = 1
    cluster: str = ""

    def each_done(self, work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[T, R]]:
        """Yield tasks with their results, as these arrive; tasks start in order.

        The first exception of a task ends all. `work` and tasks must be picklable; files that `work` names by paths are
        sent to a cluster as well. Tasks of a lost process are repeated.

        Raises:
            DoesNotFitError: If processes keep getting lost.
        """
        if not self.cluster:
            yield from done_by_processes(work, tasks, self.jobs)
            return
        if self.cluster == LOCAL:
            yield from done_by_others(work, tasks, self.jobs)
            return
        from mcugen.distributed.cluster import done_by_cluster

        yield from done_by_cluster(work, tasks, self.cluster, self.jobs)


ONLY_THIS_PROCESS = Workers()
"""This process only."""
