# SPDX-License-Identifier: Apache-2.0
"""Schedules the steps of inner loops for each core, and writes them to templates/kernels/loops/scheduled.

A step is written once, as clean assembly in templates/kernels/loops/*.loop (see tools/loops/clean.py). Kernels
include the scheduled text. `--check` writes nothing, and fails if a text is missing or does not belong to its source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from loops.clean import Step, lines_of
from loops.dataflow import results
from loops.search import bound, cycles, schedule
from rich.console import Console

from mcugen.codegen.environment import environment
from mcugen.core.resources import resource_dir

FOLDER = "kernels/loops"


@dataclass(frozen=True)
class Loop:
    """A step of a loop, and the cores for which it is scheduled.

    Attributes:
        source: Name of the template with the clean assembly.
        cores: Names of the cores.
        free: Registers that the step may overwrite.
        options: Values of the variables of the template.
        suffix: What distinguishes the names of scheduled texts with other options.
    """

    source: str
    cores: tuple[str, ...]
    free: tuple[str, ...]
    options: Mapping[str, object]
    suffix: str = ""

    def clean(self) -> str:
        """Return the clean assembly."""
        return environment().get_template(f"{FOLDER}/{self.source}.loop").render(**self.options)

    def path(self, core: str) -> Path:
        """Return the file with the scheduled text for a core."""
        return Path(str(resource_dir("templates"))) / FOLDER / "scheduled" / f"{self.source}{self.suffix}.{core}.s"


_ABOVE_PAIRS = ("r10", "r11", "r12", "lr")
_ABOVE_SUMS = ("r6", "r7", "r8", "r9", *_ABOVE_PAIRS)
_DUAL = ("cortex-m7",)
LOOPS = (
    *(
        Loop("two_by_four_pairs", ("cortex-m4", *_DUAL), _ABOVE_PAIRS, {"first": first}, "_first" * first)
        for first in (False, True)
    ),
    *(
        Loop(name, _DUAL, _ABOVE_SUMS, {"first": first, "sum": 2}, "_first" * first)
        for name in ("two_by_two", "two_by_two_pairs")
        for first in (False, True)
    ),
    Loop("two_by_two", _DUAL, ("r2", "r3", "r4", "r5", *_ABOVE_PAIRS), {"first": False, "sum": 6}, "_r6"),
    *(Loop(name, _DUAL, _ABOVE_SUMS, {}) for name in ("one_by_four", "one_by_four_pairs")),
)
"""The scheduled steps. Cores that issue one instruction a cycle run the text for the Cortex-M4."""


@dataclass(frozen=True)
class Record:
    """What the first line of a scheduled text says of it: hash of the clean assembly, core, cycles and bound."""

    source: str
    core: str
    cycles: int
    bound: int

    def __str__(self) -> str:
        """Return the line, a comment of Jinja."""
        return (
            f"{{# Scheduled for {self.core}: {self.cycles} cycles, at least {self.bound}; "
            f"clean assembly {self.source}. #}}"
        )

    @staticmethod
    def of(clean: str, texts: list[str], core: str) -> Record:
        """Return the record of scheduled instructions."""
        digest = hashlib.sha256("\n".join(lines_of(clean)).encode()).hexdigest()[:16]
        return Record(digest, core, cycles(texts, core), bound(texts, core))


def faults(loop: Loop, core: str) -> Iterator[str]:
    """Yield what is wrong with a scheduled text: its file, its record, or its data flow."""
    path, clean = loop.path(core), loop.clean()
    if not path.exists():
        yield f"{path.name} is missing: run make kernels"
        return
    first, _, body = path.read_text().partition("\n")
    texts = lines_of(body)
    if first != str(Record.of(clean, texts, core)):
        yield f"{path.name} does not belong to {loop.source}.loop: run make kernels"
    step = Step.of(clean)
    if results(texts, loop.free) != results([*step.texts, *(f"add {r}, {r}, #{n}" for r, n in step.moves.items())], ()):
        yield f"{path.name} computes other results than {loop.source}.loop"


def main(check: Annotated[bool, typer.Option(help="Write nothing.")] = False) -> None:
    """Schedule the steps that changed, and print the cycles of all, with the least that their instructions allow."""
    console = Console(stderr=True)
    found: list[str] = []
    for loop in LOOPS:
        for core in loop.cores:
            path = loop.path(core)
            if not check and list(faults(loop, core)):
                ordered = schedule(Step.of(loop.clean()), core, loop.free)
                texts = [text.replace("ldr ", "ldr.w ") for text in ordered]
                path.parent.mkdir(exist_ok=True)
                path.write_text("\n".join([str(Record.of(loop.clean(), texts, core)), *texts, ""]))
            found += faults(loop, core)
            if path.exists():
                texts = lines_of(path.read_text().partition("\n")[2])
                console.print(f"{path.name}: {cycles(texts, core)} cycles, at least {bound(texts, core)}")
    for fault in found:
        console.print(fault)
    if found:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
