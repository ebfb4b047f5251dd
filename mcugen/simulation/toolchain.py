# SPDX-License-Identifier: Apache-2.0
"""Compilers and QEMU: detection, compilation and linking."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mcugen.core.errors import ToolMissingError, UsageError, VerificationError, shortened
from mcugen.simulation.elf import Cpu


@dataclass(frozen=True)
class Toolchain:
    """The cross compiler of a CPU family, and the QEMU that runs its programs."""

    name: str
    """Prefix of the names of compiler and binutils, such as "arm-none-eabi"."""
    qemu: str
    """Name of the QEMU program, such as "qemu-system-arm"."""
    library: tuple[str, ...]
    """Flags that choose the small C library, for compiling and linking."""
    packages: Mapping[str, str]
    """Names of the Debian packages, by program."""

    @property
    def gcc(self) -> str:
        """Return the compiler's name."""
        return f"{self.name}-gcc"

    @property
    def objdump(self) -> str:
        """Return the disassembler's name."""
        return f"{self.name}-objdump"


ARM = Toolchain(
    "arm-none-eabi",
    "qemu-system-arm",
    ("--specs=nano.specs",),
    {
        "arm-none-eabi-gcc": "gcc-arm-none-eabi libnewlib-arm-none-eabi",
        "arm-none-eabi-objdump": "binutils-arm-none-eabi",
        "qemu-system-arm": "qemu-system-arm",
    },
)
"""Toolchain of Arm Cortex-M CPUs, with newlib-nano."""
RISCV = Toolchain(
    "riscv64-unknown-elf",
    "qemu-system-riscv32",
    ("--specs=picolibc.specs",),
    {
        "riscv64-unknown-elf-gcc": "gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf",
        "riscv64-unknown-elf-objdump": "binutils-riscv64-unknown-elf",
        "qemu-system-riscv32": "qemu-system-misc",
    },
)
"""Toolchain of 32-bit RISC-V CPUs, with picolibc."""
XTENSA = Toolchain(
    "xtensa-lx106-elf",
    "qemu-system-xtensa",
    (
        "--specs=/usr/lib/xtensa-lx106-elf/picolibc.specs",
        "-Wl,--no-relax",
    ),  # gcc does not look in the folder of Debian's package.
    {
        "xtensa-lx106-elf-gcc": "gcc-xtensa-lx106 picolibc-xtensa-lx106-elf",
        "xtensa-lx106-elf-objdump": "binutils-xtensa-lx106",
        "qemu-system-xtensa": "qemu-system-misc",
    },
)
"""Toolchain of the Xtensa LX106, the only Xtensa core with packages in Debian, with picolibc."""

USER_MODE = {
    Cpu("EM_AARCH64", 64, True): "qemu-aarch64",
    Cpu("EM_ARM", 32, True): "qemu-arm",
    Cpu("EM_MIPS", 32, False): "qemu-mips",
    Cpu("EM_PPC", 32, False): "qemu-ppc",
    Cpu("EM_RISCV", 32, True): "qemu-riscv32",
    Cpu("EM_RISCV", 64, True): "qemu-riscv64",
    Cpu("EM_S390", 64, False): "qemu-s390x",
}
"""Name of the user-mode QEMU that runs programs for another CPU on this computer, by that CPU."""

DEBIAN_PACKAGES: Mapping[str, str] = {
    "gcc": "gcc libc6-dev",
    **ARM.packages,
    **RISCV.packages,
    **XTENSA.packages,
    **dict.fromkeys(USER_MODE.values(), "qemu-user"),
}
"""Debian package of each program."""

HOST_COMPILER = "gcc"
"""Compiler for this computer if $CC is not set."""

_COMPILE_SECONDS = 600
_SHOWN_LINES = 12
_PARALLEL = 2


@dataclass(frozen=True)
class Unit:
    """One C file to compile.

    Attributes:
        source: Name of the C file, relative to the build folder.
        object: Name of the object file, relative to the build folder.
        flags: Compiler flags for this file alone.
    """

    source: str
    object: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Compiler:
    """A compiler with common settings for several files.

    Attributes:
        program: The compiler's command.
        flags: Flags that all files share.
        folder: The build folder, in which the compiler works.
    """

    program: tuple[str, ...]
    flags: tuple[str, ...]
    folder: Path

    def compile(self, units: Sequence[Unit]) -> None:
        """Compile the units, several in parallel.

        Raises:
            VerificationError: A unit does not compile; the message has the first lines of the compiler's output.
        """
        with ThreadPoolExecutor(_PARALLEL) as pool:
            list(pool.map(self._compile, units))

    def link(self, program: str, objects: Sequence[str], flags: Sequence[str]) -> Path:
        """Link objects in this order, and return the path of the program.

        Args:
            program: Name of the program.
            objects: Names of the object files.
            flags: Flags of the linker.

        Raises:
            VerificationError: The program does not link.
        """
        self._run([*objects, *flags, *self._library_flags(), "-lm", "-o", program], f"{program} must link")
        return self.folder / program

    def _library_flags(self) -> list[str]:
        """Return flags that select the libraries of the base architecture.

        gcc has libraries for single-letter extensions of RISC-V only; for `rv32imc_zbb` it links those of RV64.
        """
        return [flag.partition("_")[0] for flag in self.flags if flag.startswith("-march=rv32") and "_" in flag]

    def join(self, objects: Sequence[str], joined: str) -> None:
        """Merge several object files into one by the linker.

        Args:
            objects: Names of the object files.
            joined: Name of the merged file.

        Raises:
            VerificationError: The linker fails.
        """
        self._run([*objects, "-o", joined], f"{joined} must be made")

    def _compile(self, unit: Unit) -> None:
        (self.folder / unit.object).parent.mkdir(parents=True, exist_ok=True)
        rule = f"{unit.source} must compile without warnings"
        self._run([*unit.flags, "-c", unit.source, "-o", unit.object], rule)

    def _run(self, arguments: Sequence[str], rule: str) -> None:
        try:
            completed = subprocess.run(
                [*self.program, *self.flags, *arguments],
                cwd=self.folder,
                env=os.environ | {"LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_COMPILE_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise VerificationError(rule, f"not finished after {_COMPILE_SECONDS} s") from error
        if completed.returncode != 0:
            raise VerificationError(rule, first_lines(completed.stdout), "report this as a bug of mcugen")


def find_program(name: str) -> str:
    """Return the path of an installed program such as a compiler.

    Raises:
        ToolMissingError: It is not installed; the message names the Debian package.
    """
    path = shutil.which(name)
    if path is None:
        package = DEBIAN_PACKAGES.get(name)
        remedy = f"sudo apt-get install {package}" if package else "installing it, or another value of CC"
        raise ToolMissingError(f"'{name}' must be installed", "no such program on the PATH", remedy)
    return path


@cache
def program_version(program: str) -> str:
    """Return the first line of a program's version.

    Raises:
        ToolMissingError: It is not installed.
    """
    completed = subprocess.run(
        [find_program(program), "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    return next(iter(completed.stdout.splitlines()), "")


def programs_of(command: Sequence[str]) -> dict[str, Path]:
    """Return the paths of the programs cc1, as and ld that a compiler runs, by name.

    A program that is not found is absent.

    Args:
        command: The compiler with its flags.
    """
    paths = {name: shutil.which(_told(command, f"-print-prog-name={name}").strip()) for name in ("cc1", "as", "ld")}
    return {name: Path(path) for name, path in paths.items() if path is not None}


def libraries_of(command: Sequence[str]) -> dict[str, Path]:
    """Return the archives in which a cross gcc looks for functions, by file name.

    Args:
        command: The compiler with its flags.
    """
    with tempfile.TemporaryDirectory() as folder:  # A linker run by root may replace /dev/null.
        nothing = ("-nostartfiles", "-x", "c", os.devnull, "-lm", "-Wl,--verbose", "-o", f"{folder}/a.out")
        opened = re.findall(r"^attempt to open (.+\.a) succeeded$", _told(command, *nothing), re.M)
    return {Path(name).name: Path(name) for name in opened}


def _told(command: Sequence[str], *flags: str) -> str:
    """Return a compiler's standard output; its complaints are dropped."""
    line = [find_program(command[0]), *command[1:], *flags]
    return subprocess.run(line, capture_output=True, text=True, errors="replace", timeout=60, check=False).stdout


def host_compiler() -> tuple[str, ...]:
    """Return the command in $CC, or gcc. It may be a compiler for another CPU, whose programs QEMU then runs."""
    program, *flags = host_command() or [HOST_COMPILER]
    return (find_program(program), *flags)


def host_command() -> list[str]:
    """Return the words of $CC, split as a shell does; empty if $CC is not set.

    Raises:
        UsageError: $CC is not a valid command.
    """
    text = os.environ.get("CC", "")
    try:
        words = shlex.split(text)
        if words and not words[0]:
            raise ValueError("no program")
    except ValueError as error:
        quoted_command = f"'{shortened(text, 200)}' ({str(error).lower()})"
        raise UsageError(
            "CC in the environment must be a command", quoted_command, "e.g. CC=gcc, or unset CC"
        ) from error
    return words


def first_lines(text: str) -> str:
    """Return the first lines of a program's output, for an error message."""
    lines = [line for line in text.splitlines() if line.strip()]
    more = [f"({len(lines) - _SHOWN_LINES} more lines)"] if len(lines) > _SHOWN_LINES else []
    return "\n".join(lines[:_SHOWN_LINES] + more) or "no output"
