# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware fine-tuning: weights and biases learn, on samples alone, to make up for what codes lose.

The quantized model is to give what the float one gives (distillation: no labels are needed). Each step runs the float
graph with the tensors and weights that integers would be, and moves real weights behind the codes by the gradients, as
if rounding were not there (straight-through estimator: Bengio et al., 2013). Gradients are those of
mcugen.ops.gradient: whatever can learn on a device is fine-tuned, too. Steps are Adam's, in units of the codes.
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
from mcugen.numerics.fixedpoint import through
from mcugen.numerics.threads import one_thread
from mcugen.ops.gradient import unfuse
from mcugen.ops.gradient.reverse import gradients_of_several
from mcugen.ops.movement import Reshape
from mcugen.ops.pointwise import Binary
from mcugen.quantization.estimate import hold_out, sqnr_of
from mcugen.quantization.float_model import all_tensors
from mcugen.quantization.plan import Codes, Plan, Stored
from mcugen.quantization.quantize import Quantization, Quantizer
from mcugen.quantization.samples import Sample
from mcugen.quantization.sensitivity import judged_tensors
from mcugen.quantization.weights import nearest_codes, real_weights

BATCH = 8
"""Samples of a step."""

RATE = 0.01
"""Of the step of a code, or of a tensor, that weights, or biases, move in a step, at first."""

MOMENTUM, DECAY = 0.9, 0.99
"""Of Adam's moments."""

ENOUGH_DB = 25.0
"""Outputs of such an SQNR need no fine-tuning, unless another is asked for."""


@dataclass
class _Learned:
    """A layer's weights, or its bias: `value` are reals, of which steps are thought in `unit`."""

    value: Array
    unit: Array | float
    first: Array | float = 0.0
    second: float = 0.0

    def step(self, gradient: Array, count: int, rate: float) -> None:
        """One of Adam's, in units, with one second moment for all, so that weights move as far as their gradients say.

        Else those whose gradients are mere noise move as fast as others, and their codes go to and fro.
        """
        scaled = gradient * self.unit
        self.first = MOMENTUM * self.first + (1 - MOMENTUM) * scaled
        self.second = DECAY * self.second + (1 - DECAY) * float(np.mean(scaled**2))
        first, second = self.first / (1 - MOMENTUM**count), self.second / (1 - DECAY**count)
        self.value = self.value - rate * self.unit * first / (np.sqrt(second) + 1e-12)


def finetuned(
    maker: Quantizer, found: Quantization, epochs: int, least: float | None, progress: Callable[[int, int], None]
) -> Quantization:
    """With better codes, if there are any, and a note of what was won on samples that taught nothing.

    Nothing is done where `found` is estimated to have an SQNR of `least` dB. Refusal where an operator has no
    derivative, UsageError for too few samples, and for models of streams or of integers at their borders.
    """
    if maker.model.states or maker.scheme.integer_io:
        raise UsageError("fine-tuning is for models of reals without states", "another", "leave out --finetune")
    taught, judged = hold_out(maker.samples, False)
    if not judged:
        found_few = f"{len(maker.samples)} samples"
        raise UsageError("fine-tuning needs samples to learn by, and others", found_few, "give 20 or more")
    known, enough = found.estimate, ENOUGH_DB if least is None else least
    if known is not None and (known.sqnr_db is None or known.sqnr_db >= enough):
        note = f"not fine-tuned: {known} is enough ({enough:g} dB: see --min-sqnr)"
        return replace(found, notes=(*found.notes, note))
    before = sqnr_of(maker.model, found.proto, judged)
    best, most = found, before
    lesson = _Lesson(maker, found.plan)
    with one_thread():
        for epoch in range(epochs):
            lesson.epoch(taught, epoch, epochs, progress)
            made = maker.with_codes(found, lesson.codes())
            reached = sqnr_of(maker.model, made.proto, judged)
            best, most = (made, reached) if reached > most else (best, most)
    taken = f"{epochs} epoch{'s' * (epochs > 1)} of {len(taught)} samples"
    told = f"{taken}, {before:.1f} to {most:.1f} dB on {len(judged)} others"
    note = f"fine-tuned: {told}" if best is not found else f"not fine-tuned: {told} that did not learn"
    return replace(best, notes=(*best.notes, note))


class _Lesson:
    """The graph of outputs and gradients, and what is learned."""

    def __init__(self, maker: Quantizer, plan: Plan) -> None:
        self.plan, self.model = plan, maker.model
        graph = self.graph = maker.model.graph.copy()
        outputs = judged_tensors(maker.model)
        self.references, rounded = _rounded(graph, plan)
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
        """The graph gives the gradients by all that is learned, of the squared error of outputs, rounded or not."""
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
        found = gradients_of_several(graph, seeded, by)
        graph.outputs, graph.output_names = found, list(self.learned)
        graph.sort()

    def epoch(self, samples: Sequence[Sample], number: int, epochs: int, progress: Callable[[int, int], None]) -> None:
        """All samples once, in an order of their own."""
        exact = self._exact(samples)
        order = np.random.default_rng(number).permutation(len(samples))
        total = epochs * len(samples)
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            rate = RATE * (1 + math.cos(math.pi * (number * len(samples) + start) / total)) / 2
            self._step([(samples[i], exact[i]) for i in some], rate)
            progress(number * len(samples) + start + len(some), total)

    def _step(self, batch: Sequence[tuple[Sample, Sample]], rate: float) -> None:
        self.steps += 1
        values = self._values()
        sums: dict[str, Array | float] = dict.fromkeys(self.learned, 0.0)
        for sample, exact in batch:
            wanted = {self.targets[name]: exact[name] for name in self.targets}
            found = interpret(self.graph, {**sample, **values, **wanted}, references=self.references)
            for name, gradient in found.items():
                sums[name] = sums[name] + gradient.astype(np.float64)
        for name, each in self.learned.items():
            each.step(np.asarray(sums[name]), self.steps, rate)

    def _exact(self, samples: Sequence[Sample]) -> list[dict[str, Array]]:
        """What the float model gives."""
        session = Session(all_tensors(self.model), literal=False, threads=1)
        return [session.run(list(self.targets), sample) for sample in samples]

    def _values(self) -> dict[str, Array]:
        """Weights as codes have them, and biases."""
        values = {name: each.value.astype(np.float32) for name, each in self.learned.items()}
        for layer, codes in self.codes().items():
            values[self.layers[layer][0].name] = real_weights(codes)
        return values

    def codes(self) -> dict[str, Codes]:
        """The nearest to what was learned."""
        return {name: self._codes(name, self.plan.layers[name]) for name in self.layers}

    def _codes(self, name: str, codes: Codes) -> Codes:
        weights, bias = self.layers[name]
        learned = self.learned[weights.name]
        moved = codes.bias if bias is None or bias.name not in self.learned else self.learned[bias.name].value
        return replace(nearest_codes(codes, learned.value), bias=None if moved is None else moved.astype(np.float32))


def _inputs_of(graph: Graph, node: Node, codes: Codes) -> tuple[Value, Value | None]:
    """A layer's weights and bias, as inputs of the graph."""
    ((index, _),) = weight_axes(node.op).items()
    place = bias_input(node.op)
    has_bias = codes.bias is not None and place is not None and len(node.inputs) > place
    return _as_input(graph, node, index), _as_input(graph, node, place) if has_bias and place is not None else None


def _as_input(graph: Graph, node: Node, index: int) -> Value:
    value = node.input(index)
    given = graph.add_input(f"{node.outputs[0].name}.{index}.learned", value.type)
    node.set_input(index, given)
    return given


def _rounded(graph: Graph, plan: Plan) -> tuple[dict[Node, Reference], dict[str, Value]]:
    """Behind each tensor of integers a node that rounds it, and what it does; to derivatives it does nothing.

    Also, by the tensors' names, what they are behind it.
    """
    found: dict[Node, Reference] = {}
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
        found[node], rounded[value.name] = _rounding(stored), node.output
    return found, rounded


def _rounding(stored: Stored) -> Reference:
    """What is left of reals once they were stored."""
    return lambda _node, arrays: [through(arrays[0], stored.quant, stored.dtype)]
