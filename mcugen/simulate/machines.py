# SPDX-License-Identifier: Apache-2.0
"""The QEMU machines that stand in for boards: where their memory lies and how fast SysTick runs.

Simulated memory is larger than that of most boards, so that a model that does not fit can be looked at.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from mcugen.errors import UsageError

_KIB = 1024
_MIB = 1024 * _KIB


@dataclass(frozen=True)
class Region:
    """A range of a machine's memory, in bytes, and its name in the linker script."""

    name: str
    origin: int
    size: int


@dataclass(frozen=True)
class Machine:
    """A machine of `qemu-system-arm -M`, whose SysTick counts `clock_hz`."""

    name: str
    clock_hz: int
    regions: tuple[Region, ...]
    weights_region: str = "BULK"
    arena_region: str = "BULK"

    def with_memories(self, sizes: Mapping[str, int]) -> tuple[Region, ...]:
        """The regions, and one of its own for each memory (bytes by name), at the expense of the arena's.

        The largest memories are cut to what there is.
        """
        (bulk,) = (r for r in self.regions if r.name == self.arena_region)
        origin, left, cut = bulk.origin, bulk.size, list[Region]()
        for name, size in sorted(sizes.items(), key=lambda item: (item[1], item[0])):
            taken = min(size, left // 2 & -_KIB)
            cut.append(Region(name, origin, taken))
            origin, left = origin + taken, left - taken
        rest = Region(bulk.name, origin, left)
        return (*(rest if r == bulk else r for r in self.regions), *cut)


def _machine(name: str, clock_hz: int, code: int, data: int, bulk: tuple[int, int]) -> Machine:
    """A machine with 4 MiB each for code and data, and a large RAM for weights and arena."""
    regions = (
        Region("VECTORS", code, _KIB),
        Region("CODE", code + _KIB, 4 * _MIB - _KIB),
        Region("DATA", data, 4 * _MIB),
        Region("BULK", *bulk),
    )
    return Machine(name, clock_hz, regions)


def _mps2(name: str, psram: int) -> Machine:
    return _machine(name, 25_000_000, 0, 0x2000_0000, (psram, 16 * _MIB))


_AN385 = _mps2("mps2-an385", 0x2100_0000)
_AN386 = _mps2("mps2-an386", 0x2100_0000)
_AN500 = _mps2("mps2-an500", 0x6000_0000)
# The secure aliases: these CPUs start in the secure state.
_AN505 = _machine("mps2-an505", 20_000_000, 0x1000_0000, 0x3800_0000, (0x8000_0000, 16 * _MIB))
_AN547 = Machine(
    "mps3-an547",
    32_000_000,
    (
        Region("VECTORS", 0x1000_0000, _KIB),
        Region("CODE", 0x1100_0000, 2 * _MIB),
        Region("DATA", 0x3100_0000, 4 * _MIB),
        Region("BULK", 0x7000_0000, 256 * _MIB),
    ),
)
_MICROBIT = Machine(
    "microbit",
    16_000_000,
    (
        Region("VECTORS", 0, _KIB),
        Region("CODE", _KIB, 255 * _KIB),
        Region("DATA", 0x2000_0000, 16 * _KIB),
    ),
    weights_region="CODE",
    arena_region="DATA",
)

_MACHINES = {machine.name: machine for machine in (_AN385, _AN386, _AN500, _AN505, _AN547, _MICROBIT)}


def find_machine(name: str) -> Machine:
    """The machine of that name; UsageError if mcugen has no harness for it."""
    if name not in _MACHINES:
        near = difflib.get_close_matches(name, _MACHINES) or sorted(_MACHINES)
        raise UsageError("a board's 'qemu' must be a machine mcugen knows", repr(name), "one of " + ", ".join(near))
    return _MACHINES[name]
