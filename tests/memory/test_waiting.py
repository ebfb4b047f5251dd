# SPDX-License-Identifier: Apache-2.0
"""What the CPU waits for activations, as estimated from the program, against the memories' times."""

from __future__ import annotations

import pytest
from programs import Sketch, chain

from mcugen.board import load_board
from mcugen.memory.plan import plan_memory
from mcugen.memory.waiting import waits_for_arena

RT1060 = load_board("rt1060")
SDRAM, DTCM = RT1060.memory("sdram"), RT1060.memory("dtcm")
LARGE = 1 << 16
"""Bytes that do not fit the data cache."""


def waits(sketch: Sketch, name: str) -> float:
    plan_memory(sketch.program)
    assert not any(waits_for_arena(sketch.program, RT1060, DTCM).values())
    return waits_for_arena(sketch.program, RT1060, SDRAM)[sketch.buffers[name]]


def reading(nbytes: int) -> float:
    return float(RT1060.reading(SDRAM, nbytes) or 0)


def test_what_the_caller_has_written_and_what_is_too_large_comes_from_memory():
    assert waits(chain(256, 256, 256), "x0") == reading(256)
    assert waits(chain(LARGE, LARGE, 16), "x1") == reading(LARGE)


def test_what_was_just_written_is_in_the_cache():
    assert waits(chain(256, 256, 256), "x1") < 0.1 * reading(256)


def test_what_was_written_long_ago_is_not():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.step("early", "x", nbytes=256)
    sketch.step("large", "x", nbytes=LARGE)
    sketch.step("y", "early", "large", nbytes=16)
    sketch.output("y")
    assert waits(sketch, "early") == reading(256)


@pytest.mark.parametrize(("nbytes", "times"), [(256, 1.0), (LARGE, 8.0)])
def test_what_takes_a_word_of_each_pixel_brings_a_line_for_each(nbytes: int, times: float):
    sketch = chain(LARGE, 16)
    sketch.program.instrs[0].gathers = nbytes
    assert waits(sketch, "x0") == times * reading(LARGE)


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
    assert waits_for_arena(sketch.program, host, memory)[sketch.buffers["x0"]] == (memory.speed - 1) * 16
