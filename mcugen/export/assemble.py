# SPDX-License-Identifier: Apache-2.0
"""All files of a package in a format, as a folder or as one archive: the same for the same model, byte by byte."""

from __future__ import annotations

from mcugen.codegen.render import environment
from mcugen.errors import UsageError
from mcugen.export.declaration import Files, Format
from mcugen.export.package import Package, licence, readme
from mcugen.export.zipped import zipped


def package_files(package: Package, format_: Format) -> Files:
    """The package as a folder."""
    env = environment()
    templates = {
        package.filled(path): env.get_template(f"export/{template}").render(package=package, name=package.name)
        for path, template in format_.templates.items()
    }
    return {
        **{format_.code + name: text for name, text in package.code.items()},
        **{format_.beside + name: content for name, content in package.beside.items()},
        **templates,
        **{package.filled(path): content for path, content in format_.made(package).items()},
        "LICENSE": licence(),
        "README.md": readme(package, format_),
    }


def package_archive(package: Package, format_: Format) -> Files:
    """The package as the one file that the tool takes zipped; UsageError if it takes none."""
    if not format_.archive:
        raise UsageError("--zip is for formats whose tools take one zipped file", f"'{format_.name}'", "leave it out")
    inside = format_.archived(package) if format_.archived else package_files(package, format_)
    return {package.filled(format_.archive): zipped(inside, package.filled(format_.top))}
