# SPDX-License-Identifier: Apache-2.0
"""Legalization rules: which nodes of an operator the NPU computes with our bits, and how they are written as TOSA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mcugen.backends.npu.ethos_u.legalization.writer import SegmentWriter
from mcugen.backends.npu.ethos_u.tosa.graph import Tensor
from mcugen.hir.graph import Node
from mcugen.hir.operator import Operator
from mcugen.hir.types import DType
from mcugen.numerics.fixedpoint import is_quantized
from mcugen.ops.conv import Conv
from mcugen.ops.conv_transpose import TransposedConv
from mcugen.ops.matmul import Dense

MAX_TOSA_RANK = 6
"""Largest number of axes of a tensor in TOSA's level 8K."""

LAYERS_OF_SUMS = (Conv, TransposedConv, Dense)
"""Operators that the NPU also computes with int32 results, the sums of products of int8 tensors."""

MAX_AXIS = 65536
"""Largest length of an axis on the NPU."""


@dataclass(frozen=True)
class Legalization:
    """A legalization rule: which nodes of one operator the NPU computes, and how they are written as TOSA.

    Attributes:
        operator: The operator's class.
        fault: Returns why the NPU does not compute a node with our bits, as a phrase; "" if it does. Types of inputs
            and output have been checked (`type_fault`).
        write: Writes a node and returns the tensor of its output.
    """

    operator: type[Operator]
    fault: Callable[[Node], str]
    write: Callable[[Node, SegmentWriter], Tensor]


def type_fault(node: Node) -> str:
    """Return why the NPU does not take the types of a node, as a phrase; "" if it takes them."""
    if len(node.outputs) != 1:
        return "several outputs"
    varying = [v.type for v in node.inputs if v is not None and not v.is_constant]
    if not varying:
        return "no input that varies"
    for tensor in (*varying, node.output.type):
        is_sum = tensor is node.output.type and tensor.dtype is DType.INT32 and isinstance(node.op, LAYERS_OF_SUMS)
        if tensor.dtype not in (DType.INT8, DType.INT16) and not is_sum:
            return f"{tensor.dtype.value} tensors"
        if tensor.rank > MAX_TOSA_RANK or max(tensor.shape, default=1) > MAX_AXIS or 0 in tensor.shape:
            return f"a tensor of shape {tensor.shape}"
    return ""


def quantized_fault(node: Node) -> str:
    """Return that a node has tensors that are not quantized, as a phrase; "" if all are."""
    varying = [v.type for v in node.inputs if v is not None and not v.is_constant]
    return "" if all(map(is_quantized, [*varying, node.output.type])) else "tensors that are not quantized"


def int8_fault(node: Node) -> str:
    """Return why a node's tensors are no quantized int8 tensors, as a phrase; "" if all are."""
    varying = [v.type for v in node.inputs if v is not None and not v.is_constant]
    if any(t.dtype is DType.INT16 for t in (*varying, node.output.type)):
        return "int16 tensors"
    return quantized_fault(node)
