# SPDX-License-Identifier: Apache-2.0
"""The QEMU machines that stand in for boards, with their memory regions and instruction counters.

Simulated memory is larger than that of most boards, so that a model that does not fit can be looked at.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mcugen.core.board import Board
from mcugen.core.errors import UsageError
from mcugen.simulation.timer import CCount, Counter, Minstret, SysTick
from mcugen.simulation.toolchain import ARM, RISCV, XTENSA, Toolchain, host_compiler, program_version

_KIB = 1024
_MIB = 1024 * _KIB


def tool_versions(board: Board) -> tuple[str, str | None]:
    """Return the versions of a board's compiler and of its simulator; the simulator's is None for board `host`."""
    if not board.qemu:
        return program_version(host_compiler()[0]), None
    tools = find_machine(board).toolchain
    return program_version(tools.gcc), program_version(tools.qemu)


@dataclass(frozen=True)
class MemoryRange:
    """A memory region of a QEMU machine.

    Attributes:
        name: Name of the region in the linker script.
        origin: First address.
        size: Size in bytes.
    """

    name: str
    origin: int
    size: int


@dataclass(frozen=True)
class Machine:
    """A machine that QEMU simulates, with the data that the test firmware needs."""

    name: str
    """Name of the machine in QEMU's option `-M`."""
    toolchain: Toolchain
    """The compiler and the QEMU program for the machine's CPU."""
    options: tuple[str, ...]
    """Options of QEMU for the machine, and for its CPU if there is a choice."""
    harness: str
    """Folder in templates/harness with the files for the CPU."""
    counter: Counter
    """Counter from which the firmware reads executed instructions."""
    regions: tuple[MemoryRange, ...]
    """Memory regions of the linker script."""
    weights_region: str = "BULK"
    """Name of the region that holds the weights."""
    arena_region: str = "BULK"
    """Name of the region that holds the arena."""
    sources: tuple[str, ...] = ("reset", "counter")
    """Names of the C files in `harness` that measured firmware needs."""
    uart: int = 0
    """Address of the first serial port; 0 if the harness has no driver for the port."""

    def with_memories(self, sizes: Mapping[str, int]) -> tuple[MemoryRange, ...]:
        """Return the regions with a separate region for each of some memories, taken from the arena's region.

        The largest memories are made smaller if the arena's region has no room for all.

        Args:
            sizes: Size in bytes of each memory, by name.
        """
        (bulk,) = (r for r in self.regions if r.name == self.arena_region)
        origin, left, cut = bulk.origin, bulk.size, list[MemoryRange]()
        for name, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
            nbytes = min(size, left // 2 & -_KIB)
            cut.append(MemoryRange(name, origin, nbytes))
            origin, left = origin + nbytes, left - nbytes
        remaining = MemoryRange(bulk.name, origin, left)
        return (*(remaining if r == bulk else r for r in self.regions), *cut)


def _regions(code: int, data: int, bulk: tuple[int, int]) -> tuple[MemoryRange, ...]:
    """Return the regions of a machine: 4 MiB each for code and data, and a large RAM for weights and arena."""
    return (
        MemoryRange("VECTORS", code, _KIB),
        MemoryRange("CODE", code + _KIB, 4 * _MIB - _KIB),
        MemoryRange("DATA", data, 4 * _MIB),
        MemoryRange("BULK", *bulk),
    )


def _cortex_m(name: str, clock_hz: int, regions: tuple[MemoryRange, ...], uart: int = 0) -> Machine:
    return Machine(name, ARM, ("-M", name), "arm", SysTick(clock_hz), regions, uart=uart)


def _mps2(name: str, psram: int) -> Machine:
    return _cortex_m(name, 25_000_000, _regions(0, 0x2000_0000, (psram, 16 * _MIB)), 0x4000_4000)


_AN385 = _mps2("mps2-an385", 0x2100_0000)
_AN386 = _mps2("mps2-an386", 0x2100_0000)
_AN500 = _mps2("mps2-an500", 0x6000_0000)
# The secure aliases: these CPUs start in the secure state.
_AN505 = _cortex_m("mps2-an505", 20_000_000, _regions(0x1000_0000, 0x3800_0000, (0x8000_0000, 16 * _MIB)), 0x5020_0000)
_ALIKE = ("-global", "sse-200.CPU0_FPU=on", "-global", "sse-200.CPU0_DSP=on")
"""QEMU options that give the first core of Arm's board the FPU and DSP instructions that only the second one has."""
SSE200 = replace(_AN505, name="mps2-an521", options=("-M", "mps2-an521", *_ALIKE))
"""QEMU machine with the two Cortex-M33 of Arm's SSE-200; the second core waits for the first to start it."""
_AN547 = _cortex_m(
    "mps3-an547",
    32_000_000,
    (
        MemoryRange("VECTORS", 0x1000_0000, _KIB),
        MemoryRange("CODE", 0x1100_0000, 2 * _MIB),
        MemoryRange("DATA", 0x3100_0000, 4 * _MIB),
        MemoryRange("BULK", 0x7000_0000, 256 * _MIB),
    ),
    0x4930_3000,
)
_MICROBIT = replace(
    _cortex_m(
        "microbit",
        16_000_000,
        (
            MemoryRange("VECTORS", 0, _KIB),
            MemoryRange("CODE", _KIB, 255 * _KIB),
            MemoryRange("DATA", 0x2000_0000, 16 * _KIB),
        ),
    ),
    weights_region="CODE",
    arena_region="DATA",
)
_LX106 = Machine(
    "sim-lx106",
    XTENSA,
    ("-M", "sim", "-cpu", "lx106", "-m", "256M"),
    "xtensa",
    CCount(40_000_000),
    _regions(0x5000_0000, 0x6000_0000, (0x6040_0000, 252 * _MIB)),
    sources=("reset", "counter", "arithmetic"),
)
"""QEMU's simulated Xtensa system with an LX106, whose system ROM and RAM have `-m` bytes each."""


_RISCV_NAME = re.compile(r"virt-rv32i(?P<letters>m?a?f?c?)(?P<bit_extensions>(_zb[abcs])*)")
"""Name of QEMU's RISC-V machine: the extensions of its CPU, as in the compiler's `-march`."""


def _riscv_machine(name: str) -> Machine | None:
    """Return QEMU's RISC-V machine with only the extensions that its name lists; any other instruction faults.

    Return None for names of other machines.
    """
    parsed = _RISCV_NAME.fullmatch(name)
    if parsed is None:
        return None
    bit_extensions = parsed["bit_extensions"].split("_")
    switches = {letter: letter in parsed["letters"] for letter in "mafc"}
    switches |= {extension: extension in bit_extensions for extension in ("zba", "zbb", "zbc", "zbs")}
    switches |= dict.fromkeys(("d", "h", "s", "mmu", "sstc"), False)  # QEMU has these extensions by default.
    cpu = ",".join(["rv32", *(f"{extension}={'on' if on else 'off'}" for extension, on in switches.items())])
    options = ("-M", "virt", "-bios", "none", "-m", "288M", "-cpu", cpu)
    regions = _regions(0x8000_0000, 0x8040_0000, (0x8080_0000, 256 * _MIB))
    return Machine(name, RISCV, options, "riscv", Minstret(), regions, uart=0x1000_0000)


_MACHINES = {machine.name: machine for machine in (_AN385, _AN386, _AN500, _AN505, _AN547, _MICROBIT, _LX106)}
_RISCV_EXAMPLES = ("virt-rv32imc", "virt-rv32imac", "virt-rv32imafc", "virt-rv32imac_zba_zbb")


def find_machine(board: Board) -> Machine:
    """Return the QEMU machine that a board file names.

    Raises:
        UsageError: mcugen has no harness for the machine, or the board's toolchain is another.
    """
    machine = _MACHINES.get(board.qemu) or _riscv_machine(board.qemu)
    if machine is None:
        names = (*_MACHINES, *_RISCV_EXAMPLES)
        near = difflib.get_close_matches(board.qemu, names) or sorted(names)
        rule = "a board's 'qemu' must be a machine mcugen knows"
        raise UsageError(rule, repr(board.qemu), "one of " + ", ".join(near))
    if board.toolchain != machine.toolchain.name:
        rule = f"a board's 'toolchain' must be that of its machine '{machine.name}'"
        raise UsageError(rule, repr(board.toolchain), repr(machine.toolchain.name))
    return machine
