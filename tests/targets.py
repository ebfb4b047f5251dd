# SPDX-License-Identifier: Apache-2.0
"""The CPUs on which kernels are measured, as parameters of tests, and clang's command for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from measure_costs import BOARDS

from mcugen.core.board import Board, load_board
from mcugen.simulation.toolchain import ARM, RISCV

CPUS = [
    pytest.param(cpu, marks=pytest.mark.riscv if load_board(board).toolchain == RISCV.name else pytest.mark.qemu)
    for cpu, board in BOARDS.items()
]
"""Parameters of tests for each CPU on which kernel costs are measured."""

_CLANG = {
    ARM.name: (("--target=arm-none-eabi", "-mthumb"), "/usr/lib/arm-none-eabi/include"),
    RISCV.name: (("--target=riscv32-unknown-elf",), "/usr/lib/picolibc/riscv64-unknown-elf/include"),
}
"""Options of clang, and the headers of gcc's C library."""


def clang(board: Board) -> list[str]:
    """Return the command that compiles for a board; skip the test if clang, a back end or the C library is missing."""
    if board.toolchain not in _CLANG:
        pytest.skip(f"clang has no back end for {board.toolchain}")
    options, headers = _CLANG[board.toolchain]
    if shutil.which("clang") is None or not Path(headers).is_dir():
        pytest.skip(f"needs clang and {headers}")
    own = [flag for flag in board.cflags if flag != "-mstrict-align"]  # clang's way anyhow
    return ["clang", *options, *own, "-isystem", headers]
