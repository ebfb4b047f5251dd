# SPDX-License-Identifier: Apache-2.0
"""What a program says of its instructions: types of parameters, moves that vanish, layers, blocks, lives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from programs import Sketch

from mcugen.hir.types import DType, QuantParams
from mcugen.lir.parser import parse_program
from mcugen.lir.program import (
    Access,
    Buffer,
    Control,
    Double,
    Endpoint,
    Instr,
    LessonPorts,
    Operand,
    Param,
    Program,
    Space,
    Wide,
    aligned,
    element_param,
    param_dtype,
)

IN, OUT, SCRATCH = Access.IN, Access.OUT, Access.SCRATCH


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.5, DType.FLOAT32),
        (Double(0.5), DType.FLOAT64),
        (Wide(1), DType.INT64),
        (2**31 - 1, DType.INT32),
        (2**31, DType.INT64),
        (-(2**31), DType.INT32),
        (-(2**31) - 1, DType.INT64),
        (2**63 - 1, DType.INT64),
        (2**63, DType.UINT64),
        (2**64 - 1, DType.UINT64),
    ],
)
def test_parameters_have_the_least_type_that_holds_them(value: Param, dtype: DType):
    assert param_dtype(value) is dtype


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (3, DType.INT8, 3),
        (-(2**31), DType.INT32, -(2**31)),
        (7, DType.UINT32, Wide(7)),
        (2**63 - 1, DType.UINT64, Wide(2**63 - 1)),
        (2**63, DType.UINT64, Wide(-(2**63))),
        (2**64 - 1, DType.UINT64, Wide(-1)),
        (0.25, DType.FLOAT32, 0.25),
        (0.25, DType.FLOAT64, Double(0.25)),
    ],
)
def test_elements_as_parameters_convert_back_exactly(value: float, dtype: DType, wanted: Param):
    found = element_param(value, dtype)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(("nbytes", "wanted"), [(0, 0), (1, 16), (15, 16), (16, 16), (17, 32)])
def test_memories_have_parts_of_sixteen_bytes(nbytes: int, wanted: int):
    assert aligned(nbytes) == wanted


def states(*zero_points: int) -> list[Endpoint]:
    return [
        Endpoint(f"s{i}", (20,), DType.INT8, QuantParams(0.5, zero), Buffer(f"s{i}", DType.INT8, 20, Space.STATE))
        for i, zero in enumerate(zero_points)
    ]


@pytest.mark.parametrize(
    ("ends", "has_mark", "size"),
    [(states(0), False, 32), (states(3), True, 32), (states(3, 0), True, 64), ([], False, 0)],
)
def test_a_state_of_other_zeros_is_marked(ends: list[Endpoint], has_mark: bool, size: int):
    program = Program("net", states=ends)
    assert (program.marks_state, program.state_size) == (has_mark, size)


def test_the_mark_lies_behind_the_last_state():
    program = Program("net", states=states(0, 3))
    program.states[1].buffer.count = 29
    assert program.state_size == 32 + 48


@pytest.mark.parametrize("learns_from", ["nothing", "zeros", "other numbers"])
def test_what_is_learned_from_other_numbers_than_zero_is_marked(learns_from: str):
    program = Program("net", states=states(0))
    ends = [states(0)[0] for _ in range(3)]
    first = {"s0": Buffer("s0.first", DType.INT8, 20, Space.CONST)} if learns_from == "other numbers" else {}
    if learns_from != "nothing":
        program.lesson = LessonPorts(*ends, 0, "", "", first, ())
    assert program.marks_state is (learns_from == "other numbers")


# ------------------------------------------------------------------------------------------------------- moves


def move(x: Buffer, y: Buffer, x_at: int = 0, y_at: int = 0) -> Instr:
    params = {"nbytes": 16, "x_at": x_at, "y_at": y_at}
    return Instr("move", "y", (Operand("x", IN, x), Operand("y", OUT, y)), params)


def placed(offset: int | None, area: int = 0) -> Buffer:
    return Buffer("b", DType.INT8, 64, Space.ARENA, offset=offset, area=area)


@pytest.mark.parametrize(
    ("x", "y", "x_at", "y_at", "wanted"),
    [
        (placed(32), placed(32), 0, 0, True),
        (placed(32), placed(48), 16, 0, True),
        (placed(32), placed(48), 0, 16, False),
        (placed(32), placed(16), 0, 16, True),
        (placed(32), placed(32), 16, 0, False),
        (placed(32), placed(32, area=1), 0, 0, False),
        (placed(None), placed(0), 0, 0, False),
        (placed(0), placed(None), 0, 0, False),
    ],
)
def test_a_move_of_bytes_onto_themselves_vanishes(x: Buffer, y: Buffer, x_at: int, y_at: int, wanted: bool):
    assert move(x, y, x_at, y_at).moves_nothing is wanted
    assert not replace(move(x, y, x_at, y_at), kernel="copy").moves_nothing


@pytest.mark.parametrize("offset", [None, 16])
def test_within_a_buffer_only_a_part_onto_itself_vanishes(offset: int | None):
    buffer = placed(offset)
    assert move(buffer, buffer, 16, 16).moves_nothing
    assert not move(buffer, buffer, 16, 0).moves_nothing


# ------------------------------------------------------------------------------------------------------ layers

FORKED = """
program net {
  arena 0 bytes, weights 0 bytes
  input %x : int8[32]
  arena %a : int8[32]
  arena %b : int8[32]
  arena %ab : int8[64]
  arena %s : int8[8]
  output %y : int8[16]
    0: fork {} group 3
    1:   f @in x=%x, @scratch s=%s, @out y=%a {} group 3
    2: else
    3:   g @in x=%x, @out y=%b {} group 3
    4: end
    5: h @in x=%a, @out y=%ab {} group 3
    6: h @in x=%ab, @in b=%b, @out y=%y {}
    7: stop {phase=0}
}
"""


def forked() -> Program:
    program = parse_program(FORKED)
    for index, instr in enumerate(program.instrs):
        instr.name, instr.macs = f"i{index}", 1 << index
        instr.group = 3 if index < 6 else 0
    return program


def test_a_group_is_a_layer_and_a_stop_ends_the_one_before_it():
    program = forked()
    assert program.layers() == [range(6), range(6, 8)]
    program.instrs[5].group = 0
    assert program.layers() == [range(5), range(5, 6), range(6, 8)]
    program.instrs[5].group, program.instrs[6].group = 4, 4
    assert program.layers() == [range(5), range(5, 8)]


def test_the_first_layer_may_be_in_a_group_and_a_stop_may_be_all():
    program = forked()
    program.instrs = program.instrs[7:]
    assert program.layers() == [range(1)]
    program = forked()
    program.instrs = program.instrs[5:]
    assert program.layers() == [range(1), range(1, 3)]


def test_what_speaks_for_a_fork_computes():
    program = forked()
    assert program.head(range(6)).name == "i1"
    assert program.completing(range(6)).name == "i1"
    assert program.macs_of(range(6)) == 2 + 8 + 32
    assert program.is_side(range(6))
    assert program.is_side(range(2, 4))


def test_a_side_that_computes_nothing_is_represented_by_its_marker():
    program = forked()
    del program.instrs[3]
    assert program.head(range(2, 4)).name == "i2"
    assert program.completing(range(2, 4)).name == "i2"
    assert program.macs_of(range(2, 4)) == program.instrs[2].macs
    assert not program.is_side(range(5, 6))


def test_what_speaks_for_portions_computes_and_what_joins_them_completes():
    program = parse_program("program net {\n input %x : int8[4]\n 0: f @in x=%x {}\n}")
    first = program.instrs[0]
    program.instrs = [replace(first, kernel=k, name=n, group=1, macs=5) for k, n in zip("abc", "abc", strict=True)]
    program.instrs[0].kernel = "stage_weights"
    assert program.head(range(3)).name == "b"
    assert program.completing(range(3)).name == "c"
    assert program.macs_of(range(3)) == 15
    for instr in program.instrs:
        instr.group = 0
    assert program.completing(range(1, 3)).name == "b"


def test_what_speaks_for_a_loop_is_its_marker():
    instrs = [Instr(kind, kind, (), macs=macs, group=1) for kind, macs in (("f", 1), ("for", 40), ("g", 2), ("end", 3))]
    for instr, control in zip(instrs, (Control.NONE, Control.FOR, Control.NONE, Control.END), strict=True):
        instr.control = control
    program = Program("net", instrs=instrs)
    assert program.head(range(4)).kernel == "for"
    assert program.completing(range(4)).kernel == "for"
    assert program.macs_of(range(4)) == 40


def test_blocks_and_what_is_around_them():
    program = forked()
    assert program.blocks() == [(0, 4)]
    assert program.wholes() == [range(5), range(5, 6), range(6, 7), range(7, 8)]
    assert list(program.forks()) == [(0, 2, 4)]
    assert [instr.name for instr in program.of_second_core()] == ["i3"]
    assert program.loops() == []


def lives(program: Program) -> dict[str, tuple[int, int]]:
    return {buffer.name: life for buffer, life in program.live_ranges().items()}


def test_what_the_second_side_of_a_fork_uses_lives_throughout():
    program = forked()
    assert lives(program) == {"x": (-1, 4), "a": (0, 5), "b": (0, 6), "ab": (5, 6), "s": (1, 1), "y": (6, 8)}


def test_of_portions_both_sides_live_throughout():
    """The marker names what they make."""
    program = forked()
    marker = program.instrs[0]
    marker.operands = (Operand("y", OUT, next(b for b in program.buffers if b.name == "ab")),)
    assert lives(program) == {"x": (-1, 4), "a": (0, 5), "b": (0, 6), "ab": (0, 6), "s": (0, 4), "y": (6, 8)}


def test_what_only_the_marker_of_portions_names_lives_throughout():
    """Views of it may be what the sides use."""
    program = forked()
    other = Buffer("whole", DType.INT8, 16, Space.ARENA)
    program.buffers.append(other)
    program.instrs[0].operands = (Operand("x", IN, other),)
    assert lives(program)["whole"] == (0, 4)


def test_a_fork_leaves_what_does_not_reach_it_alone():
    """What ends just before, or begins just behind."""
    sketch = Sketch()
    sketch.input("x")
    sketch.step("a", "x")
    sketch.step("b", "a")
    for marker, name in (("fork", "c"), ("else", "d")):
        sketch.emit(marker, *([("y", OUT, "b")] if marker == "fork" else []))
        sketch.step(name, "b")
    sketch.emit("end")
    sketch.step("y", "c", "d")
    sketch.output("y")
    assert lives(sketch.program) == {
        "x": (-1, 0),
        "a": (0, 1),
        "b": (1, 6),
        "c": (2, 7),
        "d": (2, 7),
        "y": (7, 8),
    }


def test_in_a_loop_only_what_its_surroundings_use_lives_throughout():
    sketch = Sketch()
    sketch.input("x")
    sketch.step("before", "x")
    sketch.buffer("late")
    sketch.emit("for", ("y", OUT, "late"), steps=2)
    sketch.step("inner", "before")
    sketch.step("late", "inner")
    sketch.emit("end")
    sketch.step("y", "late")
    sketch.output("y")
    assert lives(sketch.program) == {"x": (-1, 0), "before": (0, 4), "inner": (2, 3), "late": (1, 5), "y": (5, 6)}


def test_what_is_made_in_a_loop_and_read_behind_it_lives_from_its_beginning():
    sketch = Sketch()
    sketch.input("x")
    sketch.emit("for", steps=2)
    sketch.step("made", "x")
    sketch.emit("end")
    sketch.step("y", "made")
    sketch.output("y")
    assert lives(sketch.program) == {"x": (-1, 2), "made": (0, 3), "y": (3, 4)}


def test_an_input_that_nobody_reads_and_an_output_that_is_an_input():
    sketch = Sketch()
    sketch.input("unread")
    sketch.input("same")
    sketch.output("same")
    sketch.buffer("idle")
    sketch.output("idle")
    assert lives(sketch.program) == {"unread": (-1, -1), "same": (-1, 0), "idle": (-1, 0)}


# ------------------------------------------------------------------------------------------------------- sizes


def test_sizes_are_sums():
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.step("y", "x", scratch=48)
    sketch.step("z", "y", scratch=16)
    sketch.buffer("w", 10, Space.CONST)
    sketch.buffer("v", 5, Space.CONST, DType.FLOAT32)
    program = sketch.program
    program.area_sizes, program.area_bounds = [32, 64], [32, 48]
    assert program.weights_size == 10 + 20
    assert program.scratch_size == 64
    assert (program.arena_size, program.arena_bound) == (96, 80)


def test_what_decides_about_a_function():
    """Parameters that are baked by value, others by type; options by what they say."""
    buffer = placed(0)
    operands = (Operand("x", IN, buffer), Operand("y", OUT, buffer))
    instr = Instr("f", "y", operands, {"a": 1, "b": 2}, code={"k": "v", "l": 1})
    same = [
        replace(instr, params={"a": 5, "b": 2}),
        replace(instr, code={"l": 1, "k": "v"}),
        replace(instr, name="z", macs=7, inplace=(("y", "x"),)),
        replace(instr, operands=(operands[0], Operand("y", SCRATCH, buffer))),
    ]
    other = [
        replace(instr, kernel="g"),
        replace(instr, params={"a": 2**40, "b": 2}),
        replace(instr, code={"k": "w", "l": 1}),
        replace(instr, baked=frozenset({"a"})),
        replace(instr, operands=(operands[1], operands[0])),
        replace(instr, operands=operands[:1]),
    ]
    assert all(each.function_key == instr.function_key for each in same)
    assert all(each.function_key != instr.function_key for each in other)
    baked = replace(instr, baked=frozenset({"a"}))
    assert replace(baked, params={"a": 5, "b": 2}).function_key != baked.function_key
    assert replace(baked, params={"a": 1, "b": 5}).function_key == baked.function_key


def test_what_is_not_said_of_an_instruction_is_the_plain_case():
    instr = Instr("k", "y", ())
    assert (instr.macs, instr.group, instr.unit, instr.stays, instr.control) == (0, 0, 0, False, Control.NONE)
    assert Buffer("b", DType.INT8, 1, Space.ARENA).area == 0
    assert Program("p").area_sizes == Program("p").area_bounds == [0]
