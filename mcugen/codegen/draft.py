# SPDX-License-Identifier: Apache-2.0
"""Inputs of the renderer: everything that a folder of C is rendered from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mcugen.codegen.bundle import InputCode
from mcugen.codegen.functions import PLAIN_C, KernelSource
from mcugen.codegen.memory import MemoryContext, WeightsFile
from mcugen.hir.types import Array
from mcugen.lir.program import Program
from mcugen.memory.place import Placement


@dataclass(frozen=True)
class Provenance:
    """The facts in the banner of every file."""

    model: str
    """File name of the model, without its folder."""
    sha256: str
    board: str
    options: str
    accuracy: str = ""
    """Of a model that mcugen quantized, as far as it was measured then."""


@dataclass(frozen=True)
class Sample:
    """Inputs and expected outputs of the self-test, by endpoint name. All of a model allow the same differences."""

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    tolerance: float
    """Allowed difference of float outputs, relative to the largest expected magnitude."""
    steps: int
    """Allowed difference of integer outputs: 0 unless floats are computed on the way."""


class StackNote(NamedTuple):
    """The largest stack use of a call in bytes, with the compiler and flags that it holds for.

    `calls_back` says that functions of the caller, which the run function calls, add to it.
    """

    nbytes: int
    compiler: str
    flags: str
    calls_back: bool


class Plausible(NamedTuple):
    """Ranges of outputs by their names, in units as stored, and where they are from."""

    ranges: Mapping[str, tuple[float, float]]
    origin: str


MakeInputCode = Callable[[str, str], InputCode]
"""Takes what is called where the input lies, and what makes codes of reals ("" where it takes these)."""


@dataclass(frozen=True)
class Form:
    """The user's choices about the form of the generated folder."""

    weights: WeightsFile | None = None
    """How weights are stored as a file that the code gets a pointer to, or reads; None for C arrays."""
    helpers: bool = False
    """Whether the header has functions that write inputs and read outputs."""
    labels: tuple[str, ...] = ()
    """What the classes of an output are called."""
    steps: bool = False
    """A run is a number of steps that the caller asks for; the run function asks for all of them."""
    step_cycles: tuple[int, ...] = ()
    """Of each layer the cycles of its longest step, if they are known."""
    validation: bool = False
    """Beside the model's files there is the firmware's part of `mcugen validate`."""
    hooks_steps: bool = False
    """The hook of layers is called for steps instead: a form for measuring."""
    stack: StackNote | None = None
    """If it is known."""
    self_test: str = ""
    """What the self-test does, where its samples were chosen."""
    checks: bool = False
    """There are functions that compare constants with checksums."""
    checks_steps: bool = False
    """There is a checksum of the arena between steps."""
    plausible: Plausible | None = None
    """There is a function that says whether outputs are plausible."""
    guards: bool = False
    """The header has functions that run with an arena whose size is told, or between canaries."""
    cached: tuple[bool, bool] = (False, False)
    """Of two cores, which have a data cache before the arena: they invalidate what the other wrote."""
    input_code: MakeInputCode | None = None
    """What makes the code that makes the first input."""


class Draft(NamedTuple):
    """Everything that the folder of one model is rendered from."""

    program: Program
    provenance: Provenance
    samples: tuple[Sample, ...]
    report: Mapping[str, object]
    placement: Placement
    form: Form = Form()
    source: KernelSource = PLAIN_C

    @property
    def memory(self) -> MemoryContext:
        """Return the memory layout as templates read it."""
        return MemoryContext(self.program, self.placement, self.form.weights)
