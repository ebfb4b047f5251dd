# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen monitor`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout, tell, write_json
from mcugen.core.errors import UsageError
from mcugen.options.arguments import OutputOptions


@dataclass(frozen=True)
class DeviceOptions:
    """The options of `mcugen monitor` on a connected device.

    Attributes:
        port: Link to the device: a serial port, a URL or a debug probe; "" for none.
        baud: Bits per second of a serial port.
        timeout: Seconds of silence after which the device counts as lost.
        save: File for the snapshot.
    """

    port: str
    baud: int
    timeout: float
    save: Path | None


@takes_options
def monitor(
    snapshot: Annotated[
        list[Path] | None, typer.Argument(help="files that NAME_monitor_snapshot filled on devices", show_default=False)
    ] = None,
    *,
    connection: DeviceOptions,
    report: list[Path],
    max_psi: float,
    max_ks: float,
    check: bool,
    html: Path | None,
    output_options: OutputOptions,
) -> None:
    """Compare statistics of devices in the field with the samples of compilation: drift, failures, cycles.

    See docs/how-to/monitor.md.
    """
    from mcugen.codegen.write import replace_file, write_text
    from mcugen.deploy.monitoring.device import read_device
    from mcugen.deploy.monitoring.drift import Thresholds
    from mcugen.deploy.monitoring.fleet import read_fleet
    from mcugen.deploy.monitoring.text import fleet_page, print_fleet

    if connection.save is not None and not connection.port:
        raise UsageError("--save is for a snapshot of --port", "no --port", "leave it out, or give --port")
    received = {}
    if port := connection.port:
        received[port] = read_device(port, connection.baud, connection.timeout)
    if connection.save is not None:
        replace_file(connection.save, lambda stream: stream.write(received[port]))
    fleet = read_fleet(snapshot or [], report, Thresholds(max_psi, max_ks), received)
    if html is not None:
        write_text(html, fleet_page(fleet))
    write_json(output_options.json_, fleet)
    if output_options.json_ != "-" and not output_options.quiet:
        print_fleet(fleet, stdout, output_options.wide)
    for alarm in fleet.alarms:
        tell(f"alarm: {alarm}")
    if check:
        fleet.require_no_alarm()
