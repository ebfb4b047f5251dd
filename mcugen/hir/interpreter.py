# SPDX-License-Identifier: Apache-2.0
"""Runs a graph by the operators' numpy references."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array


def evaluate_node(node: Node, arrays: list[Array]) -> tuple[Array, ...]:
    """One node on given inputs (absent optional ones left out)."""
    with np.errstate(all="ignore"):  # overflow to inf and NaN are results like any other
        results = node.op.evaluate(node.sig, *arrays)
    return tuple(
        np.ascontiguousarray(r, dtype=v.type.dtype.numpy).reshape(v.type.shape)
        for r, v in zip(results, node.outputs, strict=True)
    )


def interpret(
    graph: Graph, inputs: Mapping[str, Array], observe: Callable[[Node, list[Array]], None] | None = None
) -> dict[str, Array]:
    """Outputs by name for one sample. `observe` is shown each node with its input arrays."""
    env: dict[Value, Array] = {
        v: np.asarray(inputs[v.name], v.type.dtype.numpy).reshape(v.type.shape) for v in graph.inputs
    }

    def read(value: Value) -> Array:
        return env[value] if value.data is None else value.data

    for node in graph.nodes:
        arrays = [read(v) for v in node.inputs if v is not None]
        if observe:
            observe(node, arrays)
        env.update(zip(node.outputs, evaluate_node(node, arrays), strict=True))
    return {name: read(v) for name, v in zip(graph.output_names, graph.outputs, strict=True)}
