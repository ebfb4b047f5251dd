# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware fine-tuning of weights and biases, on samples without labels.

The quantized model learns to give what the float model gives (distillation). Each step runs the float graph with
tensors and weights rounded as in integers. It moves the real weights behind the quantized ones by their gradients, as
if rounding were not there (straight-through estimator: Bengio et al., 2013). The gradients are those of
mcugen.ops.gradient, so whatever can learn on a device can be fine-tuned. The steps are Adam's, in units of the weights'
scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.evaluation.session import Session
from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import Reference, interpret
from mcugen.hir.traits import bias_input, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.numerics.fixedpoint import fake_quantize
from mcugen.numerics.threads import one_thread
from mcugen.ops.gradient import unfuse
from mcugen.ops.gradient.reverse import gradients_of_several
from mcugen.ops.movement import Reshape
from mcugen.ops.pointwise import Binary
from mcugen.quantization.estimate import hold_out, model_sqnr_db
from mcugen.quantization.float_model import all_tensors
from mcugen.quantization.plan import Plan, QuantizedWeights, Stored
from mcugen.quantization.quantize import Quantization, Quantizer
from mcugen.quantization.samples import Sample
from mcugen.quantization.sensitivity import measured_tensors
from mcugen.quantization.weights import nearest_codes, real_weights

BATCH_SAMPLES = 8
"""Number of samples of one training step of fine-tuning."""

FINETUNE_LEARNING_RATE = 0.01
"""Initial learning rate, in units of a weight's scale or, for a bias, of the output tensor's scale."""

FIRST_MOMENT_DECAY = 0.9
"""Decay rate of Adam's first moment, per training step."""

SECOND_MOMENT_DECAY = 0.99
"""Decay rate of Adam's second moment, per training step."""

SUFFICIENT_SQNR_DB = 25.0
"""SQNR of the outputs in dB at and above which fine-tuning is left out, unless the user sets another limit."""


@dataclass
class _Learned:
    """The weights or the bias of a layer while they are trained.

    `value` are the reals, `unit` is the scale in which step sizes are given, `first` and `second` are Adam's moments.
    """

    value: Array
    unit: Array | float
    first: Array | float = 0.0
    second: float = 0.0

    def step(self, gradient: Array, count: int, rate: float) -> None:
        """Make one step of Adam, with one second moment for all elements.

        So weights move as far as their gradients say. With separate second moments, weights whose gradients are mere
        noise would move as fast as the others, and their quantized values would go to and fro.

        Args:
            gradient: The gradient of the loss by the value.
            count: The number of this step, from 1.
            rate: The learning rate, in units.
        """
        scaled = gradient * self.unit
        self.first = FIRST_MOMENT_DECAY * self.first + (1 - FIRST_MOMENT_DECAY) * scaled
        self.second = SECOND_MOMENT_DECAY * self.second + (1 - SECOND_MOMENT_DECAY) * float(np.mean(scaled**2))
        first, second = self.first / (1 - FIRST_MOMENT_DECAY**count), self.second / (1 - SECOND_MOMENT_DECAY**count)
        self.value = self.value - rate * self.unit * first / (np.sqrt(second) + 1e-12)


def finetune(
    quantizer: Quantizer,
    quantization: Quantization,
    epochs: int,
    min_sqnr: float | None,
    progress: Callable[[int, int], None],
) -> Quantization:
    """Return the quantization with fine-tuned weights if these are better, and a note of the gain on held-out samples.

    Args:
        quantizer: The quantizer of the model.
        quantization: The quantization to start from.
        epochs: The number of passes over the training samples.
        min_sqnr: The SQNR of the outputs in dB at which `quantization` is good enough and returned as it is; None for
            SUFFICIENT_SQNR_DB.
        progress: Called with the number of finished samples, and with their total.

    Raises:
        Refusal: An operator has no derivative.
        UsageError: There are too few samples, or the model has states or integer inputs and outputs.
    """
    if quantizer.model.states or quantizer.scheme.integer_io:
        raise UsageError("fine-tuning is for float models without states", "another", "leave out --finetune")
    training_samples, held_out = hold_out(quantizer.samples, False)
    if not held_out:
        found_few = f"{len(quantizer.samples)} samples"
        raise UsageError("fine-tuning needs samples for training and for evaluation", found_few, "give 20 or more")
    estimate, limit_db = quantization.estimate, SUFFICIENT_SQNR_DB if min_sqnr is None else min_sqnr
    if estimate is not None and (estimate.sqnr_db is None or estimate.sqnr_db >= limit_db):
        note = f"not fine-tuned: {estimate} is enough ({limit_db:g} dB: see --min-sqnr)"
        return replace(quantization, notes=(*quantization.notes, note))
    before_db = model_sqnr_db(quantizer.model, quantization.proto, held_out)
    best_quantization, best_db = quantization, before_db
    lesson = _Lesson(quantizer, quantization.plan)
    with one_thread():
        for epoch in range(epochs):
            lesson.epoch(training_samples, epoch, epochs, progress)
            candidate = quantizer.with_codes(quantization, lesson.codes())
            candidate_db = model_sqnr_db(quantizer.model, candidate.proto, held_out)
            best_quantization, best_db = (
                (candidate, candidate_db) if candidate_db > best_db else (best_quantization, best_db)
            )
    training = f"{epochs} epoch{'s' * (epochs > 1)} of {len(training_samples)} samples"
    outcome = f"{training}, {before_db:.1f} to {best_db:.1f} dB on {len(held_out)} others"
    note = (
        f"fine-tuned: {outcome}"
        if best_quantization is not quantization
        else f"not fine-tuned: {outcome} that did not learn"
    )
    return replace(best_quantization, notes=(*best_quantization.notes, note))


class _Lesson:
    """The graph of outputs and gradients, and the weights and biases that are trained."""

    def __init__(self, quantizer: Quantizer, plan: Plan) -> None:
        self.plan, self.model = plan, quantizer.model
        graph = self.graph = quantizer.model.graph.copy()
        outputs = measured_tensors(quantizer.model)
        self.references, rounded = _add_roundings(graph, plan)
        layers = [n for n in graph.nodes if n.outputs[0].name in plan.layers]
        self.layers = {n.outputs[0].name: _inputs_of(graph, n, plan.layers[n.outputs[0].name]) for n in layers}
        self.learned = {}
        for name, (weights, bias) in self.layers.items():
            codes = plan.layers[name]
            self.learned[weights.name] = _Learned(real_weights(codes).astype(np.float64), codes.steps)
            if bias is not None and codes.bias is not None:
                stored = plan.activations.get(name)
                step = stored.quant.scale[0] if stored else float(np.mean(codes.scales))
                self.learned[bias.name] = _Learned(codes.bias.astype(np.float64), step)
        self.steps = 0
        self._differentiate({name: rounded.get(name) for name in outputs})

    def _differentiate(self, outputs: Mapping[str, Value | None]) -> None:
        """Make the graph compute the gradients of the squared output error by all trained constants.

        `outputs` maps the name of each judged tensor to its rounded value; None if it is not rounded.
        """
        graph = self.graph
        values = {v.name: v for v in graph.values()}
        places = [(name, rounded or values[name]) for name, rounded in outputs.items()]
        kept = [(name, graph.add(Reshape(v.type.shape), [v]).output) for name, v in places]
        unfuse(graph, list(graph.nodes))
        self.targets = {name: graph.add_input(f"{name}.wanted", v.type).name for name, v in kept}
        by_name = {v.name: v for v in graph.inputs}
        errors = [graph.add(Binary("Sub"), [v, by_name[self.targets[name]]]).output for name, v in kept]
        seeded = [(v, error) for (_, v), error in zip(kept, errors, strict=True)]
        by = [by_name[name] for name in self.learned]
        gradients = gradients_of_several(graph, seeded, by)
        graph.outputs, graph.output_names = gradients, list(self.learned)
        graph.sort()

    def epoch(self, samples: Sequence[Sample], number: int, epochs: int, progress: Callable[[int, int], None]) -> None:
        """Train on all samples once, in an order that depends on the epoch's number.

        Args:
            samples: The training samples.
            number: The number of the epoch, from 0.
            epochs: The number of all epochs, over which the learning rate falls to 0.
            progress: Called with the number of finished samples of all epochs, and with their total.
        """
        exact = self._exact(samples)
        order = np.random.default_rng(number).permutation(len(samples))
        total = epochs * len(samples)
        for start in range(0, len(order), BATCH_SAMPLES):
            indices = order[start : start + BATCH_SAMPLES]
            rate = FINETUNE_LEARNING_RATE * (1 + math.cos(math.pi * (number * len(samples) + start) / total)) / 2
            self._step([(samples[i], exact[i]) for i in indices], rate)
            progress(number * len(samples) + start + len(indices), total)

    def _step(self, batch: Sequence[tuple[Sample, Sample]], rate: float) -> None:
        self.steps += 1
        values = self._values()
        sums: dict[str, Array | float] = dict.fromkeys(self.learned, 0.0)
        for sample, exact in batch:
            targets = {self.targets[name]: exact[name] for name in self.targets}
            gradients = interpret(self.graph, {**sample, **values, **targets}, references=self.references)
            for name, gradient in gradients.items():
                sums[name] = sums[name] + gradient.astype(np.float64)
        for name, learned in self.learned.items():
            learned.step(np.asarray(sums[name]), self.steps, rate)

    def _exact(self, samples: Sequence[Sample]) -> list[dict[str, Array]]:
        """Return the outputs of the float model for each sample."""
        session = Session(all_tensors(self.model), literal=False, threads=1)
        return [session.run(list(self.targets), sample) for sample in samples]

    def _values(self) -> dict[str, Array]:
        """Return the weights as their quantized values represent them, and the biases."""
        values = {name: learned.value.astype(np.float32) for name, learned in self.learned.items()}
        for layer, codes in self.codes().items():
            values[self.layers[layer][0].name] = real_weights(codes)
        return values

    def codes(self) -> dict[str, QuantizedWeights]:
        """Return the quantized weights that are nearest to the trained ones, by layer."""
        return {name: self._codes(name, self.plan.layers[name]) for name in self.layers}

    def _codes(self, name: str, codes: QuantizedWeights) -> QuantizedWeights:
        weights, bias = self.layers[name]
        learned = self.learned[weights.name]
        bias_values = codes.bias if bias is None or bias.name not in self.learned else self.learned[bias.name].value
        return replace(
            nearest_codes(codes, learned.value), bias=None if bias_values is None else bias_values.astype(np.float32)
        )


def _inputs_of(graph: Graph, node: Node, codes: QuantizedWeights) -> tuple[Value, Value | None]:
    """Return a layer's weights and bias as new inputs of the graph."""
    ((index, _),) = weight_axes(node.op).items()
    place = bias_input(node.op)
    has_bias = codes.bias is not None and place is not None and len(node.inputs) > place
    return _as_input(graph, node, index), _as_input(graph, node, place) if has_bias and place is not None else None


def _as_input(graph: Graph, node: Node, index: int) -> Value:
    value = node.input(index)
    new_input = graph.add_input(f"{node.outputs[0].name}.{index}.learned", value.type)
    node.set_input(index, new_input)
    return new_input


def _add_roundings(graph: Graph, plan: Plan) -> tuple[dict[Node, Reference], dict[str, Value]]:
    """Add a node behind each tensor that is stored as integers, which rounds it and has the derivative 1.

    Returns:
        The functions that compute the new nodes, and their outputs by the names of the rounded tensors.
    """
    references: dict[Node, Reference] = {}
    rounded: dict[str, Value] = {}
    precise = {n.outputs[0].name for n in graph.nodes if plan.precision_of(n) is DType.FLOAT32}
    for value in list(graph.values()):
        stored = plan.activations.get(value.name)
        if stored is None or value.name in precise:
            continue
        users = list(value.indices().items())
        node = graph.add(Reshape(value.type.shape), [value])
        for user, indices in users:
            user.read_at(indices, node.output)
        references[node], rounded[value.name] = _rounding(stored), node.output
    return references, rounded


def _rounding(stored: Stored) -> Reference:
    """Return a function that rounds reals as a stored tensor does."""
    return lambda _node, arrays: [fake_quantize(arrays[0], stored.quant, stored.dtype)]
