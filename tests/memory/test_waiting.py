# SPDX-License-Identifier: Apache-2.0
"""What the CPU waits for activations, as estimated from the program, against the memories' times."""

from __future__ import annotations

import pytest
from programs import Sketch, chain

from mcugen.core.board import load_board
from mcugen.lir.program import WORD, Gathered
from mcugen.memory.activation_stalls import arena_stall_cycles
from mcugen.memory.plan import plan_memory

RT1060 = load_board("rt1060")
SDRAM, DTCM = RT1060.memory("sdram"), RT1060.memory("dtcm")
LARGE = 1 << 16
"""Bytes that do not fit the data cache."""
CACHE = 1 << 15
LINE = 32


def waits(sketch: Sketch, name: str) -> float:
    plan_memory(sketch.program)
    assert not any(arena_stall_cycles(sketch.program, RT1060, DTCM).values())
    return arena_stall_cycles(sketch.program, RT1060, SDRAM)[sketch.buffers[name]]


def first_words(nbytes: int) -> float:
    """Cycles until the words that all lines begin with are there."""
    return nbytes / LINE * (RT1060.wait_cycles(SDRAM, WORD) or 0)


def is_read_from_memory(cycles: float, nbytes: int) -> bool:
    return first_words(nbytes) <= cycles <= nbytes / LINE * (RT1060.wait_cycles(SDRAM, LINE) or 0)


def test_what_the_caller_has_written_and_what_is_too_large_comes_from_memory():
    assert is_read_from_memory(waits(chain(256, 256, 256), "x0"), 256)
    assert is_read_from_memory(waits(chain(LARGE, LARGE, 16), "x1"), LARGE)


def test_what_was_just_written_is_in_the_cache():
    assert waits(chain(256, 256, 256), "x1") < 0.1 * first_words(256)


def test_of_what_just_does_not_fit_some_is_still_there():
    """Both steps go through two buffers, which take three quarters of the cache and more than all of it."""
    nbytes = CACHE // 8 * 3
    sketch = Sketch()
    sketch.input("x", nbytes)
    sketch.step("y", "x", nbytes=nbytes)
    sketch.step("z", "y", "x", nbytes=nbytes)
    sketch.output("z")
    assert 0.2 * first_words(nbytes) < waits(sketch, "y") < 0.8 * first_words(nbytes)


def test_what_was_written_long_ago_is_not():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("early", "x", nbytes=256)
    sketch.step("large", "x", nbytes=LARGE)
    sketch.step("y", "early", "large", nbytes=16)
    sketch.output("y")
    assert is_read_from_memory(waits(sketch, "early"), 256)


@pytest.mark.parametrize(("pitch", "words"), [(4, 1), (8, 2), (LINE, LINE // WORD), (100, LINE // WORD)])
def test_what_takes_a_word_of_each_pixel_brings_a_line_for_each(pitch: int, words: int):
    """Of an image that the cache does not hold."""
    nbytes = LARGE * pitch // LINE if pitch > LINE else LARGE
    sketch = chain(nbytes, 16)
    sketch.program.instrs[0].gathers = Gathered(pitch, WORD)
    assert waits(sketch, "x0") == words * (RT1060.sequential_read_cycles(SDRAM, nbytes) or 0)


@pytest.mark.parametrize(("made", "is_held"), [(16, True), (CACHE * 3 // 4, False)])
def test_results_take_room_beside_what_is_gathered(made: int, is_held: bool):
    sketch = chain(CACHE // 2, made)
    sketch.program.instrs[0].gathers = Gathered(LINE, WORD)
    assert (waits(sketch, "x0") < 2 * first_words(CACHE // 2)) == is_held


def test_pixels_a_power_of_two_apart_fall_to_few_sets():
    """Sets of lines 256 bytes apart have room for 128 of these; 288 bytes apart all sets are taken."""

    def of(pixels: int, pitch: int) -> float:
        sketch = chain(pixels * pitch, 16)
        sketch.program.instrs[0].gathers = Gathered(pitch, WORD)
        return waits(sketch, "x0") / first_words(pixels * pitch)

    assert of(120, 256) == of(256, 288) < 2
    assert of(256, 256) > 8


def test_working_memory_that_the_cache_holds_costs_little():
    def of(nbytes: int) -> float:
        sketch = Sketch()
        sketch.input("x", 16)
        instr = sketch.step("y", "x", nbytes=16, scratch=nbytes)
        instr.macs = 1 << 20
        sketch.output("y")
        return waits(sketch, "y.scratch")

    assert 50 * of(4096) < of(LARGE)


def test_where_a_board_tells_no_waits_its_speeds_count():
    host = load_board("host")
    sketch = chain(64, 64)
    plan_memory(sketch.program)
    memory = host.memory(host.arena_memory)
    assert arena_stall_cycles(sketch.program, host, memory)[sketch.buffers["x0"]] == (memory.speed - 1) * 16
