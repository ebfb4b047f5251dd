# SPDX-License-Identifier: Apache-2.0
"""Static analysis of generated C by compilers: clang-tidy with clang's static analyzer, gcc's -fanalyzer, warnings.

They see what the CPU's compiler sees, as they are told the board's flags: the fast paths, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from checked_functions import drop_checked_functions, without_assembly
from tool_cache import run_tool

from mcugen.core.board import Board
from mcugen.simulation.toolchain import ARM, RISCV

CHECKS = ",".join(
    [
        *("-*", "bugprone-*", "cert-*", "clang-analyzer-*", "-bugprone-easily-swappable-parameters"),
        *("-bugprone-signed-char-misuse", "-cert-str34-c", "-bugprone-suspicious-include", "-cert-dcl37-c"),
        "-cert-dcl51-cpp",
    ]
)
WARNINGS = (
    *("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Wcast-align=strict", "-Wfloat-equal"),
    *("-Wunused-macros", "-Wundef", "-Wmissing-prototypes"),
)

CLANG_TARGETS = {
    ARM.name: ("--target=arm-none-eabi", "-isystem", "/usr/lib/arm-none-eabi/include"),
    RISCV.name: ("--target=riscv32-unknown-elf", "-isystem", "/usr/lib/picolibc/riscv64-unknown-elf/include"),
}
_ANALYZER = (
    "-fanalyzer",
    "-Dstatic=",  # so that each function is looked at for itself, whatever it is called with
    "-Dinline=",
    "-Wno-analyzer-use-of-uninitialized-value",
)
"""gcc 12 does not see what functions in assembly write and return; clang's analyzer and the sanitizers look instead."""
_FLAGS = ("-std=c99", "-I.")
_GCC_ONLY = ("--specs", "-mtune")
_WITHIN_AN_ARRAY = "used as a pointer offset after an implicit widening conversion"
"""What 64-bit CPUs are told of products of ints: places in a tensor, of which none has more than MAX_ELEMENTS of
mcugen/core/limits.py. Products that are widened to be numbers are told."""
_IS_NAN = re.compile(r"(?P<value>\*?\w+) (?:- (?P=value) == 0\.0f|!= (?P=value)\b)")
"""A comparison of floats that is meant: whether a value is no number, or is finite."""
_SAID = re.compile(r"^(?:.*/)?([\w.]+):(\d+):(\d+): (?:warning|error): (.*)$")


@dataclass(frozen=True, order=True)
class Complaint:
    """A message of an analyzer about a line of a file."""

    tool: str
    file: str
    line: int
    text: str


def complaints(folder: Path, board: Board, seen: set[str] | None = None, kept: Path | None = None) -> list[Complaint]:
    """Return the messages of all analyzers about the C files of a folder, except those with constant tables.

    The analyzers see the code as the board's compiler does. They skip functions in `seen`; gcc's warnings cover all
    functions. `kept` is the cache folder (see tool_cache.py).
    """
    files = {p.name: p.read_text() for p in sorted(folder.glob("*.[ch]")) if not p.name.endswith("_weights.c")}
    found = set[Complaint]()
    for tool, command, given in _asked(board, files, set() if seen is None else seen):
        code, text = run_tool(command, given, kept)
        told = set(_told(tool, text, given))
        if code and not told:
            raise RuntimeError(f"{tool}: {text[-2000:]}")
        found |= told
    return sorted(found)


Files = Mapping[str, str]


def _asked(board: Board, files: Files, seen: set[str]) -> Iterator[tuple[str, list[str], Files]]:
    """Yield each tool with its command and the files that it checks."""
    toolchain = next((t for t in (ARM, RISCV) if t.name == board.toolchain), None)
    library = toolchain.library if toolchain else ()
    gcc = [toolchain.gcc if toolchain else "gcc", *board.cflags, *library, *_FLAGS, "-O2", "-c", "-o", "object.o"]
    names = [name for name in files if name.endswith(".c")]
    part = without_assembly(drop_checked_functions(files, seen, numbers=True))
    for name in names:
        yield "gcc", [*gcc, *WARNINGS, name], files
        if "_selftest" not in name and name in part:
            yield "gcc", [*gcc, *_ANALYZER, name], part
    target = CLANG_TARGETS.get(board.toolchain, ())
    known = [flag for flag in board.cflags if not flag.startswith(_GCC_ONLY)]
    tidy = ["clang-tidy", "--quiet", "--header-filter=.*", f"--checks={CHECKS}"]
    yield "clang-tidy", [*tidy, *(n for n in names if n in part), "--", *target, *known, *_FLAGS], part


def _told(tool: str, text: str, files: Files) -> Iterator[Complaint]:
    for line in text.splitlines():
        if (said := _SAID.match(line)) is None:
            continue
        file, number, column, words = said[1], int(said[2]), int(said[3]), said[4]
        if _WITHIN_AN_ARRAY in words or ("-Wfloat-equal" in words and _asks_for_nan(files[file], number, column)):
            continue
        yield Complaint(tool, file, number, words)


def _asks_for_nan(text: str, number: int, column: int) -> bool:
    line = text.splitlines()[number - 1]
    return any(found.start() < column <= found.end() for found in _IS_NAN.finditer(line))
