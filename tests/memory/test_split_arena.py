# SPDX-License-Identifier: Apache-2.0
"""How an arena is split over memories: each step against counting or trying everything."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from programs import Sketch, chain

from mcugen.core.board import Board, Memory, load_board
from mcugen.lir.program import Buffer, aligned
from mcugen.memory import areas
from mcugen.memory.activation_stalls import arena_stall_cycles, share_bytes
from mcugen.memory.plan import Planned, plan_memory

FAST, SLOW = Memory("fast", "ram", 0x2000_0000, 64, 1), Memory("slow", "ram", 0x3000_0000, 256, 3)
BOARD: Board = replace(load_board("rt1060"), memories=(FAST, SLOW), arena_memory="fast", caches=())


def random_sketch(random: Random) -> Sketch:
    """A planned program of up to six buffers, some in place of others, perhaps one without elements."""
    sketch = Sketch()
    sketch.input("b0", random.choice((16, 40, 64)))
    for number in range(1, random.randint(2, 6)):
        sources = random.sample(sorted(sketch.buffers), min(len(sketch.buffers), random.randint(1, 2)))
        nbytes = random.choice((0, 16, 24, 48, 64))
        sketch.step(f"b{number}", *sources, nbytes=nbytes, inplace=random.random() < 0.7)
    sketch.output(list(sketch.buffers)[-1])
    plan_memory(sketch.program)
    return sketch


# ------------------------------------------------------------------------------------------------------- units


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("together", [True, False])
def test_units_are_what_shares_bytes_within_an_instruction(seed: int, together: bool):
    program = random_sketch(Random(seed)).program
    ranges = program.live_ranges()
    prices = {b: [n, 10 * n] for n, b in enumerate(ranges, 1)}
    groups = [{b} for b in ranges if b.nbytes]
    for instr in program.instrs if together else ():
        for a, b in product([o.buffer for o in instr.operands if o.buffer.nbytes], repeat=2):
            if share_bytes(a, b):
                met = [group for group in groups if group & {a, b}]
                groups = [group for group in groups if group not in met] + [set().union(*met)]
    units = areas._units(program, prices, together)
    assert sorted(sorted(b.name for b in unit.buffers) for unit in units) == sorted(
        sorted(b.name for b in group) for group in groups
    )
    for unit in units:
        assert unit.prices == [sum(prices[b][0] for b in unit.buffers), sum(prices[b][1] for b in unit.buffers)]
        assert unit.load.tolist() == [
            extent([b for b in unit.buffers if ranges[b][0] <= moment <= ranges[b][1]])
            for moment in range(-1, len(program.instrs) + 1)
        ]


def extent(alive: list[Buffer]) -> int:
    """Bytes from the first to the last of these buffers."""
    spans = [(b.offset or 0, aligned((b.offset or 0) + b.nbytes)) for b in alive]
    return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_another_exceeds_are_left_out(seed: int):
    random = np.random.default_rng(seed)
    rows = np.unique(random.integers(0, 4, (12, 3)), axis=0)
    wanted = [row for row in rows.tolist() if not any(_exceeds(other, row) for other in rows.tolist())]
    assert areas._hardest(rows).tolist() == wanted


def _exceeds(other: list[int], row: list[int]) -> bool:
    return other != row and all(b >= a for a, b in zip(row, other, strict=True))


# -------------------------------------------------------------------------------------------------------- choice


@pytest.mark.parametrize("seed", range(16))
def test_no_other_choice_of_memories_costs_less(seed: int):
    random = Random(seed)
    units = [
        areas._Unit(
            [],
            np.array([random.choice((0, 16, 32, 48)) for _ in range(3)], np.int64),
            [random.randint(0, 9) for _ in range(2)],
        )
        for _ in range(random.randint(1, 5))
    ]
    limits = [random.choice((16, 48, 64)), random.choice((0, 32, 80))]

    def fits(choice: tuple[int, ...]) -> bool:
        loads = [
            sum([u.load for u, m in zip(units, choice, strict=True) if m == memory], start=np.zeros(3))
            for memory in (0, 1)
        ]
        return all((load <= limit).all() for load, limit in zip(loads, limits, strict=True))

    def cost(choice: tuple[int, ...] | list[int]) -> int:
        return sum(unit.prices[memory] for unit, memory in zip(units, choice, strict=True))

    choices = [choice for choice in product((0, 1), repeat=len(units)) if fits(choice)]
    found = areas._assign(units, limits)
    if not choices:
        assert found is None
        return
    assert found is not None
    assert fits(tuple(found))
    assert cost(found) == min(map(cost, choices))


def test_a_single_memory_has_prices_too():
    program = chain(16, 16).program
    plan_memory(program)
    assert [len(each) for each in areas._prices(program, BOARD, [FAST]).values()] == [1, 1]


def test_what_waits_as_long_in_both_is_decided_by_its_accesses():
    """The board tells waits of no cycles for either; `hot` is read three times as often."""
    sketch = Sketch()
    sketch.input("x")
    for name in ("hot", "cold"):
        sketch.step(name, "x")
    for name in ("hot", "hot", "hot", "cold"):
        sketch.step("y", name)
    sketch.output("y")
    plan_memory(sketch.program)
    first, second = replace(FAST, speed=1), replace(SLOW, speed=1)
    prices = areas._prices(sketch.program, BOARD, [first, second])
    assert all(one == other for one, other in prices.values())
    slower = areas._prices(sketch.program, BOARD, [first, replace(SLOW, speed=3)])
    for buffer, (fast, slow) in slower.items():
        waits = arena_stall_cycles(sketch.program, BOARD, replace(SLOW, speed=3))[buffer]
        assert 0 <= fast <= 5  # a third of a cycle at most, in sixteenths
        assert 16 * waits <= slow < 16 * waits + 16
    hot, cold = (slower[sketch.buffers[name]] for name in ("hot", "cold"))
    assert hot[1] > cold[1] and hot[0] > cold[0]


# ---------------------------------------------------------------------------------------------------------- rounds


def test_waits_are_those_of_each_area_in_its_memory():
    program = chain(16, 32, 16).program
    plan_memory(program)
    assert areas.split_arena_stall_cycles(program, BOARD, [FAST]) == 0
    assert areas.split_arena_stall_cycles(program, BOARD, [SLOW]) == 2 * (4 + 8)
    program.buffers[1].area = 1
    assert areas.split_arena_stall_cycles(program, BOARD, [FAST, SLOW]) == 2 * 8
    assert areas.split_arena_stall_cycles(program, BOARD, [SLOW, FAST]) == 2 * 4


def test_areas_follow_the_order_of_memories_and_those_without_buffers_have_none():
    third = replace(SLOW, name="third", size=64)
    program = chain(64, 64, 64).program
    plan_memory(program)
    found = areas.split_arena(program, BOARD, {FAST: 0, third: 64, SLOW: 64})
    assert found == (third, SLOW)
    assert program.area_sizes == [64, 64]
    assert {b.area for b in program.buffers} == {0, 1}


def test_a_memory_whose_plan_came_out_too_large_is_given_less(monkeypatch: pytest.MonkeyPatch):
    """Each round takes what was too much from the limit of that memory alone."""
    program = chain(64, 64, 64).program
    plan_memory(program)
    limits: list[list[int]] = []
    assign = areas._assign

    def watched(units: list[areas._Unit], given: list[int]) -> list[int] | None:
        limits.append(list(given))
        return [0] * len(units) if len(limits) < 3 else assign(units, given)

    monkeypatch.setattr(areas, "_assign", watched)
    assert areas.split_arena(program, BOARD, {FAST: 112, SLOW: 64}) is not None
    assert limits == [[112, 64], [96, 64], [80, 64]]


@pytest.mark.parametrize("rounds", [1, 3])
def test_what_does_not_fit_lies_as_before_after_so_many_rounds(rounds: int, monkeypatch: pytest.MonkeyPatch):
    program = chain(64, 64, 64).program
    plan_memory(program)
    before = Planned.of(program)
    tried: list[list[int]] = []

    def too_much(units: list[areas._Unit], limits: list[int]) -> list[int]:
        tried.append(limits)
        return [1] * len(units)

    monkeypatch.setattr(areas, "MAX_AREA_RETRIES", rounds)
    monkeypatch.setattr(areas, "_assign", too_much)
    assert areas.split_arena(program, BOARD, {FAST: 64, SLOW: 64}) is None
    assert len(tried) == 2 * rounds  # of buffers that lie over one another together, and of each for itself
    assert Planned.of(program) == before


def test_without_any_way_no_further_round_is_tried(monkeypatch: pytest.MonkeyPatch):
    program = chain(64, 64, 64).program
    plan_memory(program)
    tried: list[int] = []
    monkeypatch.setattr(areas, "_assign", lambda units, limits: tried.append(len(units)))
    assert areas.split_arena(program, BOARD, {FAST: 16, SLOW: 16}) is None
    assert tried == [3, 3]


def test_a_pipeline_is_not_split():
    program = chain(64, 64, 64).program
    plan_memory(program)
    program.handover = range(1, 1)
    before = Planned.of(program)
    assert areas.split_arena(program, BOARD, {FAST: 64, SLOW: 64}) is None
    assert Planned.of(program) == before
