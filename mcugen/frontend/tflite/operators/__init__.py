# SPDX-License-Identifier: Apache-2.0
"""Builders of ONNX nodes for the operators of TensorFlow Lite, by family."""

from mcugen.frontend.tflite.operators import (
    control,
    convolution,
    decode,
    detection,
    elementwise,
    movement,
    recurrent,
    reduction,
    signal,
    spectrum,
)

__all__ = [
    "control",
    "convolution",
    "decode",
    "detection",
    "elementwise",
    "movement",
    "recurrent",
    "reduction",
    "signal",
    "spectrum",
]
