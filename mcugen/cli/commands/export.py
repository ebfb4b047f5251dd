# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen export`."""

from __future__ import annotations

from pathlib import Path

from mcugen.cli.arguments import OutputOptions
from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import tell, tell_notes, tell_warnings, watched, write_json
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing


@takes_options
def export(
    model: Model,
    *,
    board: str,
    format_: str,
    output: Path | None,
    zip_: bool,
    package_version: str,
    url: str,
    force: bool,
    options: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    output_options: OutputOptions,
) -> None:
    """Write a package for an IDE or a build system (docs/how-to/export.md)."""
    from mcugen.api.compilation import Compilation
    from mcugen.export.task import Packaging

    net = Compilation(model, board, options, quantizing, judging)
    with watched(net, output_options.quiet):
        exported = net.export(format_, output, Packaging(package_version, url, zip_, force))
    write_json(output_options.json_, exported)
    tell_warnings(exported.report.warnings)
    if output_options.quiet:
        return
    tell_notes(exported.notes)
    folder, written = exported.installed.folder, exported.installed.written
    what = f"{folder / written[0]}:" if len(written) == 1 else f"{folder}: {len(written)} files"
    tell(f"{what} for {exported.format_.tool}")
    for number, step in enumerate(exported.steps, 1):
        tell(f"  {number}. {step}")
