# SPDX-License-Identifier: Apache-2.0
"""Moves of parts vanish where source and target can be one memory, and only there."""

from __future__ import annotations

import pytest
from programs import Sketch

from mcugen.hir.types import DType
from mcugen.lir.program import Access, Buffer, Control, Instr, Operand
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan


def planned(sketch: Sketch) -> Sketch:
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    return sketch


def copies(sketch: Sketch) -> list[str]:
    """The targets of moves that remain."""
    return [i.name for i in sketch.program.instrs if i.kernel == "move" and not i.moves_nothing]


def concat(sizes: list[int], late_reader: bool = False) -> Sketch:
    """x → each part → all; perhaps the first part is used again afterwards."""
    sketch = Sketch()
    sketch.input("x", 16)
    for index, nbytes in enumerate(sizes):
        sketch.step(f"p{index}", "x", nbytes=nbytes)
    sketch.buffer("all", sum(sizes))
    for index in range(len(sizes)):
        sketch.part(f"p{index}", "all", y_at=sum(sizes[:index]))
    sketch.step("y", "all", *["p0"] * late_reader)
    sketch.output("y")
    return sketch


def test_parts_are_computed_in_the_whole():
    sketch = planned(concat([32, 48, 16]))
    assert copies(sketch) == []
    whole = sketch.buffers["all"].offset
    assert whole is not None
    assert [sketch.buffers[f"p{i}"].offset for i in range(3)] == [whole, whole + 32, whole + 80]
    assert sketch.program.arena_size == sketch.program.arena_bound == 96 + 16


@pytest.mark.parametrize("staying", [1, 2])
def test_a_part_that_is_copied_in_any_case_has_a_place_of_its_own(staying: int):
    """Later ones, that is: the first may end its life where the whole begins."""
    sketch = concat([32, 48, 16])
    moves = [instr for instr in sketch.program.instrs if instr.kernel == "move"]
    moves[staying].stays = True
    planned(sketch)
    assert [move.moves_nothing for move in moves] == [number != staying for number in range(3)]


def test_a_part_that_is_used_later_is_copied():
    assert copies(planned(concat([32, 48, 16], late_reader=True))) == ["all"]


@pytest.mark.parametrize(("nbytes", "left"), [(20, []), (18, ["all"])])
def test_parts_begin_at_words(nbytes: int, left: list[str]):
    assert copies(planned(concat([nbytes, 16]))) == left


def test_parts_of_wide_elements_begin_at_such():
    sketch = Sketch()
    sketch.input("x", 16)
    for name, count in (("p", 3), ("all", 5)):
        sketch.buffers[name] = Buffer(name, DType.FLOAT64, count, sketch.buffers["x"].space)
        sketch.program.buffers.append(sketch.buffers[name])
    sketch.step("p", "x")
    sketch.part("p", "all", y_at=12)
    sketch.output("all")
    plan_memory(sketch.program)
    assert copies(sketch) == ["all"]


def split() -> Sketch:
    """x (32 bytes) → a, b, its halves."""
    sketch = Sketch()
    sketch.input("x0", 16)
    sketch.step("x", "x0", nbytes=32)
    for index, name in enumerate("ab"):
        sketch.buffer(name)
        sketch.part("x", name, x_at=16 * index)
    return sketch


def test_parts_of_a_whole_are_views_even_if_it_is_read_later():
    sketch = split()
    sketch.step("y", "x", "b", "a")
    sketch.output("y")
    planned(sketch)
    assert copies(sketch) == []
    assert sketch.program.arena_size == 32 + 16


def test_a_view_does_not_see_what_is_written_later():
    sketch = split()
    sketch.step("x", "x0", access=Access.INOUT)
    sketch.step("y", "x", "b")
    sketch.output("y")
    assert copies(planned(sketch)) == ["b"]


def test_what_is_written_later_is_no_view():
    sketch = split()
    sketch.step("b", "x0", access=Access.INOUT)
    sketch.step("y", "x", "b")
    sketch.output("y")
    assert copies(planned(sketch)) == ["b"]


def test_a_view_is_not_overwritten_in_place_while_the_whole_is_needed():
    sketch = split()
    sketch.step("c", "b", inplace=True)
    sketch.step("y", "x", "c")
    sketch.output("y")
    planned(sketch)
    assert copies(sketch) == []
    assert abs((sketch.buffers["c"].offset or 0) - (sketch.buffers["b"].offset or 0)) >= 16


def test_what_lies_beside_the_part_is_not_overwritten():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.buffer("y", 32)
    sketch.step("p", "x")
    sketch.part("p", "y")
    sketch.step("t", "x", nbytes=32)
    sketch.part("t", "y", x_at=16, y_at=16)
    sketch.output("y")
    assert copies(planned(sketch)) == ["y"]


def test_a_part_in_use_is_not_computed_in_its_place():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("window", "x", nbytes=32)
    sketch.step("row", "window", nbytes=16)
    sketch.part("row", "window", y_at=16)
    sketch.output("window")
    assert copies(planned(sketch)) == ["window"]


def test_a_part_is_not_computed_in_its_place_while_that_is_read():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("whole", "x", nbytes=32)
    sketch.step("part", "x")
    sketch.step("both", "part", "whole")
    sketch.part("part", "whole", y_at=16)
    sketch.step("y", "whole", "both")
    sketch.output("y")
    assert copies(planned(sketch)) == ["whole"]


def test_what_a_branch_may_leave_alone_is_not_overwritten_before_it():
    sketch = Sketch()
    sketch.input("x")
    sketch.input("c")
    sketch.step("y", "x")
    sketch.step("a", "x")
    cond = (Operand("cond", Access.IN, sketch.buffers["c"]),)
    sketch.program.instrs.append(Instr("if", "if", cond, control=Control.IF))
    sketch.part("a", "y")
    sketch.program.instrs.append(Instr("end", "end", (), control=Control.END))
    sketch.output("y")
    assert copies(planned(sketch)) == ["y"]


def stream(shift: bool) -> Sketch:
    """Rows of x go through a window of two rows into y, three times; perhaps the window moves on in between."""
    sketch = Sketch()
    sketch.input("x", 16)
    for name, nbytes in (("window", 32), ("y", 48)):
        sketch.buffer(name, nbytes)
    sketch.step("window", "x")
    ends = tuple(Operand(r, a, sketch.buffers[n]) for r, a, n in (("x", Access.IN, "x"), ("y", Access.OUT, "y")))
    events = (0, 1, 0, 1, 0, 1)
    sketch.program.instrs.append(Instr("stream", "stream", ends, events=events, control=Control.STREAM))
    for case in range(2):
        sketch.program.instrs.append(Instr("case", "case", (), case=case, control=Control.CASE))
        if case == 0:
            sketch.step("row", "x")
            if shift:
                sketch.step("window", access=Access.INOUT)
            sketch.part("row", "window", y_at=16)
        else:
            sketch.buffer("band")
            sketch.part("window", "band", x_at=16)
            sketch.step("put", "band")
            sketch.step("y", "put", access=Access.INOUT)
        sketch.program.instrs.append(Instr("end", "end", (), control=Control.END))
    sketch.program.instrs.append(Instr("end", "end", (), control=Control.END))
    sketch.output("y")
    return sketch


@pytest.mark.parametrize(("shift", "left"), [(False, []), (True, ["window"])])
def test_rows_are_made_in_their_window_unless_it_moves_on_meanwhile(shift: bool, left: list[str]):
    assert copies(planned(stream(shift))) == left


def test_a_window_is_kept_between_events():
    sketch = planned(stream(False))
    ranges = sketch.program.live_ranges()
    assert ranges[sketch.buffers["window"]][1] == len(sketch.program.instrs) - 1
    assert sketch.program.arena_size == sketch.program.arena_bound


def test_moves_join_only_if_that_saves_memory():
    """A view in the middle of a large tensor is in the way of another one."""
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("v")
    sketch.part("x", "v", x_at=16)
    sketch.step("a", nbytes=96)
    sketch.step("y", "a", "v", inplace=[0])
    sketch.output("y")
    planned(sketch)
    assert copies(sketch) == ["v"]
    assert sketch.program.arena_size == 96 + 16


def test_two_inputs_have_two_places_though_one_is_moved_over_the_other():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.input("y", 32)
    sketch.step("z", "y")
    sketch.part("x", "y")
    sketch.output("z")
    sketch.output("y")
    assert copies(planned(sketch)) == ["y"]
    del sketch.program.instrs[0]
    sketch.program.outputs = sketch.program.outputs[1:]
    sketch.program.buffers.remove(sketch.buffers["z"])
    assert copies(planned(sketch)) == ["y"]


@pytest.mark.parametrize(
    ("inplace", "lead", "y_at", "left"),
    [
        (True, None, 0, []),
        (False, None, 0, ["y"]),
        (False, 0, 0, []),
        (False, -16, 16, []),
        (False, 16, 0, ["y"]),
        (True, None, 16, ["y"]),
        (False, -16, 32, ["y"]),
    ],
)
def test_a_part_that_is_made_of_its_whole_is_made_in_its_place_if_its_kernel_allows_it(
    inplace: bool, lead: int | None, y_at: int, left: list[str]
):
    """Who computes it reads what was there before."""
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.step("y", "x", nbytes=48)
    sketch.step("part", "y", nbytes=16, inplace=inplace, lead=lead)
    sketch.part("part", "y", y_at=y_at)
    sketch.output("y")
    assert copies(planned(sketch)) == left


@pytest.mark.parametrize("control", [Control.NONE, Control.FOR])
def test_what_a_loop_names_is_not_made_in_place_of_what_it_reads(control: Control):
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.step("y", "x", nbytes=32)
    marker = sketch.step("part", "y", nbytes=32, inplace=True)
    if control is Control.FOR:
        marker.control, marker.params = control, {"steps": 2}
        sketch.step("part", "x", access=Access.INOUT)
        sketch.emit("end")
    sketch.part("part", "y")
    sketch.output("y")
    assert copies(planned(sketch)) == (["y"] if control is Control.FOR else [])


@pytest.mark.parametrize(("x_at", "y_at", "left"), [(0, 0, ["y"]), (16, 16, ["y"]), (16, 32, ["y"]), (16, 0, [])])
def test_what_lies_on_either_side_of_a_part_is_not_overwritten(x_at: int, y_at: int, left: list[str]):
    """Of twice as many bytes a half is moved to a tensor that has been written before; the other may lie before it."""
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("y", "x", nbytes=48)
    sketch.step("t", "x", nbytes=32)
    sketch.part("t", "y", x_at=x_at, y_at=y_at, nbytes=16)
    sketch.output("y")
    assert copies(planned(sketch)) == left


def test_a_part_of_what_was_a_part_itself_is_renewed_in_its_place():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("whole", "x", nbytes=64)
    sketch.buffer("y", 16)
    sketch.part("whole", "y", x_at=32)
    sketch.step("new", "y", inplace=True)
    sketch.part("new", "y")
    sketch.output("y")
    assert copies(planned(sketch)) == []
    whole, y, new = (sketch.buffers[name].offset for name in ("whole", "y", "new"))
    assert whole is not None
    assert y == new == whole + 32


def test_the_first_instruction_may_make_a_part_in_place_of_an_input():
    sketch = Sketch()
    sketch.input("y", 48)
    sketch.step("part", "y", nbytes=16, inplace=True)
    sketch.part("part", "y")
    sketch.output("y")
    assert copies(planned(sketch)) == []
