# SPDX-License-Identifier: Apache-2.0
"""Sums of products: their bounds by trying the extremes, their types, and what they become, by fractions."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.numerics import sums
from mcugen.numerics.fixedpoint import Requantizer


def tensor(shape: tuple[int, ...], dtype: DType, scale: float | tuple[float, ...] = 0.5, zero: int = 0) -> TensorType:
    scales = scale if isinstance(scale, tuple) else (scale,)
    return TensorType(shape, dtype, QuantParams(scales, zero, 0 if len(scales) > 1 else None))


def layer(x: DType = DType.INT8, w: DType = DType.INT8, y: DType = DType.INT8, zero: int = -3) -> Signature:
    scales = (0.02, 0.03) if w is DType.INT8 else 0.02
    return Signature((tensor((1, 3), x, 0.1, zero), tensor((2, 3), w, scales)), (tensor((1, 2), y, 0.07, 5),))


WEIGHTS = np.asarray([[1, -2, 3], [-127, 0, 64]], np.int8)
BIAS = np.asarray([-1000, 77], np.int32)


@pytest.mark.parametrize("zero", [-128, -3, 0, 127])
def test_no_accumulator_exceeds_the_largest_sums(zero: int):
    x = tensor((1, 3), DType.INT8, 0.1, zero)
    assert sums.max_offset_magnitude(x) == max(127 - zero, zero + 128)
    largest = sums.largest_sums(x, WEIGHTS, BIAS)
    assert largest.tolist() == [
        sum(abs(int(w)) for w in row) * max(127 - zero, zero + 128) + abs(int(b))
        for row, b in zip(WEIGHTS, BIAS, strict=True)
    ]
    for codes in product((-128, 127), repeat=3):
        acc = (np.asarray(codes) - zero) @ WEIGHTS.T.astype(np.int64)
        assert (np.abs(acc) + np.abs(BIAS) <= largest).all()


def test_sums_of_products_of_activations():
    a, b = tensor((2, 5), DType.INT8, 1.0, -3), tensor((5, 4), DType.INT16)
    assert sums.product_sums(Signature((a, b), ())).tolist() == [5 * 130 * 32768]


def test_types_of_accumulators():
    assert [sums.sum_dtype(np.asarray(s)) for s in ([5, 2**31 - 1], [2**31, 5], [])] == [
        DType.INT32,
        DType.INT64,
        DType.INT32,
    ]
    assert sums.accumulator_limit(layer(y=DType.INT32)) == 2**31
    assert sums.accumulator_limit(layer()) == 2**43


def test_products_are_exact():
    a, b = np.asarray([[2**24 + 1, -3]]), np.asarray([[2**24 + 3], [2**20 + 1]])
    found = sums.exact_product(a, b)
    assert found.dtype == np.int64 and found.tolist() == [[(2**24 + 1) * (2**24 + 3) - 3 * (2**20 + 1)]]
    reals = np.asarray([[1.0, 2.0**-20, -1.0]], np.float32), np.asarray([[2.0**8], [1.0], [2.0**8]], np.float32)
    product = sums.real_product(*reals)
    assert product.dtype == np.float32 and product.tolist() == [[2.0**-20]]  # summed in float64
    doubles = sums.real_product(*(r.astype(np.float64) for r in reals))
    assert doubles.dtype == np.float64 and doubles.tolist() == [[2.0**-20]]
    assert sums.real_product(np.asarray([[2]]), np.asarray([[3]])).tolist() == [[6]]


def ratio(sig: Signature, channel: int, factor: float = 1.0) -> Fraction:
    w = sig.input(1).q.scale
    exact = Fraction(0.1) * Fraction(w[channel % len(w)]) * Fraction(factor) / Fraction(0.07)
    return exact


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_layers_of_int8_have_31_bits_of_fraction(factor: float):
    sig, limit = layer(), np.asarray([2**31 - 1, 5])
    for found in (sums.requantizer(sig, factor=factor), sums.requantizer(sig, limit, factor)):
        assert found.shift == 31 and found.zero_point == 5 and not found.ties_to_even
        assert found.multiplier.tolist() == [round(ratio(sig, c, factor) * 2**31) for c in (0, 1)]


@pytest.mark.parametrize(
    ("types", "largest", "by_weights", "narrow"),
    [
        ((DType.INT8, DType.INT8, DType.INT8), 2**31 - 1, True, True),
        ((DType.INT8, DType.INT8, DType.INT8), 2**31, True, False),
        ((DType.INT16, DType.INT8, DType.INT8), 1000, True, False),
        ((DType.INT8, DType.INT8, DType.INT16), 1000, True, False),
        ((DType.INT16, DType.INT16, DType.INT16), 1000, True, False),
        ((DType.INT8, DType.INT16, DType.INT8), 2**25 - 1, True, True),
        ((DType.INT8, DType.INT16, DType.INT8), 2**25, True, False),
        ((DType.INT8, DType.INT16, DType.INT8), 1000, False, False),
        ((DType.INT8, DType.INT8, DType.INT8), 1000, False, True),
    ],
)
def test_which_layers_need_more_bits(types: tuple[DType, ...], largest: int, by_weights: bool, narrow: bool):
    sig = layer(*types)
    found = sums.requantizer(sig, np.asarray([largest]), by_weights=by_weights)
    scales = np.asarray([float(ratio(sig, c)) for c in range(len(sig.input(1).q.scale))])
    assert (found.shift == 31) is narrow
    assert not by_weights or sums.requantizer(sig, np.asarray([largest])).shift == found.shift  # by default
    if not narrow:
        assert found.shift == Requantizer.of(scales, 5, sums=np.asarray([largest])).shift != 31


def test_without_known_sums_the_types_alone_decide():
    assert sums.requantizer(layer()).shift == 31
    assert sums.requantizer(layer(DType.INT16)).shift == 31  # no sums: nothing is known to fit


@pytest.mark.parametrize("clamp", [None, (0.0, 3.0)])
def test_what_accumulators_become(clamp: tuple[float, float] | None):
    sig, limit = layer(), np.asarray([10**6] * 2)
    acc = np.asarray([[-100000, 99999], [1234, -321], [0, 1], [10**6, -(10**6)]])
    found = sums.finish(acc, sig, clamp, limit)
    low, high = (-128, 127) if clamp is None else (5, 5 + round(Fraction(3) / Fraction(0.07)))
    for index, got in np.ndenumerate(found):
        multiplier = round(ratio(sig, index[1]) * 2**31)
        assert got == max(low, min(high, (int(acc[index]) * multiplier + (5 << 31) + 2**30) >> 31))
    assert found.dtype == np.int8
    halved = sums.finish(acc, sig, clamp, limit, 0.5)
    assert halved[2].tolist() == [5, 5] and halved[1].tolist() != found[1].tolist()
    for dtype in (DType.INT32, DType.INT64):
        whole = sums.finish(acc, layer(y=dtype), None, limit)
        assert whole.dtype == dtype.numpy and whole.tolist() == acc.tolist()


@pytest.mark.parametrize("by_weights", [None, True, False])
def test_small_sums_of_weights_need_fewer_bits_than_those_of_activations(by_weights: bool | None):
    sig, limit = layer(w=DType.INT16), np.asarray([2**25 - 1])
    acc = np.arange(-(2**25) + 1, 2**25, 9999)[:, None]
    given = {} if by_weights is None else {"by_weights": by_weights}
    found = sums.finish(acc, sig, None, limit, 1e-4, **given)
    ratio_ = ratio(sig, 0, 1e-4)
    shift = 31 if by_weights is not False else sums.requantizer(sig, limit, 1e-4, by_weights=False).shift
    multiplier = round(ratio_ * 2**shift)
    wanted = [(int(a) * multiplier + (5 << shift) + (1 << (shift - 1))) >> shift for a in acc[:, 0]]
    assert found[:, 0].tolist() == np.clip(wanted, -128, 127).tolist()


def test_zero_points_of_inputs_enter_the_bias():
    sig = layer(zero=-3)
    folded = sums.folded_bias(sig, WEIGHTS.reshape(2, 3, 1), BIAS)
    for codes in product((-128, 0, 127), repeat=3):
        wanted = (np.asarray(codes) + 3) @ WEIGHTS.T.astype(np.int64) + BIAS
        assert (np.asarray(codes) @ WEIGHTS.T.astype(np.int64) + folded).tolist() == wanted.tolist()


def dense(x: Array, w: Array) -> Array:
    return x @ w.T.astype(np.int64)


def test_bounds_of_a_layer_are_exact():
    sig = layer(zero=-3)
    low, high = np.asarray([[-10, 0, 5]], np.int8), np.asarray([[-9, 7, 5]], np.int8)
    constant = [(c, c) for c in (WEIGHTS, BIAS)]
    seen: list[Array] = []

    def finished(acc: Array, w: Array, bias: Array) -> Array:
        assert w is WEIGHTS and bias is BIAS
        seen.append(acc)
        return acc + bias

    ((least, most),) = sums.layer_bounds(sig, [(low, high), *constant], dense, finished)
    ways = [dense(np.asarray([[a, b, 5]]) + 3, WEIGHTS) + BIAS for a in (-10, -9) for b in range(8)]
    assert least.tolist() == np.min(ways, axis=0).tolist() and most.tolist() == np.max(ways, axis=0).tolist()
    assert sums.layer_bounds(sig, [None, *constant], dense, finished) == (None,)
    assert sums.layer_bounds(sig, [(low, high), None, constant[1]], dense, finished) == (None,)
    assert sums.layer_bounds(sig, [(low, high), constant[0], (BIAS, BIAS + 1)], dense, finished) == (None,)
