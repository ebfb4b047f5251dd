# SPDX-License-Identifier: Apache-2.0
"""The shape of the compiler's code: how long functions are, what they take, lines a room, and what types do not say.

tools/shape.py
"""

from __future__ import annotations

import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "mcugen"

UNTYPED = re.compile(r"(?:dict|Mapping)\[str, (?:object|Any)\]")


@dataclass(frozen=True)
class Function:
    """One function or method; `arguments` without self, `is_command` where they are the command line's options."""

    name: str
    lines: int
    arguments: int
    is_command: bool


def functions(root: Path = PACKAGE) -> Iterator[Function]:
    """All of a package, nested ones too."""
    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                taken = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                is_command = any(isinstance(d, ast.Name) and d.id == "takes_options" for d in node.decorator_list)
                name = f"{path.relative_to(root.parent)}:{node.name}"
                yield Function(name, lines, len([a for a in taken if a not in ("self", "cls")]), is_command)


def main() -> None:
    """Prints them."""
    found = list(functions())
    lengths = sorted(f.lines for f in found)
    longest, widest = max(found, key=lambda f: f.lines), max(found, key=lambda f: (not f.is_command, f.arguments))
    print(
        f"{len(found)} functions: median {statistics.median(lengths):g} lines, 95 % {lengths[len(found) * 95 // 100]}"
    )
    print(f"longest: {longest.lines} lines, {longest.name}")
    print(f"most arguments but for commands: {widest.arguments}, {widest.name}")
    texts = {path: path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    rooms: Counter[str] = Counter()
    for path, text in texts.items():
        parts = path.relative_to(PACKAGE).parts
        rooms[parts[0] if len(parts) > 1 else "(top)"] += text.count("\n")
    total = sum(rooms.values())
    for room, lines in rooms.most_common():
        print(f"  {room}: {lines} lines, {lines / total:.1%}")
    everything = "\n".join(texts.values())
    told = {"asserts": r"^\s+assert ", "isinstance": r"\bisinstance\("}
    counts = {name: len(re.findall(pattern, everything, re.MULTILINE)) for name, pattern in told.items()}
    print(f"{counts['asserts']} asserts, {counts['isinstance']} isinstance, {len(UNTYPED.findall(everything))} untyped")


if __name__ == "__main__":
    main()
