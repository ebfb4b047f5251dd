# SPDX-License-Identifier: Apache-2.0
"""BitCast: the bytes of a tensor reinterpreted as another element type of the same width."""

from __future__ import annotations

import re
from typing import ClassVar

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.traits import Simplifiable
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.portable.movement import BITCAST, Bytes
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.ops.conversion import Cast
from mcugen.ops.movement import onnx_dtype
from mcugen.ops.onnx_node import OnnxNode, Refusal, onnx_operator


class BitCast(Simplifiable, Operator):
    """The bytes of x, reinterpreted as elements of another type of the same width.

    Attributes:
        to: The new element type.
    """

    mnemonic: ClassVar[str] = "bitcast"
    to: DType = DType.FLOAT32

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the input's shape with the new element type."""
        (x,) = required(inputs)
        if x.dtype.nbytes != self.to.nbytes:
            dtypes = f"{x.dtype.value} to {self.to.value}"
            raise ModelError("bitcast: both element types must have the same width", dtypes, "repair the model")
        return (TensorType(x.shape, self.to),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.ndarray.view, which reinterprets the bytes."""
        return (arrays[0].view(self.to.numpy),)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return the input if it has the target type already; else None."""
        return node.input(0) if node.input(0).type.dtype is self.to else None

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to one memcpy."""
        x, y = builder.buffer(node.input(0)), builder.buffer(node.output)
        builder.call(node, Call(BITCAST, {"x": x, "y": y}, [Bytes(x_bytes=y.nbytes)]))


@onnx_operator("BitCast", kernels=("bitcast",), limits="whole bytes", keeps_halves=True)
def _import_bit_cast(node: OnnxNode) -> list[Value]:
    x, to, source_dtype = node.input(0), onnx_dtype(node, int(node.attr("to", 0))), node.dtypes[0]
    assert source_dtype is not None
    if _bits(source_dtype) != _bits(to) or (_bits(to) < 8 and to is not source_dtype):
        dtypes = f"{source_dtype.value} to {to.value}"
        raise Refusal("BitCast: both element types must have the same width of whole bytes", dtypes, "use Cast")
    if x.type.dtype is not source_dtype:  # a 16-bit float that is computed as float32
        x = node.emit(Cast(source_dtype), x, suffix="stored")
    return [node.emit(BitCast(to), x)]


def _bits(dtype: DType) -> int:
    return int((*re.findall(r"\d+", dtype.value), 8)[0])
