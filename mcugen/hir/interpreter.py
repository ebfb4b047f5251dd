# SPDX-License-Identifier: Apache-2.0
"""Runs a graph by the operators' numpy references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mcugen.errors import DoesNotFitError, ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import Cell
from mcugen.hir.types import Array

Reference = Callable[[Node, Sequence[Array]], Sequence[Array]]
"""What stands for an operator's own reference: results of a node by its present inputs."""

Observer = Callable[[Node, list[Array]], None]


def evaluate_node(node: Node, arrays: list[Array], reference: Reference | None = None) -> tuple[Array, ...]:
    """One node on given inputs (absent optional ones left out), by the operator's reference or another."""
    try:
        with np.errstate(all="ignore"):  # overflow to inf and NaN are results like any other
            results = reference(node, arrays) if reference else node.op.evaluate(node.sig, *arrays)
        return tuple(
            np.ascontiguousarray(r, dtype=v.type.dtype.numpy).reshape(v.type.shape)
            for r, v in zip(results, node.outputs, strict=True)
        )
    except (ValueError, IndexError, ZeroDivisionError, OverflowError) as error:  # of nothing there is no maximum
        raise ModelError(f"{node.place}: must have a result", str(error)[:200], "repair the model") from error
    except MemoryError as error:
        raise DoesNotFitError(f"{node.place}: must fit this computer", str(error)[:200]) from error


def evaluate_samples(
    node: Node, samples: Sequence[Sequence[Array]], reference: Reference | None = None
) -> list[tuple[Array, ...]]:
    """One node on the inputs of several samples."""
    if reference is not None or not isinstance(node.op, Cell):
        return [evaluate_node(node, list(arrays), reference) for arrays in samples]
    found = node.op.abreast(node.sig, samples)
    return [evaluate_node(node, list(arrays), lambda *_: next(found)[0]) for arrays in samples]


def interpret(
    graph: Graph,
    inputs: Mapping[str, Array],
    observe: Observer | None = None,
    references: Mapping[Node, Reference] | None = None,
) -> dict[str, Array]:
    """Outputs by name for one sample.

    `observe` is shown each node of the graph with its input arrays; `references` compute some nodes otherwise.
    """
    results = run(graph, [inputs[v.name] for v in graph.inputs], observe, references)
    return dict(zip(graph.output_names, results, strict=True))


def run(
    graph: Graph,
    inputs: Sequence[Array],
    observe: Observer | None = None,
    references: Mapping[Node, Reference] | None = None,
) -> list[Array]:
    """Outputs for inputs, both in the graph's order: what an operator with a body calls for it."""
    env: dict[Value, Array] = {
        v: np.asarray(array, v.type.dtype.numpy).reshape(v.type.shape)
        for v, array in zip(graph.inputs, inputs, strict=True)
    }

    def read(value: Value) -> Array:
        return env[value] if value.data is None else value.data

    for node in graph.nodes:
        arrays = [read(v) for v in node.inputs if v is not None]
        if observe:
            observe(node, arrays)
        env.update(zip(node.outputs, evaluate_node(node, arrays, (references or {}).get(node)), strict=True))
    return [read(v) for v in graph.outputs]
