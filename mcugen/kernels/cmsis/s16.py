# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's layers of int16 activations: convolutions, fully connected layers, products of two int16 tensors.

Sums of 32 bits are scaled by multipliers of 31 bits with a shift of 31 at most: M = round(scale · 2^31) has fewer bits
than ours, which may shift further. Sums of 64 bits are scaled by 15 bits, with any shift, rounded once whatever the
library's build. Both may miss our result by a step, so that these kernels have references of their own; where it could
be more, they do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels.cmsis.common import MOST_SIZE, by_variant, call, emit_call, small_axes
from mcugen.kernels.cmsis.convolution import gatherings
from mcugen.kernels.cmsis.depthwise import near_windows, one_channel_filters, plain
from mcugen.kernels.cmsis.depthwise import way as depthwise_way
from mcugen.kernels.cmsis.matmul import product_requantizer
from mcugen.kernels.conv_shape import ConvShape, shape_of
from mcugen.kernels.weighted import bias_of, largest_sums_of, weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param
from mcugen.numerics.fixedpoint import Int64Array, Requantizer, clamp_range
from mcugen.numerics.sums import product_sums, requantizer

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
    def near(wanted: Requantizer, bits: int, most: int) -> Scaling:
        """The nearest to `wanted` of multipliers with so many bits and shifts of at most `most`."""
        real = wanted.multiplier / 2.0**wanted.shift
        shift = np.minimum(bits - np.frexp(real)[1].astype(np.int64), most)
        shift -= np.rint(real * 2.0**shift) >= 2**bits
        return Scaling(np.rint(real * 2.0**shift).astype(np.int64), shift)

    def __call__(self, sums: Array, low: int, high: int) -> Array:
        """The specification, as int64."""
        q: Array = np.clip((sums * self.multiplier + (1 << (self.shift - 1))) >> self.shift, low, high)
        return q

    def agrees(self, wanted: Requantizer, sums: Array) -> bool:
        """Whether sums of at most these magnitudes, by channel, become int16 codes within one step of `wanted`'s.

        Two results differ by at most 1 if they did by less before the rounding, or if both leave the range. What is
        rounded must fit 31 bits.
        """
        mine, other = self.multiplier / 2.0**self.shift, wanted.multiplier / 2.0**wanted.shift
        inside = np.minimum(sums, (2**15 + 1) / np.maximum(np.minimum(mine, other), 2.0**-60))
        fits = (sums * mine < 2**30) & (self.shift >= SHORTEST_SHIFT)
        return bool((fits & (np.abs(mine - other) * inside < 1)).all())

    def arguments(self, channels: int) -> tuple[Array, Array]:
        """Multiplier and shift of each channel as the library takes them for sums of 64 bits, int32."""
        pair = self.multiplier << 16, REDUCED - self.shift
        multiplier, shift = (np.broadcast_to(each, channels).astype(np.int32) for each in pair)
        return multiplier, shift


# ------------------------------------------------------------------------------- scales of a layer


def short_scaling(node: Node) -> Scaling | None:
    """Of a layer whose sums stay in 32 bits, doubled too: so Helium has them where the library rounds once."""
    sums = largest_sums_of(node)
    found = Scaling.near(requantizer(node.sig, sums), 31, 31)
    return found if (sums * 2.0 ** (31 - found.shift) < 2**30).all() else None


def long_scaling(node: Node) -> Scaling | None:
    """Of any sums; None: more than a step from ours."""
    sums = largest_sums_of(node)
    wanted = requantizer(node.sig, sums)
    found = Scaling.near(wanted, REDUCED, LONGEST_SHIFT)
    return found if found.agrees(wanted, sums) else None


def conv_scaling(node: Node) -> Scaling | None:
    """In 32 bits, or in 64 where all of the library's loops have so many for the whole sum."""
    return short_scaling(node) or (long_scaling(node) if _adds_in_64_bits(node) else None)


def _adds_in_64_bits(node: Node) -> bool:
    """Whether long sums are right: a last single pixel, or channel of elements left over, is not added in runs."""
    shape = shape_of(node)
    depth = math.prod(weights_of(node).shape[1:])
    pairs = shape.out_h * shape.out_w % 2 == 0 and (shape.out_c % 2 == 0 or depth % 4 == 0)
    return depth <= LONGEST_RUN or pairs


def product_scaling(node: Node) -> Scaling | None:
    """Of a product of two activations; None: more than a step from ours."""
    sums, wanted = product_sums(node.sig), product_requantizer(node)
    found = Scaling.near(wanted, REDUCED, LONGEST_SHIFT)
    return found if found.agrees(wanted, sums) else None


# ------------------------------------------------------------------------------------- references


def sums_of(node: Node, arrays: Sequence[Array]) -> Array:
    """The sums of a layer with their bias, int64."""
    sums = TensorType(node.output.type.shape, DType.INT64)
    return node.op.evaluate(replace(node.sig, outputs=(sums,)), *arrays)[0]


def evaluate_conv(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The library's result."""
    return _scaled(node, arrays, conv_scaling(node))


def evaluate_long(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The same of layers whose sums always have 64 bits."""
    return _scaled(node, arrays, long_scaling(node))


def evaluate_product(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The same of a product of two activations."""
    return _scaled(node, arrays, product_scaling(node))


def _scaled(node: Node, arrays: Sequence[Array], scaling: Scaling | None) -> Sequence[Array]:
    assert scaling is not None
    return (scaling(sums_of(node, arrays), *limits(node)),)


def limits(node: Node) -> tuple[int, int]:
    """What its codes are clamped to."""
    y = node.sig.output
    return clamp_range(getattr(node.op, "clamp", None), y.q, y.dtype)


# -------------------------------------------------------------------------------------- emission


def emit_conv(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights [O, H, W, I] as they are; the bias of 32 bits, where sums are such. A fully connected layer is 1 × 1."""
    shape, short = shape_of(node), short_scaling(node)
    if short is None:
        scaling = conv_scaling(node)
        assert scaling is not None
        multiplier, shift = scaling.arguments(shape.out_c)
    else:
        pair = short.multiplier, 31 - short.shift
        multiplier, shift = (np.broadcast_to(each, shape.out_c).astype(np.int32) for each in pair)
    depth = shape.k_h * shape.k_w * shape.in_c
    scratch = by_variant(builder, 4 * depth, 4 * depth, 8 * (-(-depth // 8) * 8))
    bias = DType.INT64 if short is None else DType.INT32
    variant = "long" if short is None else ""
    _emit_by_channel(
        node, builder, kernel, shape, (weights_of(node), bias, multiplier, shift), scratch, variant=variant
    )


def emit_depthwise(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights [H, W, O]. Helium reads four channels at a time, of whatever is behind the last: zeros."""
    shape, weights, scaling = plain(ConvShape.of(node)), weights_of(node), long_scaling(node)
    assert scaling is not None
    columns = 2 * shape.k_h * shape.k_w * shape.in_c if _is_fast(shape) else 0
    constants = (weights.reshape(shape.out_c, -1).T, DType.INT64, *scaling.arguments(shape.out_c))
    scratch = by_variant(builder, 0, columns, 4 * columns + 8 if columns else 0)
    _emit_by_channel(node, builder, kernel, shape, constants, scratch, spare=-shape.out_c % 4)


def _is_fast(shape: ConvShape) -> bool:
    """Whether the library gathers columns, where it has an instruction for them."""
    undilated = shape.dilation_h == shape.dilation_w == 1
    return undilated and shape.out_c == shape.in_c and shape.k_h * shape.k_w < LONGEST_RUN


def _emit_by_channel(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    shape: ConvShape,
    constants: tuple[Array, DType, Array, Array],
    scratch: int,
    *,
    spare: int = 0,
    variant: str = "",
) -> None:
    """`constants` are weights, the type of the bias, multipliers and shifts, each followed by `spare` zeros."""
    weights, bias_t, multiplier, shift = constants
    low, high = limits(node)
    bias = bias_of(node)
    assert bias is not None
    arrays = {"w": weights, "bias": bias.astype(bias_t.numpy), "multiplier": multiplier}
    operands = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        *(
            (role, Access.IN, builder.const(f"{node.output.name}.{role}", np.pad(array.reshape(-1), (0, spare))))
            for role, array in arrays.items()
        ),
        ("shift", Access.IN, builder.growing_const(f"{node.output.name}.shift", np.pad(shift, (0, spare)))),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    params: dict[str, Param] = shape.params() | {"low": low, "high": high}
    emit_call(node, builder, kernel, operands, params, scratch=scratch, variant=variant)


def emit_dense(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Weights [N, K] as they are, one scale for all."""
    weights, scaling, bias = weights_of(node), long_scaling(node), bias_of(node)
    assert scaling is not None and bias is not None
    channels, depth = weights.shape
    params: dict[str, Param] = {"rows": node.output.type.count // channels, "depth": depth, "channels": channels}
    name = node.output.name
    operands = [
        ("x", Access.IN, builder.buffer(node.input(0))),
        ("w", Access.IN, builder.const(f"{name}.weights", weights)),
        ("bias", Access.IN, builder.const(f"{name}.bias", bias.astype(np.int64))),
        ("y", Access.OUT, builder.buffer(node.output)),
    ]
    emit_call(node, builder, kernel, operands, params | _of_tensor(node, scaling))


def emit_product(node: Node, builder: Builder, kernel: Kernel) -> None:
    """One matrix of a batch at a time, whose right-hand side is transposed first: the library reads its columns."""
    a, b, scaling = node.input(0).type, node.input(1).type, product_scaling(node)
    assert scaling is not None
    params: dict[str, Param] = {"batch": math.prod(a.shape[:-2]), "rows": a.shape[-2]}
    params |= {"depth": a.shape[-1], "columns": b.shape[-1]}
    columns = builder.scratch(f"{node.output.name}.columns", DType.INT16, math.prod(b.shape[-2:]))
    operands = [
        ("a", Access.IN, builder.buffer(node.input(0))),
        ("b", Access.IN, builder.buffer(node.input(1))),
        ("y", Access.OUT, builder.buffer(node.output)),
        ("columns", Access.SCRATCH, columns),
    ]
    emit_call(node, builder, kernel, operands, params | _of_tensor(node, scaling))


def _of_tensor(node: Node, scaling: Scaling) -> dict[str, Param]:
    """Scale and limits of a layer with one scale."""
    (multiplier,), (shift,) = scaling.arguments(1)
    low, high = limits(node)
    return {"multiplier": int(multiplier), "shift": int(shift), "low": low, "high": high}


# ------------------------------------------------------------------------------------ conditions


def int16_layer(node: Node) -> bool:
    """int16 tensors, int8 weights"""
    types = [node.sig.input(0).dtype, node.sig.input(1).dtype, node.sig.output.dtype]
    return types == [DType.INT16, DType.INT8, DType.INT16] and node.sig.output.quant is not None


def int16_product(node: Node) -> bool:
    """int16 tensors"""
    types = (node.sig.input(0), node.sig.input(1), node.sig.output)
    return all(t.dtype is DType.INT16 and t.quant is not None for t in types)


def one_group(node: Node) -> bool:
    """filters of all channels"""
    return shape_of(node).groups == 1


def conv_agrees(node: Node) -> bool:
    """scales as fine as the library's"""
    return conv_scaling(node) is not None


def long_agrees(node: Node) -> bool:
    """scales of 15 bits within one step"""
    return long_scaling(node) is not None


def product_agrees(node: Node) -> bool:
    """scales of 15 bits within one step"""
    return product_scaling(node) is not None


def one_scale(node: Node) -> bool:
    """one scale for all channels"""
    return len(requantizer(node.sig, largest_sums_of(node)).multiplier) == 1


def small_matrices(node: Node) -> bool:
    """axes below 32768"""
    return all(0 < size <= MOST_SIZE for i in (0, 1) for size in node.sig.input(i).shape)


def way(node: Node) -> str:
    """By the bits of the sums."""
    return "short" if short_scaling(node) else "long"


_FULL = (int16_layer, one_group, small_axes, conv_agrees)
_CONV = call("cmsis_convolve_s16", _FULL, emit_conv, evaluate_conv, way=way, extra=gatherings)
_DEPTHWISE = (int16_layer, one_channel_filters, near_windows, small_axes, long_agrees)
_DENSE = (int16_layer, one_scale, small_axes, long_agrees)
_PRODUCT = (int16_product, small_matrices, product_agrees)

CONV: tuple[Kernel, ...] = (
    _CONV,
    call("cmsis_depthwise_s16", _DEPTHWISE, emit_depthwise, evaluate_long, way=depthwise_way),
)
"""Of convolutions."""

DENSE: tuple[Kernel, ...] = (call("cmsis_dense_s16", _DENSE, emit_dense, evaluate_long), _CONV)
"""Of fully connected layers: those with a scale a channel are convolutions."""

MATMUL: tuple[Kernel, ...] = (call("cmsis_batch_matmul_s16", _PRODUCT, emit_product, evaluate_product),)
"""Of products of two activations."""
