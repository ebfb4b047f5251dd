# SPDX-License-Identifier: Apache-2.0
"""Weights that lie where no pointer reaches: read into the arena before each layer, by a function of the caller's."""

from __future__ import annotations

from mcugen.errors import UsageError
from mcugen.lir.kernel import Kernel, reads, writes
from mcugen.lir.program import READ_WEIGHTS, Access, Buffer, Control, Instr, Operand, Program, Space

READ_WEIGHTS_KERNEL = Kernel(
    READ_WEIGHTS,
    what="constants of a layer, read by the caller",
    operands=(reads("x", "what the file has"), writes("y", "the same in the arena")),
)


def with_read_weights(program: Program) -> None:
    """Lets each layer read its constants to buffers of their own, which live no longer than it.

    Outputs that are constants stay in the code. UsageError for a program with blocks, whose parts would be read again
    and again.
    """
    if any(instr.control is not Control.NONE for instr in program.instrs):
        rule = "weights must be read once a layer: no layer may be in a loop, a branch or a group of rows"
        raise UsageError(rule, "such blocks", "leave out --weights-reader")
    outputs = {endpoint.buffer for endpoint in program.outputs}
    groups = max((instr.group for instr in program.instrs), default=0)
    made: list[Instr] = []
    for instr in program.instrs:
        constants = dict.fromkeys(o.buffer for o in instr.operands if _is_read(o.buffer) and o.buffer not in outputs)
        if constants and not instr.group:
            groups += 1
            instr.group = groups
        held = {buffer: _held(program, buffer) for buffer in constants}
        made += [_reading(instr, buffer, held[buffer]) for buffer in constants]
        instr.operands = tuple(Operand(o.role, o.access, held.get(o.buffer, o.buffer)) for o in instr.operands)
        made.append(instr)
    program.instrs = made


def largest_read(program: Program) -> int:
    """The most bytes of weights that one layer reads."""
    layers = [[program.instrs[i] for i in layer] for layer in program.layers()]
    return max((sum(i.operand("y").buffer.nbytes for i in x if i.kernel == READ_WEIGHTS) for x in layers), default=0)


def _is_read(buffer: Buffer) -> bool:
    return buffer.space is Space.CONST and buffer.data is not None and buffer.count > 0


def _held(program: Program, constant: Buffer) -> Buffer:
    held = Buffer(f"{constant.name}.held", constant.dtype, constant.count, Space.ARENA)
    program.buffers.append(held)
    return held


def _reading(layer: Instr, constant: Buffer, held: Buffer) -> Instr:
    operands = (Operand("x", Access.IN, constant), Operand("y", Access.OUT, held))
    told = {"op": layer.op, "origin": layer.origin, "group": layer.group}
    return Instr(READ_WEIGHTS, layer.name, operands, declaration=READ_WEIGHTS_KERNEL, **told)  # type: ignore[arg-type]
