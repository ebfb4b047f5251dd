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
    """Return a line of text for each layer, with its number, title, results and kernel in aligned columns."""
    rows = [(comment(layer.name, _COLUMNS[0]), comment(layer.result, _COLUMNS[1]), layer.kernel) for layer in layers]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [
        f"{number:>3}  {title:<{widths[0]}}  {result:<{widths[1]}}  {kernel}"
        for number, (title, result, kernel) in enumerate(rows)
    ]


@dataclass(frozen=True)
class ManualFacts:
    """The facts for the usage notes in the header of a generated model; sizes are in bytes."""

    name: str
    """Name of the model in C."""
    model: str
    """File name of the model."""
    board: str
    """Name of the board."""
    accuracy: str
    """Measured accuracy, as text, of a model that mcugen quantized; "" for other models."""
    areas: Sequence[Area]
    """The areas of the arena, each in one memory."""
    sections: Sequence[Section]
    """Linker sections that must be placed in certain memories."""
    state: int
    """Bytes of the state that the caller keeps for each stream of inputs; 0 for a model without state."""
    weights: int
    """Bytes of weights in flash."""
    copies: int
    """Bytes of weights that start-up code copies from flash to RAM."""
    call_copies: str
    """Description of the weights that each call copies to the arena; "" if there are none."""
    is_file: bool
    """Whether the weights are in a separate file instead of C arrays."""
    uses_libm: bool
    """Whether the code calls math functions, so that it must be linked with -lm."""
    libraries: Sequence[str]
    """Texts on the kernel libraries that the code calls."""
    selftest: str
    """C expression that calls the self-test function."""
    tested: str
    """How the samples of the self-test were chosen; "" if they are the default ones."""
    linker_script: str
    """Name of the linker script that places sections; "" if there is none."""

    @property
    def command(self) -> str:
        """Return the command line that measures the model on the board."""
        return f"mcugen report {self.model} --board {self.board}"


def manual(facts: ManualFacts) -> list[str]:
    """Return the usage notes in the header of a generated model, one paragraph per subject such as RAM or threads."""
    return [
        f"RAM: {_ram(facts)}.",
        f"Flash: {facts.weights:,} bytes of weights{_file(facts)}, and the code.",
        *[f"Copies: {facts.call_copies}."] * bool(facts.call_copies),
        f"Stack: `{facts.command}` measures the stack, and the code's flash and time.",
        f"Accuracy: {facts.accuracy or f'not measured yet; `{facts.command} --data FILE.npz` measures it'}.",
        f"Libraries: {_libraries(facts)}.",
        f"Memories: {_memories(facts)}.",
        f"Threads: {_threads(facts)}",
        "Hook: with -DMCUGEN_ON_LAYER=f, the code calls f(model, index) after each layer, with its number and a "
        f"`const mcugen_model *` (mcugen.h), &{facts.name}_model for this model. Declare f before this header. Names "
        "of layers take flash only in such a build.",
        f"Self-test: {facts.selftest} {facts.tested or 'runs random inputs on the target, and checks the outputs.'}",
    ]


def _ram(facts: ManualFacts) -> str:
    arenas = [
        f"{area.size:,} bytes of arena{f' in {comment(area.memory, 40)}' if area.section else ''}"
        for area in facts.areas
    ]
    state = [f"{facts.state:,} bytes of {facts.name}_state for each stream of inputs"] * bool(facts.state)
    copies = [f"{facts.copies:,} bytes of weights that start-up code copies there"] * bool(facts.copies)
    return ", ".join([*arenas, *state, *copies]) + ", and the stack. No memory is allocated at run time"


def _file(facts: ManualFacts) -> str:
    return f", in {facts.name}_weights.bin, which the caller provides" if facts.is_file else ""


def _libraries(facts: ManualFacts) -> str:
    math = [" and math functions (link with -lm)"] * facts.uses_libm
    library_texts = [f"; {', '.join(facts.libraries)}"] * bool(facts.libraries)
    return "".join(["memcpy, memset and similar functions of the C library", *math, *library_texts])


def _memories(facts: ManualFacts) -> str:
    if facts.sections:
        return f"{facts.linker_script} places sections in their memories; INCLUDE it in your linker script"
    return "define MCUGEN_WEIGHTS_SECTION and MCUGEN_ARENA_SECTION (mcugen.h) to place weights and the default arena"


def _threads(facts: ManualFacts) -> str:
    apart = "arenas and states" if facts.state else "arenas"
    return (
        f"the code has no locks, and writes only memory that the caller passes. Calls with different {apart} may run "
        "at the same time, from threads and interrupts; calls with the same ones must not."
    )
