# SPDX-License-Identifier: Apache-2.0
"""Nothing is uncaught: whatever ends a command is one short message and an exit code of its own."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import jinja2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import Net
from sandbox import run_mcugen

from mcugen.api import compilation
from mcugen.cli.commands.console import tell_notes
from mcugen.cli.error_boundary import guarded
from mcugen.core.errors import ModelError, UsageError, listed, shortened
from mcugen.core.version import __version__

LONGEST = 4096


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = Net()
    net.output(net.op("MatMul", net.input("x", 1, 6), net.const(np.ones((6, 4))), out="scores"))
    onnx.save(net.model(), tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def failing(error: BaseException) -> int:
    def run() -> None:
        raise error

    return guarded(run)


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ZeroDivisionError("by zero"), 1, "ZeroDivisionError: by zero"),
        (RecursionError("too deep"), 1, "RecursionError"),
        (AssertionError(), 1, "AssertionError"),
        (MemoryError("8 GiB"), 5, "memory. found: 8 GiB"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ModelError("a rule", "a finding", "a remedy"), 3, "a rule. found: a finding. try: a remedy."),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 2, "File name too long"),
        (OSError(errno.ENOENT, "No such file or directory"), 2, "the working directory must exist"),
        (OSError(errno.ENOSPC, "No space left on device"), 9, "No space left"),
        (GeneratorExit(), 1, "GeneratorExit"),
    ],
)
def test_every_exception_has_a_message_and_a_code(
    error: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str]
):
    assert failing(error) == code
    message = capsys.readouterr().err
    assert told in message
    assert "Traceback" not in message


def test_an_internal_error_asks_for_a_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.argv", ["mcugen", "compile", "a model.onnx"])
    assert failing(KeyError("k")) == 1
    message = capsys.readouterr().err
    for part in (__version__, "mcugen compile 'a model.onnx'", "KeyError: 'k'", "test_boundary.py:", "report this"):
        assert part in message


def test_a_traceback_is_there_for_who_wants_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MCUGEN_TRACEBACK", "1")
    assert failing(KeyError("k")) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "bug", [IndexError("list index out of range"), jinja2.UndefinedError("'zero' is undefined")], ids=["ours", "jinja"]
)
def test_a_bug_in_a_command_is_caught(
    bug: Exception, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The message of jinja's errors cannot be set, as those of the framework can."""

    def broken(*_: object) -> None:
        raise bug

    monkeypatch.setattr(compilation, "compile_model", broken)
    assert run_mcugen(("inspect", str(model))) == 1
    assert f"{type(bug).__name__}: {bug} (mcugen/" in capsys.readouterr().err


OPERATOR = """
from mcugen.ops.onnx_node import onnx_operator
@onnx_operator("Stop", domain="{domain}")
def stop(node):
    raise {error}
"""


@pytest.mark.parametrize(("error", "code"), [("SystemExit(0)", 1), ("EOFError", 1), ("KeyboardInterrupt", 130)])
def test_an_operator_cannot_end_the_program_in_silence(
    error: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    domain = f"test.{code}.{error}"
    (tmp_path / "plugin.py").write_text(OPERATOR.format(domain=domain, error=error))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Stop", ["x"], ["y"], domain=domain)], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    out = tmp_path / "out"
    arguments = ("compile", tmp_path / "m.onnx", "-b", "host", "--plugin", tmp_path / "plugin.py", "-o", out)
    assert run_mcugen(tuple(map(str, arguments))) == code
    assert capsys.readouterr().err.startswith("error: ")
    assert not out.exists()


@pytest.mark.parametrize(
    "text", ["import sys\nsys.exit(0)\n", "raise EOFError\n", "def f(): f()\nf()\n", "raise MemoryError"]
)
def test_a_plugin_that_ends_or_fails_is_named(text: str, model: Path, capsys: pytest.CaptureFixture[str]):
    plugin = model.with_name("plugin.py")
    plugin.write_text(text)
    assert run_mcugen(("compile", str(model), "-b", "host", "--plugin", str(plugin))) == 2
    assert "plugin.py: the file must run" in capsys.readouterr().err


def test_a_plugin_that_does_not_end_is_ended(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MCUGEN_SECONDS", "1")
    plugin = model.with_name("plugin.py")
    plugin.write_text("while True:\n    try:\n        while True: pass\n    except Exception: pass\n")
    assert run_mcugen(("compile", str(model), "-b", "host", "--plugin", str(plugin))) == 2
    assert "at most 1 s of CPU" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("place", range(3))
def test_messages_are_short_wherever_the_text_comes_from(place: int):
    parts = ["a", "b", "c"]
    parts[place] = "x" * 600_000
    assert len(str(UsageError(*parts))) <= LONGEST
    assert "more characters" in str(UsageError(*parts))
    assert len(str(UsageError(*["x" * 600_000] * 3))) <= LONGEST


def test_lists_are_cut():
    assert listed("abc") == "a, b, c"
    assert listed(map(str, range(1000)), 3) == "0, 1, 2, and 997 more"
    assert shortened("abc") == "abc"


def test_a_thousand_refusals_are_a_short_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    nodes = [helper.make_node("Zap", ["x"], [f"y{i}"], f"node{i}", domain="org.example") for i in range(1500)]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4)) for name in ("x", "y0"))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=10), tmp_path / "m"
    )
    assert run_mcugen(("inspect", str(tmp_path / "m"))) == 4
    message = capsys.readouterr().err
    assert "1500 nodes are not" in message and "and 1,488 more" in message
    assert len(message) <= LONGEST + 100


@pytest.mark.parametrize("arguments", [("c" * 50_000,), ("--" + "c" * 50_000,), ("inspect", "m", "--" + "u" * 50_000)])
def test_usage_errors_do_not_quote_all_of_it(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]):
    assert run_mcugen(arguments) == 2
    assert len(capsys.readouterr().err) <= 3 * LONGEST  # with a frame and its padding


def test_an_output_folder_that_no_system_takes(model: Path, capsys: pytest.CaptureFixture[str]):
    assert run_mcugen(("compile", str(model), "-b", "host", "-o", "o" * 300)) in (2, 9)
    assert capsys.readouterr().err.startswith("error: ")


def test_a_hundred_notes_are_not_all_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tell_notes([f"{i} " + "n" * 5000 for i in range(100)])
    told = capsys.readouterr().err
    assert "and 88 more notes" in told
    assert len(told) < 13 * 700


def test_a_reader_that_has_seen_enough_is_no_failure():
    """`mcugen compile --help | head -1`."""
    seen, there = os.pipe()
    os.close(seen)
    program = [sys.executable, "-c", "from mcugen.cli.app import main; main()", "compile", "--help"]
    done = subprocess.run(program, stdout=there, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(there)
    assert (done.returncode, done.stderr) == (0, "")
