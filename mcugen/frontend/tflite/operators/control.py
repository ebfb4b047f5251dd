# SPDX-License-Identifier: Apache-2.0
"""Control flow, whose bodies are other subgraphs, and variables, which become states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from mcugen.core.limits import MAX_CONTROL_FLOW_DEPTH
from mcugen.frontend.tflite.body import build_body
from mcugen.frontend.tflite.flatbuffer import TableBase, scalar, text
from mcugen.frontend.tflite.model import TfliteGraph
from mcugen.frontend.tflite.node import OnnxBody, TfliteNode, tflite_operator
from mcugen.frontend.tflite.schema import BOOL_NUMBER
from mcugen.ops.onnx_node import Refusal


@dataclass(frozen=True)
class IfOptions(TableBase):
    """Options of IF."""

    UNION = 92
    then_graph: int = scalar(0)
    else_graph: int = scalar(1)


@dataclass(frozen=True)
class WhileOptions(TableBase):
    """Options of WHILE."""

    UNION = 93
    condition_graph: int = scalar(0)
    body_graph: int = scalar(1)


@dataclass(frozen=True)
class CallOnceOptions(TableBase):
    """Options of CALL_ONCE."""

    UNION = 103
    graph: int = scalar(0)


@dataclass(frozen=True)
class VariableOptions(TableBase):
    """Options of VAR_HANDLE."""

    UNION = 111
    container: str = text(0)
    name: str = text(1)


def _subgraph(node: TfliteNode, index: int) -> TfliteGraph:
    graphs = node.body.writer.model.graphs
    node.require(0 < index < len(graphs), f"subgraph {index} of {len(graphs)}")
    return graphs[index]


def _insert(node: TfliteNode, graph: TfliteGraph, values: Sequence[str]) -> list[str]:
    """Add the nodes of a subgraph, and return the names of its results.

    Args:
        node: The operator whose body it is.
        graph: The subgraph.
        values: Names of the values of its inputs.
    """
    writer = node.body.writer
    node.require(len(values) == len(graph.inputs), f"{len(values)} inputs of subgraph {graph.index}")
    node.require(graph.index not in writer.nested, f"subgraph {graph.index} within itself")
    node.require(len(writer.nested) < MAX_CONTROL_FLOW_DEPTH, "too many subgraphs within one another")
    body = OnnxBody(writer, graph, dict(zip(graph.inputs, values, strict=True)))
    body.nodes, body.constants, body.declared = node.body.nodes, node.body.constants, node.body.declared
    writer.nested.append(graph.index)
    try:
        build_body(body)
    finally:
        writer.nested.pop()
    if writer.refusals:
        return [node.new_name("refused") for _ in graph.outputs]
    results = []
    for tensor in graph.outputs:
        inner = TfliteNode(body, node.operator)
        results.append(node.emit("Identity", inner.stored_tensor(tensor)))
    return results


def _infos(names: Sequence[str], graph: TfliteGraph) -> list[object]:
    """Return declarations of results of a subgraph."""
    kinds = zip(names, graph.outputs, strict=True)
    return [helper.make_tensor_value_info(name, tensor.type.onnx, tensor.shape) for name, tensor in kinds]


@tflite_operator("IF", becomes="If")
def _build_if(node: TfliteNode) -> None:
    options = node.options(IfOptions)
    condition = node.emit("Reshape", node.stored(0), node.constant(np.zeros(0, np.int64), "scalar"))
    values = [node.stored(n) for n in range(1, len(node.operator.inputs))]
    branches = {}
    for key, index in (("then_branch", options.then_graph), ("else_branch", options.else_graph)):
        graph = _subgraph(node, index)
        node.require(len(graph.outputs) == len(node.operator.outputs), f"{len(graph.outputs)} results of a branch")
        with node.collect() as nodes:
            results = _insert(node, graph, values)
        branches[key] = helper.make_graph(nodes, key, [], _infos(results, graph))
    results = node.emit_all("If", [condition], len(node.operator.outputs), **branches)
    for index, result in enumerate(results):
        node.finish_stored(result, index)


def _max_steps(node: TfliteNode, condition: TfliteGraph, body: TfliteGraph) -> int | None:
    """Return the largest number of steps of a loop that counts up to a constant limit; None for other loops."""
    results = {operator.outputs[0]: operator for operator in condition.operators if operator.outputs}
    sums = {operator.outputs[0]: operator for operator in body.operators if operator.kind == "ADD"}
    waiting, limits = [condition.outputs[0]], list[int]()
    while waiting:
        operator = results.pop(waiting.pop(), None)
        if operator is None:
            continue
        if operator.kind == "LOGICAL_AND":
            waiting += [tensor for tensor in operator.inputs if tensor is not None]
        if operator.kind != "LESS" or len(operator.inputs) != 2 or operator.inputs[0] not in condition.inputs:
            continue
        place, limit = condition.inputs.index(operator.inputs[0]), operator.inputs[1]
        first, added = node.input(place), sums.get(body.outputs[place])
        steps = [t for t in added.inputs if t is not body.inputs[place]] if added is not None else []
        numbers = [first, limit, *steps]
        if len(steps) == 1 and all(t is not None and t.is_constant and t.count == 1 for t in numbers):
            begin, end, step = (int(t.array.reshape(-1)[0]) for t in numbers if t is not None)
            limits += [max(-(-(end - begin) // step), 0)] * (step > 0 and not first.type.is_float)
    return min(limits, default=None)


@tflite_operator("WHILE", becomes="Loop", limits="a counter with a constant limit")
def _build_while(node: TfliteNode) -> None:
    options, count = node.options(WhileOptions), len(node.operator.inputs)
    condition, body = _subgraph(node, options.condition_graph), _subgraph(node, options.body_graph)
    node.require(
        count == len(node.operator.outputs) == len(body.outputs) == len(body.inputs), f"{count} values of a loop"
    )
    node.require(len(condition.outputs) == 1, f"{len(condition.outputs)} results of a condition")
    steps = _max_steps(node, condition, body)
    if steps is None:
        raise Refusal(
            "a loop must have a limit of steps", "no counter with a constant limit", "count with LESS and ADD"
        )
    scalar_shape = node.constant(np.zeros(0, np.int64), "scalar")

    def judged(values: Sequence[str]) -> str:
        return node.emit("Reshape", _insert(node, condition, values)[0], scalar_shape)

    values = [node.stored(n) for n in range(count)]
    first, limit = judged(values), node.constant(np.asarray(steps, np.int64), "limit")
    step, going = node.new_name("step"), node.new_name("going")
    inner = [node.new_name("value") for _ in range(count)]
    with node.collect() as nodes:
        results = _insert(node, body, inner)
        goes_on = judged(results)
    begins = [
        helper.make_tensor_value_info(step, TensorProto.INT64, []),
        helper.make_tensor_value_info(going, TensorProto.BOOL, []),
        *(
            helper.make_tensor_value_info(name, tensor.type.onnx, tensor.shape)
            for name, tensor in zip(inner, body.inputs, strict=True)
        ),
    ]
    ends = [helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []), *_infos(results, body)]
    loop = helper.make_graph(nodes, "body", begins, ends)
    for index, result in enumerate(node.emit_all("Loop", [limit, first, *values], count, body=loop)):
        node.finish_stored(result, index)


@tflite_operator("VAR_HANDLE", becomes="a state")
def _build_handle(node: TfliteNode) -> None:
    options = node.options(VariableOptions)
    node.body.writer.variables[node.output()] = f"{options.container}/{options.name}".lstrip("/") or "variable"


def _variable(node: TfliteNode) -> str:
    """Return the name of the variable whose handle is the first input."""
    handle, variables = node.input(0), node.body.writer.variables
    if handle not in variables:
        raise Refusal("variables must be used where their handles are", f"handle '{handle.name}'", "inline the body")
    return variables[handle]


@tflite_operator("READ_VARIABLE", becomes="a state")
def _build_read(node: TfliteNode) -> None:
    state = node.keep_state(_variable(node), node.output())
    node.finish_stored(node.emit("Identity", state.value))


@tflite_operator("ASSIGN_VARIABLE", becomes="a state", limits="constants before the first run; not within control flow")
def _build_assign(node: TfliteNode) -> None:
    name, tensor = _variable(node), node.input(1)
    if _CALLED_ONCE in node.body.writer.nested:
        zero = tensor.quantization.zero_points[0] if tensor.quantization is not None else 0
        if (node.array(1) != zero).any():
            node.body.writer.initial[name] = tensor
        return
    if node.body.writer.nested:
        raise Refusal("variables must change outside of control flow", f"'{name}'", "assign it behind the loop")
    node.keep_state(name, tensor).value = node.stored(1)


_CALLED_ONCE = -1
"""Stands in the list of nested subgraphs for a body that runs once, before the first run."""


_HAS_RUN = "/has_run"
"""Key of the state that tells whether the model has run; names of variables begin with no slash."""


@tflite_operator("CALL_ONCE", becomes="initial states", limits="constants")
def _build_call_once(node: TfliteNode) -> None:
    """Build initial values: states begin with zeros, so a further state tells the first run, which reads constants."""
    graph, writer = _subgraph(node, node.options(CallOnceOptions).graph), node.body.writer
    if writer.nested:
        raise Refusal(
            "variables must begin outside of control flow", "CALL_ONCE within it", "initialize them before it"
        )
    writer.nested.append(_CALLED_ONCE)
    try:
        with node.collect():
            _insert(node, graph, [])
    finally:
        writer.nested.pop()
    for name, tensor in writer.initial.items():
        flag = replace(tensor, shape=(1,), type_number=BOOL_NUMBER, quantization=None)
        has_run = node.keep_state("has_run", flag, key=_HAS_RUN)
        has_run.value = node.constant(np.ones(1, bool), "true")
        state = node.keep_state(name, tensor)
        initial = node.body.add_constant(f"{name}/initial", tensor.array, tensor.type)
        state.value = node.emit("Where", has_run.declared.name, state.value, initial)
