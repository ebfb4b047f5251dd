# SPDX-License-Identifier: Apache-2.0
"""After an error stands a command to paste: the user's own as the remedy changes it, or one that shows more."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from onnx_models import Net

from mcugen.cli.remedies import Invocation, command_that_helps
from mcugen.core.errors import (
    DoesNotFitError,
    InternalError,
    Interrupted,
    McugenError,
    ModelError,
    OutputError,
    UsageError,
)

OPTIONS = {
    "--board": True,
    "-b": True,
    "--metric": True,
    "--calibration": True,
    "--force": False,
    "--max-latency": True,
    "--dim": True,
}


def pasted(error: McugenError, *arguments: str) -> str:
    return command_that_helps(error, Invocation("report", arguments, OPTIONS))


def net(folder: Path) -> Path:
    made = Net()
    made.output(made.op("Relu", made.input("x", "N", 4)))
    onnx.save(made.model(), folder / "net.onnx")
    return folder / "net.onnx"


# ------------------------------------------------------------------------------------------------ as a user sees it


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (("inspect", "MODEL", "--board", "nrf52804", "-q"), ("inspect", "MODEL", "-q", "--board", "nrf52840")),
        (("inspect", "MODEL", "-b", "nrf52804"), ("inspect", "MODEL", "--board", "nrf52840")),
        (("inspect", "MODEL", "--optimize", "fast"), ("inspect", "MODEL", "--optimize", "speed")),
        (("inspect", "MODEL", "--dim", "M=2"), ("inspect", "MODEL", "--dim", "N=2")),
        (("inspect", "MODEL", "--max-ram", "2x"), ("inspect", "--help-all")),
        (("boards", "show", "nrf52804"), ("boards", "show", "nrf52840")),
    ],
)
def test_what_is_pasted_works(wrong: tuple[str, ...], right: tuple[str, ...], tmp_path: Path) -> None:
    model = str(net(tmp_path))
    given, expected = ([model if word == "MODEL" else word for word in words] for words in (wrong, right))
    failed = mcugen(*given)
    assert failed.code == 2, failed.err
    command = failed.err.splitlines()[-1].strip()
    assert command == shlex.join(["mcugen", *expected])
    assert mcugen(*expected).code == 0


@pytest.mark.parametrize("suffix", [".tflite", ".pt2", ".keras", ".pt", ".PTH", ".h5", ".pkl", ".safetensors"])
def test_onnx_checker_is_for_onnx_alone(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"bad{suffix}").write_bytes(b"no model")
    failed = mcugen("inspect", tmp_path / f"bad{suffix}")
    assert failed.code == 3 and "onnx.checker" not in failed.err


def test_what_shows_more_names_the_users_files(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    failed = mcugen("inspect", tmp_path / "bad.onnx")
    assert failed.err.splitlines()[-1].strip().startswith("python -c 'import onnx; onnx.checker.check_model(")
    assert f'"{tmp_path}/bad.onnx"' in failed.err
    absent = mcugen("inspect", tmp_path / "none.onnx")
    assert absent.err.splitlines()[-1] == f"    ls -l {tmp_path}"


# ------------------------------------------------------------------------------------------------ each kind of remedy


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UsageError("x", "none", "give --calibration SAMPLES.npz or --profile P"), " --calibration SAMPLES.npz"),
        (UsageError("x", "none", "add labels, or take --metric sqnr"), " --metric sqnr"),
        (UsageError("x", "none", "give --force to replace it, or edit it"), " --force"),
        (UsageError("--metric must be known", "'accuracy'", "one of: top1, top5"), " --metric top1"),
        (UsageError("--metric must be known", "'x'", "one of: top1"), " --metric top1"),
    ],
)
def test_options_of_remedies_are_given(error: McugenError, expected: str) -> None:
    assert pasted(error, "net.onnx", "-b", "host") == f"mcugen report net.onnx -b host{expected}"


def test_options_that_are_given_several_times_are_kept() -> None:
    error = ModelError("every input dimension must be known", "two unbound", "give a size: --dim a=1 --dim b=1")
    assert pasted(error, "net.onnx", "--dim", "c=2", "--dim=b=7") == (
        "mcugen report net.onnx --dim c=2 --dim a=1 --dim b=1"
    )


def test_what_is_to_be_left_out_is() -> None:
    given = ("net.onnx", "--metric", "sqnr", "--force")
    assert pasted(UsageError("x", "--metric", "leave it out"), *given) == "mcugen report net.onnx --force"
    assert pasted(UsageError("x", "y", "leave out --force"), *given) == "mcugen report net.onnx --metric sqnr"


def test_commands_of_remedies_are_taken_as_they_are() -> None:
    assert pasted(UsageError("x", "y", "mcugen doctor")) == "mcugen doctor"
    assert pasted(UsageError("x", "y", "see them by: mcugen doctor")) == "mcugen doctor"
    assert pasted(UsageError("x", "y", "write it with `mcugen profile net.onnx`, say")) == "mcugen profile net.onnx"


def test_without_an_option_another_command_shows_more() -> None:
    assert pasted(DoesNotFitError("x", "y", "allow more"), "my net.onnx") == "mcugen boards --fits 'my net.onnx'"
    late = pasted(DoesNotFitError("x", "y", "allow more"), "net.onnx", "--max-latency", "1ms")
    assert late == "mcugen explore net.onnx --max-latency 1ms"
    assert pasted(InternalError("x"), "net.onnx") == "MCUGEN_TRACEBACK=1 mcugen report net.onnx"
    assert pasted(ModelError("x", "y", "repair it"), "net.onnx").startswith("python -c ")
    assert pasted(OutputError("x", "y", "check space")) == "df -h . && ls -ld ."
    assert pasted(UsageError("x", "y", "see it")) == "mcugen report --help-all"
    assert pasted(Interrupted("interrupted")) == ""


def test_a_size_too_small_for_a_kernel_is_left_to_fill_in(tmp_path: Path) -> None:
    made = Net()
    x = made.input("x", 1, 1, "N")
    made.output(made.op("Conv", x, made.const(np.ones((1, 1, 8)))))
    onnx.save(made.plain_model(), tmp_path / "net.onnx")
    model = str(tmp_path / "net.onnx")
    failed = mcugen("inspect", model, "--dim", "N=4", "-q")
    assert "the kernel must fit the input" in failed.err
    assert "use a larger input" in failed.err
    assert failed.err.splitlines()[-1].strip() == shlex.join(["mcugen", "inspect", model, "--dim", "N=SIZE", "-q"])
    assert mcugen("inspect", model, "--dim", "N=9", "-q").code == 0


def test_what_could_be_known_before_is_bound(tmp_path: Path) -> None:
    made = Net(18)
    shape = made.input("shape", 2, dtype=np.int64)
    made.output(made.op("CenterCropPad", made.input("x", 6, 5), shape), shape=(4, 7))
    onnx.save(made.plain_model(), tmp_path / "net.onnx")
    model = str(tmp_path / "net.onnx")
    failed = mcugen("inspect", model, "-q")
    assert failed.err.splitlines()[-1].strip() == shlex.join(["mcugen", "inspect", model, "-q", "--bind", "shape=..."])
    assert mcugen("inspect", model, "-q", "--bind", "shape=[4,7]").code == 0
