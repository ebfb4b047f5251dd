# SPDX-License-Identifier: Apache-2.0
"""Exact placement against trying all placements."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcugen.memory import exact
from mcugen.memory.exact import Interval, Problem, solve


def reach(problem: Problem, starts: list[int]) -> int:
    return max(at + size for at, size in zip(starts, problem.sizes, strict=True))


def is_allowed(problem: Problem, starts: list[int]) -> bool:
    return not any(
        low <= starts[q] - starts[p] <= high for (p, q), apart in problem.forbidden.items() for low, high in apart
    )


def end_to_end(sizes: list[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


def least(problem: Problem) -> int:
    """By trying all that reaches less far than one after the other."""
    most = sum(problem.sizes)
    all_starts = map(list, product(*(range(most - size + 1) for size in problem.sizes)))
    return min(reach(problem, starts) for starts in all_starts if is_allowed(problem, starts))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to four things that may not overlap, or lie over each other at some distances."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    forbidden: dict[tuple[int, int], list[Interval]] = {}
    for q in range(len(sizes)):
        for p in range(q):
            low, high = 1 - sizes[q], sizes[p] - 1
            kind = draw(st.sampled_from(["apart", "apart", "same start", "lead", "free"]))
            cut = {"apart": [(low, high)], "same start": [(low, -1), (1, high)], "lead": [(0, high)], "free": []}[kind]
            forbidden[p, q] = [(first, last) for first, last in cut if first <= last]
    return Problem(sizes, {pair: apart for pair, apart in forbidden.items() if apart})


@pytest.mark.parametrize("search", [exact.MAX_EXAMINED_DISTANCES, -1], ids=["by search", "by constraint programming"])
@settings(max_examples=100, deadline=None, derandomize=True)
@given(problem=problems())
def test_the_least_of_all_placements_is_found_and_proven(problem: Problem, search: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "MAX_EXAMINED_DISTANCES", search)
        starts, bound = solve(problem, end_to_end(list(problem.sizes)), max(problem.sizes))
    assert is_allowed(problem, starts)
    assert min(starts) >= 0
    assert reach(problem, starts) == bound == least(problem)


def test_the_search_settles_some_things_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exact, "_solve_within", None)
    problem = hard(9)
    starts, bound = solve(problem, end_to_end(list(problem.sizes)), 99)
    assert is_allowed(problem, starts)
    assert reach(problem, starts) == bound


def hard(count: int = 40) -> Problem:
    """Things of many sizes; each meets up to nine of those after it."""
    sizes = [17 + (i * 7919) % 83 for i in range(count)]
    ends = [i + 1 + (i * 5) % 9 for i in range(count)]
    pairs = [(p, q) for q in range(count) for p in range(q) if ends[p] >= q]
    return Problem(sizes, {(p, q): [(1 - sizes[q], sizes[p] - 1)] for p, q in pairs})


def test_a_search_that_is_cut_short_is_sound_and_repeatable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exact, "PLACEMENT_SOLVER_TIME", 0.001)
    problem = hard()
    hint = end_to_end(list(problem.sizes))
    starts, bound = solve(problem, hint, 99)
    assert is_allowed(problem, starts)
    assert 99 <= bound < reach(problem, starts) <= reach(problem, hint)
    assert solve(problem, hint, 99) == (starts, bound)


def test_what_is_too_large_stays_as_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exact, "MAX_SOLVER_PAIRS", 5)
    problem = Problem([1] * 4, {(p, q): [(0, 0)] for q in range(4) for p in range(q)})
    assert solve(problem, [0, 1, 2, 7], 3) == ([0, 1, 2, 7], 3)
