# SPDX-License-Identifier: Apache-2.0
"""Kernels for Helium, the vectors of Cortex-M55 and M85: products of int8, 16 an instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

PATCHES = 8
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


def pointwise(node: Node) -> bool:
    """each output pixel reads one input pixel"""
    return ungrouped(node) and ConvShape.of(node).reads_pixels


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
    strip: int = 0,
    inplace: bool = False,
    offsets: Array | None = None,
) -> None:
    """Emits a kernel with `packed` weights, a table by blocks of channels, and a strip of as many bytes if any."""
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
    if strip:
        operands.append(("strip", Access.SCRATCH, builder.scratch(f"{name}.strip", out.dtype, strip)))
    store: dict[str, Param] = {"zero_point": out.q.zero_point, "low": low, "high": high, "shift": shift}
    store |= {"x_zero": node.sig.input(0).q.zero_point, "blocks": -(-channels // block)}
    store |= {"last": (channels - 1) % block + 1}
    ragged = channels % block > 0
    builder.emit(
        node,
        kernel,
        operands,
        {**params, **store},
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
    params |= {"stride_w": 1, "in_c": depth, "out_c": channels}
    emit(node, builder, kernel, pack_vectors(weights, BLOCK), params, {**flags, "mode": "direct"})


def emit_pointwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Pixels are read where they lie: all of them in one run, or row by row if some are skipped."""
    shape = ConvShape.of(node)
    in_row, pixels = shape.in_w * shape.in_c, shape.out_h * shape.out_w
    params, flags = loop(*divmod(shape.in_c, VECTOR))
    params |= {"stride_w": shape.stride_w, "in_c": shape.in_c, "out_c": shape.out_c}
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


def may_overwrite_input(shape: ConvShape, steps: int = 1) -> bool:
    """Whether output ends before the first input row that the strip has not yet taken in, after every `steps` rows."""
    reach = (shape.k_h - 1) * shape.dilation_h + 1 - shape.pad_h
    in_row, out_row = shape.in_w * shape.in_c, shape.out_w * shape.out_c
    ends = (min(oy + steps, shape.out_h) for oy in range(0, shape.out_h, steps))
    return all(min((end - 1) * shape.stride_h + reach, shape.in_h) * in_row >= end * out_row for end in ends)


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """From a strip of padded rows, directly where a kernel's row fills its vectors well, else from gathered patches."""
    shape = ConvShape.of(node)
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
    flags = {"mode": "rows", "unroll": vectors, "looped": shape.k_h > 1, "tail": False, "jump": shape.k_h > 1}
    packed = pack_vectors(weights_of(node).reshape(shape.out_c, shape.k_h, -1), BLOCK)
    inplace = may_overwrite_input(shape)
    emit(node, builder, kernel, packed, params, flags, strip=span * pitch + VECTOR, inplace=inplace)


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
    flags |= {"mode": "patch", "short_rows": shape.k_h if joined and run <= VECTOR and shape.k_h <= 16 else 0}
    size = int(params["span"]) * int(params["pitch"]) + most * vectors * VECTOR + 2 * VECTOR
    packed = pack_vectors(weights_of(node).reshape(shape.out_c, -1), BLOCK)
    emit(node, builder, kernel, packed, params, flags, strip=size, inplace=may_overwrite_input(shape))


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
        strip=int(params["span"]) * int(params["pitch"]) + VECTOR,
        inplace=may_overwrite_input(shape),
        offsets=np.pad(offsets, (0, even)).astype(np.int32),
    )


def small_window(node: Node) -> bool:
    """a window of at most 4 x 4"""
    shape = ConvShape.of(node)
    return max(shape.k_h, shape.k_w) <= 4 and shape.stride_w <= 7 and (shape.out_w + 8) * shape.out_c < 2**16


def pack_patches(weights: Array) -> Array:
    """[C, k_h, k_w] → flat [C][4 columns][4 rows], with zeros for what is missing."""
    padded = np.pad(weights, [(0, 0), (0, 4 - weights.shape[1]), (0, 4 - weights.shape[2])])
    return np.ascontiguousarray(padded.transpose(0, 2, 1)).reshape(-1)


def emit_small_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Columns of four rows by channels: a patch is one vector. Stride 1 takes two rows of output at a time."""
    shape = ConvShape.of(node)
    simple = (shape.stride_h, shape.stride_w, shape.dilation_h, shape.dilation_w) == (1, 1, 1, 1)
    both = simple and max(shape.k_h, shape.k_w) <= 3
    steps, group = (2, 4) if both else (1, 8)
    params = strip_params(shape)
    span, pitch = int(params["span"]) + steps - 1, int(params["pitch"])
    groups = -(-shape.out_w // group)
    columns = max(pitch // shape.in_c, shape.stride_w * group + 3 * shape.dilation_w)
    at = -(-(span * pitch + VECTOR) // VECTOR) * VECTOR
    params |= {"span": span, "stride_h": shape.stride_h * steps, "steps": steps, "group": group, "groups": groups}
    params |= {"overlap": max(groups * group - shape.out_w, 0) if groups > 1 else 0}
    params |= {"rows": shape.k_h + steps - 1, "columns": pitch // shape.in_c, "columns_at": at}
    masked = shape.out_h % steps > 0 or shape.out_w < group
    flags = {"both_rows": both, "masked": masked, "four_rows": shape.k_h + steps > 4, "stride_w": shape.stride_w}
    weights = weights_of(node).reshape(shape.out_c, shape.k_h, shape.k_w)
    emit(
        node,
        builder,
        kernel,
        pack_patches(weights),
        params,
        flags,
        block=1,
        strip=at + 64 * columns,
        inplace=may_overwrite_input(shape, steps),
    )


MVE = frozenset({"mve"})

DENSE: tuple[Kernel, ...] = (
    Kernel("dense_s8_mve", MVE, (int8_requantized, one_vector), emit_row),
    Kernel("conv2d_s8_mve", MVE, (int8_requantized,), emit_vectors),
)

CONV: tuple[Kernel, ...] = (
    Kernel("dense_s8_mve", MVE, (int8_requantized, single_row), emit_row),
    Kernel("conv2d_s8_mve", MVE, (int8_requantized, pointwise), emit_pointwise),
    Kernel("conv2d_s8_mve", MVE, (int8_requantized, ungrouped), emit_conv),
)

DEPTHWISE: tuple[Kernel, ...] = (
    Kernel("depthwise_s8_mve_4x4", MVE, (int8_requantized, depthwise, small_window), emit_small_depthwise),
    Kernel("depthwise_s8_mve", MVE, (int8_requantized, depthwise), emit_depthwise),
)
