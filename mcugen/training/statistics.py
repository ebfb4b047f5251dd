# SPDX-License-Identifier: Apache-2.0
"""Batch normalization with changing statistics: inference uses running ones, training those of the sample itself.

As ONNX's training mode has it (Ioffe and Szegedy, "Batch normalization", 2015): the gradient goes through mean and
variance of the sample, of which the running ones take in a share of 1 − momentum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mcugen.backends.cpu.pipeline import fuse_float
from mcugen.hir.graph import Graph, Node, Value
from mcugen.ops.conv import DirectConv
from mcugen.ops.movement import Reshape
from mcugen.ops.norm import BatchNormalize
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.pointwise import Binary
from mcugen.training.layers import chosen, layer_name
from mcugen.training.onnx_calls import OnnxCalls
from mcugen.training.optimizers import kept_finite
from mcugen.training.parameters import TrainedParameter
from mcugen.training.reals import behind

SCALE, BIAS, MEAN, VARIANCE = 1, 2, 3, 4
"""Inputs."""


def keep_statistics(graph: Graph, layers: str) -> None:
    """Freeze the statistics of normalizations before the first trained layer, so that fusion folds them into weights.

    Raises:
        Refusal: No normalization is left whose statistics could change.
    """
    graph.keeps_statistics = False  # For nodes imported from now on.
    trial = graph.copy()
    fuse_float(trial)
    changing = {layer_name(node) for node in _normalizations(behind(trial, [c.node for c in chosen(trial, layers)]))}
    left = 0
    for node in list(_normalizations(graph.nodes)):
        if layer_name(node) in changing and _counted(node) > 1:
            left += 1
            continue
        if layer_name(node) in changing:
            graph.notes.append(f"statistics of '{layer_name(node)}' stay: one element a channel has no variance")
        _compute(graph, node, [node.input(i) for i in range(SCALE, VARIANCE + 1)])
    if not left:
        rule = "--statistics updated: a BatchNormalization of float32 must stand behind the first trained layer"
        remedy = "give the float model (quantized ones have it in their weights), or --statistics frozen"
        raise Refusal(rule, "none of several elements a channel", remedy)


def _counted(node: Node) -> int:
    """Return the number of elements from which a channel's statistics are computed."""
    x = node.input(0).type
    return x.count // x.shape[1] if x.rank > 1 else 1


def _normalizations(nodes: Sequence[Node]) -> Iterator[Node]:
    return (node for node in nodes if isinstance(node.op, BatchNormalize))


def with_statistics(graph: Graph) -> tuple[list[TrainedParameter], dict[Value, Value]]:
    """Make normalizations read parameters: scales and biases, which are trained as those of layers.

    Returns:
        The parameters; and the running means and variances, each with its constant.
    """
    parameters, running = list[TrainedParameter](), dict[Value, Value]()
    for node in _normalizations(graph.nodes):
        name = layer_name(node)
        for index, role in ((SCALE, "scale"), (BIAS, "bias"), (MEAN, "mean"), (VARIANCE, "variance")):
            first = node.input(index)
            assert first.data is not None
            value = graph.add_input(f"{name}.{role}", first.type)
            node.set_input(index, value)
            if index in (SCALE, BIAS):
                parameters.append(TrainedParameter(value, name, first.data))
            else:
                running[value] = first
    return parameters, running


def without_idle(graph: Graph, parameters: Sequence[TrainedParameter]) -> list[TrainedParameter]:
    """Return the parameters without biases that a normalization cancels.

    Their gradient is 0 except for rounding, which Adam would take for a direction.
    """
    learned = list[TrainedParameter]()
    for parameter in parameters:
        if not _is_idle(parameter.value):
            learned.append(parameter)
            continue
        graph.replace(parameter.value, graph.constant(f"{parameter.value.name}.first", parameter.first))
        graph.inputs.remove(parameter.value)
    return learned


def _is_idle(bias: Value) -> bool:
    """Return whether all readers of a bias add it to channels, and only normalizations read their results."""
    if bias.type.rank != 1:
        return False
    adding = list[Node]()
    for user in bias.users:
        if isinstance(user.op, Reshape):
            adding += [after for after in user.output.users if after.op == Binary("Add")]
        elif isinstance(user.op, DirectConv) and user.inputs[-1] is bias:
            adding.append(user)
    read = [user for node in adding for user in node.output.users]
    return bool(read) and all(isinstance(user.op, BatchNormalize) for user in read)


def taught_loss(graph: Graph, loss: Value) -> tuple[Value, dict[Value, tuple[str, Value]]]:
    """Return the loss of samples normalized by their own statistics, and the new running statistics.

    Everything behind these normalizations is computed a second time. Each running statistic comes with the name of its
    normalization.
    """
    twins, news = dict[Value, Value](), dict[Value, tuple[str, Value]]()
    for node in _way(graph, loss):
        inputs = [twins.get(v, v) if v is not None else None for v in node.inputs]
        op = node.op
        if isinstance(op, BatchNormalize):
            operands = [v for v in inputs if v is not None]
            settings = {"epsilon": op.epsilon, "momentum": op.momentum, "training_mode": 1}
            call = OnnxCalls(graph, f"{layer_name(node)}.taught")
            twins[node.output], *new = call.several("BatchNormalization", operands, 3, "", **settings)
            news |= {operands[i]: (layer_name(node), v) for i, v in zip((MEAN, VARIANCE), new, strict=True)}
        elif any(v in twins for v in node.inputs):
            names, types = [f"{v.name}.taught" for v in node.outputs], [v.type for v in node.outputs]
            twin = graph.add(op, inputs, node.origin, names=names, types=types)
            twins |= dict(zip(node.outputs, twin.outputs, strict=True))
    for node in list(_normalizations(graph.nodes)):
        _compute(graph, node, [node.input(i) for i in range(SCALE, VARIANCE + 1)])
    return twins[loss], news


def _way(graph: Graph, to: Value) -> list[Node]:
    """Return the nodes that a value depends on, in order."""
    needed, todo = set[Node](), [to.producer]
    while todo:
        node = todo.pop()
        if node is not None and node not in needed:
            needed.add(node)
            todo += [v.producer for v in node.inputs if v is not None]
    return [node for node in graph.nodes if node in needed]


def new_statistics(
    graph: Graph, news: Mapping[Value, tuple[str, Value]], rates: Mapping[str, Value]
) -> Iterator[tuple[Value, Value]]:
    """Yield running statistics with their new values; they stay unchanged at a rate of 0 or if not finite."""
    for value, (name, new) in news.items():
        call = OnnxCalls(graph, f"{value.name}.new")
        learns = call("Greater", rates[name], np.zeros((), np.float32))
        yield value, kept_finite(call, value, call("Where", learns, new, value))


def _compute(graph: Graph, node: Node, parameters: Sequence[Value]) -> None:
    """Replace a normalization by arithmetic operators."""
    assert isinstance(node.op, BatchNormalize)
    before, name = set(graph.nodes), layer_name(node)
    y = OnnxCalls(graph, name)("BatchNormalization", node.input(0), *parameters, epsilon=node.op.epsilon)
    for computed in graph.nodes:
        computed.origin = computed.origin if computed in before else node.origin
    graph.replace(node.output, y)
    graph.remove(node)
    graph.release_name(node.output)
    graph.rename(y, name)
    graph.sort()
