# SPDX-License-Identifier: Apache-2.0
"""How many cycles the cores take for instructions that follow each other, from memory without wait states.

Sources stand with the rules, in cortex_m and riscv; docs/performance.md says what is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcugen.simulate import cortex_m, riscv
from mcugen.simulate.disassembly import Instruction, disassemble
from mcugen.simulate.pipelines import Pipeline

Refill = Callable[[Instruction, Instruction], int]
"""Cycles more for a branch that is taken, by the branch and what it goes to."""


@dataclass(frozen=True)
class Timing:
    """How long the instructions of a core take."""

    title: str
    pipeline: Pipeline
    refill: Refill
    splits_unaligned: bool
    """Whether unaligned accesses take a cycle for each further transfer."""
    read: Callable[[Path], Mapping[int, Instruction]] = disassemble
    """The code of a program by address."""

    def cycles(self, instructions: Sequence[Instruction]) -> int:
        """Of instructions that run one after the other, of which only the last may branch, and does not."""
        return sum(self.pipeline.each(instructions))


def _always(cycles: int) -> Refill:
    """A pipeline is refilled in one to three cycles by an M3 or M4: two are taken."""
    return lambda branch, target: cycles


def _but_loops(cycles: int) -> Refill:
    """The end of a low-overhead loop is no branch from its second round on."""
    return lambda branch, target: 0 if branch.mnemonic in ("le", "letp") else cycles


TIMINGS = {
    "cortex-m0plus": Timing("Cortex-M0+ by its manual", cortex_m.M0PLUS, _always(1), True),
    "cortex-m3": Timing("Cortex-M3 by its manual", cortex_m.M3, _always(2), True),
    "cortex-m4": Timing("Cortex-M4 by its manual", cortex_m.M4, _always(2), True),
    "cortex-m7": Timing("a model of a Cortex-M7", cortex_m.M7, _always(0), False),
    "cortex-m33": Timing("a model of a Cortex-M33", cortex_m.M33, _always(1), True),
    "cortex-m55": Timing("a model of a Cortex-M55", cortex_m.M55, _but_loops(2), True),
    "cortex-m85": Timing("a model of a Cortex-M85", cortex_m.M85, _always(0), False),
    "hazard3": Timing("Hazard3 by its manual", riscv.HAZARD3, riscv.hazard3_refill, False, riscv.disassemble),
    "esp32c3": Timing("a model of an ESP32-C3", riscv.ESP32, riscv.esp32_refill, False, riscv.disassemble),
    "esp32c6": Timing("a model of an ESP32-C6", riscv.ESP32, riscv.esp32_refill, False, riscv.disassemble),
    "gd32vf103": Timing("a model of a Bumblebee", riscv.BUMBLEBEE, riscv.bumblebee_refill, False, riscv.disassemble),
}
"""By a board's `core`."""
