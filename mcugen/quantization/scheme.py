# SPDX-License-Identifier: Apache-2.0
"""How real tensors become integers: element type, range, scale and zero point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mcugen.hir.types import Array, DType, QuantParams

LEAST_SCALE = 2.0**-40
"""Of a tensor that is always 0."""

LEAST_CHANNEL = 2.0**-12
"""Of a channel's weights relative to the largest: below, they drown in the layer's output, and its bias overflows."""


@dataclass(frozen=True)
class Scheme:
    """What a user may ask of quantization.

    `activations` is int8 or int16 (with int8 weights: "int16x8"). `method` forces one of METHODS; empty: the one
    of least measured error, tensor by tensor. `symmetric` activations have zero point 0, as all of int16 have.
    Scales may be powers of two. `per_channel` weights have one scale an output channel. With `integer_io` the caller
    passes and gets codes, not reals. With `weights` of INT4 those have 4 bits where the model bears it
    (mcugen.quantization.few_bits), and in fully connected layers a scale for each `group` of inputs, if that is not 0.
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
    """Scale (a float32) and zero point of an activation with values in [low, high]; 0 is exact.

    int16 is symmetric, so that its zero point vanishes from all sums.
    """
    (scale,), (zero_point,) = activation_codes(np.array([low], float), np.array([high], float), dtype, scheme)
    return QuantParams((float(scale),), int(zero_point))


def activation_codes(lows: Array, highs: Array, dtype: DType, scheme: Scheme) -> tuple[Array, Array]:
    """The same for many ranges: scales and zero points, as float64."""
    lows, highs = np.minimum(lows, 0.0), np.maximum(highs, 0.0)
    least, most = dtype.limits
    if scheme.symmetric or dtype is DType.INT16:
        return usable_scales(np.maximum(-lows, highs) / most, scheme), np.zeros(len(lows))
    scales = usable_scales((highs - lows) / (most - least), scheme)
    return scales, np.clip(np.rint(least - lows / scales), least, most)


def code_range(quant: QuantParams, dtype: DType) -> tuple[float, float]:
    """The least and the greatest real that a tensor's codes stand for."""
    low, high = ((code - quant.zero_point) * float(quant.scale[0]) for code in dtype.limits)
    return low, high


WEIGHT_LIMITS = {DType.INT16: (-32767, 32767), DType.INT8: (-127, 127), DType.INT4: (-8, 7), DType.INT2: (-2, 1)}
"""Least and greatest quantized weight by type; the least value of int8 and int16 is not used."""

MAX_PRODUCT_SUM = 3 * 2**29
"""Largest sum of products of int16 activations and weights: three quarters of what int32 holds, as a bias is added."""


def weight_scales(weights: Array, axis: int, scheme: Scheme, dtype: DType = DType.INT8) -> Array:
    """Return the scales of symmetric weights (float32 values) that clip none.

    Weights of 16 bits get a scale by which the sums of products with int16 activations stay within MAX_PRODUCT_SUM.

    Args:
        weights: The real weights.
        axis: The axis of output channels.
        scheme: Says whether each channel has a scale of its own.
        dtype: The type of the quantized weights.

    Returns:
        One scale for each index of `axis`, or one in all.
    """
    other = tuple(a for a in range(weights.ndim) if a != axis)
    magnitudes = np.abs(weights.astype(np.float64))
    most = magnitudes.max(other if scheme.per_channel else None, initial=0.0)
    least = most.max(initial=0.0) * LEAST_CHANNEL
    steps = np.maximum(np.atleast_1d(most), least) / WEIGHT_LIMITS[dtype][1]
    if dtype is DType.INT16:
        sums = magnitudes.sum(other) if scheme.per_channel else magnitudes.sum(other).max(initial=0.0)
        steps = np.maximum(steps, np.atleast_1d(sums) * -DType.INT16.limits[0] / MAX_PRODUCT_SUM)
    return usable_scales(steps, scheme)


def usable_scales(steps: Array, scheme: Scheme) -> Array:
    """Usable scales of at least these steps: float32 values, or powers of two."""
    steps = np.maximum(steps, LEAST_SCALE)
    if scheme.power_of_two:
        return np.array([2.0 ** math.ceil(math.log2(step)) for step in steps])
    scales: Array = steps.astype(np.float32).astype(np.float64)
    return scales
