# SPDX-License-Identifier: Apache-2.0
"""Cost of expressions, as a number of operations."""

from __future__ import annotations

from collections.abc import Sequence

from mcugen.expressions.nodes import Argument, CallExpression, Constant, Expression, Parameter, Shared, Table
from mcugen.expressions.parts import parts

MAX_UNROLLED_OPERATIONS = 15
"""Operations of a loop up to which it is unrolled."""


def operations(expression: Expression) -> int:
    """Return the number of operations; a repeated part counts each time."""
    free = (Argument, Constant, Parameter, Shared, Table)
    return sum(not isinstance(part, free) for part in parts(expression))


def is_short(expressions: Sequence[Expression]) -> bool:
    """Whether a loop over them is worth unrolling: few operations, no long function."""
    calls = [part for e in expressions for part in parts(e) if isinstance(part, CallExpression)]
    return all(c.function.is_quick for c in calls) and sum(map(operations, expressions)) <= MAX_UNROLLED_OPERATIONS
