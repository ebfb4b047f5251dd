# SPDX-License-Identifier: Apache-2.0
"""Assignment of buffers to the areas of an arena that is split over several memories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugen.core.board import Board, Memory
from mcugen.core.packages import optional_package
from mcugen.lir.program import Buffer, Program, aligned
from mcugen.memory.activation_stalls import arena_stall_cycles, share_bytes
from mcugen.memory.exact import deterministic_solver
from mcugen.memory.plan import Planned, plan_memory
from mcugen.memory.traffic import traffic
from mcugen.memory.verify_plan import verify_plan

MAX_AREA_RETRIES = 16
"""Largest number of times that buffers are assigned to areas again, each time with less room, if plans exceed the
room."""

_CYCLE_PARTS = 16
"""Parts of a cycle."""

AREA_SOLVER_TIME = 0.5
"""Effort limit of the CP-SAT solver for one assignment, in units of its deterministic time (about seconds)."""


def split_arena(program: Program, board: Board, room: Mapping[Memory, int]) -> tuple[Memory, ...] | None:
    """Divide the arena of a program into areas in several memories, and plan the program's memory again.

    Buffers are assigned to memories for the least estimated stall cycles (mcugen.memory.activation_stalls). The
    assignment estimates the size of an area by its peak of live bytes; if the plan of an area needs more, the
    assignment is repeated with less room.

    Args:
        program: A planned program with one area; its plan is replaced.
        board: The board, whose timing gives the stall cycles.
        room: Bytes available in each memory.

    Returns:
        The memory of each area, in order of the areas; None if no assignment was found, and then the plan is as before.
    """
    if program.handover is not None:
        return None  # Both parts of a pipeline share an area.
    before, memories = Planned.of(program), list(room)
    prices = _prices(program, board, memories)
    for units in (_units(program, prices, True), _units(program, prices, False)):
        limits = list(room.values())
        for _ in range(MAX_AREA_RETRIES):
            chosen = _assign(units, limits)
            if chosen is None:
                break
            used = sorted(set(chosen))
            for unit, memory in zip(units, chosen, strict=True):
                for buffer in unit.buffers:
                    buffer.area = used.index(memory)
            plan_memory(program)
            sizes = zip(used, program.area_sizes, strict=True)
            excess = {memory: size - room[memories[memory]] for memory, size in sizes}
            if all(more <= 0 for more in excess.values()):
                verify_plan(program)
                return tuple(memories[memory] for memory in used)
            limits = [limit - max(excess.get(memory, 0), 0) for memory, limit in enumerate(limits)]
    before.restore(program)
    return None


def split_arena_stall_cycles(program: Program, board: Board, arenas: Sequence[Memory]) -> float:
    """Return the stall cycles of one inference on arena buffers, with each area of the arena in a given memory.

    Args:
        program: A planned program.
        board: The board with the timing of its memories.
        arenas: The memory of each area of the arena.
    """
    waits_by_memory = [arena_stall_cycles(program, board, memory) for memory in arenas]
    return sum(waits_by_memory[buffer.area][buffer] for buffer in program.buffers if buffer.planned)


def _prices(program: Program, board: Board, memories: Sequence[Memory]) -> dict[Buffer, list[int]]:
    """Return the cost of each buffer in each memory: stall cycles, plus a tie-breaking term for its accesses."""
    waits, accesses = [arena_stall_cycles(program, board, memory) for memory in memories], traffic(program)
    tie_limit = max(accesses.values(), default=0) * max(memory.speed for memory in memories) + 1
    return {
        b: [
            round(_CYCLE_PARTS * w[b]) + accesses[b] * m.speed * _CYCLE_PARTS // tie_limit
            for w, m in zip(waits, memories, strict=True)
        ]
        for b in waits[0]
    }


@dataclass(frozen=True)
class _Unit:
    """Buffers that stay together. `load` are the bytes they take before, during and after each instruction."""

    buffers: list[Buffer]
    load: npt.NDArray[np.int64]
    prices: list[int]
    """Cost in each memory."""


def _assign(units: Sequence[_Unit], limits: Sequence[int]) -> list[int] | None:
    """Return the memory of each unit, or None if there is no solution."""
    with optional_package("planning", "an arena in several memories (--place auto)"):
        from ortools.sat.python import cp_model  # A slow import that one memory does not need.

    model = cp_model.CpModel()
    lies_in = [[model.new_bool_var(f"{u}in{m}") for m in range(len(limits))] for u in range(len(units))]
    for choices in lies_in:
        model.add_exactly_one(choices)
    loads = _hardest(np.unique(np.array([unit.load for unit in units]), axis=1).T)
    for memory, limit in enumerate(limits):
        for load in loads.tolist():
            model.add(sum(n * x[memory] for n, x in zip(load, lies_in, strict=True) if n) <= limit)
    model.minimize(
        sum(n * x for unit, xs in zip(units, lies_in, strict=True) for n, x in zip(unit.prices, xs, strict=True))
    )
    solver = deterministic_solver(AREA_SOLVER_TIME)
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [next(m for m, x in enumerate(choices) if solver.value(x)) for choices in lies_in]


def _hardest(loads: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the rows that no other row dominates: if these fit, all rows do, and the solver has less to do."""
    return loads[[np.count_nonzero((loads >= load).all(1)) == 1 for load in loads]]


def _units(program: Program, prices: Mapping[Buffer, list[int]], together: bool) -> list[_Unit]:
    """Return the units that are assigned to memories: single buffers or, with `together`, groups of buffers.

    A group has the buffers that share bytes in the memory plan within one instruction.
    """
    ranges = program.live_ranges()
    unit_of = {b: [b] for b in ranges if b.nbytes}
    for instr in program.instrs if together else ():
        operands = [o.buffer for o in instr.operands if o.buffer in unit_of]
        for a in operands:
            for b in operands:
                if unit_of[a] is not unit_of[b] and share_bytes(a, b):
                    unit_of[a] += unit_of[b]
                    unit_of.update(dict.fromkeys(unit_of[b], unit_of[a]))
    units = {id(unit): unit for unit in unit_of.values()}.values()
    steps = len(program.instrs)
    return [_Unit(unit, _load(unit, ranges, steps), _total_costs(prices[b] for b in unit)) for unit in units]


def _total_costs(prices: Iterable[Sequence[int]]) -> list[int]:
    """Return the total cost in each memory."""
    return [sum(costs) for costs in zip(*prices, strict=True)]


def _load(
    buffers: Sequence[Buffer], ranges: Mapping[Buffer, tuple[int, int]], instructions: int
) -> npt.NDArray[np.int64]:
    """Return the extent in bytes of the live buffers before the program, at each instruction, and after the program."""
    begin = np.full(instructions + 2, np.iinfo(np.int64).max)
    end = np.zeros_like(begin)
    for buffer in buffers:
        assert buffer.offset is not None
        alive = slice(ranges[buffer][0] + 1, ranges[buffer][1] + 2)
        begin[alive] = np.minimum(begin[alive], buffer.offset)
        end[alive] = np.maximum(end[alive], aligned(buffer.offset + buffer.nbytes))
    return np.where(end > 0, end - begin, 0)
