# SPDX-License-Identifier: Apache-2.0
"""Inputs of the renderer: everything that a folder of C is rendered from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mcugen.codegen.bundle import InputCode
from mcugen.codegen.functions import PLAIN_C, KernelSource
from mcugen.codegen.memory import MemoryContext, WeightsFile
from mcugen.codegen.monitor import Monitor
from mcugen.hir.types import Array
from mcugen.lir.program import Program
from mcugen.memory.place import Placement


@dataclass(frozen=True)
class Provenance:
    """The facts in the banner of every generated file."""

    model: str
    """File name of the model, without its folder."""
    sha256: str
    """SHA-256 digest of the model's file, as hexadecimal text."""
    board: str
    """Name of the board that the code was generated for."""
    options: str
    """Command-line options of the compilation."""
    accuracy: str = ""
    """Accuracy of a model that mcugen quantized, as text, measured during quantization; "" for other models."""


@dataclass(frozen=True)
class Sample:
    """A sample of the self-test: the inputs of a run and its expected outputs.

    All samples of a model have the same tolerances.

    Attributes:
        inputs: Arrays by the input's name.
        outputs: Expected arrays by the output's name.
    """

    inputs: dict[str, Array]
    outputs: dict[str, Array]
    tolerance: float
    """Allowed difference of float outputs, relative to the largest expected magnitude."""
    steps: int
    """Allowed difference of integer outputs, in quantization steps: 0 unless the model computes with floats on the
    way."""


class StackNote(NamedTuple):
    """The upper bound of the stack use of one call, which the generated header states.

    Attributes:
        nbytes: Bytes of stack.
        compiler: Version of the compiler for which the bound holds.
        flags: Flags of the compiler for which the bound holds.
        calls_back: Whether callbacks of the caller use stack in addition.
    """

    nbytes: int
    compiler: str
    flags: str
    calls_back: bool


class PlausibleRanges(NamedTuple):
    """Ranges within which the model's outputs are plausible: (low, high) by output name, in stored (quantized) units.

    `origin` is a text that says how the ranges were determined.
    """

    ranges: Mapping[str, tuple[float, float]]
    origin: str


MakeInputCode = Callable[[str, str], InputCode]
"""Function that returns the C code that converts raw data to the model's input.

Its arguments are the C names of the input's accessor, and of the function that quantizes floats ("" if none is needed).
"""


@dataclass(frozen=True)
class FolderOptions:
    """The user's choices of optional parts of the generated folder."""

    weights: WeightsFile | None = None
    """How the weights are stored as a file, which the code reads by a pointer or a reader; None for C arrays."""
    helpers: bool = False
    """Whether the header has C functions that write inputs and read outputs."""
    labels: tuple[str, ...] = ()
    """Names of the classes of one output, in order, for a C function that returns them; empty for no such function."""
    steps: bool = False
    """Whether the generated code has a function that runs a single step of an inference; the run function runs all
    steps."""
    step_cycles: tuple[int, ...] = ()
    """Estimated cycles of the longest step of each layer; empty if unknown."""
    validation: bool = False
    """Whether to add the files with which `mcugen validate` tests the firmware."""
    hooks_steps: bool = False
    """Whether the measurement hook is called after each step instead of after each layer."""
    stack: StackNote | None = None
    """Bound of the stack use of a call; None if unknown."""
    self_test: str = ""
    """Text that says how the user chose the samples of the self-test; "" for the default samples."""
    checks: bool = False
    """Whether the generated code has functions that compare constants with their checksums."""
    checks_steps: bool = False
    """Whether the generated code protects the arena by a checksum between steps."""
    plausible: PlausibleRanges | None = None
    """Ranges for a generated function that checks whether outputs are plausible; None for no such function."""
    monitor: Monitor | None = None
    """What the generated code observes in the field; None for no such functions."""
    guards: bool = False
    """Whether the generated code has additional run functions that take the arena's size, or that check guard bytes
    (canaries) around the arena."""
    cached: tuple[bool, bool] = (False, False)
    """For each of two cores, whether a data cache holds the arena, so that it must be invalidated after the other core
    writes.
    """
    input_code: MakeInputCode | None = None
    """Function that returns the C code that converts raw data to the first input; None without such code."""


class Draft(NamedTuple):
    """All data that the contents of one model's generated folder depend on: the input of `render`.

    Attributes:
        program: The planned program.
        provenance: The facts in the banner of every file.
        samples: Inputs and expected outputs of the self-test.
        report: The report to write to the folder as JSON.
        placement: The memories of the board that hold arena, weights and copies.
        form: The optional parts of the folder.
        source: The kernels' templates, and the CPU features that the kernels may use.
    """

    program: Program
    provenance: Provenance
    samples: tuple[Sample, ...]
    report: Mapping[str, object]
    placement: Placement
    form: FolderOptions = FolderOptions()
    source: KernelSource = PLAIN_C

    @property
    def memory(self) -> MemoryContext:
        """Return the memory layout of the model's code, as templates read it."""
        return MemoryContext(self.program, self.placement, self.form.weights)
