# SPDX-License-Identifier: Apache-2.0
"""The last layers of an ONNX model, and the tensors before them: for torch_gradients.py and its test."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

WEIGHTS = {"Conv": 1, "Gemm": 1, "MatMul": 1, "LSTM": 1, "GRU": 1}
"""Operators that count as layers, with the index of the input that holds their weights."""


def constants_of(graph: onnx.GraphProto) -> set[str]:
    """Return the names of initializers, and of tensors that are computed from initializers alone."""
    found = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if found.issuperset(filter(None, node.input)):
            found |= set(node.output)
    return found


def last_layers(graph: onnx.GraphProto, count: int) -> list[onnx.NodeProto]:
    """Return the last `count` layers of a graph, in order."""
    constants = constants_of(graph)
    layers = [n for n in graph.node if n.op_type in WEIGHTS and n.input[WEIGHTS[n.op_type]] in constants]
    return layers[-count:]


def parameters(graph: onnx.GraphProto, layer: onnx.NodeProto) -> dict[str, str]:
    """Return the names of a layer's constants by role; the bias of a MatMul is the operand of an Add behind it."""
    if layer.op_type in ("LSTM", "GRU"):
        return {"weights": layer.input[1], "recurrence": layer.input[2], "bias": layer.input[3]}
    found = {"weights": layer.input[1]}
    if len(layer.input) > 2:
        found["bias"] = layer.input[2]
    rows = {tensor.name for tensor in graph.initializer if len([n for n in tensor.dims if n > 1]) == 1}
    for node in graph.node:
        if layer.op_type == "MatMul" and node.op_type == "Add" and layer.output[0] in node.input:
            found.update(("bias", name) for name in node.input if name in rows)
    return found


def depending(graph: onnx.GraphProto, layers: Sequence[onnx.NodeProto]) -> set[str]:
    """Return the names of the outputs of some layers, and of all nodes that depend on them."""
    found = {name for layer in layers for name in layer.output}
    for node in graph.node:
        if found & set(node.input):
            found |= set(node.output)
    return found


def boundary(graph: onnx.GraphProto, behind: set[str]) -> list[str]:
    """Return the names of the tensors that are computed before the layers, and read by them or behind them."""
    made = {name for node in graph.node for name in node.output if name and name not in behind}
    used = {name for node in graph.node for name in node.input if node.output[0] in behind}
    return sorted(made & used)
