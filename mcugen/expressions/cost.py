# SPDX-License-Identifier: Apache-2.0
"""Cost of expressions, as a number of operations."""

from __future__ import annotations

from collections.abc import Sequence

from mcugen.expressions.nodes import Argument, CallExpression, Constant, Expression, Parameter, Shared, Table
from mcugen.expressions.parts import parts

MAX_UNROLLED_OPERATIONS = 15
"""Largest number of operations in a loop body that is worth unrolling."""


def operations(expression: Expression) -> int:
    """Return the number of operations that the C text of an expression computes; a repeated part counts each time.

    Names, numbers and parameters do not count.
    """
    free = (Argument, Constant, Parameter, Shared, Table)
    return sum(not isinstance(part, free) for part in parts(expression))


def is_short(expressions: Sequence[Expression]) -> bool:
    """Return whether a loop that computes these expressions is worth unrolling.

    The expressions must have at most MAX_UNROLLED_OPERATIONS operations together, and each function that they call must
    take only a few instructions (Function.is_quick).
    """
    calls = [part for e in expressions for part in parts(e) if isinstance(part, CallExpression)]
    return all(c.function.is_quick for c in calls) and sum(map(operations, expressions)) <= MAX_UNROLLED_OPERATIONS
