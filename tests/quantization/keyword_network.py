# SPDX-License-Identifier: Apache-2.0
"""DS-CNN, the keyword-spotting network of MLPerf Tiny, as a PyTorch module with the weights of its ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import numpy_helper
from torch import nn


def keyword_network(path: Path) -> nn.Module:
    """Return the network in an ONNX file without its last softmax, with named layers."""
    graph = onnx.load(path).graph
    constants = {tensor.name: torch.from_numpy(numpy_helper.to_array(tensor).copy()) for tensor in graph.initializer}
    layers: dict[str, nn.Module] = {}
    for node in graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Conv":
            top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
            number = len(layers)
            layers[f"pad{number}"] = nn.ZeroPad2d((left, right, top, bottom))
            layers[f"conv{number}"] = _conv(attributes, *(constants[name] for name in node.input[1:]))
        elif node.op_type == "Relu":
            layers[f"relu{len(layers)}"] = nn.ReLU()
        elif node.op_type == "AveragePool":
            layers["pool"] = nn.AvgPool2d(tuple(attributes["kernel_shape"]), tuple(attributes["strides"]))
            layers["flatten"] = nn.Flatten()
        elif node.op_type == "MatMul":
            weight = constants[node.input[1]].T
            layers["head"] = nn.Linear(weight.shape[1], weight.shape[0])
            layers["head"].weight.data.copy_(weight)
        elif node.op_type == "Add":
            layers["head"].bias.data.copy_(next(constants[name] for name in node.input if name in constants))
    network = nn.Sequential()
    for name, layer in layers.items():
        network.add_module(name, layer)
    return network.eval()


def _conv(attributes: dict[str, Any], weight: Any, bias: Any) -> nn.Conv2d:
    groups = attributes["group"]
    sizes = weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:])
    conv = nn.Conv2d(*sizes, tuple(attributes["strides"]), groups=groups)
    conv.weight.data.copy_(weight)
    conv.bias.data.copy_(bias)
    return conv
