# SPDX-License-Identifier: Apache-2.0
"""All files of a package in a format, as a folder or as one archive; equal models give equal bytes."""

from __future__ import annotations

from mcugen.codegen.install import Files
from mcugen.core.errors import UsageError
from mcugen.export.declaration import Format
from mcugen.export.package import Package
from mcugen.export.zipped import zip_files


def package_files(package: Package, format_: Format) -> Files:
    """Return the files of a package in the form of a folder: their contents by path.

    Args:
        package: The package.
        format_: The format.
    """
    code = {format_.code + name: text for name, text in package.code.items()}
    companion_files = {format_.beside + name: content for name, content in package.beside.items()}
    return {
        "LICENSE": package.licence,
        "README.md": _readme(package, format_),
        **({**code, **companion_files} if format_.carries_code else {}),
        **{package.filled(path): package.rendered(template) for path, template in format_.templates.items()},
        **{package.filled(path): content for path, content in format_.extra_files(package).items()},
    }


def require_archive(format_: Format) -> None:
    """Check that the tool of a format accepts a package as one zipped file.

    Raises:
        UsageError: It does not.
    """
    if not format_.archive:
        raise UsageError("--zip is for formats whose tools take one zipped file", f"'{format_.name}'", "leave it out")


def package_archive(package: Package, format_: Format) -> Files:
    """Return the package as the single zipped file that the tool of a format accepts: its bytes by its file name.

    Args:
        package: The package.
        format_: A format whose tool accepts one (`require_archive`).
    """
    require_archive(format_)
    inside = format_.archive_files(package) if format_.archive_files else package_files(package, format_)
    return {package.filled(format_.archive): zip_files(inside, package.filled(format_.top))}


def _readme(package: Package, format_: Format) -> str:
    """Return a README: what the package is, and the steps to add it to a project."""
    lines = [f"# {package.name}", "", f"{package.title}; for {format_.tool}.", ""]
    lines += [f"{number}. {package.filled(step)}" for number, step in enumerate(format_.steps, 1)]
    return "\n".join([*lines, "", "Licence: 0BSD (LICENSE)."]) + "\n"
