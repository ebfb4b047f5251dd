# SPDX-License-Identifier: Apache-2.0
"""Assembly with symbolic registers, and the order that its instructions must keep.

A step is straight-line code. `<name>` stands for a value in any free register; it is written once and read afterwards,
and a name that is written again stands for another value. Registers r0 to r15 are those of the surrounding code. A last
`add rN, rN, #size` moves a pointer; the load from offset 0 does it by post-indexed addressing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mcugen.simulation.disassembly import Instruction, parse

FIRST_SYMBOL = 100
"""Number of the first symbolic register: values are named r100, r101 and so on where instructions are analyzed."""

_SYMBOL = re.compile(r"<(\w+)>")
_MOVE = re.compile(r"add (r\d+), \1, #(\d+)")
_LOAD = re.compile(r"ldr (\w+), \[(r\d+), #(\d+)\]")
_SETS_FLAGS = re.compile(r"(adds|subs|cmp|cmn|tst|teq|movs|lsls|lsrs|asrs)\b")


def instruction_of(text: str) -> Instruction:
    """Return the instruction that a line of assembly states, at address 0 and four bytes long."""
    mnemonic, _, operands = text.partition(" ")
    return next(parse([f"0:\t0000 0000 \t{mnemonic.removesuffix('.w')}\t{operands}"]))


def lines_of(text: str) -> list[str]:
    """Return the instructions of a text without comments and empty lines."""
    bare = (line.partition("@")[0].strip() for line in text.splitlines())
    return [" ".join(line.split()) for line in bare if line]


@dataclass(frozen=True)
class Load:
    """A load of a word: its result, its pointer and the offset in bytes from where the pointer is before the step."""

    result: str
    pointer: str
    offset: int


@dataclass(frozen=True)
class Step:
    """The instructions of one step of a loop, in any order that their data allow.

    Attributes:
        texts: The instructions, with symbolic registers from r100 on.
        moves: Bytes by which the step moves each pointer.
    """

    texts: tuple[str, ...]
    moves: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def of(text: str) -> Step:
        """Parse clean assembly.

        Raises:
            ValueError: An instruction sets flags, stores, or reads a value that is not written before.
        """
        names: dict[str, str] = {}
        texts: list[str] = []
        moves: dict[str, int] = {}
        count = FIRST_SYMBOL
        for line in lines_of(text):
            if move := _MOVE.fullmatch(line):
                moves[move[1]] = int(move[2])
                continue
            if _SETS_FLAGS.match(line) or instruction_of(_SYMBOL.sub("r99", line)).is_store:
                raise ValueError(f"a step has loads and arithmetic without flags only: {line}")
            mnemonic, _, operands = line.partition(" ")
            written, comma, read = operands.partition(",")
            read = _SYMBOL.sub(lambda match: names[match[1]], read)
            if symbol := _SYMBOL.fullmatch(written):
                names[symbol[1]], count = f"r{count}", count + 1
                written = names[symbol[1]]
            texts.append(f"{mnemonic} {written}{comma}{read}")
        return Step(tuple(texts), moves)

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        """Return the instructions for analysis."""
        return tuple(map(instruction_of, self.texts))

    @cached_property
    def after(self) -> tuple[frozenset[int], ...]:
        """Return, for each instruction, the numbers of those that must precede it.

        These are writers of what it reads, and, for registers of the surrounding code, readers and writers of what it
        writes. Loads may change their order: a step stores nothing.
        """
        found = []
        for number, later in enumerate(self.instructions):
            reads, writes = operands_read(later), later.results
            earlier = enumerate(self.instructions[:number])
            found.append(frozenset(i for i, e in earlier if e.results & (reads | writes) or operands_read(e) & writes))
        return tuple(found)

    @cached_property
    def last_reads(self) -> dict[str, frozenset[int]]:
        """Return the numbers of the instructions that read each symbolic register."""
        symbols = {r for i in self.instructions for r in i.results if is_symbolic(r)}
        return {s: frozenset(n for n, i in enumerate(self.instructions) if s in operands_read(i)) for s in symbols}

    def load(self, number: int) -> Load | None:
        """Return the load that an instruction is; None if it is none."""
        match = _LOAD.fullmatch(self.texts[number])
        return Load(match[1], match[2], int(match[3])) if match else None

    def ordered(self, order: Sequence[int]) -> list[str]:
        """Return the instructions in an order, with the moves of pointers in the loads from offset 0."""
        moved: set[str] = set()
        texts = []
        for number in order:
            load = self.load(number)
            if load is None:
                texts.append(self.texts[number])
                continue
            size = self.moves.get(load.pointer, 0)
            if load.offset == 0 and size:
                moved.add(load.pointer)
                texts.append(f"ldr {load.result}, [{load.pointer}], #{size}")
            else:
                offset = load.offset - size * (load.pointer in moved)
                texts.append(f"ldr {load.result}, [{load.pointer}, #{offset}]")
        return texts


def is_symbolic(register: str) -> bool:
    """Return whether a register stands for a value in any free register."""
    return register.startswith("r") and int(register[1:]) >= FIRST_SYMBOL


def operands_read(instruction: Instruction) -> frozenset[str]:
    """Return the registers that an instruction reads: all that it names, but the result unless it is an operand too."""
    named = list(instruction.registers)
    for result in instruction.results:
        named.remove(result)
    return frozenset(named)


def allocate(texts: Sequence[str], free: Sequence[str]) -> list[str]:
    """Give each symbolic register one of the free registers, from where it is written to where it is last read.

    Args:
        texts: Instructions in their order.
        free: The registers that the step may overwrite.

    Raises:
        ValueError: More values are alive at once than registers are free.
    """
    instructions = [instruction_of(text) for text in texts]
    ends = {r: n for n, i in enumerate(instructions) for r in i.registers if is_symbolic(r)}
    unused, place, result = list(free), dict[str, str](), []
    for number, (text, instruction) in enumerate(zip(texts, instructions, strict=True)):
        read = [r for r in dict.fromkeys(instruction.registers) if is_symbolic(r) and r not in instruction.results]
        names = {r: place[r] for r in read}
        unused += [place[r] for r in read if ends[r] == number]
        for symbol in filter(is_symbolic, instruction.results):
            if not unused:
                raise ValueError(f"no register is free for the result of {text}")
            names[symbol] = place[symbol] = unused.pop(0)
        for symbol, register in names.items():
            text = re.sub(rf"\b{symbol}\b", register, text)
        result.append(text)
    return result
