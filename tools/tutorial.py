# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md: its commands, and the figures that it says they print."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "tutorial.md"
EXAMPLE = ROOT / "examples" / "tutorial"
PARTS = ("pytorch", "keras")

Run = Callable[[list[str], Path], str]
"""What a mcugen command, given by its arguments and a folder to run in, prints."""


@dataclass(frozen=True)
class Step:
    """A command of the page, with the lines that the page says it prints."""

    command: str
    printed: tuple[str, ...] = ()


def chapter(page: str, part: str) -> str:
    """Return the chapter that trains `part`."""
    return next(text for text in page.split("\n## ") if f"train_{part}.py" in text)


def steps(page: str, part: str) -> list[Step]:
    """Return the steps of a chapter; a text block shows the output of the command before it."""
    found: list[Step] = []
    for kind, block in re.findall(r"```(sh|text)\n(.*?)```", chapter(page, part), re.DOTALL):
        lines = block.strip().splitlines()
        if kind == "text":
            found[-1] = Step(found[-1].command, tuple(lines))
        else:
            found += map(Step, lines)
    return found


def followed(page: str, part: str, folder: Path, trained: Path, run: Run) -> Iterator[tuple[Step, str]]:
    """Yield all steps with their output, run in a folder with the files in `trained` instead of a training."""
    for step in steps(page, part):
        name, *words = shlex.split(step.command)
        if name == "python":
            assert (ROOT / words[0]).is_file(), f"the page names {words[0]}, which is not there"
            shutil.copytree(trained, folder / words[1])
        elif name == "cd":
            folder = folder / words[0]
        elif name != "pip":
            assert name == "mcugen", f"the page has a command of {name}"
            yield step, run(words, folder)


def plain(text: str) -> str:
    """Return the text without the blanks on which a table's widths depend."""
    return re.sub(" +", " ", text)


def current(page: str, run: Run) -> str:
    """Return the page with the figures that the committed models give now."""
    for part in PARTS:
        text = other = chapter(page, part)
        with tempfile.TemporaryDirectory() as folder:
            for step, printed in followed(page, part, Path(folder), EXAMPLE / part, run):
                for line in step.printed:
                    other = other.replace(line, _line_of(_title(line), printed) or line)
        page = page.replace(text, other)
    return page


def _title(line: str) -> str:
    return line.partition("│")[2].partition("│")[0].strip()


def _line_of(title: str, printed: str) -> str | None:
    lines = (line for line in printed.splitlines() if title and _title(line) == title)
    return next(lines, None)
