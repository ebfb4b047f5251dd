# SPDX-License-Identifier: Apache-2.0
"""--plausible and --checked-steps: outputs out of their ranges, and an arena that changed between steps, are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from c_programs import build_and_run, check_compiles, write
from command_line import mcugen
from model_variants import floats, quantized, sized
from onnx_models import Net

from mcugen.api.compilation import Compilation
from mcugen.codegen.bundle import Bundle
from mcugen.core.errors import UsageError
from mcugen.core.options import SAMPLES, CompileOptions
from mcugen.driver.tasks import Judging
from mcugen.simulation import simulate

NET = CompileOptions("net", plausible={"scores": (0.0, 0.5)})
DATA = {"image": np.random.default_rng(3).normal(size=(9, 1, 3, 9, 9)).astype(np.float32)}


def bundle(options: CompileOptions, make: Callable[[], Net] = quantized, board: str = "host") -> Bundle:
    return Compilation(
        make().model(), board, options, judging=Judging(data=DATA if make is quantized else None)
    ).compiled.bundle


def printed(made: Bundle, folder: Path, body: str) -> str:
    program = (
        f'#include <stdio.h>\n#include <math.h>\n#include "net.h"\nint main(void)\n{{\n{body}\n    return 0;\n}}\n'
    )
    return build_and_run(program, write(made, folder), *made.sources)


CHECKS = """    void *const arena = net_default_arena();
    float *const scores = (float *)(void *)(uintptr_t)net_output(arena);
    uint32_t i;
    for (i = 0; i < NET_OUTPUT_COUNT; ++i) {
        scores[i] = 0.25f;
    }
    printf("%d", net_check_outputs(arena));
    scores[1] = 0.51f;
    printf(" %d", net_check_outputs(arena));
    scores[1] = -0.01f;
    printf(" %d", net_check_outputs(arena));
    scores[1] = NAN;
    printf(" %d", net_check_outputs(arena));
"""


def test_outputs_out_of_their_range_are_told(tmp_path: Path):
    assert printed(bundle(NET), tmp_path, CHECKS) == "0 23 23 23"


FORMS: Mapping[str, tuple[Callable[[], Net], CompileOptions]] = {
    "codes": (quantized, replace(NET, integer_io=True)),
    "buffers of the caller's": (quantized, replace(NET, external_io=True)),
    "floats, all finite": (floats, replace(NET, plausible={"t4": (-1.0, 1.0)})),
    "steps, all checks": (
        quantized,
        replace(NET, steps=True, checked_steps=True, check_weights=True, checked_arena=True),
    ),
    "rows, checked": (quantized, replace(NET, optimize="ram", steps=True, checked_steps=True)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_compiles(form: str, tmp_path: Path):
    make, options = FORMS[form]
    check_compiles(bundle(options, make), tmp_path, "gcc", "clang")


def test_ranges_of_samples_hold_for_these_samples(tmp_path: Path):
    """And are told as real numbers; those of the command line come first."""
    onnx.save(quantized().model(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", **DATA)
    command = ("compile", tmp_path / "net.onnx", "-b", "host", "-o", tmp_path / "net", "--data", tmp_path / "data.npz")
    done = mcugen(*command, "--plausible", "samples", "--json", tmp_path / "report.json")
    assert done.code == 0, done.err
    (told,) = json.loads((tmp_path / "report.json").read_text())["plausible"]
    outputs = Compilation(quantized().model(), "host").run(DATA)["scores"]
    assert told["low"] <= outputs.min() <= outputs.max() <= told["high"]
    assert told["high"] - told["low"] < 2 * (outputs.max() - outputs.min()) + 1
    assert "those of samples" in (tmp_path / "net" / "net.h").read_text()
    done = mcugen(
        *command, "--plausible", "samples", "--plausible", "scores=0..0.75", "--json", tmp_path / "other.json"
    )
    assert json.loads((tmp_path / "other.json").read_text())["plausible"][0]["high"] == 0.75


STEPS = """    void *const arena = net_default_arena();
    net_steps steps;
    int32_t i;
    int status = net_begin(&steps, arena);
    for (i = 0; i < 2; ++i) {
        status = net_step(&steps);
    }
    printf("%d", status);
    ((unsigned char *)arena)[NET_ARENA_SIZE / 2u] ^= 1u;
    printf(" %d", net_step(&steps));
    printf(" %d", net_step(&steps));
    printf(" %d", net_run(arena));
"""


@pytest.mark.parametrize("optimize", ["balanced", "ram"])
def test_an_arena_that_changes_between_steps_is_told(optimize: str, tmp_path: Path):
    options = CompileOptions("net", optimize=optimize, steps=True, checked_steps=True)
    assert printed(bundle(options), tmp_path, STEPS) == "-1 22 9 0"
    plain = bundle(replace(options, checked_steps=False))
    assert printed(plain, tmp_path / "plain", STEPS).startswith("-1 -1")


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "rv32imc"])
def test_checked_steps_give_the_same_on_the_target(board: str):
    options = CompileOptions("net", steps=True, checked_steps=True)
    samples = [{"image": DATA["image"][0]}]
    checked = Compilation(quantized().model(), board, replace(options, plausible=NET.plausible)).compiled
    plain = Compilation(quantized().model(), board, CompileOptions("net")).compiled
    found, wanted = (simulate(c.bundle, c.board, samples) for c in (checked, plain))
    np.testing.assert_array_equal(found.outputs[0]["scores"], wanted.outputs[0]["scores"])
    assert found.instructions > wanted.instructions, "the checksums are computed"


REFUSED: Mapping[str, tuple[Callable[[], Net], CompileOptions]] = {
    "must name outputs": (quantized, replace(NET, plausible={"y": (0.0, 1.0)})),
    "takes ranges of samples": (quantized, replace(NET, plausible={SAMPLES: (0.0, 0.0)})),
    "outputs of one size": (
        sized,
        replace(NET, dims={"a_dimension_with_a_name_that_explains_everything": (1, 9)}),
    ),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_what_has_no_range_is_refused(rule: str):
    make, options = REFUSED[rule]
    with pytest.raises(UsageError, match=rule):
        _ = Compilation(make().model(), "host", options).compiled


@pytest.mark.parametrize("text", ["y", "y=1", "y=2..1", "=1..2", "y=a..2", "y=1..inf"])
def test_a_range_that_is_none_is_refused(text: str, tmp_path: Path):
    onnx.save(quantized().model(), tmp_path / "net.onnx")
    done = mcugen("compile", tmp_path / "net.onnx", "-b", "host", "-o", tmp_path / "net", "--plausible", text)
    assert done.code == UsageError.exit_code
    assert "NAME=LOW..HIGH" in done.err
