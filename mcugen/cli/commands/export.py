# SPDX-License-Identifier: Apache-2.0
"""The command `mcugen export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mcugen.cli.command import Model, takes_options
from mcugen.cli.commands.console import tell, tell_notes, tell_warnings, watched, write_json
from mcugen.options.arguments import CompilationTask, OutputOptions


@dataclass(frozen=True)
class PackageOptions:
    """The options of `mcugen export` on the package.

    Attributes:
        zip_: Whether to write one zipped file.
        package_version: Version of the package: MAJOR.MINOR.PATCH.
        url: Web page of the package.
        force: Whether to overwrite files that were edited, or that mcugen did not write.
    """

    zip_: bool
    package_version: str
    url: str
    force: bool


@takes_options
def export(
    model: Model,
    *,
    board: str,
    format_: str,
    output: Path | None,
    packaging: PackageOptions,
    task: CompilationTask,
    output_options: OutputOptions,
) -> None:
    """Write a package for an IDE or a build system (docs/how-to/export.md)."""
    from mcugen.api.compilation import Compilation
    from mcugen.export.task import Packaging

    net = Compilation.of(model, board, task)
    version, url = packaging.package_version, packaging.url
    with watched(net, output_options.quiet):
        exported = net.export(format_, output, Packaging(version, url, packaging.zip_, packaging.force))
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
