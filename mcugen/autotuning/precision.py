# SPDX-License-Identifier: Apache-2.0
"""`--precision auto`: the least precise arithmetic, layer by layer, that is precise enough.

All layers start as int8. Where that takes more flash than there is, or than weights may take, those layers get weights
of 4 bits that together add least noise within the budget, by the noise of each alone (mcugen.quantization.few_bits). A
layer's sensitivity is how far the model's outputs move when all layers are raised but this one: what it adds of noise,
free of the noise of others. Layers are raised in the order of sensitivity for each unit of cost (growth of arena and
instructions), first to int16 activations, then to float32, until the goal holds in ONNX Runtime and in the generated
code. Then layers are lowered again where the goal holds without them, those first that brought least for their cost; of
a small network all assignments are tried, the cheapest first.

What is raised is chosen by one half of the samples and judged by the other; where they are few, by both halves, each
with ranges and weights of the other (cross-validation).

A layer's noise is told by ONNX Runtime alone; only what makes noise that matters is compiled to know its cost, which
a draft does not tell: layers computed by groups of rows, and kernels that a budget asks for, come of fitting it to the
board. On the way up, what misses the goal in ONNX Runtime is not compiled, unless there is a deadline, or what met the
goal did not fit the board.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

from mcugen.autotuning.latency import Pace, time_of
from mcugen.core.board import Board
from mcugen.core.errors import ConstraintError, DoesNotFitError, UsageError, VerificationError
from mcugen.core.options import GOALS, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model, drafted
from mcugen.evaluation.accuracy import KINDS, judged, reals
from mcugen.evaluation.metrics import METRICS, Judged, Metric, chance
from mcugen.evaluation.oracle import OracleModel, run_oracle
from mcugen.evaluation.samples import Samples, as_stored, spread
from mcugen.hir.types import Array, DType
from mcugen.kernels.cost import cost_table
from mcugen.lir.program import Program
from mcugen.quantization.few_bits import FINALISTS, counted, stored_share, weights_in_flash
from mcugen.quantization.plan import Codes
from mcugen.quantization.qdq import stored_name
from mcugen.quantization.quantize import Progress, Quantization, Quantizer, no_progress, quantizer
from mcugen.quantization.samples import halves
from mcugen.quantization.storage import Storage, Times
from mcugen.reporting.tradeoffs import Goal, Tradeoff
from mcugen.search.budget import likely_use

LADDER = (DType.INT8, DType.INT16, DType.FLOAT32)
"""Precisions, from the cheapest."""

PROBED = 32
"""How many samples tell the sensitivities of layers."""

LEAST_COST = 1e-3
"""Relative growth below which costs are alike."""

NEGLIGIBLE = 0.05
"""Share of all noise that the quietest layers may make together whose costs are not looked at."""

LEAST_JUDGED = 4
"""Samples that each half must have to be judged by what the other one tells."""

MOST_ASSIGNMENTS = 32
"""Of a small network: they are all tried, as the walk need not end at the cheapest."""

WAYS = 8
"""In which weights of 4 bits are tried: all but FINALISTS by weights that were rounded where all layers have 4 bits, or
all 8.
"""

SHARES = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35)
"""Of the bytes of weights as int8, which are tried where these are too many for the board."""

SURELY = 0.85
"""Of the bytes that a code saves by the count of its bits, what must be saved in flash."""

FAVOUR = {"flash": 1 / 16, "ram": 1 / 16, "balanced": 1.0, "speed": 16.0}
"""Percent of noise that a percent of all time may cost, by goal, where weights are stored by codes or in 4 bits."""

CODING = ("flash", GOALS[0])
"""Goals for which codes may be tried before weights of 4 bits: decoding takes RAM and time."""

PRICES = (1 / 16, 1 / 4, 1.0)
"""Percent of noise for a percent of all time, at which it is chosen how weights are stored: then it is measured."""

LARGER = 1.1
"""Times the constants of a program with weights of 4 bits that one with codes may take, for as large a share."""

STARTS = 2
"""Models with codes that are tried at most."""

MISJUDGED = 1.05
"""Times the room that an estimate of flash may be which turns out to fit."""

WIDENED = 0.05
"""By how much a share of weights may be exceeded by what programs take of flash without a word: biases, multipliers."""

_NARROWING = "weights of 4 bits"


DEFAULT_DROP = 0.5
"""Percentage points by which a share may fall, unless the user says otherwise."""

DEFAULT_SQNR = 25.0
"""dB that outputs must reach where neither labels nor the user say more."""


@dataclass(frozen=True)
class Demand:
    """How a model is judged, and what the user asked for: a largest drop, a least SQNR, or both."""

    metric: Metric
    max_drop: float | None = None
    min_sqnr: float | None = None
    max_weights: float | None = None
    """What weights may take, as a share of their bytes as int8."""

    def goal(self, outputs: Judged) -> Goal:
        """What must hold, for these outputs of the float model. A drop is asked of what labels tell, else an SQNR."""
        if self.max_drop is not None and not self.metric.rates_reference:
            rule = "--max-accuracy-drop needs a metric that the float model has itself"
            remedy = "add labels to the samples, or give --metric agreement or --min-sqnr"
            raise UsageError(rule, f"'{self.metric.name}'", remedy)
        least = DEFAULT_SQNR if self.min_sqnr is None else self.min_sqnr
        near = Goal(METRICS["sqnr"], math.inf, least=least)
        if not self.metric.rates_reference or (self.max_drop is None and self.min_sqnr is not None):
            return near
        drop = DEFAULT_DROP if self.max_drop is None else self.max_drop
        others = () if self.min_sqnr is None else (near,)
        return Goal(self.metric, self.metric.compute(outputs), drop=drop, others=others)


@dataclass(frozen=True)
class _Trial:
    """A model with some layers raised, for the board."""

    wanted: Mapping[str, DType]
    quantization: Quantization
    board: Board
    options: CompileOptions
    sample: Mapping[str, Array]
    has_own_weights: bool
    """Else those of the search."""

    @cached_property
    def compiled(self) -> CompiledModel:
        """DoesNotFitError."""
        return compile_model(self.quantization, self.board, self.options)

    @cached_property
    def counted(self) -> int | None:
        """Instructions of one inference under QEMU, where it has such a board."""
        if not self.compiled.board.qemu:
            return None
        stored = [as_stored(self.sample, self.compiled.program.inputs)]
        return self.compiled.given_inputs.simulate(stored).instructions

    @property
    def precision(self) -> Mapping[str, DType]:
        """By layer, as it came to be."""
        return self.quantization.assignment.precision

    @property
    def estimate(self) -> int:
        """Instructions, by the costs of kernels."""
        return round(self.compiled.program.instructions_estimate or 0.0)

    @property
    def cost(self) -> Cost:
        """Without running anything. DoesNotFitError."""
        return Cost(self.compiled.program.arena_size, self.estimate)


@dataclass(frozen=True)
class _Coded:
    """A model whose weights are stored so, and instructions by estimate."""

    storage: Storage
    quantization: Quantization
    time: float

    @property
    def noise(self) -> float:
        """Of the outputs relative to their signal."""
        return self.quantization.plan.noise or 0.0

    def rank(self, favour: float) -> float:
        """Noise and time, a percent of which may cost `favour` percent of noise; less is better."""
        return self.noise * math.pow(self.time, favour)


@dataclass(frozen=True)
class Cost:
    """Bytes, and an estimate of instructions."""

    arena: int
    work: int

    def growth(self, before: Cost) -> float:
        """Of both together, each as a share of what it was."""
        return self.arena / max(before.arena, 1) + self.work / max(before.work, 1) - 2


@dataclass(frozen=True)
class Round:
    """What all questions have in common that are asked at once: the model as it is, and all layers as they may become.

    `best` are the outputs of the model with all of them `raised`.
    """

    wanted: Mapping[str, DType]
    precision: Mapping[str, DType]
    cost: Cost
    raised: Mapping[str, DType]
    best: Sequence[Mapping[str, Array]]
    codes: Mapping[str, Codes]
    dtype: DType
    code_bits: Mapping[str, float]


@dataclass(frozen=True)
class Question:
    """How much noise does a layer make that stays as it is? Or, `of_growth`: what does it cost to raise it?"""

    round: Round
    layer: str
    of_growth: bool = False


Answer = float | None
"""Noise; or growth: None where the layer cannot be raised, or the board is too small."""


def _loudest(noise: Mapping[str, float]) -> list[str]:
    """Layers without the quietest, which together make a negligible share of all noise."""
    quiet, left = set(), NEGLIGIBLE * sum(noise.values())
    for name in sorted(noise, key=noise.__getitem__):
        left -= noise[name]
        if left < 0:
            break
        quiet.add(name)
    return [name for name in noise if name not in quiet]


@dataclass
class _Half:
    """A quantizer of one half of the samples, the codes of its weights, and where the samples are that it judges."""

    quantizer: Quantizer
    places: Sequence[int]
    codes: dict[str, Codes] = field(default_factory=dict)


@dataclass
class Search:
    """One search; `samples`, in reals, for the float model, are what it is judged by, and chosen by those of the
    quantizer.

    `is_crossed`: these are the same, so that each half is judged by what the other one tells.
    """

    quantizer: Quantizer
    board: Board
    options: CompileOptions
    samples: Samples
    demand: Demand
    fixed: Mapping[str, DType] = field(default_factory=dict)
    """Precisions that are no matter of choice, by layer."""
    progress: Progress = no_progress
    share: Callable[[Sequence[Question]], Iterable[tuple[Question, Answer]]] | None = None
    """Who answers questions, in any order; else this search does."""
    pace: Pace | None = None
    """Of a deadline, which the fastest program must keep."""
    is_crossed: bool = False
    steps: list[Tradeoff] = field(default_factory=list)

    def run(self) -> Quantization:
        """The cheapest model found that meets the goal; ConstraintError if none does, DoesNotFitError: none in time."""
        self._reference = self._exact(self.samples.inputs)
        starts, refused = list[_Trial](), None
        for start in self._starts():
            self._begin(start)
            if self._accept(start, "", LADDER[0]):
                return start.quantization
            starts.append(start)
        for start in sorted(starts, key=lambda each: each.quantization.plan.noise or 0.0):
            if len(starts) > 1:
                self._begin(start)
            try:
                return self._cheapest(self._descend(self._ascend(start))).quantization
            except ConstraintError as error:
                refused = error
        assert refused is not None
        raise refused

    def told(self, kind: str) -> str:
        """How the model that was found is judged, by samples of a kind of mcugen.evaluation.accuracy.KINDS."""
        last = next(step for step in reversed(self.steps) if step.holds)
        count = len(self.samples.inputs)
        samples = f"{count} sample{'s' * (count != 1)} {KINDS[kind]}"
        if self._halves:
            samples += ", each half by ranges and weights of the other"
        doubt = self.goal.doubt(last.value, last.chance, count)
        told = f"precisions are judged on {samples}: {last.shown(self.goal.metric)}; the goal: {self.goal}"
        return f"{told}; {doubt}" if doubt else told

    def widened(self) -> list[str]:
        """That the program's constants take more than the share of weights that was asked for, if that is so."""
        last = next(step for step in reversed(self.steps) if step.holds)
        if self.demand.max_weights is None or last.weights is None or self.options.optimize == "flash":
            return []
        share = last.weights / max(self._wide.weights_size, 1)
        if share <= self.demand.max_weights + WIDENED:
            return []
        asked = f"--max-weights {self.demand.max_weights:.0%} is kept by weights as the model has them"
        found = f"constants of the program take {share:.0%} of those with weights of 8 bits"
        return [
            f"{asked}; {found}, as kernels read wider ones: --optimize flash stores them so, --max-flash counts them"
        ]

    def _begin(self, start: _Trial) -> None:
        """From all layers in int8, with weights that are stored in one of several ways."""
        self._first = start
        self.quantizer = self.quantizer.with_code_bits(start.quantization.plan.code_bits)
        self._codes = dict(self._first.quantization.plan.layers)
        self._halves = list(self._crossed())
        if self.pace is not None and not self._is_timely(self._first.quantization):
            assert self.pace.missed is not None
            self.pace.deadline.require(self.pace.missed)
        self.goal = self.demand.goal(self._judged(self._reference))
        self._scores: dict[str, float] = {}
        self._raised: list[str] = []
        self._orders: dict[tuple[DType, frozenset[tuple[str, DType]]], list[str]] = {}

    def _exact(self, samples: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Compute the float model's outputs."""
        return self.quantizer.model.reference(samples).outputs

    def _crossed(self) -> Iterator[_Half]:
        """Quantizers of a half of the samples, for the other one; none where these are another's, or too few."""
        made, inputs = self.quantizer, self.samples.inputs
        parts = halves(inputs)
        if not self.is_crossed or min(map(len, parts)) < LEAST_JUDGED:
            return
        for known, unseen in (parts, parts[::-1]):
            half = _Half(quantizer(made.source, made.model, made.scheme, [inputs[i] for i in known]), unseen)
            half.quantizer.compensates, half.quantizer.code_bits = made.compensates, made.code_bits
            half.codes |= half.quantizer.quantize(self._first.wanted).plan.layers
            yield half

    @cached_property
    def _probes(self) -> Sequence[Mapping[str, Array]]:
        """Samples that precisions are chosen by: of the quantizer, spread over all; of a stream the first."""
        known = self.quantizer.samples or self.samples.inputs
        return known[:PROBED] if self.options.states else [known[i] for i in spread(len(known), PROBED)]

    def _starts(self) -> Iterator[_Trial]:
        """The model in int8, or with weights that take fewer bytes: that first which serves the goal best if it is
        precise enough, by noise and time. DoesNotFitError, ConstraintError.
        """
        share, narrow = self._within_budget()
        if share is None or not self._may_code:
            yield narrow
            return
        is_last = self.options.optimize not in CODING
        if is_last:
            yield narrow
        favour, left = FAVOUR[self.options.optimize], self._noise_left(narrow.wanted)
        before = left * self._times.of(Storage(narrow.wanted)) ** favour
        coded = [way for way in self._coded(share) if way.noise < left]
        better = [way for way in coded if not is_last and way.rank(favour) < before]
        taken = stored_share(narrow.quantization.model, narrow.quantization.plan) / share
        most = LARGER * narrow.compiled.program.weights_size / taken
        yield from self._saving(better, share, most)
        if not is_last:
            yield narrow
        yield from self._saving([way for way in coded if way not in better], share, most)

    def _within_budget(self) -> tuple[float | None, _Trial]:
        """In int8, or with as many weights of 4 bits as are needed, and then the share of their bytes.

        DoesNotFitError, ConstraintError.
        """
        share = self.demand.max_weights
        if share is not None:
            return (share, self._narrowed(share)) if share < 1 else (None, self.trial(self.fixed))
        try:
            return None, self.trial(self.fixed)
        except DoesNotFitError:
            if not self._layers:
                raise
            return self._first_that_fits()

    def _first_that_fits(self) -> tuple[float, _Trial]:
        """With the largest share of bytes that fits; DoesNotFitError, if weights of 2 and 4 bits wherever that can be
        do not.

        Drafts tell where that is: estimates of them where to begin. They may be a little smaller than what is made of
        them.
        """
        self.progress(_NARROWING, 0, len(SHARES))
        most, least = self._shares_that_may_fit()
        shares = [*(share for share in SHARES if least < share < most), least]
        first, last = 0, len(shares) - 1
        while first < last:
            self.progress(_NARROWING, len(shares) - 1 - (last - first), len(shares))
            middle = (first + last) // 2
            first, last = (first, middle) if self._may_be_enough(shares[middle]) else (middle + 1, last)
        for share in shares[first:-1]:
            with suppress(DoesNotFitError):
                self._draft(self._way(share))
                return share, self._narrowed(share)
        return least, self._narrowed(least)

    def _shares_that_may_fit(self) -> tuple[float, float]:
        """Between which the best one is; DoesNotFitError with the least that there is, if none fits.

        Kernels for weights of 2 bits are further code, so that 4 bits everywhere may take less flash.
        """
        coarse = {**self.fixed, **dict.fromkeys(self._layers, DType.INT4)}
        ways = {self.quantizer.share_of(way): way for way in (coarse, self.quantizer.narrowest(self.fixed))}
        refused = dict[float, DoesNotFitError]()
        most = 1.0
        for share, way in ways.items():
            try:
                self._draft(way)
            except DoesNotFitError as error:
                most, refused[share] = share, error
            else:
                return most, share
        nearest = refused[min(refused, key=lambda share: self._flash_of(ways[share]))]
        told = f"{nearest.found}; with weights of 2 or 4 bits wherever that can be, by a draft of the model"
        raise DoesNotFitError(nearest.rule, told, nearest.remedy)

    def _draft(self, wanted: Mapping[str, DType]) -> None:
        """DoesNotFitError, if not even a model fits whose weights are rounded to nearest."""
        compile_model(self.quantizer.draft(wanted), self.board, self.options)

    def _may_be_enough(self, share: float) -> bool:
        """Whether a draft takes hardly more flash than there is, whose weights take such a share of their bytes as
        int8.
        """
        return self._flash_of(self._way(share)) <= MISJUDGED * (self.options.max_flash or self.board.total_flash)

    def _flash_of(self, wanted: Mapping[str, DType]) -> int:
        """That a draft takes at least, by estimate."""
        options = replace(self.options, optimize="flash")
        _, program = drafted(self.quantizer.draft(wanted), self.board, options)
        return likely_use(program, self.board, options).flash

    def _way(self, share: float) -> Mapping[str, DType]:
        """The most promising one to such a share."""
        return self.quantizer.narrowed(self.fixed, self._layers, share, 1)[0]

    @cached_property
    def _layers(self) -> list[str]:
        """Whose weights may take fewer bits."""
        plan = self.quantizer.draft(self.fixed).plan
        return [n for n in self.quantizer.bearing_few_bits(plan) if n not in self.fixed]

    def _narrowed(self, share: float) -> _Trial:
        """Weights that take such a share of their bytes as int8, in the best of some promising ways."""
        ways = self.quantizer.narrowed(self.fixed, self._layers, share, WAYS)
        if len(ways) > FINALISTS:
            narrow = self.quantizer.quantize({**self.fixed, **dict.fromkeys(self._layers, DType.INT4)}).plan.layers
            wide = self.quantizer.quantize(self.fixed).plan.layers
            ways.sort(key=lambda way: self._noise_of(way, {**wide, **{n: narrow[n] for n in way if n in narrow}}))
        return self.trial(min(ways[:FINALISTS], key=self._noise_left) if len(ways) > 1 else ways[0])

    @property
    def _may_code(self) -> bool:
        """Whether weights of 8 bits may be so coarse that a code of them is short."""
        return bool(self.quantizer.samples) and self.quantizer.scheme.weights is DType.INT8

    def _coded(self, share: float) -> list[_Coded]:
        """With weights of which a code takes that share, some with 4 bits perhaps: STARTS of them, the best first.

        What layers make together differs from what each adds by itself, which their storage is chosen by: so it is
        chosen at several prices of time, and what comes of that is measured.
        """
        maker, times = self.quantizer, self._times
        ways = [Storage(self.fixed, maker.coded(self.fixed, share))]
        ways += [w for price in PRICES if (w := maker.stored(self.fixed, self._layers, share, times, price))]
        different = {(frozenset(w.wanted.items()), frozenset(w.bits.items())): w for w in ways if w.bits}
        made = [
            _Coded(way, maker.with_code_bits(way.bits).quantize(way.wanted), times.of(way))
            for way in different.values()
        ]
        return sorted(made, key=lambda way: way.rank(FAVOUR[self.options.optimize]))[:STARTS]

    def _saving(self, ways: Iterable[_Coded], share: float, most: float) -> Iterator[_Trial]:
        """Those whose program decodes weights, by which constants take at `most` so many bytes: the board must have
        room for that, and the goal must bear it.
        """
        for way in ways:
            trial = self._made(way.storage.wanted, way.quantization, has_own_weights=True)
            if self._fits(trial) and self._saves(trial, share) and trial.compiled.program.weights_size <= most:
                yield trial

    @cached_property
    def _times(self) -> Times:
        """By drafts of the model with weights of 8 and of 4 bits."""
        maker, coarse = self.quantizer, {**self.fixed, **dict.fromkeys(self._layers, DType.INT4)}
        few = drafted(maker.draft(coarse), self.board, self.options)[1]
        before, after = (
            {n: made.layer_estimates.get(stored_name(n), made.layer_estimates.get(n, 0.0)) for n in self._layers}
            for made in (self._wide, few)
        )
        table, plan = cost_table(self.board.cpu), maker.draft(coarse).plan
        nodes = {n.outputs[0].name: n for n in maker.model.graph.nodes}
        return Times(
            max(self._wide.instructions_estimate or 0.0, 1.0),
            {n: after[n] - before[n] for n in self._layers},
            {n: table.decoding(counted(nodes[n], plan)) for n in self._layers},
        )

    @cached_property
    def _wide(self) -> Program:
        """A draft with all weights as they are in 8 bits."""
        return drafted(self.quantizer.draft(self.fixed), self.board, self.options)[1]

    def _saves(self, coded: _Trial, share: float) -> bool:
        """Whether flash has about as much less as all weights promise: none may be left as they are."""
        promised = (1 - share) * weights_in_flash(self.quantizer.model, coded.quantization.plan)
        return self._wide.weights_size - coded.compiled.program.weights_size >= SURELY * promised

    def _noise_left(self, wanted: Mapping[str, DType]) -> float:
        """With weights of its own: on the samples that these were rounded by, else of the outputs."""
        known = self.quantizer.quantize(wanted).plan.noise
        return self._noise_of(wanted) if known is None else known

    def _noise_of(self, wanted: Mapping[str, DType], codes: Mapping[str, Codes] | None = None) -> float:
        """Of the outputs, with these codes, or the best for these precisions."""
        found = self.quantizer.quantize(wanted, codes)
        return self._mse(self._outputs_in_reals(found, self._probes), self._exact_probes)

    @cached_property
    def _exact_probes(self) -> Sequence[Mapping[str, Array]]:
        return self._exact(self._probes)

    # ------------------------------------------------------------------------------------------------ the walk

    def _ascend(self, now: _Trial) -> _Trial:
        """Raises layers, the most rewarding first."""
        self._codes |= self._wide_codes(self.quantizer, now)
        for half in self._halves:
            half.codes |= self._wide_codes(half.quantizer, now)
        known = len(self.steps)
        if self.pace is None:
            with suppress(DoesNotFitError):
                return self._raised_until_met(now, each_fits=False)
            del self.steps[known:], self._raised[:]
        return self._raised_until_met(now, each_fits=True)

    def _raised_until_met(self, now: _Trial, *, each_fits: bool) -> _Trial:
        """With as many layers raised as it takes. DoesNotFitError where that does not fit; with `each_fits` those that
        do not are left out.
        """
        for dtype in LADDER[1:]:
            layers = self._by_sensitivity(now, dtype)
            for done, layer in enumerate(layers):
                self.progress(f"raising layers to {dtype.value}", done, len(layers))
                trial = self._trial({**now.wanted, layer: dtype}, layer)
                if now.precision[layer] is dtype or trial is None:
                    continue  # its neighbours have raised it
                if each_fits and not (self._fits(trial) and self._is_timely(trial.quantization)):
                    continue
                now = trial
                self._raised.append(layer)
                if self._accept(now, layer, dtype):
                    return now
        last = self.steps[-1]
        best = last.value if last.confirmed is None else last.confirmed
        found = f"{self.goal.metric.show(best)} with all layers raised{' that fit the board' * each_fits}"
        if self.pace is not None and self.pace.missed is not None:
            rule = f"the model must reach the goal: {self.goal}, within {self.pace.deadline.text}"
            one_more = f"with one more, the least is {time_of(self.pace.missed)}"
            raise DoesNotFitError(rule, f"{found} in that time; {one_more}", "allow more, or ask for less")
        raise ConstraintError(f"the model must reach the goal: {self.goal}", found, "ask for less")

    def _descend(self, now: _Trial) -> _Trial:
        """Lowers raised layers again where the goal holds without, the least rewarding first; the last was needed."""
        raised = dict.fromkeys(self._raised[:-1])
        for done, layer in enumerate(sorted(raised, key=lambda name: self._scores[name])):
            self.progress("lowering layers again", done, len(raised))
            for dtype in LADDER[: LADDER.index(now.wanted[layer])]:
                wanted = {name: d for name, d in {**now.wanted, layer: dtype}.items() if d is not LADDER[0]}
                trial = self._trial(wanted, layer)
                if trial is None or not self._fits(trial) or trial.cost.growth(now.cost) >= 0:
                    continue
                if not self._is_timely(trial.quantization):
                    continue
                if self._holds_too(trial, layer, dtype):
                    now = trial
                    break
        return now

    def _cheapest(self, now: _Trial) -> _Trial:
        """Of all assignments of a small network, in the precisions that were needed, the cheapest that will do."""
        layers = list(self._candidates(self._first, LADDER[-1]))
        needed = [d for d in LADDER if d is LADDER[0] or d in now.wanted.values()]
        total = len(needed) ** len(layers)
        cheaper = []
        for done, dtypes in enumerate(product(needed, repeat=len(layers)) if total <= MOST_ASSIGNMENTS else ()):
            self.progress("all assignments", done, total)
            raised = {name: d for name, d in zip(layers, dtypes, strict=True) if d is not LADDER[0]}
            trial = self._trial({**self._first.wanted, **raised}, *raised)
            if not raised or trial is None or not self._fits(trial):
                continue
            if (growth := trial.cost.growth(now.cost)) < 0:
                cheaper.append((growth, raised))
        for _, raised in sorted(cheaper, key=lambda each: each[0]):
            trial = self.trial({**self._first.wanted, **raised})
            dtype = max(raised.values(), key=LADDER.index)
            if self._is_timely(trial.quantization) and self._holds_too(trial, ", ".join(raised), dtype):
                return trial
        return now

    def _wide_codes(self, maker: Quantizer, now: _Trial) -> Mapping[str, Codes]:
        """Weights for inputs that are nearly exact. In all int8, they make up for errors that will be gone."""
        wide = dict.fromkeys(self._candidates(now, DType.INT16), DType.INT16)
        return maker.quantize({**now.wanted, **wide}).plan.layers

    def _by_sensitivity(self, now: _Trial, dtype: DType) -> list[str]:
        """Layers that can be raised to `dtype`, by noise for each unit of cost.

        The quietest are held to cost as much as the dearest of the others.
        """
        if (order := self._orders.get((dtype, frozenset(now.wanted.items())))) is not None:
            return order
        layers = list(self._candidates(now, dtype))
        raised = {**now.wanted, **dict.fromkeys(layers, dtype)}
        asked = Round(
            now.wanted,
            now.precision,
            now.cost,
            raised,
            self._probe(raised),
            self._codes,
            dtype,
            self.quantizer.code_bits,
        )
        what = f"sensitivity to {dtype.value}"
        noise = {name: each or 0.0 for name, each in self._ask(what, [Question(asked, name) for name in layers])}
        loud = _loudest(noise)
        growth = dict(self._ask(f"cost of {dtype.value}", [Question(asked, name, of_growth=True) for name in loud]))
        most = max((each for each in growth.values() if each is not None), default=0.0)
        costs = {name: growth.get(name, most) for name in layers}
        found = {name: noise[name] / max(cost, LEAST_COST) for name, cost in costs.items() if cost is not None}
        self._scores |= found
        order = sorted(found, key=lambda name: -found[name])
        self._orders[dtype, frozenset(now.wanted.items())] = order
        return order

    def _ask(self, what: str, questions: Sequence[Question]) -> Iterator[tuple[str, Answer]]:
        """Layers with answers, as they come."""
        answers = self.share(questions) if self.share else ((each, self.answer(each)) for each in questions)
        for done, (question, answer) in enumerate(answers, 1):
            self.progress(what, done, len(questions))
            yield question.layer, answer

    def answer(self, question: Question) -> Answer:
        """By the model that this search is of; whoever asks may be another process."""
        asked, layer = question.round, question.layer
        self._codes, self.quantizer = dict(asked.codes), self.quantizer.with_code_bits(asked.code_bits)
        if not question.of_growth:
            return self._mse(self._probe({**asked.raised, layer: asked.precision[layer]}), asked.best)
        trial = self._trial({**asked.wanted, layer: asked.dtype}, layer)
        return trial.cost.growth(asked.cost) if trial is not None and self._fits(trial) else None

    def _candidates(self, now: _Trial, dtype: DType) -> Iterator[str]:
        """Layers that compute, in less than `dtype`."""
        for node in (n for n in self.quantizer.model.graph.nodes if not n.op.moves_data):
            name = node.outputs[0].name
            is_coarse = now.wanted.get(name) in (DType.INT4, DType.INT2)
            is_free = name in now.precision and name not in self.fixed and not is_coarse
            if is_free and LADDER.index(now.precision[name]) < LADDER.index(dtype):
                yield name

    # ------------------------------------------------------------------------------------------------- a model

    def trial(self, wanted: Mapping[str, DType]) -> _Trial:
        """With weights of its own. DoesNotFitError."""
        trial = self._made(wanted, self.quantizer.quantize(wanted), has_own_weights=True)
        _ = trial.compiled
        return trial

    def _trial(self, wanted: Mapping[str, DType], *layers: str) -> _Trial | None:
        """A model, not compiled yet; None if the layers cannot be as wanted, or if their weights take too much."""
        quantization = self.quantizer.quantize(wanted, self._codes)
        if any(quantization.assignment.precision[name] is not wanted.get(name, LADDER[0]) for name in layers):
            return None
        most = self.demand.max_weights
        if most is not None and stored_share(quantization.model, quantization.plan) > most:
            return None
        return self._made(wanted, quantization, has_own_weights=False)

    def _made(self, wanted: Mapping[str, DType], quantization: Quantization, *, has_own_weights: bool) -> _Trial:
        return _Trial(wanted, quantization, self.board, self.options, self.samples.inputs[0], has_own_weights)

    def _fits(self, trial: _Trial) -> bool:
        with suppress(DoesNotFitError):
            return bool(trial.compiled)
        return False

    def _is_timely(self, quantization: Quantization) -> bool:
        """Whether its fastest program is fast enough, if it must be."""
        if self.pace is None:
            return True
        fastest = compile_model(quantization, self.board, replace(self.options, optimize="speed"))
        return self.pace.is_kept_by(fastest)

    def _holds_too(self, trial: _Trial, layer: str, dtype: DType) -> bool:
        """Whether the goal holds, and the model fits, which is taken back otherwise."""
        with suppress(DoesNotFitError):
            return self._accept(trial, layer, dtype, keep=False)
        return False

    def _accept(self, trial: _Trial, layer: str, dtype: DType, keep: bool = True) -> bool:
        """Whether the goal holds; a line of the table. DoesNotFitError where it does for too large a model."""
        found = self._judged(self._unseen_outputs(trial))
        in_c = self._in_c(trial) if self.goal.met(found) else None
        holds = in_c is not None and self.goal.met(in_c)
        counted = trial.counted if holds else None
        report = trial.compiled.report if "compiled" in trial.__dict__ else None
        self.steps.append(
            Tradeoff(
                layer=layer,
                precision=dtype.value,
                value=self.goal.metric.compute(found),
                chance=chance(self.goal.metric, found),
                confirmed=None if in_c is None else self.goal.metric.compute(in_c),
                arena=None if report is None else report.ram.arena,
                weights=None if report is None else report.flash.weights,
                instructions=trial.estimate if report is not None and counted is None else counted,
                is_estimate=counted is None,
                holds=holds,
                kept=keep or holds,
            )
        )
        return holds

    def _judged(self, outputs: Sequence[Mapping[str, Array]]) -> Judged:
        """Of outputs in reals."""
        samples, ends = self.samples, self._first.compiled.program.outputs
        return judged(ends, outputs, self._reference, samples.labels, samples.inputs)

    def _unseen_outputs(self, trial: _Trial) -> list[dict[str, Array]]:
        """Of the quantized model in ONNX Runtime; of few samples, of models that the other half makes."""
        if not self._halves:
            return self._outputs_in_reals(trial.quantization, self.samples.inputs)
        found: dict[int, dict[str, Array]] = {}
        for half in self._halves:
            made = half.quantizer.quantize(trial.wanted, None if trial.has_own_weights else half.codes)
            some = [self.samples.inputs[place] for place in half.places]
            found |= zip(half.places, self._outputs_in_reals(made, some), strict=True)
        return [found[place] for place in range(len(found))]

    def _stored(self, compiled: CompiledModel) -> list[dict[str, Array]]:
        return [as_stored(sample, compiled.program.inputs) for sample in self.samples.inputs]

    def _probe(self, wanted: Mapping[str, DType]) -> list[dict[str, Array]]:
        """The outputs of a model that is chosen by, in reals, whether it fits the board or not."""
        return self._outputs_in_reals(self.quantizer.quantize(wanted, self._codes), self._probes)

    def _outputs_in_reals(
        self, quantization: Quantization, samples: Sequence[Mapping[str, Array]]
    ) -> list[dict[str, Array]]:
        has_real_ends = not (self.quantizer.scheme.integer_io or self.options.states)
        if has_real_ends:  # it takes and gives what the float model does
            with suppress(VerificationError):  # of operators that no other program knows
                return run_oracle(OracleModel(quantization.proto), samples).outputs
        host = compile_model(quantization, "host", self._unlimited)
        stored = [as_stored(sample, host.program.inputs) for sample in samples]
        return reals(host.reference(stored), host.program.outputs)

    @property
    def _unlimited(self) -> CompileOptions:
        """For this computer: what it takes of memory says nothing of the board."""
        return replace(self.options, max_ram=None, max_flash=None)

    def _mse(self, outputs: Sequence[Mapping[str, Array]], wanted: Sequence[Mapping[str, Array]]) -> float:
        return METRICS["mse"].compute(Judged(outputs, wanted))

    def _in_c(self, trial: _Trial) -> Judged:
        """What the generated code computes, built for this computer: a microcontroller's code gives the same bits.

        What calls a library runs on the board, for which that was built.
        """
        compiled = trial.compiled
        if not compiled.bundle.libraries:
            compiled = compile_model(trial.quantization, "host", self._unlimited)
        outputs = compiled.given_inputs.simulate(self._stored(compiled), measure=False).outputs
        return self._judged(reals(outputs, compiled.program.outputs))
