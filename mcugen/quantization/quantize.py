# SPDX-License-Identifier: Apache-2.0
"""Quantization of a float model: fuse, profile, assign precisions, choose ranges, round weights, write QDQ ONNX."""

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
from mcugen.core.options import FOUR_BIT_GROUP_SIZES, PRECISIONS, CompileOptions
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
from mcugen.quantization.assign import Assignment, assign_precisions
from mcugen.quantization.flash import WeightStorage, constant_channels
from mcugen.quantization.float_model import OPSET_INT16, FloatModel, build_float_model, to_known_operators
from mcugen.quantization.plan import Plan, QuantizedWeights, Stored
from mcugen.quantization.profile import Profile, merge_profiles, profile_model, profile_notes
from mcugen.quantization.qdq import write_qdq
from mcugen.quantization.ranges import RangeChoice, choose_ranges, refit_range, round_outward
from mcugen.quantization.refine import quantize_weights
from mcugen.quantization.samples import Sample, sort_samples
from mcugen.quantization.scheme import Scheme, activation_params
from mcugen.quantization.storage import (
    InstructionEstimates,
    Storage,
    StoredLayer,
    choose_storage_options,
    storage_options,
)
from mcugen.quantization.unrounded import UnroundedOutputs, choose_unrounded_outputs
from mcugen.quantization.weights import can_have_two_bits

TensorGroup = tuple[tuple[str, ...], DType]
"""The names of tensors that share a range, and the integer type that they are stored in."""
Progress = Callable[[str, int, int], None]
"""Callback for progress: the name of the phase, the number of finished steps, and the number of all steps."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Do nothing: the default callback for progress."""


@dataclass(frozen=True)
class Quantization:
    """A quantized model, and the decisions and data that it results from.

    Attributes:
        source: The user's float model as loaded.
        model: The fused float model that was quantized.
        profile: The tensor statistics of `model` on the calibration samples.
        assignment: The precision of each node.
        plan: The ranges, scales and quantized weights.
        proto: The quantized model as QDQ ONNX, with the inputs and outputs of `source`.
        notes: Assumptions about model and samples, and the accuracy loss of quantization if it is high.
        estimate: The accuracy loss of quantization, if it was estimated (mcugen.quantization.estimate).
        calibration_sha256: SHA-256 of the samples that ranges come from, if they are known.
        warnings: Problems of the samples, each with a remedy. They are shown even if progress is not.
        other_precisions: Layers that do not compute in the requested type; `notes` names them as well.
    """

    source: LoadedModel
    model: FloatModel
    profile: Profile
    assignment: Assignment
    plan: Plan
    proto: onnx.ModelProto
    notes: tuple[str, ...] = ()
    estimate: QuantizationEstimate | None = None
    calibration_sha256: str | None = None
    warnings: tuple[str, ...] = ()
    other_precisions: tuple[OtherPrecision, ...] = ()

    @property
    def loaded(self) -> LoadedModel:
        """Return the quantized model in the form of a model that was loaded from a file with the float model's name."""
        return replace(self.source, proto=self.proto, given=self.proto)

    def describe(self) -> str:
        """Return one line about precisions and samples, for the comment at the top of the generated code."""
        scheme = self.plan.scheme
        precision = next(key for key, dtype in PRECISIONS.items() if dtype == scheme.activations.value)
        if scheme.weights is DType.INT4:
            precision = next(key for key, group in FOUR_BIT_GROUP_SIZES.items() if group == scheme.group)
        other_types = Counter(d for d in self.assignment.precision.values() if d is not scheme.activations)
        parts = [f"precision {precision} by {self.profile.samples} samples"]
        parts += [f"{count} operator{'s' * (count > 1)} in {dtype.value}" for dtype, count in other_types.items()]
        if self.plan.few_bits and scheme.weights is not DType.INT4:
            count = len(self.plan.few_bits)
            parts.append(f"{count} layer{'s' * (count > 1)} with weights of 4 bits")
        if count := len(self.plan.code_bits):
            parts.append(f"{count} layer{'s' * (count > 1)} with weights for a code")
        if count := len(self.plan.two_bits):
            parts.append(f"{count} layer{'s' * (count > 1)} with weights of 2 bits")
        return ", ".join(parts)


MAX_KEPT_MODELS = 8
"""Largest number of quantized models that a quantizer caches: as many as the candidates of the precision search."""

BUDGET_RETRY_FACTOR = 0.998
"""Factor by which a budget of bytes is reduced for a second attempt, if the first result exceeds the budget slightly.
"""

MAX_RETURN_ROUNDS = 3
"""Largest number of rounds in which layers return from 4-bit to 8-bit weights within a budget of bytes.

Several rounds are needed, because each may change the sizes of other layers.
"""


@dataclass
class Quantizer:
    """A quantizer of one model, which can run with different precisions for single layers.

    Attributes:
        source: The user's float model as loaded.
        model: The fused float model.
        samples: Calibration samples. If empty, the profile alone decides the ranges, and weights are rounded to
            nearest.
        scheme: The default types and the options of the quantization.
        profile: The tensor statistics of `model`.
        progress: Called with the name of the phase, and the numbers of finished and of all steps.
        unrounded: The last layers whose 32-bit sums are not rounded to int8, and the float32 layers behind them.
        compensates: Whether 8-bit weights, too, are chosen to cancel a part of the errors that earlier layers cause.
        code_bits: Average bits per weight that compressed 8-bit weights of a layer may take, by the name of the layer's
            output.
    """

    source: LoadedModel
    model: FloatModel
    samples: Sequence[Sample]
    scheme: Scheme
    profile: Profile
    progress: Progress = no_progress
    unrounded: UnroundedOutputs = field(default_factory=UnroundedOutputs)
    compensates: bool = False
    code_bits: Mapping[str, float] = field(default_factory=dict)
    _choices: dict[TensorGroup, RangeChoice] = field(default_factory=dict, init=False)
    """Ranges of the groups of tensors that exist only with requested precisions."""
    _quantizations: dict[tuple[frozenset[Any], frozenset[Any], bool], Quantization] = field(
        default_factory=dict, init=False
    )
    """The last quantizations without given weights, by the requested precisions, as they are often requested again."""
    _noise: dict[tuple[frozenset[tuple[str, DType]], bool], dict[Node, float]] = field(default_factory=dict, init=False)
    """Noise that layers with 4-bit weights add to the outputs, by the requested precisions."""
    _even: dict[tuple[frozenset[tuple[str, DType]], float, bool], tuple[Plan, dict[Node, float]] | None] = field(
        default_factory=dict, init=False
    )
    """Plan with equal bits per weight for all compressed layers, and the noise of each of them.

    The key is the requested precisions, the share of bytes, and whether weights compensate. None stands for an
    impossible budget.
    """
    _constant: dict[frozenset[tuple[str, DType]], Mapping[str, Array]] = field(default_factory=dict, init=False)
    """Channels that are constant with 8-bit weights, for the precisions that were requested last."""
    _rounded_plans: dict[tuple[frozenset[Any] | bool, ...], Plan] = field(default_factory=dict, init=False)
    """The last plans with rounded weights, by their precisions, bits of weights, and whether weights compensate."""

    def quantize(
        self, precisions: Mapping[str, DType] | None = None, known: Mapping[str, QuantizedWeights] | None = None
    ) -> Quantization:
        """Quantize the model.

        The precision INT4 means int8 activations with 4-bit weights, as far as the layer can have them. INT2 means
        2-bit weights, which only large fully connected layers and convolutions can have.

        Args:
            precisions: The precisions of single layers, by the name of the layer's output. All others have the
                scheme's.
            known: Quantized weights by the name of the layer's output, which are used instead of rounding anew. Weights
                of an earlier result can be used if only the precision of activations changes.

        Raises:
            UsageError: A name is not that of a layer, or a layer cannot have 2-bit weights.
        """
        layers = dict(precisions or {})
        if known is not None:
            return self._quantize(layers, known)
        key = frozenset(layers.items()), frozenset(self.code_bits.items()), self.compensates
        if key not in self._quantizations:
            quantization = self._quantize(layers, None)
            while len(self._quantizations) >= MAX_KEPT_MODELS:
                del self._quantizations[next(iter(self._quantizations))]
            self._quantizations[key] = quantization
        return self._quantizations[key]

    def draft(self, precisions: Mapping[str, DType]) -> Quantization:
        """Quantize the model quickly, with weights rounded to nearest; its size is almost that of the final model.

        Args:
            precisions: The precisions of single layers, by the name of the layer's output.
        """
        assignment, plan = self._plan_types(precisions)
        plan = self._nearest(plan)
        return Quantization(self.source, self.model, self.profile, assignment, plan, self._written(plan))

    def _quantize(self, precisions: Mapping[str, DType], known: Mapping[str, QuantizedWeights] | None) -> Quantization:
        assignment, plan = self._plan_types(precisions)
        if known is None:
            plan = self._refine(self._with_few_bits(plan, precisions))
        else:
            plan.layers |= {n: c for n, c in known.items() if plan.precision[n] is not DType.FLOAT32}
        proto = self._written(plan)
        notes = (*self.model.graph.notes, *profile_notes(self.model, self.profile))
        return Quantization(self.source, self.model, self.profile, assignment, plan, proto, notes)

    def _plan_types(self, precisions: Mapping[str, DType]) -> tuple[Assignment, Plan]:
        """Return the assignment, and the plan with everything but the weights themselves; their types are decided."""
        self._require_layers(precisions)
        assignment = self._assign_types(precisions)
        plan = self._plan(assignment)
        plan.code_bits = self.code_bits
        cells = [node.outputs[0].name for node in few_bits.recurrent_layers(self.model, plan)]
        capable = [*self.four_bit_candidates(plan), *cells]
        plan.few_bits = frozenset(n for n in capable if precisions.get(n) is DType.INT4)
        plan.two_bits = self._with_two_bits(plan, precisions)
        weighted = {n.outputs[0].name for n in self.model.graph.nodes if weight_axes(n.op)}
        plan.wide_weights = frozenset(
            n for n in weighted if precisions.get(n) is DType.INT32 and plan.precision[n] is DType.INT16
        )
        return assignment, plan

    def _assign_types(self, precisions: Mapping[str, DType]) -> Assignment:
        """Return the type that each node computes in, and the groups of tensors that follow."""
        spans = {name: tensor.high - tensor.low for name, tensor in self.profile.tensors.items()}
        computed = {
            name: DType.INT8 if dtype in (DType.INT4, DType.INT2) else dtype for name, dtype in precisions.items()
        }
        tail = dict.fromkeys(self.unrounded.tail, DType.FLOAT32)
        return assign_precisions(
            self.model.graph, self.scheme, tail | computed, spans, self.model.states, self.unrounded.layers.keys()
        )

    def _with_two_bits(self, plan: Plan, precisions: Mapping[str, DType]) -> frozenset[str]:
        """Return the layers whose weights shall have 2 bits.

        Raises:
            UsageError: The user asked for 2 bits in a layer that cannot have them.
        """
        capable = {n.outputs[0].name for n in few_bits.four_bit_candidates(self.model, plan) if can_have_two_bits(n)}
        requested = frozenset(name for name, dtype in precisions.items() if dtype is DType.INT2)
        if requested - capable:
            remedy = f"take w4a8 there; w2a8 goes with: {', '.join(sorted(capable)) or 'no layer of this model'}"
            rule = "weights of 2 bits are for large fully connected layers and convolutions"
            raise UsageError(rule, f"'{min(requested - capable)}'", remedy)
        return requested

    def four_bit_candidates(self, plan: Plan) -> list[str]:
        """Return the output names of the layers whose weights may have 4 bits."""
        return [node.outputs[0].name for node in few_bits.four_bit_candidates(self.model, plan)]

    def choose_narrow_layers(
        self, precisions: Mapping[str, DType], layers: Sequence[str], share: float, max_choices: int
    ) -> list[dict[str, DType]]:
        """Return up to `max_choices` choices of precisions whose weights meet a budget of bytes, the best first.

        Each choice is `precisions` with INT4 for some of the layers. If 4 bits are not enough, as few large layers as
        possible have INT2. The best choice is that of least estimated noise.

        Args:
            precisions: The precisions of layers that are fixed, by the name of the layer's output.
            layers: The names of the outputs of the layers that may have INT4.
            share: The budget in bytes, as a share of the bytes of int8 weights.
            max_choices: The largest number of choices.

        Raises:
            ConstraintError: Even INT2 does not meet the budget.
        """
        coarse = {**precisions, **dict.fromkeys(layers, DType.INT4)}
        sized = self._plan_sizes(coarse)
        room = few_bits.num_affordable_int8_weights(self.model, sized, share)
        if room < 0:
            return [self._narrowest(coarse, layers, share)]
        noise = self._few_noise(coarse)
        choices = few_bits.choose_four_bit_layers(
            noise, {n: few_bits.num_stored_weights(n, sized) for n in noise}, room, max_choices
        )
        return [{**precisions, **dict.fromkeys(choice, DType.INT4)} for choice in choices]

    def _few_noise(self, coarse: Mapping[str, DType]) -> dict[Node, float]:
        """Return the noise that each layer with 4-bit weights adds to the outputs, if all of `coarse` is applied."""
        key = frozenset(coarse.items()), self.compensates
        if key not in self._noise:
            plan = self.quantize(coarse).plan
            few = [n for n in few_bits.four_bit_candidates(self.model, plan) if n.outputs[0].name in plan.few_bits]
            self._noise[key] = few_bits.weight_noise(self.model, plan, few, self.samples)
        return self._noise[key]

    def with_code_bits(self, bits: Mapping[str, float]) -> Quantizer:
        """Return a quantizer of the same model, samples and ranges with other compression of 8-bit weights.

        Both quantizers share the results that either has computed.

        Args:
            bits: Average bits per weight that compressed weights of a layer may take, by the name of the layer's
                output.
        """
        clone = copy(self)
        clone.code_bits = bits
        return clone

    def choose_storage(
        self,
        precisions: Mapping[str, DType],
        layers: Sequence[str],
        share: float,
        times: InstructionEstimates,
        favour: float,
    ) -> Storage | None:
        """Return how to store all weights with little noise and time within a budget of bytes.

        Weights may be compressed, and some layers may have 4 bits.

        Args:
            precisions: The precisions of layers that are fixed, by the name of the layer's output.
            layers: The names of the outputs of the layers that may have INT4.
            share: The budget in bytes, as a share of the bytes of int8 weights.
            times: The estimated instructions of an inference, and those added by each kind of storage.
            favour: The increase of the output noise in percent that is accepted to save one percent of the time.

        Returns:
            The storage; None if compression and 4 bits together do not meet the budget.
        """
        even = self._evenly_coded(precisions, share)
        if even is None:
            return None
        plan, noise = even
        few_bit_noise = self._few_noise({**precisions, **dict.fromkeys(layers, DType.INT4)})
        plain_codes = self._plan_sizes(precisions).layers
        known = {n: StoredLayer.of(n, plan, plain_codes[n.output.name], noise[n], few_bit_noise.get(n)) for n in noise}
        other_layers = (n for n in self.model.graph.nodes if few_bits.few_bit_constants(n) and n not in known)
        total = few_bits.weights_in_flash(self.model, plan)
        room = share * total - sum(few_bits.stored_bytes(n, plan) for n in other_layers)
        options = {n.output.name: storage_options(n.output.name, layer, times) for n, layer in known.items()}
        chosen = choose_storage_options(options, room, favour * sum(noise.values()) / times.whole)
        if chosen is None:
            return None
        few_bit = [name for name, option in chosen.items() if option.dtype is DType.INT4]
        bits = {name: option.bits for name, option in chosen.items() if option.bits is not None}
        new_precisions = {**precisions, **dict.fromkeys(few_bit, DType.INT4)}
        return Storage(new_precisions, self._reduce_bits(new_precisions, bits, share))

    def _evenly_coded(self, precisions: Mapping[str, DType], share: float) -> tuple[Plan, dict[Node, float]] | None:
        """Return the plan with equal bits per weight for all compressed layers, and the noise that each of them adds.

        Args:
            precisions: The precisions that are given, by the name of the layer's output.
            share: The budget relative to the bytes of int8 weights.

        Returns:
            The plan and the noise of each layer; None if the budget cannot be met.
        """
        key = frozenset(precisions.items()), share, self.compensates
        if key not in self._even:
            bits = few_bits.uniform_bits(self.model, self._plan_sizes(precisions), share)
            self._even[key] = self._with_noise(self._coded_plan(precisions, bits)) if bits else None
        return self._even[key]

    def _with_noise(self, plan: Plan) -> tuple[Plan, dict[Node, float]]:
        """Return a plan, and the noise that the weights of each compressed layer add to the outputs."""
        capable = few_bits.four_bit_candidates(self.model, plan)
        layers = [n for n in few_bits.compressible_layers(self.model, plan) if n in capable]
        return plan, few_bits.weight_noise(self.model, plan, layers, self.samples)

    def choose_code_bits(self, precisions: Mapping[str, DType], share: float) -> dict[str, float]:
        """Return the bits per weight of compressed layers that meet a budget of bytes with the least noise found.

        Args:
            precisions: The precisions that are fixed, by the name of the layer's output.
            share: The budget in bytes, as a share of the bytes of int8 weights.

        Returns:
            The average bits per weight, by the name of the layer's output; empty if the budget cannot be met.
        """
        even = self._evenly_coded(precisions, share)
        if even is None:
            return {}
        plan, noise = even
        choices = [plan.code_bits, few_bits.redistribute_bits(noise, plan)]
        return min(
            (self._reduce_bits(precisions, choice, share) for choice in choices),
            key=lambda choice: self._coded_noise(precisions, choice),
        )

    def _reduce_bits(
        self, precisions: Mapping[str, DType], bits: Mapping[str, float], share: float
    ) -> dict[str, float]:
        """Return fewer bits if the rounded weights exceed the budget, which weights rounded to nearest do not."""
        stored_share = few_bits.bytes_per_weight(self.model, self._coded_plan(precisions, bits))
        factor = min(BUDGET_RETRY_FACTOR * share / stored_share, 1.0) if stored_share > share else 1.0
        return {name: layer_bits * factor for name, layer_bits in bits.items()}

    def _coded_noise(self, precisions: Mapping[str, DType], bits: Mapping[str, float]) -> float:
        return self._coded_plan(precisions, bits).noise or 0.0

    def _coded_plan(self, precisions: Mapping[str, DType], bits: Mapping[str, float]) -> Plan:
        """Return the plan with compressed weights, rounded by the samples."""
        return self._refine(replace(self._plan_types(precisions)[1], code_bits=bits))

    def narrowest(self, precisions: Mapping[str, DType]) -> dict[str, DType]:
        """Return the precisions with which the weights take fewest bytes, by the name of the layer's output.

        Args:
            precisions: The precisions of layers that are fixed. Other layers have 2-bit weights if they can, else 4-bit
                weights if they can.
        """
        capable = few_bits.four_bit_candidates(self.model, self._plan_types(precisions)[1])
        free = [n for n in capable if n.outputs[0].name not in precisions]
        return {**precisions, **{n.outputs[0].name: DType.INT2 if can_have_two_bits(n) else DType.INT4 for n in free}}

    def weight_bytes_share(self, precisions: Mapping[str, DType]) -> float:
        """Return the average number of bytes per weight in flash: 1.0 if all weights are plain int8.

        Args:
            precisions: The precisions of single layers, by the name of the layer's output.
        """
        return few_bits.bytes_per_weight(self.model, self._plan_sizes(precisions))

    def _narrowest(self, precisions: Mapping[str, DType], layers: Sequence[str], share: float) -> dict[str, DType]:
        """Return `precisions` with INT2 for as few of the layers as the budget allows.

        Raises:
            ConstraintError: The budget is exceeded even with INT2 for all of them.
        """
        named = [n for n in self.model.graph.nodes if n.outputs[0].name in layers]
        capable = [n.output.name for n in named if can_have_two_bits(n)]
        coarse = {**precisions, **dict.fromkeys(capable, DType.INT2)}
        min_share = self.weight_bytes_share(coarse)
        if min_share > share:
            rule = f"weights must take at most {100 * share:g} % of their bytes as int8"
            raise ConstraintError(rule, f"{100 * min_share:.0f} % with 2 or 4 bits wherever that can be", "allow more")
        two_bit_layers = few_bits.choose_two_bit_layers(self.model, self.quantize(coarse).plan, self.samples, share)
        return {**precisions, **dict.fromkeys(two_bit_layers, DType.INT2)}

    def _plan_sizes(self, precisions: Mapping[str, DType]) -> Plan:
        """Return a plan whose weights have the sizes of the final ones."""
        return self._nearest(self._plan_types(precisions)[1])

    def with_codes(self, quantization: Quantization, codes: Mapping[str, QuantizedWeights]) -> Quantization:
        """Return the quantization with other quantized weights.

        Args:
            quantization: The quantization, which is not changed.
            codes: The new quantized weights, by the name of the layer's output.
        """
        plan = replace(quantization.plan, layers=dict(codes))
        proto = self._written(plan)
        return replace(quantization, plan=plan, proto=proto)

    def refit(self, quantization: Quantization, samples: Sequence[Sample]) -> Quantization:
        """Return a quantization with ranges computed anew from more samples.

        The calibration method of each tensor, the precisions and the weights stay as the samples of this quantizer
        determined them. A range never becomes narrower, because more samples can only show that values reach further.

        Args:
            quantization: The quantization whose ranges are replaced.
            samples: All samples, including those that were held out for evaluation.
        """
        samples = add_stream_states(self.model, samples)
        profile = profile_model(self.model, samples, partial(self.progress, "profiling all samples"))
        plan = replace(quantization.plan, activations=dict(quantization.plan.activations))
        for names, dtype in self._groups(quantization.assignment):
            stored = plan.activations[names[0]]
            merged = merge_profiles([profile.tensors[name] for name in names])
            low, high = refit_range(stored.method, merged, dtype, self.scheme)
            low, high = min(low, stored.low), max(high, stored.high)
            quant = activation_params(low, high, dtype, self.scheme)
            plan.activations |= dict.fromkeys(names, Stored(dtype, quant, stored.method, low, high))
        plan.internals = _internal_ranges(self.model, profile)
        return replace(quantization, plan=plan, profile=profile, proto=self._written(plan))

    def _written(self, plan: Plan) -> onnx.ModelProto:
        """Return the model with the decisions of a plan, as QDQ."""
        quantized = write_qdq(self.model, plan)
        self.source.copy_metadata(quantized)
        return prepare_model(quantized, self.source.file, self.source.registry)

    def _refine(self, plan: Plan) -> Plan:
        """Return the plan with weights rounded by the samples.

        The last plans are kept, because they are requested again.
        """
        coded = frozenset(plan.code_bits.items())
        weight_bits = plan.few_bits, plan.two_bits, plan.wide_weights
        key = frozenset(plan.precision.items()), *weight_bits, coded, plan.compensated
        if key not in self._rounded_plans:
            self._rounded_plans = dict(list(self._rounded_plans.items())[1 - MAX_KEPT_MODELS :])
            self._rounded_plans[key] = self._refine_weights(plan, self.samples)
        return self._rounded_plans[key]

    def _nearest(self, plan: Plan) -> Plan:
        """Return the plan with weights rounded to nearest, which takes no time."""
        return self._refine_weights(plan, ())

    def _refine_weights(self, plan: Plan, samples: Sequence[Sample]) -> Plan:
        if plan.is_coarse:
            plan = replace(plan, constants=self._constants(plan))
        return quantize_weights(self.model, plan, samples, self.profile, partial(self.progress, "rounding weights"))

    def _constants(self, plan: Plan) -> Mapping[str, Array]:
        """Return the channels that are constant with 8-bit weights, which weights of fewer bits shall keep constant."""
        key = frozenset(plan.precision.items())
        if key not in self._constant:
            wide = self._nearest(replace(plan, few_bits=frozenset(), two_bits=frozenset(), code_bits={}))
            self._constant = {key: constant_channels(self._import_plan(wide), plan.activations)}
        return self._constant[key]

    def _with_few_bits(self, plan: Plan, precisions: Mapping[str, DType]) -> Plan:
        """Return the plan with 4-bit weights for the layers that the scheme allows.

        Layers with a precision in `precisions` keep it.
        """
        if self.scheme.weights is not DType.INT4:
            return plan
        layers = [n for n in few_bits.four_bit_candidates(self.model, plan) if n.outputs[0].name not in precisions]
        requested = plan.few_bits
        plan.few_bits = requested.union(n.outputs[0].name for n in layers)
        if self.samples and layers:
            choices = few_bits.choose_finalists(self.model, self._refine(plan), layers, self.samples)
            plans = [replace(plan, few_bits=requested.union(choice)) for choice in choices]
            plan = min(plans, key=lambda choice: self._refine(choice).noise or 0.0) if len(plans) > 1 else plans[0]
        return self._without_growth(plan)

    def _without_growth(self, plan: Plan) -> Plan:
        """Return the plan without those 4-bit layers that take more flash than with 8 bits.

        A layer can grow because fewer of its channels are proven constant and removed, which depends on scales and
        weights. If all layers together still take more than with 8 bits, all return to 8 bits.
        """
        wide = replace(plan, few_bits=frozenset(), layers={})
        if not plan.few_bits or not self._in_flash(self._nearest(wide)).dropped:
            return plan
        wide_flash = self._in_flash(self._refine(wide))
        for _ in range(MAX_RETURN_ROUNDS):
            narrow_flash = self._in_flash(self._refine(replace(plan, layers={})))
            larger = {n for n in plan.few_bits if narrow_flash.layer_bytes(n) > wide_flash.layer_bytes(n)}
            if not larger:
                break
            plan.few_bits -= larger
        else:
            narrow_flash = self._in_flash(self._refine(replace(plan, layers={})))
        return plan if narrow_flash.nbytes <= wide_flash.nbytes else wide

    def _in_flash(self, plan: Plan) -> WeightStorage:
        return WeightStorage.of(self._import_plan(plan))

    def _import_plan(self, plan: Plan) -> Graph:
        return import_model(self._written(plan), "flash", registry=self.source.registry)

    def _require_layers(self, precisions: Mapping[str, DType]) -> None:
        unknown = sorted(set(precisions) - {v.name for node in self.model.graph.nodes for v in node.outputs})
        if unknown:
            remedy = "the names are those of the layers' outputs: see `mcugen report`"
            raise UsageError("a layer's precision must name a layer of the model", f"'{unknown[0]}'", remedy)

    def _plan(self, assignment: Assignment) -> Plan:
        """Return the plan with everything but the weights."""
        numbers = {name: number for number, names in enumerate(assignment.shared) for name in names}
        plan = Plan(self.scheme, precision=assignment.precision, compensated=self.compensates, shared=numbers)
        for name, choice in self._ranges(assignment).items():
            dtype = assignment.dtypes[name]
            quant = activation_params(choice.low, choice.high, dtype, self.scheme)
            plan.activations[name] = Stored(dtype, quant, choice.method, choice.low, choice.high)
        plan.internals = _internal_ranges(self.model, self.profile)
        return plan

    def sqnr_of_tensor(self, tensor: str) -> float:
        """Return the SQNR in dB of the model's outputs if only one tensor is quantized, to the scheme's type.

        The result is infinity if the SQNR was not measured.

        Args:
            tensor: The name of the tensor.
        """
        known = (choice.sqnr_db for (group, _), choice in self._own.items() if tensor in group)
        return min((db for db in known if db is not None), default=math.inf)

    def _ranges(self, assignment: Assignment) -> dict[str, RangeChoice]:
        """Return the range of each tensor. A group's range depends on its tensors and type, not on earlier requests."""
        groups = self._groups(assignment)
        new = [group for group in groups if group not in self._own and group not in self._choices]
        self._choices |= self._chosen(new, [names for names, _ in self._own])
        known = self._own | self._choices
        return {name: known[group] for group in groups for name in group[0]}

    @cached_property
    def _own(self) -> dict[TensorGroup, RangeChoice]:
        """Return the ranges of the groups that exist without requested precisions."""
        return self._chosen(self._groups(self._assign_types({})))

    def _chosen(
        self, groups: Sequence[TensorGroup], fixed_groups: Sequence[tuple[str, ...]] | None = None
    ) -> dict[TensorGroup, RangeChoice]:
        """Return the ranges of groups: chosen together, or each by itself if `fixed_groups` were chosen before."""
        if not groups:
            return {}
        choices = choose_ranges(
            self.model,
            self.profile,
            [names for names, _ in groups],
            {name: dtype for names, dtype in groups for name in names},
            self.scheme,
            self.samples,
            partial(self.progress, "choosing ranges"),
            fixed_groups,
        )
        return {group: choices[group[0][0]] for group in groups}

    def _groups(self, assignment: Assignment) -> list[TensorGroup]:
        """Return the groups of tensors that were profiled."""
        seen = [tuple(n for n in group if n in self.profile.tensors) for group in assignment.groups]
        return [(group, assignment.dtypes[group[0]]) for group in seen if group]


def _internal_ranges(model: FloatModel, profile: Profile) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the ranges of tensors inside layers: by the name of the layer's first output, and by role."""
    ranges: dict[str, dict[str, tuple[float, float]]] = {}
    for name in (node.outputs[0].name for node in model.graph.nodes):
        inner = {k.removeprefix(f"{name}."): t for k, t in profile.tensors.items() if k.startswith(f"{name}.")}
        ranges[name] = {role: (round_outward(t.low), round_outward(t.high)) for role, t in inner.items()}
    return ranges


def import_float_model(source: LoadedModel, options: CompileOptions, scheme: Scheme, wide: bool = False) -> FloatModel:
    """Import and fuse the user's model for quantization.

    Args:
        source: The model as loaded.
        options: The options of the compilation.
        scheme: The quantization scheme.
        wide: Whether some tensors may become int16. Then the ONNX opset is raised to OPSET_INT16 if it is older.

    Raises:
        UsageError: A dimension has a range of sizes.
    """
    if options.ranges:
        key, (low, high) = next(iter(options.ranges.items()))
        remedy = f"fix it: --dim {key}={high}"
        raise UsageError("a model is quantized at one size of each dimension", f"--dim {key}={low}..{high}", remedy)
    dims, registry = options.fixed_dims, source.registry
    proto = to_known_operators(source.proto, dims, options.bound, registry)
    has_cells = any(node.op_type in recurrent.RECURRENT_OP_TYPES for node in every_node(proto.graph.node))
    wide = wide or has_cells or bool(options.states)
    if wide or scheme.activations is DType.INT16 or scheme.weights is DType.INT4:
        proto = upgrade(proto, OPSET_INT16, source.file)
    return build_float_model(
        proto, "model", dims, options.bound, scheme.equalize, options.states, registry, source.given
    )


def create_quantizer(
    source: LoadedModel,
    model: FloatModel,
    scheme: Scheme,
    samples: Sequence[Sample] = (),
    profile: Profile | None = None,
    progress: Progress = no_progress,
) -> Quantizer:
    """Return a quantizer that uses calibration samples, a saved profile, or both, which is best.

    The order of samples does not matter, except in a stream.

    Args:
        source: The model as loaded.
        model: The float model that is quantized.
        scheme: The quantization scheme.
        samples: The calibration samples; may be empty if there is a profile.
        profile: The profile of the model; None to profile the samples.
        progress: Called while the model is profiled and quantized.

    Raises:
        UsageError: There is neither a sample nor a profile.
    """
    samples = add_stream_states(model, samples)
    if profile is None:
        if not samples:
            raise UsageError("quantization needs samples", "none", "give --calibration or --profile")
        profile = profile_model(model, samples, partial(progress, "profiling"))
    samples = samples if model.states else sort_samples(samples)
    is_free = scheme.activations is DType.INT8 and not scheme.integer_io
    unrounded = choose_unrounded_outputs(model, samples) if is_free else UnroundedOutputs()
    return Quantizer(source, model, samples, scheme, profile, progress, unrounded)


def add_stream_states(model: FloatModel, samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples of a stream with the model's states as further inputs.

    The float model runs over the samples in order. Its states before a sample become inputs of that sample; they are
    zeros for the first one.
    """
    if not model.states:
        return samples
    kept = model.first_states
    results = run_onnxruntime(model.proto, samples, fixed=kept, states=model.states)
    complete: list[Sample] = []
    for sample, outputs in zip(samples, results, strict=True):
        complete.append({**kept, **sample})
        kept = {target: outputs[source] for source, target in model.states.items()}
    return complete
