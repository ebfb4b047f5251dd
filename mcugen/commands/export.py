# SPDX-License-Identifier: Apache-2.0
"""`mcugen export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcugen.cli_options import BoardName, Model, Telling, takes_options
from mcugen.commands.console import tell, tell_notes, watched, write_json
from mcugen.errors import UsageError, listed
from mcugen.export.declaration import Format
from mcugen.export.formats import FORMATS
from mcugen.options import CompileOptions
from mcugen.tasks import Judging, Quantizing
from mcugen.version import __version__

if TYPE_CHECKING:
    from mcugen.export.install import Installed
    from mcugen.report.figures import Report


@dataclass(frozen=True)
class Exported:
    """What `--json` has of an export: what it did to the folder, and the report of the compilation."""

    format_: str
    installed: Installed
    notes: list[str]
    report: Report

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        done = self.installed
        files = {"written": list(done.written), "removed": list(done.removed), "kept": list(done.kept)}
        return {"format": self.format_, **files, "notes": self.notes, "report": self.report.to_json()}


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
    """Writes a package that an IDE or a build system takes as it is (docs/export.md)."""
    from mcugen.compilation import Compilation
    from mcugen.export.assemble import package_archive, package_files
    from mcugen.export.install import install
    from mcugen.export.package import Package

    declared = _format(format_)
    net = Compilation(model, board, options, quantizing, judging)
    with watched(net, telling.quiet):
        package = Package(net.compiled, package_version)
    files = (package_archive if zip_ else package_files)(package, declared)
    done = install(files, output or Path(package.name), package.name, force=force)
    kept = [f"edited, and kept though the package has it no more: {listed(done.kept)}"] if done.kept else []
    notes = [*net.compiled.report.notes, *package.notes, *kept]
    write_json(telling.json_, Exported(format_, done, notes, net.compiled.report))
    if telling.quiet:
        return
    tell_notes(notes)
    tell(f"{done.folder}: {len(done.written)} files for {declared.tool}")
    for number, step in enumerate(declared.steps, 1):
        tell(f"  {number}. {package.filled(step)}")


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise UsageError("--format must be known", f"'{name}'", f"one of: {', '.join(FORMATS)}")
    return FORMATS[name]
