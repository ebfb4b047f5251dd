# SPDX-License-Identifier: Apache-2.0
"""Where the generated code lies in memory: arenas, sections of the linker, and the file of weights."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mcugen.board import Memory
from mcugen.codegen.bundle import Section
from mcugen.codegen.identifiers import identifier
from mcugen.lir.place import Placement
from mcugen.lir.program import ALIGNMENT, Buffer, Program, Space

MAGIC = b"MCUW"
FORMAT = 1
"""Of the file of weights."""

HEADER_BYTES = 32
"""Little-endian words: magic, format, bytes of the file, 4 words that tell the code it is for, CRC-32 of the rest."""


def sections(program: Program, placement: Placement) -> tuple[Section, ...]:
    """What the linker is to put in certain memories."""
    name = program.name
    found = [Section("arena", memory, name) for memory in placement.arenas if placement.names_arena]
    found += [Section("weights", placement.weights, name)] * placement.names_weights
    return (*found, *(Section("copies", memory, name) for memory in dict.fromkeys(placement.copies.values())))


def constant_section(buffer: Buffer, program: Program, placement: Placement) -> str:
    """The section of a constant; "" for the default."""
    if buffer in placement.copies:
        return Section("copies", placement.copies[buffer], program.name).name
    return Section("weights", placement.weights, program.name).name if placement.names_weights else ""


@dataclass(frozen=True)
class Area:
    """One area of the arena in C: its array and the macro of its size, how code reaches it, and what holds it."""

    array: str
    macro: str
    pointer: str
    base: str
    size: int
    memory: str
    section: str


def areas(program: Program, placement: Placement) -> list[Area]:
    """The areas of the arena: as simple as can be where there is one."""
    several = len(placement.arenas) > 1
    found = []
    for index, (memory, size) in enumerate(zip(placement.arenas, program.area_sizes, strict=True)):
        number = str(index) if several else ""
        section = Section("arena", memory, program.name).name if placement.names_arena else ""
        found.append(
            Area(
                array=f"default_arena{number}",
                macro=f"{program.name.upper()}_ARENA{number}_SIZE",
                pointer=f"arenas[{index}]" if several else "arena",
                base=f"base{number}",
                size=max(size, ALIGNMENT),
                memory=memory.name,
                section=section,
            )
        )
    return found


def linker_context(found: tuple[Section, ...], weights: Memory) -> dict[str, object]:
    """What the linker script's fragment shows."""
    memories = dict.fromkeys([s.memory for s in found] + [weights] * any(s.kind == "copies" for s in found))
    return {
        "regions": [
            {"name": identifier(m.name), "flags": "rwx" if m.kind == "ram" else "rx", "origin": m.origin, "size": m.size}
            for m in memories
        ],
        "sections": found,
        "image_region": identifier(weights.name),
    }


class Blob:
    """The weights as one file: where each constant lies in it, in bytes from its beginning."""

    def __init__(self, program: Program) -> None:
        outputs = {endpoint.buffer for endpoint in program.outputs}
        constants = [b for b in program.buffers if b.space is Space.CONST and b not in outputs]
        self.offsets: dict[Buffer, int] = {}
        self._payload = b""
        for buffer in constants:
            assert buffer.data is not None
            self.offsets[buffer] = HEADER_BYTES + len(self._payload)
            data = np.ascontiguousarray(buffer.data)
            plain = data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes()
            self._payload += plain + bytes(-len(plain) % ALIGNMENT)

    def __len__(self) -> int:
        return HEADER_BYTES + len(self._payload)

    def head(self, code: str) -> list[int]:
        """The words before the checksum. `code` is what the weights are for: any other refuses them."""
        digest = hashlib.sha256(code.encode()).digest()[:16]
        start = MAGIC + FORMAT.to_bytes(4, "little") + len(self).to_bytes(4, "little")
        return [int(word) for word in np.frombuffer(start + digest, "<u4")]

    def file(self, code: str) -> bytes:
        """All of it."""
        crc = zlib.crc32(self._payload)
        return np.array([*self.head(code), crc], "<u4").tobytes() + self._payload


def constant_locals(blob: Blob, names: Mapping[Buffer, str], used: set[Buffer]) -> list[dict[str, object]]:
    """Typed pointers into the file, for the constants that instructions read."""
    return [
        {"name": names[b], "ctype": b.dtype.c, "offset": offset, "nbytes": b.nbytes}
        for b, offset in blob.offsets.items()
        if b in used and b.count
    ]
