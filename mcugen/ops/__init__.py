# SPDX-License-Identifier: Apache-2.0
"""Operator families. Importing this package registers every operator; a new family adds one name here."""

from mcugen.ops import (
    conv,
    conversion,
    elementwise,
    matmul,
    ml_linear,
    ml_preprocessing,
    ml_scores,
    ml_svm,
    ml_trees,
    movement,
    norm,
    pointwise,
    pool,
    quantization,
    reduce,
    resize,
    softmax,
)

__all__ = [
    "conv",
    "conversion",
    "elementwise",
    "matmul",
    "ml_linear",
    "ml_preprocessing",
    "ml_scores",
    "ml_svm",
    "ml_trees",
    "movement",
    "norm",
    "pointwise",
    "pool",
    "quantization",
    "reduce",
    "resize",
    "softmax",
]
