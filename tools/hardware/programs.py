# SPDX-License-Identifier: Apache-2.0
"""Programs of others in mcugen's harness: the model's file as an array, and an archive that is linked."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mcugen.codegen.bundle import Bundle, Port
from mcugen.codegen.libraries import Library, ZephyrModule
from mcugen.core.board import Board
from mcugen.simulation.toolchain import ARM, Compiler, Unit, find_program

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""Of input and output, int8."""

_HEADER = """\
#define NETWORK_ARENA_SIZE {arena}u
#define NETWORK_ARENA_ALIGN 16u
void *network_x(void *arena);
const void *network_y(const void *arena);
int network_run(void *arena);
"""

SYSTEM_CALLS = """\
/* What the C library asks of a system; nothing of it is called in time. */
extern "C" void _exit(int) { for (;;) {} }
extern "C" void *_sbrk(int) { return reinterpret_cast<void *>(-1); }
extern "C" int _getpid(void) { return 1; }
extern "C" int _kill(int, int) { return -1; }
extern "C" int _write(int, char *, int size) { return size; }
extern "C" int _read(int, char *, int) { return 0; }
extern "C" int _close(int) { return -1; }
extern "C" int _lseek(int, int, int) { return 0; }
extern "C" int _fstat(int, void *) { return -1; }
extern "C" int _isatty(int) { return 1; }
"""
"""For the glue of programs in C++."""


def foreign_library(key: str, title: str, header: str) -> Library:
    """Return the library that a program is linked with."""
    return Library(key, title, header, "1.0.0", ("", ""), ("", ""), ZephyrModule("", "", ""), (), ("", ""))


def foreign_bundle(library: Library, source: str, plan: bytes, arena: int, shapes: Shapes) -> Bundle:
    """Return a bundle that calls a library, with the model's file as `network_plan`.

    `source` defines network_x, which prepares everything before the clock starts, network_y and network_run. It is
    included as a system header, so that the harness's warnings do not apply to it.
    """
    size = f"[{len(plan)}]"
    data = f"extern const unsigned char network_plan{size};\n"
    data += f"__attribute__((aligned(16))) const unsigned char network_plan{size} = {{{','.join(map(str, plan))}}};\n"
    files = {
        "network.h": _HEADER.format(arena=arena),
        "network_foreign.h": source,
        "network.c": '#include "network.h"\n#include "network_foreign.h"\n',
        "network_weights.c": data,
    }
    counts = [math.prod(shape) for shape in shapes]
    x, y = (Port(name, f"network_{name}", "int8", (n,), n) for name, n in zip(("x", "y"), counts, strict=True))
    return Bundle("network", files, arena, (x,), (y,), layers=(), libraries=(library,))


def built_archive(board: Board, units: Sequence[Unit], flags: Sequence[str], folder: Path) -> Path:
    """Build some files for a board's CPU and return their archive; an existing archive is reused."""
    archive = folder / "libforeign.a"
    if not archive.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        common = (*ARM.library, *flags, "-ffunction-sections", "-fdata-sections", *board.cflags)
        Compiler((find_program(ARM.gcc),), common, folder).compile(units)
        ar = find_program(f"{ARM.name}-ar")
        subprocess.run([ar, "rcs", archive.name, *(unit.object for unit in units)], cwd=folder, check=True)
    return archive


def is_test(file: Path) -> bool:
    """Return whether a source file is a test of another."""
    return file.stem.endswith("_test")
