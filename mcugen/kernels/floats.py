# SPDX-License-Identifier: Apache-2.0
"""float32 kernels in register blocks, for CPUs with an FPU: four rows by four channels in its 32 registers, or in
Helium's vectors.
"""

from __future__ import annotations

import math

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array
from mcugen.kernels.conv_shape import ConvShape, shape_of
from mcugen.kernels.portable import depthwise
from mcugen.kernels.reading_order import in_turn, overlaps, rows, windows
from mcugen.kernels.weighted import BLOCK, bias_of, clamp_of, float_store, float_tensors, weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.lir.traversal import Traversal

ROWS = 4
"""Rows (pixels) that are computed together."""


def one_group(node: Node) -> bool:
    """every output channel reads all input channels"""
    return ConvShape.of(node).groups == 1


def whole_input(node: Node) -> bool:
    """one output pixel that reads all of the input"""
    shape = ConvShape.of(node)
    covers = (shape.k_h, shape.k_w) == (shape.in_h, shape.in_w) and not (shape.pad_h or shape.pad_w)
    return covers and shape.groups == 1 and node.output.type.count == shape.out_c


def packed_blocks(weights: Array, bias: Array) -> Array:
    """[N, K] and [N] → flat: by four channels their bias, then [K][4]; zeros for channels that are missing."""
    rows = np.column_stack([bias, weights]).astype(np.float32)
    missing = -len(rows) % BLOCK
    whole = np.concatenate([rows, np.zeros((missing, rows.shape[1]), np.float32)])
    return whole.reshape(-1, BLOCK, rows.shape[1]).transpose(0, 2, 1).reshape(-1)


def emit_dense(node: Node, builder: Builder, kernel: Kernel) -> None:
    """A fully connected layer; of several rows four are interleaved."""
    weights = weights_of(node).reshape(len(weights_of(node)), -1)
    channels, depth = weights.shape
    rows = node.output.type.count // channels
    params: dict[str, Param] = {"rows": rows, "depth": depth, "out_c": channels}
    code = _clamp_code(node) | {"single": rows == 1}
    whole, shape = rows // ROWS * ROWS, shape_of(node)
    fours, single = windows(shape, in_turn(whole, ROWS)), np.arange(whole, rows)[:, None]
    order = fours + windows(shape, single, last=channels % BLOCK or BLOCK)
    _emit(node, builder, kernel, params, ("patch", 0 if rows == 1 else ROWS * depth), code, order)


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Four pixels are gathered and interleaved, the last ones of an image one by one; behind them lies one of zeros."""
    shape = ConvShape.of(node)
    depth = math.prod(weights_of(node).shape[1:])
    direct = shape.reads_pixels and shape.stride_h == shape.stride_w == 1
    params = shape.params() | {"depth": depth, "direct": int(direct)}
    patch = ("patch", ROWS * depth + shape.in_c)
    pixels = np.arange(shape.out_h * shape.out_w)
    whole = len(pixels) // ROWS * ROWS
    blocks = np.concatenate([pixels[:whole].reshape(-1, ROWS), np.tile(pixels[whole:, None], ROWS)])
    _emit(node, builder, kernel, params, patch, _clamp_code(node), windows(shape, blocks))


def emit_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """A ring of padded rows, [block of channels][column][4], and outputs side by side in groups."""
    shape = ConvShape.of(node)
    blocks = -(-shape.in_c // BLOCK)
    row_w = shape.stride_w * (shape.out_w - 1) + shape.dilation_w * (shape.k_w - 1) + 1
    params = shape.params() | {"row_w": max(row_w, shape.pad_w + shape.in_w), "blocks": blocks}
    ring = ((shape.k_h - 1) * shape.dilation_h + 1) * int(params["row_w"]) * blocks * BLOCK
    code: dict[str, object] = {"group": _group(shape), "k_h": shape.k_h, "k_w": shape.k_w}
    code |= {"stride": shape.stride_w, "dilation": shape.dilation_w, "rest": shape.in_c % BLOCK != 0}
    _emit(
        node,
        builder,
        kernel,
        params,
        ("rows", ring),
        code,
        rows(shape),
        variant=f"{shape.k_h}x{shape.k_w}",
    )


def _group(shape: ConvShape) -> int:
    """Outputs side by side that take the fewest instructions in all; the last group may overlap the one before."""

    def instructions(group: int) -> int:
        taps_held = 7 - group
        loads = sum(
            1 + len({i * shape.stride_w + t * shape.dilation_w for i in range(group) for t in range(first, end)})
            for first in range(0, shape.k_w, taps_held)
            for end in [min(first + taps_held, shape.k_w)]
        )
        return -(-shape.out_w // group) * (shape.k_h * (loads + group * shape.k_w) + 5 * group + 8)

    return min(range(1, min(shape.out_w, 5) + 1), key=instructions)


def _emit(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    params: dict[str, Param],
    scratch: tuple[str, int],
    code: dict[str, object],
    order: Traversal,
    variant: str = "",
) -> None:
    """A layer whose weights hold its bias; `scratch` is a role and a number of floats."""
    name, weights, floats = node.output.name, weights_of(node), node.input(0).type.dtype
    store = float_store(weights, bias_of(node), clamp_of(node))
    packed = packed_blocks(weights.reshape(len(weights), -1), store.constants["bias"])
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", packed)),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    role, count = scratch
    if count:
        operands.append((role, Access.SCRATCH, builder.scratch(f"{name}.{role}", floats, count)))
    code |= {"high": store.code["high"]}
    free = overlaps(node, order)
    builder.emit(node, kernel, operands, params | store.params, code=code, overlaps=free, variant=variant)


def _clamp_code(node: Node) -> dict[str, object]:
    """Whether the result is limited at 0, if at all, so that the sign of an integer tells what to do."""
    low, high = clamp_of(node) or (-math.inf, math.inf)
    return {"clamp": "relu" if low == 0 or (math.isinf(low) and math.isinf(high)) else "any"}


def near_columns(node: Node) -> bool:
    """a kernel whose columns fit the offsets of loads"""
    shape = ConvShape.of(node)
    return 4 * shape.stride_w + (shape.k_w - 1) * shape.dilation_w < 32


_FPU = frozenset({"fpu"})
_MVE = frozenset({"mve_float"})

DENSE: tuple[Kernel, ...] = (Kernel("dense_f32_fpu", _FPU, when=(float_tensors,), emit=emit_dense),)

DEPTHWISE: tuple[Kernel, ...] = (
    Kernel("depthwise_f32_mve", _MVE, when=(float_tensors, depthwise, near_columns), emit=emit_depthwise),
)

CONV: tuple[Kernel, ...] = (
    Kernel("dense_f32_fpu", _FPU, when=(float_tensors, whole_input), emit=emit_dense),
    Kernel("conv2d_f32_fpu", _FPU, when=(float_tensors, one_group), emit=emit_conv),
)
