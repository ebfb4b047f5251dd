# SPDX-License-Identifier: Apache-2.0
"""Batch normalization at inference: a multiplication and an addition per channel, for fold_affine to fold."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.onnx_node import OnnxNode, onnx_operator
from mcugen.ops.pointwise import Binary


@onnx_operator("BatchNormalization")
def _import_batch_normalization(node: OnnxNode) -> list[Value]:
    gamma, beta, mean, variance = (node.const(i, "statistics").astype(np.float64) for i in range(1, 5))
    scale = gamma / np.sqrt(variance + float(node.attr("epsilon", 1e-5)))
    shape = (1, -1) + (1,) * (node.input(0).type.rank - 2)
    factor = node.constant("scale", scale.astype(np.float32).reshape(shape))
    shift = node.constant("shift", (beta - mean * scale).astype(np.float32).reshape(shape))
    scaled = node.emit(Binary("Mul"), node.input(0), factor, suffix="scaled")
    return [node.emit(Binary("Add"), scaled, shift)]
