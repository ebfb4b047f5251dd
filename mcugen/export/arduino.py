# SPDX-License-Identifier: Apache-2.0
"""Package formats for Arduino and PlatformIO libraries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mcugen.export.declaration import Files, Format

if TYPE_CHECKING:
    from mcugen.export.package import Package

_AUTHOR = "mcugen"


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
        "paragraph": package.description,
        "category": "Data Processing",
        "url": "",
        "architectures": "*",
        "includes": f"{package.name}.h",
    }
    return "".join(f"{key}={value}\n" for key, value in fields.items())


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
    made=_arduino_files,
    archive="{name}-{version}.zip",
    top="{name}/",
    steps=(
        "Sketch > Include Library > Add .ZIP Library: the zipped package (`--zip`); or copy this folder to "
        "`Arduino/libraries/{name}`.",
        "File > Examples > {name} > SelfTest; Upload.",
        "Tools > Serial Monitor, 115200 baud: `{name}: self-test passed`.",
        "Arduino compiles for size (-Os) and brings libm; for speed, `compiler.c.extra_flags=-O2` in the board's "
        "platform.local.txt.",
    ),
    checked="a tiny model compiled in tests by Arduino's own builder for an ATmega2560 and run under QEMU; the same "
    "files by arm-none-eabi-g++ for a Cortex-M4",
)
"""Package format for Arduino libraries."""


def _library_json(package: Package) -> Files:
    document = {
        "$schema": "https://raw.githubusercontent.com/platformio/platformio-core/develop/platformio/assets/schema/library.json",
        "name": package.name,
        "version": package.version,
        "description": package.description[:1000],
        "keywords": ["neural network", "machine learning", "inference", "tinyml"],
        "license": "0BSD",
        "authors": [{"name": _AUTHOR, "maintainer": True}],
        "frameworks": "*",
        "platforms": "*",
        "headers": f"{package.name}.h",
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
    made=_library_json,
    steps=(
        "Copy this folder into your project as `lib/{name}`.",
        "Copy `examples/selftest/src/main.cpp` to `src/` of a new project.",
        "Build and Upload (the arrow in the status bar).",
        "Serial Monitor (the plug), 115200 baud: `{name}: self-test passed`.",
        "It is compiled with -O2 unless `build_flags` of your platformio.ini has another -O.",
    ),
    checked="packed by `pio pkg pack` in tests; its sources compiled as the Arduino library's are; the script for -O2 "
    "run with a stand-in for PlatformIO's environment",
)
"""Package format for PlatformIO libraries."""
