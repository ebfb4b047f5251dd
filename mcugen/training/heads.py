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
"""Forms of `--train` that select a head; see `head_of`."""
UNTRAINED_CLASS_SCORE = float(np.finfo(np.float32).min)
"""Score of a class without training samples: the lowest finite float32."""

CENTROIDS_HEAD_TEXTS = (
    "the squared distance from the mean of the class",
    "the mean of the class moves towards what the model makes of the sample, by its share of all samples of the class, "
    "but at least by `rate` of the way; with a rate of 0 nothing is learned.",
)
"""Descriptions of the centroids head's loss and learning for the generated documentation."""
NEAREST_HEAD_TEXTS = (
    "the share of the nearest samples that are of other classes",
    "what the model makes of the sample takes the place of the oldest one that is kept; with a rate of 0 nothing is "
    "learned.",
)
"""Descriptions of the nearest-neighbor head's loss and learning for the generated documentation."""
STATISTICS_HEAD_TEXTS = (
    "the squared distance from the mean, measured by the covariance",
    "mean and covariance take in what the model makes of the sample, which weighs as much as each one before, but at "
    "least `rate`; with a rate of 0 nothing is learned.",
)
"""Descriptions of the statistics head's loss and learning for the generated documentation."""


@dataclass(frozen=True)
class HeadContext:
    """The inputs of a trainable head, and the graph that its operators are added to.

    Attributes:
        graph: The graph.
        z: The model's result for a sample, float32 [1, D].
        target: The class of the sample, int32 [1].
        rate: The learning rate, float32 [1]; 0 or less: do not learn.
        call: Adds ONNX operators to the graph.
        first: Initial values of states by name; states that are not listed start with zeros.
        kept: The new value of each state.
    """

    graph: Graph
    z: Value
    target: Value
    rate: Value
    call: OnnxCalls
    first: dict[str, Array] = field(default_factory=dict)
    kept: dict[Value, Value] = field(default_factory=dict)

    def keep(self, name: str, first: Array) -> Value:
        """Add a state, which keeps its value between calls, with the initial value `first`; return its graph input."""
        value = self.graph.add_input(name, TensorType(first.shape, DType.of(first)))
        if np.any(first):
            self.first[value.name] = first
        return value

    def become(self, value: Value, new: Value) -> None:
        """Set the new value of a state; elements that would not be finite stay unchanged."""
        self.kept[value] = finite_or_old(self.call, value, new) if new.type.dtype.is_float else new

    def squares(self, x: Value, axis: int) -> Value:
        """Return the sums of the squares of x along an axis; the result keeps the axis with length 1."""
        return self.call("ReduceSumSquare", x, np.asarray([axis]), keepdims=1)

    def distances(self, points: Value) -> Value:
        """Return the squared distances of z from N points, |p|² − 2·p·z + |z|², as [N, 1]."""
        products = self.call("MatMul", points, self.call("Transpose", self.z, perm=[1, 0]))
        doubled = self.call("Mul", products, real(2))
        return self.call("Add", self.call("Sub", self.squares(points, 1), doubled), self.squares(self.z, 1))

    def learns(self) -> Value:
        """Return 1.0 if the rate is positive, else 0.0."""
        return self.call("Cast", self.call("Greater", self.rate, real(0)), to=TensorProto.FLOAT)

    def share(self, count: Value) -> Value:
        """Return the weight of the newest of `count` samples in an average: 1 / count, limited to [rate, 1]."""
        mean = self.call("Div", real(1), self.call("Max", count, real(1)))
        return self.call("Min", self.call("Max", mean, self.rate), real(1))


def real(number: float) -> Array:
    """Return a number as a float32 array of shape [1]."""
    return np.full(SCALAR, number, np.float32)


@dataclass(frozen=True)
class HeadResult:
    """The results of a head for one sample: scores (float32 [1, classes] or [1]) and loss (float32 [1])."""

    scores: Value
    loss: Value


@dataclass(frozen=True)
class Head:
    """A trainable head that `--train` selects.

    Attributes:
        classes: Number of classes; 1 for the anomaly score of a statistics head.
        output: Name of the output with the scores.
        loss: Description of the loss for the generated documentation.
        learning: Description of the update for the generated documentation.
        build: Adds the head's operators to a graph.
    """

    classes: int
    output: str
    loss: str
    learning: str
    build: Callable[[HeadContext], HeadResult]


def head_of(text: str) -> Head | None:
    """Return the head that a `--train` text describes; None if the text selects layers instead.

    The texts are `centroids:CLASSES`, `nearest:CLASSES:SAMPLES[:K]` and `statistics[:VARIANCE]`.

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
            raise UsageError(f"--train {text}: of the samples that are kept some are asked", f"{near} of {kept}")
        return Head(count, "scores", *NEAREST_HEAD_TEXTS, lambda e: _nearest(e, count, kept, near))
    prior = float(said["prior"] or 1)
    if not prior:
        raise UsageError(f"--train {text}: the variance before anything was shown must be positive", "0")
    return Head(1, "anomaly", *STATISTICS_HEAD_TEXTS, lambda e: _statistics(e, prior))


def _positive(text: str, number: str) -> int:
    if not int(number):
        raise UsageError(f"--train {text}: numbers must be positive", number)
    return int(number)


@dataclass(frozen=True)
class AttachedHead:
    """A head that was added to a graph: its inputs and states, and its loss (float32 [1])."""

    embedding: HeadContext
    loss: Value


def attach_head(graph: Graph, result: Value, head: Head) -> AttachedHead:
    """Add a head after a value of the graph, and make the head's scores the first output.

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
    means = e.keep("centroids", np.zeros((classes, size), np.float32))
    counts = e.keep("counts", np.zeros((classes, 1), np.float32))
    distances = e.distances(means)
    known = call("Where", call("Greater", counts, real(0)), call("Neg", distances), real(UNTRAINED_CLASS_SCORE))
    is_target = call("Equal", np.arange(classes, dtype=np.int32).reshape(-1, 1), e.target)
    hit = call("Cast", is_target, to=TensorProto.FLOAT)
    loss = call("ReduceSum", call("Mul", hit, distances), np.asarray([0, 1]), keepdims=0)
    learned = call("Mul", hit, e.learns())
    now = call("Add", counts, learned)
    step = call("Mul", learned, e.share(now))
    e.become(means, call("Add", means, call("Mul", step, call("Sub", e.z, means))))
    e.become(counts, now)
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
    samples = e.keep("samples", np.zeros((kept, e.z.type.count), np.float32))
    labels, place = e.keep("labels", np.full((kept, 1), -1, np.int32)), e.keep("place", at_first)
    is_there = call("GreaterOrEqual", labels, at_first)
    far = call("Where", is_there, e.distances(samples), real(-UNTRAINED_CLASS_SCORE))
    order = call.several("TopK", [far, np.asarray([near])], 2, "", axis=0, largest=0)[1]
    near_labels = call("Gather", labels, call("Reshape", order, np.asarray([near])), axis=0)
    votes = call("Equal", near_labels, np.arange(classes, dtype=np.int32).reshape(1, classes))
    shares = call("ReduceMean", call("Cast", votes, to=TensorProto.FLOAT), np.asarray([0]), keepdims=1)
    hit = call("Equal", np.arange(classes, dtype=np.int32).reshape(1, classes), e.target)
    right = call("ReduceSum", call("Where", hit, shares, real(0)), np.asarray([1]), keepdims=0)
    size = e.squares(e.z, 1)
    # This is 0, or NaN if the sample is not finite.
    nothing = call("Reshape", call("Sub", size, size), np.asarray(SCALAR))
    loss = call("Add", call("Sub", real(1), right), nothing)
    learns = call("Greater", e.rate, real(0))
    here = call("And", call("Equal", np.arange(kept, dtype=np.int32).reshape(-1, 1), place), learns)
    following = call("Add", place, call("Cast", learns, to=TensorProto.INT32))
    back = call("Equal", following, np.full(SCALAR, kept, np.int32))
    e.become(samples, call("Where", here, e.z, samples))
    e.become(labels, call("Where", here, e.target, labels))
    e.become(place, call("Where", back, at_first, following))
    return HeadResult(_row(e, shares), loss)


def _statistics(e: HeadContext, prior: float) -> HeadResult:
    """Add the score (z − μ)ᵀ·Σ⁻¹·(z − μ). A sample of weight a changes Σ to (1 − a)·(Σ + a·δ·δᵀ).

    The state is Σ⁻¹ minus its initial value, so that the initial value takes no flash.
    """
    call, size, first = e.call, e.z.type.count, 1 / prior
    mean, count = e.keep("mean", np.zeros((1, size), np.float32)), e.keep("count", np.zeros(SCALAR, np.float32))
    change = e.keep("inverse_covariance", np.zeros((size, size), np.float32))
    delta = call("Sub", e.z, mean)
    moved = call("Add", call("MatMul", delta, change), call("Mul", delta, real(first)))
    distance = call("ReduceSum", call("Mul", moved, delta), np.asarray([1]), keepdims=0)
    learns = e.learns()
    now = call("Add", count, learns)
    weight = call("Mul", e.share(now), learns)
    half = call("Min", weight, real(0.5))  # One sample has no variance.
    later = call("Mul", half, call("Cast", call("Greater", count, real(0)), to=TensorProto.FLOAT))
    part = call("Div", later, call("Add", real(1), call("Mul", later, distance)))
    outer = call("Mul", call("Transpose", moved, perm=[1, 0]), call("Mul", moved, part))
    index = np.arange(size, dtype=np.int32)
    gone = call("Where", call("Equal", index.reshape(-1, 1), index.reshape(1, -1)), real(first), real(0))
    less = call("Sub", outer, call("Mul", later, gone))
    e.become(mean, call("Add", mean, call("Mul", weight, delta)))
    e.become(change, call("Div", call("Sub", change, less), call("Sub", real(1), later)))
    e.become(count, now)
    return HeadResult(distance, call("Identity", distance))


def _row(e: HeadContext, scores: Value) -> Value:
    """Return scores as [1, N], the shape that callers expect."""
    return e.call("Reshape", scores, np.asarray([1, scores.type.count]))
