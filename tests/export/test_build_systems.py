# SPDX-License-Identifier: Apache-2.0
"""Packages for CMake and Make, and those that are built with these, build and run for every toolchain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from export_packages import BOARDS, RISCV_LINK, ROOT, digits, export, need, on_mps2, on_virt, run, tiny

FIRMWARE = ROOT / "examples" / "firmware" / "board"
PASSED = "digits: self-test passed (0)\n"


def configured(source: Path, build: Path, *options: str) -> Path:
    need("cmake")
    run(["cmake", "-S", source, "-B", build, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options], source)
    return build


def flags_of(build: Path, file: str) -> list[str]:
    """What a file was to be compiled with."""
    commands = json.loads((build / "compile_commands.json").read_text())
    return next(entry["command"] for entry in commands if entry["file"].endswith(file)).split()


@pytest.mark.parametrize("board", BOARDS)
def test_cmake_builds_the_example(board: str, tmp_path: Path) -> None:
    need(BOARDS[board])
    folder = export(digits(board), "cmake", tmp_path / "digits")
    linked = (f"-DCMAKE_EXE_LINKER_FLAGS={' '.join(RISCV_LINK)}",) if board == "esp32c3" else ()
    build = configured(folder / "example", tmp_path / "build", "--toolchain", "toolchain.cmake", *linked)
    run(["cmake", "--build", build], tmp_path)
    flags = flags_of(build, "digits.c")
    assert "-O2" in flags
    assert set(digits(board).board.cflags) <= set(flags)
    if board == "host":
        assert run([build / "digits_example"], tmp_path) == PASSED
    if board == "esp32c3":
        assert on_virt(build / "digits_example") == PASSED


@pytest.mark.parametrize("board", BOARDS)
def test_make_builds_the_example(board: str, tmp_path: Path) -> None:
    need("make", BOARDS[board])
    folder = export(digits(board), "make", tmp_path / "digits")
    link = (f"LDFLAGS={' '.join(RISCV_LINK)}",) if board == "esp32c3" else ()
    told = run(["make", *link], folder)
    assert told.count("-O2") >= 4
    assert (folder / "build" / "libdigits.a").is_file()
    program = folder / "build" / "selftest.elf"
    if board == "host":
        assert run([program], folder) == PASSED
    if board == "esp32c3":
        assert on_virt(program) == PASSED
    assert "-Os" in run(["make", "-B", "-n", "CFLAGS=-Os"], folder)
    assert "-O2" not in run(["make", "-B", "-n", "CFLAGS=-Os"], folder)


@pytest.mark.parametrize("name", ["mcuxpresso", "stm32cube"])
def test_eclipse_projects_are_built_by_their_makefile(name: str, tmp_path: Path) -> None:
    need("make", "gcc")
    folder = export(tiny(), name, tmp_path / "tiny")
    run(["make"], folder)
    assert run([folder / "build" / "selftest.elf"], folder) == "tiny: self-test passed (0)\n"


@pytest.mark.qemu
@pytest.mark.parametrize("name", ["cmake", "make", "stm32cube"])
def test_a_project_of_ones_own(name: str, tmp_path: Path) -> None:
    """Start-up code, linker script and main are the project's, as in one that an IDE has made; so are the flags."""
    need("cmake", "make")
    project = tmp_path / "project"
    shutil.copytree(FIRMWARE, project)
    folder = export(digits("nrf52840"), name, project / "digits")
    main = (folder / "example" / "main.c").read_text()
    (project / "main.c").write_text(main)
    cpu = " ".join(digits("nrf52840").board.cflags)
    if name == "cmake":
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.17)\nproject(own C)\ninclude(board.cmake)\n"
            "add_subdirectory(digits)\nadd_firmware(own main.c)\ntarget_link_libraries(own PRIVATE digits)\n"
        )
        build = configured(project, tmp_path / "build", "--toolchain", "digits/example/toolchain.cmake")
        run(["cmake", "--build", build], tmp_path)
        assert on_mps2(build / "own.elf") == PASSED
        return
    sources = "digits/src/*.c" if name == "stm32cube" else "$(digits_SOURCES)"  # an IDE compiles what it finds
    included = "include digits/digits.mk\n" if name == "make" else ""
    (project / "Makefile").write_text(
        f"{included}own.elf:\n\tarm-none-eabi-gcc {cpu} --specs=nano.specs --specs=nosys.specs -O2 -I. -Idigits/src "
        f"-nostartfiles -T link.ld main.c board.c {sources} -lm -o $@\n"
    )
    run(["make", "own.elf"], project)
    assert on_mps2(project / "own.elf") == PASSED


OWN_CHOICES = {
    "nothing": ((), "", "-O2"),
    "size": (("-DCMAKE_BUILD_TYPE=MinSizeRel",), "", "-Os"),
    "debug": (("-DCMAKE_BUILD_TYPE=Debug",), "", "-g"),
    "flags": (("-DCMAKE_C_FLAGS=-O1",), "", "-O1"),
    "folder": ((), "add_compile_options(-O3)", "-O3"),
}


@pytest.mark.parametrize("choice", OWN_CHOICES)
@pytest.mark.parametrize("compiled_by", ["compile", "export"])
def test_o2_unless_the_project_says_otherwise(choice: str, compiled_by: str, tmp_path: Path) -> None:
    need("gcc")
    options, line, expected = OWN_CHOICES[choice]
    if compiled_by == "compile":
        tiny().write(tmp_path / "tiny")
    else:
        export(tiny(), "cmake", tmp_path / "tiny")
    text = f"cmake_minimum_required(VERSION 3.13)\nproject(own C)\n{line}\nadd_subdirectory(tiny)\n"
    (tmp_path / "CMakeLists.txt").write_text(text)
    flags = flags_of(configured(tmp_path, tmp_path / "build", *options), "tiny.c")
    assert expected in flags
    assert ("-O2" in flags) == (expected == "-O2")


def test_the_library_brings_libm(tmp_path: Path) -> None:
    """Softmax calls expf, which glibc has in a library apart."""
    need("gcc")
    tiny().write(tmp_path / "tiny")
    (tmp_path / "main.c").write_text(
        '#include "tiny.h"\nint main(void) { return tiny_selftest(tiny_default_arena()); }\n'
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(own C)\nadd_subdirectory(tiny)\n"
        "add_executable(own main.c)\ntarget_link_libraries(own tiny)\n"
    )
    build = configured(tmp_path, tmp_path / "build")
    run(["cmake", "--build", build], tmp_path)
    run([build / "own"], tmp_path)
    assert "-lm" in (build / "CMakeFiles" / "own.dir" / "link.txt").read_text()
