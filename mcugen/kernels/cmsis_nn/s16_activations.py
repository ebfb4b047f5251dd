# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's functions of int16 tensors without weights: sums, products, the sigmoid.

The library's int16 softmax is not used: with exponentials of 15 bits and a table of reciprocals, it differs from
mcugen's by up to as many quantization steps as a row has elements. Its hyperbolic tangent, which differs by two or
three steps, is not used either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType, TensorType
from mcugen.kernels.cmsis_nn.common import library_kernel
from mcugen.kernels.cmsis_nn.curves import sigmoid
from mcugen.kernels.cmsis_nn.elementwise import IN_PLACE_PAIRS, SumScales, binary_operands, operands
from mcugen.kernels.cmsis_nn.s16 import Scaling
from mcugen.kernels.portable.activations import BinarySpec, CurveSpec
from mcugen.lir.kernel import Call, Kernel, Params, Site, Trained, reads, writes
from mcugen.lir.spec import spec_of
from mcugen.numerics.fixedpoint import dequantize, quantize

# ------------------------------------------------------------------------------- sums and products

INT16_SUM_LEFT_SHIFT = 15
"""Left shift, in bits, of the operands of a sum of int16 tensors: the largest for which doubled operands fit 32
bits."""

MAX_SCALE_RATIO = 2.0**8
"""Largest ratio of an operand's scale to the result's for which a sum has enough bits."""

_SIGNS = {"Add": (1, 1), "Sub": (1, -1)}


@dataclass(frozen=True)
class RoundedSum:
    """CMSIS-NN's sum of int16 tensors, with three roundings (half up).

    q = (a(x) + a(y) + 2^(shift−1)) >> shift, where a(v) = (v · 2^INT16_SUM_LEFT_SHIFT · m + 2^30) >> 31. The left shift
    leaves so many bits below those of the result that the first two roundings hardly matter.

    Attributes:
        factors: Integer multipliers m of the operands x and y, Q0.31.
        shift: Right shift of the sum of both scaled operands, in bits.
    """

    factors: tuple[int, int]
    shift: int

    @staticmethod
    def of(x: TensorType, y: TensorType, out: TensorType, signs: tuple[int, int]) -> RoundedSum | None:
        """Return the multipliers and the shift with which CMSIS-NN adds tensors of given types.

        Args:
            x: Type of the first operand.
            y: Type of the second operand.
            out: Type of the result.
            signs: 1 or −1 for each operand.

        Returns:
            The sum; None if its quantized results could differ from mcugen's by more than 1.
        """
        ratios = [sign * t.q.scale[0] / out.q.scale[0] for sign, t in zip(signs, (x, y), strict=True)]
        if max(map(abs, ratios)) > MAX_SCALE_RATIO:
            return None
        for shift in range(30, 3, -1):
            m0, m1 = (round(ratio * 2.0 ** (31 - INT16_SUM_LEFT_SHIFT + shift)) for ratio in ratios)
            if max(abs(m0), abs(m1)) < 2**31 and (abs(m0) + abs(m1)) >> (16 - INT16_SUM_LEFT_SHIFT) < 2**30 - 2:
                return RoundedSum((m0, m1), shift)
        return None

    def __call__(self, x: Array, y: Array) -> Array:
        """Return the sum of two arrays of quantized values, bit by bit as the library specifies it."""
        a, b = (
            ((v.astype(np.int64) << INT16_SUM_LEFT_SHIFT) * m + 2**30) >> 31
            for v, m in zip((x, y), self.factors, strict=True)
        )
        q: Array = (a + b + (1 << (self.shift - 1))) >> self.shift
        return q


def _sum(spec: BinarySpec) -> RoundedSum | None:
    return RoundedSum.of(spec.x0, spec.x1, spec.y, _SIGNS[spec.function])


def _product(spec: BinarySpec) -> Scaling:
    assert spec.product is not None
    return Scaling.near(spec.product, 31, 31)


class Int16Elements(Params):
    """Kernel parameters of an elementwise function of int16 tensors of one shape: number of elements, output limits."""

    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]
    count: Annotated[int, "elements"]

    @staticmethod
    def of(spec: BinarySpec) -> Int16Elements:
        """Return the number of elements and the output limits of an elementwise layer."""
        return Int16Elements(low=spec.limits[0], high=spec.limits[1], count=spec.y.count)


class LibraryFactor(Params):
    """Kernel parameter of an elementwise product x0 · x1 = y: the requantization multiplier."""

    multiplier: Annotated[Trained, "scale of x0 * scale of x1 / scale of y, Q0.31"]


def emit_add(spec: BinarySpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's sum of int16 tensors; a difference is a sum with a negative multiplier."""
    fixed = _sum(spec)
    assert fixed is not None
    m0, m1 = fixed.factors
    scales = SumScales(
        x0_multiplier=m0, x1_multiplier=m1, left_shift=INT16_SUM_LEFT_SHIFT, y_multiplier=1 << (31 - fixed.shift)
    )
    return site.call(operands(site), [scales, Int16Elements.of(spec)], inplace=IN_PLACE_PAIRS)


def emit_mul(spec: BinarySpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's elementwise product of two int16 tensors."""
    factor = LibraryFactor(multiplier=int(_product(spec).multiplier[0]))
    return site.call(operands(site), [factor, Int16Elements.of(spec)], inplace=IN_PLACE_PAIRS)


def evaluate_add(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the sum or difference of two int16 tensors, bit by bit as CMSIS-NN computes it."""
    spec: BinarySpec = spec_of(node)
    fixed = _sum(spec)
    assert fixed is not None
    return (np.clip(fixed(*arrays), *spec.limits),)


def evaluate_mul(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the elementwise product of two int16 tensors, bit by bit as CMSIS-NN computes it.

    CMSIS-NN's multiplier has fewer bits than mcugen's, which changes results by at most a quarter of a quantization
    step. If built for Helium with single rounding, CMSIS-NN doubles products, and −32768 · −32768 overflows.
    """
    spec: BinarySpec = spec_of(node)
    x, y = (array.astype(np.int64) for array in arrays)
    return (_product(spec)(x * y, *spec.limits),)


def int16_operands(spec: BinarySpec) -> bool:
    """Require int16 tensors of one shape.

    Return whether an elementwise layer meets this condition of a kernel: operands and result are quantized int16.
    """
    return spec.are(DType.INT16)


def has_near_scales(spec: BinarySpec) -> bool:
    """Require a sum or difference of operands whose scale is at most 256 times that of the result.

    Return whether the layer meets this condition of a kernel: each quantized result of CMSIS-NN then differs from
    mcugen's by at most 1.
    """
    return spec.function in _SIGNS and _sum(spec) is not None


def has_31_bit_shift(spec: BinarySpec) -> bool:
    """Require a product whose requantization by 31-bit multipliers has a right shift of 31 bits.

    Return whether the layer meets this condition of a kernel: CMSIS-NN's elementwise product always shifts by 31 bits.
    """
    return spec.product is not None and bool((_product(spec).shift == 31).all())


# ---------------------------------------------------------------------------------------- sigmoid

_CODES = np.arange(-(2**15), 2**15)


class ActivationParams(Params):
    """Kernel parameters of an activation function: number of elements, and left shift of x to 12 fraction bits."""

    count: Annotated[int, "elements"]
    left_shift: Annotated[Trained, "left shift of x to 12 fraction bits"]


def _left(spec: CurveSpec) -> int:
    """Return the argument's scale as an exponent of 2, plus 12."""
    return round(math.log2(spec.x.q.scale[0])) + 12


def emit_sigmoid(spec: CurveSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's sigmoid of an int16 tensor."""
    argument = ActivationParams(count=spec.y.count, left_shift=_left(spec))
    return site.call({"x": site.x, "y": site.y}, [argument], inplace=[("y", "x")])


def evaluate_sigmoid(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the sigmoid of an int16 tensor, bit by bit as CMSIS-NN computes it."""
    return (sigmoid(arrays[0], _left(spec_of(node))),)


def is_near_int16_sigmoid(spec: CurveSpec) -> bool:
    """Require an int16 sigmoid for which the library is within one quantization step of the exact result.

    Return whether the layer meets this condition of a kernel: it is an int16 sigmoid, and each quantized result of
    CMSIS-NN differs from the exact one by at most 1.
    """
    if spec.function != "sigmoid" or not spec.is_constant or not -16 < _left(spec) < 14:
        return False
    if not spec.x.dtype is spec.y.dtype is DType.INT16:
        return False
    exact = quantize(1 / (1 + np.exp(-dequantize(_CODES, spec.x.q).astype(np.float64))), spec.y.q, DType.INT16)
    return bool(np.abs(exact.astype(np.int64) - sigmoid(_CODES, _left(spec))).max() <= 1)


# ---------------------------------------------------------------------------------------- kernels

CMSIS_SUM_S16: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_elementwise_add_s16",
        what="the sum of two int16 tensors of one shape: arm_elementwise_add_s16",
        operands=binary_operands(DType.INT16),
        params=(SumScales, Int16Elements),
        when=(int16_operands, has_near_scales),
        emit=emit_add,
        evaluate=evaluate_add,
    ),
)
"""CMSIS-NN's kernels of sums and differences of two int16 tensors."""
CMSIS_PRODUCT_S16: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_elementwise_mul_s16",
        what="the product of two int16 tensors of one shape: arm_elementwise_mul_s16",
        operands=binary_operands(DType.INT16),
        params=(LibraryFactor, Int16Elements),
        when=(int16_operands, has_31_bit_shift),
        emit=emit_mul,
        evaluate=evaluate_mul,
    ),
)
"""CMSIS-NN's kernels of elementwise products of two int16 tensors."""

CMSIS_ACTIVATIONS_S16: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_sigmoid_s16",
        what="the sigmoid of an int16 tensor: arm_nn_activation_s16",
        operands=(reads("x", "input", DType.INT16), writes("y", "output", DType.INT16)),
        params=(ActivationParams,),
        when=(is_near_int16_sigmoid,),
        emit=emit_sigmoid,
        evaluate=evaluate_sigmoid,
    ),
)
"""CMSIS-NN's kernels of functions of one int16 tensor (sigmoid), in order of preference."""
