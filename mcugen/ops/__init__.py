# SPDX-License-Identifier: Apache-2.0
"""Operator families. Importing this package registers every operator; a new family adds one name here."""

from mcugen.ops import (
    control,
    conv,
    conversion,
    elementwise,
    matmul,
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
    "control",
    "conv",
    "conversion",
    "elementwise",
    "matmul",
    "movement",
    "norm",
    "pointwise",
    "pool",
    "quantization",
    "reduce",
    "resize",
    "softmax",
]
