# SPDX-License-Identifier: Apache-2.0
"""Libraries for Arduino and PlatformIO: built by Arduino's own builder, packed by PlatformIO's own packer."""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from export_packages import FORMATS, digits, export, first_line, need, run, tiny

from mcugen.codegen.install import MANIFEST, install
from mcugen.core.board import load_board
from mcugen.export.arduino import architectures
from mcugen.export.assemble import package_archive
from mcugen.export.package import Package

HARDWARE, BUILDER = Path("/usr/share/arduino/hardware/arduino"), Path("/usr/share/arduino-builder/platform.txt")


def properties(folder: Path) -> dict[str, str]:
    lines = (folder / "library.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_properties_are_those_that_arduino_asks_for(tmp_path: Path) -> None:
    folder = export(tiny(), "arduino", tmp_path / "tiny")
    found = properties(folder)
    assert found["name"] == "tiny"
    assert found["version"] == "1.2.3"
    assert found["includes"] == "tiny.h"
    assert found["architectures"] == "*"
    assert all(found[key] for key in ("author", "maintainer", "sentence", "paragraph", "category", "url"))
    assert found["sentence"] not in found["paragraph"]
    assert (folder / "src" / found["includes"]).is_file()
    for line in (folder / "keywords.txt").read_text().splitlines():
        word, kind = line.split("\t")
        assert word.isidentifier()
        assert kind in ("KEYWORD1", "KEYWORD2", "LITERAL1")


@pytest.mark.parametrize("board", ["nrf52840", "teensy40", "stm32f411", "esp32c3", "rt1060"])
def test_the_architectures_are_those_with_enough_ram(board: str) -> None:
    """The digits model keeps 12 KB of weights, which an AVR would copy to its 8 KB of RAM."""
    names = architectures(Package(digits(board), "1.2.3")).split(",")
    own = load_board(board).frameworks.arduino.split(",")
    assert [name for name in own if name] == names[: len([name for name in own if name])]
    assert ("avr" in names) == ("avr" in own)
    assert {"samd", "esp32", "rp2040", "stm32"} <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("board", ["nrf52840", "stm32f411", "esp32c3", "teensy41", "ra4m1", "rt1060", "host"])
def test_platformio_builds_for_the_board_that_was_asked_for(board: str, tmp_path: Path) -> None:
    config = pytest.importorskip("platformio.project.config")
    folder = export(tiny(board), "platformio", tmp_path / "tiny")
    found = config.ProjectConfig(str(folder / "examples" / "selftest" / "platformio.ini"))
    platform, _, name = load_board(board).frameworks.platformio.partition("/")
    (env,) = found.envs()
    assert env == (name or "native")
    assert found.get(f"env:{env}", "platform") == (platform or "native")
    assert found.get(f"env:{env}", "board", "") == name
    assert not found.get(f"env:{env}", "lib_extra_dirs", []), "a relative folder is another one under `pio ci`"


def test_arduinos_builder_takes_the_zipped_library(tmp_path: Path) -> None:
    """For an ATmega2560, which QEMU runs."""
    need("arduino-builder", "arduino-ctags", "avr-gcc", "qemu-system-avr")
    if not HARDWARE.is_dir():
        pytest.skip("needs arduino-core-avr")
    install(package_archive(Package(tiny()), FORMATS["arduino"]), tmp_path / "zipped", "tiny")
    (archive,) = (tmp_path / "zipped").glob("*.zip")
    zipfile.ZipFile(archive).extractall(tmp_path / "libraries")
    hardware = tmp_path / "hardware"
    hardware.mkdir()
    (hardware / "arduino").symlink_to(HARDWARE)
    (hardware / "platform.txt").symlink_to(BUILDER)
    sketch = tmp_path / "libraries" / "tiny" / "examples" / "SelfTest" / "SelfTest.ino"
    build = tmp_path / "build"
    build.mkdir()
    # Debian's core of Arduino wants a macro that its avr-gcc has under another name in C++
    macro = "compiler.cpp.extra_flags=-DDECIMAL_DIG=__DECIMAL_DIG__"
    where = ("-hardware", hardware, "-tools", "/usr/bin", "-libraries", tmp_path / "libraries", "-build-path", build)
    board = ("-fqbn", "arduino:avr:mega:cpu=atmega2560", "-warnings", "all", f"-prefs={macro}")
    told = run(["arduino-builder", "-compile", *where, *board, sketch], tmp_path)
    assert "libraries/tiny/src" not in told, "a warning in the model's files"
    command = ["qemu-system-avr", "-M", "mega2560", "-display", "none", "-monitor", "none", "-serial", "stdio"]
    assert first_line([*command, "-bios", build / "SelfTest.ino.elf"], tmp_path) == "tiny: self-test passed"


SERIAL = """#pragma once
#include <stddef.h>
#define F(text) text
struct {
    void begin(long) {}
    operator bool() { return true; }
    void print(const char *) {}
    void println(const char *) {}
} Serial;
"""


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "example"),
    [("arduino", "examples/SelfTest/SelfTest.ino"), ("platformio", "examples/selftest/src/main.cpp")],
)
def test_the_sketch_compiles_as_for_a_cortex_m4(name: str, example: str, tmp_path: Path) -> None:
    """Flags as in the platform.txt of boards with an Arm CPU: the sketch as C++, the library's C for size."""
    need("arm-none-eabi-g++")
    folder = export(digits("nrf52840"), name, tmp_path / "digits")
    (tmp_path / "Arduino.h").write_text(SERIAL)
    flags = [
        "-mcpu=cortex-m4",
        "-mthumb",
        "-mfloat-abi=hard",
        "-mfpu=fpv4-sp-d16",
        "-Os",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    board = ["-DARDUINO=10819", "-include", tmp_path / "Arduino.h", "-I", tmp_path, "-I", folder / "src"]
    run(["arm-none-eabi-g++", *flags, *board, "-std=gnu++17", "-x", "c++", "-fsyntax-only", folder / example], tmp_path)
    for source in (folder / "src").glob("*.c"):
        run(["arm-none-eabi-gcc", *flags, "-std=gnu11", "-c", source, "-o", tmp_path / "x.o"], tmp_path)


# ---------------------------------------------------------------------------------------------------------- PlatformIO

PACK = """
import sys
from platformio.__main__ import main
from platformio.package.manifest.schema import ManifestSchema
ManifestSchema.load_spdx_licenses = staticmethod(lambda: {"licenses": [{"licenseId": "0BSD"}]})  # else from the net
sys.exit(main(["pio", "pkg", "pack", "-o", sys.argv[1]]))
"""


def test_platformio_packs_it(tmp_path: Path) -> None:
    pytest.importorskip("platformio")
    folder = export(tiny(), "platformio", tmp_path / "tiny")
    archive = tmp_path / "tiny.tar.gz"
    settings = {"PLATFORMIO_CORE_DIR": str(tmp_path / "core"), "PLATFORMIO_SETTING_ENABLE_TELEMETRY": "false"}
    run([sys.executable, "-c", PACK, archive], folder, **settings)
    with tarfile.open(archive) as packed_archive:
        packed = {name.removeprefix("./") for name in packed_archive.getnames()}
    assert {"library.json", "optimize.py", "src/tiny.c", "src/tiny.h", "src/mcugen.h"} <= packed
    assert (folder / MANIFEST).is_file() and MANIFEST not in packed
    manifest = json.loads((folder / "library.json").read_text())
    assert manifest["version"] == "1.2.3"
    for example in manifest["examples"]:
        assert all((folder / example["base"] / file).is_file() for file in example["files"])
    assert (folder / manifest["build"]["extraScript"]).is_file()


class Environment:
    """Of PlatformIO's build, as far as a library's script sees it."""

    def __init__(self, build_flags: object) -> None:
        self.build_flags, self.flags = build_flags, ["-Os", "-Wall"]

    def GetProjectOption(self, name: str, default: object) -> object:  # noqa: N802
        return self.build_flags if name == "build_flags" and self.build_flags is not None else default

    def ProcessUnFlags(self, flags: str) -> None:  # noqa: N802
        self.flags = [flag for flag in self.flags if flag not in flags.split()]

    def Append(self, CCFLAGS: list[str]) -> None:  # noqa: N802, N803
        self.flags += CCFLAGS


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        (None, ["-Wall", "-O2"]),
        ("-DX -Wextra", ["-Wall", "-O2"]),
        ("-O3", ["-Os", "-Wall"]),
        (["-DX", "-Og"], ["-Os", "-Wall"]),
    ],
)
def test_platformio_compiles_with_o2_unless_the_project_has_another(
    given: object, flags: list[str], tmp_path: Path
) -> None:
    script = (export(tiny(), "platformio", tmp_path / "tiny") / "optimize.py").read_text()
    env = Environment(given)
    exec(script, {"Import": lambda name: None, "env": env})
    assert env.flags == flags
