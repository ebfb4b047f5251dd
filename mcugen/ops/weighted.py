# SPDX-License-Identifier: Apache-2.0
"""The integer form of layers with constant weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.hir.graph import Graph, Value
from mcugen.hir.operator import ElementRun, Operator, Partition, Shard, Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.numerics.fixedpoint import (
    DEFAULT_REQUANTIZE_SHIFT,
    MAX_ACCUMULATOR,
    dequantize,
    is_quantized,
    max_code_magnitude,
)
from mcugen.numerics.sums import accumulator_limit, largest_sums, requantizer, sum_dtype
from mcugen.numerics.tflite_arithmetic import rounds_as_tflite

MAX_BIAS_ERROR = 0.5
"""Largest allowed error of a rounded bias, in units of the output's scale.

Together with the result's own rounding, results are off by at most one quantization step.
"""


def integer_weights(graph: Graph, sig: Signature, inputs: Sequence[Value | None]) -> list[Value | None] | None:
    """Return the inputs of a weighted layer in integer form.

    Args:
        graph: Graph to which constants are added.
        sig: Types that the integer layer reads and writes.
        inputs: Inputs of the layer: x, weights and, if present, bias.

    Returns:
        The input, symmetric integer weights (output channels on axis 0) and the integer bias; None if the layer has no
        integer form: the weights are not quantized or quantized along another axis, the sums are too long, the bias is
        too fine for the scale of the sums, or int16 weights overflow when their zero point is subtracted.
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
    real_bias = None if bias is None else _real_bias(bias)
    if bias is not None and real_bias is None:
        return None
    dead = _dead_channels(x.type, data, wq, real_bias, sig.output)
    data = np.where(dead.reshape(-1, *[1] * (data.ndim - 1)), 0, data)
    scales = np.where(dead, _dead_scale(x.type.q, sig.output), wq.scales) if dead.any() else wq.scales
    b = _integer_bias(bias, real_bias, x.type.q.scales * scales, dead, sig.output)
    if b is None:
        return None
    quant = QuantParams(tuple(map(float, scales if wq.axis is not None else scales[:1])), 0, wq.axis)
    if largest_sums(x.type, data, b).max(initial=0) >= accumulator_limit(sig):
        return None
    lowest = -128
    storage_dtype = np.int8 if data.min(initial=0) >= lowest and data.max(initial=0) < 128 else np.int16
    weights = graph.constant(f"{w.name}.symmetric", data.astype(storage_dtype), quant, of=[w])
    name = bias.name if bias is not None else f"{w.name}.bias"
    return [x, weights, graph.constant(f"{name}.int", b.astype(sum_dtype(np.abs(b)).numpy), of=[bias])]


def fits_int16(data: Array) -> bool:
    """Return whether int16 holds all integers of an array."""
    limits = np.iinfo(np.int16)
    return bool(data.min(initial=0) >= limits.min and data.max(initial=0) <= limits.max)


def by_output_channels(op: Operator, sig: Signature, inputs: Sequence[Value | None]) -> Sequence[Partition]:
    """Return the way to split a layer with one result vector over cores, by output channels, as a sequence of one.

    The result is empty if the shards would round differently from the whole layer.

    Args:
        op: Operator of the layer, which also computes a shard.
        sig: Types of the layer's inputs and output.
        inputs: Inputs of the layer. The weights of an output channel are at one index of axis 0 of the second one.
    """
    weights = inputs[1].data if inputs[1] is not None else None
    assert weights is not None
    weights_per_output, shape, out = weights[0].size, weights.shape, sig.output.shape

    def shard(start: int, stop: int) -> Shard:
        reads = (
            None,
            ElementRun(start * weights_per_output, (stop - start, *shape[1:])),
            ElementRun(start, (stop - start,)),
        )
        return Shard(op, reads[: len(sig.inputs)], ElementRun(start, (*out[:-1], stop - start)))

    return (Partition(shape[0], shard),) if rounds_by_channel(sig, inputs) else ()


def have_channels_alone(sig: Signature, inputs: Sequence[Value | None]) -> bool:
    """Return whether a layer with only some of the output channels computes these channels exactly.

    Output-channel tiling then divides the layer. The result is True if all weights and biases are constant.
    """
    is_constant = all(value is None or value.data is not None for value in inputs[1:])
    return is_constant and rounds_by_channel(sig, inputs)


def rounds_by_channel(sig: Signature, inputs: Sequence[Value | None]) -> bool:
    """Return whether the requantization of each output channel is independent of the other channels.

    It is if the requantization shift does not depend on the largest scale of all channels; a subset of channels then
    rounds as in the whole layer.
    """
    weights, bias = (v.data if v is not None else None for v in (*inputs, None)[1:3])
    assert weights is not None
    if not is_quantized(sig.output):
        return sig.output.dtype.is_float
    sums = largest_sums(sig.input(0), weights, np.zeros(1, np.int64) if bias is None else bias)
    if rounds_as_tflite(sig.output):
        return True
    is_plain = {t.dtype for t in (sig.input(0), sig.input(1), sig.output)} == {DType.INT8}
    return is_plain and sum_dtype(sums) is DType.INT32 and requantizer(sig).shift == DEFAULT_REQUANTIZE_SHIFT


def _dead_channels(x: TensorType, weights: Array, quant: QuantParams, bias: Array | None, out: TensorType) -> Array:
    """Return which output channels are constants, and may have a scale of their own.

    All of their weights are 0, or their products move no result beside a bias that does not fit the unit of the sums,
    as those of an input that is always 0. Sums that are the result itself keep their unit, and channels that share one
    scale are dead together.
    """
    if not is_quantized(out) or rounds_as_tflite(out):
        return np.zeros(len(weights), bool)
    sums = np.abs(weights.reshape(len(weights), -1)).sum(1)
    dead: Array = np.equal(sums, 0)
    if bias is not None:
        unit = x.q.scales * quant.scales
        is_drowned = max_code_magnitude(x.dtype) * sums * unit <= MAX_BIAS_ERROR * out.q.scale[0]
        dead = dead | (is_drowned & (np.abs(bias) >= MAX_ACCUMULATOR * unit))
    return dead if quant.axis is not None or dead.all() else np.zeros(len(weights), bool)


def _dead_scale(x: QuantParams, out: TensorType) -> float:
    """Return the scale for weights of 0 with which fixed point loses nothing of the bias: 2^30 exceed every result.

    Training leaves dead channels with scales near 0 and a bias near 2^30, whose product a multiplier of a few bits
    would miss by whole steps; weights that are all 0 have the least scale, in which no bias has room.
    """
    return float(out.q.scale[0] * 2.0 ** (-16 if out.dtype is DType.INT8 else -13) / x.scale[0])


def _real_bias(bias: Value) -> Array | None:
    """Return the numbers that a constant bias stands for; None for a computed one."""
    if bias.data is None:
        return None
    real = bias.data if bias.type.quant is None else dequantize(bias.data, bias.type.quant)
    return real.reshape(-1).astype(np.float64)


def _integer_bias(bias: Value | None, real: Array | None, unit: Array, dead: Array, out: TensorType) -> Array | None:
    """Return a bias, `real` numbers, in units of the sums, one for each channel; `dead` ones saturate at ±2^30.

    None: it is too large, or rounding it to that unit alone moves a result by more than MAX_BIAS_ERROR.
    """
    if bias is None or bias.data is None or real is None:
        return np.zeros(len(dead), np.int64)
    quant = bias.type.quant
    real = np.where(dead, np.clip(real, -(2.0**30) * unit, 2.0**30 * unit), real)
    rounded: Array = np.rint(real / unit)
    is_same = np.zeros(len(dead), bool) if quant is None else np.isclose(quant.scales, unit, rtol=1e-5, atol=0)
    if not (is_same | (np.abs(rounded) < MAX_ACCUMULATOR)).all():
        return None
    error = np.where(is_same, 0.0, np.abs(rounded * unit - real)).max(initial=0)
    if out.quant is not None and error > MAX_BIAS_ERROR * out.quant.scale[0]:
        return None
    codes = 0 if quant is None else bias.data.astype(np.int64).reshape(-1) - quant.zero_point
    return np.where(is_same, codes, np.where(is_same, 0.0, rounded).astype(np.int64))
