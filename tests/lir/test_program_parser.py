# SPDX-License-Identifier: Apache-2.0
"""What the printer writes of programs is read again: the same text, and the same plan; what cannot be read says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_graphs import random_model
from shared_models import MODELS

from mcugen import CompileOptions, compile_model
from mcugen.errors import UsageError
from mcugen.lir.parser import parse_program
from mcugen.lir.printer import print_program
from mcugen.lir.program import Program
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan

GOLDEN = Path(__file__).parents[1] / "golden" / "small.lir"


def assert_read_again(program: Program) -> Program:
    text = print_program(program)
    again = parse_program(text)
    assert print_program(again) == text
    verify_plan(again)
    return again


@pytest.mark.parametrize("seed", range(8))
def test_random_models(seed: int):
    program = compile_model(random_model(seed).model).program
    again = assert_read_again(program)
    plan_memory(again)
    assert again.arena_size == program.arena_size


@pytest.mark.spread(3)
@pytest.mark.shared
@pytest.mark.parametrize("goal", ["balanced", "ram"])
@pytest.mark.parametrize("name", ["resnet8_cifar10_int8_qdq", "pt_bilstm_legacy"])
def test_shared_models(name: str, goal: str):
    """Layers row by row, loops, overlaps and groups among them."""
    again = assert_read_again(compile_model(MODELS / f"{name}.onnx", "nrf52840", CompileOptions(optimize=goal)).program)
    planned = again.arena_size
    for buffer in again.buffers:
        buffer.offset = None
    plan_memory(again)
    assert again.arena_size == planned


@pytest.mark.shared
def test_layers_of_two_cores():
    """Forks, portions made aside, and some channels of pixels."""
    model = MODELS / "mobilenet_v1_025_vww_int8_qdq.onnx"
    program = compile_model(model, "rp2040", CompileOptions(cores=2)).program
    again = assert_read_again(program)
    assert sum(o.lanes is not None for i in again.instrs for o in i.operands) > 20


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("graph net {\n}", 1, "'program NAME {'"),
        ("program net {\n  arena %x int8\n}", 2, "a buffer or an instruction"),
        ("program net {\n  arena %x : int8[4]\n    0: f @in x=%y {}\n}", 3, "operands that are buffers above"),
    ],
)
def test_what_cannot_be_read_names_its_line(text: str, line: int, wanted: str):
    with pytest.raises(UsageError, match=rf"line {line} .*{wanted}"):
        parse_program(text)


def test_names_and_options_of_any_kind():
    text = GOLDEN.read_text().replace("%t2", '%"a, b {c} | \\"d\\""').replace("steps=exp", "steps='}, | ='")
    assert print_program(parse_program(text)) == text
