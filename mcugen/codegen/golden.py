# SPDX-License-Identifier: Apache-2.0
"""The self-test vector: seeded random inputs and their outputs by the numpy reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from mcugen.codegen.draft import Sample
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import Reference, interpret
from mcugen.hir.types import Array, DType

SELFTEST_LEARNING_RATE = 2.0**-6
"""Learning rate of the training step that the self-test of a trainable model makes."""

FLOAT_TOLERANCE = 1e-4
"""Allowed difference of float outputs in the self-test, relative to the largest magnitude of the expected output.

The C code adds the terms of sums in another order than the reference, so that float results differ slightly.
"""


def golden_sample(
    graph: Graph,
    kept: Collection[str] = (),
    seed: int = 0,
    references: Mapping[Node, Reference] | None = None,
    *,
    amplitude: float = 1.0,
    fixed_inputs: Mapping[str, Array] | None = None,
) -> Sample:
    """Return the self-test sample of a graph: inputs and the outputs expected for them, equal on every machine.

    Args:
        graph: Graph to evaluate.
        kept: Names of the inputs that are states, which get their values before the first call (`first_state`).
        seed: Seed of random inputs.
        references: For some nodes, replacements of the operator's evaluation, because their kernels round differently.
        amplitude: Share (0 to 1) of their range that random inputs span.
        fixed_inputs: Inputs to use instead of random ones, by name.
    """
    random = np.random.default_rng(seed)
    generated = {
        v.name: first_state(graph, v) if v.name in kept else _random(v, random, amplitude) for v in graph.inputs
    }
    inputs = {
        v.name: np.asarray((fixed_inputs or generated).get(v.name, generated[v.name])).reshape(v.type.shape)
        for v in graph.inputs
    }
    if graph.lesson is not None:
        inputs[graph.lesson.rate] = np.full_like(inputs[graph.lesson.rate], SELFTEST_LEARNING_RATE)
        inputs[graph.lesson.target] *= 0 if graph.lesson.classes else 1
    outputs = interpret(graph, inputs, references=references)
    floats = any(v.type.dtype.is_float or v.type.dtype.is_narrow_float for g in graph.nested() for v in g.values())
    return Sample(inputs, outputs, FLOAT_TOLERANCE, 1 if floats else 0)


def first_state(graph: Graph, state: Value) -> Array:
    """Return the value that a state (data which the model keeps between calls) has before the first call.

    It is the initial value that training defines (such as trained weights), or else the real number 0 in all elements,
    stored as the zero point if the state is quantized.
    """
    type_ = state.type
    if graph.lesson is not None and state.name in graph.lesson.first:
        return graph.lesson.first[state.name]
    return np.full(type_.shape, type_.quant.zero_point if type_.quant else 0, type_.dtype.numpy)


def _random(value: Value, random: np.random.Generator, amplitude: float) -> Array:
    dtype, quant = value.type.dtype, value.type.quant
    if not dtype.is_integer and dtype is not DType.BOOL:
        # Halves and quarters, and their products with powers of two, are exact in text and in every arithmetic.
        return (random.integers(-8, 9, value.type.shape) / 4 * amplitude).astype(dtype.numpy)
    low, high = (0, 1) if dtype is DType.BOOL else dtype.limits
    limits = (max(low, -128), min(high + 1, 128 if low else 256))
    elements = random.integers(*limits, value.type.shape)
    if amplitude != 1.0 and quant is not None:  # Numbers without a scale are no amounts and stay.
        elements = np.clip(np.rint(quant.zero_point + (elements - quant.zero_point) * amplitude), low, high)
    return elements.astype(dtype.numpy)
