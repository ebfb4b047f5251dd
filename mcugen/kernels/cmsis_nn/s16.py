# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's layers of int16 activations: convolutions, fully connected layers, products of two int16 tensors.

The library multiplies 32-bit accumulators by 31-bit multipliers with a shift of 31 at most: M = round(scale · 2^31) has
fewer bits than mcugen's multiplier, whose shift may be larger. It multiplies 64-bit accumulators by 15-bit multipliers
with any shift, and rounds once in all builds. Both may differ from mcugen's result by one quantization step, so these
kernels have references of their own. Where the difference could be larger, the kernels do not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels.cmsis_nn.common import (
    MAX_INT16_AXIS,
    SCRATCH,
    Scratch,
    TensorScale,
    has_small_axes,
    layer_operands,
    library_kernel,
    select_by_variant,
    with_scratch,
)
from mcugen.kernels.cmsis_nn.convolution import count_gathered_taps
from mcugen.kernels.cmsis_nn.depthwise import (
    depthwise_function,
    has_one_channel_filters,
    has_reachable_windows,
    without_idle_dilation,
)
from mcugen.kernels.cmsis_nn.matmul import ProductSize, product_operands
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.specs import ConvSpec, MatMulSpec, WeightedSpec
from mcugen.kernels.common.weighted_layers import CodeLimits, has_one_group
from mcugen.kernels.portable.weighted import DenseSizes
from mcugen.lir.kernel import Call, Kernel, Site, reads, writes
from mcugen.lir.kernel import scratch as scratch_role
from mcugen.lir.program import Buffer
from mcugen.lir.spec import spec_of
from mcugen.numerics.fixedpoint import Int64Array, Requantizer

LONG_MULTIPLIER_BITS, MIN_LONG_SHIFT, MAX_LONG_SHIFT = 15, 8, 46
"""Bits of the multipliers of 64-bit accumulators, and the smallest and largest right shift of their products."""

MAX_INT32_RUN = 512
"""Number of products that the library adds up in 32 bits before it adds the sum to a 64-bit accumulator."""


@dataclass(frozen=True)
class Scaling:
    """CMSIS-NN's requantization of int16 layers, which rounds once, half up.

    q = clamp((v · multiplier + 2^(shift−1)) >> shift) for an accumulator v.

    Attributes:
        multiplier: Integer multipliers of the accumulators, one per channel of the last axis, or one for all.
        shift: Right shifts in bits after the multiplication, one per channel of the last axis, or one for all.
    """

    multiplier: Int64Array
    shift: Int64Array

    @staticmethod
    def near(exact: Requantizer, bits: int, max_shift: int) -> Scaling:
        """Return the requantization in CMSIS-NN's format that is nearest to an exact one.

        Args:
            exact: The requantization to approximate.
            bits: Bits of a multiplier.
            max_shift: Largest right shift in bits.
        """
        real = exact.multiplier / 2.0**exact.shift
        shift = np.minimum(bits - np.frexp(real)[1].astype(np.int64), max_shift)
        shift -= np.rint(real * 2.0**shift) >= 2**bits
        return Scaling(np.rint(real * 2.0**shift).astype(np.int64), shift)

    def __call__(self, sums: Array, low: int, high: int) -> Array:
        """Return the accumulators `sums`, requantized and clamped to [low, high], as int64."""
        q: Array = np.clip((sums * self.multiplier + (1 << (self.shift - 1))) >> self.shift, low, high)
        return q

    def agrees(self, exact: Requantizer, sums: Array) -> bool:
        """Return whether int16 results differ by at most 1 from those of the requantization `exact`.

        Two results differ by at most 1 if they differ by less than 1 before the rounding, or if both are clamped. The
        result is also False if a value before the rounding does not fit 31 bits.

        Args:
            exact: The requantization to compare with.
            sums: Upper bounds of the magnitude of accumulators, by channel.
        """
        mine, other = self.multiplier / 2.0**self.shift, exact.multiplier / 2.0**exact.shift
        inside = np.minimum(sums, (2**15 + 1) / np.maximum(np.minimum(mine, other), 2.0**-60))
        fits = (sums * mine < 2**30) & (self.shift >= MIN_LONG_SHIFT)
        return bool((fits & (np.abs(mine - other) * inside < 1)).all())

    def arguments(self, channels: int) -> tuple[Array, Array]:
        """Return the int32 arrays (multiplier, shift), one entry per channel, that CMSIS-NN's functions take.

        They are for functions with 64-bit accumulators.

        Args:
            channels: Number of channels.
        """
        pair = self.multiplier << 16, LONG_MULTIPLIER_BITS - self.shift
        multiplier, shift = (np.broadcast_to(values, channels).astype(np.int32) for values in pair)
        return multiplier, shift


# ------------------------------------------------------------------------------- scales of a layer


def short_scaling(spec: WeightedSpec) -> Scaling | None:
    """Return CMSIS-NN's requantization of an int16 layer with 32-bit accumulators.

    Returns:
        The requantization; None if 32 bits do not hold twice the accumulators, since CMSIS-NN doubles them with Helium.
    """
    scaling = Scaling.near(spec.requantizer, 31, 31)
    return scaling if (spec.largest_sums * 2.0 ** (31 - scaling.shift) < 2**30).all() else None


def long_scaling(spec: WeightedSpec | MatMulSpec) -> Scaling | None:
    """Return CMSIS-NN's requantization of an int16 layer with 64-bit accumulators, by 15-bit multipliers.

    Returns:
        The requantization; None if quantized results could differ from mcugen's by more than 1.
    """
    scaling = Scaling.near(spec.requantizer, LONG_MULTIPLIER_BITS, MAX_LONG_SHIFT)
    return scaling if scaling.agrees(spec.requantizer, spec.largest_sums) else None


def conv_scaling(spec: ConvSpec) -> Scaling | None:
    """Return CMSIS-NN's requantization of an int16 convolution.

    Returns:
        The requantization of 32-bit accumulators if possible; else that of 64-bit accumulators. None if quantized
        results could differ from mcugen's by more than 1, or if 64-bit accumulators would overflow in a loop of
        CMSIS-NN that adds up products in 32 bits (the loops over a last single pixel or channel).
    """
    return short_scaling(spec) or (long_scaling(spec) if _adds_in_64_bits(spec) else None)


def _adds_in_64_bits(spec: ConvSpec) -> bool:
    """Return whether 64-bit sums are right.

    The library adds a last single pixel, or remaining elements of a last single channel, in 32 bits.
    """
    shape = spec.shape
    pairs = shape.out_height * shape.out_width % 2 == 0 and (shape.out_channels % 2 == 0 or spec.depth % 4 == 0)
    return spec.depth <= MAX_INT32_RUN or pairs


# ------------------------------------------------------------------------------------- references


def evaluate_sums(node: Node, arrays: Sequence[Array]) -> Array:
    """Return the accumulators of a layer as int64: its sums of products and bias, before the requantization.

    Args:
        node: The layer.
        arrays: The values of its operands.
    """
    sums = TensorType(node.output.type.shape, DType.INT64)
    return node.op.evaluate(replace(node.sig, outputs=(sums,)), *arrays)[0]


def evaluate_conv(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the result of an int16 convolution, bit by bit as CMSIS-NN computes it."""
    spec: ConvSpec = spec_of(node)
    return _scaled(evaluate_sums(node, arrays), conv_scaling(spec), spec.limits)


def evaluate_long(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the result of an int16 layer with 64-bit accumulators, bit by bit as CMSIS-NN computes it."""
    spec: ConvSpec = spec_of(node)
    return _scaled(evaluate_sums(node, arrays), long_scaling(spec), spec.limits)


def evaluate_product(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the matrix product of two int16 activations, bit by bit as CMSIS-NN computes it."""
    spec: MatMulSpec = spec_of(node)
    return _scaled(evaluate_sums(node, arrays), long_scaling(spec), spec.y.dtype.limits)


def _scaled(sums: Array, scaling: Scaling | None, limits: tuple[int, int]) -> Sequence[Array]:
    assert scaling is not None
    return (scaling(sums, *limits),)


# -------------------------------------------------------------------------------------- emission


def emit_conv(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's int16 convolution; a dense layer is computed as a 1×1 convolution.

    Weights keep their order [O, H, W, I]. The bias has the 32 or 64 bits of the accumulators.
    """
    shape, short = spec.shape, short_scaling(spec)
    if short is None:
        scaling = conv_scaling(spec)
        assert scaling is not None
        multiplier, shift = scaling.arguments(shape.out_channels)
    else:
        pair = short.multiplier, 31 - short.shift
        multiplier, shift = (np.broadcast_to(values, shape.out_channels).astype(np.int32) for values in pair)
    depth = shape.kernel_height * shape.kernel_width * shape.in_channels
    size = select_by_variant(site.features, 4 * depth, 4 * depth, 8 * (-(-depth // 8) * 8))
    bias = spec.integer_bias.astype(np.int64 if short is None else np.int32)
    operands = _by_channel(site, ByChannel(spec.weights, bias, multiplier, shift), 0)
    return site.call(
        with_scratch(operands, site, size),
        [shape.geometry, CodeLimits.of(spec.limits), Scratch(scratch_bytes=size)],
        variant="long" if short is None else "",
    )


def emit_depthwise(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's int16 depthwise convolution, with weights [H, W, O].

    Constants are padded with zeros to a multiple of four channels, since Helium reads four at a time.
    """
    shape, scaling = without_idle_dilation(spec.shape), long_scaling(spec)
    assert scaling is not None
    columns = 2 * shape.kernel_height * shape.kernel_width * shape.in_channels if _is_fast(shape) else 0
    constants = ByChannel(spec.rows.T, spec.integer_bias.astype(np.int64), *scaling.arguments(shape.out_channels))
    size = select_by_variant(site.features, 0, columns, 4 * columns + 8 if columns else 0)
    return site.call(
        with_scratch(_by_channel(site, constants, -shape.out_channels % 4), site, size),
        [shape.geometry, CodeLimits.of(spec.limits), Scratch(scratch_bytes=size)],
    )


def _is_fast(shape: ConvShape) -> bool:
    """Return whether the library gathers im2col columns on CPUs with a vector or DSP extension."""
    undilated = shape.dilation_height == shape.dilation_width == 1
    return (
        undilated
        and shape.out_channels == shape.in_channels
        and shape.kernel_height * shape.kernel_width < MAX_INT32_RUN
    )


class ByChannel(NamedTuple):
    """The constants of an int16 layer with one requantization multiplier per output channel.

    Attributes:
        w: Weights, int8, in CMSIS-NN's layout.
        bias: Bias by channel, int32 or int64 like the accumulators.
        multiplier: Requantization multiplier of each output channel, int32.
        shift: Left shift of each output channel in bits, int32; negative for the usual right shift.
    """

    w: Array
    bias: Array
    multiplier: Array
    shift: Array


def _by_channel(site: Site, constants: ByChannel, spare: int) -> dict[str, Buffer]:
    """Return the operands, each constant followed by `spare` zeros."""
    arrays = {role: np.pad(array.reshape(-1), (0, spare)) for role, array in constants._asdict().items()}
    shift = arrays.pop("shift")
    operands = {"x": site.x} | {role: site.const(role, array) for role, array in arrays.items()}
    return operands | {"shift": site.growing_const("shift", shift), "y": site.y}


def emit_dense(spec: ConvSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's int16 fully connected layer with one scale for all channels.

    Weights keep their order [N, K].
    """
    scaling = long_scaling(spec)
    assert scaling is not None
    operands = {
        "x": site.x,
        "w": site.const("weights", spec.weights),
        "bias": site.const("bias", spec.integer_bias.astype(np.int64)),
        "y": site.y,
    }
    return site.call(operands, [DenseSizes.of(spec), _of_tensor(scaling), CodeLimits.of(spec.limits)])


def emit_product(spec: MatMulSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's product of two int16 activation matrices, one matrix of the batch at a time.

    The right operand is transposed first, in scratch memory.
    """
    scaling = long_scaling(spec)
    assert scaling is not None
    columns = site.scratch("columns", DType.INT16, spec.depth * spec.columns)
    operands = {"a": site.input(0), "b": site.input(1), "y": site.y, "columns": columns}
    return site.call(operands, [ProductSize.of(spec), _of_tensor(scaling), CodeLimits.of(spec.y.dtype.limits)])


def _of_tensor(scaling: Scaling) -> TensorScale:
    """Return the parameters of a layer with one scale."""
    (multiplier,), (shift,) = scaling.arguments(1)
    return TensorScale(multiplier=int(multiplier), shift=int(shift))


# ------------------------------------------------------------------------------------ conditions


def is_int16_layer(spec: WeightedSpec) -> bool:
    """Require int16 tensors and int8 weights.

    Return whether the layer meets this condition of a kernel: x and y are int16, and y is quantized.
    """
    types = [spec.x.dtype, spec.w.dtype, spec.y.dtype]
    return types == [DType.INT16, DType.INT8, DType.INT16] and spec.y.quant is not None


def is_int16_product(spec: MatMulSpec) -> bool:
    """Require quantized int16 operands and result.

    Return whether the layer meets this condition of a kernel.
    """
    return all(t.dtype is DType.INT16 and t.quant is not None for t in (spec.a, spec.b, spec.y))


def fits_conv_scaling(spec: ConvSpec) -> bool:
    """Require that the library's results are within one quantization step, with 32-bit or 64-bit accumulators.

    Return whether the layer meets this condition of a kernel: each quantized result of CMSIS-NN differs from mcugen's
    by at most 1 (conv_scaling).
    """
    return conv_scaling(spec) is not None


def fits_long_scaling(spec: WeightedSpec) -> bool:
    """Require results within one quantization step with 15-bit multipliers.

    Return whether the layer meets this condition of a kernel: each quantized result of CMSIS-NN differs from mcugen's
    by at most 1 (long_scaling).
    """
    return long_scaling(spec) is not None


def fits_product_scaling(spec: MatMulSpec) -> bool:
    """Require results within one quantization step with 15-bit multipliers.

    Return whether a matrix product meets this condition of a kernel: each quantized result of CMSIS-NN differs from
    mcugen's by at most 1 (long_scaling).
    """
    return long_scaling(spec) is not None


def has_one_scale(spec: WeightedSpec) -> bool:
    """Require one multiplier for all channels.

    Return whether the layer meets this condition of a kernel: all output channels are requantized by one multiplier.
    """
    return len(spec.requantizer.multiplier) == 1


def has_small_matrices(spec: MatMulSpec) -> bool:
    """Require axes of fewer than 32768 elements.

    Return whether both operands of a matrix product meet this condition of a kernel: CMSIS-NN counts elements in 16
    bits.
    """
    return all(0 < size <= MAX_INT16_AXIS for t in (spec.a, spec.b) for size in t.shape)


def accumulator_size(spec: ConvSpec) -> str:
    """Return the size of accumulators in CMSIS-NN's int16 convolution: "short" for 32 bits, "long" for 64 bits.

    The cost model has separate costs for each.
    """
    return "short" if short_scaling(spec) else "long"


_CONV = library_kernel(
    "cmsis_convolve_s16",
    what="a convolution of int16 tensors: arm_convolve_wrapper_s16",
    operands=(*layer_operands(DType.INT16, DType.INT64), SCRATCH),
    params=(ConvGeometry, CodeLimits, Scratch),
    when=(is_int16_layer, has_one_group, has_small_axes, fits_conv_scaling),
    emit=emit_conv,
    evaluate=evaluate_conv,
    way=accumulator_size,
    extra=count_gathered_taps,
)

CMSIS_CONV_S16: tuple[Kernel, ...] = (
    _CONV,
    library_kernel(
        "cmsis_depthwise_s16",
        what="a convolution of each channel of int16 tensors: arm_depthwise_conv_wrapper_s16",
        operands=(*layer_operands(DType.INT16, DType.INT64), SCRATCH),
        params=(ConvGeometry, CodeLimits, Scratch),
        when=(is_int16_layer, has_one_channel_filters, has_reachable_windows, has_small_axes, fits_long_scaling),
        emit=emit_depthwise,
        evaluate=evaluate_long,
        way=depthwise_function,
    ),
)
"""CMSIS-NN's kernels of int16 convolutions, in order of preference."""

CMSIS_DENSE_S16: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_dense_s16",
        what="a fully connected layer of int16 tensors with one scale: arm_fully_connected_s16",
        operands=(
            reads("x", "input", DType.INT16),
            reads("w", "weights by output channel", DType.INT8, holds=(1,)),
            reads("bias", "bias by channel", DType.INT64, holds=(2,)),
            writes("y", "output", DType.INT16),
        ),
        params=(DenseSizes, TensorScale, CodeLimits),
        when=(is_int16_layer, has_one_scale, has_small_axes, fits_long_scaling),
        emit=emit_dense,
        evaluate=evaluate_long,
    ),
    _CONV,
)
"""CMSIS-NN's kernels of int16 fully connected layers; layers with one scale per channel use a convolution."""

CMSIS_MATMUL_S16: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_batch_matmul_s16",
        what="the product of two int16 activations: arm_batch_matmul_s16",
        operands=(
            *product_operands(DType.INT16),
            scratch_role("columns", "transposed matrix of b", DType.INT16),
        ),
        params=(ProductSize, TensorScale, CodeLimits),
        when=(is_int16_product, has_small_matrices, fits_product_scaling),
        emit=emit_product,
        evaluate=evaluate_product,
    ),
)
"""CMSIS-NN's kernels of matrix products of two int16 activations."""
