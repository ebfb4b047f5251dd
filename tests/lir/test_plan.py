# SPDX-License-Identifier: Apache-2.0
"""The planner against plans made on paper, and against its verifier on random programs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mcugen.hir.types import DType
from mcugen.lir.plan import peak_live_bytes, plan_memory
from mcugen.lir.program import ALIGNMENT, Access, Buffer, Operand, Space
from mcugen.lir.verify_plan import verify_plan

from .programs import Sketch, chain


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
    assert [b.name for b in program.live_at(1)] == ["x1", "x2"]


@st.composite
def programs(draw: st.DrawFn) -> Sketch:
    """Up to a dozen instructions that read any earlier buffers, in place or not, with scratch, some accumulating."""
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
        inplace = draw(st.lists(st.sampled_from(range(len(sources))), unique=True))
        sketch.step(
            f"b{index}",
            *sources,
            nbytes=draw(sizes),
            inplace=inplace,
            scratch=draw(st.sampled_from([0, 0, 40])),
        )
        written.append(f"b{index}")
    visible = [name for name in sketch.buffers if not name.endswith(".scratch")]
    for name in draw(st.lists(st.sampled_from(visible), min_size=1, max_size=3, unique=True)):
        sketch.output(name)
    return sketch


def test_a_small_output_leaves_the_place_of_a_large_input_if_that_saves_memory():
    sketch = planned(chain(64, 16, 64, inplace=True))
    assert sketch.program.arena_size == 64 + 16


@settings(max_examples=150, deadline=None, derandomize=True)
@given(programs())
def test_every_plan_is_sound_and_no_smaller_than_the_bound(sketch: Sketch):
    program = sketch.program
    used = set(program.live_ranges())
    program.buffers = [buffer for buffer in program.buffers if buffer in used]
    plan_memory(program)
    verify_plan(program)
    assert program.arena_size >= peak_live_bytes(program)
    assert program.arena_size <= sum(-(-b.nbytes // ALIGNMENT) * ALIGNMENT for b in program.buffers)
    assert program.arena_size % ALIGNMENT == 0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(programs())
def test_planning_twice_gives_the_same(sketch: Sketch):
    plan_memory(sketch.program)
    first = sketch.offsets(), sketch.program.arena_size
    plan_memory(sketch.program)
    assert (sketch.offsets(), sketch.program.arena_size) == first
