# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen monitor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.command import takes_options
from mcugen.cli.commands.console import stdout, tell, write_json
from mcugen.options.arguments import OutputOptions


@takes_options
def monitor(
    snapshot: Annotated[
        list[Path], typer.Argument(help="files that NAME_monitor_snapshot filled on devices", show_default=False)
    ],
    *,
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
    from mcugen.codegen.write import write_text
    from mcugen.deploy.monitoring.drift import Thresholds
    from mcugen.deploy.monitoring.fleet import read_fleet
    from mcugen.deploy.monitoring.text import fleet_page, print_fleet

    fleet = read_fleet(snapshot, report, Thresholds(max_psi, max_ks))
    if html is not None:
        write_text(html, fleet_page(fleet))
    write_json(output_options.json_, fleet)
    if output_options.json_ != "-" and not output_options.quiet:
        print_fleet(fleet, stdout, output_options.wide)
    for alarm in fleet.alarms:
        tell(f"alarm: {alarm}")
    if check:
        fleet.require_no_alarm()
