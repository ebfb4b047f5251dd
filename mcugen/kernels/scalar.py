# SPDX-License-Identifier: Apache-2.0
"""int8 convolutions and dense layers on CPUs that multiply one pair of numbers at a time: Cortex-M3, M0, M0+, RISC-V.

Two pixels (or two channels) share a word, so that one product serves both: (a + b · 2^s) · w = a·w + b·w · 2^s.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.kernels.conv_shape import ConvShape, shape_of
from mcugen.kernels.reading_order import in_turn, overlaps, windows
from mcugen.kernels.weighted import clamp_of, folded_bias_of, largest_sums_of, weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.numerics.fixedpoint import Requantizer, clamp_range
from mcugen.numerics.sums import requantizer, sum_dtype

PIXELS = 6
"""Pixels that a convolution computes together."""

UNROLL = 4
"""Times four inputs that the loop over the inputs of a dense layer writes out on Thumb-2."""

LONGEST_CHUNK = 24
"""Inputs that the loop over a chunk of weights writes out."""

BODY = 9
"""Halfwords of code that each of them takes, on Thumb-1 as on Thumb-2."""

LEAVE = LONGEST_CHUNK * BODY + 18
"""Halfwords from the first of them to the code behind the loop, on Thumb-1."""

PAST = 20
"""Halfwords from the last of them to the code behind the loop, on Thumb-2."""

COUNT = 9
"""Bits of the number of a channel's chunks on Thumb-2, beside its bias."""

CHUNK_SUM = 255
"""Of magnitudes of weights, whose products with int8 together fit 16 bits."""


def to_int8(node: Node) -> bool:
    """int8 to int8"""
    dtypes = (node.sig.input(0).dtype, node.sig.input(1).dtype, node.sig.output.dtype)
    return dtypes == (DType.INT8,) * 3 and node.sig.output.quant is not None


def upper_word(node: Node) -> bool:
    """requantized by the upper word of a product"""
    sums = largest_sums_of(node)
    return sum_dtype(sums) is DType.INT32 and requantizer(node.sig, sums).for_high_word().shift == 32


def one_group(node: Node) -> bool:
    """channels in one group"""
    return ConvShape.of(node).groups == 1


def rows_of_pixels(node: Node) -> bool:
    """each pixel of the output reads the one at its place"""
    shape = ConvShape.of(node)
    return shape.groups == 1 and shape.reads_pixels and shape.stride_h == shape.stride_w == 1


def _requantizer(node: Node) -> Requantizer:
    return requantizer(node.sig, largest_sums_of(node)).for_high_word()


def _tails(node: Node) -> Array:
    """By channel: bias · multiplier + offset as two words, the lower first, and the multiplier."""
    folded, requantize = folded_bias_of(node), _requantizer(node)
    multiplier = np.broadcast_to(requantize.multiplier, folded.shape)
    offset = np.ascontiguousarray(folded * multiplier + requantize.offset, "<i8").view("<i4").reshape(-1, 2)
    return np.concatenate([offset, multiplier[:, None]], axis=1).astype(np.int32)


def _clamp(node: Node) -> tuple[dict[str, Param], bool]:
    """The limits of the result as parameters, and whether they are narrower than int8."""
    low, high = clamp_range(clamp_of(node), node.sig.output.q, DType.INT8)
    return {"low": low, "high": high}, (low, high) != (-128, 127)


def _padded(rows: Array, multiple: int, axis: int = 1) -> Array:
    """Zeros appended along an axis up to a multiple."""
    missing = -rows.shape[axis] % multiple
    return np.pad(rows, [(0, missing if a == axis else 0) for a in range(rows.ndim)])


def conv_mla_steps(node: Node) -> int:
    """Instructions in assembly: 5 for an input of six pixels and a channel, 14 a chunk, 11 to pack an input."""
    return _steps_of_chunks(node, each=5, chunk=14, channel=62, pack=11)


def conv_muls_steps(node: Node) -> int:
    """Instructions in assembly: 9 for an input of six pixels and a channel, 22 a chunk, 21 to pack an input."""
    return _steps_of_chunks(node, each=9, chunk=22, channel=190, pack=21)


def conv_mul_steps(node: Node) -> int:
    """Instructions in assembly: 10 for an input of six pixels and a channel, 23 a chunk; 24 in C to pack an input."""
    return _steps_of_chunks(node, each=10, chunk=23, channel=90, pack=24)


def _steps_of_chunks(node: Node, each: int, chunk: int, channel: int, pack: int) -> int:
    rows = weights_of(node).reshape(len(weights_of(node)), -1)
    around = sum(chunk * len(chunks(row)) + channel for row in rows)
    return _blocks_of_pixels(node) * (each * rows.size + around + pack * rows.shape[1])


def dense_smlal_steps(node: Node) -> int:
    """Instructions in assembly: 21 for four inputs of four channels."""
    rows, channels, depth = _dense_shape(node)
    return rows * -(-channels // 4) * (21 * depth // 4 + 60)


def dense_muls_steps(node: Node) -> int:
    """Instructions in assembly: 81 for four inputs of six channels."""
    rows, channels, depth = _dense_shape(node)
    return rows * -(-channels // 6) * (81 * depth // 4 + 240)


def _dense_shape(node: Node) -> tuple[int, int, int]:
    """Rows, channels, depth."""
    channels = len(weights_of(node))
    return node.output.type.count // channels, channels, conv_depth(node)


def _blocks_of_pixels(node: Node) -> int:
    shape = ConvShape.of(node)
    return shape.batch * -(-shape.out_h * shape.out_w // PIXELS)


def _emit_conv(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    constants: dict[str, Array],
    params: dict[str, Param],
    code: dict[str, object],
    words: int,
) -> None:
    """A convolution that gathers six windows at a time as words of two pixels."""
    shape, name = ConvShape.of(node), node.output.name
    direct = rows_of_pixels(node)
    runs, taps = (1, shape.k_w) if shape.dilation_w == 1 else (shape.k_w, 1)
    params = shape.params() | params | {"direct": int(direct), "runs": runs, "taps": taps}
    params["x_zero"] = node.sig.input(0).q.zero_point
    rest = PIXELS * shape.out_c if shape.out_h * shape.out_w % PIXELS else 0
    copies = max(rest, 0 if direct else PIXELS * taps * shape.in_c)
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        *((role, Access.IN, builder.const(f"{name}.{role}", array)) for role, array in constants.items()),
        ("y", Access.OUT, builder.buffer(node.output)),
        ("words", Access.SCRATCH, builder.scratch(f"{name}.words", DType.INT32, words)),
        ("copies", Access.SCRATCH, builder.scratch(f"{name}.copies", DType.INT8, copies)),
    ]
    sixes = windows(shape, in_turn(shape.out_h * shape.out_w, PIXELS))
    builder.emit(node, kernel, operands, params, code=code, overlaps=overlaps(node, sixes))


def chunks(row: Array) -> list[Array]:
    """A row of weights in the longest pieces whose sums of products with int8 fit 16 bits."""
    found, start, total = [], 0, 0
    for end, size in enumerate(np.abs(row.astype(int)).tolist()):
        if total + size > CHUNK_SUM or end - start == LONGEST_CHUNK:
            found.append(row[start:end])
            start, total = end, 0
        total += size
    return [*found, row[start:]]


def _stream(row: Array, entries: Array, leave: int) -> bytes:
    """What the loop over a channel's chunks reads: each with the entry of its length; the way out."""
    parts = [bytes([entries[len(c)]]) + c.astype(np.int8).tobytes() for c in chunks(row)]
    return b"".join(parts) + bytes([leave])


def few_chunks(node: Node) -> bool:
    """at most 255 chunks of weights a channel"""
    return all(len(chunks(row)) < 256 for row in weights_of(node).reshape(len(weights_of(node)), -1))


def short_heads(node: Node) -> bool:
    """32 bits for a channel's bias and its number of chunks, of which nine for this"""
    weights = weights_of(node).reshape(len(weights_of(node)), -1)
    bias = np.abs(folded_bias_of(node)).max(initial=0)
    return bias < 2 ** (31 - COUNT) and all(len(chunks(row)) < 2**COUNT for row in weights)


def short_products(node: Node) -> bool:
    """requantized by products of 32 bits"""
    return _piece(node) > 0


def _piece(node: Node) -> int:
    """Bits of the pieces in which a multiplier of three goes, so that no product leaves 32 bits; 0 if none.

    One size for all layers, if it can be: they share their code.
    """
    sums, requantize = largest_sums_of(node), requantizer(node.sig, largest_sums_of(node))
    most, limits = int(sums.max(initial=0)), _clamp(node)[0]
    if requantize.shift != 31:
        return 0
    for piece in (9, 8, 10):
        shift = requantize.shift - 2 * piece
        last = (most * int(requantize.multiplier.max()) >> 2 * piece) + _offset(requantize, int(limits["low"]), shift)
        if most << piece < 2**31 and last + 1 < 2**31:
            return piece
    return 0


def _offset(requantize: Requantizer, low: int, shift: int) -> int:
    """Zero point less the lowest result, and rounding, before a shift by `shift`."""
    return ((requantize.zero_point - low) << shift) + (1 << (shift - 1))


def _thumb1(node: Node) -> tuple[Array, dict[str, Param], dict[str, object]]:
    """What requantizes on Thumb-1: bias and multiplier by channel, parameters, variables of the template."""
    folded, requantize, piece = folded_bias_of(node), requantizer(node.sig, largest_sums_of(node)), _piece(node)
    tails = np.stack([folded, np.broadcast_to(requantize.multiplier, folded.shape)], axis=1).astype(np.int32)
    limits, _ = _clamp(node)
    offset = _offset(requantize, int(limits["low"]), 31 - 2 * piece)
    return tails, {"offset": offset}, {"piece": piece, **limits}


def emit_conv_mla(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights in chunks, each so short that 16 bits hold its sums."""
    weights = weights_of(node).reshape(len(weights_of(node)), -1)
    entries = PAST + BODY * np.arange(LONGEST_CHUNK + 1)
    packed = np.frombuffer(b"".join(_stream(row, entries, 0) for row in weights), np.uint8)
    heads = folded_bias_of(node) * 2**COUNT + [len(chunks(row)) for row in weights]
    tails = np.stack([heads, np.broadcast_to(_requantizer(node).multiplier, heads.shape)], axis=1).astype(np.int32)
    params, clamped = _clamp(node)
    params["zero"] = node.sig.output.q.zero_point
    code: dict[str, object] = {"longest": LONGEST_CHUNK, "size": BODY, "past": PAST, "clamp": clamped}
    words = weights.shape[1] * PIXELS // 2
    _emit_conv(node, builder, kernel, {"w": packed, "tails": tails}, params, code, words)


def emit_conv_muls(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights in chunks, each so short that 16 bits hold its sums."""
    weights = weights_of(node).reshape(len(weights_of(node)), -1)
    tails, params, code = _thumb1(node)
    tails[:, 0] = tails[:, 0] * 256 + [len(chunks(row)) for row in weights]
    entries = BODY * np.arange(LONGEST_CHUNK, -1, -1)
    packed = np.frombuffer(b"".join(_stream(row, entries, LEAVE) for row in weights), np.uint8)
    code |= {"unroll": LONGEST_CHUNK, "size": BODY, "leave": LEAVE}
    words = weights.shape[1] * PIXELS // 2
    _emit_conv(node, builder, kernel, {"w": packed, "tails": tails}, params, code, words)


def emit_conv_mul(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights in chunks, each so short that 16 bits hold its sums, behind their number."""
    weights = weights_of(node).reshape(len(weights_of(node)), -1)
    packed = np.frombuffer(b"".join(_stream(row, np.arange(LONGEST_CHUNK + 1), 0) for row in weights), np.int8)
    bias, count = folded_bias_of(node), np.array([len(chunks(row)) for row in weights])
    whole = (bias * 0x10001 - (count << 15)).astype(np.uint32).view(np.int32)
    multiplier = np.broadcast_to(_requantizer(node).multiplier, bias.shape)
    tails = np.stack([bias, whole, multiplier], axis=1).astype(np.int32)
    params, clamped = _clamp(node)
    params["zero"] = node.sig.output.q.zero_point
    code: dict[str, object] = {"longest": LONGEST_CHUNK, "clamp": clamped}
    words = weights.shape[1] * PIXELS // 2
    _emit_conv(node, builder, kernel, {"w": packed, "tails": tails}, params, code, words)


def emit_dense_smlal(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Four channels' weights in a word: 0 and 1 in the outer bytes, 2 and 3 in the inner ones, 0 and 2 plus 128."""
    blocks = _blocks(node, 4).astype(np.int16)
    packed = (blocks + np.array([128, 0, 128, 0], np.int16))[..., [0, 3, 2, 1]].astype(np.uint8)
    params, clamped = _clamp(node)
    code: dict[str, object] = {"unroll": UNROLL, "clamp": clamped}
    _emit_dense(node, builder, kernel, {"w": packed, "tails": _padded(_tails(node), 4, axis=0)}, params, code, block=4)


def emit_dense_muls(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Six channels' weights side by side, plus 128; six biases, six multipliers."""
    tails, params, code = _thumb1(node)
    packed = (_blocks(node, 6).astype(np.int16) + 128).astype(np.uint8)
    joined = _padded(tails, 6, axis=0).reshape(-1, 6, 2).transpose(0, 2, 1)
    _emit_dense(node, builder, kernel, {"w": packed, "tails": joined}, params, code, block=6)


def _blocks(node: Node, size: int) -> Array:
    """The weights as [block of channels][depth][size], padded with zeros."""
    rows = weights_of(node).reshape(len(weights_of(node)), -1)
    return _padded(rows, size, axis=0).reshape(-1, size, rows.shape[1]).transpose(0, 2, 1)


def _emit_dense(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    constants: dict[str, Array],
    params: dict[str, Param],
    code: dict[str, object],
    block: int,
) -> None:
    """A dense layer that computes `block` channels of a row together."""
    channels, depth = len(weights_of(node)), conv_depth(node)
    params = params | {"rows": node.output.type.count // channels, "depth": depth, "channels": channels}
    name = node.output.name
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        *((role, Access.IN, builder.const(f"{name}.{role}", array)) for role, array in constants.items()),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    rest, shape = channels % block, shape_of(node)
    rows = windows(shape, in_turn(shape.out_h * shape.out_w, 1), last=rest or 1)  # plain C stores one by one
    code = code | {"rest": rest != 0}
    builder.emit(node, kernel, operands, params, code=code, overlaps=overlaps(node, rows))


def conv_depth(node: Node) -> int:
    """Inputs of an output."""
    return math.prod(weights_of(node).shape[1:])


def few_pixels(node: Node) -> bool:
    """at most three pixels, half of those that a convolution computes together"""
    shape = ConvShape.of(node)
    return shape.out_h * shape.out_w <= PIXELS // 2


def deep(node: Node) -> bool:
    """at least four inputs"""
    return conv_depth(node) >= 4


_THUMB2, _THUMB1, _RV32 = frozenset({"thumb2"}), frozenset({"thumb1"}), frozenset({"rv32"})
_DENSE_SMLAL = partial(Kernel, "dense_s8_thumb2", needs=_THUMB2, emit=emit_dense_smlal, extra=dense_smlal_steps)
_DENSE_MULS = partial(Kernel, "dense_s8_thumb1", needs=_THUMB1, emit=emit_dense_muls, extra=dense_muls_steps)

DENSE: tuple[Kernel, ...] = (
    _DENSE_SMLAL(when=(to_int8, deep, upper_word)),
    _DENSE_MULS(when=(to_int8, short_products)),
)

CONV: tuple[Kernel, ...] = (
    Kernel(
        "conv2d_s8_thumb2",
        needs=_THUMB2,
        when=(to_int8, one_group, upper_word, short_heads),
        emit=emit_conv_mla,
        extra=conv_mla_steps,
    ),
    Kernel(
        "conv2d_s8_thumb1",
        needs=_THUMB1,
        when=(to_int8, one_group, short_products, few_chunks),
        emit=emit_conv_muls,
        extra=conv_muls_steps,
    ),
    Kernel(
        "conv2d_s8_rv32",
        needs=_RV32,
        when=(to_int8, one_group, upper_word),
        emit=emit_conv_mul,
        extra=conv_mul_steps,
    ),
    _DENSE_SMLAL(when=(rows_of_pixels, few_pixels, to_int8, deep, upper_word)),
    _DENSE_MULS(when=(rows_of_pixels, to_int8, short_products)),
)
