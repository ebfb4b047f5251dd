# SPDX-License-Identifier: Apache-2.0
"""Formulas of numbers that depend on sizes known only at run time, and their derivation from examples.

A symbol is such a size. For example, the number of output rows may be (height + 1) // 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

import numpy as np

Sizes = Mapping[str, int]
"""The value of each run-time size, by the name of its symbol."""
Number = int | float
"""A numeric parameter of a program, which may depend on run-time sizes."""


@dataclass(frozen=True)
class Atom:
    """An integer factor of a formula: (size + add) // divide, where the size is known at run time only.

    Attributes:
        symbol: Name of the size.
        add: Number that is added to the size.
        divide: Divisor; the quotient is rounded down.
    """

    symbol: str
    add: int = 0
    divide: int = 1

    def at(self, sizes: Sizes) -> int:
        """Return the factor's value for given values of the run-time sizes."""
        return (sizes[self.symbol] + self.add) // self.divide


Monomial = tuple[Atom, ...]
"""A product of atoms in a formula; the empty product is 1."""


def _product(atoms: Monomial, sizes: Sizes) -> int:
    return math.prod(atom.at(sizes) for atom in atoms)


@dataclass(frozen=True)
class Polynomial:
    """A formula with an integer value: a sum of products of factors that depend on run-time sizes.

    Attributes:
        terms: For each term, its integer coefficient and the atoms (factors) that it is multiplied by.
    """

    terms: tuple[tuple[int, Monomial], ...]

    def at(self, sizes: Sizes) -> int:
        """Return the formula's value for given values of the run-time sizes."""
        return sum(factor * _product(atoms, sizes) for factor, atoms in self.terms)

    def magnitude(self, sizes: Sizes) -> int:
        """Return the sum of the absolute values of the terms for given sizes, an upper bound of all partial sums."""
        return sum(abs(factor) * abs(_product(atoms, sizes)) for factor, atoms in self.terms)

    def renamed(self, prefix: str) -> Polynomial:
        """Return the polynomial with `prefix` put before the names of all its symbols."""
        return Polynomial(
            tuple((f, tuple(Atom(prefix + a.symbol, a.add, a.divide) for a in atoms)) for f, atoms in self.terms)
        )


@dataclass(frozen=True)
class Quotient:
    """A formula with a real value: a constant divided by a polynomial of run-time sizes.

    Attributes:
        numerator: The constant; the formula's C type, float or double, is that of the numerator.
        denominator: The polynomial.
    """

    numerator: float
    denominator: Polynomial

    def at(self, sizes: Sizes) -> float:
        """Return the formula's value for given values of the run-time sizes; NaN for a denominator of 0."""
        below = self.denominator.at(sizes)
        return type(self.numerator)(self.numerator / below) if below else math.nan


@dataclass(frozen=True)
class ValueTable:
    """A formula as a table of its values for all values of one run-time size.

    Attributes:
        symbol: Name of the size.
        low: Value of the size for the table's first entry.
        values: The formula's values for the sizes low, low + 1, …
    """

    symbol: str
    low: int
    values: tuple[Number, ...]

    def at(self, sizes: Sizes) -> Number:
        """Return the formula's value for given values of the run-time sizes."""
        return self.values[sizes[self.symbol] - self.low]


Formula = Polynomial | Quotient | ValueTable
"""A numeric parameter as a function of run-time sizes, in one of three forms."""


@dataclass(frozen=True)
class Symbol:
    """A size that is known only at run time, such as the length of a sequence.

    It is an argument of the run function, unless the model computes it.

    Attributes:
        name: Name of the size.
        low: Smallest value.
        high: Largest value.
        output: Name of the model output whose only element is the size, if the model computes it; else "".
    """

    name: str
    low: int
    high: int
    output: str = ""


_PERIODS = (*range(2, 17), 20, 24, 32, 48, 64)
"""Divisors that are tried: products of strides."""


@dataclass
class Fitter:
    """A finder of formulas for numbers that depend on run-time sizes, from their values at sample sizes.

    The dependence on one symbol is found along the points that differ from `reference` in that symbol only. A formula
    is accepted only if it is exact at every point. In addition, either enough further points must confirm it, or the
    points must cover the whole range of the size.

    Attributes:
        symbols: The sizes that numbers may depend on.
        points: The combinations of sizes at which numbers are known.
        reference: One of the points.
    """

    symbols: Sequence[Symbol]
    points: Sequence[Sizes]
    reference: Sizes
    _formulas: dict[tuple[object, ...], Formula | None] = field(default_factory=dict)

    def fit(self, values: Sequence[Number]) -> Formula | None:
        """Return the formula of a number, given its values at `points` in order; None if no formula is accepted."""
        key: tuple[object, ...] = (type(values[0]), *values)  # The type distinguishes 1 and 1.0.
        if key not in self._formulas:
            self._formulas[key] = self._fit(values)
        return self._formulas[key]

    def _fit(self, values: Sequence[Number]) -> Formula | None:
        if all(isinstance(v, int) for v in values):
            polynomial = self._polynomial([int(v) for v in values])
            return polynomial or self._table(values)
        return self._quotient([float(v) for v in values], type(values[0])) or self._table(values)

    # ---------------------------------------------------------------------------------------------- integers

    def _polynomial(self, values: Sequence[int]) -> Polynomial | None:
        involved = [s for s in self.symbols if len({v for _, v in self._line(s, values)}) > 1]
        if len(involved) <= 1:
            symbol = (involved or self.symbols)[0]
            polynomial = self._fit_along(symbol, self._line(symbol, values))
            return polynomial if polynomial and self._holds(polynomial, values) else None
        lines = [self._fit_along(s, self._line(s, values)) for s in involved]
        if any(line is None for line in lines):
            return None
        parts = [[(), *(atoms for _, atoms in line.terms if atoms)] for line in lines if line]
        basis = [tuple(atom for part in parts_ for atom in part) for parts_ in product(*parts)]
        polynomial = _solve(basis, list(zip(self.points, values, strict=True)))
        return polynomial if polynomial and len(basis) + 2 <= len(values) else None

    def _line(self, symbol: Symbol, values: Sequence[Number]) -> list[tuple[Sizes, Number]]:
        """Return the points that differ from the reference in `symbol` only, with their values."""
        return [
            (point, value)
            for point, value in zip(self.points, values, strict=True)
            if all(point[s.name] == self.reference[s.name] for s in self.symbols if s is not symbol)
        ]

    def _fit_along(self, symbol: Symbol, line: Sequence[tuple[Sizes, Number]]) -> Polynomial | None:
        data = [(point, int(value)) for point, value in line]
        if len({value for _, value in data}) == 1:
            return Polynomial(((data[0][1], ()),) if data[0][1] else ())
        complete = self._is_complete(symbol, [point for point, _ in data])
        for basis in _bases(symbol.name):
            if complete or _confirms(basis, [point for point, _ in data]):
                polynomial = _solve(basis, data)
                if polynomial is not None:
                    return polynomial
        return None

    def _is_complete(self, symbol: Symbol, points: Iterable[Sizes]) -> bool:
        known = {p[symbol.name] for p in points}
        return len(known) > symbol.high - symbol.low and known.issuperset(range(symbol.low, symbol.high + 1))

    def _holds(self, formula: Formula, values: Sequence[Number]) -> bool:
        return all(formula.at(point) == value for point, value in zip(self.points, values, strict=True))

    # ------------------------------------------------------------------------------------------------- reals

    def _quotient(self, values: Sequence[float], kind: type) -> Quotient | None:
        """Return a quotient that fits the values: 1 / integer, which is exact in C too, or c / size; None otherwise."""
        if not all(math.isfinite(v) and v != 0 for v in values):
            return None
        counts = [round(1 / v) for v in values]
        below = self._polynomial(counts) if all(counts) else None
        candidates = [] if below is None else [Quotient(kind(1.0), below)]
        for symbol in self.symbols:
            size = Polynomial(((1, (Atom(symbol.name),)),))
            candidates.append(Quotient(kind(values[0] * size.at(self.points[0])), size))
        precision = 1e-6 if kind is float else 1e-14
        return next((c for c in candidates if self._is_close(c, values, precision)), None)

    def _is_close(self, formula: Formula, values: Sequence[float], precision: float) -> bool:
        pairs = ((formula.at(point), value) for point, value in zip(self.points, values, strict=True))
        return all(math.isclose(computed, value, rel_tol=precision) for computed, value in pairs)

    # ------------------------------------------------------------------------------------------------ tables

    def _table(self, values: Sequence[Number]) -> ValueTable | None:
        if len(self.symbols) != 1 or not self._is_complete(self.symbols[0], self.points):
            return None
        (symbol,) = self.symbols
        known = {point[symbol.name]: value for point, value in zip(self.points, values, strict=True)}
        return ValueTable(symbol.name, symbol.low, tuple(known[s] for s in range(symbol.low, symbol.high + 1)))


def _bases(symbol: str) -> Iterator[list[Monomial]]:
    """Yield bases of polynomials, the simplest first: sizes, their quotients, and products of these."""
    size = Atom(symbol)
    quotients = [Atom(symbol, add, divide) for divide in _PERIODS for add in range(divide)]
    yield [(), (size,)]
    yield from ([(), (q,)] for q in quotients)
    yield [(), (size,), (size, size)]
    yield from ([(), (size,), (q,)] for q in quotients)
    yield from ([(), (q,), (q, q)] for q in quotients)
    yield from ([(), (a,), (b,)] for a, b in combinations(quotients, 2) if a.divide == b.divide <= 8)
    yield from ([(), (size,), (q,), (size, q)] for q in quotients)
    yield [(), (size,), (size, size), (size, size, size)]


def _confirms(basis: Sequence[Monomial], points: Sequence[Sizes]) -> bool:
    """Return whether there are so many points that a fit is no coincidence; quotients must take several values."""
    steps = [len({atom.at(point) for point in points}) for atoms in basis for atom in atoms if atom.divide > 1]
    return len(points) >= len(basis) + 2 and min(steps, default=4) >= 4


def _solve(basis: Sequence[Monomial], data: Sequence[tuple[Sizes, int]]) -> Polynomial | None:
    """Return the integer combination of the basis that is exact at all points; None if there is none."""
    rows = [[_product(atoms, sizes) for atoms in basis] for sizes, _ in data]
    values = [value for _, value in data]
    if len(basis) == 2:  # In the common case, two points make a line.
        factors = _line_through(rows, values)
    else:
        solution, *_ = np.linalg.lstsq(np.asarray(rows, np.float64), np.asarray(values, np.float64))
        factors = [round(f) for f in solution] if np.isfinite(solution).all() else None
    if factors is None:
        return None
    for row, value in zip(rows, values, strict=True):
        if sum(f * r for f, r in zip(factors, row, strict=True)) != value:
            return None
    return Polynomial(tuple((f, atoms) for f, atoms in zip(factors, basis, strict=True) if f))


def _line_through(rows: Sequence[Sequence[int]], values: Sequence[int]) -> list[int] | None:
    first, value = rows[0][1], values[0]
    other = next((i for i, row in enumerate(rows) if row[1] != first), None)
    if other is None:
        return None
    slope, remainder = divmod(values[other] - value, rows[other][1] - first)
    return None if remainder else [value - slope * first, slope]
