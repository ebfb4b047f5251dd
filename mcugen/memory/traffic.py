# SPDX-License-Identifier: Apache-2.0
"""Bytes of each buffer that one inference reads and writes, estimated from the program alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mcugen.lir.program import MOVE, Access, Buffer, Control, Instr, Operand, Program, Space


def traffic(program: Program) -> dict[Buffer, int]:
    """Return the bytes that one inference reads and writes in each buffer.

    Loops count with all their steps, and conditions with both branches.
    """
    nbytes_by_buffer = dict.fromkeys(program.buffers, 0)
    for instr, times in runs_of(program):
        for operand, nbytes in accesses(instr):
            nbytes_by_buffer[operand.buffer] += times * nbytes
    return nbytes_by_buffer


def runs_of(program: Program) -> Iterator[tuple[Instr, int]]:
    """Yield each instruction that may generate code, in order, with the number of its runs in one inference.

    Moves whose source and target have the same address generate none.
    """
    steps, events = [1], Counter[int]()
    for instr in program.instrs:
        if instr.control is Control.END:
            steps.pop()
        if not instr.moves_nothing:
            yield instr, steps[-1]
        if instr.control is Control.STREAM:
            events = Counter(instr.events)
        if instr.control not in (Control.NONE, Control.ELSE, Control.END):
            steps.append(steps[-1] * _repetitions(instr, events))


def _repetitions(instr: Instr, events: Counter[int]) -> int:
    """Return how often the block of a marker runs; `events` counts the events of the surrounding stream by case."""
    if instr.case is not None:
        return events[instr.case]
    return int(instr.params.get("steps", 1))


def passes_of(instr: Instr) -> int:
    """Return how often one run of an instruction uses each of its weights: multiply-accumulates / number of weights.

    Such a use of all constants is a pass. Each multiply-accumulate is assumed to use one weight. The result is 0 for an
    instruction without multiply-accumulates.
    """
    constants = [o.buffer.count for o in instr.operands if o.buffer.space is Space.CONST]
    return instr.macs // max([1, *constants]) if instr.control is Control.NONE else 0


DEFAULT_LOADS_PER_WORD = 0.25
"""Load instructions per word of constants in one pass, for layers whose kernel does not state it (Kernel.loads).

It is below 1 because a loaded word serves several results. The value also applies to words of prepared (im2col) input,
which have two or four elements.
"""


def loads_in_pass(instr: Instr) -> float:
    """Return how often each word of a layer's constants is loaded in one pass, which is one use of each constant.

    The result is a fraction below 1 if a loaded word serves several results (Kernel.loads).
    """
    return DEFAULT_LOADS_PER_WORD if instr.declaration is None else instr.declaration.loads


def sweeps_in_pass(instr: Instr) -> float:
    """Return how often a layer reads all its constants from beginning to end in one pass (one use of each constant).

    Loads count as a cache sees them: a word that is loaded again soon after its last load counts once, because it is
    still in the cache.
    """
    sweeps = 1.0 if instr.declaration is None else instr.declaration.sweeps
    return min(loads_in_pass(instr), sweeps)


def touched_bytes(instr: Instr, operand: Operand) -> int:
    """Return the number of distinct bytes of an operand that one run of an instruction reads or writes."""
    whole = operand.buffer.nbytes
    if instr.kernel == MOVE:
        return min(instr.part(operand.role)[1], whole)
    takes_rows = {"rows", "bytes"} <= instr.params.keys() and any(o.role == "next" for o in instr.operands)
    return min(int(instr.params["rows"]) * int(instr.params["bytes"]), whole) if takes_rows else whole


def accesses(instr: Instr) -> Iterator[tuple[Operand, int]]:
    """Yield each operand of an instruction with the bytes that one run of the instruction reads and writes there.

    Each multiply-accumulate reads a weight and an input, or the prepared input in scratch memory. All constants of a
    layer (weights, biases, factors) are read equally often; other tables are read once for each result.
    """
    constants = [o for o in instr.operands if o.buffer.space is Space.CONST]
    data_operands = [o for o in instr.operands if o.buffer.space is not Space.CONST]
    results = max((o.buffer.count for o in data_operands if o.access is not Access.IN), default=0)
    macs = instr.macs if instr.control is Control.NONE else 0
    passes = passes_of(instr)
    for operand in constants:
        buffer = operand.buffer
        yield operand, max(buffer.nbytes * passes, buffer.nbytes, 0 if macs else results * buffer.dtype.nbytes)
    scratch = [o for o in data_operands if o.access is Access.SCRATCH]
    factors = scratch or [o for o in data_operands if o.access is Access.IN]
    whole = sum(o.buffer.count for o in factors)
    for operand in data_operands:
        buffer = operand.buffer
        factor = macs * buffer.nbytes // max(whole, 1) if operand in factors else 0
        twice = operand.access in (Access.INOUT, Access.SCRATCH)
        yield operand, touched_bytes(instr, operand) * (1 + twice) + factor
