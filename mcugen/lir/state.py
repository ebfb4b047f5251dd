# SPDX-License-Identifier: Apache-2.0
"""State between calls: outputs of one call that are inputs of the next one, kept in the caller's struct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mcugen.lir.copies import COPY_KERNEL, CopiedRunParams, CopyOptions, Offsets
from mcugen.lir.moves import order_moves
from mcugen.lir.program import Access, Buffer, Endpoint, Instr, Operand, Program, Space


@dataclass(frozen=True)
class StateUpdate:
    """An update of a state (data kept between calls) at the end of a call.

    Attributes:
        target: The state.
        source: Buffer with the new value of the state.
    """

    target: Endpoint
    source: Buffer


def keep_state(program: Program, moves: Sequence[StateUpdate]) -> None:
    """Append the updates of states (data kept between calls) to a program, in place, as if all happened at once.

    If nothing reads the old value any more, the new value is computed directly in the state's memory. Layers that two
    cores compute together are excepted, since the other core may still read the old value.
    """
    _rescue_outputs(program)
    names = {m.target.buffer: m.target.name for m in moves}

    def spare(state: Buffer) -> Buffer:
        return _arena_buffer(program, state, f"{names[state]}.old")

    for source, target in order_moves([(m.source, m.target.buffer) for m in moves], spare):
        program.instrs.append(copy_of(source, target, names.get(target, target.name)))
    for instr in list(program.instrs):
        if is_state_copy(instr):
            _compute_in_place(program, instr)


def is_state_copy(instr: Instr) -> bool:
    """Return whether an instruction is a copy of a new value to a state that `keep_state` appended."""
    return instr.kernel == COPY_KERNEL.name and instr.op == "state"


def _rescue_outputs(program: Program) -> None:
    """Copy outputs that are old states, so that they do not change with the states."""
    for index, endpoint in enumerate(program.outputs):
        if endpoint.buffer.space is Space.STATE:
            kept = _arena_buffer(program, endpoint.buffer, f"{endpoint.name}.kept")
            program.instrs.append(copy_of(endpoint.buffer, kept, kept.name))
            kept.space = Space.OUTPUT
            program.outputs[index] = replace(endpoint, buffer=kept)


def _arena_buffer(program: Program, like: Buffer, name: str) -> Buffer:
    target = Buffer(name, like.dtype, like.count, Space.ARENA)
    program.buffers.append(target)
    return target


def copy_of(source: Buffer, target: Buffer, name: str, op: str = "state") -> Instr:
    """Return an instruction that copies a whole buffer to another one of equal size.

    Args:
        source: The buffer to read.
        target: The buffer to write.
        name: Name of the instruction.
        op: Name of the operator in reports.
    """
    return Instr(
        COPY_KERNEL.name,
        name,
        (Operand("x", Access.IN, source), Operand("y", Access.OUT, target)),
        Offsets(x_offset=0, y_offset=0).values() | CopiedRunParams(run=source.nbytes).values(),
        code=CopyOptions(rank=0, contiguous=True, x_t=source.dtype.c, stepped=False).values(),
        variant="runs_0d",
        op=op,
        origin=(name,),
        declaration=COPY_KERNEL,
        note=f"{source.dtype.value} x {source.count}",
    )


def _compute_in_place(program: Program, move: Instr) -> None:
    """Make the producer write the state directly, if all readers of the old state come before it or allow it."""
    source, state = move.operand("x").buffer, move.operand("y").buffer
    touching = [i for i, instr in enumerate(program.instrs) if _uses(instr, source) and instr is not move]
    ends = {id(e.buffer) for e in (*program.inputs, *program.outputs)}
    if not source.planned or id(source) in ends or not touching:
        return
    if any(touching[0] < end and start < touching[-1] for start, _, end in program.forks()):
        return
    first = program.instrs[touching[0]]
    late_reads = [i for i in program.instrs[touching[0] :] if _uses(i, state) and i is not move]
    if late_reads and not (late_reads == [first] and _allows(first, source, state)):
        return
    for instr in program.instrs:
        instr.operands = tuple(replace(o, buffer=state) if o.buffer is source else o for o in instr.operands)
    program.instrs.remove(move)
    program.buffers.remove(source)


def _uses(instr: Instr, buffer: Buffer) -> bool:
    return any(o.buffer is buffer for o in instr.operands)


def _allows(instr: Instr, out: Buffer, old: Buffer) -> bool:
    """Return whether an instruction may write `out` over `old`, which one of its operands reads."""
    pairs = [(instr.operand(o).buffer, instr.operand(i).buffer) for o, i in instr.inplace]
    return (out, old) in pairs and sum(o.buffer is old for o in instr.operands) == 1
