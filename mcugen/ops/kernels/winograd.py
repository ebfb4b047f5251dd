# SPDX-License-Identifier: Apache-2.0
"""Winograd's F(2×2, 3×3), exact in integers: 3×3 convolutions with 16 products for 4 outputs instead of 36.

Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A with G doubled, so that U = (2G) g (2G)ᵀ is whole and Y is 4 times the convolution
(Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016).
"""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Param
from mcugen.ops.fixedpoint import Requantizer, clamp_range
from mcugen.ops.kernels.conv_shape import ConvShape
from mcugen.ops.weighted import (
    bias_of,
    clamp_of,
    folded_bias,
    largest_sums,
    requantizer,
    weights_of,
)

FILTER = np.asarray([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]])
"""2G."""

COLUMNS = (1, 2, 3, 0)
"""The order in which the products of a row of M are made: sums of products come for free then."""

TILE = 2
"""Outputs of a tile in each direction; kernels compute two tiles side by side."""


# ------------------------------------------------------------------------------------------------ conditions


def is_3x3(node: Node) -> bool:
    """3×3 with stride 1, of 8 or more input channels by fours"""
    s = ConvShape.of(node)
    steps = (s.stride_h, s.stride_w, s.dilation_h, s.dilation_w, s.groups)
    return (s.k_h, s.k_w) == (3, 3) and set(steps) == {1} and s.in_c >= 8 and s.in_c % 4 == 0 and s.out_c >= 2


def int8_codes(node: Node) -> bool:
    """int8 tensors and weights"""
    return all(t.dtype is DType.INT8 for t in (node.sig.input(0), node.sig.input(1), node.sig.output))


def small_sums(node: Node) -> bool:
    """four times the sums fit in 32 bits; scales below 1"""
    bias = bias_of(node)
    assert bias is not None
    sums = largest_sums(node.sig.input(0), weights_of(node), bias)
    return bool(4 * sums.max() < 2**31) and _requantizer(node).shift >= 31


FITS = (int8_codes, is_3x3, small_sums)


def _requantizer(node: Node) -> Requantizer:
    return requantizer(node.sig).for_high_word()


# --------------------------------------------------------------------------------------------------- packing


def transformed(weights: Array) -> Array:
    """U of [O, 3, 3, C] as [O, 4, 4, C], int64."""
    product: Array = np.einsum("ir,orsc,js->oijc", FILTER, weights.astype(np.int64), FILTER)
    return product


def pairs(channels: int) -> Array:
    """Channels two by two as [pairs, 2]; an odd last one is computed together with its neighbour, once more."""
    first = np.minimum(np.arange(0, channels, 2), channels - 2)
    return np.stack([first, first + 1], 1)


def packed_groups(values: Array) -> Array:
    """[…, C] int16 → […, C/4, 2] words (k0, k2), (k1, k3): what SXTB16 makes of four bytes."""
    fours = values.astype(np.int16).reshape(*values.shape[:-1], -1, 4)[..., [0, 2, 1, 3]]
    return np.ascontiguousarray(fours).view(np.int32)


def chunk_of(groups: int) -> int:
    """How many groups of four channels are written out: a divisor."""
    return max(n for n in range(1, 9) if groups % n == 0)


def next_steps(chunks: int) -> Array:
    """What comes after each chunk, [4 rows, 4 columns, chunks]: more of the same, or the column's (or row's) end."""
    steps = np.zeros((4, 4, chunks), np.int32)
    steps[:, :, -1] = np.arange(1, 5)
    steps[3, 3, -1] = 5
    return steps


def stream(node: Node) -> Array:
    """All that the products of all pairs of channels read, int32, in reading order."""
    weights, channels = weights_of(node), pairs(ConvShape.of(node).out_c)
    u = packed_groups(transformed(weights)[channels])[:, :, :, list(COLUMNS)]  # [pair, 2, 4, 4, groups, 2]
    groups = u.shape[4]
    chunk = chunk_of(groups)
    u = u.transpose(0, 2, 3, 4, 1, 5).reshape(len(channels), 4, 4, groups // chunk, 4 * chunk)
    steps = np.broadcast_to(next_steps(groups // chunk)[..., None], (*u.shape[:-1], 1))
    rows = np.concatenate([u, steps], -1).reshape(len(channels), 4, -1)
    starts = np.zeros((len(channels), 4, 4), np.int32)
    bias = bias_of(node)
    assert bias is not None
    starts[:, 1] = np.tile(4 * folded_bias(node.sig, weights, bias)[channels], 2)
    return np.concatenate(
        [np.concatenate([starts, rows], -1).reshape(len(channels), -1), tails(node, channels)], -1
    ).astype(np.int32)


def tails(node: Node, channels: Array) -> Array:
    """[pairs, 6]: multipliers, zero point and rounding of sums four times as large, step to the next pair, limits."""
    requantize, out = _requantizer(node), node.sig.output
    down = requantize.shift - 30
    rounding = (requantize.zero_point << down) + (1 << (down - 1))
    multipliers = np.broadcast_to(requantize.multiplier, out.shape[-1])[channels]
    steps = np.append(np.diff(channels[:, 0]), 0)
    low, high = clamp_range(clamp_of(node), out.q, out.dtype)
    rest = np.broadcast_to([rounding, 0, low, high], (len(channels), 4)).copy()
    rest[:, 1] = steps
    return np.concatenate([multipliers, rest], -1)


# --------------------------------------------------------------------------------------------------- kernels


def emit_dsp(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Transformed weights in flash; two tiles at a time."""
    shape, name, out = ConvShape.of(node), node.output.name, node.sig.output
    low, high = clamp_range(clamp_of(node), out.q, out.dtype)
    width = max(shape.pad_w + shape.in_w, -(-shape.out_w // 4) * 4 + 2)
    params: dict[str, Param] = {k: shape.params()[k] for k in ("batch", "in_c", "out_c", "in_h", "in_w", "out_h", "out_w", "pad_h", "pad_w")}
    params |= {"pitch": width * shape.in_c, "x_zero": node.sig.input(0).q.zero_point}
    cut = shape.out_w % 4 != 0 or shape.out_h % 2 != 0
    operands = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.winograd", stream(node).reshape(-1))),
        ("y", Access.OUT, builder.buffer(node.output)),
        ("rows", Access.SCRATCH, builder.scratch(f"{name}.rows", DType.INT8, 4 * width * shape.in_c)),
        ("v", Access.SCRATCH, builder.scratch(f"{name}.v", DType.INT16, 32 * shape.in_c)),
    ]
    if cut:
        operands.append(("patch", Access.SCRATCH, builder.scratch(f"{name}.patch", DType.INT8, 8 * shape.out_c)))
    code: dict[str, object] = {
        "chunk": chunk_of(shape.in_c // 4),
        "shift": _requantizer(node).shift,
        "clamp_low": low > -128,
        "clamp_high": high < 127,
        "cut": cut,
    }
    builder.emit(node, kernel, operands, params, code=code, variant="cut" if cut else "")


CONV: tuple[Kernel, ...] = (Kernel("conv2d_s8_winograd_dsp", frozenset({"dsp"}), FITS, emit_dsp),)
