# SPDX-License-Identifier: Apache-2.0
"""Zero-copy inputs and outputs, which lie in the caller's buffers instead of the arena."""

from __future__ import annotations

from dataclasses import replace

from mcugen.core.errors import VerificationError
from mcugen.lir.program import MOVE, Access, Buffer, Control, Endpoint, Instr, Program, Space
from mcugen.lir.state import copy_of


def lend_buffers(program: Program) -> None:
    """Move the inputs and outputs of a program from the arena to the caller's buffers, so that they need no copies.

    The program is changed in place. The buffers of inputs then have Space.GIVEN, those of outputs Space.TAKEN. An input
    that the caller passes row by row has no memory, and stays as it is. An output that shares its buffer with an input,
    a state, a constant or another output gets a buffer of its own, to which it is copied at the end. Moves (copies of
    bytes) of a whole input or to a whole output are removed, so that layers read and write the caller's buffers
    directly.
    """
    for endpoint in program.inputs:
        if endpoint.buffer.space is Space.INPUT:
            endpoint.buffer.space = Space.GIVEN
            _require_unwritten(program, endpoint.buffer)
    program.outputs = _output_endpoints(program)
    for instr in [i for i in _outer(program) if _moves_all(i)]:
        x, y = instr.operand("x").buffer, instr.operand("y").buffer
        if x.space is Space.GIVEN and y.space is Space.ARENA and _writers(program, y) == [instr]:
            _join(program, instr, y, x)
        elif x.space is Space.ARENA and y.space is Space.TAKEN and _is_last(program, instr):
            _join(program, instr, x, y)


def _output_endpoints(program: Program) -> list[Endpoint]:
    """Return the outputs, each in its own buffer."""
    outputs = []
    for endpoint in program.outputs:
        buffer = endpoint.buffer
        if buffer.space is Space.OUTPUT:
            buffer.space = Space.TAKEN
        else:
            buffer = Buffer(f"{endpoint.name}.taken", buffer.dtype, buffer.count, Space.TAKEN)
            program.buffers.append(buffer)
            program.instrs.append(copy_of(endpoint.buffer, buffer, endpoint.name, "output"))
        outputs.append(replace(endpoint, buffer=buffer))
    return outputs


def _is_last(program: Program, move: Instr) -> bool:
    """Return whether only this move uses its target, and no later instruction writes its source."""
    x, y = move.operand("x").buffer, move.operand("y").buffer
    later = program.instrs[program.instrs.index(move) :]
    return _users(program, y) == [move] and not any(writer in later for writer in _writers(program, x))


def _require_unwritten(program: Program, buffer: Buffer) -> None:
    if _writers(program, buffer):
        raise VerificationError("the caller's inputs must stay as they are", f"%{buffer.name}", "report this as a bug")


def _users(program: Program, buffer: Buffer) -> list[Instr]:
    return [i for i in program.instrs if any(o.buffer is buffer for o in i.operands)]


def _writers(program: Program, buffer: Buffer) -> list[Instr]:
    return [i for i in program.instrs if any(o.buffer is buffer and o.access is not Access.IN for o in i.operands)]


def _outer(program: Program) -> list[Instr]:
    """Return the instructions outside of blocks."""
    inside = {index for start, end in program.blocks() for index in range(start, end + 1)}
    return [instr for index, instr in enumerate(program.instrs) if index not in inside]


def _moves_all(instr: Instr) -> bool:
    """Return whether an instruction copies a whole buffer to another of equal type and size."""
    if instr.kernel != MOVE or instr.control is not Control.NONE or not instr.has_fixed_parts:
        return False
    x, y = instr.operand("x").buffer, instr.operand("y").buffer
    return x.dtype is y.dtype and x.nbytes == y.nbytes == instr.part("x")[1] and instr.distance == 0


def _join(program: Program, move: Instr, gone: Buffer, kept: Buffer) -> None:
    """Remove a move and replace one of its buffers by the other."""
    program.instrs.remove(move)
    for instr in program.instrs:
        instr.operands = tuple(replace(o, buffer=kept) if o.buffer is gone else o for o in instr.operands)
