# SPDX-License-Identifier: Apache-2.0
"""The tutorials of docs/tutorials: their commands, and the figures that they say the commands print."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "tutorial"
FOLDER = ROOT / "docs" / "tutorials"
PAGES = {
    "pytorch": FOLDER / "pytorch_stm32.md",
    "keras": FOLDER / "keras_arduino.md",
    "sklearn": FOLDER / "sklearn_avr.md",
    "keywords": FOLDER / "keyword_spotter.md",
    "anomaly": FOLDER / "anomaly_detection.md",
    "learning": FOLDER / "learning_on_device.md",
}
"""The page of each tutorial, by the folder that its program writes."""
COMMITTED = ("pytorch", "keras")
"""Tutorials whose trained models are in examples/tutorial, as training them needs large packages."""

Run = Callable[[list[str], Path], str]
"""What a mcugen command, given by its arguments and a folder to run in, prints."""


@dataclass(frozen=True)
class Step:
    """A command of the page, with the lines that the page says it prints."""

    command: str
    printed: tuple[str, ...] = ()


def steps(page: str) -> list[Step]:
    """Return the steps of a page; a text block shows the output of the command before it."""
    found: list[Step] = []
    for kind, block in re.findall(r"```(sh|text)\n(.*?)```", page, re.DOTALL):
        lines = block.strip("\n").splitlines()
        if kind == "text":
            found[-1] = Step(found[-1].command, tuple(lines))
        else:
            found += map(Step, lines)
    return found


def followed(page: str, folder: Path, trained: Path | None, run: Run) -> Iterator[tuple[Step, str]]:
    """Yield all steps of mcugen with their output, run in a folder.

    Args:
        page: The text of the page.
        folder: An empty folder, in which the steps run as in the root of the repository.
        trained: A folder with the files that the page's program writes; None to run the program.
        run: Runs a mcugen command.
    """
    (folder / "examples").symlink_to(ROOT / "examples")
    for step in steps(page):
        name, *words = shlex.split(step.command)
        if name == "python":
            assert (ROOT / words[0]).is_file(), f"the page names {words[0]}, which is not there"
            if trained is None:
                run_program(ROOT / words[0], folder / words[1])
            else:
                shutil.copytree(trained, folder / words[1])
        elif name == "cd":
            folder = folder / words[0]
        elif name != "pip":
            assert name == "mcugen", f"the page has a command of {name}"
            yield step, run(words, folder)


def run_program(program: Path, *arguments: Path) -> None:
    """Run a Python program in this process, in which its packages may be imported already."""
    with patch.object(sys, "argv", [str(program), *map(str, arguments)]):
        runpy.run_path(str(program), run_name="__main__")


def plain(text: str) -> str:
    """Return the text without the blanks on which a table's widths depend."""
    return re.sub(" +", " ", text)


def current(page: str, trained: Path | None, run: Run) -> str:
    """Return the page with the figures that its commands print now."""
    with tempfile.TemporaryDirectory() as folder:
        for step, printed in followed(page, Path(folder), trained, run):
            for line in step.printed:
                page = page.replace(line, _line_of(_title(line), printed) or line)
    return page


def _title(line: str) -> str:
    """Return the first cell of a row of a table; cells are apart by two blanks or more, or by lines."""
    return re.split(r" {2,}|│", line.strip(" │"))[0].strip()


def _line_of(title: str, printed: str) -> str | None:
    lines = (line for line in printed.splitlines() if title and _title(line) == title)
    return next(lines, None)
