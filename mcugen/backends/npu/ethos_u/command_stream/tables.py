# SPDX-License-Identifier: Apache-2.0
"""Lookup tables: the memory inside the NPU that holds them, and how results become indices."""

from __future__ import annotations

import numpy as np

from mcugen.backends.npu.ethos_u.command_stream.arithmetic import Array
from mcugen.backends.npu.ethos_u.command_stream.errors import CommandStreamError, UndocumentedOperation
from mcugen.backends.npu.ethos_u.command_stream.feature_maps import Memory
from mcugen.backends.npu.ethos_u.command_stream.operations import (
    FeatureMap,
    IntegerType,
    NpuConfiguration,
    OutputActivation,
)
from mcugen.backends.npu.ethos_u.command_stream.registers import Architecture

TABLE_MEMORY_BYTES = 2048
"""Size of the memory of the lookup tables: the end of the shared RAM of U55 and U65, a RAM of its own on U85."""
SLOT_BYTES = 256
"""Unit of the numbers of tables of Ethos-U55 and U65."""
SLOPE_BITS = 7
"""Low bits of a 16-bit index, by which a table of 512 entries is interpolated."""


def internal_bytes(accelerator: NpuConfiguration) -> int:
    """Return the size of the memory inside the NPU that transfers can write."""
    return TABLE_MEMORY_BYTES if accelerator.architecture is Architecture.U85 else accelerator.shram_bytes


def table_types(activation: OutputActivation, ofm: FeatureMap) -> tuple[IntegerType, IntegerType]:
    """Return the types of the index and of the entries of a table.

    Ethos-U55 and U65 take a table of 16-bit indices for results of 16 bits, and of 8-bit indices for all others.
    """
    if activation.table_input and activation.table_output:
        return activation.table_input, activation.table_output
    index_type = ofm.type if ofm.type.bits <= 16 else IntegerType(8, True)
    return index_type, ofm.type


def table_range(accelerator: NpuConfiguration, activation: OutputActivation, ofm: FeatureMap) -> tuple[int, int]:
    """Return the offset and the size in bytes of the table of an activation in the memory inside the NPU."""
    index_type, entry_type = table_types(activation, ofm)
    size = TABLE_MEMORY_BYTES if index_type.bits == 16 else 256 * entry_type.num_bytes
    if accelerator.architecture is Architecture.U85:
        return activation.table * size, size
    return accelerator.shram_bytes - TABLE_MEMORY_BYTES + activation.table * SLOT_BYTES, size


def look_up(
    values: Array, internal: Memory, accelerator: NpuConfiguration, activation: OutputActivation, ofm: FeatureMap
) -> Array:
    """Return the entries of a table for clipped results.

    A table for 16-bit indices has 512 entries of a base (low half) and a slope (high half): the result is
    base + (slope · low 7 bits + 64) / 128, rounded down. Results of 32 bits, on Ethos-U85, are 128 times as large, and
    not rounded: 128 · base + slope · low 7 bits.

    Raises:
        CommandStreamError: The table does not lie in the memory inside the NPU.
        UndocumentedOperation: An index exceeds the range of its type.
    """
    start, size = table_range(accelerator, activation, ofm)
    if start < 0 or start + size > internal.size:
        detail = f"bytes {start} to {start + size} of {internal.size}"
        raise CommandStreamError("lookup tables must lie in the memory inside the NPU", detail)
    index_type, entry_type = table_types(activation, ofm)
    low, high = index_type.bounds
    if values.min() < low or values.max() > high:
        raise UndocumentedOperation("indices of lookup tables must fit their type", f"{values.min()} to {values.max()}")
    data = internal[start : start + size].tobytes()
    indices = values - low
    if index_type.bits == 8:
        code = f"<{'i' if entry_type.is_signed else 'u'}{entry_type.num_bytes}"
        return np.asarray(np.frombuffer(data, code).astype(np.int64)[indices])
    entries = np.frombuffer(data, "<i2").astype(np.int64).reshape(-1, 2)
    base, slope = np.moveaxis(entries[indices >> SLOPE_BITS], -1, 0)
    fraction = indices & (1 << SLOPE_BITS) - 1
    if entry_type.bits == 32:
        return np.asarray((base << SLOPE_BITS) + slope * fraction)
    half = 1 << (SLOPE_BITS - 1)
    return np.asarray(base + ((slope * fraction + half) >> SLOPE_BITS))
