# SPDX-License-Identifier: Apache-2.0
"""What all layers with constant weights share: integer forms, accumulators, packing, requantization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, Bounds, DType, QuantParams, TensorType
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Buffer, Overlap, Param
from mcugen.ops.fixedpoint import LONGEST_SUM, Range, Requantizer, clamp_range, dequantize, is_quantized

BLOCK = 4
"""Output channels that the portable inner loops compute together; weights are interleaved by it."""


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


def product_sums(sig: Signature) -> Array:
    """What no accumulator of a product of two activations exceeds (one number)."""
    a, b = sig.input(0), sig.input(1)
    return np.asarray([a.shape[-1] * farthest(a) * farthest(b)], np.int64)


def sum_dtype(sums: Array) -> DType:
    """The type of accumulators that stay within `sums`."""
    return DType.INT32 if sums.max(initial=0) < 2**31 else DType.INT64


def most_sum(sig: Signature) -> int:
    """Sums must stay below: those that are the result itself have 32 bits."""
    return 2**31 if sig.output.dtype is DType.INT32 else LONGEST_SUM


def finish(acc: Array, sig: Signature, clamp: Range | None, sums: Array | None = None, factor: float = 1.0) -> Array:
    """Accumulators (channels last) within `sums`, times a factor → the output: requantized, clamped, or as they are."""
    out = sig.output
    if out.dtype in (DType.INT32, DType.INT64):
        return acc.astype(out.dtype.numpy)
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


def layer_bounds(
    sig: Signature,
    inputs: Sequence[Bounds | None],
    product: Callable[[Array, Array], Array],
    finished: Callable[[Array, Array, Array], Array],
) -> Sequence[Bounds | None]:
    """The bounds of `finished(product(x − zero point, weights), weights, bias)`, exactly; see Operator.bounds."""
    x, *constants = inputs
    if x is None or any(c is None or c[0] is not c[1] for c in constants):
        return (None,)
    w, bias = (c[0] for c in constants if c is not None)
    low, high = (end.astype(np.int64) - sig.input(0).q.zero_point for end in x)
    middle, spread = product(low + high, w), product(high - low, np.abs(w.astype(np.int64)))
    return ((finished((middle - spread) // 2, w, bias), finished((middle + spread) // 2, w, bias)),)


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
    if largest_sums(x.type, data, b).max(initial=0) >= most_sum(sig):
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


def weights_of(node: Node) -> Array:
    """The constant weights of a layer, output channels on axis 0."""
    weights = node.input(1).data
    assert weights is not None
    return weights


def bias_of(node: Node) -> Array | None:
    """Its constant bias, if it has one."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return None if bias is None else bias.data


def largest_sums_of(node: Node) -> Array:
    """What no accumulator of an integer layer exceeds, by output channel."""
    return largest_sums(node.sig.input(0), weights_of(node), _integer_bias_of(node))


def folded_bias_of(node: Node) -> Array:
    """The bias of an integer layer by channel, less what the input's zero point adds to its sums."""
    return folded_bias(node.sig, weights_of(node), _integer_bias_of(node))


def _integer_bias_of(node: Node) -> Array:
    bias = bias_of(node)
    assert bias is not None, "integer layers always have one"
    return bias


def clamp_of(node: Node) -> Range | None:
    """What its result is clamped to."""
    return cast("_Clamped", node.op).clamp


class _Clamped(Protocol):
    clamp: Range | None


def emit_weighted(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    packed: Array,
    params: dict[str, Param],
    *,
    scratch: tuple[str, int] | None = None,
    code: dict[str, object] | None = None,
    baked: tuple[str, ...] = (),
    overlaps: Sequence[Overlap] = (),
    variant: str = "",
) -> None:
    """Emits a layer with `packed` weights, bias and (for integers) requantization as operands of their own.

    `scratch` is a role and a number of elements of the input's type.
    """
    name, x, store = node.output.name, node.sig.input(0), store_of(node)
    flags = {"x_t": x.dtype.c, "w_t": DType.of(packed).c, "y_t": node.output.type.dtype.c, **(code or {})}
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", packed)),
    ]
    operands += [(role, Access.IN, builder.const(f"{name}.{role}", array)) for role, array in store.constants.items()]
    operands.append(("y", Access.OUT, builder.buffer(node.output)))
    if scratch:
        operands.append((scratch[0], Access.SCRATCH, builder.scratch(f"{name}.{scratch[0]}", x.dtype, scratch[1])))
    builder.emit(
        node,
        kernel,
        operands,
        params | store.params,
        baked=baked,
        code=flags | store.code,
        overlaps=overlaps,
        variant="_".join(part for part in (variant, store.variant) if part),
    )


@dataclass(frozen=True)
class Store:
    """What becomes of the sums: constants by role, parameters, and variables of the template."""

    constants: dict[str, Array]
    params: dict[str, Param]
    code: dict[str, object]
    variant: str = ""


def store_of(node: Node) -> Store:
    """The store of a weighted layer: floats are clamped, codes requantized."""
    weights, bias, clamp = weights_of(node), bias_of(node), clamp_of(node)
    if node.sig.input(0).quant is None:
        return float_store(weights, bias, clamp)
    return integer_store(node.sig, weights, bias, clamp)


def integer_store(sig: Signature, weights: Array, bias: Array | None, clamp: Range | None) -> Store:
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
        return Store(constants, params, {"store": "plain", "acc_t": acc.c})
    requantize = requantizer(sig, sums).for_high_word()
    constants["multiplier"] = np.broadcast_to(requantize.multiplier, len(weights)).astype(np.int32)
    low, high = clamp_range(clamp, out.q, out.dtype)
    params |= {"low": low, "high": high, "offset": requantize.offset}
    code: dict[str, object] = {"store": "requantize", "shift": requantize.shift, "acc_t": acc.c}
    return Store(constants, params, code, "long" if acc is DType.INT64 else "")


def float_store(weights: Array, bias: Array | None, clamp: Range | None) -> Store:
    """Sums with their bias, clamped. A layer without activation has low −∞, and shares the code of those with ReLU."""
    real = np.zeros(len(weights), np.float32) if bias is None else bias.astype(np.float32).reshape(-1)
    least, most = clamp or (-math.inf, math.inf)
    params: dict[str, Param] = {"low": least} | ({} if math.isinf(most) else {"high": most})
    return Store({"bias": real}, params, {"store": "clamp", "high": not math.isinf(most)})


# ------------------------------------------------------------------------------- conditions of kernels


def float_tensors(node: Node) -> bool:
    """float32 tensors"""
    return node.sig.input(0).dtype is DType.FLOAT32


def double_tensors(node: Node) -> bool:
    """float64 tensors"""
    return node.sig.input(0).dtype is DType.FLOAT64


def plain_integers(node: Node) -> bool:
    """integers without scale, which wrap"""
    return node.sig.input(0).dtype.is_integer and node.sig.input(0).quant is None


def int8_tensors(node: Node) -> bool:
    """int8 tensors"""
    return node.sig.input(0).dtype is DType.INT8


def int16_tensors(node: Node) -> bool:
    """int16 tensors"""
    return node.sig.input(0).dtype is DType.INT16


def int16_operands(node: Node) -> bool:
    """an int16 operand"""
    return DType.INT16 in (node.sig.input(0).dtype, node.sig.input(1).dtype)
