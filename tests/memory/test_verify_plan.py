# SPDX-License-Identifier: Apache-2.0
"""The plan verifier catches every kind of sabotage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from programs import Sketch, assert_overwrite_is_found, chain

from mcugen.core.errors import VerificationError
from mcugen.hir.types import DType
from mcugen.lir.frames import cut
from mcugen.lir.program import Access, Lanes, Operand, Space
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan


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
    assert_overwrite_is_found(sketch, "y", "x", "%x: z: read after another buffer took its place")


# ------------------------------------------------------------------------------------- overlaps and parts


def overlapped() -> Sketch:
    """x → y, which may begin 32 bytes before it."""
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.step("y", "x", nbytes=64, lead=32)
    sketch.output("y")
    plan_memory(sketch.program)
    return sketch


def test_an_output_at_the_declared_lead_passes_and_at_one_unit_less_does_not():
    sketch = overlapped()
    assert sketch.offsets() == {"x": 32, "y": 0}
    verify_plan(sketch.program)
    sketch.buffers["x"].offset = 16
    with pytest.raises(VerificationError, match="%y: y: overlaps operand %x"):
        verify_plan(sketch.program)


def test_an_overlapped_input_is_gone():
    sketch = overlapped()
    sketch.step("z", "x")
    sketch.buffers["z"].offset = 96
    sketch.program.area_sizes = [112]
    with pytest.raises(VerificationError, match="%x: z: read after another buffer took its place"):
        verify_plan(sketch.program)


def test_an_operand_read_twice_must_allow_it_twice():
    sketch = overlapped()
    (instr,) = sketch.program.instrs
    instr.operands = (*instr.operands, Operand("again", Access.IN, sketch.buffers["x"]))
    with pytest.raises(VerificationError, match="%y: y: overlaps operand %x"):
        verify_plan(sketch.program)


def windowed() -> Sketch:
    """window → row → its second half; nothing else is left of it but the first."""
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("window", "x", nbytes=32)
    sketch.step("row", "window", nbytes=16)
    sketch.part("row", "window", y_at=16)
    sketch.output("window")
    plan_memory(sketch.program)
    return sketch


def test_a_part_that_is_made_while_its_window_is_in_use_is_found():
    sketch = windowed()
    verify_plan(sketch.program)
    sketch.buffers["row"].offset = sketch.buffers["window"].offset + 16
    with pytest.raises(VerificationError, match="%row: row: overlaps operand %window"):
        verify_plan(sketch.program)


def test_a_view_of_what_is_written_later_is_found():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.buffer("view")
    sketch.part("x", "view", x_at=16)
    sketch.step("x", access=Access.INOUT)
    sketch.step("y", "view")
    sketch.output("y")
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    sketch.buffers["view"].offset = sketch.buffers["x"].offset + 16
    with pytest.raises(VerificationError, match="%view: y: read after another buffer took its place"):
        verify_plan(sketch.program)


@pytest.mark.parametrize("by", [-4, 4, 12])
def test_a_part_moved_onto_itself_with_a_shift_is_found(by: int):
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("y", 32)
    sketch.part("x", "y", x_at=16)
    sketch.output("y")
    plan_memory(sketch.program)
    sketch.buffers["x"].offset, sketch.buffers["y"].offset = 0, 16 + by
    with pytest.raises(VerificationError, match="%y: y: overlaps operand %x"):
        verify_plan(sketch.program)


def test_only_part_of_a_result_written_is_found():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.buffer("y", 32)
    sketch.part("x", "y")
    sketch.output("y")
    plan_memory(sketch.program)
    with pytest.raises(VerificationError, match="%y: an output is overwritten before the end"):
        verify_plan(sketch.program)


def test_an_area_that_was_not_planned():
    sketch = sound_plan()
    sketch.buffers["a"].area = 1
    with pytest.raises(VerificationError, match="%a: lies outside the arena"):
        verify_plan(sketch.program)


def shared_layer() -> Sketch:
    """x → y on two cores: x1 and x2 are views of x with 16 bytes in common, y1 and y2 the halves of y."""
    sketch = Sketch()
    sketch.input("x", 64)
    for name in ("x1", "x2", "y1", "y2", "s1", "s2"):
        sketch.buffer(name, 32)
    sketch.buffers["x1"].count = sketch.buffers["x2"].count = 40 + 8
    sketch.buffer("y", 64)
    sketch.part("x", "x1")
    sketch.part("x", "x2", x_at=16)
    for side, marker in (("1", "fork"), ("2", "else")):
        sketch.emit(marker)
        roles = (("x", Access.IN, f"x{side}"), ("s", Access.SCRATCH, f"s{side}"), ("y", Access.OUT, f"y{side}"))
        sketch.emit("kernel", *roles)
    sketch.emit("end")
    sketch.part("y1", "y", nbytes=32)
    sketch.part("y2", "y", y_at=32, nbytes=32)
    sketch.output("y")
    plan_memory(sketch.program)
    return sketch


def test_a_layer_of_two_cores_moves_nothing():
    sketch = shared_layer()
    verify_plan(sketch.program)
    assert all(i.moves_nothing for i in sketch.program.instrs if i.kernel == "move")
    assert sketch.program.area_sizes == [64 + 64 + 2 * 32]


@pytest.mark.parametrize(
    ("name", "onto", "by"),
    [("s2", "s1", 0), ("s1", "y2", 16), ("s2", "y1", 0), ("y2", "y1", 16), ("s1", "x2", 0), ("s2", "x1", 0)],
)
def test_what_one_core_writes_the_other_leaves_alone(name: str, onto: str, by: int):
    sketch = shared_layer()
    move(name, onto, by)(sketch)
    with pytest.raises(VerificationError, match=r"while the other uses|overlaps operand|read after another"):
        verify_plan(sketch.program)


def test_scratch_of_two_cores_is_apart():
    sketch = shared_layer()
    move("s2", "s1")(sketch)
    with pytest.raises(VerificationError, match="written by one core while the other uses"):
        verify_plan(sketch.program)


def channels_of_two_cores(first: Lanes, second: Lanes, by: int = 0) -> Sketch:
    """x → y on two cores, which compute these channels of pixels of 32, y over x or `by` bytes behind."""
    sketch = Sketch()
    sketch.input("x", 96)
    sketch.buffer("y", 96)
    for marker, lanes in (("fork", first), ("else", second)):
        sketch.emit(marker, *([("y", Access.OUT, "y"), ("x", Access.IN, "x")] if marker == "fork" else []))
        sketch.emit("kernel", ("x", Access.IN, "x"), ("y", Access.OUT, "y"))
        kernel = sketch.program.instrs[-1]
        kernel.operands = tuple(replace(operand, lanes=lanes) for operand in kernel.operands)
    sketch.emit("end")
    for instr in sketch.program.instrs:
        instr.inplace = (("y", "x"),) if instr.operands else ()
    sketch.output("y")
    plan_memory(sketch.program)
    if by:
        move("y", "x", by)(sketch)
    return sketch


def test_channels_of_two_cores_lie_over_their_inputs():
    sketch = channels_of_two_cores(Lanes(0, 12, 32), Lanes(12, 20, 32))
    verify_plan(sketch.program)
    assert sketch.program.area_sizes == [96]


@pytest.mark.parametrize(
    ("lanes", "by"),
    [
        ((Lanes(0, 16, 32), Lanes(12, 20, 32)), 0),  # both write some channels
        ((Lanes(0, 12, 32), Lanes(16, 16, 32)), 0),  # nobody writes some
        ((Lanes(0, 14, 32), Lanes(14, 18, 32)), 0),  # both write a part of a word
        ((Lanes(0, 16, 32), Lanes(16, 16, 32)), 16),  # one writes where the other reads
    ],
)
def test_channels_that_two_cores_confuse(lanes: tuple[Lanes, Lanes], by: int):
    sketch = channels_of_two_cores(*lanes, by)
    with pytest.raises(
        VerificationError, match=r"while the other uses|overlaps operand|an output is overwritten|read after another"
    ):
        verify_plan(sketch.program)


def pipeline() -> Sketch:
    """x → a | → b → y, cut behind a, of which the second part has a copy; each buffer in a place of its own."""
    sketch = Sketch()
    sketch.input("x")
    sketch.step("a", "x")
    sketch.step("b", "a")
    sketch.step("y", "b")
    sketch.output("y")
    cut(sketch.program, 1)
    sketch.buffers |= {buffer.name: buffer for buffer in sketch.program.buffers}
    for number, buffer in enumerate(sketch.program.buffers):
        buffer.offset = 16 * number
    sketch.program.area_sizes = [16 * len(sketch.program.buffers)]
    return sketch


def test_a_pipeline_of_places_of_their_own_is_sound():
    verify_plan(pipeline().program)


@pytest.mark.parametrize(
    ("name", "onto"), [("a", "b"), ("a", "y"), ("b", "x"), ("y", "a"), ("x", "a.before"), ("a", "a.before")]
)
def test_parts_of_a_pipeline_leave_each_other_alone(name: str, onto: str):
    sketch = pipeline()
    sketch.buffers[name].offset = sketch.buffers[onto].offset
    with pytest.raises(VerificationError, match=r"other uses|read after another|overlaps|an output is overwritten"):
        verify_plan(sketch.program)


def test_what_is_handed_over_leaves_outputs_alone():
    """They are of the frame before, and the caller reads them afterwards."""
    sketch = pipeline()
    sketch.buffers["y"].offset = sketch.buffers["a.before"].offset
    with pytest.raises(VerificationError, match="%y: an output is overwritten by what is handed over"):
        verify_plan(sketch.program)


def test_a_planned_pipeline_has_one_area_and_is_sound():
    sketch = pipeline()
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    assert {b.area for b in sketch.program.buffers} == {0}
    assert sketch.program.area_sizes == sketch.program.area_bounds == [2 * 16 + 3 * 16], (
        "the copy is there until the end"
    )


@pytest.mark.parametrize(("parts", "is_sound"), [((0,), True), ((3,), True), ((0, 3), False)])
def test_a_state_is_of_one_part_of_a_pipeline(parts: tuple[int, ...], is_sound: bool):
    sketch = pipeline()
    state = sketch.buffer("state", space=Space.STATE)
    for number in parts:
        instr = sketch.program.instrs[number]
        instr.operands = (*instr.operands, Operand("state", Access.INOUT, state))
    if is_sound:
        verify_plan(sketch.program)
        return
    with pytest.raises(VerificationError, match="%state: a state must be of one part of a pipeline"):
        verify_plan(sketch.program)


# ------------------------------------------------------------------------------------------- copies of weights


def copying() -> Sketch:
    """Two copies begin, x → a runs meanwhile, they end in their order, and layers read them."""
    sketch = Sketch()
    sketch.input("x")
    for name in ("w", "v"):
        sketch.buffer(name, space=Space.CONST)
        sketch.buffer(f"{name}.held")
        sketch.emit("begin_weights", ("x", Access.IN, name), ("y", Access.OUT, f"{name}.held"))
    sketch.step("a", "x", "w")
    for name, source, target in (("w", "a", "b"), ("v", "b", "c")):
        sketch.emit("end_weights", ("y", Access.INOUT, f"{name}.held"))
        sketch.step(target, source, f"{name}.held")
    sketch.output("c")
    plan_memory(sketch.program)
    return sketch


def test_copies_that_go_on_meanwhile_are_sound():
    """What reads the constant itself is no matter."""
    verify_plan(copying().program)


@pytest.mark.parametrize(
    ("name", "onto", "message"),
    [
        ("a", "w.held", "%w.held: a: uses %a while the copy is being made"),
        ("a", "v.held", "%v.held: a: uses %a while the copy is being made"),
        ("x", "v.held", "%v.held: a: uses %x while the copy is being made"),
        ("b", "v.held", "%v.held: b: uses %b while the copy is being made"),
        ("w.held", "v.held", "uses %v.held while the copy is being made"),
    ],
)
def test_what_is_being_copied_is_left_alone(name: str, onto: str, message: str):
    sketch = copying()
    move(name, onto)(sketch)
    with pytest.raises(VerificationError, match=message):
        verify_plan(sketch.program)


def test_what_is_being_copied_is_not_read():
    sketch = copying()
    first = sketch.program.instrs[2]
    first.operands = (*first.operands[:1], Operand("w", Access.IN, sketch.buffers["w.held"]), *first.operands[2:])
    with pytest.raises(VerificationError, match=r"%w\.held: a: uses %w\.held while the copy is being made"):
        verify_plan(sketch.program)


def test_copies_end_in_the_order_in_which_they_began():
    sketch = copying()
    instrs = sketch.program.instrs
    instrs[3], instrs[5] = instrs[5], instrs[3]
    with pytest.raises(VerificationError, match=r"%v\.held: copies must end in the order in which they began"):
        verify_plan(sketch.program)


def test_a_copy_must_end():
    sketch = copying()
    end = next(instr for instr in sketch.program.instrs if instr.kernel == "end_weights" and instr.name == "v.held")
    sketch.program.instrs = sketch.program.instrs[:4]
    sketch.program.outputs.clear()
    sketch.output("a")
    with pytest.raises(VerificationError, match=r"must end|overwritten"):
        verify_plan(sketch.program)
    sketch.program.instrs.append(end)
    verify_plan(sketch.program)


def test_a_copy_that_did_not_begin_does_not_end():
    sketch = copying()
    del sketch.program.instrs[0]
    with pytest.raises(VerificationError, match=r"%w\.held: copies must end in the order"):
        verify_plan(sketch.program)


# ------------------------------------------------------------------------------------------- words of two cores


def beside_channels(offset: int, count: int = 16) -> Sketch:
    """One core writes the first 16 bytes of each 32 of y, the other a buffer that begins there."""
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.buffer("y", 64)
    sketch.buffer("s", count)
    for marker, name in (("fork", "y"), ("else", "s")):
        sketch.emit(marker)
        sketch.emit("kernel", ("x", Access.IN, "x"), ("y", Access.OUT, name))
    kernel = sketch.program.instrs[1]
    kernel.operands = tuple(replace(o, lanes=Lanes(0, 16, 32)) if o.role == "y" else o for o in kernel.operands)
    sketch.emit("end")
    sketch.output("s")
    plan_memory(sketch.program)
    sketch.buffers["x"].offset, sketch.buffers["y"].offset, sketch.buffers["s"].offset = 96, 0, offset
    sketch.program.area_sizes = [112]
    return sketch


@pytest.mark.parametrize(
    ("offset", "count", "is_sound"),
    [(16, 16, True), (48, 16, True), (64, 16, True), (0, 16, False), (32, 16, False), (16, 17, False), (16, 32, False)],
)
@pytest.mark.parametrize("is_swapped", [False, True])
def test_channels_and_a_buffer_between_them(offset: int, count: int, is_sound: bool, is_swapped: bool):
    sketch = beside_channels(offset, count)
    if is_swapped:
        instrs = sketch.program.instrs
        instrs[1], instrs[3] = instrs[3], instrs[1]
    if is_sound:
        verify_plan(sketch.program)
        return
    with pytest.raises(VerificationError, match=r"while the other uses|an output is overwritten"):
        verify_plan(sketch.program)


@pytest.mark.parametrize(("dtype", "offset"), [(DType.INT8, 8), (DType.FLOAT64, 4)])
def test_alignment_of_what_is_not_moved_is_that_of_the_arena(dtype: DType, offset: int):
    sketch = chain(16, 16)
    sketch.buffers["x1"].dtype = dtype
    plan_memory(sketch.program)
    sketch.program.area_sizes = [1024]
    sketch.buffers["x1"].offset = 512 + offset
    with pytest.raises(VerificationError, match="%x1: is not aligned"):
        verify_plan(sketch.program)


@pytest.mark.parametrize(
    ("dtype", "offset", "is_sound"),
    [(DType.INT8, 4, True), (DType.INT8, 2, False), (DType.FLOAT64, 4, False), (DType.FLOAT64, 8, True)],
)
def test_what_is_moved_begins_at_a_word_or_an_element(dtype: DType, offset: int, is_sound: bool):
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("y", 16 // dtype.nbytes, dtype=dtype)
    sketch.part("x", "y", x_at=16)
    sketch.step("z", "y")
    sketch.output("z")
    plan_memory(sketch.program)
    sketch.program.area_sizes = [1024]
    sketch.buffers["y"].offset = 512 + offset
    if is_sound:
        verify_plan(sketch.program)
        return
    with pytest.raises(VerificationError, match="%y: is not aligned"):
        verify_plan(sketch.program)


# ---------------------------------------------------------------------------------------- what is not of the arena


@pytest.mark.parametrize("space", [Space.CONST, Space.STATE, Space.GIVEN, Space.TAKEN])
def test_what_is_not_of_the_arena_is_always_there(space: Space):
    """As an output, as what is read, and as source and target of moves."""
    sketch = Sketch()
    sketch.buffer("w", 32, space)
    sketch.buffer("y", 32)
    sketch.part("w", "y", x_at=16, nbytes=16)
    sketch.part("w", "y", y_at=16, nbytes=16)
    sketch.step("z", "y", "w")
    sketch.part("z", "w", y_at=16)
    sketch.output("w")
    sketch.output("z")
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    assert_overwrite_is_found(sketch, "z", "y", "%z: z: overlaps operand %y")


def test_only_what_is_moved_from_elsewhere_is_there():
    sketch = Sketch()
    sketch.buffer("w", 32, Space.CONST)
    sketch.buffer("y", 32)
    sketch.part("w", "y", x_at=16, nbytes=16)
    sketch.step("z", "y")
    sketch.output("z")
    plan_memory(sketch.program)
    with pytest.raises(VerificationError, match="%y: z: read after another buffer took its place"):
        verify_plan(sketch.program)


def beside(space: Space, access: Access) -> Sketch:
    """Two sides of a fork, of which the second uses a buffer of that space, too."""
    sketch = Sketch()
    sketch.input("x")
    sketch.buffer("w", 16, space)
    for marker, name, more in (("fork", "a", ()), ("else", "b", (("w", access, "w"),))):
        sketch.buffer(name)
        sketch.emit(marker)
        sketch.emit("kernel", ("x", Access.IN, "x"), *more, ("y", Access.OUT, name))
    sketch.emit("end")
    sketch.output("a")
    sketch.output("b")
    plan_memory(sketch.program)
    return sketch


@pytest.mark.parametrize(
    ("space", "access", "is_sound"),
    [
        (Space.CONST, Access.IN, True),
        (Space.STATE, Access.IN, True),
        (Space.TAKEN, Access.OUT, True),
        (Space.STATE, Access.OUT, False),
        (Space.STATE, Access.INOUT, False),
    ],
)
def test_one_core_of_two_writes_no_state(space: Space, access: Access, is_sound: bool):
    sketch = beside(space, access)
    if is_sound:
        verify_plan(sketch.program)
        return
    with pytest.raises(VerificationError, match="%w: b: one core of two must not write it"):
        verify_plan(sketch.program)


def view_beside_its_source(side: str) -> Sketch:
    """x is read by both sides of a fork: by one of them through a part of it, `v`, moved out of it there."""
    sketch = Sketch()
    sketch.step("x0", nbytes=64)
    for name, nbytes in (("v", 32), ("a", 16), ("b", 16)):
        sketch.buffer(name, nbytes)
    for marker, name in (("fork", "a"), ("else", "b")):
        sketch.emit(marker)
        if marker == side:
            sketch.part("x0", "v", x_at=16)
        sketch.emit("kernel", ("x", Access.IN, "v" if marker == side else "x0"), ("y", Access.OUT, name))
    sketch.emit("end")
    sketch.output("a")
    sketch.output("b")
    plan_memory(sketch.program)
    return sketch


@pytest.mark.parametrize("side", ["fork", "else"])
def test_a_view_beside_a_core_that_reads_its_source(side: str):
    """A part that stays in its place is only read; one that is copied must not lie over what the other core reads."""
    sketch = view_beside_its_source(side)
    verify_plan(sketch.program)
    x, v = sketch.buffers["x0"], sketch.buffers["v"]
    assert x.offset is not None
    v.offset = x.offset + 16
    verify_plan(sketch.program)
    v.offset = x.offset + 32
    with pytest.raises(VerificationError):
        verify_plan(sketch.program)


@pytest.mark.parametrize("side", ["fork", "else"])
@pytest.mark.parametrize("onto", [0, 16, 32, 48])
def test_what_is_written_over_a_view_is_found(side: str, onto: int):
    sketch = view_beside_its_source(side)
    x, v, y = (sketch.buffers[name] for name in ("x0", "v", "a" if side == "fork" else "b"))
    assert x.offset is not None
    v.offset, y.offset = x.offset + 16, x.offset + onto
    with pytest.raises(VerificationError):
        verify_plan(sketch.program)


@pytest.mark.parametrize(("count", "is_sound"), [(1, False), (15, False), (16, True)])
def test_channels_are_not_moved_as_if_they_were_contiguous(count: int, is_sound: bool):
    sketch = Sketch()
    sketch.step("x", nbytes=64)
    sketch.buffer("y", 64)
    move_ = sketch.part("x", "y")
    sketch.output("y")
    move_.operands = (replace(move_.operands[0], lanes=Lanes(0, count, 16)), move_.operands[1])
    plan_memory(sketch.program)
    if is_sound:
        verify_plan(sketch.program)
        return
    with pytest.raises(VerificationError, match="some channels of it are moved as if they were contiguous"):
        verify_plan(sketch.program)


def test_words_of_two_areas_are_apart():
    sketch = beside(Space.CONST, Access.IN)
    a, b = sketch.buffers["a"], sketch.buffers["b"]
    b.area, b.offset = 1, a.offset
    sketch.program.area_sizes = [256, 256]
    verify_plan(sketch.program)
    b.area = 0
    with pytest.raises(VerificationError, match="while the other uses"):
        verify_plan(sketch.program)


@pytest.mark.parametrize("padding", range(6))
@pytest.mark.parametrize("written", range(1, 5))
def test_what_was_never_written_is_never_there(padding: int, written: int):
    """Wherever it lies in the arena, and however much was written there before."""
    sketch = Sketch()
    for number in range(padding):
        sketch.buffer(f"p{number}")
    sketch.input("x")
    sketch.step("a", "x", nbytes=16 * written)
    sketch.buffer("never")
    sketch.step("y", "never")
    sketch.output("y")
    for buffer in sketch.program.buffers:
        buffer.offset = 0
    sketch.buffers["y"].offset = 128
    sketch.program.area_sizes = [256]
    sketch.buffers["a"].offset = 16
    for offset in range(0, 128, 16):
        sketch.buffers["never"].offset = offset
        with pytest.raises(VerificationError, match="%never: y: read after another buffer took its place"):
            verify_plan(sketch.program)
