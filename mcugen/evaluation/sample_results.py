# SPDX-License-Identifier: Apache-2.0
"""Samples for a report: those that a classifier gets wrong, and those that it is least certain of."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mcugen.evaluation.metrics import INFINITE_ERROR_DB, sqnr_db
from mcugen.hir.types import Array

MAX_CONFUSION_CLASSES = 64
"""Largest number of classes of a confusion matrix in a report; larger ones are hard to read."""

MAX_SHOWN_SAMPLES = 8
"""Largest number of samples of each kind (such as wrong or uncertain ones) that a report shows."""

LONGEST_SIDE = 96
"""Largest width and height in pixels of a sample's picture in a report."""
RGB_CHANNELS = 3
"""Number of channels of a color picture."""


@dataclass(frozen=True)
class SampleView:
    """A picture of a sample.

    Attributes:
        height: Number of rows; 1 for a signal over time.
        width: Values of a row.
        channels: 1 or 3.
        low: Value that the byte 0 stands for.
        high: Value that the byte 255 stands for.
        values: The values as bytes in base64: rows, columns, channels.
    """

    height: int
    width: int
    channels: int
    low: float
    high: float
    values: str


@dataclass(frozen=True)
class SampleResult:
    """The result of one sample in a report.

    Attributes:
        index: Number of the sample.
        label: Its label; None if unknown.
        predicted: Its predicted class; None if outputs are not classes.
        margin: Difference of the two largest scores; if outputs are not classes, the SQNR against the reference in dB.
        view: A picture of its first input; None if the input is no image or signal.
    """

    index: int
    label: int | None
    predicted: int | None
    margin: float
    view: SampleView | None


@dataclass(frozen=True)
class SampleResults:
    """Samples that a report shows: wrong, uncertain or inaccurate ones, at most MAX_SHOWN_SAMPLES of each kind.

    Attributes:
        confusion: Number of samples by label and predicted class; None without labels or with many classes.
        wrong: Samples whose class differs from their label, the largest margin first.
        unsure: Samples with the smallest margin.
        farthest: If outputs are not classes, the samples with the lowest SQNR against the reference.
        names: Names of the classes.
    """

    confusion: list[list[int]] | None
    wrong: list[SampleResult]
    unsure: list[SampleResult]
    farthest: list[SampleResult] = field(default_factory=list)
    names: list[str] | None = None


def sample_results(
    outputs: Sequence[Array], inputs: Sequence[Mapping[str, Array]], labels: Array | None, names: Sequence[str] = ()
) -> SampleResults | None:
    """Select samples of a classifier for a report: confident errors and the least certain results (SampleResults).

    Return None if the outputs are not one finite score for each of two or more classes. Without labels, no sample
    counts as wrong and there is no confusion matrix.

    Args:
        outputs: The scores of each sample, by class.
        inputs: The inputs of each sample, by name.
        labels: Labels of the samples, or None.
        names: The names of the classes; ignored if their number is another.
    """
    if len({scores.size for scores in outputs}) != 1 or outputs[0].size < 2:
        return None
    scores = np.stack([output.reshape(-1) for output in outputs]).astype(np.float64)
    if not np.isfinite(scores).all():
        return None
    predicted = scores.argmax(1)
    best = np.sort(scores, axis=1)
    margins = best[:, -1] - best[:, -2]
    one_each = labels is not None and labels.ndim == 1 and labels.dtype.kind != "f"
    known = labels if labels is not None and one_each and labels.max() < scores.shape[1] else None

    def result(index: int) -> SampleResult:
        label = None if known is None else int(known[index])
        return SampleResult(
            index, label, int(predicted[index]), round(float(margins[index]), 6), _first_of(inputs[index])
        )

    wrong = [] if known is None else [i for i in np.argsort(-margins, kind="stable") if predicted[i] != known[i]]
    unsure = np.argsort(margins, kind="stable")[:MAX_SHOWN_SAMPLES]
    matrix = None if known is None else _confusion(known, predicted, scores.shape[1])
    shown = [[result(int(i)) for i in some] for some in (wrong[:MAX_SHOWN_SAMPLES], unsure)]
    known_names = list(names) if len(names) == scores.shape[1] else None
    return SampleResults(matrix, shown[0], shown[1], names=known_names)


def farthest_results(
    outputs: Sequence[Array], reference: Sequence[Array], inputs: Sequence[Mapping[str, Array]]
) -> SampleResults | None:
    """Select the samples with the lowest SQNR against the reference, for outputs that are not classes.

    Args:
        outputs: The output of each sample.
        reference: The output of the reference for each sample.
        inputs: The inputs of each sample, by name.

    Returns:
        The selected samples in `SampleResults.farthest`, the lowest SQNR first; None if no sample has any error.
    """
    pairs = zip(outputs, reference, strict=True)
    errors = [sqnr_db(a.reshape(-1).astype(np.float64), b.reshape(-1).astype(np.float64)) for a, b in pairs]
    quality = [max(error, INFINITE_ERROR_DB) for error in errors]
    worst = [i for i in sorted(range(len(quality)), key=lambda i: quality[i]) if math.isfinite(quality[i])]
    shown = [SampleResult(i, None, None, round(quality[i], 2), _first_of(inputs[i])) for i in worst[:MAX_SHOWN_SAMPLES]]
    return SampleResults(None, [], [], shown) if shown else None


def _confusion(labels: Array, predicted: Array, classes: int) -> list[list[int]] | None:
    if classes > MAX_CONFUSION_CLASSES:
        return None
    matrix = np.zeros((classes, classes), np.int64)
    np.add.at(matrix, (labels.astype(np.int64), predicted), 1)
    rows: list[list[int]] = matrix.tolist()
    return rows


def _first_of(inputs: Mapping[str, Array]) -> SampleView | None:
    """Return the view of the first input; None for a model without inputs."""
    return next((view_of(array) for array in inputs.values()), None)


def view_of(sample: Array) -> SampleView | None:
    """Return the picture of an image, a spectrogram or a signal, subsampled if large; None for any other array."""
    pixels = _pixels(sample)
    if pixels is None or not pixels.size or pixels.dtype.kind not in "fiub":
        return None
    steps = [math.ceil(n / LONGEST_SIDE) for n in pixels.shape[:2]]
    few = pixels[:: steps[0], :: steps[1]].astype(np.float64)
    if not np.isfinite(few).all():
        return None
    low, high = float(few.min()), float(few.max())
    codes = np.rint((few - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
    height, width, channels = codes.shape
    return SampleView(height, width, channels, low, high, base64.b64encode(codes.tobytes()).decode())


def _pixels(sample: Array) -> Array | None:
    """Return the sample as rows x columns x channels; None if it is no image and no line."""
    squeezed = sample.reshape([n for n in sample.shape if n > 1] or [1])
    if squeezed.ndim == 1 and squeezed.size > RGB_CHANNELS:
        return squeezed.reshape(1, -1, 1)
    if squeezed.ndim == 2:
        return squeezed[..., np.newaxis]
    if squeezed.ndim == 3 and squeezed.shape[0] == RGB_CHANNELS:
        return np.moveaxis(squeezed, 0, -1)
    return squeezed if squeezed.ndim == 3 and squeezed.shape[-1] == RGB_CHANNELS else None
