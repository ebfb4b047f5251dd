# SPDX-License-Identifier: Apache-2.0
"""Importers of normalizations that are fused with residual sums, embeddings or gates (domain com.microsoft)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.microsoft.activations import gate, split_branches
from mcugen.ops.microsoft.common import axes, composed, shaped
from mcugen.ops.onnx_node import OnnxNode, Refusal

_STANDARD, _ROOT_MEAN_SQUARE = "LayerNormalization", "SimplifiedLayerNormalization"


def root_mean_square(node: OnnxNode, x: Value, scale: Value | np.ndarray, epsilon: float) -> Value:
    """Return x / √(mean of x² + epsilon) · scale along the last axis (RMS normalization)."""
    return node.call(_ROOT_MEAN_SQUARE, x, scale, axis=-1, epsilon=epsilon)


@composed("SkipLayerNormalization")
def _import_skip(node: OnnxNode) -> Sequence[Value | None]:
    return _skip(node, _STANDARD, [node.input(2), node.optional(3)], 4)


@composed("SkipSimplifiedLayerNormalization")
def _import_skip_simplified(node: OnnxNode) -> Sequence[Value | None]:
    return _skip(node, _ROOT_MEAN_SQUARE, [node.input(2)], 3)


def _skip(node: OnnxNode, op_type: str, affine: Sequence[Value | None], bias: int) -> Sequence[Value | None]:
    """Return the normalized sum, and the sum. Statistics, which only training reads, are refused."""
    if any(node.outputs[1:3]):
        refused_outputs = "a mean or a deviation"
        raise Refusal(
            f"{node.op_type}: only the result and the sum are computed", refused_outputs, "export for inference"
        )
    x = node.call("Add", node.input(0), node.input(bias)) if node.has(bias) else node.input(0)
    total = node.call("Add", x, node.input(1))
    result = node.call(op_type, total, *affine, axis=-1, epsilon=float(node.attr("epsilon", 1e-12)))
    return [result, None, None, total]


@composed("EmbedLayerNormalization", types=())
@axes("B S", "B S", "_ H", "_ H", "_ H", "H", "H", "B S", "_ S")
def _import_embedding(node: OnnxNode) -> Sequence[Value | None]:
    """Embeddings of words, positions and segments, summed and normalized; of a mask the number of ones."""
    ids, positions = node.input(0), node.input(3)
    batch, length = ids.type.shape
    total = node.call("Gather", node.input(2), ids)
    if node.has(8):
        total = node.call("Add", total, node.call("Gather", positions, node.input(8)))
    else:
        total = node.call("Add", total, node.call("Gather", positions, np.arange(length).astype(np.int64)))
    if node.has(1):
        total = node.call("Add", total, node.call("Gather", node.input(4), node.input(1)))
    epsilon = float(node.attr("epsilon", 1e-12))
    result = node.call(_STANDARD, total, node.input(5), node.input(6), axis=-1, epsilon=epsilon)
    return [result, _ones(node, batch) if any(node.outputs[1:2]) else None, total]


def _ones(node: OnnxNode, batch: int) -> Value:
    """Return the number of ones in each row of the mask."""
    if not node.has(7):
        return node.call("Identity", np.zeros(batch, np.int32))
    ones = node.call("Cast", node.call("Equal", node.input(7), np.int32(1)), to=6)
    return node.call("ReduceSum", ones, np.array([1], np.int64), keepdims=0)


@composed("GatedRMSNorm")
@axes("... H", "C", "... H")
def _import_gated(node: OnnxNode) -> list[Value]:
    """Each group of as many elements as there are scales is normalized, then multiplied by the gate."""
    x, scale = node.input(0), node.input(1)
    shape, size = x.type.shape, scale.type.count
    if not size or shape[-1] % size:
        raise Refusal(f"{node.op_type}: rows must hold whole groups", f"{size} of {shape[-1]}", "repair the model")
    groups = node.call("Reshape", x, np.array([math.prod(shape) // size, size], np.int64))
    normal = root_mean_square(node, groups, scale, float(node.attr("epsilon", 1e-5)))
    rows = node.call("Reshape", normal, np.array(shape, np.int64))
    return [node.call("Mul", rows, gate(node, node.input(2), "silu"))]


@composed("BranchwiseRMSNorm")
@axes("... H")
def _import_branchwise(node: OnnxNode) -> list[Value]:
    x = split_branches(node, node.input(0))
    count, width = x.type.shape[-2:]
    normal = root_mean_square(node, x, np.ones(width, np.float32), float(node.attr("epsilon", 1e-5)))
    if node.has(1):
        scale_shape = (1, width) if node.input(1).type.count == width else (count, width)
        normal = node.call("Mul", normal, node.call("Reshape", node.input(1), np.array(scale_shape, np.int64)))
    return [node.call("Reshape", normal, np.array(node.input(0).type.shape, np.int64))]


@composed("EngramGate")
@axes("B S C H", "B S C H", "B S H", "C H", "C H", "C H")
def _import_engram(node: OnnxNode) -> Sequence[Value | None]:
    """sigmoid(sign(d) · √max(|d|, 10⁻⁶)) · value, where d is the scaled product of normalized key and query."""
    key, query, value = (node.input(i) for i in range(3))
    epsilon, width = float(node.attr("epsilon", 1e-5)), key.type.shape[-1]
    one = np.ones(width, np.float32)
    sides = [
        node.call("Mul", root_mean_square(node, side, one, epsilon), node.input(scale))
        for side, scale in ((key, 3), (query, 4))
    ]
    dot = node.call("ReduceSum", node.call("Mul", *sides), np.array([-1], np.int64), keepdims=1)
    dot = node.call("Mul", dot, np.float32(1 / math.sqrt(max(width, 1))))
    size = node.call("Sqrt", node.call("Max", node.call("Abs", dot), np.float32(1e-6)))
    share = node.call("Sigmoid", node.call("Mul", node.call("Sign", dot), size))
    gated = node.call("Mul", shaped(node, value, *key.type.shape[:2], 1, width), share)
    if not any(node.outputs[1:]):
        return [gated]
    return [gated, node.call("Mul", root_mean_square(node, gated, one, epsilon), node.input(5))]
