# SPDX-License-Identifier: Apache-2.0
"""Exact placement of intervals on a line with forbidden distances between their starts, for the least total extent.

A short branch-and-bound search settles most problems. The others go to constraint programming (CP-SAT of OR-Tools),
which takes a hundred times longer to start. Without OR-Tools, a longer search is all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Interval = tuple[int, int]
"""First and last value, both included, of a range of distances that are not allowed."""

PLACEMENT_SOLVER_TIME = 1.0
"""Effort limit of the CP-SAT solver for one placement, in units of its deterministic time (some seconds).

The deterministic time gives the same result on every computer.
"""

FULL_EFFORT_PAIRS = 200
"""Largest number of pairs of intervals with forbidden distances for which the solver gets its full effort.

With more pairs, the effort shrinks in proportion. No inference of the shared test models has as many.
"""

MAX_SOLVER_PAIRS = 2_000
"""Largest number of pairs of intervals with forbidden distances for which the solver is used at all."""


MAX_EXAMINED_DISTANCES = 50_000
"""Largest number of forbidden distances that the branch-and-bound search examines before it gives up (some 20 ms)."""

MAX_EXAMINED_WITHOUT_SOLVER = 2_000_000
"""Largest number of forbidden distances that the search examines where OR-Tools is not installed: about a second."""


@dataclass(frozen=True)
class Problem:
    """A placement problem: intervals to place on a line from 0 on, with distances that starts must not have.

    In memory planning, an interval is a region of buffers, and the line is the arena.

    Attributes:
        sizes: Length of each interval.
        forbidden: For a pair (a, b) of indices of intervals, the ranges of start(b) − start(a) that are not allowed.
    """

    sizes: Sequence[int]
    forbidden: dict[tuple[int, int], list[Interval]]


def solve(problem: Problem, hint: Sequence[int], lower_bound: int, target: int = 0) -> tuple[list[int], int]:
    """Return a placement of the intervals with a small extent (the largest end), and a lower bound of the extent.

    The placement is optimal if its extent equals the bound. The result is deterministic and never worse than `hint`. To
    save time, the solver first looks for a placement within `lower_bound`, then within larger limits, and bisects
    between the limits once it has found one.

    Args:
        problem: Sizes and forbidden distances.
        hint: Starts of a known solution.
        lower_bound: A known lower bound of the extent.
        target: Extent that is good enough: the search stops when it is reached.

    Returns:
        The start of each interval, and the lower bound.
    """
    if len(problem.forbidden) > MAX_SOLVER_PAIRS:
        return list(hint), lower_bound
    best, is_least = _search(problem, list(hint), max(lower_bound, target))
    reach = _reach(problem, best)
    if reach <= target:
        return best, lower_bound
    if is_least:
        return best, reach
    if not _has_solver():
        best, is_least = _search(problem, best, max(lower_bound, target), MAX_EXAMINED_WITHOUT_SOLVER)
        return best, _reach(problem, best) if is_least else lower_bound
    allowed = PLACEMENT_SOLVER_TIME * min(1.0, FULL_EFFORT_PAIRS / len(problem.forbidden))
    limit, undecided, left, step = max(lower_bound, target), lower_bound, allowed, 1
    while undecided < reach and left > 0:
        answer, starts, effort = _solve_within(problem, limit, best, min(left, allowed / 4))
        left -= effort
        if answer is True:
            best, reach = starts, _reach(problem, starts)
        else:
            undecided = limit + 1
            lower_bound = lower_bound if answer is None else undecided
        if target:
            break
        limit = (undecided + reach - 1) // 2
        if answer is False and step:  # A fast refutation: the optimum is near.
            limit, step = min(limit, undecided + step - 1), 2 * step
        else:
            step = 0
    return best, lower_bound


@cache
def _has_solver() -> bool:
    """Return whether OR-Tools is installed."""
    try:
        import ortools.sat.python.cp_model  # noqa: F401  (It takes half a second, and most models do not need it.)
    except ModuleNotFoundError:
        return False
    return True


def _search(
    problem: Problem, best: list[int], lower_bound: int, max_distances: int | None = None
) -> tuple[list[int], bool]:
    """Return the best solution found by branch and bound, and whether it is optimal.

    A forbidden distance is resolved in two ways: either item starts later. Each way adds an inequality of two starts;
    the least solution of all inequalities bounds everything that follows from them.
    """
    reach, left = _reach(problem, best), MAX_EXAMINED_DISTANCES if max_distances is None else max_distances
    pairs = sorted(problem.forbidden.items(), key=lambda item: -min(problem.sizes[i] for i in item[0]))
    open_: list[tuple[list[int], list[list[Interval]]]] = [([0] * len(best), [[] for _ in best])]
    while open_ and reach > lower_bound:
        starts, after = open_.pop()
        if _reach(problem, starts) >= reach:
            continue
        sides = []
        for (p, q), apart in pairs:
            distance = starts[q] - starts[p]
            sides = [((p, q, high + 1), (q, p, 1 - low)) for low, high in apart if low <= distance <= high]
            left -= 1
            if sides:
                break
        else:
            best, reach = starts, _reach(problem, starts)
            continue
        children = []
        for first, then, by in sides[0]:
            later = [*after]
            later[first] = [*after[first], (then, by)]
            moved, steps = _push_starts(problem.sizes, starts, later, first, reach)
            left -= steps
            if moved:
                children.append((moved, later))
        open_ += sorted(children, key=lambda child: -_reach(problem, child[0]))
        if left < 0:
            return best, False
    return best, True


def _push_starts(
    sizes: Sequence[int], starts: Sequence[int], after: Sequence[Sequence[Interval]], changed: int, reach: int
) -> tuple[list[int], int]:
    """Return the least starts at which each (`then`, `by`) of `after[i]` starts at least `by` after i.

    The starts are not below `starts`. The result is empty if an item would end at `reach` or later. Also return the
    number of inequalities examined.
    """
    moved, open_, steps = list(starts), [changed], 0
    while open_:
        first = open_.pop()
        for then, by in after[first]:
            steps += 1
            at = moved[first] + by
            if at > moved[then]:
                if at + sizes[then] >= reach or steps > MAX_EXAMINED_DISTANCES:
                    return [], steps
                moved[then] = at
                open_.append(then)
    return moved, steps


def _reach(problem: Problem, starts: Sequence[int]) -> int:
    return max(at + size for at, size in zip(starts, problem.sizes, strict=True))


def _solve_within(
    problem: Problem, limit: int, hint: Sequence[int], effort: float
) -> tuple[bool | None, list[int], float]:
    """Ask the solver for a solution within an extent.

    Args:
        problem: Sizes and forbidden distances.
        limit: The largest extent.
        hint: A solution, of any extent.
        effort: Largest amount of the solver's deterministic time.

    Returns:
        Whether there is a solution (None if the effort did not suffice), its starts, and the spent time.
    """
    if limit < max(problem.sizes):
        return False, [], 0.0
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    starts = [model.new_int_var(0, limit - size, f"start{i}") for i, size in enumerate(problem.sizes)]
    for start, at in zip(starts, hint, strict=True):
        model.add_hint(start, at)
    for (p, q), apart in problem.forbidden.items():
        choices = []
        for low, high in _gaps(apart, limit):
            choices.append(model.new_bool_var(""))
            model.add_linear_constraint(starts[q] - starts[p], low, high).only_enforce_if(choices[-1])
        model.add_exactly_one(choices)
    solver = deterministic_solver(effort)
    status = solver.solve(model)
    spent = max(solver.response_proto.deterministic_time, PLACEMENT_SOLVER_TIME / 1000)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return True, [solver.value(start) for start in starts], spent
    return (False if status == cp_model.INFEASIBLE else None), [], spent


def deterministic_solver(effort: float) -> cp_model.CpSolver:
    """Return a solver (OR-Tools CP-SAT) with reproducible results, which stops after a given effort.

    Args:
        effort: Limit in units of the solver's deterministic time.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = effort
    return solver


def _gaps(apart: Sequence[Interval], max_distance: int) -> list[Interval]:
    """Return what is left from -`max_distance` to `most` between sorted, disjoint intervals.

    The solver could take it as the domain of a difference, but OR-tools 9.15 then returns non-optimal solutions as
    optimal: tests/memory/test_exact.py.
    """
    ends = [-max_distance - 1, *(end for interval in apart for end in interval), max_distance + 1]
    between = zip(ends[::2], ends[1::2], strict=True)
    return [(low + 1, high - 1) for low, high in between if low + 1 <= high - 1]
