# SPDX-License-Identifier: Apache-2.0
"""Importers of linear models of domain ai.onnx.ml: a fully connected layer, and for classifiers a label."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.matmul import Dense
from mcugen.ops.ml.scores import (
    Classes,
    float32_constant,
    floats,
    ml_operator,
    of_scores,
    post_transform_of,
    rows,
    transformed,
    two_class_scores,
)
from mcugen.ops.onnx_node import OnnxNode, Refusal


def emit_dense(node: OnnxNode, x: Value, weights: object, bias: object, suffix: str) -> Value:
    """Add x · weightsᵀ + bias for the rows of `x`, and return the result.

    Args:
        node: Node that is imported.
        x: Input, [N, F].
        weights: Weights, [targets, F].
        bias: Bias, [targets].
        suffix: End of the result's name.
    """
    w = float32_constant(node, f"{suffix}.weights", weights)
    return node.emit(Dense(), x, w, float32_constant(node, f"{suffix}.bias", bias), suffix=suffix)


def _scores(node: OnnxNode, x: Value, targets: int) -> Value:
    """Coefficients and intercepts applied to x; [N, targets]."""
    coefficients, intercepts = floats(node, "coefficients"), floats(node, "intercepts")
    features = x.type.shape[1]
    if targets < 1 or coefficients.size != targets * features:
        counts = f"{coefficients.size} for {targets} targets of {features} features"
        raise Refusal(f"{node.op_type}: each target needs a coefficient a feature", counts, "repair the model")
    bias = intercepts if intercepts.size == targets else np.zeros(targets)
    return emit_dense(node, x, coefficients.reshape(targets, features), bias, "scores")


@ml_operator("LinearRegressor", kernels=("dense_f32",))
def _import_linear_regressor(node: OnnxNode) -> list[Value]:
    scores = _scores(node, rows(node), int(node.attr("targets", 1)))
    return [transformed(node, scores, post_transform_of(node))]


@ml_operator("LinearClassifier", kernels=("dense_f32", "arg"))
def _import_linear_classifier(node: OnnxNode) -> list[Value]:
    """One score: its sign decides between two classes. More: the greatest wins."""
    classes, post = Classes.of(node, "classlabels_ints"), post_transform_of(node)
    x = rows(node)
    targets = floats(node, "intercepts").size or floats(node, "coefficients").size // max(x.type.shape[1], 1)
    scores = _scores(node, x, targets)
    after = of_scores(node)
    if targets > 1:
        return [classes.top(node, scores), transformed(after, scores, post)]
    node.require(len(classes) == 2, "one score is for two classes", f"{len(classes)}")
    negative, positive = classes.labels
    label = classes.binary(node, scores, 0.0, positive, negative)
    return [label, two_class_scores(after, scores, post, is_probability=True)]
