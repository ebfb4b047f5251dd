# SPDX-License-Identifier: Apache-2.0
"""Interpreter of the high-level IR: evaluates a graph by the operators' numpy references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mcugen.core.errors import DoesNotFitError, ModelError
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.traits import Cell
from mcugen.hir.types import Array

Reference = Callable[[Node, Sequence[Array]], Sequence[Array]]
"""Replacement for an operator's own `evaluate`: a function that computes the outputs of a node.

Its arguments are the node and the arrays of the inputs that are present.
"""

Observer = Callable[[Node, list[Array]], None]
"""A function that is called before each node is evaluated, with the node and the arrays of its present inputs."""


def evaluate_node(node: Node, arrays: list[Array], reference: Reference | None = None) -> tuple[Array, ...]:
    """Evaluate one node on given inputs, absent optional inputs left out.

    Args:
        node: Node to evaluate.
        arrays: Arrays of the inputs that are present.
        reference: Computes the results instead of the operator's `evaluate`.

    Returns:
        One array for each output, of the output's type and shape.

    Raises:
        ModelError: The operator has no result for these inputs (for example the maximum of no elements).
        DoesNotFitError: An array does not fit into the memory of this computer.
    """
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
    """Evaluate one node for several samples, and return a tuple of outputs per sample.

    Args:
        node: Node to evaluate.
        samples: Arrays of the inputs that are present, per sample.
        reference: Computes the results instead of the operator's `evaluate`.
    """
    if reference is not None or not isinstance(node.op, Cell):
        return [evaluate_node(node, list(arrays), reference) for arrays in samples]
    results = node.op.evaluate_batch(node.sig, samples)
    return [evaluate_node(node, list(arrays), lambda *_: next(results)[0]) for arrays in samples]


def interpret(
    graph: Graph,
    inputs: Mapping[str, Array],
    observe: Observer | None = None,
    references: Mapping[Node, Reference] | None = None,
) -> dict[str, Array]:
    """Compute the graph's outputs for one sample.

    Args:
        graph: Graph to evaluate.
        inputs: Arrays by input name.
        observe: Called with each node and its input arrays before the node is evaluated.
        references: Replacements for the `evaluate` of some nodes.

    Returns:
        Arrays by output name.
    """
    results = run(graph, [inputs[v.name] for v in graph.inputs], observe, references)
    return dict(zip(graph.output_names, results, strict=True))


def run(
    graph: Graph,
    inputs: Sequence[Array],
    observe: Observer | None = None,
    references: Mapping[Node, Reference] | None = None,
) -> list[Array]:
    """Evaluate a graph on arrays in the order of its inputs, and return arrays in the order of its outputs.

    Operators that contain graphs, such as loops, use it to evaluate these graphs.

    Args:
        graph: Graph to evaluate.
        inputs: Arrays in the order of the graph's inputs.
        observe: Called with each node and its input arrays before the node is evaluated.
        references: Replacements for the `evaluate` of some nodes.
    """
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
