# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators with broadcasting, and their stack: one loop that computes several in a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar

import numpy as np

from mcugen.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Channels, IntegerForm, Operator, Permutation, RowForm, RowWindow, Signature
from mcugen.hir.types import Array, Bounds, DType, Layout, QuantParams, TensorType
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Buffer, Param, param_dtype
from mcugen.ops import helium
from mcugen.ops.curves import CODES, Line, Segments, interpolation
from mcugen.ops.fixedpoint import dequantize, is_quantized, quantize
from mcugen.ops.kernels import cmsis
from mcugen.ops.movement import reshaped
from mcugen.ops.onnx_node import OnnxNode
from mcugen.ops.traversal import Traversal, collapse, overlap


class Scalars:
    """Collects the per-layer constants of C expressions as kernel parameters."""

    def __init__(self) -> None:
        self.params: dict[str, Param] = {}

    def __call__(self, value: Param) -> str:
        """The local variable that holds `value` at run time (code is shared by layers that differ only in it)."""
        name = f"k{len(self.params)}"
        self.params[name] = value
        return name

    def declarations(self, lines: Sequence[str]) -> list[str]:
        """The local variables of those lines: stores through `y` could change what `p` points to, as far as C knows."""
        used = set(re.findall(r"\bk\d+\b", " ".join(lines)))
        return [f"const {param_dtype(v).c} {name} = p->{name};" for name, v in self.params.items() if name in used]


class Known(Scalars):
    """Finds the values that another collection has before it adds new ones."""

    def __init__(self, others: Scalars) -> None:
        self.params = others.params
        self._spell = others

    def __call__(self, value: Param) -> str:
        """The variable that holds `value`."""
        same = (name for name, v in self.params.items() if type(v) is type(value) and v == value)
        return next(same, None) or self._spell(value)


class Literals(Scalars):
    """Writes integers where they are used."""

    def __call__(self, value: Param) -> str:
        """A literal of int32, else as any other scalar."""
        if isinstance(value, float) or not -(2**31) < value < 2**31:
            return super().__call__(value)
        return str(value) if value >= 0 else f"({value})"


MOST_SHARED = 8
"""Integer constants of a loop that is shared by layers: more leave the registers, and are loaded for each element."""


UNROLL = 4
"""Elements that a short loop computes at a time."""

MOST_UNROLLED = 250
"""Characters of C, which tell how long a loop is, up to which it is unrolled."""

_SHORT = re.compile(
    r"(mcugen_)?(fabs|clamp|max|min|relu|saturate|shift_right|scale|requantize_high|weighted_sum)[0-9fd]*"
)
"""Functions of a few instructions."""


@dataclass(frozen=True)
class Elementwise(Operator):
    """y[i] = f(x0[i], x1[i], …) with numpy broadcasting; inputs have equal rank or one element."""

    tables: ClassVar[frozenset[int]] = frozenset()
    """Inputs that are read as a whole (look-up tables), not element by element."""

    def result_dtype(self, *dtypes: DType) -> DType:
        """Element type of the result."""
        return dtypes[0]

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Broadcast shape; see ONNX "Broadcasting"."""
        present = [t for i, t in enumerate(inputs) if t is not None and i not in self.tables]
        try:
            shape = np.broadcast_shapes(*(t.shape for t in present))
        except ValueError as error:
            shapes = ", ".join(str(t.shape) for t in present)
            raise ModelError(f"{self.name}: shapes must broadcast", shapes, "repair the model") from error
        layouts = {t.layout for t in present if t.shape == shape} - {Layout.NONE}
        layout = layouts.pop() if len(layouts) == 1 else Layout.NONE
        return (TensorType(tuple(shape), self.result_dtype(*(t.dtype for t in present)), layout=layout),)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """The C expression of one element of type `sig.output.dtype`; `args` are C variables or table names."""
        raise NotImplementedError

    def vector(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str | None:
        """The same of four elements, see mcugen.ops.helium; None: Helium does not help."""
        return None

    def lower(self, node: Node, builder: Builder) -> None:
        """One loop of one step."""
        inputs = tuple(range(len(node.inputs)))
        step = Step(self, inputs, node.output.type.dtype, node.output.type.quant)
        emit_loop(node, (step,), builder)

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Elementwise operators commute with transpositions."""
        if any(t is not None and t.rank not in (0, len(perm)) and t.count > 1 for t in self._elements(sig)):
            return None
        return self, tuple(
            perm if t is not None and t.rank == len(perm) and i not in self.tables else None
            for i, t in enumerate(sig.inputs)
        )

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Row by row, where no operand has other rows than the result."""
        out = sig.output
        if out.rank < 3 or out.shape[0] != 1:
            return None
        streamed = [t is not None and i not in self.tables and t.rank == out.rank for i, t in enumerate(sig.inputs)]
        whole = [t is None or i in self.tables or t.shape[-1:] in ((), (t.count,)) for i, t in enumerate(sig.inputs)]
        if not all(
            w or (s and sig.input(i).shape[1] == out.shape[1])
            for i, (w, s) in enumerate(zip(whole, streamed, strict=True))
        ):
            return None
        is_row = [s and sig.input(i).shape[1] == out.shape[1] for i, s in enumerate(streamed)]
        return RowForm(self, tuple(RowWindow() if row else None for row in is_row))

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """A function of one int8 tensor (and constant scalars) is a table of its 256 values; of int16, a curve."""
        varying = [i for i, v in enumerate(inputs) if v is not None and not v.is_constant]
        scalars = all(v is None or v.type.count == 1 for i, v in enumerate(inputs) if i not in varying)
        if len(varying) != 1 or not scalars or self.tables:
            return None
        x, source, out = inputs[varying[0]], sig.input(varying[0]), sig.output
        if source.quant is None or source.quant.axis is not None:
            return None
        if source.dtype is DType.INT16 and is_quantized(out):
            wanted = self._of_codes(inputs, CODES, source.quant).astype(np.float64)
            return _curve(graph, self.name, x, wanted / out.q.scale[0] + out.q.zero_point, out.dtype)
        if source.dtype is not DType.INT8:
            return None
        codes = np.arange(-128, 128).astype(np.int8)
        table = quantize(self._of_codes(inputs, codes, source.quant), out.q, out.dtype)
        return Lookup(self.name), (x, graph.constant(f"{self.name}.table", table))

    @property
    def is_monotone(self) -> bool:
        """Whether it rises or falls with each operand, whatever the others."""
        return False

    def bounds(self, sig: Signature, *inputs: Bounds | None) -> Sequence[Bounds | None]:
        """The extremes lie where operands have theirs."""
        if not self.is_monotone or None in inputs:
            return (None,)
        ends = [bounds if bounds[0] is not bounds[1] else bounds[:1] for bounds in inputs if bounds is not None]
        results = [self.evaluate(sig, *arrays)[0] for arrays in product(*ends)]
        return ((np.minimum.reduce(results), np.maximum.reduce(results)),)

    def channels(self, sig: Signature) -> Channels | None:
        """Channel by channel; operands that are spread over all channels are read as a whole."""
        if not sig.output.rank:
            return None
        count = sig.output.shape[-1]
        sources = [
            None if t is None or i in self.tables or t.shape[-1:] != (count,) else np.arange(count)
            for i, t in enumerate(sig.inputs)
        ]
        return Channels(sources, lambda _: self)

    def _of_codes(self, inputs: Sequence[Value | None], codes: Array, quant: QuantParams) -> Array:
        """The real results where the only input that is no constant has these codes."""
        arrays = [real_data(v) if v.is_constant else dequantize(codes, quant) for v in inputs if v]
        types = tuple(TensorType(a.shape, DType.of(a)) for a in arrays)
        with np.errstate(all="ignore"):
            (real,) = self.evaluate(Signature(types, self.infer(*types)), *arrays)
        return real.reshape(len(codes))

    def _elements(self, sig: Signature) -> list[TensorType | None]:
        return [t for i, t in enumerate(sig.inputs) if i not in self.tables]


def real_data(value: Value) -> Array:
    """The numbers that a constant stands for."""
    assert value.data is not None
    return value.data if value.type.quant is None else dequantize(value.data, value.type.quant)


def _curve(graph: Graph, name: str, x: Value | None, wanted: Array, dtype: DType) -> IntegerForm | None:
    """wanted[i], a real number of output codes, for CODES[i] of an int16 tensor; None: it jumps."""
    line = Line.through(wanted, dtype)
    if line is not None:
        return Linear(name, line), (x,)
    found = interpolation(wanted, dtype)
    if found is None:
        return None
    return Interpolate(name, found[0]), (x, graph.constant(f"{name}.table", found[1]))


@dataclass(frozen=True)
class Linear(Elementwise):
    """y = clamp(slope · x + constant) for integers x: what is straight of one int16 tensor. `of` names the function."""

    mnemonic: ClassVar[str] = "linear"
    of: str
    line: Line

    @property
    def is_monotone(self) -> bool:
        """A line."""
        return True

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """The line."""
        return (self.line(arrays[0]).astype(sig.output.dtype.numpy),)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """One multiplication."""
        return f"({sig.output.dtype.c}){self.line.text(args[0], scalar)}"


@dataclass(frozen=True)
class Interpolate(Elementwise):
    """y = a line between two entries of a table, for int16 x: any smooth function of it. `of` names the function."""

    mnemonic: ClassVar[str] = "interpolate"
    library: ClassVar[tuple[Kernel, ...]] = cmsis.CURVE
    tables: ClassVar[frozenset[int]] = frozenset({1})
    of: str
    segments: Segments

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """The segments."""
        return (self.segments(*arrays).astype(sig.output.dtype.numpy),)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """Two loads, one multiplication."""
        return f"({sig.output.dtype.c}){self.segments.text(args[0], args[1], scalar)}"

    def vector(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str | None:
        """Two gathers, one multiplication."""
        s, dtype = self.segments, sig.input(1).dtype
        at = f"vaddq_n_s32({args[0]}, 32768)"
        index = f"vshrq_n_s32({at}, {s.bits})"
        start, end = (helium.looked_up(dtype, table, index) for table in (args[1], f"({args[1]} + 1)"))
        rest = f"vandq_s32({at}, vdupq_n_s32({(1 << s.bits) - 1}))"
        rise = f"vmulq_s32(vsubq_s32({end}, {start}), {rest})"
        total = f"vaddq_n_s32(vaddq_s32(vshlq_n_s32({start}, {s.bits}), {rise}), {1 << (s.shift - 1)})"
        return helium.limited(f"vshrq_n_s32({total}, {s.shift})", s.low, s.high, scalar)


@dataclass(frozen=True)
class Lookup(Elementwise):
    """y = table[x + 128] for int8 x: any function of one int8 tensor. `of` names the function."""

    mnemonic: ClassVar[str] = "lookup"
    tables: ClassVar[frozenset[int]] = frozenset({1})
    of: str = ""

    def result_dtype(self, *dtypes: DType) -> DType:
        """The table's, which the node's type carries."""
        return DType.INT8

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Indexing."""
        return (arrays[1][arrays[0].astype(np.int64) + 128],)

    def bounds(self, sig: Signature, *inputs: Bounds | None) -> Sequence[Bounds | None]:
        """The least and the greatest entries from one code to another."""
        x, known = inputs
        if x is None or known is None or known[0] is not known[1]:
            return (None,)
        table = known[0]
        least, most = (np.zeros((256, 256), table.dtype) for _ in range(2))
        for start in range(256):
            least[start, start:] = np.minimum.accumulate(table[start:])
            most[start, start:] = np.maximum.accumulate(table[start:])
        first, last = (end.astype(np.int64) + 128 for end in x)
        return ((least[first, last], most[first, last]),)

    def expression(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str:
        """Indexing."""
        return f"{args[1]}[{args[0]} + 128]"

    def vector(self, sig: Signature, args: Sequence[str], scalar: Scalars) -> str | None:
        """Gathering."""
        return helium.looked_up(sig.input(1).dtype, args[1], f"vaddq_n_s32({args[0]}, 128)")


@dataclass(frozen=True)
class Step:
    """One operator of a stack. `args` index the stack's inputs, then earlier steps."""

    op: Elementwise
    args: tuple[int, ...]
    dtype: DType
    quant: QuantParams | None

    def __str__(self) -> str:
        return f"{self.op.name}{list(self.args)}"


@dataclass(frozen=True)
class Stack(Elementwise):
    """Consecutive elementwise operators as one loop (Glow's operator stacking); the last step is the result."""

    steps: tuple[Step, ...] = ()
    table_inputs: frozenset[int] = field(default=frozenset(), repr=False)

    @property
    def name(self) -> str:
        """The steps' names in a row."""
        return "+".join(step.op.name for step in self.steps)

    @property
    def tables(self) -> frozenset[int]:  # type: ignore[override]
        """Inputs that some step reads as a table."""
        return self.table_inputs

    def result_dtype(self, *dtypes: DType) -> DType:
        """The last step's."""
        return self.steps[-1].dtype

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Step by step."""
        env = list(arrays)
        types = [sig.input(i) for i in range(len(arrays))]
        for step in self.steps:
            args = [types[a] for a in step.args]
            (shape,) = (t.shape for t in step.op.infer(*args))
            types.append(TensorType(shape, step.dtype, step.quant))
            (result,) = step.op.evaluate(Signature(tuple(args), (types[-1],)), *(env[a] for a in step.args))
            env.append(np.asarray(result, step.dtype.numpy))
        return (env[-1],)

    def lower(self, node: Node, builder: Builder) -> None:
        """One loop."""
        emit_loop(node, self.steps, builder)


def emit_loop(node: Node, steps: Sequence[Step], builder: Builder) -> None:
    """Emits one instruction for a node that computes `steps` on its inputs."""
    out = node.output
    tables = node.op.tables if isinstance(node.op, Elementwise) else frozenset()
    streams = [i for i in range(len(node.inputs)) if i not in tables]
    dims, strides = collapse(out.type.shape, [node.input(i).type.shape for i in streams])
    scalar = Scalars()
    names = [f"{'t' if i in tables else 'x'}{i}" for i in range(len(node.inputs))]
    lines = _statements(node, steps, tables, scalar)
    if len(scalar.params) > MOST_SHARED and not any(isinstance(v, float) for v in scalar.params.values()):
        scalar = Literals()
        lines = _statements(node, steps, tables, scalar)
    vectors = _vectors(node, steps, tables, Known(scalar)) if "mve" in builder.features else None
    params: dict[str, Param] = {f"d{axis}": size for axis, size in enumerate(dims)}
    loads = []
    for n, i in enumerate(streams):
        terms = []
        for axis, stride in enumerate(strides[n][:-1]):
            if stride:
                params[f"{names[i]}_s{axis}"] = stride
                terms.append(f"i{axis} * p->{names[i]}_s{axis}")
        moves = strides[n][-1] != 0
        dtype = node.input(i).type.dtype
        load = {
            "role": names[i],
            "value": f"v{i}",
            "ctype": dtype.c,
            "value_ctype": _computed_in(node.input(i).type),
            "moves": moves,
            "row": " + ".join([names[i], *terms]),
        }
        if vectors is not None:
            load["vector"] = f"{helium.TYPES[dtype]} q{i}"
            load["four"] = helium.load(dtype, f"a{names[i]}") if moves else helium.spread(dtype, f"v{i}")
            load["few"] = helium.load_few(dtype, f"a{names[i]}") if moves else load["four"]
        loads.append(load)
    operands: list[tuple[str, Access, Buffer]] = [
        (names[i], Access.IN, builder.buffer(node.input(i))) for i in range(len(node.inputs))
    ]
    order = Traversal.forward(out.type.count)
    dense = [i for i in streams if node.input(i).type.count == out.type.count and not node.input(i).is_constant]
    builder.emit(
        node,
        "elementwise",
        [*operands, ("y", Access.OUT, builder.buffer(out))],
        params | scalar.params,
        code={
            "steps": " ".join(step.op.name for step in steps),
            "rank": len(dims),
            "loads": loads,
            "lines": lines,
            "vectors": vectors,
            "real": DType.FLOAT32 in (out.type.dtype, *(node.input(i).type.dtype for i in streams)),
            "store": helium.store(out.type.dtype, "y", f"q{len(node.inputs) + len(steps) - 1}")
            if vectors
            else ("", ""),
            "scalars": scalar.declarations(lines),
            "vector_scalars": scalar.declarations(vectors or ()),
            "unroll": UNROLL if builder.optimize != "flash" and _is_short(lines) else 1,
            "result": f"v{len(node.inputs) + len(steps) - 1}",
        },
        overlaps=[each for i in dense for each in overlap(node.input(i).type, out.type, order, into=names[i])],
        variant="_".join(step.op.name for step in steps),
    )


def _statements(node: Node, steps: Sequence[Step], tables: frozenset[int], scalar: Scalars) -> list[str]:
    names = [f"t{i}" if i in tables else f"v{i}" for i in range(len(node.inputs))]
    types = [node.input(i).type for i in range(len(node.inputs))]
    lines = []
    for number, step in enumerate(steps, len(names)):
        result = TensorType((), step.dtype, step.quant)
        sig = Signature(tuple(types[a] for a in step.args), (result,))
        text = step.op.expression(sig, [names[a] for a in step.args], scalar)
        is_last = number == len(node.inputs) + len(steps) - 1
        lines.append(f"const {step.dtype.c if is_last else _computed_in(result)} v{number} = {text};")
        names.append(f"v{number}")
        types.append(result)
    return lines


def _computed_in(tensor: TensorType) -> str:
    """The C type of a variable for an element: 32 bits for codes, whatever the width of int that C promotes them to."""
    return DType.INT32.c if is_quantized(tensor) else tensor.dtype.c


def _is_short(lines: Sequence[str]) -> bool:
    """Whether a loop is worth unrolling."""
    text = " ".join(lines)
    calls = re.findall(r"\b(\w+)\(", text)
    return len(text) <= MOST_UNROLLED and all(_SHORT.fullmatch(name) for name in calls)


def _vectors(node: Node, steps: Sequence[Step], tables: frozenset[int], scalar: Scalars) -> list[str] | None:
    """Each step of four elements by Helium, if all of them can be."""
    types = [node.input(i).type for i in range(len(node.inputs))]
    dtypes = [t.dtype for i, t in enumerate(types) if i not in tables] + [step.dtype for step in steps]
    if not all(dtype in helium.TYPES for dtype in dtypes):
        return None
    names = [f"t{i}" if i in tables else f"q{i}" for i in range(len(types))]
    lines = []
    for number, step in enumerate(steps, len(names)):
        sig = Signature(tuple(types[a] for a in step.args), (TensorType((), step.dtype, step.quant),))
        text = step.op.vector(sig, [names[a] for a in step.args], scalar)
        if text is None:
            return None
        lines.append(f"const {helium.TYPES[step.dtype]} q{number} = {text};")
        names.append(f"q{number}")
        types.append(sig.output)
    return lines


def emit_elementwise(node: OnnxNode, op: Elementwise, *inputs: Value, suffix: str = "") -> Value:
    """Adds an elementwise node whose inputs are first brought to one rank."""
    rank = max(v.type.rank for v in inputs)
    aligned = [
        v
        if v.type.rank == rank or (v.type.count == 1 and v.type.rank == 0)
        else reshaped(node, v, (1,) * (rank - v.type.rank) + v.type.shape)
        for v in inputs
    ]
    return node.emit(op, *aligned, suffix=suffix)
