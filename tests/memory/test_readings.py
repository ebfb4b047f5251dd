# SPDX-License-Identifier: Apache-2.0
"""What instructions read of the arena and of constants, and the cycles that it takes, as worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from programs import Sketch

from mcugen.core.board import Cache
from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Gathered, Operand, Program, Space
from mcugen.memory.activation_stalls import BufferReads, arena_reads, arena_stall_cycles, share_bytes
from mcugen.memory.constant_stalls import ConstantReads, constant_reads, constant_stall_cycles, saved_by_copies

IN, OUT, INOUT, SCRATCH = Access.IN, Access.OUT, Access.INOUT, Access.SCRATCH
CACHE = Cache("d", ("ram",), "data", size=1024, line=32, ways=4)
"""Eight sets of four lines; data that takes up to 768 bytes of it is found there again."""


@dataclass(frozen=True)
class Memory:
    """A memory that reads a byte in so many cycles; None: the board does not tell."""

    name: str = "ram"
    speed: float = 3.0
    cycles: int | None = 5


@dataclass(frozen=True)
class Board:
    """A word takes 10 cycles and a line 38, beyond caches."""

    kept: Cache | None = None
    arena_memory: str = "ram"

    def cache(self, memory: Memory, holds: str) -> Cache | None:
        return self.kept if self.kept and memory.name in self.kept.serves else None

    def memory(self, name: str) -> Memory:
        return Memory(name)

    def sequential_read_cycles(self, memory: Memory, nbytes: int) -> int | None:
        return None if memory.cycles is None else memory.cycles * nbytes

    def repeated_read_cycles(self, memory: Memory, nbytes: int) -> int | None:
        return None if memory.cycles is None else 2 * nbytes

    def wait_cycles(self, memory: Memory, nbytes: int) -> int | None:
        return None if memory.cycles is None else {4: 10, 32: 38}[nbytes]


def reading(**changes: Any) -> BufferReads:
    """256 bytes that the caller has written are read once."""
    buffer = Buffer("x", DType.INT8, 256, Space.ARENA)
    whole = BufferReads(
        buffer, 1, 256, 0, None, advances=False, gathers=None, result_bytes=0, scratch_bytes=0, cyclic_bytes=0
    )
    return replace(whole, **changes)


def cycles(cache: Cache | None, memory: Memory = Memory(), **changes: Any) -> float:
    return reading(**changes).cycles(Board(cache), memory)  # type: ignore[arg-type]


def test_without_waits_the_speed_of_the_memory_counts():
    """Each word takes speed − 1 cycles more."""
    assert cycles(None, Memory(cycles=None), nbytes=200, reloaded_bytes=56, times=3) == 3 * 2 * 64


def test_without_a_cache_each_byte_is_read():
    assert cycles(None, nbytes=200, reloaded_bytes=56, times=3) == 3 * 5 * 256


LINES = 256 // 32 * 38
"""Cycles of 256 bytes that no cache holds: eight lines."""
CRITICAL = 256 // 32 * 10
"""The same where the CPU goes on with the first word: of 38 cycles, 28 go by while it uses the seven others."""
LOST = 1 / 64
"""Of what a cache should hold."""


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, LINES),
        ({"before": (0, 256)}, LOST * LINES),
        ({"before": (1024, 1024)}, LOST * LINES),
        ({"before": (1025, 1025)}, LINES),
        ({"before": (512, 1536)}, LOST * LINES + (1 - LOST) * LINES / 2),
        ({"before": (1536, 512)}, LOST * LINES + (1 - LOST) * LINES / 2),
        ({"before": (512, 1280)}, LOST * LINES + (1 - LOST) * LINES / 3),
        ({"before": (2000, 3000)}, LINES),
        ({"times": 3}, LINES + 2 * LOST * LINES),
        ({"times": 3, "advances": True}, 3 * LINES),
        ({"times": 3, "nbytes": 768}, 3 * LINES + 2 * 3 * LOST * LINES),
        ({"times": 3, "nbytes": 800}, 3 * 800 / 32 * 38),
        ({"reloaded_bytes": 640}, LINES),
        ({"reloaded_bytes": 640, "times": 2, "cyclic_bytes": 768}, (1 + LOST) * LINES),
        ({"reloaded_bytes": 640, "times": 2, "cyclic_bytes": 1280}, (1 + LOST) * LINES + 2 * 20 * 38),
        ({"reloaded_bytes": 640, "times": 2, "cyclic_bytes": 1024}, (1 + LOST) * LINES + 20 * 38),
    ],
)
def test_lines_that_the_cache_does_not_hold_are_waited_for(changes: dict[str, Any], wanted: float):
    assert cycles(CACHE, **changes) == pytest.approx(wanted)


def test_the_first_word_of_a_line_comes_first():
    critical = replace(CACHE, critical_word_first=True)
    assert cycles(critical) == CRITICAL
    assert cycles(replace(critical, line=32), reloaded_bytes=640, cyclic_bytes=1280) == CRITICAL + 20 * 10


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, LINES),
        ({"before": (0, 0)}, 3 * 64 + LOST * LINES),
        ({"times": 3}, LINES + 2 * (3 * 64 + LOST * LINES)),
        ({"reloaded_bytes": 640}, LINES + 3 * 160),
        ({"reloaded_bytes": 640, "cyclic_bytes": 1024}, LINES + 20 * 38 / 2 + 3 * 160 / 2),
    ],
)
def test_what_is_in_the_cache_takes_its_wait_states(changes: dict[str, Any], wanted: float):
    assert cycles(replace(CACHE, hit_wait_states=3), **changes) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("changes", "share", "comes_back"),
    [
        ({"nbytes": 1024, "gathers": Gathered(64, 16)}, 0, 2),  # 16 lines in 4 sets
        ({"nbytes": 1280, "gathers": Gathered(64, 16)}, 1, 2),  # 20 lines: each set has one too many
        ({"nbytes": 1152, "gathers": Gathered(64, 16)}, 0.5 * 5 / 4.5, 2),  # half of the sets have
        ({"nbytes": 1024, "result_bytes": 128, "gathers": Gathered(64, 16)}, 0.5 * 5 / 4.5, 2),
        ({"nbytes": 1024, "scratch_bytes": 128, "gathers": Gathered(64, 16)}, 0.5 * 5 / 4.5, 2),
        ({"nbytes": 2048, "gathers": Gathered(64, 8)}, 1, 4),
        ({"nbytes": 1152, "gathers": Gathered(16, 4)}, 0.5 * 5 / 4.5, 4),  # 36 lines in 8 sets
        ({"nbytes": 3456, "gathers": Gathered(96, 8)}, 0.5 * 5 / 4.5, 4),  # the same
        ({"nbytes": 1152, "gathers": Gathered(256, 32)}, 0.5 * 5 / 4.5, 1),  # all in one set
    ],
)
def test_lines_of_sets_that_are_too_full_come_back(changes: dict[str, Any], share: float, comes_back: float):
    if not share:
        assert cycles(CACHE, **changes, times=2) == cycles(CACHE, **(changes | {"gathers": None}), times=2)
        return
    assert cycles(CACHE, **changes, times=2) == pytest.approx(2 * share * comes_back * 5 * changes["nbytes"])


# ------------------------------------------------------------------------------------------------------ programs


def facts(program: Program) -> list[tuple[str, int, int, int, tuple[int, int] | None]]:
    """Of each reading the buffer, times, bytes, those again, and what was used since."""
    return [(r.buffer.name, r.times, r.nbytes, r.reloaded_bytes, r.before) for r in arena_reads(program)]


def test_what_was_used_between_is_counted_from_first_and_last_bytes():
    sketch = Sketch()
    sketch.input("x")
    sketch.step("a", "x", nbytes=32)
    sketch.step("b", "x", "a", nbytes=64)
    sketch.step("c", "x", "b", nbytes=16)
    assert facts(sketch.program) == [
        ("x", 1, 16, 0, None),
        ("x", 1, 16, 0, (48, 48 + 112 - 48)),
        ("a", 1, 32, 0, (48, 112)),
        ("x", 1, 16, 0, (112, 96)),
        ("b", 1, 64, 0, (112, 96)),
    ]


def test_each_multiplication_reads_its_input_again():
    """A quarter of 640 loads, but for what is read anyway."""
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.step("y", "x", nbytes=8).macs = 640
    assert facts(sketch.program) == [("x", 1, 32, 160, None)]


def test_working_memory_is_read_in_place_of_the_input():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.step("y", "x", nbytes=8, scratch=16).macs = 640
    x, scratch = arena_reads(sketch.program)
    assert (x.reloaded_bytes, scratch.nbytes, scratch.reloaded_bytes, scratch.before) == (0, 16, 160, (0, 56))
    assert [r.scratch_bytes for r in (x, scratch)] == [16, 16]
    assert [r.cyclic_bytes for r in (x, scratch)] == [0, 16]
    assert [r.result_bytes for r in (x, scratch)] == [8, 8]


def test_what_is_renewed_is_read_and_what_is_written_is_not():
    sketch = Sketch()
    sketch.input("x")
    sketch.step("y", "x")
    sketch.step("y", "x", access=INOUT)
    sketch.step("y", "x", access=SCRATCH)
    sketch.buffer("none", 0)
    sketch.step("z", "none")
    assert [name for name, *_ in facts(sketch.program)] == ["x", "x", "y", "x", "y"], "working memory is read"


def test_only_the_arena_counts():
    sketch = Sketch()
    sketch.buffer("w", 16, Space.CONST)
    sketch.buffer("s", 16, Space.STATE)
    sketch.step("y", "w", "s")
    assert facts(sketch.program) == []


def test_a_loop_reads_as_often_as_it_runs_and_a_part_goes_on():
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("y", 48)
    sketch.emit("for", steps=5)
    sketch.part("x", "y", x_at=16, nbytes=32)
    sketch.step("z", "y", nbytes=8)
    sketch.emit("end")
    found = list(arena_reads(sketch.program))
    assert [(r.buffer.name, r.times, r.nbytes, r.advances) for r in found] == [("x", 5, 32, True), ("y", 5, 48, False)]


def prepared(loads: float | None = None) -> Program:
    """Weights that are copied to the arena, and a layer that works on these and on what it prepares of its input."""
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.buffer("w", 24, Space.CONST)
    sketch.emit("stage_weights", ("x", IN, "w"), ("y", OUT, sketch.buffer("held", 24).name))
    instr = sketch.step("y", "x", "held", nbytes=8, scratch=16)
    instr.macs = 640
    if loads is not None:
        instr.declaration = Kernel("k", loads=loads)
    return sketch.program


@pytest.mark.parametrize(("loads", "again"), [(None, 156), (2.0, 1248)])
def test_weights_that_were_copied_are_read_as_the_kernel_says(loads: float | None, again: int):
    """26 times in all, a word of them in one load of four, or twice."""
    x, held, scratch = arena_reads(prepared(loads))
    assert (held.buffer.name, held.nbytes, held.reloaded_bytes, held.before) == ("held", 24, again, (48, 80))
    assert (scratch.reloaded_bytes, x.reloaded_bytes) == (160, 0)
    assert [r.cyclic_bytes for r in (x, held, scratch)] == [0, 16 + 24, 16 + 24 // 8]
    assert [r.scratch_bytes for r in (x, held, scratch)] == [16, 16, 16]


def test_images_alone_are_gathered():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.input("other", 32)
    instr = sketch.step("y", "x", "other")
    instr.gathers = Gathered(16, 4)
    instr.operands = (instr.operands[0], Operand("t", IN, sketch.buffers["other"]), instr.operands[2])
    assert [r.gathers for r in arena_reads(sketch.program)] == [Gathered(16, 4), None]


@pytest.mark.parametrize(
    ("x_at", "y_at", "area", "used", "result_bytes"),
    [
        (0, 32, 0, 96, 64),  # side by side
        (32, 0, 0, 64, 0),  # the input within the output
        (16, 32, 0, 80, 0),  # in part
        (0, 0, 0, 64, 0),
        (0, 0, 1, 96, 64),  # in two memories
        (None, 0, 0, 96, 64),
    ],
)
def test_what_lies_over_another_counts_once(x_at: int | None, y_at: int, area: int, used: int, result_bytes: int):
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.step("y", "x", nbytes=64)
    sketch.step("z", "x", nbytes=16)
    sketch.buffers["x"].offset, sketch.buffers["y"].offset = x_at, y_at
    sketch.buffers["y"].area = area
    first, second = arena_reads(sketch.program)
    assert (first.result_bytes, second.before) == (result_bytes, (used, 48))


def test_three_that_lie_over_one_another_count_once():
    sketch = Sketch()
    for name, nbytes, offset in (("a", 64, 16), ("b", 16, 32), ("c", 32, 64)):
        sketch.input(name, nbytes)
        sketch.buffers[name].offset = offset
    sketch.step("y", "a", "b", "c", nbytes=0)
    sketch.step("z", "a", nbytes=0)
    assert list(arena_reads(sketch.program))[-1].before == (80, 64)


@pytest.mark.parametrize(
    ("a", "b", "area", "wanted"),
    [
        (0, 16, 0, False),
        (0, 15, 0, True),
        (16, 0, 0, False),
        (15, 0, 0, True),
        (0, 0, 1, False),
        (None, 0, 0, False),
        (0, None, 0, False),
    ],
)
def test_buffers_share_bytes(a: int | None, b: int | None, area: int, wanted: bool):
    one = Buffer("a", DType.INT8, 16, Space.ARENA, offset=a)
    assert share_bytes(one, Buffer("b", DType.INT8, 16, Space.ARENA, offset=b, area=area)) is wanted


def test_waits_are_sums_by_buffer():
    sketch = Sketch()
    sketch.input("x")
    sketch.step("a", "x", nbytes=32)
    sketch.step("b", "x", "a")
    sketch.buffer("w", 8, Space.CONST)
    found = arena_stall_cycles(sketch.program, Board(), Memory())  # type: ignore[arg-type]
    assert {b.name: n for b, n in found.items()} == {"x": 2 * 5 * 16, "a": 5 * 32, "b": 0}


# ----------------------------------------------------------------------------------------------------- constants


def weighted(steps: int = 1) -> Program:
    """A layer of 640 multiplications by 64 weights and 16 others, and one of 64; perhaps in a loop."""
    sketch = Sketch()
    sketch.input("x", 32)
    for name, count in (("w", 64), ("v", 16), ("none", 0)):
        sketch.buffer(name, count, Space.CONST).data = np.zeros(count, np.int8)
    if steps > 1:
        sketch.emit("for", steps=steps)
    first = sketch.step("a", "x", "w", "v", "none")
    first.macs, first.declaration = 640, Kernel("k", loads=0.5, sweeps=0.3)
    sketch.step("b", "a", "w").macs = 64
    if steps > 1:
        sketch.emit("end")
    return sketch.program


FLASH, FAST, UNKNOWN = Memory("flash"), Memory("fast", cycles=1), Memory("unknown", cycles=None)


def constants(program: Program, cache: Cache | None = None) -> list[ConstantReads]:
    return list(constant_reads(program, Board(cache), FLASH))  # type: ignore[arg-type]


def test_constants_of_layers_by_runs_and_passes():
    """Half of a load a word and product without a cache; lines serve several with one, which others use, too."""
    found = [(c.buffer.name, c.runs, c.passes, c.between, c.cold, c.whole) for c in constants(weighted())]
    assert found == [
        ("w", 1, 5.0, 80, 1.0, range(1)),
        ("v", 1, 5.0, 80, 1.0, range(1)),
        ("w", 1, 1.0, 64, 1.0, range(1, 2)),
    ]
    both = replace(CACHE, serves=("flash",), holds="both")
    found = [(c.buffer.name, c.runs, c.passes, c.between, c.cold, c.whole) for c in constants(weighted(4), both)]
    assert found == [
        ("w", 4, 3.0, 80, 1.0, range(4)),
        ("v", 4, 3.0, 80, 1.0, range(4)),
        ("w", 4, 1.0, 80, 1.0, range(4)),
    ]


@pytest.mark.parametrize(
    ("size", "serves", "arena", "cold"),
    [
        (64, ("flash",), 0, 1.0),
        (80, ("flash",), 0, 0.5),
        (160, ("flash",), 0, 0.0),
        (160, ("flash",), 80, 0.0),
        (160, ("flash", "ram"), 80, 0.5),
        (160, ("flash", "ram"), 0, 0.0),
    ],
)
def test_a_cache_for_data_keeps_constants_from_call_to_call(
    size: int, serves: tuple[str, ...], arena: int, cold: float
):
    program = weighted()
    program.area_sizes = [arena]
    kept = replace(CACHE, size=size, line=4, serves=serves)
    assert constants(program, kept)[0].cold == cold


def constant(**changes: Any) -> ConstantReads:
    """64 bytes: 320 cycles at first, 128 later."""
    program = weighted()
    whole = ConstantReads(program.instrs[0], program.buffers[1], range(1), runs=1, passes=1.0, between=64, cold=1.0)
    return replace(whole, **changes)


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({}, 320),
        ({"cold": 0.25}, 80),
        ({"passes": 2.5}, 320 + 1.5 * 128),
        ({"runs": 3}, 320 + 2 * 128),
        ({"runs": 3, "between": 640}, 320 + 2 * 128),  # as many bytes of those that come between
        ({"runs": 3, "passes": 2.0, "cold": 0.5}, 160 + 2 * 128 + 3 * 128),
    ],
)
def test_waits_for_constants(changes: dict[str, Any], waits: float):
    each = constant(**changes)
    assert each.stall_cycles(Board(), FLASH) == pytest.approx(waits)  # type: ignore[arg-type]
    assert each.stall_cycles(Board(), UNKNOWN) is None  # type: ignore[arg-type]


def test_a_copy_saves_waits_and_takes_its_own():
    each = constant(runs=3, passes=2.0, cold=0.5)
    waits, fast = 160 + 2 * 128 + 3 * 128, 3 * 2 * 128
    saved = [each.saved_by_copy(Board(), FLASH, FAST, hidden) for hidden in (None, 0.0, 0.75)]  # type: ignore[arg-type]
    assert saved == [waits - 160 - 64 - fast, waits - 100 - 160 - fast, waits - 100 - 40 - fast]
    assert each.saved_by_copy(Board(), UNKNOWN, FAST) == 0  # type: ignore[arg-type]
    assert each.saved_by_copy(Board(), FLASH, UNKNOWN) == 0  # type: ignore[arg-type]


@dataclass(frozen=True)
class Graded(Board):
    """Its fast memory has no waits for what was read before."""

    def repeated_read_cycles(self, memory: Memory, nbytes: int) -> int | None:
        return 0 if memory.name == "fast" else super().repeated_read_cycles(memory, nbytes)


def test_all_waits_and_what_copies_save():
    program = weighted()
    waits = (320 + 4 * 128) + (80 + 4 * 32) + 320
    board: Any = Graded()
    assert constant_stall_cycles(program, board, FLASH) == waits  # type: ignore[arg-type]
    assert constant_stall_cycles(program, board, UNKNOWN) == 0  # type: ignore[arg-type]
    once = waits - (320 + 4 * 128 - 320 - 64) - (80 + 4 * 32 - 80 - 16)  # the second layer's copy saves nothing
    assert constant_stall_cycles(program, board, FLASH, FAST) == once  # type: ignore[arg-type]
    saved = {b.name: n for b, n in saved_by_copies(program, board, FLASH, FAST).items()}  # type: ignore[arg-type]
    assert saved == {"w": (320 + 512 - 64) + (320 - 64), "v": 80 + 128 - 16, "none": 0}
    for slow, fast in ((UNKNOWN, FAST), (FLASH, UNKNOWN)):
        unknown = saved_by_copies(program, board, slow, fast)  # type: ignore[arg-type]
        assert set(unknown.values()) == {0}
