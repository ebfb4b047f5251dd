# SPDX-License-Identifier: Apache-2.0
"""PRelu of int8 by channel: a table a channel where there are pixels enough, with the bits of the loop without."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Net

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

SLOPES = np.asarray([-1.5, -0.2, 0, 0.25, 1, 3.1, -0.01])


def net(zero: int, scale: float, size: int = 16, slopes: np.ndarray = SLOPES) -> onnx.ModelProto:
    """All codes pass each channel; pixels and channels are no multiples of anything."""
    made = Net()
    made.input("q", 1, size, size - 1, len(slopes), dtype=np.int8)
    y = made.op("PRelu", made.dequantize("q", 0.031, zero), made.const(slopes))
    made.output(made.quantize(y, scale, -7, out="y"), dtype=np.int8)
    return made.model()


def codes(size: int = 16, channels: int = len(SLOPES)) -> dict[str, np.ndarray]:
    """One after the other."""
    return {"q": np.resize(np.arange(-128, 128), (1, size, size - 1, channels)).astype(np.int8)}


def kernels(model: onnx.ModelProto, optimize: str = "balanced") -> set[str]:
    """Of a compilation for a Cortex-M4."""
    compiled = compile_model(model, "nrf52840", CompileOptions(optimize=optimize))
    return {instr.kernel for instr in compiled.program.instrs}


@pytest.mark.parametrize("zero", [-128, -5, 0, 3, 127])
@pytest.mark.parametrize("scale", [0.027, 0.3])
def test_tables_have_the_bits_of_the_reference(zero: int, scale: float):
    model = net(zero, scale)
    assert kernels(model) == {"prelu_s8"}
    compiled = compile_model(model)
    (found,) = compiled.run({"q": codes()["q"][None]}, sanitize=True).values()
    np.testing.assert_array_equal(found[0], interpret(compiled.graph, codes())["y"])


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "corstone300", "rp2040", "rv32imc"])
@pytest.mark.parametrize("zero", [-128, 3, 127])
def test_tables_have_the_same_bits_on_every_cpu(board: str, zero: int):
    compiled = compile_model(net(zero, 0.027), board)
    assert {instr.kernel for instr in compiled.program.instrs} == {"prelu_s8"}
    (found,) = compiled.simulate([codes()], measure=False).outputs
    np.testing.assert_array_equal(found["y"], interpret(compiled.graph, codes())["y"])


def test_a_loop_stays_where_a_table_is_not_worth_its_time_or_its_memory():
    assert kernels(net(3, 0.027, size=9)) == {"elementwise"}
    assert kernels(net(3, 0.027), optimize="ram") == {"elementwise"}


def test_slopes_of_lines_stay_a_loop():
    made = Net(21)
    x = made.fake(made.input("x", 1, 6, 16, 16), 0.031, 3)
    slopes = made.const(np.linspace(-1, 1, 16).reshape(1, 16, 1))
    made.output(made.fake(made.op("PRelu", x, slopes), 0.027, -7))
    assert "prelu_s8" not in kernels(made.model())
