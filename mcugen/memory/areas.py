# SPDX-License-Identifier: Apache-2.0
"""Which buffers lie in which area of the arena, where that is split over several memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mcugen.lir.program import Buffer, Program, aligned
from mcugen.memory.exact import deterministic_solver
from mcugen.memory.plan import plan_memory
from mcugen.memory.traffic import traffic
from mcugen.memory.verify_plan import verify_plan

ROUNDS = 16
"""So often an area whose plan came out too large is given less."""

EFFORT = 4.0
"""Deterministic time of the solver."""


def split(program: Program, room: Sequence[int], speeds: Sequence[int]) -> list[int] | None:
    """Plans `program`, whose arena is one area as yet, so that each area fits one of the memories with so much room.

    What is accessed most often lies where that is fastest: the sum of all accesses times the `speeds` (waits) is the
    least. Room is judged by the bytes alive at once; if a plan needs more, a round with less room follows. Returns the
    memory of each area, or None if no way was found.
    """
    if program.handover is not None:
        return None  # its two parts lie in one area
    for units in (_units(program, True), _units(program, False)):
        limits = list(room)
        for _ in range(ROUNDS):
            chosen = _assign(units, limits, speeds)
            if chosen is None:
                break
            used = sorted(set(chosen))
            for unit, memory in zip(units, chosen, strict=True):
                for buffer in unit.buffers:
                    buffer.area = used.index(memory)
            plan_memory(program)
            excess = {memory: size - room[memory] for memory, size in zip(used, program.area_sizes, strict=True)}
            if all(more <= 0 for more in excess.values()):
                verify_plan(program)
                return used
            limits = [limit - max(excess.get(memory, 0), 0) for memory, limit in enumerate(limits)]
    return None


@dataclass(frozen=True)
class _Unit:
    """Buffers that stay together. `load` are the bytes they take before, during and after each instruction."""

    buffers: list[Buffer]
    load: npt.NDArray[np.int64]
    accesses: int


def _assign(units: Sequence[_Unit], limits: Sequence[int], speeds: Sequence[int]) -> list[int] | None:
    """The memory of each unit; None if there is no way."""
    from ortools.sat.python import cp_model  # half a second, which programs with one memory do not need

    model = cp_model.CpModel()
    lies_in = [[model.new_bool_var(f"{u}in{m}") for m in range(len(limits))] for u in range(len(units))]
    for choices in lies_in:
        model.add_exactly_one(choices)
    loads = np.unique(np.array([unit.load for unit in units]), axis=1).T.tolist()
    for memory, limit in enumerate(limits):
        for load in loads:
            model.add(sum(n * x[memory] for n, x in zip(load, lies_in, strict=True) if n) <= limit)
    costs = np.outer([unit.accesses for unit in units], speeds).tolist()
    model.minimize(sum(n * x for line, xs in zip(costs, lies_in, strict=True) for n, x in zip(line, xs, strict=True)))
    solver = deterministic_solver(EFFORT)
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    return [next(m for m, x in enumerate(choices) if solver.value(x)) for choices in lies_in]


def _units(program: Program, together: bool) -> list[_Unit]:
    """Each buffer for itself, or together with those with which, as planned, it shares bytes within an instruction."""
    ranges = program.live_ranges()
    unit_of = {b: [b] for b in ranges if b.nbytes}
    for instr in program.instrs if together else ():
        operands = [o.buffer for o in instr.operands if o.buffer in unit_of]
        for a in operands:
            for b in operands:
                if unit_of[a] is not unit_of[b] and _share_bytes(a, b):
                    unit_of[a] += unit_of[b]
                    unit_of.update(dict.fromkeys(unit_of[b], unit_of[a]))
    accesses = traffic(program)
    units = {id(unit): unit for unit in unit_of.values()}.values()
    return [_Unit(unit, _load(unit, ranges, len(program.instrs)), sum(accesses[b] for b in unit)) for unit in units]


def _share_bytes(a: Buffer, b: Buffer) -> bool:
    assert a.offset is not None and b.offset is not None
    return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _load(
    buffers: Sequence[Buffer], ranges: Mapping[Buffer, tuple[int, int]], instructions: int
) -> npt.NDArray[np.int64]:
    """Bytes from the first to the last that is alive, before, during and after each instruction."""
    begin = np.full(instructions + 2, np.iinfo(np.int64).max)
    end = np.zeros_like(begin)
    for buffer in buffers:
        assert buffer.offset is not None
        alive = slice(ranges[buffer][0] + 1, ranges[buffer][1] + 2)
        begin[alive] = np.minimum(begin[alive], buffer.offset)
        end[alive] = np.maximum(end[alive], aligned(buffer.offset + buffer.nbytes))
    return np.where(end > 0, end - begin, 0)
