# SPDX-License-Identifier: Apache-2.0
"""The output of commands: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer
from rich.console import Console
from rich.markup import escape

from mcugen.core.errors import listed, printable, shortened
from mcugen.distributed.pace import Pace

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from mcugen.api.compilation import Compilation
    from mcugen.backends.cpu.pipeline import Trace
    from mcugen.quantization.quantize import Quantization

SECONDS_BETWEEN_LINES = 10.0
"""Seconds between two lines of progress if stderr is not a terminal."""

MAX_PRINTED_NOTES = 12
"""Largest number of a compilation's notes that a command prints; the JSON report has all."""
MAX_NOTE_CHARACTERS = 600
"""Largest number of characters of a printed note; longer ones are shortened."""


class Output(Console):
    """A console for stdout that treats a closed pipe, as in `mcugen boards | head`, as a normal end."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which the error boundary handles, instead of ending the program."""
        raise BrokenPipeError


class HasJson(Protocol):
    """Any result of a command that has a JSON form."""

    def to_json(self) -> Any:
        """Return the result as JSON data."""


stdout = Output(emoji=False)  # `:x:` in a name is not an emoji.
stderr = Console(stderr=True, emoji=False)


@contextmanager
def watched(net: Compilation, quiet: bool) -> Iterator[None]:
    """Show the progress of a compilation within the block, and at its end the steps of its precision search, if any."""
    from mcugen.reporting.text import print_tradeoffs

    try:
        with progress_shown(quiet) as net.progress:
            yield
    finally:
        if not quiet and net.search is not None and net.search.steps:
            print_tradeoffs(net.search.goal, net.search.steps, stderr)


def tell(text: str) -> None:
    """Print a line on stderr, made safe for terminals: it may hold names of an untrusted model."""
    stderr.print(escape(printable(shortened(text))), highlight=False, soft_wrap=True)


def tell_warnings(warnings: Sequence[str]) -> None:
    """Print all warnings on stderr, even with --quiet; the JSON report has them too."""
    for warning in dict.fromkeys(warnings):
        tell(f"warning: {shortened(warning, MAX_NOTE_CHARACTERS)}")


def tell_notes(notes: Sequence[str]) -> None:
    """Print notes on stderr: all notes that list layers of another precision, and the first MAX_PRINTED_NOTES others.

    Repeated notes are printed once. The JSON report has all notes.
    """
    from mcugen.reporting.text import names_layers

    distinct_notes = list(dict.fromkeys(notes))
    other_notes = [note for note in distinct_notes if not names_layers(note)]
    left_out = set(other_notes[MAX_PRINTED_NOTES:])
    for note in (note for note in distinct_notes if note not in left_out):
        tell(f"note: {note if names_layers(note) else shortened(note, MAX_NOTE_CHARACTERS)}")
    if left_out:
        tell(f"and {len(left_out):,} more notes: --json has them all")


def tell_quantization(quantized: Quantization) -> None:
    """Print the estimated accuracy of a quantized model on stderr."""
    if quantized.estimate is not None:
        tell(f"quantized: {quantized.estimate}")


def tell_kept(folder: Path) -> None:
    """Name the files in the folder of generated code that are the user's, or that the user edited, on stderr."""
    from mcugen.codegen.install import kept_files

    kept = kept_files(folder)
    if kept:
        tell(f"kept in {folder}, as mcugen did not write them or they were edited: {listed(kept)}")


def write_json(target: str, result: HasJson) -> None:
    """Write a result as JSON to the target of `--json`: "-" for stdout, "" for none, else a path."""
    from mcugen.codegen.write import write_text

    if target == "-":
        typer.echo(json_text(result.to_json()))
    elif target:
        write_text(Path(target), json_text(result.to_json()) + "\n")


def json_text(data: Any) -> str:
    """Return valid JSON: NaN and infinities, which JSON does not have, become null."""
    return json.dumps(_finite(data), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_trace(trace: Trace, time_passes: bool) -> None:
    """Print the dumps of passes on stderr, and with `time_passes` their times."""
    for name, text in trace.dumps:
        typer.echo(f"after {name}:\n{text}", err=True)
    for name, seconds in trace.seconds if time_passes else ():
        typer.echo(f"{seconds:8.4f} s  {name}", err=True)


@contextmanager
def progress_shown(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback that shows the progress of tasks: a bar for each, or occasional lines without a terminal.

    The callback takes the name of a task, the number of finished steps, and the number of all steps.
    """
    from mcugen.quantization.quantize import no_progress

    if quiet:
        yield no_progress
        return
    if not stderr.is_terminal:
        yield _Lines()
        return
    with ExitStack() as stack:
        bars: list[Progress] = []
        tasks: dict[str, TaskID] = {}

        def advance(what: str, finished: int, total: int) -> None:
            if not bars:  # The display starts with the first task: short commands show nothing.
                bars.append(stack.enter_context(_bars()))
            if what not in tasks:
                tasks[what] = bars[0].add_task(escape(what), total=total)
            elif finished < bars[0].tasks[tasks[what]].completed:  # The task starts again.
                bars[0].reset(tasks[what])
            bars[0].update(tasks[what], completed=finished, total=total)

        yield advance


class _Lines:
    """Progress without a terminal: a line every SECONDS_BETWEEN_LINES."""

    def __init__(self) -> None:
        self._told = time.monotonic()
        self._pace = Pace()

    def __call__(self, what: str, finished: int, total: int) -> None:
        """Print a line for a task after a finished step, if the last line is old enough."""
        now = time.monotonic()
        left = self._pace.seconds_left(what, finished, total, now)
        if now - self._told < SECONDS_BETWEEN_LINES:
            return
        self._told = now
        tell(f"{what}: {finished:,} of {total:,}" + ("" if left is None else f", {left:.0f} s left"))


def _bars() -> Progress:
    """Return a display of progress bars on stderr, which disappears at its end."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """A column with the steps per second."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.3g}/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=stderr, transient=True)
