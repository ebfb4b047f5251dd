# SPDX-License-Identifier: Apache-2.0
"""`report --extreme-inputs`: what runs take for inputs that are made to be easy or hard, where instructions depend on
data. No bound: the worst case may lie above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mcugen.compiled import CompiledModel
from mcugen.errors import UsageError
from mcugen.hir.types import Array, DType
from mcugen.lir.program import Endpoint
from mcugen.report.figures import InstructionRange, Report

_REAL = 4.0
"""The largest of an input that is no code."""


def extremes(endpoint: Endpoint) -> list[Array]:
    """Zeros, the least, the largest, both in turn, a ramp, and random elements."""
    dtype, shape = endpoint.dtype, endpoint.shape
    low, high = (0, 1) if dtype is DType.BOOL else dtype.limits if dtype.is_integer else (-_REAL, _REAL)
    low, high = max(low, -(2**31)), min(high, 2**31 - 1)
    ramp = np.linspace(low, high, int(np.prod(shape))).reshape(shape)
    drawn = np.random.default_rng(0).uniform(low, high, shape)
    kinds = (np.zeros(shape), np.full(shape, low), np.full(shape, high), np.resize([low, high], shape), ramp, drawn)
    return [np.asarray(kind).astype(dtype.numpy) for kind in kinds]


def with_extremes(compiled: CompiledModel, report: Report, progress: Callable[[str, int, int], None]) -> Report:
    """The report with the least and the most instructions of these runs and its own.

    UsageError for a board that no simulator counts instructions of.
    """
    if report.instructions is None:
        rule, remedy = "--extreme-inputs counts instructions in the simulator", "take another board"
        raise UsageError(rule, f"board '{compiled.board.name}' is not simulated", remedy)
    if not report.varies:
        return report
    inputs: Sequence[Endpoint] = compiled.program.inputs
    kinds = list(zip(*(extremes(e) for e in inputs), strict=True))
    counts = [report.instructions]
    for done, kind in enumerate(kinds):
        progress(f"{compiled.board.name}: extreme inputs", done, len(kinds))
        sample = {e.name: array for e, array in zip(inputs, kind, strict=True)}
        counts.append(compiled.given_inputs.simulate([sample]).instructions or report.instructions)
    found = InstructionRange(min(counts), max(counts), len(counts), is_bound=False)
    return replace(report, instruction_range=found)
