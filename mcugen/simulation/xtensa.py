# SPDX-License-Identifier: Apache-2.0
"""Xtensa: instructions as objdump names them, and timings of the cores in the ESP32, ESP32-S2 and ESP32-S3.

Sources: the headers core-isa.h in ESP-IDF (components/xtensa) say which instructions a core has, and whether its
pipeline has five stages (ESP32-S3) or seven (ESP32, ESP32-S2). Espressif publishes no cycles: the timings are
assumptions. The test firmware is code for an LX106, which calls functions where these cores have an instruction; such
a call counts as the instruction (`Timing.replaced`).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path

from mcugen.simulation.disassembly import Instruction
from mcugen.simulation.pipelines import Rule, Scoreboard, is_one_of
from mcugen.simulation.toolchain import XTENSA, find_program

_LINE = re.compile(r"\s*([0-9a-f]+):\t([0-9a-f]{4}|[0-9a-f]{6})\s+\t(\S+)(?:\s+(.*))?")
_REGISTER = re.compile(r"\ba(?:1[0-5]|\d)\b")
_LOAD, _STORE = r"l32i|l32r|l16[su]i|l8ui", r"s32i|s16i|s8i"
_JUMP = r"j|jx|call0|callx0|ret"
_BRANCH = r"b(eqz?|nez?|gez?|ltz?|geu|ltu|eqi|nei|gei|lti|geui|ltui|any|none|all|nall|bci?|bsi?)"
_PRODUCT = r"mull|mul16[su]"
_UNITS = (
    ("branch", rf"{_JUMP}|{_BRANCH}"),
    ("memory", rf"{_LOAD}|{_STORE}"),
    ("multiply", _PRODUCT),
    ("shift", r"s[lr][la]i?|src|ssa\w+|ss[lr]|extui"),
)


RESYNC_BYTES = 64
"""Number of bytes that are disassembled again from a missed instruction: most of a basic block."""


class XtensaInstruction(Instruction):
    """An Xtensa instruction of the base set; its mnemonic has no mark for narrow instructions."""

    @cached_property
    def target(self) -> int | None:
        """Return the address that a branch names; None for other instructions."""
        last = self.operands[-1] if self.operands else ""
        return int(last, 16) if self.unit == "branch" and re.fullmatch(r"[0-9a-f]{8}", last) else None

    @cached_property
    def registers(self) -> tuple[str, ...]:
        """Return all registers that the instruction names."""
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
        """Return the address register, which is the second operand of a load or store."""
        return frozenset(self.operands[1:2]) & frozenset(self.registers) if self.unit == "memory" else frozenset()

    @cached_property
    def results(self) -> frozenset[str]:
        """Return the register of the first operand, unless the instruction is a store or branch."""
        if self.is_store or self.unit == "branch" or not self.operands:
            return frozenset()
        return frozenset(_REGISTER.findall(self.operands[0]))

    @cached_property
    def moved(self) -> frozenset[str]:
        """Return an empty set: these loads and stores change no address register."""
        return frozenset()


def disassemble(program: Path) -> dict[int, Instruction]:
    """Return the code of an Xtensa program by address.

    objdump takes padding and literals between instructions for code, and may then miss the instruction behind. Targets
    of branches that it missed are read again from there.
    """
    code: dict[int, Instruction] = {}
    begins: Iterable[int | None] = (None,)
    while begins:
        instructions = [instruction for begin in begins for instruction in _read(program, begin)]
        code |= {instruction.address: instruction for instruction in instructions}
        targets = {instruction.target for instruction in instructions if instruction.target is not None}
        begins = [begin for begin in targets - code.keys() if min(code) <= begin <= max(code)]
    return code


def _read(program: Path, begin: int | None) -> list[XtensaInstruction]:
    """Return the instructions of a program; with an address, those of the next RESYNC_BYTES bytes."""
    some = [] if begin is None else [f"--start-address={begin:#x}", f"--stop-address={begin + RESYNC_BYTES:#x}"]
    command = [find_program(XTENSA.objdump), "-d", *some, str(program)]
    return list(parse(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()))


def parse(lines: Iterable[str]) -> Iterator[XtensaInstruction]:
    """Parse the output of objdump: yield the instruction in each line, and skip literals and lines without one."""
    for match in filter(None, map(_LINE.match, lines)):
        address, code, mnemonic, operands = match.groups("")
        if not mnemonic.startswith("."):
            plain = re.sub(r"[<(].*", "", operands)
            named = tuple(o.strip() for o in plain.split(",") if o.strip())
            yield XtensaInstruction(int(address, 16), len(code) // 2, mnemonic.removesuffix(".n"), named)


def _rule(instruction: Instruction, *, load: int) -> Rule:
    """Return the rule of a core on which the result of a load is usable after `load` cycles."""
    if is_one_of(_LOAD, instruction):
        return Rule({}, latency=load)
    return Rule({}, latency=2) if is_one_of(_PRODUCT, instruction) else Rule({})


FIVE_STAGES = Scoreboard(1, {}, partial(_rule, load=2))
"""Pipeline of an Xtensa LX core with five stages (assumed)."""
SEVEN_STAGES = Scoreboard(1, {}, partial(_rule, load=3))
"""Pipeline of an Xtensa LX core with seven stages (assumed)."""


def refill(branch: Instruction, target: Instruction, *, stages: int, loops: bool) -> int:
    """Return the additional cycles of a taken branch (assumed): 2 with five stages, 3 with seven.

    Args:
        branch: The taken branch.
        target: The instruction that it branches to.
        stages: Number of stages of the pipeline.
        loops: Whether the core has zero-overhead loops, so that a conditional branch backward needs no refill.
    """
    if loops and target.address <= branch.address and is_one_of(_BRANCH, branch):
        return 0
    return 2 if stages == 5 else 3


_PRODUCTS = dict.fromkeys(("__muldi3", "__umulsidi3"), 2)
_QUOTIENTS = dict.fromkeys(("__divsi3", "__udivsi3", "__modsi3", "__umodsi3"), 13)
_COMPARED = ("eq", "ne", "ge", "gt", "le", "lt", "unord")
_FLOATS = {
    **dict.fromkeys(("__addsf3", "__subsf3", "__mulsf3", "__negsf2", "__floatsisf", "__floatunsisf"), 1),
    **dict.fromkeys(("__fixsfsi", "__fixunssfsi", *(f"__{name}sf2" for name in _COMPARED)), 1),
    "__divsf3": 15,
}
SOFT_FLOATS = {
    **dict.fromkeys(("__addsf3", "__subsf3"), 50),
    **dict.fromkeys(("__mulsf3", "__floatsisf", "__floatunsisf", "__fixunssfsi"), 40),
    **dict.fromkeys(("__adddf3", "__subdf3", "__muldf3"), 90),
    "__divdf3": 600,
}
"""Cycles of libgcc's float functions (assumed), which are faster than those of the test firmware."""
WITH_FPU: Mapping[str, int] = {**SOFT_FLOATS, **_PRODUCTS, **_QUOTIENTS, **_FLOATS}
"""Cycles of the instructions of the ESP32 and ESP32-S3 in place of functions (assumed), and of libgcc's functions."""
WITHOUT_FPU: Mapping[str, int] = {**SOFT_FLOATS, **_PRODUCTS, **_QUOTIENTS}
"""Cycles of the instructions of the ESP32-S2 in place of functions (assumed), and of libgcc's functions."""
