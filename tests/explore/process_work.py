# SPDX-License-Identifier: Apache-2.0
"""Functions that worker processes run in tests; in a module of their own, so that processes import little."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mcugen.core.cache import Store
from mcugen.core.errors import DoesNotFitError


def write_often(store: Store, text: str) -> None:
    """Write a text to a store many times, so that several processes write at once."""
    for _ in range(5):
        store.write("key", text.encode())


def squares_and_dies_once(folder: Path, number: int) -> int:
    """Return the square of a number; the first process that computes task 3 dies instead."""
    if number == 3 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def dies(_number: int) -> None:
    """End the process without a result."""
    os.kill(os.getpid(), signal.SIGKILL)


def refuses(_number: int) -> None:
    """Raise an error for a task."""
    raise DoesNotFitError("a rule", "this", "that")
