# SPDX-License-Identifier: Apache-2.0
"""TopK: the largest or smallest elements along an axis, with their positions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.kernels.portable.positions import TOP_K, TopOptions, TopParams
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.ops.movement import normalize_axis
from mcugen.ops.onnx_node import NUMBERS, OnnxNode, onnx_operator


class TopK(Operator):
    """The k largest or smallest elements along an axis, in order, and the indices of these elements.

    Ties are ordered by index.

    Attributes:
        axis: The axis.
        k: Number of elements.
        largest: Whether the largest elements are taken; else the smallest.
    """

    mnemonic: ClassVar[str] = "top_k"
    moves_data: ClassVar[bool] = True
    axis: int = 0
    k: int = 1
    largest: bool = True

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the types of the outputs, k elements along the axis each: the values, and their int64 indices."""
        (x,) = required(inputs)
        shape = (*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :])
        return replace(x, shape=shape), TensorType(shape, DType.INT64, layout=x.layout)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the outputs by a stable sort; for the largest elements, of the reversed axis."""
        (x,) = arrays
        if self.largest:
            order = np.flip(
                x.shape[self.axis] - 1 - np.argsort(np.flip(x, self.axis), self.axis, kind="stable"), self.axis
            )
        else:
            order = np.argsort(x, self.axis, kind="stable")
        chosen = np.take(order, np.arange(self.k), self.axis)
        return np.take_along_axis(x, chosen, self.axis), chosen

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to insertion into the k best elements so far: at most depth · k steps."""
        x = node.input(0).type
        operands = builder.operands(node, "x", outputs=("values", "indices"))
        params = [AxisWalk.of(x.shape, self.axis), TopParams(k=self.k)]
        options = TopOptions(t=x.dtype.c, beats=">" if self.largest else "<")
        variant = f"{'largest' if self.largest else 'smallest'}_{x.dtype.tag}"
        builder.call(node, Call(TOP_K, operands, params, [options], variant=variant))


@onnx_operator("TopK", types=NUMBERS, kernels=("top_k",), limits="a computed k needs a declared output shape")
def _import_top_k(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    axis = normalize_axis(node, node.attr("axis", -1), x.type.rank)
    k = _k(node, axis)
    node.require(0 <= k <= x.type.shape[axis], "k must not exceed the axis", f"{k} of {x.type.shape[axis]}")
    op = TopK(axis, k, bool(node.attr("largest", 1)))
    origin = (node.name or next(filter(None, node.outputs), ""),)
    names = [(*node.outputs, "", "")[i] or f"{origin[0]}.{what}" for i, what in enumerate(("values", "indices"))]
    return list(node.graph.add(op, [x], origin, names=names).outputs)


def _k(node: OnnxNode, axis: int) -> int:
    """Constant, or as the declared shapes have it."""
    shapes = [t.shape for t in node.declared if t is not None and len(t.shape) == node.input(0).type.rank]
    if node.has(1) and not node.input(1).is_constant and shapes:
        return shapes[0][axis]
    return node.whole(1, "k")
