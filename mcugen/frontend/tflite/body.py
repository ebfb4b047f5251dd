# SPDX-License-Identifier: Apache-2.0
"""Conversion of the operators of one subgraph, and the report of those that cannot be compiled."""

from __future__ import annotations

from collections.abc import Sequence

from mcugen.core.errors import ModelError, UnsupportedError, listed, shortened
from mcugen.frontend.tflite.model import TfliteGraph, TfliteModel, TfliteOperator
from mcugen.frontend.tflite.node import OnnxBody, TfliteNode
from mcugen.ops.onnx_node import Refusal, Registry

_BOXES = "end the model at its boxes and scores, or choose boxes by the custom operator TFLite_Detection_PostProcess"
_REMEDIES = {
    "WHERE": "keep all elements and choose by a mask (SELECT_V2, MUL), as the size of its result depends on data",
    "NON_MAX_SUPPRESSION_V4": _BOXES,
    "NON_MAX_SUPPRESSION_V5": _BOXES,
}
"""Remedies for operators that TensorFlow Lite Micro lacks as well, by operator."""


def refuse_unknown(model: TfliteModel, registry: Registry) -> None:
    """Raise UnsupportedError if operators are not in a registry; the message lists all of them."""
    lines = []
    for graph in model.used_graphs:
        for operator in graph.operators:
            if operator.kind not in registry.tflite:
                remedy = "replace it by supported operators (see docs/reference/tflite_operators.md)"
                if operator.is_custom:
                    remedy = "write a plug-in for it (--plugin, see docs/how-to/tflite.md)"
                remedy = _REMEDIES.get(operator.kind, remedy)
                lines.append(describe_operator(graph, operator, f"operator not supported. try: {remedy}."))
    if lines:
        raise unsupported(lines)


def unsupported(lines: Sequence[str]) -> UnsupportedError:
    """Return the error that lists operators that cannot be compiled."""
    count = len(lines)
    listing = "\n  - " + listed(lines, separator="\n  - ")
    rule = f"every operator must be supported; {count} node{'s are' * (count > 1) or ' is'} not:{listing}"
    return UnsupportedError(rule)


def describe_operator(graph: TfliteGraph, operator: TfliteOperator, reason: str) -> str:
    """Return a line of a message: number, kind and first output of an operator, and what is wrong with it."""
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
            body.writer.registry.tflite[operator.kind].build(TfliteNode(body, operator))
        except Refusal as refusal:
            body.writer.refusals.append(describe_operator(body.graph, operator, str(refusal)))
        except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            line = describe_operator(body.graph, operator, "the operator must be consistent")
            raise ModelError(f"{body.writer.model.place}: {line}", str(error)[:200], "export the file again") from error
