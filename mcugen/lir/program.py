# SPDX-License-Identifier: Apache-2.0
"""The low-level IR: instructions over explicitly allocated buffers."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from mcugen.hir.types import Array, DType, ModelConstant, QuantParams, Shape
from mcugen.lir.formula import Formula, Polynomial, Sizes, Symbol

if TYPE_CHECKING:
    from mcugen.lir.kernel import Kernel

ALIGNMENT = 16
"""Alignment in bytes of the arena, and of every buffer in it; Helium loads 16 bytes."""


CACHE_LINE = 32
"""Bytes of a line of the data caches of all Cortex-M cores."""


WORD = 4
"""Alignment in bytes of parts of buffers, such as the tensors of a region, unless their elements are larger.

It suffices for every load and store of the kernels: LDM, LDRD and vector loads need word alignment, and C needs the
alignment of the element type.
"""


STATE_MARK_BYTES = 4
"""Size in bytes of the mark behind the states in the caller's struct, which shows that NAME_reset was called."""


def aligned(nbytes: int) -> int:
    """Return a size in bytes, rounded up to a multiple of ALIGNMENT, which all buffers of the arena have."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Space(Enum):
    """The memory in which a buffer lies.

    Attributes:
        INPUT: The arena; the caller writes the buffer, a model input.
        OUTPUT: The arena; the caller reads the buffer, a model output.
        CONST: Constants in the code, such as weights in flash.
        ARENA: The arena; the caller does not access the buffer.
        STATE: A struct that the caller keeps from call to call.
        STREAM: None: the caller provides the input row by row, and only `read_rows` reads it.
        GIVEN: The caller's memory; the buffer is a model input and is only read.
        TAKEN: The caller's memory; the buffer is a model output.
    """

    INPUT = "input"
    OUTPUT = "output"
    CONST = "const"
    ARENA = "arena"
    STATE = "state"
    STREAM = "stream"
    GIVEN = "given"
    TAKEN = "taken"

    @property
    def is_callers(self) -> bool:
        """Return whether buffers lie in the caller's memory, whose address the run function gets (GIVEN, TAKEN)."""
        return self in (Space.GIVEN, Space.TAKEN)


class Access(Enum):
    """Use of an operand by an instruction.

    Attributes:
        IN: The operand is read.
        OUT: The operand is written.
        INOUT: The operand is read and written.
        SCRATCH: The operand is working memory, without contents before and after.
    """

    IN = "in"
    OUT = "out"
    INOUT = "inout"
    SCRATCH = "scratch"

    @cached_property
    def reads(self) -> bool:
        """Return whether the instruction reads contents that were in the buffer before (IN or INOUT)."""
        return self in (Access.IN, Access.INOUT)


@dataclass(frozen=True)
class StoredTensor:
    """A constant tensor of a layer that a buffer contains, alone or packed with others.

    Attributes:
        sources: Constants of the model that the tensor was computed from; empty if unknown.
        quant: Scale and zero point of the tensor as the layer reads it; None if it is not quantized.
    """

    sources: tuple[ModelConstant, ...]
    quant: QuantParams | None


@dataclass(eq=False)
class Buffer:
    """A contiguous array of elements that instructions read or write: a tensor, a constant or working memory.

    Attributes:
        name: Name of the buffer.
        dtype: Type of the elements.
        count: Number of elements.
        space: Kind of memory that the buffer lies in.
        data: Contents of a constant; None for other buffers.
        offset: Offset in bytes from the start of its area of the arena; None until memory is planned.
        area: Index of the buffer's area; the arena has several areas if it is divided over several memories.
        tensors: Tensors of the model that a constant contains, for comments in the generated C.
        layout: Order of a constant's elements, as the kernel that reads it declares; "" if no kernel does.
        row_size: Elements of a row of a packed one-dimensional constant, such as a block of output channels; 0 if the
            axes of `data` are the rows.
        alignment: Alignment in bytes that a constant needs; 0 for that of all arrays. Other buffers have ALIGNMENT.
    """

    name: str
    dtype: DType
    count: int
    space: Space
    data: Array | None = None
    offset: int | None = None
    area: int = 0
    tensors: tuple[StoredTensor, ...] = ()
    layout: str = ""
    row_size: int = 0
    alignment: int = 0

    @property
    def nbytes(self) -> int:
        """Return the size of the buffer in bytes."""
        return self.count * self.dtype.nbytes

    def describe(self, tensors: Iterable[StoredTensor], layout: str) -> None:
        """Record what a constant contains; a constant that several layers share contains the tensors of all."""
        if self.data is not None:
            known = [tensor for tensor in tensors if tensor.sources or tensor.quant]
            self.tensors = tuple(dict.fromkeys((*self.tensors, *known)))
            self.layout = self.layout or layout

    @property
    def planned(self) -> bool:
        """Return whether the memory planner places the buffer: whether its space is ARENA, INPUT or OUTPUT."""
        return self.space in (Space.INPUT, Space.OUTPUT, Space.ARENA)


@dataclass(frozen=True)
class Lanes:
    """The channels of each pixel of a buffer that an instruction uses.

    Of every `pitch` elements, these are the `count` elements from index `first` on.

    Attributes:
        first: Index of the first channel.
        count: Number of channels.
        pitch: Number of elements from pixel to pixel.
    """

    first: int
    count: int
    pitch: int


@dataclass(frozen=True)
class Gathered:
    """Access pattern of an instruction that reads some channels of each pixel of an image, for the stall model.

    Attributes:
        pitch: Distance in bytes between two pixels.
        taken: Size in bytes of the part of each pixel that is read.
    """

    pitch: int
    taken: int


@dataclass(frozen=True)
class Operand:
    """One operand of an instruction.

    Attributes:
        role: Name of the operand in the kernel's declaration, and of the C parameter.
        access: Whether the instruction reads or writes the buffer.
        buffer: The buffer.
        lanes: The channels of the buffer that the instruction uses; the kernel gets the address of the first one. None:
            the whole buffer.
    """

    role: str
    access: Access
    buffer: Buffer
    lanes: Lanes | None = None


class Control(Enum):
    """Kind of an instruction: a kernel call, or a marker that begins or ends a block; blocks nest and run as in C.

    Attributes:
        NONE: A call of a kernel, no marker.
        IF: Begins a block that runs if `cond` is not 0.
        ELSE: Separates the two branches of an IF block, or the two sides of a FORK block.
        FOR: Begins a loop of `steps` iterations. If the marker has an operand `cond`, the loop ends early when `cond`
            is 0. The operand `index` counts the iterations. The other results of the marker are buffers of which each
            iteration writes a part.
        STREAM: Begins a block of line-buffer fusion, which runs its CASE blocks in the order that `events` lists. The
            block contains only cases. Its results (OUT) are buffers of which the events write parts. Its overlaps hold
            for the whole block; its inputs live until the end of the block.
        CASE: Begins a case of a STREAM block: the instructions that run at each event whose entry in `events` equals
            `case`.
        FORK: Begins a block of two sides, separated by ELSE, which two cores may run at the same time. Neither side
            reads or writes a word that the other side writes. The overlaps of the marker hold within each side and for
            the whole block.
        END: Ends the innermost block.
    """

    NONE = ""
    IF = "if"
    ELSE = "else"
    FOR = "for"
    STREAM = "stream"
    CASE = "case"
    FORK = "fork"
    END = "end"


MOVE = "move"
"""Name of the kernel that copies `nbytes` bytes of buffer `x` to `y`; no code is needed if both get one address.

The parameters `x_at` and `y_at` are the byte offsets in both buffers, 0 by default. The first move to `y` begins the
live range of `y` (Access.OUT); the other parts of `y` are undefined then.
"""

READ_WEIGHTS = "read_weights"
"""Name of the kernel that calls back the caller to write a layer's constants `x` to buffer `y`."""

STAGE_WEIGHTS = "stage_weights"
"""Name of the kernel that copies a layer's constants `x` to buffer `y` in a faster memory."""

BEGIN_WEIGHTS = "begin_weights"
"""Name of the kernel that begins a DMA copy of a layer's constants `x` to buffer `y` in a faster memory.

Only END_WEIGHTS may use `y` until the copy is done.
"""

END_WEIGHTS = "end_weights"
"""Name of the kernel that waits until the DMA copy to `y` is done; copies end in the order in which they began."""

TRANSFER_KERNELS = (READ_WEIGHTS, STAGE_WEIGHTS, BEGIN_WEIGHTS, END_WEIGHTS)
"""Names of the kernels that copy or read a layer's constants and compute nothing."""

DECODE_WEIGHTS = "decode_weights"
"""Name of the kernel that decompresses a layer's constants `x` to buffer `y`."""

PREPARATION_KERNELS = (*TRANSFER_KERNELS, DECODE_WEIGHTS)
"""Names of the kernels that copy, read or decompress a layer's constants before the layer runs."""

READ_ROWS = "read_rows"
"""Name of the kernel that calls back the caller to write `rows` rows of the streamed input to `y`.

The operand `next` (INOUT) is the number of the first row, which the kernel advances. The parameter `axis` is the axis
of the input that counts rows, `bytes` is the size of a row. If the caller returns a value other than 0, the run ends.
"""


STOP = "stop"
"""Name of the kernel at which a call of a trainable model may end: after inference (`phase` 0) or the loss (`phase` 1).

A call also ends there if the loss `x` is not finite. Instructions are never moved across it.
"""


class Double(float):
    """A real parameter of a kernel that C stores as double; other floats are stored as float."""


class Wide(int):
    """An int parameter of a kernel that C always stores as int64_t; other ints are stored as int32_t if they fit.

    It is for parameters that a template shifts, for example, so that the expression means the same for small values.
    """


Param = int | float
"""A scalar parameter of a layer: int (int32_t, or int64_t if needed), Wide, float or Double."""


def param_dtype(value: Param) -> DType:
    """Return the C type of a parameter's value: float, double, int32_t or, if needed, int64_t or uint64_t."""
    if isinstance(value, float):
        return DType.FLOAT64 if isinstance(value, Double) else DType.FLOAT32
    if isinstance(value, Wide):
        return DType.INT64
    if value >= 2**63:
        return DType.UINT64
    return DType.INT32 if -(2**31) <= value < 2**31 else DType.INT64


def real_param(value: float, dtype: DType) -> Param:
    """Return a real parameter for a kernel that computes in `dtype`: a Double for FLOAT64, else a float."""
    return Double(value) if dtype is DType.FLOAT64 else float(value)


def element_param(value: float, dtype: DType) -> Param:
    """Return an element of a tensor of type `dtype` as a parameter of a C type that holds it exactly."""
    if dtype.is_float:
        return real_param(value, dtype)
    if dtype.nbytes < 4 or dtype is DType.INT32:
        return int(value)
    return Wide(value - 2**64 if value >= 2**63 else value)


@dataclass(frozen=True)
class Overlap:
    """A permission to an instruction: its output may overlap its input in memory, at a certain distance.

    The output is then written only over input that is no longer needed. See mcugen.lir.overlap.

    Attributes:
        out: Role of the output.
        into: Role of the input.
        lead: Fewest bytes by which the output must begin before the input; if negative, the output may begin within the
            input.
    """

    out: str
    into: str
    lead: int


@dataclass(frozen=True, eq=False)
class OffloadedWork:
    """The work of an accelerator in one instruction.

    Attributes:
        cpu_cycles: Estimated time in cycles of the CPU's clock.
        execute: Function that returns the bytes of the operand `y`, computed from those of the operands that the
            accelerator reads, by role; simulations without such hardware call it. None if simulations run plain C.
        inputs: Offset and size in bytes of each input within the operand `x`, between which the accelerator reads
            nothing. Empty if it reads all of `x`.
    """

    cpu_cycles: float
    execute: Callable[[Mapping[str, bytes]], bytes] | None = None
    inputs: tuple[tuple[int, int], ...] = ()


@dataclass
class Instr:
    """An instruction: a call of a kernel, or a marker that begins or ends a block.

    Attributes:
        kernel: Name of the kernel, or of the kind of marker.
        name: Name of the tensor that the instruction computes.
        operands: Buffers that the instruction uses, each with its role and access.
        params: Scalar parameters by name; they are members of a constant struct unless named in `baked`.
        baked: Names of parameters that become literals in a copy of the kernel.
        code: Template options by name. Instructions with equal kernel, baked values and code share one C function.
        inplace: Pairs (output role, input role) that may begin at the same address if the input is not read later.
        overlaps: Pairs of output and input that may overlap in memory at a certain distance (see Overlap).
        variant: Suffix of the C function's name; "" for none.
        reason: Why this kernel was chosen, for reports.
        op: Name of the operator, for reports.
        macs: Number of multiply-accumulates of one run, for reports.
        origin: Names of the ONNX nodes that the instruction computes.
        note: Description for the listing of the program.
        formulas: Formulas of parameters that depend on run-time sizes, by name; `params` then holds example values.
        control: Kind of marker; NONE for a call.
        group: Number of a layer that consists of several instructions; 0 for a layer of one instruction.
        unit: Number of a set of instructions that stay adjacent and in order when the program is reordered; 0 for none.
        stays: Whether a move must be executed; otherwise the planner may give source and target one address, so that it
            vanishes.
        library: Name of the library that the kernel calls, a call that may fail; "" for none.
        declaration: Declaration of the kernel; None for markers.
        events: For the marker of a STREAM block: the number of the case that each of its events runs, in order; () for
            other instructions.
        case: For the marker of a case of a STREAM block: the number of the case; None for other instructions.
        gathers: Access pattern of an instruction that reads the image in blocks of channels; None if it reads whole
            pixels in order.
        offloaded: The work that an accelerator does in the instruction; None if the CPU computes it.
    """

    kernel: str
    name: str
    operands: tuple[Operand, ...]
    params: Mapping[str, Param] = field(default_factory=dict)
    baked: frozenset[str] = frozenset()
    code: Mapping[str, object] = field(default_factory=dict)
    inplace: tuple[tuple[str, str], ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    variant: str = ""
    reason: str = ""
    op: str = ""
    macs: int = 0
    origin: tuple[str, ...] = ()
    note: str = ""
    formulas: Mapping[str, Formula] = field(default_factory=dict)
    control: Control = Control.NONE
    group: int = 0
    unit: int = 0
    stays: bool = False
    library: str = ""
    declaration: Kernel | None = None
    events: tuple[int, ...] = ()
    case: int | None = None
    gathers: Gathered | None = None
    offloaded: OffloadedWork | None = None

    @property
    def is_offloaded(self) -> bool:
        """Return whether an accelerator computes the instruction, and reads and writes the operands itself."""
        return self.offloaded is not None

    @property
    def moves_nothing(self) -> bool:
        """Return whether this is a move whose source and target have the same address in the memory plan.

        A move is a copy of bytes between buffers; it then needs no code.
        """
        if self.kernel != MOVE or not self.has_fixed_parts:
            return False
        x, y, distance = self.operand("x").buffer, self.operand("y").buffer, self.distance
        if x is y:
            return distance == 0
        if x.offset is None or y.offset is None or x.area != y.area:
            return False
        return y.offset - x.offset == distance

    @property
    def has_fixed_parts(self) -> bool:
        """Return whether the byte offsets of a move (a copy between buffers) are independent of run-time sizes."""
        return not {"x_at", "y_at"} & self.formulas.keys()

    def part(self, role: str) -> tuple[int, int]:
        """Return the byte offset and the size in bytes of the part of a buffer that a move (a copy of bytes) uses.

        Args:
            role: "x" for the part of the source that is read, "y" for the part of the target that is written.
        """
        return int(self.params.get(f"{role}_at", 0)), int(self.params["nbytes"])

    @property
    def distance(self) -> int:
        """Return the distance in bytes between source and target at which a move (a copy of bytes) needs no code.

        It is measured from the start of the source buffer to the start of the target buffer. At this distance, the
        bytes that the move reads and those that it writes have the same addresses.
        """
        return self.part("x")[0] - self.part("y")[0]

    @property
    def function_key(self) -> tuple[object, ...]:
        """Return a key that identifies the instruction's C function: instructions with equal keys share one."""
        kinds = tuple((k, param_dtype(v)) for k, v in self.params.items() if k not in self.baked)
        return (
            self.kernel,
            tuple((k, self.params[k]) for k in sorted(self.baked)),
            tuple((o.role, o.access is Access.IN, o.buffer.dtype) for o in self.operands),
            kinds,
            json.dumps(dict(self.code), sort_keys=True, default=str),
        )

    def operand(self, role: str) -> Operand:
        """Return the operand with this role (name in the kernel's declaration)."""
        return next(o for o in self.operands if o.role == role)


@dataclass(frozen=True)
class Endpoint:
    """An input, output or state of a model.

    Attributes:
        name: Name of the tensor in the model.
        shape: Shape of the tensor; the largest one if some sizes are known only at run time.
        dtype: Type of the elements.
        quant: Scale and zero point; None if the tensor is not quantized.
        buffer: Buffer that holds the tensor.
        sizes: For each axis whose length is known only at run time, the formula of that length.
    """

    name: str
    shape: Shape
    dtype: DType
    quant: QuantParams | None
    buffer: Buffer
    sizes: Mapping[int, Polynomial] = field(default_factory=dict)

    def shape_at(self, sizes: Sizes) -> Shape:
        """Return the tensor's shape for given values of the run-time sizes."""
        return tuple(self.sizes[a].at(sizes) if a in self.sizes else n for a, n in enumerate(self.shape))


@dataclass(frozen=True)
class LessonPorts:
    """The arguments and results of a training call, which are in the caller's memory (see mcugen.hir.lesson).

    Attributes:
        target: Input with the expected class or output.
        rate: Input with the learning rates, one for each entry of `layers`.
        loss: Output with the loss.
        classes: Number of classes if the target is a class index; 0 if the target is a tensor.
        what: Description of the loss function, for comments and messages.
        learning: Description of how training changes the states.
        first: Constants with the initial values of states, by the name of the state.
        layers: Names of the trained layers.
    """

    target: Endpoint
    rate: Endpoint
    loss: Endpoint
    classes: int
    what: str
    learning: str
    first: Mapping[str, Buffer]
    layers: tuple[str, ...]

    @property
    def buffers(self) -> list[Buffer]:
        """Return the buffers of target, rate and loss, and of the constants with initial values of states."""
        return [self.target.buffer, self.rate.buffer, self.loss.buffer, *self.first.values()]


@dataclass
class _Uses:
    """The first and the last use of a buffer in a case, and whether the first one reads what was there before."""

    first: int
    reads_first: bool
    last: int = 0


def _needing(uses: Mapping[int, _Uses], followers: Mapping[int, Collection[int]], cases: int) -> set[int]:
    """Return the cases before which a buffer's contents matter: they or later cases read the buffer first."""
    needing = {case for case, use in uses.items() if use.reads_first}
    unused_cases = [case for case in range(cases) if case not in uses]
    while more := [c for c in unused_cases if c not in needing and not needing.isdisjoint(followers.get(c, ()))]:
        needing.update(more)
    return needing


def _span_of_cases(
    uses: Mapping[int, _Uses],
    cases: Sequence[tuple[int, int]],
    followers: Mapping[int, Collection[int]],
    needing: Collection[int],
) -> tuple[int, int]:
    """Return the first and last instruction between which a buffer's contents matter, for any order of the cases."""
    around = {*needing, *uses}
    kept = {case for case in around if any(after in needing for after in followers.get(case, ()))}
    begins = [cases[case][0] if case in needing else uses[case].first for case in around]
    ends = [cases[case][1] if case in kept else uses[case].last for case in around]
    return min(begins), max(ends)


@dataclass
class Program:
    """A model in the low-level IR: instructions over explicitly allocated buffers.

    Attributes:
        name: Name of the model.
        inputs: Inputs of the model.
        outputs: Outputs of the model.
        states: States that the model keeps between calls, named like the inputs that read them.
        buffers: All buffers, constants included.
        instrs: The instructions in the order of execution.
        area_sizes: Bytes of each area of the arena (a part that is planned on its own); set by the memory planner.
        area_bounds: Lower bound of each area's bytes, for all plans that eliminate the same moves (copies whose source
            and target get the same address).
        symbols: Sizes of the model that are known at run time only.
        lesson: Arguments and results of training, for a trainable model; None for other models.
        handover: Indices of the moves between the two parts of a pipeline over frames (mcugen.lir.frames); None without
            pipeline. One core runs the first part for a frame while another core runs the second part for the previous
            frame.
        instructions_estimate: Estimated instructions of one inference; None if unknown. They are the sum of measured
            costs of kernels, with rough costs for kernels without a measurement.
        cycles_estimate: Estimated cycles of one inference on memory without wait states; None if the core is unknown or
            no kernel was chosen.
        layer_estimates: Estimated instructions of layers in one inference, by the names (Instr.name) of their
            instructions.
    """

    name: str
    inputs: list[Endpoint] = field(default_factory=list)
    outputs: list[Endpoint] = field(default_factory=list)
    states: list[Endpoint] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    instrs: list[Instr] = field(default_factory=list)
    area_sizes: list[int] = field(default_factory=lambda: [0])
    area_bounds: list[int] = field(default_factory=lambda: [0])
    symbols: list[Symbol] = field(default_factory=list)
    lesson: LessonPorts | None = None
    handover: range | None = None
    instructions_estimate: float | None = None
    cycles_estimate: float | None = None
    layer_estimates: Mapping[str, float] = field(default_factory=dict)

    @property
    def streamed(self) -> Endpoint | None:
        """Return the input that the caller passes row by row; None if the model has no such input."""
        return next((e for e in self.inputs if e.buffer.space is Space.STREAM), None)

    @property
    def scratch_size(self) -> int:
        """Return the sum of the scratch bytes of all instructions, although they may share memory."""
        return sum(o.buffer.nbytes for i in self.instrs for o in i.operands if o.access is Access.SCRATCH)

    @property
    def arena_size(self) -> int:
        """Return the bytes of the arena: the sum of its areas, of which there is one unless the arena is divided."""
        return sum(self.area_sizes)

    @property
    def is_offloaded(self) -> bool:
        """Return whether an accelerator computes some instructions."""
        return any(instr.is_offloaded for instr in self.instrs)

    @property
    def arena_alignment(self) -> int:
        """Return the alignment in bytes of the arena's areas and their sizes.

        It is a cache line if an accelerator reads or writes the arena: no line then holds other variables of the user's
        program, which would be lost when lines are invalidated.
        """
        return CACHE_LINE if self.is_offloaded else ALIGNMENT

    @property
    def arena_bound(self) -> int:
        """Return the proven lower bound of the arena's bytes; equal to `arena_size` if the memory plan is optimal."""
        return sum(self.area_bounds)

    @property
    def weights_size(self) -> int:
        """Return the bytes of all constants of the program, such as weights."""
        return sum(b.nbytes for b in self.buffers if b.space is Space.CONST)

    @property
    def marks_state(self) -> bool:
        """Return whether a state struct of zeros is invalid, because some state does not start with zeros.

        The generated function NAME_reset (NAME is the model's name) must then mark the struct as initialized. States
        are data that the model keeps between calls.
        """
        learns = self.lesson is not None and bool(self.lesson.first)
        return learns or any(e.quant is not None and e.quant.zero_point != 0 for e in self.states)

    @property
    def state_size(self) -> int:
        """Return the bytes of the struct in which the caller keeps the model's states."""
        sizes = [e.buffer.nbytes for e in self.states]
        if self.marks_state:
            sizes[-1] += STATE_MARK_BYTES
        return sum(map(aligned, sizes))

    def layers(self) -> list[range]:
        """Return the indices of the instructions of each layer; most layers have one instruction.

        Instructions with the same `group` (number of a layer) form one layer. A move (copy of bytes) whose source and
        target have the same address belongs to no layer. A STOP, where a training call may end, belongs to the layer
        before it.
        """
        spans: list[range] = []
        for index, instr in enumerate(self.instrs):
            is_same = instr.group and index and self.instrs[index - 1].group == instr.group
            if is_same or (instr.kernel == STOP and spans):
                spans[-1] = range(spans[-1].start, index + 1)
            elif instr.group or not instr.moves_nothing:
                spans.append(range(index, index + 1))
        return spans

    def head(self, layer: range) -> Instr:
        """Return the instruction that represents a layer (an entry of `layers`) in names and reports.

        If the layer is a block, such as a loop, this is the marker that begins the block. Otherwise, it is the first
        instruction that computes, not one that only prepares data. A side of a fork (one of two sequences that two
        cores run at the same time) is represented by its first instruction that computes, or by its marker if there is
        none.
        """
        instrs = [self.instrs[i] for i in layer]
        if self.is_side(layer):
            return next((i for i in instrs if i.control is Control.NONE and not i.moves_nothing), instrs[0])
        computing = next(i for i in instrs if i.kernel not in PREPARATION_KERNELS)
        return next((i for i in instrs if i.control is not Control.NONE), computing)

    def completing(self, layer: range) -> Instr:
        """Return the instruction that completes the result of a layer (an entry of `layers`).

        If the layer is computed in tiles (parts of the result), it is the instruction that joins the tiles, else the
        instruction that represents the layer (`head`).
        """
        head, last = self.head(layer), self.instrs[layer[-1]]
        is_joined = last.group and head.name != last.name and Control.NONE is head.control is last.control
        return last if is_joined and not self.is_side(layer) else head

    def macs_of(self, layer: range) -> int:
        """Return the number of multiply-accumulates of a layer (an entry of `layers`).

        If the layer is a block, such as a loop, it is the number of the marker that begins the block, else the sum over
        the layer's instructions.
        """
        if self.head(layer).control is not Control.NONE:
            return self.head(layer).macs
        return sum(instr.macs for instr in (self.instrs[i] for i in layer) if instr.control is Control.NONE)

    def is_side(self, layer: range) -> bool:
        """Return whether a layer (an entry of `layers`) is one of the two sides of a fork.

        Two cores may run the sides at the same time.
        """
        controls = [self.instrs[i].control for i in layer]
        beginning = next((c for c in controls if c is not Control.NONE), Control.NONE)
        return beginning in (Control.FORK, Control.ELSE)

    def loops(self) -> list[tuple[int, int]]:
        """Return the indices of the markers that begin and end each FOR or STREAM block; inner blocks come first.

        A FOR block is a loop. A STREAM block computes several layers together row by row, by running its parts
        repeatedly.
        """
        return [(i, end) for i, end in self.blocks() if self.instrs[i].control in (Control.FOR, Control.STREAM)]

    def blocks(self) -> list[tuple[int, int]]:
        """Return the indices of the markers that begin and end each block; inner blocks come first.

        A block is a range of instructions between two markers, such as a loop or a branch.
        """
        begun: list[int] = []
        blocks = []
        for index, instr in enumerate(self.instrs):
            if instr.control is Control.END:
                blocks.append((begun.pop(), index))
            elif instr.control not in (Control.NONE, Control.ELSE):
                begun.append(index)
        return blocks

    def wholes(self) -> list[range]:
        """Return the index range of each outermost block (such as a loop), and of each instruction outside of blocks.

        The ranges are in order and cover the program.
        """
        begun, wholes, depth = 0, list[range](), 0
        for index, instr in enumerate(self.instrs):
            depth += (instr.control not in (Control.NONE, Control.ELSE)) - 2 * (instr.control is Control.END)
            if not depth:
                wholes.append(range(begun, index + 1))
                begun = index + 1
        return wholes

    def cases(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the indices of the markers that begin and end each case of a STREAM block.

        A STREAM block computes several layers together row by row (line-buffer fusion). It runs its cases, which are
        sequences of instructions, in the order of its events.

        Args:
            start: Index of the marker that begins the STREAM block.
            end: Index of the marker that ends it.
        """
        inside = [(i, j) for i, j in self.blocks() if start < i < end]
        return sorted((i, j) for i, j in inside if not any(a < i < b for a, b in inside))

    def live_ranges(self) -> dict[Buffer, tuple[int, int]]:
        """Return the live range of each planned buffer: the first and last instruction that need its contents.

        Inputs live from −1 (before the first instruction), outputs to len(instrs). A buffer that is used inside and
        outside of a loop lives throughout the loop. A STREAM block computes several layers together row by row; a
        buffer that only its cases use lives from the first to the last case between which its contents matter. In a
        fork (two sides that two cores may run at the same time), a buffer of the second side lives throughout the fork;
        if the sides compute tiles of a tensor, so does a buffer of the first side. The ranges are computed anew at each
        call.
        """
        ranges: dict[Buffer, tuple[int, int]] = {}
        for endpoint in self.inputs:
            if endpoint.buffer.planned:
                ranges[endpoint.buffer] = (-1, -1)
        for index, instr in enumerate(self.instrs):
            for operand in instr.operands:
                if operand.buffer.planned:
                    first, _ = ranges.get(operand.buffer, (index, index))
                    ranges[operand.buffer] = (first, index)
        for endpoint in self.outputs:
            if endpoint.buffer.planned:
                first, _ = ranges.get(endpoint.buffer, (-1, -1))
                ranges[endpoint.buffer] = (first, len(self.instrs))
        for start, end in self.loops():
            if self.instrs[start].control is Control.STREAM:
                self._keep_between_events(ranges, start, end)
            for buffer, (first, last) in ranges.items():
                if first <= start <= last < end:  # The next step may use it again.
                    ranges[buffer] = (first, end)
                elif start < first <= end < last:  # An earlier step may have written it.
                    ranges[buffer] = (start, last)
        self._keep_throughout_forks(ranges)
        for index in self.handover or ():  # The second part reads it during the next call.
            handed_over = self.instrs[index].operand("y").buffer
            ranges[handed_over] = (ranges[handed_over][0], len(self.instrs))
        return ranges

    def forks(self) -> Iterator[tuple[int, int, int]]:
        """Yield the indices of three markers for each FORK block: its begin, its ELSE, and its end.

        A FORK block has two sides, separated by ELSE, which two cores may run at the same time.
        """
        for start, end in self.blocks():
            if self.instrs[start].control is Control.FORK:
                yield start, next(i for i in range(start, end) if self.instrs[i].control is Control.ELSE), end

    def of_second_core(self) -> list[Instr]:
        """Return the instructions that the second core runs.

        They are the second sides of forks, or the second part of a pipeline over frames.
        """
        if self.handover is not None:
            return self.instrs[self.handover.stop :]
        return [instr for _, middle, end in self.forks() for instr in self.instrs[middle + 1 : end]]

    def _keep_throughout_forks(self, ranges: dict[Buffer, tuple[int, int]]) -> None:
        """Extend lives so that both sides of a fork share no memory.

        What the second side uses lives during the whole fork; if a marker names the buffers of tiles, so do those of
        both sides.
        """
        for start, middle, end in self.forks():
            named = {o.buffer for o in self.instrs[start].operands}
            for buffer, (first, last) in ranges.items():
                if first <= end and last >= start and (named or last >= middle):
                    ranges[buffer] = (min(first, start), max(last, end))

    def _keep_between_events(self, ranges: dict[Buffer, tuple[int, int]], start: int, end: int) -> None:
        """Extend the ranges of buffers that only a stream uses to all cases between which their contents matter."""
        cases, events = self.cases(start, end), self.instrs[start].events
        followers: dict[int, set[int]] = {}
        for event, following in set(pairwise(events)):
            followers.setdefault(event, set()).add(following)
        uses: dict[Buffer, dict[int, _Uses]] = {}
        for number, (begin, stop) in enumerate(cases):
            for index in range(begin, stop):
                for operand in self.instrs[index].operands:
                    use = uses.setdefault(operand.buffer, {}).setdefault(number, _Uses(index, operand.access.reads))
                    use.last = index
        for buffer, (first, last) in ranges.items():
            if start < first and last < end:
                needing = _needing(uses[buffer], followers, len(cases))
                begin, stop = _span_of_cases(uses[buffer], cases, followers, needing)
                is_of_before = not events or events[0] in needing
                ranges[buffer] = (start, end) if is_of_before else (min(first, begin), max(last, stop))
