# SPDX-License-Identifier: Apache-2.0
"""Progress where no bar can be drawn, and names as they are."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from command_line import mcugen
from onnx_models import Net

from mcugen.cli.commands import console


def test_without_a_terminal_a_line_comes_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    with console.progress_shown(quiet=False) as progress:
        for done in range(31):
            clock[0] = float(done)
            progress("counting", done, 40)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "counting: 10 of 40, 30 s left",
        "counting: 20 of 40, 20 s left",
        "counting: 30 of 40, 10 s left",
    ]


def test_what_is_done_again_is_timed_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not since it was done first, which may be long ago."""
    clock = [0.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: clock[0])
    with console.progress_shown(quiet=False) as progress:
        for begin in (0.0, 100.0, 200.0):
            for done in range(1, 13):
                clock[0] = begin + done - 1
                progress("rounding", done, 12)
    assert capsys.readouterr().err.splitlines() == [
        "rounding: 11 of 12, 1 s left",
        "rounding: 1 of 12",
        "rounding: 11 of 12, 1 s left",
        "rounding: 1 of 12",
        "rounding: 11 of 12, 1 s left",
    ]


def test_what_is_quick_or_quiet_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console.time, "monotonic", lambda: 0.0)
    for quiet in (False, True):
        with console.progress_shown(quiet) as progress:
            progress("counting", 1, 2)
    assert capsys.readouterr().err == ""


def test_names_are_printed_as_they_are(tmp_path: Path) -> None:
    """What rich would take for pictures by name is a name of the model's."""
    net = Net()
    net.output(net.op("Cast", net.input("x", 1, 4), to=onnx.TensorProto.INT32, out="y"))
    onnx.save(net.model(), tmp_path / "net.onnx")
    refused = mcugen("compile", tmp_path / "net.onnx", "--board", "host", "--state", "y:x", "-o", tmp_path / "net")
    assert refused.code == 2
    assert "--state y:x: both must have one type" in refused.err
    monkey = "':monkey:'"
    for printer in (console.stdout, console.stderr):
        with printer.capture() as told:
            printer.print(monkey)
        assert told.get() == f"{monkey}\n"
