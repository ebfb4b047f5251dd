# SPDX-License-Identifier: Apache-2.0
"""Every board that comes with mcugen compiles an integer and a float model."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from mcugen.core.board import board_names, load_board
from mcugen.driver.compiler import compile_model
from mcugen.simulation.machines import find_machine
from mcugen.simulation.timings import TIMINGS

UNTIMED = (
    "ch32h417",
    "ch32v307",
    "bl616",
    "esp32p4",
    "esp32p4_v3",
    "generic16",
    "generic8",
    "host",
    "rv32imc",
    "rv32imafc",
)
"""Boards of cores that have no timing."""


@cache
def model(quantized: bool) -> onnx.ModelProto:
    """Return a model of a convolution and a dense layer, from and to int8 if it is quantized."""
    weights = ", ".join(str(n % 15 - 7) for n in range(2 * 3 * 3))
    dense = ", ".join(str(n % 11 - 5) for n in range(32 * 3))
    if not quantized:
        return parser.parse_model(
            f"""<ir_version: 10, opset_import: ["": 21]>
            net (float[1, 1, 4, 4] x) => (float[1, 3] y)
            <float[2, 1, 3, 3] k = {{{weights}}}, float[32, 3] w = {{{dense}}}>
            {{ c = Conv <pads = [1, 1, 1, 1]> (x, k) r = Relu(c) f = Flatten(r) y = MatMul(f, w) }}"""
        )
    return parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        net (int8[1, 1, 4, 4] q) => (int8[1, 3] y)
        <int8[2, 1, 3, 3] kq = {{{weights}}}, int8[32, 3] wq = {{{dense}}}, float s = {{0.05}}, int8 z = {{0}}>
        {{ x = DequantizeLinear(q, s, z) k = DequantizeLinear(kq, s, z) c = Conv <pads = [1, 1, 1, 1]> (x, k)
           r = Relu(c) rq = QuantizeLinear(r, s, z) rx = DequantizeLinear(rq, s, z) f = Flatten(rx)
           w = DequantizeLinear(wq, s, z) m = MatMul(f, w) y = QuantizeLinear(m, s, z) }}"""
    )


@pytest.mark.parametrize("name", board_names())
def test_a_board_compiles_integers_and_floats(name: str) -> None:
    board = load_board(name)
    for quantized in (True, False):
        compiled = compile_model(model(quantized), board)
        assert compiled.program.instrs
        kinds = {np.dtype(port.dtype).kind for port in (*compiled.bundle.inputs, *compiled.bundle.outputs)}
        assert kinds == ({"i"} if quantized else {"f"})
    assert bool(board.qemu) == (name not in ("host", "generic8", "generic16"))
    assert (board.core in TIMINGS) == (name not in UNTIMED)
    if board.qemu:
        assert find_machine(board).name == board.qemu


COMPILERS = {
    "generic8": ("avr-gcc", "-mmcu=atmega2560", "-include", str(Path(__file__).parents[1] / "avr_math.h")),
    "generic16": ("avr-gcc", "-mmcu=atmega2560", "-include", str(Path(__file__).parents[1] / "avr_math.h")),
    "esp32s3": ("xtensa-lx106-elf-gcc", "--specs=/usr/lib/xtensa-lx106-elf/picolibc.specs"),
}
"""Compilers that stand for those of boards: int of 16 bits, and Xtensa."""


@pytest.mark.parametrize("name", COMPILERS)
def test_code_compiles_without_warnings_where_only_another_compiler_is_there(name: str, tmp_path: Path) -> None:
    """Reports of generic8 and generic16 run on this computer; test_portability.py runs code of all kernels on AVR."""
    if shutil.which(COMPILERS[name][0]) is None:
        pytest.skip(f"needs {COMPILERS[name][0]}")
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
    for quantized in (True, False):
        bundle = compile_model(model(quantized), name).bundle
        for file, text in bundle.files.items():
            (tmp_path / file).write_text(text)
        for source in bundle.sources:
            command = (*COMPILERS[name], "-std=c99", "-O1", *warnings, "-c", source, "-o", "model.o")
            subprocess.run(command, cwd=tmp_path, check=True)
