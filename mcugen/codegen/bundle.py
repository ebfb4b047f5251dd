# SPDX-License-Identifier: Apache-2.0
"""The generated folder in memory, with the facts that a program needs to call the generated code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from mcugen.codegen.checks import CheckedData
from mcugen.codegen.identifiers import identifier
from mcugen.codegen.libraries import Library
from mcugen.core.board import Memory
from mcugen.hir.types import Array, DType
from mcugen.lir.formula import Polynomial, Sizes, Symbol
from mcugen.lir.program import Access, Buffer, OffloadedWork, Operand, Program


@dataclass(frozen=True)
class Port:
    """An input or output of a model as the C interface shows it."""

    name: str
    """Name of the tensor in the ONNX model: untrusted text."""
    accessor: str
    """C function `T *accessor(void *arena)` that returns the tensor's address (outputs: `const T *accessor(const void
    *arena)`)."""
    dtype: str
    """Element type, as numpy names it, such as `int8`."""
    shape: tuple[int, ...]
    """Lengths of the tensor's axes."""
    nbytes: int
    """Size of the tensor in bytes."""
    sizes: Mapping[int, Polynomial] = field(default_factory=dict)
    """Formulas of the lengths that are known at run time only, by axis; `shape` and `nbytes` then hold the largest
    values."""
    rows: int = 0
    """For a streamed input, which has no accessor: the number of rows that the caller passes at a time; 0 for other
    tensors."""
    row_axis: int = 0
    """Axis of a streamed input that counts the rows."""
    is_lent: bool = False
    """Whether the tensor lies in the caller's buffer, an argument of the run function; it has no accessor."""

    @property
    def ctype(self) -> str:
        """Return the C type of the tensor's elements."""
        return DType(self.dtype).c

    @property
    def row_count(self) -> int:
        """Return the number of rows of a streamed input; 0 for other tensors."""
        return self.shape[self.row_axis] if self.rows else 0

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Return the shape without the axis of rows, and without a batch axis (axis 0) of length 1."""
        return tuple(n for axis, n in enumerate(self.shape) if axis != self.row_axis and (axis or n > 1))

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row of a streamed input; 0 for any other tensor."""
        return self.nbytes // self.row_count if self.rows else 0

    def in_memory(self, array: Array) -> Array:
        """Return the array of the tensor's elements in the order in which the C code reads them.

        For a streamed input, the axis of rows is moved to the front; other arrays are unchanged.
        """
        return np.moveaxis(array, self.row_axis, 0) if self.rows else array

    def shape_at(self, sizes: Sizes) -> tuple[int, ...]:
        """Return the tensor's shape for given run-time sizes."""
        return tuple(self.sizes[a].at(sizes) if a in self.sizes else s for a, s in enumerate(self.shape))


_SECTION_PREFIX = {"arena": ".bss", "weights": ".rodata", "copies": ".data"}
"""Prefixes of section names by kind, under which usual linker scripts place such sections without further rules."""


@dataclass(frozen=True)
class Section:
    """A linker section of a model, which must be placed in a certain memory of the board.

    Attributes:
        kind: "arena", "weights", or "copies": weights that start-up code copies from flash to RAM.
        memory: The memory of the board.
        model: C name of the model.
    """

    kind: str
    memory: Memory
    model: str

    @property
    def region(self) -> str:
        """Return the name of the section's memory in linker scripts."""
        return identifier(self.memory.name)

    @property
    def symbol(self) -> str:
        """Return the prefix of the linker script's symbols for a section that start-up code copies from flash."""
        return f"{self.model}_copies_{self.region}"

    @property
    def name(self) -> str:
        """Return the section's name in object files."""
        return f"{_SECTION_PREFIX[self.kind]}.mcugen.{self.region}.{self.model}"


@dataclass(frozen=True)
class InputCode:
    """C code that converts raw data, such as camera pixels, to the model's input; files NAME_input.c and NAME_input.h.

    Attributes:
        kind: "image" (C function NAME_put_image) or "stream" (C function NAME_put_samples).
        template: Name of the Jinja2 template of the C file.
        context: Variables for the template.
    """

    kind: str
    template: str
    context: Mapping[str, Any]
    raw_dtype: str
    """Element type of the raw data: a numpy dtype's name."""
    checked: tuple[CheckedData, ...] = ()
    """Entries of the checksum table for the constant tables of this code."""
    most_raw: int = 1
    """Largest number of elements in one sample of raw data, for which test programs reserve memory."""

    @property
    def raw_type(self) -> str:
        """Return the C type of the raw data."""
        return DType(self.raw_dtype).c

    @property
    def text(self) -> str:
        """Return the preprocessing pipeline as the user wrote it; untrusted text."""
        return str(self.context["text"])


@dataclass(frozen=True)
class Result:
    """The place in memory of a layer's result that later layers read, for validation on the board.

    Attributes:
        layer: Index of the layer, from 0.
        buffer: The buffer that holds the result.
        offset: Offset of the result's first byte in the buffer.
        nbytes: Size of the result in bytes.
    """

    layer: int
    buffer: Buffer
    offset: int
    nbytes: int

    @property
    def dtype(self) -> DType:
        """Return the element type of the result's buffer."""
        return self.buffer.dtype


@dataclass(frozen=True)
class FirmwareConstant:
    """An array of constants in the firmware, with its expected checksum.

    Attributes:
        name: Name of the array in C.
        crc32: CRC-32 of the array's bytes, with little-endian elements.
    """

    name: str
    crc32: int


@dataclass(frozen=True)
class Validation:
    """The data that device validation compares: identity of the code, results of layers, and constants."""

    code: bytes
    """16 bytes of a digest of the model's C files."""
    results: tuple[Result, ...]
    """The results whose CRC-32 the firmware reports, in order of layers."""
    constants: tuple[FirmwareConstant, ...]
    """The arrays of constants with their expected checksums."""


@dataclass(frozen=True)
class TrainingArguments:
    """Arguments of the C function `NAME_train` after the state: target, learning rate, and where to write the loss.

    Attributes:
        target: The expected result: a class index below `classes`, or a tensor if `classes` is 0.
        rate: The learning rate.
        loss: The output that receives the loss.
        classes: Number of classes; 0 if the target is a tensor.
    """

    target: Port
    rate: Port
    loss: Port
    classes: int
    run_layers: int
    """Number of layers that an inference runs; training runs further layers after them."""

    @property
    def given(self) -> tuple[Port, Port]:
        """Return the two arguments that the caller provides: the target and the learning rate."""
        return self.target, self.rate


@dataclass(frozen=True)
class InvokedOperand:
    """An operand of an invocation of an accelerator, with its place in the memory plan.

    Attributes:
        role: Name of the operand in the kernel's declaration: "x" for the inputs, "y" for the outputs.
        access: How the accelerator uses it.
        nbytes: Size in bytes.
        area: Index of its area of the arena.
        offset: Offset in bytes from the begin of the area; None if it does not lie in the arena.
    """

    role: str
    access: Access
    nbytes: int
    area: int
    offset: int | None


@dataclass(frozen=True, eq=False)
class AcceleratorInvocation:
    """One invocation of an accelerator in a run, for simulations, in which no such hardware exists.

    Attributes:
        layer: Index of the layer.
        kernel: Name of the kernel that invokes the accelerator.
        work: What the accelerator computes, and where its inputs and outputs lie.
        operands: The operands.
        regions: Role of the operand by number of the base address; "" for unused ones.
        runs: Number of runs per call of the model: the steps of the loop that the invocation is in.
        restart: Number of the invocation that begins the next step of the loop, if this is the loop's last one; else
            None.
    """

    layer: int
    kernel: str
    work: OffloadedWork
    operands: tuple[InvokedOperand, ...]
    regions: tuple[str, ...]
    runs: int = 1
    restart: int | None = None

    def operand(self, role: str) -> InvokedOperand:
        """Return the operand with this role."""
        return next(operand for operand in self.operands if operand.role == role)

    @property
    def read_operands(self) -> list[InvokedOperand]:
        """Return the operands that the accelerator reads: first those that are no regions, such as commands."""
        without_region = [operand for operand in self.operands if operand.role not in self.regions]
        return [o for o in (*without_region, *(self.operand(role) for role in self.regions if role)) if o.access.reads]


def invocations_of(program: Program) -> tuple[AcceleratorInvocation, ...]:
    """Return the invocations of accelerators in a planned program, in order."""
    layers = {index: number for number, layer in enumerate(program.layers()) for index in layer}
    invoking = [index for index, instr in enumerate(program.instrs) if instr.offloaded is not None]
    numbers = {index: number for number, index in enumerate(invoking)}
    runs, restarts = dict[int, int](), dict[int, int]()
    for begin, end in program.loops():
        inside = [number for index, number in numbers.items() if begin < index < end]
        runs |= dict.fromkeys(inside, int(program.instrs[begin].params.get("steps", 1)))
        restarts |= {inside[-1]: inside[0]} if inside else {}
    return tuple(
        AcceleratorInvocation(
            layers[index],
            instr.kernel,
            instr.offloaded,
            tuple(_invoked(operand) for operand in instr.operands),
            tuple(str(role) for role in instr.code.get("regions", ())),  # type: ignore[attr-defined]
            runs.get(number, 1),
            restarts.get(number),
        )
        for index, number in numbers.items()
        if (instr := program.instrs[index]).offloaded is not None
    )


def _invoked(operand: Operand) -> InvokedOperand:
    buffer = operand.buffer
    offset = buffer.offset if buffer.planned else None
    return InvokedOperand(operand.role, operand.access, buffer.nbytes, area=buffer.area, offset=offset)


class StoredArray(NamedTuple):
    """An array of constants in generated C.

    Attributes:
        name: Name of the array in C.
        nbytes: Size of the array in bytes.
        layer: Index of the layer that reads the array first.
    """

    name: str
    nbytes: int
    layer: int


@dataclass(frozen=True)
class Bundle:
    """The output of `mcugen compile`: C files by name, and how to call them.

    `NAME_run(void *arena)` returns 0 on success; `arena` is NAME_ARENA_SIZE bytes aligned to NAME_ARENA_ALIGN. With
    several `arena_sizes` it is `NAME_run(void *const *arenas)`. Further arguments follow in this order: lent inputs and
    outputs (pointers to elements, inputs first), a file of weights, a reader of rows with its context, a state, and
    sizes known only at run time. With `-DMCUGEN_ON_LAYER=f` the code calls `f(&NAME_model, index)` after each layer,
    with `index` counting `layers` from 0.

    Attributes:
        name: Name of the model in C, the prefix of its public C names.
        files: Texts of the files, by name.
        arena_size: Bytes of the arena: the working memory of a call.
        inputs: The model's inputs, in order.
        outputs: The model's outputs, in order.
        layers: Names of the layers, in the order of computation.
    """

    name: str
    files: Mapping[str, str]
    arena_size: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    layers: tuple[str, ...]
    constants: tuple[StoredArray, ...] = ()
    """Arrays of constants in C files that layers read."""
    has_state: bool = False
    """Whether the run function also takes a `NAME_state *`, which `NAME_reset` initializes."""
    lesson: TrainingArguments | None = None
    """Additional arguments and results of `NAME_train`, for a trainable model; None for other models.

    A self-test sample that contains a target and a learning rate is a training sample.
    """
    symbols: tuple[Symbol, ...] = ()
    """Sizes known at run time only. Those without `output` are the last arguments of the run function, as int32_t."""
    arena_sizes: tuple[int, ...] = ()
    """Bytes of each of the model's own arenas, if callers must use these because they lie in certain memories; else
    empty."""
    sections: tuple[Section, ...] = ()
    """Sections that must be placed in certain memories."""
    image_region: str = ""
    """Name, in linker scripts, of the memory that holds the initial values of weights which start-up code copies to
    RAM."""
    libraries: tuple[Library, ...] = ()
    """Libraries that the user must provide, because the code calls them but does not contain them."""
    steps: tuple[int, ...] = ()
    """For each step of a run, the index of the layer that it belongs to; empty if the code has no step function."""
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    """Binary files: the weights, if the run function takes them as a file."""
    validation: Validation | None = None
    """Data that the firmware checks during validation on the board; None if the folder has no files for validation."""
    reads_weights: bool = False
    """Whether the run function takes a `mcugen_reader` (a callback that reads the file of weights) instead of a pointer
    to the file."""
    invocations: tuple[AcceleratorInvocation, ...] = ()
    """The invocations of accelerators in a run, in order."""
    input_code: InputCode | None = None
    """Code that converts raw data to the input; self-test samples then hold raw data. None if there is no such code."""

    def layers_of(self, sample: Mapping[str, Array]) -> int:
        """Return the number of layers that the code runs for a sample.

        These are all layers for a training sample, else those of inference.
        """
        lesson = self.lesson
        is_run = lesson is not None and not np.any(sample.get(lesson.rate.name, 0))
        return lesson.run_layers if lesson is not None and is_run else len(self.layers)

    @property
    def streamed(self) -> Port | None:
        """Return the input that the caller passes row by row; None if the model has no such input."""
        return next((port for port in self.inputs if port.rows), None)

    @property
    def arguments(self) -> tuple[Symbol, ...]:
        """Return the run-time sizes that the caller of the run function passes as arguments, in order."""
        return tuple(s for s in self.symbols if not s.output)

    @property
    def weights_blob(self) -> bytes | None:
        """Return the contents of the file of weights; None if the weights are C arrays."""
        return self.blobs.get(f"{self.name}_weights.bin")

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of the model's own C files (neither self-test nor validation), sorted."""
        test_files = (f"{self.name}_selftest.c", f"{self.name}_validate.c")
        return tuple(f for f in sorted(self.files) if f.endswith(".c") and f not in test_files)

    @property
    def linker_scripts(self) -> tuple[str, ...]:
        """Return the linker scripts that place sections, at most one for each model."""
        return tuple(f for f in sorted(self.files) if f.endswith(".ld"))

    @property
    def headers(self) -> tuple[str, ...]:
        """Return the names of the header files, sorted."""
        return tuple(f for f in sorted(self.files) if f.endswith(".h"))
