# SPDX-License-Identifier: Apache-2.0
"""Branches of networks that two cores compute side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_models import Net
from test_random_splits import on_two_threads
from two_cores import two_cores

from mcugen.core.board import load_board
from mcugen.core.errors import VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.lir.program import Control
from mcugen.memory.verify_plan import verify_plan
from mcugen.simulation.both_cores import run_on_both_cores


def towers(net: Net, x: str, count: int, numbers: np.random.Generator) -> list[str]:
    """A layer of many inputs, and branches behind it: layers so narrow that portions of them hardly pay."""
    w = net.dequantize(net.const(numbers.integers(-127, 128, (1024, 12)), np.int8), 0.001)
    stem = net.quantize(net.op("MatMul", net.dequantize(x, 0.05, 3), w), 0.05, 3)
    found = []
    for _ in range(count):
        y = net.dequantize(stem, 0.05, 3)
        for _ in range(4):
            w = net.dequantize(net.const(numbers.integers(-127, 128, (12, 12)), np.int8), 0.004)
            y = net.dequantize(net.quantize(net.op("MatMul", y, w), 0.06, -2), 0.06, -2)
        found.append(y)
    return found


def inception() -> Net:
    """Three branches of one input, which meet."""
    net, numbers = Net(opset=17), np.random.default_rng(0)
    x = net.input("x", 1, 1024, dtype=np.int8)
    joined = net.op("Concat", *towers(net, x, 3, numbers), axis=1)
    net.output(net.quantize(joined, 0.06, -2, out="y"), dtype=np.int8)
    return net


def two_heads() -> Net:
    """A layer, and two heads that end as outputs."""
    net, numbers = Net(opset=17), np.random.default_rng(1)
    x = net.input("x", 1, 1024, dtype=np.int8)
    for index, y in enumerate(towers(net, x, 2, numbers)):
        net.output(net.quantize(y, 0.06, -2, out=f"y{index}"), dtype=np.int8)
    return net


def compiled(net: Net) -> CompiledModel:
    return compile_model(net.model(), two_cores("rp2040"), CompileOptions("net", cores=2))


@pytest.mark.parametrize("net", [inception, two_heads])
def test_branches_side_by_side(net: object, tmp_path: Path) -> None:
    """The bits of the reference under ThreadSanitizer, within a tenth more RAM."""
    model = compiled(net())  # type: ignore[operator]
    forks = [instr for instr in model.program.instrs if instr.control is Control.FORK]
    assert [fork.op for fork in forks].count("branches") == 1
    one = compile_model(model.model, two_cores("rp2040"), CompileOptions("net"))
    assert model.program.arena_size <= 1.1 * (one.program.arena_size + 300)
    assert model.report.model.macs == one.report.model.macs
    feeds = {"x": np.random.default_rng(2).integers(-128, 128, (1, 1024)).astype(np.int8)}
    found = on_two_threads(model, feeds, tmp_path)
    for name, expected in interpret(model.graph, feeds).items():
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.qemu
def test_branches_on_both_cores_of_a_chip(tmp_path: Path) -> None:
    """The bits of one core, and two heads that are alike take both cores as long."""
    model = compiled(two_heads())
    feeds = {"x": np.random.default_rng(2).integers(-128, 128, (1, 1024)).astype(np.int8)}
    run = run_on_both_cores(model.bundle, load_board("rp2040"), feeds, tmp_path)
    for name, expected in interpret(model.graph, feeds).items():
        np.testing.assert_array_equal(run.together[name], expected)
    sides = run.forks[-1]
    assert abs(sides.first - sides.other) < 0.02 * sides.first


def test_branches_share_no_memory() -> None:
    program = compiled(two_heads()).program
    middle = next(n for n, i in enumerate(program.instrs) if i.control is Control.ELSE)
    ours, theirs = (program.instrs[n].operand("y").buffer for n in (middle - 1, middle + 1))
    theirs.offset = ours.offset
    with pytest.raises(VerificationError):
        verify_plan(program)
