# SPDX-License-Identifier: Apache-2.0
"""Selection of the layers to train, from `--train` and the layers of a model."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from mcugen.core.errors import UsageError, shortened
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.layer_names import find_layer
from mcugen.hir.types import DType
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Dequantize
from mcugen.ops.matmul import Dense
from mcugen.ops.recurrent import LENS, Recurrent, W

LAST, BIAS = re.compile(r"last:(\d{1,6})"), re.compile(r"bias(?::(\d{1,6}))?")
"""Forms of `--train`: `last:N` (weights and biases of the last N layers); `bias` or `bias:N` (biases only)."""
CHANNELS_PATTERN = re.compile(r"(?P<layer>.+)\[(?P<channels>\d{1,6}(;\d{1,6})*)\]")
"""Pattern of the form `LAYER[C;C;…]` of `--train`, which selects the weights of some output channels."""
ADAPTER_PATTERN = re.compile(r"adapter:(\d{1,6})(?::(\d{1,6}))?")
"""Pattern of the form `adapter:RANK[:N]` of `--train`: low-rank adapters of all layers, or of the last N."""


@dataclass(frozen=True)
class TrainableLayer:
    """A layer to train, and which of its weights are trained.

    Attributes:
        node: The layer.
        weights: Whether all weights are trained.
        bias: Whether the bias is trained.
        rank: Rank of a trained low-rank adapter that is added to the layer; 0: no adapter.
        channels: Output channels whose weights are trained, if `weights` is False.
    """

    node: Node
    weights: bool
    bias: bool = True
    rank: int = 0
    channels: tuple[int, ...] = ()


def layer_name(node: Node) -> str:
    """Return the name of the layer's first result, after which its trained parameters are named."""
    return node.outputs[0].name


def select_layers(graph: Graph, text: str) -> list[TrainableLayer]:
    """Return the layers that the value of `--train` selects, in the order of the graph.

    Args:
        graph: The graph, whose layers `fuse_float` has fused.
        text: A comma-separated list of layer names, `last:N` (the last N layers), `NAME[C;C]` (single output channels
            of a layer), `bias` or `bias:N` (biases only, of all or the last N layers), and `adapter:RANK` or
            `adapter:RANK:N` (low-rank adapters). If one of several entries for a layer selects all of its weights, all
            are trained.

    Raises:
        UsageError: A name is not the name of a layer, or the layer has no weights to train; the message lists the
            layers that have.
    """
    known = trainable_layers(graph)
    if not known:
        rule = "--train: the model must have dense, recurrent layers or convolutions with constant weights"
        raise UsageError(rule, "none", "train another model")
    weights, bias, ranks = dict[Node, None](), dict[Node, None](), dict[Node, int]()
    channels = dict[Node, tuple[int, ...]]()
    for part in (text or "").split(","):
        if last := LAST.fullmatch(part):
            weights |= dict.fromkeys(_last(known, part, int(last[1])))
        elif only := BIAS.fullmatch(part):
            bias |= dict.fromkeys(known if only[1] is None else _last(known, part, int(only[1])))
        elif adapter := ADAPTER_PATTERN.fullmatch(part):
            ranks |= _adapted(known, part, int(adapter[1]), adapter[2])
        elif some := CHANNELS_PATTERN.fullmatch(part):
            node = _named(graph, known, some["layer"])
            channels[node] = _some_channels(node, part, some["channels"])
        else:
            weights |= dict.fromkeys([_named(graph, known, part)])
    trained = {*weights, *bias, *ranks, *channels}
    return [
        TrainableLayer(node, True)
        if node in weights
        else TrainableLayer(node, False, node in bias, ranks.get(node, 0), channels.get(node, ()))
        for node in known
        if node in trained
    ]


def recurrent_layers_to_train(graph: Graph, text: str, any_layers: bool) -> list[str]:
    """Return the names of the recurrent layers that are trained or depend on a trained layer.

    Args:
        graph: The graph, whose layers `fuse_float` has fused.
        text: The value of `--train`.
        any_layers: Whether to return all recurrent layers, whatever `text` selects.
    """
    cells = [node for node in graph.nodes if isinstance(node.op, Recurrent)]
    if any_layers or not cells:
        return [layer_name(node) for node in cells]
    depending = {layer.node for layer in select_layers(graph, text)}
    for node in graph.nodes:
        if any(v is not None and v.producer in depending for v in node.inputs):
            depending.add(node)
    return [layer_name(node) for node in cells if node in depending]


def _some_channels(node: Node, part: str, text: str) -> tuple[int, ...]:
    """Return the named channels in order."""
    count = len(node.output.type.shape) and node.input(1).type.shape[0]
    channels = tuple(sorted({int(number) for number in text.split(";")}))
    if not has_channels(node) or channels[-1] >= count:
        rule = f"--train {shortened(part, 60)}: channels are those of a layer that computes one sample"
        raise UsageError(
            rule, f"{channels[-1]}", f"0 to {count - 1}" if has_channels(node) else "train the whole layer"
        )
    return channels


def has_channels(node: Node) -> bool:
    """Return whether `--train` can select single output channels of a layer.

    It can if the layer computes one image or one row, without groups.
    """
    shape = node.output.type.shape
    if isinstance(node.op, Conv):
        return shape[0] == 1 and node.op.groups == 1
    return isinstance(node.op, Dense) and math.prod(shape[:-1]) == 1


def trainable_layers(graph: Graph) -> list[Node]:
    """Return the layers that can be trained: the model's first output depends on them, and their weights are constants.

    The graph must have gone through `fuse_float`, which fuses the layers of a float graph.
    """
    leading = nodes_before(graph.outputs[0])
    return [node for node in graph.nodes if node in leading and _has_weights(node)]


def nodes_before(result: Value) -> set[Node]:
    """Return the set of all nodes that a value depends on."""
    nodes: set[Node] = set()
    values = [result]
    while values:
        node = values.pop().producer
        if node is not None and node not in nodes:
            nodes.add(node)
            values += [value for value in node.inputs if value is not None]
    return nodes


def _has_weights(node: Node) -> bool:
    if type(node.op) in (Conv, Dense):
        read = node.inputs[1:]
    elif isinstance(node.op, Recurrent):
        read = node.inputs[W:LENS]
    else:
        return False
    real = all(v.type.dtype is DType.FLOAT32 and v.type.quant is None for v in node.outputs)
    return real and all(v is None or is_known(v) for v in read)


def is_known(value: Value) -> bool:
    """Return whether a value is known at compile time: a constant, or a constant that is dequantized."""
    source = value.producer
    return value.is_constant or (
        source is not None and isinstance(source.op, Dequantize) and source.input(0).is_constant
    )


def _last(layers: list[Node], part: str, count: int) -> list[Node]:
    if not 1 <= count <= len(layers):
        raise UsageError(f"--train {part}: the model has {len(layers)} layers that could be trained", f"{count}")
    return layers[-count:]


def _adapted(layers: list[Node], part: str, rank: int, count: str | None) -> dict[Node, int]:
    """Return the layers with room for an adapter: a product of two matrices, smaller than the layer's own."""
    roomy = [node for node in layers if _most_rank(node) >= rank]
    if not rank or not roomy:
        max_rank = max(_most_rank(node) for node in layers)
        rule = f"--train {part}: the rank must be at least 1, and less than a layer's channels allow"
        raise UsageError(rule, str(rank), f"at most {max_rank}")
    return dict.fromkeys(roomy if count is None else _last(roomy, part, int(count)), rank)


def _most_rank(node: Node) -> int:
    """Return the largest rank at which an adapter has fewer weights than the layer."""
    if isinstance(node.op, Recurrent):
        return 0
    channels, *patch = node.input(1).type.shape
    size = math.prod(patch)
    grouped = isinstance(node.op, Conv) and node.op.groups > 1
    return 0 if grouped else (channels * size - 1) // (channels + size)


def _named(graph: Graph, layers: list[Node], name: str) -> Node:
    """Return the trainable layer that the user calls `name`."""
    rule = "must name a layer with weights to train, or be last:N, bias or adapter:RANK"
    return find_layer(graph, name, "--train", set(layers).__contains__, rule)
