# SPDX-License-Identifier: Apache-2.0
"""The dump of a program: buffers with places and lives, instructions with access marks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx_models import Net
from programs import chain

from mcugen.driver.compiler import compile_model
from mcugen.lir.printer import print_program
from mcugen.memory.plan import plan_memory


def test_golden_dump(golden: Callable[[str, str], None]):
    net = Net()
    x = net.input("x", 1, 2, 4, 4)
    conv = net.op("Relu", net.op("Conv", x, net.const(np.arange(72).reshape(4, 2, 3, 3) / 8, name="w")))
    joined = net.op("Concat", net.op("Exp", conv), conv, axis=1)
    net.output(net.op("Pad", joined, net.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64), out="y"))
    golden("small.lir", print_program(compile_model(net.model()).program))


def test_before_planning_there_are_no_addresses():
    program = chain(16, 32).program
    assert print_program(program).splitlines() == [
        "program sketch {",
        "  arena 0 bytes, weights 0 bytes",
        "  input %x0 : int8[16] live -1..0",
        "  arena %x1 : int8[32] live 0..1",
        "  returns %x1",
        "    0: kernel @in x0=%x0, @out y=%x1 {}",
        "}",
    ]
    plan_memory(program)
    assert "  arena %x1 : int8[32] at 0 live 0..1" in print_program(program).splitlines()


def test_parameters_and_code_are_shown():
    program = chain(16, 16).program
    program.instrs[0].params = {"count": 3, "low": -0.5}
    program.instrs[0].code = {"rank": 2}
    assert "{count=3, low=-0.5 | rank=2}" in print_program(program)
