# SPDX-License-Identifier: Apache-2.0
"""Package formats for IDEs of chip and compiler vendors."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from mcugen.codegen.install import Files
from mcugen.core.board import Board
from mcugen.export.build_systems import MAKE
from mcugen.export.declaration import Format
from mcugen.export.packs import PACK_NAME, pack_archive, pack_component

if TYPE_CHECKING:
    from mcugen.export.package import Package

_CDT = "org.eclipse.cdt.core"
_BUILDER = "org.eclipse.cdt.managedbuilder.core"
_CROSS = "cdt.managedbuild"
"""Prefix of the names of Eclipse's own cross toolchain ("Cross GCC")."""
_XSI = "http://www.w3.org/2001/XMLSchema-instance"

_NATURES = (f"{_CDT}.cnature", f"{_BUILDER}.managedBuildNature", f"{_BUILDER}.ScannerConfigNature")
"""Natures of a Makefile project in Eclipse.

Projects of STM32CubeIDE and MCUXpresso have natures of the vendor besides. Those stand for a whole program with its
chip and its .ioc file or SDK, which a library does not have.
"""
_ERROR_PARSERS = ("GASErrorParser", "GmakeErrorParser", "GLDErrorParser", "CWDLocator", "GCCErrorParser")


def _xml(root: ET.Element, instructions: str = "") -> str:
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{instructions}{ET.tostring(root, encoding="unicode")}\n'


def _text(parent: ET.Element, tag: str, text: str = "") -> ET.Element:
    element = ET.SubElement(parent, tag)
    element.text = text
    return element


# ------------------------------------------------------------------------------------------------------------ Eclipse


def _eclipse_files(package: Package) -> Files:
    return {".project": _project(package), ".cproject": _cproject(package), **pack_archive(package)}


def _project(package: Package) -> str:
    root = ET.Element("projectDescription")
    _text(root, "name", package.name)
    _text(root, "comment", package.title)
    _text(root, "projects")
    builds = ET.SubElement(root, "buildSpec")
    for name, triggers in (
        ("genmakebuilder", "clean,full,incremental,"),
        ("ScannerConfigBuilder", "full,incremental,"),
    ):
        command = ET.SubElement(builds, "buildCommand")
        _text(command, "name", f"{_BUILDER}.{name}")
        _text(command, "triggers", triggers)
        _text(command, "arguments")
    natures = ET.SubElement(root, "natures")
    for nature in _NATURES:
        _text(natures, "nature", nature)
    return _xml(root)


def _cproject(package: Package) -> str:
    """Return the settings of a Makefile project: `make all` in this folder, and the compiler that the indexer asks."""
    root = ET.Element("cproject", storage_type_id=f"{_CDT}.XmlProjectDescriptionStorage")
    settings = ET.SubElement(root, "storageModule", moduleId=f"{_CDT}.settings")
    name = f"{_CROSS}.toolchain.gnu.cross.base.1"
    configuration = ET.SubElement(settings, "cconfiguration", id=name)
    own = ET.SubElement(
        configuration,
        "storageModule",
        buildSystemId=f"{_BUILDER}.configurationDataProvider",
        id=name,
        moduleId=f"{_CDT}.settings",
        name="Default",
    )
    ET.SubElement(own, "externalSettings")
    extensions = ET.SubElement(own, "extensions")
    ET.SubElement(extensions, "extension", id=f"{_CDT}.ELF", point=f"{_CDT}.BinaryParser")
    for parser in _ERROR_PARSERS:
        ET.SubElement(extensions, "extension", id=f"{_CDT}.{parser}", point=f"{_CDT}.ErrorParser")
    build = ET.SubElement(configuration, "storageModule", moduleId="cdtBuildSystem", version="4.0.0")
    empty = "org.eclipse.cdt.build.core.emptycfg"
    attributes = {"buildProperties": "", "id": name, "name": "Default", "parent": empty}
    default = ET.SubElement(build, "configuration", attributes)
    folder = ET.SubElement(default, "folderInfo", id=f"{name}.1", name="/", resourcePath="")
    prefix = f"{package.toolchain}-" if package.toolchain else ""
    toolchain = _superclass(folder, "toolChain", "toolchain.gnu.cross.base", name="Cross GCC")
    _superclass(toolchain, "option", "option.gnu.cross.prefix", value=prefix, valueType="string")
    _superclass(toolchain, "targetPlatform", "targetPlatform.gnu.cross", binaryParser=f"{_CDT}.ELF", isAbstract="false")
    _superclass(toolchain, "builder", "builder.gnu.cross", managedBuildOn="false", name="Gnu Make Builder")
    compiler = _superclass(toolchain, "tool", "tool.gnu.cross.c.compiler", name="Cross GCC Compiler")
    paths = "gnu.c.compiler.option.include.paths"
    include = ET.SubElement(compiler, "option", id=f"{paths}.1", superClass=paths, valueType="includePath")
    ET.SubElement(include, "listOptionValue", builtIn="false", value='"${workspace_loc:/${ProjName}/src}"')
    _superclass(compiler, "inputType", "tool.gnu.c.compiler.input")
    ET.SubElement(configuration, "storageModule", moduleId=f"{_CDT}.externalSettings")
    system = ET.SubElement(root, "storageModule", moduleId="cdtBuildSystem", version="4.0.0")
    ET.SubElement(system, "project", id=f"{package.name}.null.1", name=package.name)
    return _xml(root, "<?fileVersion 4.0.0?>\n")


def _superclass(parent: ET.Element, tag: str, superclass: str, **attributes: str) -> ET.Element:
    """Add an element that refines a part of Eclipse's cross toolchain, under an identifier of its own."""
    base = f"{_CROSS}.{superclass}"
    return ET.SubElement(parent, tag, {"id": f"{base}.1", "superClass": base, **attributes})


def is_cortex_m(board: Board) -> bool:
    """Return whether the CPU of a board is an Arm Cortex-M."""
    return board.cpu.startswith("cortex-m")


def _eclipse(name: str, tool: str, source: str, pack_step: str) -> Format:
    """Return the format of an IDE that is based on Eclipse: code to copy, the pack, and a Makefile project.

    In projects that the IDE has created, the folder `source` is compiled.
    """
    return Format(
        name=name,
        tool=tool,
        templates=MAKE.templates,
        extra_files=_eclipse_files,
        supports_cpu=is_cortex_m,
        framework=name,
        steps=(
            f"Into a project of yours: copy `src` there as `{source}/{{name}}`; Properties > C/C++ Build > Settings: "
            "add it to the compiler's Include paths, and `m` to the linker's Libraries, if `-lm` is not there.",
            pack_step,
            "Include `{name}.h`, and call in `main()` what `example/main.c` calls: the self-test, which returns 0.",
            "For speed: right-click the copied folder > Properties > C/C++ Build > Settings > Optimization: -O2.",
            "Or as a library of its own: File > Import > General > Existing Projects into Workspace: this folder; "
            "Build makes `build/lib{name}.a` with the flags of the CPU. If `make` or the compiler is not found, copy "
            "PATH of Properties > C/C++ Build > Environment from a project that the IDE made.",
        ),
        testing="its Makefile built in tests as `make`; .project and .cproject have the natures, builders and "
        "toolchain of public Makefile projects, without the vendor's, which need a chip and an .ioc file or SDK; "
        "never opened in the IDE itself",
    )


MCUXPRESSO = _eclipse(
    "mcuxpresso",
    "NXP's MCUXpresso IDE",
    "source",
    "Or through the pack: drop `" + PACK_NAME + "` onto the Installed SDKs view, and tick the component in Manage SDK "
    "components.",
)
"""Package format for NXP's MCUXpresso IDE."""

STM32CUBE = _eclipse(
    "stm32cube",
    "ST's STM32CubeIDE and STM32CubeMX",
    "Core",
    "Or through the pack: in the .ioc, Software Packs > Manage Software Packs > From Local: `" + PACK_NAME + "`, then "
    "Select Components.",
)
"""Package format for ST's STM32CubeIDE and STM32CubeMX."""


# ---------------------------------------------------------------------------------------------------------------- IAR


def _iar_files(package: Package) -> Files:
    return {"{name}.ipcf": _connection(package), "{name}.custom_argvars": _variables(package), **pack_archive(package)}


def _connection(package: Package) -> str:
    """Return a project connection: what IAR adds to a project and keeps up to date."""
    root = ET.Element("iarProjectConnection", version="1.2", name=package.name, oneShot="false")
    place = f"${package.macro}_DIR$"
    _text(ET.SubElement(root, "includePath"), "path", f"{place}/src")
    group = ET.SubElement(ET.SubElement(root, "files"), "group", name=package.name)
    for file in package.code:
        _text(group, "path", f"{place}/src/{file}")
    return _xml(root, "<!-- IAR Project Connection File -->\n")


def _variables(package: Package) -> str:
    root = ET.Element("iarUserArgVars")
    variable = ET.SubElement(ET.SubElement(root, "group", name=package.name, active="true"), "variable")
    _text(variable, "name", f"{package.macro}_DIR")
    _text(variable, "value", f"$WS_DIR$/{package.name}")
    return _xml(root)


IAR = Format(
    name="iar",
    tool="IAR Embedded Workbench",
    templates={"example/main.c": "main.c.j2"},
    extra_files=_iar_files,
    steps=(
        "Copy this folder beside your workspace file as `{name}`.",
        "Tools > Configure Custom Argument Variables > Import: `{name}.custom_argvars`.",
        "Project > Add Project Connection > IAR Project Connection: `{name}.ipcf` adds the files and the include path.",
        "Or through the pack: Project > CMSIS-Manager, import `" + PACK_NAME + "`, tick Machine Learning > mcugen.",
        "Include `{name}.h`, and call what `example/main.c` calls: the self-test, which returns 0; for the group, "
        "Options > C/C++ Compiler > Optimizations: High, Speed.",
    ),
    testing="structure in tests; never opened in the IDE itself",
)
"""Package format for IAR Embedded Workbench."""


# --------------------------------------------------------------------------------------------------------------- Keil

_KEIL_DEVICES = {
    "cortex-m0plus": "ARMCM0P",
    "cortex-m3": "ARMCM3",
    "cortex-m4": "ARMCM4",
    "cortex-m7": "ARMCM7",
    "cortex-m33": "ARMCM33",
    "cortex-m55": "ARMCM55",
    "cortex-m85": "ARMCM85",
}
"""Arm's own device in the pack ARM.Cortex_DFP, by CPU."""

_DFP = ("ARM", "Cortex_DFP", "1.1.0")
_CMSIS = ("ARM", "CMSIS", "6.1.0")
_STARTUP_VERSION = "2.2.0"
"""Version of the component Device:Startup in ARM.Cortex_DFP 1.1.0, which is not the version of the pack."""


def _keil_files(package: Package) -> Files:
    return {"{name}.uvprojx": _uvision(package), **pack_archive(package)}


def _is_keil_cpu(board: Board) -> bool:
    return board.cpu in _KEIL_DEVICES


def _uvision(package: Package) -> str:
    """Return a project for Arm's model of the CPU, with the component from the pack and a main program."""
    device = _KEIL_DEVICES[package.board.cpu]
    root = ET.Element("Project", {"xmlns:xsi": _XSI, "xsi:noNamespaceSchemaLocation": "project_projx.xsd"})
    _text(root, "SchemaVersion", "2.1")
    _text(root, "Header", "### uVision Project, (C) Keil Software")
    target = ET.SubElement(ET.SubElement(root, "Targets"), "Target")
    for tag, text in (
        ("TargetName", package.name),
        ("ToolsetNumber", "0x4"),
        ("ToolsetName", "ARM-ADS"),
        ("uAC6", "1"),
    ):
        _text(target, tag, text)
    options = ET.SubElement(target, "TargetOption")
    common = ET.SubElement(options, "TargetCommonOption")
    for tag, text in (
        *(("Device", device), ("Vendor", "ARM"), ("PackID", ".".join(_DFP))),
        *(("OutputDirectory", ".\\Objects\\"), ("OutputName", package.name), ("CreateExecutable", "1")),
    ):
        _text(common, tag, text)
    compiler = ET.SubElement(ET.SubElement(options, "TargetArmAds"), "Cads")
    _text(compiler, "Optim", "3")  # -O2
    group = ET.SubElement(ET.SubElement(target, "Groups"), "Group")
    _text(group, "GroupName", "Application")
    file = ET.SubElement(ET.SubElement(group, "Files"), "File")
    for tag, text in (("FileName", "main.c"), ("FileType", "1"), ("FilePath", ".\\example\\main.c")):
        _text(file, tag, text)
    _components(ET.SubElement(root, "RTE"), package)
    return _xml(root)


def _components(parent: ET.Element, package: Package) -> None:
    """Add the run-time environment: start-up code of Arm's pack, and the model's component."""
    components = ET.SubElement(parent, "components")
    names = dict(zip(("Cclass", "Cgroup", "Csub"), pack_component(package), strict=True))
    for keys, version, source in (
        ({"Cclass": "CMSIS", "Cgroup": "CORE"}, _CMSIS[-1], _CMSIS),
        ({"Cclass": "Device", "Cgroup": "Startup", "Cvariant": "C Startup"}, _STARTUP_VERSION, _DFP),
        (names, package.version, ("mcugen", package.name, package.version)),
    ):
        element = ET.SubElement(components, "component", {**keys, "Cvendor": source[0], "Cversion": version})
        ET.SubElement(element, "package", dict(zip(("vendor", "name", "version"), source, strict=True)))
        infos = ET.SubElement(element, "targetInfos")
        ET.SubElement(infos, "targetInfo", name=package.name)


KEIL = Format(
    name="keil",
    tool="Keil MDK (uVision 5)",
    carries_code=False,
    templates={"example/main.c": "main.c.j2"},
    extra_files=_keil_files,
    supports_cpu=_is_keil_cpu,
    steps=(
        "Double-click `" + PACK_NAME + "`: the Pack Installer adds it.",
        "Open `{name}.uvprojx`: an example for Arm's model of the CPU that runs the self-test.",
        "In a project of yours: Project > Manage > Run-Time Environment, tick Machine Learning > mcugen > {name}; "
        "include `{name}.h`, and call what `example/main.c` calls.",
        "Options for Target > C/C++ (AC6) > Optimization: -O2; libm comes with the compiler.",
    ),
    testing="structure in tests, and the pack as `cmsis-pack`; never opened in the IDE itself",
)
"""Package format for Keil MDK."""
