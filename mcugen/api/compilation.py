# SPDX-License-Identifier: Apache-2.0
"""One model for one board, and all that can be asked of it: what the command line does, for Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from mcugen.autotuning.alternatives import compared, notes_of_float_form, other_goals, without_deadlines
from mcugen.autotuning.latency import Deadline, Pace, within
from mcugen.autotuning.measured_kernels import tuned
from mcugen.autotuning.precision import Answer, Demand, Question, Search
from mcugen.autotuning.step_latency import in_short_steps
from mcugen.backends.cpu.pipeline import Trace, fuse_float
from mcugen.core.board import Board, load_board
from mcugen.core.errors import ConstraintError, DoesNotFitError, McugenError, ModelError, UnsupportedError, UsageError
from mcugen.core.options import DIVERGED_DB, LOSSES, MIXED, CompileOptions, Training
from mcugen.distributed.sharing import ONLY_THIS_PROCESS, Workers
from mcugen.driver.compiled import CompiledModel, stacked
from mcugen.driver.compiler import compile_model, drafted
from mcugen.driver.parameters import require_room_quantized
from mcugen.driver.plugins import registry_of
from mcugen.driver.tasks import Judging, Quantizing, Teaching
from mcugen.driver.variants import Variants
from mcugen.evaluation.layers import LEARNING, REMEDIES, PrecisionReason, precision_lines
from mcugen.evaluation.sample_warnings import label_warnings, range_warnings
from mcugen.evaluation.samples import Samples, as_stored, graph_endpoints, load_samples, random_samples, value_endpoints
from mcugen.export.task import Exported, Packaging, declared, export
from mcugen.frontend.onnx.load import LoadedModel, load
from mcugen.frontend.onnx.lost_constants import (
    Loss,
    LostConstant,
    describe_lost,
    lost_constants,
    remedy_of,
    what_is_lost,
)
from mcugen.hir.graph import Graph
from mcugen.hir.types import Array, DType
from mcugen.measurement.evaluate import evaluate, metric_of, sample_endpoints, step_cycles, timed
from mcugen.measurement.lessons import Trial, best, candidates, learn, lengths, sensitive, tried
from mcugen.measurement.plausibility import with_plausibility
from mcugen.measurement.selftests import may_run_on_given, with_given_sample, with_selftest
from mcugen.measurement.stack_bounds import with_stack_bound
from mcugen.ops.onnx_node import Refusal
from mcugen.pipelines import Feed, bind, with_preprocessing
from mcugen.quantization.advice import Advisor
from mcugen.quantization.calibration_warnings import calibration_warnings
from mcugen.quantization.estimate import apart, estimated, hold_out, judged_samples
from mcugen.quantization.finetune import finetuned
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.precisions import calibrated_ranges, other_precisions, searched
from mcugen.quantization.profile import Profile, profile_model, profile_notes
from mcugen.quantization.profile_file import read_profile
from mcugen.quantization.quantize import (
    Progress,
    Quantization,
    Quantizer,
    float_model,
    no_progress,
    quantizer,
    with_states,
)
from mcugen.quantization.rescue import rescued
from mcugen.quantization.samples import in_own_order, without_strays
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.scores import with_float_scores
from mcugen.quantization.synthetic import synthetic_samples
from mcugen.reporting.basis import samples_sha256
from mcugen.reporting.figures import Alternative, LearningFigures, Report
from mcugen.training.layers import cells_behind, has_channels, layer_name, trainable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcugen.hir.graph import Node
    from mcugen.lir.program import Endpoint

SampleSource = Path | Mapping[str, Array]
"""A file or folder of samples, or arrays as an .npz file has them: see mcugen.evaluation.samples.load_samples."""


@dataclass
class Compilation:
    """Quantizes, compiles, runs and judges a model; each step is done when it is first asked for, and once.

    `progress` is told what is done, how many steps of it, of how many; `trace` watches passes. All methods raise the
    errors of mcugen.core.errors.

        net = Compilation("model.onnx", "rt1060", quantizing=Quantizing(calibration="samples.npz"))
        net.write("net")
        print(net.report("eval.npz").accuracy)
    """

    model: str | Path | onnx.ModelProto
    board: str | Board = "host"
    options: CompileOptions = field(default_factory=CompileOptions)
    quantizing: Quantizing = field(default_factory=Quantizing)
    judging: Judging = field(default_factory=Judging)
    progress: Progress = no_progress
    trace: Trace | None = None
    workers: Workers = ONLY_THIS_PROCESS
    """Run samples, and what a search tries."""
    teaching: Teaching | None = None
    """What a model that learns is shown."""
    search: Search | None = field(default=None, init=False)
    """The search for the precisions of layers, once it has begun."""
    notes: list[str] = field(default_factory=list, init=False)
    """What was taken for granted of model and samples, once `run` has been asked for."""
    warnings: list[str] = field(default_factory=list, init=False)
    """What is wrong with samples, once `run` or `profile` has been asked for."""

    def __post_init__(self) -> None:
        pipeline, preprocess = self.options.input_pipeline, self.quantizing.preprocess
        if pipeline and preprocess:  # one of them prepares samples: that which becomes C
            self.options = replace(self.options, input_pipeline=with_preprocessing(pipeline, preprocess))
            self.quantizing = replace(self.quantizing, preprocess="")

    @cached_property
    def target(self) -> Board:
        """The board, loaded if it was given by name or file."""
        return self.board if isinstance(self.board, Board) else load_board(self.board)

    @cached_property
    def source(self) -> LoadedModel:
        """The checked model, with the operators of mcugen and of the options' plug-ins."""
        return load(self.model, registry_of(self.options.plugins), self.options.input_types)

    @cached_property
    def float_model(self) -> FloatModel:
        """What is quantized or profiled."""
        layers = self.quantizing.layers.values()
        wide = self.quantizing.precision == MIXED or not {"int32", "int16", "int4", "int2"}.isdisjoint(layers)
        return float_model(self.source, self.options, self._scheme, wide)

    @cached_property
    def quantized(self) -> Quantization:
        """The quantized model, by samples or a profile, judged; UsageError where neither is given."""
        if not self.quantizing.is_wanted:
            raise UsageError("quantization needs samples of the model's inputs", "none", "give --calibration SAMPLES")
        self._require_constants(Loss.NOT_FINITE)
        basis = self._basis
        samples, kind = judged_samples(basis.held, basis.known, basis.data)
        made_up = bool(self.quantizing.synthetic) and basis.data is None
        kind = "synthetic" if made_up else kind
        if self.quantizing.precision == MIXED:
            self.search = self.make_search()
            found = self.search.run()
            found = replace(found, notes=(*found.notes, self.search.told(kind), *self.search.widened()))
        else:
            found = basis.maker.quantize(basis.layers)
        judge = partial(estimated, samples=samples, kind=kind)
        if basis.data is not None:
            found = self._refitted(found)
        found = self._finetuned(found, judge) if self.quantizing.finetune else judge(found)
        if basis.data is None:
            found = self._refitted(found)  # judged before: held-out samples must not enter what they judge
        found = self._advisor(samples, is_apart=kind != "calibration").advised(found)
        given, data = basis.given, basis.data
        told = [*basis.notes, *(note for samples in (given, data) if samples for note in samples.notes)]
        digest = samples_sha256(given.inputs) if given else None
        layers = other_precisions(found, {**searched(found, basis.layers), **basis.because})
        warnings = self._sample_warnings(found)
        notes = [note for note in found.notes if note not in warnings]
        return replace(
            found,
            notes=(*notes, *precision_lines(layers), *told),
            calibration_sha256=digest,
            warnings=tuple(warnings),
            other_precisions=layers,
        )

    def _advisor(self, judged: Sequence[Mapping[str, Array]], *, is_apart: bool) -> Advisor:
        """Return what tries advice, on some of the samples."""
        basis, quantizing = self._basis, self.quantizing
        wanted = {name: DType(precision) for name, precision in quantizing.layers.items()}
        is_searched = quantizing.precision == MIXED
        return Advisor(
            self.source, self.options, self._scheme, wanted, basis.known, judged, is_apart, is_searched, self.progress
        )

    def _sample_warnings(self, quantization: Quantization) -> list[str]:
        """Return what is wrong with the samples that a model was quantized and judged by."""
        basis, model = self._basis, quantization.model
        lost = self._lost_constants
        real = None if self.quantizing.synthetic else basis.given
        faults = [describe_lost(lost)] * bool(lost)
        faults += calibration_warnings(model, self.source.proto, quantization.profile, real)
        faults += [text for samples in (basis.given, basis.data) if samples for text in samples.warnings]
        if basis.data is None:
            return faults
        inputs, outputs = graph_endpoints(model.graph, model.states), value_endpoints(model.graph.outputs)
        faults += label_warnings(basis.data.labels, outputs, inputs, self.judging.metric)
        return faults + range_warnings(basis.data.inputs, calibrated_ranges(quantization))

    def _refitted(self, found: Quantization) -> Quantization:
        """Return a quantization with ranges from all samples, if some were held out."""
        basis = self._basis
        return basis.maker.refit(found, basis.usable) if basis.held else found

    def _finetuned(self, found: Quantization, judge: Callable[[Quantization], Quantization]) -> Quantization:
        """Judged, with better codes, where there are any; a note tells what quantization cost before."""
        basis, epochs, least = self._basis, self.quantizing.finetune, self.judging.min_sqnr
        before = judge(found)
        tuned = finetuned(basis.maker, before, epochs, least, partial(self.progress, "fine-tuning"))
        if tuned.proto is found.proto:
            return tuned
        told = () if before.estimate is None else (f"before fine-tuning: {before.estimate}",)
        learned = tuned.notes[len(before.notes) :]
        return judge(replace(tuned, notes=(*found.notes, *learned, *told)))

    def _learning_cells(self, graph: Graph) -> list[str]:
        """Recurrent layers that are to learn, or that gradients go through: they stay reals, as loops of codes have no
        derivative.
        """
        training = self.options.training
        return [] if training is None or training.is_head else cells_behind(graph, training.layers, training.is_open)

    @cached_property
    def _basis(self) -> _Basis:
        """What precisions are chosen by."""
        target, fused = self.target, self.float_model
        endpoints = graph_endpoints(fused.graph, self.options.states)
        calibration, judging = self.quantizing.calibration, self.judging.data
        given = None if calibration is None else self.samples(calibration, endpoints)
        is_searched = self.quantizing.precision == MIXED
        data = None if judging is None else self.samples(judging, endpoints, accepts_nonfinite=not is_searched)
        if self.quantizing.synthetic:
            made, note = synthetic_samples(fused, self.source.proto, self.quantizing.synthetic)
            given = Samples(made, None, (note,))
        profile = read_profile(Path(self.quantizing.profile), fused) if self.quantizing.profile else None
        usable, strays = self._usable(given) if not self.quantizing.synthetic or given is None else (given.inputs, [])
        known: Sequence[Mapping[str, Array]] = usable
        held: Sequence[Mapping[str, Array]] = ()
        if profile is None and self.quantizing.precision != MIXED:
            known, held = hold_out(usable, bool(self.options.states))
        elif profile is None and data is None:  # evaluation data are what precisions are judged by
            known, held = apart(usable, bool(self.options.states))
        wanted = {name: DType(precision) for name, precision in self.quantizing.layers.items()}
        learning = dict.fromkeys(self._learning_cells(fused.graph), DType.FLOAT32)
        asked = learning | wanted
        wanted, scores = with_float_scores(fused.graph, asked)
        decided = wanted if self.quantizing.precision == MIXED else None
        require_room_quantized(self.source, fused, self._scheme, known, profile, target, self.options, decided)
        maker = quantizer(self.source, fused, self._scheme, known, profile, self.progress)
        is_searched = decided is not None
        layers, raised, compensation = rescued(maker, wanted, is_searched=is_searched, time_of=self._estimated_time)
        learned = [PrecisionReason(n, dtype.value, LEARNING, REMEDIES[LEARNING]) for n, dtype in learning.items()]
        because = {reason.layer: reason for reason in (*maker.unrounded.reasons, *learned, *scores, *raised)}
        notes = [*strays, *maker.unrounded.notes, *compensation]
        return _Basis(maker, given, data, usable, known, held, profile is not None, layers, because, notes)

    def _estimated_time(self, quantization: Quantization) -> float | None:
        """Return the estimated cycles of a model on the board, else its instructions; None if neither is known."""
        try:
            _, program = drafted(quantization, self.target, self.options)
        except McugenError:
            return None
        return program.cycles_estimate or program.instructions_estimate

    def make_search(self) -> Search:
        """For the precisions of layers; the workers of a cluster answer its questions."""
        basis, judging = self._basis, self.judging
        graph = self.float_model.graph
        endpoints = graph_endpoints(graph, self.options.states)
        given = basis.given and basis.given.only(basis.held or basis.known)
        samples = basis.data or given or random_samples(endpoints)
        metric = metric_of(judging.metric, samples.labels, value_endpoints(graph.outputs), endpoints)
        demand = Demand(metric, judging.max_drop, judging.min_sqnr, judging.max_weights)
        search = Search(basis.maker, self.target, self.options, samples, demand, basis.layers, self.progress)
        search.is_crossed = samples is given and not (basis.held or basis.is_profiled or self.options.states)
        deadline = Deadline.of(self.options, self.target)
        search.pace = Pace(deadline, self._timed) if deadline else None
        if self.workers.cluster:
            elsewhere = _Elsewhere(self.source.given, self.target, self.options, self.quantizing, judging)
            search.share = partial(self.workers.each_done, elsewhere)
        return search

    @cached_property
    def compiled(self) -> CompiledModel:
        """The model as it is, or quantized first."""
        training = self.options.training
        if training is None or not training.is_open:
            return self._compiled(self.options)
        found = best(self.trials)
        options = replace(self.options, training=replace(training, layers=found.layers))
        compiled = self._compiled(options)
        others = "; ".join(str(trial) for trial in self.trials if trial is not found)
        told = f"trained: {found}; of what else was tried: {others or 'nothing'}"
        return replace(compiled, report=replace(compiled.report, notes=(*compiled.report.notes, told)))

    @cached_property
    def trials(self) -> list[Trial]:
        """Of `--train auto`: what was tried. UsageError without a lesson; what the model or the budget refuses, or what
        diverges, is not among them, but if nothing is left, the last refusal is raised.
        """
        training = self.options.training
        assert training is not None
        if self.teaching is None:
            raise UsageError("--train auto chooses by what layers learn", "no lesson", "give --lesson TRAIN.npz")
        if training.loss != LOSSES[0]:
            remedy = f"name what is trained, e.g. --train last:1 --loss {training.loss}, without --lesson"
            raise UsageError("--train auto chooses by how many classes are told", f"--loss {training.loss}", remedy)
        known = self._trainable()
        tries = [*candidates(max(1, len(known))), *self._sparse(known)]  # a model without layers is refused in a trial
        found, refused = [], None
        for index, layers in enumerate(tries):
            self.progress(f"learning {layers}", index, len(tries))
            try:
                compiled = self._compiled(replace(self.options, training=replace(training, layers=layers)))
                lesson = self.samples(self.teaching.lesson, sample_endpoints(compiled))
                found.append(tried(compiled, self.teaching, lesson))
            except (ConstraintError, DoesNotFitError, Refusal, UnsupportedError, UsageError) as error:
                refused = error
        if not found and refused is not None:
            raise refused
        return found

    def alternatives(self) -> tuple[Alternative, ...]:
        """What the model takes by estimate, and what it would by each other goal, and in float32: nothing runs."""
        makes = {f"--optimize {goal}": partial(self._made, other) for goal, other in other_goals(self.compiled.options)}
        if self.quantizing.is_wanted:
            real = replace(self.options, integer_io=False)
            makes["--precision float32"] = partial(compile_model, self.model, self.target, without_deadlines(real))
        return compared(self.compiled, makes, self.progress)

    def _made(self, options: CompileOptions) -> CompiledModel:
        """Without looking for a way to be fast enough."""
        model = self.quantized if self.quantizing.is_wanted else self.model
        return compile_model(model, self.target, options, self.trace)

    def _sparse(self, layers: Sequence[Node]) -> Iterator[str]:
        """Besides the last layer the channels that matter most of those before it: sparse updates."""
        assert self.teaching is not None and self.options.training is not None
        able = {layer_name(node) for node in layers if has_channels(node)}
        for count in lengths(len(layers))[1:]:
            training = Training(f"last:{count}", self.options.training.loss, "momentum", precision="float32")
            options = replace(self.options, training=training, max_ram=None, max_flash=None)
            try:
                compiled = compile_model(self.quantized if self.quantizing.is_wanted else self.model, "host", options)
            except (ConstraintError, DoesNotFitError, Refusal, UnsupportedError, UsageError):
                return
            lesson = self.samples(self.teaching.lesson, sample_endpoints(compiled))
            chosen = sensitive(compiled, self.teaching, lesson)
            last = layer_name(layers[-1])
            parts = [f"{n}[{';'.join(map(str, some))}]" for n, some in chosen.items() if n in able and n != last]
            if parts:
                yield ",".join([*parts, "last:1"])

    def _trainable(self) -> list[Node]:
        """The layers that there are to train."""
        proto = self.quantized.loaded.proto if self.quantizing.is_wanted else self.source.proto
        options = replace(self.options, dims={}, bound={}) if self.quantizing.is_wanted else self.options
        graph = Variants(proto, "", options, self.target).graph({})
        fuse_float(graph)
        return trainable(graph)

    def _compiled(self, options: CompileOptions) -> CompiledModel:
        scheme = self.quantizing.scheme
        if not self.quantizing.is_wanted:
            options = replace(options, integer_io=options.integer_io or (scheme is not None and scheme.integer_io))
        deadline = Deadline.of(options, self.target)
        compiled = self._within_limits(options, deadline)
        if self.quantizing.is_wanted:
            more = notes_of_float_form(compiled, self.quantized, self.source, self.quantizing.precision)
            report = replace(compiled.report, notes=(*compiled.report.notes, *more))
            compiled = replace(compiled, report=report, draft=compiled.draft._replace(report=report.to_json()))
        if options.stack_bound:
            compiled = with_stack_bound(compiled)
        given = self._given(compiled) if options.self_test or options.plausible or may_run_on_given(compiled) else []
        if options.plausible:
            compiled = with_plausibility(compiled, given)
        if options.self_test:
            return with_selftest(compiled, given)
        return with_given_sample(compiled, given, "--data" if self.judging.data is not None else "--calibration")

    def _given(self, compiled: CompiledModel) -> list[dict[str, Array]]:
        """Samples of the user's, as the generated code takes them."""
        source = self.judging.data or self.quantizing.calibration
        if source is None:
            return []
        is_strict = bool(self.options.self_test or self.options.plausible)
        samples = self.samples(source, sample_endpoints(compiled), accepts_nonfinite=not is_strict).inputs
        return [as_stored(sample, compiled.program.inputs) for sample in samples]

    def _within_limits(self, options: CompileOptions, deadline: Deadline | None) -> CompiledModel:
        """Fast enough, if that is asked for."""
        make = partial(tuned, make=self._made) if options.tune else self._made
        if options.max_step_cycles is not None:
            return in_short_steps(options, make, lambda compiled: step_cycles(compiled, self.progress))
        if deadline is None:
            return make(options)
        return within(deadline, options, make, self._timed)

    def _timed(self, compiled: CompiledModel) -> Report:
        return timed(compiled, self.progress)

    def write(self, folder: str | Path | None = None) -> Path:
        """Writes the C files, to a folder called like the model unless told otherwise."""
        return self.compiled.write(folder or self.compiled.bundle.name)

    def export(self, format_: str, folder: str | Path | None = None, packaging: Packaging | None = None) -> Exported:
        """Writes a package for an IDE or a build system (one of mcugen.export.formats.FORMATS)."""
        known = declared(format_)
        return export(self.compiled, known, None if folder is None else Path(folder), packaging or Packaging())

    def run(self, inputs: str | SampleSource) -> dict[str, Array]:
        """The outputs of the generated code, with a leading axis of samples, built for the board and run."""
        samples = self.samples(inputs, self.compiled.program.inputs, accepts_nonfinite=True)
        self.notes = [*self.compiled.report.notes, *samples.notes]
        self.warnings = [*self.compiled.report.warnings, *samples.warnings]
        total, name, given = len(samples.inputs), self.target.name, samples.fed(samples.inputs)

        def advance(done: int) -> None:
            self.progress(f"{name}: running", done, total)

        return stacked(self.compiled.simulate(given, measure=False, progress=advance).outputs)

    def report(
        self,
        data: str | SampleSource | None = None,
        *,
        diverged: float = DIVERGED_DB,
        wait_states: int | None = None,
    ) -> Report:
        """Runs samples (default: see `judging_samples`) and measures: accuracy, instructions, memory.

        Layers of a quantized model have diverged below so many dB of SQNR; `wait_states` of flash are instead
        of the board's. The result does not depend on the workers.
        """
        samples = self.judging_samples(data)
        program = self.compiled.program
        metric = metric_of(self.judging.metric, samples.labels, program.outputs, program.inputs)
        return evaluate(self.compiled, samples, metric, diverged, self.progress, wait_states, self.workers)

    def learned(self) -> LearningFigures:
        """What the model learns of `teaching`, judged by samples of `judging`, on the simulated board."""
        assert self.teaching is not None
        lesson = self.samples(self.teaching.lesson, sample_endpoints(self.compiled))
        plain = self._compiled(replace(self.options, training=None))
        return learn(self.compiled, plain, self.teaching, lesson, self.judging_samples(), self.progress)

    def judging_samples(self, data: str | SampleSource | None = None) -> Samples:
        """What a report runs: these, or those of `judging`, or the first that calibrated, or a random one.

        A random one is unlike what ranges were taken from, and would make a good model look bad.
        """
        source = self.judging.data if data is None else data
        endpoints = sample_endpoints(self.compiled)
        if source is not None:
            return self.samples(source, endpoints, accepts_nonfinite=True)
        known = self.quantizing.calibration if self.compiled.quantization is not None else None
        if known is None:
            return self._random(endpoints)
        first = self.samples(known, endpoints)
        note = "accuracy is that of the first sample of --calibration, which flatters: --data judges by others"
        return Samples(first.inputs[:1], None, (*first.notes, note), first.raw and first.raw[:1])

    def profile(self) -> tuple[Profile, list[str]]:
        """What tensors of the float model are like on the samples of calibration, and notes of what was assumed."""
        fused = self.float_model
        assert self.quantizing.calibration is not None, "a profile is made of samples"
        given = self.samples(self.quantizing.calibration, graph_endpoints(fused.graph, self.options.states))
        usable, strays = self._usable(given)
        samples = with_states(fused, usable)
        made = profile_model(fused, samples, lambda done, total: self.progress("profiling", done, total))
        self.warnings = [*given.warnings, *calibration_warnings(fused, self.source.proto, made, given)]
        few = [note for note in profile_notes(fused, made) if note not in self.warnings]
        return made, [*fused.graph.notes, *strays, *given.notes, *few]

    def samples(
        self, source: str | SampleSource, endpoints: Sequence[Endpoint], *, accepts_nonfinite: bool = False
    ) -> Samples:
        """Return samples for these inputs, prepared as `judging` and `quantizing` say.

        Args:
            source: A file, a folder or arrays.
            endpoints: The inputs.
            accepts_nonfinite: Whether float inputs may be NaN or infinite. Ranges and gradients need numbers.

        Raises:
            UsageError: The samples are not of the inputs' shapes and types.
        """
        where = Path(source) if isinstance(source, str) else source
        if self.options.input_pipeline:
            return self._feed(endpoints).samples(where)
        scale, preprocess = self.judging.pixel_scale, self.quantizing.preprocess
        try:
            return load_samples(where, endpoints, scale, preprocess, accepts_nonfinite=accepts_nonfinite)
        except UsageError as error:
            self._require_constants(Loss.INPUT, error)  # users do not know of these inputs
            raise

    @property
    def _lost_constants(self) -> list[LostConstant]:
        """What the exporter lost of normalizations."""
        return lost_constants(self.source.given.graph, self.options.bound)

    def _require_constants(self, loss: Loss, cause: Exception | None = None) -> None:
        """Raise a ModelError if constants of normalizations are lost in this way."""
        lost = self._lost_constants
        if any(constant.loss is loss for constant in lost):
            rule = f"{self.source.file}: Keras' Normalization layer must have its mean and variance"
            raise ModelError(rule, what_is_lost(lost), remedy_of(lost)) from cause

    def _usable(self, given: Samples | None) -> tuple[Sequence[Mapping[str, Array]], list[str]]:
        """Samples for calibration in an order of their own, unless they are a stream; notes of those left out."""
        if given is None or self.options.states:
            return given.inputs if given else (), []
        kept, notes = without_strays(given.inputs)
        return in_own_order(kept), notes

    def _feed(self, endpoints: Sequence[Endpoint]) -> Feed:
        """What makes samples of raw data. UsageError for other options that prepare samples."""
        if self.judging.pixel_scale != 1.0:
            raise UsageError("samples are prepared by --input-pipeline alone", "--pixel-scale", "leave it out")
        return bind(self.options.input_pipeline, endpoints)

    def _random(self, endpoints: Sequence[Endpoint]) -> Samples:
        return self._feed(endpoints).random() if self.options.input_pipeline else random_samples(endpoints)

    @property
    def _scheme(self) -> Scheme:
        given = self.quantizing
        return given.scheme or Scheme(DType(given.activations), weights=DType(given.weights), group=given.group)


@dataclass(frozen=True)
class _Basis:
    """What a model is quantized by: of the `usable` samples, `known` choose, and `held` judge."""

    maker: Quantizer
    given: Samples | None
    data: Samples | None
    usable: Sequence[Mapping[str, Array]]
    known: Sequence[Mapping[str, Array]]
    held: Sequence[Mapping[str, Array]]
    is_profiled: bool
    layers: Mapping[str, DType]
    because: Mapping[str, PrecisionReason]
    """Why layers have a type of their own that nobody asked for by name."""
    notes: Sequence[str]


@dataclass
class _Elsewhere:
    """A search in another process, which makes its models itself: of the same causes, so that they are the same."""

    model: onnx.ModelProto
    board: Board
    options: CompileOptions
    quantizing: Quantizing
    judging: Judging

    def __call__(self, question: Question) -> Answer:
        """What the search of this process says."""
        return self._search.answer(question)

    @cached_property
    def _search(self) -> Search:
        return Compilation(self.model, self.board, self.options, self.quantizing, self.judging).make_search()
