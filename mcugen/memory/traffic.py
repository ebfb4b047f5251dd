# SPDX-License-Identifier: Apache-2.0
"""How many bytes of each buffer one inference reads and writes: an estimate, made from the program alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mcugen.lir.program import Access, Buffer, Control, Instr, Operand, Program, Space


def traffic(program: Program) -> dict[Buffer, int]:
    """Bytes read and written, by buffer. Loops count with all their steps, branches as if both were taken."""
    found = dict.fromkeys(program.buffers, 0)
    steps, events = [1], Counter[int]()
    for instr in program.instrs:
        if instr.control is Control.END:
            steps.pop()
        for operand, nbytes in () if instr.moves_nothing else _accesses(instr):
            found[operand.buffer] += steps[-1] * nbytes
        if instr.control is Control.STREAM:
            events = Counter(instr.events)
        if instr.control not in (Control.NONE, Control.ELSE, Control.END):
            steps.append(steps[-1] * _repetitions(instr, events))
    return found


def _repetitions(instr: Instr, events: Counter[int]) -> int:
    """How often the block runs that a marker begins; `events` of the stream around it, by their cases."""
    if instr.case is not None:
        return events[instr.case]
    return int(instr.params.get("steps", 1))


def passes_of(instr: Instr) -> int:
    """How often a layer goes through its constants if each multiply-accumulate reads a weight; 0 without weights."""
    constants = [o.buffer.count for o in instr.operands if o.buffer.space is Space.CONST]
    return instr.macs // max([1, *constants]) if instr.control is Control.NONE else 0


def _accesses(instr: Instr) -> Iterator[tuple[Operand, int]]:
    """What an instruction reads and writes.

    Each multiply-accumulate reads a weight and an input, or what was prepared of it in scratch memory. Constants of a
    layer (weights, biases, factors) are gone through equally often; other tables are read once for each result.
    """
    constants = [o for o in instr.operands if o.buffer.space is Space.CONST]
    others = [o for o in instr.operands if o.buffer.space is not Space.CONST]
    results = max((o.buffer.count for o in others if o.access is not Access.IN), default=0)
    macs = instr.macs if instr.control is Control.NONE else 0
    passes = passes_of(instr)
    for operand in constants:
        buffer = operand.buffer
        yield operand, max(buffer.nbytes * passes, buffer.nbytes, 0 if macs else results * buffer.dtype.nbytes)
    scratch = [o for o in others if o.access is Access.SCRATCH]
    factors = scratch or [o for o in others if o.access is Access.IN]
    whole = sum(o.buffer.count for o in factors)
    for operand in others:
        buffer = operand.buffer
        factor = macs * buffer.nbytes // max(whole, 1) if operand in factors else 0
        twice = operand.access in (Access.INOUT, Access.SCRATCH)
        yield operand, buffer.nbytes * (1 + twice) + factor
