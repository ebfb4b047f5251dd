# SPDX-License-Identifier: Apache-2.0
"""Checks a memory plan by replaying the program over a map of the arena: a second, dumber program than the planner."""

from __future__ import annotations

from typing import cast

import numpy as np

from mcugen.errors import VerificationError
from mcugen.lir.program import ALIGNMENT, MOVE, Access, Buffer, Control, Instr, Operand, Program


def verify_plan(program: Program) -> None:
    """Raises VerificationError if an instruction would read bytes that another buffer has overwritten."""
    owner = np.full((len(program.area_sizes), max(program.area_sizes)), _NOBODY, np.int32)
    number = {b: i for i, b in enumerate(program.buffers)}
    for buffer in filter(lambda b: b.planned, program.buffers):
        _check_address(program, buffer)
    for endpoint in program.inputs:
        if endpoint.buffer.planned:
            owner[_span(endpoint.buffer)] = number[endpoint.buffer]
    _replay(program.instrs, 0, owner, number)
    for endpoint in program.outputs:
        if endpoint.buffer.planned and (owner[_span(endpoint.buffer)] != number[endpoint.buffer]).any():
            _fail(endpoint.buffer, "an output is overwritten before the end")


def _replay(instrs: list[Instr], at: int, owner: np.ndarray, number: dict[Buffer, int]) -> int:
    """Replays from instruction `at` to the marker that ends its block, whose number it returns.

    Steps of a loop run twice, both branches from the same start; afterwards a byte belongs to a buffer if it does on
    every way.
    """
    while at < len(instrs) and instrs[at].control not in (Control.ELSE, Control.END):
        instr = instrs[at]
        _check_instr(instr, owner, number)
        if instr.control is Control.NONE:
            at += 1
            continue
        before = owner.copy()
        if instr.control is Control.IF:
            at = _replay(instrs, at + 1, owner, number)
            if instrs[at].control is Control.ELSE:
                before, owner[:] = owner.copy(), before
                at = _replay(instrs, at + 1, owner, number)
            owner[owner != before] = _NOBODY
        elif instr.control is Control.FOR:
            for _ in range(2):
                end = _replay(instrs, at + 1, owner, number)
                _check_instr(instrs[end], owner, number)
            if any(o.role == "cond" for o in instr.operands):  # perhaps there is no step at all
                owner[owner != before] = _NOBODY
            at = end
        elif instr.control is Control.STREAM:
            at = _replay_events(instrs, at, owner, number)
        at += 1
    return at


def _replay_events(instrs: list[Instr], at: int, owner: np.ndarray, number: dict[Buffer, int]) -> int:
    """Replays a stream, event by event; the marker that ends it.

    Which of the bytes of an input that the output may lie over are still to be read is the stream's own business:
    within it they belong to both.
    """
    instr = instrs[at]
    both = {instr.operand(o.into).buffer: instr.operand(o.out).buffer for o in instr.overlaps}
    jointly = {buffer: number[both.get(buffer, buffer)] for buffer in number}
    for source, target in both.items():
        owner[owner == number[source]] = number[target]
    cases = []
    at += 1
    while instrs[at].control is Control.CASE:
        cases.append(at + 1)
        at = _end_of(instrs, at) + 1
    for event in cast("list[int]", instr.code["events"]):
        _replay(instrs, cases[event], owner, jointly)
    return at


def _end_of(instrs: list[Instr], at: int) -> int:
    """The marker that ends the block which begins at `at`."""
    depth = 1
    while depth:
        at += 1
        depth += (instrs[at].control not in (Control.NONE, Control.ELSE, Control.END)) - (
            instrs[at].control is Control.END
        )
    return at


_NOBODY = -1
"""The owner of what holds nothing of interest."""


def _check_instr(instr: Instr, owner: np.ndarray, number: dict[Buffer, int]) -> None:
    operands = [o for o in instr.operands if o.buffer.planned]
    is_move = instr.kernel == MOVE
    for operand in operands:
        reads = operand.role == "x" if is_move else operand.access.reads
        if reads and (owner[_used(instr, operand)] != number[operand.buffer]).any():
            _fail(operand.buffer, f"{instr.name}: read after another buffer took its place")
    allowed = {(instr.operand(o).buffer, instr.operand(i).buffer) for o, i in instr.inplace}
    written = [o for o in operands if o.access is not Access.IN]
    for buffer in (o.buffer for o in written):
        for other in operands:
            if other.buffer is not buffer and _collide(buffer, other.buffer) and not instr.moves_nothing:
                same_start = buffer.offset == other.buffer.offset and buffer.nbytes <= other.buffer.nbytes
                if (buffer, other.buffer) not in allowed or not same_start:
                    _fail(buffer, f"{instr.name}: overlaps operand %{other.buffer.name}")
    for operand in written:
        owner[_used(instr, operand)] = number[operand.buffer]


def _used(instr: Instr, operand: Operand) -> tuple[int, slice]:
    """The bytes of the arena that an instruction reads or writes of an operand: of a move, the part."""
    if instr.kernel != MOVE:
        return _span(operand.buffer)
    assert operand.buffer.offset is not None
    start = operand.buffer.offset + int(instr.params.get(f"{operand.role}_at", 0))
    return operand.buffer.area, slice(start, start + int(instr.params["nbytes"]))


def _span(buffer: Buffer) -> tuple[int, slice]:
    """Its part of the map."""
    assert buffer.offset is not None
    return buffer.area, slice(buffer.offset, buffer.offset + buffer.nbytes)


def _collide(a: Buffer, b: Buffer) -> bool:
    assert a.offset is not None and b.offset is not None
    return a.area == b.area and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def _check_address(program: Program, buffer: Buffer) -> None:
    size = program.area_sizes[buffer.area]
    if buffer.offset is None or buffer.offset < 0 or buffer.offset + buffer.nbytes > size:
        _fail(buffer, "lies outside the arena")
    if buffer.offset is not None and buffer.offset % ALIGNMENT:
        _fail(buffer, "is not aligned")


def _fail(buffer: Buffer, reason: str) -> None:
    raise VerificationError("the memory plan must keep live data", f"%{buffer.name}: {reason}", "report this as a bug")
