# SPDX-License-Identifier: Apache-2.0
"""What kernels of layers with constant weights share: packing, what becomes of the sums, conditions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Overlap, Param
from mcugen.numerics.fixedpoint import Range, clamp_range
from mcugen.numerics.sums import folded_bias, largest_sums, requantizer, sum_dtype

BLOCK = 4
"""Output channels that the portable inner loops compute together; weights are interleaved by it."""


def interleave(weights: Array) -> Array:
    """[N, K] → flat: blocks of BLOCK rows as [K][BLOCK], then the remaining rows as they are."""
    whole = len(weights) // BLOCK * BLOCK
    blocks = weights[:whole].reshape(-1, BLOCK, weights.shape[1]).transpose(0, 2, 1)
    return np.concatenate([blocks.reshape(-1), weights[whole:].reshape(-1)])


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
