# SPDX-License-Identifier: Apache-2.0
"""Programs as pipelines over frames: when states change, where the parts lie, and how long what crosses lives."""

from __future__ import annotations

import pytest
from programs import Sketch

from mcugen.lir.frames import cut, join_areas, separate_areas, update_states_early
from mcugen.lir.program import Access, Space
from mcugen.lir.state import copy_of

IN, OUT, INOUT = Access.IN, Access.OUT, Access.INOUT


def with_states(*readers: tuple[str, ...]) -> Sketch:
    """A state for each `readers`: x → new0, new1, …, a step for each of the readers, then states change."""
    sketch = Sketch()
    sketch.input("x")
    for number, _ in enumerate(readers):
        sketch.buffer(f"s{number}", space=Space.STATE)
        sketch.step(f"new{number}", "x")
    for number, names in enumerate(readers):
        for name in names:
            sketch.step(name, "x", f"s{number}")
    for number, _ in enumerate(readers):
        sketch.program.instrs.append(
            copy_of(sketch.buffers[f"new{number}"], sketch.buffers[f"s{number}"], f"m{number}")
        )
    return sketch


def order(sketch: Sketch) -> list[str]:
    update_states_early(sketch.program)
    return [instr.name for instr in sketch.program.instrs]


def test_a_state_changes_behind_its_last_use():
    assert order(with_states(("a",))) == ["new0", "a", "m0"]
    assert order(with_states((), ("a", "b"))) == ["new0", "m0", "new1", "a", "b", "m1"]
    assert order(with_states(("a",), ("b",), ("c",))) == ["new0", "new1", "new2", "a", "m0", "b", "m1", "c", "m2"]


def test_other_copies_stay_where_they_are():
    sketch = with_states(("a",), ("b",))
    sketch.program.instrs[-2].op = "output"
    assert order(sketch) == ["new0", "new1", "a", "b", "m1", "m0"]


def test_a_state_that_nobody_uses_changes_at_once():
    sketch = Sketch()
    sketch.input("x")
    sketch.buffer("s", space=Space.STATE)
    sketch.buffer("kept", space=Space.CONST)
    sketch.step("a", "x")
    sketch.program.instrs.append(copy_of(sketch.buffers["kept"], sketch.buffers["s"], "m"))
    assert order(sketch) == ["m", "a"]


def pipeline() -> Sketch:
    """x → a, b | c (of a), y (of b and c), cut between."""
    sketch = Sketch()
    sketch.input("x")
    sketch.buffer("w", 16, Space.CONST)
    sketch.step("a", "x", "w")
    sketch.step("b", "a")
    sketch.step("c", "a", "w")
    sketch.step("y", "b", "c")
    sketch.output("y")
    cut(sketch.program, 2)
    sketch.buffers |= {buffer.name: buffer for buffer in sketch.program.buffers}
    return sketch


def test_copies_live_to_the_end_of_the_call():
    """The second part reads them in the next one, while the first writes what they are made of."""
    program = pipeline().program
    assert program.handover == range(2, 4)
    assert {b.name: life for b, life in program.live_ranges().items()} == {
        "x": (-1, 0),
        "a": (0, 2),
        "b": (1, 3),
        "a.before": (2, 6),
        "b.before": (3, 6),
        "c": (4, 5),
        "y": (5, 6),
    }
    assert program.of_second_core() == program.instrs[4:]


def test_each_part_has_an_area_until_they_are_one_behind_the_other():
    sketch = pipeline()
    program = sketch.program
    separate_areas(program)
    areas = {b.name: b.area for b in program.buffers}
    assert areas == {"x": 0, "w": 0, "a": 0, "b": 0, "c": 1, "y": 1, "a.before": 1, "b.before": 1}
    for number, buffer in enumerate(program.buffers):
        buffer.offset = 16 * number if buffer.planned else None
    before = {b.name: b.offset for b in program.buffers}
    program.area_sizes, program.area_bounds = [40, 80], [32, 64]
    join_areas(program)
    assert (program.area_sizes, program.area_bounds) == ([48 + 80], [96])
    assert {b.area for b in program.buffers} == {0}
    moved = {name: (before[name] or 0) + 48 * areas[name] for name in before if name != "w"}
    assert {b.name: b.offset for b in program.buffers} == {**moved, "w": None}


@pytest.mark.parametrize("has_first", [False, True])
def test_a_first_area_without_buffers_moves_nothing(has_first: bool):
    sketch = pipeline()
    separate_areas(sketch.program)
    for buffer in sketch.program.buffers:
        buffer.offset = None
    sketch.program.area_sizes, sketch.program.area_bounds = [16 * has_first, 32], [0, 0]
    join_areas(sketch.program)
    offsets = {b.name: b.offset for b in sketch.program.buffers}
    assert {offsets[name] for name in ("c", "y", "a.before", "b.before")} == {16 * has_first}
    assert {offsets[name] for name in ("x", "a", "b", "w")} == {None}
