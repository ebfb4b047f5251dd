# SPDX-License-Identifier: Apache-2.0
"""Measures follow what outputs are: classes, pixels, sequences, boxes, reconstructions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score, jaccard_score, log_loss, roc_auc_score

from mcugen.core.errors import UsageError
from mcugen.evaluation.accuracy import compare
from mcugen.evaluation.boxes import overlaps
from mcugen.evaluation.metrics import METRICS, Judged
from mcugen.evaluation.samples import load_samples
from mcugen.hir.types import Array, DType
from mcugen.lir.program import Buffer, Endpoint, Space
from mcugen.measurement.evaluate import choose_metric

RANDOM = np.random.default_rng(8)


def endpoint(*shape: int, dtype: DType = DType.FLOAT32, name: str = "y") -> Endpoint:
    return Endpoint(name, shape, dtype, None, Buffer("", DType.FLOAT32, 0, Space.INPUT))


def compute(name: str, outputs: Array, labels: Array | None) -> float:
    """A metric of one output's array for each sample."""
    samples = [{"y": output} for output in outputs]
    return METRICS[name].compute(Judged(samples, samples, labels=labels))


# ------------------------------------------------------------------------------------------------ which one


@pytest.mark.parametrize(
    ("labels", "output", "given", "expected"),
    [
        (None, endpoint(1, 10), endpoint(1, 64), "sqnr"),
        (np.array([0, 3]), endpoint(1, 10), endpoint(1, 64), "top1"),
        (np.array([0, 1]), endpoint(1, 2), endpoint(1, 64), "top1"),
        (np.array([0, 1]), endpoint(1, 1), endpoint(1, 64), "auc"),
        (np.array([0, 1]), endpoint(1, dtype=DType.INT64), endpoint(1, 64), "top1"),
        (np.array([0, 1]), endpoint(1, 64), endpoint(1, 64), "auc"),
        (np.zeros((2, 8, 8), int), endpoint(1, 3, 8, 8), endpoint(1, 3, 8, 8), "iou"),
        (np.zeros((2, 8), int), endpoint(1, 8, 30), endpoint(1, 8), "error"),
        (np.zeros((2, 4, 5)), endpoint(1, 100, 4), endpoint(1, 3, 8, 8), "map50"),
    ],
)
def test_the_measure_suits_labels_and_outputs(
    labels: Array | None, output: Endpoint, given: Endpoint, expected: str
) -> None:
    assert choose_metric("", labels, [output], [given]).name == expected


def test_two_classes_have_auc_and_f1_besides() -> None:
    scores, labels = RANDOM.random((60, 2)), RANDOM.integers(0, 2, 60)
    samples = [{"y": row[None]} for row in scores]
    found = compare([endpoint(1, 2)], samples, samples, labels, metric=METRICS["top1"])
    told = {measure.metric: measure.target for measure in found.beside}
    assert told["auc"] == pytest.approx(roc_auc_score(labels, scores[:, 1] - scores[:, 0]))
    assert told["f1"] == pytest.approx(f1_score(labels, scores.argmax(1)))
    assert found.agreement == 1


def test_outputs_that_are_no_classes_do_not_agree_on_one() -> None:
    image = [{"y": np.ones((1, 3, 4, 4), np.float32)}]
    assert compare([endpoint(1, 3, 4, 4)], image, image, None).agreement is None
    rebuilt = [{"y": np.ones((1, 5), np.float32)}]
    assert compare([endpoint(1, 5)], rebuilt, rebuilt, None, inputs=[{"x": np.ones((1, 5))}]).agreement is None
    assert compare([endpoint(1, 5)], rebuilt, rebuilt, None, inputs=[{"x": np.ones((1, 9))}]).agreement == 1


# ------------------------------------------------------------------------------------------------ classes


@pytest.mark.parametrize("classes", [2, 4])
def test_f1(classes: int) -> None:
    scores, labels = RANDOM.random((90, 1, classes)), RANDOM.integers(0, classes, 90)
    wanted = f1_score(labels, scores[:, 0].argmax(1), average="binary" if classes == 2 else "macro")
    assert compute("f1", scores, labels) == pytest.approx(wanted)


def test_one_score_above_a_half_is_class_1() -> None:
    assert compute("top1", np.array([[[0.7]], [[0.2]], [[0.6]]]), np.array([1, 0, 0])) == pytest.approx(2 / 3)


# ------------------------------------------------------------------------------------------------ positions


@pytest.mark.parametrize("channels_first", [True, False])
def test_pixels_and_iou(channels_first: bool) -> None:
    scores, labels = RANDOM.random((6, 5, 7, 3)), RANDOM.integers(0, 3, (6, 5, 7))
    labels[0, 0, :4] = 255, 255, -1, 1
    counts = (labels >= 0) & (labels != 255)
    found = scores.argmax(-1)[counts]
    outputs = (np.moveaxis(scores, -1, 1) if channels_first else scores)[:, None]
    assert compute("pixels", outputs, labels) == pytest.approx((found == labels[counts]).mean())
    assert compute("iou", outputs, labels) == pytest.approx(jaccard_score(labels[counts], found, average="macro"))


def test_pixels_of_one_score_and_of_class_numbers() -> None:
    labels = RANDOM.integers(0, 2, (3, 4, 4))
    assert compute("pixels", np.where(labels, 0.8, 0.3)[:, None, None], labels) == 1
    assert compute("iou", labels[:, None].astype(np.uint8), labels) == 1
    assert compute("iou", (1 - labels)[:, None], labels) == 0


@pytest.mark.parametrize("kind", ["logits", "probabilities", "logarithms"])
def test_error_and_perplexity(kind: str) -> None:
    logits, labels = RANDOM.standard_normal((4, 1, 9, 6)), RANDOM.integers(0, 6, (4, 9))
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    outputs = {"logits": logits, "probabilities": chances, "logarithms": np.log(chances)}[kind]
    wanted = np.exp(log_loss(labels.reshape(-1), chances.reshape(-1, 6), labels=np.arange(6)))
    assert compute("perplexity", outputs, labels) == pytest.approx(wanted)
    assert compute("error", outputs, labels) == pytest.approx((logits[:, 0].argmax(-1) != labels).mean())


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="resize the labels"):
        compute("iou", np.zeros((1, 1, 3, 8, 8)), np.zeros((1, 4, 4), int))
    with pytest.raises(UsageError, match="below 3"):
        compute("iou", np.zeros((1, 1, 3, 4, 4)), np.full((1, 4, 4), 3))
    with pytest.raises(UsageError, match="one class number a sample"):
        compute("top1", np.zeros((1, 1, 3)), np.zeros((1, 4), int))
    with pytest.raises(UsageError, match="a score for each class"):
        compute("perplexity", np.zeros((1, 1, 4)), np.zeros((1, 4), int))


# ------------------------------------------------------------------------------------------------ boxes

TRUTH = np.array(
    [
        [[1, 0, 0, 10, 10], [2, 20, 20, 30, 30]],
        [[1, 0, 0, 10, 10], [-1, 0, 0, 0, 0]],
    ],
    np.float64,
)


def detections(*rows: tuple[float, ...]) -> dict[str, Array]:
    """One sample's boxes and scores: corners, class, score."""
    boxes, scores = np.zeros((1, len(rows), 4)), np.zeros((1, len(rows), 3))
    for i, (*corners, number, score) in enumerate(rows):
        boxes[0, i], scores[0, i, int(number)] = corners, score
    return {"scores": scores, "boxes": boxes}


def mean_precision(name: str, outputs: list[dict[str, Array]]) -> float:
    return METRICS[name].compute(Judged(outputs, outputs, labels=TRUTH))


def test_overlap() -> None:
    found = overlaps(np.array([[0.0, 0, 10, 10]]), np.array([[0.0, 0, 10, 10], [5, 0, 15, 10], [20, 20, 30, 30]]))
    assert found.tolist() == [[1.0, pytest.approx(1 / 3), 0.0]]


def test_boxes_that_are_all_found() -> None:
    outputs = [detections((0, 0, 10, 10, 1, 0.9), (20, 20, 30, 30, 2, 0.6)), detections((0, 0, 10, 10, 1, 0.7))]
    assert mean_precision("map50", outputs) == 1
    assert mean_precision("map", outputs) == 1


def test_precision_falls_by_what_is_wrong_and_what_is_missed() -> None:
    """Class 1 by falling score: right, wrong, right: precision 1 up to half of the recall, then 2/3. Class 2: none."""
    outputs = [
        detections((0, 0, 10, 10, 1, 0.9), (40, 40, 50, 50, 1, 0.8), (20, 20, 30, 30, 0, 0.9)),
        detections((0, 0, 10, 10, 1, 0.5)),
    ]
    assert mean_precision("map50", outputs) == pytest.approx((0.5 * 1 + 0.5 * 2 / 3 + 0) / 2)


def test_boxes_of_one_object_count_once_and_loose_ones_for_low_thresholds() -> None:
    outputs = [
        detections((0, 0, 10, 10, 1, 0.9), (0, 0, 10, 9, 1, 0.8), (20, 20, 30, 28, 2, 0.9)),
        detections((0, 0, 10, 10, 1, 0.9)),
    ]
    assert mean_precision("map50", outputs) == 1
    assert mean_precision("map", outputs) == pytest.approx((1 + 0.7) / 2)  # an IoU of 0.8 is enough for seven of ten


def test_rows_of_corners_score_and_class() -> None:
    rows = [[0, 0, 10, 10, 0.9, 1], [20, 20, 30, 30, 0.8, 2], [0, 0, 0, 0, 0, 0]]
    outputs = [{"y": np.array([rows])}, {"y": np.array([rows[:1] + [rows[2]] * 2])}]
    assert mean_precision("map50", outputs) == 1
    with pytest.raises(UsageError, match="must be boxes"):
        mean_precision("map50", [{"y": np.zeros((1, 4, 7))}] * 2)


# ------------------------------------------------------------------------------------------------ files


def test_files_have_labels_of_each_kind(tmp_path: Path) -> None:
    x, file = np.zeros((2, 4), np.float32), tmp_path / "x.npz"
    for arrays in ({"labels": np.zeros((2, 3, 3), int)}, {"boxes": TRUTH}):
        np.savez(file, x=x, **arrays)
        labels = load_samples(file, [endpoint(1, 4, name="x")]).labels
        assert labels is not None
        assert np.array_equal(labels, next(iter(arrays.values())))
    for arrays in ({"labels": np.zeros((3, 3), int)}, {"boxes": TRUTH[:1]}, {"boxes": TRUTH[:, :, :4]}):
        np.savez(file, x=x, **arrays)
        with pytest.raises(UsageError, match="must hold"):
            load_samples(file, [endpoint(1, 4, name="x")])
