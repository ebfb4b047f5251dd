# SPDX-License-Identifier: Apache-2.0
"""What commands say: results on stdout, progress and notes on stderr."""

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

from mcugen.core.errors import printable, shortened

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from mcugen.api.compilation import Compilation
    from mcugen.backends.cpu.pipeline import Trace
    from mcugen.quantization.quantize import Quantization

SECONDS_BETWEEN_LINES = 10.0
"""Of progress where stderr is no terminal."""

LEAST_STEPS = 2
"""Of a thing that is done in steps, by which is told how long the others take."""

MOST_NOTES = 12
LONGEST_NOTE = 600
"""Notes, and characters of each, that are printed."""


class Output(Console):
    """A console whose reader may leave: `mcugen boards | head` is no failure."""

    def on_broken_pipe(self) -> None:
        """Ends the command as any other writer's broken pipe does."""
        raise BrokenPipeError


class Reported(Protocol):
    """A result that JSON has, too."""

    def to_json(self) -> Any:
        """As JSON has it."""


stdout = Output(emoji=False)  # `:x:` in a name is no picture
stderr = Console(stderr=True, emoji=False)


@contextmanager
def watched(net: Compilation, quiet: bool) -> Iterator[None]:
    """Shows what a compilation does; and, wherever that ends, the way to the precisions that it chose."""
    from mcugen.reporting.text import print_tradeoffs

    try:
        with progress_shown(quiet) as net.progress:
            yield
    finally:
        if not quiet and net.search is not None and net.search.steps:
            print_tradeoffs(net.search.goal, net.search.steps, stderr)


def tell(text: str) -> None:
    """A line for people; the text may hold names of an untrusted model."""
    stderr.print(escape(printable(shortened(text))), highlight=False, soft_wrap=True)


def tell_warnings(warnings: Sequence[str]) -> None:
    """Print all warnings on stderr, whether progress is shown or not; the JSON has them, too."""
    for warning in dict.fromkeys(warnings):
        tell(f"warning: {shortened(warning, LONGEST_NOTE)}")


def tell_notes(notes: Sequence[str]) -> None:
    """Print notes on stderr, among them all that name layers of another type; the JSON has them, too."""
    from mcugen.reporting.text import names_layers

    told = list(dict.fromkeys(notes))
    others = [note for note in told if not names_layers(note)]
    left_out = set(others[MOST_NOTES:])
    for note in (note for note in told if note not in left_out):
        tell(f"note: {note if names_layers(note) else shortened(note, LONGEST_NOTE)}")
    if left_out:
        tell(f"and {len(left_out):,} more notes: --json has them all")


def tell_quantization(quantized: Quantization) -> None:
    """Print what quantization cost."""
    if quantized.estimate is not None:
        tell(f"quantized: {quantized.estimate}")


def write_json(target: str, result: Reported) -> None:
    """What `--json` asked for: to stdout for "-", to a file for a path, nowhere for ""."""
    from mcugen.codegen.write import write_text

    if target == "-":
        typer.echo(_json_of(result))
    elif target:
        write_text(Path(target), _json_of(result) + "\n")


def _json_of(result: Reported) -> str:
    """Return valid JSON: NaN and infinities, which it cannot have, become null."""
    return json.dumps(_finite(result.to_json()), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_trace(trace: Trace, time_passes: bool) -> None:
    """Dumps and seconds of passes, on stderr."""
    for name, text in trace.dumps:
        typer.echo(f"after {name}:\n{text}", err=True)
    for name, seconds in trace.seconds if time_passes else ():
        typer.echo(f"{seconds:8.4f} s  {name}", err=True)


@contextmanager
def progress_shown(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Several things to do, one after the other, a bar each; without a terminal, now and then a line."""
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

        def advance(what: str, done: int, total: int) -> None:
            if not bars:  # where nothing takes long, nothing is shown
                bars.append(stack.enter_context(_bars()))
            if what not in tasks:
                tasks[what] = bars[0].add_task(escape(what), total=total)
            elif done < bars[0].tasks[tasks[what]].completed:  # it is done again
                bars[0].reset(tasks[what])
            bars[0].update(tasks[what], completed=done, total=total)

        yield advance


class _Lines:
    """Progress where no bar can be drawn: a line every SECONDS_BETWEEN_LINES, once something takes that long."""

    def __init__(self) -> None:
        self._told = time.monotonic()
        self._pace = _Pace()

    def __call__(self, what: str, done: int, total: int) -> None:
        """The next step is done."""
        now = time.monotonic()
        left = self._pace.seconds_left(what, done, total, now)
        if now - self._told < SECONDS_BETWEEN_LINES:
            return
        self._told = now
        tell(f"{what}: {done:,} of {total:,}" + ("" if left is None else f", {left:.0f} s left"))


class _Pace:
    """How long each of several things goes on that are done in steps, some of them again and again."""

    def __init__(self) -> None:
        self._began: dict[str, tuple[float, int]] = {}
        self._last: dict[str, int] = {}

    def seconds_left(self, what: str, done: int, total: int, now: float) -> float | None:
        """Of this thing, as fast as its steps were since it last began; None as long as that says nothing."""
        if what not in self._began or done < self._last[what]:
            self._began[what] = now, done
        self._last[what] = done
        began, first = self._began[what]
        steps = done - first
        return (total - done) * (now - began) / steps if steps >= LEAST_STEPS else None


def _bars() -> Progress:
    """On stderr, and gone when all is done."""
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
        """How many in a second."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:.3g}/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=stderr, transient=True)
