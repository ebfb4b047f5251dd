# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's product of two activations: arm_batch_matmul_s8, which takes the second one's columns as rows."""

from __future__ import annotations

import math
from typing import Protocol, cast

from mcugen.hir.graph import Node
from mcugen.hir.types import DType
from mcugen.kernels.cmsis.common import MOST_RESULT, MOST_SHIFTED, by_variant, call, emit_call
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param
from mcugen.numerics.fixedpoint import Requantizer
from mcugen.numerics.sums import product_sums, requantizer


class _Product(Protocol):
    factor: float


def product_requantizer(node: Node) -> Requantizer:
    """Ours."""
    return requantizer(node.sig, product_sums(node.sig), cast("_Product", node.op).factor)


def int8_product(node: Node) -> bool:
    """int8 operands and result, sums of 32 bits"""
    types = (node.sig.input(0), node.sig.input(1), node.sig.output)
    if any(t.dtype is not DType.INT8 or t.quant is None for t in types):
        return False
    most, requantize = int(product_sums(node.sig)[0]), product_requantizer(node)
    left, largest = 31 - requantize.shift, most * int(requantize.multiplier[0]) >> requantize.shift
    return left >= 0 and most << left < MOST_SHIFTED and largest < MOST_RESULT


def emit(node: Node, builder: Builder, kernel: Kernel) -> None:
    """One matrix of a batch at a time, so that only one has to be turned; Helium sums its columns first."""
    a, b, y = node.sig.input(0), node.sig.input(1), node.sig.output
    depth, columns = b.shape[-2:]
    requantize = product_requantizer(node)
    sums = by_variant(builder, 0, 0, 4 * columns)
    params: dict[str, Param] = {"batch": math.prod(a.shape[:-2]), "rows": a.shape[-2]}
    params |= {"depth": depth, "columns": columns, "sums_size": sums}
    params |= {"a_zero": a.q.zero_point, "b_zero": b.q.zero_point, "y_zero": y.q.zero_point}
    params |= {"multiplier": int(requantize.multiplier[0]), "shift": 31 - requantize.shift}
    operands = [
        ("a", Access.IN, builder.buffer(node.input(0))),
        ("b", Access.IN, builder.buffer(node.input(1))),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    emit_call(node, builder, kernel, operands, params, scratch=sums + depth * columns)


MATMUL: tuple[Kernel, ...] = (call("cmsis_batch_matmul_s8", (int8_product,), emit),)
