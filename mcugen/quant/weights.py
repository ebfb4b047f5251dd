# SPDX-License-Identifier: Apache-2.0
"""The weights of a layer as integers."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Graph, Node
from mcugen.hir.types import Array
from mcugen.numerics.fixedpoint import dequantize
from mcugen.quant.plan import Codes
from mcugen.quant.scheme import Scheme, weight_scales


def plain_codes(node: Node, scheme: Scheme) -> Codes:
    """Weights rounded to nearest."""
    weights, axis = layer_weights(node)
    scales = weight_scales(weights, axis, scheme)
    codes = np.clip(np.rint(weights / along(scales, axis, weights.ndim)), -127, 127).astype(np.int8)
    return Codes(codes, scales, axis, layer_bias(node))


def layer_weights(node: Node) -> tuple[Array, int]:
    """The real weights, and the axis of output channels."""
    ((index, axis),) = node.op.weight_axes.items()
    data = node.input(index).data
    assert data is not None
    return data, axis


def layer_bias(node: Node) -> Array | None:
    """The real bias, where there is one."""
    at = node.op.bias_input
    bias = node.inputs[at] if at is not None and len(node.inputs) > at else None
    return None if bias is None else bias.data


def real_weights(codes: Codes) -> Array:
    """What the codes stand for, as float32."""
    return dequantize(codes.weights, codes.quant)


def give_biases(graph: Graph) -> bool:
    """Layers that ONNX can write with a bias get one (0), so that it can be corrected: in integers it is free."""
    layers = [n for n in graph.nodes if n.op.bias_input is not None and n.op.onnx_form(n.sig) is not None]
    bare = [n for n in layers if n.op.weight_axes == {1: 0} and len(n.inputs) == n.op.bias_input == 2]
    for node in (n for n in bare if n.input(1).is_constant):
        zeros = graph.constant(f"{node.output.name}.bias", np.zeros(node.input(1).type.shape[0], np.float32))
        graph.rewrite(node, node.op, [*node.inputs, zeros])
    return bool(bare)


def along(scales: Array, axis: int, rank: int) -> Array:
    """One number for each index of `axis` (or a single one), to broadcast against a tensor of that rank."""
    return scales.reshape([-1 if a == axis else 1 for a in range(rank)])
