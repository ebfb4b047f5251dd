# SPDX-License-Identifier: Apache-2.0
"""Insertion of the runtime functions that generated files call, so that a folder contains no others.

Each function stands behind a guard of its own, so that files of several models can be included together.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcugen.codegen.features import for_features
from mcugen.core.board import FEATURES
from mcugen.core.resources import resource_dir

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_WORD = re.compile(r"\b(?:mcugen|MCUGEN)_\w+")
_DEFINED = re.compile(r"^(?:static|MCUGEN_ONCE)\b[^;{]*?\b(mcugen_\w+)\(|^#define (MCUGEN_\w+)", re.MULTILINE)
_INCLUDE = re.compile(r'#include [<"]([^>"]+)[>"]')
_TITLE = "/* Functions of the mcugen runtime that this file calls. */\n"


@dataclass(frozen=True)
class RuntimeFunction:
    """A piece of the C file runtime_c/functions.h: one function, or several within one #if."""

    text: str
    """The C code, as in the file."""
    defined: frozenset[str]
    """Names of the functions and macros that the text defines."""
    used: frozenset[str]
    """Words in the text that may be names of other runtime functions which it calls."""

    @property
    def guard(self) -> str:
        """Return the name of the macro that is defined once a translation unit contains the function."""
        return f"MCUGEN_HAS_{min(self.defined).upper().removeprefix('MCUGEN_')}"

    def guarded_text(self, is_source: bool) -> str:
        """Return the text within an include guard, so that several files of one translation unit may contain it.

        Args:
            is_source: Whether the text is for a source file. Functions are then marked as possibly unused, since clang
                warns of functions that are called only under some preprocessor conditions.
        """
        text = self.text.replace("static inline ", "static inline MCUGEN_UNUSED ") if is_source else self.text
        return f"#ifndef {self.guard}\n#define {self.guard}\n{text}#endif\n"


@functools.cache
def runtime_functions(features: frozenset[str] = FEATURES) -> tuple[RuntimeFunction, ...]:
    """Return the runtime functions in the order of runtime_c/functions.h: each follows those that it calls.

    Args:
        features: CPU features that the board has; code for other features is left out.
    """
    text = (resource_dir("runtime_c") / "functions.h").read_text("utf-8")
    body = text[text.index('#include "mcugen.h"\n') : text.rindex("#endif")].partition("\n")[2]
    return tuple(map(_runtime_function, _pieces(for_features(body, features))))


def with_runtime_functions(
    texts: Mapping[str, str], features: frozenset[str] = FEATURES, files: Iterable[str] | None = None
) -> dict[str, str]:
    """Return C files and headers with the runtime functions that they call, inserted after their #include lines.

    A file does not repeat the functions of the files that it includes. Files that already contain their functions stay
    unchanged.

    Args:
        texts: All files of a folder by name.
        features: CPU features that the board has; code for other features is left out.
        files: Names of the files to return; None for all.
    """
    inserter = _Inserter(texts, runtime_functions(features))
    return {file: inserter.text(file) for file in (texts if files is None else files)}


def _pieces(body: str) -> list[str]:
    """Split a text at blank lines that no condition of the preprocessor encloses."""
    pieces, depth = [""], 0
    for line in body.splitlines(keepends=True):
        depth += line.startswith("#if") - line.startswith("#endif")
        if line == "\n" and not depth:
            pieces.append("")
        else:
            pieces[-1] += line
    return [piece for piece in pieces if piece]


def _runtime_function(text: str) -> RuntimeFunction:
    defined = frozenset(name for names in _DEFINED.findall(text) for name in names if name)
    return RuntimeFunction(text, defined, _words(text))


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_COMMENT.sub("", text)))


class _Inserter:
    """Inserts functions into the files of a folder, each file after those that it includes."""

    def __init__(self, texts: Mapping[str, str], functions: tuple[RuntimeFunction, ...]) -> None:
        self._texts = texts
        self._known = functions
        self._available: dict[str, frozenset[RuntimeFunction]] = {}

    def text(self, file: str) -> str:
        """Return the text of a file with its functions."""
        text, functions = self._texts[file], self._missing(file)
        if not functions:
            return text
        at = _end_of_includes(text)
        code = text[at:].lstrip("\n")
        inserted = "\n".join(function.guarded_text(file.endswith(".c")) for function in functions)
        return f"{text[:at]}\n{_TITLE}{inserted}\n{code}"

    def _missing(self, file: str) -> list[RuntimeFunction]:
        """Return the functions that a file calls and that neither the file nor its includes contain."""
        if not file.endswith((".c", ".h")):
            return []
        text = self._texts[file]
        available = self._included(text) | self._contained(text)
        return [function for function in self._closure(_words(text)) if function not in available]

    def _included(self, text: str) -> frozenset[RuntimeFunction]:
        """Return the functions of the files that stand at the beginning of a text, and of their includes."""
        files = [name for name in _INCLUDE.findall(text[: _end_of_includes(text)]) if name in self._texts]
        return frozenset().union(*map(self._functions, files))

    def _functions(self, file: str) -> frozenset[RuntimeFunction]:
        """Return all functions that a file has in the end, from its includes as well."""
        if file not in self._available:
            text = self._texts[file]
            self._available[file] = self._included(text) | self._contained(text) | {*self._missing(file)}
        return self._available[file]

    def _contained(self, text: str) -> frozenset[RuntimeFunction]:
        """Return the functions that a text contains already."""
        return frozenset(function for function in self._known if f"#define {function.guard}\n" in text)

    def _closure(self, words: Iterable[str]) -> list[RuntimeFunction]:
        """Return the functions that define some of the words, and all functions that these call."""
        called_names, closure = set(words), []
        for function in reversed(self._known):
            if function.defined & called_names:
                called_names |= function.used
                closure.append(function)
        return closure[::-1]


def _end_of_includes(text: str) -> int:
    """Return the offset behind the last include that stands before any code."""
    end = offset = 0
    blank = _COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), text)
    for line in blank.splitlines(keepends=True):
        if line.strip() and not line.startswith("#"):
            break
        offset += len(line)
        if line.startswith("#include"):
            end = offset
    return end
