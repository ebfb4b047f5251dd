# SPDX-License-Identifier: Apache-2.0
"""The steps of the planner, each against trying or counting everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from random import Random

import pytest
from programs import Sketch, chain

from mcugen.hir.types import DType
from mcugen.lir.program import ALIGNMENT, Access, Buffer, Control, Instr, Operand, Overlap, Program, Space, aligned
from mcugen.memory import plan
from mcugen.memory.exact import Problem
from mcugen.memory.plan import Planned, peak_live_bytes, plan_memory
from mcugen.memory.regions import Freedom, LiveRanges, covered_bytes, freedom
from mcugen.memory.verify_plan import verify_plan

UNIT = ALIGNMENT

# ------------------------------------------------------------------------------------------------------ intervals


@pytest.mark.parametrize("seed", range(20))
def test_forbidden_distances_in_units_are_those_within_the_intervals(seed: int):
    random = Random(seed)
    spans = [
        (low, low + random.randint(1, 70)) for low in (random.randint(-90, 60) for _ in range(random.randint(0, 4)))
    ]
    units = plan._in_units(spans)
    inside = {n for n in range(-20, 20) if any(low < n * UNIT < high for low, high in spans)}
    assert {n for low, high in units for n in range(low, high + 1)} == inside
    assert all(before[1] + 1 < after[0] for before, after in pairwise(units)), "gaps between"


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_free_number_is_in_no_interval(seed: int):
    random = Random(seed)
    taken = [(low, low + random.randint(0, 4)) for low in (random.randint(-6, 9) for _ in range(random.randint(0, 5)))]
    every = {n for low, high in taken for n in range(low, high + 1)}
    assert plan._lowest_free(list(taken)) == next(n for n in range(100) if n not in every)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_taken_are_counted_once(seed: int):
    random = Random(seed)
    spans = [
        (random.randint(0, 2), start, start + random.randint(0, 9))
        for start in (random.randint(0, 12) for _ in range(random.randint(0, 6)))
    ]
    assert covered_bytes(spans) == len({(region, n) for region, start, end in spans for n in range(start, end)})


def test_bytes_of_an_empty_span_far_on_hide_nothing():
    assert covered_bytes([(0, 0, 8), (0, 4, 2), (0, 6, 10), (1, 4, 9)]) == 10 + 5


# -------------------------------------------------------------------------------------------------------- freedoms


@pytest.mark.parametrize("granule", [4, 16])
@pytest.mark.parametrize("up_to", [None, -64, -20, -4, 0, 12, 100])
@pytest.mark.parametrize("at", [frozenset[int](), frozenset({0}), frozenset({-16, 32})])
def test_the_most_that_may_be_shared(at: frozenset[int], up_to: int | None, granule: int):
    free = Freedom(at, up_to)
    for distance in range(-80, 81):
        assert free.allows(distance) == (distance in at or (up_to is not None and distance <= up_to))
    if not at and up_to is None:
        return
    for out, into in ((16, 48), (48, 16), (32, 32)):
        ways = [d for d in range(-160, 161, granule) if free.allows(d)]
        shared = (len(set(range(into)) & set(range(d, d + out))) for d in ways)
        assert free.max_shared_bytes(out, into, granule) == max(shared, default=0)


def declared(**changes: object) -> tuple[Instr, Buffer, Buffer]:
    x, y = Buffer("x", DType.INT8, 32, Space.ARENA), Buffer("y", DType.INT8, 32, Space.ARENA)
    instr = Instr("k", "y", (Operand("x", Access.IN, x), Operand("y", Access.OUT, y)))
    for name, value in changes.items():
        setattr(instr, name, value)
    return instr, x, y


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, None),
        ({"inplace": (("y", "x"),)}, Freedom(frozenset({0}), None)),
        ({"inplace": (("x", "y"), ("y", "z"))}, None),
        ({"overlaps": (Overlap("y", "x", 8),)}, Freedom(frozenset(), -8)),
        ({"overlaps": (Overlap("y", "x", 8), Overlap("y", "x", -4), Overlap("y", "z", -9))}, Freedom(frozenset(), 4)),
        ({"overlaps": (Overlap("x", "y", 8),)}, None),
        ({"kernel": "move", "params": {"nbytes": 8, "x_at": 24, "y_at": 8}}, Freedom(frozenset({16}), None)),
        ({"kernel": "other", "params": {"nbytes": 8, "x_at": 24, "y_at": 8}}, None),
    ],
)
def test_what_an_instruction_allows(changes: dict[str, object], wanted: Freedom | None):
    instr, x, y = declared(**changes)
    assert freedom(instr, y, x) == wanted
    assert freedom(instr, y, Buffer("other", DType.INT8, 32, Space.ARENA)) is None
    instr.operands = (*instr.operands, Operand("again", Access.IN, x))
    assert freedom(instr, y, x) is None, "who reads it twice may read on where the output lies"


@pytest.mark.parametrize(("count", "wanted"), [(31, {0}), (32, {0}), (33, None)])
def test_no_larger_output_takes_the_place_of_its_input(count: int, wanted: set[int] | None):
    instr, x, y = declared(inplace=(("y", "x"),))
    y.count = count
    assert freedom(instr, y, x) == (None if wanted is None else Freedom(frozenset(wanted), None))


# -------------------------------------------------------------------------------------------------------- meetings


def random_program(random: Random, count: int = 8) -> Program:
    sketch = Sketch()
    sketch.input("b0", random.randint(1, 90))
    for number in range(1, count):
        sources = random.sample(sorted(sketch.buffers), min(len(sketch.buffers), random.randint(1, 2)))
        sketch.step(f"b{number}", *sources, nbytes=random.randint(1, 90), inplace=True)
    sketch.output(f"b{count - 1}")
    return sketch.program


@pytest.mark.parametrize("seed", range(8))
def test_meetings_are_pairs_that_are_alive_at_once(seed: int):
    lives = LiveRanges(random_program(Random(seed)), 0)
    moments = {b: set(range(first, last + 1)) for b, (first, last) in lives.ranges.items()}
    pairs = list(combinations(lives.ranges, 2))
    assert plan._meetings(lives) == sum(bool(moments[a] & moments[b]) for a, b in pairs)
    assert all(lives.meet(a, b) == lives.meet(b, a) == bool(moments[a] & moments[b]) for a, b in pairs)


@pytest.mark.parametrize("seed", range(8))
def test_a_crowd_is_placed_largest_first_where_it_is_the_first_to_fit(seed: int, monkeypatch: pytest.MonkeyPatch):
    program = random_program(Random(seed), 12)
    ranges = program.live_ranges()
    monkeypatch.setattr(plan, "MAX_LIVE_PAIRS", -1)
    plan_memory(program)
    verify_plan(program)
    placed: list[Buffer] = []
    for buffer in sorted(ranges, key=lambda b: (-b.nbytes, ranges[b][0])):
        rivals = [b for b in placed if ranges[b][0] <= ranges[buffer][1] and ranges[buffer][0] <= ranges[b][1]]
        taken = {n for b in rivals for n in range(_at(b), _at(b) + aligned(b.nbytes))}
        free = (n for n in range(0, 5000, UNIT) if taken.isdisjoint(range(n, n + aligned(buffer.nbytes))))
        assert buffer.offset == next(free)
        placed.append(buffer)
    assert program.area_sizes == [max(_at(b) + aligned(b.nbytes) for b in placed)]
    assert program.area_bounds == [max(aligned(b.nbytes) for b in placed)]


def _at(buffer: Buffer) -> int:
    assert buffer.offset is not None
    return buffer.offset


@pytest.mark.parametrize(("most", "is_crowd"), [(2, True), (3, False)])
def test_only_more_meetings_than_that_are_a_crowd(most: int, is_crowd: bool, monkeypatch: pytest.MonkeyPatch):
    """Of four buffers in a chain three pairs meet; in place of one another they take one buffer's bytes."""
    program = chain(32, 32, 32, 32, inplace=True).program
    assert plan._meetings(LiveRanges(program, 0)) == 3
    monkeypatch.setattr(plan, "MAX_LIVE_PAIRS", most)
    plan_memory(program)
    assert program.area_sizes == [64 if is_crowd else 32]


# ------------------------------------------------------------------------------------------------ when to go on


def gap(monkeypatch: pytest.MonkeyPatch) -> tuple[Program, list[tuple[int, int, int]]]:
    """A program that no order of the greedy planner places within the bound; and what the exact one was asked."""
    asked: list[tuple[int, int, int]] = []

    def solve(problem: Problem, hint: Sequence[int], least: int, enough: int) -> tuple[list[int], int]:
        asked.append(
            (max(at + n for at, n in zip(hint, problem.sizes, strict=True)) * UNIT, least * UNIT, enough * UNIT)
        )
        return list(hint), least

    monkeypatch.setattr(plan, "solve", solve)
    monkeypatch.setattr(plan, "_ORDERS", plan._ORDERS[2:3])
    return chain(16, 32, 48, 16, 64, 16, 48, 32).program, asked


def test_the_exact_planner_starts_from_the_best_of_the_greedy_ones(monkeypatch: pytest.MonkeyPatch):
    program, asked = gap(monkeypatch)
    plan_memory(program)
    ((best, bound, enough),) = asked
    assert (best, enough) == (program.arena_size, 0)
    assert bound == program.arena_bound == peak_live_bytes(program) < best
    verify_plan(program)


@pytest.mark.parametrize(
    ("enough", "most", "goes_on"),
    [
        (lambda best, bound: best, math.inf, False),
        (lambda best, bound: best + UNIT - 1, math.inf, False),
        (lambda best, bound: best - 1, math.inf, True),
        (lambda best, bound: bound, math.inf, True),
        (lambda best, bound: bound - 1, math.inf, False),
        (lambda best, bound: UNIT, math.inf, False),
        (lambda best, bound: UNIT - 1, math.inf, True),  # no unit is nothing said
        (lambda best, bound: 0, 0, True),
        (lambda best, bound: 0, -1, False),
    ],
)
def test_plans_are_improved_only_where_that_helps(enough, most: float, goes_on: bool, monkeypatch: pytest.MonkeyPatch):
    """`most` is counted from the bound."""
    program, asked = gap(monkeypatch)
    plan_memory(program)
    ((best, bound, _),) = asked
    asked.clear()
    given = enough(best, bound)
    plan_memory(program, given, bound + most)
    assert [found[2] for found in asked] == [given // UNIT * UNIT] * goes_on


def test_what_takes_the_least_is_not_improved(monkeypatch: pytest.MonkeyPatch):
    _, asked = gap(monkeypatch)
    plan_memory(chain(64, 32, 16).program)
    assert asked == []


# ------------------------------------------------------------------------------------------------ again, and areas


def test_a_plan_is_restored():
    sketch = chain(16, 64, 32, 48)
    sketch.buffers["x1"].area = 1
    plan_memory(sketch.program)
    before = Planned.of(sketch.program)
    offsets = [(b.area, b.offset) for b in sketch.program.buffers]
    for buffer in sketch.program.buffers:
        buffer.area, buffer.offset = 0, None
    plan_memory(sketch.program)
    assert len(sketch.program.area_sizes) == 1
    before.restore(sketch.program)
    assert [(b.area, b.offset) for b in sketch.program.buffers] == offsets
    assert Planned.of(sketch.program) == before
    assert sketch.program.area_sizes == sketch.program.area_bounds == [80, 64]


def test_without_buffers_nothing_is_taken():
    program = Program("empty")
    plan_memory(program)
    assert (program.area_sizes, program.area_bounds) == ([0], [0])
    sketch = chain(0, 0)
    plan_memory(sketch.program)
    assert (sketch.program.area_sizes, sketch.offsets()) == ([0], {"x0": 0, "x1": 0})


@pytest.mark.parametrize("forks", [False, True])
def test_moves_remain_where_that_saves_bytes_unless_two_cores_wait_for_them(forks: bool):
    """A view in the middle of a large tensor is in the way of another one."""
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("v")
    sketch.part("x", "v", x_at=16)
    sketch.step("a", nbytes=96)
    sketch.step("y", "a", "v", inplace=[0])
    if forks:
        for control in (Control.FORK, Control.ELSE, Control.END):
            sketch.program.instrs.append(Instr(control.value, control.value, (), control=control))
    sketch.output("y")
    plan_memory(sketch.program)
    verify_plan(sketch.program)
    assert sketch.program.instrs[0].moves_nothing == forks
    assert (sketch.program.arena_size == 96 + 16) is not forks


# ------------------------------------------------------------------------------------------------- blocks


def test_what_runs_whenever_something_else_ran():
    """By the blocks around both: IF 0 (1), ELSE 2 (3), END 4, FOR 5 (IF 6 (7) END 8) END 9, then 10."""
    sketch = Sketch()
    sketch.input("x")
    for kernel in ("if", "", "else", "", "end", "for", "if", "", "end", "end", ""):
        if kernel:
            sketch.emit(kernel, **({"steps": 2} if kernel == "for" else {}))
        else:
            sketch.step(f"s{len(sketch.program.instrs)}", "x")
    lives = LiveRanges(sketch.program, 0)
    assert lives.blocks == [(), (0,), (), (2,), (), (), (5,), (5, 6), (5,), (), ()]
    certain = {(after, index) for after in range(-1, 11) for index in range(11) if lives.is_certain(index, after)}
    outer = {(after, index) for after in range(-1, 11) for index in (0, 2, 4, 5, 9, 10)}
    inner = {(1, 1), (3, 3), (7, 7)} | {(after, index) for after in (6, 7, 8) for index in (6, 8)}
    assert certain == outer | inner


def test_uses_are_found_by_instructions_and_bytes():
    sketch = Sketch()
    sketch.input("x", 64)
    sketch.buffer("y", 32)
    sketch.part("x", "y", x_at=16, y_at=8, nbytes=16)
    sketch.step("y", "x", access=Access.INOUT)
    sketch.output("y")
    lives = LiveRanges(sketch.program, 0)
    x, y = sketch.buffers["x"], sketch.buffers["y"]

    def uses(buffer: Buffer, *within: int) -> list[tuple[int, bool, int, int]]:
        return [(use.index, use.writes, use.low, use.high) for use in lives.uses(buffer, *within)]

    every = [(-1, True, 0, 64), (0, False, 16, 32), (1, False, 0, 64)]
    assert uses(x, -1, 9, 0, 64) == every
    assert uses(x, 0, 1, 0, 64) == every[1:2]
    assert uses(x, -1, 1, 32, 64) == uses(x, -1, 1, 0, 16) == every[:1]
    assert uses(x, -1, 1, 31, 32) == uses(x, -1, 1, 16, 17) == every[:2]
    assert uses(y, -1, 9, 0, 32) == [(0, True, 8, 24), (1, True, 0, 32), (2, False, 0, 32)]
    assert (lives.writers(x), lives.writers(y)) == ([-1], [0, 1])


def test_an_area_knows_its_own_buffers_with_elements():
    sketch = chain(16, 0, 32, 48)
    sketch.buffers["x2"].area = 1
    assert [b.name for b in LiveRanges(sketch.program, 0).ranges] == ["x0", "x3"]
    assert [b.name for b in LiveRanges(sketch.program, 1).ranges] == ["x2"]
