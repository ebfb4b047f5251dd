# SPDX-License-Identifier: Apache-2.0
"""Normalizations: to the statistics of the tensor itself (layer, instance, group, RMS, Lp) or of a batch."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mcugen.errors import ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Permutation, Signature
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.program import Access, Buffer, Param, real_param
from mcugen.lir.traversal import Traversal, overlap
from mcugen.numerics.fixedpoint import dequantize, inverse_sqrt
from mcugen.ops.conversion import Cast
from mcugen.ops.elementwise import emit_elementwise
from mcugen.ops.movement import Reshape, dense_strides, normalize_axis, reshaped
from mcugen.ops.onnx_node import FLOATS, OnnxNode, Refusal, onnx_operator
from mcugen.ops.pointwise import Binary, Clamp, Unary
from mcugen.ops.reduce import emit_reduce


@dataclass(frozen=True)
class FixedNormalize:
    """Normalization of integers: exact statistics, then three factors of 31 bits, each product cut to its upper word.

    Of the `count` n elements x (zero point subtracted) of a row: S = Σ x (0 if not centered), D = n · Σ x² − S², which
    is n² times the variance, d = n · x − S. Then (x − mean) / √(variance + epsilon) = d / √(D + n² · epsilon), with
    epsilon in squared units of x:

    root · 2^(half − 62) = 1 / √(D · 2^fraction + epsilon)                 (inverse_sqrt)
    v = ((d · 2^lift · root) >> 32) · 2^(half + shift)                     (rounded down)
    q = clamp((((v · gain) >> 32) + bias) >> bits)
    """

    count: int
    centered: bool
    lift: int
    fraction: int
    epsilon: int
    shift: int
    bits: int
    gain: Array
    bias: Array

    @staticmethod
    def of(
        sig: Signature, count: int, epsilon: float, centered: bool, scale: Array | None, bias: Array | None
    ) -> FixedNormalize | None:
        """For these types and constants, or None: rows so long or scales so far apart that precision is lost."""
        x, y = sig.input(0), sig.output
        if x.quant is None or y.quant is None or x.quant.axis is not None or count * _span(x) >= 2**31:
            return None
        if not {x.dtype, y.dtype} <= {DType.INT8, DType.INT16}:
            return None
        floor = epsilon / x.quant.scale[0] ** 2 * count**2
        fraction = math.floor(62 - math.log2((count * _span(x)) ** 2 + floor + 1)) // 2 * 2
        lift = 31 - (count * _span(x)).bit_length()
        root = math.ceil(math.log2(count) / 2)  # |v| < 2^root
        gain, shift = (np.ones(1) if a is None else a.astype(np.float64) / y.quant.scale[0] for a in (scale, bias))
        gain = gain if scale is not None else gain / y.quant.scale[0]
        shift = shift if bias is not None else np.zeros(1)
        reach = 2.0**root * np.abs(gain).max() + np.abs(shift).max() + abs(y.quant.zero_point) + 1
        bits = min(16, math.floor(29 - math.log2(reach)))
        if fraction < 0 or bits < 8:
            return None
        gain, shift = np.broadcast_arrays(gain, shift)
        return FixedNormalize(
            count,
            centered,
            lift,
            fraction,
            round(floor * 2.0**fraction),
            fraction // 2 - lift - root,
            bits,
            np.rint(gain * 2.0 ** (bits + 2 + root)).astype(np.int64),
            np.rint((shift + y.quant.zero_point + 0.5) * 2.0**bits).astype(np.int64),
        )

    def normalized(self, x: Array, axes: tuple[int, ...]) -> Array:
        """v of x, an int64 array, with statistics over `axes`."""
        total = x.sum(axes, keepdims=True) * self.centered
        spread = self.count * (x * x).sum(axes, keepdims=True) - total * total
        root, half = inverse_sqrt(np.where(spread == 0, 0, (spread << self.fraction) + self.epsilon))
        v = ((self.count * x - total) << self.lift) * root >> 32
        shift = np.where(root == 0, 0, half + self.shift)
        result: Array = (v << np.maximum(shift, 0)) >> np.maximum(-shift, 0)
        return result

    def finish(self, v: Array, dtype: DType) -> Array:
        """q, of integer type `dtype`."""
        q: Array = np.clip(((v * self.gain >> 32) + self.bias) >> self.bits, *dtype.limits).astype(dtype.numpy)
        return q


def _span(x: TensorType) -> int:
    """How far apart two elements of an integer tensor can be."""
    low, high = x.dtype.limits
    return high - low


def _as_real(graph: Graph, value: Value | None) -> Value | None:
    """A constant that may come quantized as reals."""
    if value is None or value.data is None or value.type.quant is None:
        return value
    return graph.constant(f"{value.name}.real", dequantize(value.data, value.type.quant))


@dataclass(frozen=True)
class Normalize(Operator):
    """y = (x − mean) / √(variance + epsilon) · scale + bias; mean and variance over `axes`, scale and bias broadcast.

    `groups` = (axis, count): the statistics take in each of `count` equal parts of that axis, too.
    Not `centered`: without the mean, y = x / √(mean of x² + epsilon) · scale + bias.
    """

    mnemonic: ClassVar[str] = "normalize"
    real_inputs: ClassVar[frozenset[int]] = frozenset({1, 2})
    axes: tuple[int, ...] = ()
    epsilon: float = 0.0
    groups: tuple[int, int] | None = None
    centered: bool = True

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """The type of x; scale and bias must broadcast to it."""
        x, *affine = inputs
        assert x is not None
        for t in filter(None, affine):
            if t.rank != x.rank or any(a not in (1, b) for a, b in zip(t.shape, x.shape, strict=True)):
                found = f"{t.shape} for {x.shape}"
                raise ModelError("normalize: scale and bias must broadcast to the input", found, "repair the model")
        return (TensorType(x.shape, x.dtype, layout=x.layout),)

    def _view(self, shape: Shape) -> tuple[Shape, tuple[int, ...]]:
        """`shape` with the grouped axis in two (groups, part), and the axes of the statistics there."""
        if self.groups is None:
            return shape, self.axes
        axis, count = self.groups
        parted = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
        return parted, tuple(sorted([axis + 1, *(a + (a > axis) for a in self.axes)]))

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """By the formula, in float64; integers by FixedNormalize."""
        shape, axes = self._view(sig.input(0).shape)
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
        """The axes follow."""
        axes = tuple(sorted(perm.index(axis) for axis in self.axes))
        groups = self.groups and (perm.index(self.groups[0]), self.groups[1])
        return Normalize(axes, self.epsilon, groups, self.centered), (perm,) * len(sig.inputs)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """int8 or int16 with constant scale and bias, which stay reals here."""
        affine = [_as_real(graph, v) for v in inputs[1:]]
        if any(v is not None and v.data is None for v in affine):
            return None
        operands = [inputs[0], *affine]
        types = tuple(v.type if v else None for v in operands)
        arrays = [v.data for v in affine if v is not None and v.data is not None]
        return (self, operands) if self._fixed(Signature(types, sig.outputs), arrays) is not None else None

    def _affine(self, sig: Signature, arrays: Sequence[Array]) -> tuple[Array | None, Array | None]:
        """Scale and bias, of which `arrays` holds those that are present."""
        given = iter(arrays)
        scale, bias = (None if t is None else next(given) for t in (*sig.inputs, None, None)[1:3])
        return scale, bias

    def _fixed(self, sig: Signature, arrays: Sequence[Array]) -> FixedNormalize | None:
        shape, axes = self._view(sig.input(0).shape)
        rows = math.prod(shape[a] for a in axes)
        return FixedNormalize.of(sig, rows, self.epsilon, self.centered, *self._affine(sig, arrays))

    def lower(self, node: Node, builder: Builder) -> None:
        """Loops over rows of equal statistics around loops within them; the result may overwrite the input."""
        if node.output.type.quant is not None:
            self._lower_fixed(node, builder)
            return
        x = node.input(0).type
        given = {name: i for i, name in ((1, "scale"), (2, "bias")) if len(node.inputs) > i and node.inputs[i]}
        roles = {"x": 0} | given
        shape, axes = self._view(x.shape)
        params: dict[str, Param] = {
            "share": real_param(1.0 / math.prod(shape[a] for a in axes), x.dtype),
            "epsilon": real_param(self.epsilon, x.dtype),
        }
        code: dict[str, object] = {
            "what": self._formula(given),
            "t": x.dtype.c,
            "f": "" if x.dtype is DType.FLOAT64 else "f",
            "centered": self.centered,
            **{name: name in given for name in ("scale", "bias")},
            **{f"{name}_{letter}": "" for name in ("scale", "bias") for letter in "kr"},
        }
        self._walk(x.shape, {role: node.input(i).type.shape for role, i in roles.items()}, params, code)
        operands: list[tuple[str, Access, Buffer]] = [
            (role, Access.IN, builder.buffer(node.input(i))) for role, i in roles.items()
        ]
        operands.append(("y", Access.OUT, builder.buffer(node.output)))
        self._emit(node, builder, "normalize", operands, params, code, x.dtype.tag)

    def _lower_fixed(self, node: Node, builder: Builder) -> None:
        """The same loops over integers; each element has a gain and a bias of its own, or shares them."""
        x, y, name = node.input(0).type, node.output.type, node.output.name
        arrays = [v.data for v in node.inputs[1:] if v is not None and v.data is not None]
        fixed = self._fixed(node.sig, arrays)
        assert fixed is not None
        params: dict[str, Param] = {
            **{"count": fixed.count, "x_zero": x.q.zero_point, "lift": 1 << fixed.lift, "fraction": fixed.fraction},
            **{"epsilon": fixed.epsilon, "point": fixed.shift, "bits": fixed.bits},
        }
        code: dict[str, object] = {
            **{"what": self._formula(()), "x_t": x.dtype.c, "y_t": y.dtype.c, "centered": self.centered},
            "wide": fixed.count * _span(x) ** 2 >= 2**31,
        }
        affine = fixed.gain.reshape((1,) * (x.rank - fixed.gain.ndim) + fixed.gain.shape).shape
        self._walk(x.shape, {"x": x.shape, "gain": affine}, params, code)
        operands = [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("gain", Access.IN, builder.const(f"{name}.gain", fixed.gain.astype(np.int32))),
            ("bias", Access.IN, builder.const(f"{name}.bias", fixed.bias.astype(np.int32))),
            ("y", Access.OUT, builder.buffer(node.output)),
        ]
        variant = x.dtype.tag if x.dtype is y.dtype else f"{x.dtype.tag}_{y.dtype.tag}"
        self._emit(node, builder, "normalize_int", operands, params, code, variant)

    def _emit(
        self,
        node: Node,
        builder: Builder,
        kernel: str,
        operands: Sequence[tuple[str, Access, Buffer]],
        params: Mapping[str, Param],
        code: Mapping[str, object],
        variant: str,
    ) -> None:
        """Rows in one piece are walked forward; else each element is at least replaced where it lies."""
        x, y = node.input(0).type, node.output.type
        shape, axes = self._view(x.shape)
        within = [axis in axes for axis, size in enumerate(shape) if size != 1]
        forward = within == sorted(within)
        builder.emit(
            node,
            kernel,
            operands,
            params,
            code=code,
            inplace=[("y", "x")] if x.dtype is y.dtype and not forward else [],
            overlaps=overlap(x, y, Traversal.forward(x.count)) if forward else [],
            variant=variant,
        )

    def _walk(self, full: Shape, roles: Mapping[str, Shape], params: dict[str, Param], code: dict[str, object]) -> None:
        """Adds the loops: their sizes, and by role the index in each of the two nests."""
        shape, axes = self._view(full)
        walks = _walks(shape, axes, [self._strides(role, full) for role in roles.values()])
        for letter, counter, dims in (("k", "i", walks[0]), ("r", "j", walks[1])):
            code[letter] = len(dims)
            params |= {f"{letter}{axis}_size": size for axis, (size, _) in enumerate(dims)}
            for n, role in enumerate(roles):
                terms = []
                for axis, stride in ((axis, dim[1][n]) for axis, dim in enumerate(dims) if dim[1][n]):
                    name = f"{letter}{axis}_{role}"
                    params |= {name: stride} if stride > 1 else {}
                    terms.append(f"{counter}{axis}" + (f" * p->{name}" if stride > 1 else ""))
                code[f"{role}_{letter}"] = " + ".join(terms)

    def _formula(self, given: Container[str]) -> str:
        text = "(x - mean) / sqrt(variance + epsilon)" if self.centered else "x / sqrt(mean(x * x) + epsilon)"
        return text + (" * scale" if "scale" in given else "") + (" + bias" if "bias" in given else "")

    def _strides(self, shape: Shape, full: Shape) -> list[int]:
        """Strides of a tensor that broadcasts to `full`, in the view."""
        dense = dense_strides(shape)
        strides = [0 if s == 1 and f != 1 else stride for s, f, stride in zip(shape, full, dense, strict=True)]
        if self.groups is not None:
            axis, count = self.groups
            strides.insert(axis, strides[axis] * (full[axis] // count))
        return strides


Walk = tuple[int, tuple[int, ...]]


def _walks(shape: Shape, axes: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[Walk], list[Walk]]:
    """(size, stride of each operand) of the dimensions kept and of those of the statistics; neighbours merged."""
    merged: list[tuple[int, tuple[int, ...], bool]] = []
    for axis, size in enumerate(shape):
        steps, inner = tuple(row[axis] for row in strides), axis in axes
        if size == 1:
            continue
        if merged and merged[-1][2] == inner and merged[-1][1] == tuple(size * s for s in steps):
            size *= merged.pop()[0]
        merged.append((size, steps, inner))
    return [m[:2] for m in merged if not m[2]], [m[:2] for m in merged if m[2]]


# --------------------------------------------------------------------------------------------------- import


def _per_channel(node: OnnxNode, value: Value, rank: int) -> Value:
    """One number a channel, aligned with axis 1."""
    return reshaped(node, value, (1, value.type.count) + (1,) * (rank - 2), f"{value.name}.aligned")


def _trailing(node: OnnxNode, index: int, x: TensorType) -> Value | None:
    """An optional scale or bias, aligned with the last axes."""
    if not node.has(index):
        return None
    value = node.input(index)
    node.require_dtype(value, x.dtype)
    return reshaped(node, value, (1,) * (x.rank - value.type.rank) + value.type.shape, f"{value.name}.aligned")


def _statistics(node: OnnxNode, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Mean and variance over `axes`, which stay as dimensions of size 1."""
    mean = emit_reduce(node, x, "mean", axes, "mean")
    centered = node.emit(Binary("Sub"), x, mean, suffix="centered")
    return mean, emit_reduce(node, node.emit(Binary("Mul"), centered, centered, suffix="square"), "mean", axes, "var")


def _inverse_deviation(node: OnnxNode, variance: Value, suffix: str = "inverse") -> Value:
    """1 / √(variance + epsilon)."""
    epsilon = node.constant("epsilon", np.asarray(node.attr("epsilon", 1e-5), variance.type.dtype.numpy))
    root = node.emit(Unary("Sqrt"), node.emit(Binary("Add"), variance, epsilon, suffix="shifted"), suffix="deviation")
    return node.emit(Unary("Reciprocal"), root, suffix=suffix)


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
        found = "the inverse deviation"
        raise Refusal(f"{node.op_type}: only the result is computed", found, "export the model for inference")
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
    if x.type.rank < 2:
        raise Refusal(f"{node.op_type}: the input must have channels", f"shape {x.type.shape}", "repair the model")
    groups = None
    if node.op_type == "GroupNormalization":
        channels, count = x.type.shape[1], int(node.attr("num_groups", 0))
        if count < 1 or channels % count:
            found = f"{count} groups of {channels} channels"
            raise Refusal("GroupNormalization: groups must be of equal size", found, "repair the model")
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
    if p not in (1, 2):
        raise Refusal("LpNormalization: p must be 1 or 2", f"{p}", "repair the model")
    norm = emit_reduce(node, x, "l1" if p == 1 else "sumsquare", [axis], "sum")
    norm = norm if p == 1 else node.emit(Unary("Sqrt"), norm, suffix="norm")
    least = float(np.finfo(x.type.dtype.numpy).tiny)
    return [node.emit(Binary("Div"), x, node.emit(Clamp(low=least), norm, suffix="nonzero"))]


@onnx_operator("BatchNormalization", types=FLOATS, kernels=("elementwise", "normalize", "reduce"))
def _import_batch_normalization(node: OnnxNode) -> list[Value]:
    """A multiplication and an addition per channel, which fold_affine folds; in training mode by the batch."""
    x = node.input(0)
    channels = x.type.shape[1] if x.type.rank > 1 else 1
    for parameter in (node.input(i) for i in range(1, 5)):
        if parameter.type.shape != (channels,):
            found = f"'{parameter.name}' has shape {parameter.type.shape}"
            raise Refusal(f"BatchNormalization: each channel has one parameter: {channels}", found, "repair the model")
    if node.attr("training_mode", 0):
        return _batch_training(node)
    if any(node.outputs[1:]):
        remedy = "export the model for inference"
        raise Refusal("BatchNormalization: only training mode has more than one output", str(len(node.outputs)), remedy)
    rank = node.input(0).type.rank
    if all(node.input(i).is_constant for i in range(1, 5)):
        factor, shift = _constant_affine(node)
    else:
        gamma, beta, mean, variance = (node.input(i) for i in range(1, 5))
        factor = node.emit(Binary("Mul"), gamma, _inverse_deviation(node, variance), suffix="scale")
        shift = node.emit(Binary("Mul"), mean, factor, suffix="offset")
        shift = node.emit(Binary("Sub"), beta, shift, suffix="shift")
    scaled = emit_elementwise(node, Binary("Mul"), node.input(0), _per_channel(node, factor, rank), suffix="scaled")
    return [emit_elementwise(node, Binary("Add"), scaled, _per_channel(node, shift, rank))]


def _constant_affine(node: OnnxNode) -> tuple[Value, Value]:
    gamma, beta, mean, variance = (node.const(i, "statistics").astype(np.float64) for i in range(1, 5))
    scale = gamma / np.sqrt(variance + float(node.attr("epsilon", 1e-5)))
    dtype = node.input(0).type.dtype.numpy
    return node.constant("scale", scale.astype(dtype)), node.constant("shift", (beta - mean * scale).astype(dtype))


def _batch_training(node: OnnxNode) -> list[Value]:
    """Normalized by its own statistics, of which the running ones take in a share of 1 − momentum."""
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
