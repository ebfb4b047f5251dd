# SPDX-License-Identifier: Apache-2.0
"""`--precision auto`: choose for each layer the least precise arithmetic that is precise enough for the whole model.

Start: all layers are int8. If that takes more flash than available or allowed, some layers get weights of 4 bits. These
are the layers that together add the least noise within the budget, by the noise of each alone
(mcugen.quantization.few_bits).

Raising: layers are raised first to int16 activations, then to float32, until the goal holds in ONNX Runtime and in the
generated code. The order is by sensitivity per unit of cost (growth of arena and instructions). A layer's sensitivity
is the error of the model's outputs when all layers are raised but this one: its own noise, without that of others.

Lowering: layers are lowered again where the goal holds without them, those of least sensitivity per cost first. For a
small network, all assignments are tried, the cheapest first.

Precisions are chosen with one half of the samples and judged with the other half. With few samples, both halves are
used for both, each with ranges and weights of the other half (cross-validation).

The noise of a layer is measured in ONNX Runtime alone. Only layers whose noise matters are compiled to learn their
cost. A draft would not tell that cost, as line-buffered groups and kernels for a budget follow from fitting the board.
While raising, a model that misses the goal in ONNX Runtime is not compiled. Two cases are exceptions: there is a
deadline, or the model that met the goal did not fit the board.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from mcugen.autotuning.latency import DeadlineCheck, describe_time, require_deadline
from mcugen.core.board import Board
from mcugen.core.errors import ConstraintError, DoesNotFitError, UsageError, VerificationError
from mcugen.core.options import GOALS, MIXED, CompileOptions, Places
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.drafts import draft_program
from mcugen.evaluation.accuracy import SAMPLE_KIND_PHRASES, judged, reals
from mcugen.evaluation.metrics import METRICS, Judged, Metric, chance
from mcugen.evaluation.oracle import OracleModel, run_oracle
from mcugen.evaluation.samples import Samples, as_stored, spread
from mcugen.hir.layer_names import name_results_of
from mcugen.hir.types import Array, DType
from mcugen.kernels.cost import cost_table
from mcugen.lir.program import Program
from mcugen.quantization.few_bits import NUM_FINALISTS, bytes_per_weight, num_stored_weights, weights_in_flash
from mcugen.quantization.plan import QuantizedWeights
from mcugen.quantization.qdq import stored_name
from mcugen.quantization.quantize import Progress, Quantization, Quantizer, create_quantizer, no_progress
from mcugen.quantization.samples import split_in_halves
from mcugen.quantization.storage import InstructionEstimates, Storage
from mcugen.reporting.tradeoffs import Goal, Tradeoff
from mcugen.search.cost_model import ProgramCostModel
from mcugen.search.metrics import Metrics
from mcugen.search.objective import TOLERANCES
from mcugen.search.plan import BuiltProgram, ProgramCandidate, ProgramPlan
from mcugen.search.trace import SearchTrace, TraceEntry

PRECISIONS_BY_COST = (DType.INT8, DType.INT16, DType.FLOAT32)
"""The precisions that a layer may get, from the cheapest to the most exact; layers are raised in this order."""

MAX_NOISE_PROBES = 32
"""Largest number of samples that are run to measure how much noise each layer adds to the outputs."""

MIN_JUDGED_SAMPLES = 4
"""Smallest number of samples in each half for cross-validation.

With fewer samples, the same samples both quantize and evaluate a model.
"""

MAX_ASSIGNMENTS = 32
"""Largest number of possible assignments of precisions to layers for which all are tried, the cheapest first.

If there are more, the precisions of single layers are raised and lowered one after the other. The result then need not
be the cheapest.
"""

NUM_FOUR_BIT_TRIALS = 8
"""Number of sets of layers with 4-bit weights that are evaluated if int8 weights do not fit.

Of these, NUM_FINALISTS are quantized anew. The others are evaluated with weights that were rounded for a model with all
layers in 4 bits, or all in 8 bits.
"""

WEIGHT_SHARES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35)
"""Sizes of the weights that are tried if int8 weights do not fit the board, as shares of their bytes in int8."""

NOISE_PER_TIME = {"flash": 1 / 16, "ram": 1 / 16, "balanced": 1.0, "speed": 16.0}
"""Increase of the output noise in percent that is accepted to save one percent of the time, by optimization goal.

It decides between compressed weights, which take time to decompress, and 4-bit weights, which add noise.
"""

CODING_GOALS = ("flash", GOALS[0])
"""Optimization goals for which weight compression is tried; other goals avoid the RAM and time of decompression."""

TRIED_NOISE_PER_TIME = (1 / 16, 1 / 4, 1.0)
"""Values that are tried for the increase of the output noise, in percent, that is accepted per percent of time saved.

Each gives a way to store the weights (see NOISE_PER_TIME).
"""

MAX_CODED_STARTS = 2
"""Largest number of models with compressed weights from which the search for precisions starts."""

_NARROWING = "weights of 4 bits"


DEFAULT_MAX_DROP = 0.5
"""Default largest accepted loss of accuracy against float32, in percentage points, for metrics such as top-1."""

DEFAULT_MIN_SQNR_DB = 25.0
"""Default smallest accepted SQNR of the outputs in dB, if there are no labels and the user set no other limit."""


@dataclass(frozen=True)
class AccuracyDemand:
    """The user's demands on a quantized model whose layers differ in precision: accuracy, and size of the weights."""

    metric: Metric
    """The metric that measures a model's accuracy."""
    max_drop: float | None = None
    """Largest accepted loss of the metric against float, in percentage points for shares; None if not given."""
    min_sqnr: float | None = None
    """Smallest accepted SQNR of the outputs against the float model in dB; None if not given."""
    max_weights: float | None = None
    """Largest size of the weights, as a share of their bytes in int8; None without a limit."""

    def goal(self, outputs: Judged) -> Goal:
        """Return the goal that a quantized model must meet.

        If the metric also rates the float model (as accuracy on labels does), the goal limits the loss of the metric
        against the float model. Otherwise the goal is a smallest SQNR of the outputs.

        Args:
            outputs: The outputs of the float model, with labels if known.

        Raises:
            UsageError: If a drop is limited but the metric compares with the float model itself.
        """
        if self.max_drop is not None and not self.metric.rates_reference:
            rule = "--max-accuracy-drop needs a metric that the float model has itself"
            remedy = "add labels to the samples, or give --metric agreement or --min-sqnr"
            raise UsageError(rule, f"'{self.metric.name}'", remedy)
        min_sqnr = DEFAULT_MIN_SQNR_DB if self.min_sqnr is None else self.min_sqnr
        sqnr_goal = Goal(METRICS["sqnr"], math.inf, least=min_sqnr)
        if not self.metric.rates_reference or (self.max_drop is None and self.min_sqnr is not None):
            return sqnr_goal
        drop = DEFAULT_MAX_DROP if self.max_drop is None else self.max_drop
        further_goals = () if self.min_sqnr is None else (sqnr_goal,)
        return Goal(self.metric, self.metric.compute(outputs), drop=drop, others=further_goals)


@dataclass(frozen=True)
class _Trial:
    """A model with some layers raised, compiled for the board on demand."""

    requested: Mapping[str, DType]
    quantization: Quantization
    board: Board
    options: CompileOptions
    sample: Mapping[str, Array]
    has_own_weights: bool
    """Whether its weights were rounded for this model; else they are those of the search."""

    @cached_property
    def compiled(self) -> CompiledModel:
        """Return the compiled model.

        Raises:
            DoesNotFitError: If it does not fit the board.
        """
        return compile_model(self.quantization, self.board, self.options)

    @cached_property
    def counted_instructions(self) -> int | None:
        """Return the instructions of one inference counted in QEMU, or None where the board is not simulated."""
        if not self.compiled.board.qemu:
            return None
        stored = [as_stored(self.sample, self.compiled.program.inputs)]
        return self.compiled.given_inputs.simulate(stored).instructions

    @property
    def precision(self) -> Mapping[str, DType]:
        """Return the resulting precision of each layer."""
        return self.quantization.assignment.precision

    @cached_property
    def metrics(self) -> Metrics:
        """Return the estimated cost, without running anything.

        Raises:
            DoesNotFitError: If the model does not fit the board.
        """
        compiled = self.compiled
        return ProgramCostModel(compiled.board, compiled.options).evaluate(BuiltProgram(compiled.program))


@dataclass(frozen=True)
class _Coded:
    """A quantized model with one choice of weight storage, and its estimated time relative to int8 weights."""

    storage: Storage
    quantization: Quantization
    time: float

    @property
    def noise(self) -> float:
        """Return the noise of the outputs relative to their signal."""
        return self.quantization.plan.noise or 0.0

    def rank(self, favour: float) -> float:
        """Return the product of noise and time to the power of `favour`: less is better.

        A percent of time thus weighs as much as `favour` percent of noise.
        """
        return self.noise * math.pow(self.time, favour)


@dataclass(frozen=True)
class RaisingRound:
    """The data of one round of the precision search, in which single layers get a higher precision.

    The data are the current model, a reference model in which all layers have the higher precision, and that precision.
    All questions of a round share them, so that they are sent to worker processes once.
    """

    requested: Mapping[str, DType]
    """Requested precisions of the current model by the name of the layer's output; all other layers are int8."""
    precision: Mapping[str, DType]
    """The precision that each layer of the current model really has, by the name of the layer's output."""
    cost: Metrics
    """The estimated RAM, flash and time of the current model."""
    raised: Mapping[str, DType]
    """Precisions of the reference model of this round, in which every layer that may have the higher precision has it.

    The keys are names of the layers' outputs.
    """
    best: Sequence[Mapping[str, Array]]
    """The outputs of the reference model, by name, for each sample."""
    codes: Mapping[str, QuantizedWeights]
    """Quantized weights that all models of the round share, by the name of the layer's output."""
    dtype: DType
    """The higher precision that layers get in this round."""
    code_bits: Mapping[str, float]
    """Average bits per weight that compressed 8-bit weights of a layer may take, by the name of its output."""


@dataclass(frozen=True)
class LayerQuestion:
    """A question about one layer in the precision search, which a worker process can answer.

    It asks for the layer's noise, or for the cost of a higher precision of the layer. The noise is the error of the
    model's outputs if only this layer keeps its precision and all others get the higher one.
    """

    round: RaisingRound
    """The round of the search: the models to compare with, and the higher precision."""
    layer: str
    """Name of the layer's output."""
    asks_cost: bool = False
    """True to ask for the cost: the relative growth of RAM and time if the layer gets the higher precision."""


Answer = float | None
"""Answer to a LayerQuestion: the noise, or the relative growth of RAM and time.

None if the layer cannot get the higher precision, or the model then does not fit the board.
"""


def _loudest(noise: Mapping[str, float]) -> list[str]:
    """Return the layers without the quietest ones, which together add a negligible share of all noise."""
    quiet, noise_left = set(), TOLERANCES.max_negligible_noise * sum(noise.values())
    for name in sorted(noise, key=noise.__getitem__):
        noise_left -= noise[name]
        if noise_left < 0:
            break
        quiet.add(name)
    return [name for name in noise if name not in quiet]


@dataclass
class _Half:
    """A quantizer of one half of the samples, its quantized weights, and the indices of the samples that it judges."""

    quantizer: Quantizer
    places: Sequence[int]
    codes: dict[str, QuantizedWeights] = field(default_factory=dict)


@dataclass
class PrecisionSearch:
    """A search for the cheapest precision of each layer with which the whole model is accurate enough.

    Models are quantized by the quantizer's calibration samples, and evaluated on `samples`.
    """

    quantizer: Quantizer
    """The quantizer of the float model, with its calibration samples."""
    board: Board
    """The board that models are compiled for."""
    options: CompileOptions
    """The options of the compilation, with the limits of RAM and flash."""
    samples: Samples
    """Samples that evaluate a model, as real values that the float model takes."""
    demand: AccuracyDemand
    """The accuracy that the model must have."""
    fixed: Mapping[str, DType] = field(default_factory=dict)
    """Precisions that the user chose, by the name of the layer's output; the search does not change them."""
    progress: Progress = no_progress
    """Called with the name of a task, the number of finished steps, and the number of all steps."""
    share: Callable[[Sequence[LayerQuestion]], Iterable[tuple[LayerQuestion, Answer]]] | None = None
    """Function that has questions answered by worker processes, in any order; None to answer them in this process."""
    deadline_check: DeadlineCheck | None = None
    """A check whether the fastest program of a model meets the deadline; None without a deadline."""
    is_crossed: bool = False
    """Whether `samples` are also the quantizer's calibration samples.

    They are then split into halves, and each half is evaluated on a model that was quantized by the other half.
    """
    steps: list[Tradeoff] = field(default_factory=list)
    """The models that were evaluated so far, with accuracy and cost."""
    trace: SearchTrace | None = field(default=None, repr=False)
    """Records the models that were evaluated and compiled; None to record nothing."""
    _accepted: int | None = None
    """The number in the trace of the last model that met the goal."""

    def run(self) -> Quantization:
        """Search, and return the cheapest model found that is accurate enough.

        Raises:
            ConstraintError: If no model meets the accuracy goal.
            DoesNotFitError: If models are accurate enough, but none of these fits the board and meets the deadline.
        """
        self._reference = self._exact(self.samples.inputs)
        starts, refused = list[_Trial](), None
        for start in self._starts():
            self._begin(start)
            if self._accept(start, "", PRECISIONS_BY_COST[0]):
                return start.quantization
            starts.append(start)
        for start in sorted(starts, key=lambda trial: trial.quantization.plan.noise or 0.0):
            if len(starts) > 1:
                self._begin(start)
            try:
                return self._cheapest(self._descend(self._ascend(start))).quantization
            except ConstraintError as error:
                refused = error
        assert refused is not None
        raise refused

    def accuracy_note(self, kind: str) -> str:
        """Return a note for the user: how accurate the chosen model is, and on which samples.

        Args:
            kind: The kind of the samples, "held out", "evaluation", "calibration" or "synthetic".
        """
        last = next(step for step in reversed(self.steps) if step.holds)
        count = len(self.samples.inputs)
        samples = f"{count} sample{'s' * (count != 1)} {SAMPLE_KIND_PHRASES[kind]}"
        if self._halves:
            samples += ", each half by ranges and weights of the other"
        doubt = self.goal.uncertainty_warning(last.value, last.chance, count)
        text = f"accuracy is measured on {samples}: {last.shown(self.goal.metric)}; the goal: {self.goal}"
        return f"{text}; {doubt}" if doubt else text

    def excess_notes(self) -> list[str]:
        """Return a note if the program's constants take more bytes than --max-weights allows; else [].

        --max-weights limits the weights as the model stores them, as a share of their bytes in int8. Constants can take
        more, because some kernels store weights with more bits.
        """
        last = next(step for step in reversed(self.steps) if step.holds)
        if self.demand.max_weights is None or last.weights is None or self.options.optimize == "flash":
            return []
        share = last.weights / max(self._wide.weights_size, 1)
        if share <= self.demand.max_weights + TOLERANCES.max_widened_share:
            return []
        promise = f"--max-weights {self.demand.max_weights:.0%} is kept by weights as the model has them"
        actual = f"constants of the program take {share:.0%} of those with weights of 8 bits"
        return [
            f"{promise}; {actual}, as kernels read wider ones: --optimize flash stores them so, --max-flash counts them"
        ]

    def _begin(self, start: _Trial) -> None:
        """Start from a model in int8 or with smaller weights, and reset what depends on it."""
        self._first = start
        self.quantizer = self.quantizer.with_code_bits(start.quantization.plan.code_bits)
        self._codes = dict(self._first.quantization.plan.layers)
        self._halves = list(self._split_halves())
        check = self.deadline_check
        if check is not None and not self._is_timely(self._first.quantization):
            assert check.missed is not None
            require_deadline(check.deadline, check.missed)
        self.goal = self.demand.goal(self._judge(self._reference))
        self._scores: dict[str, float] = {}
        self._raised: list[str] = []
        self._orders: dict[tuple[DType, frozenset[tuple[str, DType]]], list[str]] = {}

    def _exact(self, samples: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Return the float model's outputs."""
        return self.quantizer.model.reference(samples).outputs

    def _split_halves(self) -> Iterator[_Half]:
        """Yield a quantizer for each half of the samples, or none if the samples are separate or too few."""
        whole, inputs = self.quantizer, self.samples.inputs
        parts = split_in_halves(inputs)
        if not self.is_crossed or min(map(len, parts)) < MIN_JUDGED_SAMPLES:
            return
        for known, unseen in (parts, parts[::-1]):
            half = _Half(create_quantizer(whole.source, whole.model, whole.scheme, [inputs[i] for i in known]), unseen)
            half.quantizer.compensates, half.quantizer.code_bits = whole.compensates, whole.code_bits
            half.codes |= half.quantizer.quantize(self._first.requested).plan.layers
            yield half

    @cached_property
    def _probes(self) -> Sequence[Mapping[str, Array]]:
        """Return the samples by which precisions are chosen: spread over all samples, or the first of a stream."""
        known = self.quantizer.samples or self.samples.inputs
        return (
            known[:MAX_NOISE_PROBES]
            if self.options.states
            else [known[i] for i in spread(len(known), MAX_NOISE_PROBES)]
        )

    def _starts(self) -> Iterator[_Trial]:
        """Yield starting models, in int8 or with smaller weights, the best trade of noise and time for the goal first.

        Raises:
            DoesNotFitError: If no model fits the board.
            ConstraintError: If no weights fit the requested share.
        """
        share, narrow_trial = self._start_within_budget()
        if share is None or not self._may_code:
            yield narrow_trial
            return
        is_last = self.options.optimize not in CODING_GOALS
        if is_last:
            yield narrow_trial
        favour, narrow_noise = (
            NOISE_PER_TIME[self.options.optimize],
            self._noise_with_own_weights(narrow_trial.requested),
        )
        narrow_rank = narrow_noise * self._times.of(Storage(narrow_trial.requested)) ** favour
        coded = [candidate for candidate in self._coded(share) if candidate.noise < narrow_noise]
        better = [candidate for candidate in coded if not is_last and candidate.rank(favour) < narrow_rank]
        stored_ratio = bytes_per_weight(narrow_trial.quantization.model, narrow_trial.quantization.plan) / share
        max_bytes = TOLERANCES.max_coded_size_ratio * narrow_trial.compiled.program.weights_size / stored_ratio
        yield from self._saving(better, share, max_bytes)
        if not is_last:
            yield narrow_trial
        yield from self._saving([candidate for candidate in coded if candidate not in better], share, max_bytes)

    def _start_within_budget(self) -> tuple[float | None, _Trial]:
        """Return the model in int8, or with as many 4-bit weights as needed and then their share of the int8 bytes.

        Raises:
            DoesNotFitError: If no model fits the board.
            ConstraintError: If no weights fit the requested share.
        """
        share = self.demand.max_weights
        if share is not None:
            return (share, self._best_narrowed(share)) if share < 1 else (None, self.trial(self.fixed))
        try:
            return None, self.trial(self.fixed)
        except DoesNotFitError:
            if not self._layers:
                raise
            return self._first_that_fits()

    def _first_that_fits(self) -> tuple[float, _Trial]:
        """Return the model with the largest share of weight bytes that fits.

        Drafts find that share by bisection, from shares whose estimate may fit. Drafts may be a little smaller than the
        final model.

        Raises:
            DoesNotFitError: If even weights of 2 and 4 bits in all layers that allow it do not fit.
        """
        self.progress(_NARROWING, 0, len(WEIGHT_SHARES))
        max_share, min_share = self._shares_that_may_fit()
        shares = [*(share for share in WEIGHT_SHARES if min_share < share < max_share), min_share]
        first, last = 0, len(shares) - 1
        while first < last:
            self.progress(_NARROWING, len(shares) - 1 - (last - first), len(shares))
            middle = (first + last) // 2
            first, last = (first, middle) if self._draft_may_fit(shares[middle]) else (middle + 1, last)
        for share in shares[first:-1]:
            with suppress(DoesNotFitError):
                self._draft(self._promising_precisions(share))
                return share, self._best_narrowed(share)
        return min_share, self._best_narrowed(min_share)

    def _shares_that_may_fit(self) -> tuple[float, float]:
        """Return an upper bound of the share of weight bytes that fits, and a share that does fit.

        The upper bound is a share that does not fit, or 1. Kernels for 2-bit weights add code, so that 4 bits
        everywhere may take less flash.

        Raises:
            DoesNotFitError: If no share fits; the error names the smallest program.
        """
        coarse = {**self.fixed, **dict.fromkeys(self._layers, DType.INT4)}
        dtypes_by_share = {
            self.quantizer.weight_bytes_share(dtypes): dtypes
            for dtypes in (coarse, self.quantizer.narrowest(self.fixed))
        }
        refused = dict[float, DoesNotFitError]()
        max_share = 1.0
        for share, dtypes in dtypes_by_share.items():
            try:
                self._draft(dtypes)
            except DoesNotFitError as error:
                max_share, refused[share] = share, error
            else:
                return max_share, share
        nearest = refused[min(refused, key=lambda share: self._flash_of(dtypes_by_share[share]))]
        text = f"{nearest.found}; with weights of 2 or 4 bits wherever that can be, by a draft of the model"
        raise DoesNotFitError(nearest.rule, text, nearest.remedy)

    def _draft(self, dtypes: Mapping[str, DType]) -> None:
        """Compile a draft, with weights rounded to nearest.

        Raises:
            DoesNotFitError: If not even the draft fits.
        """
        compile_model(self.quantizer.draft(dtypes), self.board, self.options)

    def _draft_may_fit(self, share: float) -> bool:
        """Return whether a draft with this share of weight bytes takes hardly more flash than available."""
        return self._flash_of(self._promising_precisions(share)) <= TOLERANCES.flash_estimate_margin * (
            self.options.max_flash or self.board.total_flash
        )

    def _flash_of(self, dtypes: Mapping[str, DType]) -> int:
        """Return the estimated flash of a draft that is built for the least flash."""
        options = replace(self.options, optimize="flash")
        _, program = draft_program(self.quantizer.draft(dtypes), self.board, options)
        return ProgramCostModel(self.board, options).likely(BuiltProgram(program)).flash

    def _promising_precisions(self, share: float) -> Mapping[str, DType]:
        """Return the most promising precisions for a share of weight bytes."""
        return self.quantizer.choose_narrow_layers(self.fixed, self._layers, share, 1)[0]

    @cached_property
    def _layers(self) -> list[str]:
        """Return the layers whose weights may have fewer bits."""
        plan = self.quantizer.draft(self.fixed).plan
        return [n for n in self.quantizer.four_bit_candidates(plan) if n not in self.fixed]

    def _best_narrowed(self, share: float) -> _Trial:
        """Return the model with a share of weight bytes, by the best of some promising choices of layers."""
        assignments = self.quantizer.choose_narrow_layers(self.fixed, self._layers, share, NUM_FOUR_BIT_TRIALS)
        if len(assignments) > NUM_FINALISTS:
            narrow_codes = self.quantizer.quantize(
                {**self.fixed, **dict.fromkeys(self._layers, DType.INT4)}
            ).plan.layers
            wide_codes = self.quantizer.quantize(self.fixed).plan.layers
            assignments.sort(
                key=lambda dtypes: self._noise_of(
                    dtypes, {**wide_codes, **{n: narrow_codes[n] for n in dtypes if n in narrow_codes}}
                )
            )
        return self.trial(
            min(assignments[:NUM_FINALISTS], key=self._noise_with_own_weights)
            if len(assignments) > 1
            else assignments[0]
        )

    @property
    def _may_code(self) -> bool:
        """Return whether 8-bit weights may be rounded more coarsely so that their entropy code is short."""
        return bool(self.quantizer.samples) and self.quantizer.scheme.weights is DType.INT8

    def _coded(self, share: float) -> list[_Coded]:
        """Return up to MAX_CODED_STARTS models whose entropy-coded weights take a share of bytes, the best first.

        Some layers may have 4-bit weights instead. The noise of several layers together differs from the sum by which
        their storage is chosen. Hence storage is chosen for several prices of time, and each resulting model is
        measured.
        """
        maker, times = self.quantizer, self._times
        storages = [Storage(self.fixed, maker.choose_code_bits(self.fixed, share))]
        storages += [
            w
            for price in TRIED_NOISE_PER_TIME
            if (w := maker.choose_storage(self.fixed, self._layers, share, times, price))
        ]
        different = {(frozenset(w.requested.items()), frozenset(w.bits.items())): w for w in storages if w.bits}
        models = [
            _Coded(storage, maker.with_code_bits(storage.bits).quantize(storage.requested), times.of(storage))
            for storage in different.values()
        ]
        return sorted(models, key=lambda model: model.rank(NOISE_PER_TIME[self.options.optimize]))[:MAX_CODED_STARTS]

    def _saving(self, candidates: Iterable[_Coded], share: float, max_bytes: float) -> Iterator[_Trial]:
        """Yield the candidates that fit, whose program decodes weights, and whose constants are small enough.

        The largest size of the constants is `max_bytes`. Their flash must shrink by about what the share promises.
        """
        for candidate in candidates:
            trial = self._build_trial(candidate.storage.requested, candidate.quantization, has_own_weights=True)
            if self._fits(trial) and self._saves(trial, share) and trial.compiled.program.weights_size <= max_bytes:
                yield trial

    @cached_property
    def _times(self) -> InstructionEstimates:
        """Return the times of layers with 8-bit and 4-bit weights, and of decoding, from drafts of the model."""
        maker, coarse = self.quantizer, {**self.fixed, **dict.fromkeys(self._layers, DType.INT4)}
        narrow_draft = draft_program(maker.draft(coarse), self.board, self.options)[1]
        wide_times, narrow_times = (
            {n: program.layer_estimates.get(stored_name(n), program.layer_estimates.get(n, 0.0)) for n in self._layers}
            for program in (self._wide, narrow_draft)
        )
        table, plan = cost_table(self.board.cpu), maker.draft(coarse).plan
        nodes = {n.outputs[0].name: n for n in maker.model.graph.nodes}
        return InstructionEstimates(
            max(self._wide.instructions_estimate or 0.0, 1.0),
            {n: narrow_times[n] - wide_times[n] for n in self._layers},
            {n: table.decoding(num_stored_weights(nodes[n], plan)) for n in self._layers},
        )

    @cached_property
    def _wide(self) -> Program:
        """Return a draft with all weights in 8 bits."""
        return draft_program(self.quantizer.draft(self.fixed), self.board, self.options)[1]

    def _saves(self, coded: _Trial, share: float) -> bool:
        """Return whether flash decreases by about as much as all coded weights promise.

        Otherwise some weights stayed uncompressed.
        """
        promised = (1 - share) * weights_in_flash(self.quantizer.model, coded.quantization.plan)
        return self._wide.weights_size - coded.compiled.program.weights_size >= TOLERANCES.min_coding_saving * promised

    def _noise_with_own_weights(self, dtypes: Mapping[str, DType]) -> float:
        """Return the noise of a model with its own weights.

        That is the noise on the samples by which the weights were rounded, or else the noise of the outputs.
        """
        known = self.quantizer.quantize(dtypes).plan.noise
        return self._noise_of(dtypes) if known is None else known

    def _noise_of(self, dtypes: Mapping[str, DType], codes: Mapping[str, QuantizedWeights] | None = None) -> float:
        """Return the noise of the outputs, with the given weights, or with the best ones for these precisions."""
        quantization = self.quantizer.quantize(dtypes, codes)
        return self._mse(self._outputs_in_reals(quantization, self._probes), self._exact_probes)

    @cached_property
    def _exact_probes(self) -> Sequence[Mapping[str, Array]]:
        return self._exact(self._probes)

    # ------------------------------------------------------------------------------------- Raising and lowering

    def _ascend(self, current: _Trial) -> _Trial:
        """Raise layers, the most rewarding first, until the goal holds."""
        self._codes |= self._wide_codes(self.quantizer, current)
        for half in self._halves:
            half.codes |= self._wide_codes(half.quantizer, current)
        known = len(self.steps)
        if self.deadline_check is None:
            with suppress(DoesNotFitError):
                return self._raised_until_met(current, each_fits=False)
            del self.steps[known:], self._raised[:]
        return self._raised_until_met(current, each_fits=True)

    def _raised_until_met(self, current: _Trial, *, each_fits: bool) -> _Trial:
        """Return the model with as many layers raised as the goal requires.

        Args:
            current: The model to begin with.
            each_fits: Whether to skip layers with which the model does not fit, or misses the deadline.

        Raises:
            DoesNotFitError: If the model that meets the goal does not fit, or misses the deadline.
            ConstraintError: If no model meets the goal.
        """
        for dtype in PRECISIONS_BY_COST[1:]:
            layers = self._by_sensitivity(current, dtype)
            for number, layer in enumerate(layers):
                self.progress(f"raising layers to {dtype.value}", number, len(layers))
                trial = self._trial({**current.requested, layer: dtype}, layer)
                if current.precision[layer] is dtype or trial is None:
                    continue  # Raising its neighbours has raised it already.
                if each_fits and not (self._fits(trial) and self._is_timely(trial.quantization)):
                    continue
                current = trial
                self._raised.append(layer)
                if self._accept(current, layer, dtype):
                    return current
        last = self.steps[-1]
        best = last.value if last.confirmed is None else last.confirmed
        reached = f"{self.goal.metric.show(best)} with all layers raised{' that fit the board' * each_fits}"
        check = self.deadline_check
        if check is not None and check.missed is not None:
            rule = f"the model must reach the goal: {self.goal}, within {check.deadline.text}"
            one_more = f"with one more, the least is {describe_time(check.missed)}"
            raise DoesNotFitError(rule, f"{reached} in that time; {one_more}", "allow more, or ask for less")
        raise ConstraintError(f"the model must reach the goal: {self.goal}", reached, "ask for less")

    def _descend(self, current: _Trial) -> _Trial:
        """Lower raised layers again where the goal still holds, the least rewarding first.

        The last layer raised stays, as the goal did not hold without it.
        """
        raised = dict.fromkeys(self._raised[:-1])
        for number, layer in enumerate(sorted(raised, key=lambda name: self._scores[name])):
            self.progress("lowering layers again", number, len(raised))
            for dtype in PRECISIONS_BY_COST[: PRECISIONS_BY_COST.index(current.requested[layer])]:
                dtypes = {
                    name: d for name, d in {**current.requested, layer: dtype}.items() if d is not PRECISIONS_BY_COST[0]
                }
                trial = self._trial(dtypes, layer)
                if trial is None or not self._fits(trial) or trial.metrics.growth(current.metrics) >= 0:
                    continue
                if not self._is_timely(trial.quantization):
                    continue
                if self._holds_too(trial, layer, dtype):
                    current = trial
                    break
        return current

    def _cheapest(self, current: _Trial) -> _Trial:
        """Return the cheapest model that meets the goal among all assignments of a small network.

        Assignments use the precisions of the current model and int8.
        """
        layers = list(self._candidates(self._first, PRECISIONS_BY_COST[-1]))
        needed = [d for d in PRECISIONS_BY_COST if d is PRECISIONS_BY_COST[0] or d in current.requested.values()]
        total = len(needed) ** len(layers)
        cheaper = []
        for number, dtypes in enumerate(product(needed, repeat=len(layers)) if total <= MAX_ASSIGNMENTS else ()):
            self.progress("all assignments", number, total)
            raised = {name: d for name, d in zip(layers, dtypes, strict=True) if d is not PRECISIONS_BY_COST[0]}
            trial = self._trial({**self._first.requested, **raised}, *raised)
            if not raised or trial is None or not self._fits(trial):
                continue
            if (growth := trial.metrics.growth(current.metrics)) < 0:
                cheaper.append((growth, raised))
        for _, raised in sorted(cheaper, key=lambda entry: entry[0]):
            trial = self.trial({**self._first.requested, **raised})
            dtype = max(raised.values(), key=PRECISIONS_BY_COST.index)
            if self._is_timely(trial.quantization) and self._holds_too(trial, ", ".join(raised), dtype):
                return trial
        return current

    def _wide_codes(self, maker: Quantizer, current: _Trial) -> Mapping[str, QuantizedWeights]:
        """Return weights rounded for nearly exact inputs.

        Weights rounded for int8 inputs make up for input errors that disappear once layers are raised.
        """
        wide = dict.fromkeys(self._candidates(current, DType.INT16), DType.INT16)
        return maker.quantize({**current.requested, **wide}).plan.layers

    def _by_sensitivity(self, current: _Trial, dtype: DType) -> list[str]:
        """Return the layers that can be raised to `dtype`, sorted by noise per unit of cost.

        The quietest layers are assumed to cost as much as the most expensive of the other layers.
        """
        if (order := self._orders.get((dtype, frozenset(current.requested.items())))) is not None:
            return order
        layers = list(self._candidates(current, dtype))
        raised = {**current.requested, **dict.fromkeys(layers, dtype)}
        context = RaisingRound(
            current.requested,
            current.precision,
            current.metrics,
            raised,
            self._probe(raised),
            self._codes,
            dtype,
            self.quantizer.code_bits,
        )
        task = f"sensitivity to {dtype.value}"
        noise = {
            name: answer or 0.0 for name, answer in self._ask(task, [LayerQuestion(context, name) for name in layers])
        }
        loud = _loudest(noise)
        growth = dict(
            self._ask(f"cost of {dtype.value}", [LayerQuestion(context, name, asks_cost=True) for name in loud])
        )
        max_growth = max((answer for answer in growth.values() if answer is not None), default=0.0)
        costs = {name: growth.get(name, max_growth) for name in layers}
        min_growth = TOLERANCES.min_cost_growth
        scores = {name: noise[name] / max(cost, min_growth) for name, cost in costs.items() if cost is not None}
        self._scores |= scores
        order = sorted(scores, key=lambda name: -scores[name])
        self._orders[dtype, frozenset(current.requested.items())] = order
        return order

    def _ask(self, task: str, questions: Sequence[LayerQuestion]) -> Iterator[tuple[str, Answer]]:
        """Yield layers with their answers, as these arrive."""
        answers = self.share(questions) if self.share else ((pending, self.answer(pending)) for pending in questions)
        for number, (question, answer) in enumerate(answers, 1):
            self.progress(task, number, len(questions))
            yield question.layer, answer

    def answer(self, question: LayerQuestion) -> Answer:
        """Return what a question asks for: the noise of a layer, or the relative growth of RAM and time.

        The noise is the mean squared error of the model's outputs if all layers but this one have the higher precision.
        The growth is that of the model if only this layer gets the higher precision; it is None if the layer cannot get
        it, or if the model then does not fit the board. The question may come from another process, because it holds
        all that the answer needs.

        Args:
            question: The layer, the round of the search, and whether the cost is asked for.
        """
        context, layer = question.round, question.layer
        self._codes, self.quantizer = dict(context.codes), self.quantizer.with_code_bits(context.code_bits)
        if not question.asks_cost:
            return self._mse(self._probe({**context.raised, layer: context.precision[layer]}), context.best)
        trial = self._trial({**context.requested, layer: context.dtype}, layer)
        return trial.metrics.growth(context.cost) if trial is not None and self._fits(trial) else None

    def _candidates(self, current: _Trial, dtype: DType) -> Iterator[str]:
        """Yield the layers that compute in less than `dtype`."""
        for node in (n for n in self.quantizer.model.graph.nodes if not n.op.moves_data):
            name = node.outputs[0].name
            is_coarse = current.requested.get(name) in (DType.INT4, DType.INT2)
            is_free = name in current.precision and name not in self.fixed and not is_coarse
            if is_free and PRECISIONS_BY_COST.index(current.precision[name]) < PRECISIONS_BY_COST.index(dtype):
                yield name

    # ------------------------------------------------------------------------------------ Building and judging

    def trial(self, dtypes: Mapping[str, DType]) -> _Trial:
        """Return the model compiled with the given precisions, whose weights are rounded for exactly these precisions.

        Most other models of the search reuse weights that were rounded for other precisions, which is faster.

        Args:
            dtypes: Precisions by the name of the layer's output; all other layers are int8.

        Raises:
            DoesNotFitError: If the model does not fit the board.
        """
        trial = self._build_trial(dtypes, self.quantizer.quantize(dtypes), has_own_weights=True)
        _ = trial.compiled
        return trial

    def _trial(self, dtypes: Mapping[str, DType], *layers: str) -> _Trial | None:
        """Return a model that is not compiled yet, or None.

        None means that a layer cannot have the requested precision, or that the weights exceed their share.
        """
        quantization = self.quantizer.quantize(dtypes, self._codes)
        if any(
            quantization.assignment.precision[name] is not dtypes.get(name, PRECISIONS_BY_COST[0]) for name in layers
        ):
            return None
        max_share = self.demand.max_weights
        if max_share is not None and bytes_per_weight(quantization.model, quantization.plan) > max_share:
            return None
        return self._build_trial(dtypes, quantization, has_own_weights=False)

    def _build_trial(self, dtypes: Mapping[str, DType], quantization: Quantization, *, has_own_weights: bool) -> _Trial:
        return _Trial(dtypes, quantization, self.board, self.options, self.samples.inputs[0], has_own_weights)

    def _fits(self, trial: _Trial) -> bool:
        with suppress(DoesNotFitError):
            return bool(trial.compiled)
        return False

    def _is_timely(self, quantization: Quantization) -> bool:
        """Return whether the fastest program meets the deadline, if there is one."""
        if self.deadline_check is None:
            return True
        fastest = compile_model(quantization, self.board, replace(self.options, optimize="speed"))
        return self.deadline_check.is_met_by(fastest)

    def _holds_too(self, trial: _Trial, layer: str, dtype: DType) -> bool:
        """Return whether the goal holds and the model fits; a model that fails leaves no line in the table."""
        with suppress(DoesNotFitError):
            return self._accept(trial, layer, dtype, keep=False)
        return False

    def _accept(self, trial: _Trial, layer: str, dtype: DType, keep: bool = True) -> bool:
        """Return whether the goal holds, and add a line to the table of trials.

        Args:
            trial: The model to judge.
            layer: The layer that was changed.
            dtype: Its new precision.
            keep: Whether the line stays in the table even if the goal does not hold.

        Raises:
            DoesNotFitError: If the goal holds in ONNX Runtime but the model is too large.
        """
        in_ort = self._judge(self._unseen_outputs(trial))
        in_c = self._in_c(trial) if self.goal.met(in_ort) else None
        holds = in_c is not None and self.goal.met(in_c)
        title = self._titles.get(layer, layer)
        num_instructions = trial.counted_instructions if holds else None
        report = trial.compiled.report if "compiled" in trial.__dict__ else None
        estimate = None if report is None else round(trial.metrics.instructions)
        if self.trace is not None and report is not None:
            self._record(self.trace, trial, f"{title or 'all layers'}: {dtype.value}", holds)
        self.steps.append(
            Tradeoff(
                layer=title,
                precision=dtype.value,
                value=self.goal.metric.compute(in_ort),
                chance=chance(self.goal.metric, in_ort),
                confirmed=None if in_c is None else self.goal.metric.compute(in_c),
                arena=None if report is None else report.ram.arena,
                weights=None if report is None else report.flash.weights,
                instructions=estimate if num_instructions is None else num_instructions,
                is_estimate=num_instructions is None,
                holds=holds,
                kept=keep or holds,
            )
        )
        return holds

    @cached_property
    def _titles(self) -> dict[str, str]:
        """Return the names of layers by the names of their results."""
        return name_results_of(self.quantizer.model.graph)

    def _record(self, trace: SearchTrace, trial: _Trial, name: str, holds: bool) -> None:
        """Record a compiled model in the trace of the search, with a verdict.

        Args:
            trace: The trace.
            trial: The model.
            name: Its name there.
            holds: Whether it meets the goal; it is then cheaper than all that did before.
        """
        compiled = trial.compiled
        candidate = ProgramCandidate(name, BuiltProgram(compiled.program), trial.metrics)
        plan = ProgramPlan.of(candidate, compiled.board, compiled.options)
        number = trace.record(TraceEntry(0, f"--precision {MIXED}", name, "precision of layers", plan, trial.metrics))
        if holds:
            trace.judge(self._accepted, f"Rejected: number {number} meets the goal too, and is cheaper.")
            trace.choose(number, f"Chosen: the cheapest model that meets the goal, {self.goal}.")
            self._accepted = number
        else:
            trace.judge(number, f"Rejected: misses the goal, {self.goal}.")

    def _judge(self, outputs: Sequence[Mapping[str, Array]]) -> Judged:
        """Return the judgement of outputs in real values."""
        samples, ends = self.samples, self._first.compiled.program.outputs
        return judged(ends, outputs, self._reference, samples.labels, samples.inputs)

    def _unseen_outputs(self, trial: _Trial) -> list[dict[str, Array]]:
        """Return the outputs of the quantized model in ONNX Runtime.

        With few samples, these are the outputs of both cross-validation models.
        """
        if not self._halves:
            return self._outputs_in_reals(trial.quantization, self.samples.inputs)
        outputs: dict[int, dict[str, Array]] = {}
        for half in self._halves:
            quantization = half.quantizer.quantize(trial.requested, None if trial.has_own_weights else half.codes)
            judged_samples = [self.samples.inputs[place] for place in half.places]
            outputs |= zip(half.places, self._outputs_in_reals(quantization, judged_samples), strict=True)
        return [outputs[place] for place in range(len(outputs))]

    def _stored_samples(self, compiled: CompiledModel) -> list[dict[str, Array]]:
        return [as_stored(sample, compiled.program.inputs) for sample in self.samples.inputs]

    def _probe(self, dtypes: Mapping[str, DType]) -> list[dict[str, Array]]:
        """Return the real outputs by which precisions are chosen, whether the model fits the board or not."""
        return self._outputs_in_reals(self.quantizer.quantize(dtypes, self._codes), self._probes)

    def _outputs_in_reals(
        self, quantization: Quantization, samples: Sequence[Mapping[str, Array]]
    ) -> list[dict[str, Array]]:
        """Return the outputs of a quantized model in real values, by ONNX Runtime or else by mcugen's numpy code."""
        has_real_ends = not (self.quantizer.scheme.integer_io or self.options.states)
        if has_real_ends:  # Its inputs and outputs are those of the float model.
            with suppress(VerificationError):  # ONNX Runtime lacks some operators.
                return run_oracle(OracleModel(quantization.proto), samples).outputs
        host = compile_model(quantization, "host", self._host_options)
        stored = [as_stored(sample, host.program.inputs) for sample in samples]
        return reals(host.reference(stored), host.program.outputs)

    @property
    def _host_options(self) -> CompileOptions:
        """Return options for a build on this computer: without budgets, a second core and memories of the board."""
        one_core = replace(self.options, cores=1, throughput=False)
        return replace(one_core, max_ram=None, max_flash=None, place=Places(), copy_ahead=False)

    def _mse(self, outputs: Sequence[Mapping[str, Array]], reference: Sequence[Mapping[str, Array]]) -> float:
        return METRICS["mse"].compute(Judged(outputs, reference))

    def _in_c(self, trial: _Trial) -> Judged:
        """Return the judgement of the generated code, built for this computer.

        A microcontroller computes the same bits. Code that calls a library runs on the board for which it was built.
        """
        compiled = trial.compiled
        if not compiled.bundle.libraries:
            compiled = compile_model(trial.quantization, "host", self._host_options)
        outputs = compiled.given_inputs.simulate(self._stored_samples(compiled), measure=False).outputs
        return self._judge(reals(outputs, compiled.program.outputs))
