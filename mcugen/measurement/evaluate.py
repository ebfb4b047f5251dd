# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a compiled model on samples: runs, measurements, accuracy, and comparison layer by layer."""

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
from mcugen.distributed.sharing import ONLY_THIS_PROCESS, Workers
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
from mcugen.memory.place import in_second_core_image
from mcugen.quantization.compare import DEFAULT_SAMPLES, compare_layers
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.precisions import calibrated_ranges, quantized_inputs
from mcugen.quantization.quantize import Progress, no_progress
from mcugen.reporting.basis import Basis, samples_sha256
from mcugen.reporting.figures import Report, add_measurements
from mcugen.reporting.memory import arena_buffers
from mcugen.simulation import Setup, simulate

if TYPE_CHECKING:
    from mcugen.simulation import Execution

Sample = Mapping[str, Array]
"""Inputs or outputs of one sample, by name."""


def choose_metric(text: str, labels: Array | None, outputs: Sequence[Endpoint], inputs: Sequence[Endpoint]) -> Metric:
    """Return the metric of accuracy that `--metric` selects.

    Args:
        text: Name of a metric, or the user's function as FILE.py:FUNCTION; "" selects the metric that suits labels and
            outputs.
        labels: Labels of the samples; None if they have none.
        outputs: The outputs of the model.
        inputs: The inputs of the model.
    """
    file, _, function = text.rpartition(":")
    if file:
        return own_metric(text, load_function(file, function))
    return find_metric(text or label_metric(labels, outputs[0], inputs))


def sample_endpoints(compiled: CompiledModel) -> Sequence[Endpoint]:
    """Return the descriptions (name, shape, type) of the inputs that samples must have.

    These are the inputs of the float model if mcugen quantized it, else the inputs of the compiled program. A stream's
    first input has whole windows (see `call_samples`).
    """
    quantized, stream = compiled.quantization, compiled.graph.stream
    if quantized is not None:
        return graph_endpoints(quantized.model.graph, compiled.options.states)
    if stream is None or stream.axis is None:
        return compiled.program.inputs
    first, *further = compiled.program.inputs
    shape = tuple(stream.window if axis == stream.axis else size for axis, size in enumerate(first.shape))
    return [replace(first, shape=shape), *further]


def call_samples(compiled: CompiledModel, samples: Samples) -> Samples:
    """Return what each call of a model gets: a sample, or the next steps of the windows of a stream.

    The labels of windows say nothing about calls; they are left out.
    """
    stream = compiled.graph.stream
    if stream is None:
        return samples
    name = compiled.program.inputs[0].name
    calls = [{**sample, name: part} for sample in samples.inputs for part in stream.calls(sample[name])]
    return replace(samples, inputs=calls, labels=None)


def measure_once(compiled: CompiledModel, progress: Progress = no_progress) -> Report:
    """Run a compiled model in the simulator on one random sample, and return its report with the measurements.

    Args:
        compiled: The model.
        progress: Receives the progress of the run.
    """
    (sample,) = random_samples(sample_endpoints(compiled)).inputs
    stored = [as_stored(sample, compiled.program.inputs)]

    def step(count: int) -> None:
        progress(f"{compiled.board.name}: measuring", count, 1)

    run = compiled.given_inputs.simulate(stored, per_layer=True, cycles=True, progress=step)
    return add_measurements(compiled.report, run, None, compiled.board, _on_helper(compiled, stored))


def _on_helper(compiled: CompiledModel, inputs: Sequence[Sample]) -> Execution | None:
    """Return a run of the first sample on the second core, computing all layers, if that is another kind of core."""
    is_shared = any(layer.core is not None for layer in compiled.report.layers)
    firmware = render_for_helper(compiled) if is_shared else None
    return simulate(*firmware, inputs[:1], per_layer=True, cycles=True) if firmware else None


def render_for_helper(compiled: CompiledModel) -> tuple[Bundle, Board] | None:
    """Return the model's C code for a second core that has another CPU, and that core's view of the board.

    The result is None if the board has no such core.
    """
    draft = compiled.draft
    board = compiled.board.seen_by_second_core(draft.placement.arenas[0])
    if board is None:
        return None
    return render(draft._replace(placement=in_second_core_image(draft.placement, draft.program, board))), board


def step_cycles(
    compiled: CompiledModel, progress: Progress = no_progress, rendered: Callable[[Draft], Bundle] | None = None
) -> tuple[int, ...]:
    """Return the estimated cycles of each step of a run in the simulator on a random sample.

    A step is what one call of the generated function NAME_step computes: one layer, or a group of its rows.

    Args:
        compiled: The model.
        progress: Receives the progress of the run.
        rendered: Renders the C code from the compiled model's data; None to render the code of this model alone.

    Raises:
        UsageError: If the time on this board cannot be measured.
    """
    (sample,) = random_samples(sample_endpoints(compiled)).inputs
    draft, board = compiled.draft, compiled.board
    hooked = draft._replace(form=replace(draft.form, hooks_steps=True))
    bundle = rendered(hooked) if rendered else render(hooked)
    bundle = replace(bundle, layers=tuple(map(str, range(len(bundle.steps)))))
    setup = Setup(progress=lambda done: progress(f"{board.name}: measuring", done, 1), library=compiled.options.library)
    stored = [as_stored(sample, compiled.program.inputs)]
    figures = simulate(bundle, board, stored, per_layer=True, cycles=True, setup=setup).cycles
    if figures is None or figures.layers is None:
        reason = figures.note if figures else f"board '{board.name}' is not simulated"
        raise UsageError("--max-step-cycles needs a timing model of the board", reason, "use another board")
    return figures.layers


def evaluate(
    compiled: CompiledModel,
    samples: Samples,
    metric: Metric,
    threshold_db: float = DIVERGED_DB,
    progress: Progress = no_progress,
    wait_states: int | None = None,
    workers: Workers = ONLY_THIS_PROCESS,
) -> Report:
    """Run samples in the simulator, and return the report with measurements, accuracy, and errors of quantized layers.

    Args:
        compiled: The model.
        samples: The samples to run.
        metric: The metric of accuracy.
        threshold_db: SQNR of a layer in dB below which it counts as diverged.
        progress: Receives the progress of the runs.
        wait_states: Wait states of flash in CPU cycles for the estimate of cycles; None for the board's.
        workers: Processes for the simulators.
    """

    def step(task: str) -> Callable[[int], None]:
        return lambda done: progress(task, done, len(samples.inputs))

    stored = [as_stored(sample, compiled.program.inputs) for sample in samples.inputs]
    running, library = step(f"{compiled.board.name}: running"), compiled.options.library
    setup = Setup(progress=running, library=library, workers=workers)
    fed_inputs, board = samples.fed(stored), compiled.board
    run = simulate(
        compiled.bundle, board, fed_inputs, per_layer=True, cycles=True, wait_states=wait_states, setup=setup
    )
    accuracy, oracle = measure_accuracy(compiled, samples, run.outputs, metric, progress)
    reference = oracle.outputs
    result = add_measurements(compiled.report, run, accuracy, compiled.board, _on_helper(compiled, fed_inputs))
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
    if compiled.quantization is None or compiled.graph.stream is not None:
        return result
    compared_samples = list(_with_states(compiled.quantization.model, samples.inputs, reference))[:DEFAULT_SAMPLES]
    layers = compare_layers(
        compiled.quantization, compared_samples, threshold_db, lambda n: progress("layers", n, len(compared_samples))
    )
    return replace(result, quantization=layers)


def _sample_warnings(compiled: CompiledModel, samples: Samples, metric: Metric) -> list[str]:
    """Return warnings about evaluation samples: their own, those of labels, and values beyond calibrated ranges."""
    ends, quantized = sample_endpoints(compiled), compiled.quantization
    faults = [*samples.warnings, *label_warnings(samples.labels, compiled.program.outputs, ends, metric.name)]
    if samples.is_random:
        return faults
    ranges = calibrated_ranges(quantized) if quantized else quantized_inputs(compiled.graph)
    return [*faults, *range_warnings(samples.inputs, ranges)]


def measure_accuracy(
    compiled: CompiledModel, samples: Samples, outputs: Sequence[Sample], metric: Metric, progress: Progress
) -> tuple[Accuracy, OracleRun]:
    """Compute the accuracy of the outputs that the generated code computed for some samples.

    Args:
        compiled: The model.
        samples: The samples that ran.
        outputs: The outputs of the generated code, by sample.
        metric: The metric of accuracy.
        progress: Receives the progress of the reference run.

    Returns:
        The accuracy, and the reference run of the original model that the outputs are compared with.
    """

    def step(task: str) -> Callable[[int], None]:
        return lambda done: progress(task, done, len(samples.inputs))

    stored = [as_stored(sample, compiled.program.inputs) for sample in samples.inputs]
    reference = compiled.reference_run(stored, step("reference: running"))
    against, twin = reference.name, None
    if compiled.quantization is not None and compiled.graph.stream is None:  # The float model takes whole windows.
        against, twin = "float32", reference.outputs
        reference = compiled.quantization.model.reference(samples.inputs, step("float32: running"))
    inputs, ends = reals(stored, compiled.program.inputs), compiled.program.outputs
    return compare(ends, outputs, reference.outputs, samples.labels, against, metric, twin, inputs), reference


def _sample_results(
    compiled: CompiledModel, samples: Samples, outputs: Sequence[Sample], reference: Sequence[Sample], classes: bool
) -> SampleResults | None:
    """Return the results of single samples by the first numeric output, in real values."""
    numeric = [e for e in compiled.program.outputs if e.name in outputs[0]][:1]
    first_outputs = [next(iter(sample.values())) for sample in reals(outputs, numeric)]
    views = samples.inputs if samples.raw is None else [{"raw": raw} for raw in samples.raw]
    if classes:
        return sample_results(first_outputs, views, samples.labels, compiled.options.labels)
    return farthest_results(first_outputs, [next(iter(sample.values())) for sample in reals(reference, numeric)], views)


def _with_input(report: Report, compiled: CompiledModel, stored: Sequence[Sample], run: Execution) -> Report:
    """Return the report with the cost of the input pipeline.

    Raises:
        VerificationError: If the pipeline's bits differ from those of numpy.
    """
    (port, *_), figures, ram = compiled.bundle.inputs, report.input_pipeline, report.ram
    assert figures is not None
    for number, (sample, crc) in enumerate(zip(stored, run.crcs, strict=True)):
        if zlib.crc32(np.ascontiguousarray(sample[port.name]).tobytes()) != crc:
            problem = f"another input for sample {number}"
            raise VerificationError("the generated pipeline must give the same bits as numpy", problem)
    figures = replace(figures, instructions=run.input_instructions, verified=len(stored))
    total = None if ram.total is None else ram.total + figures.state
    return replace(report, input_pipeline=figures, ram=replace(ram, total=total))


def _basis(compiled: CompiledModel, samples: Samples) -> Basis:
    """Return what the figures are based on, with the tools that were used."""
    from mcugen.simulation.machines import tool_versions

    compiler, simulator = tool_versions(compiled.board)
    digest = samples_sha256(samples.inputs, samples.labels)
    return replace(compiled.report.basis, compiler=compiler, simulator=simulator, data_sha256=digest)


def _with_states(model: FloatModel, samples: Sequence[Sample], outputs: Sequence[Sample]) -> Iterator[Sample]:
    """Yield the samples with the states that the model kept from the previous ones."""
    states = model.first_states
    for sample, results in zip(samples, outputs, strict=True):
        yield {**states, **sample}
        states = {target: results[source] for source, target in model.states.items()}
