# SPDX-License-Identifier: Apache-2.0
"""What workers of a cluster do in tests: apart, so that they import little."""

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
    time.sleep(0.05)
    return os.getpid()


def sum_of_files(paths: Mapping[str, Path], name: str) -> tuple[str, bytes, list[str]]:
    path = paths[name]
    inside = sorted(p.name for p in path.rglob("*")) if path.is_dir() else []
    return str(path), b"" if path.is_dir() else path.read_bytes(), inside


def refuses(number: int) -> int:
    if number == 1:
        raise DoesNotFitError("a rule", "this", "that")
    return number


def dies(_number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_once(mark: str, number: int) -> int:
    if number == 3 and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def is_older(_number: int) -> None:
    """What a worker of another version would see of this one."""
    environment.require_same({**environment.environment(), "numpy": "1.0"})


def ports_listened_on(_task: int) -> list[tuple[str, int]]:
    """Addresses on which this process, and the one that started it, wait for others."""
    processes = (psutil.Process(), *psutil.Process().parents()[:1])
    found = (c for process in processes for c in process.net_connections("all") if c.status == psutil.CONN_LISTEN)
    return [tuple(c.laddr) for c in found]
