# SPDX-License-Identifier: Apache-2.0
"""A compiled model on samples: run, measured, judged, and explained layer by layer."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.draft import Draft
from mcugen.codegen.render import render
from mcugen.core.board import Board
from mcugen.core.errors import UsageError, VerificationError
from mcugen.core.options import DIVERGED_DB
from mcugen.distributed.sharing import ALONE, Workers
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.plugins import load_function
from mcugen.evaluation.accuracy import Accuracy, compare, reals
from mcugen.evaluation.metrics import Metric, find_metric, label_metric, own_metric
from mcugen.evaluation.oracle import OracleRun
from mcugen.evaluation.sample_results import SampleResults, farthest_results, sample_results
from mcugen.evaluation.sample_warnings import label_warnings, range_warnings
from mcugen.evaluation.samples import Samples, as_stored, graph_endpoints, random_samples
from mcugen.hir.types import Array
from mcugen.lir.program import Endpoint
from mcugen.memory.place import in_its_image
from mcugen.quantization.compare import DEFAULT_SAMPLES, compare_layers
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.precisions import calibrated_ranges, quantized_inputs
from mcugen.quantization.quantize import Progress, no_progress
from mcugen.reporting.basis import Basis, samples_sha256
from mcugen.reporting.figures import Report, measured
from mcugen.reporting.memory import arena_buffers
from mcugen.simulation import Setup, simulate

if TYPE_CHECKING:
    from mcugen.simulation import Execution

Sample = Mapping[str, Array]


def metric_of(text: str, labels: Array | None, outputs: Sequence[Endpoint], inputs: Sequence[Endpoint]) -> Metric:
    """A metric by its name, or a function FILE.py:FUNCTION; "" is what suits labels and outputs."""
    file, _, function = text.rpartition(":")
    if file:
        return own_metric(text, load_function(file, function))
    return find_metric(text or label_metric(labels, outputs[0], inputs))


def sample_endpoints(compiled: CompiledModel) -> Sequence[Endpoint]:
    """What evaluation samples are for: the float model where mcugen quantized it, else the compiled one."""
    quantized = compiled.quantization
    return (
        compiled.program.inputs
        if quantized is None
        else graph_endpoints(quantized.model.graph, compiled.options.states)
    )


def timed(compiled: CompiledModel, progress: Progress = no_progress) -> Report:
    """The report with what one run on a random sample measures, time among it."""
    (sample,) = random_samples(sample_endpoints(compiled)).inputs
    stored = [as_stored(sample, compiled.program.inputs)]

    def step(done: int) -> None:
        progress(f"{compiled.board.name}: measuring", done, 1)

    run = compiled.given_inputs.simulate(stored, per_layer=True, cycles=True, progress=step)
    return measured(compiled.report, run, None, compiled.board, _on_helper(compiled, stored))


def _on_helper(compiled: CompiledModel, inputs: Sequence[Sample]) -> Execution | None:
    """The first sample on the second core of a board, which computes all layers, if it is another kind of core."""
    is_shared = any(layer.core is not None for layer in compiled.report.layers)
    firmware = on_helper(compiled) if is_shared else None
    return simulate(*firmware, inputs[:1], per_layer=True, cycles=True) if firmware else None


def on_helper(compiled: CompiledModel) -> tuple[Bundle, Board] | None:
    """The model as another kind of core has it in its firmware, and the board as that sees it; None where there is no
    such core.
    """
    draft = compiled.draft
    board = compiled.board.seen_by_helper(draft.placement.arenas[0])
    if board is None:
        return None
    return render(draft._replace(placement=in_its_image(draft.placement, draft.program, board))), board


def step_cycles(
    compiled: CompiledModel, progress: Progress = no_progress, rendered: Callable[[Draft], Bundle] | None = None
) -> tuple[int, ...]:
    """Estimated cycles of each step of a run on a random sample. UsageError where nothing is known of time.

    The code is that of the model alone, unless it is `rendered` otherwise.
    """
    (sample,) = random_samples(sample_endpoints(compiled)).inputs
    draft, board = compiled.draft, compiled.board
    hooked = draft._replace(form=replace(draft.form, hooks_steps=True))
    bundle = rendered(hooked) if rendered else render(hooked)
    bundle = replace(bundle, layers=tuple(map(str, range(len(bundle.steps)))))
    setup = Setup(progress=lambda done: progress(f"{board.name}: measuring", done, 1), library=compiled.options.library)
    stored = [as_stored(sample, compiled.program.inputs)]
    found = simulate(bundle, board, stored, per_layer=True, cycles=True, setup=setup).cycles
    if found is None or found.layers is None:
        reason = found.note if found else f"board '{board.name}' is not simulated"
        raise UsageError("the cycles of steps need the time that code takes on the board", reason, "use another board")
    return found.layers


def evaluate(
    compiled: CompiledModel,
    samples: Samples,
    metric: Metric,
    threshold_db: float = DIVERGED_DB,
    progress: Progress = no_progress,
    wait_states: int | None = None,
    workers: Workers = ALONE,
) -> Report:
    """The report with figures of a simulated run, accuracy, and of a quantized model its layers' errors.

    `wait_states` of flash, instead of the board's, are for the estimate of cycles; samples run in as many simulators as
    there are `workers`.
    """

    def step(what: str) -> Callable[[int], None]:
        return lambda done: progress(what, done, len(samples.inputs))

    stored = [as_stored(sample, compiled.program.inputs) for sample in samples.inputs]
    running, library = step(f"{compiled.board.name}: running"), compiled.options.library
    setup = Setup(progress=running, library=library, workers=workers)
    given, board = samples.fed(stored), compiled.board
    run = simulate(compiled.bundle, board, given, per_layer=True, cycles=True, wait_states=wait_states, setup=setup)
    accuracy, oracle = judge(compiled, samples, run.outputs, metric, progress)
    reference = oracle.outputs
    result = measured(compiled.report, run, accuracy, compiled.board, _on_helper(compiled, given))
    result = replace(
        result,
        basis=_basis(compiled, samples),
        notes=(*result.notes, *samples.notes, *([oracle.note] if oracle.note else [])),
        warnings=tuple(dict.fromkeys((*result.warnings, *_sample_warnings(compiled, samples, metric)))),
        buffers=arena_buffers(compiled.program, compiled.board.name),
        samples=_sample_results(compiled, samples, run.outputs, reference, accuracy.agreement is not None),
    )
    if samples.raw is not None:
        result = _with_input(result, compiled, stored, run)
    if compiled.quantization is None:
        return result
    some = list(_with_states(compiled.quantization.model, samples.inputs, reference))[:DEFAULT_SAMPLES]
    layers = compare_layers(compiled.quantization, some, threshold_db, lambda n: progress("layers", n, len(some)))
    return replace(result, quantization=layers)


def _sample_warnings(compiled: CompiledModel, samples: Samples, metric: Metric) -> list[str]:
    """Return what is wrong with evaluation samples."""
    ends, quantized = sample_endpoints(compiled), compiled.quantization
    faults = [*samples.warnings, *label_warnings(samples.labels, compiled.program.outputs, ends, metric.name)]
    ranges = calibrated_ranges(quantized) if quantized else quantized_inputs(compiled.graph)
    return [*faults, *range_warnings(samples.inputs, ranges)]


def judge(
    compiled: CompiledModel, samples: Samples, outputs: Sequence[Sample], metric: Metric, progress: Progress
) -> tuple[Accuracy, OracleRun]:
    """How good outputs of the generated code are, beside the reference's, which are returned, too."""

    def step(what: str) -> Callable[[int], None]:
        return lambda done: progress(what, done, len(samples.inputs))

    stored = [as_stored(sample, compiled.program.inputs) for sample in samples.inputs]
    reference = compiled.reference_run(stored, step("reference: running"))
    against, twin = reference.name, None
    if compiled.quantization is not None:
        against, twin = "float32", reference.outputs
        reference = compiled.quantization.model.reference(samples.inputs, step("float32: running"))
    inputs, ends = reals(stored, compiled.program.inputs), compiled.program.outputs
    return compare(ends, outputs, reference.outputs, samples.labels, against, metric, twin, inputs), reference


def _sample_results(
    compiled: CompiledModel, samples: Samples, outputs: Sequence[Sample], reference: Sequence[Sample], classes: bool
) -> SampleResults | None:
    """By the first output that has numbers, in reals."""
    numeric = [e for e in compiled.program.outputs if e.name in outputs[0]][:1]
    found = [next(iter(sample.values())) for sample in reals(outputs, numeric)]
    views = samples.inputs if samples.raw is None else [{"raw": raw} for raw in samples.raw]
    if classes:
        return sample_results(found, views, samples.labels, compiled.options.labels)
    return farthest_results(found, [next(iter(sample.values())) for sample in reals(reference, numeric)], views)


def _with_input(report: Report, compiled: CompiledModel, stored: Sequence[Sample], run: Execution) -> Report:
    """With what making the input takes. VerificationError where its bits are not numpy's."""
    (port, *_), figures, ram = compiled.bundle.inputs, report.input_pipeline, report.ram
    assert figures is not None
    for number, (sample, crc) in enumerate(zip(stored, run.crcs, strict=True)):
        if zlib.crc32(np.ascontiguousarray(sample[port.name]).tobytes()) != crc:
            found = f"another input for sample {number}"
            raise VerificationError("the generated pipeline must give the bits that numpy gives", found)
    figures = replace(figures, instructions=run.input_instructions, verified=len(stored))
    total = None if ram.total is None else ram.total + figures.state
    return replace(report, input_pipeline=figures, ram=replace(ram, total=total))


def _basis(compiled: CompiledModel, samples: Samples) -> Basis:
    """What the figures rest on, now that it ran."""
    from mcugen.simulation.machines import tool_versions

    compiler, simulator = tool_versions(compiled.board)
    digest = samples_sha256(samples.inputs, samples.labels)
    return replace(compiled.report.basis, compiler=compiler, simulator=simulator, data_sha256=digest)


def _with_states(model: FloatModel, samples: Sequence[Sample], outputs: Sequence[Sample]) -> Iterator[Sample]:
    """Samples with what the model kept from the ones before."""
    kept = model.first_states
    for sample, results in zip(samples, outputs, strict=True):
        yield {**kept, **sample}
        kept = {target: results[source] for source, target in model.states.items()}
