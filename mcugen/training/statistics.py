# SPDX-License-Identifier: Apache-2.0
"""Batch normalization whose statistics change on the device: inference uses the running mean and variance.

Training normalizes by the mean and variance of the sample, as ONNX's training mode does (Ioffe and Szegedy, "Batch
normalization", 2015). The gradient goes through these, and each running statistic becomes
momentum · old + (1 − momentum) · (statistic of the sample).
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
from mcugen.training.layers import layer_name, select_layers
from mcugen.training.onnx_calls import OnnxCalls
from mcugen.training.optimizers import finite_or_old
from mcugen.training.parameters import TrainedParameter
from mcugen.training.reals import dependent_nodes

SCALE, BIAS, MEAN, VARIANCE = 1, 2, 3, 4
"""Indices of the inputs of BatchNormalize."""


def freeze_early_statistics(graph: Graph, layers: str) -> None:
    """Freeze the statistics of normalizations before the first trained layer, so that fusion folds them into weights.

    Args:
        graph: The graph, changed in place.
        layers: The value of `--train`, which selects the trained layers (see `training.layers.select_layers`).

    Raises:
        Refusal: No normalization is left whose statistics could change.
    """
    graph.keeps_statistics = False  # For nodes imported from now on.
    trial = graph.copy()
    fuse_float(trial)
    changing = {
        layer_name(node)
        for node in _normalizations(dependent_nodes(trial, [c.node for c in select_layers(trial, layers)]))
    }
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


def add_normalization_parameters(graph: Graph) -> tuple[list[TrainedParameter], dict[Value, Value]]:
    """Make the scale, bias, mean and variance of batch normalizations graph inputs instead of constants.

    Returns:
        The scales and biases, which are trained like the parameters of layers; and a dictionary of the running means
        and variances, which maps each new input to the constant that it replaces.
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


def drop_cancelled_biases(graph: Graph, parameters: Sequence[TrainedParameter]) -> list[TrainedParameter]:
    """Turn biases that a normalization cancels into constants, and return the parameters that are left.

    The gradient of such a bias is 0 except for rounding errors, which Adam would amplify to full steps.
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


def loss_with_sample_statistics(graph: Graph, loss: Value) -> tuple[Value, dict[Value, tuple[str, Value]]]:
    """Add the loss of a sample that is normalized by its own mean and variance, as training uses it.

    The nodes that depend on batch normalizations are copied for that; inference keeps the original nodes, which
    normalize by the running statistics.

    Args:
        graph: The graph, to which nodes are added.
        loss: The loss of a sample that is normalized by the running statistics.

    Returns:
        The loss; and a dictionary that maps the input of each running statistic to the name of its normalization layer
        and its new value.
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
    """Yield the graph input of each running statistic, and its value in the next call.

    A statistic stays unchanged if the learning rate is 0, or if the new value is NaN or infinite.

    Args:
        graph: The graph, to which nodes are added.
        news: For each running statistic, the name of its layer, and the value that it takes if the layer learns.
        rates: Learning rate of each layer, by name.
    """
    for value, (name, new) in news.items():
        call = OnnxCalls(graph, f"{value.name}.new")
        learns = call("Greater", rates[name], np.zeros((), np.float32))
        yield value, finite_or_old(call, value, call("Where", learns, new, value))


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
