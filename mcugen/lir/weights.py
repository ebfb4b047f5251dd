# SPDX-License-Identifier: Apache-2.0
"""Copying, reading or decompressing of weights to the arena before their layer.

Weights outside the address space are read by a callback of the caller. Other weights are copied if the arena is faster
than their memory, possibly while another layer runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mcugen.core.errors import UsageError
from mcugen.hir.names import Names
from mcugen.lir.kernel import Call, Kernel, reads, updates, writes
from mcugen.lir.program import (
    BEGIN_WEIGHTS,
    END_WEIGHTS,
    READ_WEIGHTS,
    STAGE_WEIGHTS,
    Access,
    Buffer,
    Control,
    Instr,
    Operand,
    Program,
    Space,
)

READ_WEIGHTS_KERNEL = Kernel(
    READ_WEIGHTS,
    what="constants of a layer, read by the caller",
    operands=(reads("x", "what the file has"), writes("y", "the same in the arena")),
)
"""Kernel that calls back the caller to read constants (READ_WEIGHTS)."""


STAGE_WEIGHTS_KERNEL = Kernel(
    STAGE_WEIGHTS,
    what="constants of a layer, copied to where they are read faster",
    operands=(reads("x", "where they lie"), writes("y", "the same in the arena")),
)
"""Kernel that copies constants to faster memory (STAGE_WEIGHTS)."""


BEGIN_WEIGHTS_KERNEL = Kernel(
    BEGIN_WEIGHTS,
    what="constants of a later layer, whose copy begins",
    operands=(reads("x", "where they lie"), writes("y", "the same in the arena, when the copy is done")),
)
"""Kernel that begins a DMA copy of constants (BEGIN_WEIGHTS)."""

END_WEIGHTS_KERNEL = Kernel(
    END_WEIGHTS, what="constants of a layer, whose copy is waited for", operands=(updates("y", "they, in the arena"),)
)
"""Kernel that waits for a DMA copy of constants (END_WEIGHTS)."""


@dataclass(frozen=True)
class StagedConstant:
    """A constant that is copied to the arena before the layer that reads it runs.

    Attributes:
        constant: The constant.
        beside: Index of the instruction before which a DMA copy begins, which runs while other layers compute. It is
            the first instruction of a block or an instruction outside of blocks (Program.wholes). None means that the
            CPU copies the constant just before the instruction that reads it.
    """

    constant: Buffer
    beside: int | None = None


def with_staged_weights(program: Program, staged: Mapping[int, Sequence[StagedConstant]]) -> Program:
    """Return a copy of a program that copies constants from slow memory to the arena before they are read.

    Both programs share buffers but no instructions, so that only the program whose memory was planned last can be run.

    Args:
        program: The program.
        staged: The constants to copy, by the index of the instruction that reads them, or of the first instruction of
            the outermost block that does (Program.wholes). The copies are live until that instruction or block ends.
    """
    staged_program = replace(program, buffers=list(program.buffers), instrs=[], area_sizes=[0], area_bounds=[0])
    groups = _last_group(program)
    copies = {
        start: [
            (staged_constant, _held(staged_program, staged_constant.constant)) for staged_constant in _in_order(kept)
        ]
        for start, kept in staged.items()
    }
    for whole in program.wholes():
        instrs, own = [program.instrs[index] for index in whole], copies.get(whole.start, [])
        begun = [
            (staged_constant, to)
            for kept in copies.values()
            for staged_constant, to in kept
            if staged_constant.beside == whole.start
        ]
        if (own or begun) and not instrs[0].group:
            groups += 1
            instrs = [replace(i, group=groups) for i in instrs]
        staged_program.instrs += [
            _ending(instrs[0], to) for staged_constant, to in own if staged_constant.beside is not None
        ]
        staged_program.instrs += [
            _staging(instrs[0], staged_constant.constant, to)
            for staged_constant, to in own
            if staged_constant.beside is None
        ]
        staged_program.instrs += [_beginning(instrs[0], staged_constant.constant, to) for staged_constant, to in begun]
        held = {staged_constant.constant: to for staged_constant, to in own}
        staged_program.instrs += [replace(i, operands=_with_held(i, held)) for i in instrs]
    return staged_program


def _in_order(copies: Sequence[StagedConstant]) -> list[StagedConstant]:
    """Return copies that begin together, longest last: a controller with one copy at a time finishes with it."""
    return sorted(copies, key=lambda each: 0 if each.beside is None else each.constant.nbytes)


@dataclass(frozen=True)
class CompressedForm:
    """The compressed form of a constant, and how to decompress it.

    Attributes:
        stored: The constants that hold the compressed data.
        call: Function that returns the kernel call that decompresses the data to a given buffer.
    """

    stored: Sequence[Buffer]
    call: Callable[[Buffer], Call]

    def saved_bytes(self, constant: Buffer) -> int:
        """Return the bytes of flash that the compressed form saves, compared with the plain `constant`."""
        return constant.nbytes - sum(buffer.nbytes for buffer in self.stored)


def with_decoded_weights(program: Program, decoded: Mapping[Buffer, CompressedForm]) -> Program:
    """Return a copy of a program that decompresses constants to the arena just before the instruction that reads them.

    Both programs share buffers but no instructions, so that only the program whose memory was planned last can be run.

    Args:
        program: The program.
        decoded: The constants to decompress, each with its compressed form. No instruction in a block may read them,
            and none may be a model output.
    """
    kept = [buffer for buffer in program.buffers if buffer not in decoded]
    stored = [buffer for decoding in decoded.values() for buffer in decoding.stored]
    decoded_program = replace(program, buffers=[*kept, *stored], instrs=[], area_sizes=[0], area_bounds=[0])
    groups = _last_group(program)
    for instr in program.instrs:
        held = {b: _held(decoded_program, b) for b in dict.fromkeys(o.buffer for o in instr.operands) if b in decoded}
        if held and not instr.group:
            groups += 1
            instr = replace(instr, group=groups)
        calls = [decoded[b].call(to) for b, to in held.items()]
        decoded_program.buffers += [
            o.buffer for call in calls for o in call.operand_list() if o.access is Access.SCRATCH
        ]
        decoded_program.instrs += [_calling(call, instr) for call in calls]
        decoded_program.instrs.append(replace(instr, operands=_with_held(instr, held)))
    return decoded_program


def with_read_weights(program: Program) -> None:
    """Make each layer read its constants by a callback of the user's, to buffers that are live during the layer.

    The program is changed in place. Outputs that are constants stay in the code.

    Raises:
        UsageError: The program has blocks, such as loops, whose constants would be read again in each iteration.
    """
    if any(instr.control is not Control.NONE for instr in program.instrs):
        rule = "weights must be read once a layer: no layer may be in a loop, a branch or a group of rows"
        raise UsageError(rule, "such blocks", "leave out --weights-reader")
    outputs = {endpoint.buffer for endpoint in program.outputs}
    groups = _last_group(program)
    instrs: list[Instr] = []
    for instr in program.instrs:
        constants = dict.fromkeys(o.buffer for o in instr.operands if is_read(o.buffer) and o.buffer not in outputs)
        if constants and not instr.group:
            groups += 1
            instr.group = groups
        held = {buffer: _held(program, buffer) for buffer in constants}
        instrs += [_reading(instr, buffer, held[buffer]) for buffer in constants]
        instr.operands = _with_held(instr, held)
        instrs.append(instr)
    program.instrs = instrs


def max_read_bytes(program: Program) -> int:
    """Return the largest number of bytes of weights that one layer reads from a file by the user's callback."""
    layers = [[program.instrs[i] for i in layer] for layer in program.layers()]
    return max((sum(i.operand("y").buffer.nbytes for i in x if i.kernel == READ_WEIGHTS) for x in layers), default=0)


def is_read(buffer: Buffer) -> bool:
    """Return whether a buffer is a constant that can be stored in a file of weights instead of the C code.

    At run time, layers then read the constant from the file by a callback of the user's. The constant must have
    elements.
    """
    return buffer.space is Space.CONST and buffer.data is not None and buffer.count > 0


def _last_group(program: Program) -> int:
    """Return the highest number of a group; 0 if there is none."""
    return max((instr.group for instr in program.instrs), default=0)


def _held(program: Program, constant: Buffer) -> Buffer:
    """Add a buffer that a constant is copied to; a constant that several layers read has several."""
    name = Names(buffer.name for buffer in program.buffers).take(f"{constant.name}.held")
    held = Buffer(name, constant.dtype, constant.count, Space.ARENA)
    program.buffers.append(held)
    return held


def _with_held(instr: Instr, held: Mapping[Buffer, Buffer]) -> tuple[Operand, ...]:
    return tuple(replace(o, buffer=held.get(o.buffer, o.buffer)) for o in instr.operands)


def _reading(layer: Instr, constant: Buffer, held: Buffer) -> Instr:
    return _bringing(READ_WEIGHTS_KERNEL, layer, constant, held)


def _staging(layer: Instr, constant: Buffer, held: Buffer) -> Instr:
    staging = _bringing(STAGE_WEIGHTS_KERNEL, layer, constant, held)
    return replace(staging, note="weights to where they are read faster")


def _beginning(layer: Instr, constant: Buffer, held: Buffer) -> Instr:
    beginning = _bringing(BEGIN_WEIGHTS_KERNEL, layer, constant, held)
    return replace(beginning, note="weights of a later layer, while this one runs")


def _ending(layer: Instr, held: Buffer) -> Instr:
    ending = _bringing(END_WEIGHTS_KERNEL, layer, held, held)
    return replace(ending, operands=(Operand("y", Access.INOUT, held),))


def _bringing(kernel: Kernel, layer: Instr, constant: Buffer, held: Buffer) -> Instr:
    operands = (Operand("x", Access.IN, constant), Operand("y", Access.OUT, held))
    layer_fields = {"op": layer.op, "origin": layer.origin, "group": layer.group}
    return Instr(kernel.name, layer.name, operands, declaration=kernel, **layer_fields)  # type: ignore[arg-type]


def _calling(call: Call, layer: Instr) -> Instr:
    """Return an instruction before a layer, of which it becomes a part."""
    kernel, layer_fields = call.kernel, {"op": layer.op, "origin": layer.origin, "group": layer.group}
    return Instr(
        kernel.name,
        layer.name,
        call.operand_list(),
        call.scalars(),
        code=call.template_options(),
        variant=call.variant,
        declaration=kernel,
        **layer_fields,  # type: ignore[arg-type]
    )
