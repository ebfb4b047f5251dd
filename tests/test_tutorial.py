# SPDX-License-Identifier: Apache-2.0
"""The tutorials are followed to the letter, by the committed models and in the sweep by models trained anew."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from tutorial import COMMITTED, EXAMPLE, PAGES, ROOT, current, followed, plain, run_program, steps


def follow(part: str, folder: Path, monkeypatch: pytest.MonkeyPatch, trained: Path | None) -> list[str]:
    """Follow all steps of a page; return the lines that the page shows and no command printed."""

    def run(words: list[str], where: Path) -> str:
        monkeypatch.chdir(where)
        done = mcugen(*words)
        assert done.code == 0, done.err
        return done.out

    walk = followed(PAGES[part].read_text(), folder, trained, run)
    return [line for step, printed in walk for line in step.printed if plain(line) not in plain(printed)]


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize("part", COMMITTED)
def test_the_tutorial_runs(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not follow(part, tmp_path, monkeypatch, EXAMPLE / part)
    made = tmp_path / part
    assert (made / "mcugen.toml").is_file()
    assert (made / "net" / "digits.h").is_file()
    assert any((made / "packages").iterdir())


@pytest.mark.spread(4)
@pytest.mark.qemu
@pytest.mark.parametrize("part", [part for part in PAGES if part not in COMMITTED])
def test_the_tutorial_trains_and_runs(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skl2onnx")
    assert not follow(part, tmp_path, monkeypatch, None)


def test_every_tutorial_is_followed() -> None:
    assert sorted(PAGES.values()) == sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def test_figures_are_brought_up_to_date() -> None:
    title, stale = " instructions              ", "1  retired, one inference"
    page = f"a\n## b\n```sh\nmcugen report\n```\n```text\n{title}{stale}\n```\n"
    assert current(page, None, lambda words, _: f"other\n{title}22  {words}") == page.replace(stale, "22  ['report']")
    assert current(page, None, lambda *_: "nothing") == page


@pytest.mark.qemu
def test_the_program_of_the_page_compiles(tmp_path: Path) -> None:
    model, samples = EXAMPLE / "pytorch" / "digits.onnx", EXAMPLE / "pytorch" / "calibration.npz"
    assert mcugen("compile", model, "--board", "stm32f446", "--calibration", samples, "-o", tmp_path).code == 0
    (program,) = re.findall(r"```c\n(.*?)```", PAGES["pytorch"].read_text(), re.DOTALL)
    (tmp_path / "program.c").write_text("int best_of(const float *scores);\n" + program)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror"]
    subprocess.run(["arm-none-eabi-gcc", *flags, "-c", "program.c", "-o", "program.o"], cwd=tmp_path, check=True)


def test_the_pages_have_all_steps() -> None:
    wanted = {"init", "report", "compile", "validate", "export"}
    for part in COMMITTED:
        commands = [shlex.split(step.command) for step in steps(PAGES[part].read_text())]
        assert {words[1] for words in commands if words[0] == "mcugen"} == wanted


PROGRAMS = {
    "keywords": ("words.onnx", "-b nrf52840 --calibration calibration.npz --integer-io --helpers"),
    "anomaly": ("machine.onnx", "-b stm32l432 --calibration calibration.npz"),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", PROGRAMS)
def test_the_program_behind_a_pipeline_compiles(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skl2onnx")
    program = next(step.command for step in steps(PAGES[part].read_text()) if step.command.startswith("python"))
    run_program(ROOT / program.split()[1], tmp_path)
    monkeypatch.chdir(tmp_path)
    model, options = PROGRAMS[part]
    done = mcugen("compile", model, "--dim", "X:0=1", *options.split(), "--input-pipeline", "pipeline.txt", "-o", "net")
    assert done.code == 0, done.err
    compile_program(part, tmp_path / "net")


@pytest.mark.qemu
def test_the_program_that_learns_compiles(tmp_path: Path) -> None:
    model = ROOT / "examples" / "learning" / "learning.onnx"
    assert mcugen("compile", model, "--board", "host", "--train", "last:1", "-o", tmp_path).code == 0
    compile_program("learning", tmp_path)


def compile_program(part: str, folder: Path) -> None:
    """Compile the C of a page beside the generated code, without a warning."""
    (program,) = re.findall(r"```c\n(.*?)```", PAGES[part].read_text(), re.DOTALL)
    (folder / "program.c").write_text(program)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-Wno-missing-prototypes"]
    subprocess.run(["gcc", *flags, "-fsyntax-only", "program.c"], cwd=folder, check=True)


@pytest.mark.parametrize("part", COMMITTED)
def test_models_are_as_exporters_leave_them(part: str) -> None:
    model = onnx.load(EXAMPLE / part / "digits.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.producer_name == {"pytorch": "pytorch", "keras": "tf2onnx"}[part]
    assert b"/" + b"tmp" not in model.SerializeToString()


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("part", COMMITTED)
def test_models_that_are_trained_anew(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of floats differ from CPU to CPU, hence the figures that the page shows."""
    python = ROOT / "build" / f"train-{part}" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs what `make tutorial` installs")
    subprocess.run([python, EXAMPLE / f"train_{part}.py", tmp_path / "trained"], check=True, capture_output=True)
    follow(part, tmp_path, monkeypatch, tmp_path / "trained")
    inputs, committed = (np.load(folder / "calibration.npz") for folder in (tmp_path / "trained", EXAMPLE / part))
    assert np.array_equal(inputs["image"], committed["image"])
