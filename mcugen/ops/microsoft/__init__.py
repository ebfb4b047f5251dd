# SPDX-License-Identifier: Apache-2.0
"""Importers of ONNX Runtime's domain com.microsoft, which compose its operators of ONNX operators where possible."""

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
