# SPDX-License-Identifier: Apache-2.0
"""The export of a compiled model to a package in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcugen.codegen.install import InstallResult, install
from mcugen.core.board import Board
from mcugen.core.errors import UsageError, listed
from mcugen.core.options import CompileOptions
from mcugen.core.version import PLACEHOLDER_URL, __version__
from mcugen.driver.compiled import CompiledModel
from mcugen.export.assemble import package_archive, package_files, require_archive
from mcugen.export.declaration import Format
from mcugen.export.formats import FORMATS, require_supported
from mcugen.export.package import Package, check_package
from mcugen.reporting.figures import Report


@dataclass(frozen=True)
class Packaging:
    """Options of an export.

    Attributes:
        version: Version of the package, MAJOR.MINOR.PATCH.
        url: Web page of the package, for the metadata of package managers; "" for none.
        zipped: Whether to write one zip file instead of a folder.
        force: Whether to overwrite files that were edited, or that mcugen did not write.
    """

    version: str = __version__
    url: str = ""
    zipped: bool = False
    force: bool = False
    requested_board: str = ""
    """Name by which the user named the board, such as that of a kit; "" for the board's own."""


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        format_: The format.
        installed: The files that were written, removed and kept.
        notes: Notes for the user on what the project must provide.
        report: The report of the compilation.
    """

    format_: Format
    installed: InstallResult
    notes: list[str]
    steps: list[str]
    """Steps for the user to add the package to a project, one sentence each."""
    report: Report

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dictionary for JSON."""
        installed = self.installed
        files = {"written": list(installed.written), "removed": list(installed.removed), "kept": list(installed.kept)}
        return {"format": self.format_.name, **files, "notes": self.notes, "report": self.report.to_json()}


def format_by_name(name: str) -> Format:
    """Return the package format whose `--format` value is `name`.

    Raises:
        UsageError: There is no such format.
    """
    if name not in FORMATS:
        raise UsageError("--format must be known", f"'{name}'", f"one of: {', '.join(FORMATS)}")
    return FORMATS[name]


def check_packaging(format_: Format, packaging: Packaging, board: Board, options: CompileOptions) -> None:
    """Check the options of an export before the model is compiled.

    Args:
        format_: The format.
        packaging: Version and form of the package.
        board: The board that the model is compiled for.
        options: The options of the compilation.

    Raises:
        UsageError: The format does not support the board, an option, or the version or form of the package.
    """
    require_supported(format_, board)
    if packaging.zipped:
        require_archive(format_)
    check_package(packaging.version, packaging.url, board, options)


def export(compiled: CompiledModel, format_: Format, folder: Path | None, packaging: Packaging) -> Exported:
    """Write a compiled model as a package to a folder, and return which files were written.

    Args:
        compiled: The compiled model.
        format_: The package format.
        folder: The folder; None for one named like the model.
        packaging: Version, web page and form of the package.
    """
    package = Package(compiled, packaging.version, packaging.url, packaging.requested_board)
    files = (package_archive if packaging.zipped else package_files)(package, format_)
    installed = install(files, folder or Path(package.name), package.name, force=packaging.force)
    kept = [f"edited, and kept though the package has it no more: {listed(installed.kept)}"] if installed.kept else []
    unnamed = format_.demands_url and not packaging.url
    page = [f"no --url is given, so the metadata name {PLACEHOLDER_URL} as web page of the package"] * unnamed
    notes = [*compiled.report.notes, *package.notes, *page, *kept]
    return Exported(format_, installed, notes, [package.filled(step) for step in format_.steps], compiled.report)
