# SPDX-License-Identifier: Apache-2.0
"""Detection of the programs that build and run generated code, and how to install missing ones."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from mcugen.core.board import Board
from mcugen.core.errors import ToolMissingError
from mcugen.simulation.machines import find_machine
from mcugen.simulation.toolchain import (
    ARM,
    DEBIAN_PACKAGES,
    HOST_COMPILER,
    RISCV,
    XTENSA,
    Toolchain,
    find_program,
    host_command,
    program_version,
)


@dataclass(frozen=True)
class Tool:
    """A program that mcugen calls, such as a compiler or simulator.

    Attributes:
        name: Name of the program.
        purpose: What mcugen needs the program for, as text.
        version: Version of the program; "" if it is missing.
        packages: Names of the Debian packages that contain the program.
    """

    name: str
    purpose: str
    version: str
    packages: str

    @property
    def is_there(self) -> bool:
        """Return whether the tool is installed and works."""
        return bool(self.version)


def tools(board: Board | None = None) -> list[Tool]:
    """Return the compilers and simulators that a board needs; without a board, all that mcugen uses."""
    host = _tool(_host_compiler(), "board `host`, and QEMU's plugin, which cycles are estimated by")
    if board is None:
        return [*_of(ARM, "Cortex-M boards"), *_of(RISCV, "RISC-V boards"), *_of(XTENSA, "Xtensa boards"), host]
    return [*(_of(find_machine(board).toolchain, board.name) if board.qemu else []), host]


def install_command(missing: Sequence[Tool]) -> str:
    """Return the shell command that installs missing programs on Debian and its derivatives; "" if none is missing."""
    packages = list(dict.fromkeys(package for tool in missing for package in tool.packages.split()))
    return f"sudo apt-get install {' '.join(packages)}" if packages else ""


def require(known_tools: Sequence[Tool]) -> None:
    """Raise ToolMissingError if one of these programs is missing; the error has the command that installs it."""
    missing = [tool for tool in known_tools if not tool.is_there]
    if missing:
        names = ", ".join(f"'{tool.name}'" for tool in missing)
        raise ToolMissingError("programs must be installed", f"no {names}", install_command(missing))


def _host_compiler() -> str:
    return next(iter(host_command()), HOST_COMPILER)


def _of(toolchain: Toolchain, whom: str) -> list[Tool]:
    compiler = _tool(toolchain.gcc, f"building for {whom}")
    if compiler.is_there and not _has_library(toolchain):
        compiler = Tool(f"{toolchain.gcc}'s C library", compiler.purpose, "", compiler.packages)
    return [
        compiler,
        _tool(toolchain.objdump, f"estimating cycles of {whom}"),
        _tool(toolchain.qemu, f"running code for {whom}"),
    ]


def _tool(name: str, purpose: str) -> Tool:
    version = ""
    with suppress(ToolMissingError, subprocess.SubprocessError, OSError):
        version = program_version(name) or name
    return Tool(name, purpose, version, DEBIAN_PACKAGES.get(name, ""))


def _has_library(toolchain: Toolchain) -> bool:
    """Return whether the compiler finds the small C library: whether it can preprocess with the library's flags."""
    command = [find_program(toolchain.gcc), *toolchain.library, "-E", "-x", "c", os.devnull]
    with suppress(subprocess.SubprocessError, OSError):
        completed = subprocess.run(command, capture_output=True, timeout=60, check=False)
        return completed.returncode == 0
    return False
