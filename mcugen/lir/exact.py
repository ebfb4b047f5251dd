# SPDX-License-Identifier: Apache-2.0
"""The least extent of things on a line whose distances are constrained: exact, by constraint programming (CP-SAT)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

Interval = tuple[int, int]
"""First and last."""

EFFORT = 2.0
"""Deterministic time, in which the solver measures its work: some seconds, but the same result on every computer."""

MOST_PAIRS = 5_000
"""Constraints of two things each; with more, the solver would hardly begin to search."""


@dataclass(frozen=True)
class Problem:
    """Things of these sizes; `forbidden` are, by pairs, the distances from one to the other that they must not have."""

    sizes: Sequence[int]
    forbidden: dict[tuple[int, int], list[Interval]]


def solve(problem: Problem, hint: Sequence[int], least: int) -> tuple[list[int], int]:
    """Where each thing begins, from 0 on, and a lower bound of how far they reach; both equal if the end was proven.

    `hint` is a solution, `least` a lower bound. The result is never worse, and the same in every run.
    """
    most = max(at + size for at, size in zip(hint, problem.sizes, strict=True))
    if len(problem.forbidden) > MOST_PAIRS:
        return list(hint), least
    model = cp_model.CpModel()
    starts = [model.new_int_var(0, most - size, f"start{i}") for i, size in enumerate(problem.sizes)]
    reach = model.new_int_var(least, most, "reach")
    for start, size, at in zip(starts, problem.sizes, hint, strict=True):
        model.add(start + size <= reach)
        model.add_hint(start, at)
    for (p, q), apart in problem.forbidden.items():
        taken = []
        for low, high in _gaps(apart, most):
            taken.append(model.new_bool_var(""))
            model.add_linear_constraint(starts[q] - starts[p], low, high).only_enforce_if(taken[-1])
        model.add_exactly_one(taken)
    model.minimize(reach)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = EFFORT
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return list(hint), max(least, round(solver.best_objective_bound))
    return [solver.value(start) for start in starts], max(least, round(solver.best_objective_bound))


def _gaps(apart: Sequence[Interval], most: int) -> list[Interval]:
    """What is left from -`most` to `most` between these intervals, which are sorted and do not touch.

    The solver could be given it as the domain of a difference, but that of OR-tools 9.15 then takes for the least
    what is not: tests/lir/test_exact.py.
    """
    ends = [-most - 1, *(end for interval in apart for end in interval), most + 1]
    between = zip(ends[::2], ends[1::2], strict=True)
    return [(low + 1, high - 1) for low, high in between if low + 1 <= high - 1]
