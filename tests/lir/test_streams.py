# SPDX-License-Identifier: Apache-2.0
"""Streams in programs: what lives how long, how events are replayed, how they are shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from programs import Sketch

from mcugen.core.errors import VerificationError
from mcugen.lir.printer import print_program
from mcugen.lir.program import Access, Overlap, Space
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan

IN, OUT, INOUT = Access.IN, Access.OUT, Access.INOUT


def stream(events: list[int], *overlaps: Overlap) -> Sketch:
    """Case 0 renews `window` from x by way of t; case 1 computes a from it, then (in place or not) b, and y's part."""
    sketch = Sketch()
    sketch.input("x", 64)
    for name, count in (("window", 32), ("t", 16), ("a", 32), ("b", 32), ("y", 96), ("both", 16)):
        sketch.buffer(name, count)
    sketch.emit("fill", ("y", OUT, "window"))
    sketch.emit("stream", ("x", IN, "x"), ("y", OUT, "y"), events=events, overlaps=overlaps)
    sketch.emit("case", case=0)
    sketch.emit("get", ("x", IN, "x"), ("y", OUT, "t"))
    sketch.emit("put", ("x", IN, "t"), ("y", INOUT, "window"))
    sketch.emit("note", ("y", OUT, "both"))
    sketch.emit("end")
    sketch.emit("case", case=1)
    sketch.emit("f", ("x", IN, "window"), ("y", OUT, "a"))
    sketch.emit("note", ("y", OUT, "both"))
    sketch.emit("g", ("x", IN, "a"), ("y", OUT, "b"))
    sketch.emit("put", ("x", IN, "b"), ("y", INOUT, "y"))
    sketch.emit("end")
    sketch.emit("end")
    sketch.output("y")
    return sketch


def test_what_one_case_writes_first_is_its_own():
    sketch = stream([0, 0, 1, 0, 1])
    ranges = sketch.program.live_ranges()
    assert sketch.program.cases(1, 13) == [(2, 6), (7, 12)]
    assert {name: ranges[buffer] for name, buffer in sketch.buffers.items()} == {
        "x": (-1, 13),
        "window": (0, 13),
        "t": (3, 4),
        "a": (8, 10),
        "b": (10, 11),
        "both": (5, 9),
        "y": (1, 14),
    }


def test_what_one_case_reads_first_lives_between_its_events():
    sketch = stream([0, 1])
    first = sketch.program.instrs[8]
    first.operands = tuple(replace(o, access=INOUT) if o.role == "y" else o for o in first.operands)
    assert sketch.program.live_ranges()[sketch.buffers["a"]] == (1, 13)


@pytest.mark.parametrize(
    ("events", "life"),
    [
        ([0, 1, 2, 0, 1, 2], (2, 5)),  # of no use behind case 1
        ([0, 2, 1, 0, 2, 1], (2, 9)),  # case 2 stands behind both, and runs between them
        ([0, 1, 1, 2], (2, 6)),  # case 1 may come again
        ([1, 0, 1], (0, 10)),  # of before the first event
    ],
)
def test_what_cases_share_lives_between_them(events: list[int], life: tuple[int, int]):
    """What case 0 makes and case 1 reads; case 2 has memory of its own."""
    sketch = Sketch()
    sketch.input("x")
    sketch.emit("stream", ("x", IN, "x"), events=events)
    for case, (source, target) in enumerate([("x", "row"), ("row", "a"), ("x", "b")]):
        sketch.emit("case", case=case)
        sketch.step(target, source)
        sketch.emit("end")
    sketch.emit("end")
    assert sketch.program.live_ranges()[sketch.buffers["row"]] == life
    if events[0] == 0:
        plan_memory(sketch.program)
        verify_plan(sketch.program)


def test_a_stream_within_a_case():
    sketch = Sketch()
    sketch.input("x")
    sketch.emit("stream", events=[0, 0])
    sketch.emit("case", case=0)
    sketch.step("a", "x")
    sketch.emit("stream", events=[0, 1])
    sketch.emit("case", case=0)
    sketch.step("b", "a")
    sketch.emit("end")
    sketch.emit("case", case=1)
    sketch.step("c", "b")
    sketch.emit("end")
    sketch.emit("end")
    sketch.emit("end")
    sketch.emit("end")
    ranges = sketch.program.live_ranges()
    assert sketch.program.loops() == [(3, 10), (0, 12)]
    assert sketch.program.cases(0, 12) == [(1, 11)]
    assert ranges[sketch.buffers["a"]] == (2, 10)
    assert ranges[sketch.buffers["b"]] == (5, 8)
    assert ranges[sketch.buffers["c"]] == (8, 8)
    plan_memory(sketch.program)
    verify_plan(sketch.program)


def test_the_plan_of_a_stream_is_sound():
    sketch = stream([0, 0, 1, 0, 1])
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    assert sketch.buffers["t"].offset in {sketch.buffers["a"].offset, sketch.buffers["b"].offset}


@pytest.mark.parametrize("events", [[0, 0, 1], [1, 0, 1], [0, 1, 1]])
def test_events_are_replayed_in_their_order(events: list[int]):
    """A window without a place of its own is lost where its reader has been before."""
    sketch = stream(events)
    plan_memory(sketch.program)
    sketch.buffers["b"].offset = sketch.buffers["window"].offset
    if events.count(1) == 1:
        verify_plan(sketch.program)
        return
    with pytest.raises(VerificationError, match=r"%window: (window|a): read after another buffer took its place"):
        verify_plan(sketch.program)


def test_an_output_lies_over_the_input_that_its_stream_reads():
    sketch = stream([0, 0, 1, 0, 1], Overlap("y", "x", 48))
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    x, y = (sketch.buffers[name] for name in "xy")
    assert x.offset is not None
    assert y.offset is not None
    assert y.offset < x.offset < y.offset + y.nbytes
    assert x.offset - y.offset >= 48
    sketch.program.instrs[1].overlaps = (Overlap("y", "x", x.offset - y.offset + 16),)
    with pytest.raises(VerificationError, match="%y: y: overlaps operand %x"):
        verify_plan(sketch.program)


def test_all_others_must_leave_such_an_input_alone():
    sketch = stream([0, 0, 1, 0, 1], Overlap("y", "x", 48))
    plan_memory(sketch.program)
    x, y = (sketch.buffers[name] for name in "xy")
    assert x.offset is not None
    assert y.offset is not None
    sketch.buffers["both"].offset = x.offset + x.nbytes - 16
    assert sketch.buffers["both"].offset >= y.offset + y.nbytes
    with pytest.raises(VerificationError, match="%x: t: read after another buffer took its place"):
        verify_plan(sketch.program)


def test_a_streamed_input_has_no_memory():
    sketch = Sketch()
    sketch.input("x", 1 << 20)
    sketch.buffers["x"].space = Space.STREAM
    sketch.buffer("next", 4)
    sketch.buffer("rows", 32)
    sketch.emit("fill_rows", ("y", OUT, "next"))
    sketch.emit("stream", events=[0])
    sketch.emit("case", case=0)
    sketch.emit("read_rows", ("next", INOUT, "next"), ("y", OUT, "rows"))
    sketch.emit("end")
    sketch.emit("end")
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    assert sketch.program.streamed is sketch.program.inputs[0]
    assert sketch.program.arena_size == 48
    assert sketch.buffers["x"] not in sketch.program.live_ranges()


def test_the_dump_shows_streams():
    lines = print_program(stream([0, 0, 1]).program).replace(" group 1", "").splitlines()
    assert "    1: stream @in x=%x, @out y=%y {events=[0, 0, 1]}" in lines
    assert "    2:   case {case=0}" in lines
    assert "    3:     get @in x=%x, @out y=%t {}" in lines
    assert "    7:   case {case=1}" in lines


def test_a_stream_is_one_layer():
    program = stream([0, 1]).program
    assert program.layers() == [range(14)]
    assert program.head(range(14)).kernel == "stream"
