# SPDX-License-Identifier: Apache-2.0
"""Runs command lines of mcugen in separate processes, with limits of CPU time and memory."""

from __future__ import annotations

import faulthandler
import gc
import io
import multiprocessing
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import typer

from mcugen.cli import app as cli
from mcugen.cli.error_boundary import guarded

SECONDS = 30
"""CPU time of one command, at most."""
MAX_COMMAND_BYTES = 2 << 30
"""Memory of one command, beyond that of the process before."""
WALL_SECONDS = 900
"""Wall time after which a command counts as hanging."""
LONGEST_MESSAGE = 16_384
"""Characters on stderr, at most: one message and the notes before it."""
EXITS = (0, 2, 3, 4, 5, 6, 8, 9, 10)
"""Allowed exit codes: 1 is an internal error, and 7 a failed check of mcugen itself."""


@dataclass(frozen=True)
class Command:
    """A command line and its allowed exit codes.

    The command runs in the folder `within` the folder of all files, since settings are read from the working directory.
    """

    name: str
    arguments: tuple[str, ...]
    exits: tuple[int, ...] = EXITS
    within: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of a command; `wrong` describes a violation, or is empty."""

    name: str
    code: int
    message: str
    seconds: float
    wrong: str = ""


def run_all(commands: Sequence[Command], folder: Path) -> Iterator[Outcome]:
    """Run the commands one after the other in `folder`; a new process takes over where one dies."""
    todo = list(commands)
    context = multiprocessing.get_context("fork")
    while todo:
        here, there = context.Pipe(duplex=False)
        child = context.Process(target=_serve, args=(todo, folder, there))
        child.start()
        there.close()
        wrong = ""
        while todo:
            try:
                if not here.poll(WALL_SECONDS):
                    wrong = f"no end after {WALL_SECONDS} s"
                    break
                outcome = here.recv()
            except EOFError:
                child.join()
                wrong = _death(child.exitcode)
                break
            todo.pop(0)
            yield outcome
        child.kill()
        child.join()
        if wrong:
            yield Outcome(todo.pop(0).name, -1, "", 0.0, wrong)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"{SECONDS} s of CPU exceeded" if name == "SIGXCPU" else f"killed by {name}"
    return f"process ended with {code}"


def _serve(commands: Sequence[Command], folder: Path, pipe: Connection) -> None:
    warnings.simplefilter("ignore")
    warnings.simplefilter("always", RuntimeWarning)  # of numpy's: users see them, too
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # what C++ code prints; Python's own is caught
    faulthandler.disable()  # of pytest: crashes are outcomes here
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MAX_COMMAND_BYTES, limits[1]))
    gc.freeze()
    for command in commands:
        os.chdir(folder / command.within)
        outcome = _run(command, before)
        pipe.send(outcome)
    pipe.close()


def _run(command: Command, before: int) -> Outcome:
    start = _cpu()
    resource.setrlimit(resource.RLIMIT_CPU, (int(start) + SECONDS + 1, resource.RLIM_INFINITY))
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_mcugen(command.arguments)
    seconds = _cpu() - start
    message = err.getvalue()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    wrong = ""
    if code not in command.exits:
        wrong = f"exit code {code}, not one of {command.exits}"
    elif "Traceback" in message or "Exception ignored" in message:
        wrong = "a traceback"
    elif "RuntimeWarning" in message:
        wrong = "a warning of Python's"
    elif grown > MAX_COMMAND_BYTES:
        wrong = f"{grown >> 20} MiB"
    elif len(message) > LONGEST_MESSAGE:
        wrong = f"{len(message)} characters on stderr"
    return Outcome(command.name, code, message, seconds, wrong)


@cache
def _program() -> Callable[[], object]:
    """Return the program that `cli.main` guards; cached, since building it takes as long as a small compilation."""
    program: Callable[[], object] = typer.main.get_command(cli.app)
    return program


def run_mcugen(arguments: Sequence[str]) -> int:
    """Run mcugen in this process; return its exit code, or -2 if an exception escapes."""
    sys.argv = ["mcugen", *arguments]
    try:
        return guarded(_program())
    except BaseException as error:
        print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
        return -2


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _address_space() -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 4 << 30
