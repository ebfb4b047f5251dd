# SPDX-License-Identifier: Apache-2.0
"""Checks of calls of CMSIS-NN, whose arguments a strict reference implementation verifies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from cmsis_nn_library import IS_REAL, library
from compilers import assert_accepted_in_turn
from onnx_models import random_feeds
from rotation import in_turn

from mcugen.core.board import load_board
from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.lir.program import Instr, Program

BOARDS = ("rp2040", "stm32f103", "nrf52840", "corstone300")
"""Names of boards, one for each variant of CMSIS-NN: plain C on two CPUs, DSP, Helium."""

TRANSPOSE = "cmsis_transpose_s8"
"""Name of the kernel that calls CMSIS-NN's transposition."""

BUILDS: tuple[tuple[str, ...], ...] = ((),) if IS_REAL else ((), ("REFERENCE_SINGLE_ROUNDING",))
"""Macros of each build of the library: it rounds requantized values twice, unless it was built to round once."""


def check_library(
    model: onnx.ModelProto,
    wanted: Mapping[str, int],
    boards: tuple[str, ...] = BOARDS[2:],
    **options: Any,
) -> None:
    """Check that a model calls kernels of the library so many times, with results that equal numpy's to the last bit.

    Transpositions, which stand at a model's border, count only if they are named. The results are within one step of
    those of mcugen's own kernels on the same input. Boards, and builds of the library for this computer, take turns:
    one each for a model, all in the sweep.

    Args:
        model: The model.
        wanted: Number of calls by kernel.
        boards: Names of boards.
        **options: Further CompileOptions; kernels in `kernels` are used wherever they fit.
    """
    compiled = compile_model(model, "host", CompileOptions(family=CMSIS_NN, **options))
    calls = Counter(i.kernel for i in compiled.program.instrs if i.library)
    assert {name: count for name, count in calls.items() if name in wanted or name != TRANSPOSE} == dict(wanted)
    feeds = random_feeds(model)
    expected = compiled.interpret(feeds)
    for name, own in interpret(compiled.graph, feeds).items():
        assert np.abs(own.astype(int) - expected[name]).max(initial=0) <= 1, name
    key = model.SerializeToString(deterministic=True)
    for macros in in_turn(BUILDS, key):
        run = linked(compiled, *macros).simulate([feeds], measure=False, sanitize=True)
        _assert_equal(run.outputs[0], expected)
    _check_warnings(compiled)
    for board in in_turn(boards, key):
        check_board(model, board, **options)


def check_board(model: onnx.ModelProto, board: str, **options: Any) -> None:
    """Check that the model has the same results under QEMU, by the library's variant for the board's CPU."""
    compiled = compile_model(model, load_board(board), CompileOptions(family=CMSIS_NN, **options))
    feeds = random_feeds(model)
    run = linked(compiled).simulate([feeds], measure=False)
    _assert_equal(run.outputs[0], compiled.interpret(feeds))


def calls_of(program: Program) -> list[Instr]:
    """Return a program's calls of the library, without transpositions."""
    return [instr for instr in program.instrs if instr.library and instr.kernel != TRANSPOSE]


def linked(compiled: CompiledModel, *macros: str) -> CompiledModel:
    """Return the model with the library that it calls, as built for its board with `macros`."""
    return replace(compiled, options=replace(compiled.options, library=library(compiled.board, *macros)))


def _assert_equal(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def _check_warnings(compiled: CompiledModel) -> None:
    assert_accepted_in_turn(compiled.bundle, "-isystem", str(library(compiled.board).include.resolve()))


def skip_unless_reference() -> None:
    """Skip the test unless the library is the reference implementation."""
    if IS_REAL:
        pytest.skip("this is about the tests' own library")
