# SPDX-License-Identifier: Apache-2.0
"""Programs that bring weights to the arena before their layers, and programs that are cut in two parts, as text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from programs import Sketch

from mcugen.core.errors import UsageError
from mcugen.hir.types import DType
from mcugen.lir import frames
from mcugen.lir.kernel import Call, Kernel, reads, scratch, writes
from mcugen.lir.program import Access, Buffer, Instr, Operand, Program, Space
from mcugen.lir.weights import (
    READ_WEIGHTS_KERNEL,
    CompressedForm,
    StagedConstant,
    is_read,
    max_read_bytes,
    with_decoded_weights,
    with_read_weights,
    with_staged_weights,
)
from mcugen.memory.plan import plan_memory
from mcugen.memory.verify_plan import verify_plan


def weighted() -> Sketch:
    """x → a (by w and v) → b (by w) → c, which reads no constant; an empty one and one in code are not read."""
    sketch = Sketch()
    sketch.input("x")
    for name, count in (("w", 24), ("v", 8), ("none", 0)):
        sketch.buffer(name, count, Space.CONST).data = np.arange(count, dtype=np.int8)
    sketch.step("a", "x", "w", "v")
    sketch.step("b", "a", "w", "none")
    sketch.step("c", "b")
    sketch.output("c")
    return sketch


def lines(program: Program) -> list[str]:
    """Each instruction: its kernel, what it reads and writes, its group."""
    return [f"{i.kernel} {' '.join(o.buffer.name for o in i.operands)} {i.group}" for i in program.instrs]


def test_each_layer_reads_its_constants():
    sketch = weighted()
    with_read_weights(sketch.program)
    assert lines(sketch.program) == [
        "read_weights w w.held 1",
        "read_weights v v.held 1",
        "kernel x w.held v.held a 1",
        "read_weights w w.held.2 2",
        "kernel a w.held.2 none b 2",
        "kernel b c 0",
    ]
    held = [i.operand("y").buffer for i in sketch.program.instrs if i.kernel == "read_weights"]
    assert [(b.space, b.count, b.dtype) for b in held] == [(Space.ARENA, n, DType.INT8) for n in (24, 8, 24)]
    assert len(set(map(id, held))) == 3 and all(b in sketch.program.buffers for b in held)
    assert max_read_bytes(sketch.program) == 32
    assert [i.declaration for i in sketch.program.instrs[:2]] == [READ_WEIGHTS_KERNEL] * 2
    assert [is_read(sketch.buffers[name]) for name in ("w", "none", "x")] == [True, False, False]


def test_groups_are_kept_and_outputs_stay_in_the_code():
    sketch = weighted()
    sketch.program.instrs[0].group = sketch.program.instrs[1].group = 7
    sketch.step("d", "c", "v")
    sketch.output("v")
    with_read_weights(sketch.program)
    assert lines(sketch.program) == [
        "read_weights w w.held 7",
        "kernel x w.held v a 7",
        "read_weights w w.held.2 7",
        "kernel a w.held.2 none b 7",
        "kernel b c 0",
        "kernel c v d 0",
    ]
    assert max_read_bytes(sketch.program) == 48
    assert max_read_bytes(weighted().program) == 0


def test_weights_of_blocks_are_not_read():
    sketch = Sketch()
    sketch.input("x")
    sketch.emit("if", ("cond", Access.IN, "x"))
    sketch.step("a", "x")
    sketch.emit("end")
    sketch.output("a")
    with pytest.raises(UsageError, match="once a layer"):
        with_read_weights(sketch.program)


@pytest.mark.parametrize("beside", [None, 0])
def test_copies_before_a_layer_or_beside_another(beside: int | None):
    sketch = weighted()
    w, v = sketch.buffers["w"], sketch.buffers["v"]
    made = with_staged_weights(sketch.program, {1: [StagedConstant(w, beside)], 0: [StagedConstant(v)]})
    if beside is None:
        assert lines(made) == [
            "stage_weights v v.held 1",
            "kernel x w v.held a 1",
            "stage_weights w w.held 2",
            "kernel a w.held none b 2",
            "kernel b c 0",
        ]
    else:
        assert lines(made) == [
            "stage_weights v v.held 1",
            "begin_weights w w.held 1",
            "kernel x w v.held a 1",
            "end_weights w.held 2",
            "kernel a w.held none b 2",
            "kernel b c 0",
        ]
        assert "while this one runs" in made.instrs[1].note
        assert [o.access for o in made.instrs[3].operands] == [Access.INOUT]
    assert "read faster" in made.instrs[0].note
    assert lines(sketch.program) == ["kernel x w v a 0", "kernel a w none b 0", "kernel b c 0"]  # it is another one
    assert len(made.buffers) == len(sketch.program.buffers) + 2
    plan_memory(made)
    verify_plan(made)


def test_the_longest_of_copies_that_begin_together_is_last():
    sketch = weighted()
    w, v = sketch.buffers["w"], sketch.buffers["v"]
    sketch.step("d", "c", "w", "v")
    made = with_staged_weights(sketch.program, {3: [StagedConstant(w, 2), StagedConstant(v, 2)]})
    assert [line for line in lines(made) if "_weights" in line] == [
        "begin_weights v v.held 1",
        "begin_weights w w.held 1",
        "end_weights v.held 2",
        "end_weights w.held 2",
    ]
    sketch.program.area_sizes, sketch.program.area_bounds = [64], [48]
    mixed = with_staged_weights(sketch.program, {3: [StagedConstant(w, 2), StagedConstant(v)]})
    assert mixed.area_sizes == mixed.area_bounds == [0], "its memory is planned anew"
    assert [line.split()[:2] for line in lines(mixed) if "_weights" in line] == [
        ["begin_weights", "w"],
        ["end_weights", "w.held"],
        ["stage_weights", "v"],
    ]


def test_constants_are_decoded_before_what_reads_them():
    sketch = weighted()
    w = sketch.buffers["w"]
    stored = replace(w, name="w.code", count=10, data=np.arange(10, dtype=np.int8))
    decoded = CompressedForm([stored], lambda to: Call(READ_WEIGHTS_KERNEL, {"x": stored, "y": to}))
    sketch.program.area_sizes, sketch.program.area_bounds = [64], [48]
    made = with_decoded_weights(sketch.program, {w: decoded})
    assert made.area_sizes == made.area_bounds == [0], "its memory is planned anew"
    assert decoded.saved_bytes(w) == 14
    assert lines(made) == [
        "read_weights w.code w.held 1",
        "kernel x w.held v a 1",
        "read_weights w.code w.held.2 2",
        "kernel a w.held.2 none b 2",
        "kernel b c 0",
    ]
    assert stored in made.buffers and w not in made.buffers and w in sketch.program.buffers
    assert made.instrs[0].name == "a" and made.instrs[2].name == "b"


def test_working_memory_of_what_decodes_is_new_to_the_program():
    sketch = weighted()
    w = sketch.buffers["w"]
    stored = replace(w, name="w.code")
    kernel = Kernel("k", operands=(reads("x", "code"), scratch("s", "table"), writes("y", "constants")))

    def call(to: Buffer) -> Call:
        return Call(kernel, {"x": stored, "s": Buffer("table", w.dtype, 4, Space.ARENA), "y": to})

    made = with_decoded_weights(sketch.program, {w: CompressedForm([stored], call)})
    assert [b.name for b in made.buffers if b not in sketch.program.buffers] == [
        "w.code",
        *("w.held", "table"),
        *("w.held.2", "table"),
    ]


# ---------------------------------------------------------------------------------------------------------- frames


def piped() -> Sketch:
    """x → a → b → c → y, where d reads a and c, too."""
    sketch = Sketch()
    sketch.input("x")
    for target, *sources in (("a", "x"), ("b", "a"), ("c", "b"), ("y", "c", "a")):
        sketch.step(target, *sources)
    sketch.output("y")
    return sketch


def test_what_crosses_a_cut_has_copies():
    sketch = piped()
    program = sketch.program
    assert [[b.name for b in frames.crossing(program, at)] for at in (1, 2, 3)] == [["a"], ["a", "b"], ["a", "c"]]
    assert [frames.may_cut(program, at) for at in range(6)] == [False, True, True, True, False, False]
    frames.cut(program, 2)
    assert lines(program) == [
        "kernel x a 0",
        "kernel a b 0",
        "move a a.before 0",
        "move b b.before 0",
        "kernel b.before c 0",
        "kernel c a.before y 0",
    ]
    assert program.handover == range(2, 4) and all(i.stays for i in program.instrs[2:4])
    frames.separate_areas(program)
    areas = {b.name: b.area for b in program.buffers}
    assert areas == {"x": 0, "a": 0, "b": 0, "c": 1, "y": 1, "a.before": 1, "b.before": 1}
    for number, buffer in enumerate(program.buffers):
        buffer.offset = 16 * number
    program.area_sizes, program.area_bounds, before = [100, 112], [64, 32], sketch.offsets()
    frames.join_areas(program)
    assert (program.area_sizes, program.area_bounds) == ([112 + 112], [96])
    assert all(buffer.area == 0 for buffer in program.buffers)
    assert sketch.offsets() == {name: offset + 112 * areas[name] for name, offset in before.items()}
    verify_plan(program)


def test_where_no_cut_may_be():
    for number in (1, 2):  # within a group or a unit
        for kind in ("group", "unit"):
            sketch = piped()
            for instr in sketch.program.instrs[number - 1 : number + 1]:
                setattr(instr, kind, 5)
            assert [frames.may_cut(sketch.program, at) for at in (1, 2, 3)] == [at != number for at in (1, 2, 3)]
    early = piped()
    early.output("a")  # an output of the first part
    assert not any(frames.may_cut(early.program, at) for at in (1, 2))
    read_on = piped()
    read_on.program.outputs[0] = replace(read_on.program.outputs[0], buffer=read_on.buffers["b"])
    assert [frames.may_cut(read_on.program, at) for at in (1, 2, 3)] == [True, False, False]
    state = piped()
    state.buffers["a"].space = Space.STATE
    assert [frames.may_cut(state.program, at) for at in (1, 2, 3)] == [False, False, False]
    block = piped()
    block.program.instrs[1:1] = [Instr("if", "if", (Operand("cond", Access.IN, block.buffers["x"]),))]
    branching = Sketch()
    branching.input("x")
    branching.step("a", "x")
    branching.emit("if", ("cond", Access.IN, "x"))
    branching.step("b", "a")
    branching.emit("end")
    branching.step("y", "a")
    branching.output("y")
    assert [at for at in range(6) if frames.may_cut(branching.program, at)] == [1, 4]
