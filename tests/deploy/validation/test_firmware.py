# SPDX-License-Identifier: Apache-2.0
"""The device's C in a user's project: it compiles without warnings whatever counts, and so does the documents' main."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model

ROOT = Path(__file__).resolve().parents[3]
STRICT = ("-std=c99", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-c", "-I", ".")
ARM = ("arm-none-eabi-gcc", "--specs=nano.specs", "-mthumb")
COMMANDS = {
    "gcc": ("gcc",),
    "clang": ("clang",),
    "Cortex-M0+": (*ARM, "-mcpu=cortex-m0plus"),
    "Cortex-M4": (*ARM, "-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"),
    "RISC-V": ("riscv64-unknown-elf-gcc", "--specs=picolibc.specs", "-march=rv32imc", "-mabi=ilp32"),
    "Xtensa": ("xtensa-lx106-elf-gcc", "--specs=/usr/lib/xtensa-lx106-elf/picolibc.specs"),
    "ESP-IDF": ("riscv64-unknown-elf-gcc", "--specs=picolibc.specs", "-march=rv32imc", "-mabi=ilp32", "-DESP_PLATFORM"),
}
MACROS = {
    "as it is": (),
    "outputs alone": ("LAYERS=0",),
    "SysTick and stack": ("SYSTICK=1", "STACK=0x20000000u"),
    "the user's counter": ("CYCLES=((uint32_t)(uintptr_t)0)", "HZ=1000000", 'FLAGS="-O1"', "FRAME=64"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits model, with what ESP-IDF has."""
    folder = tmp_path_factory.mktemp("firmware") / "net"
    model = ROOT / "examples" / "digits" / "digits_int8.onnx"
    compile_model(model, "stm32f411", CompileOptions(validation=True)).write(folder)
    text = "#include <stdint.h>\nstatic inline uint32_t esp_cpu_get_cycle_count(void)\n{\n    return 1u;\n}\n"
    (folder / "esp_cpu.h").write_text(text)
    return folder


@pytest.mark.spread(7)
@pytest.mark.parametrize("macros", MACROS)
@pytest.mark.parametrize("cpu", COMMANDS)
def test_it_compiles_without_warnings(cpu: str, macros: str, folder: Path, tmp_path: Path):
    command = COMMANDS[cpu]
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    defined = [f"-DDIGITS_INT8_VALIDATE_{macro}" for macro in MACROS[macros]]
    whole = [*command, *STRICT, *defined, "digits_int8_validate.c", "-o", str(tmp_path / "a.o")]
    done = subprocess.run(whole, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]


def test_a_frame_that_is_too_small_is_refused(folder: Path, tmp_path: Path):
    whole = ["gcc", *STRICT, "-DDIGITS_INT8_VALIDATE_FRAME=63", "digits_int8_validate.c", "-o", str(tmp_path / "a.o")]
    done = subprocess.run(whole, cwd=folder, capture_output=True, text=True)
    assert done.returncode != 0
    assert "must be 64 to 4096" in done.stderr


def test_the_firmware_of_the_documents_links(folder: Path, tmp_path: Path):
    text = (ROOT / "docs" / "how-to" / "validate.md").read_text()
    main = re.search(r"```c\n(#include \"board\.h\".*?)```", text, re.DOTALL)
    assert main is not None
    assert len(main[1].splitlines()) <= 16
    header = "int uart_has_byte(void);\nint uart_byte(void);\nvoid uart_send(unsigned char);\nvoid board_start(void);\n"
    board = "int uart_has_byte(void) { return 0; }\nint uart_byte(void) { return 0; }\n"
    board += "void uart_send(unsigned char byte) { (void)byte; }\nvoid board_start(void) { }\n"
    for name, content in (("main.c", main[1]), ("board.h", header), ("board.c", board)):
        (tmp_path / name).write_text(content)
    sources = [*(str(folder / f"digits_int8{part}.c") for part in ("", "_weights", "_validate")), "main.c", "board.c"]
    whole = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-I", str(folder), *sources, "-lm", "-o", "firmware"]
    done = subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
