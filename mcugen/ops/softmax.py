# SPDX-License-Identifier: Apache-2.0
"""Softmax and its logarithm along one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from mcugen.hir.crop import Box, Crop, broadcast_box, replaced
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Permutation, RowForm, Signature, each_row, row_axis
from mcugen.hir.traits import Croppable, Permutable, Quantizable, Rowwise, Saturating, Simplifiable
from mcugen.hir.types import Array, DType, TensorType, required
from mcugen.kernels.portable.softmax import SoftmaxSpec, call_softmax
from mcugen.lir.builder import Builder
from mcugen.lir.spec import HasKernels
from mcugen.numerics.softmax import FixedLogSoftmax, FixedSoftmax, ShortSoftmax
from mcugen.numerics.tflite_arithmetic import TfliteSoftmax, rounds_as_tflite
from mcugen.ops.movement import normalize_axis
from mcugen.ops.onnx_node import OnnxNode, onnx_operator


class Softmax(HasKernels, Quantizable, Permutable, Croppable, Rowwise, Saturating, Simplifiable, Operator):
    """y = exp(x − max) / Σ exp(x − max) along an axis, or its logarithm.

    A softmax along the last axis may have a constant mask as second input: bools in the shape of x, except for leading
    axes of length 1. Elements that it hides count as −∞.

    Attributes:
        axis: The axis.
        log: Whether y is the logarithm.
        is_short: Whether int8 tensors are computed as NPUs can, by integers of 16 bits (`ShortSoftmax`).
    """

    axis: int = 0
    log: bool = False
    is_short: bool = field(default=False, kw_only=True)

    @classmethod
    def spelled(cls) -> Mapping[str, Mapping[str, object]]:
        """Return the mnemonics softmax and log_softmax with the value of `log`."""
        return {"softmax": {"log": False}, "log_softmax": {"log": True}}

    @property
    def name(self) -> str:
        """Return the name: softmax or log_softmax."""
        return "log_softmax" if self.log else "softmax"

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute the softmax row by row (for line-buffer fusion); None if impossible.

        The softmax must not be taken across rows, and there must be no mask.
        """
        axis = row_axis(sig.output.shape)
        return None if axis is None or self.axis <= axis or len(sig.inputs) > 1 else each_row(self, sig, [True])

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the operator itself for some rows, each of which has all elements along the axis."""
        writes = replaced(region, {self.axis: range(node.output.type.shape[self.axis])})
        reads = tuple(None if v is None else broadcast_box(writes, v.type.shape) for v in node.inputs)
        return Crop(self, writes, reads)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: the input's shape in its float type."""
        (x,) = required(inputs[:1])
        return (TensorType(x.shape, x.dtype, layout=x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the softmax in the input's float type, or in fixed point."""
        x, visible = arrays[0], arrays[1] if len(arrays) > 1 else None
        fixed = self._fixed(sig) if sig.output.quant is not None else None
        if isinstance(fixed, FixedSoftmax):
            return (fixed(x, self.axis, visible),)
        if fixed is not None:
            return (fixed(x, self.axis),)
        assert not self.is_short
        x = x if visible is None else np.where(visible, x, x.dtype.type(-np.inf))
        centered = x - x.max(self.axis, keepdims=True)
        e = np.exp(centered)
        total = e.sum(self.axis, keepdims=True)
        return (centered - np.log(total) if self.log else e / total,)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the softmax of quantized tensors, with its inputs; None if it is too imprecise.

        It looks exponentials up in tables.
        """
        return (self, inputs) if self._fixed(sig) is not None else None

    def short(self, sig: Signature) -> ShortSoftmax | None:
        """Return the softmax by integers of 16 bits; None if there is none for the types, or if this is no softmax."""
        return None if self.log or len(sig.inputs) > 1 else ShortSoftmax.of(sig, self.axis)

    def _fixed(self, sig: Signature) -> FixedSoftmax | FixedLogSoftmax | TfliteSoftmax | ShortSoftmax | None:
        if self.is_short:
            return self.short(sig)
        if rounds_as_tflite(sig.output):
            return None if self.log or len(sig.inputs) > 1 else TfliteSoftmax.of(sig, self.axis)
        return FixedLogSoftmax.of(sig, self.axis) if self.log else FixedSoftmax.of(sig, self.axis)

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Return the softmax that gives the output transposed by `perm`, and the permutation of x; None with a mask."""
        return None if len(sig.inputs) > 1 else (replace(self, axis=perm.index(self.axis)), (perm,))

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return a constant of ones for quantized rows of one element (attention to a single position); else None.

        Real rows are computed, since their elements may be NaN. So are outputs of the model, since a library such as
        CMSIS-NN may round 1 differently.
        """
        sig, y = node.sig, node.output
        if (
            graph.is_output(y)
            or len(sig.inputs) > 1
            or y.type.shape[self.axis] > 1
            or y.type.quant is None
            or self._fixed(sig) is None
        ):
            return None
        (codes,) = self.evaluate(sig, np.zeros(y.type.shape, sig.input(0).dtype.numpy))
        return graph.constant(f"{y.name}.one", codes, y.type.quant)

    def spec(self, node: Node) -> SoftmaxSpec:
        """Return the types, the axis and the mask's type of the softmax, from which kernels are chosen."""
        mask = node.input(1).type if len(node.inputs) > 1 else None
        return SoftmaxSpec(node.input(0).type, node.output.type, self.axis, self.log, mask)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that computes row by row."""
        call_softmax(node, builder, self.spec(node))


@onnx_operator("Softmax", kernels=("softmax_f32", "softmax_f64", "softmax_s8", "softmax_s8_dsp", "softmax_s16"))
@onnx_operator("LogSoftmax", kernels=("log_softmax_f32", "log_softmax_f64", "log_softmax_s8", "log_softmax_s16"))
def _import_softmax(node: OnnxNode) -> list[Value]:
    node.require_dtype(node.input(0), DType.FLOAT32, DType.FLOAT64)
    axis = normalize_axis(node, node.attr("axis", -1), node.input(0).type.rank)
    return [node.emit(Softmax(axis, node.op_type == "LogSoftmax"), node.input(0))]
