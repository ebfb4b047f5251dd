# SPDX-License-Identifier: Apache-2.0
"""Division of a program into a pipeline of two cores: one computes the first part, the other one the second part.

The first part works on a frame while the second part works on the previous frame. The parts share no memory; moves
between them (the hand-over) copy the buffers that the second part needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mcugen.lir.copies import MOVE_KERNEL, MoveOptions
from mcugen.lir.program import MOVE, Access, Buffer, Instr, Operand, Program, Space, aligned
from mcugen.lir.state import is_state_copy


def may_cut(program: Program, at: int) -> bool:
    """Return whether a program can be cut before instruction `at` into two parts that two cores run as a pipeline.

    Blocks, and instructions that belong together (with the same `group` or `unit`), are not cut. Only one part may use
    each state, and only the second part may write outputs.
    """
    if not 0 < at < len(program.instrs) or any(start < at <= end for start, end in program.blocks()):
        return False
    return not _is_one(*program.instrs[at - 1 : at + 1]) and not _is_torn(program, at)


def _is_one(before: Instr, behind: Instr) -> bool:
    return any(a and a == b for a, b in ((before.group, behind.group), (before.unit, behind.unit)))


def _is_torn(program: Program, at: int) -> bool:
    first, second = (_buffers(part) for part in (program.instrs[:at], program.instrs[at:]))
    outputs = {e.buffer for e in program.outputs}
    written = {o.buffer for instr in program.instrs[:at] for o in instr.operands if o.access is not Access.IN}
    return any(b.space is Space.STATE for b in first & second) or bool(outputs & written) or not outputs <= second


def update_states_early(program: Program) -> None:
    """Move each update of a state (data kept between calls) to just after the last use of its old or new value.

    The program is changed in place.
    """
    for instr in [i for i in program.instrs if is_state_copy(i)]:
        used = {o.buffer for o in instr.operands}
        program.instrs.remove(instr)
        last = max((i for i, other in enumerate(program.instrs) if used & _buffers([other])), default=-1)
        program.instrs.insert(last + 1, instr)


def crossing(program: Program, at: int) -> list[Buffer]:
    """Return the arena buffers whose data a cut before instruction `at` must pass from the first to the second part.

    They are inputs or used before the cut, and used again behind it.
    """
    available = {e.buffer for e in program.inputs} | _buffers(program.instrs[:at])
    read = _buffers(program.instrs[at:])
    return [b for b in program.buffers if b.planned and b in available and b in read]


def cut(program: Program, at: int) -> None:
    """Cut a program before instruction `at`, in place, into two parts that two cores run as a pipeline over frames.

    The second part reads its own copies of the buffers that both parts use. Moves between the parts (the hand-over)
    fill these copies; `Program.handover` gets the indices of the moves.
    """
    moves, copies = list[Instr](), dict[Buffer, Buffer]()
    for buffer in crossing(program, at):
        copies[buffer] = copy = Buffer(f"{buffer.name}.before", buffer.dtype, buffer.count, Space.ARENA)
        operands = (Operand("x", Access.IN, buffer), Operand("y", Access.OUT, copy))
        move = Instr(MOVE, copy.name, operands, {"nbytes": buffer.nbytes}, code=MoveOptions(within=False).values())
        move.op, move.stays, move.declaration, move.note = MOVE, True, MOVE_KERNEL, "from the first part to the second"
        moves.append(move)
    for instr in program.instrs[at:]:
        instr.operands = tuple(replace(o, buffer=copies.get(o.buffer, o.buffer)) for o in instr.operands)
    program.buffers += copies.values()
    program.instrs[at:at] = moves
    program.handover = range(at, at + len(moves))


def separate_areas(program: Program) -> None:
    """Assign the buffers of the second part of a two-core pipeline to an area of the arena of their own (area 1).

    The program is changed in place. The memory of each part is then planned on its own.
    """
    assert program.handover is not None
    for buffer in _buffers(program.instrs[program.handover.stop :]):
        buffer.area = int(buffer.planned)


def join_areas(program: Program) -> None:
    """Join the planned arena areas of a pipeline's two parts to one area, in which the second one follows the first.

    The program is changed in place: the offsets of the buffers, and the sizes of the areas.
    """
    first = aligned(program.area_sizes[0])
    for buffer in program.buffers:
        if buffer.planned and buffer.area:
            buffer.offset, buffer.area = (buffer.offset or 0) + first, 0
    program.area_sizes = [first + sum(program.area_sizes[1:])]
    program.area_bounds = [sum(program.area_bounds)]


def _buffers(instrs: Iterable[Instr]) -> set[Buffer]:
    return {o.buffer for instr in instrs for o in instr.operands}
