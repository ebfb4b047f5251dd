# SPDX-License-Identifier: Apache-2.0
"""Checks a memory plan by replaying the program over a map of the arena: a second, dumber program than the planner."""

from __future__ import annotations

import numpy as np

from mcugen.errors import VerificationError
from mcugen.lir.program import ALIGNMENT, Access, Buffer, Instr, Program


def verify_plan(program: Program) -> None:
    """Raises VerificationError if an instruction would read bytes that another buffer has overwritten."""
    owner = np.full(max(program.arena_size, 1), -1, np.int64)
    number = {b: i for i, b in enumerate(program.buffers)}
    for buffer in filter(lambda b: b.planned, program.buffers):
        _check_address(program, buffer)
    for endpoint in program.inputs:
        owner[_span(endpoint.buffer)] = number[endpoint.buffer]
    for instr in program.instrs:
        _check_instr(instr, owner, number)
    for endpoint in program.outputs:
        if endpoint.buffer.planned and (owner[_span(endpoint.buffer)] != number[endpoint.buffer]).any():
            _fail(endpoint.buffer, "an output is overwritten before the end")


def _check_instr(instr: Instr, owner: np.ndarray, number: dict[Buffer, int]) -> None:
    operands = [o for o in instr.operands if o.buffer.planned]
    for operand in operands:
        if operand.access.reads and (owner[_span(operand.buffer)] != number[operand.buffer]).any():
            _fail(operand.buffer, f"{instr.name}: read after another buffer took its place")
    allowed = {(instr.operand(o).buffer, instr.operand(i).buffer) for o, i in instr.inplace}
    written = [o.buffer for o in operands if o.access is not Access.IN]
    for buffer in written:
        for other in operands:
            if other.buffer is not buffer and _collide(buffer, other.buffer):
                same_start = buffer.offset == other.buffer.offset and buffer.nbytes <= other.buffer.nbytes
                if (buffer, other.buffer) not in allowed or not same_start:
                    _fail(buffer, f"{instr.name}: overlaps operand %{other.buffer.name}")
    for buffer in written:
        owner[_span(buffer)] = number[buffer]


def _span(buffer: Buffer) -> slice:
    assert buffer.offset is not None
    return slice(buffer.offset, buffer.offset + buffer.nbytes)


def _collide(a: Buffer, b: Buffer) -> bool:
    assert a.offset is not None and b.offset is not None
    return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _check_address(program: Program, buffer: Buffer) -> None:
    if buffer.offset is None or buffer.offset < 0 or buffer.offset + buffer.nbytes > program.arena_size:
        _fail(buffer, "lies outside the arena")
    if buffer.offset is not None and buffer.offset % ALIGNMENT:
        _fail(buffer, "is not aligned")


def _fail(buffer: Buffer, reason: str) -> None:
    raise VerificationError("the memory plan must keep live data", f"%{buffer.name}: {reason}", "report this as a bug")
