# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's functions of int16 tensors without weights: pooling, sums, products, the sigmoid.

The library's softmax of int16 is not among them: with exponentials of 15 bits and a table of reciprocals it misses ours
by as many steps as a row has elements. Neither is its hyperbolic tangent, which misses by two or three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.ops.fixedpoint import clamp_range, same_codes
from mcugen.ops.kernels.cmsis.common import by_variant, call, emit_call
from mcugen.ops.kernels.cmsis.curves import sigmoid
from mcugen.ops.window import Window, both


def _all_int16(node: Node) -> bool:
    types = [t for t in (*node.sig.inputs, node.sig.output) if t is not None]
    return all(t.dtype is DType.INT16 and t.quant is not None for t in types)


def _limits(node: Node) -> tuple[int, int]:
    y = node.sig.output
    return clamp_range(getattr(node.op, "clamp", None), y.q, y.dtype)


# ------------------------------------------------------------------------------------- pooling


class _Pool(Protocol):
    """What is read of a pool."""

    @property
    def window(self) -> Window: ...
    @property
    def kernel(self) -> Shape: ...


def emit_max_pool(node: Node, builder: Builder, kernel: Kernel) -> None:
    """The largest element under the window: our own bits."""
    emit_call(node, builder, kernel, _xy(node, builder), _window_params(node))


def emit_avgpool(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Exact sums, of as many elements as the window has in the input."""
    _emit_average(node, builder, kernel, _window_params(node))


def emit_mean(node: Node, builder: Builder, kernel: Kernel) -> None:
    """The mean over axes in a row as a pool of one column."""
    shape, axes = node.input(0).type.shape, _axes(node)
    count = math.prod(shape[axis] for axis in axes)
    params: dict[str, Param] = {"batch": math.prod(shape[: axes[0]]), "channels": math.prod(shape[axes[-1] + 1 :])}
    params |= {"in_h": count, "k_h": count}
    params |= dict.fromkeys(("in_w", "out_h", "out_w", "k_w", "stride_h", "stride_w"), 1)
    params |= {"pad_h": 0, "pad_w": 0}
    _emit_average(node, builder, kernel, params)


def _emit_average(node: Node, builder: Builder, kernel: Kernel, params: dict[str, Param]) -> None:
    sums = 4 * cast("int", params["channels"])
    emit_call(node, builder, kernel, _xy(node, builder), params, scratch=by_variant(builder, 0, sums, 0))


def _xy(node: Node, builder: Builder) -> list[tuple[str, Access, Buffer]]:
    return [("x", Access.IN, builder.buffer(node.input(0))), ("y", Access.OUT, builder.buffer(node.output))]


def _window_params(node: Node) -> dict[str, Param]:
    x, y, op = node.input(0).type.shape, node.output.type.shape, cast("_Pool", node.op)
    params: dict[str, Param] = {"batch": x[0], "channels": x[-1]}
    rows = {"in": (x[1:-1], 1), "out": (y[1:-1], 1), "k": (op.kernel, 1)}
    rows |= {"stride": (op.window.strides, 1), "pad": (op.window.before, 0)}
    for name, (values, missing) in rows.items():
        params[f"{name}_h"], params[f"{name}_w"] = both(values, missing)
    return params


def evaluate_avgpool(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Means rounded to the nearest, ties away from 0."""
    (x,), op = arrays, cast("_Pool", node.op)

    def total(values: Array) -> Array:
        patches = op.window.patches(values, op.kernel, 0)
        result: Array = patches.sum(tuple(range(x.ndim, patches.ndim)))
        return result

    return (_rounded_mean(total(x.astype(np.int64)), total(np.ones(x.shape, np.int64))),)


def evaluate_mean(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The same over axes."""
    (x,), axes = arrays, _axes(node)
    count = np.asarray(math.prod(x.shape[axis] for axis in axes))
    return (_rounded_mean(x.astype(np.int64).sum(axes), count),)


def _rounded_mean(total: Array, count: Array) -> Array:
    mean: Array = np.sign(total) * ((np.abs(total) + count // 2) // count)
    return mean


def _axes(node: Node) -> tuple[int, ...]:
    axes: tuple[int, ...] = node.op.axes  # type: ignore[attr-defined]
    return axes


def int16_codes(node: Node) -> bool:
    """int16 tensors of one scale"""
    return _all_int16(node) and same_codes(node.sig.input(0), node.sig.output)


def plain_window(node: Node) -> bool:
    """no dilation"""
    return max(cast("_Pool", node.op).window.dilations) == 1


def padding_uncounted(node: Node) -> bool:
    """padding that does not count"""
    op, x = cast("_Pool", node.op), node.sig.input(0).shape
    counted = (*node.op.counted_before, *node.op.counted_after)  # type: ignore[attr-defined]
    return not any(counted) or not op.window.leaves(x[1:-1], op.kernel)


def mean_over_neighbours(node: Node) -> bool:
    """a mean over axes in a row, of fewer than 65536 elements"""
    axes, shape = _axes(node), node.sig.input(0).shape
    in_a_row = bool(axes) and axes == tuple(range(axes[0], axes[-1] + 1))
    return node.op.name == "reduce_mean" and in_a_row and math.prod(shape[axis] for axis in axes) < 2**16


# ------------------------------------------------------------------------------- sums and products

LEFT = 15
"""Bits by which the operands of a sum are shifted to the left: all that they have room for."""

MOST_FACTOR = 2.0**8
"""Of the operands of a sum: ours has bits enough for as much."""


@dataclass(frozen=True)
class RoundedSum:
    """q = (a(x) + a(y) + 2^(shift−1)) >> shift, where a(v) = (v · 2^LEFT · m + 2^30) >> 31: three roundings, half up.

    With as many bits more than the result as 30 bits have room for, the first two hardly matter.
    """

    factors: tuple[int, int]
    shift: int

    @staticmethod
    def of(x: TensorType, y: TensorType, out: TensorType) -> RoundedSum | None:
        """For these types; None where it could be more than a step from ours."""
        ratios = [t.q.scale[0] / out.q.scale[0] for t in (x, y)]
        if max(ratios) > MOST_FACTOR:
            return None
        for shift in range(30, 3, -1):
            m0, m1 = (round(ratio * 2.0 ** (31 - LEFT + shift)) for ratio in ratios)
            if max(m0, m1) < 2**31 and (m0 + m1) >> (16 - LEFT) < 2**30 - 2:
                return RoundedSum((m0, m1), shift)
        return None

    def __call__(self, x: Array, y: Array) -> Array:
        """The specification."""
        a, b = (((v.astype(np.int64) << LEFT) * m + 2**30) >> 31 for v, m in zip((x, y), self.factors, strict=True))
        q: Array = (a + b + (1 << (self.shift - 1))) >> self.shift
        return q


def _sum(node: Node) -> RoundedSum | None:
    return RoundedSum.of(node.sig.input(0), node.sig.input(1), node.sig.output)


def _factor(node: Node) -> int:
    """Of a product of codes, times 2^31."""
    scales = [t.q.scale[0] for t in (node.sig.input(0), node.sig.input(1), node.sig.output)]
    return round(min(scales[0] * scales[1] / scales[2], 1.0) * 2.0**31)


def emit_add(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Operands in units of the result's / 2^shift; their sum is then only shifted."""
    fixed = _sum(node)
    assert fixed is not None
    params: dict[str, Param] = {"m0": fixed.factors[0], "m1": fixed.factors[1], "m_y": 1 << (31 - fixed.shift)}
    _emit_binary(node, builder, kernel, params | {"left": LEFT})


def emit_mul(node: Node, builder: Builder, kernel: Kernel) -> None:
    """The factor of the product."""
    _emit_binary(node, builder, kernel, {"multiplier": _factor(node)})


def _emit_binary(node: Node, builder: Builder, kernel: Kernel, params: dict[str, Param]) -> None:
    low, high = _limits(node)
    x0, x1 = (builder.buffer(node.input(i)) for i in (0, 1))
    operands = [("x0", Access.IN, x0), ("x1", Access.IN, x1), ("y", Access.OUT, builder.buffer(node.output))]
    params |= {"low": low, "high": high, "count": node.output.type.count}
    emit_call(node, builder, kernel, operands, params)


def evaluate_add(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The library's sum."""
    fixed = _sum(node)
    assert fixed is not None
    return (np.clip(fixed(*arrays), *_limits(node)),)


def evaluate_mul(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The library's product: fewer bits of factor than ours has make a quarter of a step at most."""
    x, y = (array.astype(np.int64) for array in arrays)
    return (np.clip((x * y * _factor(node) + 2**30) >> 31, *_limits(node)),)


def int16_operands(node: Node) -> bool:
    """int16 tensors of one shape"""
    shapes = {t.shape for t in (*node.sig.inputs, node.sig.output) if t is not None}
    return _all_int16(node) and len(shapes) == 1


def sum_of_near_scales(node: Node) -> bool:
    """a sum of operands up to 256 times as coarse as the result"""
    return node.op.name == "add" and _sum(node) is not None


def product_of_codes(node: Node) -> bool:
    """a product that is coarser than the codes' own"""
    return node.op.name == "mul" and _factor(node) < 2**31


# ---------------------------------------------------------------------------------------- sigmoid

_CODES = np.arange(-(2**15), 2**15)


def _left(node: Node) -> int:
    """The argument's scale as a power of two."""
    return round(math.log2(node.sig.input(0).q.scale[0])) + 12


def emit_sigmoid(node: Node, builder: Builder, kernel: Kernel) -> None:
    """By the library's own table."""
    params: dict[str, Param] = {"count": node.output.type.count, "left": _left(node)}
    emit_call(node, builder, kernel, _xy(node, builder), params)


def evaluate_sigmoid(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The library's sigmoid."""
    return (sigmoid(arrays[0], _left(node)),)


def int16_sigmoid(node: Node) -> bool:
    """a sigmoid of int16 that all codes give within one step"""
    function, table = getattr(node.op, "of", ""), node.inputs[-1]
    if function != "sigmoid" or table is None or table.data is None or not -16 < _left(node) < 14:
        return False
    types = (node.sig.input(0), node.sig.output)
    if any(t.dtype is not DType.INT16 or t.quant is None for t in types):
        return False
    own = node.op.evaluate(node.sig, _CODES.astype(np.int16), table.data)[0]
    return bool(np.abs(own.astype(np.int64) - sigmoid(_CODES, _left(node))).max() <= 1)


# ---------------------------------------------------------------------------------------- kernels

_AVGPOOL = (int16_codes, plain_window, padding_uncounted)

MAX_POOL: tuple[Kernel, ...] = (call("cmsis_max_pool_s16", (int16_codes, plain_window), emit_max_pool),)
"""Of maxima under a window."""

AVERAGE_POOL: tuple[Kernel, ...] = (call("cmsis_avgpool_s16", _AVGPOOL, emit_avgpool, evaluate_avgpool),)
"""Of means under a window."""

MEAN: tuple[Kernel, ...] = (call("cmsis_avgpool_s16", (int16_codes, mean_over_neighbours), emit_mean, evaluate_mean),)
"""Of means over axes."""

BINARY: tuple[Kernel, ...] = (
    call("cmsis_elementwise_add_s16", (int16_operands, sum_of_near_scales), emit_add, evaluate_add),
    call("cmsis_elementwise_mul_s16", (int16_operands, product_of_codes), emit_mul, evaluate_mul),
)
"""Of two operands."""

CURVE: tuple[Kernel, ...] = (call("cmsis_sigmoid_s16", (int16_sigmoid,), emit_sigmoid, evaluate_sigmoid),)
"""Of functions of one tensor."""
