# SPDX-License-Identifier: Apache-2.0
"""Parsing of generated C files: functions with their lines, calls of each layer, and annotated MISRA deviations.

It is independent of the code that rendered the files, so that its results are a second check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_MACRO = re.compile(r"^#define (\w+)\(")
_DEFINITION = re.compile(r"^[A-Za-z_][^;={}#]*?\b(\w+)\(")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_DONE = re.compile(r"^ *MCUGEN_ON_LAYER\(&\w+, (\d+)\);$")
_LAYER = re.compile(r"^ */\* (\d+): ")
_COMMENT = re.compile(r"/\*.*?\*/", re.S)


@dataclass(frozen=True, order=True)
class SourceFunction:
    """A definition of a C function, or of a macro with arguments.

    Attributes:
        file: Name of the file.
        first: Number of its first line.
        last: Number of its last line.
        name: Name of the function. It may have several definitions, selected by the preprocessor.
        words: All identifiers in the definition.
    """

    file: str
    first: int
    last: int
    name: str
    words: frozenset[str] = frozenset()


def parse_functions(files: Mapping[str, str]) -> list[SourceFunction]:
    """Return the function definitions of C files and headers, sorted by file and line.

    A definition ends with a closing brace in the first column.
    """
    return sorted(function for file, text in files.items() for function in _of_file(file, text.splitlines()))


def _of_file(file: str, lines: Sequence[str]) -> Iterator[SourceFunction]:
    begun: tuple[str, int] | None = None
    for number, line in enumerate(lines, 1):
        if macro := _MACRO.match(line):
            begun = (macro[1], number)
        is_macro = begun is not None and lines[begun[1] - 1].startswith("#define")
        if begun is not None and (line == "}" or (is_macro and not line.endswith("\\"))):
            name, first = begun
            text = "\n".join(lines[first - 1 : number])
            yield SourceFunction(file, first, number, name, frozenset(_WORD.findall(_COMMENT.sub("", text))) - {name})
            begun = None
        elif is_macro:
            continue
        elif (definition := _DEFINITION.match(line)) and not line.endswith(";"):
            begun = (definition[1], number)
        elif line.endswith(";") and not line.startswith(" ") and begun is not None:  # A declaration of several lines.
            begun = None


@dataclass(frozen=True)
class CallLines:
    """The lines of a C file that call one layer.

    Attributes:
        file: Name of the file.
        first: Number of the first line.
        last: Number of the last line.
        words: All identifiers in the lines.
    """

    file: str
    first: int
    last: int
    words: frozenset[str]


def layer_call_lines(file: str, text: str) -> dict[int, list[CallLines]]:
    """Return the lines that call each layer, by layer number.

    The lines of a layer begin after the end of the previous layer and end with the layer's hook.

    Args:
        file: Name of the C file.
        text: Its contents.
    """
    lines = text.splitlines()
    places: dict[int, list[CallLines]] = {}
    begin = 1
    for number, line in enumerate(lines, 1):
        if line in ("{", "}"):
            begin = number + 1
        if not (layer_end := _DONE.match(line)):
            continue
        layer = int(layer_end[1])
        titles = [
            at for at in range(begin, number) if (title := _LAYER.match(lines[at - 1])) and int(title[1]) == layer
        ]
        first = _with_copies(lines, titles[0], begin) if titles else begin
        words = frozenset(_WORD.findall(_COMMENT.sub("", "\n".join(lines[first - 1 : number - 1]))))
        places.setdefault(layer, []).append(CallLines(file, first, number, words))
        begin = number + 1
    return places


def _with_copies(lines: Sequence[str], title: int, begin: int) -> int:
    """Return the first line of the copies for a layer, which precede its title."""
    first = title
    while first > begin and lines[first - 2].lstrip().startswith(("MCUGEN_STAGE", "/* weights", "status = ")):
        first -= 1
    return first


_ANNOTATED = re.compile(
    r"/\* (?:cppcheck-suppress(?:-file)? )?misra-c2012-((?:dir-)?[0-9.]+)(?: of (\w+))? ; (.*?) \*/", re.S
)


@dataclass(frozen=True, order=True)
class Deviation:
    """An annotated deviation from a rule of MISRA C:2012 in a line of a file.

    Attributes:
        rule: Number of the rule.
        file: Name of the file.
        line: Number of the line.
        reason: Reason for the deviation.
        name: Name of the function that deviates, if the annotation is for all functions whose code contains a certain
            word; else "".
    """

    rule: str
    file: str
    line: int
    reason: str
    name: str = ""


def parse_deviations(files: Mapping[str, str]) -> list[Deviation]:
    """Return the deviations that comments in the files declare, by file and line.

    `of WORD` in such a comment makes it hold for all functions that contain the word, except those for which an earlier
    comment does.
    """
    declared, covered = [], set[SourceFunction]()
    all_ = parse_functions(files)
    for file, text in files.items():
        for match in _ANNOTATED.finditer(text):
            rule, reason = match[1].replace("dir-", "Dir "), " ".join(match[3].replace("\n *", "").split())
            if not match[2]:
                declared.append(Deviation(rule, file, text.count("\n", 0, match.start()) + 1, reason))
                continue
            using = [user for user in all_ if match[2] in user.words and user not in covered]
            declared += [Deviation(rule, user.file, user.first, reason, user.name) for user in using]
            covered.update(using)
    return sorted(declared, key=lambda d: (d.file, d.line))
