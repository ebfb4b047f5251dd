# SPDX-License-Identifier: Apache-2.0
"""Domains of functions: arguments outside make NaN or infinity, and integers that saturate or round may lie there."""

from __future__ import annotations

from enum import Enum

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.ops.pointwise import Binary, Unary


class Domain(Enum):
    """The arguments for which a function has a finite value, as far as quantization endangers them."""

    NOT_NEGATIVE = "x ≥ 0"
    POSITIVE = "x > 0"
    NOT_ZERO = "x ≠ 0"


_OF_UNARY = {"Sqrt": Domain.NOT_NEGATIVE, "Log": Domain.POSITIVE, "Reciprocal": Domain.NOT_ZERO}


def domain_of(node: Node, value: Value) -> Domain | None:
    """Return the domain of a layer's function in an input of it; None if the function is finite everywhere."""
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
    """Return the domain of a power in its base: roots of negative numbers are none, and 0 has no negative power."""
    if exponent.data is None:
        return Domain.POSITIVE
    exponents = np.asarray(exponent.data, np.float64)
    has_roots, has_quotients = bool((exponents % 1).any()), bool((exponents < 0).any())
    if has_roots:
        return Domain.POSITIVE if has_quotients else Domain.NOT_NEGATIVE
    return Domain.NOT_ZERO if has_quotients else None
