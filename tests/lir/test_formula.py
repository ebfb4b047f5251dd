# SPDX-License-Identifier: Apache-2.0
"""Formulas from examples: right at every size of the range, or none, by plain Python functions of the sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from mcugen.lir import formula
from mcugen.lir.formula import Atom, Fitter, Formula, Polynomial, Quotient, Symbol, ValueTable

ONE = (Symbol("n", 1, 40),)
TWO = (Symbol("n", 1, 12), Symbol("m", 2, 9))


def fitter(symbols: Sequence[Symbol], tried: Sequence[Sequence[int]], reference: Sequence[int]) -> Fitter:
    names = [s.name for s in symbols]
    points = [dict(zip(names, sizes, strict=True)) for sizes in tried]
    return Fitter(symbols, points, dict(zip(names, reference, strict=True)))


def of_one(function: Callable[[int], float], tried: Sequence[int] = range(1, 31)) -> Formula | None:
    return fitter(ONE, [[n] for n in tried], [tried[0]]).fit([function(n) for n in tried])


@pytest.mark.parametrize(
    "function",
    [
        lambda n: 7,
        lambda n: 0,
        lambda n: 3 * n - 5,
        lambda n: (n + 1) // 2,
        lambda n: 4 * ((n - 1) // 3 + 1) + 2,
        lambda n: n * n - n,
        lambda n: 5 * n + 2 * ((n + 3) // 4),
        lambda n: ((n + 1) // 2) ** 2 + 1,
        lambda n: (n // 2) + 3 * ((n + 1) // 2),
        lambda n: n * ((n + 2) // 4),
        lambda n: n**3 + 2,
    ],
)
def test_whole_numbers_of_one_size(function: Callable[[int], int]):
    found = of_one(function)
    assert isinstance(found, Polynomial)
    for n in range(1, 41):
        assert found.at({"n": n}) == function(n)
        assert found.magnitude({"n": n}) >= abs(function(n))
        assert found.renamed("p_").at({"p_n": n}) == function(n)


def test_a_magnitude_counts_each_term():
    found = Polynomial(((-3, (Atom("n", -5),)), (2, ())))
    assert [found.magnitude({"n": n}) for n in (1, 5, 7)] == [14, 2, 8]
    assert found.renamed("x") == Polynomial(((-3, (Atom("xn", -5),)), (2, ())))


@pytest.mark.parametrize("function", [lambda n: n ^ 5, lambda n: math.isqrt(n), lambda n: 2**n])
def test_what_follows_no_formula_is_a_table_of_all_sizes(function: Callable[[int], int]):
    assert of_one(function) is None
    found = of_one(function, range(1, 41))
    assert isinstance(found, ValueTable) and found.low == 1
    assert [found.at({"n": n}) for n in range(1, 41)] == [function(n) for n in range(1, 41)]
    assert of_one(function, range(0, 40)) is None and of_one(function, range(2, 42)) is None


def test_few_points_confirm_nothing():
    line = lambda n: 3 * n + 1  # noqa: E731
    assert of_one(line, range(1, 4)) is None and isinstance(of_one(line, range(1, 5)), Polynomial)
    assert of_one(lambda n: n * n, range(1, 5)) is None and of_one(lambda n: n * n, range(1, 6)) is not None
    steps = lambda n: (n + 7) // 16  # noqa: E731
    assert of_one(steps, range(1, 34)) is None  # it takes three values
    found = of_one(steps, (1, 9, 17, 25, 33, 39, 40, 41, 57))
    assert found is None or found.at({"n": 33}) == steps(33)


def test_one_wrong_point_is_enough():
    """A formula must be right at every point, wherever the exception is."""
    for odd in (0, 13, 29):
        values = [2 * n + (n == odd + 1) for n in range(1, 31)]
        assert fitter(ONE, [[n] for n in range(1, 31)], [1]).fit(values) is None


GRID = list(product((1, 2, 3, 5, 8, 12), (2, 3, 4, 6, 9)))


@pytest.mark.parametrize(
    "function",
    [
        lambda n, m: n * m,
        lambda n, m: 3 * n + 2 * m - 7,
        lambda n, m: n * m + n + m + 1,
        lambda n, m: 5 * m,
        lambda n, m: 4,
        lambda n, m: (n * m - m) * 2,
    ],
)
def test_whole_numbers_of_two_sizes(function: Callable[[int, int], int]):
    found = fitter(TWO, GRID, (3, 4)).fit([function(n, m) for n, m in GRID])
    assert isinstance(found, Polynomial)
    for n, m in product(range(1, 13), range(2, 10)):
        assert found.at({"n": n, "m": m}) == function(n, m)


def test_two_sizes_that_are_mixed_otherwise_follow_no_formula():
    for function in (max, min, lambda n, m: n**m):
        assert fitter(TWO, GRID, (3, 4)).fit([function(n, m) for n, m in GRID]) is None
    on_axes_only = [n if m == 4 else 4 for n, m in GRID]  # right along both lines through the reference
    assert fitter(TWO, GRID, (3, 4)).fit(on_axes_only) is None


@pytest.mark.parametrize("kind", [float, np.float64])
def test_reals_are_quotients(kind: type):
    sizes = range(1, 31)
    found = of_one(lambda n: kind(1 / (2 * n + 3)), sizes)
    assert isinstance(found, Quotient) and found.denominator.at({"n": 10}) == 23
    assert type(found.at({"n": 7})) is kind and found.at({"n": 7}) == kind(1 / 17)
    scaled = of_one(lambda n: kind(0.37 / n), sizes)
    assert isinstance(scaled, Quotient) and math.isclose(scaled.at({"n": 11}), 0.37 / 11, rel_tol=1e-6)
    constant = of_one(lambda n: kind(0.25), sizes)
    assert isinstance(constant, Quotient) and constant.at({"n": 5}) == 0.25
    for function in (lambda n: kind(n - 5), lambda n: kind(math.sqrt(n)), lambda n: kind(np.inf), lambda n: kind(0)):
        assert of_one(function, sizes) is None
    assert isinstance(of_one(lambda n: kind(math.sqrt(n)), range(1, 41)), ValueTable)


def test_a_quotient_by_nought_is_none():
    assert math.isnan(Quotient(1.0, Polynomial(((1, (Atom("n", -3),)),))).at({"n": 3}))


def test_numbers_of_another_type_are_another_question():
    fit = fitter(ONE, [[n] for n in range(1, 31)], [1])
    assert isinstance(fit.fit([1] * 30), Polynomial) and isinstance(fit.fit([1.0] * 30), Quotient)
    assert fit.fit([1] * 30) is fit.fit([1] * 30)


@pytest.mark.parametrize("divide", [*range(2, 17), 20, 24, 32, 48, 64])
def test_lengths_of_strides_are_found(divide: int):
    """Of a range that is not known as a whole; the rest begins anywhere."""
    points = [{"n": n} for n in range(1, 5 * divide)]
    fitter = Fitter([Symbol("n", 1, 5000)], points, points[0])
    for add in (0, divide - 1):
        values = [7 + 3 * ((point["n"] + add) // divide) for point in points]
        assert fitter.fit(values) == Polynomial(((7, ()), (3, (Atom("n", add, divide),))))


def test_an_atom_is_the_size_itself_unless_told():
    assert [Atom("n").at({"n": n}) for n in (0, 1, 7)] == [0, 1, 7]


def test_two_sizes_need_more_points_than_the_formula_has_terms():
    """n·m has up to four: 1, n, m and n·m, so that six points tell, if they are right."""
    for most, is_told in ((2, False), (3, True)):
        symbols = (Symbol("n", 1, 2), Symbol("m", 1, most))
        tried = list(product((1, 2), range(1, most + 1)))
        found = fitter(symbols, tried, (1, 1)).fit([n * m for n, m in tried])
        assert found == (Polynomial(((1, (Atom("n"), Atom("m"))),)) if is_told else None)


@pytest.mark.parametrize("function", [lambda n: 5, lambda n: (n + 19) // 20, lambda n: 3 - (n + 19) // 20])
def test_one_value_or_two_of_a_whole_range(function: Callable[[int], int]):
    found = of_one(function, range(1, 41))
    assert isinstance(found, Polynomial)
    assert [found.at({"n": n}) for n in range(1, 41)] == [function(n) for n in range(1, 41)]


def test_a_constant_needs_no_more_points_than_one():
    assert of_one(lambda n: 5, [3]) == Polynomial(((5, ()),))
    assert of_one(lambda n: 0, [3, 4]) == Polynomial(())


@pytest.mark.parametrize(("terms", "points", "wanted"), [(2, 3, False), (2, 4, True), (3, 4, False), (3, 5, True)])
def test_two_points_more_than_terms_confirm_them(terms: int, points: int, wanted: bool):
    basis = [(Atom("n"),) * power for power in range(terms)]
    assert formula._confirms(basis, [{"n": n} for n in range(points)]) is wanted


@pytest.mark.parametrize(("points", "wanted"), [(7, False), (8, True)])
def test_quotients_must_take_four_values(points: int, wanted: bool):
    assert formula._confirms([(), (Atom("n", 1, 2),)], [{"n": n} for n in range(1, points)]) is wanted
