# SPDX-License-Identifier: Apache-2.0
"""Package formats for frameworks with a build system of their own: Zephyr, ESP-IDF, Pico SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcugen.codegen.install import Files
from mcugen.core.board import Board
from mcugen.export.build_systems import cmake_library
from mcugen.export.declaration import Format

if TYPE_CHECKING:
    from mcugen.export.package import Package

ZEPHYR = Format(
    name="zephyr",
    tool="Zephyr (3.5 or newer) and the nRF Connect SDK",
    templates={
        "CMakeLists.txt": "zephyr/CMakeLists.txt.j2",
        "Kconfig": "zephyr/Kconfig.j2",
        "zephyr/module.yml": "zephyr/module.yml.j2",
        "samples/selftest/CMakeLists.txt": "zephyr/sample.cmake.j2",
        "samples/selftest/prj.conf": "zephyr/prj.conf.j2",
        "samples/selftest/sample.yaml": "zephyr/sample.yaml.j2",
        "samples/selftest/src/main.c": "zephyr/main.c.j2",
    },
    steps=(
        "Copy this folder beside your application as `{name}`.",
        "Name it as a module before `find_package(Zephyr)` in your CMakeLists.txt: "
        "`list(APPEND ZEPHYR_EXTRA_MODULES ${CMAKE_CURRENT_SOURCE_DIR}/../{name})`.",
        "`CONFIG_MCUGEN_{NAME}=y` in your prj.conf; include `{name}.h`.",
        "The self-test: `west build -b {zephyr_board} {name}/samples/selftest`, then `west flash` (or `-t run` for a "
        "board that QEMU has), prints `{name}: self-test passed`.",
    ),
    testing="Kconfig read by kconfiglib and module.yml by PyYAML in tests, module and sample built with stand-ins for "
    "Zephyr's functions; built once, by hand, with Zephyr 2.6 for a Cortex-M3 and run under QEMU",
)
"""Package format for Zephyr and the nRF Connect SDK: a Zephyr module with a sample."""


def _is_riscv(board: Board) -> bool:
    from mcugen.simulation.toolchain import RISCV  # imports numpy, which `--help` does not need

    return board.toolchain == RISCV.name


def _is_idf_cpu(board: Board) -> bool:
    from mcugen.simulation.toolchain import ARM  # imports numpy, which `--help` does not need

    return board.toolchain != ARM.name


ESP_IDF = Format(
    name="esp-idf",
    supports_cpu=_is_idf_cpu,
    framework="esp_idf",
    tool="ESP-IDF (5.0 or newer)",
    templates={
        "CMakeLists.txt": "esp-idf/CMakeLists.txt.j2",
        "Kconfig": "esp-idf/Kconfig.j2",
        "idf_component.yml": "esp-idf/idf_component.yml.j2",
        "examples/selftest/CMakeLists.txt": "esp-idf/project.cmake.j2",
        "examples/selftest/main/CMakeLists.txt": "esp-idf/main.cmake.j2",
        "examples/selftest/main/main.c": "esp-idf/main.c.j2",
    },
    steps=(
        "Copy this folder into your project as `components/{name}`; if you choose another name, use that name below.",
        "`REQUIRES {name}` in the CMakeLists.txt of the component that calls it; include `{name}.h`.",
        "The self-test: `cd components/{name}/examples/selftest && idf.py set-target {idf_target} build flash "
        "monitor`, or View > Command Palette > ESP-IDF: Build, Flash and Monitor, prints `{name}: self-test passed`.",
        "It is compiled with -O2; Component config > {name} in `idf.py menuconfig` changes that.",
    ),
    testing="manifests loaded by idf-component-manager, Kconfig by kconfiglib in tests, component and example built "
    "with stand-ins for the IDF's functions; built once, by hand, with ESP-IDF 6.2 for its target linux, and run",
)
"""Package format for ESP-IDF: a component with an example."""


def _is_pico_cpu(board: Board) -> bool:
    return board.cpu in ("cortex-m0plus", "cortex-m33") or _is_riscv(board)


def pico_platform(board: Board) -> str:
    """Return the PICO_PLATFORM whose CPU is that of a board."""
    if _is_riscv(board):
        return "rp2350-riscv"
    return "rp2040" if board.cpu == "cortex-m0plus" else "rp2350-arm-s"


def _pico_files(package: Package) -> Files:
    """Return the CMake files: the library of `cmake`, which checks the CPU that the SDK builds for, and the example."""
    ((path, library),) = cmake_library(package).items()
    platform = pico_platform(package.board)
    check = package.rendered("pico-sdk/check.cmake.j2", platform=platform)
    example = package.rendered("pico-sdk/example.cmake.j2", platform=platform)
    return {path: f"{library!s}{check}", "example/CMakeLists.txt": example}


PICO_SDK = Format(
    name="pico-sdk",
    tool="the Raspberry Pi Pico SDK",
    code="",
    beside="",
    templates={"example/main.c": "pico-sdk/main.c.j2"},
    extra_files=_pico_files,
    supports_cpu=_is_pico_cpu,
    framework="pico_sdk",
    steps=(
        "Copy this folder into your project as `{name}`.",
        "Below `pico_sdk_init()` in your CMakeLists.txt: `add_subdirectory({name})`, and "
        "`target_link_libraries(YOUR_PROGRAM {name})`; include `{name}.h`.",
        "The self-test: with PICO_SDK_PATH set, `cmake -S {name}/example -B build && cmake --build build` builds it "
        "for PICO_BOARD={pico_board}; `-DPICO_BOARD=...` names another board with this chip.",
        "Hold BOOTSEL while you plug the board in; drag `build/{name}_example.uf2` onto the drive that appears.",
        "A serial terminal on the board's USB port shows `{name}: self-test passed` every second.",
    ),
    testing="built once, by hand, against SDK 2.2.0 for RP2040 and RP2350 (Arm); its library is the one of `cmake`",
)
"""Package format for the Raspberry Pi Pico SDK: a CMake library."""
