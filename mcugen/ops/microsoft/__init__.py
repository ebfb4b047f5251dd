# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX Runtime's domain com.microsoft, composed of ONNX's wherever these say the same."""

from mcugen.ops.microsoft import (
    activations,
    attention,
    fused,
    images,
    left_out,
    normalization,
    quantized,
    recurrence,
    rotary,
    shapes,
    weights,
)
