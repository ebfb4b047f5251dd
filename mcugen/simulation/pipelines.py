# SPDX-License-Identifier: Apache-2.0
"""Two kinds of pipelines: with prices of instructions and of what follows them, and with parts that are occupied."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from mcugen.simulation.disassembly import Instruction, registers

Price = int | Callable[[Instruction], int]
Prices = tuple[tuple[str, Price], ...]
"""Cycles by mnemonic: of the first expression that matches it, without the types behind a point."""


class Pipeline(Protocol):
    """A CPU's timing without branches."""

    def each(self, instructions: Sequence[Instruction]) -> list[int]:
        """Cycles by which each moves time on, of instructions that run one after the other; none branches."""
        ...


def is_one_of(pattern: str, instruction: Instruction) -> bool:
    """Whether the mnemonic, without the types behind a point, matches the expression."""
    return re.fullmatch(pattern, instruction.mnemonic.partition(".")[0]) is not None


def price(prices: Prices, instruction: Instruction) -> int:
    """Return the cycles of an instruction in a table; 1 if no entry matches."""
    found = next((price for pattern, price in prices if is_one_of(pattern, instruction)), 1)
    return found if isinstance(found, int) else found(instruction)


def words(instruction: Instruction) -> int:
    """Return the number of registers that a load or store moves."""
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
        return [price(self.prices, i) + stall for i, stall in zip(instructions, stalls, strict=False)]


@dataclass(frozen=True)
class Rule:
    """Timing of an instruction in a pipeline that issues in order."""

    units: Mapping[str, int]
    """Cycles for which the instruction occupies each unit."""
    latency: int = 1
    """Cycles from its issue until others can use its results."""
    moves: int = 1
    """The same for an address that it moves on."""
    cycles: int = 1
    """How long nothing can issue behind it; 0 if it takes no place at all."""
    alone: bool = False
    """Whether nothing issues with it in one cycle."""
    first: bool = False
    """Whether nothing issues before it in the same cycle."""
    last: bool = False
    """Whether nothing issues behind it in the same cycle."""


@dataclass(frozen=True)
class Scoreboard:
    """Up to `width` instructions a cycle, in order, as far as parts are free and operands are there."""

    width: int
    parts: Mapping[str, int]
    """How many there are of each; of those that are not named, one."""
    rule: Callable[[Instruction], Rule]
    needed: Callable[[Instruction, str], int] = lambda instruction, register: 0
    """How many cycles before its issue an instruction needs a register; less than 0: how many behind it."""
    pairs: Callable[[Instruction, Instruction], bool] = lambda first, second: True
    """Whether two may issue in one cycle, as far as rules do not tell."""

    def each(self, instructions: Sequence[Instruction]) -> list[int]:
        """Return the cycles from each instruction's issue to the next one's; for the last, until one could issue."""
        now, end = 0, 0  # the cycle of the group that issues, the one behind it
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
        """Whether it issues in one cycle with the group."""
        closed = any(other.alone or other.last or other.cycles > 1 for other in map(self.rule, group))
        if closed or rule.alone or rule.first or len(group) == self.width:
            return False
        return all(self.pairs(other, instruction) for other in group)
