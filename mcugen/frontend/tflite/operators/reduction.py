# SPDX-License-Identifier: Apache-2.0
"""Operators that combine elements along axes, products of matrices, and resizing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcugen.frontend.tflite.flatbuffer import TableBase, scalar
from mcugen.frontend.tflite.node import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, TfliteNode, tflite_operator, wrapped_axis
from mcugen.frontend.tflite.schema import BOOL


@dataclass(frozen=True)
class ReducerOptions(TableBase):
    """Options of reductions."""

    UNION = 27
    keeps_axes: int = scalar(0, "B")


@dataclass(frozen=True)
class CumulativeSumOptions(TableBase):
    """Options of CUMSUM."""

    UNION = 102
    is_exclusive: int = scalar(0, "B")
    is_reversed: int = scalar(1, "B")


@dataclass(frozen=True)
class MatrixProductOptions(TableBase):
    """Options of BATCH_MATMUL."""

    UNION = 101
    transposes_left: int = scalar(0, "B")
    transposes_right: int = scalar(1, "B")


@dataclass(frozen=True)
class BilinearOptions(TableBase):
    """Options of RESIZE_BILINEAR."""

    UNION = 15
    aligns_corners: int = scalar(2, "B")
    has_half_pixels: int = scalar(3, "B")


class ResizeNearestOptions(BilinearOptions):
    """Options of RESIZE_NEAREST_NEIGHBOR."""

    UNION = 74
    ORDER = "aligns_corners has_half_pixels"


@dataclass(frozen=True)
class LocalNormalizationOptions(TableBase):
    """Options of LOCAL_RESPONSE_NORMALIZATION."""

    UNION = 13
    radius: int = scalar(0)
    bias: float = scalar(1, "f", default=0.0)
    alpha: float = scalar(2, "f", default=0.0)
    beta: float = scalar(3, "f", default=0.0)


_REDUCTIONS = {
    **{"MEAN": "ReduceMean", "SUM": "ReduceSum", "REDUCE_PROD": "ReduceProd"},
    **{"REDUCE_MAX": "ReduceMax", "REDUCE_MIN": "ReduceMin", "REDUCE_ANY": "ReduceMax", "REDUCE_ALL": "ReduceMin"},
}


@tflite_operator(*_REDUCTIONS, becomes=_REDUCTIONS, limits="constant axes")
def _build_reduction(node: TfliteNode) -> None:
    rank, keeps = len(node.input(0).shape), bool(node.options(ReducerOptions).keeps_axes)
    axes = sorted({wrapped_axis(node, axis, rank) for axis in node.integers(1)})
    (value,), finish = node.move(0) if "REDUCE_M" in node.operator.kind else ([node.real(0)], node.finish)
    if axes and rank:
        value = node.emit(_REDUCTIONS[node.operator.kind], value, node.constant(axes, "axes"), keepdims=int(keeps))
    finish(value)


@tflite_operator("ARG_MAX", "ARG_MIN", becomes={"ARG_MAX": "ArgMax", "ARG_MIN": "ArgMin"}, limits="a constant axis")
def _build_arg(node: TfliteNode) -> None:
    axes = node.integers(1)
    node.require(len(axes) == 1, f"{len(axes)} axes")
    axis = wrapped_axis(node, axes[0], len(node.input(0).shape))
    op_type = "ArgMax" if node.operator.kind == "ARG_MAX" else "ArgMin"
    value = node.real(0) if node.input(0).type is BOOL else node.stored(0)
    value = node.emit(op_type, value, axis=axis, keepdims=0)
    if node.output().type.onnx != TensorProto.INT64:
        value = node.emit("Cast", value, to=node.output().type.onnx)
    node.finish_stored(value)


@tflite_operator("TOPK_V2", becomes="TopK", limits="a constant count")
def _build_top(node: TfliteNode) -> None:
    (value,), finish = node.move(0)
    values, places = node.emit_all("TopK", [value, node.constant(node.integers(1), "count")], 2, axis=-1)
    finish(values)
    if node.output(1).type.onnx != TensorProto.INT64:
        places = node.emit("Cast", places, to=node.output(1).type.onnx)
    node.finish_stored(places, 1)


@tflite_operator("CUMSUM", becomes="CumSum", limits="a constant axis")
def _build_cumulative_sum(node: TfliteNode) -> None:
    options, axes = node.options(CumulativeSumOptions), node.integers(1)
    node.require(len(axes) == 1, f"{len(axes)} axes")
    axis = node.constant([wrapped_axis(node, axes[0], len(node.input(0).shape))], "axis")
    flags = {"exclusive": int(bool(options.is_exclusive)), "reverse": int(bool(options.is_reversed))}
    node.finish(node.emit("CumSum", node.real(0), axis, **flags))


@tflite_operator("BATCH_MATMUL", becomes="MatMul")
def _build_matrix_product(node: TfliteNode) -> None:
    options = node.options(MatrixProductOptions)
    factors = []
    for index, is_transposed in enumerate((options.transposes_left, options.transposes_right)):
        rank = len(node.input(index).shape)
        node.require(rank > 1, f"rank {rank} of a matrix")
        perm = (*range(rank - 2), rank - 1, rank - 2) if is_transposed else ()
        factors.append(node.real(index, perm))
    node.finish(node.emit("MatMul", *factors))


@tflite_operator("LOCAL_RESPONSE_NORMALIZATION", becomes="AveragePool, Pow, Div")
def _build_local_normalization(node: TfliteNode) -> None:
    """Build x / (bias + alpha · sum)^beta with the squares of the channels from c - radius to c + radius - 1.

    ONNX's LRN has other channels in windows of an even size.
    """
    options, x = node.options(LocalNormalizationOptions), node.input(0)
    node.require(len(x.shape) == 4 and x.count > 0, f"shape {list(x.shape)}")
    node.require(0 <= options.radius < 1 << 12, f"radius {options.radius}")
    value, total = node.real(0), node.constant(float(options.bias), "bias")
    if options.radius:
        rows = node.constant([x.count // x.shape[3], 1, x.shape[3]], "rows")
        squares = node.emit("Reshape", node.emit("Mul", value, value), rows)
        window = {"kernel_shape": [2 * options.radius], "pads": [options.radius, options.radius - 1]}
        means = node.emit("AveragePool", squares, count_include_pad=1, **window)
        means = node.emit("Mul", means, node.constant(float(2 * options.radius * options.alpha), "alpha"))
        total = node.emit("Add", node.emit("Reshape", means, node.shape_of(x)), total)
    power = node.emit("Pow", total, node.constant(float(options.beta), "beta"))
    node.finish(node.emit("Div", value, power))


_SEGMENTS = {
    "SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_SUM": "add",
    "UNSORTED_SEGMENT_PROD": "mul",
    "UNSORTED_SEGMENT_MAX": "max",
    "UNSORTED_SEGMENT_MIN": "min",
}
"""The function of ScatterND that combines rows of the same segment, by operator."""


@tflite_operator(*_SEGMENTS, becomes="ScatterND", limits="a constant number of segments")
def _build_segments(node: TfliteNode) -> None:
    x, ids, y = node.input(0), node.input(1), node.output()
    rank = len(ids.shape)
    node.require(rank > 0 and x.shape[:rank] == ids.shape and y.shape[1:] == x.shape[rank:], "other shapes of segments")
    if node.operator.kind != "SEGMENT_SUM":
        node.require(y.shape[:1] == tuple(node.integers(2)), f"shape {list(y.shape)} of the result")
    rows, row = [ids.count], list(x.shape[rank:])
    value = node.emit("Reshape", node.real(0), node.constant(rows + row, "rows"))
    places = node.emit("Cast", node.stored(1), to=TensorProto.INT64)
    places = node.emit("Reshape", places, node.constant([ids.count, 1], "places"))
    outside = node.constant(np.asarray(y.shape[0], np.int64), "outside")  # Rows of negative segments are left out.
    is_negative = node.emit("Less", places, node.constant(np.asarray(0, np.int64), "zero"))
    places = node.emit("Where", is_negative, outside, places)
    how = _SEGMENTS[node.operator.kind]
    kind = np.dtype(np.float32) if node.is_real(x) else x.type.array
    limits = np.finfo(np.float32) if kind.kind == "f" else np.iinfo(kind.name)
    first = {"add": 0, "mul": 1, "max": limits.min, "min": limits.max}[how]
    begin = node.constant(np.full([y.shape[0] + 1, *row], first, kind), "begin")
    value = node.emit("ScatterND", begin, places, value, reduction=how)
    bounds = [node.constant([n], what) for n, what in ((0, "begin"), (y.shape[0], "end"), (0, "axis"))]
    node.finish(node.emit("Slice", value, *bounds))


@tflite_operator("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", becomes="Resize")
def _build_resize(node: TfliteNode) -> None:
    x, y, is_linear = node.input(0), node.output(), node.operator.kind == "RESIZE_BILINEAR"
    node.require(len(x.shape) == len(y.shape) == 4, f"rank {len(x.shape)} of an image")
    options = node.options(BilinearOptions) if is_linear else node.options(ResizeNearestOptions)
    node.require(not (options.aligns_corners and options.has_half_pixels), "two kinds of alignment")
    batch, height, width, channels = y.shape
    node.require((batch, channels) == (x.shape[0], x.shape[3]) and y.count > 0, f"shape {list(y.shape)}")
    mode = "half_pixel" if options.has_half_pixels else "align_corners" if options.aligns_corners else "asymmetric"
    rounding = "floor" if mode == "asymmetric" else "round_prefer_ceil"
    kind = {"mode": "linear"} if is_linear else {"mode": "nearest", "nearest_mode": rounding}
    sizes = node.constant([batch, channels, height, width], "sizes")
    if is_linear:
        value = node.emit(
            "Resize", node.real(0, TO_CHANNELS_FIRST), "", "", sizes, coordinate_transformation_mode=mode, **kind
        )
        return node.finish(value, perm=TO_CHANNELS_LAST)
    (value,), finish = node.move(0)
    value = node.emit("Transpose", value, perm=list(TO_CHANNELS_FIRST))
    value = node.emit("Resize", value, "", "", sizes, coordinate_transformation_mode=mode, **kind)
    return finish(node.emit("Transpose", value, perm=list(TO_CHANNELS_LAST)))
