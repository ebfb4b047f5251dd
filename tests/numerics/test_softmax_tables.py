# SPDX-License-Identifier: Apache-2.0
"""Softmax, its logarithm and normalization in integers: beside real ones, and as their formulas in whole numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.numerics.normalize import FixedNormalize, span
from mcugen.numerics.softmax import SOFTMAX_LOG_BITS, FixedExp, FixedLogSoftmax, FixedSoftmax, fixed_log2

Quant = tuple[float, int]
LIMITS = {DType.INT8: (-128, 127), DType.INT16: (-32768, 32767)}


def sig(shape: tuple[int, ...], x: Quant, y: Quant, dtype: DType = DType.INT8) -> Signature:
    types = [TensorType(shape, dtype, QuantParams((scale,), zero)) for scale, zero in (x, y)]
    return Signature((types[0],), (types[1],))


def rows(shape: tuple[int, ...], dtype: DType, spread: float = 0.3) -> Array:
    """Random codes; equal ones; both ends side by side."""
    low, high = LIMITS[dtype]
    found = np.random.default_rng(3).normal(0, spread * high, (6, *shape)).clip(low, high).astype(dtype.numpy)
    found[0], found[1] = low, high
    found[2][..., ::2], found[2][..., 1::2] = low, high
    return found


def real_softmax(x: Array, scale: float) -> Array:
    e = np.exp(scale * (x.astype(np.float64) - x.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("length", [1, 2, 3, 16, 17, 1000, 4096])
@pytest.mark.parametrize("scale", [0.001, 0.1, 2.0])
@pytest.mark.parametrize("dtype", LIMITS)
def test_exponentials_are_near_and_their_sums_fit(dtype: DType, scale: float, length: int):
    scale = scale if dtype is DType.INT8 else scale / 200
    exp = FixedExp.of(sig((1, length), (scale, 0), (1.0, 0), dtype).input(0), 1)
    room = 31 - math.ceil(math.log2(length))
    assert exp.bits == min(30 if dtype is DType.INT8 else 28, room)
    x = rows((1, length), dtype)
    e = exp(x, -1)
    exact = np.exp(scale * (x.astype(np.float64) - x.max(-1, keepdims=True))) * 2.0**exp.bits
    assert np.abs(e - exact).max() <= (0.5 + 1e-6 if dtype is DType.INT8 else 2)
    assert e.dtype == np.int64 and (e.sum(-1) <= 2**31).all()


def test_what_is_not_visible_counts_for_nothing():
    x = np.asarray([[3, 127, -5, 7]], np.int8)
    seen = np.asarray([[True, False, True, False]])
    exp = FixedExp.of(sig((1, 4), (0.1, 0), (1.0, 0)).input(0), 1)
    e = exp(x, 1, seen)
    assert e[0, 1] == e[0, 3] == 0 and e[0, 0] == 2**exp.bits
    assert e[0, 2] == round(math.exp(-0.8) * 2**exp.bits)
    assert exp(x, 1)[0, 1] == 2**exp.bits


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("y", [(1 / 256, -128), (0.003, 5), (0.05, 0), (1 / 32768, 0)])
@pytest.mark.parametrize("dtype", LIMITS)
def test_softmax(dtype: DType, y: Quant, axis: int):
    scale = 0.06 if dtype is DType.INT8 else 0.0003
    y = y if dtype is DType.INT8 else (y[0], 0)
    shape = (5, 7)
    found = FixedSoftmax.of(sig(shape, (scale, 0), y, dtype), axis)
    assert found is not None and 2**30 <= found.numerator < 2**31 and 32 <= found.shift <= 54
    gain = Fraction(found.numerator, 2 ** (found.shift - found.exp.bits)) * Fraction(y[0])
    assert abs(gain - 1) < Fraction(1, 2**30)
    for x in rows(shape, dtype):
        q, e = found(x, axis), found.exp(x, axis)
        along = np.moveaxis(x, axis, -1)
        exact = np.moveaxis(real_softmax(along, scale), -1, axis) / y[0] + y[1]
        assert q.dtype == dtype.numpy
        assert np.abs(q - exact.clip(*LIMITS[dtype])).max() <= (0.501 if dtype is DType.INT8 else 0.52)
        for index, got in np.ndenumerate(q):  # the formula of the class
            ratio = found.numerator * 2**found.exp.bits // int(e.sum(axis)[index[1 - axis]])
            whole = (int(e[index]) * ratio + (y[1] << found.shift) + (1 << (found.shift - 1))) >> found.shift
            assert got == max(LIMITS[dtype][0], min(LIMITS[dtype][1], whole))


def test_masked_softmax_is_that_of_what_is_visible():
    found = FixedSoftmax.of(sig((1, 4), (0.1, 0), (1 / 256, -128)), 1)
    x, seen = np.asarray([[3, 127, -5, 7]], np.int8), np.asarray([[True, False, True, False]])
    exact = real_softmax(np.asarray([[3, -5]]), 0.1) * 256 - 128
    assert found(x, 1, seen).tolist() == [[round(exact[0, 0]), -128, round(exact[0, 1]), -128]]


def test_softmax_for_which_integers_will_not_do():
    good = sig((1, 4096), (0.1, 0), (1 / 256, -128))
    assert FixedSoftmax.of(good, 1) is not None
    assert FixedSoftmax.of(sig((1, 4097), (0.1, 0), (1 / 256, -128)), 1) is None
    assert FixedSoftmax.of(sig((4097, 4), (0.1, 0), (1 / 256, -128)), 1) is not None
    plain = TensorType((1, 4))
    assert FixedSoftmax.of(Signature((plain,), (good.output,)), 1) is None
    assert FixedSoftmax.of(Signature((good.input(0),), (plain,)), 1) is None


@pytest.mark.parametrize("length", [4, 4096])
def test_scales_of_results_of_softmax_reach_as_far_as_products_fit(length: int):
    bits = min(30, 31 - math.ceil(math.log2(length)))
    for exponent in range(-45, 20):
        found = FixedSoftmax.of(sig((1, length), (0.1, 0), (2.0**exponent, 0)), 1)
        assert (found is not None) is (32 <= bits + 30 + exponent <= 54)
    for scale, numerator in (
        ((1 - 2.0**-40) / 256, 2**30),
        ((1 + 2.0**-40) / 256, 2**30),
        ((1 + 2.0**-20) / 256, None),
    ):
        found = FixedSoftmax.of(sig((1, 4), (0.1, 0), (scale, 0)), 1)
        assert found is not None and found.numerator < 2**31
        assert numerator is None or (found.numerator, found.shift) == (numerator, 29 + 22)


def test_logarithms_are_cut_off():
    numbers = [1, 2, 3, 4, 5, 7, 255, 256, 2**16 + 1, 10**9, 2**31 - 1, 2**31, 2**32 - 1]
    for v, got in zip(numbers, fixed_log2(np.asarray(numbers)).tolist(), strict=True):
        exact = math.log2(v) * 2**SOFTMAX_LOG_BITS
        assert got == exact if v & (v - 1) == 0 else exact - 1.01 < got < exact + 1e-6


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("y", [(0.06, 127), (0.2, 100), (0.011, 127), (2.5, 0)])
@pytest.mark.parametrize("dtype", LIMITS)
def test_logarithm_of_softmax(dtype: DType, y: Quant, axis: int):
    scale = 0.06 if dtype is DType.INT8 else 0.0003
    y = y if dtype is DType.INT8 else (y[0] / 256, 0)
    shape = (5, 7)
    found = FixedLogSoftmax.of(sig(shape, (scale, 0), y, dtype), axis)
    assert found is not None
    assert abs(Fraction(found.slope, 2**found.shift) / Fraction(scale / y[0]) - 1) < Fraction(1, 2**22)
    assert 2**29 <= found.unit < 2**32 and 2**14 <= found.slope < 2**31
    assert found.shift == 30 or found.slope >= 2**30  # all bits that a shift of 30 leaves room for
    low, high = LIMITS[dtype]
    for x in rows(shape, dtype):
        q, sums = found(x, axis), found.exp(x, axis).sum(axis)
        exact = np.moveaxis(np.log(real_softmax(np.moveaxis(x, axis, -1), scale)), -1, axis) / y[0] + y[1]
        assert q.dtype == dtype.numpy and np.abs(q - exact.clip(low, high)).max() <= 0.52
        for index, got in np.ndenumerate(q):  # the formula of the class
            log2 = int(fixed_log2(np.asarray([sums[index[1 - axis]]]))[0]) - found.exp.bits * 2**SOFTMAX_LOG_BITS
            row = x[:, index[1]] if axis == 0 else x[index[0]]
            below = (int(x[index]) - int(row.max())) * found.slope
            whole = below - ((log2 * found.unit) >> found.unit_shift) + (y[1] << found.shift) + 2 ** (found.shift - 1)
            assert got == max(low, min(high, whole >> found.shift))


def test_logarithms_of_softmax_for_which_integers_will_not_do():
    def of(length: int, x: float, y: float) -> bool:
        return FixedLogSoftmax.of(sig((1, length), (x, 0), (y, 0)), 1) is not None

    assert [of(length, 0.1, 0.1) for length in (4096, 4097)] == [True, False]
    assert [of(4, 2.0**e, 0.5) for e in (-17, -16, 14, 15)] == [False, True, True, False]
    ln2 = math.log(2)
    assert [of(4, 1.0, ln2 * 2.0**e) for e in (-21, -20, 15, 16)][1:3] == [of(4, 1.0, ln2 * 2.0**-20), True]
    assert not of(4, 2.0**-10, ln2 * 2.0**-20.001) and of(4, 2.0**-10, ln2 * 2.0**-19.999)
    assert not of(4, 2.0**10, ln2 * 2.0**16.001) and of(4, 2.0**10, ln2 * 2.0**15.999)
    plain, good = TensorType((1, 4)), sig((1, 4), (0.1, 0), (0.1, 0))
    assert FixedLogSoftmax.of(Signature((plain,), (good.output,)), 1) is None
    assert FixedLogSoftmax.of(Signature((good.input(0),), (plain,)), 1) is None


# ---------------------------------------------------------------------------------------------------- normalization


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("epsilon", [1e-5, 0.3])
@pytest.mark.parametrize("count", [1, 2, 5, 64, 100])
@pytest.mark.parametrize("dtype", LIMITS)
def test_normalization(dtype: DType, count: int, epsilon: float, centered: bool):
    (low, high), x_scale, y_scale = LIMITS[dtype], *((0.05, 0.03) if dtype is DType.INT8 else (0.0002, 0.0001))
    zero = 9 if dtype is DType.INT8 else 0
    random = np.random.default_rng(count)
    gain, bias = random.uniform(-2, 2, count), random.uniform(-1, 1, count)
    signature = sig((6, count), (x_scale, 0), (y_scale, zero), dtype)
    for scale, shift in ((gain, bias), (None, bias), (gain, None), (None, None)):
        found = FixedNormalize.of(signature, count, epsilon, centered, scale, shift)
        assert found is not None and 8 <= found.bits <= 16
        x = rows((count,), dtype).astype(np.int64)
        x[3] = 0
        q = found.finish(found.normalized(x, (1,)), dtype)
        real = x * x_scale
        real = real - (real.mean(1, keepdims=True) if centered else 0)
        root = np.sqrt((real**2).mean(1, keepdims=True) + epsilon)
        exact = real / root * (1 if scale is None else scale) + (0 if shift is None else shift)
        wanted = (exact / y_scale + zero).clip(low, high)
        assert q.dtype == dtype.numpy and np.abs(q - wanted).max() <= (0.53 if dtype is DType.INT8 else 1.6)


def test_rows_too_long_and_scales_too_far_apart_are_not_normalized_in_integers():
    def of(count: int, y: float = 0.03, epsilon: float = 1e-5, dtype: DType = DType.INT8) -> bool:
        signature = sig((1, count), (0.05, 0), (y, 0), dtype)
        return FixedNormalize.of(signature, count, epsilon, True, None, None) is not None

    assert span(sig((1,), (1.0, 0), (1.0, 0)).input(0)) == 255
    assert span(sig((1,), (1.0, 0), (1.0, 0), DType.INT16).input(0)) == 65535
    assert of(1000) and of(2**31 // 255 // 300) and not of(2**31 // 255 + 1)
    assert of(16, 1e-4) and not of(16, 1e-9)
    assert of(16, epsilon=1.0) and not of(16, epsilon=1e15)
    good = sig((1, 4), (0.05, 0), (0.03, 0))
    wide = TensorType((1, 4), DType.UINT8, QuantParams((0.05,), 0))
    by_channel = TensorType((1, 4), DType.INT8, QuantParams((0.05,) * 4, 0, 1))
    plain = TensorType((1, 4))
    for x, y in ((plain, good.output), (good.input(0), plain), (wide, good.output), (good.input(0), wide)):
        assert FixedNormalize.of(Signature((x,), (y,)), 4, 1e-5, True, None, None) is None
    assert FixedNormalize.of(Signature((by_channel,), (good.output,)), 4, 1e-5, True, None, None) is None


@pytest.mark.parametrize("epsilon", [1e-5, 3.0])
@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 129, 1000])
def test_normalization_uses_all_bits_that_fit(count: int, epsilon: float):
    """Differences have 31 bits and a sign, squares 62, results 30 with at most 16 of fraction."""
    gain = np.linspace(-1.5, 1.0, count)
    found = FixedNormalize.of(sig((1, count), (0.05, 3), (0.03, -5)), count, epsilon, True, gain, gain / 2)
    assert found is not None
    most, floor = count * 255, epsilon / 0.05**2 * count**2
    assert most * 2**found.lift < 2**31 <= most * 2 ** (found.lift + 1)
    assert found.fraction % 2 == 0
    assert (most**2 + floor + 1) * 2**found.fraction <= 2**62 < (most**2 + floor + 1) * 2 ** (found.fraction + 2)
    assert found.epsilon == round(floor * 2.0**found.fraction)
    root = next(r for r in range(99) if 4**r >= count)
    assert found.shift == found.fraction // 2 - found.lift - root
    reach = 2**root * np.abs(gain).max() / 0.03 + np.abs(gain).max() / 2 / 0.03 + 5 + 1
    assert found.bits == min(16, math.floor(math.log2(2**29 / reach)))
    assert found.gain.tolist() == [round(g / 0.03 * 2 ** (found.bits + 2 + root)) for g in gain.tolist()]
    assert found.bias.tolist() == [round((g / 2 / 0.03 - 5 + 0.5) * 2**found.bits) for g in gain.tolist()]


def test_the_least_fraction_of_results_is_8_bits():
    """2^29 over the reach: of one element, gain 1 / scale, and 1 for the rounding."""
    for bits in range(6, 18):
        scale = 1 / (2.0 ** (29 - bits) - 1)
        found = FixedNormalize.of(sig((1, 1), (0.05, 0), (scale, 0)), 1, 1e-5, True, None, None)
        assert (found is not None) is (bits >= 8)
        assert found is None or found.bits == min(bits, 16)
    for gain, bias, zero in (
        (2**12 - 0.5, 0.0, 0),
        (2**11 - 0.5, 2.0**11, 0),
        (2**12 - 3.5, 0.0, 3),
        (2**12 - 9.5, 4.0, -5),
    ):
        signature = sig((1, 1), (0.05, 0), (1.0, zero))
        found = FixedNormalize.of(signature, 1, 1e-5, True, np.asarray([-gain]), np.asarray([-bias]))
        assert found is not None and found.bits == 29 - 12 - 1  # half beyond 2^12
    square = FixedNormalize.of(sig((1, 1), (1.0, 0), (0.03, 0)), 1, 2.0**20 - 255.0**2 - 0.5, True, None, None)
    assert square is not None and square.fraction == 40  # likewise half beyond 2^20
    for fraction, epsilon in ((0, 2.0**61), (2, 2.0**59), (-2, 2.0**63)):
        found = FixedNormalize.of(sig((1, 1), (1.0, 0), (0.03, 0)), 1, epsilon, True, None, None)
        assert (found is not None) is (fraction >= 0) and (found is None or found.fraction == fraction)


def test_a_constant_row_is_nought_before_the_bias():
    found = FixedNormalize.of(sig((1, 4), (0.05, 0), (0.03, 0)), 4, 1e-5, True, None, None)
    assert found is not None
    assert found.normalized(np.full((1, 4), 7), (1,)).tolist() == [[0] * 4]


def test_exponentials_of_int16_are_products_of_two_tables():
    exp = FixedExp.of(sig((1, 3), (0.0003, 0), (1.0, 0), DType.INT16).input(0), 1)
    x = np.random.default_rng(1).integers(-32768, 32768, (500, 3)).astype(np.int16)
    for row, found in zip(x.tolist(), exp(x, 1).tolist(), strict=True):
        below = [max(row) - each for each in row]
        assert found == [(exp.high[d // 256] * exp.low[d % 256] + 2**31) // 2**32 for d in below]
