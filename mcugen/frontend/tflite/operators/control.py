# SPDX-License-Identifier: Apache-2.0
"""Control flow, whose bodies are other subgraphs, and variables, which become states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from mcugen.core.limits import MAX_CONTROL_FLOW_DEPTH
from mcugen.frontend.tflite.body import build_body
from mcugen.frontend.tflite.flatbuffer import TableBase, text
from mcugen.frontend.tflite.model import TfliteGraph, TfliteOperator, TfliteTensor
from mcugen.frontend.tflite.node import KeptState, OnnxBody, TfliteNode, tflite_operator
from mcugen.frontend.tflite.schema import BOOL_NUMBER, RESOURCE, CallOnceOptions, IfOptions, WhileOptions
from mcugen.ops.onnx_node import Refusal


@dataclass(frozen=True)
class VariableOptions(TableBase):
    """Options of VAR_HANDLE."""

    UNION = 111
    container: str = text(0)
    name: str = text(1)


_CALLED_ONCE = -1
"""Stands in the list of nested subgraphs for a body that runs once, before the first run."""
_HAS_RUN = "/has_run"
"""Key of the state that tells whether the model has run; names of variables begin with no slash."""


def _subgraph(node: TfliteNode, index: int) -> TfliteGraph:
    model = node.body.writer.model
    exists = 0 <= index < len(model.graphs) and model.graphs[index] is not model.main
    node.require(exists, f"subgraph {index} of {len(model.graphs)}")
    return model.graphs[index]


def _insert(node: TfliteNode, graph: TfliteGraph, values: Sequence[str]) -> list[str]:
    """Add the nodes of a subgraph, and return the names of its results but handles.

    Args:
        node: The operator whose body it is.
        graph: The subgraph.
        values: Names of the values of its inputs but handles.
    """
    writer, inputs = node.body.writer, _data(graph.inputs)
    node.require(len(values) == len(inputs), f"{len(values)} inputs of subgraph {graph.index}")
    node.require(graph.index not in writer.nested, f"subgraph {graph.index} within itself")
    node.require(len(writer.nested) < MAX_CONTROL_FLOW_DEPTH, "too many subgraphs within one another")
    body = OnnxBody(writer, graph, dict(zip(inputs, values, strict=True)))
    body.nodes, body.constants, body.declared = node.body.nodes, node.body.constants, node.body.declared
    writer.nested.append(graph.index)
    try:
        build_body(body)
    finally:
        writer.nested.pop()
    outputs = _data(graph.outputs)
    if writer.refusals:
        return [node.new_name("refused") for _ in outputs]
    results = []
    for tensor in outputs:
        inner = TfliteNode(body, node.operator)
        results.append(node.emit("Identity", inner.stored_tensor(tensor)))
    return results


def _infos(names: Sequence[str], graph: TfliteGraph) -> list[object]:
    """Return declarations of results of a subgraph."""
    kinds = zip(names, _data(graph.outputs), strict=True)
    return [helper.make_tensor_value_info(name, tensor.type.onnx, tensor.shape) for name, tensor in kinds]


# ---------------------------------------------------------------------------------------------------- variables


def _data(tensors: Sequence[TfliteTensor]) -> list[TfliteTensor]:
    """Return the tensors that are no handles of variables."""
    return [tensor for tensor in tensors if tensor.type_number != RESOURCE]


def _pass_handles(node: TfliteNode, graph: TfliteGraph, arguments: Sequence[TfliteTensor | None]) -> list[str]:
    """Let a subgraph know the handles among its arguments; return the names of the values of the others."""
    node.require(len(arguments) == len(graph.inputs), f"{len(arguments)} inputs of subgraph {graph.index}")
    values, variables = [], node.body.writer.variables
    for inner, outer in zip(graph.inputs, arguments, strict=True):
        node.require(outer is not None, f"an absent input of subgraph {graph.index}")
        assert outer is not None
        node.require((inner.type_number == RESOURCE) == (outer.type_number == RESOURCE), f"a handle as '{inner.name}'")
        if inner.type_number != RESOURCE:
            values.append(node.stored_tensor(outer))
        elif outer in variables:
            variables[inner] = variables[outer]
    return values


def _name_of(operator: TfliteOperator) -> str:
    """Return the name of the variable of VAR_HANDLE."""
    options = operator.options(VariableOptions)
    return f"{options.container}/{options.name}".lstrip("/") or "variable"


def _assigned(
    node: TfliteNode, graph: TfliteGraph, handles: Mapping[TfliteTensor, str], seen: set[tuple[int, tuple[str, ...]]]
) -> Iterator[tuple[str, TfliteTensor]]:
    """Yield the variables that a subgraph assigns, each with a tensor of its type.

    Args:
        node: The operator whose body it is.
        graph: The subgraph.
        handles: Names of the variables of the handles among its inputs.
        seen: Numbers of the subgraphs so far, with the variables that they got; it is extended.
    """
    key = graph.index, tuple(handles.get(tensor, "") for tensor in graph.inputs)
    if key in seen:
        return
    seen.add(key)
    known = dict(handles)
    for operator in graph.operators:
        if operator.kind == "VAR_HANDLE" and operator.outputs:
            known[operator.outputs[0]] = _name_of(operator)
        if operator.kind == "ASSIGN_VARIABLE" and len(operator.inputs) == 2 and operator.inputs[0] in known:
            value = operator.inputs[1]
            node.require(value is not None, "an absent value of a variable")
            assert operator.inputs[0] is not None and value is not None
            yield known[operator.inputs[0]], value
        for index, arguments in _bodies(operator):
            inner = _subgraph(node, index)
            passed = {to: known[by] for to, by in zip(inner.inputs, arguments, strict=False) if by in known}
            yield from _assigned(node, inner, passed, seen)


def _bodies(operator: TfliteOperator) -> list[tuple[int, Sequence[TfliteTensor | None]]]:
    """Return the numbers of the subgraphs that IF or WHILE runs, and what it passes to each."""
    passed = {"IF": operator.inputs[1:], "WHILE": operator.inputs}.get(operator.kind)
    return [] if passed is None else [(index, passed) for index in operator.bodies()]


def _renamed(state: KeptState, name: str) -> object:
    """Return the declaration of a value of a state under another name."""
    info = type(state.declared)()
    info.CopyFrom(state.declared)
    info.name = name
    return info


# ------------------------------------------------------------------------------------------------- control flow


def _states(node: TfliteNode, arguments: Sequence[TfliteTensor | None], *graphs: TfliteGraph) -> list[KeptState]:
    """Return the states of all variables that bodies of control flow assign.

    Args:
        node: The operator.
        arguments: What is passed to the bodies.
        *graphs: The bodies.
    """
    states, seen = dict[str, KeptState](), set[tuple[int, tuple[str, ...]]]()
    variables = node.body.writer.variables
    for graph in graphs:
        pairs = zip(graph.inputs, arguments, strict=False)
        handles = {inner: variables[outer] for inner, outer in pairs if outer is not None and outer in variables}
        for name, tensor in _assigned(node, graph, handles, seen):
            if _CALLED_ONCE in node.body.writer.nested:
                raise Refusal("first values of variables must not depend on control flow", f"'{name}'", "compute them")
            states[name] = node.keep_state(name, tensor)
    return list(states.values())


def _finish(node: TfliteNode, results: Sequence[str], states: Sequence[KeptState]) -> None:
    """Make the results of control flow the values of the outputs but handles, and of the states behind these."""
    places = [n for n, tensor in enumerate(node.operator.outputs) if tensor.type_number != RESOURCE]
    for index, result in zip(places, results, strict=False):
        node.finish_stored(result, index)
    for state, result in zip(states, results[len(places) :], strict=True):
        state.value = result


@tflite_operator("IF", becomes="If")
def _build_if(node: TfliteNode) -> None:
    options, arguments = node.options(IfOptions), node.operator.inputs[1:]
    condition = node.emit("Reshape", node.stored(0), node.constant(np.zeros(0, np.int64), "scalar"))
    graphs = [_subgraph(node, index) for index in (options.then_graph, options.else_graph)]
    states, branches = _states(node, arguments, *graphs), {}
    before = [state.value for state in states]
    for key, graph in zip(("then_branch", "else_branch"), graphs, strict=True):
        node.require(len(graph.outputs) == len(node.operator.outputs), f"{len(graph.outputs)} results of a branch")
        values = _pass_handles(node, graph, arguments)
        with node.collect() as nodes:
            results = _insert(node, graph, values)
            after = [node.emit("Identity", state.value) for state in states]
        branches[key] = helper.make_graph(nodes, key, [], [*_infos(results, graph), *map(_renamed, states, after)])
        for state, value in zip(states, before, strict=True):
            state.value = value
    count = len(_data(node.operator.outputs)) + len(states)
    _finish(node, node.emit_all("If", [condition], count, **branches), states)


@dataclass(frozen=True)
class _Limit:
    """A comparison of a loop's counter with a limit: the loop goes on while counter < limit, or > if it falls.

    Attributes:
        place: Place of the counter among the values of the loop.
        limit: The limit.
        falls: Whether the counter falls.
        takes_equal: Whether the loop goes on if both are equal.
    """

    place: int
    limit: TfliteTensor
    falls: bool
    takes_equal: bool

    def steps(self, first: int, change: int) -> int | None:
        """Return the number of steps of a counter; None if it does not move towards the limit."""
        distance, change = int(self.limit.array.reshape(-1)[0]) - first, -change if self.falls else change
        distance = (-distance if self.falls else distance) + int(self.takes_equal)
        return max(-(-distance // change), 0) if change > 0 else None


_COMPARISONS = {
    "LESS": (False, False),
    "LESS_EQUAL": (False, True),
    "GREATER": (True, False),
    "GREATER_EQUAL": (True, True),
}
"""Comparisons of a counter with a limit: whether it falls, and whether the loop goes on if both are equal."""


def _limits(condition: TfliteGraph) -> Iterator[_Limit]:
    """Yield the comparisons of counters with constants of which all must hold for a loop to go on."""
    results = {operator.outputs[0]: operator for operator in condition.operators if operator.outputs}
    waiting = [condition.outputs[0]]
    while waiting:
        operator = results.pop(waiting.pop(), None)
        if operator is None:
            continue
        inputs = [tensor for tensor in operator.inputs if tensor is not None]
        if operator.kind == "LOGICAL_AND":
            waiting += inputs
        if operator.kind not in _COMPARISONS or len(inputs) != 2:
            continue
        falls, takes_equal = _COMPARISONS[operator.kind]
        for (counter, limit), swaps in ((inputs, False), (inputs[::-1], True)):
            if counter in condition.inputs and _is_whole_number(limit):
                yield _Limit(condition.inputs.index(counter), limit, falls != swaps, takes_equal)


def _is_whole_number(tensor: TfliteTensor | None) -> bool:
    """Return whether a tensor is a constant of one whole number."""
    is_number = tensor is not None and tensor.is_constant and tensor.count == 1
    return is_number and tensor is not None and tensor.type.array.kind in "iu"


def _change(body: TfliteGraph, place: int) -> int | None:
    """Return what a step adds to a value of a loop; None if it is no constant whole number."""
    sums = {operator.outputs[0]: operator for operator in body.operators if operator.outputs}
    operator, counter = sums.get(body.outputs[place]), body.inputs[place]
    if operator is None or operator.kind not in ("ADD", "SUB") or counter not in operator.inputs:
        return None
    if operator.kind == "SUB" and operator.inputs[0] is not counter:
        return None
    changes = [tensor for tensor in operator.inputs if tensor is not counter]
    if len(changes) != 1 or changes[0] is None or not _is_whole_number(changes[0]):
        return None
    change = int(changes[0].array.reshape(-1)[0])
    return -change if operator.kind == "SUB" else change


def _max_steps(node: TfliteNode, condition: TfliteGraph, body: TfliteGraph) -> int | None:
    """Return the largest number of steps of a loop that counts to a constant limit; None for other loops."""
    counts = []
    for limit in _limits(condition):
        first, change = node.input(limit.place), _change(body, limit.place)
        if change is not None and _is_whole_number(first):
            counts.append(limit.steps(int(first.array.reshape(-1)[0]), change))
    return min((count for count in counts if count is not None), default=None)


@tflite_operator("WHILE", becomes="Loop", limits="a counter that begins with a constant and has a constant limit")
def _build_while(node: TfliteNode) -> None:
    options, arguments = node.options(WhileOptions), node.operator.inputs
    condition, body = _subgraph(node, options.condition_graph), _subgraph(node, options.body_graph)
    count = len(arguments)
    node.require(
        count == len(node.operator.outputs) == len(body.outputs) == len(body.inputs) == len(condition.inputs),
        f"{count} values of a loop",
    )
    node.require(len(condition.outputs) == 1, f"{len(condition.outputs)} results of a condition")
    steps = _max_steps(node, condition, body)
    if steps is None:
        raise Refusal(
            "a loop must have a limit of steps",
            "no counter with a constant limit",
            "count with ADD or SUB up to a constant",
        )
    scalar_shape = node.constant(np.zeros(0, np.int64), "scalar")

    def judged(values: Sequence[str]) -> str:
        return node.emit("Reshape", _insert(node, condition, values)[0], scalar_shape)

    if _states(node, arguments, condition):
        raise Refusal("variables must not change in the condition of a loop", node.label, "assign them in its body")
    states = _states(node, arguments, body)
    values = [*_pass_handles(node, condition, arguments)]
    _pass_handles(node, body, arguments)
    first, limit = judged(values), node.constant(np.asarray(steps, np.int64), "limit")
    step, going = node.new_name("step"), node.new_name("going")
    inner, kept = ([node.new_name("value") for _ in group] for group in (values, states))
    before = [state.value for state in states]
    for state, name in zip(states, kept, strict=True):
        state.value = name
    with node.collect() as nodes:
        results = _insert(node, body, inner)
        goes_on = judged(results)
        after = [node.emit("Identity", state.value) for state in states]
    begins = [
        helper.make_tensor_value_info(step, TensorProto.INT64, []),
        helper.make_tensor_value_info(going, TensorProto.BOOL, []),
        *(
            helper.make_tensor_value_info(name, tensor.type.onnx, tensor.shape)
            for name, tensor in zip(inner, _data(body.inputs), strict=True)
        ),
        *map(_renamed, states, kept),
    ]
    judgment = helper.make_tensor_value_info(goes_on, TensorProto.BOOL, [])
    ends = [judgment, *_infos(results, body), *map(_renamed, states, after)]
    loop = helper.make_graph(nodes, "body", begins, ends)
    inputs = [limit, first, *values, *before]
    _finish(node, node.emit_all("Loop", inputs, len(inputs) - 2, body=loop), states)


@tflite_operator("VAR_HANDLE", becomes="a state")
def _build_handle(node: TfliteNode) -> None:
    node.body.writer.variables[node.output()] = _name_of(node.operator)


def _variable(node: TfliteNode) -> str:
    """Return the name of the variable whose handle is the first input."""
    handle, variables = node.input(0), node.body.writer.variables
    if handle not in variables:
        raise Refusal("handles of variables must be known", f"handle '{handle.name}'", "inline the body")
    return variables[handle]


@tflite_operator("READ_VARIABLE", becomes="a state")
def _build_read(node: TfliteNode) -> None:
    name, y, writer = _variable(node), node.output(), node.body.writer
    if _CALLED_ONCE not in writer.nested:
        return node.finish_stored(node.emit("Identity", node.keep_state(name, y).value))
    if name in writer.initial:
        return node.finish_stored(node.emit("Identity", writer.initial[name][1]))
    return node.finish_stored(node.zeros(y))


@tflite_operator("ASSIGN_VARIABLE", becomes="a state", limits="not in the condition of a loop")
def _build_assign(node: TfliteNode) -> None:
    name, tensor = _variable(node), node.input(1)
    if _CALLED_ONCE in node.body.writer.nested:
        node.body.writer.initial[name] = tensor, node.stored(1)
    else:
        node.keep_state(name, tensor).value = node.stored(1)


@tflite_operator("CALL_ONCE", becomes="initial states", limits="outside of control flow")
def _build_call_once(node: TfliteNode) -> None:
    """Build initial values: states begin with zeros, so a further state tells the first run, which takes others.

    What computes the initial values reads constants only, so that the compiler computes them.
    """
    graph, writer = _subgraph(node, node.options(CallOnceOptions).graph), node.body.writer
    if writer.nested:
        raise Refusal(
            "variables must begin outside of control flow", "CALL_ONCE within it", "initialize them before it"
        )
    writer.nested.append(_CALLED_ONCE)
    try:
        _insert(node, graph, [])
    finally:
        writer.nested.pop()
    for name, (tensor, value) in writer.initial.items():
        if tensor.is_constant and (tensor.array == tensor.zero).all():
            continue
        flag = replace(tensor, shape=(1,), type_number=BOOL_NUMBER, quantization=None)
        has_run = node.keep_state("has_run", flag, key=_HAS_RUN)
        has_run.value = node.constant(np.ones(1, bool), "true")
        state = node.keep_state(name, tensor)
        state.value = node.emit("Where", has_run.declared.name, state.value, value)
