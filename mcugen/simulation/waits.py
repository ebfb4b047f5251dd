# SPDX-License-Identifier: Apache-2.0
"""The mapping of test firmware to the board's memories, and the plugin's setup for them.

QEMU's machines have other memories. Parts in one memory of the board are laid out from its start on, as a linker would:
code, weights, arenas, static variables and stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mcugen.codegen.bundle import Bundle
from mcugen.core.board import Board, Memory
from mcugen.simulation.elf import AddressRange, sections
from mcugen.simulation.machines import Machine

_ALIGNMENT = 256
"""No line is longer; parts keep their place within it."""
_CODE = (".vectors", ".text", ".ARM.exidx")
_KINDS: tuple[Literal["instructions", "data"], ...] = ("instructions", "data")


@dataclass(frozen=True)
class PlacedRange:
    """A section of the test firmware, and where the same data lie on the board.

    Attributes:
        area: Addresses of the section in the simulated firmware.
        memory: Memory of the board that holds the data.
        address: First address of the data on the board.
    """

    area: AddressRange
    memory: Memory
    address: int


@dataclass(frozen=True)
class Wait:
    """The accesses to one memory, and the cycles for which they stall the CPU.

    Attributes:
        memory: Name of the memory.
        fetches: Number of lines of instructions that were fetched.
        missed_fetches: Number of fetches that no cache or buffer served.
        fetch_cycles: Stall cycles of fetches.
        reads: Number of data reads.
        missed_reads: Number of reads that no cache or buffer served.
        read_cycles: Stall cycles of reads.
    """

    memory: str
    fetches: int
    missed_fetches: int
    fetch_cycles: int
    reads: int
    missed_reads: int
    read_cycles: int

    @property
    def cycles(self) -> int:
        """Return the stall cycles of the memory, for instructions and data together."""
        return self.fetch_cycles + self.read_cycles


def memories_with_waits(board: Board) -> list[Memory]:
    """Return the memories for which the board file gives an access time that may stall the CPU."""
    return [
        m for m in board.memories if m.access is not None and (board.wait_cycles(m, m.line_bytes) or _hits(board, m))
    ]


def _hits(board: Board, memory: Memory) -> int:
    caches = [board.cache(memory, kind) for kind in _KINDS]
    return max(cache.hit_wait_states if cache else 0 for cache in caches)


def memories_without_timing(board: Board, image: Path, bundle: Bundle, machine: Machine) -> list[str]:
    """Return the names of the memories that the firmware uses, but for which the board file has no timing.

    Args:
        board: The board.
        image: The ELF file of the test firmware.
        bundle: The model in the firmware.
        machine: The QEMU machine that the firmware is built for.
    """
    names = [part.memory.name for part in firmware_ranges(board, image, bundle, machine) if part.memory.access is None]
    return list(dict.fromkeys(names))


def firmware_ranges(board: Board, image: Path, bundle: Bundle, machine: Machine) -> list[PlacedRange]:
    """Return the non-empty sections of the test firmware, each with the memory and address that it has on the board.

    Args:
        board: The board.
        image: The ELF file of the test firmware.
        bundle: The model in the firmware.
        machine: The QEMU machine that the firmware is built for.
    """
    named = {f".{s.kind}.{s.region}.{bundle.name}": s.memory for s in bundle.sections}
    known = named | dict.fromkeys(_CODE, board.memory(board.code_memory))
    known[".weights"] = board.memory(board.weights_memory)
    known[".arena"] = board.memory(board.arena_memory)
    areas = [(area, known[name]) for name, area in sections(image).items() if name in known and area]
    (data,) = (r for r in machine.regions if r.name == "DATA")
    areas.append((AddressRange(data.origin, data.origin + data.size), board.memory(board.data_memory)))
    ends: dict[str, int] = {}
    laid = []
    for area, memory in areas:
        begin = -(-ends.get(memory.name, memory.origin) // _ALIGNMENT) * _ALIGNMENT
        address = begin + area.begin % _ALIGNMENT
        ends[memory.name] = address + len(area)
        laid.append(PlacedRange(area, memory, address))
    return laid


def plugin_setup(board: Board, laid: Sequence[PlacedRange]) -> Iterator[str]:
    """Yield the lines that describe the board's memories to the QEMU plugin (templates/harness/profile_plugin.c).

    Args:
        board: The board.
        laid: The sections of the firmware, as `firmware_ranges` returns them.
    """
    caches = {cache.name: i for i, cache in enumerate(board.caches)}
    for cache in board.caches:
        yield f"cache {cache.sets} {cache.ways} {cache.line} {cache.hit_wait_states} {int(cache.keeps_prefetched)}"
    numbers: Mapping[str, int] = {memory.name: i for i, memory in enumerate(memories_with_waits(board))}
    for memory in memories_with_waits(board):
        line, word = (board.wait_cycles(memory, nbytes) for nbytes in (memory.line_bytes, 4))
        yield f"memory {memory.line_bytes} {line} {word} {int(memory.prefetch)}"
        for index, kind in enumerate(_KINDS):
            before = board.cache(memory, kind)
            if before:
                whole = board.wait_cycles(memory, max(before.line, memory.line_bytes))
                first = line if before.critical_word_first else whole
                yield f"through {index} {caches[before.name]} {first} {whole}"
    for part in laid:
        if part.memory.name in numbers:
            where = f"{part.area.begin:x} {part.area.end:x} {numbers[part.memory.name]} {part.address:x}"
            yield f"region {where}"


def read_wait(board: Board, values: Sequence[int]) -> Wait:
    """Parse a `memory` line of the profiling plugin: return the accesses and stall cycles of that memory.

    Args:
        board: The board.
        values: The numbers in the line: the memory's number among `memories_with_waits`, then six counts.
    """
    number, *counts = values
    return Wait(memories_with_waits(board)[number].name, *counts)
