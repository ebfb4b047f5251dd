# SPDX-License-Identifier: Apache-2.0
"""Scheduled steps of inner loops: they compute what their clean assembly says, in the cycles that they state."""

from __future__ import annotations

import random
import re

import pytest
from loops.clean import Step, allocate, lines_of
from loops.dataflow import results
from loops.search import bound, cycles, schedule
from schedule_loops import LOOPS, Loop, faults

CASES = [pytest.param(loop, core, id=loop.path(core).name) for loop in LOOPS for core in loop.cores]
OFFSET = re.compile(r"#(-?\d+)")
SUM = "ldr <a>, [r0, #0]\nldr <b>, [r0, #4]\nsmlad r2, <a>, <b>, r2\nadd r0, r0, #8\n"


@pytest.mark.parametrize(("loop", "core"), CASES)
def test_scheduled_texts_belong_to_their_sources(loop: Loop, core: str):
    assert not list(faults(loop, core))


@pytest.mark.parametrize(("loop", "core"), CASES)
def test_each_change_of_a_scheduled_text_is_found(loop: Loop, core: str, tmp_path, monkeypatch):
    """Two operands exchanged, an instruction twice, a pointer that moves too far."""
    lines = loop.path(core).read_text().splitlines()
    path = tmp_path / "changed.s"
    monkeypatch.setattr(Loop, "path", lambda loop, core: path)
    for number, line in enumerate(lines[1:], 1):
        changed = OFFSET.sub(lambda match: f"#{int(match[1]) + 4}", line)
        changed = changed.replace("smlad", "smladx").replace("sxtb16 ", "uxtb16 ")
        for replaced in ([changed], [line, line]) if "smlad" in line else ([changed],):
            path.write_text("\n".join([*lines[:number], *replaced, *lines[number + 1 :], ""]))
            assert [line] != replaced
            assert list(faults(loop, core))


def test_pointers_move_in_the_load_from_offset_0():
    step = Step.of(SUM)
    assert step.ordered([0, 1, 2]) == ["ldr r100, [r0], #8", "ldr r101, [r0, #-4]", "smlad r2, r100, r101, r2"]
    assert step.ordered([1, 0, 2]) == ["ldr r101, [r0, #4]", "ldr r100, [r0], #8", "smlad r2, r100, r101, r2"]


def test_registers_are_free_again_behind_the_last_use():
    assert allocate(["ldr r100, [r0], #4", "sxtb16 r101, r100", "add r2, r2, r101"], ["r4"]) == [
        "ldr r4, [r0], #4",
        "sxtb16 r4, r4",
        "add r2, r2, r4",
    ]
    with pytest.raises(ValueError, match="no register is free"):
        allocate(Step.of(SUM).texts, ["r4"])


@pytest.mark.parametrize("line", ["subs r2, r2, #1", "str <a>, [r0, #0]", "cmp r0, r1"])
def test_steps_neither_store_nor_set_flags(line: str):
    with pytest.raises(ValueError, match="without flags"):
        Step.of(SUM + line)


@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m7", "cortex-m33", "cortex-m0plus"])
def test_any_order_that_the_search_may_take_computes_the_same(core: str):
    step = Step.of(SUM + "ldr <c>, [r1, #0]\nsmlad r3, <c>, <b>, r2\nsxtb16 <d>, <c>\nsmlad r2, <d>, <a>, r3\n")
    expected = results([*step.texts, "add r0, r0, #8"], ())
    draw, free = random.Random(1), ("r4", "r5", "r6", "r7")
    for _ in range(50):
        left, order = set(range(len(step.texts))), []
        while left:
            order.append(draw.choice([n for n in sorted(left) if not step.after[n] & left]))
            left.remove(order[-1])
        assert results(allocate(step.ordered(order), free), free) == expected
    found = schedule(step, core, free)
    assert results(found, free) == expected
    as_written = allocate(step.ordered(range(len(step.texts))), free)
    assert bound(found, core) <= cycles(found, core) <= cycles(as_written, core)
    assert lines_of("\n".join(found)) == list(found)
