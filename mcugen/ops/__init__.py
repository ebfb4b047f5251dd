# SPDX-License-Identifier: Apache-2.0
"""Operator families. Importing this package registers every operator; a new family adds one name here."""

from mcugen.ops import (
    audio,
    conv,
    conversion,
    elementwise,
    matmul,
    movement,
    ngrams,
    norm,
    pointwise,
    pool,
    quantization,
    reduce,
    resize,
    softmax,
)

__all__ = [
    "audio",
    "conv",
    "conversion",
    "elementwise",
    "matmul",
    "movement",
    "ngrams",
    "norm",
    "pointwise",
    "pool",
    "quantization",
    "reduce",
    "resize",
    "softmax",
]
