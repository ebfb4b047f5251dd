# SPDX-License-Identifier: Apache-2.0
"""float32 kernels in register blocks, for CPUs with an FPU: four rows by four channels in its 32 registers, or in
Helium's vectors.
"""

from __future__ import annotations

import math

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.ops.kernels.conv_shape import ConvShape
from mcugen.ops.weighted import BLOCK, bias_of, clamp_of, float_store, float_tensors, weights_of

ROWS = 4
"""Rows (pixels) that are computed together."""


def one_group(node: Node) -> bool:
    """every output channel reads all input channels"""
    return ConvShape.of(node).groups == 1


def several_channels(node: Node) -> bool:
    """three output channels or more"""
    return len(weights_of(node)) >= BLOCK - 1


def several_outputs(node: Node) -> bool:
    """more than one output pixel"""
    return node.output.type.count > len(weights_of(node))


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
    _emit(node, builder, kernel, params, 0 if rows == 1 else ROWS * depth, {"single": rows == 1})


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Four pixels are gathered and interleaved; behind them lie zeros, a row of the kernel."""
    shape = ConvShape.of(node)
    depth = math.prod(weights_of(node).shape[1:])
    direct = shape.reads_pixels and shape.stride_h == shape.stride_w == 1
    params = shape.params() | {"depth": depth, "direct": int(direct)}
    _emit(node, builder, kernel, params, ROWS * depth + shape.k_w * shape.in_c, {})


def _emit(
    node: Node, builder: Builder, kernel: Kernel, params: dict[str, Param], scratch: int, code: dict[str, object]
) -> None:
    """A layer whose weights hold its bias, with a patch of `scratch` floats."""
    name, weights = node.output.name, weights_of(node)
    rows = weights.reshape(len(weights), -1)
    store = float_store(weights, bias_of(node), clamp_of(node))
    low = store.params["low"]
    operands: list[tuple[str, Access, Buffer]] = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", packed_blocks(rows, store.constants["bias"]))),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    if scratch:
        operands.append(("patch", Access.SCRATCH, builder.scratch(f"{name}.patch", node.input(0).type.dtype, scratch)))
    code |= {"rest": len(weights) % BLOCK != 0, "high": store.code["high"]}
    code["clamp"] = "relu" if low == 0 or (math.isinf(low) and not code["high"]) else "any"
    builder.emit(node, kernel, operands, params | store.params, code=code)


_FPU = frozenset({"fpu"})

DENSE: tuple[Kernel, ...] = (
    Kernel("dense_f32_fpu", _FPU, when=(float_tensors, several_channels), emit=emit_dense),
)

CONV: tuple[Kernel, ...] = (
    Kernel("dense_f32_fpu", _FPU, when=(float_tensors, several_channels, whole_input), emit=emit_dense),
    Kernel("conv2d_f32_fpu", _FPU, when=(float_tensors, several_channels, one_group), emit=emit_conv),
)
