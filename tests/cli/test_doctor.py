# SPDX-License-Identifier: Apache-2.0
"""`mcugen doctor`, completion and help: what is there, what is missing, what may be asked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
from command_line import mcugen

from mcugen.cli.app import app
from mcugen.simulation.toolchain import program_version


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with no program on it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    program_version.cache_clear()
    yield tmp_path  # type: ignore[misc]
    program_version.cache_clear()


def program(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(0o755)


def test_what_is_missing_comes_with_the_command_that_installs_it(bare: Path) -> None:
    done = mcugen("doctor")
    assert done.code == 0
    assert "sudo apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi binutils-arm-none-eabi" in done.out
    assert "nothing is missing" not in done.out
    for board, package in (("rp2040", "qemu-system-arm"), ("esp32c3", "qemu-system-misc"), ("host", "gcc libc6-dev")):
        asked = mcugen("doctor", "--board", board)
        assert asked.code == 8
        assert package in asked.err
    assert "riscv" not in mcugen("doctor", "-b", "rp2040").err


def test_what_is_there_is_told_with_its_version(bare: Path) -> None:
    for name in ("arm-none-eabi-gcc", "arm-none-eabi-objdump", "qemu-system-arm", "gcc"):
        program(bare, name, f"echo {name} 9.8.7")
    done = mcugen("doctor", "--board", "rp2040", "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert [tool["version"] for tool in data["tools"]] == [f"{tool['name']} 9.8.7" for tool in data["tools"]]
    assert data["install"] == []
    assert data["packages"]["numpy"]


def test_a_compiler_without_its_library_is_not_enough(bare: Path) -> None:
    program(bare, "arm-none-eabi-gcc", "case $1 in --version) echo gcc 9.8.7 ;; *) exit 1 ;; esac")
    done = mcugen("doctor", "-b", "rp2040")
    assert done.code == 8
    assert "'arm-none-eabi-gcc's C library'" in done.err
    assert "libnewlib-arm-none-eabi" in done.err


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("mcugen expl", ["explore"]),
        ("mcugen report --board rp20", ["rp2040"]),
        ("mcugen compile --optimize sp", ["speed"]),
        ("mcugen explore --optimize speed,ra", ["speed,ram"]),
        ("mcugen report --precision int1", ["int16x8"]),
    ],
)
def test_a_shell_completes(words: str, offered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "_MCUGEN_COMPLETE", "complete_bash")
    monkeypatch.setitem(os.environ, "COMP_WORDS", words)
    monkeypatch.setitem(os.environ, "COMP_CWORD", str(len(words.split()) - 1))
    assert mcugen().out.split() == offered


def test_help_has_what_is_needed_most_first() -> None:
    report = typer.main.get_command(app).commands["report"]  # type: ignore[attr-defined]
    first = [p.name for p in report.params if getattr(p, "rich_help_panel", None) is None and p.name != "model"]
    assert {"board", "precision", "optimize", "data", "calibration", "html", "json"} <= set(first)
    assert len(first) <= 12
    short, text = mcugen("report", "--help").out, mcugen("report", "--help-all").out
    assert "--precision" in short
    assert "--method" not in short
    assert "mcugen report --help-all" in short
    assert text.index("--precision") < text.index("Quantization ─") < text.index("--method")
