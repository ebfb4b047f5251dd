# SPDX-License-Identifier: Apache-2.0
"""A search for arithmetic that overflows a 16-bit int, in the intermediate code of avr-gcc.

gcc has no warning for `int32_t y = a * b` with two int16_t. Its GIMPLE form has one operation a line and a type for
each result, after all promotions. An operation in int or unsigned int whose operands can exceed it is reported. The
possible results follow from the operands' types. Unsigned results that wrap are accepted as long as nothing widens or
compares them: addresses and sizes have 16 bits on AVR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Range = tuple[int, int]
"""The smallest and the largest value of an operand."""

_INT, _UNSIGNED = (-(2**15), 2**15 - 1), (0, 2**16 - 1)
_SIGNED_NAMES = ("int", "int16_t", "short int", "ptrdiff_t")
_UNSIGNED_NAMES = ("unsigned int", "uint16_t", "short unsigned int")
_TYPES: dict[str, Range] = {
    **dict.fromkeys(("int8_t", "signed char", "char"), (-128, 127)),
    **dict.fromkeys(("uint8_t", "unsigned char"), (0, 255)),
    "_Bool": (0, 1),
    **dict.fromkeys(("int32_t", "long int"), (-(2**31), 2**31 - 1)),
    **dict.fromkeys(("uint32_t", "long unsigned int"), (0, 2**32 - 1)),
    **dict.fromkeys(_SIGNED_NAMES, _INT),
    **dict.fromkeys((*_UNSIGNED_NAMES, "size_t", "uintptr_t"), _UNSIGNED),
}

_PLACE = re.compile(r"\[([^][]+):(\d+):\d+\] ?")
_DECLARATION = re.compile(r"\s+(?:static |const |volatile )*([a-z_][\w *]*?)(?: const)? ([\w.]+);")
_PARAMETER = re.compile(r"[(,] ?(?:const |volatile )*([a-z_][\w *]*?)(?: const)? (\w+)(?=[,)])")
_ASSIGNMENT = re.compile(r"([\w.]+) = (.*);")
_OPERATION = re.compile(r"(\S+) ([-+*/%&]|<<|>>) (\S+)")
_CAST = re.compile(r"\(([\w ]+)\) (\S+)")
_WIDENED = r"\((?:const )?(?:long|u?int(?:32|64)_t|float|double)[\w ]*\) {0};|if \({0} "


@dataclass(frozen=True)
class Overflow:
    """An operation whose result needs more than 16 bits."""

    file: str
    line: int
    operation: str


def overflows(dump: Path) -> list[Overflow]:
    """Return the operations that may overflow in a file that gcc wrote by -fdump-tree-gimple-lineno."""
    bodies = re.split(r"\n(?=\S[^\n]*\)\n)", "\n" + dump.read_text())
    return [found for body in bodies for found in _Function(body).overflows()]


@dataclass
class _Function:
    body: str
    types: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    """Of temporaries."""
    remainders: dict[str, str] = field(default_factory=dict)
    """Temporaries that are remainders, by which divisor."""
    addresses: set[str] = field(default_factory=set)
    """Temporaries that are pointers as numbers."""

    def overflows(self) -> Iterator[Overflow]:
        head, _, _ = self.body.partition("\n")
        for kind, name in _PARAMETER.findall(head):
            self.types[name] = kind
        for line in self.body.splitlines():
            declared = _DECLARATION.fullmatch(line)
            if declared:
                self.types[declared[2]] = declared[1]
                continue
            place, assigned = _PLACE.search(line), _ASSIGNMENT.fullmatch(_PLACE.sub("", line).strip())
            if assigned and place and self._overflows(assigned[1], assigned[2]):
                yield Overflow(Path(place[1]).name, int(place[2]), assigned[2])

    def _overflows(self, target: str, text: str) -> bool:
        """Whether the assignment does; notes what the target can be."""
        kind = self.types.get(target, "")
        if kind not in _TYPES:
            return False
        self.ranges[target], operation, cast = _TYPES[kind], _OPERATION.fullmatch(text), _CAST.fullmatch(text)
        if cast:
            self._cast(target, cast[2])
        elif operation:
            left, operator, right = operation.groups()
            if operator == "%":
                self.remainders[target] = right
            least, most = self._result(left, operator, right)
            if least < _TYPES[kind][0] or most > _TYPES[kind][1]:
                widened = re.search(_WIDENED.format(re.escape(target)), self.body)
                matters = kind in _SIGNED_NAMES or (kind in _UNSIGNED_NAMES and widened)
                return bool(matters) and not {left, right} <= self.addresses
            self.ranges[target] = least, most
        return False

    def _cast(self, target: str, source: str) -> None:
        if self.types.get(source, "").endswith("*"):
            self.addresses.add(target)
        elif self.types.get(source) in _TYPES:
            least, most = self._range(source)
            if least >= self.ranges[target][0] and most <= self.ranges[target][1]:
                self.ranges[target] = least, most

    def _range(self, operand: str) -> Range:
        if re.fullmatch(r"-?\d+", operand):
            return int(operand), int(operand)
        known = self.ranges if operand.startswith("D.") else {}  # assigned once
        return known.get(operand, _TYPES.get(self.types.get(operand, "int"), _INT))

    def _result(self, left: str, operator: str, right: str) -> Range:
        a, b = self._range(left), self._range(right)
        if operator == "+":  # a remainder and its divisor are added only if their signs differ
            return b if self.remainders.get(left) == right else (a[0] + b[0], a[1] + b[1])
        if operator == "-":
            return a[0] - b[1], a[1] - b[0]
        if operator == "&" and b[0] == b[1] >= 0:
            return 0, b[1]
        if operator == ">>" and b[0] == b[1]:
            return a[0] >> b[0], a[1] >> b[0]
        if operator == "*":
            ends = [x * y for x in a for y in b]
        elif operator == "<<":
            ends = [x << min(y, 32) for x in a for y in b if y >= 0]
        elif operator == "%" and b[0] == b[1] > 0:
            return (1 - b[1] if a[0] < 0 else 0), b[1] - 1
        else:  # what bits and quotients are is left open: they fit
            return a
        return min(ends), max(ends)
