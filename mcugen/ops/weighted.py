# SPDX-License-Identifier: Apache-2.0
"""The integer form of layers with constant weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.hir.graph import Graph, Value
from mcugen.hir.operator import Division, Operator, Portion, Run, Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.numerics.fixedpoint import LONGEST_SUM, PLAIN_SHIFT, dequantize, is_quantized
from mcugen.numerics.sums import largest_sums, most_sum, requantizer, sum_dtype

MAX_BIAS_ERROR = 0.5
"""Steps of the output's scale by which a rounded bias may move a result: with the rounding of the result, one step."""


def integer_weights(graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> list[Value | None] | None:
    """Return input, symmetric integer weights (output channels on axis 0) and integer bias of a weighted layer.

    None where the layer has no integer form: weights not quantized, wrong axis, sums too long, a bias that the unit of
    the sums is too coarse for, or int16 weights that leave the 16 bits when their zero point is subtracted.
    """
    x, w, bias = (*inputs, None)[:3]
    assert x is not None and w is not None
    wq = w.type.quant
    if not is_quantized(x.type) or wq is None or w.data is None:
        return None
    if wq.axis not in (None, 0) or w.type.dtype not in (DType.INT8, DType.INT16):
        return None
    data = w.data.astype(np.int64) - wq.zero_point
    if not fits_int16(data):
        return None
    b = _integer_bias(bias, x.type.q.scales * wq.scales, len(data), sig.output)
    if b is None:
        return None
    quant, b = _carry_constant_channels(QuantParams(wq.scale, 0, wq.axis), data, b, x.type.q, sig.output)
    if largest_sums(x.type, data, b).max(initial=0) >= most_sum(sig):
        return None
    lowest = -128 if sig.output.dtype is DType.INT32 else -127  # kernels that make codes need the sign to turn
    narrow = np.int8 if data.min(initial=0) >= lowest and data.max(initial=0) < 128 else np.int16
    weights = graph.constant(f"{w.name}.symmetric", data.astype(narrow), quant)
    name = bias.name if bias is not None else f"{w.name}.bias"
    return [x, weights, graph.constant(f"{name}.int", b.astype(sum_dtype(np.abs(b)).numpy))]


def fits_int16(data: Array) -> bool:
    """Return whether int16 holds all integers of an array."""
    limits = np.iinfo(np.int16)
    return bool(data.min(initial=0) >= limits.min and data.max(initial=0) <= limits.max)


def by_output_channels(op: Operator, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Division]:
    """Return the division by outputs of a layer with one result vector and separate weights (axis 0) an output."""
    weights = inputs[1].data if inputs[1] is not None else None
    assert weights is not None
    rest, shape, out = weights[0].size, weights.shape, sig.output.shape

    def portion(start: int, stop: int) -> Portion:
        reads = (None, Run(start * rest, (stop - start, *shape[1:])), Run(start, (stop - start,)))
        return Portion(op, reads[: len(sig.inputs)], Run(start, (*out[:-1], stop - start)))

    return (Division(shape[0], portion),) if rounds_by_channel(sig, inputs) else ()


def have_channels_alone(sig: Signature, inputs: Sequence[Value | None]) -> bool:
    """Whether output channels of a sum of all inputs are each for itself, as all weights and biases are constant."""
    is_constant = all(value is None or value.data is not None for value in inputs[1:])
    return is_constant and rounds_by_channel(sig, inputs)


def rounds_by_channel(sig: Signature, inputs: Sequence[Value | None]) -> bool:
    """Whether some output channels alone round as all do: the scale that is largest must not tell how."""
    weights, bias = (v.data if v is not None else None for v in (*inputs, None)[1:3])
    assert weights is not None
    if not is_quantized(sig.output):
        return sig.output.dtype.is_float
    sums = largest_sums(sig.input(0), weights, np.zeros(1, np.int64) if bias is None else bias)
    is_plain = {t.dtype for t in (sig.input(0), sig.input(1), sig.output)} == {DType.INT8}
    return is_plain and sum_dtype(sums) is DType.INT32 and requantizer(sig).shift == PLAIN_SHIFT


def _carry_constant_channels(
    quant: QuantParams, weights: Array, bias: Array, x: QuantParams, out: TensorType
) -> tuple[QuantParams, Array]:
    """Give channels of codes whose weights are all 0 a scale of which fixed point loses nothing.

    Training leaves dead channels with scales near 0 and a bias near 2^30, whose product a multiplier of a few
    bits would miss by whole steps. Such a channel is a constant: bias · scale, in any unit; here one of which 2^30
    exceed every result. Sums that are the result itself keep their unit.
    """
    dead = ~weights.reshape(len(weights), -1).any(1)
    if quant.axis is None or not is_quantized(out) or not dead.any():
        return quant, bias
    unit = out.q.scale[0] * 2.0 ** (-16 if out.dtype is DType.INT8 else -13) / x.scale[0]
    steps = np.clip(bias * quant.scales / unit, -(2**30), 2**30)
    scales = np.where(dead, unit, quant.scales)
    return QuantParams(tuple(map(float, scales)), 0, quant.axis), np.where(dead, np.rint(steps), bias).astype(np.int64)


def _integer_bias(bias: Value | None, unit: Array, channels: int, out: TensorType) -> Array | None:
    """Return a bias in units of the sums of products.

    None: the bias is computed or too large, or rounding it to that unit alone moves a result by more than
    MAX_BIAS_ERROR.
    """
    if bias is None:
        return np.zeros(channels, np.int64)
    if bias.data is None:
        return None
    quant = bias.type.quant
    if quant is not None and np.allclose(quant.scales, unit, rtol=1e-5, atol=0):
        same_unit: Array = bias.data.astype(np.int64).reshape(-1) - quant.zero_point
        return same_unit
    real = (bias.data if quant is None else dequantize(bias.data, quant)).reshape(-1).astype(np.float64)
    rounded: Array = np.rint(real / unit)
    if not (np.abs(rounded) < LONGEST_SUM).all():
        return None
    if out.quant is not None and np.abs(rounded * unit - real).max(initial=0) > MAX_BIAS_ERROR * out.quant.scale[0]:
        return None
    return rounded.astype(np.int64)
