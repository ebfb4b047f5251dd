# SPDX-License-Identifier: Apache-2.0
"""Importers of TensorFlow operators that tf2onnx (and so Keras' export) writes under their own names."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.onnx_node import COMPOSED_TEXT, FLOAT, OnnxNode, onnx_operator

_INT32 = 6


@onnx_operator("Erfc", types=FLOAT, kernels=(COMPOSED_TEXT,))
def _import_erfc(node: OnnxNode) -> list[Value]:
    """1 - erf(x), which is what Keras' `gelu` becomes; not the tail's relative precision."""
    return [node.call("Sub", np.float32(1), node.call("Erf", node.input(0)))]


@onnx_operator("Expm1", types=FLOAT, kernels=(COMPOSED_TEXT,))
def _import_expm1(node: OnnxNode) -> list[Value]:
    """exp(x) - 1, of Keras' `celu`; near 0 not with the relative precision of its name."""
    return [node.call("Sub", node.call("Exp", node.input(0)), np.float32(1))]


@onnx_operator("Log1p", types=FLOAT, kernels=(COMPOSED_TEXT,))
def _import_log1p(node: OnnxNode) -> list[Value]:
    """log(1 + x)."""
    return [node.call("Log", node.call("Add", node.input(0), np.float32(1)))]


@onnx_operator("Bitcast", kernels=(COMPOSED_TEXT,))
def _import_bitcast(node: OnnxNode) -> list[Value]:
    """Import Bitcast, which Keras uses in `argmax`."""
    return [node.call("BitCast", node.input(0), to=int(node.attr("type", 1)))]


@onnx_operator("Bucketize", kernels=(COMPOSED_TEXT,))
def _import_bucketize(node: OnnxNode) -> list[Value]:
    """Import Bucketize: the number of boundaries at or below x, as int32. Keras' `Discretization` exports it."""
    x, boundaries = node.input(0), np.asarray(node.reals("boundaries"), np.float32)
    apart = node.call("Unsqueeze", x, np.asarray([x.type.rank]))
    reached = node.call("GreaterOrEqual", apart, boundaries.astype(x.type.dtype.numpy))
    counts = node.call("ReduceSum", node.call("Cast", reached, to=_INT32), np.asarray([x.type.rank]), keepdims=0)
    return [counts]
