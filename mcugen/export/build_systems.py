# SPDX-License-Identifier: Apache-2.0
"""Package formats for plain CMake and Make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcugen.codegen.install import Files
from mcugen.export.declaration import Format

if TYPE_CHECKING:
    from mcugen.export.package import Package


def cmake_library(package: Package) -> Files:
    """Return the generated CMakeLists.txt by its path in the package.

    It builds a static library whose optimization flags the project may change.
    """
    return {"CMakeLists.txt": package.bundle.files["CMakeLists.txt"]}


CMAKE = Format(
    name="cmake",
    tool="any CMake project (3.13 or newer)",
    code="",
    beside="",
    templates={
        "example/CMakeLists.txt": "cmake/example.cmake.j2",
        "example/main.c": "main.c.j2",
        "example/toolchain.cmake": "cmake/toolchain.cmake.j2",
    },
    extra_files=cmake_library,
    steps=(
        "Copy this folder into your project as `{name}`.",
        "In your CMakeLists.txt: `add_subdirectory({name})`, and `target_link_libraries(YOUR_PROGRAM {name})`.",
        "Call what `example/main.c` calls: the self-test, which returns 0.",
        "By itself: `cmake -S example -B build --toolchain toolchain.cmake && cmake --build build` (that file "
        "has the flags of the CPU; your project has its own).",
    ),
    testing="built in tests for a Cortex-M4, RV32 and the host; run under QEMU and on the host",
)
"""Package format for CMake projects."""

MAKE = Format(
    name="make",
    tool="GNU Make",
    templates={
        "{name}.mk": "make/library.mk.j2",
        "Makefile": "make/Makefile.j2",
        "example/main.c": "main.c.j2",
    },
    steps=(
        "Copy this folder into your project as `{name}`.",
        "In your Makefile: `include {name}/{name}.mk`; compile `$({name}_SOURCES)` with `$({name}_CPPFLAGS)`, "
        "link with `$({name}_LDLIBS)`.",
        "Call what `example/main.c` calls: the self-test, which returns 0.",
        "By itself: `make` builds `build/lib{name}.a` and the example `build/selftest.elf` with the flags of the CPU.",
    ),
    testing="built in tests for a Cortex-M4, RV32 and the host; run under QEMU and on the host",
)
"""Package format for GNU Make."""
