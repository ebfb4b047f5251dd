# SPDX-License-Identifier: Apache-2.0
"""How many cycles a CPU takes for instructions that follow each other, from memory without wait states.

Sources: Technical Reference Manuals of the Cortex-M4 (ARM DDI 0439, sections 3.3 and 7.2.3), the Cortex-M3 (ARM DDI
0337, 3.3) and the Cortex-M0+ (ARM DDI 0484, 3.3). Arm publishes nothing of the kind for the Cortex-M7: that one is a
model. docs/performance.md says what is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from mcugen.simulate.disassembly import Instruction, registers


class Pipeline(Protocol):
    """A CPU's timing without branches."""

    def each(self, instructions: Sequence[Instruction]) -> list[int]:
        """Cycles by which each moves time on, of instructions that run one after the other; none branches."""
        ...


@dataclass(frozen=True)
class Timing:
    """How long the instructions of a CPU take."""

    title: str
    pipeline: Pipeline
    refill: int
    """Cycles more for a branch that is taken."""
    splits_unaligned: bool
    """Whether unaligned accesses take a cycle for each further transfer."""

    def cycles(self, instructions: Sequence[Instruction]) -> int:
        """Of instructions that run one after the other, of which only the last may branch, and does not."""
        return sum(self.pipeline.each(instructions))


Price = int | Callable[[Instruction], int]
Prices = tuple[tuple[str, Price], ...]
"""Cycles by mnemonic: of the first expression that matches it, without the types behind a point."""

_MULTIPLE = r"v?push|v?pop|v?(ld|st)m\w*"
_MEMORY = rf"{_MULTIPLE}|v?(ld|st)r\w*"
_MAC = r"vf?n?m(a|s|la|ls)"
_BRANCH = r"b|bx|blx?|cbn?z|tb[bh]"
_DIVISION = 7  # 2 to 12, by the operands


def _is(pattern: str, instruction: Instruction) -> bool:
    return re.fullmatch(pattern, instruction.mnemonic.partition(".")[0]) is not None


def _price(prices: Prices, instruction: Instruction) -> int:
    price = next((price for pattern, price in prices if _is(pattern, instruction)), 1)
    return price if isinstance(price, int) else price(instruction)


def _words(instruction: Instruction) -> int:
    """How many registers a load or store of one or more moves."""
    listed = [operand for operand in instruction.operands if operand.startswith("{")]
    return len(registers(listed[0] if listed else instruction.operands[0]))


@dataclass(frozen=True)
class InOrder:
    """One instruction after the other; `stall` is what the second of two takes more, or less, behind the first."""

    prices: Prices
    stall: Callable[[Instruction, Instruction], int]

    def each(self, instructions: Sequence[Instruction]) -> list[int]:
        """Prices and stalls."""
        stalls = [0, *(self.stall(before, after) for before, after in pairwise(instructions))]
        return [_price(self.prices, i) + stall for i, stall in zip(instructions, stalls, strict=False)]


# Cortex-M3 and M4


def _has_register_offset(instruction: Instruction) -> bool:
    return len(instruction.address_registers) > 1


_M4_PRICES: Prices = (
    (r"ldrd|strd", 3),
    (_MULTIPLE, lambda i: 1 + _words(i)),
    (r"vldr|vstr", lambda i: 1 + _words(i)),
    (r"ldr\w*", 2),
    (r"str\w*", lambda i: 2 if _has_register_offset(i) else 1),
    (r"[su]div", _DIVISION),
    (r"tb[bh]", 2),
    (r"vdiv|vsqrt", 14),
    (_MAC, 3),
    (r"vmov", lambda i: 2 if len(i.registers) > 2 else 1),
)
_M3_PRICES: Prices = (
    (r"ml[as]", 2),
    (r"[su]mull", 5),  # 3 to 5: multipliers of requantization have all their bits
    (r"[su]mlal", 7),  # 4 to 7
    *_M4_PRICES,
)


def _m4_stall(before: Instruction, after: Instruction) -> int:
    if _is(_MEMORY, after):
        return _address_stall(before, after)
    return _float_stall(before, after)


def _address_stall(before: Instruction, after: Instruction) -> int:
    """Of a load or store. A single one overlaps with a single load before it unless that loads its address."""
    depends = bool(before.results & after.address_registers)
    if not _is(_MEMORY, before):
        return int(depends) + _float_stall(before, after)
    overlaps = _is(r"ldr(?!d)\w*", before) and not depends
    return -1 if overlaps and _is(r"(ldr|str)(?!d)\w*", after) and _price(_M4_PRICES, after) == 2 else 0


def _float_stall(before: Instruction, after: Instruction) -> int:
    """A result of floating-point arithmetic comes a cycle late, but not too late to be an addend."""
    is_arithmetic = before.mnemonic.startswith("v") and not _is(rf"{_MEMORY}|vmov|vmrs|vmsr", before)
    reads_first = after.is_store or _is(r"vcmpe?", after)
    read = registers(" ".join(after.operands if reads_first else after.operands[1:]))
    return int(is_arithmetic and not before.results.isdisjoint(read))


# Cortex-M0+

_M0PLUS_PRICES: Prices = (
    (r"pop", lambda i: 1 + _words(i) + ("pc" in i.registers)),
    (_MULTIPLE, lambda i: 1 + _words(i)),
    (r"(ldr|str)\w*", 2),
    (r"bl", 2),
)


# Cortex-M7

_M7_PRICES: Prices = (
    (_MULTIPLE, lambda i: -(-_words(i) // 2)),  # two words a cycle
    (r"[su]div", _DIVISION),
    (r"vdiv|vsqrt", 16),
)
_UNITS = (
    ("branch", _BRANCH),
    ("memory", _MEMORY),
    ("float", r"v\w*"),
    ("multiply", r"muls?|ml[as]|[su]m[alu]\w+|smm\w+"),
    (
        "shift",
        r"(ls[lr]|asr|ror)s?|[su]xt\w+|[su]bfx|bf[ci]|pkh\w+|[su]sat\w*|rev\w*|[suq]h?q?(add|sub|asx|sax)(8|16)?",
    ),
)
_LATENCY = {"memory": 2, "multiply": 2, "float": 3}
"""Cycles from issue until a result can be used; 1 elsewhere."""


def unit_of(instruction: Instruction) -> str:
    """What part of a CPU an instruction occupies: branch, memory, float, multiply, shift (unpacks too) or alu."""
    unit = next((unit for unit, pattern in _UNITS if _is(pattern, instruction)), "alu")
    shifted = re.search(r"\b(lsl|lsr|asr|ror) ", " ".join(instruction.operands[1:]))
    return "shift" if unit == "alu" and shifted else unit


class DualIssue:
    """Up to two instructions a cycle, in order: not two of one unit unless it is `alu`, and nothing behind a branch.

    What takes several cycles issues alone. A sum of products is forwarded to the next as its addend.
    """

    def each(self, instructions: Sequence[Instruction]) -> list[int]:
        """From the issue of one to that of the next; of the last until it has issued."""
        now, issued = 0, list[int]()
        group: tuple[Instruction, ...] = ()
        ready: dict[str, int] = {}
        for instruction in instructions:
            usable = self._usable(instruction, ready)
            if group and (usable > now or not self._pairs(group, instruction)):
                now, group = now + _price(_M7_PRICES, group[-1]), ()
            now = max(now, usable)
            group = (*group, instruction)
            issued.append(now)
            latency = _LATENCY.get(unit_of(instruction), 1)
            ready |= dict.fromkeys(instruction.results, now + latency) | dict.fromkeys(instruction.moved, now + 1)
        end = now + (_price(_M7_PRICES, group[-1]) if group else 0)
        return [after - before for before, after in pairwise([*issued, end])]

    def _usable(self, instruction: Instruction, ready: dict[str, int]) -> int:
        """The cycle in which all is there."""
        return max((ready[r] - self._forwarded(instruction, r) for r in instruction.registers if r in ready), default=0)

    def _forwarded(self, instruction: Instruction, register: str) -> int:
        addends = instruction.operands[:2] if len(instruction.results) == 2 else instruction.operands[3:]
        return int(unit_of(instruction) == "multiply" and register in addends)

    def _pairs(self, group: tuple[Instruction, ...], instruction: Instruction) -> bool:
        first, second = unit_of(group[-1]), unit_of(instruction)
        short = _price(_M7_PRICES, group[-1]) == _price(_M7_PRICES, instruction) == 1
        return len(group) == 1 and short and first != "branch" and (first != second or first == "alu")


_M4 = InOrder(_M4_PRICES, _m4_stall)
TIMINGS = {
    "cortex-m0plus": Timing("Cortex-M0+ by its manual", InOrder(_M0PLUS_PRICES, lambda *_: 0), 1, True),
    "cortex-m3": Timing("Cortex-M3 by its manual", InOrder(_M3_PRICES, _m4_stall), 2, True),
    "cortex-m4": Timing("Cortex-M4 by its manual", _M4, 2, True),
    "cortex-m7": Timing("a model of a Cortex-M7", DualIssue(), 0, False),
}
"""By a board's `cpu`. A pipeline is refilled in one to three cycles: two are taken."""
