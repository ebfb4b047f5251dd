# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md is followed to the letter, by the committed models and in the sweep by ones trained anew."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
EXAMPLE = ROOT / "examples" / "tutorial"
PARTS = ("pytorch", "keras")


@dataclass(frozen=True)
class Step:
    """A command of the page, and lines that it is said to print."""

    command: str
    printed: tuple[str, ...] = ()


def steps(part: str) -> Iterator[Step]:
    """Of the chapter that trains `part`; what a block of text shows, the last command before it prints."""
    chapter = next(text for text in PAGE.split("\n## ") if f"train_{part}.py" in text)
    found: list[Step] = []
    for kind, block in re.findall(r"```(sh|text)\n(.*?)```", chapter, re.DOTALL):
        lines = block.strip().splitlines()
        if kind == "text":
            found[-1] = Step(found[-1].command, tuple(lines))
        else:
            found += map(Step, lines)
    yield from found


def plain(text: str) -> str:
    """Without what a table's widths depend on."""
    return re.sub(r" +", " ", text)


def follow(part: str, folder: Path, monkeypatch: pytest.MonkeyPatch, trained: Path) -> list[str]:
    """All steps, in a folder where `trained` is what the program of the page makes. Lines that were not printed."""
    missing: list[str] = []
    monkeypatch.chdir(folder)
    for step in steps(part):
        words = shlex.split(step.command)
        if words[0] == "pip":
            continue
        if words[0] == "python":
            assert (ROOT / words[1]).is_file()
            shutil.copytree(trained, words[2])
        elif words[0] == "cd":
            monkeypatch.chdir(words[1])
        else:
            assert words[0] == "mcugen"
            done = mcugen(*words[1:])
            assert done.code == 0, done.err
            missing += [line for line in step.printed if plain(line) not in plain(done.out)]
    return missing


@pytest.mark.qemu
@pytest.mark.parametrize("part", PARTS)
def test_the_tutorial_runs(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not follow(part, tmp_path, monkeypatch, EXAMPLE / part)
    made = tmp_path / part
    assert (made / "mcugen.toml").is_file()
    assert (made / "net" / "digits.h").is_file()
    assert any((made / "packages").iterdir())


@pytest.mark.qemu
def test_the_program_of_the_page_compiles(tmp_path: Path) -> None:
    model, samples = EXAMPLE / "pytorch" / "digits.onnx", EXAMPLE / "pytorch" / "calibration.npz"
    assert mcugen("compile", model, "--board", "stm32f446", "--calibration", samples, "-o", tmp_path).code == 0
    (program,) = re.findall(r"```c\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "program.c").write_text("int best_of(const float *scores);\n" + program)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    subprocess.run(["arm-none-eabi-gcc", *flags, "-c", "program.c", "-o", "program.o"], cwd=tmp_path, check=True)


def test_the_chapters_have_all_steps() -> None:
    wanted = {"init", "report", "compile", "validate", "export"}
    for part in PARTS:
        assert {shlex.split(step.command)[1] for step in steps(part) if step.command[:6] == "mcugen"} == wanted


@pytest.mark.parametrize("part", PARTS)
def test_models_are_as_exporters_leave_them(part: str) -> None:
    model = onnx.load(EXAMPLE / part / "digits.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.producer_name == {"pytorch": "pytorch", "keras": "tf2onnx"}[part]
    assert b"/" + b"tmp" not in model.SerializeToString()


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("part", PARTS)
def test_models_that_are_trained_anew(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of floats differ from CPU to CPU, hence the figures that the page shows."""
    python = ROOT / "build" / f"train-{part}" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs what `make tutorial` installs")
    subprocess.run([python, EXAMPLE / f"train_{part}.py", tmp_path / "trained"], check=True, capture_output=True)
    follow(part, tmp_path, monkeypatch, tmp_path / "trained")
    inputs, committed = (np.load(folder / "calibration.npz") for folder in (tmp_path / "trained", EXAMPLE / part))
    assert np.array_equal(inputs["image"], committed["image"])
