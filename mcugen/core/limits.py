# SPDX-License-Identifier: Apache-2.0
"""The budget of one compilation: whatever the input, it ends in time, and takes no more memory than a computer has.

Every real model is far below: MobileNetV2 has some hundred nodes, and files of 100 MB are taken.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from types import FrameType

from mcugen.core.errors import DoesNotFitError, UsageError

MODEL_BYTES = 1 << 28
"""Largest size of a model's file: protobuf copies it several times."""
MAX_NODES = 20_000
"""Largest number of nodes of a model, with functions inlined and loops unrolled."""
MAX_LINKS = 100_000
"""Inputs and outputs of all nodes, and initializers."""
MAX_NAME = 4096
"""Characters of a name: exporters join those of all layers that they fuse."""
MAX_PORTS = 1_000
"""Inputs, and outputs, of a model."""
MAX_READERS = 2_000
"""Largest number of readers of one tensor."""
MAX_PARTS = 2_000
"""Inputs, and outputs, of one node."""
MAX_NESTED = 12
"""Control flow operators around one another: checking a plan takes twice as long with each."""
MAX_RANK = 64
"""Largest rank of a tensor that ONNX's own code sees; it truncates larger axis numbers to 32 bits."""
MAX_ELEMENTS = 1 << 22
"""Largest number of elements of a computed tensor: no microcontroller has room for more."""
MAX_UNROLLED = 128
"""Steps of a loop that are written out where they must be."""
MAX_WORK = 1 << 18
"""Operators that a loop may run in all: the self-test's outputs are computed at compile time, step by step."""
MAX_FOLDED = 1 << 20
"""Elements of results that are computed while importing loops."""

SAMPLE_BYTES = 1 << 30
"""Largest size of all arrays in one file of samples."""
MAX_SAMPLES = 1 << 18
"""Largest number of samples in a file: each is stored separately and runs under simulation."""
PROFILE_BYTES = 1 << 26
BOARD_BYTES = 1 << 18
MAX_PIXELS = 1 << 24
"""Largest number of pixels of an image: a larger one is a decompression bomb, not a calibration sample."""
LONGEST_LABEL = 200
"""Characters of what a class of an output is called."""

MAX_DIGITS = 18
"""Largest number of digits of a number on the command line: what 64 bits hold."""

SECONDS = 20.0
"""CPU seconds for a program, from the checked model to its memory plan."""
_SECONDS_VARIABLE = "MCUGEN_SECONDS"


_SPECIAL_FILES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a device",
}
"""Kinds of files that may never end, or that wait for a writer when they are opened."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading in binary mode.

    Raises:
        OSError: The file cannot be opened, or it is a directory, pipe, socket or device.
    """
    _require_regular(path, path.stat())  # opening a device may do something by itself
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _require_regular(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(path: Path, known: os.stat_result) -> None:
    kind = stat.S_IFMT(known.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(errno.ENXIO, f"{_SPECIAL_FILES.get(kind, 'a special file')}, not a file", str(path))


def read_bounded(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: The file cannot be read, or is no regular file.
        UsageError: It has more than `most` bytes.
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise UsageError(f"{path}: the file must have at most {most:,} bytes", "more", "give a smaller one")
    return data


def check_size(place: str, name: str, count: int) -> None:
    """DoesNotFitError for a tensor of too many elements."""
    if count > MAX_ELEMENTS:
        rule = f"{place}: a tensor must have at most {MAX_ELEMENTS:,} elements, to fit any board"
        raise DoesNotFitError(rule, f"{count:,} in '{name}'", "use smaller shapes")


class _TimeIsUp(BaseException):
    """Passes through `except Exception`, like KeyboardInterrupt."""


_is_timed = False


@contextmanager
def cpu_seconds(what: str) -> Iterator[None]:
    """DoesNotFitError if the block takes more CPU than SECONDS, or $MCUGEN_SECONDS; nothing within another block.

    A timer of the system ends it, wherever it is: only in a program's main thread, where there are such timers, and
    where nobody else uses them.
    """
    global _is_timed
    if _is_timed or not _has_timer():
        yield
        return
    seconds = _seconds()
    _is_timed = True
    signal.signal(signal.SIGPROF, _end)
    _start(seconds)
    try:
        yield
    except _TimeIsUp:
        rule = f"{what} must take at most {seconds:g} s of CPU"
        remedy = f"simplify it, or allow more seconds by {_SECONDS_VARIABLE}={10 * seconds:g} in the environment"
        raise DoesNotFitError(rule, "more", remedy) from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        _is_timed = False


def restart() -> None:
    """Restart the time limit for the next of several programs."""
    if _is_timed:
        _start(_seconds())


def _start(seconds: float) -> None:
    """Start the timer. The signal repeats, as code in between may swallow it (a callback from C++, for example)."""
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)


def _has_timer() -> bool:
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and hasattr(signal, "setitimer") and signal.getsignal(signal.SIGPROF) is signal.SIG_DFL


def _seconds() -> float:
    """Return the time limit: the user's whole seconds, or the default."""
    wanted = os.environ.get(_SECONDS_VARIABLE, "")
    return float(wanted) if wanted.isascii() and wanted.isdecimal() and 0 < len(wanted) < 8 else SECONDS


def _end(_number: int, _frame: FrameType | None) -> None:
    raise _TimeIsUp
