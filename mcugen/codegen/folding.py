# SPDX-License-Identifier: Apache-2.0
"""Breaking of long lines of C that templates have rendered, in a form that clang-format does not change.

Lines that are composed of known parts are broken by mcugen.codegen.lines.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from mcugen.codegen.identifiers import MAX_C_LINE_COLUMNS

_INDENT = 4
_CONTINUED = (",", "(", "=", "&&", "||", "|", " &", " +", " -", " *", " /", "?", ":")
"""Endings of lines that continue on the next line."""
_OPERATORS = (";", ",", "?", ":", "||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %")
"""Operators at which a line may be broken, loosest first."""
_LOOSENESS = {operator: rank for rank, operators in enumerate(_OPERATORS) for operator in operators.split()}
_PLACE = re.compile(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|[()\[\]{}]|[;,](?= )| (?:&&|\|\||<<|>>|[=!<>]=|[-+*/%&|^?:<>])(?= )')
_DECLARATION = re.compile(r" *(?:(?:static|const) )*\w+ (?=\**(?:const )?\w+ =)")

_COMMENT = re.compile(r"^( *)(/\*(?:(?!\*/)[\s\S])*\*/)$", re.M)


@dataclass(frozen=True)
class _Operator:
    """An operator, or an opening bracket, which binds closest within the bracket."""

    depth: int
    """Number of enclosing brackets."""
    looseness: int
    end: int
    """End of a line that breaks at the operator: before a question mark or colon, after any other operator."""


def break_long_lines(text: str) -> str:
    """Return generated C code with line breaks in lines that exceed 120 columns, as far as possible.

    String literals are not divided.
    """
    lines: list[str] = []
    before = ""
    for line in _COMMENT.sub(_refilled, text).split("\n"):
        lines += _fold(line, is_continued=before.endswith(_CONTINUED))
        before = line
    return "\n".join(lines)


def _refilled(comment: re.Match[str]) -> str:
    """Wrap a comment that stands alone on its lines if one of its lines is too long."""
    if max(map(len, comment[0].split("\n"))) <= MAX_C_LINE_COLUMNS:
        return comment[0]
    text = re.sub(r"\n *\*(?= )", "", comment[2])
    return textwrap.fill(
        text,
        MAX_C_LINE_COLUMNS,
        initial_indent=comment[1],
        subsequent_indent=f"{comment[1]} * ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _fold(line: str, is_continued: bool) -> list[str]:
    if len(line) <= MAX_C_LINE_COLUMNS or line.startswith("#"):
        return [line]
    margin = len(line) - len(line.lstrip())
    split = _break(line)
    if split is None:
        return [line]
    head, tail = line[: split.end].rstrip(), line[split.end :].lstrip()
    declared = _DECLARATION.match(line)
    if declared and split.depth == 0 and head.endswith(","):
        return [*_fold(head[:-1] + ";", is_continued), *_fold(declared.group() + tail, is_continued=False)]
    is_inner = split.depth > 0
    inner = " " * (margin + _INDENT * (is_inner or not is_continued))
    if is_inner and tail.endswith(",") and _LOOSENESS[","] < split.looseness < len(_OPERATORS):
        inner += " " * _INDENT  # More arguments follow.
    if tail.startswith("? "):
        inner += " " * _INDENT * (is_inner or is_continued)
        colon = next(o.end for o in _operators(tail) if o.end > 0 and tail.startswith(" : ", o.end))
        return [head, inner + tail[:colon], *_fold(inner + tail[colon:].lstrip(), is_continued=True)]
    return [*_fold(head, is_continued), *_fold(inner + tail, is_continued=True)]


def _break(line: str) -> _Operator | None:
    """Return the outermost, loosest operator to break at: the last one that fits, else the first."""
    chosen, loosest = None, (len(line), 0)
    for operator in reversed(_operators(line)):
        rank = operator.depth, operator.looseness
        if rank < loosest or (rank == loosest and chosen and chosen.end > MAX_C_LINE_COLUMNS):
            chosen, loosest = operator, rank
    return chosen


def _operators(line: str) -> list[_Operator]:
    """Return the operators of a line in order."""
    depth, operators = 0, list[_Operator]()
    for place in _PLACE.finditer(line):
        word = place.group().strip()
        if word in "([{":
            depth += 1
            operators.append(_Operator(depth, len(_OPERATORS), place.end()))
        elif word in ")]}":
            depth -= 1
        elif word in _LOOSENESS:
            operators.append(_Operator(depth, _LOOSENESS[word], place.start() if word in "?:" else place.end()))
    return operators
