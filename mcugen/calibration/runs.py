# SPDX-License-Identifier: Apache-2.0
"""Calibration from measured runs: matches measured layers with the simulator's estimates of the same layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mcugen.calibration.files import BoardRun
from mcugen.calibration.fit import Calibration, Estimate, MeasuredLayer, calibrate
from mcugen.core.board import Board, Memory, ParallelTiming
from mcugen.core.errors import UsageError, listed
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.samples import random_samples
from mcugen.measurement.evaluate import sample_endpoints


def calibrate_runs(
    board: Board, runs: Sequence[BoardRun], models: Sequence[Path], options: CompileOptions
) -> Calibration:
    """Fit a board's core factor and memory timing to measured runs.

    Args:
        board: The board.
        runs: The measured runs.
        models: ONNX files of the measured models.
        options: Options that the models were compiled with.

    Raises:
        UsageError: The runs are of other models, of other code or of several clock frequencies. Also if they have too
            few layers, or differ from the estimates by more than calibration allows.
        ToolMissingError: The simulator is not installed.
        VerificationError: The simulator cannot estimate cycles.
    """
    clocks = sorted({run.clock_hz for run in runs})
    if len(clocks) > 1:
        clock_names = listed(f"{clock / 1e6:g} MHz" for clock in clocks)
        raise UsageError("runs must be at one clock of the CPU", clock_names, "calibrate a board file for each clock")
    compiled = [compile_model(model, board, options) for model in models]
    by_sha256 = {compiled_model.report.model.sha256: compiled_model for compiled_model in compiled}
    for run in runs:
        _check(run, by_sha256)
    layers = [
        MeasuredLayer(run.model, layer.name, layer.cycles, layer.cycles / run.cycles)
        for run in runs
        for layer in run.layers
    ]

    def estimator(corrected: Board) -> list[Estimate]:
        ran = {run.sha256 for run in runs}
        known = {sha256: layer_estimates(by_sha256[sha256], corrected) for sha256 in sorted(ran)}
        return [estimate for run in runs for estimate in known[run.sha256]]

    return calibrate(_at_clock(board, clocks[0]), layers, estimator)


def _check(run: BoardRun, by_sha256: Mapping[str, CompiledModel]) -> None:
    compiled = by_sha256.get(run.sha256)
    if compiled is None:
        fault = f"a run of '{run.model}', sha256 {run.sha256[:12]}…"
        raise UsageError(
            "runs must be of the models that --model names", fault, "add the file of that model, unchanged"
        )
    expected = [(layer.name, layer.kernel) for layer in compiled.report.layers]
    ran = [(layer.name, layer.kernel) for layer in run.layers]
    if ran == expected:
        return
    rule = f"runs of '{run.model}' must be of the code that these options and this version of mcugen make"
    if len(ran) != len(expected):
        difference = f"{len(ran)} layers, not {len(expected)}"
    else:
        mine, theirs = next(pair for pair in zip(expected, ran, strict=True) if pair[0] != pair[1])
        difference = f"layer '{theirs[0]}' by {theirs[1]}, not '{mine[0]}' by {mine[1]}"
    raise UsageError(rule, difference, f"the options of the firmware: {run.options}")


def layer_estimates(compiled: CompiledModel, board: Board) -> list[Estimate]:
    """Return the estimated core and stall cycles of each layer of a model on a board.

    Raises:
        UsageError: The simulator cannot estimate cycles.
    """
    (sample,) = random_samples(sample_endpoints(compiled)).inputs
    cycles = replace(compiled, board=board).simulate([sample], per_layer=True, cycles=True).cycles
    core = cycles.layers_without_waits if cycles else None
    if cycles is None or core is None or cycles.layer_waits is None:
        raise UsageError("cycles of the board must be known", cycles.note if cycles else "none are", "another board")
    waits = [{wait.memory: wait.cycles for wait in layer} for layer in cycles.layer_waits]
    return [Estimate(*both) for both in zip(core, waits, strict=True)]


def _at_clock(board: Board, clock_hz: int) -> Board:
    """Return the board with another CPU clock; memories that follow the clock change with it."""
    memories = tuple(_follows(memory, board.clock_hz, clock_hz) for memory in board.memories)
    return replace(board, clock_hz=clock_hz, memories=memories)


def _follows(memory: Memory, before: int, after: int) -> Memory:
    access = memory.access
    if isinstance(access, ParallelTiming) and access.clock_hz == before:
        return replace(memory, access=replace(access, clock_hz=after))
    return memory
