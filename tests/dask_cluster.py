# SPDX-License-Identifier: Apache-2.0
"""A real Dask scheduler with workers in processes of their own, which tests kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mcugen.distributed import cluster

ROOT = Path(__file__).resolve().parents[1]
QUIET = {"DASK_LOGGING__DISTRIBUTED": "critical"}


@dataclass
class Cluster:
    """A scheduler, and workers by their process numbers."""

    address: str
    folder: Path
    workers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def add(self) -> None:
        """One more worker, which nobody starts again."""
        settings = ["--no-nanny", "--nthreads", "1", "--no-dashboard", "--local-directory", str(self.folder)]
        process = run_dask("worker", self.address, *settings, home=self.folder)
        self.workers[process.pid] = process

    def wait(self) -> None:
        """Until the scheduler knows all that live: what is lost while others join may be forgotten by Dask."""
        end = time.monotonic() + 120
        with cluster._connected(self.address) as client:
            while len(client.nthreads()) < sum(worker.poll() is None for worker in self.workers.values()):
                assert time.monotonic() < end, "workers do not join"
                time.sleep(0.1)

    def kill(self, pid: int) -> None:
        self.workers.pop(pid).kill()


def run_dask(*arguments: str, home: Path) -> subprocess.Popen[bytes]:
    paths = [ROOT, ROOT / "tests" / "distributed"]
    known = {**os.environ, **QUIET, "PYTHONPATH": ":".join(map(str, paths)), "XDG_CACHE_HOME": str(home / "elsewhere")}
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *arguments], env=known, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def scheduler_address(told: Path) -> str:
    """Of the scheduler, once it has written the whole of its file."""
    for _ in range(600):
        try:
            return str(json.loads(told.read_text())["address"])
        except (FileNotFoundError, json.JSONDecodeError):
            time.sleep(0.1)
    raise TimeoutError("no scheduler")


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a scheduler on this computer with two workers."""
    told = folder / "scheduler.json"
    settings = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(told)]
    scheduler = run_dask("scheduler", *settings, home=folder)
    made = Cluster("", folder)
    try:
        made.address = scheduler_address(told)
        made.add()
        made.add()
        yield made
    finally:
        for worker in made.workers.values():
            worker.kill()
        scheduler.terminate()
        scheduler.wait()
