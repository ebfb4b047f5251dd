# SPDX-License-Identifier: Apache-2.0
"""The fast paths of kernels, assembly included, build with gcc and clang, and run alike at every optimization level."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from measure_costs import BOARDS, convolutions, random_inputs, roomy
from targets import CPUS, clang

from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.simulation import simulate
from mcugen.simulation.build import build_target
from mcugen.simulation.machines import find_machine

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
SHAPES = (
    # height, width, channels in, out, kernel height, width, stride, groups
    (9, 7, 16, 16, 3, 3, 1, 1),
    (9, 9, 3, 6, 3, 3, 2, 1),
    (5, 5, 8, 16, 1, 1, 1, 1),
    (5, 5, 32, 20, 1, 1, 1, 1),
    (1, 1, 64, 10, 1, 1, 1, 1),
    (9, 8, 8, 8, 3, 3, 1, 8),
    (9, 8, 8, 8, 3, 3, 2, 8),
    (7, 7, 4, 4, 5, 5, 1, 4),
)


@cache
def compiled(kind: str, cpu: str) -> CompiledModel:
    """Once for all tests."""
    options = CompileOptions(name="net", optimize="speed")
    return compile_model(convolutions(kind, SHAPES), roomy(BOARDS[cpu]), options)


@pytest.mark.spread(11)
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", ["int8", "int16", "float32"])
def test_clang_takes_all_of_it(tmp_path: Path, cpu: str, kind: str) -> None:
    model = compiled(kind, cpu)
    command = clang(model.board)
    for name, text in model.bundle.files.items():
        (tmp_path / name).write_text(text)
    for level in ("-O0", "-O2"):
        subprocess.run([*command, *STRICT, level, "-c", "net.c", "-o", "net.o"], cwd=tmp_path, check=True)


@pytest.mark.qemu
def test_clang_takes_loads_from_before_an_address(tmp_path: Path) -> None:
    """Its assembler refuses the suffix that the GNU one needs there: `ldr.w r8, [r0, #-24]`."""
    model = compiled("int8", "cortex-m7")
    assert re.search(r'MCUGEN_WIDE " (r\d+|lr),\[r0,#-', model.bundle.files["net_kernels.h"])
    for name, text in model.bundle.files.items():
        (tmp_path / name).write_text(text)
    subprocess.run([*clang(model.board), *STRICT, "-O2", "-c", "net.c", "-o", "net.o"], cwd=tmp_path, check=True)


@pytest.mark.spread(8)
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("level", ["-O0", "-Os", "-O3"])
@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_results_do_not_depend_on_the_optimization_level(cpu: str, level: str, kind: str) -> None:
    model = compiled(kind, cpu)
    board = replace(model.board, cflags=(*model.board.cflags, level))
    sample = random_inputs(model)
    (found,) = simulate(model.bundle, board, [sample], measure=False).outputs
    for name, wanted in interpret(model.graph, sample).items():
        slack = 0.0 if kind == "int8" else 1e-5 * np.abs(wanted).max()
        np.testing.assert_allclose(found[name].reshape(wanted.shape), wanted, rtol=0, atol=slack, err_msg=name)


KEPT = re.compile(r"\b(s(1[6-9]|2\d|3[01])|d([89]|1[0-5])|q[4-7])\b")
"""Floating-point registers that a function must leave as they were."""


@pytest.mark.spread(4)
@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("kind", ["int8", "int16", "float32"])
def test_assembly_keeps_the_callers_registers(tmp_path: Path, cpu: str, kind: str) -> None:
    """Callers may hold anything there, and at -O3 they do."""
    model = compiled(kind, cpu)
    build_target(model.bundle, model.board, find_machine(model.board), tmp_path, hooks=False)
    command = ["arm-none-eabi-objdump", "-d", "--no-show-raw-insn", str(tmp_path / "model.elf")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^[0-9a-f]+ <((?:conv|depthwise|dense|pointwise)\w*)>:\n((?:.+\n)+)", listing, re.MULTILINE)
    texts = {name: re.sub(r"^.*?\t|<.*", "", text, flags=re.MULTILINE) for name, text in found}
    assert texts
    guilty = [name for name, text in texts.items() if KEPT.search(text) and "vpush" not in text]
    assert guilty == []
