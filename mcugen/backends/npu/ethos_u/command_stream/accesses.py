# SPDX-License-Identifier: Apache-2.0
"""The bytes that operations read and write, as intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcugen.backends.npu.ethos_u.command_stream.feature_maps import stored_output, tile_columns
from mcugen.backends.npu.ethos_u.command_stream.operations import (
    Accumulation,
    ConvolutionOperation,
    FeatureMap,
    KernelOperation,
    MapStorage,
    NpuConfiguration,
    Operation,
    OutputFunction,
    PoolingMode,
    PoolingOperation,
    TransferCommand,
)
from mcugen.backends.npu.ethos_u.command_stream.tables import table_range


@dataclass(frozen=True)
class MemoryAccess:
    """Bytes that an operation reads or writes.

    Attributes:
        name: The operand: "IFM", "IFM2", "OFM", "weights", "scales", "table", "source" or "target".
        region: Number of the region; None for the memory inside the NPU.
        start: Offset of the first byte.
        end: Offset behind the last byte.
        is_write: Whether the operation writes the bytes.
    """

    name: str
    region: int | None
    start: int
    end: int
    is_write: bool = False

    def conflicts(self, other: MemoryAccess) -> bool:
        """Return whether both accesses touch a byte and one of them writes."""
        is_same = self.region == other.region and self.start < other.end and other.start < self.end
        return is_same and (self.is_write or other.is_write)


def accesses_of(operation: Operation, accelerator: NpuConfiguration) -> Iterator[MemoryAccess]:
    """Yield the intervals of bytes that an operation reads and writes.

    Args:
        operation: Any operation; waits and interrupts access nothing.
        accelerator: The NPU.

    Raises:
        UndocumentedOperation: A feature map is stored in a way that is not documented.
    """
    if isinstance(operation, TransferCommand):
        yield from transfer_accesses(operation)
    if isinstance(operation, KernelOperation):
        yield from kernel_accesses(operation, accelerator)


def kernel_accesses(operation: KernelOperation, accelerator: NpuConfiguration) -> Iterator[MemoryAccess]:
    """Yield the accesses of an operation of the arithmetic units."""
    reads_ifm = not (isinstance(operation, PoolingOperation) and operation.mode is PoolingMode.NONE)
    if reads_ifm or operation.accumulation is not Accumulation.IFM2:
        yield from map_accesses("IFM", operation.ifm)
    if operation.ifm2 is not None:
        yield from map_accesses("IFM2", operation.ifm2)
    if operation.ofm.storage is not MapStorage.NONE:
        yield from map_accesses("OFM", stored_output(operation), is_write=True)
    if isinstance(operation, ConvolutionOperation | PoolingOperation) and operation.weights is not None:
        for part in operation.weights.weights:
            yield MemoryAccess("weights", part.region, part.address, part.address + part.length)
        for part in operation.weights.scales:
            yield MemoryAccess("scales", part.region, part.address, part.address + part.length)
    if operation.activation.function is OutputFunction.TABLE:
        start, size = table_range(accelerator, operation.activation, operation.ofm)
        yield MemoryAccess("table", None, start, start + size)


def map_accesses(name: str, feature_map: FeatureMap, *, is_write: bool = False) -> Iterator[MemoryAccess]:
    """Yield an access for each tile of a feature map in memory."""
    if not feature_map.is_in_memory:
        return
    for column in tile_columns(feature_map):
        for first, last in column.intervals():
            yield MemoryAccess(name, feature_map.region, first, last + feature_map.type.num_bytes, is_write)


def transfer_accesses(transfer: TransferCommand) -> Iterator[MemoryAccess]:
    """Yield the accesses of a DMA transfer; those of transfers by indices depend on data and are left out."""
    for name, region, address, strides in (
        ("source", transfer.source_region, transfer.source, transfer.source_strides),
        ("target", transfer.target_region, transfer.target, transfer.target_strides),
    ):
        spans = [stride * (count - 1) for stride, count in zip(strides, (transfer.rows, transfer.planes), strict=True)]
        start = address + sum(min(0, span) for span in spans)
        end = address + sum(max(0, span) for span in spans) + transfer.length
        yield MemoryAccess(name, region, start, end, is_write=name == "target")
