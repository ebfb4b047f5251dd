# SPDX-License-Identifier: Apache-2.0
"""Sums of products of quantized values: their bounds, the types of accumulators, and their requantization."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, Bounds, DType, Rounding, TensorType
from mcugen.numerics.fixedpoint import MAX_ACCUMULATOR, Range, Requantizer, clamp_range
from mcugen.numerics.tflite_arithmetic import layer_requantizer


def exact_product(a: Array, b: Array) -> Array:
    """Return the exact product of integer matrices, computed by BLAS in float64.

    All sums of products must have a magnitude below 2^53.
    """
    product: Array = np.rint(a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)
    return product


def real_product(a: Array, b: Array) -> Array:
    """Return the product of matrices of one float type; float32 products are summed in float64 and rounded once.

    The last bits of float32 sums would depend on the BLAS kernel of the CPU, and could change the quantized values of a
    model that is quantized with these results.
    """
    if a.dtype != np.float32:
        return a @ b
    product: Array = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    return product


def max_offset_magnitude(x: TensorType) -> int:
    """Return the largest magnitude of q − zero_point over all values q of a quantized tensor type."""
    low, high = x.dtype.limits
    return max(high - x.q.zero_point, x.q.zero_point - low)


def largest_sums(x: TensorType, weights: Array, bias: Array) -> Array:
    """Return, for each output channel, an upper bound of the accumulator's magnitude at any time during the sum.

    Args:
        x: Type of the quantized input.
        weights: Quantized weights, with output channels on axis 0.
        bias: Integer bias, by output channel.
    """
    rows = np.abs(weights.astype(np.int64)).reshape(len(weights), -1)
    sums: Array = rows.sum(1) * max_offset_magnitude(x) + np.abs(bias.astype(np.int64))
    return sums


def product_sums(sig: Signature) -> Array:
    """Return an upper bound of the accumulators' magnitude in a matrix product of two quantized activations.

    The result is an array with one element.

    Args:
        sig: The types of both operands.
    """
    a, b = sig.input(0), sig.input(1)
    return np.asarray([a.shape[-1] * max_offset_magnitude(a) * max_offset_magnitude(b)], np.int64)


def sum_dtype(sums: Array) -> DType:
    """Return the type of accumulators whose magnitudes are at most `sums`: int32 if possible, else int64."""
    return DType.INT32 if sums.max(initial=0) < 2**31 else DType.INT64


def accumulator_limit(sig: Signature) -> int:
    """Return the exclusive bound of a layer's accumulators: 2^31 if the output is int32, else MAX_ACCUMULATOR."""
    return 2**31 if sig.output.dtype is DType.INT32 else MAX_ACCUMULATOR


MAX_PRECISE_SUM = 2**25
"""Exclusive bound of the accumulators' magnitude for which multipliers of 31 fraction bits are precise enough.

Below it, the product with a multiplier is off by less than 2^-7 output steps.
"""


def finish(
    acc: Array,
    sig: Signature,
    clamp: Range | None,
    sums: Array,
    factor: float = 1.0,
    *,
    by_weights: bool = True,
    multiplier_bits: int = 0,
) -> Array:
    """Compute a layer's output from its accumulators: requantize and clamp; int32 and int64 outputs are unchanged.

    Args:
        acc: The accumulators, channels last.
        sig: The types of the operands and of the output.
        clamp: The activation's limits in real units, or None for no activation.
        sums: The largest magnitude of the accumulators, by channel.
        factor: A further factor by which the real result is multiplied.
        by_weights: Whether the second operand holds weights, not activations.
        multiplier_bits: Largest number of significant bits of the multipliers; 0 for no limit.
    """
    out = sig.output
    if out.dtype in (DType.INT32, DType.INT64):
        return acc.astype(out.dtype.numpy)
    low, high = clamp_range(clamp, out.q, out.dtype)
    if out.q.rounding is Rounding.TFLITE:
        return layer_requantizer(sig)(acc, low, high).astype(out.dtype.numpy)
    requantize = requantizer(sig, sums, factor, by_weights=by_weights).shortened(multiplier_bits)
    return requantize(acc, low, high).astype(out.dtype.numpy)


def requantizer(
    sig: Signature, sums: Array | None = None, factor: float = 1.0, *, by_weights: bool = True
) -> Requantizer:
    """Return the requantization of a layer's accumulators to its output type.

    Accumulators are in units of input scale · weight scale · `factor`. For int8 tensors, multipliers of 31 fraction
    bits are precise enough and cheapest. 16-bit tensors and 64-bit sums get more precise multipliers. An exception are
    16-bit weights of int8 tensors if the sums stay below MAX_PRECISE_SUM. Such weights come from uint8 models: after
    their zero point is subtracted, they have nine bits.

    Args:
        sig: The types of the operands and of the output.
        sums: The largest magnitude of the accumulators, by channel; None if they fit in int32.
        factor: A further factor by which the real result is multiplied.
        by_weights: Whether the second operand holds weights, not activations.
    """
    x, w, out = sig.input(0), sig.input(1), sig.output
    scale = x.q.scales * w.q.scales * factor / out.q.scales
    is_short = sums is None or sum_dtype(sums) is DType.INT32
    is_small = by_weights and sums is not None and sums.max(initial=0) < MAX_PRECISE_SUM
    is_narrow = is_short and x.dtype is out.dtype is DType.INT8 and (w.dtype is DType.INT8 or is_small)
    return Requantizer.of(scale, out.q.zero_point, sums=None if is_narrow else sums)


def layer_bounds(
    sig: Signature,
    inputs: Sequence[Bounds | None],
    product: Callable[[Array, Array], Array],
    finished: Callable[[Array, Array, Array], Array],
) -> Sequence[Bounds | None]:
    """Return the exact bounds (smallest and largest values) of a weighted layer's output, given those of its input.

    The output is finished(product(x − zero point, weights), weights, bias).

    Args:
        sig: The types of the operands and of the output.
        inputs: The bounds of x, weights and bias; the latter two must be constants.
        product: Returns the layer's sums of products of x and weights.
        finished: Returns the output, given the sums, the weights and the bias.

    Returns:
        A sequence of one entry for the one output, as `Operator.bounds` returns it: its bounds, or None if the bounds
        of x are unknown or an operand is not constant.
    """
    x, *constants = inputs
    if x is None or any(c is None or c[0] is not c[1] for c in constants):
        return (None,)
    w, bias = (c[0] for c in constants if c is not None)
    low, high = (end.astype(np.int64) - sig.input(0).q.zero_point for end in x)
    middle, spread = product(low + high, w), product(high - low, np.abs(w.astype(np.int64)))
    return ((finished((middle - spread) // 2, w, bias), finished((middle + spread) // 2, w, bias)),)


def folded_bias(sig: Signature, weights: Array, bias: Array) -> Array:
    """Return the bias with the input's zero point folded in: bias − zero_point · Σ weights, by output channel."""
    sums = weights.reshape(len(weights), -1).astype(np.int64).sum(1)
    folded: Array = bias.astype(np.int64) - sig.input(0).q.zero_point * sums
    return folded
