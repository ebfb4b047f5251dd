# SPDX-License-Identifier: Apache-2.0
"""Operators that only move elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcugen.frontend.tflite.flatbuffer import TableBase, scalar
from mcugen.frontend.tflite.model import TfliteTensor
from mcugen.frontend.tflite.node import (
    TO_CHANNELS_FIRST,
    TO_CHANNELS_LAST,
    TfliteNode,
    same_type,
    tflite_operator,
    wrapped_axis,
)
from mcugen.frontend.tflite.schema import FLOAT16, FLOAT32, INT32, INT64
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import Refusal

MAX_UPDATED_NUMBERS = 1 << 18
"""Largest number of coordinates of the elements that DYNAMIC_UPDATE_SLICE replaces: they are constants."""


@dataclass(frozen=True)
class ConcatenationOptions(TableBase):
    """Options of CONCATENATION."""

    UNION = 10
    axis: int = scalar(0)
    activation: int = scalar(1, "b")


@dataclass(frozen=True)
class SpaceToDepthOptions(TableBase):
    """Options of SPACE_TO_DEPTH."""

    UNION = 19
    size: int = scalar(0)


@dataclass(frozen=True)
class DepthToSpaceOptions(SpaceToDepthOptions):
    """Options of DEPTH_TO_SPACE."""

    UNION = 94


@dataclass(frozen=True)
class TfliteGatherOptions(TableBase):
    """Options of GATHER."""

    UNION = 23
    axis: int = scalar(0)
    batch_dims: int = scalar(1)


@dataclass(frozen=True)
class PackOptions(TableBase):
    """Options of PACK and UNPACK."""

    UNION = 59
    count: int = scalar(0)
    axis: int = scalar(1)


@dataclass(frozen=True)
class UnpackOptions(PackOptions):
    """Options of UNPACK."""

    UNION = 64


@dataclass(frozen=True)
class StridedSliceOptions(TableBase):
    """Options of STRIDED_SLICE."""

    UNION = 32
    begin_mask: int = scalar(0)
    end_mask: int = scalar(1)
    ellipsis_mask: int = scalar(2)
    new_axis_mask: int = scalar(3)
    shrink_axis_mask: int = scalar(4)
    is_offset: int = scalar(5, "B")


@dataclass(frozen=True)
class MirrorPadOptions(TableBase):
    """Options of MIRROR_PAD."""

    UNION = 77
    mode: int = scalar(0, "b")


@dataclass(frozen=True)
class TfliteOneHotOptions(TableBase):
    """Options of ONE_HOT."""

    UNION = 61
    axis: int = scalar(0)


@dataclass(frozen=True)
class ReverseSequenceOptions(TableBase):
    """Options of REVERSE_SEQUENCE."""

    UNION = 87
    sequence_axis: int = scalar(0)
    batch_axis: int = scalar(1)


def _as_int64(node: TfliteNode, index: int) -> str:
    """Return an input of whole numbers as ONNX wants indices."""
    value = node.stored(index)
    return value if node.input(index).type is INT64 else node.emit("Cast", value, to=TensorProto.INT64)


@tflite_operator("RESHAPE", "SQUEEZE", "EXPAND_DIMS", becomes="Reshape")
def _build_reshape(node: TfliteNode) -> None:
    x, y = node.input(0), node.output()
    node.require(x.count == y.count, f"shapes {list(x.shape)} and {list(y.shape)}")
    (value,), finish = node.move(0)
    finish(node.emit("Reshape", value, node.shape_of(y), allowzero=1))


@tflite_operator("TRANSPOSE", becomes="Transpose", limits="a constant permutation")
def _build_transpose(node: TfliteNode) -> None:
    rank, perm = len(node.input(0).shape), node.integers(1)
    perm = [axis % rank if -rank <= axis < rank else -1 for axis in perm]
    node.require(sorted(perm) == list(range(rank)), f"permutation {perm} of rank {rank}")
    (value,), finish = node.move(0)
    finish(node.emit("Transpose", value, perm=perm))


@tflite_operator("CONCATENATION", becomes="Concat")
def _build_concatenation(node: TfliteNode) -> None:
    options = node.options(ConcatenationOptions)
    axis = wrapped_axis(node, options.axis, len(node.output().shape))
    if options.activation:
        reals = [node.real(n) for n in range(len(node.operator.inputs))]
        return node.finish(node.emit("Concat", *reals, axis=axis), activation=options.activation)
    values, finish = node.move(*range(len(node.operator.inputs)))
    return finish(node.emit("Concat", *values, axis=axis))


@tflite_operator("PACK", becomes="Reshape, Concat")
def _build_pack(node: TfliteNode) -> None:
    y = node.output()
    axis = wrapped_axis(node, node.options(PackOptions).axis, len(y.shape))
    shape = node.constant([1 if a == axis else size for a, size in enumerate(y.shape)], "part")
    values, finish = node.move(*range(len(node.operator.inputs)))
    parts = [node.emit("Reshape", value, shape, allowzero=1) for value in values]
    finish(node.emit("Concat", *parts, axis=axis))


def _split(node: TfliteNode, source: int, axis: int, sizes: Sequence[int], shapes: bool) -> None:
    """Make parts of an input the outputs.

    Args:
        node: The operator.
        source: Place of the input.
        axis: The axis that is cut.
        sizes: Sizes of the parts.
        shapes: Whether the parts have other shapes than the outputs.
    """
    x, count = node.input(source), len(node.operator.outputs)
    node.require(len(sizes) == count and sum(sizes) == x.shape[axis] and min(sizes) >= 0, f"parts {list(sizes)}")
    is_stored = all(same_type(x, y) for y in node.operator.outputs)
    value = node.stored(source) if is_stored else node.real(source)
    parts = node.emit_all("Split", [value, node.constant(list(sizes), "sizes")], count, axis=axis)
    for index, part in enumerate(parts):
        if shapes:
            part = node.emit("Reshape", part, node.shape_of(node.output(index)), allowzero=1)
        if is_stored:
            node.finish_stored(part, index)
        else:
            node.finish(part, index)


@tflite_operator("UNPACK", becomes="Split, Reshape")
def _build_unpack(node: TfliteNode) -> None:
    axis = wrapped_axis(node, node.options(UnpackOptions).axis, len(node.input(0).shape))
    _split(node, 0, axis, [1] * len(node.operator.outputs), shapes=True)


@tflite_operator("SPLIT", becomes="Split", limits="a constant axis")
def _build_split(node: TfliteNode) -> None:
    axes, x, count = node.integers(0), node.input(1), max(len(node.operator.outputs), 1)
    node.require(len(axes) == 1, f"{len(axes)} axes")
    axis = wrapped_axis(node, axes[0], len(x.shape))
    _split(node, 1, axis, [x.shape[axis] // count] * count, shapes=False)


@tflite_operator("SPLIT_V", becomes="Split", limits="constant sizes and axis")
def _build_split_by_sizes(node: TfliteNode) -> None:
    x, sizes, axes = node.input(0), node.integers(1), node.integers(2)
    node.require(len(axes) == 1 and sizes.count(-1) < 2, f"sizes {sizes}")
    axis = wrapped_axis(node, axes[0], len(x.shape))
    remainder = x.shape[axis] - sum(size for size in sizes if size != -1)
    _split(node, 0, axis, [remainder if size == -1 else size for size in sizes], shapes=False)


def _slice(node: TfliteNode, begins: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> None:
    """Make a part of the first input, reshaped, the output; ends before the first element are -1."""
    x, y = node.input(0), node.output()
    counts = [len(range(*bounds)) for bounds in zip(begins, ends, steps, strict=True)]
    node.require(math.prod(counts) == y.count, f"shape {list(y.shape)} of a slice")
    lasts = [-size - 1 if end < 0 else end for end, size in zip(ends, x.shape, strict=True)]
    parameters = [
        node.constant(list(values), what)
        for values, what in ((begins, "begins"), (lasts, "ends"), (range(len(counts)), "axes"), (steps, "steps"))
    ]
    (value,), finish = node.move(0)
    if counts:
        value = node.emit("Slice", value, *parameters)
    if tuple(counts) != y.shape:
        value = node.emit("Reshape", value, node.shape_of(y), allowzero=1)
    finish(value)


@tflite_operator("SLICE", becomes="Slice")
def _build_slice(node: TfliteNode) -> None:
    x, y = node.input(0), node.output()
    if not node.input(1).is_constant:
        return _build_moving_slice(node)
    begins = node.integers(1)
    sizes = node.integers(2) if node.input(2).is_constant else list(y.shape)
    node.require(len(begins) == len(sizes) == len(x.shape), f"begins {begins} and sizes {sizes}")
    sizes = [size - begin if count == -1 else count for size, begin, count in zip(x.shape, begins, sizes, strict=True)]
    ends = [begin + count for begin, count in zip(begins, sizes, strict=True)]
    inside = all(0 <= a <= b <= size for a, b, size in zip(begins, ends, x.shape, strict=True))
    node.require(inside, f"begins {begins} and sizes {sizes} of {list(x.shape)}")
    return _slice(node, begins, ends, [1] * len(begins))


def _build_moving_slice(node: TfliteNode) -> None:
    """Build a slice whose place is computed; its size is that of the output."""
    x, y = node.input(0), node.output()
    node.require(len(x.shape) == len(y.shape) and node.input(1).count == len(x.shape), "ranks that differ")
    begins = _as_int64(node, 1)
    ends = node.emit("Add", begins, node.shape_of(y))
    (value,), finish = node.move(0)
    result = node.emit("Slice", value, begins, ends, node.constant(list(range(len(y.shape))), "axes"))
    node.declare(result, y, is_stored=same_type(x, y))
    finish(result)


@tflite_operator("STRIDED_SLICE", becomes="Slice, Reshape", limits="constant begins, ends and strides")
def _build_strided_slice(node: TfliteNode) -> None:
    x, options = node.input(0), node.options(StridedSliceOptions)
    if options.is_offset:
        raise Refusal("ends must be positions", "offsets from the begins", "export the slice with ends")
    bounds = list(zip(node.integers(1), node.integers(2), node.integers(3), strict=True))
    named = sum(not options.new_axis_mask >> n & 1 for n in range(len(bounds)))
    ellipses = [n for n in range(len(bounds)) if options.ellipsis_mask >> n & 1]
    node.require(len(ellipses) < 2 and named - len(ellipses) <= len(x.shape), "too many dimensions of a slice")
    parts: list[tuple[int, int, int]] = []
    for place, (begin, end, step) in enumerate(bounds):
        if place in ellipses:
            whole = len(x.shape) - (named - 1)
            parts += [(0, size, 1) for size in x.shape[len(parts) : len(parts) + whole]]
        elif not options.new_axis_mask >> place & 1:
            node.require(step != 0, "a stride of 0")
            size = x.shape[len(parts)]
            if options.shrink_axis_mask >> place & 1:
                index = begin + size if begin < 0 else begin
                node.require(0 <= index < size, f"index {begin} of {size}")
                parts.append((index, index + 1, 1))
                continue
            first = None if options.begin_mask >> place & 1 else begin
            last = None if options.end_mask >> place & 1 else end
            parts.append(slice(first, last, step).indices(size))
    parts += [(0, size, 1) for size in x.shape[len(parts) :]]
    _slice(node, [p[0] for p in parts], [p[1] for p in parts], [p[2] for p in parts])


@tflite_operator("REVERSE_V2", becomes="Slice", limits="constant axes")
def _build_reverse(node: TfliteNode) -> None:
    shape, rank = node.input(0).shape, len(node.input(0).shape)
    axes = {wrapped_axis(node, axis, rank) for axis in node.integers(1)}
    begins = [size - 1 if axis in axes else 0 for axis, size in enumerate(shape)]
    ends = [-1 if axis in axes else size for axis, size in enumerate(shape)]
    _slice(node, begins, ends, [-1 if axis in axes else 1 for axis in range(rank)])


@tflite_operator("REVERSE_SEQUENCE", becomes="ReverseSequence", limits="the first two axes")
def _build_reverse_sequence(node: TfliteNode) -> None:
    options = node.options(ReverseSequenceOptions)
    if {options.sequence_axis, options.batch_axis} != {0, 1}:
        axes = f"{options.sequence_axis} and {options.batch_axis}"
        raise Refusal("sequences and batches must be the first two axes", axes, "transpose the tensor")
    (value,), finish = node.move(0)
    where = {"time_axis": options.sequence_axis, "batch_axis": options.batch_axis}
    finish(node.emit("ReverseSequence", value, _as_int64(node, 1), **where))


def _widths(node: TfliteNode, index: int = 1) -> Array:
    """Return constant widths of padding or cropping: for each axis those before and behind."""
    widths = np.asarray(node.integers(index), np.int64)
    node.require(len(widths) % 2 == 0 and bool((widths >= 0).all()), f"widths {widths.tolist()}")
    return widths.reshape(-1, 2)


@tflite_operator("PAD", "PADV2", becomes="Pad", limits="constant widths")
def _build_pad(node: TfliteNode) -> None:
    x, widths = node.input(0), _widths(node)
    node.require(len(widths) == len(x.shape), f"{len(widths)} widths for rank {len(x.shape)}")
    ends = node.constant(widths.T.reshape(-1).tolist(), "widths")
    value = [node.real(2)] if node.operator.kind == "PADV2" and node.has(2) else []
    if value and node.input(2).count == 1 and node.input(2).shape:
        value = [node.emit("Reshape", value[0], node.constant(np.zeros(0, np.int64), "scalar"))]
    node.finish(node.emit("Pad", node.real(0), ends, *value))


@tflite_operator("MIRROR_PAD", becomes="Gather", limits="constant widths")
def _build_mirror_pad(node: TfliteNode) -> None:
    widths, mode = _widths(node), node.options(MirrorPadOptions).mode
    x = node.input(0)
    node.require(len(widths) == len(x.shape) and mode in (0, 1), f"{len(widths)} widths for rank {len(x.shape)}")
    (value,), finish = node.move(0)
    for axis, (before, behind) in enumerate(widths.tolist()):
        size = x.shape[axis]
        node.require(max(before, behind) <= size - (mode == 0), f"widths {before} and {behind} of {size}")
        if before or behind:
            places = np.pad(np.arange(size), (before, behind), "symmetric" if mode else "reflect")
            value = node.emit("Gather", value, node.constant(places.tolist(), "places"), axis=axis)
    finish(value)


@tflite_operator("TILE", becomes="Tile", limits="constant repeats")
def _build_tile(node: TfliteNode) -> None:
    (value,), finish = node.move(0)
    finish(node.emit("Tile", value, node.constant(node.integers(1), "repeats")))


@tflite_operator(
    "GATHER",
    "EMBEDDING_LOOKUP",
    becomes="Gather, GatherND",
    limits="no axes between those of batches and the gathered one",
)
def _build_gather(node: TfliteNode) -> None:
    is_lookup = node.operator.kind == "EMBEDDING_LOOKUP"
    options, source = TfliteGatherOptions() if is_lookup else node.options(TfliteGatherOptions), int(is_lookup)
    axis = wrapped_axis(node, options.axis, len(node.input(source).shape))
    value, finish = _table(node, source)
    if options.batch_dims:
        shape = node.input(1 - source).shape
        batches = options.batch_dims % (len(shape) + 1) if options.batch_dims < 0 else options.batch_dims
        if axis != batches:
            axes = f"{options.batch_dims} batch dimensions and axis {axis}"
            raise Refusal(
                "Gather must take elements of the first axis behind its batches", axes, "transpose the tensor"
            )
        indices = node.emit("Reshape", _as_int64(node, 1 - source), node.constant([*shape, 1], "column"))
        return finish(node.emit("GatherND", value, indices, batch_dims=batches))
    indices = node.stored(1 - source)
    if node.input(1 - source).type not in (INT32, INT64):
        indices = node.emit("Cast", indices, to=TensorProto.INT32)
    return finish(node.emit("Gather", value, indices, axis=axis))


def _table(node: TfliteNode, index: int) -> tuple[str, Callable[[str], None]]:
    """Return the tensor whose elements are gathered, and what makes the result an output.

    Constants of float16 are converted after elements are gathered, so that flash holds float16.
    """
    tensor = node.body.unpacked.get(node.input(index), node.input(index))
    if tensor.is_constant and tensor.type is FLOAT16 and node.output().type is FLOAT32:
        return node.stored_tensor(tensor), lambda value: node.finish(node.dequantized(value, tensor))
    (value,), finish = node.move(index)
    return value, finish


@tflite_operator("GATHER_ND", becomes="GatherND")
def _build_gather_points(node: TfliteNode) -> None:
    (value,), finish = node.move(0)
    finish(node.emit("GatherND", value, _as_int64(node, 1)))


@tflite_operator("SCATTER_ND", becomes="ScatterND")
def _build_scatter(node: TfliteNode) -> None:
    y = node.output()
    zeros = node.emit("Expand", node.constant(np.zeros((), y.type.array), "zero"), node.shape_of(y))
    if y.quantization is not None:
        raise Refusal("SCATTER_ND must have values without scales", "quantized ones", "dequantize them before")
    node.finish_stored(node.emit("ScatterND", zeros, _as_int64(node, 0), node.stored(1), reduction="add"))


@tflite_operator("DYNAMIC_UPDATE_SLICE", becomes="ScatterND")
def _build_update(node: TfliteNode) -> None:
    x, part = node.input(0), node.input(1)
    node.require(
        len(x.shape) == len(part.shape) == node.input(2).count and all(np.subtract(x.shape, part.shape) >= 0),
        f"shapes {list(x.shape)} and {list(part.shape)}",
    )
    if part.count * len(x.shape) > MAX_UPDATED_NUMBERS:
        raise Refusal("an updated part must be small", f"{part.count:,} elements", "update less at once")
    grid = np.stack(np.meshgrid(*map(np.arange, part.shape), indexing="ij"), axis=-1).astype(np.int64)
    room = node.constant([size - count for size, count in zip(x.shape, part.shape, strict=True)], "room")
    none = node.constant([0] * len(x.shape), "none")
    begins = node.emit("Min", node.emit("Max", _as_int64(node, 2), none), room)
    places = node.emit("Add", node.constant(grid, "grid"), begins)
    (value, update), finish = node.move(0, 1)
    finish(node.emit("ScatterND", value, places, update))


@tflite_operator("ONE_HOT", becomes="OneHot", limits="a constant depth")
def _build_one_hot(node: TfliteNode) -> None:
    depth, axis = node.integers(1), node.options(TfliteOneHotOptions).axis
    values = []
    for place in (3, 2):
        (value,), _ = node.move(place)
        values.append(node.emit("Reshape", value, node.constant([1], "one")))
    _, finish = node.move(2)
    finish(
        node.emit(
            "OneHot", _as_int64(node, 0), node.constant(depth, "depth"), node.emit("Concat", *values, axis=0), axis=axis
        )
    )


@tflite_operator(
    "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", becomes={"SPACE_TO_DEPTH": "SpaceToDepth", "DEPTH_TO_SPACE": "DepthToSpace"}
)
def _build_depth(node: TfliteNode) -> None:
    deepens = node.operator.kind == "SPACE_TO_DEPTH"
    size = node.options(SpaceToDepthOptions if deepens else DepthToSpaceOptions).size
    node.require(size > 0 and len(node.input(0).shape) == 4, f"blocks of {size}")
    (value,), finish = node.move(0)
    value = node.emit("Transpose", value, perm=list(TO_CHANNELS_FIRST))
    value = node.emit("SpaceToDepth" if deepens else "DepthToSpace", value, blocksize=size)
    finish(node.emit("Transpose", value, perm=list(TO_CHANNELS_LAST)))


def _blocks(node: TfliteNode, x: TfliteTensor) -> tuple[list[int], Array]:
    """Return sizes of blocks along the axes behind the first, and the widths of padding or cropping there."""
    sizes, widths = node.integers(1), _widths(node, 2)
    node.require(0 < len(sizes) == len(widths) < len(x.shape) and min(sizes) > 0, f"blocks of {sizes}")
    return sizes, widths


@tflite_operator("SPACE_TO_BATCH_ND", becomes="Pad, Reshape, Transpose", limits="constant blocks")
def _build_space_to_batch(node: TfliteNode) -> None:
    x, y = node.input(0), node.output()
    sizes, widths = _blocks(node, x)
    count, batch, inner_sizes = len(sizes), x.shape[0], list(x.shape[1 + len(sizes) :])
    value = node.real(0)
    if widths.any():
        none = [0] * (len(inner_sizes) + 1)
        ends = [*none[:1], *widths[:, 0].tolist(), *none[1:], *none[:1], *widths[:, 1].tolist(), *none[1:]]
        value = node.emit("Pad", value, node.constant(ends, "widths"))
    wide = [size + int(w.sum()) for size, w in zip(x.shape[1:], widths, strict=False)]
    node.require(all(n % size == 0 for n, size in zip(wide, sizes, strict=True)), f"blocks of {sizes} in {wide}")
    apart = [part for n, size in zip(wide, sizes, strict=True) for part in (n // size, size)]
    value = node.emit("Reshape", value, node.constant([batch, *apart, *inner_sizes], "apart"))
    inner, outer = [2 + 2 * n for n in range(count)], [1 + 2 * n for n in range(count)]
    perm = [*inner, 0, *outer, *range(1 + 2 * count, 1 + 2 * count + len(inner_sizes))]
    node.finish(node.emit("Reshape", node.emit("Transpose", value, perm=perm), node.shape_of(y)))


@tflite_operator("BATCH_TO_SPACE_ND", becomes="Reshape, Transpose, Slice", limits="constant blocks")
def _build_batch_to_space(node: TfliteNode) -> None:
    x = node.input(0)
    sizes, crops = _blocks(node, x)
    count, inner_sizes = len(sizes), list(x.shape[1 + len(sizes) :])
    batch = x.shape[0] // math.prod(sizes)
    value = node.real(0)
    value = node.emit("Reshape", value, node.constant([*sizes, batch, *x.shape[1:]], "apart"))
    perm = [count, *(axis for n in range(count) for axis in (count + 1 + n, n))]
    value = node.emit("Transpose", value, perm=[*perm, *range(1 + 2 * count, 1 + 2 * count + len(inner_sizes))])
    whole = [n * size for n, size in zip(x.shape[1:], sizes, strict=False)]
    value = node.emit("Reshape", value, node.constant([batch, *whole, *inner_sizes], "whole"))
    if crops.any():
        begins = crops[:, 0].tolist()
        ends = [n - int(crop) for n, crop in zip(whole, crops[:, 1], strict=True)]
        axes = node.constant(list(range(1, count + 1)), "axes")
        value = node.emit("Slice", value, node.constant(begins, "begins"), node.constant(ends, "ends"), axes)
    node.finish(value)
