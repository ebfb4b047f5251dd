# SPDX-License-Identifier: Apache-2.0
"""Measures of how good outputs are: by labels, by the inputs, or by the outputs of a reference."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.core.options import METRICS as TITLES
from mcugen.evaluation.boxes import THRESHOLDS, mean_average_precision
from mcugen.evaluation.positions import mean_iou, perplexity, share_right
from mcugen.hir.types import Array
from mcugen.lir.program import Endpoint

Outputs = Mapping[str, Array]

INFINITE_ERROR_DB = -999.0
"""SQNR in dB that reports have where the error is infinite, or the reference zero everywhere and the outputs not."""

STANDARD_ERRORS = 1.96
"""On either side of a mean, in which it lies in 95 of 100 cases."""


@dataclass(frozen=True)
class Judged:
    """One dict of arrays a sample. Quantized tensors are real numbers here; integers are counts or classes.

    `reference` holds those of the outputs that are compared. `labels` has a class number for each sample, or for each
    position of each; or reals: the boxes of each (mcugen.evaluation.boxes.TRUTH).
    """

    outputs: Sequence[Outputs]
    reference: Sequence[Outputs]
    inputs: Sequence[Outputs] = ()
    labels: Array | None = None

    @property
    def names(self) -> list[str]:
        """The outputs in order."""
        return list(self.outputs[0])


@dataclass(frozen=True)
class Metric:
    """`compute` gives one number. `unit` is "%" for shares of 1, "dB", or "" for what the outputs are in.

    `by_reference`: it says how near outputs are to the reference's, and nothing about the reference itself. `right`
    says of each sample whether it is, where the metric is the share of those.
    """

    name: str
    title: str
    compute: Callable[[Judged], float]
    unit: str = ""
    lower_is_better: bool = False
    by_reference: bool = False
    right: Callable[[Judged], Array] | None = None

    @property
    def rates_reference(self) -> bool:
        """Whether the reference has a value of its own to fall from: what is a share of samples is whole there."""
        return not self.by_reference or self.right is not None

    def show(self, value: float | None) -> str:
        """The number for people; None is an infinite one, of outputs without error."""
        if value is None or not math.isfinite(value):
            return "exact"
        if self.unit == "%":
            return f"{100 * value:.2f} %"
        return f"{value:.2f} dB" if self.unit == "dB" else f"{value:.4g}"

    def loss(self, value: float, wanted: float) -> float:
        """By how much `value` is worse than `wanted`; in percentage points for shares."""
        worse = value - wanted if self.lower_is_better else wanted - value
        return 100 * worse if self.unit == "%" else worse


def bounded(metric: Metric, value: float) -> float | None:
    """Return a metric's value as JSON can have it; None stands for a result without any error, or for no number."""
    if math.isnan(value) or (value == math.inf and not metric.lower_is_better):
        return None
    if metric.unit == "dB":
        return max(value, INFINITE_ERROR_DB)
    return min(max(value, -sys.float_info.max), sys.float_info.max)


def find_metric(name: str) -> Metric:
    """A metric of METRICS; UsageError names them all."""
    if name not in METRICS:
        remedy = f"one of: {', '.join(METRICS)}; or your own: FILE.py:FUNCTION"
        raise UsageError("--metric must be known", f"'{name}'", remedy)
    return METRICS[name]


def described(name: str) -> Metric:
    """How to show a metric's numbers: of one of METRICS, or of a user's."""
    return METRICS.get(name) or own_metric(name, lambda _outputs, _labels: math.nan)


def own_metric(name: str, function: Callable[[dict[str, Array], Array | None], float]) -> Metric:
    """A user's: it takes all outputs by name (leading axis: samples) and the labels; higher is better.

    Unless the function has an attribute `lower_is_better` that says otherwise.
    """

    def compute(judged: Judged) -> float:
        stacked = {n: np.stack([o[n] for o in judged.outputs]) for n in judged.outputs[0]}
        try:
            return float(function(stacked, judged.labels))
        except (Exception, SystemExit) as error:  # whatever the user's code raises
            raise UsageError(f"--metric {name} must give a number", f"{type(error).__name__}: {error}") from error

    return Metric(name, name, compute, lower_is_better=bool(getattr(function, "lower_is_better", False)))


# ------------------------------------------------------------------------------------------------ by labels


def _labels(judged: Judged, what: str = "one class number a sample") -> Array:
    """Those of a kind. UsageError where there are none, or others."""
    if judged.labels is None:
        raise UsageError("this metric needs labels", "samples without", "add an array `labels`, or take --metric sqnr")
    kind = judged.labels.dtype.kind
    kinds = {"one class number a sample": judged.labels.ndim == 1, "a class at each position": judged.labels.ndim > 1}
    if not (kind == "f" if what == "boxes" else kind != "f" and kinds[what]):
        raise UsageError(f"this metric needs labels: {what}", f"{judged.labels.dtype} of {judged.labels.shape}")
    return judged.labels


def label_metric(labels: Array | None, output: Endpoint, inputs: Sequence[Endpoint]) -> str:
    """The measure that suits labels, and the first output: what is taken unless the user says otherwise."""
    if labels is None:
        return "sqnr"
    if labels.dtype.kind == "f":
        return "map50"
    if labels.ndim > 1:
        return "iou" if labels.ndim > 2 else "error"
    size, is_real = math.prod(output.shape), output.dtype.is_float or output.quant is not None
    rebuilds = [math.prod(given.shape) for given in inputs] == [size]
    return "auc" if labels.max() <= 1 and (rebuilds or (size == 1 and is_real)) else "top1"


BESIDE = {"iou": ("pixels",), "map50": ("map",), "error": ("perplexity",)}
"""What is told besides a measure. Of two classes AUC and F1 are."""


def beside(metric: Metric, judged: Judged) -> tuple[Metric, ...]:
    """The measures that are told besides."""
    labels = judged.labels
    two = labels is not None and labels.ndim == 1 and labels.dtype.kind != "f" and labels.max() == 1
    more = ("auc", "f1") if two and metric.name in ("top1", "auc") and names_classes(judged, 1) else ()
    return tuple(METRICS[name] for name in (*BESIDE.get(metric.name, ()), *more) if name != metric.name)


def classes(outputs: Sequence[Outputs], names: Sequence[str]) -> Array:
    """The class of each sample: the first output if that is one integer, else its largest entry (-1 of nothing)."""
    arrays = [o[names[0]].reshape(-1) for o in outputs]
    return np.array([_class(a) for a in arrays])


def _class(scores: Array) -> int:
    if scores.size == 1:
        return int(scores[0]) if scores.dtype.kind in "iu" else int(scores[0] > 0.5)
    return int(scores.argmax()) if scores.size else -1


def names_classes(judged: Judged, least: int = 2) -> bool:
    """Whether the first output is a vector of `least` scores or more: no map, and no reconstruction of an input.

    Or it is one integer.
    """
    scores = next(iter(judged.reference[0].values()))
    inputs = {array.size for array in judged.inputs[0].values()} if judged.inputs else set()
    if scores.size == 1 and scores.dtype.kind in "iu":
        return True
    return least <= scores.size == max(scores.shape, default=1) and scores.size not in inputs


def _scores(judged: Judged) -> Array:
    """Samples x classes: the first output that is more than a class."""
    for name in judged.names:
        rows = [o[name].reshape(-1) for o in judged.outputs]
        if rows[0].dtype.kind == "f" and len({len(row) for row in rows}) == 1:
            return np.stack(rows)
    raise UsageError("this metric needs an output with a score for each class", "none")


def _right(judged: Judged, k: int) -> Array:
    """Of each sample, whether its label is among the k highest scores (the first of equal ones is the highest)."""
    labels = _labels(judged)
    if k == 1:
        best = classes(judged.outputs, judged.names)[:, None]
    else:
        best = np.argsort(-_scores(judged), axis=1, kind="stable")[:, :k]
    found: Array = (best == labels[:, None]).any(1)
    return found


def chance(metric: Metric, judged: Judged) -> float:
    """By how much a share may differ from the reference's by chance: half of the interval of 95 % for paired samples.

    Only samples that one of both gets right say anything. 0 of metrics that are no share of samples.
    """
    if metric.right is None:
        return 0.0
    found, wanted = (metric.right(replace(judged, outputs=o)) for o in (judged.outputs, judged.reference))
    return STANDARD_ERRORS * float(np.std(found.astype(float) - wanted)) / math.sqrt(len(found))


def _auc(judged: Judged) -> float:
    """Area under the ROC curve; of more than two classes the mean over each against the others.

    Two classes: by the score of class 1, which of two scores is their difference, and of an output in the input's
    shape (a reconstruction) its mean squared error, with label 1 for what is not normal.
    """
    labels, scores = _labels(judged), _scores(judged)
    if scores.shape[1] <= 2:
        return area_under_curve(labels == 1, scores[:, -1] - scores[:, 0] * (scores.shape[1] == 2))
    errors = _reconstruction_errors(judged, scores)
    if errors is not None and labels.max() <= 1:
        return area_under_curve(labels == 1, errors)
    present = np.unique(labels)
    return float(np.mean([area_under_curve(labels == c, scores[:, c]) for c in present]))


def _f1(judged: Judged) -> float:
    """2 TP ÷ (2 TP + FP + FN) of class 1; of more than two classes the mean over those that occur."""
    labels, found = _labels(judged), classes(judged.outputs, judged.names)
    present = [1] if labels.max() <= 1 else [int(c) for c in np.unique(labels)]
    scores = []
    for number in present:
        right = int(((labels == number) & (found == number)).sum())
        named = int((labels == number).sum()) + int((found == number).sum())
        scores.append(2 * right / named if named else 0.0)
    return float(np.mean(scores))


def _at_positions(function: Callable[[Sequence[Outputs], Array], float]) -> Callable[[Judged], float]:
    """A measure of outputs that name a class at each position."""
    return lambda judged: function(judged.outputs, _labels(judged, "a class at each position"))


def _wrong(outputs: Sequence[Outputs], labels: Array) -> float:
    return 1 - share_right(outputs, labels)


def _boxes(thresholds: Sequence[float], judged: Judged) -> float:
    return mean_average_precision(judged.outputs, _labels(judged, "boxes"), thresholds)


def _reconstruction_errors(judged: Judged, outputs: Array) -> Array | None:
    """Per sample, where the model's only input has as many elements as the output."""
    if not judged.inputs or len(judged.inputs[0]) != 1:
        return None
    inputs = np.stack([next(iter(sample.values())).reshape(-1) for sample in judged.inputs])
    if inputs.shape != outputs.shape:
        return None
    errors: Array = np.square(inputs.astype(np.float64) - outputs).mean(1)
    return errors


def area_under_curve(positive: Array, scores: Array) -> float:
    """The chance that a positive scores higher than a negative (equal: half), by ranks (Mann and Whitney)."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # from 1; equal scores share their mean rank
    p, n = int(positive.sum()), int((~positive).sum())
    if not p or not n:
        raise UsageError("the area under the curve needs samples of both kinds", f"{p} positive, {n} negative")
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * n))


# --------------------------------------------------------------------------------------------- by reference


def _flat(outputs: Sequence[Outputs], names: Sequence[str]) -> Array:
    return np.concatenate([o[name].reshape(-1).astype(np.float64) for o in outputs for name in names])


def _paired(outputs: Array, expected: Array) -> tuple[Array, Array]:
    """Return both arrays with numbers in place of NaN and infinities, but for errors that are infinite.

    NaN is like NaN, and an infinity like one of the same sign: both become 0. Where one element alone is finite, or
    both are infinite with different signs, the output becomes infinite and the expected element 0.
    """
    special = ~(np.isfinite(outputs) & np.isfinite(expected))
    if not special.any():
        return outputs, expected
    alike = (outputs == expected) | (np.isnan(outputs) & np.isnan(expected))
    return np.where(special, np.where(alike, 0.0, np.inf), outputs), np.where(special, 0.0, expected)


def _by_elements(function: Callable[[Array, Array], float]) -> Callable[[Judged], float]:
    """A measure of all outputs' elements and those of the reference."""

    def compute(judged: Judged) -> float:
        return function(_flat(judged.outputs, judged.names), _flat(judged.reference, judged.names))

    return compute


def sqnr_db(outputs: Array, expected: Array) -> float:
    """Return the signal-to-noise ratio 10 log10(Σ expected² ÷ Σ (outputs − expected)²) in dB; inf without noise."""
    outputs, expected = _paired(outputs, expected)
    with np.errstate(over="ignore"):
        noise, signal = float(np.square(outputs - expected).sum()), float(np.square(expected).sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


def cosine(outputs: Array, expected: Array) -> float:
    """Return the cosine of the angle between both; vectors of zeros are like each other alone."""
    outputs, expected = _paired(outputs, expected)
    if not np.isfinite(outputs).all():
        return 0.0
    lengths = float(np.linalg.norm(outputs)) * float(np.linalg.norm(expected))
    return float(outputs @ expected) / lengths if lengths else float(np.array_equal(outputs, expected))


def max_abs_error(outputs: Array, expected: Array) -> float:
    """Return the largest magnitude of a difference between elements; 0 for empty arrays."""
    return float(np.abs(np.subtract(*_paired(outputs, expected))).max(initial=0.0))


def _mean_squared(outputs: Array, expected: Array) -> float:
    return float(np.square(np.subtract(*_paired(outputs, expected))).mean()) if outputs.size else 0.0


def _mean_absolute(outputs: Array, expected: Array) -> float:
    return float(np.abs(np.subtract(*_paired(outputs, expected))).mean()) if outputs.size else 0.0


def _agrees(judged: Judged) -> Array:
    """Of each sample, whether both name the same class."""
    found: Array = classes(judged.outputs, judged.names) == classes(judged.reference, judged.names)
    return found


def _share(name: str, right: Callable[[Judged], Array], *, by_reference: bool = False) -> Metric:
    def compute(judged: Judged) -> float:
        return float(right(judged).mean())

    return Metric(name, TITLES[name], compute, "%", by_reference=by_reference, right=right)


def _metric(
    name: str, compute: Callable[[Judged], float], unit: str, *, lower: bool = False, by_reference: bool = False
) -> Metric:
    return Metric(name, TITLES[name], compute, unit, lower, by_reference)


def _referring(name: str, function: Callable[[Array, Array], float], unit: str, *, lower: bool) -> Metric:
    return Metric(name, TITLES[name], _by_elements(function), unit, lower, by_reference=True)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _share("top1", partial(_right, k=1)),
        _share("top5", partial(_right, k=5)),
        _metric("auc", _auc, "%"),
        _metric("f1", _f1, "%"),
        _metric("pixels", _at_positions(share_right), "%"),
        _metric("iou", _at_positions(mean_iou), "%"),
        _metric("error", _at_positions(_wrong), "%", lower=True),
        _metric("perplexity", _at_positions(perplexity), "", lower=True),
        _metric("map50", partial(_boxes, THRESHOLDS[:1]), "%"),
        _metric("map", partial(_boxes, THRESHOLDS), "%"),
        _referring("mse", _mean_squared, "", lower=True),
        _referring("mae", _mean_absolute, "", lower=True),
        _referring("cosine", cosine, "", lower=False),
        _referring("max_abs_error", max_abs_error, "", lower=True),
        _referring("sqnr", sqnr_db, "dB", lower=False),
        _share("agreement", _agrees, by_reference=True),
    )
}
