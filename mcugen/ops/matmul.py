# SPDX-License-Identifier: Apache-2.0
"""Matrix products: fully connected layers with constant weights, and products of two activations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Self

import numpy as np

from mcugen import kernels
from mcugen.core.errors import ModelError
from mcugen.hir.crop import Box, Crop, whole
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Channels, IntegerForm, Operator, Partition, RowForm, Signature, each_row, row_axis
from mcugen.hir.traits import (
    Channelwise,
    Clampable,
    Croppable,
    Expressible,
    Partitionable,
    Quantizable,
    Rowwise,
    Weighted,
    partition_by_rows,
)
from mcugen.hir.types import Array, Bounds, DType, Shape, TensorType, required
from mcugen.kernels.common.specs import ConvSpec, MatMulSpec
from mcugen.kernels.portable.direct_conv import dense_call
from mcugen.kernels.portable.matmul import DET, MATMUL, DetOptions, DetParams
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel, Site
from mcugen.lir.spec import HasKernels
from mcugen.numerics.fixedpoint import Range, is_quantized
from mcugen.numerics.sums import (
    accumulator_limit,
    exact_product,
    finish,
    largest_sums,
    layer_bounds,
    product_sums,
    real_product,
)
from mcugen.ops.conversion import Cast, Dequantize, cast
from mcugen.ops.elementwise import emit_elementwise
from mcugen.ops.movement import Expand, Reshape, Slice, Transpose, reshaped
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator
from mcugen.ops.packed import packed_form
from mcugen.ops.pointwise import Binary
from mcugen.ops.reduce import Reduce
from mcugen.ops.weighted import by_output_channels, have_channels_alone, integer_weights

# ---------------------------------------------------------------------------------------------------- dense


class Dense(
    HasKernels, Quantizable, Weighted, Clampable, Channelwise, Croppable, Rowwise, Partitionable, Expressible, Operator
):
    """y[…, n] = clamp(bias[n] + Σ_k w[n, k] · x[…, k]), with constant w [N, K] and an optional bias.

    Attributes:
        clamp: Limits of the real result; None for no clamp.
        multiplier_bits: Largest number of significant bits of requantization multipliers; 0 for no limit.
    """

    mnemonic: ClassVar[str] = "dense"
    kernels: ClassVar[tuple[Kernel, ...]] = kernels.DENSE_KERNELS
    weight_axes: ClassVar[Mapping[int, int]] = {1: 0}
    bias_input: ClassVar[int | None] = 2
    takes_groups: ClassVar[bool] = True
    clamp: Range | None = None
    multiplier_bits: int = field(default=0, kw_only=True)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x with one element for each output of the layer on the last axis."""
        x, w = required(inputs[:2])
        if x.shape[-1] != w.shape[1]:
            raise ModelError("dense: the depths must agree", f"{x.shape} by {w.shape}", "repair the model")
        return (TensorType((*x.shape[:-1], w.shape[0]), DType.INT32 if x.quant else DType.FLOAT32),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the matrix product in float32 or in exact integers."""
        x, w = arrays[:2]
        bias = arrays[2] if len(arrays) > 2 else np.zeros(1, x.dtype)
        if sig.input(0).quant is None:
            return (self._real(real_product(x, w.T), bias),)
        sums = _rows_by_weights(x.astype(np.int64) - sig.input(0).q.zero_point, w)
        return (self._finish(sig, sums, w, bias),)

    def of_unfolded(self, sig: Signature, rows: Array, *constants: Array) -> Array:
        """Compute the layer from its im2col matrix: multiply by the weights, add the bias, clamp.

        Args:
            sig: Types of inputs and output.
            rows: The matrix that `unfolded` returned.
            constants: Weights and, if present, bias.
        """
        w, *bias = constants
        return self._real(real_product(rows[0], w.T).reshape(*sig.input(0).shape[:-1], len(w)), *bias)

    def _real(self, sums: Array, *bias: Array) -> Array:
        """Add the bias and clamp."""
        y = sums + bias[0] if bias else sums
        return y if self.clamp is None else np.clip(y, *self.clamp).astype(np.float32)

    def _finish(self, sig: Signature, sums: Array, w: Array, bias: Array) -> Array:
        """Requantize the sums."""
        sizes = largest_sums(sig.input(0), w, bias)
        return finish(sums + bias, sig, self.clamp, sizes, multiplier_bits=self.multiplier_bits)

    def bounds(self, sig: Signature, *inputs: Bounds | None) -> Sequence[Bounds | None]:
        """Return bounds of the quantized output elements, from bounds of the accumulators; None for real outputs."""
        return layer_bounds(sig, inputs, _rows_by_weights, partial(self._finish, sig))

    def channels(self, sig: Signature) -> Channels | None:
        """Declare, for channel pruning, that each output channel is a sum over all input channels."""
        out = np.arange(sig.output.shape[-1])
        return Channels((None, out, out), lambda _: self, sums=True)

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the layer for some rows, and in float for some outputs with constant weights."""
        *rows, channels = region
        if node.input(0).type.quant is not None or not all(v is None or v.is_constant for v in node.inputs[1:]):
            channels = range(node.output.type.shape[-1])
        read = (*rows, range(node.input(0).type.shape[-1]))
        constants = tuple(None if t is None else (channels, *whole(t.shape[1:])) for t in node.sig.inputs[1:])
        return Crop(self, (*rows, channels), (read, *constants))

    def unfolded(self, sig: Signature, x: Array) -> Array | None:
        """Return the im2col matrix of shape [1, rows of x, inputs of the layer]: the rows of x as one group."""
        return x.reshape(1, -1, x.shape[-1])

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: rows of x · outputs · inputs of the layer."""
        return sig.output.count * sig.input(1).shape[1]

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the layer on quantized tensors, for int8 or int16 and symmetric weights (zero point 0); else None.

        It comes with its inputs: x, the integer weights and the int32 bias.
        """
        form = integer_weights(graph, sig, inputs)
        return packed_form(graph, sig, inputs, self.clamp) if form is None else (self, form)

    def without_clamp(self) -> Self | None:
        """Return the layer without its clamp; None if it has none."""
        return type(self)() if self.clamp else None

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the ONNX node that computes the layer's real result: Gemm for a matrix x; None for other ranks."""
        return ("Gemm", {"transB": 1}, ()) if sig.input(0).rank == 2 else None

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute each output row from a row of x (for line-buffer fusion); None if there are no rows."""
        return each_row(self, sig, [i == 0 for i in range(len(sig.inputs))])

    def partitions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
        """Return the ways to split the output over cores: by rows, or by output channels if there is only one row."""
        if sig.output.count == sig.output.shape[-1]:
            return by_output_channels(self, sig, inputs)
        form = self.by_rows(sig)
        return () if form is None else partition_by_rows(form, sig)

    def has_channels_alone(self, sig: Signature, inputs: Sequence[Value | None]) -> bool:
        """Return whether a dense layer with only some of the outputs computes these outputs exactly.

        Output-channel tiling then divides the layer. The result is True if weights and biases are constant.
        """
        return have_channels_alone(sig, inputs)

    def spec(self, node: Node) -> ConvSpec:
        """Return the layer's types, weights and clamp as a 1×1 convolution (rows are pixels), to choose kernels."""
        return ConvSpec.of_rows(node, self.clamp)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a call of the first kernel in `kernels` that supports the layer."""
        builder.lower(self.kernels, node)


def _rows_by_weights(x: Array, w: Array) -> Array:
    return exact_product(x, w.T)


class DirectDense(Dense):
    """A float32 dense layer whose weights are not constant: computed by other layers, or trained on the device."""

    mnemonic: ClassVar[str] = "direct_dense"
    kernels: ClassVar[tuple[Kernel, ...]] = ()

    def channels(self, sig: Signature) -> Channels | None:
        """Return None: channel pruning leaves the layer alone, because its weights may change."""
        return None

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return None: the layer stays in float, because its weights are not known at compile time."""
        return None

    def with_clamp(self, low: float, high: float) -> Self | None:
        """Return None: the layer takes no clamp [low, high], because derivatives need the sums before a clamp."""
        return None

    def partitions(self, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
        """Return an empty tuple: one core computes the whole layer, which is never split over cores."""
        return ()

    def has_channels_alone(self, sig: Signature, inputs: Sequence[Value | None]) -> bool:
        """Return False: the layer cannot be divided into layers with fewer outputs, since its weights may change."""
        return False

    def spec(self, node: Node) -> Node:  # type: ignore[override]
        """Return the node itself: the layer has only one kernel, so nothing needs to be known to choose one."""
        return node

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that reads the weights in their ONNX layout."""
        operands = builder.operands(node, "x", "w", "bias")
        channels, depth = node.input(1).type.shape
        builder.call(node, dense_call(operands, node.output.type.count // channels, depth, channels))


class CodedDense(Operator):
    """A float32 dense layer with int8 weights that are trained on the device.

    y[…, n] = bias[n] + scale[n] · Σ_k w[n, k] · x[…, k].
    """

    mnemonic: ClassVar[str] = "coded_dense"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: float32, the shape of x with one element for each output on the last axis."""
        x, w, scale = required(inputs[:3])
        if x.shape[-1] != w.shape[1] or scale.shape != w.shape[:1]:
            raise ModelError("coded_dense: the depths must agree", f"{x.shape} by {w.shape}", "repair the model")
        return (TensorType((*x.shape[:-1], w.shape[0]), DType.FLOAT32),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the layer's output (x · wᵀ) · scale + bias in float32."""
        x, w, scale, bias = arrays
        return (real_product(x, w.T.astype(np.float32)) * scale + bias,)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: rows of x · outputs · inputs of the layer."""
        return sig.output.count * sig.input(1).shape[1]

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that reads the int8 weights directly."""
        operands = builder.operands(node, "x", "w", "scale", "bias")
        channels, depth = node.input(1).type.shape
        builder.call(node, dense_call(operands, node.output.type.count // channels, depth, channels))


# --------------------------------------------------------------------------------------------------- matmul


class MatMul(HasKernels, Quantizable, Croppable, Rowwise, Expressible, Operator):
    """y[b, m, n] = factor · Σ_k a[b, m, k] · b[b, k, n], where both operands are computed and have equal batch axes.

    Attributes:
        factor: Real factor of the product. It is 1 in integers, where requantization scales the product.
    """

    mnemonic: ClassVar[str] = "matmul"
    factor: float = 1.0
    kernels: ClassVar[tuple[Kernel, ...]] = MATMUL

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: batch axes, the rows of the first operand, and the columns of the second one."""
        a, b = required(inputs)
        if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
            raise ModelError("matmul: shapes must agree", f"{a.shape} by {b.shape}", "repair the model")
        return (TensorType((*a.shape[:-1], b.shape[-1]), DType.INT32 if a.quant else a.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the matrix product in floats, in wrapping integers, or in exact integers for quantized operands."""
        a, b = arrays
        if sig.input(0).quant is None:
            product = real_product(a, b)
            return (product if self.factor == 1 else product * product.dtype.type(self.factor),)
        zero = [sig.input(i).q.zero_point for i in (0, 1)]
        acc = exact_product(a.astype(np.int64) - zero[0], b.astype(np.int64) - zero[1])
        return (finish(acc, sig, None, product_sums(sig), self.factor, by_weights=False),)

    def macs(self, sig: Signature) -> int:
        """Return the multiply-accumulates: output elements · length of a row of the first operand."""
        return sig.output.count * sig.input(0).shape[-1]

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the product of quantized tensors, for int8 or int16 operands with one scale each; None for others.

        If the output is not requantized but consists of int32 sums, the attribute `factor` must be 1.
        """
        if not all(map(is_quantized, sig.inputs)) or (sig.output.dtype is DType.INT32 and self.factor != 1):
            return None
        return (self, inputs) if product_sums(sig).max() < accumulator_limit(sig) else None

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Return the ONNX node that computes the real product: MatMul; None if the product is scaled by a factor."""
        return ("MatMul", {}, ()) if self.factor == 1 else None

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the product of some rows of the first operand by some columns of the second one."""
        *batch, rows, columns = region
        inner = range(node.input(0).type.shape[-1])
        return Crop(self, region, ((*batch, rows, inner), (*batch, inner, columns)))

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute the product row by row (for line-buffer fusion); None if the output has no rows.

        In a batch of several matrices, a "row" is one matrix. Else, each row of the first operand is multiplied by the
        whole second operand.
        """
        axis = row_axis(sig.output.shape)
        return None if axis is None else each_row(self, sig, [True, axis < sig.output.rank - 2])

    def spec(self, node: Node) -> MatMulSpec:
        """Return the tensor types and the factor of the product, from which kernels are chosen and emitted."""
        return MatMulSpec(node.input(0).type, node.input(1).type, node.output.type, self.factor)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a call of the first kernel in `kernels` that supports the product."""
        builder.lower(self.kernels, node)


# --------------------------------------------------------------------------------------------------- import


def emit_matmul(node: OnnxNode, a: Value, b: Value, suffix: str = "") -> Value:
    """Add a MatMul with numpy's rules for vectors and batch broadcasting; return its output.

    Args:
        node: Node that is imported.
        a: Left operand.
        b: Right operand.
        suffix: End of the output's name; "" for the node's own output.
    """
    squeeze = tuple(v.type.rank == 1 for v in (a, b))
    if squeeze[0]:
        a = node.emit(Reshape((1, *a.type.shape)), a, suffix="row")
    if squeeze[1]:
        b = node.emit(Reshape((*b.type.shape, 1)), b, suffix="column")
    if b.type.rank > 2 or a.type.rank < b.type.rank:
        a, b = _same_batch(node, a, b)
    elif a.type.rank > 2:  # rows of all batches by one matrix
        flat = node.emit(Reshape((math.prod(a.type.shape[:-1]), a.type.shape[-1])), a, suffix="rows")
        product = node.emit(MatMul(), flat, b, suffix="product")
        columns = () if squeeze[1] else b.type.shape[-1:]
        return node.emit(Reshape((*a.type.shape[:-1], *columns)), product, suffix=suffix)
    result = node.emit(_product_of(a, b), a, b, suffix="full" if any(squeeze) else suffix)
    if not any(squeeze):
        return result
    shape = list(result.type.shape)
    if squeeze[1]:
        del shape[-1]
    if squeeze[0]:
        del shape[-1 if squeeze[1] else -2]
    return node.emit(Reshape(tuple(shape)), result, suffix=suffix)


def _product_of(a: Value, b: Value) -> Operator:
    """Return the operator of a product: elementwise for a column by a row of reals, whose sums have one term.

    A product with quantized weights stays one of matrices, which becomes an integer layer with its bias.
    """
    is_outer = a.type.shape[-1] == 1 and a.type.dtype.is_float
    return Binary("Mul") if is_outer and not _are_quantized_weights(b) else MatMul()


def _are_quantized_weights(value: Value) -> bool:
    """Return whether a value is dequantized from constants, and perhaps transposed."""
    producer = value.producer
    if producer is not None and isinstance(producer.op, Transpose):
        producer = producer.input(0).producer
    return producer is not None and isinstance(producer.op, Dequantize) and producer.input(0).is_constant


def _same_batch(node: OnnxNode, a: Value, b: Value) -> tuple[Value, Value]:
    batch = np.broadcast_shapes(a.type.shape[:-2], b.type.shape[:-2])

    def spread(value: Value, name: str) -> Value:
        shape: Shape = (*batch, *value.type.shape[-2:])
        if value.type.shape == shape:
            return value
        aligned = reshaped(node, value, (1,) * (len(shape) - value.type.rank) + value.type.shape, f"{name}.aligned")
        return node.emit(Expand(shape), aligned, suffix=f"{name}.spread")

    return spread(a, "a"), spread(b, "b")


_KERNELS = tuple(kernel.name for op in (Dense, MatMul) for kernel in op.kernels)


def _require_numbers(node: OnnxNode, *values: Value) -> None:
    """Refuse operands that are not of one arithmetic type."""
    allowed = [dtype for dtype in DType if dtype.is_float or dtype.is_integer]
    for value in values:
        node.require_dtype(value, *(allowed if value is values[0] else [values[0].type.dtype]))


@onnx_operator("MatMul", kernels=_KERNELS)
def _import_matmul(node: OnnxNode) -> list[Value]:
    _require_numbers(node, node.input(0), node.input(1))
    return [emit_matmul(node, node.input(0), node.input(1))]


@onnx_operator("Gemm", kernels=_KERNELS)
def _import_gemm(node: OnnxNode) -> list[Value]:
    a, b = node.input(0), node.input(1)
    bias = node.optional(2)
    _require_numbers(node, a, b, *([bias] if bias else []))
    if node.attr("transA", 0):
        a = node.emit(Transpose((1, 0)), a, suffix="at")
    if node.attr("transB", 0):
        b = node.emit(Transpose((1, 0)), b, suffix="bt")
    result = emit_matmul(node, a, b, "product" if bias else "")
    result = _scaled(node, result, float(node.attr("alpha", 1.0)), "alpha")
    if bias is None:
        return [result]
    return [emit_elementwise(node, Binary("Add"), result, _scaled(node, bias, float(node.attr("beta", 1.0)), "beta"))]


def _scaled(node: OnnxNode, value: Value, factor: float, suffix: str) -> Value:
    """Multiply by a factor; integers are truncated if the factor is not an integer."""
    dtype = value.type.dtype
    if factor == 1.0:
        return value
    if value.data is not None:
        return node.constant(
            suffix,
            (value.data * dtype.numpy.type(factor)).astype(dtype.numpy)
            if dtype.is_float
            else cast(value.data * factor, dtype),
        )
    if dtype.is_float:
        return node.emit(
            Binary("Mul"), value, node.constant(f"{suffix}k", np.asarray(factor, dtype.numpy)), suffix=suffix
        )
    real = node.emit(Cast(DType.FLOAT64), value, suffix=f"{suffix}real")
    product = node.emit(Binary("Mul"), real, node.constant(f"{suffix}k", np.asarray(factor)), suffix=f"{suffix}product")
    return node.emit(Cast(dtype), product, suffix=suffix)


# ------------------------------------------------------------------------------------------------- einsum


@dataclass
class _Term:
    """An operand of Einsum: a value whose axes are called by `labels`."""

    value: Value
    labels: str


@onnx_operator("Einsum", kernels=("copy", "reduce", "elementwise", "matmul_f32", "matmul_f64", "matmul_int"))
def _import_einsum(node: OnnxNode) -> list[Value]:
    """Diagonals of repeated labels, then operand by operand: sums over what is needed no more, and products."""
    values = [node.input(i) for i in range(len(node.inputs))]
    _require_numbers(node, *values)
    terms, output_labels = _parse_equation(node, str(node.attr("equation", "")), values)
    terms = [_diagonal(node, term) for term in terms]
    sizes: dict[str, int] = {}
    for term in terms:
        for label, size in zip(term.labels, term.value.type.shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    result = _summed(node, terms[0], {*output_labels, *(label for t in terms[1:] for label in t.labels)})
    for index, term in enumerate(terms[1:], 2):
        needed = {*output_labels, *(label for later in terms[index:] for label in later.labels)}
        result = _product(node, result, _summed(node, term, needed | set(result.labels)), needed, sizes)
    result = _spread(node, _summed(node, result, set(output_labels)), output_labels, sizes)
    order = tuple(result.labels.index(label) for label in output_labels)
    return [node.emit(Transpose(order), result.value)]


def _parse_equation(node: OnnxNode, equation: str, values: Sequence[Value]) -> tuple[list[_Term], str]:
    """Return the labels of each operand and of the output.

    The axes of an ellipsis get unused labels, aligned at the end.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    node.require(len(texts) == len(values), "every operand needs a term", f"'{equation}' of {len(values)}")
    dots = [v.type.rank - len(t.replace("...", "")) if "..." in t else 0 for t, v in zip(texts, values, strict=True)]
    extra = "".join(chr(ord("0") - 1 - i) for i in range(max(dots, default=0)))[::-1]
    terms = []
    for text, value, count in zip(texts, values, dots, strict=True):
        labels = text.replace("...", extra[len(extra) - max(count, 0) :])
        if count < 0 or len(labels) != value.type.rank or not set(labels) - set(extra) <= set(_LETTERS):
            raise Refusal("Einsum: every axis needs a letter", f"'{text}' of {value.type.shape}", "repair the model")
        terms.append(_Term(value, labels))
    if not arrow:
        letters = left.replace("...", "").replace(",", "")
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    output_labels = right.replace("...", extra)
    known = {label for term in terms for label in term.labels}
    if len(set(output_labels)) != len(output_labels) or not set(output_labels) <= known:
        raise Refusal("Einsum: the output's letters must be operands', each once", f"'{right}'", "repair the model")
    return terms, output_labels


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _diagonal(node: OnnxNode, term: _Term) -> _Term:
    """Replace two axes with the same label by their diagonal: every (n + 1)-th element of the merged axis."""
    value, labels = term.value, term.labels
    while twice := next((label for label in labels if labels.count(label) > 1), ""):
        first, second = labels.index(twice), labels.rindex(twice)
        size = value.type.shape[first]
        node.require(size == value.type.shape[second], "axes of one letter must be equally long", f"{value.type.shape}")
        remaining_axes = [axis for axis in range(len(labels)) if axis not in (first, second)]
        shape = tuple(value.type.shape[axis] for axis in remaining_axes)
        turned = node.emit(Transpose((*remaining_axes, first, second)), value, suffix="turned")
        flat = node.emit(Reshape((*shape, size * size)), turned, suffix="flat")
        op = Slice((0,) * (len(remaining_axes) + 1), (*shape, size), (1,) * len(remaining_axes) + (size + 1,))
        value, labels = node.emit(op, flat, suffix="diagonal"), "".join(labels[axis] for axis in remaining_axes) + twice
    return _Term(value, labels)


def _summed(node: OnnxNode, term: _Term, needed: set[str]) -> _Term:
    """Sum over all labels that are not needed."""
    axes = tuple(axis for axis, label in enumerate(term.labels) if label not in needed)
    if not axes:
        return term
    total = node.emit(Reduce("sum", axes), term.value, suffix="sum")
    shape = tuple(size for axis, size in enumerate(total.type.shape) if axis not in axes)
    labels = "".join(label for label in term.labels if label in needed)
    return _Term(node.emit(Reshape(shape), total, suffix="summed"), labels)


def _spread(node: OnnxNode, term: _Term, labels: str, sizes: Mapping[str, int]) -> _Term:
    """Expand axes of length 1 to the length that their label has in other operands."""
    shape = tuple(
        sizes[label] if label in labels else size
        for label, size in zip(term.labels, term.value.type.shape, strict=True)
    )
    same = shape == term.value.type.shape
    return term if same else _Term(node.emit(Expand(shape), term.value, suffix="spread"), term.labels)


def _product(node: OnnxNode, x: _Term, y: _Term, needed: set[str], sizes: Mapping[str, int]) -> _Term:
    """Return Σ x·y over the shared labels that are not needed any more, as a batch of matrix products."""
    shared = "".join(label for label in x.labels if label in y.labels)
    x, y = (_spread(node, term, shared, sizes) for term in (x, y))
    batch = "".join(label for label in shared if label in needed)
    inner = "".join(label for label in shared if label not in needed)
    rows = "".join(label for label in x.labels if label not in shared)
    columns = "".join(label for label in y.labels if label not in shared)
    own = dict(zip(x.labels, x.value.type.shape, strict=True)) | dict(zip(y.labels, y.value.type.shape, strict=True))

    def count(labels: str) -> int:
        return math.prod(own[label] for label in labels)

    def matrix(term: _Term, *groups: str) -> Value:
        order = tuple(term.labels.index(label) for label in "".join(groups))
        turned = node.emit(Transpose(order), term.value, suffix="turned")
        return node.emit(Reshape(tuple(map(count, groups))), turned, suffix="matrix")

    a, b = matrix(x, batch, rows, inner), matrix(y, batch, inner, columns)
    if inner:
        result = emit_matmul(node, a, b, "product") if batch else _flat_product(node, a, b)
    else:
        result = node.emit(Binary("Mul"), a, b, suffix="product")
    labels = batch + rows + columns
    return _Term(node.emit(Reshape(tuple(own[label] for label in labels)), result, suffix="shaped"), labels)


def _flat_product(node: OnnxNode, a: Value, b: Value) -> Value:
    """Multiply batches of one as plain matrices, whose weights may be constant."""
    left, right = (reshaped(node, v, v.type.shape[1:], "flat") for v in (a, b))
    return node.emit(MatMul(), left, right, suffix="product")


# ---------------------------------------------------------------------------------------------------- det


class Det(Operator):
    """y[…] = det x[…, n, n], by elimination with partial pivoting."""

    mnemonic: ClassVar[str] = "det"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x without the last two axes."""
        (x,) = required(inputs)
        if x.rank < 2 or x.shape[-1] != x.shape[-2]:
            raise ModelError("det: matrices must be square", f"{x.shape}", "repair the model")
        return (TensorType(x.shape[:-2], x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.linalg.det."""
        return (np.asarray(np.linalg.det(arrays[0]), arrays[0].dtype),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that eliminates each matrix in a copy."""
        x, site = node.input(0).type, Site(builder, node, DET)
        n = x.shape[-1]
        operands = {"x": site.x, "y": site.y, "m": site.scratch("matrix", x.dtype, n * n)}
        params, options = DetParams(batch=math.prod(x.shape[:-2]), n=n), DetOptions(t=x.dtype.c)
        builder.call(node, site.call(operands, [params], [options], variant=x.dtype.tag))


@onnx_operator("Det", kernels=("det",))
def _import_det(node: OnnxNode) -> list[Value]:
    node.require_dtype(node.input(0), DType.FLOAT32, DType.FLOAT64)
    return [node.emit(Det(), node.input(0))]
