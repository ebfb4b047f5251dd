# SPDX-License-Identifier: Apache-2.0
"""The rules of placement, one by one: which memories are considered, in which order, and what they lack."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from programs import Sketch, chain

from mcugen.core.board import Board, Memory, load_board
from mcugen.core.errors import DoesNotFitError, UsageError
from mcugen.core.options import Places
from mcugen.hir.types import DType
from mcugen.lir.program import Buffer, Program, Space
from mcugen.memory.place import (
    MAX_CORE_IMAGE_CODE_BYTES,
    MIN_PLACEMENT_GAIN,
    NO_PLACES,
    SPILL_RESERVE_BYTES,
    Placement,
    copied_bytes,
    copies_of,
    fitting,
    flash_lacking,
    hottest,
    in_second_core_image,
    memory_of_arena,
    memory_of_weights,
    place,
    ram_by_speed,
    ram_lacking,
    weights_memories,
)
from mcugen.memory.plan import plan_memory

FAST = Memory("fast", "ram", 0x2000_0000, 64, 1)
SLOW = Memory("slow", "ram", 0x3000_0000, 256, 3)
ROM = Memory("rom", "flash", 0x0800_0000, 512, 2)


def board(*memories: Memory, arena: str = "fast", data: str = "elsewhere") -> Board:
    """A board of these memories, without caches; its stack lies elsewhere unless told."""
    return replace(
        load_board("rt1060"),
        name="toy",
        memories=memories or (FAST, SLOW, ROM),
        arena_memory=arena,
        data_memory=data,
        weights_memory="rom",
        caches=(),
    )


def with_constants(*sizes: int) -> Program:
    """A planned chain of two buffers of 16 bytes, whose layer reads constants of these sizes: w0, w1, …"""
    sketch = chain(16, 16)
    names = [f"w{number}" for number in range(len(sizes))]
    for name, nbytes in zip(names, sizes, strict=True):
        sketch.buffer(name, nbytes, Space.CONST).data = np.zeros(nbytes, np.int8)
    sketch.step("x1", "x0", *names)
    plan_memory(sketch.program)
    return sketch.program


def planned(*sizes: int) -> Program:
    program = chain(*sizes).program
    plan_memory(program)
    return program


def names(memories: list[Memory] | tuple[Memory, ...]) -> list[str]:
    return [memory.name for memory in memories]


# ----------------------------------------------------------------------------------------------------- which memory


def test_ram_by_speed_leaves_address_0_for_last_of_equals():
    zero, b, a = (
        Memory(name, "ram", origin, 64, 1) for name, origin in (("zero", 0), ("b", 0x2000_0000), ("a", 0x2100_0000))
    )
    assert names(ram_by_speed(board(SLOW, zero, ROM, b, a))) == ["a", "b", "zero", "slow"]


def test_weights_lie_where_they_are_asked_for_or_in_the_boards_flash_or_in_another():
    quick, far = Memory("quick", "flash", 0x9000_0000, 64, 1), Memory("far", "flash", 0xA000_0000, 64, 9)
    toy = board(far, FAST, quick, ROM)
    every = ["rom", "quick", "far"]
    asked: dict[str, list[str]] = {"": every, "far": ["far"], "quick": ["quick"], "rom": ["rom"], "fast": every}
    assert {name: names(weights_memories(toy, Places(weights=name))) for name in asked} == asked
    read = {name: memory_of_weights(toy, Places(weights=name)).name for name in asked}
    assert read == {"": "rom", "far": "far", "quick": "quick", "rom": "rom", "fast": "fast"}


@pytest.mark.parametrize(
    ("arena", "wanted"),
    [
        ((), "fast"),
        (("auto",), "fast"),
        (("slow",), "slow"),
        (("slow", "fast"), "slow"),
        (("auto", "slow", "fast"), "slow"),
    ],
)
def test_the_arena_lies_in_the_first_memory_that_is_named(arena: tuple[str, ...], wanted: str):
    assert memory_of_arena(board(), Places(arena)).name == wanted


def test_weights_take_the_first_flash_that_has_room():
    far = Memory("far", "flash", 0xA000_0000, 1024, 9)
    toy = board(FAST, ROM, far)
    found = {nbytes: place(with_constants(nbytes), toy) for nbytes in (512, 513, 1024)}
    assert {nbytes: each.weights.name for nbytes, each in found.items()} == {512: "rom", 513: "far", 1024: "far"}
    assert {nbytes: each.names_weights for nbytes, each in found.items()} == {512: False, 513: True, 1024: True}
    assert place(with_constants(16), toy, Places(weights="rom")).names_weights
    with pytest.raises(DoesNotFitError, match=r"must fit in memory 'rom' of board 'toy'.* 1 more than 'rom' has"):
        place(with_constants(513), toy, Places(weights="rom"))
    with pytest.raises(DoesNotFitError, match=r"must fit in one flash memory of board.* 1 more than 'far' has"):
        place(with_constants(1025), toy)


def test_c_says_where_the_arena_lies_unless_that_is_the_default():
    assert not place(planned(16, 16), board()).names_arena
    assert place(planned(16, 16), board(), Places(("fast",))).names_arena
    assert place(planned(64, 64), board(FAST, SLOW, ROM)).names_arena


def test_only_ram_is_taken_for_what_is_written():
    with pytest.raises(UsageError, match=r"--place arena must name RAM of board 'toy'.*'rom'.*one of fast, slow"):
        place(planned(16, 16), board(), Places(("rom",)))
    with pytest.raises(UsageError, match=r"--place hot-weights must name RAM .*'rom'"):
        place(with_constants(16), board(), Places(hot_weights=("rom", 16)))


# ------------------------------------------------------------------------------------------------- what they lack


@pytest.mark.parametrize(("nbytes", "lacking"), [(500, 0), (512, 0), (513, 1), (530, 18)])
@pytest.mark.parametrize("weights", ["", "rom", "fast"])
def test_flash_that_constants_lack(nbytes: int, lacking: int, weights: str):
    assert flash_lacking(with_constants(nbytes), board(), Places(weights=weights)) == lacking
    roomy = board(FAST, ROM, Memory("far", "flash", 0xA000_0000, 1024, 9))
    assert flash_lacking(with_constants(nbytes), roomy, Places(weights=weights)) == (lacking if weights == "rom" else 0)


@pytest.mark.parametrize(
    ("arena", "may_spill", "most", "where"),
    [
        ((), False, 256, ""),
        ((), True, 64 + 256, ""),
        (("auto",), False, 64 + 256, "'fast' and 'slow'"),
        (("fast",), False, 64, "'fast'"),
        (("fast",), True, 64, "'fast'"),
        (("slow", "fast"), False, 64 + 256, "'slow' and 'fast'"),
    ],
)
def test_ram_that_the_arena_lacks(arena: tuple[str, ...], may_spill: bool, most: int, where: str):
    program = planned(16, 16)
    program.area_sizes = [most]
    assert ram_lacking(program, board(), Places(arena), may_spill)[0] == 0
    for areas, lacking in (([most - 16, 17], 1), ([most + 300], 300)):
        program.area_sizes = areas
        assert ram_lacking(program, board(), Places(arena), may_spill) == (lacking, where)


def test_ram_that_copies_of_weights_lack():
    program, places = with_constants(40, 40), Places(hot_weights=("fast", 96))
    assert ram_lacking(program, board(), places, may_spill=False) == (32, "'fast'")
    program.area_sizes = [256 + 33]
    assert ram_lacking(program, board(), places, may_spill=False) == (33, "")
    with pytest.raises(DoesNotFitError) as error:
        place(program, board(), places)
    assert (error.value.rule, error.value.found) == (
        "copies of weights must fit in their memory",
        "96 bytes, 32 more than 'fast' has",
    )


def test_copies_that_fill_their_memory_exactly_fit():
    program, places = with_constants(40, 16), Places(("slow",), hot_weights=("fast", 64))
    assert ram_lacking(program, board(), places, may_spill=False)[0] == 0
    found = place(program, board(), places)
    assert found.copied_to(FAST) == copied_bytes(program, board(), places) == 48 + 16
    assert found.copied_to(SLOW) == 0
    assert found.memories == (SLOW, FAST, ROM)


# -------------------------------------------------------------------------------------------------- copies of weights


def constants(*sizes: int) -> list[Buffer]:
    return [Buffer(f"b{number}", DType.INT8, nbytes, Space.CONST) for number, nbytes in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "nbytes", "taken"),
    [
        ((16, 16), 32, [0, 1]),
        ((16, 16), 31, [0]),
        ((17, 16), 32, [0]),
        ((33, 16, 16), 47, [1, 2]),
        ((16, 48, 16), 32, [0, 2]),
        ((16,), 15, []),
    ],
)
def test_what_does_not_fit_beside_those_before_it_is_left_out(sizes: tuple[int, ...], nbytes: int, taken: list[int]):
    buffers = constants(*sizes)
    assert fitting(buffers, nbytes) == [buffers[number] for number in taken]


def test_the_hottest_constants_are_read_most_often_for_their_size():
    program = with_constants(32, 0, 16, 16)
    once = [b for b in program.buffers if b.space is Space.CONST and b.nbytes]
    assert hottest(program) == once
    program.instrs[-1].operands = tuple(o for o in program.instrs[-1].operands if o.buffer is not once[0])
    assert hottest(program) == [*once[1:], once[0]]


def test_each_next_memory_gets_what_the_ones_before_left():
    program, toy = with_constants(16, 16, 16, 16), board()
    weights = [b for b in program.buffers if b.space is Space.CONST]
    found = copies_of(program, toy, Places(weights="slow", hot_weights=(("fast", 16), ("slow", 32))))
    assert [found[b].name for b in weights] == ["fast", "slow", "slow", "slow"]
    hot = Places(hot_weights=(("slow", 16), ("fast", 40)))
    assert [m.name for m in copies_of(program, toy, hot).values()] == ["slow", "fast", "fast"]
    assert copied_bytes(program, toy, hot) == 3 * 16
    assert copies_of(program, toy, Places(weights="rom")) == copies_of(program, toy, NO_PLACES) == {}


# ------------------------------------------------------------------------------------------------- a second core's


@pytest.mark.parametrize(
    ("room", "copy_in", "is_left"),
    [
        (MAX_CORE_IMAGE_CODE_BYTES + 48, "fast", True),
        (MAX_CORE_IMAGE_CODE_BYTES + 47, "fast", False),
        (MAX_CORE_IMAGE_CODE_BYTES + 48, "slow", True),
        (MAX_CORE_IMAGE_CODE_BYTES + 48, "unseen", True),
        (MAX_CORE_IMAGE_CODE_BYTES + 48, "quick", False),
    ],
)
def test_constants_of_a_second_core_lie_in_its_image(room: int, copy_in: str, is_left: bool):
    """If they fit beside its code, and no copy that it sees is faster. What it does not read stays a copy."""
    sketch = Sketch()
    sketch.input("x")
    for name, nbytes in (("mine", 16), ("others", 40), ("both", 5)):
        sketch.buffer(name, nbytes, Space.CONST)
    sketch.step("a", "x", "mine", "both")
    sketch.step("b", "a")
    sketch.step("y", "b", "others", "both")
    program = sketch.program
    program.handover = range(1, 2)
    sketch.buffers["others"].count = 17  # 32 bytes in memory, beside 16 of the other
    image = Memory("image", "flash", 0x1000_0000, room, 2)
    memories = [Memory(name, "ram", 0x2000_0000, 64, speed) for name, speed in (("fast", 2), ("slow", 3), ("quick", 1))]
    seen = replace(board(image, *memories), weights_memory="image")
    where = next((m for m in memories if m.name == copy_in), Memory("unseen", "ram", 0x2000_0000, 64, 1))
    copied = {b: where for b in program.buffers if b.space is Space.CONST}
    placement = Placement((where,), ROM, copied, names_arena=True)
    found = in_second_core_image(placement, program, seen)
    left = ["mine"] if is_left else ["mine", "others", "both"]
    assert [b.name for b in found.copies] == left
    assert replace(found, copies=copied) == placement


# --------------------------------------------------------------------------------------------------------- by default


def test_what_fits_the_boards_memory_lies_there_though_others_are_faster():
    assert place(planned(16, 16), board(arena="slow")).arenas == (SLOW,)


def test_an_arena_that_one_memory_of_the_same_speed_holds_is_not_split():
    twin = replace(SLOW, name="twin", origin=0x4000_0000, speed=1)
    program = planned(48, 48)
    assert place(program, board(FAST, twin, ROM)).arenas == (twin,)
    assert place(program, board(FAST, twin, ROM), Places(("fast", "twin"))).arenas == (twin,)
    assert len(program.area_sizes) == 1
    assert place(planned(48, 48), board(FAST, SLOW, ROM), Places(("fast", "slow"))).arenas == (FAST, SLOW)


@pytest.mark.parametrize(("more", "is_split"), [(0, True), (-1, False)])
def test_what_takes_more_than_may_spill_stays_whole(more: int, is_split: bool):
    program = planned(48, 48)
    found = place(program, board(), most_spilled=program.arena_size + more)
    assert found.arenas == ((FAST, SLOW) if is_split else (SLOW,))


@pytest.mark.parametrize(("calls", "is_split"), [(1.02, False), (0.98, True)])
def test_several_memories_must_save_a_share_of_a_calls_cycles(calls: float, is_split: bool):
    """Of 48 bytes that are written, then read, once: each word takes 2 cycles less."""
    program = planned(48, 48)
    program.instructions_estimate = calls * (48 // 4 * 2) / MIN_PLACEMENT_GAIN
    found = place(program, board())
    assert found.arenas == ((FAST, SLOW) if is_split else (SLOW,))
    assert len(program.area_sizes) == len(found.arenas)
    assert [b.area for b in program.buffers] == ([0, 1] if is_split else [0, 0])


def test_faster_memories_are_taken_besides_only_where_nothing_else_has_room():
    own = replace(SLOW, size=48)
    program = planned(48, 48)
    fast = replace(FAST, size=48)
    assert place(program, board(fast, own, ROM, arena="slow")).arenas == (own, fast)
    larger = replace(own, name="larger", size=96, origin=0x5000_0000)
    assert place(planned(48, 48), board(FAST, own, larger, ROM, arena="slow")).arenas == (larger,)


def beside_the_stack(room: int, *sizes: int) -> tuple[Program, Board]:
    """Two memories, of which the second has so many bytes, and is that of the stack."""
    memories = replace(FAST, size=2 * SPILL_RESERVE_BYTES), replace(SLOW, size=room), ROM
    return planned(*sizes), board(*memories, data="slow")


def test_what_spills_leaves_room_for_the_stack():
    program, toy = beside_the_stack(3 * SPILL_RESERVE_BYTES, 2 * SPILL_RESERVE_BYTES, 2 * SPILL_RESERVE_BYTES)
    assert len(place(program, toy).arenas) == 2
    program, toy = beside_the_stack(3 * SPILL_RESERVE_BYTES - 1, 2 * SPILL_RESERVE_BYTES, 2 * SPILL_RESERVE_BYTES)
    assert refused(program, toy).remedy.startswith("let it take all RAM with --place auto, or use a smaller")
    assert len(place(program, toy, Places(("auto",))).arenas) == 2


def refused(program: Program, toy: Board, places: Places = NO_PLACES) -> DoesNotFitError:
    with pytest.raises(DoesNotFitError) as error:
        place(program, toy, places)
    return error.value


@pytest.mark.parametrize(
    ("toy", "places", "rule", "found"),
    [
        (board(FAST, ROM), NO_PLACES, "arena must fit in one RAM memory", "128 bytes, 64 more than 'fast' has"),
        (board(FAST, ROM), Places(("auto",)), "arena must fit in memory 'fast'", "128 bytes, 64 more than 'fast' has"),
        (board(), Places(("fast",)), "arena must fit in memory 'fast'", "128 bytes, 64 more than 'fast' has"),
        (
            board(FAST, replace(SLOW, size=32), ROM),
            NO_PLACES,
            "arena must fit in the RAM memories",
            "128 bytes, 'fast' has 64 and 'slow' has 32",
        ),
        (
            board(FAST, replace(SLOW, size=32), ROM),
            Places(("slow", "fast")),
            "arena must fit in the memories 'slow' and 'fast'",
            "128 bytes, 'slow' has 32 and 'fast' has 64",
        ),
    ],
)
def test_refusals_of_an_arena(toy: Board, places: Places, rule: str, found: str):
    error = refused(planned(64, 64), toy, places)
    assert (error.rule, error.found) == (f"the {rule} of board 'toy'", f"{found}; largest: 'x0' 64, 'x1' 64")
    assert re.fullmatch(r"(compute by rows .*, or )?use a smaller or .* more memory", error.remedy)


@pytest.mark.parametrize(
    ("sizes", "has_room"),
    [
        ((3 * SPILL_RESERVE_BYTES, 2 * SPILL_RESERVE_BYTES), True),
        ((3 * SPILL_RESERVE_BYTES, 2 * SPILL_RESERVE_BYTES + 1), False),  # more than all RAM
        ((3 * SPILL_RESERVE_BYTES + 1, 16), False),  # more than any of its memories
    ],
)
def test_all_ram_is_offered_only_where_that_would_do(sizes: tuple[int, int], has_room: bool):
    program, toy = beside_the_stack(3 * SPILL_RESERVE_BYTES, *sizes)
    wanted = "let it take all RAM with --place auto" if has_room else "compute by rows with --optimize ram"
    assert refused(program, toy).remedy.startswith(f"{wanted}, or use a smaller")
