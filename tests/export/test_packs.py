# SPDX-License-Identifier: Apache-2.0
"""CMSIS-Packs, and what IDEs import besides: every file that they name is there."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from export_packages import board_for, files_of, need, run, tiny
from onnx_models import Net
from test_conv import quantized_conv

from mcugen.core.board import load_board
from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.export.package import Package
from mcugen.export.packs import pack_contents

yaml = pytest.importorskip("yaml")

BOARD = "nrf52840"


def contents(format_: str) -> Mapping[str, bytes]:
    data = files_of(tiny(board_for(format_)), format_)["mcugen.tiny.1.2.3.pack"]
    assert isinstance(data, bytes)
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None
    return {name: archive.read(name) for name in archive.namelist()}


def element(root: ET.Element, path: str) -> ET.Element:
    found = root.find(path)
    assert found is not None, path
    return found


@pytest.mark.parametrize("format_", ["cmsis-pack", "mcuxpresso", "stm32cube", "iar", "keil"])
def test_the_description_names_what_is_in_the_pack(format_: str) -> None:
    files = contents(format_)
    root = ET.fromstring(files["mcugen.tiny.pdsc"])
    assert [root.findtext(tag) for tag in ("vendor", "name", "license")] == ["mcugen", "tiny", "LICENSE"]
    release = element(root, "releases/release")
    assert release.get("version") == "1.2.3"
    assert date.fromisoformat(str(release.get("date"))) <= datetime.now(tz=UTC).date()
    component = element(root, "components/component")
    assert component.get("Cversion") == "1.2.3"
    named = {file.get("name"): file for file in component.iter("file")}
    layer = element(root, "csolution/clayer").get("file")
    licence = element(root, "licenseSets/licenseSet/license").get("name")
    assert {*named, layer, licence, "mcugen.tiny.pdsc"} == set(files)
    assert named["template/main.c"].get("attr") == "template"
    assert {name for name, file in named.items() if file.get("category") == "source" and not file.get("attr")} == {
        *("tiny.c", "tiny_selftest.c", "tiny_weights.c")
    }


def test_the_packs_files_build_the_template(tmp_path: Path) -> None:
    need("gcc")
    for name, data in contents("cmsis-pack").items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    root = ET.fromstring((tmp_path / "mcugen.tiny.pdsc").read_bytes())
    sources = [str(file.get("name")) for file in root.iter("file") if file.get("category") == "source"]
    run(["gcc", "-std=c99", "-I.", *sources, "-lm", "-o", "selftest"], tmp_path)
    assert run([tmp_path / "selftest"], tmp_path) == "tiny: self-test passed (0)\n"


def test_elements_come_in_the_schemas_order() -> None:
    """PACK.xsd lets them come in any; tools before 1.7 want licence and releases before components."""
    tags = [child.tag for child in ET.fromstring(contents("cmsis-pack")["mcugen.tiny.pdsc"])]
    assert tags.index("license") < tags.index("releases") < tags.index("components") < tags.index("csolution")
    assert len(tags) == len(set(tags))


def test_the_layer_names_the_packs_component() -> None:
    files = files_of(tiny(BOARD), "cmsis-pack")
    layer = yaml.safe_load(str(files["tiny.clayer.yml"]))["layer"]
    assert layer["packs"] == [{"pack": "mcugen::tiny@1.2.3"}]
    assert layer["components"] == [{"component": "Machine Learning:mcugen:tiny", "optimize": "speed"}]
    assert layer["misc"] == [{"for-compiler": "GCC", "Lib": ["-lm"]}]
    assert contents("cmsis-pack")["tiny.clayer.yml"].decode() == files["tiny.clayer.yml"]


def test_a_library_is_a_requirement() -> None:
    net = Net()
    quantized_conv(net, "y", ((1, 4, 9, 8), 6, (3, 3), {"pads": [1] * 4}), False)
    compiled = compile_model(net.model(), BOARD, CompileOptions(name="net", family=CMSIS_NN))
    package = Package(compiled, "1.2.3")
    layer = yaml.safe_load(str(pack_contents(package)["net.clayer.yml"]))["layer"]
    assert {"pack": "ARM::CMSIS-NN@^7.0.0"} in layer["packs"]
    assert {"component": "CMSIS:NN Lib"} in layer["components"]
    root = ET.fromstring(str(pack_contents(package)["mcugen.net.pdsc"]))
    assert element(root, "requirements/packages/package").get("name") == "CMSIS-NN"
    assert package.notes == ["net calls CMSIS-NN 7.x, which your project brings"]


# ----------------------------------------------------------------------------------------------------------------- IDEs


MANAGED_BUILD = "org.eclipse.cdt.managedbuilder.core"
MAKEFILE_NATURES = {
    "org.eclipse.cdt.core.cnature",
    f"{MANAGED_BUILD}.managedBuildNature",
    f"{MANAGED_BUILD}.ScannerConfigNature",
}
"""Natures of a Makefile project in C: those of har-in-air/STM32F411_USB_AUDIO_DAC, without the one of C++."""
PROGRAM_NATURES = {
    "stm32cube": {
        f"com.st.stm32cube.ide.mcu.{nature}"
        for nature in (
            "MCUCubeIdeServicesRevAev2ProjectNature",
            "MCUCubeProjectNature",
            "MCUNonUnderRootProjectNature",
            "MCUProjectNature",
            "MCURootProjectNature",
            "MCUSingleCpuProjectNature",
        )
    },
    "mcuxpresso": {"com.nxp.mcuxpresso.core.datamodels.sdkNature"},
}
"""Natures that whole programs have besides, with a chip and an .ioc file or SDK: the 58 projects for STM32CubeIDE of
STMicroelectronics/x-cube-tof1, and memfault/rt1021-mcuxpresso."""
BUILDERS = {
    f"{MANAGED_BUILD}.genmakebuilder": "clean,full,incremental,",
    f"{MANAGED_BUILD}.ScannerConfigBuilder": "full,incremental,",
}
"""Triggers of the builders in all of these projects."""
TOOLCHAIN = "cdt.managedbuild.toolchain.gnu.cross.base"
"""Toolchain of the Makefile project; programs have a vendor's: com.st.stm32cube.ide.mcu or com.crt.advproject."""


@pytest.mark.parametrize("format_", ["mcuxpresso", "stm32cube"])
def test_eclipse_imports_a_makefile_project(format_: str) -> None:
    project = ET.fromstring(str(files_of(tiny(board_for(format_)), format_)[".project"]))
    assert project.tag == "projectDescription"
    assert project.findtext("name") == "tiny"
    natures = {str(nature.text) for nature in project.iter("nature")}
    assert natures == MAKEFILE_NATURES and not natures & PROGRAM_NATURES[format_]
    commands = project.iter("buildCommand")
    assert {command.findtext("name"): command.findtext("triggers") for command in commands} == BUILDERS


@pytest.mark.parametrize("format_", ["mcuxpresso", "stm32cube"])
def test_the_makefile_project_runs_make_in_its_folder(format_: str) -> None:
    files = files_of(tiny(board_for(format_)), format_)
    text = str(files[".cproject"])
    assert "<?fileVersion 4.0.0?>" in text and "com." not in text
    cproject = ET.fromstring(text)
    assert cproject.get("storage_type_id") == "org.eclipse.cdt.core.XmlProjectDescriptionStorage"
    configuration = element(cproject, "storageModule/cconfiguration")
    settings, build = configuration.findall("storageModule")[:2]
    assert settings.get("buildSystemId") == f"{MANAGED_BUILD}.configurationDataProvider"
    assert build.get("moduleId") == "cdtBuildSystem"
    assert {settings.get("id"), element(build, "configuration").get("id")} == {configuration.get("id")}
    toolchain = element(build, "configuration/folderInfo/toolChain")
    assert toolchain.get("superClass") == TOOLCHAIN
    assert element(toolchain, "option").get("value") == "arm-none-eabi-"
    assert element(toolchain, "builder").get("managedBuildOn") == "false"
    assert element(toolchain, "tool/option/listOptionValue").get("value") == '"${workspace_loc:/${ProjName}/src}"'
    assert "src/tiny.h" in files
    identifiers = [part.get("id") for part in build.iter() if part.get("superClass")]
    assert len(identifiers) == len(set(identifiers)) == 7
    assert all(f"\n{target}:" in str(files["Makefile"]) for target in ("all", "clean"))


def test_iars_connection_names_the_files() -> None:
    files = files_of(tiny(BOARD), "iar")
    connection = ET.fromstring(str(files["tiny.ipcf"]))
    variables = ET.fromstring(str(files["tiny.custom_argvars"]))
    assert (connection.tag, variables.tag) == ("iarProjectConnection", "iarUserArgVars")
    variable = f"${variables.findtext('group/variable/name')}$/"
    named = {path.text for path in connection.iter("path")}
    assert {f"{variable}{path}" for path in files if path.startswith("src/")} | {f"{variable}src"} == named
    assert variables.findtext("group/variable/value") == "$WS_DIR$/tiny"


@pytest.mark.parametrize("board", ["rp2040", "stm32f103", "nrf52840", "rt1060", "rp2350", "corstone300", "ra8d1"])
def test_keils_start_up_code_is_that_of_arms_pack(board: str) -> None:
    """ARM.Cortex_DFP 1.1.0 has Device:Startup&C Startup@2.2.0 for each Cortex-M, and these device names."""
    devices = {"0plus": "ARMCM0P", "3": "ARMCM3", "4": "ARMCM4", "7": "ARMCM7", "33": "ARMCM33", "55": "ARMCM55"}
    cpu = load_board(board).cpu.removeprefix("cortex-m")
    project = ET.fromstring(str(files_of(tiny(board), "keil")["tiny.uvprojx"]))
    common = "Targets/Target/TargetOption/TargetCommonOption"
    assert project.findtext(f"{common}/Device") == {**devices, "85": "ARMCM85"}[cpu]
    assert project.findtext(f"{common}/PackID") == "ARM.Cortex_DFP.1.1.0"
    startup = element(project, "RTE/components/component[@Cgroup='Startup']")
    assert (startup.get("Cvariant"), startup.get("Cversion")) == ("C Startup", "2.2.0")
    assert element(startup, "package").get("version") == "1.1.0"


def test_keils_project_takes_the_component() -> None:
    files = files_of(tiny(BOARD), "keil")
    project = ET.fromstring(str(files["tiny.uvprojx"]))
    target = element(project, "Targets/Target")
    assert target.findtext("TargetOption/TargetCommonOption/Device") == "ARMCM4"
    assert target.findtext("TargetOption/TargetArmAds/Cads/Optim") == "3"
    for path in target.iter("FilePath"):
        assert str(path.text).removeprefix(".\\").replace("\\", "/") in files
    described = element(ET.fromstring(contents("keil")["mcugen.tiny.pdsc"]), "components/component")
    own = element(project, "RTE/components/component[@Cvendor='mcugen']")
    assert all(own.get(key) == described.get(key) for key in ("Cclass", "Cgroup", "Csub", "Cversion"))
    assert [info.get("name") for info in own.iter("targetInfo")] == [target.findtext("TargetName")]
