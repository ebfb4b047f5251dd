# SPDX-License-Identifier: Apache-2.0
"""Software bill of materials (CycloneDX 1.6): generated files, model, mcugen with its packages, and tools.

It contains no time and no path. Packages are the installed direct and indirect dependencies of mcugen. For the cross
compiler, its internal programs and the libraries that it links are listed, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from mcugen.core.packages import EXTRAS, PROGRAM, optional_package, requirements_of
from mcugen.core.resources import resource_dir
from mcugen.core.version import __version__
from mcugen.simulation.toolchain import find_program, libraries_of, program_version, programs_of

with optional_package("evidence", "a bill of materials"):
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

_RESOURCES = ("templates", "runtime_c", "boards")
"""Folders besides Python code that generated code is made from."""


def bill_of_materials(
    name: str, model: tuple[str, str], files: Mapping[str, bytes], tools: Iterable[str], building: Sequence[str]
) -> str:
    """Return the software bill of materials as JSON text.

    Args:
        name: Name of the generated code.
        model: File name and SHA-256 of the model.
        files: Contents of the generated files, by name.
        tools: Names of the programs that were used.
        building: Command of the compiler for the board, with its flags.
    """
    code = [_component(file, ComponentType.FILE, _sha256(data)) for file, data in sorted(files.items())]
    source = _component(model[0], ComponentType.MACHINE_LEARNING_MODEL, model[1])
    compiler = _component("mcugen", ComponentType.APPLICATION, own_digest(), __version__)
    needs = required_packages(PROGRAM)
    packages = {package: _package(distribution(package)) for package in sorted(needs) if package != "mcugen"}
    programs = {tool: _program(tool) for tool in tools}
    parts = [
        _of_file(f"{building[0]}/{part}", ComponentType.APPLICATION, path)
        for part, path in programs_of(building).items()
    ]
    libraries = [_of_file(file, ComponentType.LIBRARY, path) for file, path in libraries_of(building).items()]
    text = "".join(_sha256(data) for _, data in sorted(files.items()))
    bom = Bom(serial_number=uuid.uuid5(uuid.NAMESPACE_OID, text + model[1]))
    bom.metadata.timestamp = None  # type: ignore[assignment]  # it may be left out
    bom.metadata.component = whole = Component(name=name, type=ComponentType.FIRMWARE, bom_ref=f"code/{name}")
    for component in (*code, source, compiler, *packages.values(), *programs.values(), *parts, *libraries):
        bom.components.add(component)
    bom.register_dependency(whole, [*code, source, *libraries])
    for file in code:
        bom.register_dependency(file, [source, compiler])
    bom.register_dependency(programs[building[0]], parts)
    for package, named in needs.items():
        bom.register_dependency(packages.get(package, compiler), [packages[other] for other in named])
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _component(name: str, kind: ComponentType, sha256: str, version: str | None = None) -> Component:
    digest = HashType(alg=HashAlgorithm.SHA_256, content=sha256)
    return Component(name=name, type=kind, version=version, bom_ref=f"{kind.value}/{name}", hashes=[digest])


def _of_file(name: str, kind: ComponentType, path: Path, version: str | None = None) -> Component:
    return _component(name, kind, _sha256(path.read_bytes()), version)


def _program(name: str) -> Component:
    return _of_file(name, ComponentType.APPLICATION, Path(find_program(name)), program_version(name))


def _package(package: Distribution) -> Component:
    """Return a package; its digest covers the installed files' digests, not the archive that they came from."""
    name = _canonical(package.metadata["Name"])
    return Component(
        name=name,
        type=ComponentType.LIBRARY,
        version=package.version,
        bom_ref=f"library/{name}",
        purl=PackageURL("pypi", None, name, package.version),
        properties=[Property(name="mcugen:sha256-of-installed-files", value=_files_digest(package))],
    )


def _files_digest(package: Distribution) -> str:
    """Return a digest of a package's files without those that the installer writes, which differ between machines."""
    files = [
        f"{file.as_posix()} {file.hash.value}\n"
        for file in package.files or ()
        if file.hash is not None and ".." not in file.parts and not file.parent.name.endswith(".dist-info")
    ]
    return _sha256("".join(sorted(files)).encode())


def own_digest() -> str:
    """Return the SHA-256 of mcugen's own files: Python code, templates, runtime header, and boards."""
    folders = {"mcugen": Path(__file__).parents[2], **{name: resource_dir(name) for name in _RESOURCES}}
    lines = [
        f"{name}/{path.relative_to(folder).as_posix()} {_sha256(path.read_bytes())}\n"
        for name, folder in folders.items()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    return _sha256("".join(lines).encode())


def required_packages(package: str) -> dict[str, tuple[str, ...]]:
    """Return the installed packages that a package depends on, directly or indirectly.

    The dependencies of those extras that users of mcugen install are included.

    Returns:
        For each package, the names of its own direct dependencies.
    """
    todo, needs = [package], dict[str, tuple[str, ...]]()
    while todo:
        name = todo.pop()
        needs[name] = tuple(sorted(_needs(name)))
        todo += [other for other in needs[name] if other not in needs]
    return needs


def _needs(package: str) -> Iterator[str]:
    """Yield the names of the installed packages that a package needs; missing ones are for other platforms."""
    extras = ("", *EXTRAS) if package == PROGRAM else ("",)
    for name in {name for name, extra in requirements_of(package) if extra in extras and name != package}:
        with contextlib.suppress(PackageNotFoundError):
            yield _canonical(distribution(name).metadata["Name"])


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
