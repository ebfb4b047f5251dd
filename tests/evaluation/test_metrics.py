# SPDX-License-Identifier: Apache-2.0
"""Measures of outputs, held to scikit-learn and to formulas."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, top_k_accuracy_score

from mcugen.core import options
from mcugen.core.errors import UsageError
from mcugen.evaluation.metrics import METRICS, Judged, bounded, find_metric
from mcugen.hir.types import Array
from mcugen.measurement.evaluate import choose_metric

RANDOM = np.random.default_rng(3)


def rows(name: str, array: Array | None) -> list[dict[str, Array]]:
    return [] if array is None else [{name: row[None]} for row in array]


def judged(
    outputs: Array, reference: Array | None = None, labels: Array | None = None, inputs: Array | None = None
) -> Judged:
    """A row a sample; the reference is the outputs themselves unless given."""
    return Judged(rows("y", outputs), rows("y", outputs if reference is None else reference), rows("x", inputs), labels)


def probabilities(count: int, classes: int) -> Array:
    scores = np.exp(RANDOM.standard_normal((count, classes)))
    return scores / scores.sum(1, keepdims=True)


def test_all_have_titles_that_the_command_line_knows():
    assert {name: metric.title for name, metric in METRICS.items()} == options.METRIC_TITLES


@pytest.mark.parametrize(("name", "k"), [("top1", 1), ("top5", 5)])
def test_top_k(name: str, k: int):
    scores, labels = probabilities(200, 12), RANDOM.integers(0, 12, 200)
    wanted = top_k_accuracy_score(labels, scores, k=k, labels=np.arange(12))
    assert METRICS[name].compute(judged(scores, labels=labels)) == pytest.approx(wanted)
    assert 0 < wanted < 1


def test_an_integer_output_is_the_class_and_the_next_one_has_the_scores():
    scores, labels = probabilities(50, 12), RANDOM.integers(0, 12, 50)
    outputs = [{"label": np.array([7]), "scores": row[None]} for row in scores]
    found = Judged(outputs, outputs, labels=labels)
    assert METRICS["top1"].compute(found) == pytest.approx((labels == 7).mean())
    wanted = top_k_accuracy_score(labels, scores, k=5, labels=np.arange(12))
    assert METRICS["top5"].compute(found) == pytest.approx(wanted)


@pytest.mark.parametrize("digits", [1, 12])
def test_auc_of_one_score(digits: int):
    """One digit: many scores are equal."""
    scores, labels = RANDOM.random(300).round(digits), RANDOM.integers(0, 2, 300)
    scores[labels == 1] += 0.2
    found = METRICS["auc"].compute(judged(scores[:, None], labels=labels))
    assert found == pytest.approx(roc_auc_score(labels, scores)) and 0.5 < found < 0.9


def test_auc_of_two_scores_is_that_of_their_difference():
    logits, labels = RANDOM.standard_normal((300, 2)), RANDOM.integers(0, 2, 300)
    found = METRICS["auc"].compute(judged(logits, labels=labels))
    assert found == pytest.approx(roc_auc_score(labels, logits[:, 1] - logits[:, 0]))
    assert found != pytest.approx(roc_auc_score(labels, logits[:, 1]))


def test_auc_of_several_classes():
    scores, labels = probabilities(300, 4), RANDOM.integers(0, 4, 300)
    wanted = roc_auc_score(labels, scores, multi_class="ovr", average="macro")
    assert METRICS["auc"].compute(judged(scores, labels=labels)) == pytest.approx(wanted)


def test_auc_of_reconstructions_ranks_their_errors():
    inputs, labels = RANDOM.standard_normal((100, 6)), RANDOM.integers(0, 2, 100)
    outputs = inputs + RANDOM.standard_normal((100, 6)) * (0.5 + 0.4 * labels[:, None])
    found = METRICS["auc"].compute(judged(outputs, labels=labels, inputs=inputs))
    assert found == pytest.approx(roc_auc_score(labels, np.square(outputs - inputs).mean(1))) and found > 0.7


def test_labels_are_needed():
    for name in ("top1", "top5", "auc"):
        with pytest.raises(UsageError, match="needs labels"):
            METRICS[name].compute(judged(probabilities(3, 6)))


def test_auc_of_one_kind_is_refused():
    with pytest.raises(UsageError, match="both kinds"):
        METRICS["auc"].compute(judged(RANDOM.random((5, 1)), labels=np.ones(5, int)))


def test_errors_against_the_reference():
    reference = np.array([[3.0, 0.0], [0.0, 4.0]])
    found = judged(np.array([[3.5, 0.0], [0.0, 3.5]]), reference)
    wanted = {
        "mse": 0.125,
        "mae": 0.25,
        "max_abs_error": 0.5,
        "sqnr": 10 * math.log10(25 / 0.5),
        "cosine": (3.5 * 3 + 3.5 * 4) / (5 * math.hypot(3.5, 3.5)),
        "agreement": 1.0,
    }
    assert {name: METRICS[name].compute(found) for name in wanted} == pytest.approx(wanted)


def test_all_outputs_count():
    reference = [{"a": np.ones((1, 2)), "b": np.full((1, 2), 3.0)}]
    outputs = [{"a": np.ones((1, 2)), "b": np.full((1, 2), 5.0)}]
    assert METRICS["mse"].compute(Judged(outputs, reference)) == 2
    assert METRICS["max_abs_error"].compute(Judged(outputs, reference)) == 2


def test_without_error():
    same = judged(probabilities(3, 4))
    assert METRICS["sqnr"].compute(same) == math.inf
    assert METRICS["cosine"].compute(judged(np.zeros((2, 2)))) == 1
    assert METRICS["sqnr"].show(None) == "exact"


def test_what_is_better_and_how_it_is_shown():
    assert METRICS["top1"].loss(0.9, 0.95) == pytest.approx(5)
    assert METRICS["mse"].loss(3, 1) == 2
    assert METRICS["sqnr"].loss(30, 40) == 10
    assert [METRICS["top1"].show(0.875), METRICS["sqnr"].show(31.25)] == ["87.50 %", "31.25 dB"]


def test_unknown_metrics_name_the_known():
    with pytest.raises(UsageError, match="top1, top5, auc"):
        find_metric("top2")


def test_what_the_user_asks_for_is_taken():
    assert choose_metric("mae", np.zeros(2, int), (), ()).name == "mae"


def test_own_metric(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def spread(outputs, labels):\n    return outputs['y'].max() - outputs['y'].min() + labels.sum()\n"
        "spread.lower_is_better = True\nbroken = 3\n"
    )
    metric = choose_metric(f"{file}:spread", None, (), ())
    found = judged(np.array([[1.0, 2.0], [4.0, 8.0]]), labels=np.array([1, 1]))
    assert metric.compute(found) == 9 and metric.lower_is_better
    with pytest.raises(UsageError, match="must give a number"):
        metric.compute(judged(np.ones((1, 2))))
    with pytest.raises(UsageError, match="must be a function"):
        choose_metric(f"{file}:broken", None, (), ())
    with pytest.raises(UsageError, match="function 'absent'"):
        choose_metric(f"{file}:absent", None, (), ())


SPECIAL = (math.nan, math.inf, -math.inf, 1.0, 0.0)


@pytest.mark.parametrize("found", SPECIAL)
@pytest.mark.parametrize("wanted", SPECIAL)
@pytest.mark.parametrize("name", ["sqnr", "max_abs_error", "mse", "mae", "cosine"])
def test_numbers_that_are_not_finite_equal_themselves_alone(name: str, wanted: float, found: float):
    """Beside an element that is right; what is unlike is an infinite error, if one of both is not finite."""
    outputs, reference = ([{"y": np.float64([2.0, value])}] for value in (found, wanted))
    metric = METRICS[name]
    value = metric.compute(Judged(outputs, reference))
    both_nan = math.isnan(found) and math.isnan(wanted)
    if both_nan or found == wanted:
        assert value == pytest.approx({"sqnr": math.inf, "cosine": 1.0}.get(name, 0.0))
    elif not (math.isfinite(found) and math.isfinite(wanted)):
        assert value == {"sqnr": -math.inf, "cosine": 0.0}.get(name, math.inf)
    else:
        assert math.isfinite(value)
    told = bounded(metric, value)
    assert told is None or math.isfinite(told)
    assert (told is None) == (name == "sqnr" and (both_nan or found == wanted))
