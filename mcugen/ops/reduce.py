# SPDX-License-Identifier: Apache-2.0
"""Reductions along axes: mean, sum, extremes, product, norms; and the position of an extreme."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mcugen.hir.crop import Box, Crop, replaced
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import (
    Channels,
    FunctionFamily,
    IntegerForm,
    Operator,
    Permutation,
    RowForm,
    RowWindow,
    Signature,
)
from mcugen.hir.traits import Channelwise, Croppable, Permutable, Quantizable, Rowwise, Simplifiable
from mcugen.hir.types import Array, DType, Shape, TensorType, required
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.kernels.portable.pool import (
    MAX_POOL,
    AverageSpec,
    PoolSpec,
    call_average_pool,
    call_max_pool,
    call_mean_of_sums,
    call_row_sums,
)
from mcugen.kernels.portable.reduce import (
    ARG,
    REDUCE,
    ArgOptions,
    FinishParams,
    ReduceOptions,
    arg_order,
    nests_of,
    walks_of,
)
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call
from mcugen.lir.program import Wide, real_param
from mcugen.lir.spec import HasKernels
from mcugen.lir.traversal import Traversal, nested_positions, overlap
from mcugen.numerics.fixedpoint import Requantizer, has_same_quantization, is_quantized, max_code_magnitude
from mcugen.numerics.tflite_arithmetic import AwayMean, rounds_as_tflite
from mcugen.numerics.window import Window
from mcugen.ops.conversion import Cast, Dequantize
from mcugen.ops.movement import Reshape, normalize_axis
from mcugen.ops.onnx_node import OnnxNode, onnx_operator
from mcugen.ops.pointwise import Binary, Unary

_INTEGERS = tuple(dtype for dtype in DType if dtype.is_integer)


@dataclass(frozen=True)
class Reduction:
    """One of the functions of `Reduce`, in numpy and as C text.

    Integer sums and products wrap. Extremes of floats are NaN if an element is NaN, as in numpy.

    Attributes:
        reference: The function in numpy, of an array and axes.
        start: C expression of the initial value; "" to start with the first element.
        step: C statement that adds one element to a result of floats.
        ints: C statement that adds one element to a result of integers or bool; "" if the function has none.
        wraps: Whether integers are added as unsigned numbers in C.
    """

    reference: Callable[[Array, tuple[int, ...]], Array]
    start: str
    step: str
    ints: str = ""
    wraps: bool = False


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """Return the mean; for integers truncated toward zero."""
    if x.dtype.kind not in "iu":
        return np.asarray(x.mean(axes, keepdims=True))
    wide = x.sum(axes, np.int64 if x.dtype.kind == "i" else np.uint64, keepdims=True)
    count = x.size // max(wide.size, 1)
    floor, remainder = wide // count, wide % count
    return np.asarray(floor + ((remainder != 0) & (wide < 0))).astype(x.dtype)


def _extreme(function: str) -> Callable[[Array, tuple[int, ...]], Array]:
    """Return the numpy reference of max or min; the extreme of no elements is the neutral element."""

    def extreme(x: Array, axes: tuple[int, ...]) -> Array:
        if x.dtype.kind == "f":
            lowest, highest = -np.inf, np.inf
        else:
            lowest, highest = (0, 1) if x.dtype.kind == "b" else DType.of(x).limits
        reduced = (
            x.max(axes, keepdims=True, initial=lowest)
            if function == "max"
            else x.min(axes, keepdims=True, initial=highest)
        )
        return np.asarray(reduced, x.dtype)

    return extreme


_ADD = "acc += v"

REDUCTIONS: dict[str, Reduction] = {
    "mean": Reduction(_mean, "0", _ADD, _ADD, wraps=True),
    "sum": Reduction(lambda x, a: x.sum(a, x.dtype, keepdims=True), "0", _ADD, _ADD, wraps=True),
    "prod": Reduction(lambda x, a: x.prod(a, x.dtype, keepdims=True), "1", "acc *= v", "acc *= v", wraps=True),
    "max": Reduction(_extreme("max"), "", "acc = v <= acc || acc != acc ? acc : v", "acc = v > acc ? v : acc"),
    "min": Reduction(_extreme("min"), "", "acc = v >= acc || acc != acc ? acc : v", "acc = v < acc ? v : acc"),
    "sumsquare": Reduction(
        lambda x, a: (x * x).sum(a, x.dtype, keepdims=True), "0", "acc += v * v", "acc += v * v", wraps=True
    ),
    "l1": Reduction(lambda x, a: np.abs(x).sum(a, keepdims=True), "0", "acc += fabs{f}(v)"),
}
"""The functions of `Reduce`, by name."""

_SUMS = ("mean", "sum")
_EXTREMES = ("max", "min")


class Reduce(HasKernels, Quantizable, Permutable, Channelwise, Croppable, Rowwise, Simplifiable, FunctionFamily):
    """y = reduction of x over `axes`, which stay as dimensions of size 1."""

    spelling: ClassVar[str] = "reduce_{}"
    functions: ClassVar[Collection[str]] = REDUCTIONS
    axes: tuple[int, ...] = ()

    @property
    def moves_data(self) -> bool:  # type: ignore[override]
        """Return whether each result is an element of the input, as it is for minimum and maximum."""
        return self.function in _EXTREMES

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: length 1 along the reduced axes; minimum and maximum keep the quantization."""
        (x,) = required(inputs)
        shape = tuple(1 if axis in self.axes else size for axis, size in enumerate(x.shape))
        quant = x.quant if self.moves_data and x.quant is not None and x.quant.axis is None else None
        return (TensorType(shape, x.dtype, quant, x.layout),)

    def _count(self, x: TensorType) -> int:
        """Return the number of elements that one result depends on."""
        return math.prod(x.shape[axis] for axis in self.axes)

    def _requantizer(self, sig: Signature) -> Requantizer | None:
        """Return the requantizer from an exact int32 sum (zero point subtracted) to the output.

        Return None if no scale changes.
        """
        x, y = sig.input(0), sig.output
        if x.quant is None or y.quant is None or self.moves_data:
            return None
        is_mean = self.function == "mean"
        count = self._count(x) if is_mean else 1
        if is_mean and rounds_as_tflite(y):
            return AwayMean.by(np.asarray([count]), y.quant.zero_point)
        factor = x.quant.scale[0] / (y.quant.scale[0] * count)
        sums = np.asarray([self._count(x) * max_code_magnitude(x.dtype)]) if x.dtype is DType.INT16 else None
        return Requantizer.of(factor, y.quant.zero_point, is_mean, sums)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output with numpy.

        A sum or mean of quantized elements with a quantized result is an exact integer sum that is requantized once, as
        in the C code. All other reductions are computed by the numpy reference of their function.
        """
        (x,) = arrays
        requantize = self._requantizer(sig)
        if requantize is None:
            return (REDUCTIONS[self.function].reference(x, self.axes),)
        centered = x.astype(np.int64) - sig.input(0).q.zero_point
        q = requantize(REDUCTIONS["sum"].reference(centered, self.axes), *sig.output.dtype.limits)
        return (q.astype(sig.output.dtype.numpy),)

    @property
    def rises(self) -> bool:
        """Return whether the reduction is monotone (larger elements never decrease it): sum, mean or extreme."""
        return self.function in _SUMS + _EXTREMES

    def channels(self, sig: Signature) -> Channels | None:
        """Map each output channel to the input channel of the same index, for channel pruning.

        Return None if the last axis, which counts channels, is reduced.
        """
        last = sig.input(0).rank - 1
        return None if last < 0 or last in self.axes else Channels((np.arange(sig.output.shape[last]),), lambda _: self)

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the operator itself, which computes some results from all elements along the reduced axes."""
        shape = node.input(0).type.shape
        return Crop(self, region, (replaced(region, [(axis, range(shape[axis])) for axis in self.axes]),))

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """Return the reduction of quantized tensors; None if there is no integer form.

        It exists for a mean or sum that fits 32 bits, and for a minimum or maximum with one scale.
        """
        x = sig.input(0)
        if self.moves_data:
            return (self, inputs) if has_same_quantization(x, sig.output) else None
        if not is_quantized(x) or not is_quantized(sig.output):
            return None
        fits = self.function in _SUMS and self._count(x) < 2 ** (31 - 8 * x.dtype.nbytes)
        return (self, inputs) if fits else None

    def by_rows(self, sig: Signature) -> RowForm | None:
        """Return how to compute the mean of an int8 image (channels last) row by row (line-buffer fusion), or None.

        Each step adds one row to sums by channel; the mean is computed from the final sums.
        """
        x = sig.input(0)
        is_image = x.rank in (3, 4) and x.shape[0] == 1 and self.axes in ((1,), (1, 2))
        if not is_image or not self.is_pool(sig):
            return None
        window = RowWindow(2 if x.rank == 4 and x.shape[1] == 1 and self.axes == (1, 2) else 1)
        return RowForm(RowSums(), (window,), finish=MeanOfSums(self, x))

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return the input of a reduction of single elements; else None."""
        trivial = self.function not in ("sumsquare", "l1") and has_same_quantization(
            node.input(0).type, node.output.type
        )
        return node.input(0) if trivial and self._count(node.input(0).type) == 1 else None

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Return the reduction that computes the output transposed by `perm`, and the permutation of x.

        The result always exists: the axes move with the transposition.
        """
        return Reduce(self.function, tuple(sorted(perm.index(axis) for axis in self.axes))), (perm,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to loops over kept axes around loops over reduced axes."""
        x, y = node.input(0).type, node.output.type
        if not builder.any_size:
            if x.dtype is DType.INT8 and (average := self.spec(node)) is not None:
                return call_average_pool(node, builder, average)
            if (largest := self._max_pool(node.sig)) is not None:
                return call_max_pool(node, builder, largest)
        kept, reduced = walks_of(x.shape, self.axes)
        finish, numbers, shift = self._finish(node.sig)
        row, limits = (
            REDUCTIONS[self.function],
            y.dtype.limits if finish in ("average", "requantize", "away") else (0, 0),
        )
        options = ReduceOptions(
            what=self.function,
            kept=len(kept),
            reduced=len(reduced),
            x_t=x.dtype.c,
            y_t=y.dtype.c,
            acc_t=_accumulator(x.dtype, row, self.function == "mean" and x.quant is None),
            start=row.start,
            step=row.step.format(f="" if x.dtype is DType.FLOAT64 else "f") if x.dtype.is_float else row.ints,
            finish=finish,
            shift=shift,
            low=limits[0],
            high=limits[1],
        )
        order = Traversal.runs(nested_positions(*(np.arange(size) * stride for size, stride in kept)), 1)
        call = Call(
            REDUCE,
            builder.operands(node, "x"),
            [nests_of(kept, reduced), numbers],
            [options],
            overlaps=overlap(x, y, order),
            variant=f"{self.function}_{x.dtype.tag}" + f"_to_{y.dtype.tag}" * (x.dtype is not y.dtype),
        )
        builder.call(node, call)

    def is_pool(self, sig: Signature) -> bool:
        """Return whether the reduction is a mean over all pixels of int8 images, which average-pool kernels compute."""
        return sig.input(0).dtype is DType.INT8 and self.is_mean_of_images(sig)

    def is_mean_of_images(self, sig: Signature) -> bool:
        """Return whether the reduction is a quantized mean over all pixels of each image, as average pools compute."""
        return self.function == "mean" and self._images(sig) is not None and self._requantizer(sig) is not None

    def _images(self, sig: Signature) -> Shape | None:
        """Return the input as (images, pixels, channels) if the reduction covers all pixels; else None."""
        kept, reduced = walks_of(sig.input(0).shape, self.axes)
        if len(reduced) != 1 or not 1 <= len(kept) <= 2 or kept[-1][1] != 1:
            return None
        return math.prod(size for size, _ in kept[:-1]), reduced[0][0], kept[-1][0]

    def spec(self, node: Node) -> AverageSpec | None:
        """Return the types, window and divisor of the average pool that equals this mean, to choose kernels from.

        The window covers a whole image. The result is None if the reduction is no quantized mean over all pixels of
        images.
        """
        sig = node.sig
        if not self.is_mean_of_images(sig):
            return None
        pool = self._pool(sig)
        assert pool is not None
        requantize, count = self._requantizer(sig), math.prod(pool.kernel)
        rows = pool.x, pool.y, pool.window, pool.kernel
        return AverageSpec(*rows, divisor="fixed", requantize=requantize, taps=count)

    def _pool(self, sig: Signature) -> PoolSpec | None:
        """One window a row of pixels, where it goes over those of images."""
        images = self._images(sig)
        if images is None:
            return None
        batch, count, channels = images
        x, y = sig.input(0).with_shape(images), sig.output.with_shape((batch, 1, channels))
        return PoolSpec(x, y, Window((1,), (0,), (0,), (1,)), (count,))

    def _max_pool(self, sig: Signature) -> PoolSpec | None:
        """Return the specification of the equal maximum pool of integers; None if there is none.

        Reals have none, since pools ignore NaN.
        """
        x = sig.input(0)
        return self._pool(sig) if self.function == "max" and x.dtype.is_integer and x.dtype in MAX_POOL else None

    def _finish(self, sig: Signature) -> tuple[str, FinishParams, int]:
        """Return how an accumulator becomes an output element: the template's case, its parameters, and the shift."""
        requantize = self._requantizer(sig)
        if requantize is None:
            x = sig.input(0)
            if self.function != "mean" or x.quant is not None:
                return "plain", FinishParams(), 0
            if x.dtype.is_float:
                return "scale", FinishParams(scale=real_param(1.0 / self._count(x), x.dtype)), 0
            return f"divide_{'signed' if x.dtype.limits[0] else 'unsigned'}", FinishParams(mean_size=self._count(x)), 0
        if isinstance(requantize, AwayMean):
            return "away", FinishParams(mean_size=self._count(sig.input(0))), 0
        requantize = requantize.for_high_word()
        multiplier = int(requantize.multiplier[0])
        # Σ (x − zero) · m = (Σ x) · m − count · zero · m: the zero point costs nothing
        count = self._count(sig.input(0))
        offset = Wide(requantize.offset - count * sig.input(0).q.zero_point * multiplier)
        if not requantize.ties_to_even:
            return "requantize", FinishParams(multiplier=multiplier, requantize_offset=offset), requantize.shift
        finish = FinishParams(multiplier=multiplier, requantize_offset=offset, y_zero_point=requantize.zero_point)
        return "average", finish, requantize.shift


def _accumulator(dtype: DType, row: Reduction, widest: bool) -> str:
    if dtype.is_float:
        return dtype.c
    if dtype.nbytes < 4 and not widest:
        return "int32_t"
    return ("uint64_t" if dtype.nbytes == 8 or widest else "uint32_t") if row.wraps else dtype.c


class RowSums(Operator):
    """Running sums of an image by channel, to compute a mean row by row: y = sums + the sum of one more row.

    The inputs are the quantized row (channels last) and the int32 sums by channel.
    """

    mnemonic: ClassVar[str] = "row_sums"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: int32 sums by channel."""
        (x,) = required(inputs[:1])
        return (TensorType((*(1,) * (x.rank - 1), x.shape[-1]), DType.INT32),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the sums in exact int32."""
        x, sums = arrays
        return (sums + x.sum(tuple(range(x.ndim - 1)), dtype=np.int32, keepdims=True),)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that updates the sums in place."""
        call_row_sums(node, builder)


class MeanOfSums(Operator):
    """The mean of a quantized image, computed from the image's sums per channel, which are the input.

    Attributes:
        mean: The reduction that the operator replaces.
        x: Type of the image.
    """

    mnemonic: ClassVar[str] = "mean_of_sums"
    mean: Reduce = field(default_factory=Reduce, repr=False)
    x: TensorType = field(default=TensorType((), DType.INT8))

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: that of the mean."""
        return self.mean.infer(self.x)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the mean by requantizing the sums, with one rounding."""
        total = arrays[0].astype(np.int64) - self.mean._count(self.x) * self.x.q.zero_point
        requantize = self._requantizer(sig)
        return (requantize(total, *sig.output.dtype.limits).astype(sig.output.dtype.numpy),)

    def _requantizer(self, sig: Signature) -> Requantizer:
        requantize = self.mean._requantizer(Signature((self.x,), sig.outputs))
        assert requantize is not None
        return requantize

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a loop over the channels."""
        call_mean_of_sums(node, builder, self._requantizer(node.sig), self.mean._count(self.x), self.x)


# ------------------------------------------------------------------------------------ position of an extreme


class Arg(Permutable, Croppable, Simplifiable, FunctionFamily):
    """y = index of the largest (or smallest) element along `axis`, which stays as an axis of size 1.

    Attributes:
        axis: The axis.
        last: Whether ties give the last index; else the first.
    """

    spelling: ClassVar[str] = "arg_{}"
    functions: ClassVar[Collection[str]] = ("max", "min")
    axis: int = 0
    last: bool = False

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Return the output's type: int64 indices with one element along the axis."""
        (x,) = required(inputs)
        shape = (*x.shape[: self.axis], 1, *x.shape[self.axis + 1 :])
        return (TensorType(shape, DType.INT64, layout=x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """Compute the output by numpy.argmax or numpy.argmin."""
        x = np.flip(arrays[0], self.axis) if self.last else arrays[0]
        find = np.argmax if self.function == "max" else np.argmin
        index = find(x, self.axis, keepdims=True)
        return (x.shape[self.axis] - 1 - index if self.last else index,)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Return Arg(q) for Arg(Dequantize(q)), since dequantization keeps the order of elements; else None."""
        source = node.input(0).producer
        if source is None or not isinstance(source.op, Dequantize) or source.input(0).type.q.axis is not None:
            return None
        return graph.add(self, [source.input(0)], node.origin, before=node).output

    def cropped(self, node: Node, region: Box) -> Crop | None:
        """Return the operator itself, which computes some results from all elements along the axis."""
        return Crop(self, region, (replaced(region, {self.axis: range(node.input(0).type.shape[self.axis])}),))

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """Return the operator that computes the output transposed by `perm`, and the permutation of x.

        The result always exists: the axis moves with the transposition.
        """
        return Arg(self.function, perm.index(self.axis), self.last), (perm,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Lower to a kernel that finds the extreme of each row of elements along the axis."""
        x, y, walk = node.input(0), node.output, AxisWalk.of(node.input(0).type.shape, self.axis)
        beats = (">" if self.function == "max" else "<") + ("=" if self.last else "")
        call = Call(
            ARG,
            {"x": builder.buffer(x), "y": builder.buffer(y)},
            [walk],
            [ArgOptions(what=self.name, x_t=x.type.dtype.c, beats=beats)],
            overlaps=overlap(x.type, y.type, arg_order(walk)),
            variant=f"{self.function}_{x.type.dtype.tag}",
        )
        builder.call(node, call)


# --------------------------------------------------------------------------------------------------- import


def emit_reduce(node: OnnxNode, x: Value, function: str, axes: Sequence[int], suffix: str = "") -> Value:
    """Add a reduction that keeps reduced axes with length 1, and return its output.

    Args:
        node: The ONNX node that is imported.
        x: Tensor to reduce.
        function: Name of the reduction, a key of REDUCTIONS.
        axes: Axes to reduce.
        suffix: End of the output's name; "" for the ONNX node's own output.
    """
    row = REDUCTIONS[function]
    bools = (DType.BOOL,) if function in _EXTREMES else ()
    node.require_dtype(x, DType.FLOAT32, DType.FLOAT64, *(_INTEGERS + bools if row.ints else ()))
    return node.emit(Reduce(function, tuple(sorted(axes))), x, suffix=suffix)


def _axes(node: OnnxNode, x: TensorType) -> list[int]:
    declared = node.declared[0] if node.declared else None
    computed = node.has(1) and node.input(1).data is None
    keeps = node.attr("keepdims", 1) and not node.attr("noop_with_empty_axes", 0)
    if computed and keeps and declared is not None and declared.rank == x.rank:
        return [axis for axis, size in enumerate(declared.shape) if size == 1]  # of length 1: no difference
    axes = node.ints("axes", 1)
    if not axes:
        return [] if node.attr("noop_with_empty_axes", 0) else list(range(x.rank))
    return sorted({normalize_axis(node, axis, x.rank) for axis in axes})


def _without(node: OnnxNode, value: Value, axes: Sequence[int]) -> Value:
    """Drop the reduced axes (keepdims=0)."""
    if node.attr("keepdims", 1):
        return value
    return node.emit(Reshape(tuple(s for axis, s in enumerate(value.type.shape) if axis not in axes)), value)


_LIMITS = "computed axes need `keepdims` and a declared output shape"
_FUNCTIONS = {
    "ReduceMean": "mean",
    "ReduceSum": "sum",
    "ReduceProd": "prod",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceSumSquare": "sumsquare",
    "ReduceL1": "l1",
}


@onnx_operator(*_FUNCTIONS, kernels=("reduce",), limits=_LIMITS)
def _import_reduce(node: OnnxNode) -> list[Value]:
    x, function = node.input(0), _FUNCTIONS[node.op_type]
    axes = _axes(node, x.type)
    if function == "l1" and not x.type.dtype.is_float:
        x, function = node.emit(Unary("Abs"), x, suffix="abs"), "sum"
    return [_without(node, emit_reduce(node, x, function, axes, "kept"), axes)]


@onnx_operator("ReduceL2", "ReduceLogSum", kernels=("reduce", "elementwise"), limits=_LIMITS)
def _import_function_of_sum(node: OnnxNode) -> list[Value]:
    """√Σx² and log Σx."""
    function, inner = {"ReduceL2": ("Sqrt", "sumsquare"), "ReduceLogSum": ("Log", "sum")}[node.op_type]
    x = node.input(0)
    axes = _axes(node, x.type)
    total = _real(node, emit_reduce(node, x, inner, axes, "sum"))
    return [_without(node, _cut(node, node.emit(Unary(function), total, suffix="kept"), x), axes)]


@onnx_operator("ReduceLogSumExp", kernels=("reduce", "elementwise"), limits=_LIMITS)
def _import_log_sum_exp(node: OnnxNode) -> list[Value]:
    """m + log Σ exp(x − m) with m = max x where that is finite, so that nothing overflows."""
    x = _real(node, node.input(0))
    axes = _axes(node, x.type)
    largest = node.emit(Unary("FiniteOrZero"), emit_reduce(node, x, "max", axes, "max"), suffix="origin")
    centered = node.emit(Binary("Sub"), x, largest, suffix="centered")
    total = emit_reduce(node, node.emit(Unary("Exp"), centered, suffix="exp"), "sum", axes, "sum")
    log = node.emit(Unary("Log"), total, suffix="log")
    result = node.emit(Binary("Add"), log, largest, suffix="kept")
    return [_without(node, _cut(node, result, node.input(0)), axes)]


def _real(node: OnnxNode, value: Value) -> Value:
    """Integers as double."""
    return value if value.type.dtype.is_float else node.emit(Cast(DType.FLOAT64), value, suffix="real")


def _cut(node: OnnxNode, value: Value, like: Value) -> Value:
    """Convert a real result to the operand's type, if that is an integer type."""
    same = value.type.dtype is like.type.dtype
    return value if same else node.emit(Cast(like.type.dtype), value, suffix="cut")


@onnx_operator("ArgMax", "ArgMin", kernels=("arg",))
def _import_arg(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    node.require_dtype(x, DType.FLOAT32, DType.FLOAT64, *_INTEGERS)
    axis = normalize_axis(node, node.attr("axis", 0), x.type.rank)
    op = Arg(node.op_type[3:].lower(), axis, bool(node.attr("select_last_index", 0)))
    return [_without(node, node.emit(op, x, suffix="kept"), [axis])]


@onnx_operator("Hardmax", kernels=("arg", "elementwise"))
def _import_hardmax(node: OnnxNode) -> list[Value]:
    """1 at the first maximum along an axis, 0 elsewhere: an index compared with all indices."""
    x = node.input(0)
    axis = normalize_axis(node, node.attr("axis", -1), x.type.rank)
    shape = [1] * x.type.rank
    shape[axis] = -1
    indices = node.constant("indices", np.arange(x.type.shape[axis]).reshape(shape))
    largest = node.emit(Arg("max", axis), x, suffix="largest")
    return [node.emit(Cast(x.type.dtype), node.emit(Binary("Equal"), largest, indices, suffix="is"))]
