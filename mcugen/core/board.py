# SPDX-License-Identifier: Apache-2.0
"""Descriptions of boards, read from TOML files that inherit from a shared CPU file.

A board describes hardware only; `CompileOptions` says how to compile. docs/how-to/boards.md explains how to write a
file.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from mcugen.core.board_names import BoardNames, part_pattern
from mcugen.core.errors import UsageError, shortened
from mcugen.core.limits import MAX_BOARD_BYTES, read_bounded
from mcugen.core.nearest import folded
from mcugen.core.resources import resource_dir

_T = TypeVar("_T")

FEATURES = frozenset({"thumb1", "thumb2", "rv32", "dsp", "fpu", "fpu64", "mve", "mve_float", "dual_issue"})
"""Names of the CPU features that kernels can use beyond plain C.

`thumb1`, `thumb2` and `rv32` name the integer instruction set of CPUs without a richer one such as `dsp` (Arm's SIMD on
8-bit and 16-bit halves of a register). `fpu` is single and `fpu64` double precision; `mve` is Helium for integers and
`mve_float` Helium for floats. `dual_issue` means that a load can issue together with a multiplication.
"""

_REQUIRES = {"fpu64": "fpu", "mve": "dsp", "mve_float": "mve"}
_MEMORY_KINDS = ("ram", "flash")
_PARALLEL_KEYS = ("burst_wait_states", "clock_hz")
_OWN = ("abstract", "kits", "parts")
_LONGEST_LINE, _LARGEST_CACHE = 256, 1 << 24
"""Largest cache line and largest cache in bytes: far beyond existing chips."""
_WORD = 4
"""Bytes of a word: the default of `line_bytes`, the bytes that one access fetches."""
USABLE_CACHE_FRACTION = 0.75
"""Share of a cache's capacity that one data set may fill and still be in the cache at its next use.

An assumption: other data and code need the rest.
"""
DMA_COPY_OVERHEAD_CYCLES = 100
"""CPU cycles to start one DMA copy and to notice its end, in addition to the transfer.

An assumption: a few writes to the controller's registers.
"""
_LONGEST_NAME = 100
"""Largest number of characters of a board's name: file systems allow 255 bytes."""

_WORD_OF_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)
"""Pattern of names in board files: they become file names, C identifiers, and parts of linker scripts and builds."""

_SAFE_F_FLAGS = frozenset(
    """
    fast-math finite-math-only math-errno trapping-math signaling-nans signed-zeros associative-math reciprocal-math
    unsafe-math-optimizations rounding-math single-precision-constant fp-contract excess-precision
    short-enums short-wchar signed-char unsigned-char signed-bitfields unsigned-bitfields common wrapv trapv
    strict-aliasing strict-overflow delete-null-pointer-checks builtin freestanding hosted pic PIC pie PIE plt ropi rwpi
    function-sections data-sections section-anchors merge-constants merge-all-constants visibility
    exceptions unwind-tables asynchronous-unwind-tables rtti threadsafe-statics ident
    omit-frame-pointer optimize-sibling-calls stack-protector stack-protector-strong stack-protector-all
    stack-clash-protection stack-check
    inline inline-functions inline-functions-called-once inline-small-functions inline-limit partial-inlining ipa-cp
    ipa-sra ipa-ra ipa-icf ipa-pure-const toplevel-reorder unit-at-a-time lto fat-lto-objects
    unroll-loops unroll-all-loops peel-loops split-loops unswitch-loops move-loop-invariants ivopts prefetch-loop-arrays
    tree-vectorize tree-loop-vectorize tree-slp-vectorize tree-loop-distribute-patterns tree-loop-distribution
    tree-loop-im tree-loop-ivcanon tree-ter tree-sra tree-pre tree-vrp tree-dce tree-dse tree-ch tree-ccp tree-fre
    vectorize slp-vectorize gcse gcse-lm gcse-sm gcse-las cse-follow-jumps crossjumping if-conversion if-conversion2
    schedule-insns schedule-insns2 sched-interblock sched-pressure modulo-sched rename-registers web split-wide-types
    selective-scheduling jump-tables reorder-blocks reorder-functions thread-jumps align-functions align-loops
    align-jumps align-labels caller-saves branch-count-reg forward-propagate
    """.split()  # noqa: SIM905
)
"""Names of the flags `-fNAME` and `-fno-NAME` of gcc and clang that only change generated code.

Flags that load or write files are left out: -fplugin, -fdump-…, -fprofile-…, -fsanitize…, -fuse-ld, -fopt-info,
-ffile-prefix-map.
"""

_SAFE_FLAG = re.compile(
    rf"""
    -m(?!llvm|dynconfig|plugin|specs) [A-Za-z0-9][A-Za-z0-9-]* (= [A-Za-z0-9_.,+-]+)?
    | -f(no-)? (?:{"|".join(sorted(map(re.escape, _SAFE_F_FLAGS), key=len, reverse=True))}) (= [a-z0-9]+)?
    | -D [A-Za-z_][A-Za-z0-9_]* (= [A-Za-z0-9_.+-]*)?
    | -U [A-Za-z_][A-Za-z0-9_]*
    | -O (?: [0-3sgz] | fast )?
    | -std= (?: c | gnu ) [0-9a-z]{{2}}
    | -g [0-3]?
    """,
    re.ASCII | re.VERBOSE,
)
"""Pattern of compiler flags that can neither run a program nor name a file (-mllvm and -mdynconfig load libraries)."""

_FRAMEWORK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,/@-]*", re.ASCII)
"""Pattern of names of frameworks in board files: they become words of build files and of command lines."""

_MAX_FLAGS, _LONGEST_FLAG = 64, 200
"""Largest number of flags of a board, and of characters of a flag: far below the limits of a command line."""


NULL_GUARD_BYTES = 16
"""Bytes that stay unused at the start of a memory at address 0, so that no pointer to data is a null pointer.

The number is a multiple of the alignment of data, so that the guard does not change how data are aligned.
"""


@dataclass(frozen=True)
class ParallelTiming:
    """Access time of a memory on the chip's own bus (flash, SRAM, TCM or SDRAM), from its reference manual."""

    wait_states: int
    """Cycles of `clock_hz` that an access takes beyond the first; 0 for SRAM and TCM at the CPU's speed."""
    burst_wait_states: int
    """Wait states of each further access of a burst, which fills a cache line; by default equal to `wait_states`."""
    clock_hz: int
    """Clock of the memory's bus in Hz, of which wait states are cycles; by default the CPU's clock."""

    def burst_seconds(self, accesses: int, nbytes: int) -> Fraction:
        """Return the time in seconds of one burst of `accesses` accesses.

        `nbytes`, the total size, is not used: it is a parameter because the time on a serial bus depends on it.
        """
        del nbytes
        return Fraction(1 + self.wait_states + (accesses - 1) * (1 + self.burst_wait_states), self.clock_hz)


@dataclass(frozen=True)
class SerialTiming:
    """Access time of a memory on a serial bus (QSPI, octal SPI) that is mapped into the address space (XIP)."""

    clock_hz: int
    """Clock of the serial bus in Hz."""
    bits_per_clock: int
    """Number of bits per clock: the number of data lines, twice that for DTR.

    It is 4 for quad SPI, 8 for quad DTR or octal SPI, and 16 for octal DTR.
    """
    overhead_clocks: int
    """Clocks of a read in addition to its data: command, address, mode, dummy, chip select, controller latency."""

    def burst_seconds(self, accesses: int, nbytes: int) -> Fraction:
        """Return the time in seconds of one read of `nbytes` bytes.

        `accesses` is not used: it is a parameter because the time on a parallel bus depends on it.
        """
        del accesses
        return Fraction(self.overhead_clocks + -(-8 * nbytes // self.bits_per_clock), self.clock_hz)


@dataclass(frozen=True)
class Memory:
    """A memory of a board: one address range, with its size and access time."""

    name: str
    """Name of the memory in the board file and in options, such as "dtcm"."""
    kind: Literal["ram", "flash"]
    """Whether the memory is RAM, or flash that programs only read."""
    origin: int
    """First address."""
    size: int
    """Length in bytes."""
    speed: int
    """Relative latency, by which placements are chosen: 1 is zero wait states, larger values are slower.

    The default follows from `access`: the CPU cycles that a word takes on average in a sequential read.
    """
    access: ParallelTiming | SerialTiming | None = None
    """Access time of the memory without caches; None if the board file does not give it."""
    line_bytes: int = _WORD
    """Number of bytes that one access fetches, from an address that is a multiple of this number.

    Instructions in the line that was fetched last do not stall.
    """
    prefetch: bool = False
    """Whether the memory prefetches the next line while instructions of the current line execute."""
    banks: int = 1
    """Number of banks, interleaved word by word. Cores that access different banks do not delay each other."""

    @property
    def end(self) -> int:
        """Return the address after the memory's last byte."""
        return self.origin + self.size

    @property
    def room(self) -> int:
        """Return the number of bytes that can hold data: `size`, less NULL_GUARD_BYTES for a memory at address 0."""
        return self.size if self.origin else self.size - NULL_GUARD_BYTES


@dataclass(frozen=True)
class Cache:
    """A cache between the CPU and some memories: one level, set-associative, with LRU replacement."""

    name: str
    """Name of the cache in the board file."""
    serves: tuple[str, ...]
    """Names of the memories whose accesses go through the cache."""
    holds: Literal["instructions", "data", "both"]
    """Kind of accesses that the cache serves."""
    size: int
    """Capacity in bytes."""
    line: int
    """Bytes of a line, which a miss fetches as one burst."""
    ways: int
    """Associativity: lines of a set; equal to the number of lines if the cache is fully associative."""
    hit_wait_states: int = 0
    """Stall cycles of the CPU for a hit, beyond the cycle that a load always takes."""
    keeps_prefetched: bool = False
    """Whether lines that the memory prefetched enter the cache.

    They do if a separate cache is in front of a controller that prefetches. A cache that is part of the controller
    holds only lines that the CPU stalled for.
    """
    critical_word_first: bool = False
    """Whether the CPU continues once the requested word has arrived, while the rest of the line fills.

    Otherwise it stalls until the whole line has arrived.
    """

    @property
    def sets(self) -> int:
        """Return the number of sets of the cache; each set has `ways` lines."""
        return self.size // (self.line * self.ways)

    def evicted_share(self, nbytes: int) -> float:
        """Return the share of a data set that the cache evicts before its next use, if the set is read in a cycle.

        The share is 0 up to (1 − 1 / ways) times the cache's size, and 1 from (1 + 1 / ways) times the size on; in
        between, it grows linearly. The reason: with LRU replacement, a set of the cache that gets more lines than it
        has ways evicts each line before its next use, and other data and code take up to one way of each set.

        Args:
            nbytes: Size of the data set in bytes.

        Returns:
            The share, from 0 to 1.
        """
        return min(max((self.ways * (nbytes / self.size - 1) + 1) / 2, 0.0), 1.0)


@dataclass(frozen=True)
class Energy:
    """Power of the chip while it computes, from the run-mode currents in its datasheet."""

    microamps_per_mhz: float
    """Current in microamperes for each MHz of the CPU's clock."""
    millivolts: int
    """Supply voltage in millivolts at which the current was measured."""

    def microjoules(self, cycles: float) -> float:
        """Return the energy of a number of CPU cycles in microjoules."""
        return cycles / 1e6 * self.microamps_per_mhz * self.millivolts / 1e3


@dataclass(frozen=True)
class Core:
    """One of several CPU cores on a chip, which share the board's memories."""

    name: str
    """Name of the core, such as "cm7"."""
    cpu: str
    """CPU of the core, such as "cortex-m7"."""
    clock_hz: int
    """Clock of the core in Hz."""
    board: Board | None = None
    """Board description as this core sees it: CPU, clock, memories, caches. None if equal to the first core's."""
    pace: float = 1.0
    """Time of an instruction on this core divided by the time on the first core, averaged over many kernels."""
    paces: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Mean time of an instruction on this core by kernel name, where it was measured; `first_paces` has the same unit.

    The ratio to the first core depends on the kernel, because superscalar cores gain more in some kernels.
    """
    first_paces: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Time of an instruction on the first core by kernel name, in the unit of `paces`."""


@dataclass(frozen=True)
class NpuPort:
    """A bus port of an NPU, with the memory that it reaches; its figures are those of Vela's system configurations."""

    memory: str
    """Name of the board's memory."""
    clock_scale: float
    """Bandwidth of the memory as a share of the port's: a port moves 8 or 16 bytes in a cycle of the NPU's clock."""
    burst_bytes: int
    """Bytes of a burst."""
    read_latency: int
    """Cycles of the NPU's clock until the first byte of a read arrives."""
    write_latency: int
    """Cycles of the NPU's clock that a write takes; 0 for flash."""


@dataclass(frozen=True)
class Npu:
    """A neural processing unit (NPU) of a board."""

    kind: str
    """Kind and size, such as "ethos-u55-128"; the part before the first "-" names the backend's family."""
    clock_hz: int
    """Clock of the NPU in Hz."""
    activations: NpuPort
    """The port to the RAM that holds the arena."""
    constants: NpuPort
    """The port to the memory that holds commands and weights; it may be the RAM of the arena."""
    reaches: tuple[str, ...]
    """Names of all memories that the NPU can read, among them those of both ports."""


@dataclass(frozen=True)
class Frameworks:
    """Names by which embedded frameworks and IDEs know a board or its chip; "" for those that do not support it."""

    zephyr: str = ""
    """Board target of `west build -b`, such as "rpi_pico2/rp2350a/m33"."""
    esp_idf: str = ""
    """Target of `idf.py set-target`."""
    pico_sdk: str = ""
    """Value of the Pico SDK's variable PICO_BOARD."""
    platformio: str = ""
    """Platform and board, such as "ststm32/nucleo_f411re"; the platform alone if it has no boards."""
    arduino: str = ""
    """Architectures of the Arduino cores that support the board, such as "rp2040", separated by commas."""
    stm32cube: str = ""
    """Name of the chip, with an x for the number of pins where any fits."""
    mcuxpresso: str = ""
    """Name of the chip in NXP's tools."""

    def __bool__(self) -> bool:
        return self != Frameworks()


@dataclass(frozen=True)
class Board:
    """The hardware that a model is compiled for: CPU, memories, caches and build tools."""

    name: str
    """Name of the board, that of its file."""
    description: str
    """Board or chip in words."""
    cpu: str
    """CPU of the first core, such as "cortex-m33"."""
    features: frozenset[str]
    """Features of the CPU that kernels may use, such as "dsp" or "mve"."""
    memories: tuple[Memory, ...]
    """The memories that a model may use."""
    clock_hz: int
    """Clock of the CPU in Hz."""
    toolchain: str
    """Name of the compiler and library that build for the board (mcugen.simulation.toolchain); "" for the host's."""
    cflags: tuple[str, ...]
    """Compiler flags that select the CPU."""
    qemu: str
    """Name of the QEMU machine that stands in for the board, or "" to run on this computer."""
    arena_memory: str
    """Name of the RAM that holds the arena by default."""
    weights_memory: str
    """Name of the memory that holds the weights by default."""
    code_memory: str
    """Name of the memory that holds code and its constants; by default the memory of the weights if that is flash."""
    data_memory: str
    """Name of the RAM that holds the stack and static variables; by default the RAM of the arena."""
    core: str
    """Name of the core whose timing estimates cycles (mcugen.simulation.timings); by default equal to `cpu`.

    RISC-V CPUs with one instruction set differ in their timing.
    """
    caches: tuple[Cache, ...] = ()
    """The caches between the CPU and its memories."""
    energy: Energy | None = None
    """Power of the chip while it computes; None if the board file gives none."""
    cores: tuple[Core, ...] = ()
    """The cores of a multi-core chip, the first of which runs the model; empty if there is a single core."""
    core_factor: float = 1.0
    """Measured cycles of the CPU core divided by the cycles of its timing model (`mcugen calibrate-board`)."""
    kits: tuple[str, ...] = ()
    """Names of development kits with this board, as printed on their boxes; each is also a name of the board."""
    parts: tuple[str, ...] = ()
    """Part numbers of the chip, with wildcards (mcugen.core.board_names); each is also a name of the board."""
    frameworks: Frameworks = Frameworks()
    """Names of the board in embedded frameworks; all are "" if the board file gives none."""
    npu: Npu | None = None
    """The NPU beside the CPU; None if there is none, or if the board file does not describe it."""
    dma_reads: tuple[str, ...] = ()
    """Names of the memories from which a DMA controller can copy to RAM while the CPU computes."""
    sources: tuple[str, ...] = ()
    """Sources of the board's figures: documents with their sections, and assumptions."""

    @staticmethod
    def load(name_or_path: str) -> Board:
        """Load a board by its name, the name of a development kit, or the path of a TOML file.

        Raises:
            UsageError: There is no such board, or a field of the file is wrong.

        Example:
            >>> import mcugen
            >>> mcugen.Board.load("rp2040").cpu
            'cortex-m0plus'
        """
        return load_board(name_or_path)

    def memory(self, name: str) -> Memory:
        """Return the board's memory that has this name.

        Raises:
            UsageError: The board has no such memory; the message suggests names of its memories.
        """
        for memory in self.memories:
            if memory.name == name:
                return memory
        raise UsageError(
            f"board '{self.name}' has no memory '{name}'",
            remedy=_nearest(name, [m.name for m in self.memories]),
        )

    def wait_cycles(self, memory: Memory, nbytes: int) -> int | None:
        """Return the stall cycles of one read without caches, beyond the cycle that a load always takes.

        Args:
            memory: The memory that is read.
            nbytes: Size of the read in bytes.

        Returns:
            The cycles, rounded up; None if the board file gives no timing of the memory.
        """
        return None if memory.access is None else _wait_cycles(memory.access, memory.line_bytes, nbytes, self.clock_hz)

    def sequential_read_cycles(self, memory: Memory, nbytes: int) -> int | None:
        """Return the stall cycles of reading `nbytes` bytes once, word by word, with all caches empty.

        The number is None if the board file gives no timing of `memory`.
        """
        cache = self.cache(memory, "data")
        unit = cache.line if cache else _WORD
        unit_cycles = self.wait_cycles(memory, unit)
        if unit_cycles is None:
            return None
        if (
            cache is not None and cache.critical_word_first
        ):  # Later words of the line arrive while the CPU reads the first ones.
            unit_cycles = max(unit_cycles - (unit - 1) // memory.line_bytes, 0)
        return unit_cycles * -(-nbytes // unit)

    def repeated_read_cycles(self, memory: Memory, nbytes: int) -> int | None:
        """Return the stall cycles of reading the same `nbytes` bytes of `memory` again, in the same order.

        Bytes that a cache still holds cost only the cache's wait states. Return None if the board file gives no timing
        of the memory.
        """
        first, cache = self.sequential_read_cycles(memory, nbytes), self.cache(memory, "data")
        if cache is None or first is None:
            return first
        missed = cache.evicted_share(nbytes)
        return round(missed * first + (1 - missed) * cache.hit_wait_states * -(-nbytes // _WORD))

    def cache(self, memory: Memory, holds: Literal["instructions", "data"]) -> Cache | None:
        """Return the cache that accesses of a memory go through, for instructions or data; None if there is none."""
        return next((c for c in self.caches if memory.name in c.serves and c.holds in (holds, "both")), None)

    def with_flash_waits(self, wait_states: int) -> Board:
        """Return a copy of the board whose flash memories have `wait_states` wait states, in CPU cycles.

        Line sizes, prefetch and caches stay.
        """
        access = ParallelTiming(wait_states, wait_states, self.clock_hz)
        memories = (replace(m, access=access) if m.kind == "flash" else m for m in self.memories)
        return replace(self, memories=tuple(memories))

    @property
    def second_core(self) -> Core | None:
        """Return the second core if it can compute parts of layers, else None.

        It can if it has the CPU and the clock of the first core, or if the board describes it by a board file of its
        own.
        """
        for core in self.cores[1:2]:
            if core.board or (core.cpu, core.clock_hz) == (self.cpu, self.clock_hz):
                return core
        return None

    @property
    def other_kind(self) -> Board | None:
        """Return the second core's view of the board if that core has another CPU than the first core, else None."""
        return self.second_core.board if self.second_core else None

    def seen_by_second_core(self, memory: Memory) -> Board | None:
        """Return the second core's view of the board, with the arena in the memory that the first core calls `memory`.

        The result is None if all cores have the same CPU.

        Raises:
            UsageError: The second core does not see all of `memory` at the same addresses.
        """
        seen = self.other_kind
        if seen is None:
            return None
        for other in seen.memories:
            if other.kind == "ram" and other.origin <= memory.origin and memory.end <= other.end:
                return replace(seen, arena_memory=other.name)
        rule = "both cores must see the arena at one address"
        raise UsageError(rule, f"'{self.cores[1].name}' has no '{memory.name}'", "--place arena=MEMORY names another")

    @property
    def total_flash(self) -> int:
        """Return the total size of the board's flash memories in bytes."""
        return sum(memory.size for memory in self.memories if memory.kind == "flash")

    @property
    def total_ram(self) -> int:
        """Return the total size of the board's RAM in bytes."""
        return sum(memory.size for memory in self.memories if memory.kind == "ram")


def _wait_cycles(access: ParallelTiming | SerialTiming, line_bytes: int, nbytes: int, clock_hz: int) -> int:
    accesses = -(-nbytes // line_bytes)
    return max(math.ceil(access.burst_seconds(accesses, nbytes) * clock_hz) - 1, 0)


def board_names() -> list[str]:
    """Return the sorted names of the boards that mcugen can compile for, without files that only describe a CPU."""
    return [name for name, table in _files_of_ours().items() if not table.get("abstract", False)]


def chip_names() -> list[str]:
    """Return the sorted names of all boards but `host`, which is this computer."""
    return [name for name in board_names() if name != "host"]


@functools.cache
def _files_of_ours() -> dict[str, dict[str, Any]]:
    """Return the contents of all board files of mcugen, by name. Cached, as each lookup of a kit needs all of them."""
    return {path.stem: _read_toml(path) for path in sorted(resource_dir("boards").glob("*.toml"))}


@functools.cache
def _names_of_ours() -> BoardNames:
    return BoardNames(_files_of_ours())


def is_like(board: Board, text: str) -> bool:
    """Return whether a text occurs in a board's name, kits, part numbers, CPU or description.

    A part number that fits a part number with wildcards counts, too. Case and separators are ignored.
    """
    own = (board.name, board.cpu, *board.kits, *board.parts, board.description)
    is_part = any(part_pattern(part).fullmatch(folded(text)) for part in board.parts)
    return is_part or folded(text) in folded(" ".join(own))


def load_board(name_or_path: str) -> Board:
    """Load a board by its name, the name of a kit, the part number of its chip, or the path of a TOML file.

    Raises:
        UsageError: There is no such board, or a field of the file is wrong.
    """
    path = _board_file(name_or_path)
    return _parse_board(path, _inherited(path, ()))


def _parse_board(path: Path, table: Mapping[str, Any]) -> Board:
    fields = _Fields(path, table)
    if fields.flag("abstract"):
        raise UsageError(
            f"'{path.stem}' is a CPU that boards inherit from, not a board",
            remedy=f"choose a board of `mcugen boards --like {path.stem}`",
        )
    board = _board(path.stem, fields)
    fields.finish()
    return board


def _board_file(name_or_path: str) -> Path:
    if name_or_path.endswith(".toml"):
        return Path(name_or_path)
    name, folder = shortened(name_or_path, _LONGEST_NAME), resource_dir("boards")
    path = folder / f"{name}.toml"
    return path if path.parent == folder and path.is_file() else folder / f"{_names_of_ours().find(name)}.toml"


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return "one of " + ", ".join(near or names)


def _inherited(path: Path, heirs: tuple[Path, ...]) -> dict[str, Any]:
    """Return the file's keys merged over those of the file it inherits from, without those of _OWN."""
    if path in heirs:
        raise UsageError(f"{path.name}: 'inherits' must not go in circles", " -> ".join(p.stem for p in heirs))
    own = _read_toml(path)
    _require_plain_data(_Fields(path, own))
    parent = own.pop("inherits", None)
    if parent is None:
        return own
    if not isinstance(parent, str) or _is_path(parent):
        raise UsageError(f"{path.name}: 'inherits' must be the name of a board file", repr(parent))
    sibling = path.with_name(f"{parent}.toml")
    source = sibling if sibling.is_file() else resource_dir("boards") / f"{parent}.toml"
    shared = _inherited(source, (*heirs, path))
    return {key: value for key, value in shared.items() if key not in _OWN} | own


def _require_plain_data(fields: _Fields) -> None:
    """Raise UsageError for texts with control characters, and for flags that run programs or name files."""
    fields.require_printable()
    flags = fields.texts("cflags", ())
    if len(flags) > _MAX_FLAGS:
        fields.fail("cflags", f"must be at most {_MAX_FLAGS} flags", f"{len(flags):,}")
    for flag in flags:
        if len(flag) > _LONGEST_FLAG or not _SAFE_FLAG.fullmatch(flag):
            rule = "must be flags that shape code: -m…, -f… of a list, -DNAME=VALUE, -UNAME, -O…, -std=…, -g"
            remedy = "remove it: a board file is data, and names neither programs nor files (docs/how-to/boards.md)"
            fields.fail("cflags", rule, repr(shortened(flag, _LONGEST_FLAG)), remedy)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = tomllib.loads(read_bounded(path, MAX_BOARD_BYTES).decode())
        return _with_short_numbers(document)
    except OSError as error:
        raise UsageError(f"{path.name}: the board file must be readable", error.strerror or "") from error
    except RecursionError as error:
        raise UsageError(f"{path.name}: a board file must be TOML", "values within values within values") from error
    except ValueError as error:  # Raised for invalid TOML or UTF-8, and for numbers with thousands of digits.
        raise UsageError(f"{path.name}: a board file must be TOML", str(error)) from error


def _with_short_numbers(value: _T) -> _T:
    """Return the value unchanged.

    Raises:
        ValueError: The value holds a number beyond 64 bits, which TOML forbids and Python may refuse to print.
    """
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError(f"a number of {value.bit_length():,} bits")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _with_short_numbers(item)
    return value


def _is_path(name: str) -> bool:
    """Return whether a name has path separators, so that it could lead to another folder."""
    return "/" in name or "\\" in name


def _unprintable(value: object) -> str:
    """Return the first text in a TOML value that has characters which are not printable, or ""."""
    if isinstance(value, str):
        return "" if value.isprintable() else value
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return next(filter(None, map(_unprintable, items)), "")


class _Fields:
    """Typed access to the keys of one TOML table; every error names the file and the key."""

    def __init__(self, path: Path, table: Mapping[str, Any], prefix: str = "") -> None:
        self._path, self._table, self._prefix = path, table, prefix
        self._used: set[str] = set()

    def fail(self, key: str, rule: str, seen: str, remedy: str = "") -> NoReturn:
        raise UsageError(f"{self._path.name}: '{self._prefix}{key}' {rule}", seen, remedy)

    def text(self, key: str, *, empty: bool = False, default: str = "") -> str:
        if key not in self and default:
            self._used.add(key)
            return default
        value = self._get(key, str, "a text")
        if not (value or empty):
            self.fail(key, "must not be empty", repr(value))
        return str(value)

    def name(self, key: str, *, empty: bool = False, default: str = "") -> str:
        """Return a name, which is safe in file names, linker scripts and build files."""
        value = self.text(key, empty=empty, default=default)
        if value and not (_WORD_OF_NAME.fullmatch(value) and len(value) <= _LONGEST_NAME):
            rule = f"must be at most {_LONGEST_NAME} letters, digits and _ . + -, and begin with a letter, digit or _"
            self.fail(key, rule, repr(shortened(value, _LONGEST_NAME)))
        return value

    def require_printable(self) -> None:
        """Raise UsageError if any text in the table has control characters."""
        for key, value in self._table.items():
            if text := _unprintable(key) or _unprintable(value):
                quoted_text = repr(shortened(text, _LONGEST_NAME))
                self.fail(shortened(key, _LONGEST_NAME), "must be printable text", quoted_text)

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def number(self, key: str, minimum: int, default: int | None = None) -> int:
        if key not in self and default is not None:
            self._used.add(key)
            return default
        value = self._get(key, int, "a whole number")
        if isinstance(value, bool) or value < minimum:
            self.fail(key, f"must be a whole number of at least {minimum}", repr(value))
        return int(value)

    def power_of_two(self, key: str, default: int | None = None) -> int:
        value = self.number(key, 1, default)
        if value & (value - 1) or value > _LONGEST_LINE:
            self.fail(key, f"must be a power of two, {_LONGEST_LINE} at most", repr(value))
        return value

    def positive(self, key: str) -> float:
        value = self._get(key, (int, float), "a number")
        if isinstance(value, bool) or not 0 < value < math.inf:
            self.fail(key, "must be a number above 0", repr(value))
        return float(value)

    def beside(self, key: str) -> str:
        """Return the name of another board, or the path of its file if that lies beside this one."""
        name = self.text(key)
        if _is_path(name):
            self.fail(key, "must be the name of a board", repr(shortened(name, _LONGEST_NAME)))
        file = self._path.with_name(f"{name}.toml")
        return str(file) if file.is_file() else name

    def flag(self, key: str) -> bool:
        self._used.add(key)
        return key in self and bool(self._get(key, bool, "true or false"))

    def choice(self, key: str, choices: Sequence[str]) -> str:
        value = self.text(key)
        if value not in choices:
            self.fail(key, f"must be one of {', '.join(choices)}", repr(value), _nearest(value, list(choices)))
        return value

    def without(self, keys: Sequence[str], needed: str) -> None:
        """Raise UsageError for keys that have a meaning only together with the absent key `needed`."""
        for key in keys:
            if key in self:
                self.fail(key, f"must stand beside '{needed}'", f"no '{needed}'")

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        if key not in self and default is not None:
            self._used.add(key)
            return default
        value = self._get(key, list, "a list of texts")
        if not all(isinstance(item, str) and item for item in value):
            self.fail(key, "must be a list of texts", repr(value))
        return tuple(value)

    def table(self, key: str) -> _Fields:
        return _Fields(self._path, self._get(key, dict, "a table"), f"{self._prefix}{key}.")

    def positives(self, key: str) -> dict[str, float]:
        """Return a table of positive numbers with arbitrary names."""
        table = self.table(key)
        return {name: table.positive(name) for name in table._table}

    def tables(self, key: str) -> list[_Fields]:
        value = self._get(key, list, "a list of tables")
        if not value or not all(isinstance(item, dict) for item in value):
            self.fail(key, "must be a list of at least one table", repr(value), f"[[{key}]]")
        return [_Fields(self._path, item, f"{key}[{i}].") for i, item in enumerate(value)]

    def finish(self, known: Sequence[str] = ()) -> None:
        """Raise UsageError for keys that were never read, which are misspelt; `known` keys are suggested as well."""
        for key in sorted(set(self._table) - self._used):
            near = _nearest(key, sorted({*self._used, *known}))
            self.fail(key, "is not a key of a board file", repr(key), near)

    def _get(self, key: str, kind: type | tuple[type, ...], rule: str) -> Any:
        self._used.add(key)
        if key not in self._table:
            self.fail(key, "must be given", "nothing", f"{key} = {rule}")
        value = self._table[key]
        if not isinstance(value, kind):
            self.fail(key, f"must be {rule}", repr(value))
        return value


def _board(name: str, fields: _Fields) -> Board:
    clock_hz, cpu = fields.number("clock_hz", 1), fields.name("cpu")
    memories = _memories(fields, clock_hz)
    rams, names = [m.name for m in memories if m.kind == "ram"], [m.name for m in memories]
    arena, weights = _memory_name(fields, "arena_memory", rams), _memory_name(fields, "weights_memory", names)
    flashes = [name for name in names if name not in rams]
    code = weights if weights in flashes or not flashes else flashes[0]
    return Board(
        name=name,
        description=fields.text("description"),
        cpu=cpu,
        features=_features(fields),
        memories=memories,
        clock_hz=clock_hz,
        toolchain=fields.name("toolchain", empty=True),
        cflags=fields.texts("cflags"),
        qemu=fields.name("qemu", empty=True),
        arena_memory=arena,
        weights_memory=weights,
        code_memory=_memory_name(fields, "code_memory", names, code),
        data_memory=_memory_name(fields, "data_memory", rams, arena),
        core=fields.name("core", default=cpu),
        caches=_caches(fields, memories),
        energy=_energy(fields),
        cores=_cores(fields, cpu, clock_hz),
        core_factor=fields.positive("core_factor") if "core_factor" in fields else 1.0,
        kits=fields.texts("kits", ()),
        parts=fields.texts("parts", ()),
        frameworks=_frameworks(fields),
        npu=_npu(fields, rams, names),
        dma_reads=_dma_reads(fields, names),
        sources=fields.texts("sources", ()),
    )


def _frameworks(fields: _Fields) -> Frameworks:
    if "frameworks" not in fields:
        return Frameworks()
    table = fields.table("frameworks")
    known = {key: table.text(key) for key in Frameworks.__dataclass_fields__ if key in table}
    for key, name in known.items():
        if not (_FRAMEWORK_NAME.fullmatch(name) and len(name) <= _LONGEST_NAME):
            table.fail(key, "must be a name of letters, digits and _.,/@-", repr(shortened(name, _LONGEST_NAME)))
    table.finish(tuple(Frameworks.__dataclass_fields__))
    return Frameworks(**known)


def _features(fields: _Fields) -> frozenset[str]:
    features = fields.texts("features")
    for feature in features:
        if feature not in FEATURES:
            fields.fail("features", "must name known features", repr(feature), _nearest(feature, sorted(FEATURES)))
        needed = _REQUIRES.get(feature, feature)
        if needed not in features:
            fields.fail("features", f"must name '{needed}' where it names '{feature}'", repr(list(features)))
    return frozenset(features)


def _memories(fields: _Fields, clock_hz: int) -> tuple[Memory, ...]:
    memories: list[Memory] = []
    for table in fields.tables("memories"):
        memory = _memory(table, clock_hz)
        for other in memories:
            if other.name == memory.name:
                table.fail("name", "must be unique", repr(memory.name))
            if memory.origin < other.end and other.origin < memory.end:
                table.fail("origin", f"must not lie in memory '{other.name}'", f"{memory.origin:#x}")
        memories.append(memory)
    return tuple(memories)


def _memory(table: _Fields, clock_hz: int) -> Memory:
    kind = table.text("kind")
    if kind not in _MEMORY_KINDS:
        table.fail("kind", "must be ram or flash", repr(kind))
    access, line_bytes = _access(table, clock_hz), table.power_of_two("line_bytes", _WORD)
    memory = Memory(
        name=table.name("name"),
        kind="ram" if kind == "ram" else "flash",
        origin=table.number("origin", 0),
        size=table.number("size", 1),
        speed=table.number("speed", 1, None if access is None else _speed(access, line_bytes, clock_hz)),
        access=access,
        line_bytes=line_bytes,
        prefetch=table.flag("prefetch"),
        banks=table.number("banks", 1, 1),
    )
    if memory.end > 1 << 32:
        table.fail("size", "must end within 32 bits of address", f"{memory.origin:#x} + {memory.size:#x}")
    table.finish()
    return memory


def _access(table: _Fields, clock_hz: int) -> ParallelTiming | SerialTiming | None:
    """Return the timing of a memory: by wait states, by a serial bus, or None if unknown."""
    if "serial" in table:
        for key in ("wait_states", *_PARALLEL_KEYS):
            if key in table:
                table.fail(key, "must not stand beside 'serial'", "both")
        serial = table.table("serial")
        access = SerialTiming(
            clock_hz=serial.number("clock_hz", 1),
            bits_per_clock=serial.power_of_two("bits_per_clock"),
            overhead_clocks=serial.number("overhead_clocks", 0),
        )
        serial.finish()
        return access
    if "wait_states" not in table:
        table.without((*_PARALLEL_KEYS, "line_bytes", "prefetch"), "wait_states")
        return None
    wait_states = table.number("wait_states", 0)
    return ParallelTiming(
        wait_states=wait_states,
        burst_wait_states=table.number("burst_wait_states", 0, wait_states),
        clock_hz=table.number("clock_hz", 1, clock_hz),
    )


def _speed(access: ParallelTiming | SerialTiming, line_bytes: int, clock_hz: int) -> int:
    """Return the CPU cycles for each word of a long sequence of words, at least 1."""
    cycles = 1 + _wait_cycles(access, line_bytes, line_bytes, clock_hz)
    return max(round(Fraction(cycles * _WORD, line_bytes)), 1)


def _caches(fields: _Fields, memories: Sequence[Memory]) -> tuple[Cache, ...]:
    caches: list[Cache] = []
    for table in fields.tables("caches") if "caches" in fields else ():
        cache = _cache(table, {m.name: m for m in memories})
        for other in caches:
            if other.name == cache.name:
                table.fail("name", "must be unique", repr(cache.name))
            both = set(other.serves) & set(cache.serves)
            if both and (other.holds == cache.holds or "both" in (other.holds, cache.holds)):
                table.fail("serves", f"must not name what '{other.name}' serves: there is one level", repr(min(both)))
        caches.append(cache)
    return tuple(caches)


def _cache(table: _Fields, memories: Mapping[str, Memory]) -> Cache:
    holds = table.choice("holds", ("instructions", "data", "both"))
    cache = Cache(
        name=table.name("name"),
        serves=table.texts("serves"),
        holds=holds,  # type: ignore[arg-type]
        size=table.number("size", 1),
        line=table.power_of_two("line"),
        ways=table.number("ways", 1),
        hit_wait_states=table.number("hit_wait_states", 0, 0),
        keeps_prefetched=table.flag("keeps_prefetched"),
        critical_word_first=table.flag("critical_word_first"),
    )
    for name in cache.serves:
        if name not in memories:
            table.fail("serves", "must name memories of the board", repr(name), _nearest(name, list(memories)))
        if memories[name].access is None:
            table.fail("serves", "must name memories with 'wait_states' or 'serial'", repr(name))
    if cache.size % (cache.line * cache.ways) or cache.sets & (cache.sets - 1):
        table.fail("size", "must be a power of two times 'line' times 'ways'", repr(cache.size))
    if cache.size > _LARGEST_CACHE:
        table.fail("size", f"must be {_LARGEST_CACHE:,} at most", repr(cache.size))
    table.finish()
    return cache


def _cores(fields: _Fields, cpu: str, clock_hz: int) -> tuple[Core, ...]:
    cores: list[Core] = []
    for table in fields.tables("cores") if "cores" in fields else ():
        core = _core(table, cpu, clock_hz)
        if core.name in (other.name for other in cores):
            table.fail("name", "must be unique", repr(core.name))
        cores.append(core)
        table.finish()
    return tuple(cores)


_PACES = ("paces", "first_paces")


def _core(table: _Fields, cpu: str, clock_hz: int) -> Core:
    if "board" not in table:
        table.without(("pace", *_PACES), "board")
        return Core(table.name("name"), cpu, clock_hz)
    path = _board_file(table.beside("board"))
    own = _inherited(path, ())
    if "cores" in own:
        table.fail("board", "must name a board file without 'cores'", repr(path.stem))
    board = _parse_board(path, own)
    paces, first = (table.positives(key) if key in table else {} for key in _PACES)
    return Core(table.name("name"), board.cpu, board.clock_hz, board, table.positive("pace"), paces, first)


def _energy(fields: _Fields) -> Energy | None:
    if "microamps_per_mhz" not in fields:
        fields.without(("supply_millivolts",), "microamps_per_mhz")
        return None
    return Energy(fields.positive("microamps_per_mhz"), fields.number("supply_millivolts", 1))


def _npu(fields: _Fields, rams: list[str], names: list[str]) -> Npu | None:
    if "npu" not in fields:
        return None
    table = fields.table("npu")
    ports = _npu_port(table.table("activations"), rams), _npu_port(table.table("constants"), names)
    reaches = table.texts("reaches", ())
    for name in reaches:
        if name not in names:
            table.fail("reaches", "must name memories of the board", repr(name), _nearest(name, names))
    own = tuple(port.memory for port in ports)
    npu = Npu(table.name("kind"), table.number("clock_hz", 1), *ports, tuple(dict.fromkeys((*own, *reaches))))
    table.finish()
    return npu


def _npu_port(table: _Fields, names: list[str]) -> NpuPort:
    port = NpuPort(
        memory=_memory_name(table, "memory", names),
        clock_scale=table.positive("clock_scale"),
        burst_bytes=table.number("burst_bytes", 1),
        read_latency=table.number("read_latency", 0),
        write_latency=table.number("write_latency", 0, 0),
    )
    table.finish()
    return port


def _dma_reads(fields: _Fields, names: list[str]) -> tuple[str, ...]:
    memory_names = fields.texts("dma_reads", ())
    for name in memory_names:
        if name not in names:
            fields.fail("dma_reads", "must name memories of the board", repr(name), _nearest(name, names))
    return memory_names


def _memory_name(fields: _Fields, key: str, names: list[str], default: str = "") -> str:
    name = fields.text(key, default=default)
    if name not in names:
        fields.fail(key, "must name one of the board's memories", repr(name), _nearest(name, names))
    return name
