# SPDX-License-Identifier: Apache-2.0
"""Functions that workers of a cluster run in tests; in a module of their own, so that workers import little."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from mcugen.core.errors import DoesNotFitError
from mcugen.distributed import environment


def process_of(_number: int) -> int:
    """Return the process ID of the worker."""
    time.sleep(0.05)
    return os.getpid()


def sum_of_files(paths: Mapping[str, Path], name: str) -> tuple[str, bytes, list[str]]:
    """Return what the worker sees of a file or folder: its path, its contents, and the names of the files in it."""
    path = paths[name]
    inside = sorted(p.name for p in path.rglob("*")) if path.is_dir() else []
    return str(path), b"" if path.is_dir() else path.read_bytes(), inside


def refuses(number: int) -> int:
    """Raise an error for task 1, and return the number of any other task."""
    if number == 1:
        raise DoesNotFitError("a rule", "this", "that")
    return number


def dies(_number: int) -> None:
    """End the worker's process without a result."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(mark: str, number: int) -> int:
    """Return the square of a number; the first process that computes task 3 dies instead."""
    if number == 3 and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def is_older(_number: int) -> None:
    """Raise the error that a worker with another version of mcugen would raise."""
    environment.require_same({**environment.environment(), "numpy": "1.0"})


def ports_listened_on(_task: int) -> list[tuple[str, int]]:
    """Return the addresses on which this process and its parent listen for connections."""
    processes = (psutil.Process(), *psutil.Process().parents()[:1])
    found = (c for process in processes for c in process.net_connections("all") if c.status == psutil.CONN_LISTEN)
    return [tuple(c.laddr) for c in found]
