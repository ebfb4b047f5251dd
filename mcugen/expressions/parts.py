# SPDX-License-Identifier: Apache-2.0
"""What expressions are made of, and what their C text needs around it."""

from __future__ import annotations

from collections.abc import Iterator

from mcugen.expressions.nodes import Call, Expression, Parameter, joined


def parts(expression: Expression) -> Iterator[Expression]:
    """The expression and all within, as often as C text has them."""
    yield expression
    for operand in expression.operands:
        yield from parts(operand)


def parameters(expression: Expression) -> set[Parameter]:
    """The numbers of the layer that it reads."""
    return {part for part in parts(expression) if isinstance(part, Parameter)}


def headers(expression: Expression) -> set[str]:
    """The headers that declare what it calls."""
    calls = (part for part in parts(expression) if isinstance(part, Call))
    return {call.function.header(joined(*(a.dtype for a in call.arguments))) for call in calls}
