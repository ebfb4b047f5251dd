# SPDX-License-Identifier: Apache-2.0
"""Warnings about unsuitable labels and evaluation samples, with a hint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from mcugen.hir.types import Array
from mcugen.lir.program import Endpoint

Sample = Mapping[str, Array]

OUTSIDE_SHARE = 0.1
"""Share of an input's elements outside the calibrated range above which there is a warning."""

OUTSIDE_MARGIN = 0.25
"""Distance from the calibrated range, as a share of the range's length, beyond which an element counts as outside."""

MIN_COVERED_SHARE = 1 / 16
"""Share of the calibrated range that samples must cover, or a warning is given.

With less, an int8 input has fewer than four useful bits.
"""

MIN_RANGE_SAMPLES = 4
"""Smallest number of samples for which the covered range is checked."""


def label_warnings(
    labels: Array | None, outputs: Sequence[Endpoint], inputs: Sequence[Endpoint], metric: str = ""
) -> list[str]:
    """Return a warning if labels name classes that the first output does not have.

    Args:
        labels: One class number for each sample; labels of other kinds are not checked.
        outputs: The model's outputs; classes are the elements of the first one.
        inputs: The model's inputs. An output as large as the only input reconstructs that, and has no classes.
        metric: Name of the metric. With a user's own metric (FILE.py:FUNCTION), labels are not checked.
    """
    if labels is None or labels.ndim != 1 or labels.dtype.kind not in "iu" or not labels.size or ":" in metric:
        return []
    first, count = outputs[0], math.prod(outputs[0].shape)
    if first.sizes or (count == 1 and first.dtype.is_integer and first.quant is None):
        return []  # the output is a class number itself, or its length is not known
    classes = max(count, 2)  # one number is the score of the second of two classes
    outside = int((labels >= classes).sum())
    if not outside or [math.prod(endpoint.shape) for endpoint in inputs] == [count]:
        return []
    what = f"{outside} of {len(labels)} labels lie outside the {classes} classes of the output '{first.name}'"
    remedy = f"number the classes from 0 to {classes - 1}, or give the metric that the labels are for: --metric"
    return [f"{what} (the largest label is {labels.max()}), and count as wrong; {remedy}"]


def range_warnings(samples: Sequence[Sample], ranges: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return a warning for each input whose evaluation samples do not fit its calibrated range.

    Args:
        samples: Evaluation samples.
        ranges: The calibrated range of each input that has one, in real units.
    """
    return [text for name, ends in ranges.items() for text in _of_input(name, samples, *ends)]


def _of_input(name: str, samples: Sequence[Sample], low: float, high: float) -> Iterator[str]:
    arrays = [np.asarray(s[name]).reshape(-1) for s in samples if name in s and s[name].dtype.kind == "f"]
    values = np.concatenate(arrays) if arrays else np.zeros(0)
    values = values[np.isfinite(values)]
    if not values.size or high <= low:
        return
    margin = OUTSIDE_MARGIN * (high - low)
    share = float(((values < low - margin) | (values > high + margin)).mean())
    lowest, highest = float(values.min()), float(values.max())
    reach = f"they reach from {lowest:.4g} to {highest:.4g}, the calibrated range is {low:.4g} to {high:.4g}"
    remedy = "prepare both sets alike (--preprocess, --pixel-scale), or calibrate with samples like these"
    if share >= OUTSIDE_SHARE:
        what = f"{100 * share:.1f} % of the elements of '{name}' in the evaluation samples lie outside the range"
        yield f"{what} that it was calibrated for, where integers saturate: {reach}; {remedy}"
    elif len(arrays) >= MIN_RANGE_SAMPLES and max(highest, 0) - min(lowest, 0) < MIN_COVERED_SHARE * (high - low):
        covered = (max(highest, 0) - min(lowest, 0)) / (high - low)
        what = f"the elements of '{name}' in the evaluation samples cover {100 * covered:.2g} % of the range"
        yield f"{what} that it was calibrated for, and are rounded away: {reach}; {remedy}"
