# SPDX-License-Identifier: Apache-2.0
"""`report --extreme-inputs`: smallest and largest number of instructions if they depend on data, and an upper bound.

The bound comes from an analysis of the linked code (mcugen.simulation.longest), if the code allows one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mcugen.core.board import Board
from mcugen.core.errors import UsageError
from mcugen.driver.compiled import CompiledModel
from mcugen.hir.types import Array, DType
from mcugen.lir.program import Endpoint
from mcugen.reporting.figures import InstructionRange, Report
from mcugen.reporting.timing import max_loop_rounds
from mcugen.simulation.longest import paths

_REAL = 4.0
"""Largest magnitude of a float input."""


def extreme_inputs(endpoint: Endpoint) -> list[Array]:
    """Return six arrays for one model input, on which the number of executed instructions may be extreme.

    They hold zeros; the smallest value; the largest value; the smallest and the largest value alternating; a ramp; and
    random values.

    Args:
        endpoint: The model input.
    """
    dtype, shape = endpoint.dtype, endpoint.shape
    low, high = (0, 1) if dtype is DType.BOOL else dtype.limits if dtype.is_integer else (-_REAL, _REAL)
    low, high = max(low, -(2**31)), min(high, 2**31 - 1)
    ramp = np.linspace(low, high, int(np.prod(shape))).reshape(shape)
    drawn = np.random.default_rng(0).uniform(low, high, shape)
    kinds = (np.zeros(shape), np.full(shape, low), np.full(shape, high), np.resize([low, high], shape), ramp, drawn)
    return [np.asarray(kind).astype(dtype.numpy) for kind in kinds]


def require_simulated(board: Board) -> None:
    """Raise UsageError if no simulator counts instructions for the board."""
    if not board.qemu:
        rule, remedy = "--extreme-inputs needs the simulator", "use another board"
        raise UsageError(rule, f"board '{board.name}' is not simulated", remedy)


def with_extremes(compiled: CompiledModel, report: Report, progress: Callable[[str, int, int], None]) -> Report:
    """Return a report with the smallest and largest instructions of runs on extreme inputs, and their upper bound.

    The report is returned unchanged if the instructions do not depend on data.

    Args:
        compiled: The model, for a board that is simulated (`require_simulated`).
        report: Its report of a run, whose instructions are included in the range.
        progress: Receives the name of the task, the number of finished runs, and the number of all runs.
    """
    assert report.instructions is not None
    if not report.varies:
        return report
    inputs: Sequence[Endpoint] = compiled.program.inputs
    samples = [
        {e.name: array for e, array in zip(inputs, kind, strict=True)}
        for kind in zip(*(extreme_inputs(e) for e in inputs), strict=True)
    ]

    def tell(count: int) -> None:
        progress(f"{compiled.board.name}: extreme inputs", count, len(samples))

    rounds, reason = max_loop_rounds(compiled.program)
    bundle, library = compiled.given_inputs.bundle, compiled.options.library
    executed_paths = paths(bundle, compiled.board, samples, None if reason else rounds, library, tell)
    counts = (report.instructions, *executed_paths.counts)
    longest = executed_paths.longest
    known = InstructionRange(
        min(counts), max(counts), len(counts), False, longest.instructions, reason or longest.reason
    )
    return replace(report, instruction_range=known)
