# SPDX-License-Identifier: Apache-2.0
"""Matrix products: fully connected layers with constant weights, and products of two activations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from mcugen.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Signature
from mcugen.hir.types import Array, DType, QuantParams, Shape, TensorType
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Buffer, Param, real_param
from mcugen.ops.conversion import Cast, to_integers
from mcugen.ops.elementwise import emit_elementwise
from mcugen.ops.fixedpoint import LONGEST_SUM, Requantizer, clamp_range, dequantize, is_quantized
from mcugen.ops.movement import Expand, Reshape, Slice, Transpose, reshaped
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator
from mcugen.ops.pointwise import Binary, Range
from mcugen.ops.reduce import Reduce

BLOCK = 4
"""Output channels that the portable inner loops compute together; weights are interleaved by it."""


# ------------------------------------------------------------------------- what every weighted layer shares


def exact_product(a: Array, b: Array) -> Array:
    """Integer matrix product. float64 carries it exactly (|sums| < 2^53) and runs on BLAS."""
    product: Array = np.rint(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    return product


def interleave(weights: Array) -> Array:
    """[N, K] → flat: blocks of BLOCK rows as [K][BLOCK], then the remaining rows as they are."""
    whole = len(weights) // BLOCK * BLOCK
    blocks = weights[:whole].reshape(-1, BLOCK, weights.shape[1]).transpose(0, 2, 1)
    return np.concatenate([blocks.reshape(-1), weights[whole:].reshape(-1)])


def farthest(x: TensorType) -> int:
    """The largest magnitude of a code less its zero point."""
    low, high = x.dtype.limits
    return max(high - x.q.zero_point, x.q.zero_point - low)


def largest_sums(x: TensorType, weights: Array, bias: Array) -> Array:
    """What no accumulator exceeds, on the way neither, by output channel (axis 0 of the weights)."""
    rows = np.abs(weights.astype(np.int64)).reshape(len(weights), -1)
    sums: Array = rows.sum(1) * farthest(x) + np.abs(bias.astype(np.int64))
    return sums


def sum_dtype(sums: Array) -> DType:
    """The type of accumulators that stay within `sums`."""
    return DType.INT32 if sums.max(initial=0) < 2**31 else DType.INT64


def _most(sig: Signature) -> int:
    """Sums must stay below: those that are the result itself have 32 bits."""
    return 2**31 if sig.output.dtype is DType.INT32 else LONGEST_SUM


def finish(acc: Array, sig: Signature, clamp: Range | None, sums: Array | None = None, factor: float = 1.0) -> Array:
    """Accumulators (channels last) within `sums`, times a factor → the output: requantized, clamped, or int32."""
    out = sig.output
    if out.dtype is DType.INT32:
        return acc.astype(np.int32)
    low, high = clamp_range(clamp, out.q, out.dtype)
    return requantizer(sig, sums, factor)(acc, low, high).astype(out.dtype.numpy)


def requantizer(sig: Signature, sums: Array | None = None, factor: float = 1.0) -> Requantizer:
    """From units of input scale · weight scale, times a factor, to the output's.

    For int8 alone 31 bits of fraction do, which cost least; 16 bits anywhere, and 64-bit sums, need more.
    """
    types = (sig.input(0), sig.input(1), sig.output)
    scale = types[0].q.scales * types[1].q.scales * factor / types[2].q.scales
    is_short = sums is None or sum_dtype(sums) is DType.INT32
    narrow = is_short and all(t.dtype is DType.INT8 for t in types)
    return Requantizer.of(scale, sig.output.q.zero_point, sums=None if narrow else sums)


def integer_weights(graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> list[Value | None] | None:
    """Input, symmetric integer weights (output channels on axis 0) and int32 or int64 bias of a weighted layer.

    None where the layer has no integer form: weights not quantized, wrong axis, sums too long.
    """
    x, w, bias = (*inputs, None)[:3]
    assert x is not None and w is not None
    wq = w.type.quant
    if not is_quantized(x.type) or wq is None or w.data is None:
        return None
    if wq.axis not in (None, 0) or w.type.dtype not in (DType.INT8, DType.INT16):
        return None
    data = w.data.astype(np.int64) - wq.zero_point
    b = _integer_bias(bias, x.type.q.scales * wq.scales, len(data))
    if b is None:
        return None
    quant, b = _carry_constant_channels(QuantParams(wq.scale, 0, wq.axis), data, b, x.type.q, sig.output)
    if largest_sums(x.type, data, b).max(initial=0) >= _most(sig):
        return None
    narrow = np.int8 if np.abs(data).max(initial=0) < 128 else np.int16
    weights = graph.constant(f"{w.name}.symmetric", data.astype(narrow), quant)
    name = bias.name if bias is not None else f"{w.name}.bias"
    return [x, weights, graph.constant(f"{name}.int", b.astype(sum_dtype(np.abs(b)).numpy))]


def _carry_constant_channels(
    quant: QuantParams, weights: Array, bias: Array, x: QuantParams, out: TensorType
) -> tuple[QuantParams, Array]:
    """Channels whose weights are all 0 get a scale of which fixed point loses nothing.

    Training leaves dead channels with scales near 0 and a bias near 2^30, whose product a multiplier of a few
    bits would miss by whole steps. Such a channel is a constant: bias · scale, in any unit; here one of which 2^30
    exceed every result.
    """
    dead = ~weights.reshape(len(weights), -1).any(1)
    if quant.axis is None or out.quant is None or not dead.any():
        return quant, bias
    unit = out.quant.scale[0] * 2.0 ** (-16 if out.dtype is DType.INT8 else -13) / x.scale[0]
    steps = np.clip(bias * quant.scales / unit, -(2**30), 2**30)
    scales = np.where(dead, unit, quant.scales)
    return QuantParams(tuple(map(float, scales)), 0, quant.axis), np.where(dead, np.rint(steps), bias).astype(np.int64)


def _integer_bias(bias: Value | None, unit: Array, channels: int) -> Array | None:
    if bias is None:
        return np.zeros(channels, np.int64)
    if bias.data is None:
        return None
    quant = bias.type.quant
    if quant is not None and np.allclose(quant.scales, unit, rtol=1e-5, atol=0):
        same_unit: Array = bias.data.astype(np.int64).reshape(-1) - quant.zero_point
        return same_unit
    real = bias.data if quant is None else dequantize(bias.data, quant)
    rounded: Array = np.rint(real.reshape(-1).astype(np.float64) / unit)
    return rounded.astype(np.int64) if (np.abs(rounded) < LONGEST_SUM).all() else None


def folded_bias(sig: Signature, weights: Array, bias: Array) -> Array:
    """Bias with the input's zero point folded in: bias − zero_point · Σ weights."""
    sums = weights.reshape(len(weights), -1).astype(np.int64).sum(1)
    folded: Array = bias.astype(np.int64) - sig.input(0).q.zero_point * sums
    return folded


def emit_weighted(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    weights: Array,
    packed: Array,
    clamp: Range | None,
    params: dict[str, Param],
    *,
    scratch: tuple[str, int] | None = None,
    code: dict[str, object] | None = None,
    baked: tuple[str, ...] = (),
    inplace: bool = False,
    variant: str = "",
) -> None:
    """Emits a layer with weights, bias and (for integers) requantization; `weights` has channels on axis 0.

    `scratch` is a role and a number of elements of the input's type.
    """
    sig, name = node.sig, node.output.name
    x, out = sig.input(0), sig.output
    flags: dict[str, object] = {
        "x_t": x.dtype.c,
        "w_t": DType.of(packed).c,
        "y_t": out.dtype.c,
        **(code or {}),
    }
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", packed)),
    ]
    bias = node.inputs[2].data if len(node.inputs) > 2 and node.inputs[2] is not None else None
    store = _integer_store(sig, weights, bias, clamp) if x.quant is not None else _float_store(weights, bias, clamp)
    operands += [(role, Access.IN, builder.const(f"{name}.{role}", array)) for role, array in store.constants.items()]
    params = params | store.params
    flags |= store.code
    operands.append(("y", Access.OUT, builder.buffer(node.output)))
    if scratch:
        operands.append((scratch[0], Access.SCRATCH, builder.scratch(f"{name}.{scratch[0]}", x.dtype, scratch[1])))
    pairs = [("y", "x")] if inplace else []
    name = "_".join(part for part in (variant, store.variant) if part)
    builder.emit(node, kernel, operands, params, baked=baked, code=flags, inplace=pairs, variant=name)


@dataclass(frozen=True)
class _Store:
    """What becomes of the sums: constants by role, parameters, and variables of the template."""

    constants: dict[str, Array]
    params: dict[str, Param]
    code: dict[str, object]
    variant: str = ""


def _integer_store(sig: Signature, weights: Array, bias: Array | None, clamp: Range | None) -> _Store:
    """Sums with their bias, in 64 bits where they need to be; requantized where the output is not int32."""
    assert bias is not None
    x, out = sig.input(0), sig.output
    sums = largest_sums(x, weights, bias)
    acc = sum_dtype(sums)
    constants: dict[str, Array] = {"bias": folded_bias(sig, weights, bias).astype(acc.numpy)}
    params: dict[str, Param] = {"x_zero": x.q.zero_point} if x.dtype is DType.INT8 else {}
    if acc is DType.INT64:
        params["run"] = (2**31 - 1) // (-x.dtype.limits[0] * max(int(np.abs(weights).max(initial=0)), 1))
    if out.quant is None or out.dtype is DType.INT32:
        return _Store(constants, params, {"store": "plain", "acc_t": acc.c})
    requantize = requantizer(sig, sums).for_high_word()
    constants["multiplier"] = np.broadcast_to(requantize.multiplier, len(weights)).astype(np.int32)
    low, high = clamp_range(clamp, out.q, out.dtype)
    params |= {"low": low, "high": high, "offset": requantize.offset}
    code: dict[str, object] = {"store": "requantize", "shift": requantize.shift, "acc_t": acc.c}
    return _Store(constants, params, code, "long" if acc is DType.INT64 else "")


def _float_store(weights: Array, bias: Array | None, clamp: Range | None) -> _Store:
    """Sums with their bias, clamped. A layer without activation has low −∞, and shares the code of those with ReLU."""
    real = np.zeros(len(weights), np.float32) if bias is None else bias.astype(np.float32).reshape(-1)
    least, most = clamp or (-math.inf, math.inf)
    params: dict[str, Param] = {"low": least} | ({} if math.isinf(most) else {"high": most})
    return _Store({"bias": real}, params, {"store": "clamp", "high": not math.isinf(most)})


def emit_rows(node: Node, builder: Builder, kernel: Kernel, weights: Array, rows: int, clamp: Range | None) -> None:
    """Emits a fully connected layer on `rows` vectors; `weights` is [N, K]."""
    params: dict[str, Param] = {"rows": rows, "depth": weights.shape[1], "channels": len(weights)}
    code: dict[str, object] = {"rest": len(weights) % BLOCK != 0}
    emit_weighted(node, builder, kernel, weights, interleave(weights), clamp, params, code=code)


# ---------------------------------------------------------------------------------------------------- dense


def float_tensors(op: object, sig: Signature) -> bool:
    """float32 tensors"""
    return sig.input(0).dtype is DType.FLOAT32


def double_tensors(op: object, sig: Signature) -> bool:
    """float64 tensors"""
    return sig.input(0).dtype is DType.FLOAT64


def plain_integers(op: object, sig: Signature) -> bool:
    """integers without scale, which wrap"""
    return sig.input(0).dtype.is_integer and sig.input(0).quant is None


def int8_tensors(op: object, sig: Signature) -> bool:
    """int8 tensors"""
    return sig.input(0).dtype is DType.INT8


def int16_tensors(op: object, sig: Signature) -> bool:
    """int16 tensors"""
    return sig.input(0).dtype is DType.INT16


def int16_operands(op: object, sig: Signature) -> bool:
    """an int16 operand"""
    return DType.INT16 in (sig.input(0).dtype, sig.input(1).dtype)


@dataclass(frozen=True)
class Dense(Operator):
    """y[…, n] = clamp(bias[n] + Σ_k w[n, k] · x[…, k]); w constant of shape [N, K], bias optional."""

    mnemonic: ClassVar[str] = "dense"
    kernels: ClassVar[tuple[Kernel, ...]] = (
        Kernel("dense_f32", when=(float_tensors,)),
        Kernel("dense_s8", when=(int8_tensors,)),
        Kernel("dense_s16", when=(int16_tensors,)),
    )
    weight_axes: ClassVar[Mapping[int, int]] = {1: 0}
    bias_input: ClassVar[int | None] = 2
    clamp: Range | None = None

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """The last axis becomes N."""
        x, w = inputs[0], inputs[1]
        assert x is not None and w is not None
        if x.shape[-1] != w.shape[1]:
            raise ModelError("dense: the depths must agree", f"{x.shape} by {w.shape}", "repair the model")
        return (TensorType((*x.shape[:-1], w.shape[0]), DType.INT32 if x.quant else DType.FLOAT32),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """float32 product, or exact integers."""
        x, w = arrays[:2]
        bias = arrays[2] if len(arrays) > 2 else np.zeros(1, x.dtype)
        if sig.input(0).quant is None:
            y = x @ w.T + bias
            return (y if self.clamp is None else np.clip(y, *self.clamp).astype(np.float32),)
        acc = exact_product(x.astype(np.int64) - sig.input(0).q.zero_point, w.T) + bias
        return (finish(acc, sig, self.clamp, largest_sums(sig.input(0), w, bias)),)

    def unfolded(self, sig: Signature, x: Array) -> Array | None:
        """Its vectors."""
        return x.reshape(1, -1, x.shape[-1])

    def macs(self, sig: Signature) -> int:
        """rows · N · K."""
        return sig.output.count * sig.input(1).shape[1]

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """int8 or int16 with symmetric weights."""
        form = integer_weights(graph, sig, inputs)
        return None if form is None else (self, form)

    def with_clamp(self, low: float, high: float) -> Self | None:
        """In the epilogue."""
        return None if self.clamp else type(self)((low, high))

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """Gemm of a matrix."""
        return ("Gemm", {"transB": 1}, ()) if sig.input(0).rank == 2 else None

    def lower(self, node: Node, builder: Builder) -> None:
        """Weights interleaved by four channels."""
        weights = node.input(1).data
        assert weights is not None
        rows = node.output.type.count // len(weights)
        emit_rows(node, builder, builder.select(self.kernels, node), weights, rows, self.clamp)


# --------------------------------------------------------------------------------------------------- matmul


@dataclass(frozen=True)
class MatMul(Operator):
    """y[b, m, n] = factor · Σ_k a[b, m, k] · b[b, k, n]: both operands computed; equal batch axes.

    Only products of reals have a factor other than 1: it is part of the one rounding of quantized ones.
    """

    mnemonic: ClassVar[str] = "matmul"
    factor: float = 1.0
    kernels: ClassVar[tuple[Kernel, ...]] = (
        Kernel("matmul_f32", when=(float_tensors,)),
        Kernel("matmul_f64", when=(double_tensors,)),
        Kernel("matmul_int", when=(plain_integers,)),
        Kernel("matmul_s16", when=(int16_operands,)),
        Kernel("matmul_s8", when=(int8_tensors,)),
    )

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Product of the last two axes."""
        a, b = inputs
        assert a is not None and b is not None
        if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
            raise ModelError("matmul: shapes must agree", f"{a.shape} by {b.shape}", "repair the model")
        return (TensorType((*a.shape[:-1], b.shape[-1]), DType.INT32 if a.quant else a.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Product of floats or of wrapping integers, or exact integers."""
        a, b = arrays
        if sig.input(0).quant is None:
            product = a @ b
            return (product if self.factor == 1 else product * product.dtype.type(self.factor),)
        zero = [sig.input(i).q.zero_point for i in (0, 1)]
        acc = exact_product(a.astype(np.int64) - zero[0], b.astype(np.int64) - zero[1])
        return (finish(acc, sig, None, _product_sums(sig), self.factor),)

    def macs(self, sig: Signature) -> int:
        """batch · M · N · K."""
        return sig.output.count * sig.input(0).shape[-1]

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """int8 or int16, per-tensor; sums that stay as they are have no factor."""
        if not all(map(is_quantized, sig.inputs)) or (sig.output.dtype is DType.INT32 and self.factor != 1):
            return None
        return (self, inputs) if _product_sums(sig).max() < _most(sig) else None

    def onnx_form(self, sig: Signature) -> tuple[str, Mapping[str, object], Sequence[Array]] | None:
        """MatMul."""
        return ("MatMul", {}, ()) if self.factor == 1 else None

    def lower(self, node: Node, builder: Builder) -> None:
        """Three loops and a batch."""
        a, b, out = node.input(0).type, node.input(1).type, node.output.type
        params: dict[str, Param] = {
            "batch": math.prod(a.shape[:-2]),
            "rows": a.shape[-2],
            "depth": a.shape[-1],
            "columns": b.shape[-1],
        }
        code: dict[str, object] = {"y_t": out.dtype.c, "scaled": self.factor != 1 and a.quant is None}
        if code["scaled"]:
            params["factor"] = real_param(self.factor, out.dtype)
        if a.quant is not None:
            sums = _product_sums(node.sig)
            code["acc_t"] = sum_dtype(sums).c
            params |= {f"{name}_zero": t.q.zero_point for name, t in (("a", a), ("b", b)) if t.dtype is DType.INT8}
            if out.dtype is not DType.INT32:
                requantize = requantizer(node.sig, sums, self.factor)
                params |= {"multiplier": int(requantize.multiplier[0]), "offset": requantize.offset}
                low, high = out.dtype.limits
                code |= {"shift": requantize.shift, "low": low, "high": high}
        operands = [
            ("a", Access.IN, builder.buffer(node.input(0))),
            ("b", Access.IN, builder.buffer(node.input(1))),
            ("y", Access.OUT, builder.buffer(node.output)),
        ]
        variant = "scaled" if code["scaled"] else ""
        builder.emit(node, builder.select(self.kernels, node), operands, params, code=code, variant=variant)


def _product_sums(sig: Signature) -> Array:
    """What no accumulator of a product of two activations exceeds (one number)."""
    a, b = sig.input(0), sig.input(1)
    return np.asarray([a.shape[-1] * farthest(a) * farthest(b)], np.int64)


# --------------------------------------------------------------------------------------------------- import


def emit_matmul(node: OnnxNode, a: Value, b: Value, suffix: str = "") -> Value:
    """MatMul with numpy's rules for vectors and batch broadcasting."""
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
    result = node.emit(MatMul(), a, b, suffix="full" if any(squeeze) else suffix)
    if not any(squeeze):
        return result
    shape = list(result.type.shape)
    if squeeze[1]:
        del shape[-1]
    if squeeze[0]:
        del shape[-1 if squeeze[1] else -2]
    return node.emit(Reshape(tuple(shape)), result, suffix=suffix)


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
    """Operands of one arithmetic type."""
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
    bias = node.input(2) if node.has(2) else None
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
    """Integers by a factor that is no whole number are cut off."""
    dtype = value.type.dtype
    if factor == 1.0:
        return value
    if value.data is not None:
        return node.constant(
            suffix,
            (value.data * dtype.numpy.type(factor)).astype(dtype.numpy)
            if dtype.is_float
            else to_integers(value.data * factor, dtype),
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
    terms, wanted = _parse_equation(node, str(node.attr("equation", "")), values)
    terms = [_diagonal(node, term) for term in terms]
    sizes: dict[str, int] = {}
    for term in terms:
        for label, size in zip(term.labels, term.value.type.shape, strict=True):
            sizes[label] = max(sizes.get(label, 1), size)
    result = _summed(node, terms[0], {*wanted, *(label for t in terms[1:] for label in t.labels)})
    for index, term in enumerate(terms[1:], 2):
        needed = {*wanted, *(label for later in terms[index:] for label in later.labels)}
        result = _product(node, result, _summed(node, term, needed | set(result.labels)), needed, sizes)
    result = _spread(node, _summed(node, result, set(wanted)), wanted, sizes)
    order = tuple(result.labels.index(label) for label in wanted)
    return [node.emit(Transpose(order), result.value)]


def _parse_equation(node: OnnxNode, equation: str, values: Sequence[Value]) -> tuple[list[_Term], str]:
    """Operands and output by labels; the axes of an ellipsis are called by digits and the like, aligned at the end."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(values):
        raise Refusal("Einsum: every operand needs a term", f"'{equation}' of {len(values)}", "repair the model")
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
    wanted = right.replace("...", extra)
    known = {label for term in terms for label in term.labels}
    if len(set(wanted)) != len(wanted) or not set(wanted) <= known:
        raise Refusal("Einsum: the output's letters must be operands', each once", f"'{right}'", "repair the model")
    return terms, wanted


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _diagonal(node: OnnxNode, term: _Term) -> _Term:
    """Repeated labels: both axes become one, of which every (n + 1)th element is taken."""
    value, labels = term.value, term.labels
    while twice := next((label for label in labels if labels.count(label) > 1), ""):
        first, second = labels.index(twice), labels.rindex(twice)
        size = value.type.shape[first]
        if size != value.type.shape[second]:
            raise Refusal("Einsum: axes of one letter must be equally long", f"{value.type.shape}", "repair the model")
        rest = [axis for axis in range(len(labels)) if axis not in (first, second)]
        shape = tuple(value.type.shape[axis] for axis in rest)
        turned = node.emit(Transpose((*rest, first, second)), value, suffix="turned")
        flat = node.emit(Reshape((*shape, size * size)), turned, suffix="flat")
        op = Slice((0,) * (len(rest) + 1), (*shape, size), (1,) * len(rest) + (size + 1,))
        value, labels = node.emit(op, flat, suffix="diagonal"), "".join(labels[axis] for axis in rest) + twice
    return _Term(value, labels)


def _summed(node: OnnxNode, term: _Term, needed: set[str]) -> _Term:
    """The sum over all labels that are not needed."""
    axes = tuple(axis for axis, label in enumerate(term.labels) if label not in needed)
    if not axes:
        return term
    total = node.emit(Reduce("sum", axes), term.value, suffix="sum")
    shape = tuple(size for axis, size in enumerate(total.type.shape) if axis not in axes)
    labels = "".join(label for label in term.labels if label in needed)
    return _Term(node.emit(Reshape(shape), total, suffix="summed"), labels)


def _spread(node: OnnxNode, term: _Term, labels: str, sizes: Mapping[str, int]) -> _Term:
    """Axes of length 1 stretched to the length that they have elsewhere."""
    shape = tuple(
        sizes[label] if label in labels else size
        for label, size in zip(term.labels, term.value.type.shape, strict=True)
    )
    same = shape == term.value.type.shape
    return term if same else _Term(node.emit(Expand(shape), term.value, suffix="spread"), term.labels)


def _product(node: OnnxNode, x: _Term, y: _Term, needed: set[str], sizes: Mapping[str, int]) -> _Term:
    """Σ x·y over the shared labels that are needed no more, as a batch of matrix products."""
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
    """Of batches of one: a matrix product proper, which may have constant weights."""
    left, right = (reshaped(node, v, v.type.shape[1:], "flat") for v in (a, b))
    return node.emit(MatMul(), left, right, suffix="product")


# ---------------------------------------------------------------------------------------------------- det


@dataclass(frozen=True)
class Det(Operator):
    """y[…] = det x[…, n, n], by elimination with partial pivoting."""

    mnemonic: ClassVar[str] = "det"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """The last two axes vanish."""
        (x,) = inputs
        assert x is not None
        if x.rank < 2 or x.shape[-1] != x.shape[-2]:
            raise ModelError("det: matrices must be square", f"{x.shape}", "repair the model")
        return (TensorType(x.shape[:-2], x.dtype),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """numpy.linalg.det."""
        return (np.asarray(np.linalg.det(arrays[0]), arrays[0].dtype),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Each matrix is eliminated in a copy."""
        x = node.input(0).type
        size = x.shape[-1]
        operands = [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("y", Access.OUT, builder.buffer(node.output)),
            ("m", Access.SCRATCH, builder.scratch(f"{node.output.name}.matrix", x.dtype, size * size)),
        ]
        params: dict[str, Param] = {"batch": math.prod(x.shape[:-2]), "n": size}
        builder.emit(node, "det", operands, params, code={"t": x.dtype.c}, variant=x.dtype.tag)


@onnx_operator("Det", kernels=("det",))
def _import_det(node: OnnxNode) -> list[Value]:
    node.require_dtype(node.input(0), DType.FLOAT32, DType.FLOAT64)
    return [node.emit(Det(), node.input(0))]
