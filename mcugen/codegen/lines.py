# SPDX-License-Identifier: Apache-2.0
"""Composition of C lines within the line length, from items, arguments and statements.

Text that templates of kernels have rendered is broken by mcugen.codegen.folding instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcugen.codegen.identifiers import MAX_C_LINE_COLUMNS

_BREAKS = re.compile(r"(?<=[,=?:;+]) (?=\S)|(?<=\|\|) ")
"""Spaces at which a line of C may be broken."""


def fitted(text: str, indent: int = 0, width: int = MAX_C_LINE_COLUMNS) -> str:
    """Return a C statement, broken after commas and operators if it is too long for one line.

    Args:
        text: The statement on one line.
        indent: Column in which the statement starts.
        width: Largest number of columns of a line.
    """
    return _filled(_BREAKS.split(text), indent, f"\n{' ' * (indent + 4)}", width)


def fitted_call(function: str, arguments: Sequence[str], indent: int = 0) -> str:
    """Return a C call as a statement, broken before arguments if it is too long for one line.

    Args:
        function: Name of the function, or all text before the opening parenthesis.
        arguments: The arguments in C.
        indent: Column in which the statement starts.
    """
    parts = [f"{argument}," for argument in arguments[:-1]] + [f"{argument});" for argument in arguments[-1:]]
    first, *more_parts = parts or [");"]
    return _filled([f"{function}({first}", *more_parts], indent, f"\n{' ' * (indent + 4)}", MAX_C_LINE_COLUMNS)


def filled_rows(items: Sequence[str]) -> list[str]:
    """Return the items of an initializer on as few lines as possible, with a comma after each item."""
    return _filled([f"{item}," for item in items], 4, "\n", MAX_C_LINE_COLUMNS - 4).split("\n")


def fitted_macro(text: str) -> str:
    """Return a #define directive, broken at spaces with backslashes if it is too long for one line."""
    return _filled(text.split(" "), 0, " \\\n    ", MAX_C_LINE_COLUMNS - 2)


def _filled(parts: Sequence[str], indent: int, separator: str, width: int) -> str:
    """Return parts on as few lines of `width` columns as possible.

    Spaces or `separator`, which ends in the indentation of the next line, separate the parts.
    """
    text, column = parts[0], indent + len(parts[0])
    for part in parts[1:]:
        if column + 1 + len(part) > width:
            text, column = f"{text}{separator}{part}", len(separator.rpartition("\n")[2]) + len(part)
        else:
            text, column = f"{text} {part}", column + 1 + len(part)
    return text
