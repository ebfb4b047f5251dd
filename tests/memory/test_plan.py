# SPDX-License-Identifier: Apache-2.0
"""The planner against plans made on paper, and against its verifier on random programs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Sketch, chain

from mcugen.core.errors import VerificationError
from mcugen.hir.types import DType
from mcugen.lir.program import ALIGNMENT, Access, Buffer, Control, Instr, Operand, Overlap, Space
from mcugen.memory import plan
from mcugen.memory.plan import peak_live_bytes, plan_memory
from mcugen.memory.verify_plan import verify_plan


def planned(sketch: Sketch) -> Sketch:
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    return sketch


def test_a_chain_needs_its_two_largest_neighbours():
    sketch = planned(chain(16, 64, 32, 48, 16))
    assert sketch.program.arena_size == 64 + 32
    assert peak_live_bytes(sketch.program) == 64 + 32


def test_a_chain_in_place_needs_its_largest_buffer():
    sketch = planned(chain(64, 64, 32, 16, inplace=True))
    assert sketch.program.arena_size == 64
    assert set(sketch.offsets().values()) == {0}


def test_an_output_larger_than_its_input_gets_memory_of_its_own():
    assert planned(chain(16, 64, inplace=True)).program.arena_size == 80


def test_sizes_are_rounded_up_to_the_alignment():
    sketch = planned(chain(1, 17, 3))
    assert sketch.program.arena_size == 16 + 32
    assert all(offset % ALIGNMENT == 0 for offset in sketch.offsets().values())


def test_an_input_that_is_read_later_is_not_overwritten():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.step("a", "x", nbytes=32, inplace=True)
    sketch.step("b", "a", "x", nbytes=32)
    sketch.output("b")
    planned(sketch)
    assert sketch.program.arena_size == 96


def test_the_second_operand_gives_its_memory_where_the_first_cannot():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.step("a", "x", nbytes=32)
    sketch.step("b", "x", "a", nbytes=32, inplace=True)
    sketch.step("c", "b", "x", nbytes=32, inplace=[0])
    sketch.output("c")
    offsets = planned(sketch).offsets()
    assert offsets["a"] == offsets["b"] == offsets["c"]
    assert sketch.program.arena_size == 64


def test_an_operand_read_twice_is_not_overwritten():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.step("a", "x", "x", nbytes=32, inplace=[0])
    sketch.output("a")
    assert planned(sketch).program.arena_size == 64


def test_scratch_lives_during_one_instruction():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("a", "x", nbytes=16, scratch=100)
    sketch.step("b", "a", nbytes=16, scratch=100)
    sketch.output("b")
    planned(sketch)
    assert sketch.program.arena_size == 16 + 16 + 112


def test_a_residual_keeps_its_shortcut():
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.step("a", "x", nbytes=32)
    sketch.step("b", "a", nbytes=32)
    sketch.step("c", "b", "x", nbytes=64, inplace=[1])
    sketch.output("c")
    assert planned(sketch).program.arena_size == 64 + 32 + 32


def test_inputs_are_apart_even_where_they_are_read_late():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.input("y", 32)
    sketch.step("a", "x", nbytes=32)
    sketch.step("b", "a", "y", nbytes=32)
    sketch.output("b")
    planned(sketch)
    offsets = sketch.offsets()
    assert abs(offsets["x"] - offsets["y"]) >= 32


def test_an_early_output_survives():
    sketch = Sketch()
    sketch.input("x", 32)
    for target, source in (("a", "x"), ("b", "a"), ("c", "b"), ("d", "c")):
        sketch.step(target, source, nbytes=32)
    sketch.output("a")
    sketch.output("d")
    planned(sketch)
    assert sketch.program.arena_size == 96


def test_an_input_that_is_the_output():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.output("x")
    assert planned(sketch).program.arena_size == 32


def test_constants_take_no_part():
    sketch = chain(16, 16)
    constant = Buffer("w", DType.INT8, 10_000, Space.CONST)
    sketch.program.buffers.append(constant)
    instr = sketch.program.instrs[0]
    instr.operands = (*instr.operands, Operand("w", Access.IN, constant))
    planned(sketch)
    assert sketch.program.arena_size == 32
    assert constant.offset is None
    assert sketch.program.weights_size == 10_000


def test_buffers_that_meet_are_found_by_live_ranges():
    program = chain(16, 16, 16).program
    assert {b.name: life for b, life in program.live_ranges().items()} == {
        "x0": (-1, 0),
        "x1": (0, 1),
        "x2": (1, 2),
    }


# ----------------------------------------------------------------------------------------------- overlaps


@pytest.mark.parametrize(
    ("sizes", "lead", "extent"),
    [
        ((64, 128), 64, 128),  # the input at the tail of the output
        ((64, 128), 80, 144),
        ((64, 128), 65, 144),  # whole multiples of the alignment
        ((64, 128), 0, 128),
        ((128, 64), 0, 128),
        ((128, 64), -32, 128),
        ((64, 64), 16, 80),
        ((64, 64), 48, 112),
        ((64, 128), 127, 192),  # nothing gained
    ],
)
def test_an_output_over_its_input(sizes: tuple[int, int], lead: int, extent: int):
    sketch = Sketch()
    sketch.input("x", sizes[0])
    sketch.step("y", "x", nbytes=sizes[1], lead=lead)
    sketch.output("y")
    planned(sketch)
    assert sketch.program.arena_size == sketch.program.arena_bound == extent
    x, y = (sketch.buffers[name].offset for name in "xy")
    assert x is not None and y is not None
    assert x - y >= lead or x - y >= sizes[1] or y - x >= sizes[0]


def test_each_of_a_chain_of_overlaps_begins_before_the_one_before():
    sketch = Sketch()
    sketch.input("x0", 64)
    for index in range(1, 3):
        sketch.step(f"x{index}", f"x{index - 1}", nbytes=64, lead=16)
    sketch.output("x2")
    assert planned(sketch).offsets() == {"x0": 32, "x1": 16, "x2": 0}
    assert sketch.program.arena_bound == 64 + 16 + 16


def test_an_input_that_is_needed_later_is_not_overlapped():
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.step("y", "x", nbytes=64, lead=0)
    sketch.step("z", "y", "x", nbytes=16)
    sketch.output("z")
    assert planned(sketch).program.arena_size == 128 + 16


def test_an_overlap_of_a_whole_stream():
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("y", 128)
    operands = (Operand("x", Access.IN, sketch.buffers["x"]), Operand("y", Access.OUT, sketch.buffers["y"]))
    markers = [Control.STREAM, Control.CASE, Control.END, Control.END]
    for control in markers:
        instr = Instr(control.value, control.value, (), events=(0, 0), control=control)
        if control is Control.STREAM:
            instr.operands, instr.overlaps = operands, (Overlap("y", "x", 80),)
        sketch.program.instrs.append(instr)
        if control is Control.CASE:
            sketch.step("row", "x")
            sketch.step("y", "row", access=Access.INOUT)
    sketch.output("y")
    assert planned(sketch).program.arena_size == 80 + 64 + 16


# -------------------------------------------------------------------------------------------------- areas


def test_each_area_is_planned_for_itself():
    sketch = chain(16, 64, 32, 48, 16, inplace=True)
    sketch.buffers["x1"].area = sketch.buffers["x2"].area = 1
    planned(sketch)
    assert sketch.program.area_sizes == sketch.program.area_bounds == [48, 64]
    assert sketch.program.arena_size == sketch.program.arena_bound == 48 + 64


def test_moves_between_areas_remain():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.buffer("y", 32)
    sketch.buffers["y"].area = 1
    sketch.part("x", "y")
    sketch.output("y")
    planned(sketch)
    assert not sketch.program.instrs[0].moves_nothing
    assert sketch.program.area_sizes == [32, 32]


# ----------------------------------------------------------------------------------------- random programs


@st.composite
def programs(draw: st.DrawFn) -> Sketch:
    """Up to a dozen instructions that read any earlier buffers, in place or not, with scratch, some accumulating.

    Outputs may lie over inputs at some distance; some are made of parts of others, or are such parts.
    """
    sketch = Sketch()
    sizes = st.integers(1, 200)
    for index in range(draw(st.integers(1, 3))):
        sketch.input(f"in{index}", draw(sizes))
    written: list[str] = []
    for index in range(draw(st.integers(0, 12))):
        readable = [name for name in sketch.buffers if not name.endswith(".scratch")]
        sources = draw(st.lists(st.sampled_from(readable), min_size=1, max_size=3))
        again = [name for name in written if name not in sources]
        if again and draw(st.integers(0, 4)) == 0:  # another part of an earlier result, as concatenation does
            sketch.step(draw(st.sampled_from(again)), *sources, access=Access.INOUT)
            continue
        if draw(st.integers(0, 4)) == 0:
            sketch.buffer(f"b{index}", sum(sketch.buffers[name].nbytes for name in sources))
            at = 0
            for name in sources:
                sketch.part(name, f"b{index}", y_at=at)
                at += sketch.buffers[name].nbytes
            continue
        if draw(st.integers(0, 4)) == 0:
            whole = sketch.buffers[sources[0]].nbytes
            sketch.buffer(f"b{index}", draw(st.integers(1, whole)))
            at = draw(st.integers(0, (whole - sketch.buffers[f"b{index}"].nbytes) // 4)) * 4
            sketch.part(sources[0], f"b{index}", x_at=at)
            continue
        inplace = draw(st.lists(st.sampled_from(range(len(sources))), unique=True))
        sketch.step(
            f"b{index}",
            *sources,
            nbytes=draw(sizes),
            inplace=inplace,
            scratch=draw(st.sampled_from([0, 0, 40])),
            lead=draw(st.sampled_from([None, -40, 0, 16, 50])),
        )
        written.append(f"b{index}")
    visible = [name for name in sketch.buffers if not name.endswith(".scratch")]
    for name in draw(st.lists(st.sampled_from(visible), min_size=1, max_size=3, unique=True)):
        sketch.output(name)
    return sketch


def test_a_small_output_leaves_the_place_of_a_large_input_if_that_saves_memory():
    sketch = planned(chain(64, 16, 64, inplace=True))
    assert sketch.program.arena_size == 64 + 16


@settings(max_examples=200, deadline=None, derandomize=True)
@given(programs())
def test_every_plan_is_sound_and_no_smaller_than_the_bound(sketch: Sketch):
    program = sketch.program
    used = set(program.live_ranges())
    program.buffers = [buffer for buffer in program.buffers if buffer in used]
    plan_memory(program)
    verify_plan(program)
    assert program.arena_size >= program.arena_bound
    assert program.arena_size <= sum(-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in program.buffers)
    assert program.arena_size % ALIGNMENT == 0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(programs())
def test_planning_twice_gives_the_same(sketch: Sketch):
    plan_memory(sketch.program)
    first = sketch.offsets(), sketch.program.arena_size, sketch.program.arena_bound
    plan_memory(sketch.program)
    assert (sketch.offsets(), sketch.program.arena_size, sketch.program.arena_bound) == first


@settings(max_examples=50, deadline=None, derandomize=True)
@given(programs())
def test_a_plan_is_improved_only_where_it_can_be_small_enough(sketch: Sketch):
    plan_memory(sketch.program)
    best = sketch.offsets(), sketch.program.arena_size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "solve", None)
        plan_memory(sketch.program, max_bytes=-1)
    verify_plan(sketch.program)
    assert sketch.program.arena_size >= best[1]
    plan_memory(sketch.program, max_bytes=best[1])
    assert (sketch.offsets(), sketch.program.arena_size) == best


@st.composite
def tiny_programs(draw: st.DrawFn) -> Sketch:
    """Up to four buffers of up to three units, each read by someone."""
    sketch = Sketch()
    sizes = st.sampled_from([16, 32, 48])
    sketch.input("b0", draw(sizes))
    unread = ["b0"]
    for index in range(1, draw(st.integers(2, 4))):
        sources = draw(st.lists(st.sampled_from(sorted(sketch.buffers)), min_size=1, max_size=2, unique=True))
        inplace = draw(st.lists(st.sampled_from(range(len(sources))), unique=True))
        lead = draw(st.sampled_from([None, -16, 0, 16, 32]))
        sketch.step(f"b{index}", *sources, nbytes=draw(sizes), inplace=inplace, lead=lead)
        unread = [*(name for name in unread if name not in sources), f"b{index}"]
    for name in unread:
        sketch.output(name)
    return sketch


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tiny_programs())
def test_no_smaller_placement_passes_the_verifier(sketch: Sketch):
    """Of all that there are; and the bound says so."""
    program = planned(sketch).program
    assert program.arena_bound == program.arena_size
    smaller = program.arena_size - ALIGNMENT
    program.area_sizes = [smaller]
    ways = [range(0, max(smaller - b.nbytes + 1, 0), ALIGNMENT) for b in program.buffers]
    for offsets in product(*ways):
        for buffer, offset in zip(program.buffers, offsets, strict=True):
            buffer.offset = offset
        with pytest.raises(VerificationError):
            verify_plan(program)
