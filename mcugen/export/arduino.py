# SPDX-License-Identifier: Apache-2.0
"""Package formats for Arduino and PlatformIO libraries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcugen.codegen.install import Files
from mcugen.core.version import PLACEHOLDER_URL
from mcugen.export.declaration import Format

if TYPE_CHECKING:
    from mcugen.export.package import Package

_AUTHOR = "mcugen"

_KIB = 1024
_ARCHITECTURE_RAM = {
    "avr": 8 * _KIB,  # Mega 2560
    "megaavr": 6 * _KIB,  # Nano Every
    "renesas_uno": 32 * _KIB,  # Uno R4
    "sam": 96 * _KIB,  # Due
    "samd": 256 * _KIB,  # Grand Central M4
    "nrf52": 256 * _KIB,
    "mbed_nano": 256 * _KIB,  # Nano 33 BLE
    "mbed_rp2040": 264 * _KIB,
    "esp32": 320 * _KIB,
    "apollo3": 384 * _KIB,
    "renesas_portenta": 512 * _KIB,
    "rp2040": 520 * _KIB,  # Pico 2
    "mbed_portenta": 512 * _KIB,
    "mbed_giga": 512 * _KIB,
    "stm32": 1024 * _KIB,
}
"""Bytes of RAM of the largest common board of each Arduino core, by architecture (data sheets)."""


def _arduino_files(package: Package) -> Files:
    return {"library.properties": _properties(package), "keywords.txt": _keywords(package)}


def _properties(package: Package) -> str:
    """Lines KEY=VALUE; values have no line ends, as names and descriptions are printable."""
    fields = {
        "name": package.name,
        "version": package.version,
        "author": _AUTHOR,
        "maintainer": _AUTHOR,
        "sentence": package.title,
        "paragraph": package.details,
        "category": "Data Processing",
        "url": package.url or PLACEHOLDER_URL,
        "architectures": architectures(package),
        "includes": f"{package.name}.h",
    }
    return "".join(f"{key}={value}\n" for key, value in fields.items())


def architectures(package: Package) -> str:
    """Return the architectures of Arduino cores that have a board with enough RAM, separated by commas; "*" for all.

    That of the package's own board is first. An AVR reads constants from RAM, so that the weights need RAM as well.
    """
    own = [name for name in package.frameworks.arduino.split(",") if name]
    needed = {name: package.bundle.arena_size + package.weights_bytes * (name == "avr") for name in _ARCHITECTURE_RAM}
    fitting = [name for name, ram in _ARCHITECTURE_RAM.items() if needed[name] <= ram]
    return "*" if len(fitting) == len(_ARCHITECTURE_RAM) else ",".join(dict.fromkeys((*own, *fitting)))


def _keywords(package: Package) -> str:
    """Return the words that the editor highlights: each with a tab and its kind."""
    ports = [
        port.accessor for port in (*package.bundle.inputs, *package.bundle.outputs) if not (port.is_lent or port.rows)
    ]
    functions = [f"{package.name}_{word}" for word in ("run", "selftest", "default_arena")]
    constants = [f"{package.macro}_ARENA_SIZE", f"{package.macro}_ARENA_ALIGN", "MCUGEN_OK"]
    lines = [f"{word}\tKEYWORD2\n" for word in dict.fromkeys((*functions, *ports))]
    return "".join([f"{package.name}\tKEYWORD1\n", *lines, *(f"{word}\tLITERAL1\n" for word in constants)])


ARDUINO = Format(
    name="arduino",
    tool="the Arduino IDE, and arduino-cli",
    templates={"examples/SelfTest/SelfTest.ino": "arduino/SelfTest.ino.j2"},
    extra_files=_arduino_files,
    archive="{name}-{version}.zip",
    top="{name}/",
    demands_url=True,
    steps=(
        "Sketch > Include Library > Add .ZIP Library: the zipped package (`--zip`); or copy this folder to "
        "`Arduino/libraries/{name}`.",
        "File > Examples > {name} > SelfTest; Upload.",
        "Tools > Serial Monitor, 115200 baud: `{name}: self-test passed`.",
        "Arduino compiles for size (-Os) and brings libm; for speed, `compiler.c.extra_flags=-O2` in the board's "
        "platform.local.txt.",
    ),
    testing="a tiny model compiled in tests by Arduino's own builder for an ATmega2560 and run under QEMU; the same "
    "files by arm-none-eabi-g++ for a Cortex-M4",
)
"""Package format for the Arduino IDE: a library with an example sketch that runs the self-test."""


def _library_json(package: Package) -> Files:
    document = {
        "$schema": "https://raw.githubusercontent.com/platformio/platformio-core/develop/platformio/assets/schema/library.json",
        "name": package.name,
        "version": package.version,
        "description": package.description[:1000],
        "keywords": ["neural network", "machine learning", "inference", "tinyml"],
        "license": "0BSD",
        **({"homepage": package.url} if package.url else {}),
        "authors": [{"name": _AUTHOR, "maintainer": True}],
        "frameworks": "*",
        "platforms": "*",
        "headers": f"{package.name}.h",
        "export": {"exclude": [package.manifest]},
        "build": {"srcDir": "src", "includeDir": "src", "extraScript": "optimize.py", "flags": ["-lm"]},
        "examples": [
            {"name": "selftest", "base": "examples/selftest", "files": ["platformio.ini", "src/main.cpp"]},
        ],
    }
    return {"library.json": json.dumps(document, indent=2) + "\n"}


PLATFORMIO = Format(
    name="platformio",
    tool="PlatformIO",
    templates={
        "optimize.py": "platformio/optimize.py.j2",
        "examples/selftest/platformio.ini": "platformio/platformio.ini.j2",
        "examples/selftest/src/main.cpp": "platformio/main.cpp.j2",
    },
    extra_files=_library_json,
    steps=(
        "Copy this folder into your project as `lib/{name}`.",
        "Copy `examples/selftest/src/main.cpp` to `src/` of a new project, or run, in `lib/{name}`, "
        "`pio ci --lib=. --project-conf=examples/selftest/platformio.ini examples/selftest/src/main.cpp`.",
        "Build and Upload (the arrow in the status bar).",
        "Serial Monitor (the plug), 115200 baud: `{name}: self-test passed`.",
        "It is compiled with -O2 unless `build_flags` of your platformio.ini has another -O.",
    ),
    testing="packed by `pio pkg pack` in tests; its sources compiled as the Arduino library's are; the script for -O2 "
    "run with a stand-in for PlatformIO's environment",
)
"""Package format for PlatformIO: a library with an example that runs the self-test."""
