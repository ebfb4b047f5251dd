# SPDX-License-Identifier: Apache-2.0
"""Anomaly scores: reconstruction errors, distances and likelihoods, which exceed their calibrated range by far.

A detector is calibrated on normal data, because there is no other. The threshold lies above all normal scores, where an
integer score saturates. Computing the score in float32 costs little, as it is one number, or a few, per sample.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mcugen.evaluation.layers import PrecisionReason
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import readers_behind, weight_axes
from mcugen.hir.types import DType
from mcugen.ops.elementwise import Stack
from mcugen.ops.matmul import MatMul
from mcugen.ops.ml.svm import Rbf
from mcugen.ops.pointwise import Binary, Unary
from mcugen.ops.reduce import Reduce

MAX_SCORE_ELEMENTS = 64
"""Largest number of elements of an output that may hold anomaly scores, such as the distances from all centres.

Larger outputs are embeddings or maps.
"""

CHEAP_LAYER_MACS = 4096
"""Number of multiply-accumulates up to which a layer may compute anomaly scores in float32, however small the model is.
"""

CHEAP_LAYER_SHARE = 1 / 16
"""Largest share of the model's multiply-accumulates for which a layer may compute anomaly scores in float32."""

_MEASURES = {"l1", "sumsquare", "min"}
"""Reductions that measure a distance whatever they read; a minimum is the distance from the nearest centre."""

_OF_DEVIATIONS = {"mean", "sum", "max"}
"""Reductions that measure a distance if they read one of the functions `_DEVIATIONS` or a product of activations."""

_THRESHOLDS = {"sign", "greater", "greaterorequal", "less", "lessorequal"}
"""Functions that make a label of a score."""

_DEVIATIONS = {"abs", "exp", "log"}
"""Functions whose results are magnitudes or likelihoods."""


def with_float_scores(graph: Graph, precisions: Mapping[str, DType]) -> tuple[dict[str, DType], list[PrecisionReason]]:
    """Add float32 for the layers that compute anomaly scores to `precisions`, and return the reason of each of them.

    Args:
        graph: The float graph.
        precisions: Precisions that the user chose, by layer. They stay as they are.
    """
    layers, reasons = dict(precisions), list[PrecisionReason]()
    for score, names in score_layers(graph).items():
        kept = [name for name in names if name not in layers]
        reason = f"the score '{score}' must not saturate above what the samples reach"
        explanation = f"{reason} (--layer NAME=int8 makes a layer integer)"
        reasons += [PrecisionReason(name, DType.FLOAT32.value, explanation, remedy="") for name in kept]
        layers |= dict.fromkeys(kept, DType.FLOAT32)
    return layers, reasons


def score_layers(graph: Graph) -> dict[str, list[str]]:
    """Return, for each model output that is an anomaly score, the layers to compute in float32.

    These are the layers between the output and the nearest layers with weights, by the names of their first outputs.
    Layers with weights that feed them are included if they are cheap. An output is a score if a reduction measures a
    distance or a likelihood, if it sums the kernels of a support vector machine, or if the model itself compares it
    with a threshold.
    """
    max_macs = cheap_macs(graph)
    scores: dict[str, list[str]] = {}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        if not 0 < value.type.count <= MAX_SCORE_ELEMENTS:
            continue
        layers = list(_layers_without_weights(value))
        last = [value.producer] if value.producer is not None else []
        feeding = [n for n in (*last, *(n for node in layers for n in _producers(node))) if weight_axes(n.op)]
        is_score = any(map(_measures, layers)) or any(map(_sums_kernels, feeding)) or _is_thresholded(value)
        if is_score:
            cheap = [n for n in feeding if n.op.macs(n.sig) <= max_macs]
            results = [node.outputs[0] for node in dict.fromkeys((*layers, *cheap))]
            scores[name] = [v.name for v in results if v.type.dtype is DType.FLOAT32]
    return scores


def cheap_macs(graph: Graph) -> float:
    """Return the number of multiply-accumulates up to which a layer may compute anomaly scores in float32.

    The number depends on the size of the model (CHEAP_LAYER_MACS, CHEAP_LAYER_SHARE).
    """
    return max(CHEAP_LAYER_MACS, CHEAP_LAYER_SHARE * sum(node.op.macs(node.sig) for node in graph.nodes))


def tensors_of_scores(graph: Graph) -> set[str]:
    """Return the names of all tensors that an anomaly score of the model is computed from."""
    scores = score_layers(graph)
    needed = {v for name, v in zip(graph.output_names, graph.outputs, strict=True) if name in scores}
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(v for v in node.inputs if v is not None)
    return {v.name for v in needed}


def _layers_without_weights(value: Value) -> Iterator[Node]:
    """Yield the layers that a value is computed by, back to layers with weights and to inputs of the model."""
    todo, seen = [value], {value}
    for tensor in todo:
        node = tensor.producer
        if node is None or weight_axes(node.op):
            continue
        if tensor in node.outputs[:1]:
            yield node
        new = [v for v in node.inputs if v is not None and v not in seen]
        todo += new
        seen.update(new)


def _producers(node: Node) -> Iterator[Node]:
    for value in node.inputs:
        if value is not None and value.producer is not None:
            yield value.producer


def _sums_kernels(node: Node) -> bool:
    """Return whether a layer is the weighted sum of a support vector machine's Gaussian kernels."""
    return any(isinstance(producer.op, Rbf) for producer in _producers(node))


def _is_thresholded(value: Value) -> bool:
    """Return whether the model itself compares an output, as detectors do that give a label and its score."""
    readers = readers_behind(value)
    operators = [step.op for node in readers for step in (node.op.steps if isinstance(node.op, Stack) else (node,))]
    return any(operator.name in _THRESHOLDS for operator in operators)


def _measures(node: Node) -> bool:
    """Return whether a layer measures a distance or a likelihood: by a reduction, or a product of activations."""
    if not isinstance(node.op, Reduce):
        return isinstance(node.op, MatMul)
    if node.op.function in _MEASURES:
        return True
    return node.op.function in _OF_DEVIATIONS and any(_is_deviation(n) for n in _producers(node))


def _is_deviation(node: Node) -> bool:
    """Return whether a layer computes magnitudes, powers, exponentials, logarithms or products of activations."""
    if isinstance(node.op, Unary):
        return node.op.name in _DEVIATIONS
    if isinstance(node.op, Binary):
        activations = [v for v in node.inputs if v is not None and not v.is_constant]
        return node.op.name == "pow" or (node.op.name == "mul" and len(activations) == 2)
    return False
