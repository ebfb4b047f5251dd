# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md is followed to the letter, by the committed models and in the sweep by ones trained anew."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from tutorial import DOCUMENT, EXAMPLE, PARTS, ROOT, current, followed, plain, steps

PAGE = DOCUMENT.read_text()


def follow(part: str, folder: Path, monkeypatch: pytest.MonkeyPatch, trained: Path) -> list[str]:
    """All steps of a chapter. Lines that the page shows and no command printed."""

    def run(words: list[str], where: Path) -> str:
        monkeypatch.chdir(where)
        done = mcugen(*words)
        assert done.code == 0, done.err
        return done.out

    walk = followed(PAGE, part, folder, trained, run)
    return [line for step, printed in walk for line in step.printed if plain(line) not in plain(printed)]


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize("part", PARTS)
def test_the_tutorial_runs(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not follow(part, tmp_path, monkeypatch, EXAMPLE / part)
    made = tmp_path / part
    assert (made / "mcugen.toml").is_file()
    assert (made / "net" / "digits.h").is_file()
    assert any((made / "packages").iterdir())


def test_figures_are_brought_up_to_date() -> None:
    title, stale = "│ instructions            │  ", "1 │ retired, one inference                  │"
    page = f"a\n## b\ntrain_pytorch.py\n```sh\nmcugen report\n```\n```text\n{title}{stale}\n```\n## train_keras.py"
    assert current(page, lambda words, _: f"other\n{title}22 │ {words}") == page.replace(stale, "22 │ ['report']")
    assert current(page, lambda *_: "nothing") == page


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
        assert {shlex.split(step.command)[1] for step in steps(PAGE, part) if step.command[:6] == "mcugen"} == wanted


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
