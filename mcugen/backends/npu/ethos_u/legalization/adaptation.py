# SPDX-License-Identifier: Apache-2.0
"""Operators that the NPU computes, or computes faster, in place of those of the graph; results differ by few steps."""

from __future__ import annotations

from dataclasses import replace

from mcugen.backends.npu.ethos_u.legalization.elementwise import single_pass_sum, wide_sum
from mcugen.backends.npu.ethos_u.legalization.normalization import short_normalize
from mcugen.backends.npu.ethos_u.legalization.rule import quantized_fault
from mcugen.backends.npu.ethos_u.legalization.weighted import SHORT_MULTIPLIER_BITS, weights_fault
from mcugen.core.board import Npu
from mcugen.hir.graph import Node
from mcugen.hir.operator import Operator
from mcugen.hir.types import DType
from mcugen.ops.conv import Conv
from mcugen.ops.conv_transpose import TransposedConv
from mcugen.ops.matmul import Dense
from mcugen.ops.norm import Normalize
from mcugen.ops.pointwise import Binary
from mcugen.ops.softmax import Softmax

SUM_RATIO_BITS = 10
"""Fraction bits of the ratio of a sum's factors: the NPU's addition then takes one pass (`single_pass_sum`).

The factors of `FixedSum` have about 20 bits, half of which are left for their common unit.
"""

WIDE_RATIO_BITS = 14
"""Fraction bits of the ratio of the factors of an int16 sum: products then have 31 bits."""


def adapted(node: Node, npu: Npu) -> Operator | None:
    """Return an int16 layer or a sum with short factors, or a softmax or normalization by tables; None to keep a node.

    The results differ from those of the node by at most one step. Ethos-U85 has short factors for all int16 layers; the
    others need them for sums of more than 32 bits.
    """
    op = node.op
    if isinstance(op, Softmax):
        return replace(op, is_short=True) if op.short(node.sig) is not None else None
    if isinstance(op, Normalize):
        return replace(op, is_short=True) if short_normalize(node) is not None else None
    if isinstance(op, Conv | TransposedConv | Dense):
        is_wide = node.input(0).type.dtype is DType.INT16 and not quantized_fault(node)
        needs_short = is_wide and (npu.kind.startswith("ethos-u85") or weights_fault(node))
        return replace(op, multiplier_bits=SHORT_MULTIPLIER_BITS) if needs_short else None
    if isinstance(op, Binary) and op.function in ("Add", "Sub") and not quantized_fault(node):
        return _short_sum(op, node)
    return None


def _short_sum(op: Binary, node: Node) -> Binary | None:
    """Return a sum with short factors; None if the NPU computes `op` itself in one pass.

    An int8 sum then takes a fifth of the time.
    """
    is_wide = node.output.type.dtype is DType.INT16
    scaled = wide_sum if is_wide else single_pass_sum
    fixed = op.fixed_sum(node.sig)
    if fixed is None or scaled(fixed) is not None:
        return None
    short = replace(op, ratio_bits=WIDE_RATIO_BITS if is_wide else SUM_RATIO_BITS)
    fixed = short.fixed_sum(node.sig)
    return short if fixed is not None and scaled(fixed) is not None else None
