# SPDX-License-Identifier: Apache-2.0
"""Simulation as a process of this computer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_models import add_one, port, random_samples, tiny

from mcugen.core.board import load_board
from mcugen.core.errors import ToolMissingError, UsageError, VerificationError
from mcugen.distributed.sharing import Workers
from mcugen.simulation import Setup, execute, simulate, simulation

HOST = load_board("host")


def test_outputs_of_each_sample_and_no_measurements():
    model = add_one()
    samples = random_samples(model, 5)
    execution = simulate(model, HOST, samples)
    for sample, outputs in zip(samples, execution.outputs, strict=True):
        assert outputs["y"].dtype == np.int8
        np.testing.assert_array_equal(outputs["y"], sample["x"] + 1)
    assert (execution.instructions, execution.stack, execution.sizes) == (None, None, None)


def test_samples_come_in_c_order_whatever_their_strides():
    model = add_one(inputs=[port("x", "int8", 4, 4)])
    x = np.arange(16, dtype=np.int8).reshape(4, 4).T
    outputs = simulate(model, HOST, [{"x": x}]).outputs
    np.testing.assert_array_equal(outputs[0]["y"], x.ravel() + 1)


def test_progress_tells_finished_samples():
    seen: list[int] = []
    simulate(add_one(), HOST, random_samples(add_one(), 7), setup=Setup(progress=seen.append))
    assert seen[-1] == 7


def test_files_stay_in_the_workdir(tmp_path: Path):
    simulate(add_one(), HOST, random_samples(add_one(), 1), setup=Setup(workdir=tmp_path))
    assert (tmp_path / "run" / "output.bin").stat().st_size == 16


def test_error_status_is_reported():
    model = tiny("return tiny_x(arena)[0] == 3 ? 42 : 0;")
    samples = [{"x": np.full(16, value, np.int8)} for value in (1, 3)]
    with pytest.raises(VerificationError, match=r"must return 0\. found: 42 for sample 1"):
        simulate(model, HOST, samples)


def test_compiler_complaint_is_shown():
    with pytest.raises(VerificationError, match=r"(?s)tiny.c must compile without warnings.*conversion"):
        simulate(tiny("int8_t y = *(int *)arena; return y;"), HOST, random_samples(add_one(), 1))


def test_missing_symbol_is_shown():
    model = tiny("(void)arena; return missing();", before="int missing(void);")
    with pytest.raises(VerificationError, match=r"(?s)must link.*missing"):
        simulate(model, HOST, random_samples(model, 1))


def test_sanitizer_finds_an_access_past_the_arena(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "gcc")
    model = tiny("return ((volatile char *)arena)[1024] * 0;")
    simulate(model, HOST, random_samples(model, 1))
    with pytest.raises(VerificationError, match="global-buffer-overflow"):
        simulate(model, HOST, random_samples(model, 1), setup=Setup(sanitize=True))


def test_sanitizer_finds_undefined_arithmetic(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "gcc")
    model = tiny("volatile int y = 2147483647; y = y + tiny_x(arena)[0]; return y == 5;")
    with pytest.raises(VerificationError, match="signed integer overflow"):
        simulate(model, HOST, [{"x": np.ones(16, np.int8)}], setup=Setup(sanitize=True))


def test_sanitizer_finds_an_unaligned_word(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "gcc")
    text = "const volatile int32_t *at = (const volatile int32_t *)(const void *)((char *)arena + 2); return *at * 0;"
    model = tiny(text)
    simulate(model, HOST, random_samples(model, 1))
    with pytest.raises(VerificationError, match="misaligned address"):
        simulate(model, HOST, random_samples(model, 1), setup=Setup(sanitize=True))


def test_the_arena_has_no_more_alignment_than_is_asked_for():
    """What needs more must not work by chance."""
    model = tiny("return (uintptr_t)arena % 32 == 16 ? 0 : 7;")
    for sanitize in (False, True):
        simulate(model, HOST, random_samples(model, 1), setup=Setup(sanitize=sanitize))


def test_a_hang_ends():
    model = tiny("while (*(volatile int8_t *)tiny_x(arena)) { } return 0;")
    with pytest.raises(VerificationError, match=r"sample 1 is not finished after 0\.3 s"):
        simulate(model, HOST, [{"x": np.full(16, value, np.int8)} for value in (0, 1)], setup=Setup(timeout=0.3))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({}, "input 'x' of sample 0 must be given"),
        ({"x": np.zeros(16, np.float32)}, r"must be int8 of shape \(16,\)\. found: float32 of \(16,\)"),
        ({"x": np.zeros(8, np.int8)}, r"must be int8 of shape \(16,\)\. found: int8 of \(8,\)"),
    ],
)
def test_wrong_samples_are_refused(sample: dict[str, np.ndarray], message: str):
    with pytest.raises(UsageError, match=message):
        simulate(add_one(), HOST, [sample])


def test_no_samples_are_refused():
    with pytest.raises(UsageError, match="must have samples"):
        simulate(add_one(), HOST, [])


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolMissingError, match=r"'gcc' must be installed.*apt-get install gcc"):
        simulate(add_one(), HOST, random_samples(add_one(), 1))


def test_parts_at_once_give_what_one_run_gives():
    model, seen = add_one(), list[int]()
    samples = random_samples(model, 100)
    alone = simulate(model, HOST, samples)
    together = simulate(model, HOST, samples, setup=Setup(workers=Workers(3), progress=seen.append))
    assert [o["y"].tolist() for o in together.outputs] == [o["y"].tolist() for o in alone.outputs]
    assert max(seen) == 100


def test_parts_number_samples_as_one_run_does():
    model = tiny("return tiny_x(arena)[0] == 3 ? 42 : 0;")
    samples = [{"x": np.full(16, 3 if i == 55 else 1, np.int8)} for i in range(64)]
    with pytest.raises(VerificationError, match="42 for sample 55"):
        simulate(model, HOST, samples, setup=Setup(workers=Workers(4)))


def test_what_keeps_a_state_is_not_parted(monkeypatch: pytest.MonkeyPatch):
    """Each sample follows the one before it."""
    parts: list[int] = []

    def executed(_program: object, _bundle: object, samples: list[dict[str, np.ndarray]], *_: object, **__: object):
        parts.append(len(samples))
        return execute.RunResult(samples, {})

    monkeypatch.setattr(simulation, "execute", executed)
    monkeypatch.setattr(simulation, "build_host", lambda *_, **__: Path(sys.executable))
    samples = random_samples(add_one(), 64)
    for has_state in (False, True):
        simulate(replace(add_one(), has_state=has_state), HOST, samples, setup=Setup(workers=Workers(2)))
    assert parts == [32, 32, 64]
