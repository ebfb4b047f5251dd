# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's elementwise functions: arm_elementwise_add_s8, arm_elementwise_mul_s8, arm_maximum_s8, arm_minimum_s8.

All of them give our own bits. A sum is requantized thrice: each operand, (x − zero) · 2^LEFT, by its factor · 2^(31 −
LEFT), which is exact, then the sum of both by 2^(31 − shift), which is our own only rounding.
"""

from __future__ import annotations

from typing import Protocol, cast

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType
from mcugen.kernels.activations import dense_int8
from mcugen.kernels.cmsis.common import call, emit_call
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.lir.traversal import collapse
from mcugen.numerics.fixedpoint import Range, Requantizer, clamp_range, is_quantized, same_codes

LEFT = 22
"""Bits by which a sum's operands are shifted to the left. They fit 32 bits even doubled, as the library for Helium does
it if built for single rounding; with DSP it takes 16 at least, as only the lower half of a difference is shifted."""

IN_PLACE = (("y", "x0"), ("y", "x1"))
"""Element by element, forward: functions that want no overlaps say so, and these do not."""


class _FixedSum(Protocol):
    """q = (x · factors[0] + y · factors[1] + offset) >> shift."""

    @property
    def factors(self) -> tuple[int, int]: ...
    @property
    def shift(self) -> int: ...


class _Binary(Protocol):
    """What is read of the operator."""

    @property
    def function(self) -> str: ...
    @property
    def clamp(self) -> Range | None: ...
    def fixed_sum(self, sig: Signature) -> _FixedSum | None: ...
    def product(self, sig: Signature) -> Requantizer: ...
    def largest_product(self, sig: Signature) -> int: ...


def is_sum(node: Node) -> bool:
    """a sum or difference of int8 tensors of one shape"""
    return _is_of(node, "Add", "Sub") and _of_one_shape(node) and binary(node).fixed_sum(node.sig) is not None


def is_product(node: Node) -> bool:
    """a product of int8 tensors of one shape"""
    if not _is_of(node, "Mul") or not _of_one_shape(node):
        return False
    left = 31 - binary(node).product(node.sig).shift
    return binary(node).largest_product(node.sig) << (left + 1) < 2**31


def is_maximum(node: Node) -> bool:
    """the larger codes of two matrices"""
    return _is_of(node, "Max") and _are_matrices(node)


def is_minimum(node: Node) -> bool:
    """the smaller codes of two matrices"""
    return _is_of(node, "Min") and _are_matrices(node)


def emit_add(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Sums, and differences, whose second factor is negative."""
    fixed = binary(node).fixed_sum(node.sig)
    assert fixed is not None
    m0, m1 = (factor << (31 - LEFT) for factor in fixed.factors)
    params: dict[str, Param] = {"m0": m0, "m1": m1, "left": LEFT, "m_y": 1 << (31 - fixed.shift)}
    emit_call(node, builder, kernel, operands(node, builder), _params(node) | params, inplace=IN_PLACE)


def emit_mul(node: Node, builder: Builder, kernel: Kernel) -> None:
    """One requantization, ours."""
    requantize = binary(node).product(node.sig)
    params: dict[str, Param] = {"multiplier": int(requantize.multiplier[0]), "shift": 31 - requantize.shift}
    emit_call(node, builder, kernel, operands(node, builder), _params(node) | params, inplace=IN_PLACE)


def emit_extreme(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Of matrices, of which operands may lack rows, columns or both."""
    params: dict[str, Param] = {}
    for name, (rows, columns) in zip(("y", "x0", "x1"), _matrices(node), strict=True):
        params |= {f"{name}_rows": rows, f"{name}_columns": columns}
    whole = [pair for i, pair in enumerate(IN_PLACE) if node.input(i).type.count == node.output.type.count]
    emit_call(node, builder, kernel, operands(node, builder), params, inplace=whole)


def binary(node: Node) -> _Binary:
    """Its operator."""
    return cast("_Binary", node.op)


def _is_of(node: Node, *functions: str) -> bool:
    return binary(node).function in functions


def _of_one_shape(node: Node) -> bool:
    return dense_int8(node.sig) and all(map(is_quantized, (*node.sig.inputs, node.sig.output)))


def _are_matrices(node: Node) -> bool:
    """Equal scales, and operands that are broadcast along rows or columns at most."""
    y = node.output.type
    same = y.dtype is DType.INT8 and all(same_codes(node.sig.input(i), y) for i in (0, 1))
    return same and len(_walks(node)[0]) <= 2


def _walks(node: Node) -> tuple[list[int], list[list[int]]]:
    return collapse(node.output.type.shape, [node.input(i).type.shape for i in (0, 1)])


def _matrices(node: Node) -> list[tuple[int, int]]:
    """Rows and columns of the result and of both operands."""
    dims, strides = _walks(node)
    sizes = [dims] + [[size if stride else 1 for size, stride in zip(dims, row, strict=True)] for row in strides]
    return [(rows[0] if len(rows) > 1 else 1, rows[-1]) for rows in sizes]


def operands(node: Node, builder: Builder) -> list[tuple[str, Access, Buffer]]:
    """x0, x1 and y."""
    x0, x1 = (builder.buffer(node.input(i)) for i in (0, 1))
    return [("x0", Access.IN, x0), ("x1", Access.IN, x1), ("y", Access.OUT, builder.buffer(node.output))]


def _params(node: Node) -> dict[str, Param]:
    """Elements, zero points and limits."""
    y = node.output.type
    low, high = clamp_range(binary(node).clamp, y.q, y.dtype)
    zeros: dict[str, Param] = {f"x{i}_zero": node.input(i).type.q.zero_point for i in (0, 1)}
    return {"count": y.count, **zeros, "y_zero": y.q.zero_point, "low": low, "high": high}


BINARY: tuple[Kernel, ...] = (
    call("cmsis_elementwise_add_s8", (is_sum,), emit_add),
    call("cmsis_elementwise_mul_s8", (is_product,), emit_mul),
    call("cmsis_maximum_s8", (is_maximum,), emit_extreme),
    call("cmsis_minimum_s8", (is_minimum,), emit_extreme),
)
