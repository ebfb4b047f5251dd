# SPDX-License-Identifier: Apache-2.0
"""Heads that learn from a few samples without gradients: they remember the model's outputs for these samples.

Nearest class means: Mensink et al., "Distance-based image classification", 2013. The inverse of a covariance is kept by
the formula of Sherman and Morrison, so that nothing is ever inverted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from mcugen.core.errors import UsageError
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array, DType, TensorType
from mcugen.training.losses import SCALAR, require_real
from mcugen.training.onnx_calls import OnnxCalls
from mcugen.training.optimizers import finite_or_old

HEAD_PATTERN = re.compile(
    r"(?P<classes>centroids):(?P<count>\d{1,6})"
    r"|(?P<samples>nearest):(?P<of>\d{1,6}):(?P<kept>\d{1,6})(:(?P<near>\d{1,6}))?"
    r"|(?P<normal>statistics)(:(?P<prior>\d{1,6}(\.\d{1,6})?))?"
)
"""Regular expression of the values of `--train` that select a head, such as "nearest:10:50", instead of layers."""
UNTRAINED_CLASS_SCORE = float(np.finfo(np.float32).min)
"""Score of a class without training samples: the lowest finite float32."""

CENTROIDS_HEAD_TEXTS = (
    "the squared distance from the mean of the class",
    "the mean of the class moves towards what the model makes of the sample, by its share of all samples of the class, "
    "but at least by `rate` of the way; with a rate of 0 nothing is learned.",
)
"""Two phrases for comments in the generated header: what the loss of the `centroids` head is, and how it learns."""
NEAREST_HEAD_TEXTS = (
    "the share of the nearest samples that are of other classes",
    "what the model makes of the sample takes the place of the oldest one that is kept; with a rate of 0 nothing is "
    "learned.",
)
"""Two phrases for comments in the generated header: what the loss of the `nearest` head is, and how it learns."""
STATISTICS_HEAD_TEXTS = (
    "the squared distance from the mean, measured by the covariance",
    "mean and covariance take in what the model makes of the sample, which weighs as much as each one before, but at "
    "least `rate`; with a rate of 0 nothing is learned.",
)
"""Two phrases for comments in the generated header: what the loss of the `statistics` head is, and how it learns."""


@dataclass(frozen=True)
class HeadContext:
    """The inputs of a trainable head, and the graph that its operators are added to.

    A head consists of operators that classify or score the model's result, and learn from samples.

    Attributes:
        graph: The graph.
        z: The model's result for a sample, float32 [1, D].
        target: The class of the sample, int32 [1].
        rate: The learning rate, float32 [1]; 0 or less: do not learn.
        call: Adds ONNX operators to the graph.
        initial_states: Initial values of states by name; states that are not listed start with zeros.
        new_states: The new value of each state.
    """

    graph: Graph
    z: Value
    target: Value
    rate: Value
    call: OnnxCalls
    initial_states: dict[str, Array] = field(default_factory=dict)
    new_states: dict[Value, Value] = field(default_factory=dict)

    def add_state(self, name: str, first: Array) -> Value:
        """Add a graph input that keeps its value from call to call, with the initial value `first`, and return it."""
        value = self.graph.add_input(name, TensorType(first.shape, DType.of(first)))
        if np.any(first):
            self.initial_states[value.name] = first
        return value

    def set_state(self, value: Value, new: Value) -> None:
        """Set the value that a state has in the next call.

        Args:
            value: The state, as `add_state` returned it.
            new: The new value. Elements that are NaN or infinite leave the state unchanged.
        """
        self.new_states[value] = finite_or_old(self.call, value, new) if new.type.dtype.is_float else new

    def sum_of_squares(self, x: Value, axis: int) -> Value:
        """Return the sums of the squares of `x` along `axis`, which stays with length 1."""
        return self.call("ReduceSumSquare", x, np.asarray([axis]), keepdims=1)

    def distances(self, points: Value) -> Value:
        """Return the squared distances between the sample z and N points.

        They are computed as |p|² − 2·p·z + |z|².

        Args:
            points: The points p, [N, D].

        Returns:
            The distances, [N, 1].
        """
        products = self.call("MatMul", points, self.call("Transpose", self.z, perm=[1, 0]))
        doubled = self.call("Mul", products, float32_array(2))
        return self.call(
            "Add", self.call("Sub", self.sum_of_squares(points, 1), doubled), self.sum_of_squares(self.z, 1)
        )

    def learns(self) -> Value:
        """Return a float32 [1] that is 1 if the learning rate is positive, else 0."""
        return self.call("Cast", self.call("Greater", self.rate, float32_array(0)), to=TensorProto.FLOAT)

    def newest_sample_weight(self, count: Value) -> Value:
        """Return the weight of the newest sample in the running mean of `count` samples.

        It is 1 / count, but at least `rate` and at most 1.
        """
        mean = self.call("Div", float32_array(1), self.call("Max", count, float32_array(1)))
        return self.call("Min", self.call("Max", mean, self.rate), float32_array(1))


def float32_array(number: float) -> Array:
    """Return a number as a float32 array of shape [1]."""
    return np.full(SCALAR, number, np.float32)


@dataclass(frozen=True)
class HeadResult:
    """The results for one sample of a trainable head, which classifies or scores the model's result.

    Attributes:
        scores: Score of each class, float32 [1, classes], or one anomaly score, float32 [1].
        loss: The loss, float32 [1].
    """

    scores: Value
    loss: Value


@dataclass(frozen=True)
class Head:
    """A trainable head that `--train` selects: operators after the model that learn from samples without gradients.

    The heads remember class means, samples, or the statistics of normal samples. They replace the model's result by
    scores.

    Attributes:
        classes: Number of classes; 1 for the anomaly score of a statistics head.
        output: Name of the model output with the scores.
        loss: Phrase that describes the loss, for the generated header.
        learning: Phrase that describes the update, for the generated header.
        build: Adds the head's operators to the graph of a HeadContext, and returns their results.
    """

    classes: int
    output: str
    loss: str
    learning: str
    build: Callable[[HeadContext], HeadResult]


def head_of(text: str) -> Head | None:
    """Return the head that a `--train` text describes; None if the text selects layers instead.

    The texts are `centroids:CLASSES`, `nearest:CLASSES:SAMPLES[:K]` and `statistics[:VARIANCE]`. CLASSES is the number
    of classes, SAMPLES the number of remembered samples, and K the number of nearest neighbors that vote.

    Raises:
        UsageError: A number is out of range.
    """
    said = HEAD_PATTERN.fullmatch(text)
    if said is None:
        return None
    if said["classes"]:
        count = _positive(text, said["count"])
        return Head(count, "scores", *CENTROIDS_HEAD_TEXTS, lambda e: _centroids(e, count))
    if said["samples"]:
        count, kept, near = (_positive(text, number or "1") for number in (said["of"], said["kept"], said["near"]))
        if near > kept:
            raise UsageError(
                f"--train {text}: the number of neighbours must not exceed the number of kept samples",
                f"{near} of {kept}",
            )
        return Head(count, "scores", *NEAREST_HEAD_TEXTS, lambda e: _nearest(e, count, kept, near))
    prior = float(said["prior"] or 1)
    if not prior:
        raise UsageError(f"--train {text}: the initial variance must be positive", "0")
    return Head(1, "anomaly", *STATISTICS_HEAD_TEXTS, lambda e: _statistics(e, prior))


def _positive(text: str, number: str) -> int:
    if not int(number):
        raise UsageError(f"--train {text}: numbers must be positive", number)
    return int(number)


@dataclass(frozen=True)
class AttachedHead:
    """A trainable head that was added to a graph: operators that classify or score the model's result, and learn.

    Attributes:
        embedding: The context that the head was built in: its inputs, states and graph. The field `z` of the context is
            the model's result, called the embedding of the sample.
        loss: The loss of the head, float32 [1].
    """

    embedding: HeadContext
    loss: Value


def attach_head(graph: Graph, result: Value, head: Head) -> AttachedHead:
    """Add a head after a value of the graph, and make the head's scores the first output.

    A head consists of operators that classify or score the model's result, and learn from samples.

    Args:
        graph: The graph, changed in place.
        result: The value that the head reads: the model's result.
        head: The head.

    Raises:
        UnsupportedError: `result` is not float32.
    """
    name = graph.output_names[0]
    require_real(result, result.name)
    target = graph.add_input("target", TensorType(SCALAR, DType.INT32))
    rate = graph.add_input("rate", TensorType(SCALAR, DType.FLOAT32))
    call = OnnxCalls(graph, "head")
    flat = call("Reshape", result, np.asarray([1, result.type.count]))
    embedding = HeadContext(graph, flat, target, rate, call)
    judgement = head.build(embedding)
    graph.outputs = [judgement.scores, *graph.outputs[1:]]
    other_names = graph.output_names[1:]
    graph.output_names = [head.output if head.output not in other_names else name, *other_names]
    graph.rename(judgement.scores, head.output)
    return AttachedHead(embedding, judgement.loss)


def _centroids(e: HeadContext, classes: int) -> HeadResult:
    """Add a nearest-centroid head, whose scores are negative squared distances from the means of classes."""
    call, size = e.call, e.z.type.count
    means = e.add_state("centroids", np.zeros((classes, size), np.float32))
    counts = e.add_state("counts", np.zeros((classes, 1), np.float32))
    distances = e.distances(means)
    known = call(
        "Where", call("Greater", counts, float32_array(0)), call("Neg", distances), float32_array(UNTRAINED_CLASS_SCORE)
    )
    is_target = call("Equal", np.arange(classes, dtype=np.int32).reshape(-1, 1), e.target)
    hit = call("Cast", is_target, to=TensorProto.FLOAT)
    loss = call("ReduceSum", call("Mul", hit, distances), np.asarray([0, 1]), keepdims=0)
    learned = call("Mul", hit, e.learns())
    now = call("Add", counts, learned)
    step = call("Mul", learned, e.newest_sample_weight(now))
    e.set_state(means, call("Add", means, call("Mul", step, call("Sub", e.z, means))))
    e.set_state(counts, now)
    return HeadResult(_row(e, known), call("Reshape", loss, np.asarray(SCALAR)))


def _nearest(e: HeadContext, classes: int, kept: int, near: int) -> HeadResult:
    """Add a nearest-neighbor head, whose scores are the classes' shares of the nearest samples.

    The newest sample replaces the oldest one.

    Args:
        e: The embedding of a sample.
        classes: Number of classes.
        kept: Number of samples that the head remembers.
        near: Number of nearest samples that vote.
    """
    call, at_first = e.call, np.zeros(SCALAR, np.int32)
    samples = e.add_state("samples", np.zeros((kept, e.z.type.count), np.float32))
    labels, place = e.add_state("labels", np.full((kept, 1), -1, np.int32)), e.add_state("place", at_first)
    is_there = call("GreaterOrEqual", labels, at_first)
    far = call("Where", is_there, e.distances(samples), float32_array(-UNTRAINED_CLASS_SCORE))
    order = call.several("TopK", [far, np.asarray([near])], 2, "", axis=0, largest=0)[1]
    near_labels = call("Gather", labels, call("Reshape", order, np.asarray([near])), axis=0)
    votes = call("Equal", near_labels, np.arange(classes, dtype=np.int32).reshape(1, classes))
    shares = call("ReduceMean", call("Cast", votes, to=TensorProto.FLOAT), np.asarray([0]), keepdims=1)
    hit = call("Equal", np.arange(classes, dtype=np.int32).reshape(1, classes), e.target)
    right = call("ReduceSum", call("Where", hit, shares, float32_array(0)), np.asarray([1]), keepdims=0)
    size = e.sum_of_squares(e.z, 1)
    # This is 0, or NaN if the sample is not finite.
    nothing = call("Reshape", call("Sub", size, size), np.asarray(SCALAR))
    loss = call("Add", call("Sub", float32_array(1), right), nothing)
    learns = call("Greater", e.rate, float32_array(0))
    here = call("And", call("Equal", np.arange(kept, dtype=np.int32).reshape(-1, 1), place), learns)
    following = call("Add", place, call("Cast", learns, to=TensorProto.INT32))
    back = call("Equal", following, np.full(SCALAR, kept, np.int32))
    e.set_state(samples, call("Where", here, e.z, samples))
    e.set_state(labels, call("Where", here, e.target, labels))
    e.set_state(place, call("Where", back, at_first, following))
    return HeadResult(_row(e, shares), loss)


def _statistics(e: HeadContext, prior: float) -> HeadResult:
    """Add the score (z − μ)ᵀ·Σ⁻¹·(z − μ). A sample of weight a changes Σ to (1 − a)·(Σ + a·δ·δᵀ).

    The state is Σ⁻¹ minus its initial value, so that the initial value takes no flash.
    """
    call, size, first = e.call, e.z.type.count, 1 / prior
    mean, count = (
        e.add_state("mean", np.zeros((1, size), np.float32)),
        e.add_state("count", np.zeros(SCALAR, np.float32)),
    )
    change = e.add_state("inverse_covariance", np.zeros((size, size), np.float32))
    delta = call("Sub", e.z, mean)
    moved = call("Add", call("MatMul", delta, change), call("Mul", delta, float32_array(first)))
    distance = call("ReduceSum", call("Mul", moved, delta), np.asarray([1]), keepdims=0)
    learns = e.learns()
    now = call("Add", count, learns)
    weight = call("Mul", e.newest_sample_weight(now), learns)
    half = call("Min", weight, float32_array(0.5))  # One sample has no variance.
    later = call("Mul", half, call("Cast", call("Greater", count, float32_array(0)), to=TensorProto.FLOAT))
    part = call("Div", later, call("Add", float32_array(1), call("Mul", later, distance)))
    outer = call("Mul", call("Transpose", moved, perm=[1, 0]), call("Mul", moved, part))
    index = np.arange(size, dtype=np.int32)
    gone = call(
        "Where", call("Equal", index.reshape(-1, 1), index.reshape(1, -1)), float32_array(first), float32_array(0)
    )
    less = call("Sub", outer, call("Mul", later, gone))
    e.set_state(mean, call("Add", mean, call("Mul", weight, delta)))
    e.set_state(change, call("Div", call("Sub", change, less), call("Sub", float32_array(1), later)))
    e.set_state(count, now)
    return HeadResult(distance, call("Identity", distance))


def _row(e: HeadContext, scores: Value) -> Value:
    """Return scores as [1, N], the shape that callers expect."""
    return e.call("Reshape", scores, np.asarray([1, scores.type.count]))
