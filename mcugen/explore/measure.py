# SPDX-License-Identifier: Apache-2.0
"""The outcome of one combination of board, precision and goal: compiled, run if requested, and cached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mcugen.api.compilation import Compilation
from mcugen.autotuning.simulated import simulated_metrics
from mcugen.core.board import load_board
from mcugen.core.cache import Store
from mcugen.core.errors import DoesNotFitError, McugenError, UnsupportedError, UsageError
from mcugen.core.limits import read_bounded
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.option_checks import check_options
from mcugen.driver.tasks import Quantizing
from mcugen.evaluation.metrics import METRICS
from mcugen.explore.point import Figures, Outcome, Point, PointFailure
from mcugen.explore.prepare import ExplorationSubject, Prepared, prepare_model
from mcugen.measurement.evaluate import evaluate, measure_once, sample_endpoints
from mcugen.reporting.figures import Report
from mcugen.search.cost_model import ProgramCostModel
from mcugen.search.metrics import AccuracyLevel
from mcugen.search.plan import BuiltProgram

RUN_SAMPLES = 4
"""Number of samples that run in the simulator for each combination, to measure its cost.

Accuracy is computed on all samples by ONNX Runtime, which has the same integer results.
"""

MAX_OUTCOMES_BYTES = 1 << 28
"""Largest size of a file of outcomes in bytes."""

_LASTING = [kind.__name__ for kind in (DoesNotFitError, UnsupportedError, UsageError)]
"""Errors that would come again. Results of other errors (a missing tool, a full disk) are not cached."""


def outcome_cache_key(subject: ExplorationSubject, point: Point, simulate: bool) -> str:
    """Return the file name in the cache for the outcome of a combination.

    Args:
        subject: The model and its options.
        point: The combination of board, precision and goal.
        simulate: Whether it runs in the simulator: then the outcome depends on the versions of compiler and QEMU.
    """
    board = load_board(point.board)
    tools: tuple[str, str | None] | None = None
    if simulate:
        from mcugen.simulation.machines import tool_versions

        tools = tool_versions(board)
    quantizing = subject.quantizing[point.precision]
    return subject.key("outcome", board, point.optimize, quantizing, tools, RUN_SAMPLES) + ".json"


def cached_outcome(key: str, store: Store) -> Outcome | None:
    """Return the outcome that is cached under a key; None if there is none, or if the file is damaged."""
    try:
        data = store.read(key)
        return None if data is None else _ADAPTER.validate_json(data)
    except ValidationError:
        return None


def cache_outcome(outcome: Outcome, key: str, store: Store) -> None:
    """Cache an outcome, unless it is a failure that may not occur again, such as a missing compiler.

    Args:
        outcome: The outcome.
        key: The file name that `outcome_cache_key` returns.
        store: The cache.
    """
    if outcome.refusal is None or outcome.refusal.kind in _LASTING:
        store.keep(key, json.dumps(asdict(outcome)).encode())


def write_outcomes(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write outcomes to a JSON file, which `read_outcomes` reads."""
    path.write_bytes(json.dumps([asdict(outcome) for outcome in outcomes]).encode())


def read_outcomes(path: Path) -> Sequence[Outcome]:
    """Return the outcomes in a file; none if the file is missing or damaged."""
    try:
        return _LIST_ADAPTER.validate_json(read_bounded(path, MAX_OUTCOMES_BYTES))
    except (OSError, ValueError):
        return ()


def measure_combination(subject: ExplorationSubject, point: Point, simulate: bool, store: Store) -> Outcome:
    """Quantize, compile and perhaps simulate the model for one combination, and return its cost and accuracy.

    If the options conflict or the model cannot be compiled, the outcome has the reason.

    Args:
        subject: The model and its options.
        point: The combination of board, precision and goal.
        simulate: Whether to run it in the simulator.
        store: The cache of quantized models.

    Raises:
        McugenError: If the model cannot be quantized.
    """
    try:
        check_options(subject.for_goal(point.optimize), load_board(point.board))
    except McugenError as error:
        return Outcome(point, None, None, PointFailure.of(error), None, simulate)
    base = prepare_model(subject, point, store)
    try:
        report, figures = _made(subject, point, simulate, base)
    except McugenError as error:
        return Outcome(point, None, None, PointFailure.of(error), base.baseline, simulate)
    return Outcome(point, figures, report, None, base.baseline, simulate)


_ADAPTER = TypeAdapter(Outcome)
_LIST_ADAPTER = TypeAdapter(list[Outcome])


def _made(subject: ExplorationSubject, point: Point, simulate: bool, base: Prepared) -> tuple[Report, Figures]:
    """Return the report and figures of a compiled and perhaps simulated combination."""
    options = subject.for_goal(point.optimize)
    quantizing = subject.quantizing[point.precision]
    if quantizing.is_wanted:  # Sizes and values of inputs are part of the quantized model.
        options = replace(options, dims={}, bound={})
        quantizing = Quantizing(preprocess=quantizing.preprocess)
    net = Compilation(base.model, point.board, options, quantizing, subject.judging)
    compiled = net.compiled
    report = _run(net, subject) if simulate else compiled.report
    basis = report.basis
    described = "; ".join([basis.options, *([base.described] if base.described else [])])
    report = replace(
        report,
        basis=replace(basis, options=described),
        model=replace(report.model, sha256=base.sha256),
        notes=tuple(dict.fromkeys((*base.notes, *report.notes))),
        warnings=tuple(dict.fromkeys((*base.warnings, *report.warnings))),
    )
    return report, _figures(report, compiled, base)


def _run(net: Compilation, subject: ExplorationSubject) -> Report:
    """Return the report of a run on the first samples, with a note if outputs differ from ONNX Runtime's."""
    compiled = net.compiled
    if subject.samples is None:
        return measure_once(compiled)
    samples = net.samples(subject.samples, sample_endpoints(compiled))
    count = slice(RUN_SAMPLES)
    first_samples = replace(
        samples,
        inputs=samples.inputs[count],
        labels=None if samples.labels is None else samples.labels[count],
        raw=None if samples.raw is None else samples.raw[count],
    )
    report = evaluate(compiled, first_samples, METRICS["sqnr"])
    accuracy = report.accuracy
    if accuracy is not None and accuracy.agreement is not None and accuracy.agreement < 1:
        note = f"generated code and {accuracy.reference} name other classes for {1 - accuracy.agreement:.0%} of samples"
        return replace(report, notes=(*report.notes, note))
    return report


def _figures(report: Report, compiled: CompiledModel, base: Prepared) -> Figures:
    """Return the figures of a combination, by its report where measured, else by estimates."""
    board, built = compiled.board, BuiltProgram(compiled.program)
    costs = ProgramCostModel(board, compiled.options)
    metrics = costs.likely(built, AccuracyLevel.PLACED)
    if report.instructions is not None:
        metrics = simulated_metrics(report, metrics)
    cycles = metrics.time or None
    energy = None if compiled.program.is_offloaded else board.energy  # It is that of the CPU.
    joules = None if cycles is None or energy is None else round(energy.microjoules(cycles), 3)
    return Figures(
        accuracy=base.accuracy,
        ms=None if cycles is None else round(1e3 * cycles / board.clock_hz, 4),
        ram=report.ram.total if report.ram.total is not None else metrics.ram,
        flash=report.flash.total if report.flash.total is not None else metrics.flash,
        microjoules=joules,
        by_instructions=metrics.cycles is None,
    )
