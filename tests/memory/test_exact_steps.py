# SPDX-License-Identifier: Apache-2.0
"""The steps of exact placement: what is asked of the solver, and each part against trying everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from random import Random

import pytest

from mcugen.memory import exact
from mcugen.memory.exact import FULL_EFFORT_PAIRS, PLACEMENT_SOLVER_TIME, Interval, Problem, solve


def reach(problem: Problem, starts: Sequence[int]) -> int:
    return max(at + size for at, size in zip(starts, problem.sizes, strict=True))


def is_allowed(problem: Problem, starts: Sequence[int]) -> bool:
    return all(
        not low <= starts[q] - starts[p] <= high for (p, q), apart in problem.forbidden.items() for low, high in apart
    )


def random_problem(random: Random) -> Problem:
    """Up to four things, some of which must be apart, or may lie over one another at one distance."""
    sizes = [random.randint(1, 4) for _ in range(random.randint(1, 4))]
    forbidden: dict[tuple[int, int], list[Interval]] = {}
    for q in range(len(sizes)):
        for p in range(q):
            low, high = 1 - sizes[q], sizes[p] - 1
            cut = random.choice([[(low, high)], [(low, -1), (1, high)], [(0, high)], []])
            if parts := [part for part in cut if part[0] <= part[1]]:
                forbidden[p, q] = parts
    return Problem(sizes, forbidden)


def least(problem: Problem) -> int:
    most = sum(problem.sizes)
    every = product(*(range(most - size + 1) for size in problem.sizes))
    return min(reach(problem, starts) for starts in every if is_allowed(problem, starts))


def end_to_end(problem: Problem) -> list[int]:
    return [sum(problem.sizes[:number]) for number in range(len(problem.sizes))]


# ------------------------------------------------------------------------------------------------------ the parts


@pytest.mark.parametrize("seed", range(30))
def test_the_search_finds_and_proves_the_least(seed: int):
    problem = random_problem(Random(seed))
    best, is_least = exact._search(problem, end_to_end(problem), 0)
    assert is_least and is_allowed(problem, best) and min(best) >= 0
    assert reach(problem, best) == least(problem)


@pytest.mark.parametrize("seed", range(6))
def test_the_search_ends_with_what_is_little_enough(seed: int):
    problem = random_problem(Random(seed))
    hint = end_to_end(problem)
    assert exact._search(problem, list(hint), reach(problem, hint)) == (hint, True)
    best, _ = exact._search(problem, list(hint), reach(problem, hint) - 1)
    assert least(problem) <= reach(problem, best) <= max(reach(problem, hint) - 1, least(problem))


@pytest.mark.parametrize("allowed", [-1, 0, 3, 60])
def test_a_search_that_was_cut_short_proves_nothing(allowed: int, monkeypatch: pytest.MonkeyPatch):
    """Each distance that is looked at counts, and each inequality."""
    problem = Problem([3, 5, 2, 4, 1, 6], {(p, q): [(1 - b, a - 1)] for p, q, a, b in _pairs([3, 5, 2, 4, 1, 6])})
    looked: list[int] = []
    moved = exact._push_starts
    monkeypatch.setattr(exact, "_push_starts", lambda *given: looked.append(1) or moved(*given))
    monkeypatch.setattr(exact, "MAX_EXAMINED_DISTANCES", allowed)
    hint = [40, 30, 20, 10, 50, 60]
    best, is_least = exact._search(problem, list(hint), 0)
    assert not is_least and is_allowed(problem, best)
    assert len(looked) <= 2 * (allowed + 2)


def _pairs(sizes: Sequence[int]) -> list[tuple[int, int, int, int]]:
    return [(p, q, sizes[p], sizes[q]) for q in range(len(sizes)) for p in range(q)]


@pytest.mark.parametrize("seed", range(30))
def test_beginnings_move_as_far_as_inequalities_ask(seed: int):
    random = Random(seed)
    count, limit = 5, random.choice((12, 20, 1000))
    sizes = [random.randint(1, 3) for _ in range(count)]
    after: list[list[Interval]] = [[] for _ in range(count)]
    for _ in range(random.randint(0, 7)):
        first, then = sorted(random.sample(range(count), 2))
        after[first].append((then, random.randint(-2, 6)))
    starts = [random.randint(0, 5) for _ in range(count)]
    wanted = list(starts)
    for _ in range(count):  # no longer chain than that
        for first, each in enumerate(after):
            for then, by in each:
                if _is_moved(starts, wanted, first):
                    wanted[then] = max(wanted[then], wanted[first] + by)
    moved, steps = exact._push_starts(sizes, starts, after, 0, limit)
    changed = [number for number in range(count) if wanted[number] > starts[number]]
    too_far = any(wanted[number] + sizes[number] >= limit for number in changed)
    assert moved == ([] if too_far else wanted)
    assert steps >= len(after[0]) if not too_far else steps >= 1


def _is_moved(starts: Sequence[int], now: Sequence[int], number: int) -> bool:
    """Whether inequalities of a thing are looked at: the first is what changed, others have moved."""
    return number == 0 or now[number] > starts[number]


def test_things_that_push_one_another_on_end_within_the_search(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exact, "MAX_EXAMINED_DISTANCES", 100)
    moved, steps = exact._push_starts([1, 1], [0, 0], [[(1, 1)], [(0, 1)]], 0, 10**9)
    assert (moved, steps) == ([], 101)


@pytest.mark.parametrize("seed", range(20))
def test_gaps_are_what_intervals_leave(seed: int):
    random = Random(seed)
    most, at, apart = random.randint(0, 12), -14, list[Interval]()
    while (low := at + random.randint(2, 6)) < 12:
        at = low + random.randint(0, 4)
        apart.append((low, at))
    apart = [(low, high) for low, high in apart if low >= -most and high <= most]
    gaps = exact._gaps(apart, most)
    taken = {n for low, high in apart for n in range(low, high + 1)}
    assert [n for low, high in gaps for n in range(low, high + 1)] == [
        n for n in range(-most, most + 1) if n not in taken
    ]
    assert all(low <= high for low, high in gaps)


@pytest.mark.parametrize("seed", range(8))
def test_the_solver_decides_limits(seed: int):
    problem = random_problem(Random(seed))
    wanted = least(problem)
    for limit in range(max(problem.sizes) - 1, wanted + 2):
        answer, starts, effort = exact._solve_within(problem, limit, end_to_end(problem), 1.0)
        assert answer is (limit >= wanted)
        assert len(starts) == (len(problem.sizes) if answer else 0)
        assert not answer or (is_allowed(problem, starts) and min(starts) >= 0 and reach(problem, starts) <= limit)
        assert (effort == 0) if limit < max(problem.sizes) else (PLACEMENT_SOLVER_TIME / 1000 <= effort <= 1)


def test_a_solver_without_time_decides_nothing():
    count = 14
    sizes = [7 + 5 * n % 11 for n in range(count)]
    problem = Problem(sizes, {(p, q): [(1 - sizes[q], sizes[p] - 1)] for q in range(count) for p in range(q)})
    answer, starts, effort = exact._solve_within(problem, sum(sizes) - 1, end_to_end(problem), 1e-9)
    assert (answer, starts) == (None, [])
    assert effort >= PLACEMENT_SOLVER_TIME / 1000


def test_solvers_repeat_themselves():
    parameters = exact.deterministic_solver(0.25).parameters
    found = parameters.num_workers, parameters.random_seed, parameters.max_deterministic_time
    assert found == (1, 0, 0.25)


# ------------------------------------------------------------------------------------------------ what is asked


class Oracle:
    """In place of search and solver: one thing of one unit, which can begin at `best` or behind it."""

    def __init__(
        self, patch: pytest.MonkeyPatch, best: int, *, effort: float = 1e-6, unknown: range = range(0)
    ) -> None:
        self.limits: list[int] = []
        self.allowed: list[float] = []
        self.sought: list[int] = []
        self.is_proven = False
        self.best, self.effort, self.unknown = best, effort, unknown
        patch.setattr(exact, "_search", self.search)
        patch.setattr(exact, "_solve_within", self.within)

    def search(self, problem: Problem, best: list[int], enough: int) -> tuple[list[int], bool]:
        self.sought.append(enough)
        return best, self.is_proven

    def within(
        self, problem: Problem, limit: int, hint: Sequence[int], effort: float
    ) -> tuple[bool | None, list[int], float]:
        assert hint[0] + 1 > limit
        self.limits.append(limit)
        self.allowed.append(effort)
        if limit in self.unknown:
            return None, [], self.effort
        return (True, [self.best - 1], self.effort) if limit >= self.best else (False, [], self.effort)


ONE = Problem([1], {(0, 0): []})
LEAST, HINT = 10, 80


@pytest.mark.parametrize("best", range(LEAST, HINT + 1))
def test_the_least_is_bisected_and_proven(best: int, monkeypatch: pytest.MonkeyPatch):
    oracle = Oracle(monkeypatch, best)
    assert solve(ONE, [HINT - 1], LEAST) == ([best - 1], best)
    assert oracle.limits[0] == LEAST
    assert len(set(oracle.limits)) == len(oracle.limits) <= 2 * math.log2(HINT - LEAST) + 2
    if best < LEAST + 8:  # what is near is asked for first: a limit is refuted sooner than a solution is improved
        assert len(oracle.limits) <= 7
        assert max(oracle.limits) < LEAST + 15


def test_what_the_solver_cannot_decide_is_no_bound(monkeypatch: pytest.MonkeyPatch):
    oracle = Oracle(monkeypatch, 60, unknown=range(20, 60))
    starts, bound = solve(ONE, [HINT - 1], LEAST)
    assert starts == [59]
    assert LEAST < bound <= 20
    assert bound - 1 in oracle.limits
    unknown = Oracle(monkeypatch, 60, unknown=range(HINT))
    assert solve(ONE, [HINT - 1], LEAST) == ([HINT - 1], LEAST)
    assert unknown.limits[:2] == [LEAST, (LEAST + 1 + HINT - 1) // 2]


@pytest.mark.parametrize("num_pairs", [1, FULL_EFFORT_PAIRS, 2 * FULL_EFFORT_PAIRS, 8 * FULL_EFFORT_PAIRS])
def test_many_constraints_get_less_of_the_solvers_time(num_pairs: int, monkeypatch: pytest.MonkeyPatch):
    """A question gets a quarter of it all, and there is no further one when it is used up."""
    allowed = PLACEMENT_SOLVER_TIME * min(1, FULL_EFFORT_PAIRS / num_pairs)
    oracle = Oracle(monkeypatch, 79, effort=allowed * 3 / 16)
    solve(Problem([1], {(0, number): [] for number in range(num_pairs)}), [HINT - 1], LEAST)
    left = [allowed * (1 - 3 / 16 * number) for number in range(6)]
    assert oracle.allowed == pytest.approx([min(each, allowed / 4) for each in left])


@pytest.mark.parametrize(
    ("least_", "enough", "best", "limits", "found"),
    [
        (10, 20, 15, [20], (14, 10)),  # near enough, if not the least
        (10, 20, 20, [20], (19, 10)),
        (10, 20, 30, [20], (79, 21)),  # not so near: any will do
        (10, 5, 30, [10], (79, 11)),
        (10, 79, 30, [79], (29, 10)),
        (10, 80, 30, [], (79, 10)),
        (80, 0, 80, [], (79, 80)),
    ],
)
def test_no_more_is_asked_than_what_is_enough(
    least_: int,
    enough: int,
    best: int,
    limits: list[int],
    found: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
):
    oracle = Oracle(monkeypatch, best)
    assert solve(ONE, [HINT - 1], least_, enough) == ([found[0]], found[1])
    assert oracle.limits == limits
    assert oracle.sought == [max(least_, enough)]


def test_a_proof_by_the_search_needs_no_solver(monkeypatch: pytest.MonkeyPatch):
    oracle = Oracle(monkeypatch, 30)
    oracle.is_proven = True
    assert solve(ONE, [HINT - 1], LEAST) == ([HINT - 1], HINT)
    assert solve(ONE, [HINT - 1], LEAST, HINT) == ([HINT - 1], LEAST), "a search for enough proves nothing"
    assert oracle.limits == []


@pytest.mark.parametrize(("more", "is_tried"), [(0, True), (1, False)])
def test_with_too_many_constraints_nothing_is_tried(more: int, is_tried: bool, monkeypatch: pytest.MonkeyPatch):
    oracle = Oracle(monkeypatch, 30)
    problem = Problem([1], {(0, number): [] for number in range(exact.MAX_SOLVER_PAIRS + more)})
    starts, bound = solve(problem, [HINT - 1], LEAST)
    assert (starts, bound) == (([29], 30) if is_tried else ([HINT - 1], LEAST))
    assert bool(oracle.limits) == bool(oracle.sought) == is_tried
