# SPDX-License-Identifier: Apache-2.0
"""Rounding of float weights to float16 numbers, if the user asks for it: kernels store them in half the bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mcugen.hir.graph import Graph, Node
from mcugen.hir.types import DType
from mcugen.ops.conv import Conv
from mcugen.ops.conv_transpose import ConvTranspose
from mcugen.ops.matmul import Dense
from mcugen.ops.recurrent import Recurrent


def round_weights(graph: Graph) -> bool:
    """Constant float32 weights → the nearest float16 numbers; weights with elements too large for float16 stay.

    Return whether any weights changed.
    """
    if not graph.float16_weights:
        return False
    changed = [_round(graph, node, index) for node in graph.nodes for index in _weight_inputs(node)]
    return any(changed)


def _weight_inputs(node: Node) -> Sequence[int]:
    """Return the indices of the inputs that hold weights which kernels can store as float16."""
    if isinstance(node.op, Recurrent):
        return node.op.matrices
    return (1,) if isinstance(node.op, Conv | ConvTranspose | Dense) else ()


def _round(graph: Graph, node: Node, index: int) -> bool:
    weights = node.input(index)
    if weights.data is None or weights.type.dtype is not DType.FLOAT32:
        return False
    with np.errstate(over="ignore"):
        near = weights.data.astype(np.float16).astype(np.float32)
    if not np.isfinite(near).all() or (near == weights.data).all():
        return False
    node.set_input(index, graph.constant(f"{weights.name}.half", near, of=[weights]))
    return True
