# SPDX-License-Identifier: Apache-2.0
"""Checksums of a model's constants, as they lie in the memory of a little-endian CPU (`--check-weights`)."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mcugen.codegen.literals import c_param_type
from mcugen.hir.types import Array
from mcugen.lir.program import Param

_FORMATS = {"int32_t": "<i", "int64_t": "<q", "float": "<f", "double": "<d"}
"""Format of the struct module for each C type; each type is aligned to its size."""


@dataclass(frozen=True)
class CheckedData:
    """An entry of the checksum table: data whose CRC-32 the generated code checks.

    Attributes:
        address: C expression of the data's address.
        size: C expression of the number of bytes.
        crc: The expected CRC-32 of the bytes.
    """

    address: str
    size: str
    crc: int

    @property
    def second(self) -> str:
        """Return the address of the data's second byte as a C expression, by which a damaged address is detected."""
        return f"&((const unsigned char *){self.address})[1]"


def array_entry(name: str, data: Array) -> CheckedData:
    """Return the checksum entry of an array of constants.

    Args:
        name: C name of the array.
        data: The elements.
    """
    stored = data.astype(data.dtype.newbyteorder("<"), copy=False)
    return CheckedData(name, f"sizeof {name}", zlib.crc32(np.ascontiguousarray(stored).tobytes()))


def table_entry(name: str, ctype: str, values: Sequence[float]) -> CheckedData | None:
    """Return the checksum entry of an array of parameters; None if it contains NaN, whose bits depend on the compiler.

    Args:
        name: C name of the array.
        ctype: C type of the elements.
        values: The elements.
    """
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        return None
    return CheckedData(
        name, f"sizeof {name}", zlib.crc32(b"".join(struct.pack(_FORMATS[ctype], value) for value in values))
    )


def struct_entry(name: str, values: Iterable[Param]) -> CheckedData | None:
    """Return the checksum entry of a struct of parameters; None if it contains NaN, whose bits depend on the compiler.

    The entry's size is a C expression that is 0 if the compiler chose another struct layout than expected, so that the
    check then leaves the struct out.

    Args:
        name: C name of the struct.
        values: The members, in order.
    """
    data, largest = b"", 1
    for value in values:
        if isinstance(value, float) and math.isnan(value):
            return None
        packed = struct.pack(_FORMATS[c_param_type(value)], value)
        largest = max(largest, len(packed))
        data += b"\0" * (-len(data) % len(packed)) + packed
    data += b"\0" * (-len(data) % largest)
    return CheckedData(f"&{name}", f"sizeof {name} == {len(data)}u ? {len(data)}u : 0u", zlib.crc32(data))
