# SPDX-License-Identifier: Apache-2.0
"""Each `mcugen` command in README and documents is one: its options exist, and it runs where its files are at hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from _pytest.mark import ParameterSet
from command_line import mcugen
from tutorial import PAGES as PAGES_IN_ORDER

from mcugen.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*/README.md")))
DIGITS = ROOT / "examples" / "digits"

IN_ORDER = {f"docs/tutorials/{page.name}": "tests/test_tutorial.py" for page in PAGES_IN_ORDER.values()}
"""Pages whose commands need what those before them made: which test runs them all."""

ELSEWHERE = {
    "calibrate-board": "tests/calibration: needs what a board measured",
    "--kernels cmsis-nn": "tests/cli/test_cmsis_command.py: links a library",
    "--kernels auto": "tests/cli/test_cmsis_command.py: links a library",
    "my_board": "tests/test_recipes.py: follows the recipe that makes the board",
    "rv32imc_zbb": "tests/test_recipes.py: follows the recipe that makes the CPU feature",
    "rv32im ": "tests/test_recipes.py: follows the recipe that makes the CPU",
    "mine.toml": "tests/calibration: makes the file of the board",
    "pipeline.onnx": "tests/test_sklearn.py",
    "build/language_model": "tests/test_language_model.py: trains the model",
    "stream.onnx": "tests/test_streaming.py: makes the model",
    "tcn.onnx": "tests/passes/test_window_stream.py: makes such models",
    "affine.py": "tests/frontend/tflite/test_tflite_plugins.py: makes such a plug-in",
    "model.tflite --board nrf52840 --data": "tests/frontend/tflite: needs samples of the model",
    "model.keras": "tests/frontend/test_keras_models.py: needs Keras",
    "mcugen explore": "tests/explore: takes minutes",
    "--fits": "tests/explore: takes minutes",
    "mcugen evidence": "tests/deploy/evidence",
    "mcugen view": "tests/reporting/test_page.py",
    "diff": "tests/reporting/test_differences.py",
    "after.json": "tests/reporting/test_differences.py",
    "spotter": "tests/codegen/test_link.py: a model with a state",
    "--input-pipeline": "tests/pipelines/test_report.py and test_preprocess.py: needs raw data, and a model of colors",
    "--lesson": "tests/training and tests/test_tutorial.py: needs samples of a lesson",
    "…": "a command of which a part is left out",
}
"""By a part of the command: which test runs it, with what it needs."""

FILES = {
    "f32.onnx": ("digits.onnx", "model.onnx", "MODEL.onnx", "net.onnx", "A.onnx", "B.onnx", "old.onnx", "new.onnx"),
    "calibration.npz": ("SAMPLES.npz", "IN.npz", "samples.npz", "raw.npz"),
    "eval.npz": ("EVAL.npz", "evaluation.npz", "raw_eval.npz"),
}
"""What stands for the names of the documents, of the example of digits."""

SHARED = {
    "kws.onnx": "models/ds_cnn_kws_int8_qdq.onnx",
    "resnet8.onnx": "models/resnet8_cifar10_int8_qdq.onnx",
    "model.tflite": "tflite/tflm_hello_world_int8.tflite",
}


def commands() -> Iterator[tuple[str, str]]:
    """The page and the command, without remarks behind it."""
    for page in (page for page in PAGES if str(page.relative_to(ROOT)) not in IN_ORDER):
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                found = re.match(r"(?:- (?:run: )?)?(mcugen .*?)(?:\s+#.*)?$", line.strip())
                if found:
                    yield str(page.relative_to(ROOT)), re.sub(r" +", " ", found[1])


COMMANDS = list(dict.fromkeys(commands()))


def plain(command: str) -> list[str]:
    """Its words after `mcugen`, with what may be left out in brackets."""
    words = shlex.split(re.sub(r"(?<=\s)[\[\]]|\](?=\s|$)", "", command.replace("…", "")))[1:]
    return [re.sub(r"^(\w+)\|\w+$", r"\1", word) for word in words]


def test_pages_have_commands() -> None:
    assert len(COMMANDS) > 40
    assert {page for page, _ in COMMANDS} >= {
        "README.md",
        "docs/how-to/memory.md",
        "docs/how-to/validate.md",
        "docs/how-to/export.md",
    }


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_the_options_of_a_documented_command_exist(page: str, command: str) -> None:
    program = typer.main.get_command(app)
    with typer.Context(program) as context:
        name, found, words = program.resolve_command(context, plain(command))  # type: ignore[attr-defined]
        assert found.make_context(name, words, parent=context) is not None


LARGE = ("shared/", "kws.onnx", "resnet8.onnx")
"""Models that take seconds to compile."""


def runnable() -> list[ParameterSet]:
    """Every sixth, in the sweep all; those of large models there alone."""
    chosen = [(page, c) for page, c in COMMANDS if not any(part in c for part in ELSEWHERE)]
    small = [(page, c) for page, c in chosen if not any(name in c for name in LARGE)]
    return [pytest.param(*each, marks=() if each in small[::6] else pytest.mark.slow) for each in chosen]


@pytest.mark.qemu
@pytest.mark.parametrize(("page", "command"), runnable())
def test_a_documented_command_runs(page: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with the names that the documents use; a board on a wire is the simulator's."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "shared").symlink_to(ROOT.parent / "shared")
    for source, names in FILES.items():
        for name in names:
            data = DIGITS / (f"digits_{source}" if source.endswith(".onnx") else source)
            (folder / name).symlink_to(data)
    for name, source in SHARED.items():
        (folder / name).symlink_to(ROOT.parent / "shared" / source)
    if any(
        not path.exists()
        for path in map(folder.joinpath, plain(command))
        if path.suffix in (".onnx", ".tflite") and path.is_symlink()
    ):
        pytest.skip("needs the models of ../shared")
    monkeypatch.chdir(folder)
    words = shlex.split(re.sub(r" \[[^\]]*\]", "", command).replace("/dev/ttyACM0", "simulator"))[1:]
    prepare(words)
    done = mcugen(*words)
    assert done.code == 0, done.err


def prepare(words: list[str]) -> None:
    """What an earlier command of the page has made."""
    if words[0] == "update":
        first = next(c for _, c in COMMANDS if "--updatable" in c)
        assert mcugen(*shlex.split(first)[1:]).code == 0
