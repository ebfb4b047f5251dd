# SPDX-License-Identifier: Apache-2.0
"""The manual in the generated header: memory, accuracy, libraries, hooks and rules of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcugen.codegen.bundle import Section
from mcugen.codegen.identifiers import comment
from mcugen.codegen.memory import Area
from mcugen.codegen.titles import ListedLayer

_COLUMNS = (40, 30)
"""Largest numbers of characters of a layer's title and of its results in the table of layers."""


def layer_table(layers: Sequence[ListedLayer]) -> list[str]:
    """Return a line for each layer: number, title, results, kernel."""
    rows = [(comment(layer.title, _COLUMNS[0]), comment(layer.result, _COLUMNS[1]), layer.kernel) for layer in layers]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [
        f"{number:>3}  {title:<{widths[0]}}  {result:<{widths[1]}}  {kernel}"
        for number, (title, result, kernel) in enumerate(rows)
    ]


@dataclass(frozen=True)
class Facts:
    """The facts that the header's manual states; sizes are in bytes."""

    name: str
    model: str
    board: str
    accuracy: str
    """Measured accuracy of a quantized model, or ""."""
    areas: Sequence[Area]
    sections: Sequence[Section]
    state: int
    """Bytes of the state of one stream of inputs."""
    weights: int
    copies: int
    """Bytes of weights that start-up code copies from flash to RAM."""
    is_file: bool
    """Whether the weights are a file."""
    uses_libm: bool
    libraries: Sequence[str]
    selftest: str
    """C expression that calls the self-test."""
    tested: str
    """Description of the self-test if its samples were chosen; else ""."""
    linker_script: str
    """Name of the linker script that places sections."""

    @property
    def command(self) -> str:
        """Return the command that measures the model on the board."""
        return f"mcugen report {self.model} --board {self.board}"


def manual(facts: Facts) -> list[str]:
    """Return the paragraphs of the manual, one for each subject."""
    return [
        f"RAM: {_ram(facts)}.",
        f"Flash: {facts.weights:,} bytes of weights{_file(facts)}, and the code.",
        f"Stack: `{facts.command}` measures it, with the code's flash and time.",
        f"Accuracy: {facts.accuracy or f'not measured when this was written; `{facts.command} --data FILE.npz` does'}.",
        f"Libraries: {_libraries(facts)}.",
        f"Memories: {_memories(facts)}.",
        f"Threads: {_threads(facts)}",
        "Hook: with -DMCUGEN_ON_LAYER=f each layer, when it is done, calls f(model, index) with its number and a "
        f"`const mcugen_model *` (mcugen.h), &{facts.name}_model for this one; f must be declared before this header. "
        "Names of layers take flash only then.",
        f"Self-test: {facts.selftest} {facts.tested or 'runs random numbers on the target and compares.'}",
    ]


def _ram(facts: Facts) -> str:
    arenas = [
        f"{area.size:,} bytes of arena{f' in {comment(area.memory, 40)}' if area.section else ''}"
        for area in facts.areas
    ]
    state = [f"{facts.state:,} bytes of {facts.name}_state for each stream of inputs"] * bool(facts.state)
    copies = [f"{facts.copies:,} bytes of weights that start-up copies there"] * bool(facts.copies)
    return ", ".join([*arenas, *state, *copies]) + ", and the stack; nothing is allocated"


def _file(facts: Facts) -> str:
    return f", as {facts.name}_weights.bin where the caller says" if facts.is_file else ""


def _libraries(facts: Facts) -> str:
    math = [" and math functions (link with -lm)"] * facts.uses_libm
    library_texts = [f"; {', '.join(facts.libraries)}"] * bool(facts.libraries)
    return "".join(["memcpy, memset and their kin of the C library", *math, *library_texts])


def _memories(facts: Facts) -> str:
    if facts.sections:
        return f"{facts.linker_script} places what lies in memories of its own; INCLUDE it in your linker script"
    return "define MCUGEN_WEIGHTS_SECTION and MCUGEN_ARENA_SECTION (mcugen.h) to place weights and the default arena"


def _threads(facts: Facts) -> str:
    apart = "arenas and states" if facts.state else "arenas"
    return (
        f"there are no locks, and nothing is written but what the caller passes: calls on different {apart} may run at "
        "the same time, from threads and interrupts, those on the same may not."
    )
