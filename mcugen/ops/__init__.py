# SPDX-License-Identifier: Apache-2.0
"""Operator families. Importing this package registers every operator; a new family adds one name here."""

from mcugen.ops import (
    conv,
    conversion,
    elementwise,
    matmul,
    movement,
    norm,
    pointwise,
    pool,
    quantization,
    recurrent,
    reduce,
    resize,
    softmax,
)

__all__ = [
    "conv",
    "conversion",
    "elementwise",
    "matmul",
    "movement",
    "norm",
    "pointwise",
    "pool",
    "quantization",
    "recurrent",
    "reduce",
    "resize",
    "softmax",
]
