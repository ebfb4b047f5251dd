# SPDX-License-Identifier: Apache-2.0
"""RISC-V: instructions as objdump names them, and timings of some cores.

Sources: Hazard3's documentation, "Instruction cycle counts" and "Branch predictor" (configured as in the RP2350: fast
multiplier, two bits of a division in each cycle). For the ESP32-C3 and -C6, Espressif's reference manuals describe four
in-order stages, a multiplier and a divider; for the Bumblebee, Nuclei's manual describes two stages and static branch
prediction. Neither gives cycles, so that the timings of these cores are assumptions.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path

from mcugen.simulation.disassembly import Instruction
from mcugen.simulation.pipelines import Rule, Scoreboard, is_one_of
from mcugen.simulation.toolchain import RISCV, find_program

_LINE = re.compile(r"\s*([0-9a-f]+):\t([0-9a-f]{4}|[0-9a-f]{8})\s+\t(\S+)(?:\s+([^#]*))?")
_REGISTER = re.compile(r"\b(f?[ast]\d+|[sgt]p|ra|fs\d+|ft\d+|fa\d+)\b")
_LOAD, _STORE = r"l[bhw]u?|flw|lr", r"s[bhw]|fsw|sc"
_JUMP, _BRANCH = r"j|jal|jr|jalr|ret|call|tail", r"b(eq|ne|lt|ge|gt|le)u?z?"
_DIVISION, _PRODUCT, _FLOAT = r"divu?|remu?", r"mul\w*", r"f\w+"
_UNITS = (
    ("branch", rf"{_JUMP}|{_BRANCH}"),
    ("memory", rf"{_LOAD}|{_STORE}"),
    ("float", _FLOAT),
    ("multiply", _PRODUCT),
    ("shift", r"s[lr][la]i?"),
)


class RiscvInstruction(Instruction):
    """A RISC-V instruction; its mnemonic has no mark for compressed instructions."""

    @cached_property
    def registers(self) -> tuple[str, ...]:
        """Return all registers that the instruction names, except the zero register."""
        return tuple(_REGISTER.findall(" ".join(self.operands)))

    @cached_property
    def unit(self) -> str:
        """Return the CPU unit, by the same names as for Arm."""
        return next((unit for unit, pattern in _UNITS if is_one_of(pattern, self)), "alu")

    @cached_property
    def is_store(self) -> bool:
        """Return whether the instruction writes memory."""
        return is_one_of(_STORE, self)

    @cached_property
    def address_registers(self) -> frozenset[str]:
        """Return the address registers, which operands name in parentheses."""
        return frozenset(r for operand in self.operands if "(" in operand for r in _REGISTER.findall(operand))

    @cached_property
    def results(self) -> frozenset[str]:
        """Return the register of the first operand, unless the instruction is a store or branch."""
        if self.is_store or is_one_of(rf"{_BRANCH}|j|jr|ret|tail", self):
            return frozenset()
        return frozenset(_REGISTER.findall(self.operands[0])) if self.operands else frozenset()

    @cached_property
    def moved(self) -> frozenset[str]:
        """Return an empty set: RISC-V has no addressing that changes registers."""
        return frozenset()


def disassemble(program: Path) -> dict[int, Instruction]:
    """Return the code of a RISC-V program by address."""
    command = [find_program(RISCV.objdump), "-d", str(program)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {instruction.address: instruction for instruction in parse(text.splitlines())}


def parse(lines: Iterable[str]) -> Iterator[Instruction]:
    """Parse the output of objdump: yield the instruction in each line, and skip lines without one."""
    for match in filter(None, map(_LINE.match, lines)):
        address, code, mnemonic, operands = match.groups("")
        if not mnemonic.startswith("."):
            named = tuple(o.strip() for o in re.sub(r"<[^>]*>", "", operands).split(",") if o.strip())
            yield RiscvInstruction(int(address, 16), len(code) // 2, mnemonic.removeprefix("c."), named)


def _goes_back(branch: Instruction, target: Instruction) -> bool:
    return is_one_of(_BRANCH, branch) and target.address <= branch.address


def _rule(instruction: Instruction, *, division: int) -> Rule:
    """Return the rule of a core whose divisions take so many cycles."""
    if is_one_of(_LOAD, instruction):
        return Rule({}, latency=2)
    return Rule({}, latency=division, cycles=division) if is_one_of(_DIVISION, instruction) else Rule({})


# Hazard3


def _stored_late(instruction: Instruction, register: str) -> int:
    """Return when an operand is needed: a stored value may come from the load just before."""
    return -1 if instruction.is_store and register not in instruction.address_registers else 0


def hazard3_refill(branch: Instruction, target: Instruction) -> int:
    """Return the cycles that a branch on Hazard3 takes in addition, to fetch its target.

    A branch takes one cycle, and one more for a 32-bit target in two words. Backward branches are predicted.

    Args:
        branch: The taken branch.
        target: The instruction that it branches to.
    """
    splits = target.size == 4 and target.address % 4 == 2
    return 0 if _goes_back(branch, target) else 1 + int(splits)


HAZARD3 = Scoreboard(1, {}, partial(_rule, division=18), _stored_late)
"""Pipeline of Hazard3 as in the RP2350, from its documentation."""


# ESP32-C3 and C6, Bumblebee: assumed


def esp32_refill(branch: Instruction, target: Instruction) -> int:
    """Return the cycles that a taken branch on ESP32-C3 and -C6 takes in addition: 1 for a jump, else 2.

    Args:
        branch: The taken branch.
        target: The instruction that it branches to, which does not matter.
    """
    del target
    return 1 if is_one_of(_JUMP, branch) else 2


ESP32 = Scoreboard(1, {}, partial(_rule, division=33))
"""Pipeline of the ESP32-C3 and -C6 (assumed)."""


def _bumblebee_rule(instruction: Instruction) -> Rule:
    if is_one_of(rf"{_LOAD}|{_PRODUCT}", instruction):
        return Rule({}, latency=2)
    return Rule({}, latency=17, cycles=17) if is_one_of(_DIVISION, instruction) else Rule({})


def bumblebee_refill(branch: Instruction, target: Instruction) -> int:
    """Return the cycles that a taken branch on Bumblebee takes in addition: 0 for a backward branch, else 1.

    Backward branches are predicted.

    Args:
        branch: The taken branch.
        target: The instruction that it branches to.
    """
    return 0 if _goes_back(branch, target) else 1


BUMBLEBEE = Scoreboard(1, {}, _bumblebee_rule)
"""Pipeline of Nuclei's Bumblebee, as in the GD32VF103 (assumed)."""
