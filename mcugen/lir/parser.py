# SPDX-License-Identifier: Apache-2.0
"""A parser of the text form of the low-level IR (mcugen.lir.printer), for tests of ordering and planning.

Data that the text leaves out gets default values: constants are zeros, inputs and outputs have one axis, parameters are
ints and floats, and template options are strings. Live ranges are computed, not read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.hir.types import DType
from mcugen.lir.program import Access, Buffer, Control, Endpoint, Instr, Lanes, Operand, Overlap, Param, Program, Space

_NAME = r'(?:"(?:[^"\\]|\\.)*"|[\w./]+)'
_LANES = r"\[\d+\+\d+/\d+\]"
_BUFFER = re.compile(
    rf"(?P<space>\w+) %(?P<name>{_NAME}) : (?P<dtype>\w+)\[(?P<count>\d+)\]"
    r"(?: at (?P<offset>\d+)(?: of area (?P<area>\d+))?)?(?: live -?\d+\.\.-?\d+)?"
)
_INSTR = re.compile(rf"\d+: +(?P<kernel>\w+)(?P<operands>(?:,? @\w+ \w+=%{_NAME}(?:{_LANES})?)*)(?: (?P<rest>\{{.*))?")
_RETURNS = re.compile(rf"returns %({_NAME})")
_OPERAND = re.compile(rf"@(\w+) (\w+)=%({_NAME})({_LANES})?")
_FREEDOM = re.compile(r"(over|inplace|group) (\d+|\w+/\w+)(?: (-?\d+))?")
_CONTROLS = {control.value: control for control in Control if control.value}


def parse_program(text: str) -> Program:
    """Return the program that a text in the format of `print_program` describes.

    Raises:
        UsageError: The text is not well formed; the message names the line.
    """
    return _Reader(text).program()


@dataclass
class _Reader:
    text: str
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def program(self) -> Program:
        """Parse the text line by line and return the program."""
        lines = [(number, line.strip()) for number, line in enumerate(self.text.splitlines(), 1) if line.strip()]
        head = re.fullmatch(r"program (\S+) \{", lines[0][1]) if lines else None
        if head is None or lines[-1][1] != "}":
            self._fail(1, self.text[:40], "'program NAME {' and, at the end, '}'")
        program = Program(head[1])
        for number, line in lines[1:-1]:
            if arena := re.match(r"arena (\d+)(?: \(at least (\d+)\))? bytes, weights \d+ bytes$", line):
                program.area_sizes, program.area_bounds = [int(arena[1])], [int(arena[2] or arena[1])]
            elif match := _INSTR.fullmatch(line):
                program.instrs.append(self._instr(number, match))
            elif match := _BUFFER.fullmatch(line):
                self._add(program, match)
            elif (match := _RETURNS.fullmatch(line)) and _name(match[1]) in self.buffers:
                program.outputs.append(_endpoint(self.buffers[_name(match[1])]))
            else:
                self._fail(number, line, "a buffer or an instruction")
        return program

    def _add(self, program: Program, match: re.Match[str]) -> None:
        name, dtype, count = _name(match["name"]), DType(match["dtype"]), int(match["count"])
        space = Space(match["space"])
        data = np.zeros(count, dtype.numpy) if space is Space.CONST else None
        offset = None if match["offset"] is None else int(match["offset"])
        buffer = Buffer(name, dtype, count, space, data, offset, int(match["area"] or 0))
        self.buffers[name] = buffer
        program.buffers.append(buffer)
        if space in (Space.INPUT, Space.STREAM, Space.GIVEN):
            program.inputs.append(_endpoint(buffer))
        elif space in (Space.OUTPUT, Space.TAKEN):
            program.outputs.append(_endpoint(buffer))
        elif space is Space.STATE:
            program.states.append(_endpoint(buffer))

    def _instr(self, number: int, match: re.Match[str]) -> Instr:
        operands = []
        for access, role, name, part in _OPERAND.findall(match["operands"]):
            if _name(name) not in self.buffers:
                self._fail(number, f"%{name}", "operands that are buffers above")
            operands.append(Operand(role, Access(access), self.buffers[_name(name)], _lanes(part)))
        inside, freedoms = _braces(match["rest"] or "{}")
        members, _, options = inside.partition(" | ") if " | " in inside else (inside.removeprefix("| "), "", "")
        params = dict(map(_pair, _parts(members)))
        case, events = params.pop("case", None), params.pop("events", "")
        instr = Instr(
            kernel=match["kernel"],
            name=next((o.buffer.name for o in operands if o.access is not Access.IN), match["kernel"]),
            operands=tuple(operands),
            params={key: _number(value) for key, value in params.items()},
            code=dict(map(_pair, _parts(options))),
            control=_CONTROLS.get(match["kernel"], Control.NONE),
            case=None if case is None else int(case),
            events=tuple(json.loads(events)) if events else (),
        )
        return self._with_freedoms(instr, freedoms)

    @staticmethod
    def _with_freedoms(instr: Instr, text: str) -> Instr:
        inplace = []
        for kind, what, lead in _FREEDOM.findall(text):
            out, _, into = what.partition("/")
            if kind == "group":
                instr.group = int(what)
            elif kind == "over":
                instr.overlaps = (*instr.overlaps, Overlap(out, into, int(lead)))
            if kind == "inplace" or (kind == "over" and int(lead) <= 0):
                inplace.append((out, into))
        instr.inplace = tuple(inplace)
        return instr

    def _fail(self, number: int, text: str, expected: str) -> NoReturn:
        rule = f"line {number} of a program's text must have {expected}"
        raise UsageError(rule, f"'{text[:60]}'", "see mcugen.lir.printer")


def _endpoint(buffer: Buffer) -> Endpoint:
    return Endpoint(buffer.name, (buffer.count,), buffer.dtype, None, buffer)


def _name(text: str) -> str:
    name: str = json.loads(text) if text.startswith('"') else text
    return name


def _lanes(text: str) -> Lanes | None:
    return Lanes(*map(int, re.findall(r"\d+", text))) if text else None


def _number(text: str) -> Param:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _pair(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    return key, value


def _braces(text: str) -> tuple[str, str]:
    """Return the text in the first pair of braces, and the text that follows."""
    depth = 0
    for at, letter in _letters(text):
        depth += (letter == "{") - (letter == "}")
        if not depth:
            return text[1:at], text[at + 1 :]
    return text[1:], ""


def _parts(text: str) -> list[str]:
    """Return the parts of a text between commas outside of brackets."""
    parts, start, depth = [], 0, 0
    for at, letter in _letters(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [part for part in (*parts, text[start:].strip()) if part]


def _letters(text: str) -> list[tuple[int, str]]:
    """Return the letters outside of quotes, with their positions."""
    quoted = [m.span() for m in re.finditer(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", text)]
    hidden = {at for first, end in quoted for at in range(first, end)}
    return [(at, letter) for at, letter in enumerate(text) if at not in hidden]
