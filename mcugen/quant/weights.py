# SPDX-License-Identifier: Apache-2.0
"""The weights of a layer as integers."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Graph, Node
from mcugen.hir.traits import bias_input, onnx_form, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.numerics.fixedpoint import dequantize
from mcugen.quant.plan import Codes
from mcugen.quant.scheme import WEIGHT_LIMITS, Scheme, weight_scales


def plain_codes(node: Node, scheme: Scheme, dtype: DType = DType.INT8) -> Codes:
    """Weights rounded to nearest, in INT8 or INT4."""
    weights, axis = layer_weights(node)
    scales = weight_scales(weights, axis, scheme, dtype)
    codes = np.clip(np.rint(weights / along(scales, axis, weights.ndim)), *WEIGHT_LIMITS[dtype]).astype(np.int8)
    return Codes(codes, scales, axis, layer_bias(node), dtype)


def layer_weights(node: Node) -> tuple[Array, int]:
    """The real weights, and the axis of output channels."""
    ((index, axis),) = weight_axes(node.op).items()
    data = node.input(index).data
    assert data is not None
    return data, axis


def layer_bias(node: Node) -> Array | None:
    """The real bias, where there is one."""
    at = bias_input(node.op)
    bias = node.inputs[at] if at is not None and len(node.inputs) > at else None
    return None if bias is None else bias.data


def real_weights(codes: Codes) -> Array:
    """What the codes stand for, as float32."""
    return dequantize(codes.weights, codes.quant)


def give_biases(graph: Graph) -> bool:
    """Layers that ONNX can write with a bias get one (0), so that it can be corrected: in integers it is free."""
    layers = [n for n in graph.nodes if bias_input(n.op) == len(n.inputs) == 2 and weight_axes(n.op) == {1: 0}]
    bare = [n for n in layers if onnx_form(n.op, n.sig) is not None]
    for node in (n for n in bare if n.input(1).is_constant):
        zeros = graph.constant(f"{node.output.name}.bias", np.zeros(node.input(1).type.shape[0], np.float32))
        graph.rewrite(node, node.op, [*node.inputs, zeros])
    return bool(bare)


def along(scales: Array, axis: int, rank: int) -> Array:
    """One number for each index of `axis` (or a single one), to broadcast against a tensor of that rank."""
    return scales.reshape([-1 if a == axis else 1 for a in range(rank)])
