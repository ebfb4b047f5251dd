# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators with broadcasting, and Stack: one loop that computes several of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.expressions import mve
from mcugen.expressions.intervals import bounds
from mcugen.expressions.nodes import Argument, Convert, Entry, Expression, Table
from mcugen.expressions.values import evaluate
from mcugen.hir.crop import Box, Crop, broadcast_box, whole
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Channels, IntegerForm, Operator, Permutation, RowForm, Signature, each_row, row_axis
from mcugen.hir.traits import Channelwise, Croppable, Permutable, Quantizable, Rowwise
from mcugen.hir.types import Array, Bounds, DType, Layout, QuantParams, TensorType
from mcugen.kernels.portable.activations import CurveSpec
from mcugen.kernels.portable.elementwise import (
    MAX_SHARED_CONSTANTS,
    Literals,
    Loop,
    ReusedScalars,
    Scalars,
    TypedExpression,
    emit_loop,
)
from mcugen.lir.builder import Builder
from mcugen.lir.spec import HasKernels
from mcugen.numerics.curves import CURVE_INPUTS, INT8_TABLE_ORDER, TANH_TABLE, Line, Segments, SharedTanh, interpolation
from mcugen.numerics.fixedpoint import dequantize, is_quantized, quantize
from mcugen.numerics.tflite_arithmetic import rounds_as_tflite
from mcugen.ops.movement import reshaped
from mcugen.ops.onnx_node import OnnxNode


class Elementwise(Quantizable, Permutable, Channelwise, Croppable, Rowwise, Operator):
    """y[i] = f(x0[i], x1[i], …) with numpy broadcasting; inputs have equal rank or one element.

    Attributes:
        tables: Indices of the inputs that are lookup tables: these are read as a whole, not element by element.
    """

    tables: ClassVar[frozenset[int]] = frozenset()

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the element type of the result for the element types of the inputs."""
        return dtypes[0]

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the broadcast shape of the inputs in the result's element type."""
        present = [t for i, t in enumerate(inputs) if t is not None and i not in self.tables]
        try:
            shape = np.broadcast_shapes(*(t.shape for t in present))
        except ValueError as error:
            shapes = ", ".join(str(t.shape) for t in present)
            raise ModelError(f"{self.name}: shapes must broadcast", shapes, "repair the model") from error
        layouts = {t.layout for t in present if t.shape == shape} - {Layout.NONE}
        layout = layouts.pop() if len(layouts) == 1 else Layout.NONE
        return (TensorType(tuple(shape), self.result_dtype(*(t.dtype for t in present)), layout=layout),)

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the expression of one element of the result, of type `sig.output.dtype`.

        Args:
            sig: Types of inputs and output.
            args: Elements of the inputs, or tables for the indices in `tables`.
            scalar: Adds a number as a parameter of the kernel, and returns the C variable that holds it.
        """
        raise NotImplementedError

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by evaluating the expression on numpy arrays."""
        values = evaluate(self._formula(sig), {f"x{i}": a for i, a in enumerate(arrays)})
        shape = np.broadcast_shapes(*(a.shape for i, a in enumerate(arrays) if i not in self.tables))
        return (np.broadcast_to(values, shape).astype(sig.output.dtype.numpy),)

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the expression of four elements in Helium operations (mcugen.expressions.mve).

        Args:
            sig: Types of inputs and output.
            args: Elements of the inputs.
            scalar: Adds a number as a parameter of the kernel, and returns the C variable that holds it.

        Returns:
            The expression; None if vectors are impossible or not faster.
        """
        return None

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit an elementwise loop that computes this operator only."""
        inputs = tuple(range(len(node.inputs)))
        step = Step(self, inputs, node.output.type.dtype, node.output.type.quant)
        _emit_steps(node, (step,), builder)

    def stands_alone(self, sig: Signature) -> bool:
        """Return whether to compute this operator in a loop of its own instead of together with others (a Stack).

        This is better where some CPUs have a faster kernel for the operator alone.
        """
        return False

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Return the operator itself, which computes the output transposed by `perm` from transposed inputs.

        It comes with the permutation of each input (None: unchanged). The result is None if an input of several
        elements has another rank than the output.
        """
        if any(t is not None and t.rank not in (0, len(perm)) and t.count > 1 for t in self._elements(sig)):
            return None
        return self, tuple(
            perm if t is not None and t.rank == len(perm) and i not in self.tables else None
            for i, t in enumerate(sig.inputs)
        )

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute each output row from the same input rows (for line-buffer fusion); None if impossible.

        All operands that vary along the axis of rows must have as many rows as the result. An operand that does not
        vary along that axis is read as a whole.
        """
        out, axis = sig.output, row_axis(sig.output.shape)
        if axis is None:
            return None
        ranked = [t is not None and i not in self.tables and t.rank == out.rank for i, t in enumerate(sig.inputs)]
        is_row = [r and sig.input(i).shape[axis] == out.shape[axis] for i, r in enumerate(ranked)]
        is_whole = [
            t is None or i in self.tables or t.shape[-1:] in ((), (t.count,)) or (r and t.shape[axis] == 1)
            for i, (t, r) in enumerate(zip(sig.inputs, ranked, strict=True))
        ]
        if not all(row or whole for row, whole in zip(is_row, is_whole, strict=True)):
            return None
        return each_row(self, sig, is_row, at_once=(1,))

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the operator itself, which computes some elements from the same elements of its inputs."""
        reads = [
            None if v is None else whole(v.type.shape) if i in self.tables else broadcast_box(region, v.type.shape)
            for i, v in enumerate(node.inputs)
        ]
        return Crop(self, region, tuple(reads))

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the integer operator that replaces this one on quantized tensors, with its inputs, or None.

        It exists for a function of one tensor and constant scalars: a table of 256 values for int8, an interpolated
        curve for int16.
        """
        if rounds_as_tflite(sig.output):
            return self._tflite_table(graph, sig, inputs)
        varying = [i for i, v in enumerate(inputs) if v is not None and not v.is_constant]
        scalars = all(v is None or v.type.count == 1 for i, v in enumerate(inputs) if i not in varying)
        if len(varying) != 1 or not scalars or self.tables:
            return None
        x, source, out = inputs[varying[0]], sig.input(varying[0]), sig.output
        if source.quant is None or source.quant.axis is not None:
            return None
        if source.dtype is DType.INT16 and is_quantized(out):
            real_values = self._of_codes(inputs, CURVE_INPUTS, source.quant).astype(np.float64)
            shared = SharedTanh.of(self.name, source.quant, out)
            return _curve(graph, self.name, x, real_values / out.q.scale[0] + out.q.zero_point, out.dtype, shared)
        if source.dtype is not DType.INT8:
            return None
        table = quantize(self._of_codes(inputs, INT8_TABLE_ORDER, source.quant), out.q, out.dtype)
        return Lookup(self.name), (x, graph.constant(f"{self.name}.table", table))

    def tflite_codes(self, d: Array, x: QuantParams, out: QuantParams) -> Array | None:
        """Return the int8 results that TensorFlow Lite's kernel of the function computes for int8 inputs.

        Args:
            d: Stored integers of the only input, less their zero point.
            x: Quantization of the input.
            out: Quantization of the output.

        Returns:
            The stored integers of the output; None if its arithmetic is not known for this function.
        """
        return None

    def _tflite_table(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the lookup in a table of the results of TensorFlow Lite's kernel; None if they are not known."""
        x, out = sig.inputs[0], sig.output
        if len(inputs) != 1 or x is None or not is_quantized(x) or not x.dtype is out.dtype is DType.INT8:
            return None
        codes = self.tflite_codes(INT8_TABLE_ORDER.astype(np.int64) - x.q.zero_point, x.q, out.q)
        if codes is None:
            return None
        return Lookup(self.name), (inputs[0], graph.constant(f"{self.name}.table", codes.astype(np.int8)))

    def bounds(self, sig: Signature, *inputs: Bounds | None) -> Sequence[Bounds | None]:
        """Return the bounds of the result by interval arithmetic, for quantized outputs; None for real outputs."""
        if sig.output.quant is None:
            return (None,)
        result_bounds = bounds(self._formula(sig), {f"x{i}": ends for i, ends in enumerate(inputs) if ends is not None})
        if result_bounds is None:
            return (None,)
        low, high = (np.broadcast_to(end, sig.output.shape).astype(sig.output.dtype.numpy) for end in result_bounds)
        return ((low, high),)

    def channels(self, sig: Signature) -> Channels | None:
        """Map each output channel to the input channel of the same index, for channel pruning.

        Inputs that broadcast along the channel axis keep all their elements. The result is None if the output is a
        scalar.
        """
        if not sig.output.rank:
            return None
        count = sig.output.shape[-1]
        sources = [
            None if t is None or i in self.tables or t.shape[-1:] != (count,) else np.arange(count)
            for i, t in enumerate(sig.inputs)
        ]
        return Channels(sources, lambda _: self)

    def _of_codes(self, inputs: Sequence[Value | None], codes: Array, quant: QuantParams) -> Array:
        """Return the real results for quantized values of the only non-constant input."""
        arrays = [real_data(v) if v.is_constant else dequantize(codes, quant) for v in inputs if v]
        types = tuple(TensorType(a.shape, DType.of(a)) for a in arrays)
        with np.errstate(all="ignore"):
            (real,) = self.evaluate(Signature(types, self.infer(*types)), *arrays)
        return real.reshape(len(codes))

    def _formula(self, sig: Signature) -> Expression:
        """Return the expression with variables x0, x1 and so on."""
        args = [_argument(f"x{i}", sig.input(i), i in self.tables) for i in range(len(sig.inputs))]
        return self.expression(sig, args, Scalars())

    def _elements(self, sig: Signature) -> list[TensorType | None]:
        return [t for i, t in enumerate(sig.inputs) if i not in self.tables]


def real_data(value: Value) -> Array:
    """Return the elements of a constant as real numbers; they are dequantized if the constant is quantized."""
    assert value.data is not None
    return value.data if value.type.quant is None else dequantize(value.data, value.type.quant)


def _curve(
    graph: Graph, name: str, x: Value | None, ideal_codes: Array, dtype: DType, shared: SharedTanh | None
) -> IntegerForm | None:
    """Return the int16 form of a function by its curve; None if the curve jumps.

    `ideal_codes[i]` is the exact, unrounded result for CURVE_INPUTS[i], in units of the output.
    """
    line = Line.through(ideal_codes, dtype)
    if line is not None:
        return Linear(name, line), (x,)
    if shared is not None and shared.is_near(ideal_codes, dtype):
        return Interpolate(name, shared), (x, _tanh_table(graph))
    interpolated = interpolation(ideal_codes, dtype)
    if interpolated is None:
        return None
    return Interpolate(name, interpolated[0]), (x, graph.constant(f"{name}.table", interpolated[1]))


def _tanh_table(graph: Graph) -> Value:
    """Return the table that all sigmoids and hyperbolic tangents of a graph share."""
    read = (value for node in graph.nodes for value in node.inputs if value is not None)
    return next((value for value in read if value.data is TANH_TABLE), None) or graph.constant("tanh.table", TANH_TABLE)


class Linear(Elementwise):
    """y = clamp(slope · x + constant) for an int16 tensor x: the integer form of a linear function of one tensor.

    Attributes:
        of: Name of the function.
        line: The fixed-point slope and constant, and the limits of the result.
    """

    mnemonic: ClassVar[str] = "linear"
    of: str
    line: Line

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return clamp(slope · x + constant) as an expression: one fixed-point multiplication, rounding and clamp."""
        return Convert(sig.output.dtype, self.line.expression(args[0], scalar))


class Interpolate(HasKernels, Elementwise):
    """y = linear interpolation in a table for int16 x: the integer form of any smooth function of one tensor.

    Attributes:
        of: Name of the function that is approximated.
        segments: The segments of x between table entries, and how the table is indexed.
    """

    mnemonic: ClassVar[str] = "interpolate"
    tables: ClassVar[frozenset[int]] = frozenset({1})
    of: str
    segments: Segments | SharedTanh

    def spec(self, node: Node) -> CurveSpec:
        """Return the function's name and types, from which kernels for functions of one tensor are chosen."""
        table = node.inputs[-1]
        return CurveSpec(self.of, node.sig.input(0), node.sig.output, table is not None and table.is_constant)

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the interpolation as an expression: two table loads and one multiplication."""
        return Convert(sig.output.dtype, self.segments.expression(args[0], args[1], scalar))

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the interpolation in Helium operations: two gathers and one multiplication."""
        return self.segments.vector(args[0], args[1], scalar)


class Lookup(Elementwise):
    """y = table[x & 255] for int8 x: the integer form of any function of one int8 tensor. The table is input 1.

    Attributes:
        of: Name of the function.
    """

    mnemonic: ClassVar[str] = "lookup"
    tables: ClassVar[frozenset[int]] = frozenset({1})
    of: str = ""

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the default element type of the result, int8; the type of the table overrides it."""
        return DType.INT8

    def expression(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression:
        """Return the table entry indexed by x as an unsigned byte."""
        return Entry(args[1], Convert(DType.UINT8, args[0]))

    def vector(self, sig: Signature, args: Sequence[Expression], scalar: Scalars) -> Expression | None:
        """Return the lookup in Helium operations: a gather from the table."""
        return Entry(args[1], args[0] & 255)


@dataclass(frozen=True)
class Step:
    """One operator of a Stack (elementwise operators that one loop computes).

    Attributes:
        op: The operator.
        args: Indices of its operands: first the stack's inputs, then the results of earlier steps.
        dtype: Element type of the result.
        quant: Quantization of the result; None for results that are not quantized.
    """

    op: Elementwise
    args: tuple[int, ...]
    dtype: DType
    quant: QuantParams | None

    def __str__(self) -> str:
        return f"{self.op.name}{list(self.args)}"


class Stack(Elementwise):
    """Consecutive elementwise operators that one loop computes (operator stacking, as in Glow).

    Attributes:
        steps: The operators in order; the last one computes the result.
        table_inputs: Indices of the stack's inputs that some operator reads as a lookup table.
    """

    steps: tuple[Step, ...] = ()
    table_inputs: frozenset[int] = field(default=frozenset(), repr=False)

    @property
    def name(self) -> str:
        """Return the joined names of the stacked operators: the name of the stack in functions and reports."""
        return "+".join(step.op.name for step in self.steps)

    @property
    def tables(self) -> frozenset[int]:  # type: ignore[override]
        """Return the indices of the stack's inputs that some operator reads as a lookup table."""
        return self.table_inputs

    def result_dtype(self, *dtypes: DType) -> DType:
        """Return the result's element type: that of the last operator of the stack."""
        return self.steps[-1].dtype

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the stacked operators in order in numpy, and return the result of the last one."""
        env = list(arrays)
        for step, inner in self.signatures(sig):
            (result,) = step.op.evaluate(inner, *(env[a] for a in step.args))
            env.append(np.asarray(result, step.dtype.numpy))
        return (env[-1],)

    def bounds(self, sig: Signature, *inputs: Bounds | None) -> Sequence[Bounds | None]:
        """Return bounds of the result's elements, computed operator by operator through the stack; None if unknown."""
        env = list(inputs)
        for step, inner in self.signatures(sig):
            env.extend(step.op.bounds(inner, *(env[a] for a in step.args)))
        return (env[-1],)

    def signatures(self, sig: Signature) -> Iterator[tuple[Step, Signature]]:
        """Yield each operator of the stack (a Step), in order, with the types of its inputs and output."""
        types = [sig.input(i) for i in range(len(sig.inputs))]
        for step in self.steps:
            args = tuple(types[a] for a in step.args)
            (shape,) = (t.shape for t in step.op.infer(*args))
            types.append(TensorType(shape, step.dtype, step.quant))
            yield step, Signature(args, (types[-1],))

    def lower(self, node: Node, builder: Builder) -> None:
        """Emit one elementwise loop that computes all operators of the stack."""
        _emit_steps(node, self.steps, builder)


def _emit_steps(node: Node, steps: Sequence[Step], builder: Builder) -> None:
    """Emit one instruction that computes `steps` on the node's inputs."""
    tables = node.op.tables if isinstance(node.op, Elementwise) else frozenset()
    scalar = Scalars(builder.features)
    plain = _expressions(node, steps, tables, scalar)
    if len(scalar.params) > MAX_SHARED_CONSTANTS and not any(isinstance(v, float) for v in scalar.params.values()):
        scalar = Literals(builder.features)
        plain = _expressions(node, steps, tables, scalar)
    helium = _vectors(node, steps, tables, ReusedScalars(scalar)) if "mve" in builder.features else None
    emit_loop(node, builder, Loop([step.op.name for step in steps], tables, scalar, plain, helium))


def _expressions(node: Node, steps: Sequence[Step], tables: frozenset[int], scalar: Scalars) -> list[TypedExpression]:
    """Return the type and the expression of each step; operands are variables for inputs and earlier steps."""
    types = [node.input(i).type for i in range(len(node.inputs))]
    args = [_argument(f"t{i}" if i in tables else f"v{i}", t, i in tables) for i, t in enumerate(types)]
    typed_steps = []
    for number, step in enumerate(steps, len(args)):
        result = TensorType((), step.dtype, step.quant)
        sig = Signature(tuple(types[a] for a in step.args), (result,))
        typed_steps.append((result, step.op.expression(sig, [args[a] for a in step.args], scalar)))
        args.append(_argument(f"v{number}", result))
        types.append(result)
    return typed_steps


def _argument(name: str, tensor: TensorType, is_table: bool = False) -> Expression:
    """Return an element of a tensor as a variable, or the whole tensor as a table."""
    return Table(name, tensor.dtype) if is_table else Argument(name, tensor.dtype, exact=tensor.quant is not None)


def _vectors(
    node: Node, steps: Sequence[Step], tables: frozenset[int], scalar: Scalars
) -> list[TypedExpression] | None:
    """Return the type and the Helium expression of each step; None if a step has none."""
    types = [node.input(i).type for i in range(len(node.inputs))]
    dtypes = [t.dtype for i, t in enumerate(types) if i not in tables] + [step.dtype for step in steps]
    if not all(dtype in mve.TYPES for dtype in dtypes):
        return None
    args = [_argument(f"t{i}" if i in tables else f"q{i}", t, i in tables) for i, t in enumerate(types)]
    typed_steps = []
    for number, step in enumerate(steps, len(args)):
        result = TensorType((), step.dtype, step.quant)
        sig = Signature(tuple(types[a] for a in step.args), (result,))
        expression = step.op.vector(sig, [args[a] for a in step.args], scalar)
        if expression is None:
            return None
        typed_steps.append((result, expression))
        args.append(_argument(f"q{number}", result))
        types.append(result)
    return typed_steps


def emit_elementwise(node: OnnxNode, op: Elementwise, *inputs: Value, suffix: str = "") -> Value:
    """Add an elementwise node after reshaping its inputs to one rank, and return its output.

    Args:
        node: The ONNX node that is imported.
        op: The operator.
        inputs: The operands, which broadcast to each other.
        suffix: End of the output's name; "" for the ONNX node's own output.
    """
    rank = max(v.type.rank for v in inputs)
    aligned = [
        v
        if v.type.rank == rank or (v.type.count == 1 and v.type.rank == 0)
        else reshaped(node, v, (1,) * (rank - v.type.rank) + v.type.shape)
        for v in inputs
    ]
    return node.emit(op, *aligned, suffix=suffix)
