# SPDX-License-Identifier: Apache-2.0
"""`report --extreme-inputs`: what runs take for inputs that are made to be easy or hard, where instructions depend on
data, and the most that any can take, where the code tells (mcugen.simulation.longest).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.driver.compiled import CompiledModel
from mcugen.hir.types import Array, DType
from mcugen.lir.program import Endpoint
from mcugen.reporting.figures import InstructionRange, Report
from mcugen.reporting.timing import most_rounds
from mcugen.simulation.longest import paths

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
    """The report with the least and the most instructions of these runs and its own, and of any run.

    UsageError for a board that no simulator counts instructions of.
    """
    if report.instructions is None:
        rule, remedy = "--extreme-inputs counts instructions in the simulator", "take another board"
        raise UsageError(rule, f"board '{compiled.board.name}' is not simulated", remedy)
    if not report.varies:
        return report
    inputs: Sequence[Endpoint] = compiled.program.inputs
    samples = [
        {e.name: array for e, array in zip(inputs, kind, strict=True)}
        for kind in zip(*(extremes(e) for e in inputs), strict=True)
    ]

    def tell(done: int) -> None:
        progress(f"{compiled.board.name}: extreme inputs", done, len(samples))

    rounds, why = most_rounds(compiled.program)
    bundle, library = compiled.given_inputs.bundle, compiled.options.library
    found = paths(bundle, compiled.board, samples, None if why else rounds, library, tell)
    counts = (report.instructions, *found.counts)
    longest = found.longest
    known = InstructionRange(min(counts), max(counts), len(counts), False, longest.instructions, why or longest.reason)
    return replace(report, instruction_range=known)
