# SPDX-License-Identifier: Apache-2.0
"""Bytes that one inference reads and writes, and when most of the arena is in use, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from programs import Sketch

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Space
from mcugen.memory.peak import Moment, address, busiest, largest, moments
from mcugen.memory.plan import plan_memory
from mcugen.memory.traffic import loads_in_pass, passes_of, runs_of, sweeps_in_pass, touched_bytes, traffic

IN, OUT, INOUT, SCRATCH = Access.IN, Access.OUT, Access.INOUT, Access.SCRATCH


def counted(sketch: Sketch) -> dict[str, int]:
    return {buffer.name: nbytes for buffer, nbytes in traffic(sketch.program).items()}


def constant(sketch: Sketch, name: str, count: int, dtype: DType = DType.INT8) -> None:
    sketch.buffer(name, count, Space.CONST, dtype).data = np.zeros(count, dtype.numpy)


def test_a_layer_without_products_goes_once_through_its_operands():
    sketch = Sketch()
    sketch.input("x", 40)
    sketch.step("y", "x", nbytes=24, scratch=32)
    sketch.step("y", "x", access=INOUT)
    assert counted(sketch) == {"x": 80, "y": 24 + 48, "y.scratch": 64}


def test_products_read_a_weight_and_an_input_each():
    sketch = Sketch()
    sketch.input("x", 40)
    constant(sketch, "w", 100)
    constant(sketch, "bias", 10, DType.INT32)
    sketch.step("y", "x", "w", "bias", nbytes=30)
    sketch.program.instrs[-1].macs = 350
    assert passes_of(sketch.program.instrs[-1]) == 3
    assert counted(sketch) == {"x": 40 + 350, "w": 300, "bias": 120, "y": 30}
    sketch.program.instrs[-1].macs = 50  # less than a pass
    assert counted(sketch) == {"x": 40 + 50, "w": 100, "bias": 40, "y": 30}


def test_products_read_what_was_prepared_where_there_is_such_memory():
    sketch = Sketch()
    sketch.input("x", 40)
    sketch.buffer("words", 10, dtype=DType.INT16)
    constant(sketch, "w", 100)
    sketch.emit("kernel", ("x", IN, "x"), ("w", IN, "w"), ("s", SCRATCH, "words"), ("y", OUT, "x"))
    sketch.program.instrs[-1].macs = 200
    assert counted(sketch) == {"x": 80, "words": 40 + 200 * 20 // 10, "w": 200}


def test_tables_are_read_once_for_each_result():
    sketch = Sketch()
    sketch.input("x", 40)
    constant(sketch, "table", 8, DType.INT32)
    sketch.step("y", "x", "table", nbytes=30)
    assert counted(sketch) == {"x": 40, "table": 120, "y": 30}
    assert passes_of(sketch.program.instrs[-1]) == 0
    sketch.buffers["y"].count = 5
    assert counted(sketch)["table"] == 32


def test_loops_count_with_their_steps_branches_both_and_streams_by_their_events():
    sketch = Sketch()
    sketch.input("x", 16)
    sketch.emit("for", ("index", OUT, "x"), steps=3)
    sketch.step("a", "x")
    sketch.emit("if", ("cond", IN, "x"))
    sketch.step("b", "a")
    sketch.emit("else")
    sketch.step("c", "a")
    sketch.emit("end")
    sketch.emit("end", ("index", INOUT, "x"))
    sketch.emit("stream", events=[0, 1, 0, 0])
    for case in (0, 1):
        sketch.emit("case", case=case)
        sketch.step(f"of{case}", "x")
        sketch.emit("end")
    sketch.emit("end")
    sketch.step("z", "x")
    times = {instr.name: number for instr, number in runs_of(sketch.program) if instr.kernel == "kernel"}
    assert times == {"a": 3, "b": 3, "c": 3, "of0": 3, "of1": 1, "z": 1}
    assert counted(sketch)["a"] == 3 * 16 * 3


def test_moves_count_by_their_parts_unless_they_move_nothing():
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("y", 32)
    sketch.part("x", "y", x_at=16, nbytes=20)
    sketch.output("y")
    assert [touched_bytes(sketch.program.instrs[0], o) for o in sketch.program.instrs[0].operands] == [20, 20]
    sketch.buffers["x"].offset, sketch.buffers["y"].offset = 0, 128
    assert counted(sketch) == {"x": 20, "y": 20}
    sketch.buffers["y"].offset = 16
    assert counted(sketch) == {"x": 0, "y": 0}


def test_rows_of_a_stream_count_by_themselves():
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("next", 4)
    sketch.emit("kernel", ("next", INOUT, "next"), ("y", OUT, "x"), rows=3, bytes=10)
    sketch.emit("kernel", ("y", OUT, "x"), rows=3, bytes=10)
    sketch.emit("kernel", ("next", INOUT, "next"), ("y", OUT, "x"), rows=30, bytes=10)
    found = [touched_bytes(i, i.operand("y")) for i in sketch.program.instrs]
    assert found == [30, 64, 64]


@pytest.mark.parametrize(("loads", "sweeps", "wanted"), [(0.5, 1.0, 0.5), (0.5, 0.125, 0.125), (2.0, 1.0, 1.0)])
def test_loads_of_a_pass(loads: float, sweeps: float, wanted: float):
    instr = Sketch().emit("kernel")
    assert (loads_in_pass(instr), sweeps_in_pass(instr)) == (0.25, 0.25)
    instr.declaration = Kernel("k", what="a kernel", operands=(), loads=loads, sweeps=sweeps)
    assert (loads_in_pass(instr), sweeps_in_pass(instr)) == (loads, wanted)


# ------------------------------------------------------------------------------------------------------------ peaks


def test_what_is_alive_at_each_moment():
    sketch = Sketch()
    sketch.input("x", 32)
    sketch.step("a", "x", nbytes=48)
    sketch.step("b", "a", nbytes=16, inplace=True)
    sketch.step("c", "b", nbytes=64)
    sketch.output("c")
    plan_memory(sketch.program)
    found = moments(sketch.program)
    assert [m.index for m in found] == [-1, 0, 1, 2, 3]
    assert [sorted(b.name for b in m.buffers) for m in found] == [["x"], ["a", "x"], ["a", "b"], ["b", "c"], ["c"]]
    for moment in found:
        taken = [range(b.offset or 0, (b.offset or 0) + b.nbytes) for b in moment.buffers]
        assert moment.nbytes == len({byte for span in taken for byte in span})
    for moment in found:
        places = [address(sketch.program, b) for b in moment.buffers]
        assert places == sorted(places)
    assert busiest(found).index == 0


def test_the_busiest_moment():
    buffers = tuple(Sketch().buffer(name) for name in "abc")
    few, many, later = Moment(1, buffers[:1], 9), Moment(2, buffers, 9), Moment(3, buffers, 9)
    assert busiest([Moment(0, buffers, 8), few, many, later]) is many


def test_addresses_count_the_areas_before():
    sketch = Sketch()
    sketch.program.area_sizes = [100, 50, 20]
    buffer = sketch.buffer("x")
    for area, wanted in ((0, 32), (1, 132), (2, 182)):
        buffer.area, buffer.offset = area, 32
        assert address(sketch.program, buffer) == wanted
    buffer.offset = None
    assert address(sketch.program, buffer) == 150


def test_refusals_name_the_largest():
    sketch = Sketch()
    for name, count in (("b", 10), ("a", 10), ("large", 2000), ("d", 1), ("n" * 50, 5)):
        sketch.buffer(name, count)
    names = list(sketch.buffers.values())
    sketch.program.buffers += [buffer for buffer in names if buffer not in sketch.program.buffers]
    assert largest(sketch.program, names) == f"'large' 2,000, 'a' 10, 'b' 10, '{'n' * 13}…{'n' * 26}' 5 …"
    assert largest(sketch.program, names[:2]) == "'a' 10, 'b' 10"
    assert largest(sketch.program, names[:4]) == "'large' 2,000, 'a' 10, 'b' 10, 'd' 1"
