# SPDX-License-Identifier: Apache-2.0
"""The sample of the self-test: seeded random inputs and the outputs that the numpy reference gives."""

from __future__ import annotations

import numpy as np

from mcugen.codegen.render import Sample
from mcugen.hir.graph import Graph, Value
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array, DType

FLOAT_TOLERANCE = 1e-4
"""Relative to the largest output: sums are taken in another order on the target."""


def golden_sample(graph: Graph) -> Sample:
    """The same for the same graph, on every machine."""
    random = np.random.default_rng(0)
    inputs = {value.name: _random(value, random) for value in graph.inputs}
    outputs = interpret(graph, inputs)
    floats = any(v.type.dtype.is_float or v.type.dtype.is_half for g in graph.nested() for v in g.values())
    return Sample(inputs, outputs, FLOAT_TOLERANCE, 1 if floats else 0)


def _random(value: Value, random: np.random.Generator) -> Array:
    dtype = value.type.dtype
    if not dtype.is_integer and dtype is not DType.BOOL:
        # halves and quarters are exact in text and in every arithmetic
        return (random.integers(-8, 9, value.type.shape) / 4).astype(dtype.numpy)
    low, high = (0, 1) if dtype is DType.BOOL else dtype.limits
    limits = (max(low, -128), min(high + 1, 128 if low else 256))
    return random.integers(*limits, value.type.shape).astype(dtype.numpy)
