# SPDX-License-Identifier: Apache-2.0
"""Limits of one compilation, so that the compiler ends within limited time and memory for any input.

Real models are far below the limits: MobileNetV2 has about a hundred nodes, and files of 100 MB are accepted.
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

MAX_MODEL_BYTES = 1 << 28
"""Largest size of a model's file in bytes: protobuf copies the file several times."""
MAX_NODES = 20_000
"""Largest number of nodes of a model, with functions inlined and loops unrolled."""
MAX_CONNECTIONS = 100_000
"""Largest number of inputs and outputs of all nodes of a model together, plus its initializers."""
MAX_NAME_CHARACTERS = 4096
"""Largest number of characters of a name: exporters join the names of all layers that they fuse."""
MAX_MODEL_PORTS = 1_000
"""Largest number of inputs of a model; its outputs have the same limit."""
MAX_READERS = 2_000
"""Largest number of nodes that read one tensor."""
MAX_NODE_PORTS = 2_000
"""Largest number of inputs of one node; its outputs have the same limit."""
MAX_CONTROL_FLOW_DEPTH = 12
"""Largest depth of nested If, Loop and Scan operators: each level doubles the time to verify a memory plan."""
MAX_RANK = 64
"""Largest rank of a tensor that is passed to ONNX's own code, which truncates larger axis numbers to 32 bits."""
MAX_ELEMENTS = 1 << 22
"""Largest number of elements of a tensor that the model computes; no microcontroller has memory for more."""
MAX_UNROLLED_STEPS = 128
"""Largest number of steps of a loop that is unrolled."""
MAX_LOOP_OPERATIONS = 1 << 18
"""Largest number of operators that all steps of a loop run together.

The self-test's expected output is computed operator by operator at compile time.
"""
MAX_UNROLL_FOLDED_ELEMENTS = 1 << 20
"""Largest number of tensor elements that the importer computes at compile time while it unrolls loops."""

MAX_SAMPLES_BYTES = 1 << 30
"""Largest size in bytes of all arrays in one file of calibration or evaluation samples."""
MAX_FILE_SAMPLES = 1 << 18
"""Largest number of samples in a file: each sample is stored separately and runs in the simulator."""
MAX_PROFILE_BYTES = 1 << 26
"""Largest size in bytes of a file with tensor statistics (`mcugen profile`)."""
MAX_BOARD_BYTES = 1 << 18
"""Largest size of a board file in bytes."""
MAX_PIXELS = 1 << 24
"""Largest number of pixels of an image: a larger one is a decompression bomb, not a calibration sample."""
MAX_LABEL_CHARACTERS = 200
"""Largest number of characters of a class label."""

MAX_DIGITS = 18
"""Largest number of digits of a whole number on the command line, so that it fits in 64 bits."""

MAX_CPU_SECONDS = 20.0
"""Largest CPU time in seconds of compiling one program, from the checked model to the memory plan.

The environment variable MCUGEN_SECONDS overrides it.
"""
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
    _require_regular(path, path.stat())  # Opening a device may have side effects, so check first.
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


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: The file cannot be read, or is no regular file.
        UsageError: It has more than `max_bytes` bytes.
    """
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UsageError(f"{path}: the file must have at most {max_bytes:,} bytes", "more", "give a smaller one")
    return data


def check_size(place: str, name: str, count: int) -> None:
    """Check that a tensor has at most MAX_ELEMENTS elements.

    Args:
        place: The file, node or option that has the tensor, for the message.
        name: The name of the tensor.
        count: The number of its elements.

    Raises:
        DoesNotFitError: The tensor is too large.
    """
    if count > MAX_ELEMENTS:
        rule = f"{place}: a tensor must have at most {MAX_ELEMENTS:,} elements, to fit any board"
        raise DoesNotFitError(rule, f"{count:,} in '{name}'", "use smaller shapes")


class _TimeIsUp(BaseException):
    """The end of the CPU time; like KeyboardInterrupt, `except Exception` does not catch it."""


_is_timed = False


@contextmanager
def limit_cpu_seconds(what: str) -> Iterator[None]:
    """Limit the CPU time of a `with` block to MAX_CPU_SECONDS, or to $MCUGEN_SECONDS seconds.

    A system timer interrupts the block. Nested blocks have no limit of their own. There is no limit outside the main
    thread, on systems without such timers, and if another part of the process uses the timer.

    Args:
        what: What the block does, such as "compiling", as the beginning of the error message.

    Raises:
        DoesNotFitError: The block took longer.
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


def restart_time_limit() -> None:
    """Restart the time of the enclosing `limit_cpu_seconds`, so that the next program to compile gets the full time."""
    if _is_timed:
        _start(_seconds())


def _start(seconds: float) -> None:
    """Start the timer. Its signal repeats every second, as code (a callback from C++, for example) may swallow one."""
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)


def _has_timer() -> bool:
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and hasattr(signal, "setitimer") and signal.getsignal(signal.SIGPROF) is signal.SIG_DFL


def _seconds() -> float:
    """Return the time limit: the user's whole seconds, or the default."""
    text = os.environ.get(_SECONDS_VARIABLE, "")
    return float(text) if text.isascii() and text.isdecimal() and 0 < len(text) < 8 else MAX_CPU_SECONDS


def _end(_number: int, _frame: FrameType | None) -> None:
    raise _TimeIsUp
