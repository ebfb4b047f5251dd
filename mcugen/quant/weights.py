# SPDX-License-Identifier: Apache-2.0
"""The weights of a layer as integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Graph, Node
from mcugen.hir.traits import bias_input, onnx_form, takes_groups, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.numerics.fixedpoint import dequantize
from mcugen.ops.packed import packs
from mcugen.quant.plan import Codes
from mcugen.quant.scheme import WEIGHT_LIMITS, Scheme, weight_scales


def plain_codes(node: Node, scheme: Scheme, dtype: DType = DType.INT8) -> Codes:
    """Weights rounded to nearest, in INT8 or INT4."""
    weights, axis = layer_weights(node)
    if dtype is DType.INT4 and scheme.group and scheme.per_channel and takes_groups(node.op):
        grouped = _grouped_codes(weights, layer_bias(node), scheme)
        if packs(grouped.weights, scheme.group):
            return grouped
    scales = weight_scales(weights, axis, scheme, dtype)
    return nearest_codes(Codes(np.zeros(weights.shape, np.int8), scales, axis, layer_bias(node), dtype), weights)


def _grouped_codes(weights: Array, bias: Array | None, scheme: Scheme) -> Codes:
    """Of a matrix [outputs, inputs], with a scale for each group of inputs."""
    parts = [weights[:, at : at + scheme.group] for at in range(0, weights.shape[1], scheme.group)]
    scales = np.stack([weight_scales(part, 0, scheme, DType.INT4) for part in parts], 1)
    return nearest_codes(Codes(np.zeros(weights.shape, np.int8), scales, 0, bias, DType.INT4, scheme.group), weights)


def nearest_codes(codes: Codes, weights: Array) -> Codes:
    """With the codes nearest to the weights."""
    found = np.clip(np.rint(weights / codes.steps), *WEIGHT_LIMITS[codes.dtype]).astype(np.int8)
    return replace(codes, weights=found)


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
    if codes.group:
        return (codes.weights * codes.steps).astype(np.float32)
    return dequantize(codes.weights, codes.quant)


def give_biases(graph: Graph) -> bool:
    """Layers that ONNX can write with a bias get one (0), so that it can be corrected: in integers it is free."""
    layers = [n for n in graph.nodes if bias_input(n.op) == len(n.inputs) == 2 and weight_axes(n.op) == {1: 0}]
    bare = [n for n in layers if onnx_form(n.op, n.sig) is not None]
    for node in (n for n in bare if n.input(1).is_constant):
        zeros = graph.constant(f"{node.output.name}.bias", np.zeros(node.input(1).type.shape[0], np.float32))
        graph.rewrite(node, node.op, [*node.inputs, zeros])
    return bool(bare)
