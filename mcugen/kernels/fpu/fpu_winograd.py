# SPDX-License-Identifier: Apache-2.0
"""Winograd's F(2×2, 3×3) of floats: 3×3 convolutions with 16 products for 4 outputs instead of 36.

Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016). The additions
and subtractions of the transforms cost about a bit of accuracy, and where the direct sum is infinite, the result may be
NaN.
"""

from __future__ import annotations

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.common.conv_shape import ConvGeometry
from mcugen.kernels.common.loop_options import FloatLoops
from mcugen.kernels.common.reading_order import windows
from mcugen.kernels.common.specs import ConvSpec
from mcugen.kernels.common.weighted_layers import INTERLEAVED_ROWS, FloatLimits, float_limits, float_tensors
from mcugen.kernels.dsp.winograd import FILTER_TRANSFORM, Grid
from mcugen.kernels.fpu.fpu_conv import ClampOptions, UpperLimit, clamp_options
from mcugen.lir.kernel import UPDATABLE, Call, Kernel, Site, reads, scratch, writes
from mcugen.lir.traversal import Traversal

FLOAT_GRID = Grid(block_width=8)
"""Grid of the float Winograd kernels: blocks of 2 x 8 outputs, which are four tiles, one for each row of a register
block."""


def is_3x3_of_blocks(spec: ConvSpec) -> bool:
    """Require 3 x 3 windows, stride 1, and multiples of four channels: 8 or more of x, 4 or more of y.

    Return whether the layer meets this condition of a kernel.
    """
    s = spec.shape
    steps = (s.stride_height, s.stride_width, s.dilation_height, s.dilation_width, s.groups)
    is_3x3 = (s.kernel_height, s.kernel_width) == (3, 3) and set(steps) == {1}
    return (
        is_3x3
        and s.in_channels >= 2 * INTERLEAVED_ROWS
        and s.in_channels % INTERLEAVED_ROWS == s.out_channels % INTERLEAVED_ROWS == 0
    )


def has_finite_constants(spec: ConvSpec) -> bool:
    """Require finite weights and biases, also after the transformation of the weights.

    Return whether the layer meets this condition of a kernel.
    """
    return bool(np.isfinite(transform_weights(spec.weights)).all() and np.isfinite(spec.float_bias).all())


def transform_weights(weights: Array) -> Array:
    """Transform weights to G · w · Gᵀ, rounded once to float32, where G is the filter transform of F(2×2, 3×3).

    Args:
        weights: The filters, [out_channels, 3, 3, in_channels].

    Returns:
        The transformed weights, float32 [out_channels, 4, 4, in_channels].
    """
    g = FILTER_TRANSFORM / 2
    with np.errstate(over="ignore", invalid="ignore"):
        product: Array = np.einsum("ir,orsc,js->oijc", g, weights.astype(np.float64), g, optimize=True)
        return product.astype(np.float32)


def pack_transformed(weights: Array, bias: Array) -> Array:
    """Transform weights, and pack them and the biases as flat float32, in blocks of four output channels.

    Each block has four biases, then the transformed weights as [4][4][C][4 channels].

    Args:
        weights: The filters, [N, 3, 3, C]; N is a multiple of four.
        bias: The biases, [N].
    """
    u = transform_weights(weights).reshape(len(weights) // INTERLEAVED_ROWS, INTERLEAVED_ROWS, -1)
    rows = np.concatenate([bias.reshape(-1, INTERLEAVED_ROWS, 1), u], 2)
    return rows.transpose(0, 2, 1).astype(np.float32).reshape(-1)


def block_traversal(spec: ConvSpec) -> Traversal:
    """Return the order in which the kernel reads x and writes y: by blocks of 2×8 output pixels.

    All inputs of a block are read before any of its outputs is written.
    """
    shape = spec.shape
    oy, ox = (
        np.arange(0, size, step) for size, step in ((shape.out_height, 2), (shape.out_width, FLOAT_GRID.block_width))
    )
    y = np.minimum(oy[:, None] + np.arange(2), shape.out_height - 1)
    x = np.minimum(ox[:, None] + np.arange(FLOAT_GRID.block_width), shape.out_width - 1)
    pixels = y[:, None, :, None] * shape.out_width + x[None, :, None, :]
    return windows(shape, pixels.reshape(len(oy) * len(ox), -1))


def emit(spec: ConvSpec, site: Site) -> Call:
    """Emit a float Winograd convolution, which computes four tiles of 2×2 output pixels at a time.

    Inputs of tiles that extend beyond the border are first gathered in scratch memory, with padding.
    """
    shape = spec.shape
    sizes = {
        "patch": 4 * (FLOAT_GRID.block_width + 2) * shape.in_channels,
        "v": 8 * FLOAT_GRID.block_width * shape.in_channels,
        "m": 8 * FLOAT_GRID.block_width * INTERLEAVED_ROWS,
    }
    packed = pack_transformed(spec.weights, spec.float_bias)
    constant = site.const("winograd", packed, packed.size * INTERLEAVED_ROWS // spec.channels)
    operands = {"x": site.x, "w": constant, "y": site.y}
    operands |= {role: site.scratch(role, DType.FLOAT32, count) for role, count in sizes.items()}
    limits = float_limits(spec)
    options = [clamp_options(*spec.float_limits), UpperLimit(high=limits.high is not None), FloatLoops.of(site)]
    return site.call(operands, [shape.geometry, limits], options, overlaps=spec.overlaps(block_traversal(spec)))


FPU_WINOGRAD_CONV: tuple[Kernel, ...] = (
    Kernel(
        "conv2d_f32_winograd",
        what="3 x 3 windows by Winograd's F(2 x 2, 3 x 3): 16 products for four results; 16/9 of the weights",
        operands=(
            reads("x", "input, channels last", DType.FLOAT32),
            reads(
                "w",
                "by four channels: their biases, then their transformed weights in turn",
                DType.FLOAT32,
                holds=(1, 2),
            ),
            writes("y", "output, channels last", DType.FLOAT32),
            scratch("patch", "four rows of ten pixels at the border", DType.FLOAT32),
            scratch("v", "four transformed tiles of x", DType.FLOAT32),
            scratch("m", "products of the four tiles with transformed weights, for four channels", DType.FLOAT32),
        ),
        params=(ConvGeometry, FloatLimits),
        without=frozenset(
            {"kernel_height", "kernel_width", "stride_height", "stride_width", "dilation_height", "dilation_width"}
        ),
        options=(ClampOptions, UpperLimit, FloatLoops),
        needs=frozenset({"fpu"}),
        lacks=frozenset({UPDATABLE}),
        when=(float_tensors, is_3x3_of_blocks, has_finite_constants),
        emit=emit,
        extra=FLOAT_GRID.work,
        spends=True,
        products=4 / 9,
        loads=8 / (9 * FLOAT_GRID.block_width),  # 16 transformed weights replace nine; each serves four tiles.
    ),
)
"""Float Winograd kernels of convolutions for an FPU."""
