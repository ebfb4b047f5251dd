# SPDX-License-Identifier: Apache-2.0
"""Traversal of expressions: their parts, and the headers and parameters that their C text needs."""

from __future__ import annotations

from collections.abc import Iterator

from mcugen.expressions.nodes import CallExpression, Expression, Parameter, promoted_type


def parts(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all its subexpressions, each as often as it occurs in the C text."""
    yield expression
    for operand in expression.operands:
        yield from parts(operand)


def parameters(expression: Expression) -> set[Parameter]:
    """Return all kernel parameters that the expression contains."""
    return {part for part in parts(expression) if isinstance(part, Parameter)}


def headers(expression: Expression) -> set[str]:
    """Return the names of the C headers that declare the functions which the expression calls."""
    calls = (part for part in parts(expression) if isinstance(part, CallExpression))
    return {call.function.header(promoted_type(*(a.dtype for a in call.arguments))) for call in calls}
