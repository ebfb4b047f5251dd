# SPDX-License-Identifier: Apache-2.0
"""Quantization schemes: how real tensors become integers, by element type, range, scale and zero point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcugen.hir.types import Array, DType, QuantParams

MIN_SCALE = 2.0**-40
"""Smallest scale of a quantized tensor; tensors that are always 0 get it."""

MIN_CHANNEL_RANGE = 2.0**-12
"""Lower bound of the range of a channel's weights from which its scale is computed, as a share of the largest range.

Smaller weights hardly contribute to the layer's output, and with a smaller scale the channel's bias would overflow.
"""


@dataclass(frozen=True)
class Scheme:
    """The options of a quantization.

    Attributes:
        activations: Type of activations: INT8, or INT16 (with int8 weights: "int16x8").
        method: The method of RANGE_METHODS for all ranges; empty to choose the one of least measured error for each
            tensor.
        symmetric: Whether activations have zero point 0. Those of int16 always have.
        power_of_two: Whether scales are powers of two.
        per_channel: Whether weights have one scale per output channel.
        equalize: Whether the ranges of channels are equalized.
        correct_bias: Whether biases are changed to cancel the mean error that rounded weights cause.
        optimize_rounding: Whether weights are rounded so that the layer's error on the samples is least, instead of to
            nearest.
        integer_io: Whether the caller of the model passes and gets quantized values instead of floats.
        weights: INT8, or INT4 for 4-bit weights where the accuracy allows it (mcugen.quantization.few_bits).
        group: The number of inputs that share a scale in fully connected layers with 4-bit weights; 0 for no groups.
    """

    activations: DType = DType.INT8
    method: str = ""
    symmetric: bool = False
    power_of_two: bool = False
    per_channel: bool = True
    equalize: bool = True
    correct_bias: bool = True
    optimize_rounding: bool = True
    integer_io: bool = False
    weights: DType = DType.INT8
    group: int = 0


def activation_params(low: float, high: float, dtype: DType, scheme: Scheme) -> QuantParams:
    """Return scale (a float32) and zero point of an activation with values in [low, high]; 0 is represented exactly.

    int16 is symmetric, so that its zero point vanishes from all sums.

    Args:
        low: The smallest value.
        high: The largest value.
        dtype: The integer type.
        scheme: The quantization scheme.
    """
    (scale,), (zero_point,) = activation_params_of_ranges(
        np.array([low], float), np.array([high], float), dtype, scheme
    )
    return QuantParams((float(scale),), int(zero_point))


def activation_params_of_ranges(lows: Array, highs: Array, dtype: DType, scheme: Scheme) -> tuple[Array, Array]:
    """Return the scales and zero points of many ranges as float64 arrays, equal to those of `activation_params`.

    Args:
        lows: The smallest value of each range.
        highs: The largest value of each range.
        dtype: The integer type.
        scheme: The quantization scheme.
    """
    lows, highs = np.minimum(lows, 0.0), np.maximum(highs, 0.0)
    min_int, max_int = dtype.limits
    if scheme.symmetric or dtype is DType.INT16:
        return usable_scales(np.maximum(-lows, highs) / max_int, scheme), np.zeros(len(lows))
    scales = usable_scales((highs - lows) / (max_int - min_int), scheme)
    return scales, np.clip(np.rint(min_int - lows / scales), min_int, max_int)


def represented_range(quant: QuantParams, dtype: DType) -> tuple[float, float]:
    """Return the smallest and the largest real value that the integers of type `dtype` represent."""
    low, high = ((code - quant.zero_point) * float(quant.scale[0]) for code in dtype.limits)
    return low, high


WEIGHT_LIMITS = {DType.INT16: (-32767, 32767), DType.INT8: (-127, 127), DType.INT4: (-8, 7), DType.INT2: (-2, 1)}
"""Smallest and largest quantized weight by type; int8 weights do not use -128, nor int16 weights -32,768."""

MAX_PRODUCT_SUM = 3 * 2**29
"""Largest sum of products of int16 activations and weights: three quarters of what int32 holds.

The last quarter is for the bias that is added.
"""


def weight_scales(weights: Array, axis: int, scheme: Scheme, dtype: DType = DType.INT8) -> Array:
    """Return the scales of symmetric weights with which no weight is clipped, as float32 values.

    With the scales of int16 weights, sums of products with int16 activations stay within MAX_PRODUCT_SUM.

    Args:
        weights: The real weights.
        axis: The axis of output channels, each of which has a scale unless the scheme has one for all.
        scheme: The quantization scheme.
        dtype: The type of the quantized weights.
    """
    other = tuple(a for a in range(weights.ndim) if a != axis)
    magnitudes = np.abs(weights.astype(np.float64))
    largest = magnitudes.max(other if scheme.per_channel else None, initial=0.0)
    steps = np.maximum(np.atleast_1d(largest), largest.max(initial=0.0) * MIN_CHANNEL_RANGE) / WEIGHT_LIMITS[dtype][1]
    if dtype is DType.INT16:
        sums = magnitudes.sum(other) if scheme.per_channel else magnitudes.sum(other).max(initial=0.0)
        steps = np.maximum(steps, np.atleast_1d(sums) * -DType.INT16.limits[0] / MAX_PRODUCT_SUM)
    return usable_scales(steps, scheme)


def usable_scales(steps: Array, scheme: Scheme) -> Array:
    """Return scales that the integer code can use: float32 values, or powers of two if the scheme asks for them.

    Args:
        steps: The wanted scales. Smaller ones than MIN_SCALE are raised to it, and powers of two are rounded up.
        scheme: The quantization scheme.
    """
    steps = np.maximum(steps, MIN_SCALE)
    if scheme.power_of_two:
        return np.array([2.0 ** math.ceil(math.log2(step)) for step in steps])
    scales: Array = steps.astype(np.float32).astype(np.float64)
    return scales
