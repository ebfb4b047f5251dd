# SPDX-License-Identifier: Apache-2.0
"""Prints sizes of the compiler's functions and packages, and how often types are unknown.

A function's length is its lines of code: from its head to its end, without docstring, comments and blank lines.

    python tools/code_size.py
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "mcugen"

UNTYPED = r"(?:dict|Mapping)\[str, (?:object|Any)\]"


@dataclass(frozen=True)
class Function:
    """The size of a function or method."""

    name: str
    lines: int
    """Lines of code: without docstring, comments and blank lines."""
    parameters: int
    """Parameters without `self` and `cls`."""


def find_functions(root: Path = PACKAGE) -> Iterator[Function]:
    """Yield all functions of a package, nested ones included."""
    for path in sorted(root.rglob("*.py")):
        text = path.read_text("utf-8")
        code = _lines_of_code(text)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                parameters = len([name for name in names if name not in ("self", "cls")])
                name = f"{path.relative_to(root.parent)}:{node.name}"
                yield Function(name, len(code & _lines_of(node) - _docstring_lines(node)), parameters)


def _lines_of_code(text: str) -> set[int]:
    """Return the numbers of the lines that hold more than blanks and comments."""
    marks = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {line for t in tokens if t.type not in marks for line in range(t.start[0], t.end[0] + 1)}


def _lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _docstring_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[int]:
    return set() if ast.get_docstring(function, clean=False) is None else _lines_of(function.body[0])


def main() -> None:
    """Print the sizes."""
    found = list(find_functions())
    lengths = sorted(f.lines for f in found)
    longest, widest = max(found, key=lambda f: f.lines), max(found, key=lambda f: f.parameters)
    high = lengths[len(found) * 95 // 100]
    print(f"{len(found)} functions: median {statistics.median(lengths):g} lines of code, 95 % {high}")
    print(f"longest: {longest.lines} lines, {longest.name}")
    print(f"most parameters: {widest.parameters}, {widest.name}")
    texts = {path: path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    packages: Counter[str] = Counter()
    for path, text in texts.items():
        parts = path.relative_to(PACKAGE).parts
        packages[parts[0] if len(parts) > 1 else "(top)"] += text.count("\n")
    total = sum(packages.values())
    for package, lines in packages.most_common():
        print(f"  {package}: {lines} lines, {lines / total:.1%}")
    patterns = {"asserts": r"^\s+assert ", "isinstance": r"\bisinstance\(", "untyped": UNTYPED}
    source = "\n".join(texts.values())
    print(", ".join(f"{len(re.findall(p, source, re.MULTILINE))} {name}" for name, p in patterns.items()))


if __name__ == "__main__":
    main()
