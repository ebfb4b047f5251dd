# SPDX-License-Identifier: Apache-2.0
"""What the printer writes of programs is read again: the same text, and the same plan; what cannot be read says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_graphs import random_model
from shared_models import MODELS

from mcugen.core.errors import UsageError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.lir.parser import parse_program
from mcugen.lir.printer import print_program
from mcugen.lir.program import Access, Control, Lanes, Operand, Overlap, Program
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


def test_what_the_text_says_is_what_the_program_has():
    program = parse_program(
        """
        program net {
          arena 96 (at least 64) bytes, weights 4 bytes
          input %x : int8[32] at 16 live -1..0
          const %w : int32[1]
          arena %y : float32[8] at 0 of area 1 live 0..1
          state %s : int8[4]
          output %z : int8[32]
          returns %y
            0: stream @in x=%x, @out y=%y {steps=2, events=[0, 1, 0]} over y/x 16 group 4
            1:   case {case=1}
            2:     f @in x=%x[4+8/16], @inout s=%s, @scratch w=%w, @out y=%z {a=1, b=-0.5 | c=[1, 2], d=e} REST
        }
        """.replace("REST", "over y/x -4 inplace y/s")
    )
    x, w, y, s, z = program.buffers
    assert (program.area_sizes, program.area_bounds) == ([96], [64])
    assert (x.offset, x.area, y.offset, y.area, w.offset) == (16, 0, 0, 1, None)
    assert w.data is not None and w.data.tolist() == [0]
    assert [[e.name for e in ends] for ends in (program.inputs, program.outputs, program.states)] == [
        ["x"],
        ["z", "y"],
        ["s"],
    ]
    stream, case, f = program.instrs
    assert (stream.control, stream.events, stream.group, stream.params) == (Control.STREAM, (0, 1, 0), 4, {"steps": 2})
    assert (stream.overlaps, stream.inplace, stream.name) == ((Overlap("y", "x", 16),), (), "y")
    assert (case.control, case.case, case.params, case.name) == (Control.CASE, 1, {}, "case")
    assert f.operands == (
        Operand("x", Access.IN, x, Lanes(4, 8, 16)),
        Operand("s", Access.INOUT, s),
        Operand("w", Access.SCRATCH, w),
        Operand("y", Access.OUT, z),
    )
    assert (f.params, f.code) == ({"a": 1, "b": -0.5}, {"c": "[1, 2]", "d": "e"})
    assert (f.overlaps, f.inplace, f.group) == ((Overlap("y", "x", -4),), (("y", "x"), ("y", "s")), 0)
    assert (f.name, f.control, f.case, f.events) == ("s", Control.NONE, None, ())


@pytest.mark.parametrize(
    "text",
    ["", "program net {", "program net {\n  returns %y\n}", "program net {\n  arena 16 bytes\n}", "net {\n}"],
)
def test_texts_that_are_none_are_refused(text: str):
    with pytest.raises(UsageError, match="must have"):
        parse_program(text)
