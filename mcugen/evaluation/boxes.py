# SPDX-License-Identifier: Apache-2.0
"""Object detection outputs (boxes around objects), and their mean average precision (mAP)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.hir.types import Array

Outputs = Mapping[str, Array]

TRUTH = ("class", "left", "top", "right", "bottom")
"""Columns of labels that describe boxes: one row for each object; rows with a negative class are ignored."""

MAX_KEPT_IOU = 0.5
"""Largest intersection over union (IoU) with a box of higher score at which non-maximum suppression keeps a box."""

MIN_BOX_SCORE, MAX_BOXES_PER_CLASS = 0.01, 100
"""Score that a box must exceed, and largest number of boxes for each class and sample, as in COCO's evaluation."""

MAP_IOU_THRESHOLDS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))
"""The thresholds of IoU, 0.5 to 0.95, over which COCO's mAP is averaged."""


@dataclass(frozen=True)
class Detections:
    """The detected boxes of one sample.

    Attributes:
        boxes: Left, top, right and bottom of each box, [boxes, 4].
        scores: Score of each box for each class, [boxes, classes].
    """

    boxes: Array
    scores: Array


def detected_boxes(sample: Outputs) -> Detections:
    """Return the boxes in the outputs of a sample.

    Raises:
        UsageError: The outputs are neither boxes with scores, nor rows of both.
    """
    flat = [array[0] if array.ndim > 1 and len(array) == 1 else array for array in sample.values()]
    boxes = next((array for array in flat if array.ndim == 2 and array.shape[1] == 4), None)
    if boxes is not None:
        score_arrays = [a for a in flat if a is not boxes and a.ndim in (1, 2) and len(a) == len(boxes)]
        if score_arrays:
            return Detections(boxes, score_arrays[0].reshape(len(boxes), -1))
    rows = next((array for array in flat if array.ndim == 2 and array.shape[1] == 6), None)
    if rows is None:
        shapes = ", ".join(str(array.shape) for array in sample.values())
        rule = "outputs must be boxes (N x 4 corners) with scores (N x classes), or rows of 4 corners, score, class"
        raise UsageError(rule, f"outputs of {shapes}", "decode them in a metric of your own: --metric FILE.py:FUNCTION")
    classes = np.rint(rows[:, 5]).astype(np.int64)
    scores = np.zeros((len(rows), int(classes.max(initial=0)) + 1))
    scores[np.arange(len(rows)), np.maximum(classes, 0)] = rows[:, 4]
    return Detections(rows[:, :4], scores)


def overlaps(boxes: Array, other_boxes: Array) -> Array:
    """Return the IoU (area of intersection ÷ area of union) of each of `boxes` with each of `other_boxes`.

    The shape of the result is [boxes, other boxes].
    """
    low = np.maximum(boxes[:, None, :2], other_boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], other_boxes[None, :, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=2)
    areas = [np.prod(np.maximum(b[:, 2:] - b[:, :2], 0), axis=1) for b in (boxes, other_boxes)]
    either = areas[0][:, None] + areas[1][None, :] - both
    shares: Array = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
    return shares


def suppress_overlapping(boxes: Array, scores: Array) -> list[int]:
    """Return the indices of the boxes that non-maximum suppression keeps, by falling score.

    Args:
        boxes: The boxes of one class, [boxes, 4].
        scores: Their scores.
    """
    order = [int(i) for i in np.argsort(-scores, kind="stable") if scores[i] > MIN_BOX_SCORE]
    kept: list[int] = []
    while order and len(kept) < MAX_BOXES_PER_CLASS:
        best, remaining = order[0], order[1:]
        kept.append(best)
        near = overlaps(boxes[[best]], boxes[remaining])[0] if remaining else []
        order = [i for i, share in zip(remaining, near, strict=True) if share <= MAX_KEPT_IOU]
    return kept


def mean_average_precision(outputs: Sequence[Outputs], truth: Array, thresholds: Sequence[float]) -> float:
    """Return the mean average precision over the classes that occur, and over thresholds of IoU.

    Args:
        outputs: The outputs of each sample.
        truth: Labels: samples x boxes x the columns of TRUTH.
        thresholds: The smallest values of IoU at which a box counts as correct.

    Raises:
        UsageError: The labels have no objects.
    """
    detections = [detected_boxes(sample) for sample in outputs]
    classes = sorted({int(row[0]) for sample in truth for row in sample if row[0] >= 0})
    if not classes:
        raise UsageError("mAP needs labels with objects", "none")
    return float(np.mean([_class_precision(detections, truth, number, thresholds) for number in classes]))


def _class_precision(detections: Sequence[Detections], truth: Array, number: int, thresholds: Sequence[float]) -> float:
    """Return the mean of the average precisions of one class over the thresholds."""
    scores, shares, objects = [], [], 0
    for sample, rows in zip(detections, truth, strict=True):
        true_boxes = rows[rows[:, 0] == number, 1:].astype(np.float64)
        objects += len(true_boxes)
        if number >= sample.scores.shape[1]:
            continue
        boxes = sample.boxes.astype(np.float64)
        kept = suppress_overlapping(boxes, sample.scores[:, number])
        scores.append(sample.scores[kept, number])
        shares.append(overlaps(boxes[kept], true_boxes))
    return float(np.mean([_average_precision(scores, shares, objects, t) for t in thresholds]))


def _average_precision(scores: Sequence[Array], shares: Sequence[Array], objects: int, threshold: float) -> float:
    """Return the area below precision over recall, where precision is the best at that recall or beyond.

    `scores` and `shares` (IoU with each object) are those of each sample's boxes, the best first.
    """
    right = [_hits(sample, threshold) for sample in shares]
    order = np.argsort(-np.concatenate(scores or [np.zeros(0)]), kind="stable")
    hits = np.concatenate(right or [np.zeros(0, bool)])[order]
    total = np.cumsum(hits)
    precision = total / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float((best * hits).sum() / objects)


def _hits(shares: Array, threshold: float) -> Array:
    """Return for each box whether it finds an object that no better box has found."""
    free = np.ones(shares.shape[1], bool)
    hits = np.zeros(len(shares), bool)
    for index, row in enumerate(shares):
        near = np.where(free, row, -1.0)
        if near.size and near.max() >= threshold:
            hits[index], free[near.argmax()] = True, False
    return hits
