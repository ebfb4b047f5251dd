# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's layers of int16 activations: convolutions, fully connected layers, products of two int16 tensors.

Sums of 32 bits are scaled by multipliers of 31 bits with a shift of 31 at most: M = round(scale · 2^31) has fewer bits
than ours, which may shift further. Sums of 64 bits are scaled by 15 bits, with any shift, rounded once whatever the
library's build. Both may miss our result by a step, so that these kernels have references of their own; where it could
be more, they do not fit.
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
    by_variant,
    layer_operands,
    library_kernel,
    small_axes,
    with_scratch,
)
from mcugen.kernels.cmsis_nn.convolution import gatherings
from mcugen.kernels.cmsis_nn.depthwise import near_windows, one_channel_filters, plain
from mcugen.kernels.cmsis_nn.depthwise import way as depthwise_way
from mcugen.kernels.cmsis_nn.matmul import ProductSize, product_operands
from mcugen.kernels.common.conv_shape import ConvGeometry, ConvShape
from mcugen.kernels.common.specs import ConvSpec, MatMulSpec, WeightedSpec
from mcugen.kernels.common.weighted_layers import CodeLimits
from mcugen.kernels.portable.weighted import DenseSizes
from mcugen.lir.kernel import Call, Kernel, Site, reads, writes
from mcugen.lir.kernel import scratch as scratch_role
from mcugen.lir.program import Buffer
from mcugen.lir.spec import spec_of
from mcugen.numerics.fixedpoint import Int64Array, Requantizer

REDUCED, SHORTEST_SHIFT, LONGEST_SHIFT = 15, 8, 46
"""Bits of a multiplier of sums of 64 bits, and the shifts of its products."""

LONGEST_RUN = 512
"""Products that the library adds in 32 bits before it goes on in 64."""


@dataclass(frozen=True)
class Scaling:
    """q = clamp((v · multiplier + 2^(shift−1)) >> shift): one rounding, half up.

    There is one entry for each channel of the last axis, or one for all.
    """

    multiplier: Int64Array
    shift: Int64Array

    @staticmethod
    def near(exact: Requantizer, bits: int, max_shift: int) -> Scaling:
        """Return the scaling nearest to `exact` with multipliers of `bits` bits and shifts of at most `max_shift`."""
        real = exact.multiplier / 2.0**exact.shift
        shift = np.minimum(bits - np.frexp(real)[1].astype(np.int64), max_shift)
        shift -= np.rint(real * 2.0**shift) >= 2**bits
        return Scaling(np.rint(real * 2.0**shift).astype(np.int64), shift)

    def __call__(self, sums: Array, low: int, high: int) -> Array:
        """Return the requantized sums as int64."""
        q: Array = np.clip((sums * self.multiplier + (1 << (self.shift - 1))) >> self.shift, low, high)
        return q

    def agrees(self, exact: Requantizer, sums: Array) -> bool:
        """Whether sums of at most these magnitudes, by channel, become int16 codes within one step of `exact`'s.

        Two results differ by at most 1 if they did by less before the rounding, or if both leave the range. What is
        rounded must fit 31 bits.
        """
        mine, other = self.multiplier / 2.0**self.shift, exact.multiplier / 2.0**exact.shift
        inside = np.minimum(sums, (2**15 + 1) / np.maximum(np.minimum(mine, other), 2.0**-60))
        fits = (sums * mine < 2**30) & (self.shift >= SHORTEST_SHIFT)
        return bool((fits & (np.abs(mine - other) * inside < 1)).all())

    def arguments(self, channels: int) -> tuple[Array, Array]:
        """Multiplier and shift of each channel as the library takes them for sums of 64 bits, int32."""
        pair = self.multiplier << 16, REDUCED - self.shift
        multiplier, shift = (np.broadcast_to(values, channels).astype(np.int32) for values in pair)
        return multiplier, shift


# ------------------------------------------------------------------------------- scales of a layer


def short_scaling(spec: WeightedSpec) -> Scaling | None:
    """Return the scaling of a layer whose doubled sums fit in 32 bits, which Helium needs; None for other layers."""
    scaling = Scaling.near(spec.requantizer, 31, 31)
    return scaling if (spec.largest_sums * 2.0 ** (31 - scaling.shift) < 2**30).all() else None


def long_scaling(spec: WeightedSpec) -> Scaling | None:
    """Return the scaling of any sums; None if it is more than a step from ours."""
    scaling = Scaling.near(spec.requantizer, REDUCED, LONGEST_SHIFT)
    return scaling if scaling.agrees(spec.requantizer, spec.largest_sums) else None


def conv_scaling(spec: ConvSpec) -> Scaling | None:
    """Return the scaling in 32 bits, or in 64 where all of the library's loops add the whole sum in 64 bits."""
    return short_scaling(spec) or (long_scaling(spec) if _adds_in_64_bits(spec) else None)


def _adds_in_64_bits(spec: ConvSpec) -> bool:
    """Whether long sums are right: a last single pixel, or channel of elements left over, is not added in runs."""
    shape = spec.shape
    pairs = shape.out_height * shape.out_width % 2 == 0 and (shape.out_channels % 2 == 0 or spec.depth % 4 == 0)
    return spec.depth <= LONGEST_RUN or pairs


def product_scaling(spec: MatMulSpec) -> Scaling | None:
    """Return the scaling of a product of two activations; None if it is more than a step from ours."""
    scaling = Scaling.near(spec.requantizer, REDUCED, LONGEST_SHIFT)
    return scaling if scaling.agrees(spec.requantizer, spec.largest_sums) else None


# ------------------------------------------------------------------------------------- references


def sums_of(node: Node, arrays: Sequence[Array]) -> Array:
    """Return the sums of a layer with their bias, int64."""
    sums = TensorType(node.output.type.shape, DType.INT64)
    return node.op.evaluate(replace(node.sig, outputs=(sums,)), *arrays)[0]


def evaluate_conv(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the library's result of a convolution."""
    spec: ConvSpec = spec_of(node)
    return _scaled(sums_of(node, arrays), conv_scaling(spec), spec.limits)


def evaluate_long(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the library's result of a layer with 64-bit sums."""
    spec: ConvSpec = spec_of(node)
    return _scaled(sums_of(node, arrays), long_scaling(spec), spec.limits)


def evaluate_product(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the library's result of a product of two activations."""
    spec: MatMulSpec = spec_of(node)
    return _scaled(sums_of(node, arrays), product_scaling(spec), spec.y.dtype.limits)


def _scaled(sums: Array, scaling: Scaling | None, limits: tuple[int, int]) -> Sequence[Array]:
    assert scaling is not None
    return (scaling(sums, *limits),)


# -------------------------------------------------------------------------------------- emission


def emit_conv(spec: ConvSpec, site: Site) -> Call:
    """Weights [O, H, W, I] as they are; the bias of 32 bits, where sums are such. A fully connected layer is 1 × 1."""
    shape, short = spec.shape, short_scaling(spec)
    if short is None:
        scaling = conv_scaling(spec)
        assert scaling is not None
        multiplier, shift = scaling.arguments(shape.out_channels)
    else:
        pair = short.multiplier, 31 - short.shift
        multiplier, shift = (np.broadcast_to(values, shape.out_channels).astype(np.int32) for values in pair)
    depth = shape.kernel_height * shape.kernel_width * shape.in_channels
    size = by_variant(site.features, 4 * depth, 4 * depth, 8 * (-(-depth // 8) * 8))
    bias = spec.integer_bias.astype(np.int64 if short is None else np.int32)
    operands = _by_channel(site, ByChannel(spec.weights, bias, multiplier, shift), 0)
    return site.call(
        with_scratch(operands, site, size),
        [shape.geometry, CodeLimits.of(spec.limits), Scratch(scratch_bytes=size)],
        variant="long" if short is None else "",
    )


def emit_depthwise(spec: ConvSpec, site: Site) -> Call:
    """Weights [H, W, O]. Helium reads four channels at a time, of whatever is behind the last: zeros."""
    shape, scaling = plain(spec.shape), long_scaling(spec)
    assert scaling is not None
    columns = 2 * shape.kernel_height * shape.kernel_width * shape.in_channels if _is_fast(shape) else 0
    constants = ByChannel(spec.rows.T, spec.integer_bias.astype(np.int64), *scaling.arguments(shape.out_channels))
    size = by_variant(site.features, 0, columns, 4 * columns + 8 if columns else 0)
    return site.call(
        with_scratch(_by_channel(site, constants, -shape.out_channels % 4), site, size),
        [shape.geometry, CodeLimits.of(spec.limits), Scratch(scratch_bytes=size)],
    )


def _is_fast(shape: ConvShape) -> bool:
    """Whether the library gathers columns, where it has an instruction for them."""
    undilated = shape.dilation_height == shape.dilation_width == 1
    return (
        undilated and shape.out_channels == shape.in_channels and shape.kernel_height * shape.kernel_width < LONGEST_RUN
    )


class ByChannel(NamedTuple):
    """The constants of a layer."""

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
    """Weights [N, K] as they are, one scale for all."""
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
    """One matrix of a batch at a time, whose right-hand side is transposed first: the library reads its columns."""
    scaling = product_scaling(spec)
    assert scaling is not None
    columns = site.scratch("columns", DType.INT16, spec.depth * spec.columns)
    operands = {"a": site.input(0), "b": site.input(1), "y": site.y, "columns": columns}
    return site.call(operands, [ProductSize.of(spec), _of_tensor(scaling), CodeLimits.of(spec.y.dtype.limits)])


def _of_tensor(scaling: Scaling) -> TensorScale:
    """Return the parameters of a layer with one scale."""
    (multiplier,), (shift,) = scaling.arguments(1)
    return TensorScale(multiplier=int(multiplier), shift=int(shift))


# ------------------------------------------------------------------------------------ conditions


def int16_layer(spec: WeightedSpec) -> bool:
    """Require int16 tensors, int8 weights."""
    types = [spec.x.dtype, spec.w.dtype, spec.y.dtype]
    return types == [DType.INT16, DType.INT8, DType.INT16] and spec.y.quant is not None


def int16_product(spec: MatMulSpec) -> bool:
    """Require int16 tensors."""
    return all(t.dtype is DType.INT16 and t.quant is not None for t in (spec.a, spec.b, spec.y))


def one_group(spec: ConvSpec) -> bool:
    """Require filters of all channels."""
    return spec.shape.groups == 1


def conv_agrees(spec: ConvSpec) -> bool:
    """Require scales as fine as the library's."""
    return conv_scaling(spec) is not None


def long_agrees(spec: WeightedSpec) -> bool:
    """Require scales of 15 bits within one step."""
    return long_scaling(spec) is not None


def product_agrees(spec: MatMulSpec) -> bool:
    """Require scales of 15 bits within one step."""
    return product_scaling(spec) is not None


def one_scale(spec: WeightedSpec) -> bool:
    """Require one scale for all channels."""
    return len(spec.requantizer.multiplier) == 1


def small_matrices(spec: MatMulSpec) -> bool:
    """Require axes below 32768."""
    return all(0 < size <= MAX_INT16_AXIS for t in (spec.a, spec.b) for size in t.shape)


def way(spec: ConvSpec) -> str:
    """Return "short" or "long", by the bits of the sums."""
    return "short" if short_scaling(spec) else "long"


_CONV = library_kernel(
    "cmsis_convolve_s16",
    what="a convolution of int16 tensors: arm_convolve_wrapper_s16",
    operands=(*layer_operands(DType.INT16, DType.INT64), SCRATCH),
    params=(ConvGeometry, CodeLimits, Scratch),
    when=(int16_layer, one_group, small_axes, conv_agrees),
    emit=emit_conv,
    evaluate=evaluate_conv,
    way=way,
    extra=gatherings,
)

CMSIS_CONV_S16: tuple[Kernel, ...] = (
    _CONV,
    library_kernel(
        "cmsis_depthwise_s16",
        what="a convolution of each channel of int16 tensors: arm_depthwise_conv_wrapper_s16",
        operands=(*layer_operands(DType.INT16, DType.INT64), SCRATCH),
        params=(ConvGeometry, CodeLimits, Scratch),
        when=(int16_layer, one_channel_filters, near_windows, small_axes, long_agrees),
        emit=emit_depthwise,
        evaluate=evaluate_long,
        way=depthwise_way,
    ),
)
"""Kernels of convolutions."""

CMSIS_DENSE_S16: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_dense_s16",
        what="a fully connected layer of int16 tensors with one scale: arm_fully_connected_s16",
        operands=(
            reads("x", "input", DType.INT16),
            reads("w", "weights", DType.INT8),
            reads("bias", "bias by channel", DType.INT64),
            writes("y", "output", DType.INT16),
        ),
        params=(DenseSizes, TensorScale, CodeLimits),
        when=(int16_layer, one_scale, small_axes, long_agrees),
        emit=emit_dense,
        evaluate=evaluate_long,
    ),
    _CONV,
)
"""Kernels of fully connected layers; those with a scale a channel are convolutions."""

CMSIS_MATMUL_S16: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_batch_matmul_s16",
        what="the product of two int16 activations: arm_batch_matmul_s16",
        operands=(
            *product_operands(DType.INT16),
            scratch_role("columns", "a matrix of b with rows for columns", DType.INT16),
        ),
        params=(ProductSize, TensorScale, CodeLimits),
        when=(int16_product, small_matrices, product_agrees),
        emit=emit_product,
        evaluate=evaluate_product,
    ),
)
"""Kernels of products of two activations."""
