# SPDX-License-Identifier: Apache-2.0
"""Which memories a program gets, and what is said where none is large enough."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from onnx_models import Net

from mcugen import compile_model
from mcugen.board import Board, Memory, load_board
from mcugen.errors import DoesNotFitError
from mcugen.hir.types import DType
from mcugen.lir.place import place
from mcugen.lir.plan import plan_memory
from mcugen.lir.program import Access, Buffer, Operand, Program, Space

from .programs import Sketch, chain


def board(arena: str = "fast", **sizes: int) -> Board:
    """RAM `fast` and `slow`, flash `rom`, of these sizes."""
    memories = (
        Memory("fast", "ram", 0x2000_0000, sizes.get("fast", 64), 1),
        Memory("slow", "ram", 0x3000_0000, sizes.get("slow", 256), 3),
        Memory("rom", "flash", 0x0800_0000, sizes.get("rom", 512), 2),
    )
    return replace(load_board("rt1060"), name="toy", memories=memories, arena_memory=arena, weights_memory="rom")


def planned(sketch: Sketch, weights: int = 0) -> Program:
    program = sketch.program
    if weights:
        constant = Buffer("weights of the layer", DType.INT8, weights, Space.CONST)
        program.buffers.append(constant)
        program.instrs[0].operands = (*program.instrs[0].operands, Operand("w", Access.IN, constant))
    plan_memory(program)
    return program


def test_the_boards_own_choice_comes_first():
    assert place(planned(chain(16, 16)), board("slow")).arenas[0].name == "slow"


def test_a_larger_memory_where_that_is_too_small():
    assert place(planned(chain(64, 64)), board()).arenas[0].name == "slow"


def test_exactly_full_fits():
    assert place(planned(chain(32, 32), weights=512), board()).arenas[0].name == "fast"


def test_an_arena_that_does_not_fit_names_the_bytes_and_the_largest_buffers():
    sketch = Sketch()
    sketch.input("x", 160)
    sketch.step("small", "x", nbytes=16)
    sketch.step("large", "x", "small", nbytes=128, scratch=32)
    sketch.output("large")
    with pytest.raises(DoesNotFitError) as error:
        place(planned(sketch), board())
    assert error.value.exit_code == 5
    assert error.value.rule == "the arena must fit in one RAM memory of board 'toy'"
    assert error.value.found == (
        "336 bytes, 80 more than 'slow' has; largest: 'x' 160 bytes, 'large' 128 bytes, 'large.scratch' 32 bytes"
    )
    assert "quantized" in error.value.remedy


def test_weights_that_do_not_fit():
    with pytest.raises(DoesNotFitError, match=r"the weights must fit.* 10 more than 'rom'.*'weights of the layer' 522"):
        place(planned(chain(16, 16), weights=522), board())


def test_compile_model_refuses_what_does_not_fit():
    net = Net()
    net.output(net.op("Relu", net.input("x", 100_000)))
    with pytest.raises(DoesNotFitError, match=re.escape("more than 'sram' has; largest: ")):
        compile_model(net.model(), "stm32f103")


def test_weights_as_large_as_the_flash():
    net = Net()
    net.output(net.op("MatMul", net.input("x", 1, 64), net.const(np.random.default_rng(0).random((64, 2048)))))
    with pytest.raises(DoesNotFitError, match="the weights must fit"):
        compile_model(net.model(), "stm32f103")
