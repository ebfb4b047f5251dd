# SPDX-License-Identifier: Apache-2.0
"""What processes do in tests: apart, so that they import little."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mcugen.core.cache import Store
from mcugen.core.errors import DoesNotFitError


def write_often(store: Store, text: str) -> None:
    for _ in range(5):
        store.write("key", text.encode())


def squares_and_dies_once(folder: Path, number: int) -> int:
    if number == 3 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def dies(_number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuses(_number: int) -> None:
    raise DoesNotFitError("a rule", "this", "that")
