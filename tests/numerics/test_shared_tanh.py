# SPDX-License-Identifier: Apache-2.0
"""The table that sigmoid and tanh share: its entries, how it is read, and what one program has of it."""

from __future__ import annotations

from decimal import Decimal, localcontext
from itertools import product

import numpy as np
import pytest

from mcugen.expressions.nodes import Argument, Expression, Table
from mcugen.expressions.values import evaluate
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.numerics.curves import CURVE_INPUTS, TANH_TABLE, SharedTanh

ALL = CURVE_INPUTS[:-1].astype(np.int16)
UNITS = QuantParams((2.0**-15,), 0)
OUTPUTS = {
    "units": (DType.INT16, UNITS),
    "half as fine": (DType.INT16, QuantParams((2.0**-14,), 0)),
    "twice as fine": (DType.INT16, QuantParams((2.0**-16,), 0)),
    "any int16": (DType.INT16, QuantParams((1 / 30000,), 0)),
    "int8": (DType.INT8, QuantParams((1 / 120,), 5)),
    "int8 from the least code": (DType.INT8, QuantParams((1 / 256,), -128)),
}
EXPONENTS = range(-20, -2)
"""Of scales, from ±0.03 to ±4096."""


def reading(function: str, exponent: int, output: str) -> SharedTanh:
    dtype, quant = OUTPUTS[output]
    found = SharedTanh.of(function, QuantParams((2.0**exponent,), 0), TensorType((4,), dtype, quant))
    assert found is not None
    return found


def values(expression: Expression) -> Array:
    return np.broadcast_to(evaluate(expression, {"q": ALL, "t": TANH_TABLE}), ALL.shape)


def found_by(shared: SharedTanh) -> Array:
    return values(shared.expression(Argument("q", DType.INT16, exact=True), Table("t", DType.INT16), Scalars()))


def exact(function: str, exponent: int) -> Array:
    x = ALL.astype(np.float64) * 2.0**exponent
    return np.tanh(x) if function == "tanh" else (1 + np.tanh(x / 2)) / 2


def test_entries_are_the_nearest_numbers():
    """By 40 digits of the exponential function; moved by a sixteenth of the second derivative, −2 t (1 − t²), so that
    lines between them are too low near the entries as they are too high halfway, or the reverse.
    """
    with localcontext() as context:
        context.prec = 40
        for i, entry in enumerate(TANH_TABLE.tolist()):
            square = (Decimal(2 * i - 511) / 48).exp()
            t = (square - 1) / (square + 1)
            moved = t + t * (1 - t**2) / 8 / 48**2
            assert abs(moved * 2**15 - entry) <= Decimal("0.5"), i
    assert TANH_TABLE.nbytes <= 1024 and (-TANH_TABLE[::-1] == TANH_TABLE).all()


def by_formula(shared: SharedTanh, q: int) -> int:
    """What the class says, in whole numbers that must fit 32 bits."""
    at = max(-shared.reach, min(shared.reach, q)) * shared.factor + 511 * 2**21
    assert 0 <= at < 511 * 2**22
    start, end, rest = int(TANH_TABLE[at >> 22]), int(TANH_TABLE[(at >> 22) + 1]), (at >> 6) & 0xFFFF
    total = start * 2**16 + (end - start) * rest + (2**16 if shared.is_sigmoid else 2**15)
    assert -(2**31) <= total < 2**31
    value = (total >> 17) + 2**14 if shared.is_sigmoid else total >> 16
    assert -(2**15) <= value < 2**15
    line = shared.line
    if line is None:
        return value
    assert abs(value * line.slope) + abs(line.offset) < 2**31
    return max(line.low, min(line.high, (value * line.slope + line.offset) >> line.shift))


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("function", ["tanh", "sigmoid"])
def test_it_is_read_as_it_says(function: str, output: str):
    for exponent in EXPONENTS:
        shared = reading(function, exponent, output)
        places = [*range(-(2**15), 2**15, 257), *(shared.reach * s + d for s, d in product((-1, 1), range(-2, 3)))]
        codes = [q for q in places if -(2**15) <= q < 2**15]
        found = found_by(shared)
        assert [by_formula(shared, q) for q in codes] == [int(found[q + 2**15]) for q in codes], exponent


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(("function", "units"), [("tanh", 2.0), ("sigmoid", 1.5)])
def test_it_is_near_the_function(function: str, units: float, output: str):
    """In units of 2^-15, before the last rounding; where a line follows, there are two. Results do not fall."""
    dtype, quant = OUTPUTS[output]
    for exponent in EXPONENTS:
        shared = reading(function, exponent, output)
        found, roundings = found_by(shared), 1 if shared.line is None else 2
        wanted = np.clip(exact(function, exponent) / quant.scale[0] + quant.zero_point, *dtype.limits)
        assert np.abs(found - wanted).max() <= 0.5 * roundings + units * 2.0**-15 / quant.scale[0], exponent
        assert (np.diff(found) >= 0).all(), exponent


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("function", ["tanh", "sigmoid"])
def test_helium_computes_the_same(function: str, output: str):
    argument, table = Argument("q", DType.INT16, exact=True), Table("t", DType.INT16)
    for exponent in EXPONENTS:
        shared = reading(function, exponent, output)
        np.testing.assert_array_equal(values(shared.vector(argument, table, Scalars())), found_by(shared))


def test_a_gate_comes_as_near_to_one_as_codes_do():
    """What a gate of 1 keeps is kept; what one of 0 lets pass is a code at most."""
    found = found_by(reading("sigmoid", -11, "units"))
    assert found[0] <= 1 and found[-1] == 2**15 - 1


@pytest.mark.parametrize(
    ("function", "x", "y"),
    [
        ("relu", QuantParams((2.0**-12,), 0), UNITS),
        ("tanh", QuantParams((0.0003,), 0), UNITS),
        ("tanh", QuantParams((2.0**-12,), 3), UNITS),
        ("tanh", QuantParams((2.0**-12,), 0), QuantParams((2.0**-20,), 0)),
        ("tanh", QuantParams((2.0**40,), 0), UNITS),
        ("tanh", QuantParams((0.25,), 0), UNITS),
    ],
)
def test_other_functions_and_scales_have_tables_of_their_own(function: str, x: QuantParams, y: QuantParams):
    out = TensorType((4,), DType.INT16, y)
    shared = SharedTanh.of(function, x, out)
    wanted = np.tanh(CURVE_INPUTS * x.scale[0]) / y.scale[0]
    assert shared is None or not shared.is_near(wanted, DType.INT16)
