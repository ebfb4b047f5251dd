# SPDX-License-Identifier: Apache-2.0
"""What the kernels for Helium share: when they fit, how they pack constants, how they are emitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.kernels.conv_shape import ConvShape
from mcugen.kernels.reading_order import overlaps
from mcugen.kernels.weighted import clamp_of, folded_bias_of, largest_sums_of, weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.lir.traversal import Traversal
from mcugen.numerics.fixedpoint import clamp_range
from mcugen.numerics.sums import requantizer

VECTOR = 16
"""Bytes of a vector."""

BLOCK = 4
"""Output channels that a convolution computes together, for two pixels."""

UNROLL = (4, 3, 2, 1)
"""Vectors that the inner loop may take in a turn."""

MOST_CHANNELS = 2**14
"""Results are scattered by offsets of 16 bits, over four pixels at most."""


def int8_requantized(node: Node) -> bool:
    """int8 tensors, sums in 32 bits"""
    sig = node.sig
    if any(t.dtype is not DType.INT8 or t.quant is None for t in (sig.input(0), sig.input(1), sig.output)):
        return False
    sums = largest_sums_of(node)
    if sums.max(initial=0) >= 2**31 or len(sums) > MOST_CHANNELS:
        return False
    return int(sums.max(initial=0)) << (31 - requantizer(sig, sums).shift) < 2**31


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
    requantize, bias = requantizer(node.sig, largest_sums_of(node)), folded_bias_of(node)
    channels = [bias, np.broadcast_to(requantize.multiplier, len(bias))]
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
    "depthwise_s8_mve_8x8": (
        *(
            "zero_point",
            "y_next",
            "groups",
            "halves",
            "back_x",
            "back_y",
            "rewind_x",
            "rewind_y",
            "shift",
            "low",
            "high",
        ),
        *("place_step", "half_mask", "band"),
    ),
    "depthwise_s8_mve_4x4": (
        *("zero_point", "y_next", "groups", "halves", "back_x", "back_y", "down_x", "down_y", "shift", "low", "high"),
        *("place_step", "place_second"),
    ),
}
"""By kernel, the parameters that its assembly copies in one piece: they come first, in this order."""


def loop(vectors: int, tail: int = 0) -> tuple[dict[str, Param], dict[str, object]]:
    """The inner loop over `vectors` in one piece and `tail` more products: parameters and flags."""
    unroll = next((n for n in UNROLL if vectors and vectors % n == 0), 0)
    turns = vectors // unroll if unroll else 0
    params: dict[str, Param] = {"turns": turns, "jump": 0, "tail": tail}
    return params, {"unroll": unroll, "looped": turns > 1, "tail": tail > 0, "jump": False}


def block_products(node: Node, pixels: int, channels: int) -> int:
    """Vectors of products that a layer takes in blocks of so many pixels and channels, for its cost."""
    weights = weights_of(node)
    depth = weights.size // len(weights)
    blocks = -(-node.output.type.count // len(weights) // pixels) * -(-len(weights) // channels)
    return blocks * -(-depth // VECTOR)


def strip_params(shape: ConvShape) -> dict[str, Param]:
    """Sizes of the strip of padded rows: `span` rows, `pitch` bytes apart."""
    extent = shape.stride_w * (shape.out_w - 1) + shape.dilation_w * (shape.k_w - 1) + 1
    pitch = max(extent, shape.pad_w + shape.in_w) * shape.in_c
    return shape.params() | {"span": (shape.k_h - 1) * shape.dilation_h + 1, "pitch": pitch}


def emit(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    packed: Array,
    params: Mapping[str, Param],
    flags: Mapping[str, object],
    *,
    block: int = BLOCK,
    channel_order: Sequence[int] | None = None,
    scratch: tuple[str, int] | None = None,
    orders: Sequence[Traversal] = (),
    inplace: bool = False,
    offsets: Array | None = None,
) -> None:
    """Emits a kernel with `packed` weights, a table by blocks of channels, and scratch: a role and bytes.

    `channel_order` is that of the channels in a block of the table, `orders` those in which the kernel walks the image.
    """
    name, out, channels = node.output.name, node.output.type, len(weights_of(node))
    table, shift = pack_table(node, block, channel_order)
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
        overlaps=overlaps(node, *orders) if orders else [],
    )
