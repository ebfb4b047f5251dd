# SPDX-License-Identifier: Apache-2.0
"""Legalization of HIR for Ethos-U: nodes that the NPU computes with our bits are written as TOSA."""

from __future__ import annotations

from mcugen.backends.npu.ethos_u.legalization import elementwise, movement, normalization, reductions, softmax, weighted
from mcugen.backends.npu.ethos_u.legalization.adaptation import adapted
from mcugen.backends.npu.ethos_u.legalization.elementwise import single_pass_sum
from mcugen.backends.npu.ethos_u.legalization.rule import Legalization, type_fault
from mcugen.backends.npu.ethos_u.legalization.stacks import unstacked
from mcugen.backends.npu.ethos_u.legalization.writer import SegmentWriter
from mcugen.backends.npu.ethos_u.tosa.graph import TosaGraph
from mcugen.hir.graph import Graph, Node
from mcugen.hir.operator import Operator
from mcugen.ops.elementwise import Stack

__all__ = ["LEGALIZATIONS", "adapted", "fault_of", "single_pass_sum", "write_segment"]

LEGALIZATIONS: dict[type[Operator], Legalization] = {
    rule.operator: rule
    for rules in (
        weighted.WEIGHTED_LEGALIZATIONS,
        elementwise.ELEMENTWISE_LEGALIZATIONS,
        reductions.REDUCTIONS_LEGALIZATIONS,
        movement.MOVEMENT_LEGALIZATIONS,
        softmax.SOFTMAX_LEGALIZATIONS,
        normalization.NORMALIZATION_LEGALIZATIONS,
    )
    for rule in rules
}
"""The rule of each operator that the NPU may compute; other operators stay on the CPU."""


def fault_of(node: Node) -> str:
    """Return why the NPU does not compute a node with our bits, as a phrase; "" if it does."""
    rule = LEGALIZATIONS.get(type(node.op))
    if rule is None:
        return f"no exact form of {node.op.name} on the NPU"
    fault = type_fault(node) or rule.fault(node)
    if fault and isinstance(node.op, Stack):
        return next((step_fault for step in unstacked(node).nodes if (step_fault := fault_of(step))), "")
    return fault


def _write(body: Graph, writer: SegmentWriter) -> None:
    """Write the nodes of a graph, whose inputs have tensors already."""
    for node in body.nodes:
        rule = LEGALIZATIONS[type(node.op)]
        if isinstance(node.op, Stack) and rule.fault(node):
            steps = unstacked(node)
            varying = (value for value in node.inputs if value is not None and not value.is_constant)
            writer.tensors |= {formal: writer.tensors[v] for formal, v in zip(steps.inputs, varying, strict=True)}
            _write(steps, writer)
            writer.tensors[node.output] = writer.tensors[steps.outputs[0]]
        else:
            writer.tensors[node.output] = rule.write(node, writer)


def write_segment(body: Graph) -> TosaGraph:
    """Return a graph as TOSA; `fault_of` must be "" for all of its nodes."""
    writer = SegmentWriter()
    for value in body.inputs:
        writer.input(value)
    _write(body, writer)
    for value in body.outputs:
        writer.graph.outputs.append(writer.tensors[value])
    return writer.graph
