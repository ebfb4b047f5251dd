# SPDX-License-Identifier: Apache-2.0
"""`mcugen report --lesson`: what a model learns, and what that takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import mcugen

from mcugen import Compilation, CompileOptions
from mcugen.errors import UsageError
from mcugen.lessons import Teaching
from mcugen.linked.linking import Linking
from mcugen.options import Training
from mcugen.report.figures import Report
from mcugen.tasks import Judging

LEARNING = Path(__file__).parents[2] / "examples" / "learning"
MODEL = LEARNING / "learning.onnx"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A lesson and an examination, shorter than the example's."""
    data, lesson, exam = np.load(LEARNING / "lesson.npz"), tmp_path / "lesson.npz", tmp_path / "exam.npz"
    np.savez(lesson, image=data["images"][:300], labels=data["labels"][:300])
    np.savez(exam, image=data["eval_images"][:60], labels=data["eval_labels"][:60])
    return lesson, exam


def test_accuracy_rises_along_the_steps(files: tuple[Path, Path]) -> None:
    lesson, exam = files
    net = Compilation(MODEL, "host", CompileOptions(training=Training("last:1")), judging=Judging(data=exam))
    learned = net.learned(Teaching(lesson, 0.05, epochs=2))
    assert [e.steps for e in learned.examinations] == [0, 120, 240, 360, 480, 600]
    assert learned.examinations[-1].accuracy > learned.examinations[0].accuracy + 0.05
    losses = [e.loss for e in learned.examinations[1:]]
    assert losses[-1] < losses[0]
    assert learned.state == net.compiled.program.state_size


@pytest.mark.qemu
def test_the_command_tells_what_a_step_takes(files: tuple[Path, Path], tmp_path: Path) -> None:
    lesson, exam = files
    page = tmp_path / "page.html"
    taught = ["--train", "last:1", "--lesson", lesson, "--rate", "0.05", "--data", exam]
    done = mcugen("report", MODEL, "--board", "nrf52840", *taught, "--json", "-", "--html", page, "--quiet")
    assert not done.code, done.err
    report = json.loads(done.out)
    learning = report["learning"]
    assert report["instructions"] < learning["instructions"] < 3 * report["instructions"]
    assert learning["stack"] > 0 and len(learning["examinations"]) == 6
    ran = [layer["instructions"] is not None for layer in report["layers"]]
    assert ran == sorted(ran, reverse=True) and not all(ran)
    assert '"Accuracy while it learns"' in page.read_text()


@pytest.mark.parametrize(
    ("training", "told"),
    [(None, "--lesson is for models that learn"), (Training("last:1", "mse"), "--lesson teaches classes")],
)
def test_lessons_are_for_models_that_learn_classes(
    files: tuple[Path, Path], training: Training | None, told: str
) -> None:
    lesson, exam = files
    net = Compilation(MODEL, "host", CompileOptions(training=training), judging=Judging(data=exam))
    with pytest.raises(UsageError, match=told):
        net.learned(Teaching(lesson))


def test_a_report_tells_nothing_of_learning_without_a_lesson() -> None:
    report = Compilation(MODEL, "host", CompileOptions(training=Training("last:1"))).report()
    assert isinstance(report, Report) and report.learning is None


def test_models_of_a_firmware_do_not_learn() -> None:
    net = Compilation(MODEL, "nrf52840", CompileOptions(training=Training("last:1")))
    with pytest.raises(UsageError, match="do not learn yet"):
        Linking([net, Compilation(MODEL, "nrf52840", CompileOptions(name="other"))], "both").models  # noqa: B018


@pytest.mark.parametrize("options", [{"steps": True}, {"external_io": True}, {"updatable": True}, {"cores": 2}])
def test_what_does_not_go_together_is_refused(options: dict[str, bool]) -> None:
    board = "rp2040" if "cores" in options else "host"
    with pytest.raises(UsageError, match="--train does not go together"):
        _ = Compilation(MODEL, board, CompileOptions(training=Training("last:1"), **options)).compiled


@pytest.mark.parametrize("rate", [0.0, float("nan"), float("inf")])
def test_rates_are_positive(files: tuple[Path, Path], rate: float) -> None:
    lesson, exam = files
    net = Compilation(MODEL, "host", CompileOptions(training=Training("last:1")), judging=Judging(data=exam))
    with pytest.raises(UsageError, match="--rate must be"):
        net.learned(Teaching(lesson, rate))
