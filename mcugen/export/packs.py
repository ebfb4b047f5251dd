# SPDX-License-Identifier: Apache-2.0
"""CMSIS-Packs, which Keil, IAR, MCUXpresso, STM32CubeMX and the CMSIS-Toolbox install."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.dom import minidom

from mcugen.codegen.install import Files
from mcugen.export.declaration import Format
from mcugen.export.zipped import zip_files

if TYPE_CHECKING:
    from mcugen.export.package import Package

PACK_NAME = "mcugen.{name}.{version}.pack"
"""Template of a CMSIS-Pack's file name, as tools expect it: vendor, name and version."""

_MAIN = "template/main.c"
_DESCRIBED = "mcugen.{name}.pdsc"
_LAYER = "{name}.clayer.yml"


def pack_contents(package: Package) -> Files:
    """Return the files inside a CMSIS-Pack: description (.pdsc), code, and a main program offered as a template."""
    layer, main = package.filled(_LAYER), package.rendered("main.c.j2")
    return {
        package.filled(_DESCRIBED): _description(package),
        "LICENSE": package.licence,
        layer: package.rendered("cmsis-pack/layer.yml.j2"),
        _MAIN: main,
        **package.code,
        **package.beside,
    }


def pack_archive(package: Package) -> Files:
    """Return the zipped CMSIS-Pack by its file name."""
    return {package.filled(PACK_NAME): zip_files(pack_contents(package))}


def pack_component(package: Package) -> tuple[str, str, str]:
    """Return class, group and subgroup of the pack's component: the names under which a project selects the model."""
    return ("Machine Learning", "mcugen", package.name)


def _description(package: Package) -> str:
    """Return the generated folder's .pdsc with the package's version, a licence, a template and a layer."""
    document = minidom.parseString(package.bundle.files[package.filled(_DESCRIBED)])
    (root,) = document.getElementsByTagName("package")[:1]
    for tag, attribute in (("release", "version"), ("component", "Cversion")):
        document.getElementsByTagName(tag)[0].setAttribute(attribute, package.version)
    if package.url:
        (url,) = root.getElementsByTagName("url")[0].childNodes
        url.nodeValue = package.url
    releases = document.getElementsByTagName("releases")[0]
    licence = document.createElement("license")
    licence.appendChild(document.createTextNode("LICENSE"))
    sets = _element(document, "licenseSets")
    chosen = sets.appendChild(_element(document, "licenseSet", id="all", default="true"))
    chosen.appendChild(_element(document, "license", name="LICENSE", title="Zero-Clause BSD", spdx="0BSD"))
    for element in (licence, sets):
        root.insertBefore(element, releases)
        root.insertBefore(document.createTextNode("\n  "), releases)
    template = {"category": "source", "name": _MAIN, "attr": "template", "select": f"Self-test of {package.name}"}
    document.getElementsByTagName("files")[0].appendChild(_element(document, "file", **template))
    csolution = _element(document, "csolution")
    csolution.appendChild(_element(document, "clayer", type="mcugen", path=".", file=package.filled(_LAYER)))
    root.appendChild(csolution)
    return document.toxml(encoding="UTF-8").decode() + "\n"


def _element(document: minidom.Document, tag: str, **attributes: str) -> minidom.Element:
    element = document.createElement(tag)
    for name, value in attributes.items():
        element.setAttribute(name, value)
    return element


def _pack_files(package: Package) -> Files:
    return {**pack_archive(package), package.filled(_LAYER): package.rendered("cmsis-pack/layer.yml.j2")}


CMSIS_PACK = Format(
    name="cmsis-pack",
    tool="the CMSIS-Toolbox, Keil Studio, and all other tools that take CMSIS-Packs",
    carries_code=False,
    extra_files=_pack_files,
    archive=PACK_NAME,
    archive_files=pack_contents,
    demands_url=True,
    steps=(
        "`cpackget add " + PACK_NAME + "`, or in an IDE: import the pack from disk.",
        "In your .cproject.yml: `layers: - layer: {name}.clayer.yml`; or tick Machine Learning > mcugen > {name} among "
        "the software components.",
        "Include `{name}.h`; the user code template `Self-test of {name}` is a main program that runs the self-test.",
        "The layer compiles it for speed (`optimize: speed`) and links libm; elsewhere, set -O2 for the component.",
    ),
    testing="its .pdsc held against PACK.xsd 1.7.60 and its layer against CMSIS-Toolbox's schema once, by hand; tests "
    "read both and find every file that they name in the archive; its files are those that `cmake` builds",
)
"""Package format for CMSIS-Packs, which the CMSIS-Toolbox, Keil and other IDEs install."""
