# SPDX-License-Identifier: Apache-2.0
"""Conversion of the operators of one subgraph, and the report of those that cannot be compiled."""

from __future__ import annotations

from collections.abc import Sequence

from mcugen.core.errors import ModelError, UnsupportedError, listed, shortened
from mcugen.frontend.tflite.model import TfliteGraph, TfliteModel, TfliteOperator
from mcugen.frontend.tflite.node import BUILDERS, OnnxBody, TfliteNode
from mcugen.ops.onnx_node import Refusal


def refuse_unknown(model: TfliteModel) -> None:
    """Raise UnsupportedError if operators have no builder; the message lists all of them."""
    lines = []
    for graph in model.graphs:
        for operator in graph.operators:
            if operator.kind not in BUILDERS:
                remedy = "replace it by supported operators (see docs/reference/tflite_operators.md)"
                lines.append(_line(graph, operator, f"operator not supported. try: {remedy}."))
    if lines:
        raise unsupported(lines)


def unsupported(lines: Sequence[str]) -> UnsupportedError:
    """Return the error that lists operators that cannot be compiled."""
    count = len(lines)
    listing = "\n  - " + listed(lines, separator="\n  - ")
    rule = f"every operator must be supported; {count} node{'s are' * (count > 1) or ' is'} not:{listing}"
    return UnsupportedError(rule)


def _line(graph: TfliteGraph, operator: TfliteOperator, reason: str) -> str:
    name = f" '{shortened(operator.outputs[0].name, 80)}'" if operator.outputs else ""
    where = f" (in subgraph {graph.index})" if graph.index else ""
    return f"operator {operator.index}, {operator.kind}{name}{where}: {reason}"


def build_body(body: OnnxBody) -> None:
    """Add the nodes of all operators of a subgraph; the writer's `refusals` get those that cannot be compiled.

    Raises:
        ModelError: An operator is inconsistent.
    """
    for operator in body.graph.operators:
        for tensor in operator.outputs:
            if tensor not in body.values:
                body.values[tensor] = body.writer.names.take(tensor.name)
    for operator in body.graph.operators:
        try:
            BUILDERS[operator.kind].build(TfliteNode(body, operator))
        except Refusal as refusal:
            body.writer.refusals.append(_line(body.graph, operator, str(refusal)))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            rule = f"{body.writer.model.place}: {_line(body.graph, operator, 'the operator must be consistent')}"
            raise ModelError(rule, str(error)[:200], "export the file again") from error
