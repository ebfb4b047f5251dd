# SPDX-License-Identifier: Apache-2.0
"""examples/learning: digits that a network was not trained on, learned where it runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from device import OK, Device

LEARNING = Path(__file__).parents[2] / "examples" / "learning"
MAX_STEP_RATIO = 3
"""The instructions of inference that a step of the last layer may take."""


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    """The scripts of examples/learning."""
    monkeypatch.syspath_prepend(str(LEARNING))
    import learn

    yield learn
    for name in ("learn", "make_learning"):
        sys.modules.pop(name, None)


def test_the_device_learns_the_weights_that_numpy_learns(example, tmp_path: Path) -> None:
    data = np.load(LEARNING / "lesson.npz")
    device = Device(example.compiled("host"), tmp_path)
    for image, label in zip(data["image"], data["labels"], strict=True):
        status, _ = device.train(image[None], int(label), float(data["rate"]))
        assert status == OK
    import make_learning

    wanted = make_learning.learned(example.known_weights(), data["image"], data["labels"], float(data["rate"]))
    assert np.abs(wanted.w2[8:]).max() > 0.1
    np.testing.assert_allclose(device.learned("weights"), wanted.w2, atol=1e-5)
    np.testing.assert_allclose(device.learned("bias"), wanted.b2, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_it_learns_new_digits_and_keeps_the_known_ones(example, precision: str, tmp_path: Path) -> None:
    data, exam = np.load(LEARNING / "lesson.npz"), np.load(LEARNING / "exam.npz")
    model = example.compiled("host", precision)
    assert not any("float32 gradients" in note for note in model.report.notes)
    device = Device(model, tmp_path)

    def accuracies() -> tuple[float, float]:
        scores = [device.run(image[None]) for image in exam["image"]]
        return example.accuracies(scores, exam["labels"])

    known, new = accuracies()
    for image, label in zip(data["image"], data["labels"], strict=True):
        device.train(image[None], int(label), float(data["rate"]))
    later_known, later_new = accuracies()
    assert known > 0.95 and new == 0
    assert later_known > known - 0.05 and later_new > 0.75


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["rp2040", "nrf52840", "corstone300"])
def test_targets_learn_as_the_host_does(example, board: str) -> None:
    data = np.load(LEARNING / "lesson.npz")
    samples = example.lessons(data["image"][:40], data["labels"][:40], float(data["rate"]))
    outputs = [example.compiled(b).simulate(samples, measure=False).outputs for b in (board, "host")]
    for here, there in zip(*outputs, strict=True):
        np.testing.assert_allclose(here["scores"], there["scores"], atol=1e-5)
        np.testing.assert_allclose(here["loss"], there["loss"], atol=1e-5)


@pytest.mark.qemu
def test_a_step_of_the_last_layer_takes_at_most_three_runs(example) -> None:
    data = np.load(LEARNING / "lesson.npz")
    model = example.compiled("nrf52840")
    step = model.simulate(example.lessons(data["image"][:1], data["labels"][:1], float(data["rate"]))).instructions
    run = model.simulate(example.runs(data["image"][:1])).instructions
    assert step is not None and run is not None
    assert step <= MAX_STEP_RATIO * run
