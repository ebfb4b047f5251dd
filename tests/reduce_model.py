# SPDX-License-Identifier: Apache-2.0
"""Reduction of a model that shows a fault: fewer outputs, fewer nodes, tensors that become inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from onnx import helper

Fails = Callable[[onnx.ModelProto], bool]
"""A function that returns whether a model still shows the fault."""


def reduced(model: onnx.ModelProto, fails: Fails) -> onnx.ModelProto:
    """Return a smaller model that still shows the fault, such that no single further step of reduction keeps the fault.

    Args:
        model: A model that shows the fault.
        fails: Returns whether a model shows it.
    """
    current = model
    while True:
        following = next((m for m in _smaller(current) if fails(m)), None)
        if following is None:
            return current
        current = following


def _smaller(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Yield smaller valid models: with fewer outputs, or with results of a node as inputs."""
    for names in _fewer([output.name for output in model.graph.output]):
        yield from _valid(_with_outputs(model, names))
    types = _types(model)
    for node in reversed(model.graph.node):
        results = [name for name in node.output if name]
        if all(name in types for name in results):
            yield from _valid(_given(model, node, types))


def _fewer(names: list[str]) -> Iterator[list[str]]:
    """Yield either half, then all but one."""
    half = len(names) // 2
    if half:
        yield from (names[:half], names[half:])
    if len(names) > 2:
        yield from (names[:index] + names[index + 1 :] for index in range(len(names)))


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return types of the tensors between nodes that shape inference knows."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return {
        info.name: info.type
        for info in (*inferred.value_info, *inferred.output)
        if info.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim)
    }


def _with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    kept = [output for output in copy.graph.output if output.name in names]
    del copy.graph.output[:]
    copy.graph.output.extend(kept)
    return _pruned(copy)


def _given(model: onnx.ModelProto, node: onnx.NodeProto, types: dict[str, onnx.TypeProto]) -> onnx.ModelProto:
    """Return the model without the node, whose results become inputs and are no outputs any more."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    copy.graph.node.remove(next(n for n in copy.graph.node if n.output == node.output))
    kept = [output for output in copy.graph.output if output.name not in node.output]
    del copy.graph.output[:]
    copy.graph.output.extend(kept)
    copy.graph.input.extend(helper.make_value_info(name, types[name]) for name in node.output if name)
    return _pruned(copy)


def _pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without what no output depends on."""
    graph = model.graph
    wanted, kept = {output.name for output in graph.output}, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            kept.append(node)
            wanted.update(_reads(node))
    nodes = [n for n in graph.node if n in kept]
    for field, items in (
        (graph.node, nodes),
        (graph.input, [info for info in graph.input if info.name in wanted]),
        (graph.initializer, [tensor for tensor in graph.initializer if tensor.name in wanted]),
    ):
        del field[:]
        field.extend(items)
    return model


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of a node's inputs, those of its bodies included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _reads(inner)
        yield from (output.name for output in attribute.g.output)


def _valid(model: onnx.ModelProto) -> Iterator[onnx.ModelProto]:
    """Yield the model if it has outputs and is valid, so that a fault does not become another one."""
    if not model.graph.output:
        return
    try:
        onnx.checker.check_model(model)
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return
    yield model
