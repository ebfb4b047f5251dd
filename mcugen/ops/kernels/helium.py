# SPDX-License-Identifier: Apache-2.0
"""Kernels for Helium, the vectors of Cortex-M55 and M85: products of int8, 16 an instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.ops.fixedpoint import clamp_range
from mcugen.ops.kernels.conv_shape import ConvShape
from mcugen.ops.kernels.portable import depthwise, single_row
from mcugen.ops.weighted import bias_of, clamp_of, folded_bias, largest_sums, requantizer, weights_of

VECTOR = 16
"""Bytes of a vector."""

BLOCK = 4
"""Output channels that a convolution computes together, for two pixels."""

UNROLL = (4, 3, 2, 1)
"""Vectors that the inner loop may take in a turn."""

LONGEST_ROW = 12
"""Vectors of a kernel's row that are written out at most: what 64 channels of a 3 x 3 kernel have."""

COLUMNS = 2048
"""Bytes of transposed columns, unless one row takes more."""

OFFSET = 127
"""How far immediate offsets of bytes reach."""

WORD_OFFSET = 508
"""And those of words."""

PATCHES = 16
"""Pixels whose taps are gathered at a time."""


# ---------------------------------------------------------------------------------------- conditions


def int8_requantized(node: Node) -> bool:
    """int8 tensors, sums in 32 bits"""
    sig = node.sig
    if any(t.dtype is not DType.INT8 or t.quant is None for t in (sig.input(0), sig.input(1), sig.output)):
        return False
    bias = bias_of(node)
    assert bias is not None
    sums = largest_sums(sig.input(0), weights_of(node), bias)
    return int(sums.max(initial=0)) << (31 - requantizer(sig, sums).shift) < 2**31


def one_vector(node: Node) -> bool:
    """one row"""
    return node.output.type.count == len(weights_of(node))


def ungrouped(node: Node) -> bool:
    """one group"""
    return ConvShape.of(node).groups == 1


# ------------------------------------------------------------------------------------------- packing


def blocks_of(rows: Array, count: int) -> Array:
    """[N, …] → [blocks, `count`, …], the last block filled with zeros."""
    padded = np.pad(rows, [(0, -len(rows) % count)] + [(0, 0)] * (rows.ndim - 1))
    return padded.reshape(-1, count, *rows.shape[1:])


def pack_vectors(rows: Array, count: int) -> Array:
    """[N, …, K] → flat, by blocks of `count` channels: […, K / 16, `count`, 16], with zeros for what is missing."""
    padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -rows.shape[-1] % VECTOR)])
    blocks = blocks_of(padded.reshape(len(rows), -1, VECTOR), count)
    return np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1)


def pack_table(node: Node, count: int, order: Sequence[int] | None = None) -> tuple[Array, int]:
    """By blocks of `count` channels: their biases, then multipliers of 31 bits; how far sums are shifted left first.

    `order` is that of the channels in a block.
    """
    weights, bias = weights_of(node), bias_of(node)
    assert bias is not None
    requantize = requantizer(node.sig, largest_sums(node.sig.input(0), weights, bias))
    channels = [folded_bias(node.sig, weights, bias), np.broadcast_to(requantize.multiplier, len(weights))]
    columns = np.stack(channels, 1)
    table = blocks_of(columns, count)[:, list(order or range(count))].transpose(0, 2, 1)
    return table.astype(np.int32).reshape(-1), 31 - requantize.shift


GEMM = (
    *("zero_point", "table_size", "x_next", "y_next", "turns", "jump", "shift", "tail", "last", "written"),
    *("low", "high"),
)
FRAMES: Mapping[str, Sequence[str]] = {
    "conv2d_s8_mve": GEMM,
    "conv2d_s8_mve_inplace": GEMM,
    "conv2d_s8_mve_columns": ("zero_point", "table_size", "x_next", "y_next", "jump", "shift", "low", "high"),
    "conv2d_s8_mve_8": ("zero_point", "table_size", "y_next", "shift", "low", "high"),
    "dense_s8_mve": ("zero_point", "blocks", "turns", "tail", "last", "shift", "low", "high"),
    "depthwise_s8_mve": (),
    "depthwise_s8_mve_4x4": (
        *("zero_point", "y_next", "groups", "halves", "back_x", "back_y", "down_x", "down_y", "shift", "low", "high"),
        *("place_step", "place_second"),
    ),
}
"""By kernel, the parameters that its assembly copies in one piece: they come first, in this order."""


# ---------------------------------------------------------------------------------------- convolution


def loop(vectors: int, tail: int = 0) -> tuple[dict[str, Param], dict[str, object]]:
    """The inner loop over `vectors` in one piece and `tail` more products: parameters and flags."""
    unroll = next((n for n in UNROLL if vectors and vectors % n == 0), 0)
    turns = vectors // unroll if unroll else 0
    params: dict[str, Param] = {"turns": turns, "jump": 0, "tail": tail}
    return params, {"unroll": unroll, "looped": turns > 1, "tail": tail > 0, "jump": False}


def emit(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    packed: Array,
    params: Mapping[str, Param],
    flags: Mapping[str, object],
    *,
    block: int = BLOCK,
    order: Sequence[int] | None = None,
    scratch: tuple[str, int] | None = None,
    inplace: bool = False,
    offsets: Array | None = None,
) -> None:
    """Emits a kernel with `packed` weights, a table by blocks of channels, and scratch: a role and bytes."""
    name, out, channels = node.output.name, node.output.type, len(weights_of(node))
    table, shift = pack_table(node, block, order)
    low, high = clamp_range(clamp_of(node), out.q, out.dtype)
    clamped = (low, high) != out.dtype.limits
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", packed)),
        ("table", Access.IN, builder.const(f"{name}.table", table)),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    if offsets is not None:
        operands.insert(3, ("offsets", Access.IN, builder.const(f"{name}.offsets", offsets)))
    if scratch:
        operands.append((scratch[0], Access.SCRATCH, builder.scratch(f"{name}.{scratch[0]}", out.dtype, scratch[1])))
    known: dict[str, Param] = {"zero_point": out.q.zero_point, "low": low, "high": high, "shift": shift}
    known |= {"table_size": table.nbytes, "blocks": -(-channels // block), "last": (channels - 1) % block + 1}
    known |= {"y_next": 2 * channels, "written": 0, "x_zero": node.sig.input(0).q.zero_point, **params}
    ragged = channels % block > 0
    builder.emit(
        node,
        kernel,
        operands,
        {name: known[name] for name in dict.fromkeys([*FRAMES[kernel.name], *known])},
        code={**flags, "ragged": ragged, "clamp": clamped, "shifted": shift > 0},
        inplace=[("y", "x")] if inplace else [],
    )


def emit_row(node: Node, builder: Builder, kernel: Kernel) -> None:
    """One vector by a matrix: eight channels at a time."""
    rows = weights_of(node).reshape(len(weights_of(node)), -1)
    params, flags = loop(*divmod(rows.shape[1], VECTOR))
    emit(node, builder, kernel, pack_vectors(rows, 2 * BLOCK), params, flags, block=2 * BLOCK)


def emit_vectors(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Several vectors by a matrix: a pointwise convolution."""
    weights = weights_of(node)
    channels, depth = weights.shape
    params, flags = loop(*divmod(depth, VECTOR))
    params |= {"batch": 1, "image": 0, "rows": 1, "row_step": 0, "row_pixels": node.output.type.count // channels}
    params |= {"x_next": 2 * depth, "out_c": channels}
    emit(node, builder, kernel, pack_vectors(weights, BLOCK), params, {**flags, "mode": "direct"})


def emit_pointwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Pixels are read where they lie: all of them in one run, or row by row if some are skipped."""
    shape = ConvShape.of(node)
    in_row, pixels = shape.in_w * shape.in_c, shape.out_h * shape.out_w
    params, flags = loop(*divmod(shape.in_c, VECTOR))
    params |= {"x_next": 2 * shape.stride_w * shape.in_c, "out_c": shape.out_c}
    if shape.stride_h == shape.stride_w == 1:
        params |= {"batch": 1, "image": 0, "rows": 1, "row_step": 0, "row_pixels": shape.batch * pixels}
    else:
        params |= {"batch": shape.batch, "image": shape.in_h * in_row, "rows": shape.out_h}
        params |= {"row_step": shape.stride_h * in_row, "row_pixels": shape.out_w}
    packed = pack_vectors(weights_of(node).reshape(shape.out_c, -1), BLOCK)
    emit(node, builder, kernel, packed, params, {**flags, "mode": "direct"})


def strip_params(shape: ConvShape) -> dict[str, Param]:
    """Sizes of the strip of padded rows: `span` rows, `pitch` bytes apart."""
    extent = shape.stride_w * (shape.out_w - 1) + shape.dilation_w * (shape.k_w - 1) + 1
    pitch = max(extent, shape.pad_w + shape.in_w) * shape.in_c
    return shape.params() | {"span": (shape.k_h - 1) * shape.dilation_h + 1, "pitch": pitch}


def may_overwrite_input(shape: ConvShape) -> bool:
    """Whether each row of output ends before the first input row that the strip has not yet taken in."""
    reach = (shape.k_h - 1) * shape.dilation_h + 1 - shape.pad_h
    in_row, out_row = shape.in_w * shape.in_c, shape.out_w * shape.out_c
    rows = range(shape.out_h)
    return all(min(oy * shape.stride_h + reach, shape.in_h) * in_row >= (oy + 1) * out_row for oy in rows)


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """From a strip of padded rows, directly where a kernel's row fills its vectors well, else from gathered patches."""
    shape = ConvShape.of(node)
    if shape.reads_pixels:
        emit_pointwise(node, builder, kernel)
        return
    run = shape.k_w * shape.in_c
    vectors = -(-run // VECTOR)
    filled = shape.dilation_w == 1 and vectors * VECTOR <= 1.1 * run and vectors <= LONGEST_ROW
    even = shape.out_w % 2 == 0 or shape.out_w > PATCHES
    (emit_rows if filled and even else emit_patches)(node, builder, kernel, shape)


def emit_rows(node: Node, builder: Builder, kernel: Kernel, shape: ConvShape) -> None:
    """A turn of the inner loop is a row of the kernel; weights are zero where a vector reads past it."""
    params = strip_params(shape)
    span, pitch, vectors = int(params["span"]), int(params["pitch"]), -(-shape.k_w * shape.in_c // VECTOR)
    params |= {"turns": shape.k_h, "jump": shape.dilation_h * pitch - vectors * VECTOR, "tail": 0}
    params["x_next"] = 2 * shape.stride_w * shape.in_c
    flags = {"mode": "rows", "unroll": vectors, "looped": shape.k_h > 1, "tail": False, "jump": shape.k_h > 1}
    packed = pack_vectors(weights_of(node).reshape(shape.out_c, shape.k_h, -1), BLOCK)
    inplace = may_overwrite_input(shape)
    emit(node, builder, kernel, packed, params, flags, scratch=("strip", span * pitch + VECTOR), inplace=inplace)


def written_out_gather(shape: ConvShape, params: Mapping[str, Param]) -> dict[str, object] | None:
    """How short rows of a kernel are gathered by one load and one store each, if immediate offsets reach them all.

    Rows are shared out among pointers, of which each reaches OFFSET bytes.
    """
    run, row_step, x_step, depth = (int(params[name]) for name in ("run", "row_step", "x_step", "depth"))
    each = OFFSET // row_step + 1
    starts = range(0, shape.k_h, each)
    if run > VECTOR or (shape.k_h - 1) * run > OFFSET or len(starts) > 7 or max(x_step, depth) > 255:
        return None
    if starts[-1] * row_step >= 4096:
        return None
    pointers = [
        {
            "offset": start * row_step,
            "rows": [
                {"number": row, "offset": (row - start) * row_step, "target": row * run}
                for row in range(start, min(start + each, shape.k_h))
            ],
        }
        for start in starts
    ]
    return {"run": run, "x_step": x_step, "depth": depth, "pointers": pointers}


def overwriting(node: Node) -> bool:
    """pointwise, output channels no more than input channels: in place"""
    shape = ConvShape.of(node)
    simple = shape.groups == 1 and shape.reads_pixels and shape.stride_h == shape.stride_w == 1
    return simple and shape.out_c <= shape.in_c


def emit_overwriting(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Some pixels are copied before they are overwritten."""
    shape = ConvShape.of(node)
    pixels = shape.batch * shape.out_h * shape.out_w
    params, flags = loop(-(-shape.in_c // VECTOR))
    params |= {"x_next": 2 * shape.in_c, "in_c": shape.in_c, "out_c": shape.out_c}
    params |= {"pixels": pixels, "most": min(PATCHES, pixels)}
    packed = pack_vectors(weights_of(node).reshape(shape.out_c, -1), BLOCK)
    scratch = ("patches", min(PATCHES, pixels) * shape.in_c + VECTOR)
    emit(node, builder, kernel, packed, params, flags, scratch=scratch, inplace=True)


def eight_channels(node: Node) -> bool:
    """pointwise, 8 channels to an even number"""
    shape = ConvShape.of(node)
    simple = shape.groups == 1 and shape.reads_pixels and shape.stride_h == shape.stride_w == 1
    return simple and shape.in_c == VECTOR // 2 and shape.out_c % 2 == 0 and shape.batch * shape.out_h * shape.out_w >= 4


def emit_eight_channels(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Two pixels lie in a vector; weights stay where they are while all pixels pass."""
    shape = ConvShape.of(node)
    rows = weights_of(node).reshape(shape.out_c, VECTOR // 2)
    packed = np.stack([np.pad(rows, [(0, 0), (0, 8)]), np.pad(rows, [(0, 0), (8, 0)])], 1).reshape(-1)
    pixels = shape.batch * shape.out_h * shape.out_w
    params: dict[str, Param] = {"y_next": 4 * shape.out_c, "out_c": shape.out_c, "pixels": pixels}
    emit(node, builder, kernel, packed, params, {}, block=2)


def three_columns(node: Node) -> bool:
    """3 x 3, input channels by 16, outputs by two"""
    shape = ConvShape.of(node)
    window = (shape.k_h, shape.k_w, shape.dilation_w) == (3, 3, 1) and shape.stride_w <= 2
    columns = 3 * shape.stride_w + 3
    reachable = shape.in_c % VECTOR == 0 and columns * shape.in_c - VECTOR <= WORD_OFFSET
    return shape.groups == 1 and window and reachable and shape.out_c % 2 == 0 and shape.out_w >= 4


def emit_columns(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Four pixels by two channels, which share the columns of a row."""
    shape = ConvShape.of(node)
    params, chunks = strip_params(shape), shape.in_c // VECTOR
    params |= {"x_next": 4 * shape.stride_w * shape.in_c, "y_next": 4 * shape.out_c}
    params["jump"] = shape.dilation_h * int(params["pitch"])
    flags = {"chunks": chunks, "stride": shape.stride_w, "unrolled": chunks == 1}
    pairs = weights_of(node).reshape(shape.out_c // 2, 2, 3, 3, chunks, VECTOR)
    packed = np.ascontiguousarray(pairs.transpose(0, 2, 4, 3, 1, 5)).reshape(-1)
    size = int(params["span"]) * int(params["pitch"]) + VECTOR
    inplace = may_overwrite_input(shape)
    emit(node, builder, kernel, packed, params, flags, block=2, scratch=("strip", size), inplace=inplace)


def emit_patches(node: Node, builder: Builder, kernel: Kernel, shape: ConvShape) -> None:
    """The taps of some pixels are brought together first."""
    params = strip_params(shape)
    joined = shape.dilation_w == 1
    run = shape.in_c * (shape.k_w if joined else 1)
    vectors = -(-shape.k_h * shape.k_w * shape.in_c // VECTOR)
    most = min(PATCHES, shape.batch * shape.out_h * shape.out_w)
    inner, flags = loop(vectors)
    params |= {"run": run, "runs": 1 if joined else shape.k_w, "run_step": shape.dilation_w * shape.in_c}
    params |= {"row_step": shape.dilation_h * int(params["pitch"]), "depth": vectors * VECTOR, "most": most, **inner}
    params["x_next"] = 2 * vectors * VECTOR
    params["x_step"] = shape.stride_w * shape.in_c
    flags |= {"mode": "patch", "gather": written_out_gather(shape, params) if joined else None}
    size = int(params["span"]) * int(params["pitch"]) + most * vectors * VECTOR + 2 * VECTOR
    packed = pack_vectors(weights_of(node).reshape(shape.out_c, -1), BLOCK)
    emit(node, builder, kernel, packed, params, flags, scratch=("strip", size), inplace=may_overwrite_input(shape))


# ------------------------------------------------------------------------------------------ depthwise


def emit_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Channels in lanes, two taps at a time; an odd last one is paired with a weight of zero."""
    shape = ConvShape.of(node)
    params = strip_params(shape)
    ky, kx = np.divmod(np.arange(shape.k_h * shape.k_w), shape.k_w)
    offsets = ky * shape.dilation_h * int(params["pitch"]) + kx * shape.dilation_w * shape.in_c
    even = len(offsets) % 2
    taps = np.pad(weights_of(node).reshape(shape.out_c, -1), [(0, 0), (0, even)])
    packed = np.ascontiguousarray(blocks_of(taps, 8).transpose(0, 2, 1)).reshape(-1)
    emit(
        node,
        builder,
        kernel,
        packed,
        params | {"pairs": taps.shape[1] // 2},
        {},
        block=8,
        order=(0, 2, 4, 6, 1, 3, 5, 7),
        scratch=("strip", int(params["span"]) * int(params["pitch"]) + VECTOR),
        inplace=may_overwrite_input(shape),
        offsets=np.pad(offsets, (0, even)).astype(np.int32),
    )


def small_window(node: Node) -> bool:
    """a window of at most 4 x 4, stride 1 or 2"""
    shape = ConvShape.of(node)
    if max(shape.k_h, shape.k_w) > 4 or shape.stride_w > 7 or shape.dilation_h > 1:
        return False
    return _two_rows(shape) or shape.stride_h == 2 or shape.out_h == 1


def _two_rows(shape: ConvShape) -> bool:
    """Whether a patch of 4 x 4 inputs holds those of 2 x 2 outputs."""
    simple = shape.stride_h == shape.stride_w == shape.dilation_h == shape.dilation_w == 1
    return simple and max(shape.k_h, shape.k_w) <= 3 and shape.out_h > 1


def pack_patches(weights: Array) -> Array:
    """[C, k_h, k_w] → flat [C][4 columns][4 rows], with zeros for what is missing."""
    padded = np.pad(weights, [(0, 0), (0, 4 - weights.shape[1]), (0, 4 - weights.shape[2])])
    return np.ascontiguousarray(padded.transpose(0, 2, 1)).reshape(-1)


@dataclass(frozen=True)
class Plane:
    """One image as the patches' kernel sees it: rows and pixels, which may be its columns and rows; distances in bytes."""

    shape: ConvShape
    x_row: int
    x_pixel: int
    y_row: int
    y_pixel: int

    @staticmethod
    def of(shape: ConvShape) -> Plane:
        """As it lies."""
        channels = shape.in_c
        return Plane(shape, shape.in_w * channels, channels, shape.out_w * channels, channels)

    def turned(self) -> Plane:
        """Rows and columns exchanged."""
        s = self.shape
        pairs = (("in_h", "in_w"), ("out_h", "out_w"), ("k_h", "k_w"), ("stride_h", "stride_w"))
        pairs += (("dilation_h", "dilation_w"), ("pad_h", "pad_w"))
        swapped = {a: getattr(s, b) for a, b in pairs} | {b: getattr(s, a) for a, b in pairs}
        return Plane(replace(s, **swapped), self.x_pixel, self.x_row, self.y_pixel, self.y_row)


def groups_of(shape: ConvShape) -> dict[str, Param]:
    """How the pixels of a row are grouped.

    Groups are of four pixels of two rows, or eight of one; for what is left there are one or two halves. The last half
    overlaps what is before, or is masked if there is nothing.
    """
    group = 4 if _two_rows(shape) else 8
    half = group // 2
    groups, rest = divmod(shape.out_w, group)
    halves = -(-rest // half)
    covered = groups * group + halves * half
    overlap = covered - shape.out_w if shape.out_w > half else 0
    mask = (1 << min(shape.out_w, half) * 16 // half) - 1
    return {"groups": groups, "halves": halves, "overlap": overlap, "covered": covered - overlap, "half_mask": mask}


def emit_small_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Columns of four rows by channels: a patch is one vector."""
    shape = ConvShape.of(node)
    plane, weights = Plane.of(shape), weights_of(node).reshape(shape.out_c, shape.k_h, shape.k_w)
    same = (shape.in_h, shape.in_w) == (shape.out_h, shape.out_w)
    inplace = _patches_may_overwrite_input(shape)
    if same and _two_rows(shape) and shape.out_w > 1 and shape.out_w < min(12, shape.out_h):
        plane, weights = plane.turned(), weights.transpose(0, 2, 1)
    s, two = plane.shape, _two_rows(shape)
    steps = 2 if two else 1
    params = groups_of(s)
    covered, overlap = int(params["covered"]), int(params["overlap"])
    step = 64 * s.stride_w
    row_w = max(s.stride_w * (s.out_w - 1) + s.dilation_w * (s.k_w - 1) + 1, s.pad_w + s.in_w)
    reach = (covered - 1) * s.stride_w + 3 * s.dilation_w + 1
    sections = max(1, min(COLUMNS // (64 * row_w), s.out_h // steps))
    padding = 64 * (row_w * (sections - 1) + max(row_w, reach))
    params |= s.params() | {"x_row": plane.x_row, "x_pixel": plane.x_pixel, "y_row": plane.y_row}
    params |= {"y_pixel": plane.y_pixel, "steps": steps, "sections": sections, "section": 64 * row_w, "padding": padding}
    params |= {"y_next": (4 if two else 8) * plane.y_pixel, "back_x": -step * overlap, "back_y": -plane.y_pixel * overlap}
    params |= {"down_x": 64 * row_w - step * covered, "down_y": steps * plane.y_row - covered * plane.y_pixel}
    params |= {"place_step": plane.y_pixel if two else 2 * plane.y_pixel}
    params |= {"place_second": plane.y_row if two else plane.y_pixel, "image": shape.in_h * shape.in_w * shape.in_c}
    params |= {"rewind_x": 4 + int(params["down_x"]), "rewind_y": 1 + int(params["down_y"])}
    full = int(params["groups"]) > 0
    masked = s.out_h % steps > 0 or not full
    flags = {"both_rows": two, "full": full, "masked": masked, "stride_w": s.stride_w, "dilation_w": s.dilation_w}
    scratch = ("columns", padding + 16)
    emit(node, builder, kernel, pack_patches(weights), params, flags, block=1, scratch=scratch, inplace=inplace)


def _patches_may_overwrite_input(shape: ConvShape) -> bool:
    """Whether output always ends before the first input row that has not been transposed."""
    steps = 2 if _two_rows(shape) else 1
    ends = [
        (2 * step + 4 - shape.pad_h, min((step + 1) * steps, shape.out_h)) for step in range(-(-shape.out_h // steps))
    ]
    return all(min(unread, shape.in_h) * shape.in_w >= end * shape.out_w for unread, end in ends)


MVE = frozenset({"mve"})

DENSE: tuple[Kernel, ...] = (
    Kernel("dense_s8_mve", MVE, (int8_requantized, one_vector), emit_row),
    Kernel("conv2d_s8_mve", MVE, (int8_requantized,), emit_vectors),
)

CONV: tuple[Kernel, ...] = (
    Kernel("dense_s8_mve", MVE, (int8_requantized, single_row), emit_row),
    Kernel("conv2d_s8_mve_8", MVE, (int8_requantized, eight_channels), emit_eight_channels),
    Kernel("conv2d_s8_mve_columns", MVE, (int8_requantized, three_columns), emit_columns),
    Kernel("conv2d_s8_mve", MVE, (int8_requantized, ungrouped), emit_conv),
    Kernel("conv2d_s8_mve_inplace", MVE, (int8_requantized, overwriting), emit_overwriting),
)

DEPTHWISE: tuple[Kernel, ...] = (
    Kernel("depthwise_s8_mve_4x4", MVE, (int8_requantized, depthwise, small_window), emit_small_depthwise),
    Kernel("depthwise_s8_mve", MVE, (int8_requantized, depthwise), emit_depthwise),
)
