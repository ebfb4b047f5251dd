# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's functions of int16 tensors without weights: sums, products, the sigmoid.

The library's softmax of int16 is not among them: with exponentials of 15 bits and a table of reciprocals it misses ours
by up to as many steps as a row has elements. Neither is its hyperbolic tangent, which misses by two or three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels.cmsis.common import call, emit_call
from mcugen.kernels.cmsis.curves import sigmoid
from mcugen.kernels.cmsis.elementwise import IN_PLACE, binary, operands
from mcugen.kernels.cmsis.s16 import Scaling, limits
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param
from mcugen.numerics.fixedpoint import is_quantized

# ------------------------------------------------------------------------------- sums and products

LEFT = 15
"""Bits by which the operands of a sum are shifted to the left: all that they have room for, even doubled."""

MOST_FACTOR = 2.0**8
"""Of the operands of a sum: ours has bits enough for as much."""

_SIGNS = {"Add": (1, 1), "Sub": (1, -1)}


@dataclass(frozen=True)
class RoundedSum:
    """q = (a(x) + a(y) + 2^(shift−1)) >> shift, where a(v) = (v · 2^LEFT · m + 2^30) >> 31: three roundings, half up.

    With as many bits more than the result as 30 bits have room for, the first two hardly matter.
    """

    factors: tuple[int, int]
    shift: int

    @staticmethod
    def of(x: TensorType, y: TensorType, out: TensorType, signs: tuple[int, int]) -> RoundedSum | None:
        """For these types; None where it could be more than a step from ours."""
        ratios = [sign * t.q.scale[0] / out.q.scale[0] for sign, t in zip(signs, (x, y), strict=True)]
        if max(map(abs, ratios)) > MOST_FACTOR:
            return None
        for shift in range(30, 3, -1):
            m0, m1 = (round(ratio * 2.0 ** (31 - LEFT + shift)) for ratio in ratios)
            if max(abs(m0), abs(m1)) < 2**31 and (abs(m0) + abs(m1)) >> (16 - LEFT) < 2**30 - 2:
                return RoundedSum((m0, m1), shift)
        return None

    def __call__(self, x: Array, y: Array) -> Array:
        """The specification."""
        a, b = (((v.astype(np.int64) << LEFT) * m + 2**30) >> 31 for v, m in zip((x, y), self.factors, strict=True))
        q: Array = (a + b + (1 << (self.shift - 1))) >> self.shift
        return q


def _sum(node: Node) -> RoundedSum | None:
    types = node.sig.input(0), node.sig.input(1), node.sig.output
    return RoundedSum.of(*types, _SIGNS[binary(node).function])


def _product(node: Node) -> Scaling:
    return Scaling.near(binary(node).product(node.sig), 31, 31)


def emit_add(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Operands in units of the result's / 2^shift; their sum is then only shifted."""
    fixed = _sum(node)
    assert fixed is not None
    params: dict[str, Param] = {"m0": fixed.factors[0], "m1": fixed.factors[1], "m_y": 1 << (31 - fixed.shift)}
    _emit_binary(node, builder, kernel, params | {"left": LEFT})


def emit_mul(node: Node, builder: Builder, kernel: Kernel) -> None:
    """The factor of the product."""
    _emit_binary(node, builder, kernel, {"multiplier": int(_product(node).multiplier[0])})


def _emit_binary(node: Node, builder: Builder, kernel: Kernel, params: dict[str, Param]) -> None:
    low, high = limits(node)
    params |= {"low": low, "high": high, "count": node.output.type.count}
    emit_call(node, builder, kernel, operands(node, builder), params, inplace=IN_PLACE)


def evaluate_add(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The library's sum."""
    fixed = _sum(node)
    assert fixed is not None
    return (np.clip(fixed(*arrays), *limits(node)),)


def evaluate_mul(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The library's product: fewer bits of factor than ours has make a quarter of a step at most.

    Built for Helium and for single rounding, the library doubles a product, for which −32768 · −32768 has no room.
    """
    x, y = (array.astype(np.int64) for array in arrays)
    return (_product(node)(x * y, *limits(node)),)


def int16_operands(node: Node) -> bool:
    """int16 tensors of one shape"""
    types = [*map(node.sig.input, (0, 1)), node.sig.output]
    return all(is_quantized(t) and t.dtype is DType.INT16 and t.shape == types[-1].shape for t in types)


def sum_of_near_scales(node: Node) -> bool:
    """a sum or difference of operands up to 256 times as coarse as the result"""
    return binary(node).function in _SIGNS and _sum(node) is not None


def fine_product(node: Node) -> bool:
    """a product whose codes are coarser than those of its operands by each other"""
    return binary(node).function == "Mul" and bool((_product(node).shift == 31).all())


# ---------------------------------------------------------------------------------------- sigmoid

_CODES = np.arange(-(2**15), 2**15)


def _left(node: Node) -> int:
    """The argument's scale as a power of two."""
    return round(math.log2(node.sig.input(0).q.scale[0])) + 12


def emit_sigmoid(node: Node, builder: Builder, kernel: Kernel) -> None:
    """By the library's own table."""
    params: dict[str, Param] = {"count": node.output.type.count, "left": _left(node)}
    xy = [("x", Access.IN, builder.buffer(node.input(0))), ("y", Access.OUT, builder.buffer(node.output))]
    emit_call(node, builder, kernel, xy, params, inplace=[("y", "x")])


def evaluate_sigmoid(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The library's sigmoid."""
    return (sigmoid(arrays[0], _left(node)),)


def int16_sigmoid(node: Node) -> bool:
    """a sigmoid of int16 that all codes give within one step"""
    function, table = getattr(node.op, "of", ""), node.inputs[-1]
    if function != "sigmoid" or table is None or table.data is None or not -16 < _left(node) < 14:
        return False
    if any(t.dtype is not DType.INT16 for t in (node.sig.input(0), node.sig.output)):
        return False
    own = node.op.evaluate(node.sig, _CODES.astype(np.int16), table.data)[0]
    return bool(np.abs(own.astype(np.int64) - sigmoid(_CODES, _left(node))).max() <= 1)


# ---------------------------------------------------------------------------------------- kernels

BINARY: tuple[Kernel, ...] = (
    call("cmsis_elementwise_add_s16", (int16_operands, sum_of_near_scales), emit_add, evaluate_add),
    call("cmsis_elementwise_mul_s16", (int16_operands, fine_product), emit_mul, evaluate_mul),
)
"""Of two operands."""

CURVE: tuple[Kernel, ...] = (call("cmsis_sigmoid_s16", (int16_sigmoid,), emit_sigmoid, evaluate_sigmoid),)
"""Of functions of one tensor."""
