# SPDX-License-Identifier: Apache-2.0
"""`mcugen report --lesson`: what a model learns, and what that takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import mcugen
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.core.errors import ConstraintError, DoesNotFitError, UsageError
from mcugen.core.options import CompileOptions, Training
from mcugen.deploy.linking.linking import Linking
from mcugen.driver.tasks import Judging, Teaching
from mcugen.reporting.figures import Report

LEARNING = Path(__file__).parents[2] / "examples" / "learning"
MODEL = LEARNING / "learning.onnx"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A lesson and an examination, shorter than the example's."""
    for name, count in (("lesson", 300), ("exam", 60)):
        data = np.load(LEARNING / f"{name}.npz")
        np.savez(tmp_path / f"{name}.npz", image=data["image"][:count], labels=data["labels"][:count])
    return tmp_path / "lesson.npz", tmp_path / "exam.npz"


def learning(layers: str, exam: Path, teaching: Teaching) -> Compilation:
    options = CompileOptions(training=Training(layers))
    return Compilation(MODEL, "host", options, judging=Judging(data=exam), teaching=teaching)


def ram(layers: str) -> int:
    """What a model of which these are trained takes."""
    made = Compilation(MODEL, "host", CompileOptions(training=Training(layers))).compiled
    return made.bundle.arena_size + made.program.state_size


def test_accuracy_rises_along_the_steps(files: tuple[Path, Path]) -> None:
    lesson, exam = files
    net = learning("last:1", exam, Teaching(lesson, 0.05, epochs=2))
    learned = net.learned()
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
    step, alone = learning["step"], learning["inference"]
    assert step["stack"] > 0 and len(learning["examinations"]) == 6
    assert alone["ram"] + learning["state"] <= step["ram"]
    for what in ("instructions", "cycles_estimate", "flash"):
        assert alone[what] < step[what] < 3 * alone[what]
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
    options, judging = CompileOptions(training=training), Judging(data=exam)
    net = Compilation(MODEL, "host", options, judging=judging, teaching=Teaching(lesson))
    with pytest.raises(UsageError, match=told):
        net.learned()


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
    with pytest.raises(UsageError, match="--rate must be"):
        learning("last:1", exam, Teaching(lesson, rate)).learned()


def test_the_layers_that_learn_best_are_found(files: tuple[Path, Path], tmp_path: Path) -> None:
    lesson, exam = files
    net = learning("auto", exam, Teaching(lesson, 0.05))
    trials, chosen = {trial.layers: trial for trial in net.trials}, net.compiled.options.training
    assert {"last:1", "last:2", "bias:2", "last:1,bias:2"} <= trials.keys()
    (sparse,) = (layers for layers in trials if "[" in layers)
    assert sparse.endswith(",last:1") and sparse.count(";") == 48 // 4 - 1
    assert trials["last:1"].ram < trials[sparse].ram < trials["last:2"].ram
    assert chosen is not None
    found = trials[chosen.layers]
    assert all((-t.accuracy, t.ram) >= (-found.accuracy, found.ram) for t in trials.values())
    assert len({t.accuracy for t in trials.values()}) > 1 and found.ram == ram(chosen.layers)
    note = net.compiled.report.notes[-1]
    assert note.startswith(f"trained: {found}") and all(str(t) in note for t in trials.values())
    options = ["--board", "host", "--train", "auto", "--lesson", lesson, "--rate", "0.05", "-o", tmp_path / "out"]
    done = mcugen("compile", MODEL, *options)
    assert not done.code and chosen.layers in done.err


def test_the_search_stays_within_the_ram(files: tuple[Path, Path]) -> None:
    lesson, exam = files
    small = ram("last:1")
    options = CompileOptions(training=Training("auto"), max_ram=small)
    net = Compilation(MODEL, "host", options, judging=Judging(data=exam), teaching=Teaching(lesson, 0.05))
    assert max(trial.ram for trial in net.trials) <= small
    options = CompileOptions(training=Training("auto"), max_ram=100)
    net = Compilation(MODEL, "host", options, judging=Judging(data=exam), teaching=Teaching(lesson, 0.05))
    with pytest.raises(DoesNotFitError):
        net.trials  # noqa: B018


def test_layers_that_cannot_be_trained_are_passed_over(files: tuple[Path, Path], tmp_path: Path) -> None:
    """A derivative that is missing before the last layer is no reason to train none."""
    lesson, exam = files
    rng, net = np.random.default_rng(1), Net()
    net.input("image", 1, 64)
    first = net.op("Gemm", "image", net.const(rng.normal(size=(64, 32))), net.const(rng.normal(size=32)))
    found = net.op("Det", net.op("Reshape", first, net.const([8, 2, 2], np.int64)))
    row = net.op("Reshape", found, net.const([1, 8], np.int64))
    net.output(net.op("Gemm", row, net.const(rng.normal(size=(8, 10))), net.const(rng.normal(size=10))))
    options = CompileOptions(training=Training("auto"))
    found = Compilation(net.model(), "host", options, judging=Judging(data=exam), teaching=Teaching(lesson)).trials
    assert [trial.layers for trial in found] == ["last:1", "adapter:2:1"]


def test_a_lesson_that_nothing_asks_for_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    given = ["--board", "host", "--train", "last:1", "--lesson", files[0], "-o", tmp_path / "out"]
    done = mcugen("compile", MODEL, *given)
    assert done.code == 2 and "--lesson is for --train auto" in done.err and not (tmp_path / "out").exists()


def test_a_search_needs_a_lesson() -> None:
    with pytest.raises(UsageError, match="give --lesson"):
        _ = Compilation(MODEL, "host", CompileOptions(training=Training("auto"))).compiled


def test_a_search_asks_for_classes_and_layers(files: tuple[Path, Path]) -> None:
    """Whatever its error proposes leads on."""
    teaching, net = Teaching(files[0]), Net()
    options = CompileOptions(training=Training("auto", "mse"))
    with pytest.raises(UsageError, match=r"--train last:1 --loss mse"):
        _ = Compilation(MODEL, "host", options, teaching=teaching).compiled
    net.input("image", 1, 64)
    net.output(net.op("Relu", "image"))
    options = CompileOptions(training=Training("auto"))
    with pytest.raises(UsageError, match="must have dense"):
        _ = Compilation(net.model(), "host", options, teaching=teaching).compiled


def test_a_lesson_is_no_layer() -> None:
    with pytest.raises(UsageError, match=r"--train auto --lesson TRAIN\.npz"):
        _ = Compilation(MODEL, "host", CompileOptions(training=Training("TRAIN.npz"))).compiled


def test_a_lesson_that_diverges_is_told(files: tuple[Path, Path]) -> None:
    lesson, exam = files
    with pytest.raises(ConstraintError, match=r"loss must stay finite.*a smaller --rate"):
        learning("last:2", exam, Teaching(lesson, 1e30)).learned()
    assert "last:2" not in [trial.layers for trial in learning("auto", exam, Teaching(lesson, 1e30)).trials]


def test_a_head_is_examined_too(files: tuple[Path, Path]) -> None:
    lesson, exam = files
    found = learning("centroids:10", exam, Teaching(lesson, 0.001)).learned().examinations
    assert found[0].accuracy < 0.3 and found[-1].accuracy > 0.7
