# SPDX-License-Identifier: Apache-2.0
"""Normalizations: to the statistics of the tensor itself (layer, instance, group, RMS, Lp) or of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

import numpy as np

from mcugen.core.errors import ModelError
from mcugen.hir.crop import Box, Crop, broadcast_box, replaced
from mcugen.hir.graph import Graph, Node, Value, constant_data
from mcugen.hir.operator import IntegerForm, Operator, Permutation, RowForm, Signature, each_row, row_axis
from mcugen.hir.traits import Croppable, Permutable, Quantizable, Rowwise
from mcugen.hir.types import Array, DType, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import dense_strides
from mcugen.kernels.portable.normalize import NormalizedRows, call_normalize, call_normalize_codes
from mcugen.lir.builder import Builder
from mcugen.numerics.fixedpoint import dequantize
from mcugen.numerics.normalize import FixedNormalize, ShortNormalize
from mcugen.ops.conversion import Cast, Dequantize
from mcugen.ops.elementwise import emit_elementwise
from mcugen.ops.movement import Reshape, normalize_axis, reshaped
from mcugen.ops.onnx_node import FLOATS, OnnxNode, Refusal, onnx_operator
from mcugen.ops.pointwise import Binary, Clamp, Unary
from mcugen.ops.reduce import emit_reduce


def _as_real(graph: Graph, value: Value | None) -> Value | None:
    """Return a constant as reals, dequantized if it is quantized."""
    if value is None or value.data is None or value.type.quant is None:
        return value
    return graph.constant(f"{value.name}.real", dequantize(value.data, value.type.quant), of=[value])


class Normalize(Quantizable, Permutable, Croppable, Rowwise, Operator):
    """y = (x − mean) / √(variance + epsilon) · scale + bias, with mean and variance over `axes`.

    Scale and bias are optional inputs that broadcast to x.

    Attributes:
        axes: Axes over which mean and variance are taken.
        epsilon: Number that is added to the variance.
        groups: An axis and the number of its equal parts that have their own statistics; None for no parts.
        centered: Whether the mean is subtracted; if False, y = x / √(mean of x² + epsilon) · scale + bias.
        is_short: Whether int8 tensors are computed as NPUs can, by tables and products (`ShortNormalize`).
    """

    mnemonic: ClassVar[str] = "normalize"
    real_inputs: ClassVar[frozenset[int]] = frozenset({1, 2})
    axes: tuple[int, ...] = ()
    epsilon: float = 0.0
    groups: tuple[int, int] | None = None
    centered: bool = True
    is_short: bool = field(default=False, kw_only=True)

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to normalize row by row (for line-buffer fusion); None if impossible.

        Mean and variance must not span several rows, and all rows must share scale and bias.
        """
        axis = row_axis(sig.output.shape)
        affine = [t for t in sig.inputs[1:] if t is not None]
        if axis is None or self.groups or min(self.axes) <= axis or any(t.shape[axis] > 1 for t in affine):
            return None
        return each_row(self, sig, [i == 0 for i in range(len(sig.inputs))])

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the operator itself for some elements of the axes without statistics.

        In fixed point, one shift suits all scales and biases, so that axes along which these vary stay whole.
        """
        fixed_axes = {*self.axes, *(self.groups or ())[:1]}
        if node.output.type.quant is not None:
            affine = [t for t in node.sig.inputs[1:] if t is not None]
            fixed_axes |= {axis for t in affine for axis, size in enumerate(t.shape) if size > 1}
        writes = replaced(region, [(axis, range(node.output.type.shape[axis])) for axis in fixed_axes])
        reads = tuple(None if v is None else broadcast_box(writes, v.type.shape) for v in node.inputs)
        return Crop(self, writes, reads)

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x; scale and bias must broadcast to it."""
        x, *affine = inputs
        assert x is not None
        for t in filter(None, affine):
            if t.rank != x.rank or any(a not in (1, b) for a, b in zip(t.shape, x.shape, strict=True)):
                shapes = f"{t.shape} for {x.shape}"
                raise ModelError("normalize: scale and bias must broadcast to the input", shapes, "repair the model")
        return (TensorType(x.shape, x.dtype, layout=x.layout),)

    def view(self, shape: Shape) -> tuple[Shape, tuple[int, ...]]:
        """Return the shape in which an axis is split into groups with separate statistics, and the axes of statistics.

        Mean and variance are taken over the axes of statistics. Without groups, the results are `shape` and `axes`.

        Args:
            shape: Shape of the tensor. The axis of the groups becomes two axes: the group, and the index within the
                group.
        """
        if self.groups is None:
            return shape, self.axes
        axis, count = self.groups
        parted = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
        return parted, tuple(sorted([axis + 1, *(a + (a > axis) for a in self.axes)]))

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute (x − mean) / √(variance + epsilon) · scale + bias in float64, or in fixed point for quantized x."""
        shape, axes = self.view(sig.input(0).shape)
        if self.is_short:
            short, x = self.short(sig, arrays[1:]), arrays[0]
            assert short is not None
            x = x.reshape(-1, short.count).astype(np.int64) - (0 if self.centered else sig.input(0).q.zero_point)
            return (short(x).reshape(sig.output.shape),)
        if sig.output.quant is not None:
            fixed = self._fixed(sig, arrays[1:])
            assert fixed is not None
            v = fixed.normalized(arrays[0].reshape(shape).astype(np.int64) - sig.input(0).q.zero_point, axes)
            return (fixed.finish(v.reshape(sig.output.shape), sig.output.dtype),)
        x = arrays[0].astype(np.float64).reshape(shape)
        x = x - x.mean(axes, keepdims=True) if self.centered else x
        y = x / np.sqrt((x * x).mean(axes, keepdims=True) + self.epsilon)
        y = y.reshape(sig.output.shape)
        scale, bias = self._affine(sig, arrays[1:])
        y = y if scale is None else y * scale
        return ((y if bias is None else y + bias).astype(arrays[0].dtype),)

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Return the normalization that computes the output transposed by `perm`, and the permutation of each input."""
        axes = tuple(sorted(perm.index(axis) for axis in self.axes))
        groups = self.groups and (perm.index(self.groups[0]), self.groups[1])
        return replace(self, axes=axes, groups=groups), (perm,) * len(sig.inputs)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return this operator with its inputs for int8 or int16 tensors, which it also normalizes; None if impossible.

        Scale and bias must be constant; they stay real numbers.
        """
        affine = [_as_real(graph, v) for v in inputs[1:]]
        if any(v is not None and v.data is None for v in affine):
            return None
        operands = [inputs[0], *affine]
        types = tuple(v.type if v else None for v in operands)
        arrays = constant_data(affine)
        return (self, operands) if self._fixed(Signature(types, sig.outputs), arrays) is not None else None

    def _affine(self, sig: Signature, arrays: Sequence[Array]) -> tuple[Array | None, Array | None]:
        """Scale and bias, of which `arrays` holds those that are present."""
        present_arrays = iter(arrays)
        scale, bias = (None if t is None else next(present_arrays) for t in (*sig.inputs, None, None)[1:3])
        return scale, bias

    def _fixed(self, sig: Signature, arrays: Sequence[Array]) -> FixedNormalize | None:
        shape, axes = self.view(sig.input(0).shape)
        rows = math.prod(shape[a] for a in axes)
        return FixedNormalize.of(sig, rows, self.epsilon, self.centered, *self._affine(sig, arrays))

    def short(self, sig: Signature, arrays: Sequence[Array]) -> ShortNormalize | None:
        """Return the normalization by tables and products; None if there is none, as for rows that are not contiguous.

        Args:
            sig: The types of the operands and of the output.
            arrays: Scale and bias, if present.
        """
        shape, first = sig.input(0).shape, min(self.axes)
        is_row = self.groups is None and sorted(self.axes) == list(range(first, len(shape)))
        if not is_row or any(math.prod(a.shape[:first]) > 1 for a in arrays):
            return None
        count = math.prod(shape[first:])
        scale, bias = self._affine(sig, arrays)
        if any(a is not None and a.size not in (1, count) for a in (scale, bias)):
            return None
        return ShortNormalize.of(sig, count, self.epsilon, self.centered, scale, bias)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to loops over rows of equal statistics; the result may overwrite the input."""
        x, y = node.input(0).type, node.output.type
        if y.quant is None:
            indices_by_role = {"x": 0} | {
                r: i for r, i in (("scale", 1), ("bias", 2)) if len(node.inputs) > i and node.inputs[i]
            }
            shapes = {role: node.input(i).type.shape for role, i in indices_by_role.items()}
            return call_normalize(node, builder, self._rows(x, y, shapes), self.epsilon, indices_by_role)
        fixed = self._fixed(node.sig, constant_data(node.inputs[1:]))
        assert fixed is not None
        gain = (1,) * (x.rank - fixed.gain.ndim) + fixed.gain.shape
        return call_normalize_codes(node, builder, self._rows(x, y, {"x": x.shape, "gain": gain}), fixed)

    def _rows(self, x: TensorType, y: TensorType, shapes: Mapping[str, Shape]) -> NormalizedRows:
        """Return how kernels iterate over operands of these shapes, by role."""
        strides = {role: self._strides(shape, x.shape) for role, shape in shapes.items()}
        return NormalizedRows(x, y, *self.view(x.shape), self.centered, strides)

    def _strides(self, shape: Shape, full: Shape) -> list[int]:
        """Strides of a tensor that broadcasts to `full`, in the view."""
        dense = dense_strides(shape)
        strides = [0 if s == 1 and f != 1 else stride for s, f, stride in zip(shape, full, dense, strict=True)]
        if self.groups is not None:
            axis, count = self.groups
            strides.insert(axis, strides[axis] * (full[axis] // count))
        return strides


class BatchNormalize(Operator):
    """y = (x − mean) / √(variance + epsilon) · scale + bias, all per channel (axis 1).

    Only models that are trained on the device contain this operator. Once mcugen.training knows which running
    statistics training changes, it replaces the operator by arithmetic. For all other models, the import does so.

    Attributes:
        epsilon: Number that is added to the variance.
        momentum: Share of the old running mean and variance that an update keeps.
    """

    mnemonic: ClassVar[str] = "batch_normalize"
    epsilon: float = 1e-5
    momentum: float = 0.9

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of x."""
        (x,) = required(inputs[:1])
        return (x,)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute (x − mean) / √(variance + epsilon) · scale + bias for each channel in float64."""
        x, *parameters = (a.astype(np.float64) for a in arrays)
        columns = (-1, *(1,) * (x.ndim - 2))
        scale, bias, mean, variance = (p.reshape(columns) for p in parameters)
        y = (x - mean) / np.sqrt(variance + self.epsilon) * scale + bias
        return (y.astype(arrays[0].dtype),)


# --------------------------------------------------------------------------------------------------- import


def _per_channel(node: OnnxNode, value: Value, rank: int) -> Value:
    """Return a constant with one number per channel in a shape aligned with axis 1."""
    return reshaped(node, value, (1, value.type.count) + (1,) * (rank - 2), f"{value.name}.aligned")


def _trailing(node: OnnxNode, index: int, x: TensorType) -> Value | None:
    """Return an optional scale or bias, aligned with the last axes."""
    if not node.has(index):
        return None
    value = node.input(index)
    node.require_dtype(value, x.dtype)
    return reshaped(node, value, (1,) * (x.rank - value.type.rank) + value.type.shape, f"{value.name}.aligned")


def _statistics(node: OnnxNode, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Return mean and variance over `axes`, which stay with length 1."""
    mean = emit_reduce(node, x, "mean", axes, "mean")
    centered = node.emit(Binary("Sub"), x, mean, suffix="centered")
    return mean, emit_reduce(node, node.emit(Binary("Mul"), centered, centered, suffix="square"), "mean", axes, "var")


def _inverse_deviation(node: OnnxNode, variance: Value) -> Value:
    """Return 1 / √(variance + epsilon)."""
    epsilon = node.constant("epsilon", np.asarray(node.attr("epsilon", 1e-5), variance.type.dtype.numpy))
    root = node.emit(Unary("Sqrt"), node.emit(Binary("Add"), variance, epsilon, suffix="shifted"), suffix="deviation")
    return node.emit(Unary("Reciprocal"), root, suffix="inverse")


@onnx_operator(
    "LayerNormalization",
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    types=FLOATS,
    kernels=("normalize", "normalize_int", "reduce"),
)
def _import_trailing(node: OnnxNode) -> list[Value]:
    """Over the last axes; mean and inverse deviation are computed apart where the model wants them."""
    x = node.input(0)
    axes = tuple(range(normalize_axis(node, node.attr("axis", -1), x.type.rank), x.type.rank))
    centered = node.op_type == "LayerNormalization"
    op = Normalize(axes, float(node.attr("epsilon", 1e-5)), centered=centered)
    if not centered and any(node.outputs[1:]):
        refused_output = "the inverse deviation"
        raise Refusal(f"{node.op_type}: only the result is computed", refused_output, "export the model for inference")
    results = [node.emit(op, x, _trailing(node, 1, x.type), _trailing(node, 2, x.type))]
    if centered and any(node.outputs[1:]):
        mean, variance = _statistics(node, x, axes)
        for value in (mean, _inverse_deviation(node, variance)):
            stash = value if node.attr("stash_type", 1) != 1 or value.type.dtype is DType.FLOAT32 else None
            results.append(stash or node.emit(Cast(DType.FLOAT32), value, suffix=f"stash{len(results)}"))
    return results


@onnx_operator("InstanceNormalization", "GroupNormalization", types=FLOATS, kernels=("normalize", "normalize_int"))
def _import_channels(node: OnnxNode) -> list[Value]:
    """Over the spatial axes, and a group of channels; one scale a channel."""
    x, affine = node.input(0), [node.input(1), node.input(2)]
    node.require(x.type.rank >= 2, "the input must have channels", f"shape {x.type.shape}")
    groups = None
    if node.op_type == "GroupNormalization":
        channels, count = x.type.shape[1], int(node.attr("num_groups", 0))
        if count < 1 or channels % count:
            mismatch = f"{count} groups of {channels} channels"
            raise Refusal("GroupNormalization: groups must be of equal size", mismatch, "repair the model")
        groups = (1, count)
    op = Normalize(tuple(range(2, x.type.rank)), float(node.attr("epsilon", 1e-5)), groups)
    return [node.emit(op, x, *(_per_channel(node, value, x.type.rank) for value in affine))]


@onnx_operator("MeanVarianceNormalization", types=FLOATS, kernels=("normalize", "normalize_int"))
def _import_mean_variance(node: OnnxNode) -> list[Value]:
    """ONNX adds 10⁻⁹ to the deviation: 10⁻¹⁸ below the root does the same for a constant tensor."""
    x = node.input(0)
    axes = {normalize_axis(node, axis, x.type.rank) for axis in node.attr("axes", (0, 2, 3))}
    return [node.emit(Normalize(tuple(sorted(axes)), 1e-18), x)]


@onnx_operator("LpNormalization", types=FLOATS, kernels=("reduce", "elementwise"))
def _import_lp(node: OnnxNode) -> list[Value]:
    """x / norm; zero where the norm is."""
    x, p = node.input(0), int(node.attr("p", 2))
    axis = normalize_axis(node, node.attr("axis", -1), x.type.rank)
    node.require(p in (1, 2), "p must be 1 or 2", f"{p}")
    norm = emit_reduce(node, x, "l1" if p == 1 else "sumsquare", [axis], "sum")
    norm = norm if p == 1 else node.emit(Unary("Sqrt"), norm, suffix="norm")
    smallest_normal = float(np.finfo(x.type.dtype.numpy).tiny)
    return [node.emit(Binary("Div"), x, node.emit(Clamp(low=smallest_normal), norm, suffix="nonzero"))]


LARGE_MEAN = 4.0
"""Smallest ratio of mean to standard deviation for which a batch normalization subtracts the mean before it scales, for
precision.

With smaller means, scale and shift are folded to one multiplication and one addition.
"""


@onnx_operator("BatchNormalization", types=FLOATS, kernels=("elementwise", "normalize", "reduce"))
def _import_batch_normalization(node: OnnxNode) -> list[Value]:
    """Import BatchNormalization as a multiplication and an addition per channel, which fold_affine folds.

    In training mode it normalizes by the batch's statistics.
    """
    x = node.input(0)
    channels = x.type.shape[1] if x.type.rank > 1 else 1
    for parameter in (node.input(i) for i in range(1, 5)):
        if parameter.type.shape != (channels,):
            mismatch = f"'{parameter.name}' has shape {parameter.type.shape}"
            raise Refusal(
                f"BatchNormalization: each channel has one parameter: {channels}", mismatch, "repair the model"
            )
    if node.attr("training_mode", 0):
        return _batch_training(node)
    if any(node.outputs[1:]):
        remedy = "export the model for inference"
        raise Refusal("BatchNormalization: only training mode has more than one output", str(len(node.outputs)), remedy)
    rank = node.input(0).type.rank
    is_constant = all(node.input(i).is_constant for i in range(1, 5))
    if is_constant and node.graph.keeps_statistics and x.type.dtype is DType.FLOAT32:
        op = BatchNormalize(float(node.attr("epsilon", 1e-5)), float(node.attr("momentum", 0.9)))
        return [node.emit(op, *(node.input(i) for i in range(5)))]
    known = [_known(node.input(i)) for i in range(1, 5)]
    mean: Value | None = None
    if all(numbers is not None for numbers in known):
        mean, factor, shift = _constant_affine(node, *(n.astype(np.float64) for n in known if n is not None))
    else:
        gamma, shift, mean, variance = (node.input(i) for i in range(1, 5))
        factor = node.emit(Binary("Mul"), gamma, _inverse_deviation(node, variance), suffix="scale")
    if mean is not None:
        x = emit_elementwise(node, Binary("Sub"), x, _per_channel(node, mean, rank), suffix="centered")
    scaled = emit_elementwise(node, Binary("Mul"), x, _per_channel(node, factor, rank), suffix="scaled")
    return [emit_elementwise(node, Binary("Add"), scaled, _per_channel(node, shift, rank))]


def _known(value: Value) -> Array | None:
    """Return the numbers of a constant, or of a quantized one behind its Dequantize."""
    source = value.producer
    stored = source.input(0) if source is not None and isinstance(source.op, Dequantize) else None
    return value.data if stored is None or stored.data is None else dequantize(stored.data, stored.type.q)


def _constant_affine(
    node: OnnxNode, gamma: Array, beta: Array, mean: Array, variance: Array
) -> tuple[Value | None, Value, Value]:
    """Return the mean, the scale and the shift of (x − mean) · scale + shift.

    The mean is None, and taken into the shift, where it is small: x · scale + (shift − mean · scale) is off by at most
    2⁻²² · |mean · scale|. That is a few ulp of what the result usually is, as far from `beta` as `gamma` says.
    """
    scale = gamma / np.sqrt(variance + float(node.attr("epsilon", 1e-5)))
    is_large = np.abs(mean * scale) > LARGE_MEAN * np.maximum(np.abs(gamma), np.abs(beta))
    shift = beta if is_large.any() else beta - mean * scale
    dtype = node.input(0).type.dtype.numpy
    names = {"mean": mean, "scale": scale, "shift": shift} if is_large.any() else {"scale": scale, "shift": shift}
    of = {"mean": [3], "scale": [1, 4], "shift": [2] if is_large.any() else [2, 3, 1, 4]}
    values = {
        name: node.constant(name, array.astype(dtype), of=[node.input(i) for i in of[name]])
        for name, array in names.items()
    }
    return values.get("mean"), values["scale"], values["shift"]


def _batch_training(node: OnnxNode) -> list[Value]:
    """Normalize by the batch's statistics, and update the running statistics by a share of 1 − momentum."""
    x = node.input(0)
    rank = x.type.rank
    axes = (0, *range(2, rank))
    op = Normalize(axes, float(node.attr("epsilon", 1e-5)))
    results = [node.emit(op, x, *(_per_channel(node, node.input(i), rank) for i in (1, 2)))]
    if not any(node.outputs[1:]):
        return results
    momentum = float(node.attr("momentum", 0.9))
    for index, current in enumerate(_statistics(node, x, axes), 3):
        old = node.input(index)
        kept = node.constant(f"momentum{index}", np.asarray(momentum, old.type.dtype.numpy))
        fresh = node.constant(f"share{index}", np.asarray(1 - momentum, old.type.dtype.numpy))
        current = node.emit(Reshape(old.type.shape), current, suffix=f"current{index}")
        parts = [node.emit(Binary("Mul"), old, kept, suffix=f"old{index}")]
        parts.append(node.emit(Binary("Mul"), current, fresh, suffix=f"new{index}"))
        results.append(node.emit(Binary("Add"), *parts, suffix=f"running{index}"))
    return results
