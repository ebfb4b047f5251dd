# SPDX-License-Identifier: Apache-2.0
"""Metrics of outputs with a class at each position, such as pixels of a segmentation or steps of a sequence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.hir.types import Array

Outputs = Mapping[str, Array]

IGNORED_LABEL = 255
"""Label of positions that metrics ignore, as in common data sets; negative labels are ignored, too."""

MIN_PROBABILITY = 1e-7
"""Lower limit of a label's probability in the perplexity, which would be infinite if quantization rounds it to zero."""

MAX_PROBABILITY_SUM_DEVIATION = 0.1
"""Largest deviation from 1 of the sum of quantized probabilities; scores with other sums are logits."""


@dataclass(frozen=True)
class Positions:
    """Predictions and labels of the positions (such as pixels) of one sample that are compared.

    Attributes:
        found: Predicted class of each position.
        labels: Label of each position.
        scores: Scores, positions x classes; None if the output gives classes only.
    """

    found: Array
    labels: Array
    scores: Array | None


def positions(outputs: Sequence[Outputs], labels: Array) -> Iterator[Positions]:
    """Yield the positions of each sample, by the first output that fits the labels.

    Raises:
        UsageError: No output fits the labels, or a label is too large.
    """
    for sample, sample_labels in zip(outputs, labels, strict=True):
        shape = tuple(n for n in sample_labels.shape if n != 1)
        read = next((r for array in sample.values() if (r := _read(array, shape)) is not None), None)
        if read is None:
            shapes = ", ".join(str(array.shape) for array in sample.values())
            rule = f"an output must have a class, or scores by class, at each of the labels' {shape} positions"
            raise UsageError(rule, f"outputs of {shapes}", "resize the labels, or give --metric FILE.py:FUNCTION")
        predicted, scores = read
        flat = sample_labels.reshape(-1).astype(np.int64)
        counts = (flat >= 0) & (flat != IGNORED_LABEL)
        if scores is not None and flat[counts].max(initial=0) >= scores.shape[1] > 1:
            raise UsageError(f"labels must be below {scores.shape[1]}, the number of classes", f"{flat[counts].max()}")
        yield Positions(predicted[counts], flat[counts], None if scores is None else scores[counts])


def _read(array: Array, shape: tuple[int, ...]) -> tuple[Array, Array | None] | None:
    """Return classes and scores of an output; with one score at each position, a score above 0.5 is class 1."""
    whole = array.reshape([n for n in array.shape if n != 1])
    if whole.shape == shape:
        if whole.dtype.kind in "iu":
            return whole.reshape(-1).astype(np.int64), None
        return (whole.reshape(-1) > 0.5).astype(np.int64), whole.reshape(-1, 1)
    for axis in (0, -1):  # scores of ONNX come first
        if whole.ndim == len(shape) + 1 and np.moveaxis(whole, axis, -1).shape[:-1] == shape:
            scores = np.moveaxis(whole, axis, -1).reshape(-1, whole.shape[axis])
            return scores.argmax(1), scores
    return None


def share_right(outputs: Sequence[Outputs], labels: Array) -> float:
    """Return the share (0 to 1) of correctly classified positions among all positions of all samples."""
    parts = list(positions(outputs, labels))
    total = sum(len(part.labels) for part in parts)
    return sum(int((part.found == part.labels).sum()) for part in parts) / total if total else math.nan


def mean_iou(outputs: Sequence[Outputs], labels: Array) -> float:
    """Return the mean over classes of intersection ÷ union of predictions and labels; NaN without classes."""
    parts = list(positions(outputs, labels))
    count = 1 + max(int(max(part.found.max(initial=0), part.labels.max(initial=0))) for part in parts)
    both, either = np.zeros(count), np.zeros(count)
    for part in parts:
        hits = np.bincount(part.labels[part.found == part.labels], minlength=count)
        both += hits
        either += np.bincount(part.found, minlength=count) + np.bincount(part.labels, minlength=count) - hits
    present = either > 0
    return float((both[present] / either[present]).mean()) if present.any() else math.nan


def perplexity(outputs: Sequence[Outputs], labels: Array) -> float:
    """Return the perplexity: the exponential of the mean of −log(probability of the label) over all positions."""
    logs: list[Array] = []
    for part in positions(outputs, labels):
        if part.scores is None or part.scores.shape[1] < 2:
            raise UsageError("perplexity needs a score for each class", "none", "take --metric error")
        chances = _probabilities(part.scores.astype(np.float64))
        logs.append(np.log(np.maximum(chances[np.arange(len(chances)), part.labels], MIN_PROBABILITY)))
    return float(np.exp(-np.concatenate(logs).mean()))


def _probabilities(scores: Array) -> Array:
    """Return rows that add up to one; scores that are no probabilities are converted by softmax."""
    sums = scores.sum(1)
    if scores.min(initial=0) >= 0 and np.abs(sums - 1).max(initial=0) <= MAX_PROBABILITY_SUM_DEVIATION:
        chances: Array = scores / sums[:, None]
        return chances
    powers = np.exp(scores - scores.max(1, keepdims=True))
    softmax: Array = powers / powers.sum(1, keepdims=True)
    return softmax
