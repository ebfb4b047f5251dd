# SPDX-License-Identifier: Apache-2.0
"""Reductions along axes: mean, sum, extremes, product, norms; and the position of an extreme."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import IntegerForm, Operator, Permutation, Signature
from mcugen.hir.types import Array, DType, Shape, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.program import Access, Param
from mcugen.ops.conversion import Dequantize
from mcugen.ops.fixedpoint import Requantizer
from mcugen.ops.movement import Reshape, axis_walk, dense_strides, normalize_axis
from mcugen.ops.onnx_node import OnnxNode, onnx_operator
from mcugen.ops.pointwise import Binary, Unary

_EIGHT_BITS = (DType.INT8, DType.UINT8)
_WIDE_INTS = (DType.INT32, DType.INT64)


@dataclass(frozen=True)
class Reduction:
    """One row of the table of reductions: numpy reference; C text of the first and of each further step.

    `start` "" means the first element. Integer sums and products wrap: they are unsigned in C.
    """

    reference: Callable[[Array, tuple[int, ...]], Array]
    start: str
    step: str
    ints: tuple[DType, ...] = ()
    wraps: bool = False


REDUCTIONS: dict[str, Reduction] = {
    "mean": Reduction(lambda x, a: x.mean(a, keepdims=True), "0", "acc += v"),
    "sum": Reduction(lambda x, a: x.sum(a, x.dtype, keepdims=True), "0", "acc += v", _WIDE_INTS, wraps=True),
    "prod": Reduction(lambda x, a: x.prod(a, x.dtype, keepdims=True), "1", "acc *= v", _WIDE_INTS, wraps=True),
    "max": Reduction(lambda x, a: x.max(a, keepdims=True), "", "acc = v > acc ? v : acc", _EIGHT_BITS + _WIDE_INTS),
    "min": Reduction(lambda x, a: x.min(a, keepdims=True), "", "acc = v < acc ? v : acc", _EIGHT_BITS + _WIDE_INTS),
    "sumsquare": Reduction(lambda x, a: (x * x).sum(a, keepdims=True), "0", "acc += v * v"),
    "l1": Reduction(lambda x, a: np.abs(x).sum(a, keepdims=True), "0", "acc += fabsf(v)"),
}

_SUMS = ("mean", "sum")
_EXTREMES = ("max", "min")


@dataclass(frozen=True)
class Reduce(Operator):
    """y = reduction of x over `axes`, which stay as dimensions of size 1."""

    function: str = field(default="", repr=False)
    axes: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The function's name."""
        return f"reduce_{self.function}"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """Reduced axes become 1."""
        (x,) = inputs
        assert x is not None
        shape = tuple(1 if axis in self.axes else size for axis, size in enumerate(x.shape))
        return (TensorType(shape, x.dtype, layout=x.layout),)

    def _count(self, x: TensorType) -> int:
        """Elements that one result sees."""
        return math.prod(x.shape[axis] for axis in self.axes)

    def _requantizer(self, sig: Signature) -> Requantizer | None:
        """From an exact int32 sum (or extreme) of x − zero point to the output; None if no scale changes."""
        x, y = sig.input(0), sig.output
        if x.quant is None or y.quant is None or (self.function in _EXTREMES and x.quant == y.quant):
            return None
        is_mean = self.function == "mean"
        count = self._count(x) if is_mean else 1
        return Requantizer.of(x.quant.scale[0] / (y.quant.scale[0] * count), y.quant.zero_point, is_mean)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """The row's numpy reference; quantized tensors by an exact sum and one requantization."""
        (x,) = arrays
        requantize = self._requantizer(sig)
        if requantize is None:
            return (REDUCTIONS[self.function].reference(x, self.axes),)
        centered = x.astype(np.int64) - sig.input(0).q.zero_point
        exact = REDUCTIONS["sum" if self.function in _SUMS else self.function]
        return (requantize(exact.reference(centered, self.axes)).astype(np.int8),)

    def integer(self, graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> IntegerForm | None:
        """int8 mean, sum and extremes whose sums fit 32 bits."""
        x = sig.input(0)
        if x.quant is None or x.dtype is not DType.INT8 or sig.output.dtype is not DType.INT8:
            return None
        fits = self.function in _SUMS + _EXTREMES and self._count(x) < 2**23
        return (self, inputs) if fits else None

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Of single elements: nothing to do."""
        trivial = self.function not in ("sumsquare", "l1") and node.input(0).type.quant == node.output.type.quant
        return node.input(0) if trivial and self._count(node.input(0).type) == 1 else None

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """The axes follow."""
        return Reduce(self.function, tuple(sorted(perm.index(axis) for axis in self.axes))), (perm,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Loops over kept dimensions around loops over reduced ones."""
        x, row = node.input(0).type, REDUCTIONS[self.function]
        kept, reduced = _walks(x.shape, self.axes)
        params: dict[str, Param] = {}
        for letter, walks in (("k", kept), ("r", reduced)):
            for axis, (size, stride) in enumerate(walks):
                params |= {f"{letter}{axis}_size": size, f"{letter}{axis}_stride": stride}
        finish, more, shift = self._finish(node.sig)
        code: dict[str, object] = {
            "what": self.function,
            "kept": len(kept),
            "reduced": len(reduced),
            "x_t": x.dtype.c,
            "y_t": x.dtype.c,
            "acc_t": _accumulator(x.dtype, row),
            "start": row.start,
            "step": row.step,
            "finish": finish,
            "shift": shift,
        }
        variant = f"{self.function}_{x.dtype.tag}"
        operands = [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("y", Access.OUT, builder.buffer(node.output)),
        ]
        builder.emit(node, "reduce", operands, params | more, code=code, variant=variant)

    def _finish(self, sig: Signature) -> tuple[str, dict[str, Param], int]:
        """How an accumulator becomes an output element, the parameters of that, and its shift."""
        requantize = self._requantizer(sig)
        if requantize is None:
            mean = self.function == "mean"
            return ("scale", {"scale": 1.0 / self._count(sig.input(0))}, 0) if mean else ("plain", {}, 0)
        requantize = requantize.for_high_word()
        multiplier = int(requantize.multiplier[0])
        # Σ (x − zero) · m = (Σ x) · m − count · zero · m: the zero point costs nothing
        count = self._count(sig.input(0)) if self.function in _SUMS else 1
        offset = requantize.offset - count * sig.input(0).q.zero_point * multiplier
        more: dict[str, Param] = {"multiplier": multiplier, "offset": offset}
        if requantize.ties_to_even:
            return "average", more | {"y_zero": requantize.zero_point}, requantize.shift
        return "requantize", more, requantize.shift


def _accumulator(dtype: DType, row: Reduction) -> str:
    if dtype.nbytes == 1:
        return "int32_t"
    return f"u{dtype.c}" if row.wraps and not dtype.is_float else dtype.c


Walks = list[tuple[int, int]]


def _walks(shape: Shape, axes: tuple[int, ...]) -> tuple[Walks, Walks]:
    """(size, stride in elements) of kept and of reduced dimensions; neighbours of a kind are merged."""
    merged: list[tuple[int, int, bool]] = []
    for axis, (size, stride) in enumerate(zip(shape, dense_strides(shape), strict=True)):
        if size == 1:
            continue
        is_reduced = axis in axes
        if merged and merged[-1][2] == is_reduced:
            size *= merged.pop()[0]
        merged.append((size, stride, is_reduced))
    kept = [(size, stride) for size, stride, is_reduced in merged if not is_reduced]
    return kept, [(size, stride) for size, stride, is_reduced in merged if is_reduced]


# ------------------------------------------------------------------------------------ position of an extreme


@dataclass(frozen=True)
class Arg(Operator):
    """y = index of the largest (or smallest) element along `axis`, which stays as a dimension of size 1."""

    function: str = field(default="", repr=False)
    axis: int = 0
    last: bool = False
    """Whether the last of several equal elements is meant, not the first."""

    @property
    def name(self) -> str:
        """arg_max or arg_min."""
        return f"arg_{self.function}"

    def infer(self, *inputs: TensorType | None) -> tuple[TensorType, ...]:
        """int64, as in ONNX."""
        (x,) = inputs
        assert x is not None
        shape = (*x.shape[: self.axis], 1, *x.shape[self.axis + 1 :])
        return (TensorType(shape, DType.INT64, layout=x.layout),)

    def evaluate(self, sig: Signature, *arrays: Array) -> tuple[Array, ...]:
        """numpy.argmax or numpy.argmin."""
        x = np.flip(arrays[0], self.axis) if self.last else arrays[0]
        find = np.argmax if self.function == "max" else np.argmin
        index = find(x, self.axis, keepdims=True)
        return (x.shape[self.axis] - 1 - index if self.last else index,)

    def simplify(self, node: Node, graph: Graph) -> Value | None:
        """Dequantizing keeps the order: the integers will do."""
        source = node.input(0).producer
        if source is None or not isinstance(source.op, Dequantize) or source.input(0).type.q.axis is not None:
            return None
        return graph.add(self, [source.input(0)], node.origin, before=node).output

    def permuted(self, sig: Signature, perm: Permutation) -> tuple[Operator, tuple[Permutation | None, ...]] | None:
        """The axis follows."""
        return Arg(self.function, perm.index(self.axis), self.last), (perm,)

    def lower(self, node: Node, builder: Builder) -> None:
        """Rows of `depth` elements, `inner` apart."""
        x = node.input(0).type
        params = axis_walk(x.shape, self.axis)
        beats = (">" if self.function == "max" else "<") + ("=" if self.last else "")
        code = {"what": self.name, "x_t": x.dtype.c, "beats": beats}
        operands = [
            ("x", Access.IN, builder.buffer(node.input(0))),
            ("y", Access.OUT, builder.buffer(node.output)),
        ]
        variant = f"{self.function}_{x.dtype.tag}"
        builder.emit(node, "arg", operands, params, code=code, variant=variant)


# --------------------------------------------------------------------------------------------------- import


def emit_reduce(node: OnnxNode, x: Value, function: str, axes: Sequence[int], suffix: str = "") -> Value:
    """Adds a reduction that keeps dimensions."""
    node.require_dtype(x, DType.FLOAT32, *REDUCTIONS[function].ints)
    return node.emit(Reduce(function, tuple(sorted(axes))), x, suffix=suffix)


def _axes(node: OnnxNode, rank: int) -> list[int]:
    axes = node.ints("axes", 1)
    if not axes:
        return [] if node.attr("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({normalize_axis(node, axis, rank) for axis in axes})


def _without(node: OnnxNode, value: Value, axes: Sequence[int]) -> Value:
    """keepdims=0: the reduced axes dropped."""
    if node.attr("keepdims", 1):
        return value
    return node.emit(Reshape(tuple(s for axis, s in enumerate(value.type.shape) if axis not in axes)), value)


_FUNCTIONS = {
    "ReduceMean": "mean",
    "ReduceSum": "sum",
    "ReduceProd": "prod",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceSumSquare": "sumsquare",
    "ReduceL1": "l1",
}


@onnx_operator(*_FUNCTIONS)
def _import_reduce(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    axes = _axes(node, x.type.rank)
    return [_without(node, emit_reduce(node, x, _FUNCTIONS[node.op_type], axes, "kept"), axes)]


@onnx_operator("ReduceL2", "ReduceLogSum")
def _import_function_of_sum(node: OnnxNode) -> list[Value]:
    """√Σx² and log Σx."""
    function, inner = {"ReduceL2": ("Sqrt", "sumsquare"), "ReduceLogSum": ("Log", "sum")}[node.op_type]
    x = node.input(0)
    node.require_dtype(x, DType.FLOAT32)
    axes = _axes(node, x.type.rank)
    return [_without(node, node.emit(Unary(function), emit_reduce(node, x, inner, axes, "sum"), suffix="kept"), axes)]


@onnx_operator("ReduceLogSumExp")
def _import_log_sum_exp(node: OnnxNode) -> list[Value]:
    """m + log Σ exp(x − m) with m = max x, so that nothing overflows."""
    x = node.input(0)
    node.require_dtype(x, DType.FLOAT32)
    axes = _axes(node, x.type.rank)
    largest = emit_reduce(node, x, "max", axes, "max")
    centered = node.emit(Binary("Sub"), x, largest, suffix="centered")
    total = emit_reduce(node, node.emit(Unary("Exp"), centered, suffix="exp"), "sum", axes, "sum")
    log = node.emit(Unary("Log"), total, suffix="log")
    return [_without(node, node.emit(Binary("Add"), log, largest, suffix="kept"), axes)]


@onnx_operator("ArgMax", "ArgMin")
def _import_arg(node: OnnxNode) -> list[Value]:
    x = node.input(0)
    node.require_dtype(x, DType.FLOAT32, DType.INT32, DType.INT64, *_EIGHT_BITS)
    axis = normalize_axis(node, node.attr("axis", 0), x.type.rank)
    op = Arg(node.op_type[3:].lower(), axis, bool(node.attr("select_last_index", 0)))
    return [_without(node, node.emit(op, x, suffix="kept"), [axis])]
