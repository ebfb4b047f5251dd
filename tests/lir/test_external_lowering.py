# SPDX-License-Identifier: Apache-2.0
"""Buffers of the caller's, as text before and after: what is moved to them or from them is not moved any more."""

from __future__ import annotations

import pytest

from mcugen.core.errors import VerificationError
from mcugen.lir.external import lend_buffers
from mcugen.lir.formula import Atom, Polynomial
from mcugen.lir.parser import parse_program
from mcugen.lir.printer import print_program
from mcugen.lir.program import Program


def program(buffers: str, *instrs: str) -> Program:
    """A program of buffers of 16 bytes, `space name` each, and of these instructions."""
    lines = [f"{space} %{name} : int8[16]" for space, name in (each.split(" ") for each in buffers.split(", "))]
    numbered = [f"{number}: {instr}" for number, instr in enumerate(instrs)]
    return parse_program("\n".join(["program net {", "arena 0 bytes, weights 0 bytes", *lines, *numbered, "}"]))


def lent(buffers: str, *instrs: str) -> list[str]:
    """The instructions when the caller has lent its buffers; a copy at the end is told by its operands."""
    made = program(buffers, *instrs)
    lend_buffers(made)
    assert [e.buffer.space.value for e in (*made.inputs, *made.outputs)] == ["given"] * len(made.inputs) + [
        "taken"
    ] * len(made.outputs)
    lines = [line.strip().partition(": ")[2] for line in print_program(made).splitlines() if line.startswith("    ")]
    return [line.strip().partition(" {")[0] for line in lines]


MOVE = "move @in x=%{}, @out y=%{} {{nbytes=16}}"
STEP = "f @in x=%{}, @out y=%{} {{}}"
IN_AND_OUT = "input x, arena a, arena b, output y"


def test_what_moves_an_input_reads_the_callers():
    found = lent(IN_AND_OUT, MOVE.format("x", "a"), STEP.format("a", "b"), STEP.format("b", "y"))
    assert found == ["f @in x=%x, @out y=%b", "f @in x=%b, @out y=%y"]


def test_what_is_moved_to_an_output_is_written_there():
    found = lent(IN_AND_OUT, STEP.format("x", "a"), STEP.format("a", "b"), MOVE.format("b", "y"))
    assert found == ["f @in x=%x, @out y=%a", "f @in x=%a, @out y=%y"]


def test_a_copy_of_an_input_that_is_renewed_stays():
    """The caller's own is only read."""
    steps = (MOVE.format("x", "a"), "f @in x=%x, @inout y=%a {}", STEP.format("a", "y"))
    assert lent("input x, arena a, output y", *steps) == [
        "move @in x=%x, @out y=%a",
        "f @in x=%x, @inout y=%a",
        "f @in x=%a, @out y=%y",
    ]


def test_what_is_renewed_behind_its_move_to_an_output_stays_apart():
    steps = (STEP.format("x", "a"), MOVE.format("a", "y"), STEP.format("x", "a"), STEP.format("a", "z"))
    assert lent("input x, arena a, output y, output z", *steps)[1] == "move @in x=%a, @out y=%y"


def test_an_output_of_which_others_use_the_buffer_stays_apart():
    steps = (STEP.format("x", "a"), MOVE.format("a", "y"), STEP.format("y", "z"))
    assert lent("input x, arena a, output y, output z", *steps)[1] == "move @in x=%a, @out y=%y"


def test_what_is_read_behind_its_move_to_an_output_is_read_there():
    steps = (STEP.format("x", "a"), MOVE.format("a", "y"), STEP.format("a", "z"))
    assert lent("input x, arena a, output y, output z", *steps) == ["f @in x=%x, @out y=%y", "f @in x=%y, @out y=%z"]


def test_an_input_is_copied_to_an_output():
    assert lent("input x, output y", MOVE.format("x", "y")) == ["move @in x=%x, @out y=%y"]


@pytest.mark.parametrize(
    "move",
    [
        "move @in x=%x, @out y=%a {nbytes=8, x_at=0, y_at=0}",  # half
        "move @in x=%x, @out y=%a {nbytes=8, x_at=8, y_at=0}",
        "copy @in x=%x, @out y=%a {run=16}",  # another kernel
    ],
)
def test_what_is_no_move_of_all_stays(move: str):
    found = lent("input x, arena a, output y", move, STEP.format("a", "y"))
    assert found == [move.partition(" {")[0], "f @in x=%a, @out y=%y"]


def test_parts_of_other_sizes_stay():
    text = "program net {\n input %x : int8[16]\n arena %a : int8[32]\n output %y : int8[16]\n"
    made = parse_program(f"{text} 0: {MOVE.format('x', 'a')}\n 1: {STEP.format('a', 'y')}\n}}")
    lend_buffers(made)
    assert len(made.instrs) == 2
    made = parse_program(f"{text.replace('int8[32]', 'uint8[16]')} 0: {MOVE.format('x', 'a')}\n}}")
    lend_buffers(made)
    assert len(made.instrs) == 1, "an element of another type"


def test_what_is_moved_in_a_block_stays():
    """It may run several times, or never."""
    steps = ("for @out index=%i {steps=2}", MOVE.format("x", "a"), "end", STEP.format("a", "y"))
    found = lent("input x, arena a, arena i, output y", *steps)
    assert found[1] == "move @in x=%x, @out y=%a"


def test_an_output_in_another_memory_is_copied_at_the_end():
    text = (
        "program net {\n input %x : int8[16]\n const %c : int8[4]\n output %y : int8[16]\n"
        f" returns %c\n returns %x\n 0: {STEP.format('x', 'y')}\n}}"
    )
    made = parse_program(text)
    lend_buffers(made)
    assert [(e.name, e.buffer.name, e.buffer.nbytes) for e in made.outputs] == [
        ("y", "y", 16),
        ("c", "c.taken", 4),
        ("x", "x.taken", 16),
    ]
    assert [instr.kernel for instr in made.instrs] == ["f", "copy", "copy"]
    assert [[o.buffer.name for o in instr.operands] for instr in made.instrs[1:]] == [
        ["c", "c.taken"],
        ["x", "x.taken"],
    ]
    assert [instr.params["run"] for instr in made.instrs[1:]] == [4, 16]
    assert {e.buffer for e in made.outputs} <= set(made.buffers)


def test_an_input_that_is_written_to_is_refused():
    with pytest.raises(VerificationError, match="inputs must stay as they are"):
        lend_buffers(program("input x, output y", "f @in x=%y, @inout y=%x {}"))


def test_a_streamed_input_has_no_buffer():
    made = program("stream x, arena a, output y", STEP.format("a", "y"))
    lend_buffers(made)
    assert made.inputs[0].buffer.space.value == "stream"


@pytest.mark.parametrize(("role", "left"), [("x_at", ["move", "f"]), ("y_at", ["move", "f"]), ("nbytes", ["f"])])
def test_a_move_whose_parts_begin_elsewhere_at_other_sizes_stays(role: str, left: list[str]):
    made = program(IN_AND_OUT, MOVE.format("x", "a"), STEP.format("a", "y"))
    made.instrs[0].formulas = {role: Polynomial(((1, (Atom("n"),)),))}
    lend_buffers(made)
    assert [instr.kernel for instr in made.instrs] == left
