# SPDX-License-Identifier: Apache-2.0
"""Builders of programs without operators, and a check of the plan verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from mcugen.core.errors import VerificationError
from mcugen.hir.types import DType
from mcugen.lir.program import MOVE, Access, Buffer, Control, Endpoint, Instr, Operand, Overlap, Param, Program, Space
from mcugen.memory.verify_plan import verify_plan


class Sketch:
    """A builder of a program on byte buffers: `step("c", "a", "b")` appends the computation of c from a and b."""

    def __init__(self) -> None:
        self.program = Program("sketch")
        self.buffers: dict[str, Buffer] = {}

    def buffer(self, name: str, count: int = 16, space: Space = Space.ARENA, dtype: DType = DType.INT8) -> Buffer:
        """Add a buffer of `count` elements to the program and return it."""
        self.buffers[name] = Buffer(name, dtype, count, space)
        self.program.buffers.append(self.buffers[name])
        return self.buffers[name]

    def input(self, name: str, nbytes: int = 16) -> None:
        """Add an input of the program."""
        self.program.inputs.append(_endpoint(self.buffer(name, nbytes, Space.INPUT)))

    def output(self, name: str) -> None:
        """Make a buffer an output of the program."""
        self.program.outputs.append(_endpoint(self.buffers[name]))

    def step(
        self,
        target: str,
        *sources: str,
        nbytes: int = 16,
        inplace: bool | Sequence[int] = False,
        scratch: int = 0,
        access: Access = Access.OUT,
        lead: int | None = None,
    ) -> Instr:
        """Append an instruction.

        Args:
            target: Buffer of the result, which is created if it does not exist.
            sources: Buffers that the instruction reads.
            nbytes: Bytes of a new buffer.
            inplace: Indices of the sources whose memory the result may take; True: of all.
            scratch: Bytes of scratch memory.
            access: Access to the result.
            lead: Distance at which the result may overlap the first source.
        """
        if target not in self.buffers:
            self.buffer(target, nbytes)
        operands = [Operand(f"x{i}", Access.IN, self.buffers[name]) for i, name in enumerate(sources)]
        operands.append(Operand("y", access, self.buffers[target]))
        if scratch:
            operands.append(Operand("s", Access.SCRATCH, self.buffer(f"{target}.scratch", scratch)))
        allowed = range(len(sources)) if inplace is True else inplace or ()
        overlaps = () if lead is None else (Overlap("y", "x0", lead),)
        pairs = tuple(("y", f"x{i}") for i in allowed)
        instr = Instr("kernel", target, tuple(operands), inplace=pairs, overlaps=overlaps)
        self.program.instrs.append(instr)
        return instr

    def part(self, source: str, target: str, x_at: int = 0, y_at: int = 0, nbytes: int | None = None) -> Instr:
        """Append a move of `nbytes` bytes (None: as many as fit) to a buffer that exists."""
        x, y = self.buffers[source], self.buffers[target]
        params = {"nbytes": nbytes or min(x.nbytes - x_at, y.nbytes - y_at), "x_at": x_at, "y_at": y_at}
        used = any(o.buffer is y for i in self.program.instrs for o in i.operands)
        operands = (Operand("x", Access.IN, x), Operand("y", Access.INOUT if used else Access.OUT, y))
        self.program.instrs.append(Instr(MOVE, target, operands, params))
        return self.program.instrs[-1]

    def emit(
        self,
        kernel: str,
        *operands: tuple[str, Access, str],
        code: Mapping[str, object] | None = None,
        overlaps: tuple[Overlap, ...] = (),
        events: Sequence[int] = (),
        case: int | None = None,
        **params: Param,
    ) -> Instr:
        """Append an instruction, named after its last operand, or a marker."""
        control = Control(kernel) if kernel in {c.value for c in Control} else Control.NONE
        found = tuple(Operand(role, access, self.buffers[name]) for role, access, name in operands)
        name = operands[-1][2] if operands else kernel
        block = {"control": control, "events": tuple(events), "case": case}
        instr = Instr(kernel, name, found, params, code=code or {}, overlaps=overlaps, group=1, **block)
        self.program.instrs.append(instr)
        return instr

    def offsets(self) -> dict[str, int | None]:
        """Return the address of each buffer in the arena by name; None for buffers without one."""
        return {name: buffer.offset for name, buffer in self.buffers.items()}


def _endpoint(buffer: Buffer) -> Endpoint:
    return Endpoint(buffer.name, (buffer.count,), buffer.dtype, None, buffer)


def assert_overwrite_is_found(sketch: Sketch, moved: str, onto: str, message: str) -> None:
    """Check that the verifier reports buffer `moved` at the address of buffer `onto`."""
    sketch.buffers[moved].offset = sketch.buffers[onto].offset
    with pytest.raises(VerificationError, match=message):
        verify_plan(sketch.program)


def chain(*sizes: int, inplace: bool = False) -> Sketch:
    """Return a program x0 → x1 → … with these sizes in bytes; the last buffer is the output."""
    sketch = Sketch()
    sketch.input("x0", sizes[0])
    for index, nbytes in enumerate(sizes[1:], 1):
        sketch.step(f"x{index}", f"x{index - 1}", nbytes=nbytes, inplace=inplace)
    sketch.output(f"x{len(sizes) - 1}")
    return sketch
