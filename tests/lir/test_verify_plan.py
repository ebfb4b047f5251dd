# SPDX-License-Identifier: Apache-2.0
"""The plan verifier catches every kind of sabotage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mcugen.errors import VerificationError
from mcugen.lir.plan import plan_memory
from mcugen.lir.verify_plan import verify_plan

from .programs import Sketch


def sound_plan() -> Sketch:
    """x, early → a (with scratch) → b → c (in place of b); early is an output that only the caller reads."""
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.step("early", "x", nbytes=32)
    sketch.step("a", "x", nbytes=48, scratch=64)
    sketch.step("b", "a", nbytes=32)
    sketch.step("c", "b", nbytes=32, inplace=True)
    sketch.output("early")
    sketch.output("c")
    plan_memory(sketch.program)
    return sketch


def move(name: str, onto: str, by: int = 0) -> Callable[[Sketch], None]:
    def damage(sketch: Sketch) -> None:
        target = sketch.buffers[onto].offset
        assert target is not None
        sketch.buffers[name].offset = target + by
        sketch.program.area_sizes[0] += 256  # room for it there

    return damage


def place(name: str, offset: int | None) -> Callable[[Sketch], None]:
    def damage(sketch: Sketch) -> None:
        sketch.buffers[name].offset = offset

    return damage


def forbid_sharing(sketch: Sketch) -> None:
    sketch.program.instrs[-1].inplace = ()


def share_partly(sketch: Sketch) -> None:
    sketch.program.area_sizes[0] += 16
    sketch.buffers["c"].offset += 16


def shrink_arena(sketch: Sketch) -> None:
    sketch.program.area_sizes[0] -= 16


def swap_instructions(sketch: Sketch) -> None:
    instrs = sketch.program.instrs
    instrs[2], instrs[3] = instrs[3], instrs[2]


SABOTAGE: list[tuple[str, Callable[[Sketch], None], str]] = [
    ("result over its operand", move("b", "a"), "%b: b: overlaps operand %a"),
    ("result half over its operand", move("b", "a", 16), "%b: b: overlaps operand %a"),
    ("scratch over an operand", move("a.scratch", "x"), "%a.scratch: a: overlaps operand %x"),
    ("scratch over the result", move("a.scratch", "a"), "overlaps operand"),
    ("input overwritten before it is read", move("early", "x"), "%early: early: overlaps operand %x"),
    ("output overwritten later", move("a", "early"), "%early: an output is overwritten before the end"),
    ("output overwritten by scratch", move("a.scratch", "early"), "%early: an output is overwritten"),
    ("in place without permission", forbid_sharing, "%c: c: overlaps operand %b"),
    ("in place at another start", share_partly, "%c: c: overlaps operand %b"),
    ("misaligned", place("a", 8), "%a: is not aligned"),
    ("before the arena", place("a", -16), "%a: lies outside the arena"),
    ("behind the arena", place("a", 1 << 20), "%a: lies outside the arena"),
    ("not placed", place("a", None), "%a: lies outside the arena"),
    ("arena too small", shrink_arena, "lies outside the arena"),
    ("read before it is computed", swap_instructions, "%b: c: read after another buffer took its place"),
]


def test_a_sound_plan_passes():
    verify_plan(sound_plan().program)


@pytest.mark.parametrize(("damage", "message"), [row[1:] for row in SABOTAGE], ids=[row[0] for row in SABOTAGE])
def test_sabotage_is_found(damage: Callable[[Sketch], None], message: str):
    sketch = sound_plan()
    damage(sketch)
    with pytest.raises(VerificationError, match=message) as error:
        verify_plan(sketch.program)
    assert error.value.exit_code == 7


def test_two_inputs_in_one_place():
    sketch = Sketch()
    sketch.input("x")
    sketch.input("y")
    sketch.step("z", "x", "y")
    sketch.output("z")
    plan_memory(sketch.program)
    sketch.buffers["y"].offset = sketch.buffers["x"].offset
    with pytest.raises(VerificationError, match="%x: z: read after another buffer took its place"):
        verify_plan(sketch.program)
