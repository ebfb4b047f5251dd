# SPDX-License-Identifier: Apache-2.0
"""docs/start/first_board.md followed word by word in fresh folders: its commands and steps."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

import pytest
from command_line import mcugen
from export_packages import DIGITS, ROOT, need, on_mps2, run
from test_frameworks import ZEPHYR

BOARD = ROOT / "examples" / "firmware" / "board"
DOCUMENT = (ROOT / "docs" / "start" / "first_board.md").read_text()
LINKED = ("-nostartfiles", "-T", BOARD / "link.ld", "--specs=nosys.specs", "--specs=nano.specs", "-Wl,--gc-sections")
FPU = ("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard")


def exported(format_: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command of the document, in a folder that has the example's model."""
    (command,) = (line for line in DOCUMENT.splitlines() if line.startswith("mcugen") and f"--format {format_}" in line)
    (folder / "examples" / "digits").mkdir(parents=True)
    shutil.copy(DIGITS, folder / "examples" / "digits")
    monkeypatch.chdir(folder)
    done = mcugen(*command.split()[1:])
    assert done.code == 0, done.err


@pytest.mark.qemu
def test_a_project_of_stm32cubeide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its managed build compiles what lies in Core and Drivers, with the flags of its Debug configuration."""
    need("arm-none-eabi-gcc")
    exported("stm32cube", tmp_path, monkeypatch)
    source, target = re.search(r"Copy `([\w/]+)` into the project as `([\w/]+)`", DOCUMENT).groups()  # type: ignore[union-attr]
    include = re.search(r"Include paths: add `\.\./([\w/]+)`", DOCUMENT)[1]  # type: ignore[index]
    header, call = re.search(r"In `main.c` add `(#include [^`]+)`, .*?\s`(printf[^`]+)`", DOCUMENT, re.DOTALL).groups()  # type: ignore[union-attr]
    project = tmp_path / "project"
    (project / "Core" / "Src").mkdir(parents=True)
    shutil.copytree(tmp_path / source, project / target)
    shutil.copy(BOARD / "board.c", project / "Core" / "Src")
    shutil.copytree(BOARD, project / "Core" / "Inc", ignore=shutil.ignore_patterns("*.c"))
    main = (
        f'#include <stdio.h>\n#include "board.h"\n{header}\n\nint main(void)\n{{\n    {call}\n    board_exit(0);\n}}\n'
    )
    (project / "Core" / "Src" / "main.c").write_text(main)
    compiled = sorted(str(path) for folder in ("Core", "Drivers") for path in (project / folder).rglob("*.c"))
    flags = ("-std=gnu11", "-g3", "-DDEBUG", "-O0", "-ffunction-sections", "-fdata-sections", "-Wall", "-Werror")
    includes = ("-I", "Core/Inc", "-I", include)
    run(["arm-none-eabi-gcc", *FPU, *flags, *includes, *compiled, *LINKED, "-lm", "-o", "project.elf"], project)
    assert on_mps2(project / "project.elf") == "0\n"


def test_an_application_of_zephyr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for Zephyr's own functions and headers."""
    need("cmake", "gcc")
    exported("zephyr", tmp_path, monkeypatch)
    sample = re.search(r"west build -b \w+/\w+ (digits/samples/\w+)", DOCUMENT)[1]  # type: ignore[index]
    settings = (tmp_path / sample / "prj.conf").read_text()
    assert re.search(r"`(CONFIG_\w+=y)` to prj.conf", DOCUMENT)[1] in settings  # type: ignore[index]
    include = tmp_path / "include" / "zephyr"
    (include / "sys").mkdir(parents=True)
    (include / "kernel.h").touch()
    (include / "sys" / "printk.h").write_text("#include <stdio.h>\n#define printk printf\n")
    wanted = "".join(f"set({line.replace('=', ' ')})\n" for line in settings.splitlines() if line.startswith("CONFIG_"))
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.20)\nproject(own C)\n{ZEPHYR}{wanted}add_subdirectory(digits)\n"
        f"include_directories(include digits/src)\nadd_executable(app {sample}/src/main.c)\n"
        "target_link_libraries(app digits m)\n"
    )
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build"], tmp_path)
    run(["cmake", "--build", tmp_path / "build"], tmp_path)
    assert run([tmp_path / "build" / "app"], tmp_path) == "digits: self-test passed (0)\n"


ARDUINO = """
#include <stdio.h>
#define F(text) text
static struct {
    void begin(long) {}
    operator bool() { return true; }
    void print(const char *text) { printf("%s", text); }
    void println(const char *text) { printf("%s\\n", text); }
} Serial;
"""
CORE = '\nextern "C" void board_exit(int);\nint main() { setup(); loop(); board_exit(0); }\n'


@pytest.mark.qemu
def test_a_sketch_of_arduino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Arduino's cores for Arm compile it; their Serial is a stand-in (test_arduino.py has the builder itself)."""
    need("arm-none-eabi-g++")
    exported("arduino", tmp_path, monkeypatch)
    archive = tmp_path / re.search(r"Add .ZIP Library: `([\w./-]+)`", DOCUMENT)[1]  # type: ignore[index]
    zipfile.ZipFile(archive).extractall(tmp_path / "libraries")
    library = tmp_path / "libraries" / "digits"
    sketch = (library / "examples" / "SelfTest" / "SelfTest.ino").read_text()
    (tmp_path / "sketch.cpp").write_text(ARDUINO + sketch + CORE)
    flags = (
        *FPU,
        "-Os",
        "-w",
        "-fno-exceptions",
        "-fno-unwind-tables",
        "-ffunction-sections",
        "-fdata-sections",
        "-I",
        library / "src",
    )
    for compiler, sources in (
        ("arm-none-eabi-gcc", [*(library / "src").glob("*.c"), BOARD / "board.c"]),
        ("arm-none-eabi-g++", [tmp_path / "sketch.cpp"]),
    ):
        run([compiler, *flags, "-c", *sources], tmp_path)
    objects = sorted(tmp_path.glob("*.o"))
    run(["arm-none-eabi-gcc", *FPU, *objects, *LINKED, "-lm", "-o", "sketch.elf"], tmp_path)
    said = re.search(r"Serial Monitor, 115200 baud: `([^`]+)`", DOCUMENT)[1]  # type: ignore[index]
    assert on_mps2(tmp_path / "sketch.elf") == f"{said}\n"
