# SPDX-License-Identifier: Apache-2.0
"""What is Xtensa's own: its code and timings, the counter, stacks, soft floats, and boards that an LX106 stands for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from tiny_models import tiny

from mcugen.core.board import load_board
from mcugen.core.errors import VerificationError
from mcugen.driver.compiler import compile_model
from mcugen.simulation import simulate
from mcugen.simulation.build import build_target
from mcugen.simulation.machines import find_machine
from mcugen.simulation.stack import stack_bound
from mcugen.simulation.timer import CCount
from mcugen.simulation.timings import TIMINGS
from mcugen.simulation.xtensa import parse, refill

ONE = [{"x": np.arange(16, dtype=np.int8)}]
needs_xtensa = pytest.mark.skipif(
    any(shutil.which(program) is None for program in ("xtensa-lx106-elf-gcc", "qemu-system-xtensa")),
    reason="needs xtensa-lx106-elf-gcc and qemu-system-xtensa",
)


def float_model() -> onnx.ModelProto:
    return parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        net (float[1, 8] x) => (float[1, 4] y)
        <float[8, 4] w = {1, -2, 3, -4, 5, -6, 7, -8, 9, 1, -1, 2, -2, 3, -3, 4,
                          -4, 5, -5, 6, -6, 7, -7, 8, -8, 9, -9, 1, 2, 3, 4, 5}> { p = MatMul(x, w) y = Softmax(p) }"""
    )


def test_instructions_name_registers_units_and_targets():
    lines = [
        "50000400:\t0238      \tl32i.n\ta3, a2, 0",
        "50000402:\tfffa21        \tl32r\ta2, 500003ec <x+0x8> (50002000 <y>)",
        "50000405:\t203b        \tmull\ta4, a3, a2",
        "50000408:\t000d42        \ts8i\ta4, a13, 3",
        "5000040b:\t0216d7        \tbeq\ta6, a13, 50000413 <net_run+0x13>",
        "5000040e:\t0009c5        \tcall0\t50001dcc <__muldi3>",
        "50000411:\tf00d      \tret.n",
        "50000413:\t00          .byte 00",
    ]
    load, constant, product, store, branch, call, end = parse(lines)
    assert [i.unit for i in (load, constant, product, store, branch, call, end)] == [
        *("memory", "memory", "multiply", "memory", "branch", "branch", "branch")
    ]
    assert (load.size, load.mnemonic, load.results, load.address_registers) == (2, "l32i", {"a3"}, {"a2"})
    assert (store.size, store.is_store, store.results, store.address_registers) == (3, True, frozenset(), {"a13"})
    assert (branch.target, call.target, end.target) == (0x50000413, 0x50001DCC, None)
    assert product.registers == ("a4", "a3", "a2")
    assert refill(branch, load, stages=5, loops=False) == 2
    assert refill(branch, load, stages=7, loops=True) == 0  # A loop's end.
    assert refill(call, load, stages=7, loops=True) == 3


@pytest.mark.parametrize(("core", "cycles"), [("esp32s3", 3), ("esp32", 4), ("lx106", 3)])
def test_a_load_stalls_by_the_stages_of_the_pipeline(core: str, cycles: int):
    use = list(parse(["0:\t0238      \tl32i.n\ta3, a2, 0", "2:\t203b        \tadd.n\ta4, a3, a2"]))
    assert TIMINGS[core].cycles(use) == cycles


@pytest.mark.parametrize("begin", [0, 17, 2**32 - 5])
@pytest.mark.parametrize("instructions", [0, 1, 2, 1000, 1_600_000_000])
def test_the_counter_wraps_and_rounds(begin: int, instructions: int):
    after = (begin + instructions * 64 * 40 // 1000) % 2**32
    for rounding in (0, 1):
        assert CCount(40_000_000).between((begin, 1, 1), ((after + rounding) % 2**32, 1, 1)) in (
            *(instructions, instructions + (rounding if instructions * 2560 % 1000 == 0 else 0)),
        )


@needs_xtensa
def test_a_float_model_runs_with_cycles_of_the_core():
    model, cycles = float_model(), {}
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
    products = x @ onnx.numpy_helper.to_array(model.graph.initializer[0])
    expected = np.exp(products - products.max()) / np.exp(products - products.max()).sum()
    for name in ("xtensa", "esp32", "esp32s2", "esp32s3"):
        compiled = compile_model(model, name)
        run = simulate(compiled.bundle, compiled.board, [{"x": x}], cycles=True)
        np.testing.assert_allclose(run.outputs[0]["y"], expected, rtol=1e-5, atol=1e-7)
        assert run.cycles is not None
        assert run.cycles.total is not None
        cycles[name] = run.cycles.total
        assert run.instructions is not None
        assert run.cycles.total < run.instructions  # Calls of soft floats count as instructions, or as libgcc's.
    assert cycles["esp32s3"] < cycles["esp32"] < cycles["esp32s2"] < cycles["xtensa"]


@needs_xtensa
def test_faults_name_the_function():
    with pytest.raises(VerificationError, match="exception 0 in tiny_run"):  # An illegal instruction.
        simulate(tiny('(void)arena; __asm__ volatile("ill"); return 0;'), load_board("xtensa"), ONE)


@needs_xtensa
def test_stacks_are_bounded(tmp_path: Path):
    board = load_board("xtensa")
    images = build_target(compile_model(float_model(), board).bundle, board, find_machine(board), tmp_path, hooks=False)
    bound = stack_bound(images.model, "net_run", find_machine(board).toolchain)
    assert bound.reason == ""
    assert bound.bytes is not None
    assert bound.bytes % 16 == 0  # The ABI aligns frames.
