# SPDX-License-Identifier: Apache-2.0
"""Two pipeline models: InOrder, with a cost for each instruction and pair, and Scoreboard, with execution units."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from mcugen.simulation.disassembly import Instruction, registers

Price = int | Callable[[Instruction], int]
"""Number of cycles of an instruction, or a function that returns the number for an instruction."""
Prices = tuple[tuple[str, Price], ...]
"""Table of cycles: pairs of a regular expression and a cost. The first expression that matches the mnemonic applies."""


class Pipeline(Protocol):
    """The interface of pipeline models: the cycles that a CPU takes for straight-line code."""

    def each(self, instructions: Sequence[Instruction]) -> list[int]:
        """Return the cycles that each of several consecutive instructions adds; none of them branches."""
        ...


def is_one_of(pattern: str, instruction: Instruction) -> bool:
    """Return whether an instruction's mnemonic, without the types after a dot, matches a regular expression.

    Args:
        pattern: The regular expression of whole mnemonics.
        instruction: The instruction.
    """
    return re.fullmatch(pattern, instruction.mnemonic.partition(".")[0]) is not None


def price(prices: Prices, instruction: Instruction) -> int:
    """Return the cycles of an instruction from a table; 1 if no entry matches its mnemonic."""
    entry = next((price for pattern, price in prices if is_one_of(pattern, instruction)), 1)
    return entry if isinstance(entry, int) else entry(instruction)


def words(instruction: Instruction) -> int:
    """Return the number of 32-bit registers that a load or store transfers."""
    listed = [operand for operand in instruction.operands if operand.startswith("{")]
    return len(registers(listed[0] if listed else instruction.operands[0]))


@dataclass(frozen=True)
class InOrder:
    """A model of a single-issue, in-order pipeline.

    Attributes:
        prices: Table of the cycles of each instruction.
        stall: Returns the cycles that the second of two consecutive instructions takes longer (or, if negative,
            shorter) because of the first.
    """

    prices: Prices
    stall: Callable[[Instruction, Instruction], int]

    def each(self, instructions: Sequence[Instruction]) -> list[int]:
        """Return the cycles of each instruction, with the stall that the previous instruction causes."""
        stalls = [0, *(self.stall(before, after) for before, after in pairwise(instructions))]
        return [price(self.prices, i) + stall for i, stall in zip(instructions, stalls, strict=False)]


@dataclass(frozen=True)
class Rule:
    """Timing of one instruction in a Scoreboard pipeline."""

    units: Mapping[str, int]
    """Cycles for which the instruction occupies each unit."""
    latency: int = 1
    """Cycles from the issue until other instructions can use the results."""
    moves: int = 1
    """Cycles from the issue until other instructions can use an address register that the instruction updates."""
    cycles: int = 1
    """Cycles in which no later instruction can issue; 0 if the instruction takes no issue slot."""
    alone: bool = False
    """Whether no other instruction issues in the same cycle."""
    first: bool = False
    """Whether no earlier instruction issues in the same cycle."""
    last: bool = False
    """Whether no later instruction issues in the same cycle."""


@dataclass(frozen=True)
class Scoreboard:
    """A model of a pipeline that issues several instructions per cycle, in order.

    An instruction issues once the execution units that it needs are free and its operands are ready.
    """

    width: int
    """Largest number of instructions that issue in one cycle."""
    parts: Mapping[str, int]
    """Number of units of each kind; kinds that are not named have one."""
    rule: Callable[[Instruction], Rule]
    """Returns the timing of an instruction."""
    needed: Callable[[Instruction, str], int] = lambda instruction, register: 0
    """Returns how many cycles before its issue an instruction needs a register; negative if after the issue."""
    pairs: Callable[[Instruction, Instruction], bool] = lambda first, second: True
    """Returns whether two instructions may issue in one cycle, in addition to the rules."""

    def each(self, instructions: Sequence[Instruction]) -> list[int]:
        """Return the cycles from each instruction's issue to the next one's.

        For the last instruction, these are the cycles until a following instruction could issue.
        """
        now, end = 0, 0  # The cycle of the issuing group, and the next.
        group: list[Instruction] = []
        ready: dict[str, int] = {}
        free: dict[str, list[int]] = {}
        issued: list[int] = []
        for instruction in instructions:
            rule = self.rule(instruction)
            if rule.cycles == 0:
                issued.append(now)
                continue
            usable = self._usable(instruction, rule, ready, free)
            if group and (usable > now or not self._joins(group, instruction, rule)):
                now, group = end, []
            now = max(now, usable)
            group.append(instruction)
            issued.append(now)
            end = max(end, now + rule.cycles)
            for part, cycles in rule.units.items():
                copies = free[part]
                copies[copies.index(min(copies))] = now + cycles
            ready |= dict.fromkeys(instruction.moved, now + rule.moves)
            ready |= dict.fromkeys(instruction.results, now + rule.latency)
        return [after - before for before, after in pairwise([*issued, end])]

    def _usable(
        self, instruction: Instruction, rule: Rule, ready: Mapping[str, int], free: dict[str, list[int]]
    ) -> int:
        """Return the first cycle in which operands and units are available."""
        operands = [ready[r] + self.needed(instruction, r) for r in instruction.registers if r in ready]
        parts = [min(free.setdefault(part, [0] * self.parts.get(part, 1))) for part in rule.units]
        return max(*operands, *parts, 0, 0)

    def _joins(self, group: Sequence[Instruction], instruction: Instruction, rule: Rule) -> bool:
        """Return whether an instruction can issue in one cycle with a group."""
        closed = any(other.alone or other.last or other.cycles > 1 for other in map(self.rule, group))
        if closed or rule.alone or rule.first or len(group) == self.width:
            return False
        return all(self.pairs(other, instruction) for other in group)
