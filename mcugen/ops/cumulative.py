# SPDX-License-Identifier: Apache-2.0
"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import numpy as np

from mcugen.hir.crop import Box, Crop, replaced
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import FunctionFamily, Permutation, Signature
from mcugen.hir.traits import Croppable, Permutable
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.kernels.portable.positions import CUMULATIVE, CumulativeOptions
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.traversal import Traversal, overlap
from mcugen.ops.movement import Permuted, normalize_axis
from mcugen.ops.onnx_node import OnnxNode, onnx_operator

_FUNCTIONS = {"CumSum": np.add, "CumProd": np.multiply}
_C = {"CumSum": ("+", "0"), "CumProd": ("*", "1")}
"""Operator and neutral element."""
_TYPES = (DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64, DType.UINT32, DType.UINT64)


class Cumulative(FunctionFamily, Croppable, Permutable):
    """y[k] = x[0] ∘ … ∘ x[k] along `axis`, where ∘ is the function, such as a sum. Integers wrap.

    Attributes:
        axis: Axis along which elements are combined.
        exclusive: Whether y[k] leaves out x[k].
        reverse: Whether elements are combined from the end to the start.
    """

    functions: ClassVar[Collection[str]] = _FUNCTIONS
    axis: int = 0
    exclusive: bool = False
    reverse: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of the input."""
        (x,) = required(inputs)
        return (TensorType(x.shape, x.dtype, layout=x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.ufunc.accumulate, shifted by one element if `exclusive`."""
        function = _FUNCTIONS[self.function]
        x = np.moveaxis(arrays[0], self.axis, 0)
        x = x[::-1] if self.reverse else x
        if self.exclusive:
            x = np.concatenate([np.full_like(x[:1], function.identity), x[:-1]])
        y = function.accumulate(x, axis=0, dtype=x.dtype)
        return (np.moveaxis(y[::-1] if self.reverse else y, 0, self.axis),)

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the operator itself for the elements up to the last wanted one; None from the end to the start."""
        if self.reverse:
            return None
        box = replaced(region, {self.axis: range(region[self.axis][-1] + 1)})
        return Crop(self, box, (box,))

    def permuted(self, sig: Signature, perm: Permutation) -> Permuted | None:
        """Return the operator that computes the output transposed by `perm`, and the permutation of x.

        The result always exists: the axis moves with the transposition.
        """
        return Cumulative(self.function, perm.index(self.axis), self.exclusive, self.reverse), (perm,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a loop over the rows along the axis, each with one accumulator."""
        dtype = node.output.type.dtype
        operator, start = _C[self.function]
        options = CumulativeOptions(
            t=dtype.c,
            acc_t=dtype.c if dtype.is_float else "uint64_t" if dtype.nbytes == 8 else "uint32_t",
            op=operator,
            start=start,
            exclusive=self.exclusive,
            reverse=self.reverse,
        )
        x, walk = node.input(0).type, AxisWalk.of(node.input(0).type.shape, self.axis)
        forward = walk.inner_size == 1 and not self.reverse
        call = Call(
            CUMULATIVE,
            builder.operands(node, "x"),
            [walk],
            [options],
            inplace=[] if forward else [("y", "x")],
            overlaps=overlap(x, node.output.type, Traversal.forward(x.count)) if forward else [],
            variant=f"{self.name}_{dtype.tag}",
        )
        builder.call(node, call)


@onnx_operator("CumSum", "CumProd", types=_TYPES, kernels=("cumulative",), limits="constant axis")
def _import_cumulative(node: OnnxNode) -> list[Value]:
    """Import CumSum and CumProd. A vector has only one axis, so its axis input may be computed."""
    x = node.input(0)
    computed = node.has(1) and not node.input(1).is_constant
    axis = 0 if computed and x.type.rank == 1 else node.whole(1, "the axis")
    axis = normalize_axis(node, axis, x.type.rank)
    op = Cumulative(node.op_type, axis, bool(node.attr("exclusive", 0)), bool(node.attr("reverse", 0)))
    return [node.emit(op, x)]
