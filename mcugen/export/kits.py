# SPDX-License-Identifier: Apache-2.0
"""The package format of complete validation firmware for development kits.

A kit is one file in boards/kits: start-up of its clock, its serial port, boot headers and flash command. What is common
to all kits of a CPU family lies in templates/export/kit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from mcugen.codegen.install import Files
from mcugen.core.board import Board
from mcugen.core.errors import UsageError
from mcugen.core.nearest import folded
from mcugen.core.resources import resource_dir
from mcugen.export.declaration import Format

if TYPE_CHECKING:
    from mcugen.export.package import Package

BAUD = 115_200
"""Bits per second of the serial port of all kits: the default of `mcugen validate --baud`."""


@dataclass(frozen=True)
class BootWords:
    """Words at a fixed place of the image that the boot ROM of a chip reads."""

    offset: int
    """Offset of the first word from the start of the flash, in bytes."""
    title: str
    """Meaning of the words, for a comment."""
    words: tuple[int, ...]
    """The words, 32 bits each."""


@dataclass(frozen=True, kw_only=True)
class Kit:
    """A development kit for which complete firmware can be generated, as boards/kits/NAME.toml describes it.

    Examples:
        >>> load_kit("pico2").board
        'rp2350'
    """

    name: str
    """Name of the kit, as printed on its box, which is also a name of its board."""
    title: str
    """Vendor and name of the kit."""
    board: str
    """Name of the board file, which has the memories and the CPU."""
    port: str
    """Usual name of its serial port under Linux."""
    connect: str
    """Sentences on how to connect the kit to a computer."""
    tools: str
    """Name of the program that writes the flash."""
    flash: str
    """Command that writes the flash and starts the firmware."""
    before_flash: str = ""
    """Sentence on what to do before that; "" for nothing."""
    stack_bytes: int
    """Size of the stack in bytes."""
    memories: tuple[str, ...]
    """Names of the board's memories that can be used after start-up."""
    documents: tuple[str, ...]
    """Public documents that the addresses and sequences come from."""
    notes: tuple[str, ...] = ()
    """Sentences on what the measured figures depend on."""
    boot: tuple[BootWords, ...] = ()
    """Words that the boot ROM reads, by ascending offset."""
    vectors_at: int = 0
    """Offset of the vector table (Arm) or of the first instruction (RISC-V) in the image, in bytes."""
    execute_at: int = 0
    """First address at which instructions in flash are fetched, where data are read at another one; 0 otherwise."""
    cycles: str = ""
    """C expression of a cycle counter; "" for the one that the CPU's architecture has."""
    helpers: str = ""
    """C functions that the code below calls."""
    clock: str
    """Body of a C function that starts the clock and returns its frequency in Hz, whatever was reached."""
    uart: str
    """Body of a C function that starts the serial port; `clock_hz` is the clock of the CPU."""
    getc: str
    """Body of a C function that returns a received byte, or -1 if none has come."""
    putc: str
    """Body of a C function that sends `byte`."""
    registers: Mapping[str, int] = field(default_factory=dict)
    """Addresses of the 32-bit registers that the code uses, by name."""
    halfwords: Mapping[str, int] = field(default_factory=dict)
    """Addresses of its 16-bit registers, by name."""


@cache
def kit_names() -> tuple[str, ...]:
    """Return the sorted names of the kits that complete firmware can be generated for."""
    return tuple(path.stem for path in sorted((resource_dir("boards") / "kits").glob("*.toml")))


@cache
def load_kit(name: str) -> Kit:
    """Return the kit of boards/kits/NAME.toml, one of `kit_names`."""
    table: dict[str, Any] = tomllib.loads((resource_dir("boards") / "kits" / f"{name}.toml").read_text("utf-8"))
    boot = [BootWords(entry["offset"], entry["title"], tuple(entry["words"])) for entry in table.pop("boot", [])]
    lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
    return Kit(name=name, **{**table, **lists}, boot=tuple(sorted(boot, key=lambda entry: entry.offset)))


def find_kit(requested: str, board: Board) -> Kit:
    """Return the kit that a user means by a value of `--board`: the kit's name, or a board with one such kit.

    Args:
        requested: The value of `--board`.
        board: The board that it stands for.

    Raises:
        UsageError: The kit has no file in boards/kits.
    """
    kits = [load_kit(name) for name in kit_names()]
    named = [kit for kit in kits if folded(requested).endswith(folded(kit.name)) and kit.board == board.name]
    other_kits = {folded(name) for name in board.kits}
    fitting = named or [kit for kit in kits if kit.board == board.name and folded(requested) not in other_kits]
    if len(fitting) != 1:
        remedy = f"--board {' or '.join(kit_names())}"
        raise UsageError("--format kit must be for a kit that has a file in boards/kits", f"'{requested}'", remedy)
    return fitting[0]


def kit_table() -> str:
    """Return the Markdown table of docs/how-to/kits.md: kits, their boards, tools and ports."""
    rows = ["| `--board` | kit | flashed by | serial port |", "|---|---|---|---|"]
    kits = [load_kit(name) for name in kit_names()]
    rows += [f"| `{kit.name}` | {kit.title} | {kit.tools.split(' (')[0]} | {kit.connect} |" for kit in kits]
    return "\n".join(rows) + "\n"


def _has_kit(board: Board) -> bool:
    return any(load_kit(name).board == board.name for name in kit_names())


def _kit_files(package: Package) -> Files:
    """Return the start-up code, linker script, Makefile, script and README of a kit's firmware.

    Raises:
        UsageError: The code needs what the start-up of the kit does not provide.
    """
    kit = find_kit(package.requested_board or package.board.name, package.board)
    _require_self_contained(package, kit)
    family = "riscv" if package.toolchain.startswith("riscv") else "arm"
    context = {
        "kit": kit,
        "baud": BAUD,
        "regions": [package.board.memory(name) for name in kit.memories],
        "code": package.board.memory(package.board.code_memory),
        "data": package.board.memory(package.board.data_memory),
        "image": _image_layout(kit),
        "libc": [flag for flag in package.library_flags if not flag.startswith("--oslib")],
        "copies": [section.symbol for section in package.bundle.sections if section.kind == "copies"],
    }
    templates = {
        "Makefile": "kit/Makefile.j2",
        "README.md": "kit/README.md.j2",
        "measure.sh": "kit/measure.sh.j2",
        "kit/kit.h": "kit/kit.h.j2",
        "kit/kit.c": "kit/kit.c.j2",
        "kit/main.c": "kit/main.c.j2",
        "kit/start.c": f"kit/start_{family}.c.j2",
        "kit/link.ld": "kit/link.ld.j2",
    }
    return {path: package.rendered(template, **context) for path, template in templates.items()}


def _image_layout(kit: Kit) -> list[BootWords]:
    """Return what the image begins with, by ascending offset; the entry without words is the vector table."""
    return sorted([*kit.boot, BootWords(kit.vectors_at, "vectors", ())], key=lambda entry: entry.offset)


def _require_self_contained(package: Package, kit: Kit) -> None:
    """Raise UsageError if the code needs a library, a second core, or a memory that the firmware does not start."""
    if package.bundle.validation is None:
        raise UsageError("firmware of a kit must have the code of `mcugen validate`", "none", "compile with validation")
    options = package.compiled.options
    for option, is_given in (("--cores 2", options.cores > 1), ("--copy-ahead", bool(options.copy_ahead))):
        if is_given:
            rule = f"the firmware of {kit.name} has no functions for a second core or DMA"
            raise UsageError(rule, option, "leave it out")
    libraries = [library.title for library in package.libraries if not library.stand_in]
    if libraries:
        raise UsageError("--format kit links no other libraries", libraries[0], "--kernels own")
    for section in package.bundle.sections:
        if section.memory.name not in kit.memories:
            rule = f"the firmware of {kit.name} must find its data in memories that it starts"
            raise UsageError(rule, f"'{section.memory.name}'", f"--place with one of: {', '.join(kit.memories)}")


KIT = Format(
    name="kit",
    tool="a development kit, as complete firmware for `mcugen validate`",
    extra_files=_kit_files,
    supports_cpu=_has_kit,
    has_validation=True,
    steps=(
        "`make` builds `build/firmware.elf`.",
        "`make flash` writes it to the kit; the README names the tool.",
        "`sh measure.sh MODEL OPTIONS` does both and runs `mcugen validate`.",
    ),
    testing="all kits built in tests without warnings, boot headers and memories checked in the ELF files, and each "
    "image run by `mcugen validate` on an emulated CPU (unicorn) with models of clocks and UARTs; nucleo-f446re under "
    "QEMU, too; never run on the kits themselves",
)
"""Package format for development kits: firmware that is ready to be flashed."""
