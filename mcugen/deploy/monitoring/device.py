# SPDX-License-Identifier: Apache-2.0
"""Snapshots that a device sends over the validation protocol."""

from __future__ import annotations

from mcugen.codegen.monitor import HEAD_BYTES
from mcugen.core.errors import BoardError
from mcugen.deploy.monitoring.snapshots import snapshot_size
from mcugen.deploy.validation.device import DataKind, Device, SessionLostError
from mcugen.deploy.validation.probes import open_link

MAX_DEVICE_SNAPSHOT_BYTES = 1 << 16
"""Largest size in bytes of a snapshot that is read from a device."""


def read_device(port: str, baud: int, patience: float) -> bytes:
    """Return a snapshot of the statistics of a connected device.

    Args:
        port: The connection, as `mcugen validate --port` takes it.
        baud: Bits per second of a serial port.
        patience: Seconds of silence after which the device counts as lost.

    Raises:
        BoardError: No device answers, or its firmware keeps no statistics.
        UsageError: The device sends no snapshot.
    """
    link = open_link(port, baud)
    try:
        device = Device(link, baud, patience)
        device.greet()
        try:
            head = device.read(DataKind.SNAPSHOT, 0, HEAD_BYTES)
        except BoardError as error:
            remedy = "compile the firmware with --monitor --validation; its monitor must be reset once"
            raise BoardError(f"{port}: the firmware must keep statistics", str(error), remedy) from error
        return device.read(DataKind.SNAPSHOT, 0, snapshot_size(head, MAX_DEVICE_SNAPSHOT_BYTES, port))
    except SessionLostError as error:
        raise BoardError(f"{port}: the device must not be reset while it is read", str(error), "try again") from error
    finally:
        link.close()
