# SPDX-License-Identifier: Apache-2.0
"""Rounding of float weights to float16 numbers, if the user asks for it: kernels store them in half the bytes."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Graph, Node
from mcugen.hir.types import DType
from mcugen.ops.conv import Conv
from mcugen.ops.matmul import Dense


def round_weights(graph: Graph) -> bool:
    """Constant float32 weights → the nearest float16 numbers; weights with elements too large for float16 stay.

    Return whether any weights changed.
    """
    if not graph.float16_weights:
        return False
    changed = [_round(graph, node) for node in graph.nodes if isinstance(node.op, Conv | Dense)]
    return any(changed)


def _round(graph: Graph, node: Node) -> bool:
    weights = node.input(1)
    if weights.data is None or weights.type.dtype is not DType.FLOAT32:
        return False
    with np.errstate(over="ignore"):
        near = weights.data.astype(np.float16).astype(np.float32)
    if not np.isfinite(near).all() or (near == weights.data).all():
        return False
    node.set_input(1, graph.constant(f"{weights.name}.half", near, of=[weights]))
    return True
