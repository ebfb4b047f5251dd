# SPDX-License-Identifier: Apache-2.0
"""Sizes and symbols of linked programs, and the CPU they are for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mcugen.core.packages import optional_package

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

_WRITABLE, _ALLOCATED, _EXECUTABLE = 1, 2, 4
"""Flags of a section: SHF_WRITE, SHF_ALLOC and SHF_EXECINSTR of the ELF specification."""

# Sections of the harness's linker script, and beginnings of those in the script that comes with a model.
_WEIGHTS, _ARENA, _COPIES = ".weights", ".arena", ".copies"
_THREAD_LOCALS = ".tbss"  # Its memory is part of .bss.


@contextmanager
def _opened(program: Path) -> Iterator[ELFFile]:
    """Open a program as an ELF file."""
    with optional_package("report", "a measurement of a program"):
        from elftools.elf.elffile import ELFFile
    with program.open("rb") as file:
        yield ELFFile(file)


@dataclass(frozen=True)
class Cpu:
    """The kind of CPU that a program is built for.

    Attributes:
        machine: Name of the ELF machine, such as "EM_ARM"; "" for a program in another format.
        bits: Width of an address.
        is_little_endian: Whether the CPU stores the least significant byte first.
    """

    machine: str
    bits: int
    is_little_endian: bool


def cpu_of(program: Path) -> Cpu:
    """Return the kind of CPU that an ELF file is built for; this computer's for a program in another format."""
    with optional_package("report", "a measurement of a program"):
        from elftools.common.exceptions import ELFError
    try:
        with _opened(program) as elf:
            return Cpu(str(elf["e_machine"]), int(elf.elfclass), bool(elf.little_endian))
    except ELFError:
        return Cpu("", sys.maxsize.bit_length() + 1, sys.byteorder == "little")


@dataclass(frozen=True)
class ElfSizes:
    """Sizes of a linked program in bytes.

    Attributes:
        flash: Flash without the weights: code, constants and initial values.
        weights: Flash of the weights.
        ram: Static RAM, without the arena and without copies of weights.
    """

    flash: int
    weights: int
    ram: int


def read_sizes(program: Path) -> ElfSizes:
    """Return the sizes of a program linked by the harness's script. Initialized data count as flash and as RAM."""
    flash = weights = ram = 0
    with _opened(program) as elf:
        for section in elf.iter_sections():
            if not section["sh_flags"] & _ALLOCATED or section.name.startswith((_ARENA, _THREAD_LOCALS)):
                continue
            size = int(section["sh_size"])
            if section.name.startswith((_WEIGHTS, _COPIES)):
                weights += size
                continue
            flash += size if section["sh_type"] != "SHT_NOBITS" else 0
            ram += size if section["sh_flags"] & _WRITABLE else 0
    return ElfSizes(flash, weights, ram)


@dataclass(frozen=True)
class AddressRange:
    """A range of addresses in a program.

    Attributes:
        begin: First address.
        end: Address after the last byte.
    """

    begin: int
    end: int

    def __contains__(self, address: int) -> bool:
        return self.begin <= address < self.end

    def __len__(self) -> int:
        return self.end - self.begin


def functions(program: Path) -> dict[str, AddressRange]:
    """Return the address range of each function of a program, by name."""
    ranges = {}
    with _opened(program) as elf:
        symbols = elf.get_section_by_name(".symtab")
        for symbol in symbols.iter_symbols() if symbols else ():
            if symbol["st_info"]["type"] == "STT_FUNC":
                begin = symbol["st_value"] & ~1  # Without the Thumb bit.
                ranges[str(symbol.name)] = AddressRange(begin, begin + symbol["st_size"])
    return ranges


def function_sizes(program: Path) -> Counter[str]:
    """Return the code bytes of each function by name, including parts that the compiler split off (`name.part.0`)."""
    sizes: Counter[str] = Counter()
    # A function with two names counts once.
    by_address = {area.begin: (name, area) for name, area in functions(program).items()}
    for name, area in by_address.values():
        sizes[name.partition(".")[0]] += len(area)
    return sizes


def function_at(program: Path, address: int) -> str | None:
    """Return the name of the function that contains an address; None if no function does."""
    return next((name for name, area in functions(program).items() if address in area), None)


def sections(program: Path) -> dict[str, AddressRange]:
    """Return the address range of each section that occupies memory on the target, by section name."""
    with _opened(program) as elf:
        allocated = [s for s in elf.iter_sections() if s["sh_flags"] & _ALLOCATED]
    return {str(s.name): AddressRange(s["sh_addr"], s["sh_addr"] + s["sh_size"]) for s in allocated}


def words(program: Path) -> dict[int, int]:
    """Return the aligned 32-bit words of a program's executable sections, by address."""
    code_words: dict[int, int] = {}
    with _opened(program) as elf:
        order: Literal["little", "big"] = "little" if elf.little_endian else "big"
        for section in elf.iter_sections():
            if section["sh_flags"] & _EXECUTABLE:
                data, begin = section.data(), section["sh_addr"]
                whole = range(-begin % 4, len(data) - 3, 4)
                code_words |= {begin + at: int.from_bytes(data[at : at + 4], order) for at in whole}
    return code_words
