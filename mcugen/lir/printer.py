# SPDX-License-Identifier: Apache-2.0
"""Text form of the low-level IR: buffers with addresses and live ranges, instructions with operands."""

from __future__ import annotations

from collections.abc import Iterator

from mcugen.hir.printer import quoted
from mcugen.lir.program import Buffer, Control, Instr, Operand, Program, Space


def print_program(program: Program) -> str:
    """Return the text of a program; equal programs give equal text, so that tests can compare it."""
    ranges = program.live_ranges()
    lines = [f"program {program.name} {{", f"  arena {_arena(program)} bytes, weights {program.weights_size} bytes"]
    lines += [_print_buffer(b, ranges.get(b)) for b in program.buffers]
    lines += [
        f"  returns %{quoted(e.buffer.name)}"
        for e in program.outputs
        if e.buffer.space not in (Space.OUTPUT, Space.TAKEN)
    ]
    depth = 0
    for index, instr in enumerate(program.instrs):
        depth -= instr.control in (Control.ELSE, Control.END)
        lines.append(f"  {index:3}: {'  ' * depth}{_print_instr(instr)}")
        depth += instr.control not in (Control.NONE, Control.END)
    return "\n".join([*lines, "}", ""])


def _arena(program: Program) -> str:
    proven = program.arena_bound >= program.arena_size
    return f"{program.arena_size}" if proven else f"{program.arena_size} (at least {program.arena_bound})"


def _print_buffer(buffer: Buffer, life: tuple[int, int] | None) -> str:
    place = "" if buffer.offset is None else f" at {buffer.offset}" + f" of area {buffer.area}" * (buffer.area > 0)
    span = "" if life is None else f" live {life[0]}..{life[1]}"
    return f"  {buffer.space.value} %{quoted(buffer.name)} : {buffer.dtype.value}[{buffer.count}]{place}{span}"


def _print_instr(instr: Instr) -> str:
    if instr.control in (Control.ELSE, Control.END) and not instr.operands:
        return instr.kernel
    operands = ", ".join(map(_print_operand, instr.operands))
    params: list[tuple[str, object]] = list(instr.params.items())
    params += [("case", instr.case)] * (instr.case is not None) + [("events", list(instr.events))] * bool(instr.events)
    members, options = (", ".join(f"{key}={value}" for key, value in pairs) for pairs in (params, instr.code.items()))
    braces = f"{{{members}{' | ' * bool(options)}{options}}}"
    return " ".join(filter(None, (instr.kernel, operands, braces, *_freedoms(instr))))


def _print_operand(operand: Operand) -> str:
    part = f"[{o.first}+{o.count}/{o.pitch}]" if (o := operand.lanes) else ""
    return f"@{operand.access.value} {operand.role}=%{quoted(operand.buffer.name)}{part}"


def _freedoms(instr: Instr) -> Iterator[str]:
    """Yield how outputs may overlap inputs, and the group that forms one layer."""
    near = {(o.out, o.into) for o in instr.overlaps if o.lead <= 0}
    yield from (f"over {o.out}/{o.into} {o.lead}" for o in instr.overlaps)
    yield from (f"inplace {out}/{into}" for out, into in instr.inplace if (out, into) not in near)
    if instr.group:
        yield f"group {instr.group}"
