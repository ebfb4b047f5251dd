# SPDX-License-Identifier: Apache-2.0
"""Removes functions of generated C that a tool checked before in another model.

The verdict on a function depends on its text and on all that it mentions: macros, types, constants, the heads of the
functions that it calls, what these mention in turn, and the conditions around each. A function counts as checked if all
of that was. Declarations at file scope stay in every folder, for rules on names, declarations and files.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

_FUNCTION = re.compile(r"(?ms)^((?:static |void |int )[^;={}#]*?\))\n\{\n.*?^\}$")
_TABLE = re.compile(r"(?m)^(.*)\b\w+\[\d+\] = \{$")
_PARAMETERS = re.compile(r"(?ms)^(static const \w+ )(\w+)( = \{\n[^\n]*\n)(.*?)^\};$")
_COMMENT = re.compile(r"(?s)/\*(?! cppcheck-suppress).*?\*/")
_DIRECTIVE = re.compile(r"(?m)^#\s*(\w+)(?:.*\\\n)*.*$")
_DEFINE = re.compile(r"(?m)^#\s*define (\w+)(?:.*\\\n)*.*$")
_WORD = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"\b(?:0x[0-9a-fA-F]+|\d+)")
_BRACES = re.compile(r"(?s)\{.*\}")
_NAMED = re.compile(r"\b(?![A-Z0-9_]+\b)([a-z]\w*)\s*(?=[\[=;({]|$)|\(\*(\w+)\)")
_CONSTANT = re.compile(r"([A-Za-z_]\w*)\s*(?==|,|\}|$)")
_KEYWORDS = frozenset(
    ["struct", "union", "enum", "typedef", "static", "const", "extern", "int", "void", "float", "double", "char"]
)
_ASSEMBLY = "__asm__ volatile("
_SMALL = 64
"""Numbers below it are distinguished: shifts, bits and sizes of types, which rules check."""


Conditions = list[tuple[int, str]]
"""Offsets in a text, each with the preprocessor conditions that hold from there on, as lines."""


@dataclass(frozen=True)
class Piece:
    """A declaration at file scope with its preprocessor conditions; for a function only its head.

    `names` are the identifiers that the piece defines, `mentions` all words in its text.
    """

    names: frozenset[str]
    text: str
    mentions: frozenset[str]


def drop_checked_functions(files: Mapping[str, str], seen: set[str], numbers: bool = False) -> dict[str, str]:
    """Return the files without what was checked before, and add what they contain to `seen`.

    Checked functions become declarations, checked kinds of parameters their first line; tables of weights and samples
    of checked kinds are left out.

    Args:
        files: Text of each file by its name.
        seen: Digests of what was checked.
        numbers: Whether all numbers are compared; else numbers from _SMALL on are equal if their size is. The model's
            name is never compared.
    """
    model = min((name for name in files if name.endswith(".c")), key=len, default=".c")[:-2]
    of_model = re.compile(rf"(?<![A-Za-z0-9]){re.escape(model)}(?![A-Za-z0-9])", re.IGNORECASE)
    given = defaultdict[str, list[Piece]](list)
    for piece in (piece for text in files.values() for piece in _pieces(text)):
        for name in piece.names:
            given[name].append(piece)
    here = set[str]()

    def alike(text: str) -> str:
        named = of_model.sub("NAME", " ".join(text.split()))
        return named if numbers else _NUMBER.sub(_size, named)

    def declared(function: re.Match[str], around: Conditions) -> str:
        text = _at(around, function.start()) + _COMMENT.sub("", function[0])
        known = "\n".join([alike(text), *sorted(map(alike, _reached(_words(text), given)))])
        own = hashlib.sha256(known.encode()).hexdigest()
        here.add(own)
        return f"{function[1]};" if own in seen else function[0]

    def begun(table: re.Match[str]) -> str:
        own = re.sub(r"\d+", "0", of_model.sub("NAME", table[1] + table[3] + table[4]))
        is_line = table[3].count("{") == table[3].count("}") + 1
        known = is_line and (own in seen or own in here) and not numbers
        here.add(own)
        return f"{table[1]}{table[2]}{table[3]}}};" if known else table[0]

    found = {}
    for name, text in files.items():
        before = len(here - seen)
        found[name] = _PARAMETERS.sub(begun, _FUNCTION.sub(partial(declared, around=_conditions(text)), text))
        here.update(alike(kind[1]) for kind in _TABLE.finditer(text))
        if name.endswith((f"{model}_selftest.c", f"{model}_weights.c")) and len(here - seen) == before:
            del found[name]
    seen |= here
    return found


def without_assembly(files: Mapping[str, str]) -> dict[str, str]:
    """Return the files with declarations instead of functions in assembly.

    Analyzers cannot see what assembly writes; they assume the worst of a declared function.
    """

    def declared(function: re.Match[str]) -> str:
        return f"{function[1]};" if _ASSEMBLY in function[0] else function[0]

    return {name: _FUNCTION.sub(declared, text) for name, text in files.items()}


def _reached(words: frozenset[str], given: Mapping[str, list[Piece]]) -> set[str]:
    """Return the texts of all pieces that the words mention, directly or through other pieces."""
    found, known, todo = set[str](), set(words), list(words)
    while todo:
        for piece in given.get(todo.pop(), ()):
            found.add(piece.text)
            todo += piece.mentions - known
            known |= piece.mentions
    return found


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text))


def _size(number: re.Match[str]) -> str:
    value = int(number[0], 0) if number[0][:2] == "0x" else int(number[0])
    return number[0] if value < _SMALL else f"<{next(b for b in (7, 8, 15, 16, 31, 32, 64, 1000) if value < 2**b)}>"


def _conditions(text: str) -> Conditions:
    opened, found = list[str](), [(0, "")]
    for directive in _DIRECTIVE.finditer(text):
        kind = directive[1]
        if kind in ("if", "ifdef", "ifndef"):
            opened.append(directive[0])
        elif kind in ("else", "elif"):
            opened[-1] += f"\n{directive[0]}"
        elif kind == "endif":
            opened.pop()
        else:
            continue
        found.append((directive.end(), "\n".join([*opened, ""])))
    return found


def _at(around: Conditions, at: int) -> str:
    return next(conditions for begin, conditions in reversed(around) if begin <= at)


@lru_cache(1024)
def _pieces(text: str) -> tuple[Piece, ...]:
    return tuple(_scanned(_COMMENT.sub("", text)))


def _scanned(text: str) -> Iterator[Piece]:
    around = _conditions(text)

    def piece(begin: int, text: str, names: frozenset[str]) -> Piece:
        whole = _at(around, begin) + text
        return Piece(names, whole, _words(whole))

    code, begin, at = list[str](), 0, 0
    for line in text.splitlines(keepends=True):
        here, at = at, at + len(line)
        if code or (line[:1].isalpha() and not line.startswith('extern "C" {')):
            begin = begin if code else here
            code.append(line)
            if _ends(code):
                whole = "".join(code)
                seen = f"{whole.split('{')[0].strip()};" if line == "}\n" else whole
                yield piece(begin, seen, _defined(seen))
                code = []
    for define in _DEFINE.finditer(text):
        yield piece(define.start(), define[0], frozenset([define[1]]))


def _ends(code: list[str]) -> bool:
    if len(code) > 1 and code[-1].startswith("}"):
        return True
    whole = "".join(code)
    return code[-1].rstrip().endswith((";", "}")) and whole.count("{") == whole.count("}")


def _defined(text: str) -> frozenset[str]:
    """Return the names that a declaration defines: of a function, a type and its tag, a variable, constants."""
    constants = frozenset[str]()
    if re.match(r"(?:typedef )?enum\b", text) and (braces := _BRACES.search(text)):
        constants = frozenset(_CONSTANT.findall(braces[0]))
    head = _BRACES.sub("{}", text).split("=")[0]
    if "(*" not in head and "(" in head and not head.startswith("typedef"):
        head = re.sub(r"\b[A-Z_0-9]+\((?:[^()]|\([^()]*\))*\)", "", head)  # MCUGEN_ALIGN(4)
        called = re.search(r"(\w+)\(", head)
        if called:
            return frozenset([called[1]])
    tail = text.rsplit("}", 1)[-1] if "}" in text and "=" not in text else ""
    named = {name for pair in _NAMED.findall(head) for name in pair if name}
    return frozenset(named | set(_WORD.findall(tail))) - _KEYWORDS | constants
