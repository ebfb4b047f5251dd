# SPDX-License-Identifier: Apache-2.0
"""The instructions of a linked program from binutils' objdump, as mnemonics and operands."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mcugen.simulation.toolchain import ARM, find_program

_LINE = re.compile(r"\s*([0-9a-f]+):\t((?:[0-9a-f]{4} ?){1,2})\s*\t(\S+)(?:\s+([^@]*))?")
_OPERAND = re.compile(r"\[[^]]*\]!?|\{[^}]*\}|[^,\[{]+(?:\[\d+\])?")
_REGISTERS = re.compile(r"\b(r|s|d|q)(\d+)(?:-\1(\d+))?\b|\b(sp|lr|pc)\b")
_CONDITIONAL_BRANCH = re.compile(r"b(?:eq|ne|cs|cc|mi|pl|vs|vc|hi|ls|ge|lt|gt|le)")
_IF_THEN = re.compile(r"it[te]{0,3}")


def registers(text: str) -> tuple[str, ...]:
    """Return the registers in the text of operands, in order.

    A range is expanded; a double register (d) is named as two single ones (s), and a vector register (q) as four.
    """
    return tuple(name for match in _REGISTERS.finditer(text) for name in _expand(match))


def _expand(match: re.Match[str]) -> Iterator[str]:
    bank, first, last, special = match.groups()
    if special:
        yield special
        return
    singles = {"d": 2, "q": 4}.get(bank)
    for number in range(int(first), int(last or first) + 1):
        if singles:
            yield from (f"s{singles * number + i}" for i in range(singles))
        else:
            yield f"{bank}{number}"


_STORE = re.compile(r"v?st[rm]|v?push")
_TWO_RESULTS = re.compile(r"[su]m(?:ull|lal|lsl|aal)|ldrd|vr?ml[as]ld|vaddlv|sqrshrl|uqrshll|asrl|ls[lr]l")
_NO_RESULT = re.compile(r"(v?cmpe?|cmn|tst|teq|v?msr|b|bx|blx?|cbn?z|tb[bh]|nop|it[te]*|pld|vp\w+|vctp)(\.\w+)*")
_UNITS = (
    ("branch", r"b|bx|blx?|cbn?z|tb[bh]|letp|le"),
    ("memory", r"v?push|v?pop|v?(ld|st)[rm]\w*|v(ld|st)[24]\w"),
    ("float", r"v\w*"),
    ("multiply", r"muls?|ml[as]|[su]m[alu]\w+|smm\w+"),
    (
        "shift",
        r"(ls[lr]|asr|ror)s?|[su]xt\w+|[su]bfx|bf[ci]|pkh\w+|[su]sat\w*|rev\w*|[suq]h?q?(add|sub|asx|sax)(8|16)?",
    ),
)


@dataclass(frozen=True)
class Instruction:
    """One Arm instruction.

    Attributes:
        address: Its address.
        size: Its length in bytes, 2 or 4.
        mnemonic: Its name without condition and width (`vadd.f32`, not `vaddeq.f32`; `b`, not `bne.n`).
        operands: Its operands as objdump writes them, without labels: "r0", "#4", "[r1, #8]!", "{r4, r5}", "lsl #2".
    """

    address: int
    size: int
    mnemonic: str
    operands: tuple[str, ...]

    @property
    def end(self) -> int:
        """Return the address of the byte after the instruction."""
        return self.address + self.size

    @cached_property
    def registers(self) -> tuple[str, ...]:
        """Return all registers that the instruction names."""
        return registers(" ".join(self.operands))

    @cached_property
    def unit(self) -> str:
        """Return the CPU unit: branch, memory, float (with vectors), multiply, shift (with unpacking) or alu."""
        stem = self.mnemonic.partition(".")[0]
        unit = next((unit for unit, pattern in _UNITS if re.fullmatch(pattern, stem)), "alu")
        shifted = re.search(r"\b(lsl|lsr|asr|ror) ", " ".join(self.operands[1:]))
        return "shift" if unit == "alu" and shifted else unit

    @cached_property
    def vectors(self) -> tuple[str, ...]:
        """Return the vector registers that the instruction names."""
        return tuple(re.findall(r"\bq\d", " ".join(self.operands)))

    @cached_property
    def is_store(self) -> bool:
        """Return whether the instruction writes memory."""
        return bool(_STORE.match(self.mnemonic))

    @cached_property
    def address_registers(self) -> frozenset[str]:
        """Return the registers that the address is computed from."""
        if re.fullmatch(r"v?(push|pop)", self.mnemonic):
            return frozenset(("sp",))
        if re.match(r"v?(ld|st)m", self.mnemonic):
            return frozenset(registers(self.operands[0]))
        return frozenset(r for operand in self.operands if operand.startswith("[") for r in registers(operand))

    @cached_property
    def results(self) -> frozenset[str]:
        """Return the registers that the instruction writes, except updated address registers."""
        if self.is_store or _NO_RESULT.fullmatch(self.mnemonic):
            return frozenset()
        listed = [operand for operand in self.operands if operand.startswith("{")]
        count = 2 if _TWO_RESULTS.match(self.mnemonic) else 1
        return frozenset(registers(" ".join(listed or self.operands[:count])))

    @cached_property
    def moved(self) -> frozenset[str]:
        """Return the address registers that the instruction updates, as pre- and post-indexed addressing does."""
        post_indexed = [a for a, b in zip(self.operands, self.operands[1:], strict=False) if a.endswith("]") and b]
        written_back = [operand for operand in self.operands if operand.endswith("!")]
        implied = ("sp",) if re.fullmatch("v?(push|pop)", self.mnemonic) else ()
        return frozenset(registers(text)[0] for text in (*post_indexed, *written_back)) | frozenset(implied)


def disassemble(program: Path, architecture: str = "") -> dict[int, Instruction]:
    """Return the instructions of an Arm program by address.

    Args:
        program: An ELF file.
        architecture: objdump's name of the architecture, which it needs for Helium; "" lets it choose.
    """
    machine = ["-m", architecture] if architecture else []
    command = [find_program(ARM.objdump), "-d", *machine, "-M", "reg-names-std", str(program)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {instruction.address: instruction for instruction in parse(text.splitlines())}


def parse(lines: Iterable[str]) -> Iterator[Instruction]:
    """Parse the output of objdump: yield the instruction in each line, and skip lines without one."""
    conditional = 0  # Number of instructions left in an IT block.
    for match in filter(None, map(_LINE.match, lines)):
        address, code, mnemonic, operands = match.groups("")
        if mnemonic.startswith("."):
            continue
        yield Instruction(
            address=int(address, 16),
            size=2 * len(code.split()),
            mnemonic=_plain(mnemonic, conditional > 0),
            operands=tuple(o.strip() for o in _OPERAND.findall(operands) if o.strip() and "<" not in o),
        )
        conditional = len(mnemonic) - 1 if _IF_THEN.fullmatch(mnemonic) else max(conditional - 1, 0)


def _plain(mnemonic: str, conditional: bool) -> str:
    stem, dot, types = mnemonic.partition(".")
    types = "" if types in ("n", "w") else dot + types
    if conditional:
        stem = stem[:-2]
    return ("b" if _CONDITIONAL_BRANCH.fullmatch(stem) else stem) + types
