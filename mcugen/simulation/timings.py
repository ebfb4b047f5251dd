# SPDX-License-Identifier: Apache-2.0
"""Cycles of instruction sequences on each core, from memory without wait states.

The modules cortex_m, riscv and xtensa name the sources of the rules; docs/explanation/time_model.md lists what the
rules leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from mcugen.simulation import cortex_m, riscv, xtensa
from mcugen.simulation.disassembly import Instruction, disassemble
from mcugen.simulation.pipelines import Pipeline

Refill = Callable[[Instruction, Instruction], int]
"""Function that returns the additional cycles of a taken branch, from the branch and its target."""


REPLACED_PARTS = "soft_"
"""Beginning of the names of functions that only functions in `Timing.replaced` call."""


@dataclass(frozen=True)
class Timing:
    """The timing rules of a CPU core, by which the cycles of executed instructions are estimated."""

    title: str
    """The core and the source of its timing, for reports."""
    pipeline: Pipeline
    """Pipeline that gives the cycles of straight-line code."""
    refill: Refill
    """Function that returns the additional cycles of a taken branch."""
    splits_unaligned: bool
    """Whether an unaligned access takes one more cycle for each further bus transfer."""
    read: Callable[[Path], Mapping[int, Instruction]] = disassemble
    """Function that disassembles a program and returns its instructions by address."""
    replaced: Mapping[str, int] = field(default_factory=dict)
    """Functions that the test firmware calls where this core has instructions, and the cycles of those."""

    def cycles(self, instructions: Sequence[Instruction]) -> int:
        """Return the cycles of consecutive instructions; only the last may be a branch, and it is not taken."""
        return sum(self.pipeline.each(instructions))


def _always(cycles: int) -> Refill:
    """Return a constant refill. The manuals give one to three cycles for an M3 or M4; two are assumed."""
    return lambda branch, target: cycles


def _but_loops(cycles: int) -> Refill:
    """Return a constant refill, but none at the end of a low-overhead loop, which is no branch from round two on."""
    return lambda branch, target: 0 if branch.mnemonic in ("le", "letp") else cycles


def _xtensa(title: str, pipeline: Pipeline, replaced: Mapping[str, int], *, stages: int, loops: bool = False) -> Timing:
    refill = partial(xtensa.refill, stages=stages, loops=loops)
    return Timing(f"a model of {title}", pipeline, refill, False, xtensa.disassemble, replaced)


_HELIUM = partial(disassemble, architecture="armv8.1-m.main")
TIMINGS = {
    "cortex-m0plus": Timing("Cortex-M0+ by its manual", cortex_m.M0PLUS, _always(1), True),
    "cortex-m3": Timing("Cortex-M3 by its manual", cortex_m.M3, _always(2), True),
    "cortex-m4": Timing("Cortex-M4 by its manual", cortex_m.M4, _always(2), True),
    "cortex-m7": Timing("a model of a Cortex-M7", cortex_m.M7, _always(0), False),
    "cortex-m33": Timing("a model of a Cortex-M33", cortex_m.M33, _always(1), True),
    "cortex-m55": Timing("a model of a Cortex-M55", cortex_m.M55, _but_loops(2), True, _HELIUM),
    "cortex-m85": Timing("a model of a Cortex-M85", cortex_m.M85, _always(0), False, _HELIUM),
    "hazard3": Timing("Hazard3 by its manual", riscv.HAZARD3, riscv.hazard3_refill, False, riscv.disassemble),
    "esp32c3": Timing("a model of an ESP32-C3", riscv.ESP32, riscv.esp32_refill, False, riscv.disassemble),
    "esp32c6": Timing("a model of an ESP32-C6", riscv.ESP32, riscv.esp32_refill, False, riscv.disassemble),
    "gd32vf103": Timing("a model of a Bumblebee", riscv.BUMBLEBEE, riscv.bumblebee_refill, False, riscv.disassemble),
    "esp32": _xtensa("an ESP32 on code of an LX106", xtensa.SEVEN_STAGES, xtensa.WITH_FPU, stages=7, loops=True),
    "esp32s2": _xtensa("an ESP32-S2 on code of an LX106", xtensa.SEVEN_STAGES, xtensa.WITHOUT_FPU, stages=7),
    "esp32s3": _xtensa("an ESP32-S3 on code of an LX106", xtensa.FIVE_STAGES, xtensa.WITH_FPU, stages=5, loops=True),
    "lx106": _xtensa("an LX106", xtensa.FIVE_STAGES, xtensa.SOFT_FLOATS, stages=5),
}
"""Timing rules by the name of the core (`Board.core`)."""
