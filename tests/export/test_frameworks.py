# SPDX-License-Identifier: Apache-2.0
"""Modules for Zephyr and components for ESP-IDF: read by their own tools, built with stand-ins for the rest."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from export_packages import export, files_of, need, run, tiny
from onnx_models import Net
from test_conv import quantized_conv

from mcugen.core.board import load_board
from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model

yaml = pytest.importorskip("yaml")
kconfiglib = pytest.importorskip("kconfiglib")

ZEPHYR = """
function(zephyr_include_directories)
  include_directories(${ARGN})
endfunction()
function(zephyr_library_named name)
  add_library(${name} STATIC)
  set(ZEPHYR_CURRENT_LIBRARY ${name} PARENT_SCOPE)
endfunction()
function(zephyr_library_sources)
  target_sources(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()
function(zephyr_library_include_directories)
  target_include_directories(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()
function(zephyr_library_compile_options)
  target_compile_options(${ZEPHYR_CURRENT_LIBRARY} PRIVATE ${ARGN})
endfunction()
"""
IDF = """
function(idf_component_register)
  cmake_parse_arguments(C "" "" "SRCS;INCLUDE_DIRS;PRIV_REQUIRES" ${ARGN})
  add_library(component STATIC ${C_SRCS})
  target_include_directories(component PUBLIC ${C_INCLUDE_DIRS})
  set(COMPONENT_LIB component PARENT_SCOPE)
endfunction()
"""


def kconfig(folder: Path, monkeypatch: pytest.MonkeyPatch) -> kconfiglib.Kconfig:
    monkeypatch.chdir(folder)
    found = kconfiglib.Kconfig("Kconfig", warn_to_stderr=False)
    assert found.warnings == []
    return found


def test_zephyr_reads_module_and_kconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = export(tiny(), "zephyr", tmp_path / "tiny")
    module = yaml.safe_load((folder / "zephyr" / "module.yml").read_text())
    assert module["name"] == "tiny"
    assert (folder / module["build"]["cmake"] / "CMakeLists.txt").is_file()
    assert (folder / module["build"]["kconfig"]).is_file()
    assert all((folder / sample).is_dir() for sample in module["samples"])
    options = kconfig(folder, monkeypatch)
    assert options.syms["MCUGEN_TINY_SPEED"].str_value == "n"
    for line in (folder / "samples" / "selftest" / "prj.conf").read_text().splitlines():
        if line.startswith("CONFIG_MCUGEN"):
            name, _, value = line.removeprefix("CONFIG_").partition("=")
            options.syms[name].set_value(value)
    assert options.syms["MCUGEN_TINY"].str_value == options.syms["MCUGEN_TINY_SPEED"].str_value == "y"
    sample = yaml.safe_load((folder / "samples" / "selftest" / "sample.yaml").read_text())
    assert sample["tests"]["sample.mcugen.tiny"]["harness_config"]["regex"] == ["tiny: self-test passed"]


@pytest.mark.parametrize("speed", [True, False])
def test_zephyrs_module_builds(speed: bool, tmp_path: Path) -> None:
    need("cmake", "gcc")
    export(tiny(), "zephyr", tmp_path / "tiny")
    include = tmp_path / "include" / "zephyr"
    (include / "sys").mkdir(parents=True)
    (include / "kernel.h").touch()
    (include / "sys" / "printk.h").write_text("#include <stdio.h>\n#define printk printf\n")
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.20)\nproject(own C)\n{ZEPHYR}set(CONFIG_MCUGEN_TINY y)\n"
        f"set(CONFIG_MCUGEN_TINY_SPEED {'y' if speed else 'n'})\nadd_subdirectory(tiny)\n"
        "include_directories(include tiny/src)\nadd_executable(app tiny/samples/selftest/src/main.c)\n"
        "target_link_libraries(app tiny m)\n"
    )
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], tmp_path)
    run(["cmake", "--build", tmp_path / "build"], tmp_path)
    assert run([tmp_path / "build" / "app"], tmp_path) == "tiny: self-test passed (0)\n"
    assert ("-O2" in (tmp_path / "build" / "compile_commands.json").read_text()) == speed


def test_a_module_that_is_not_wanted_builds_nothing(tmp_path: Path) -> None:
    need("cmake", "gcc")
    export(tiny(), "zephyr", tmp_path / "tiny")
    text = "cmake_minimum_required(VERSION 3.20)\nproject(own C)\nadd_subdirectory(tiny)\n"
    (tmp_path / "CMakeLists.txt").write_text(text)
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"], tmp_path)


def with_cmsis_nn(folder: Path) -> Path:
    net = Net()
    quantized_conv(net, "y", ((1, 4, 9, 8), 6, (3, 3), {"pads": [1] * 4}), False)
    compiled = compile_model(net.model(), "nrf52840", CompileOptions(name="tiny", family=CMSIS_NN))
    return export(compiled, "zephyr", folder)


def test_zephyr_builds_the_parts_of_cmsis_nn_that_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = with_cmsis_nn(tmp_path / "tiny")
    parts = ("ACTIVATION", "CONVOLUTION", "FULLYCONNECTED", "POOLING", "SOFTMAX", "NNSUPPORT")
    names = ("CMSIS_NN", *(f"CMSIS_NN_{part}" for part in parts))
    known = "".join(f"config {name}\n\tbool\n" for name in (*names, "CMSIS_NN_BASICMATH"))
    with (folder / "Kconfig").open("a") as file:
        file.write(known)
    options = kconfig(folder, monkeypatch)
    options.syms["MCUGEN_TINY"].set_value("y")
    assert {options.syms[name].str_value for name in names} == {"y"}


@pytest.mark.parametrize(("header", "told"), [(None, "add the module"), ("old", "is older"), ("new", "")])
def test_zephyr_checks_the_version_of_cmsis_nn(header: str | None, told: str, tmp_path: Path) -> None:
    """Zephyr 3.7.1 pins a CMSIS-NN without cmsis_nn_quant_params."""
    need("cmake", "gcc")
    with_cmsis_nn(tmp_path / "tiny")
    include = tmp_path / "cmsis-nn" / "Include"
    include.mkdir(parents=True)
    if header:
        (include / "arm_nn_types.h").write_text("struct cmsis_nn_quant_params;" if header == "new" else "")
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.20)\nproject(own C)\n{ZEPHYR}set(CONFIG_MCUGEN_TINY y)\n"
        f"set(ZEPHYR_CMSIS_NN_MODULE_DIR {tmp_path}/cmsis-nn)\nadd_subdirectory(tiny)\n"
    )
    configured = subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"], capture_output=True, text=True)
    assert (configured.returncode == 0) == (not told)
    assert told in " ".join(configured.stderr.split())


@pytest.mark.parametrize("needs_libm", [True, False])
def test_zephyr_takes_a_full_c_library_only_where_math_is_called(needs_libm: bool, tmp_path: Path) -> None:
    net = Net()
    net.output(net.op("Sin" if needs_libm else "Relu", net.input("x", 1, 4), out="y"))
    compiled = compile_model(net.model(), "nrf52840", CompileOptions(name="model"))
    folder = export(compiled, "zephyr", tmp_path / "model")
    includes = any("#include <math.h>" in file.read_text() for file in (folder / "src").iterdir())
    assert includes == needs_libm
    assert ("select REQUIRES_FULL_LIBC" in (folder / "Kconfig").read_text()) == needs_libm


@pytest.mark.parametrize(("board", "simulated"), [("rp2040", "mps2/an385"), ("rp2350", "mps2/an521/cpu0")])
def test_zephyrs_sample_names_a_board_of_qemu(board: str, simulated: str) -> None:
    files = files_of(tiny(board), "zephyr")
    sample = yaml.safe_load(str(files["samples/selftest/sample.yaml"]))
    assert sample["tests"]["sample.mcugen.tiny"]["integration_platforms"] == [simulated]
    assert f"west build -b {load_board(board).frameworks.zephyr} " in str(files["README.md"])


def test_the_component_manager_takes_the_manifests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = pytest.importorskip("idf_component_tools.manager")
    folder = export(tiny(), "esp-idf", tmp_path / "tiny")
    manifest = manager.ManifestManager(folder, "tiny").load()
    assert str(manifest.version) == "1.2.3"
    assert manifest.license == "0BSD"
    assert "SHA-256" in manifest.description
    assert all((folder / example["path"]).is_dir() for example in manifest.examples)
    assert kconfig(folder, monkeypatch).syms["MCUGEN_TINY_SPEED"].str_value == "y"


@pytest.mark.parametrize("name", ["tiny", "digits-v2", "net.1"])
def test_esp_idfs_example_finds_the_component_in_a_folder_of_any_name(name: str, tmp_path: Path) -> None:
    """ESP-IDF names a component after its folder; the example adds that folder and requires that name."""
    need("cmake")
    folder = export(tiny(), "esp-idf", tmp_path / name)
    (tmp_path / "tools" / "cmake").mkdir(parents=True)
    (tmp_path / "tools" / "cmake" / "project.cmake").write_text(
        'get_filename_component(found "${EXTRA_COMPONENT_DIRS}" ABSOLUTE)\n'
        'get_filename_component(found "${found}" NAME)\n'
        'function(idf_component_register)\n  cmake_parse_arguments(C "" "PRIV_REQUIRES" "SRCS" ${ARGN})\n'
        '  message(STATUS "${found} for ${C_PRIV_REQUIRES}")\nendfunction()\n'
        "macro(project)\n  include(${CMAKE_CURRENT_LIST_DIR}/main/CMakeLists.txt)\nendmacro()\n"
    )
    example = folder / "examples" / "selftest"
    told = run(["cmake", "-S", example, "-B", tmp_path / "build"], tmp_path, IDF_PATH=str(tmp_path))
    assert f"{name} for {name}\n" in told


@pytest.mark.parametrize("speed", [True, False])
def test_esp_idfs_component_builds(speed: bool, tmp_path: Path) -> None:
    need("cmake", "gcc")
    export(tiny(), "esp-idf", tmp_path / "tiny")
    (tmp_path / "start.c").write_text("void app_main(void);\nint main(void) { app_main(); return 0; }\n")
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.16)\nproject(own C)\n{IDF}"
        f"set(CONFIG_MCUGEN_TINY_SPEED {'y' if speed else 'n'})\nadd_subdirectory(tiny)\n"
        "add_executable(app start.c tiny/examples/selftest/main/main.c)\ntarget_link_libraries(app component m)\n"
    )
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], tmp_path)
    run(["cmake", "--build", tmp_path / "build"], tmp_path)
    assert run([tmp_path / "build" / "app"], tmp_path) == "tiny: self-test passed (0)\n"
    assert ("-O2" in (tmp_path / "build" / "compile_commands.json").read_text()) == speed


PICO_IMPORT = """
macro(pico_sdk_init)
  if(NOT PICO_PLATFORM)
    set(PICO_PLATFORM ${DEFAULT_${PICO_BOARD}})
  endif()
  message(STATUS "for ${PICO_BOARD} ${PICO_PLATFORM}")
endmacro()
set(DEFAULT_pico rp2040)
set(DEFAULT_pico2 rp2350-arm-s)
add_library(pico_stdlib INTERFACE)
function(pico_enable_stdio_usb)
endfunction()
function(pico_enable_stdio_uart)
endfunction()
function(pico_add_extra_outputs)
endfunction()
"""
PLATFORMS = {"rp2040": "pico rp2040", "rp2350": "pico2 rp2350-arm-s", "rp2350_riscv": "pico2 rp2350-riscv"}


def configured_pico(board: str, tmp_path: Path, *settings: str, sdk: bool = True) -> subprocess.CompletedProcess[str]:
    """Configure the example with a stand-in for the SDK, by this computer's compiler."""
    need("cmake", "gcc", "g++")
    export(tiny(board), "pico-sdk", tmp_path / "tiny")
    if sdk:
        (tmp_path / "sdk" / "external").mkdir(parents=True)
        (tmp_path / "sdk" / "external" / "pico_sdk_import.cmake").write_text(PICO_IMPORT)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PICO_")}
    command = ["cmake", "-S", tmp_path / "tiny" / "example", "-B", tmp_path / "build", *settings]
    environment |= {"PICO_SDK_PATH": str(tmp_path / "sdk")} if sdk else {}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("board", PLATFORMS)
def test_the_pico_example_builds_for_the_board_that_was_asked_for(board: str, tmp_path: Path) -> None:
    done = configured_pico(board, tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"for {PLATFORMS[board]}\n" in done.stdout


@pytest.mark.parametrize(
    ("board", "settings"),
    [
        ("rp2040", ["-DPICO_BOARD=pico2"]),
        ("rp2350", ["-DPICO_BOARD=pico"]),
        ("rp2350", ["-DPICO_PLATFORM=rp2350-riscv"]),
        ("rp2350_riscv", ["-DPICO_PLATFORM=rp2350-arm-s"]),
    ],
)
def test_another_cpu_of_the_pico_is_refused(board: str, settings: list[str], tmp_path: Path) -> None:
    done = configured_pico(board, tmp_path, *settings)
    assert done.returncode != 0
    assert f"tiny is for PICO_PLATFORM={PLATFORMS[board].split()[1]}" in " ".join(done.stderr.split())


def test_a_missing_pico_sdk_is_told(tmp_path: Path) -> None:
    done = configured_pico("rp2040", tmp_path, sdk=False)
    assert done.returncode != 0
    assert "set PICO_SDK_PATH to the folder of the Pico SDK" in " ".join(done.stderr.split())
