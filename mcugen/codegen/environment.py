# SPDX-License-Identifier: Apache-2.0
"""The Jinja2 environment of the project's templates and their filters."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import jinja2

from mcugen.codegen.identifiers import comment, comment_lines
from mcugen.codegen.lines import fitted, fitted_macro
from mcugen.codegen.literals import c_param
from mcugen.core.resources import resource_dir


@cache
def environment(more: tuple[Path, ...] = ()) -> jinja2.Environment:
    """Return the Jinja2 environment of the templates, which is cached.

    The environment finds the project's own templates, and then those in the folders `more`. Parsing the templates takes
    longer than the rest of a compilation.
    """
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader((resource_dir("templates"), *more)),
        extensions=["jinja2.ext.do"],
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # Folding constants takes longer than the few renderings of a template.
    )
    env.filters["block"] = lambda text, width: _indented(text, width).lstrip()
    env.filters["lines"] = _indented
    env.filters["literal"] = c_param
    env.filters["asm"] = _assembly
    env.filters["fitted"] = fitted
    env.filters["table"] = lambda rows: "\n    ".join(rows).removesuffix(",") + "}"
    env.filters["suffixed"] = lambda text, suffix: text + suffix
    env.filters["prefixed"] = lambda text, prefix: prefix + text
    env.filters["times"] = lambda factor: "" if factor == 1 else f" * {factor}"
    env.filters["comment"] = comment
    env.filters["fitted_macro"] = fitted_macro
    env.filters["comment_lines"] = comment_lines
    return env


def _indented(text: str, width: int) -> str:
    """Return C lines indented by `width`; preprocessor lines stay at the margin."""
    lines = text.rstrip().strip("\n").split("\n")
    return "\n".join(line if not line or line.startswith("#") else " " * width + line for line in lines)


def _assembly(text: str) -> str:
    """Return lines of assembly as C string literals, with C comments made of the text after `@`.

    Consecutive lines that are comments only become one comment.
    """
    lines: list[tuple[str, str]] = []
    for code, *notes in (map(str.strip, line.split("@")) for line in text.split("\n") if line.strip()):
        if lines and not code and not lines[-1][0]:
            notes.insert(0, lines.pop()[1])
            lines.append(("", " ".join(notes)))
        else:
            lines.append((_quoted(code), ", ".join(notes)))
    width = max((len(code) for code, note in lines if code and note), default=0)
    padded = ((f"{code:{width}} " if code and note else code, f"/* {note} */" if note else "") for code, note in lines)
    return "\n".join(8 * " " + code + note for code, note in padded)


def _quoted(code: str) -> str:
    """Return an instruction as a C string literal. A macro of mcugen.h behind it stays outside the literal.

    Spaces behind commas are left out, as C99 compilers need not take literals of more than 4,095 characters.
    """
    instruction, macro, arguments = code.partition(" MCUGEN_")
    wide = _BEFORE.sub(r'\1" MCUGEN_WIDE "\2', instruction).replace(", ", ",")
    return f'"{wide}\\n"{macro}{arguments}' if code else ""


_BEFORE = re.compile(r"^(ldr)\.w( .*#-\d+\])$")
"""A load with a negative offset: it always has 32 bits, and clang's assembler rejects the suffix `.w`."""
