# SPDX-License-Identifier: Apache-2.0
"""The Python interface to all operations of the command line on one model for one board."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from mcugen.autotuning.alternatives import (
    compare_alternatives,
    compare_with_float_program,
    compare_with_integer_io,
    other_goals,
    refusal_with_integer_io,
    without_deadlines,
)
from mcugen.autotuning.latency import DeadlineCheck, meet_deadline
from mcugen.autotuning.measured_kernels import tune_kernels
from mcugen.autotuning.precision import AccuracyDemand, Answer, LayerQuestion, PrecisionSearch
from mcugen.autotuning.simulated import SimulatedCostModel, SimulatedSearch
from mcugen.autotuning.step_latency import compile_in_short_steps
from mcugen.backends.cpu.pipeline import fuse_float
from mcugen.codegen.write import check_folder, check_writable
from mcugen.core.board import Board, load_board
from mcugen.core.errors import ConstraintError, DoesNotFitError, McugenError, ModelError, UnsupportedError, UsageError
from mcugen.core.options import DIVERGED_DB, LOSS_NAMES, MIXED, CompileOptions, Training
from mcugen.distributed.sharing import ONLY_THIS_PROCESS, Workers
from mcugen.driver.compilation_trace import CompilationTrace
from mcugen.driver.compiled import CompiledModel, stack_samples
from mcugen.driver.compiler import compile_model
from mcugen.driver.drafts import draft_program
from mcugen.driver.option_checks import check_options, check_teaching, reading_for, resolve_goal
from mcugen.driver.parameters import require_room_quantized
from mcugen.driver.plugins import registry_of
from mcugen.driver.tasks import Judging, Quantizing, Teaching
from mcugen.driver.variants import Variants
from mcugen.evaluation.layers import LEARNING, REASON_REMEDIES, PrecisionReason, precision_lines
from mcugen.evaluation.metrics import check_metric
from mcugen.evaluation.sample_warnings import label_warnings, range_warnings
from mcugen.evaluation.samples import Samples, as_stored, graph_endpoints, load_samples, random_samples, value_endpoints
from mcugen.export.task import Exported, Packaging, check_packaging, export, format_by_name
from mcugen.frontend.onnx.load import LoadedModel, load
from mcugen.frontend.onnx.lost_constants import (
    ConstantLoss,
    LostConstant,
    describe_lost,
    list_lost_constants,
    lost_constants,
    remedy_of,
)
from mcugen.hir.graph import Graph
from mcugen.hir.layer_names import find_layer
from mcugen.hir.types import Array, DType
from mcugen.measurement.evaluate import (
    call_samples,
    choose_metric,
    evaluate,
    measure_once,
    sample_endpoints,
    step_cycles,
)
from mcugen.measurement.lessons import (
    TrainingTrial,
    best_trial,
    channels_to_train,
    simulate_training,
    trial_layer_counts,
    trial_selections,
    try_training,
)
from mcugen.measurement.monitoring import with_monitor
from mcugen.measurement.plausibility import with_plausibility
from mcugen.measurement.selftests import can_use_user_sample, use_user_sample, with_selftest
from mcugen.measurement.stack_bounds import with_stack_bound
from mcugen.ops.onnx_node import Refusal
from mcugen.options.arguments import CompilationTask
from mcugen.pipelines import Feed, bind_pipeline, takes_preprocessing, with_preprocessing
from mcugen.quantization.advice import Advisor
from mcugen.quantization.calibration_warnings import calibration_warnings
from mcugen.quantization.estimate import choose_evaluation_samples, estimate_loss, hold_out, split_samples
from mcugen.quantization.finetune import finetune
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.precisions import calibrated_ranges, other_precisions, search_reasons
from mcugen.quantization.profile import Profile, profile_model, profile_notes
from mcugen.quantization.profile_file import read_profile
from mcugen.quantization.quantize import (
    Progress,
    Quantization,
    Quantizer,
    add_stream_states,
    create_quantizer,
    import_float_model,
    no_progress,
)
from mcugen.quantization.rescue import rescue_layers
from mcugen.quantization.samples import sort_samples, without_outliers
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.scores import with_float_scores
from mcugen.quantization.synthetic import synthetic_samples
from mcugen.reporting.basis import samples_sha256
from mcugen.reporting.figures import Alternative, LearningFigures, Report
from mcugen.search.objective import Deadline, Objective

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mcugen.hir.graph import Node
    from mcugen.lir.program import Endpoint

SampleSource = Path | Mapping[str, Array]
"""Type of samples: a file or folder, or arrays by name as in an .npz file (mcugen.evaluation.samples.load_samples)."""


@dataclass
class Compilation:
    """A model that is quantized, compiled, run and evaluated for one board; each step runs once, on first use.

    All methods raise the errors of mcugen.core.errors.

    Attributes:
        model: An ONNX model or its file.
        board: The board, or its name or file.
        options: Options of the generated code.
        quantizing: How the model is quantized, if it is.
        judging: Samples and metric of the evaluation.
        progress: Called with the name of a task, the number of finished steps, and the number of all steps.
        trace: Records the effects of passes and of the program search.

    Examples:
        >>> net = Compilation("model.onnx", "rt1060", quantizing=Quantizing(calibration="samples.npz"))
        >>> net.write("net")
        >>> print(net.report("eval.npz").accuracy)
    """

    model: str | Path | onnx.ModelProto
    board: str | Board = "host"
    options: CompileOptions = field(default_factory=CompileOptions)
    quantizing: Quantizing = field(default_factory=Quantizing)
    judging: Judging = field(default_factory=Judging)
    progress: Progress = no_progress
    trace: CompilationTrace | None = None
    workers: Workers = ONLY_THIS_PROCESS
    """Processes or computers that run samples, and that evaluate candidates of a search."""
    teaching: Teaching | None = None
    """Samples and learning rate for the training of a trainable model."""
    search: PrecisionSearch | None = field(default=None, init=False)
    """The precision search of `--precision auto`; None until it begins."""
    notes: list[str] = field(default_factory=list, init=False)
    """Assumptions about the model and the samples, one text each; set by `run`."""
    warnings: list[str] = field(default_factory=list, init=False)
    """Problems of the samples, one text each; set by `run` and `profile`."""

    @classmethod
    def of(
        cls,
        model: str | Path | onnx.ModelProto,
        board: str | Board,
        task: CompilationTask,
        *,
        teaching: Teaching | None = None,
        workers: Workers = ONLY_THIS_PROCESS,
        trace: CompilationTrace | None = None,
    ) -> Compilation:
        """Return the compilation of a model for a board with the options of a task.

        Args:
            model: An ONNX model or its file.
            board: The board, or its name or file.
            task: The options of code, quantization and evaluation.
            teaching: Samples and learning rate for training; None if the model is not trained.
            workers: Processes or computers that run samples, and that evaluate candidates of a search.
            trace: Records the effects of passes and of the program search; None to record nothing.
        """
        parts = (task.options, task.quantizing, task.judging)
        return cls(model, board, *parts, trace=trace, workers=workers, teaching=teaching)

    def __post_init__(self) -> None:
        self.options = resolve_goal(self.options)
        pipeline, preprocess = self.options.input_pipeline, self.quantizing.preprocess
        if pipeline and not preprocess and takes_preprocessing(pipeline):
            preprocess = self.source.preprocess
        if pipeline and preprocess:  # Only one of them prepares samples: the input pipeline, which becomes C.
            self.options = replace(self.options, input_pipeline=with_preprocessing(pipeline, preprocess))
            self.quantizing = replace(self.quantizing, preprocess="")

    @cached_property
    def target(self) -> Board:
        """Return the board, loaded if it was given by name or file."""
        return self.board if isinstance(self.board, Board) else load_board(self.board)

    @cached_property
    def source(self) -> LoadedModel:
        """Return the checked model, imported with the operators of mcugen and of the options' plug-ins."""
        return load(
            self.model,
            registry_of(self.options.plugins),
            self.options.input_types,
            reading_for(self.options),
        )

    @cached_property
    def complete_options(self) -> CompileOptions:
        """Return the options with the states that the model itself declares."""
        return replace(self.options, states=self.source.states_with(self.options.states))

    @cached_property
    def float_model(self) -> FloatModel:
        """Return the fused float model, which is quantized or profiled."""
        layers = self.quantizing.layers.values()
        wide = self.quantizing.precision == MIXED or not {"int32", "int16", "int4", "int2"}.isdisjoint(layers)
        return import_float_model(self.source, self.complete_options, self._scheme, wide)

    @cached_property
    def quantized(self) -> Quantization:
        """Quantize the model with ranges from samples or a profile, and estimate its accuracy.

        Raises:
            UsageError: Neither samples nor a profile is given.
        """
        if not self.quantizing.is_wanted:
            raise UsageError("quantization needs samples of the model's inputs", "none", "give --calibration SAMPLES")
        check_metric(self.judging.metric)
        self._require_constants(ConstantLoss.NOT_FINITE)
        basis = self._basis
        samples, kind = choose_evaluation_samples(basis.held, basis.known, basis.data)
        is_synthetic = bool(self.quantizing.synthetic) and basis.data is None
        kind = "synthetic" if is_synthetic else kind
        if self.quantizing.precision == MIXED:
            self.search = self.make_search()
            quantization = self.search.run()
            quantization = replace(
                quantization, notes=(*quantization.notes, self.search.accuracy_note(kind), *self.search.excess_notes())
            )
        else:
            quantization = basis.maker.quantize(basis.layers)
        judge = partial(estimate_loss, samples=samples, kind=kind)
        if basis.data is not None:
            quantization = self._refit_ranges(quantization)
        quantization = self._finetune(quantization, judge) if self.quantizing.finetune else judge(quantization)
        if basis.data is None:
            # The estimate comes first: held-out samples must not influence the ranges that they evaluate.
            quantization = self._refit_ranges(quantization)
        quantization = self._advisor(samples, is_apart=kind != "calibration").with_advice(quantization)
        calibration, data = basis.given, basis.data
        sample_notes = [*basis.notes, *(note for samples in (calibration, data) if samples for note in samples.notes)]
        digest = samples_sha256(calibration.inputs) if calibration else None
        layers = other_precisions(quantization, {**search_reasons(quantization, basis.layers), **basis.because})
        warnings = self._sample_warnings(quantization)
        notes = [note for note in quantization.notes if note not in warnings]
        return replace(
            quantization,
            notes=(*notes, *precision_lines(layers), *sample_notes),
            calibration_sha256=digest,
            warnings=tuple(warnings),
            other_precisions=layers,
        )

    def _advisor(self, judged: Sequence[Mapping[str, Array]], *, is_apart: bool) -> Advisor:
        """Return the advisor, which tries improvements on samples that judge the quantization.

        `is_apart` says whether these samples differ from the calibration samples.
        """
        basis, quantizing = self._basis, self.quantizing
        is_searched = quantizing.precision == MIXED
        return Advisor(
            self.source,
            self.complete_options,
            self._scheme,
            self._requested_types,
            basis.known,
            judged,
            is_apart,
            is_searched,
            self.progress,
        )

    def _sample_warnings(self, quantization: Quantization) -> list[str]:
        """Return warnings about the samples that calibrated and evaluated a quantization."""
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

    def _refit_ranges(self, quantization: Quantization) -> Quantization:
        """Return a quantization with ranges from all samples, if some were held out."""
        basis = self._basis
        return basis.maker.refit(quantization, basis.usable) if basis.held else quantization

    def _finetune(self, quantization: Quantization, judge: Callable[[Quantization], Quantization]) -> Quantization:
        """Return a quantization with fine-tuned weights and its estimated accuracy.

        If fine-tuning finds better weights, a note gives the accuracy before it. `judge` estimates the accuracy.
        """
        basis, epochs, min_sqnr = self._basis, self.quantizing.finetune, self.judging.min_sqnr
        before = judge(quantization)
        finetuned = finetune(basis.maker, before, epochs, min_sqnr, partial(self.progress, "fine-tuning"))
        if finetuned.proto is quantization.proto:
            return finetuned
        accuracy_notes = () if before.estimate is None else (f"before fine-tuning: {before.estimate}",)
        tuning_notes = finetuned.notes[len(before.notes) :]
        return judge(replace(finetuned, notes=(*quantization.notes, *tuning_notes, *accuracy_notes)))

    def _trained_recurrent_layers(self, graph: Graph) -> list[str]:
        """Return the names of recurrent layers that are trained, or that gradients pass through.

        These layers stay in float32, as loops of quantized values have no derivative.
        """
        training = self.options.training
        if training is None or training.is_head:
            return []
        from mcugen.training.layers import recurrent_layers_to_train

        return recurrent_layers_to_train(graph, training.layers, training.needs_layer_search)

    @cached_property
    def _requested_types(self) -> dict[str, DType]:
        """Return the types that the user chose, by the names of the layers' results.

        Raises:
            UsageError: A name is no layer's, is part of several, or a layer is named twice.
        """
        types: dict[str, DType] = {}
        for name, precision in self.quantizing.layers.items():
            result = find_layer(self.float_model.graph, name, "--layer").outputs[0].name
            if result in types:
                raise UsageError("--layer must name each layer once", f"'{name}'", "leave one out")
            types[result] = DType(precision)
        return types

    @cached_property
    def _basis(self) -> _QuantizationBasis:
        """Return the samples, the profile and the requests by which precisions are chosen."""
        target, fused = self.target, self.float_model
        endpoints = graph_endpoints(fused.graph, self.complete_options.states)
        calibration, judging = self.quantizing.calibration, self.judging.data
        calibration_samples = None if calibration is None else self.samples(calibration, endpoints)
        is_searched = self.quantizing.precision == MIXED
        data = None if judging is None else self.samples(judging, endpoints, accepts_nonfinite=not is_searched)
        if self.quantizing.synthetic:
            synthetic, note = synthetic_samples(fused, self.source.proto, self.quantizing.synthetic)
            calibration_samples = Samples(synthetic, None, (note,))
        profile = read_profile(Path(self.quantizing.profile), fused) if self.quantizing.profile else None
        usable, strays = (
            self._without_strays(calibration_samples)
            if not self.quantizing.synthetic or calibration_samples is None
            else (calibration_samples.inputs, [])
        )
        known: Sequence[Mapping[str, Array]] = usable
        held: Sequence[Mapping[str, Array]] = ()
        if profile is None and self.quantizing.precision != MIXED:
            known, held = hold_out(usable, bool(self.complete_options.states))
        elif profile is None and data is None:  # Without evaluation data, held-out samples judge the precisions.
            known, held = split_samples(usable, bool(self.complete_options.states))
        requested = self._requested_types
        learning = dict.fromkeys(self._trained_recurrent_layers(fused.graph), DType.FLOAT32)
        requested_or_learning = learning | requested
        requested, scores = with_float_scores(fused.graph, requested_or_learning)
        decided = requested if self.quantizing.precision == MIXED else None
        require_room_quantized(self.source, fused, self._scheme, known, profile, target, self.complete_options, decided)
        maker = create_quantizer(self.source, fused, self._scheme, known, profile, self.progress)
        is_searched = decided is not None
        layers, raised, compensation = rescue_layers(
            maker, requested, is_searched=is_searched, time_of=self._estimated_time
        )
        learned = [
            PrecisionReason(n, dtype.value, LEARNING, REASON_REMEDIES[LEARNING]) for n, dtype in learning.items()
        ]
        because = {reason.layer: reason for reason in (*maker.unrounded.reasons, *learned, *scores, *raised)}
        notes = [*strays, *maker.unrounded.notes, *compensation]
        return _QuantizationBasis(
            maker, calibration_samples, data, usable, known, held, profile is not None, layers, because, notes
        )

    def _estimated_time(self, quantization: Quantization) -> float | None:
        """Return the estimated cycles of a model on the board, else its instructions; None if neither is known."""
        try:
            _, program = draft_program(quantization, self.target, self.complete_options)
        except McugenError:
            return None
        return program.cycles_estimate or program.instructions_estimate

    def make_search(self) -> PrecisionSearch:
        """Return a search for the precision of each layer; the workers of a cluster evaluate its candidates."""
        basis, judging = self._basis, self.judging
        graph = self.float_model.graph
        endpoints = graph_endpoints(graph, self.complete_options.states)
        calibration = basis.given and basis.given.only(basis.held or basis.known)
        samples = basis.data or calibration or random_samples(endpoints)
        metric = choose_metric(judging.metric, samples.labels, value_endpoints(graph.outputs), endpoints)
        demand = AccuracyDemand(metric, judging.max_drop, judging.min_sqnr, judging.max_weights)
        search = PrecisionSearch(
            basis.maker, self.target, self.complete_options, samples, demand, basis.layers, self.progress
        )
        search.trace = self.trace.search if self.trace else None
        search.is_crossed = samples is calibration and not (
            basis.held or basis.is_profiled or self.complete_options.states
        )
        deadline = Deadline.of(self.options, self.target)
        search.deadline_check = DeadlineCheck(deadline, SimulatedCostModel(self._simulate_once)) if deadline else None
        if self.workers.cluster:
            remote_search = _RemoteSearch(
                self.source.given, self.target, self.complete_options, self.quantizing, judging
            )
            search.share = partial(self.workers.run_tasks, remote_search)
        return search

    @cached_property
    def compiled(self) -> CompiledModel:
        """Compile the model; it is quantized first if samples or a profile are given.

        With `--train auto`, the model is first trained in the simulator with several selections of layers. The
        selection of highest accuracy is compiled, and a note lists the others.

        Raises:
            McugenError: The model cannot be compiled. Wrong options are refused before the model is quantized.
        """
        self.check()
        training = self.options.training
        if training is None or not training.needs_layer_search:
            return self._compile(self.complete_options)
        chosen = best_trial(self.trials)
        options = replace(self.complete_options, training=replace(training, layers=chosen.layers))
        compiled = self._compile(options)
        other_trials = "; ".join(str(trial) for trial in self.trials if trial is not chosen)
        note = f"trained: {chosen}; of what else was tried: {other_trials or 'nothing'}"
        return replace(compiled, report=replace(compiled.report, notes=(*compiled.report.notes, note)))

    def check(self) -> None:
        """Check everything that can be checked from options and board alone; no model is loaded or quantized.

        Raises:
            UsageError: An option is invalid or impossible on the board, or options exclude each other.
        """
        check_options(self.options, self.target)
        if self.teaching is not None:
            check_teaching(self.teaching, self.options)

    @cached_property
    def trials(self) -> list[TrainingTrial]:
        """Train the model with several selections of layers for `--train auto`, and return the result of each.

        Selections that the model or the budget does not allow, or whose training diverges, are left out.

        Raises:
            UsageError: There are no training samples, or the loss is not the first of LOSS_NAMES.
            McugenError: No selection is possible; the error is that of the last one.
        """
        self.check()
        training = self.options.training
        assert training is not None
        if self.teaching is None:
            raise UsageError("--train auto needs samples to compare layers", "no lesson", "give --lesson TRAIN.npz")
        if training.loss != LOSS_NAMES[0]:
            remedy = f"name the trained layers, e.g. --train last:1 --loss {training.loss}, without --lesson"
            raise UsageError(
                "--train auto compares layers by the accuracy of classes", f"--loss {training.loss}", remedy
            )
        known = self._trainable_layers()
        selections = [
            *trial_selections(max(1, len(known))),
            *self._sparse_selections(known),
        ]  # A trial refuses a model without layers.
        trials, refusal = [], None
        for index, layers in enumerate(selections):
            self.progress(f"learning {layers}", index, len(selections))
            try:
                compiled = self._compile(replace(self.complete_options, training=replace(training, layers=layers)))
                lesson = self.samples(self.teaching.lesson, sample_endpoints(compiled))
                trials.append(try_training(compiled, self.teaching, lesson))
            except (ConstraintError, DoesNotFitError, Refusal, UnsupportedError, UsageError) as error:
                refusal = error
        if not trials and refusal is not None:
            raise refusal
        return trials

    def alternatives(self) -> tuple[Alternative, ...]:
        """Return the estimated costs of the model for each optimization goal and in float32; nothing is run."""
        builders = {
            f"--optimize {goal}": partial(self._compile_once, other)
            for goal, other in other_goals(self.compiled.options)
        }
        if self.quantizing.is_wanted:
            real = replace(self.complete_options, integer_io=False)
            builders["--precision float32"] = partial(compile_model, self.model, self.target, without_deadlines(real))
        return compare_alternatives(self.compiled, builders, self.progress)

    def _compile_once(self, options: CompileOptions) -> CompiledModel:
        """Compile the model once, quantized if requested; limits on its time are ignored."""
        model = self.quantized if self.quantizing.is_wanted else self.model
        return compile_model(model, self.target, options, self.trace)

    def _sparse_selections(self, layers: Sequence[Node]) -> Iterator[str]:
        """Yield selections for sparse updates: the last layer, and the most sensitive channels of layers before it."""
        from mcugen.training.layers import has_channels, layer_name

        assert self.teaching is not None and self.options.training is not None
        layers_with_channels = {layer_name(node) for node in layers if has_channels(node)}
        for count in trial_layer_counts(len(layers))[1:]:
            training = Training(f"last:{count}", self.options.training.loss, "momentum", precision="float32")
            options = replace(self.complete_options, training=training, max_ram=None, max_flash=None)
            try:
                compiled = compile_model(self.quantized if self.quantizing.is_wanted else self.model, "host", options)
            except (ConstraintError, DoesNotFitError, Refusal, UnsupportedError, UsageError):
                return
            lesson = self.samples(self.teaching.lesson, sample_endpoints(compiled))
            chosen = channels_to_train(compiled, self.teaching, lesson)
            last = layer_name(layers[-1])
            parts = [
                f"{n}[{';'.join(map(str, some))}]"
                for n, some in chosen.items()
                if n in layers_with_channels and n != last
            ]
            if parts:
                yield ",".join([*parts, "last:1"])

    def _trainable_layers(self) -> list[Node]:
        """Return the layers that can be trained."""
        proto = self.quantized.loaded.proto if self.quantizing.is_wanted else self.source.proto
        options = (
            replace(self.complete_options, dims={}, bound={}) if self.quantizing.is_wanted else self.complete_options
        )
        graph = Variants(proto, "", options, self.target).graph({})
        fuse_float(graph)
        from mcugen.training.layers import trainable_layers

        return trainable_layers(graph)

    def _compile(self, options: CompileOptions) -> CompiledModel:
        """Compile the model with given options, within the limits on time, and with the checks that they add.

        Checks are the stack bound, plausible ranges of outputs, and the self-test. The user's samples serve for them.
        """
        scheme = self.quantizing.scheme
        if not self.quantizing.is_wanted:
            options = replace(options, integer_io=options.integer_io or (scheme is not None and scheme.integer_io))
        deadline = Deadline.of(options, self.target)
        make = self._compile_once
        try:
            compiled = compare_with_integer_io(self._compile_within_limits(options, deadline), make)
        except DoesNotFitError as error:
            if scheme is not None and scheme.integer_io:
                raise
            raise refusal_with_integer_io(error, options, make) from None
        if self.quantizing.is_wanted:
            float_notes = compare_with_float_program(compiled, self.quantized, self.source, self.quantizing.precision)
            report = replace(compiled.report, notes=(*compiled.report.notes, *float_notes))
            compiled = replace(compiled, report=report, draft=compiled.draft._replace(report=report.to_json()))
        if options.stack_bound:
            compiled = with_stack_bound(compiled)
        needs_samples = options.self_test or options.plausible or options.monitor or can_use_user_sample(compiled)
        user_samples = self._user_samples(compiled) if needs_samples else []
        if options.plausible:
            compiled = with_plausibility(compiled, user_samples)
        if options.monitor:
            compiled = with_monitor(compiled, user_samples)
        if options.self_test:
            return with_selftest(compiled, user_samples)
        return use_user_sample(compiled, user_samples, "--data" if self.judging.data is not None else "--calibration")

    def _user_samples(self, compiled: CompiledModel) -> list[dict[str, Array]]:
        """Return the user's evaluation or calibration samples in the form that the generated code reads."""
        source = self.judging.data or self.quantizing.calibration
        if source is None:
            return []
        is_strict = bool(self.options.self_test or self.options.plausible or self.options.monitor)
        samples = self.samples(source, sample_endpoints(compiled), accepts_nonfinite=not is_strict)
        return [as_stored(sample, compiled.program.inputs) for sample in call_samples(compiled, samples).inputs]

    def _compile_within_limits(self, options: CompileOptions, deadline: Deadline | None) -> CompiledModel:
        """Compile the model within the limits on latency and step length, if there are any."""
        trace = self.trace.search if self.trace else None
        make = partial(tune_kernels, make=self._compile_once, trace=trace) if options.tune else self._compile_once
        if options.max_step_cycles is not None:
            return compile_in_short_steps(options, make, lambda compiled: step_cycles(compiled, self.progress), trace)
        if deadline is None:
            return make(options)
        objective = replace(Objective.of(options), deadline=deadline)
        search = SimulatedSearch(deadline.text, objective, make, SimulatedCostModel(self._simulate_once), trace)
        return meet_deadline(deadline, options, search)

    def _simulate_once(self, compiled: CompiledModel) -> Report:
        """Return the report of a compiled model with the instructions and cycles of one simulated call."""
        return measure_once(compiled, self.progress)

    def write(self, folder: str | Path | None = None, *, force: bool = False) -> Path:
        """Write the C files to a folder and return its path.

        Args:
            folder: The folder, by default named like the model. Files of other origin in it stay.
            force: Whether files that were edited, or that mcugen did not write, are overwritten.
        """
        if folder is not None:
            check_folder(Path(folder))
        return self.compiled.write(folder or self.compiled.bundle.name, force=force)

    def export(self, format_: str, folder: str | Path | None = None, packaging: Packaging | None = None) -> Exported:
        """Write a package for an IDE or a build system.

        Args:
            format_: Name of a format, a key of mcugen.export.formats.FORMATS.
            folder: The folder to write to; by default one named like the model.
            packaging: Version and form of the package.
        """
        known, packaging = format_by_name(format_), packaging or Packaging()
        if known.has_validation and not self.options.validation:
            options = replace(self.options, validation=True)
            return replace(self, options=options).export(format_, folder, packaging)
        if isinstance(self.board, str):
            packaging = replace(packaging, requested_board=self.board)
        check_packaging(known, packaging, self.target, self.options)
        if folder is not None:
            check_writable(Path(folder))
        return export(self.compiled, known, None if folder is None else Path(folder), packaging)

    def run(self, inputs: str | SampleSource) -> dict[str, Array]:
        """Build the generated code for the board, run it on samples, and return the outputs.

        Each output has a leading axis of samples. `notes` and `warnings` are set.
        """
        samples = self.samples(inputs, self.compiled.program.inputs, accepts_nonfinite=True)
        self.notes = [*self.compiled.report.notes, *samples.notes]
        self.warnings = [*self.compiled.report.warnings, *samples.warnings]
        total, name, fed_samples = len(samples.inputs), self.target.name, samples.fed(samples.inputs)

        def advance(finished: int) -> None:
            self.progress(f"{name}: running", finished, total)

        return stack_samples(self.compiled.simulate(fed_samples, measure=False, progress=advance).outputs)

    def report(
        self,
        data: str | SampleSource | None = None,
        *,
        diverged: float = DIVERGED_DB,
        wait_states: int | None = None,
    ) -> Report:
        """Run samples on the simulated board and measure accuracy, instructions and memory.

        Args:
            data: The samples; by default see `judging_samples`.
            diverged: SQNR in dB below which a layer of a quantized model counts as diverged.
            wait_states: Wait states of flash in CPU cycles, in place of those in the board file.

        Returns:
            The report, which does not depend on the workers.
        """
        samples = self.judging_samples(data)
        program = self.compiled.program
        metric = choose_metric(self.judging.metric, samples.labels, program.outputs, program.inputs)
        return evaluate(self.compiled, samples, metric, diverged, self.progress, wait_states, self.workers)

    def learned(self) -> LearningFigures:
        """Train on the simulated board with the samples of `teaching`, and return accuracy and cost of the training.

        The accuracy is evaluated on the samples of `judging`.
        """
        assert self.teaching is not None
        lesson = self.samples(self.teaching.lesson, sample_endpoints(self.compiled))
        plain = self._compile(replace(self.complete_options, training=None))
        return simulate_training(self.compiled, plain, self.teaching, lesson, self.judging_samples(), self.progress)

    def judging_samples(self, data: str | SampleSource | None = None) -> Samples:
        """Return the samples that a report runs: the first of these that is available.

        They are `data`; the samples of `judging`; the first calibration sample of a quantized model; and a random
        sample. A random sample is the last choice: it may lie outside the ranges that the model was quantized for, and
        then shows too low an accuracy. Windows are divided into the calls of a stream.
        """
        return call_samples(self.compiled, self._judging_samples(data))

    def _judging_samples(self, data: str | SampleSource | None) -> Samples:
        """Return the samples that a report runs; those of a stream are whole windows."""
        source = self.judging.data if data is None else data
        endpoints = sample_endpoints(self.compiled)
        if source is not None:
            return self.samples(source, endpoints, accepts_nonfinite=True)
        known = self.quantizing.calibration if self.compiled.quantization is not None else None
        if known is None:
            return self._random_samples(endpoints)
        first = self.samples(known, endpoints)
        note = "accuracy is measured on a sample of --calibration, so it is too optimistic: give others by --data"
        return Samples(first.inputs[:1], None, (*first.notes, note), first.raw and first.raw[:1])

    def profile(self) -> tuple[Profile, list[str]]:
        """Return a profile of the float model's tensors on the calibration samples, and notes on assumptions."""
        fused = self.float_model
        assert self.quantizing.calibration is not None, "a profile is made of samples"
        calibration = self.samples(
            self.quantizing.calibration, graph_endpoints(fused.graph, self.complete_options.states)
        )
        usable, strays = self._without_strays(calibration)
        samples = add_stream_states(fused, usable)
        profile = profile_model(fused, samples, lambda done, total: self.progress("profiling", done, total))
        self.warnings = [*calibration.warnings, *calibration_warnings(fused, self.source.proto, profile, calibration)]
        few = [note for note in profile_notes(fused, profile) if note not in self.warnings]
        return profile, [*fused.graph.notes, *strays, *calibration.notes, *few]

    def samples(
        self, source: str | SampleSource, endpoints: Sequence[Endpoint], *, accepts_nonfinite: bool = False
    ) -> Samples:
        """Read samples for these inputs, with the preprocessing of `judging` and `quantizing`.

        Args:
            source: A file, a folder or arrays.
            endpoints: The inputs.
            accepts_nonfinite: Whether float inputs may be NaN or infinite. Samples for calibration or training may not.

        Raises:
            UsageError: The samples are not of the inputs' shapes and types.
        """
        source_path = Path(source) if isinstance(source, str) else source
        if self.options.input_pipeline:
            return self._input_feed(endpoints).samples(source_path)
        scale, preprocess = self.judging.pixel_scale, self.quantizing.preprocess
        try:
            return load_samples(source_path, endpoints, scale, preprocess, accepts_nonfinite=accepts_nonfinite)
        except UsageError as error:
            self._require_constants(
                ConstantLoss.INPUT, error
            )  # Users do not know that the exporter added these inputs.
            raise

    @property
    def _lost_constants(self) -> list[LostConstant]:
        """Return the constants of normalizations that the exporter lost."""
        return lost_constants(self.source.given.graph, self.options.bound)

    def _require_constants(self, loss: ConstantLoss, cause: Exception | None = None) -> None:
        """Raise ModelError if constants of normalizations are lost in the way `loss`."""
        lost = self._lost_constants
        if any(constant.loss is loss for constant in lost):
            rule = f"{self.source.file}: Keras' Normalization layer must have its mean and variance"
            raise ModelError(rule, list_lost_constants(lost), remedy_of(lost)) from cause

    def _without_strays(self, calibration: Samples | None) -> tuple[Sequence[Mapping[str, Array]], list[str]]:
        """Return the calibration samples without strays, and notes on the strays.

        The order of the result does not depend on the order given, unless the samples are a stream (with states).
        """
        if calibration is None or self.complete_options.states:
            return calibration.inputs if calibration else (), []
        kept, notes = without_outliers(calibration.inputs)
        return sort_samples(kept), notes

    def _input_feed(self, endpoints: Sequence[Endpoint]) -> Feed:
        """Return the converter from raw data to samples.

        Raises:
            UsageError: Another option prepares samples too.
        """
        if self.judging.pixel_scale != 1.0:
            raise UsageError("samples are prepared by --input-pipeline alone", "--pixel-scale", "leave it out")
        return bind_pipeline(self.options.input_pipeline, endpoints)

    def _random_samples(self, endpoints: Sequence[Endpoint]) -> Samples:
        """Return one seeded random sample for inputs, or raw data for the input pipeline."""
        return self._input_feed(endpoints).random() if self.options.input_pipeline else random_samples(endpoints)

    @property
    def _scheme(self) -> Scheme:
        """Return the quantization scheme: the user's, or the one that follows from the precision."""
        quantizing = self.quantizing
        return quantizing.scheme or Scheme(
            DType(quantizing.activations), weights=DType(quantizing.weights), group=quantizing.group
        )


@dataclass(frozen=True)
class _QuantizationBasis:
    """The samples, the profile and the requests from which a quantization is made.

    Attributes:
        maker: Quantizes the model with precisions by layer.
        given: The calibration samples; None without any.
        data: The evaluation samples; None without any.
        usable: The calibration samples without strays.
        known: The samples among `usable` that determine ranges.
        held: The samples among `usable` that evaluate the result, as they did not determine ranges.
        is_profiled: Whether ranges come from a file of statistics.
        layers: Types of layers that differ from the main precision, by the name of the layer's output.
        because: Reason for each layer's own type that the user did not request by the layer's name.
        notes: Remarks on samples and layers, one sentence each.
    """

    maker: Quantizer
    given: Samples | None
    data: Samples | None
    usable: Sequence[Mapping[str, Array]]
    known: Sequence[Mapping[str, Array]]
    held: Sequence[Mapping[str, Array]]
    is_profiled: bool
    layers: Mapping[str, DType]
    because: Mapping[str, PrecisionReason]
    notes: Sequence[str]


@dataclass
class _RemoteSearch:
    """A search for precisions in another process, which gets everything that its answers depend on."""

    model: onnx.ModelProto
    board: Board
    options: CompileOptions
    quantizing: Quantizing
    judging: Judging

    def __call__(self, question: LayerQuestion) -> Answer:
        """Return the answer of this process's search to a question."""
        return self._search.answer(question)

    @cached_property
    def _search(self) -> PrecisionSearch:
        return Compilation(self.model, self.board, self.options, self.quantizing, self.judging).make_search()
