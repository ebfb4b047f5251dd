# SPDX-License-Identifier: Apache-2.0
"""Metrics of outputs: against labels, inputs, or the outputs of a reference."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.core.options import METRIC_TITLES as TITLES
from mcugen.evaluation.boxes import MAP_IOU_THRESHOLDS, mean_average_precision
from mcugen.evaluation.positions import mean_iou, perplexity, share_right
from mcugen.hir.types import Array
from mcugen.lir.program import Endpoint

Outputs = Mapping[str, Array]

INFINITE_ERROR_DB = -999.0
"""SQNR in dB that reports show for an infinite error, or if the reference consists of zeros only."""

STANDARD_ERRORS = 1.96
"""Half-width of a 95 % confidence interval in standard errors."""


@dataclass(frozen=True)
class Judged:
    """The results that a metric is computed from.

    Attributes:
        outputs: Outputs of each sample by name; quantized tensors are dequantized.
        reference: Outputs of the reference for each sample.
        inputs: Inputs of each sample.
        labels: Labels by sample: a class number, a class number for each position, or float rows of boxes
            (mcugen.evaluation.boxes.TRUTH); None if unknown.
    """

    outputs: Sequence[Outputs]
    reference: Sequence[Outputs]
    inputs: Sequence[Outputs] = ()
    labels: Array | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of the outputs in the order of the first sample."""
        return list(self.outputs[0])


@dataclass(frozen=True)
class Metric:
    """A metric of accuracy.

    Attributes:
        name: Name on the command line.
        title: Name in reports.
        compute: Returns the value; for the unit "%" it is a share from 0 to 1.
        unit: "%", "dB", or "" for the unit of the outputs.
        lower_is_better: Whether lower values are better.
        by_reference: Whether the metric compares outputs with the reference, so that the reference has no value itself.
        right: Returns for each sample whether it is correct; None if the metric is not the share of correct samples.
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
        """Return whether the metric has a value for the reference itself, from which a quantized model may drop."""
        return not self.by_reference or self.right is not None

    def show(self, value: float | None) -> str:
        """Return a value as text with its unit; "exact" for None or infinity, which mean no error."""
        if value is None or not math.isfinite(value):
            return "exact"
        if self.unit == "%":
            return f"{100 * value:.2f} %"
        return f"{value:.2f} dB" if self.unit == "dB" else f"{value:.4g}"

    def loss(self, value: float, expected: float) -> float:
        """Return by how much `value` is worse than `expected`: percentage points for shares, else the metric's unit."""
        worse = value - expected if self.lower_is_better else expected - value
        return 100 * worse if self.unit == "%" else worse


def bounded(metric: Metric, value: float) -> float | None:
    """Return a metric's value as a finite number for JSON; None for NaN, or for infinity, which means no error."""
    if math.isnan(value) or (value == math.inf and not metric.lower_is_better):
        return None
    if metric.unit == "dB":
        return max(value, INFINITE_ERROR_DB)
    return min(max(value, -sys.float_info.max), sys.float_info.max)


def find_metric(name: str) -> Metric:
    """Return a metric of METRICS.

    Raises:
        UsageError: No metric has that name.
    """
    if name not in METRICS:
        remedy = f"one of: {', '.join(METRICS)}; or your own: FILE.py:FUNCTION"
        raise UsageError("--metric must be known", f"'{name}'", remedy)
    return METRICS[name]


def check_metric(name: str) -> None:
    """Check the name of a metric.

    Raises:
        UsageError: The name is neither "", nor a metric of METRICS, nor a function FILE.py:FUNCTION.
    """
    if name and ":" not in name:
        find_metric(name)


def described(name: str) -> Metric:
    """Return a metric by name, to format values with.

    If the name is a user's function (FILE.py:FUNCTION), the metric cannot compute values.
    """
    return METRICS.get(name) or own_metric(name, lambda _outputs, _labels: math.nan)


def own_metric(name: str, function: Callable[[dict[str, Array], Array | None], float]) -> Metric:
    """Return a metric that calls a user's function.

    Args:
        name: The name of the metric: FILE.py:FUNCTION.
        function: Returns a number, given all outputs by name (leading axis: samples) and the labels. Higher is better
            unless the function has a true attribute `lower_is_better`.
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
    """Return the labels.

    Raises:
        UsageError: There are no labels, or labels of another kind than `what`.
    """
    if judged.labels is None:
        raise UsageError("this metric needs labels", "samples without", "add an array `labels`, or take --metric sqnr")
    kind = judged.labels.dtype.kind
    kinds = {"one class number a sample": judged.labels.ndim == 1, "a class at each position": judged.labels.ndim > 1}
    if not (kind == "f" if what == "boxes" else kind != "f" and kinds[what]):
        raise UsageError(f"this metric needs labels: {what}", f"{judged.labels.dtype} of {judged.labels.shape}")
    return judged.labels


def label_metric(labels: Array | None, output: Endpoint, inputs: Sequence[Endpoint]) -> str:
    """Return the name of the default metric for labels of this kind and the model's first output.

    Args:
        labels: The labels; None if samples have none.
        output: The first output.
        inputs: The inputs of the model, by which reconstructions are recognized.
    """
    if labels is None:
        return "sqnr"
    if labels.dtype.kind == "f":
        return "map50"
    if labels.ndim > 1:
        return "iou" if labels.ndim > 2 else "error"
    size, is_real = math.prod(output.shape), output.dtype.is_float or output.quant is not None
    rebuilds = [math.prod(endpoint.shape) for endpoint in inputs] == [size]
    return "auc" if labels.max() <= 1 and (rebuilds or (size == 1 and is_real)) else "top1"


COMPANION_METRICS = {"iou": ("pixels",), "map50": ("map",), "error": ("perplexity",)}
"""Names of the metrics that are reported in addition to a main metric, by the name of the main metric."""


def companion_metrics(metric: Metric, judged: Judged) -> tuple[Metric, ...]:
    """Return the metrics that are reported in addition to the main metric (COMPANION_METRICS).

    With two classes, AUC and F1 are added.
    """
    labels = judged.labels
    two = labels is not None and labels.ndim == 1 and labels.dtype.kind != "f" and labels.max() == 1
    more = ("auc", "f1") if two and metric.name in ("top1", "auc") and names_classes(judged, 1) else ()
    return tuple(METRICS[name] for name in (*COMPANION_METRICS.get(metric.name, ()), *more) if name != metric.name)


def classes(outputs: Sequence[Outputs], names: Sequence[str]) -> Array:
    """Return the predicted class of each sample, from its first output.

    A single integer is the class itself. A single float means class 1 if above 0.5, else class 0. Otherwise the class
    is the index of the largest element; -1 if there are no elements.

    Args:
        outputs: The outputs of each sample, by name.
        names: Names of the outputs; the first one gives the class.
    """
    arrays = [o[names[0]].reshape(-1) for o in outputs]
    return np.array([_class(a) for a in arrays])


def _class(scores: Array) -> int:
    if scores.size == 1:
        return int(scores[0]) if scores.dtype.kind in "iu" else int(scores[0] > 0.5)
    return int(scores.argmax()) if scores.size else -1


def names_classes(judged: Judged, min_scores: int = 2) -> bool:
    """Return whether the first output gives a class: it is one integer, or a vector of at least `min_scores` scores.

    Maps, and outputs with as many elements as an input (reconstructions), do not give classes.
    """
    scores = next(iter(judged.reference[0].values()))
    inputs = {array.size for array in judged.inputs[0].values()} if judged.inputs else set()
    if scores.size == 1 and scores.dtype.kind in "iu":
        return True
    return min_scores <= scores.size == max(scores.shape, default=1) and scores.size not in inputs


def _scores(judged: Judged) -> Array:
    """Return the scores, samples x classes, of the first real output."""
    for name in judged.names:
        rows = [o[name].reshape(-1) for o in judged.outputs]
        if rows[0].dtype.kind == "f" and len({len(row) for row in rows}) == 1:
            return np.stack(rows)
    raise UsageError("this metric needs an output with a score for each class", "none")


def _right(judged: Judged, k: int) -> Array:
    """Return whether each sample's label is among the k highest scores (the first of equal ones is the highest)."""
    labels = _labels(judged)
    if k == 1:
        best = classes(judged.outputs, judged.names)[:, None]
    else:
        best = np.argsort(-_scores(judged), axis=1, kind="stable")[:, :k]
    is_right: Array = (best == labels[:, None]).any(1)
    return is_right


def chance(metric: Metric, judged: Judged) -> float:
    """Return by how much a share of correct samples may differ from the reference's by chance.

    This is the half-width of the 95 % confidence interval of the paired difference, as a share from 0 to 1.

    Args:
        metric: The metric. One that is not a share of correct samples gives 0.
        judged: The outputs of the model and the reference, and the labels.
    """
    if metric.right is None:
        return 0.0
    is_right, reference_is_right = (
        metric.right(replace(judged, outputs=o)) for o in (judged.outputs, judged.reference)
    )
    return STANDARD_ERRORS * float(np.std(is_right.astype(float) - reference_is_right)) / math.sqrt(len(is_right))


def _auc(judged: Judged) -> float:
    """Return the area under the ROC curve; of more than two classes the mean over each against the others.

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
    """Return 2 TP ÷ (2 TP + FP + FN) of class 1; of more than two classes the mean over those that occur."""
    labels, predicted = _labels(judged), classes(judged.outputs, judged.names)
    present = [1] if labels.max() <= 1 else [int(c) for c in np.unique(labels)]
    scores = []
    for number in present:
        right = int(((labels == number) & (predicted == number)).sum())
        named = int((labels == number).sum()) + int((predicted == number).sum())
        scores.append(2 * right / named if named else 0.0)
    return float(np.mean(scores))


def _at_positions(function: Callable[[Sequence[Outputs], Array], float]) -> Callable[[Judged], float]:
    """Return a metric's function for outputs that name a class at each position."""
    return lambda judged: function(judged.outputs, _labels(judged, "a class at each position"))


def _wrong(outputs: Sequence[Outputs], labels: Array) -> float:
    return 1 - share_right(outputs, labels)


def _boxes(thresholds: Sequence[float], judged: Judged) -> float:
    return mean_average_precision(judged.outputs, _labels(judged, "boxes"), thresholds)


def _reconstruction_errors(judged: Judged, outputs: Array) -> Array | None:
    """Return the mean squared errors by sample, if the model's only input has as many elements as the output."""
    if not judged.inputs or len(judged.inputs[0]) != 1:
        return None
    inputs = np.stack([next(iter(sample.values())).reshape(-1) for sample in judged.inputs])
    if inputs.shape != outputs.shape:
        return None
    errors: Array = np.square(inputs.astype(np.float64) - outputs).mean(1)
    return errors


def area_under_curve(positive: Array, scores: Array) -> float:
    """Return the area under the ROC curve: the probability that a positive sample scores higher than a negative one.

    Equal scores count half. It is computed by ranks (Mann and Whitney).

    Args:
        positive: Whether each sample is positive.
        scores: Score of each sample.

    Raises:
        UsageError: All samples are of one kind.
    """
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
    """Return a metric's function that compares all elements of outputs with those of the reference."""

    def compute(judged: Judged) -> float:
        return function(_flat(judged.outputs, judged.names), _flat(judged.reference, judged.names))

    return compute


def sqnr_db(outputs: Array, expected: Array) -> float:
    """Return the signal-to-noise ratio 10·log10(Σ expected² ÷ Σ (outputs − expected)²) in dB.

    It is infinity without noise. It is minus infinity if `expected` is zero, or if the noise is infinite.
    """
    outputs, expected = _paired(outputs, expected)
    with np.errstate(over="ignore"):
        noise, signal = float(np.square(outputs - expected).sum()), float(np.square(expected).sum())
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


def cosine(outputs: Array, expected: Array) -> float:
    """Return the cosine similarity of both arrays; 1 if both are zero, 0 if only one is."""
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
    """Return for each sample whether outputs and reference name the same class."""
    agrees: Array = classes(judged.outputs, judged.names) == classes(judged.reference, judged.names)
    return agrees


def _share(name: str, right: Callable[[Judged], Array], *, by_reference: bool = False) -> Metric:
    def compute(judged: Judged) -> float:
        return float(right(judged).mean())

    return Metric(name, TITLES[name], compute, "%", by_reference=by_reference, right=right)


def _metric(name: str, compute: Callable[[Judged], float], unit: str, *, lower: bool = False) -> Metric:
    return Metric(name, TITLES[name], compute, unit, lower)


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
        _metric("map50", partial(_boxes, MAP_IOU_THRESHOLDS[:1]), "%"),
        _metric("map", partial(_boxes, MAP_IOU_THRESHOLDS), "%"),
        _referring("mse", _mean_squared, "", lower=True),
        _referring("mae", _mean_absolute, "", lower=True),
        _referring("cosine", cosine, "", lower=False),
        _referring("max_abs_error", max_abs_error, "", lower=True),
        _referring("sqnr", sqnr_db, "dB", lower=False),
        _share("agreement", _agrees, by_reference=True),
    )
}
"""Metrics by their name on the command line."""
