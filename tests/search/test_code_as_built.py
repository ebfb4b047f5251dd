# SPDX-License-Identifier: Apache-2.0
"""Bytes of code: as estimated without a compiler, and as built where flash would be refused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
from shared_models import MODELS

from mcugen.autotuning.alternatives import compare_alternatives
from mcugen.core.board import load_board
from mcugen.core.errors import DoesNotFitError
from mcugen.core.options import PORTABLE, CompileOptions
from mcugen.driver import program as searched
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.driver.target import target_of
from mcugen.lir.kernel import HARD_FLOATS
from mcugen.lir.program import DECODE_WEIGHTS, Program
from mcugen.search.budget import cheapest, likely_code_bytes, max_code_bytes, use_of
from mcugen.search.candidates import REQUESTED_CANDIDATE_NAME
from mcugen.search.metrics import Metrics, Use
from mcugen.search.objective import Budget
from mcugen.search.plan import BuiltProgram, ProgramCandidate
from mcugen.simulation.simulation import linked_sizes, roots_of

BOARD = "nrf52840"
RESNET8 = MODELS / "resnet8_cifar10_int8_qdq.onnx"
DS_CNN = MODELS / "ds_cnn_kws_int8_qdq.onnx"

pytestmark = pytest.mark.qemu


def built(compiled: CompiledModel) -> int:
    """Bytes of code."""
    return linked_sizes(compiled.bundle, compiled.board, roots_of(compiled.bundle)).code


@pytest.mark.parametrize("goal", ["flash", "balanced"])
@pytest.mark.parametrize(
    "name", ["ds_cnn_kws_int8_qdq", "mnist_cntk", "resnet8_cifar10_f32", "streaming_wakeword_int8_qdq"]
)
def test_code_is_estimated_within_a_kilobyte(name: str, goal: str) -> None:
    """Functions that are called once are inlined; the bound that fitting goes by is up to 4 KB more."""
    compiled = compile_model(MODELS / f"{name}.onnx", BOARD, CompileOptions(optimize=goal))
    real = built(compiled)
    assert abs(likely_code_bytes(compiled.program, compiled.board) - real) < 1200
    assert max_code_bytes(compiled.program, compiled.board) > real


@pytest.mark.parametrize("name", ["mnist_cntk", "pt_tcn_dynamo"])
@pytest.mark.parametrize("board", ["rp2040", "esp32c3", "nrf5340_net"])
def test_arithmetic_of_floats_counts_where_the_cpu_has_none(name: str, board: str) -> None:
    """The bound was up to 4.5 KB below."""
    compiled = compile_model(MODELS / f"{name}.onnx", board, CompileOptions(optimize="flash"))
    assert max_code_bytes(compiled.program, compiled.board) > built(compiled) - 64


@pytest.mark.parametrize("board", ["nrf52840", "rp2040", "nrf5340_net"])
def test_plain_c_uses_the_fpu(board: str) -> None:
    """Kernels in plain C have no CPU features, but the compiler has an FPU: it needs no functions for floats."""
    options = CompileOptions(optimize="flash", family=PORTABLE)
    compiled = compile_model(MODELS / "mnist_cntk.onnx", board, options)
    target = target_of(compiled.board, options)
    assert "fpu" not in target.features
    assert (HARD_FLOATS in target.features) == ("fpu" in compiled.board.features)
    estimate, bound = (count(compiled.program, target) for count in (likely_code_bytes, max_code_bytes))
    assert abs(estimate - built(compiled)) < 1200
    assert bound == max_code_bytes(compiled.program, compiled.board) > built(compiled) - 64


def test_what_fits_as_built_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bound nothing fits into so much flash; without a compiler that is all that is known."""
    free = compile_model(DS_CNN, BOARD, CompileOptions(optimize="flash"))
    need = free.program.weights_size + built(free)
    assert need + 3000 < use_of(free.program, free.board, free.options).flash
    options = CompileOptions(optimize="flash", max_flash=need + 200)
    found = compile_model(DS_CNN, BOARD, options)
    assert found.report.budget is not None
    assert found.report.budget.step == REQUESTED_CANDIDATE_NAME
    assert found.program.weights_size + built(found) <= need + 200
    assert found.report.budget.flash_estimate <= need + 200
    monkeypatch.setattr(searched, "measure_code_bytes", lambda *_, **__: None)
    with pytest.raises(DoesNotFitError, match="bytes of flash"):
        compile_model(DS_CNN, BOARD, options)


def test_near_a_limit_kernels_are_chosen_by_code_as_it_is_built() -> None:
    """By the bound that is 42.8 million instructions, three times as many: it asks for 2.2 KB less."""
    found = compile_model(RESNET8, BOARD, CompileOptions(optimize="flash", max_flash=86_664))
    assert (found.program.instructions_estimate or 0.0) < 15e6
    assert found.program.weights_size + built(found) <= 86_664
    assert found.report.budget is not None and found.report.budget.step == "kernels chosen for the budget"


@pytest.mark.parametrize(
    ("price", "kernel", "tried", "taken"),
    [
        (2.0, "conv2d_s8", ["hardly", "nearly"], "nearly"),
        (1.2, "conv2d_s8", ["hardly"], "surely"),
        (2.0, DECODE_WEIGHTS, [], "surely"),
    ],
)
def test_what_may_fit_is_built_where_what_does_is_dear(price: float, kernel: str, tried: list[str], taken: str) -> None:
    """But for weights by a code, which a limit of flash asks for."""

    def made(name: str, time: float, flash: int) -> ProgramCandidate:
        program = SimpleNamespace(instrs=[SimpleNamespace(kernel=kernel)])
        return ProgramCandidate(name, BuiltProgram(cast("Program", program)), Metrics(time, None, 0.0, Use(0, flash)))

    built_ones = list[str]()

    def smaller(candidate: ProgramCandidate) -> ProgramCandidate:
        built_ones.append(candidate.name)
        return replace(candidate, metrics=replace(candidate.metrics, use=Use(0, candidate.use.flash - 20)))

    candidates = [made("hardly", 90.0, 130), made("nearly", 100.0, 110), made("surely", 100.0 * price, 90)]
    found = cheapest(candidates, Budget(flash=100), built=smaller)
    assert found.name == taken
    assert built_ones == tried
    assert cheapest(candidates, Budget(flash=100)).name == "surely"


def test_code_as_built_counts_where_no_copy_of_weights_fits() -> None:
    """The program by decompression fits as built only; the copies before its layers find no room in its arena."""
    found = compile_model(RESNET8, BOARD, CompileOptions(max_flash=86_069))
    assert found.report.budget is not None and found.report.budget.flash_estimate <= 86_069
    assert any(instr.kernel == DECODE_WEIGHTS for instr in found.program.instrs)


def test_boards_have_room_for_what_fits_as_built() -> None:
    free = compile_model(DS_CNN, BOARD, CompileOptions(optimize="flash"))
    board = load_board(BOARD)
    size = free.program.weights_size + built(free) + 200
    small = [replace(m, size=size) if m.kind == "flash" else m for m in board.memories]
    found = compile_model(DS_CNN, replace(board, memories=tuple(small)), free.options)
    assert found.bundle.files.keys() == free.bundle.files.keys()
    assert found.report.notes == free.report.notes
    assert found.program.weights_size == free.program.weights_size


def test_what_cannot_fit_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[object]()
    monkeypatch.setattr(searched, "measure_code_bytes", lambda *given, **_: calls.append(given))
    with pytest.raises(DoesNotFitError, match=r"the least is about 3[0-3],\d\d\d bytes of flash"):
        compile_model(DS_CNN, BOARD, CompileOptions(optimize="flash", max_flash=20_000))
    assert not calls


def test_alternatives_tell_what_is_likely() -> None:
    compiled = compile_model(DS_CNN, BOARD, CompileOptions(optimize="flash"))
    other = partial(compile_model, DS_CNN, BOARD, CompileOptions(optimize="balanced"))
    (own, balanced) = compare_alternatives(compiled, {"--optimize balanced": other}, lambda *_: None)
    for told, made in ((own, compiled), (balanced, other())):
        assert told.flash_estimate is not None
        assert abs(told.flash_estimate - made.program.weights_size - built(made)) < 1200
