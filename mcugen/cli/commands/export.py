# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcugen.cli.commands.console import tell, tell_notes, tell_warnings, watched, write_json
from mcugen.cli.options import BoardName, Model, Telling, takes_options
from mcugen.core.options import CompileOptions
from mcugen.core.version import __version__
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.export.formats import FORMATS


@takes_options
def export(
    model: Model,
    *,
    board: BoardName,
    format_: Annotated[
        str, typer.Option("--format", help=f"who is to take it: {', '.join(FORMATS)}", show_default=False)
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder; else one called like the model", show_default=False)
    ] = None,
    zip_: Annotated[bool, typer.Option("--zip", help="one zipped file, where the tool takes that")] = False,
    package_version: Annotated[str, typer.Option(help="MAJOR.MINOR.PATCH")] = __version__,
    force: Annotated[
        bool, typer.Option("--force", help="overwrites files that were edited, or are not mcugen's")
    ] = False,
    options: CompileOptions,
    quantizing: Quantizing,
    judging: Judging,
    telling: Telling,
) -> None:
    """Write a package for an IDE or a build system (docs/export.md)."""
    from mcugen.api.compilation import Compilation
    from mcugen.export.task import Packaging

    net = Compilation(model, board, options, quantizing, judging)
    with watched(net, telling.quiet):
        exported = net.export(format_, output, Packaging(package_version, zip_, force))
    write_json(telling.json_, exported)
    tell_warnings(exported.report.warnings)
    if telling.quiet:
        return
    tell_notes(exported.notes)
    folder, written = exported.installed.folder, exported.installed.written
    what = f"{folder / written[0]}:" if len(written) == 1 else f"{folder}: {len(written)} files"
    tell(f"{what} for {exported.format_.tool}")
    for number, step in enumerate(exported.steps, 1):
        tell(f"  {number}. {step}")
