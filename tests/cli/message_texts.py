# SPDX-License-Identifier: Apache-2.0
"""Collects the texts of messages that users read from the source code of the package, without running it.

These are the texts of errors, notes, warnings and lines of progress; {} stands for a value. Help is collected from the
option table and the commands.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import mcugen

PACKAGE = Path(mcugen.__file__).parent

_ERROR = re.compile(r"[A-Z]\w*(Error|Refusal)|Refusal|Interrupted")
"""Names of the classes of errors that users see."""
_PYTHON_ERRORS = {"ValueError", "NotImplementedError", "AttributeError", "OSError", "ImportError", "IsADirectoryError"}
_TELLERS = {"tell", "echo", "fail", "Rewrite"}
"""Functions whose arguments users read."""
_PARTS = {"rule", "problem", "fault", "remedy", "reason", "excess", "hint", "note", "notes", "warning", "warnings"}
"""Names of variables that hold a part of a message."""
_NOTES = re.compile(r"_?(notes|hints?|warnings?)(_\w+)?|_?\w+_(notes?|hints?|warnings?)")
"""Names of functions that return notes."""


def text_of(node: ast.expr) -> str:
    """Return the text of an expression: {} for a value, and " | " between the alternatives of a condition."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant():
            return "{}"
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) if isinstance(part, ast.Constant) else "{}" for part in parts)
        case ast.IfExp(body=body, orelse=orelse):
            return " | ".join(text for text in (text_of(body), text_of(orelse)) if text)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case ast.BinOp(left=left, op=ast.Mult()):
            return text_of(left)
        case ast.BoolOp(values=values):
            return " | ".join(map(text_of, values))
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return " | ".join(map(text_of, elements))
    return "{}"


def _is_text(text: str) -> bool:
    """Return whether a text has words, other than a value or the name of an option alone."""
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= 2


def _called(node: ast.Call) -> str:
    """Return the name of what is called."""
    function = node.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _names(target: ast.expr) -> Iterator[str]:
    """Yield the variables that an assignment sets."""
    yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of the messages in a syntax tree."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=arguments, keywords=keywords):
                name = _called(node)
                if name in _TELLERS or (_ERROR.fullmatch(name) and name not in _PYTHON_ERRORS):
                    values = [*arguments, *(keyword.value for keyword in keywords)]
                    yield f"{name}: {' / '.join(map(text_of, values))}"
            case ast.Assign(targets=[target], value=value) | ast.AugAssign(target=target, value=value):
                if any(name in _PARTS or name.endswith("_note") for name in _names(target)):
                    yield f"{' '.join(_names(target))} = {text_of(value)}"
            case ast.FunctionDef(name=name, body=body) if _NOTES.fullmatch(name):
                yield from _texts_of_notes(name, body[bool(ast.get_docstring(node)) :])


def _texts_of_notes(name: str, body: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the texts in a function that returns notes, each text with values in it once."""
    for node in body:
        if isinstance(node, ast.JoinedStr | ast.Constant):
            yield f"{name}(): {text_of(node)}"
        else:
            yield from _texts_of_notes(name, list(ast.iter_child_nodes(node)))


def message_texts() -> str:
    """Return all texts of messages by file, each once, in the order of the alphabet."""
    sections = []
    for path in sorted(PACKAGE.rglob("*.py")):
        texts = {" ".join(text.split()) for text in _texts(ast.parse(path.read_text()))}
        lines = sorted(text for text in texts if _is_text(re.split(r"(?:: |\(\): | = )", text, maxsplit=1)[-1]))
        if lines:
            sections.append(f"== {path.relative_to(PACKAGE).as_posix()}\n" + "".join(f"{line}\n" for line in lines))
    return "\n".join(sections)
