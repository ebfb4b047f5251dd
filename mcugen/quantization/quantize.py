# SPDX-License-Identifier: Apache-2.0
"""From a float model and samples to a quantized one: fuse, profile, place, choose ranges, refine weights, write."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import onnx

from mcugen.core.errors import ConstraintError, UsageError
from mcugen.core.options import FEW_BITS, PRECISIONS, CompileOptions
from mcugen.evaluation.accuracy import QuantizationEstimate, run_onnxruntime
from mcugen.evaluation.layers import OtherPrecision
from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import LoadedModel, prepare_model
from mcugen.frontend.onnx.nodes import every_node
from mcugen.frontend.onnx.opset_upgrade import upgrade
from mcugen.hir.graph import Graph, Node
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array, DType
from mcugen.quantization import few_bits, recurrent
from mcugen.quantization.assign import Assignment, assign
from mcugen.quantization.flash import Stored as InFlash
from mcugen.quantization.flash import constants_of
from mcugen.quantization.float_model import OPSET_INT16, FloatModel, build_float_model, in_known_operators
from mcugen.quantization.plan import Codes, Plan, Stored
from mcugen.quantization.profile import Profile, merge_profiles, profile_model, profile_notes
from mcugen.quantization.qdq import write_qdq
from mcugen.quantization.ranges import Choice, choose_ranges, refit_range, steady
from mcugen.quantization.refine import refine
from mcugen.quantization.samples import in_own_order
from mcugen.quantization.scheme import Scheme, activation_params
from mcugen.quantization.storage import Known, Storage, Times, cheapest, options_of
from mcugen.quantization.weights import takes_two_bits

Sample = Mapping[str, Array]
Group = tuple[tuple[str, ...], DType]
"""Tensors that share a range, and how they are stored."""
Progress = Callable[[str, int, int], None]
"""What is done, how many steps of it, of how many."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Progress that is shown nowhere."""


@dataclass(frozen=True)
class Quantization:
    """A quantized model, and how it came about. `proto` computes what `source`, a float model, computes."""

    source: LoadedModel
    model: FloatModel
    profile: Profile
    assignment: Assignment
    plan: Plan
    proto: onnx.ModelProto
    notes: tuple[str, ...] = ()
    """What was taken for granted of model and samples, and what quantization cost where that is much."""
    estimate: QuantizationEstimate | None = None
    """What quantization cost, where that was asked (mcugen.quantization.estimate)."""
    calibration_sha256: str | None = None
    """Of the samples that ranges come from, where they are known."""
    warnings: tuple[str, ...] = ()
    """What is wrong with samples, and what to do: told even where progress is not."""
    other_precisions: tuple[OtherPrecision, ...] = ()
    """Layers that do not compute in the type that was asked for; `notes` names them, too."""

    @property
    def loaded(self) -> LoadedModel:
        """The quantized model under the name of the float one."""
        return replace(self.source, proto=self.proto, given=self.proto)

    def describe(self) -> str:
        """For the banner of the generated code."""
        scheme = self.plan.scheme
        precision = next(key for key, dtype in PRECISIONS.items() if dtype == scheme.activations.value)
        if scheme.weights is DType.INT4:
            precision = next(key for key, group in FEW_BITS.items() if group == scheme.group)
        others = Counter(d for d in self.assignment.precision.values() if d is not scheme.activations)
        parts = [f"precision {precision} by {self.profile.samples} samples"]
        parts += [f"{count} operator{'s' * (count > 1)} in {dtype.value}" for dtype, count in others.items()]
        if self.plan.few_bits and scheme.weights is not DType.INT4:
            count = len(self.plan.few_bits)
            parts.append(f"{count} layer{'s' * (count > 1)} with weights of 4 bits")
        if count := len(self.plan.code_bits):
            parts.append(f"{count} layer{'s' * (count > 1)} with weights for a code")
        if count := len(self.plan.two_bits):
            parts.append(f"{count} layer{'s' * (count > 1)} with weights of 2 bits")
        return ", ".join(parts)


MOST_KEPT = 8
"""Quantized models that are remembered: all ways that `auto` chooses from."""

NARROWLY = 0.998
"""Of a share of bytes, what is aimed at where that was missed by a little."""

MOST_RETURNS = 3
"""Times that layers may return to 8 bits because of what others do."""


@dataclass
class Quantizer:
    """Quantizes one model, as often as needed, with other precisions for single layers.

    `samples` may be empty where there is a `profile`: then ranges are judged by the profile alone, and weights are
    rounded to nearest.
    """

    source: LoadedModel
    model: FloatModel
    samples: Sequence[Sample]
    scheme: Scheme
    profile: Profile
    progress: Progress = no_progress
    compensates: bool = False
    """Whether weights of 8 bits, too, make good a part of what layers before have lost."""
    code_bits: Mapping[str, float] = field(default_factory=dict)
    """By layer, what a code may take of each weight of 8 bits on average."""
    _choices: dict[Group, Choice] = field(default_factory=dict, init=False)
    """Of groups that are not `_own`."""
    _made: dict[tuple[frozenset[Any], frozenset[Any], bool], Quantization] = field(default_factory=dict, init=False)
    """What was made last without known weights, as it is asked for again."""
    _noise: dict[tuple[frozenset[tuple[str, DType]], bool], dict[Node, float]] = field(default_factory=dict, init=False)
    """What weights of 4 bits add to the outputs, by what was asked for."""
    _even: dict[tuple[frozenset[tuple[str, DType]], float, bool], tuple[Plan, dict[Node, float]] | None] = field(
        default_factory=dict, init=False
    )
    """The same of codes of as many bits for all, by what was asked for and the share of bytes."""
    _constant: dict[frozenset[tuple[str, DType]], Mapping[str, Array]] = field(default_factory=dict, init=False)
    """What was found last, by layers' precision."""
    _rounded_plans: dict[tuple[frozenset[Any] | bool, ...], Plan] = field(default_factory=dict, init=False)

    def quantize(
        self, wanted: Mapping[str, DType] | None = None, known: Mapping[str, Codes] | None = None
    ) -> Quantization:
        """With `wanted` precisions by layer (name of its output), else the scheme's. UsageError for unknown layers.

        INT4 is the precision of int8 activations and of weights of 4 bits, as far as the layer bears them; INT2 that of
        weights of 2 bits, which large fully connected layers and convolutions may have: UsageError for others.

        Weights are those of `known`, where given: another precision of activations needs no others.
        """
        layers = dict(wanted or {})
        if known is not None:
            return self._quantize(layers, known)
        asked = frozenset(layers.items()), frozenset(self.code_bits.items()), self.compensates
        if asked not in self._made:
            made = self._quantize(layers, None)
            while len(self._made) >= MOST_KEPT:
                del self._made[next(iter(self._made))]
            self._made[asked] = made
        return self._made[asked]

    def draft(self, wanted: Mapping[str, DType]) -> Quantization:
        """The same with weights rounded to nearest, which takes no time: of the size that it will have, nearly."""
        assignment, plan = self._planned(wanted)
        plan = self._nearest(plan)
        return Quantization(self.source, self.model, self.profile, assignment, plan, self._written(plan))

    def _quantize(self, wanted: Mapping[str, DType], known: Mapping[str, Codes] | None) -> Quantization:
        assignment, plan = self._planned(wanted)
        if known is None:
            plan = self._refined(self._with_few_bits(plan, wanted))
        else:
            plan.layers |= {n: c for n, c in known.items() if plan.precision[n] is not DType.FLOAT32}
        proto = self._written(plan)
        notes = (*self.model.graph.notes, *profile_notes(self.model, self.profile))
        return Quantization(self.source, self.model, self.profile, assignment, plan, proto, notes)

    def _planned(self, wanted: Mapping[str, DType]) -> tuple[Assignment, Plan]:
        """All but the weights, whose types are those of `wanted`."""
        self._require_layers(wanted)
        assignment = self._assigned(wanted)
        plan = self._plan(assignment)
        plan.code_bits = self.code_bits
        cells = [node.outputs[0].name for node in few_bits.cells(self.model, plan)]
        able = [*self.bearing_few_bits(plan), *cells]
        plan.few_bits = frozenset(n for n in able if wanted.get(n) is DType.INT4)
        plan.two_bits = self._with_two_bits(plan, wanted)
        weighted = {n.outputs[0].name for n in self.model.graph.nodes if weight_axes(n.op)}
        plan.wide_weights = frozenset(
            n for n in weighted if wanted.get(n) is DType.INT32 and plan.precision[n] is DType.INT16
        )
        return assignment, plan

    def _assigned(self, wanted: Mapping[str, DType]) -> Assignment:
        """What layers compute in, as they are wanted, and the groups of tensors that follow."""
        spans = {name: tensor.high - tensor.low for name, tensor in self.profile.tensors.items()}
        computed = {name: DType.INT8 if dtype in (DType.INT4, DType.INT2) else dtype for name, dtype in wanted.items()}
        return assign(self.model.graph, self.scheme, computed, spans, self.model.states)

    def _with_two_bits(self, plan: Plan, wanted: Mapping[str, DType]) -> frozenset[str]:
        """The layers whose weights are to take 2 bits. UsageError for those that do not."""
        able = {n.outputs[0].name for n in few_bits.candidates(self.model, plan) if takes_two_bits(n)}
        asked = frozenset(name for name, dtype in wanted.items() if dtype is DType.INT2)
        if asked - able:
            remedy = f"take w4a8 there; w2a8 goes with: {', '.join(sorted(able)) or 'no layer of this model'}"
            rule = "weights of 2 bits are for large fully connected layers and convolutions"
            raise UsageError(rule, f"'{min(asked - able)}'", remedy)
        return asked

    def bearing_few_bits(self, plan: Plan) -> list[str]:
        """The layers whose weights may take 4 bits."""
        return [node.outputs[0].name for node in few_bits.candidates(self.model, plan)]

    def narrowed(
        self, wanted: Mapping[str, DType], layers: Sequence[str], share: float, most: int
    ) -> list[dict[str, DType]]:
        """`wanted` with INT4 for some of the layers, so that weights take a share of their bytes as int8.

        Up to so many ways, the most promising first. Where 4 bits are not enough, large layers have INT2, as
        few of them as will do. ConstraintError if neither is enough.
        """
        coarse = {**wanted, **dict.fromkeys(layers, DType.INT4)}
        sized = self._sized(coarse)
        room = few_bits.room_for_wide(self.model, sized, share)
        if room < 0:
            return [self._narrowest(coarse, layers, share)]
        noise = self._few_noise(coarse)
        ways = few_bits.ways(noise, {n: few_bits.counted(n, sized) for n in noise}, room, most)
        return [{**wanted, **dict.fromkeys(way, DType.INT4)} for way in ways]

    def _few_noise(self, coarse: Mapping[str, DType]) -> dict[Node, float]:
        """What each layer of 4 bits adds to the outputs, where all these have them."""
        asked = frozenset(coarse.items()), self.compensates
        if asked not in self._noise:
            plan = self.quantize(coarse).plan
            few = [n for n in few_bits.candidates(self.model, plan) if n.outputs[0].name in plan.few_bits]
            self._noise[asked] = few_bits.weight_noise(self.model, plan, few, self.samples)
        return self._noise[asked]

    def with_code_bits(self, bits: Mapping[str, float]) -> Quantizer:
        """Another one of the same model, samples and ranges, whose weights of 8 bits take so many by a code; what was
        made is known to both.
        """
        made = copy(self)
        made.code_bits = bits
        return made

    def stored(
        self, wanted: Mapping[str, DType], layers: Sequence[str], share: float, times: Times, favour: float
    ) -> Storage | None:
        """Of least noise and time within a share of the bytes as int8: codes, and 4 bits for some of the `layers`.

        A percent of all time may cost `favour` percent of the noise. None where neither is enough.
        """
        even = self._evenly_coded(wanted, share)
        if even is None:
            return None
        plan, noise = even
        few = self._few_noise({**wanted, **dict.fromkeys(layers, DType.INT4)})
        plain = self._sized(wanted).layers
        known = {n: Known.of(n, plan, plain[n.output.name], noise[n], few.get(n)) for n in noise}
        others = (n for n in self.model.graph.nodes if few_bits.weights_of(n) and n not in known)
        total = few_bits.weights_in_flash(self.model, plan)
        room = share * total - sum(few_bits.stored_bytes(n, plan) for n in others)
        options = {n.output.name: options_of(n.output.name, each, times) for n, each in known.items()}
        found = cheapest(options, room, favour * sum(noise.values()) / times.whole)
        if found is None:
            return None
        few_bit = [name for name, option in found.items() if option.dtype is DType.INT4]
        bits = {name: option.bits for name, option in found.items() if option.bits is not None}
        made = {**wanted, **dict.fromkeys(few_bit, DType.INT4)}
        return Storage(made, self._within(made, bits, share))

    def _evenly_coded(self, wanted: Mapping[str, DType], share: float) -> tuple[Plan, dict[Node, float]] | None:
        """Codes of as many bits for all layers within a share of the bytes as int8; what each adds to the outputs.

        None where that cannot be.
        """
        asked = frozenset(wanted.items()), share, self.compensates
        if asked not in self._even:
            bits = few_bits.even_bits(self.model, self._sized(wanted), share)
            self._even[asked] = self._with_noise(self._coded_plan(wanted, bits)) if bits else None
        return self._even[asked]

    def _with_noise(self, plan: Plan) -> tuple[Plan, dict[Node, float]]:
        """A plan, and what the code of each of its layers adds to the outputs."""
        able = few_bits.candidates(self.model, plan)
        layers = [n for n in few_bits.codable(self.model, plan) if n in able]
        return plan, few_bits.weight_noise(self.model, plan, layers, self.samples)

    def coded(self, wanted: Mapping[str, DType], share: float) -> dict[str, float]:
        """`code_bits` by which weights of 8 bits take a share of their bytes by a code, of least noise as far as found.

        Empty where that cannot be.
        """
        even = self._evenly_coded(wanted, share)
        if even is None:
            return {}
        plan, noise = even
        ways = [plan.code_bits, few_bits.allotted(noise, plan)]
        return min((self._within(wanted, way, share) for way in ways), key=lambda way: self._coded_noise(wanted, way))

    def _within(self, wanted: Mapping[str, DType], bits: Mapping[str, float], share: float) -> dict[str, float]:
        """Fewer bits, if rounded weights take more than that by a code, as those rounded to nearest do not."""
        found = few_bits.stored_share(self.model, self._coded_plan(wanted, bits))
        less = min(NARROWLY * share / found, 1.0) if found > share else 1.0
        return {name: each * less for name, each in bits.items()}

    def _coded_noise(self, wanted: Mapping[str, DType], bits: Mapping[str, float]) -> float:
        return self._coded_plan(wanted, bits).noise or 0.0

    def _coded_plan(self, wanted: Mapping[str, DType], bits: Mapping[str, float]) -> Plan:
        """With weights rounded by the samples."""
        return self._refined(replace(self._planned(wanted)[1], code_bits=bits))

    def narrowest(self, wanted: Mapping[str, DType]) -> dict[str, DType]:
        """`wanted` with weights of 2 bits, or 4, wherever that can be: what takes the least bytes."""
        able = few_bits.candidates(self.model, self._planned(wanted)[1])
        free = [n for n in able if n.outputs[0].name not in wanted]
        return {**wanted, **{n.outputs[0].name: DType.INT2 if takes_two_bits(n) else DType.INT4 for n in free}}

    def share_of(self, wanted: Mapping[str, DType]) -> float:
        """Bytes of weights relative to a byte for each."""
        return few_bits.stored_share(self.model, self._sized(wanted))

    def _narrowest(self, wanted: Mapping[str, DType], layers: Sequence[str], share: float) -> dict[str, DType]:
        """`wanted` with INT2 for as few of the layers as will do. ConstraintError if all are not enough."""
        named = [n for n in self.model.graph.nodes if n.outputs[0].name in layers]
        able = [n.output.name for n in named if takes_two_bits(n)]
        coarse = {**wanted, **dict.fromkeys(able, DType.INT2)}
        least = self.share_of(coarse)
        if least > share:
            rule = f"weights must take at most {100 * share:g} % of their bytes as int8"
            raise ConstraintError(rule, f"{100 * least:.0f} % with 2 or 4 bits wherever that can be", "allow more")
        narrow = few_bits.narrowest(self.model, self.quantize(coarse).plan, self.samples, share)
        return {**wanted, **dict.fromkeys(narrow, DType.INT2)}

    def _sized(self, wanted: Mapping[str, DType]) -> Plan:
        """A plan whose weights have the sizes that they will have."""
        return self._nearest(self._planned(wanted)[1])

    def with_codes(self, found: Quantization, codes: Mapping[str, Codes]) -> Quantization:
        """The same model with other codes."""
        plan = replace(found.plan, layers=dict(codes))
        proto = self._written(plan)
        return replace(found, plan=plan, proto=proto)

    def refit(self, found: Quantization, samples: Sequence[Sample]) -> Quantization:
        """Return a quantization with ranges from more samples, by the method chosen for each tensor.

        Methods, precisions and weights stay: they were chosen by the samples of this quantizer. A range never becomes
        narrower, because more samples can only show that values reach further.

        Args:
            samples: All samples, those that were held out for judging among them.
        """
        samples = with_states(self.model, samples)
        profile = profile_model(self.model, samples, partial(self.progress, "profiling all samples"))
        plan = replace(found.plan, activations=dict(found.plan.activations))
        for names, dtype in self._groups(found.assignment):
            stored = plan.activations[names[0]]
            merged = merge_profiles([profile.tensors[name] for name in names])
            low, high = refit_range(stored.method, merged, dtype, self.scheme)
            low, high = min(low, stored.low), max(high, stored.high)
            quant = activation_params(low, high, dtype, self.scheme)
            plan.activations |= dict.fromkeys(names, Stored(dtype, quant, stored.method, low, high))
        plan.internals = _internal_ranges(self.model, profile)
        return replace(found, plan=plan, profile=profile, proto=self._written(plan))

    def _written(self, plan: Plan) -> onnx.ModelProto:
        """The model with the codes of a plan, as QDQ."""
        return prepare_model(write_qdq(self.model, plan), self.source.file, self.source.registry)

    def _refined(self, plan: Plan) -> Plan:
        """With weights rounded by the samples; the last ones are remembered, as they are asked for again."""
        coded = frozenset(plan.code_bits.items())
        few_bits_or_many = plan.few_bits, plan.two_bits, plan.wide_weights
        asked = frozenset(plan.precision.items()), *few_bits_or_many, coded, plan.compensated
        if asked not in self._rounded_plans:
            self._rounded_plans = dict(list(self._rounded_plans.items())[1 - MOST_KEPT :])
            self._rounded_plans[asked] = self._rounded(plan, self.samples)
        return self._rounded_plans[asked]

    def _nearest(self, plan: Plan) -> Plan:
        """With weights rounded to nearest, which takes no time."""
        return self._rounded(plan, ())

    def _rounded(self, plan: Plan, samples: Sequence[Sample]) -> Plan:
        if plan.is_coarse:
            plan = replace(plan, constants=self._constants(plan))
        return refine(self.model, plan, samples, self.profile, partial(self.progress, "rounding weights"))

    def _constants(self, plan: Plan) -> Mapping[str, Array]:
        """The channels that never change with weights of 8 bits, which those of fewer bits are to leave so."""
        asked = frozenset(plan.precision.items())
        if asked not in self._constant:
            wide = self._nearest(replace(plan, few_bits=frozenset(), two_bits=frozenset(), code_bits={}))
            self._constant = {asked: constants_of(self._imported(wide), plan.activations)}
        return self._constant[asked]

    def _with_few_bits(self, plan: Plan, wanted: Mapping[str, DType]) -> Plan:
        """With the layers whose weights take 4 bits; those of `wanted` precision keep theirs."""
        if self.scheme.weights is not DType.INT4:
            return plan
        layers = [n for n in few_bits.candidates(self.model, plan) if n.outputs[0].name not in wanted]
        asked = plan.few_bits
        plan.few_bits = asked.union(n.outputs[0].name for n in layers)
        if self.samples and layers:
            found = few_bits.promising(self.model, self._refined(plan), layers, self.samples)
            ways = [replace(plan, few_bits=asked.union(way)) for way in found]
            plan = min(ways, key=lambda way: self._refined(way).noise or 0.0) if len(ways) > 1 else ways[0]
        return self._without_growth(plan)

    def _without_growth(self, plan: Plan) -> Plan:
        """With layers at 8 bits again that take more flash at 4, as fewer of their channels drop out; all, if need be.

        Channels drop out where they are proven constant, which scales and codes decide.
        """
        wide = replace(plan, few_bits=frozenset(), layers={})
        if not plan.few_bits or not self._in_flash(self._nearest(wide)).dropped:
            return plan
        most = self._in_flash(self._refined(wide))
        for _ in range(MOST_RETURNS):
            found = self._in_flash(self._refined(replace(plan, layers={})))
            larger = {n for n in plan.few_bits if found.of_layer(n) > most.of_layer(n)}
            if not larger:
                break
            plan.few_bits -= larger
        else:
            found = self._in_flash(self._refined(replace(plan, layers={})))
        return plan if found.nbytes <= most.nbytes else wide

    def _in_flash(self, plan: Plan) -> InFlash:
        return InFlash.of(self._imported(plan))

    def _imported(self, plan: Plan) -> Graph:
        return import_model(self._written(plan), "flash", registry=self.source.registry)

    def _require_layers(self, wanted: Mapping[str, DType]) -> None:
        unknown = sorted(set(wanted) - {v.name for node in self.model.graph.nodes for v in node.outputs})
        if unknown:
            remedy = "the names are those of the layers' outputs: see `mcugen report`"
            raise UsageError("a layer's precision must name a layer of the model", f"'{unknown[0]}'", remedy)

    def _plan(self, assignment: Assignment) -> Plan:
        """All but the weights."""
        numbers = {name: number for number, names in enumerate(assignment.shared) for name in names}
        plan = Plan(self.scheme, precision=assignment.precision, compensated=self.compensates, shared=numbers)
        for name, choice in self._ranges(assignment).items():
            dtype = assignment.dtypes[name]
            quant = activation_params(choice.low, choice.high, dtype, self.scheme)
            plan.activations[name] = Stored(dtype, quant, choice.method, choice.low, choice.high)
        plan.internals = _internal_ranges(self.model, self.profile)
        return plan

    def sqnr_alone(self, tensor: str) -> float:
        """Of the outputs if this tensor is all that is quantized, as the scheme has it (dB); inf if unknown."""
        known = (choice.sqnr_db for (group, _), choice in self._own.items() if tensor in group)
        return min((db for db in known if db is not None), default=math.inf)

    def _ranges(self, assignment: Assignment) -> dict[str, Choice]:
        """By tensor. A group's follows from its tensors and their type, whatever was asked before."""
        groups = self._groups(assignment)
        new = [group for group in groups if group not in self._own and group not in self._choices]
        self._choices |= self._chosen(new, [names for names, _ in self._own])
        known = self._own | self._choices
        return {name: known[group] for group in groups for name in group[0]}

    @cached_property
    def _own(self) -> dict[Group, Choice]:
        """Of the groups that there are without wanted precisions."""
        return self._chosen(self._groups(self._assigned({})))

    def _chosen(self, groups: Sequence[Group], beside: Sequence[tuple[str, ...]] | None = None) -> dict[Group, Choice]:
        """Ranges of groups, chosen together, or each for itself beside others."""
        if not groups:
            return {}
        found = choose_ranges(
            self.model,
            self.profile,
            [names for names, _ in groups],
            {name: dtype for names, dtype in groups for name in names},
            self.scheme,
            self.samples,
            partial(self.progress, "choosing ranges"),
            beside,
        )
        return {group: found[group[0][0]] for group in groups}

    def _groups(self, assignment: Assignment) -> list[Group]:
        """Those of which something was seen."""
        seen = [tuple(n for n in group if n in self.profile.tensors) for group in assignment.groups]
        return [(group, assignment.dtypes[group[0]]) for group in seen if group]


def _internal_ranges(model: FloatModel, profile: Profile) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the ranges of what layers compute within: by name of the first output, and by role."""
    ranges: dict[str, dict[str, tuple[float, float]]] = {}
    for name in (node.outputs[0].name for node in model.graph.nodes):
        inner = {k.removeprefix(f"{name}."): t for k, t in profile.tensors.items() if k.startswith(f"{name}.")}
        ranges[name] = {role: (steady(t.low), steady(t.high)) for role, t in inner.items()}
    return ranges


def float_model(source: LoadedModel, options: CompileOptions, scheme: Scheme, wide: bool = False) -> FloatModel:
    """What is quantized; `wide`: some tensors may become int16."""
    if options.ranges:
        key, (low, high) = next(iter(options.ranges.items()))
        remedy = f"fix it: --dim {key}={high}"
        raise UsageError("a model is quantized at one size of each dimension", f"--dim {key}={low}..{high}", remedy)
    dims, registry = options.fixed_dims, source.registry
    proto = in_known_operators(source.proto, dims, options.bound, registry)
    has_cells = any(node.op_type in recurrent.OP_TYPES for node in every_node(proto.graph.node))
    wide = wide or has_cells or bool(options.states)
    if wide or scheme.activations is DType.INT16 or scheme.weights is DType.INT4:
        proto = upgrade(proto, OPSET_INT16, source.file)
    return build_float_model(
        proto, "model", dims, options.bound, scheme.equalize, options.states, registry, source.given
    )


def quantizer(
    source: LoadedModel,
    model: FloatModel,
    scheme: Scheme,
    samples: Sequence[Sample] = (),
    profile: Profile | None = None,
    progress: Progress = no_progress,
) -> Quantizer:
    """A quantizer by calibration samples, by a saved profile, or (best) both.

    The order of samples does not matter, but that of a stream.
    """
    samples = with_states(model, samples)
    if profile is None:
        if not samples:
            raise UsageError("quantization needs samples", "none", "give --calibration or --profile")
        profile = profile_model(model, samples, partial(progress, "profiling"))
    return Quantizer(source, model, samples if model.states else in_own_order(samples), scheme, profile, progress)


def with_states(model: FloatModel, samples: Sequence[Sample]) -> Sequence[Sample]:
    """Samples of a stream, with what the float model kept from the ones before; at first zeros."""
    if not model.states:
        return samples
    kept = model.first_states
    results = run_onnxruntime(model.proto, samples, fixed=kept, states=model.states)
    complete: list[Sample] = []
    for sample, outputs in zip(samples, results, strict=True):
        complete.append({**kept, **sample})
        kept = {target: outputs[source] for source, target in model.states.items()}
    return complete
