# SPDX-License-Identifier: Apache-2.0
"""Memory of the generated code: arenas, linker sections and the file of weights."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.codegen.bundle import Section
from mcugen.codegen.identifiers import identifier
from mcugen.codegen.shared import NO_SHARED_CODE, ArrayKey, SharedCode, array_key
from mcugen.core.board import Memory
from mcugen.core.options import CompileOptions
from mcugen.hir.types import Array, DType
from mcugen.lir.program import ALIGNMENT, Buffer, Instr, Param, Program, Space, param_dtype
from mcugen.memory.place import Placement

WEIGHTS_MAGIC = b"MCUW"
"""First bytes of a file of weights."""
HEADER_BYTES = 32
"""Size in bytes of the header of a file of weights.

It has eight little-endian words: magic, format number, size of the file in bytes, 4 words of a digest of the code that
the file belongs to, and the CRC-32 of the rest of the file.
"""
HEAD_BYTES = HEADER_BYTES - 4
"""Size in bytes of the header without its checksum: this part is equal in all files for the same code."""


@dataclass(frozen=True)
class WeightsFile:
    """A separate file of weights that the user chose instead of C arrays."""

    updatable: bool = False
    """Whether the file holds all numbers that training changes, and a version, so that it can be replaced alone."""
    version: int = 0
    """Version of an updatable file's weights."""
    is_read: bool = False
    """Whether the code receives a function that reads the file, instead of a pointer to the file."""

    @classmethod
    def requested(cls, options: CompileOptions) -> WeightsFile | None:
        """Return the file of weights that the options ask for, or None if weights are part of the code."""
        if not options.weights_in_file:
            return None
        return cls(options.updatable, options.weights_version, options.weights_reader)

    @property
    def option(self) -> str:
        """Return the command-line option that requests such a file."""
        return "--weights-reader" if self.is_read else "--updatable" if self.updatable else "--weights-blob"

    @property
    def ctype(self) -> str:
        """Return the C type of the parameter by which functions get the file of weights."""
        return f"const {'mcugen_reader' if self.is_read else 'void'} *"

    @property
    def format(self) -> int:
        """Return the format number in the file's header: 2 for updatable files, else 1."""
        return 2 if self.updatable else 1

    @property
    def header_bytes(self) -> int:
        """Return the bytes before the constants: an updatable file has its version after the checksum."""
        return HEADER_BYTES + (ALIGNMENT if self.updatable else 0)

    @property
    def second_header(self) -> bytes:
        """Return the bytes of the file between checksum and constants: an updatable file's version, else b""."""
        return self.version.to_bytes(4, "little") + bytes(ALIGNMENT - 4) if self.updatable else b""


@dataclass(frozen=True)
class Area:
    """The names and the size of one area of the arena in the generated C code.

    Attributes:
        array: C name of the model's own array for the area.
        macro: C name of the macro of the area's size.
        pointer: C expression of the pointer that the caller passes.
        base: C name of the local pointer to the area's first byte.
        size: Bytes of the area.
        memory: Name of the memory of the board that holds it.
        section: Linker section of the array; "" for the default.
    """

    array: str
    macro: str
    pointer: str
    base: str
    size: int
    memory: str
    section: str


PARAMETER_ARRAY_NAMES = {
    DType.INT64: "wide_numbers",
    DType.FLOAT64: "double_numbers",
    DType.INT32: "numbers",
    DType.FLOAT32: "real_numbers",
}
"""C names of the arrays of kernel parameters in an updatable file of weights, by element type."""


class WeightsBlob:
    """The layout of a separate file of weights: the offset of each constant in bytes.

    An updatable file also holds the kernel parameters that training changes: an array for each type, after the
    constants.
    """

    def __init__(self, program: Program, file: WeightsFile = WeightsFile()) -> None:
        self._file = file
        outputs = {endpoint.buffer for endpoint in program.outputs}  # Their accessors do not know the file.
        self._payload = bytearray()
        self.offsets: dict[Buffer, int] = {}
        for buffer in program.buffers:
            if buffer.space is Space.CONST and buffer not in outputs and buffer.data is not None:
                self.offsets[buffer] = self._add(buffer.data)
        self._places: dict[tuple[int, str], str] = {}
        trained = self._trained(program) if file.updatable else {}
        self.arrays = [
            (PARAMETER_ARRAY_NAMES[dtype], dtype, self._add(data), data.nbytes) for dtype, data in trained.items()
        ]

    def _add(self, constant: Array) -> int:
        """Append a constant and return its offset."""
        offset = len(self)
        data = np.ascontiguousarray(constant)
        self._payload += data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes()
        self._payload += bytes(-len(self._payload) % ALIGNMENT)
        return offset

    def _trained(self, program: Program) -> dict[DType, Array]:
        """Return the parameters that training changes, by type."""
        trained: dict[DType, list[Param]] = {dtype: [] for dtype in PARAMETER_ARRAY_NAMES}
        for instr in program.instrs:
            for key, value in instr.params.items():
                member = instr.declaration.member(key) if instr.declaration else None
                if member is not None and member.is_trained and key not in instr.baked | instr.formulas.keys():
                    same = trained[dtype := param_dtype(value)]
                    self._places[id(instr), key] = f"{PARAMETER_ARRAY_NAMES[dtype]}[{len(same)}]"
                    same.append(value)
        return {dtype: np.array(values, dtype.numpy) for dtype, values in trained.items() if values}

    def place(self, instr: Instr, parameter: str) -> str:
        """Return the C expression that reads a kernel parameter from the file of weights.

        Args:
            instr: The instruction whose kernel has the parameter.
            parameter: Name of the parameter.

        Returns:
            The expression; "" if the file does not hold the parameter.
        """
        return self._places.get((id(instr), parameter), "")

    def __len__(self) -> int:
        return self._file.header_bytes + len(self._payload)

    def file(self, code: str) -> bytes:
        """Return the contents of the file of weights for a model's C code.

        Args:
            code: Text of the C code. Its digest is in the file's header: generated code rejects a file for other code.
        """
        start = WEIGHTS_MAGIC + self._file.format.to_bytes(4, "little") + len(self).to_bytes(4, "little")
        digest = hashlib.sha256(code.encode()).digest()[: HEAD_BYTES - len(start)]
        content = self._file.second_header + bytes(self._payload)
        return start + digest + zlib.crc32(content).to_bytes(4, "little") + content


def words(file: bytes) -> list[str]:
    """Return the header of a weights file as C literals of its 32-bit words, without the last word, the checksum."""
    return [f"0x{int(word):08x}u" for word in np.frombuffer(file[:HEAD_BYTES], "<u4")]


def weights_bytes(program: Program, file: WeightsFile | None) -> int:
    """Return the flash for a program's weights in bytes: constants in C arrays, and the file of weights if any."""
    if file is None:
        return program.weights_size
    blob = WeightsBlob(program, file)
    return len(blob) + program.weights_size - sum(b.nbytes for b in blob.offsets)


class MemoryContext:
    """The memory layout of a model's generated code, as templates read it: arenas, sections, weights file."""

    def __init__(
        self, program: Program, placement: Placement, file: WeightsFile | None, shared: SharedCode = NO_SHARED_CODE
    ) -> None:
        self.name = program.name
        self.updatable = file is not None and file.updatable
        self.is_read = file is not None and file.is_read
        self.weights_type = file.ctype if file else ""
        self.blob = None if file is None else WeightsBlob(program, file)
        self._program, self._placement = program, placement
        self.several = len(placement.arenas) > 1
        self.areas = [self._area(index) for index in range(len(placement.arenas))]
        self.arena_type = "void *const *arenas" if self.several else "void *arena"
        sections = [Section("arena", memory, self.name) for memory in placement.arenas if placement.names_arena]
        sections += [Section("weights", placement.weights, self.name)] * placement.names_weights
        sections += [Section("copies", memory, self.name) for memory in dict.fromkeys(placement.copies.values())]
        self.sections = tuple(sections)
        keys = self.array_keys() if shared.arrays else {}
        self.shared = {buffer: shared.arrays[key] for buffer, key in keys.items() if key in shared.arrays}
        """The constants that exist already, by their C names."""

    def _area(self, index: int) -> Area:
        """Return the names and size of an arena; they have no number if there is only one."""
        number, memory = str(index) if self.several else "", self._placement.arenas[index]
        return Area(
            array=f"default_arena{number}",
            macro=f"{self.name.upper()}_ARENA{number}_SIZE",
            pointer=f"arenas[{index}]" if self.several else "arena",
            base=f"base{number}",
            size=max(self._program.area_sizes[index], self._program.arena_alignment),
            memory=memory.name,
            section=Section("arena", memory, self.name).name if self._placement.names_arena else "",
        )

    @property
    def copies(self) -> int:
        """Return the bytes of weights that start-up code copies from flash to RAM."""
        return sum(self._placement.copied_to(memory) for memory in dict.fromkeys(self._placement.copies.values()))

    @property
    def functions(self) -> list[str]:
        """Return the endings of the C functions NAME_ending that the code defines for its arenas and weights file."""
        update = ["check_update", "weights_version"] * self.updatable
        return (
            ["default_arenas"] * self.several + ["check_weights", "default_weights"] * (self.blob is not None) + update
        )

    @property
    def locals(self) -> list[str]:
        """Return the names of the local variables that the code defines because of its arenas and weights file."""
        names = [name for area in self.areas for name in (area.array, area.base)] + ["arenas"]
        in_file = ["weights", "weights_head", "default_weights", *[*PARAMETER_ARRAY_NAMES.values()] * self.updatable]
        return names * self.several + in_file * (self.blob is not None)

    @property
    def arrays(self) -> list[Buffer]:
        """Return the constants that are arrays in the model's own C files, not in a file of weights and not shared."""
        return [b for b in self._apart_from_file if b not in self.shared]

    @property
    def _apart_from_file(self) -> list[Buffer]:
        in_file = self.blob.offsets if self.blob else {}
        return [b for b in self._program.buffers if b.space is Space.CONST and b not in in_file]

    def array_keys(self) -> dict[Buffer, ArrayKey]:
        """Return the keys by which equal arrays are shared, for constants with elements and no copy in RAM."""
        return {
            b: array_key(b.dtype.c, b.data, self.weights_memory)
            for b in self._apart_from_file
            if b.data is not None and b.nbytes and b not in self._placement.copies
        }

    @property
    def weights_memory(self) -> str:
        """Return the name of the memory that the generated code states for the weights; "" for the default memory."""
        return self._placement.weights.name if self._placement.names_weights else ""

    def place(self, constant: Buffer) -> str:
        """Return the name of the C macro that places a constant's array in a section."""
        memory = self._placement.copies.get(constant)
        return "WEIGHTS" if memory is None else f"WEIGHTS_IN_{identifier(memory.name).upper()}"

    @property
    def _constant_places(self) -> list[tuple[str, str]]:
        """Return the macros that place constants, and the section of each; "" for the default section."""
        copies = self._placement.copies
        copied_sections = {
            self.place(b): Section("copies", copies[b], self.name).name for b in self.arrays if b in copies
        }
        return [*[("WEIGHTS", self._weights_section)] * (len(copies) < len(self.arrays)), *copied_sections.items()]

    @property
    def _weights_section(self) -> str:
        placement = self._placement
        return Section("weights", placement.weights, self.name).name if placement.names_weights else ""

    def context(self, names: Mapping[Buffer, str]) -> dict[str, object]:
        """Return the template context entries of the memory layout; `names` are the C names of buffers."""
        return {
            "several": self.several,
            "areas": self.areas,
            "arena": "arenas" if self.several else "arena",
            "arena_type": self.arena_type,
            "const_arena_type": self.arena_type if self.several else f"const {self.arena_type}",
            "own_arena": f"{self.name}_default_arena{'s' * self.several}()",
            "weights_section": self._weights_section,
            "constant_places": self._constant_places,
            "weights_header": HEADER_BYTES,
            "updatable": self.updatable,
            "is_read": self.is_read,
            "weights_parameter": f"{self.weights_type}weights",
            "weights_file_size": len(self.blob) if self.blob else 0,
            "weights_head": ["0"] if self.blob else [],
            "weights_rows": [],
            "constant_locals": self._constant_locals(names),
            "memory_sections": self.sections,
            "regions": regions(self.sections, self._placement.weights),
            "image_region": identifier(self._placement.weights.name),
        }

    def _constant_locals(self, names: Mapping[Buffer, str]) -> list[dict[str, object]]:
        """Return the typed pointers into the file of weights, for the constants that instructions read."""
        used = {o.buffer for i in self._program.instrs for o in i.operands if o.buffer.count and not i.moves_nothing}
        offsets = self.blob.offsets if self.blob else {}
        if self.is_read:
            used = set()
        constants = [(names[b], b.dtype, offset, b.nbytes) for b, offset in offsets.items() if b in used]
        return [
            {"name": name, "ctype": dtype.c, "offset": offset, "nbytes": nbytes}
            for name, dtype, offset, nbytes in [*constants, *(self.blob.arrays if self.blob else ())]
        ]


def regions(sections: Sequence[Section], image: Memory) -> list[dict[str, object]]:
    """Return the template context of the linker script's memory regions.

    Args:
        sections: The sections to place.
        image: The memory that holds the initial values of sections that start-up code copies to RAM.
    """
    copied = any(section.kind == "copies" for section in sections)
    memories = dict.fromkeys([*(section.memory for section in sections), *[image] * copied])
    return [
        {"name": identifier(m.name), "flags": "rwx" if m.kind == "ram" else "rx", "origin": m.origin, "size": m.size}
        for m in memories
    ]
