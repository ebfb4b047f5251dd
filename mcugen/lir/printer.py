# SPDX-License-Identifier: Apache-2.0
"""Text form of the low-level IR: buffers with addresses and life spans, instructions with access marks."""

from __future__ import annotations

from mcugen.hir.printer import quoted
from mcugen.lir.program import Buffer, Control, Instr, Program


def print_program(program: Program) -> str:
    """The whole program; stable, made to be read and compared."""
    ranges = program.live_ranges()
    lines = [
        f"program {program.name} {{",
        f"  arena {_arena(program)} bytes, weights {program.weights_size} bytes",
    ]
    lines += [_print_buffer(b, ranges.get(b)) for b in program.buffers]
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
    operands = ", ".join(f"@{o.access.value} {o.role}=%{quoted(o.buffer.name)}" for o in instr.operands)
    told = [*instr.params.items(), *instr.code.items()]
    told += [("case", instr.case)] * (instr.case is not None) + [("events", list(instr.events))] * bool(instr.events)
    if instr.control in (Control.ELSE, Control.END) and not operands:
        return instr.kernel
    return " ".join(filter(None, (instr.kernel, operands, f"{{{', '.join(f'{key}={value}' for key, value in told)}}}")))
