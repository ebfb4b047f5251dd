# SPDX-License-Identifier: Apache-2.0
"""Who does work that can be shared out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mcugen.distributed.processes import done_by_others, done_by_processes

T = TypeVar("T")
R = TypeVar("R")

LOCAL = "local"
"""Address that stands for processes of this computer.

They are reached by pipes, which no one else can open; a scheduler on a loopback address would run the code of any local
user.
"""


@dataclass(frozen=True)
class Workers:
    """A number of processes of this computer, or the workers of a Dask scheduler at an address."""

    jobs: int = 1
    cluster: str = ""

    def each_done(self, work: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[T, R]]:
        """Yield tasks with their results, as they come; taken up in order. The first exception of a task ends it all.

        `work` and tasks can be pickled; files that `work` names by paths go along with it to a cluster. What a lost
        process was at is done again: DoesNotFitError if that does not help.
        """
        if not self.cluster:
            yield from done_by_processes(work, tasks, self.jobs)
            return
        if self.cluster == LOCAL:
            yield from done_by_others(work, tasks, self.jobs)
            return
        from mcugen.distributed.cluster import done_by_cluster

        yield from done_by_cluster(work, tasks, self.cluster, self.jobs)


ALONE = Workers()
"""This process."""
