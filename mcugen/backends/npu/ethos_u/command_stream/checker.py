# SPDX-License-Identifier: Apache-2.0
"""Proof that a command stream stays inside its memory, and that transfers and arithmetic wait for each other.

The DMA engine and the arithmetic units work at the same time, and the stream orders them by waits. Not checked: the
order of blocks of two neighbouring operations of the arithmetic units (BLOCKDEP), for Arm does not document it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mcugen.backends.npu.ethos_u.command_stream.accesses import MemoryAccess, accesses_of
from mcugen.backends.npu.ethos_u.command_stream.errors import CommandStreamError
from mcugen.backends.npu.ethos_u.command_stream.operations import (
    CommandStream,
    KernelOperation,
    MapStorage,
    Operation,
    TransferCommand,
    WaitCommand,
)
from mcugen.backends.npu.ethos_u.command_stream.registers import Architecture
from mcugen.backends.npu.ethos_u.command_stream.tables import internal_bytes

MAX_TRANSFERS = {Architecture.U55: 1, Architecture.U65: 2, Architecture.U85: 4}
"""Largest number of transfers that can be unfinished; the NPU waits by itself before it starts a further one."""
MAX_KERNELS = 2
"""Largest number of unfinished operations of the arithmetic units."""
BRICK_ALIGNMENT = 16
"""Alignment in bytes of bricks, weights and scales in memory."""


def check(stream: CommandStream, region_bytes: Mapping[int, int]) -> None:
    """Check that each access of each operation lies inside its region and waits for the accesses that it depends on.

    Args:
        stream: The decoded stream.
        region_bytes: Size of each region by its number.

    Raises:
        CommandStreamError: An access leaves its region, a region does not exist, an address is not aligned, a chaining
            buffer is read before it was written, or an operation can overtake a transfer on whose bytes it depends.
        UndocumentedOperation: A feature map is stored in a way that is not documented.
    """
    order = OrderChecker(MAX_TRANSFERS[stream.accelerator.architecture])
    chained: set[int] = set()
    for operation in stream.operations:
        accesses = list(accesses_of(operation, stream.accelerator))
        for access in accesses:
            check_bounds(operation, access, region_bytes, internal_bytes(stream.accelerator))
        if isinstance(operation, KernelOperation):
            check_chaining(operation, chained)
        order.step(operation, accesses)


def check_bounds(operation: Operation, access: MemoryAccess, region_bytes: Mapping[int, int], internal: int) -> None:
    """Check that an access lies inside its region and that weights are aligned.

    Args:
        operation: The operation, for messages.
        access: The access.
        region_bytes: Size of each region.
        internal: Size of the memory inside the NPU.
    """
    where = f"{operation.kind} at word {operation.position}, {access.name}"
    size = internal if access.region is None else region_bytes.get(access.region)
    if size is None:
        known = ", ".join(str(number) for number in sorted(region_bytes)) or "none"
        raise CommandStreamError("operations access regions that exist", f"{where}: region {access.region} of {known}")
    name = "the memory inside the NPU" if access.region is None else f"region {access.region}"
    if access.start < 0 or access.end > size:
        detail = f"{where}: bytes {access.start} to {access.end} of {size} in {name}"
        raise CommandStreamError("operations access bytes inside of their region", detail)
    if access.name in ("weights", "scales") and access.start % BRICK_ALIGNMENT:
        detail = f"{where}: address {access.start}"
        raise CommandStreamError(f"weights and scales are aligned to {BRICK_ALIGNMENT} bytes", detail)


def check_chaining(operation: KernelOperation, chained: set[int]) -> None:
    """Check that chaining buffers are written before they are read, and note those that an operation writes.

    Args:
        operation: The operation.
        chained: Numbers of the buffers written so far.
    """
    for feature_map in (operation.ifm, operation.ifm2):
        if feature_map is not None and feature_map.storage is MapStorage.CHAINED and feature_map.region not in chained:
            detail = f"word {operation.position}: buffer {feature_map.region}"
            raise CommandStreamError("a chaining buffer is read after it was written", detail)
    if operation.ofm.storage is MapStorage.CHAINED:
        chained.add(operation.ofm.region)


@dataclass
class OrderChecker:
    """The operations that can be unfinished while the stream goes on.

    Attributes:
        max_transfers: Largest number of unfinished transfers.
        transfers: Unfinished transfers, the oldest first, with their accesses.
        kernels: Unfinished operations of the arithmetic units, the oldest first, with their accesses.
    """

    max_transfers: int
    transfers: list[tuple[Operation, Sequence[MemoryAccess]]] = field(default_factory=list)
    kernels: list[tuple[Operation, Sequence[MemoryAccess]]] = field(default_factory=list)

    def step(self, operation: Operation, accesses: Sequence[MemoryAccess]) -> None:
        """Check an operation against those that can be unfinished, and take it among them.

        Raises:
            CommandStreamError: The operation conflicts with an unfinished one.
        """
        if isinstance(operation, WaitCommand):
            queue = self.transfers if operation.is_for_dma else self.kernels
            del queue[: max(0, len(queue) - operation.outstanding)]
        if isinstance(operation, TransferCommand):
            self._check(operation, accesses, self.transfers + self.kernels)
            self.transfers = [*self.transfers, (operation, accesses)][-self.max_transfers :]
        if isinstance(operation, KernelOperation):
            self._check(operation, accesses, self.transfers)
            self.kernels = [*self.kernels, (operation, accesses)][-MAX_KERNELS:]

    def _check(
        self,
        operation: Operation,
        accesses: Sequence[MemoryAccess],
        unfinished: Sequence[tuple[Operation, Sequence[MemoryAccess]]],
    ) -> None:
        for earlier, earlier_accesses in unfinished:
            for access in accesses:
                conflict = next((other for other in earlier_accesses if access.conflicts(other)), None)
                if conflict is not None:
                    detail = (
                        f"word {operation.position}, {access.name}, bytes {access.start} to {access.end}: "
                        f"{conflict.name} of the operation at word {earlier.position} can be unfinished"
                    )
                    raise CommandStreamError("operations wait for what they depend on", detail)
