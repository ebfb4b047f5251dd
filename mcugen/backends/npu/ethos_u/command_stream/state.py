# SPDX-License-Identifier: Apache-2.0
"""The registers of the command stream while it is decoded."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from mcugen.backends.npu.ethos_u.command_stream.errors import CommandStreamError
from mcugen.backends.npu.ethos_u.command_stream.operations import IntegerType, NpuConfiguration
from mcugen.backends.npu.ethos_u.command_stream.registers import Register

EnumType = TypeVar("EnumType", bound=Enum)
ADDRESS_BITS = 40
"""Width of addresses and strides."""


def sign_extend(value: int, bits: int) -> int:
    """Return the two's-complement value of the lowest bits of an integer."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class RegisterState:
    """The registers as the commands so far have set them.

    Attributes:
        accelerator: The NPU.
        position: Index of the word that is decoded, for messages.
    """

    def __init__(self, accelerator: NpuConfiguration) -> None:
        self.accelerator = accelerator
        self.position = 0
        self._values: dict[Register, tuple[int, int]] = {}

    def set(self, register: Register, parameter: int, payload: int) -> None:
        """Set a register to a command's parameter (16 bits) and second word (32 bits; 0 if it has none)."""
        self._values[register] = (parameter, payload)

    def invalid(self, rule: str, detail: str) -> CommandStreamError:
        """Return an error that names the word."""
        return CommandStreamError(rule, f"word {self.position}: {detail}")

    def parameter(self, register: Register) -> int:
        """Return the 16-bit parameter of a register.

        Raises:
            CommandStreamError: No command has set the register.
        """
        return self._get(register)[0]

    def payload(self, register: Register) -> int:
        """Return the 32-bit second word of a register."""
        return self._get(register)[1]

    def plus_one(self, register: Register) -> int:
        """Return a size, which its register holds minus one."""
        return self.parameter(register) + 1

    def address(self, register: Register) -> int:
        """Return an address or a length of 40 bits."""
        parameter, payload = self._get(register)
        return (parameter & 0xFF) << 32 | payload

    def signed_address(self, register: Register) -> int:
        """Return a stride, which may be negative."""
        return sign_extend(self.address(register), ADDRESS_BITS)

    def typed(self, register: Register, element_type: IntegerType) -> int:
        """Return a 16-bit value that is signed if the element type is."""
        value = self.parameter(register)
        return sign_extend(value, 16) if element_type.is_signed else value

    def choose(self, choices: type[EnumType], value: int, name: str) -> EnumType:
        """Return the member of an enumeration with a value.

        Raises:
            CommandStreamError: The enumeration has no such value; the message uses `name`.
        """
        try:
            return choices(value)
        except ValueError:
            raise self.invalid(f"the {name} must be one that Arm documents", str(value)) from None

    def _get(self, register: Register) -> tuple[int, int]:
        if register not in self._values:
            raise self.invalid("an operation needs registers that were set before", f"{register.value} is not set")
        return self._values[register]
