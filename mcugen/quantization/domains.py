# SPDX-License-Identifier: Apache-2.0
"""Domains of functions whose value is NaN or infinite for some arguments.

Integers that saturate or round may leave such a domain although the real argument lies in it.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.ops.pointwise import Binary, Unary


class Domain(Enum):
    """The set of arguments for which a function has a finite value, such as x > 0 for a logarithm.

    Quantization may round or clip an argument to a value outside of this set.
    """

    NOT_NEGATIVE = "x ≥ 0"
    POSITIVE = "x > 0"
    NOT_ZERO = "x ≠ 0"
    AT_LEAST_ONE = "x ≥ 1"
    WITHIN_ONE = "-1 ≤ x ≤ 1"
    INSIDE_ONE = "-1 < x < 1"

    def ends(self, margin: float, low: float, high: float) -> tuple[float, float]:
        """Return the bounds to which a quantized argument must be clamped so that it stays in the domain.

        Args:
            margin: The distance to keep from a bound that is not itself part of the domain, such as the 0 of x > 0.
            low: The lower end of the argument's calibrated range.
            high: The upper end of that range. If the domain is x ≠ 0, the sign of the range decides which side is kept.

        Returns:
            The smallest and the largest allowed argument; an end without a bound is infinite.
        """
        match self:
            case Domain.NOT_NEGATIVE:
                return 0.0, math.inf
            case Domain.POSITIVE:
                return margin, math.inf
            case Domain.NOT_ZERO if low >= 0:
                return margin, math.inf
            case Domain.NOT_ZERO if high <= 0:
                return -math.inf, -margin
            case Domain.AT_LEAST_ONE:
                return 1.0, math.inf
            case Domain.WITHIN_ONE:
                return -1.0, 1.0
            case Domain.INSIDE_ONE:
                largest = 1 - min(max(margin, _EPSILON), 1 / 2)
                return -largest, largest
        return -math.inf, math.inf


_EPSILON = float(np.finfo(np.float32).eps)
"""Distance from 1 to the next larger float32 number."""

_OF_UNARY = {
    "Sqrt": Domain.NOT_NEGATIVE,
    "Log": Domain.POSITIVE,
    "Reciprocal": Domain.NOT_ZERO,
    "Acosh": Domain.AT_LEAST_ONE,
    "Asin": Domain.WITHIN_ONE,
    "Acos": Domain.WITHIN_ONE,
    "Atanh": Domain.INSIDE_ONE,
}


def domain_of(node: Node, value: Value) -> Domain | None:
    """Return the domain of a node's function in its input `value`; None if the function is finite everywhere."""
    if isinstance(node.op, Unary):
        return _OF_UNARY.get(node.op.function)
    if not isinstance(node.op, Binary):
        return None
    base, other = node.input(0), node.input(1)
    if node.op.function == "Div":
        return Domain.NOT_ZERO if value is other else None
    if node.op.function == "Pow" and value is base:
        return _of_power(other)
    return None


def _of_power(exponent: Value) -> Domain | None:
    """Return the domain of a power in its base.

    Roots need bases that are not negative, and negative exponents need bases other than 0.
    """
    if exponent.data is None:
        return Domain.POSITIVE
    exponents = np.asarray(exponent.data, np.float64)
    has_roots, has_quotients = bool((exponents % 1).any()), bool((exponents < 0).any())
    if has_roots:
        return Domain.POSITIVE if has_quotients else Domain.NOT_NEGATIVE
    return Domain.NOT_ZERO if has_quotients else None
