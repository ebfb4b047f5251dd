# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's operators that tf2onnx, and so Keras' export, writes under their own names, in ONNX's domain."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.onnx_node import COMPOSED, FLOAT, OnnxNode, onnx_operator


@onnx_operator("Erfc", types=FLOAT, kernels=(COMPOSED,))
def _import_erfc(node: OnnxNode) -> list[Value]:
    """1 - erf(x), which is what Keras' `gelu` becomes; not the tail's relative precision."""
    return [node.call("Sub", np.float32(1), node.call("Erf", node.input(0)))]
