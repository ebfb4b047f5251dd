# SPDX-License-Identifier: Apache-2.0
"""Fixed-point arithmetic against exact integers and fractions, which share no code with it."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import isqrt

import numpy as np
import pytest

from mcugen.hir.types import DType, QuantParams, TensorType
from mcugen.numerics import fixedpoint
from mcugen.numerics.fixedpoint import Requantizer

SCALES = (2.0**-31, 7.3e-9, 1.9e-7, 3.1e-6, 0.00123, 0.0125, 0.37, 0.5, 0.75, 1 - 2.0**-24)
"""Ratios of scales below 1, down to one whose multiplier is 1."""
ZERO_POINTS = (-128, -1, 0, 3, 127)
LARGEST = 2**31 - 1


def contract(acc: int, scale: float, zero_point: int, low: int = -128, high: int = 127) -> int:
    """clamp((acc · M + (zero_point << 31) + 2^30) >> 31), one rounding, in whole numbers of any size."""
    multiplier = round(Fraction(scale) * 2**31)
    return max(low, min(high, (acc * multiplier + (zero_point << 31) + 2**30) >> 31))


def accumulators(scale: float) -> list[int]:
    """Both ends of 32 bits, and the accumulators around each step of the result, where rounding decides."""
    steps = [round(Fraction(2 * q + 1, 2) / Fraction(scale)) for q in (*range(-260, 260, 13), -1, 0, 1)]
    near = [step + by for step in steps for by in (-2, -1, 0, 1, 2)]
    random = np.random.default_rng(0).integers(-LARGEST, LARGEST, 50).tolist()
    return [a for a in (*near, *random, -LARGEST - 1, -LARGEST, -1, 0, 1, LARGEST) if -LARGEST - 1 <= a <= LARGEST]


@pytest.mark.parametrize("zero_point", ZERO_POINTS)
@pytest.mark.parametrize("scale", SCALES)
def test_requantization_is_that_of_the_contract(scale: float, zero_point: int):
    sums = accumulators(scale)
    wanted = [contract(acc, scale, zero_point) for acc in sums]
    assert Requantizer.of(scale, zero_point)(np.asarray(sums)).tolist() == wanted
    assert Requantizer.of(scale, zero_point)(np.asarray(sums), -5, 7).tolist() == [max(-5, min(7, q)) for q in wanted]


def test_each_channel_has_its_multiplier_and_all_have_one_shift():
    scales = (0.9, 1.9e-7, 0.37, 3.1e-6)
    sums = np.asarray([[acc, acc + 1, -acc, acc // 2] for acc in accumulators(1.9e-7)])
    wanted = [[contract(acc, s, -3) for acc, s in zip(row, scales, strict=True)] for row in sums.tolist()]
    found = Requantizer.of(np.asarray(scales), -3)
    assert found(sums).tolist() == wanted
    assert found.shift == 31 and found.offset == (-3 << 31) + 2**30


@pytest.mark.parametrize(
    ("scale", "shift"), [(1 - 2.0**-33, 30), (1.0, 30), (1.99, 30), (2.0, 29), (1e6, 11), (1e30, 1)]
)
def test_multipliers_of_large_scales_keep_31_bits(scale: float, shift: int):
    found = Requantizer.of(scale, 5)
    assert found.shift == shift and found.multiplier.tolist() == [round(Fraction(min(scale, 2.0**29)) * 2**shift)]
    for acc in (-200, -3, -1, 0, 1, 2, 77):
        exact = Fraction(min(scale, 2.0**29)) * acc + 5
        assert found(np.asarray([acc])).tolist() == [max(-128, min(127, int((exact + Fraction(1, 2)) // 1)))]


@pytest.mark.parametrize("zero_point", [0, 1, -128, 100])
@pytest.mark.parametrize(("scale", "largest"), [(3e-9, 2**42), (3.1e-6, 2**33), (0.01, 2**20), (0.9, 1000), (1e9, 1)])
def test_with_known_sums_all_bits_are_used_that_64_bits_have_room_for(scale: float, largest: int, zero_point: int):
    found = Requantizer.of(scale, zero_point, sums=np.asarray([largest]))
    cut = Fraction(min(scale, 2.0**17))

    def fits(shift: int) -> bool:
        is_wide = shift > 61 - abs(zero_point).bit_length()
        return not is_wide and round(cut * 2**shift) < 2**31 and round(cut * largest * 2**shift / 2**31) < 2**31

    assert fits(found.shift) and not fits(found.shift + 1)
    assert found.multiplier.tolist() == [round(cut * 2**found.shift)]
    assert abs(largest * int(found.multiplier[0])) + abs(found.offset) < 2**63
    for acc in np.linspace(-largest, largest, 101).astype(int).tolist():
        wide = acc * int(found.multiplier[0]) + found.offset
        assert found(np.asarray([acc]), -(2**15), 2**15 - 1).tolist() == [
            max(-(2**15), min(2**15 - 1, wide >> found.shift))
        ]


def test_the_largest_of_all_channels_sets_the_shift():
    sums = np.asarray([2**40, 3])
    found = Requantizer.of(np.asarray([1e-6, 0.5]), 0, sums=sums)
    assert found.shift == min(Requantizer.of(s, 0, sums=sums[i : i + 1]).shift for i, s in enumerate((1e-6, 0.5)))


@pytest.mark.parametrize("zero_point", [-3, 0, 4])
def test_ties_go_to_the_even_result_where_asked(zero_point: int):
    sums = np.arange(-41, 42)
    found = Requantizer.of(0.25, zero_point, ties_to_even=True)(sums)
    assert found.tolist() == [round(Fraction(int(acc), 4)) + zero_point for acc in sums]
    assert Requantizer.of(0.25, zero_point)(sums).tolist() == [(int(acc) + 2) // 4 + zero_point for acc in sums]


@pytest.mark.parametrize("scale", [1e-7, 0.1, 0.49, 0.5, 0.51, 1.5])
def test_the_upper_word_gives_the_same(scale: float):
    plain = Requantizer.of(scale, 7)
    high = plain.for_high_word()
    assert high.shift == (32 if round(scale * 2**31) < 2**30 else plain.shift)
    sums = np.asarray([acc for acc in accumulators(min(scale, 0.9)) if abs(acc) < 2**30])
    assert (high(sums) == plain(sums)).all()


@pytest.mark.parametrize("shift", [30, 32])
def test_only_multipliers_of_31_bits_are_for_the_upper_word(shift: int):
    requantize = Requantizer(np.asarray([2**30 - 1]), shift, 0)
    assert requantize.for_high_word() is requantize
    borders = [Requantizer(np.asarray([1, m]), 31, 0).for_high_word().shift for m in (2**30 - 1, 2**30)]
    assert borders == [32, 31]


# ---------------------------------------------------------------------------------- quantized tensors, real numbers


def half_even(real: np.ndarray, scale: np.ndarray | float, zero_point: int, low: int, high: int) -> np.ndarray:
    """QuantizeLinear, element by element: the ratio as a float32, rounded half to even, saturated."""
    ratios = (real.astype(np.float32) / np.asarray(scale, np.float32)).reshape(-1)
    ratios = np.where(np.isnan(ratios), -(2.0**60), np.clip(ratios, -(2.0**60), 2.0**60))
    found = [round(Fraction(float(ratio))) for ratio in ratios]
    return np.asarray([max(low, min(high, q + zero_point)) for q in found]).reshape(real.shape)


TYPES = [(DType.INT8, -3), (DType.UINT8, 128), (DType.INT16, 0), (DType.UINT16, 700), (DType.INT32, 0)]


@pytest.mark.parametrize(("dtype", "zero_point"), TYPES)
def test_quantize_and_what_is_left_of_reals(dtype: DType, zero_point: int):
    low, high = dtype.limits
    grid = [k * 0.125 for k in (*range(-40, 41), 2 * low, 2 * high, 1000 * low, 1000 * high)]
    real = np.asarray([*grid, np.inf, -np.inf, -0.0], np.float32)
    wanted = half_even(real, 0.25, zero_point, low, high)
    quant = QuantParams((0.25,), zero_point)
    found = fixedpoint.quantize(real, quant, dtype)
    assert found.dtype == dtype.numpy and found.tolist() == wanted.tolist()
    left = fixedpoint.fake_quantize(real, quant, dtype)
    assert left.dtype == np.float32 and left.tolist() == ((wanted - zero_point) * 0.25).astype(np.float32).tolist()
    assert not np.signbit(left[real == 0]).any()
    assert fixedpoint.dequantize(found, quant).tolist() == left.tolist()


def test_nan_becomes_the_least():
    assert fixedpoint.quantize(np.asarray([np.nan]), QuantParams((0.5,), 7), DType.INT8).tolist() == [-128]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scales_of_channels_lie_along_their_axis(axis: int):
    real = np.random.default_rng(axis).normal(0, 3, (3, 3, 3)).astype(np.float32)
    scales = (0.1, 0.25, 0.5)
    quant = QuantParams(scales, 4, axis)
    shape = [3 if a == axis else 1 for a in range(3)]
    spread = np.asarray(scales, np.float32).reshape(shape)
    assert fixedpoint.broadcast_scale(quant, 3).shape == tuple(shape)
    q = fixedpoint.quantize(real, quant, DType.INT8)
    assert q.tolist() == half_even(real, np.broadcast_to(spread, real.shape), 4, -128, 127).tolist()
    assert fixedpoint.dequantize(q, quant).tolist() == ((q.astype(np.float32) - 4) * spread).tolist()


def test_clamps_become_codes():
    quant = QuantParams((0.5,), 3)
    assert fixedpoint.clamp_range(None, quant, DType.INT8) == (-128, 127)
    assert fixedpoint.clamp_range(None, quant, DType.UINT16) == (0, 65535)
    assert fixedpoint.clamp_range((0.0, 6.0), quant, DType.INT8) == (3, 15)
    assert fixedpoint.clamp_range((-1.2, np.inf), quant, DType.INT8) == (1, 127)


def tensor(dtype: DType = DType.INT8, zero_point: int = 0, axis: int | None = None) -> TensorType:
    scale = (0.5,) if axis is None else (0.5, 0.25)
    return TensorType((2, 2), dtype, QuantParams(scale, zero_point, axis))


def test_which_tensors_integer_kernels_take():
    taken = (tensor(), tensor(zero_point=-7), tensor(DType.INT16))
    refused = (
        None,
        TensorType((2,), DType.INT8),
        tensor(axis=0),
        tensor(DType.INT16, axis=1),
        tensor(DType.INT16, 3),
        tensor(DType.UINT8),
        tensor(DType.INT32),
    )
    assert [fixedpoint.is_quantized(t) for t in (*taken, *refused)] == [True] * 3 + [False] * 7
    assert [fixedpoint.max_code_magnitude(d) for d in (DType.INT8, DType.INT16)] == [256, 32768]


def test_equal_codes_stand_for_the_same_reals_only_with_all_alike():
    assert fixedpoint.has_same_quantization(tensor(), TensorType((4,), DType.INT8, QuantParams((0.5,), 0)))
    for other in (tensor(DType.INT16), tensor(zero_point=1), TensorType((2, 2), DType.INT8, QuantParams((0.25,), 0))):
        assert not fixedpoint.has_same_quantization(tensor(), other)


def test_the_inverse_of_a_root():
    exponents, digits = range(62), (4, 5, 6, 7)
    squares = sorted({d << e >> 2 for e, d in product(exponents, digits)} | {1, 2, 3, 2**62 - 1, 2**61 + 12345})
    squares = [s for s in squares if 0 < s < 2**62]
    root, half = fixedpoint.inverse_sqrt(np.asarray(squares))
    for square, r, h in zip(squares, root.tolist(), half.tolist(), strict=True):
        exact = Fraction(2**62, isqrt(square * 2**124))  # 1 / √square, to 62 bits
        assert 2**30 - 2**6 <= r < 2**31 and 0 < h <= 32
        assert abs(Fraction(r) * Fraction(2) ** (h - 62) / exact - 1) < Fraction(1, 2**26)
    zero = fixedpoint.inverse_sqrt(np.asarray([0, 5]))
    assert zero[0][0] == zero[1][0] == 0 and zero[0][1] > 0
