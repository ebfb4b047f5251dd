# SPDX-License-Identifier: Apache-2.0
"""What straight-line code computes: the final value of each register as an expression of the first values.

This checks scheduled code independently of the search: it executes a text in its order and knows of no dependencies.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TypeAlias

from loops.clean import FIRST_SYMBOL, instruction_of

Expression: TypeAlias = tuple[object, ...]
"""A first value ("register", name), a loaded word ("load", pointer, offset), or an operation with its operands."""

_ADDRESS = re.compile(r"\[(\w+)(?:, #(-?\d+))?\]")


def results(texts: Sequence[str], ignored: Collection[str]) -> dict[str, Expression]:
    """Return the final expression of each register that the code writes, but for symbolic and ignored registers.

    Args:
        texts: The instructions: loads of words, additions of constants, and arithmetic without flags.
        ignored: Registers whose final values nobody reads.
    """
    values: dict[str, Expression] = {}

    def value(register: str) -> Expression:
        return values.get(register, ("register", register))

    def moved(register: str, size: int) -> Expression:
        before = value(register)
        base, offset = (before[1], before[2]) if before[0] == "sum" else (before, 0)
        return ("sum", base, int(str(offset)) + size)

    for text in texts:
        instruction = instruction_of(text)
        target, *operands = (operand.strip() for operand in instruction.operands)
        if instruction.mnemonic == "ldr":
            address = _ADDRESS.fullmatch(operands[0])
            if address is None:
                raise ValueError(f"the address must be a register and a constant: {text}")
            pointer, loaded = address[1], moved(address[1], int(address[2] or 0))
            if len(operands) == 2:
                values[pointer] = moved(pointer, int(operands[1].removeprefix("#")))
            values[target] = ("load", loaded)
        elif instruction.mnemonic == "add" and operands[-1].startswith("#"):
            values[target] = moved(operands[0], int(operands[-1].removeprefix("#")))
        else:
            read = tuple(value(o) if re.fullmatch(r"r\d+|lr", o) else ("constant", o) for o in operands)
            values[target] = (instruction.mnemonic, *read)
    return {
        register: expression
        for register, expression in values.items()
        if register not in ignored and not (register.startswith("r") and int(register[1:]) >= FIRST_SYMBOL)
    }
