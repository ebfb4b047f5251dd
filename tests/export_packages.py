# SPDX-License-Identifier: Apache-2.0
"""Helpers that write packages of small models, build their contents, and run the programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import Timer

import numpy as np
import pytest
from onnx_models import Net

from mcugen.codegen.install import install
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.export.assemble import package_files
from mcugen.export.formats import FORMATS
from mcugen.export.package import Package

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples" / "digits" / "digits_int8.onnx"
"""Path of the int8 model of handwritten digits among the examples."""

BOARDS = {"nrf52840": "arm-none-eabi-gcc", "esp32c3": "riscv64-unknown-elf-gcc", "host": "gcc"}
"""Compiler that tests need, by the name of a board of each toolchain."""


FORMAT_BOARDS = {"esp-idf": "esp32c3", "pico-sdk": "rp2040", "stm32cube": "stm32f411", "mcuxpresso": "rt1060"}
"""A board for each format that is bound to boards of a vendor."""


def board_for(format_: str) -> str:
    """Return a board that a format supports."""
    return FORMAT_BOARDS.get(format_, "nrf52840")


def need(*programs: str) -> None:
    """Skip the test if a program is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@cache
def tiny(
    board: str = "host", name: str = "tiny", weights_blob: bool = False, validation: bool = False
) -> CompiledModel:
    """Return a model of a dense layer and a softmax in float, which needs libm."""
    random = np.random.default_rng(1)
    net = Net()
    x = net.op("MatMul", net.input("x", 1, 4), net.const(random.standard_normal((4, 3))))
    net.output(net.op("Softmax", net.op("Relu", x), out="y"))
    return compile_model(
        net.model(), board, CompileOptions(name=name, weights_blob=weights_blob, validation=validation)
    )


def tiny_for(format_: str, weights_blob: bool = False) -> CompiledModel:
    """Return the model of `tiny` for a board that a format supports, with what the format's packages hold."""
    return tiny(board_for(format_), weights_blob=weights_blob, validation=FORMATS[format_].has_validation)


@cache
def digits(board: str) -> CompiledModel:
    """Return the model of handwritten digits, compiled for a board."""
    return compile_model(DIGITS, board, CompileOptions(name="digits"))


def files_of(compiled: CompiledModel, format_: str) -> Mapping[str, str | bytes]:
    """Return the files of a model's package in a format, by path."""
    return package_files(Package(compiled, "1.2.3"), FORMATS[format_])


def export(compiled: CompiledModel, format_: str, folder: Path) -> Path:
    """Write a model's package in a format to a folder, and return the folder."""
    install(files_of(compiled, format_), folder, compiled.bundle.name)
    return folder


def run(arguments: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """Run a program and return its output; fail if its exit code is not 0.

    $CC is not passed on, because build files choose the compiler.
    """
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "CC"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def on_mps2(program: Path) -> str:
    """Run a firmware on QEMU's Cortex-M4 board, and return what it prints.

    QEMU counts instructions as time, so that the load of this computer does not matter.
    """
    need("qemu-system-arm")
    command = ("qemu-system-arm", "-M", "mps2-an386", "-display", "none", "-monitor", "none", "-serial", "stdio")
    semihosting = ("-semihosting-config", "enable=on,target=native")
    return run([*command, "-icount", "shift=5", *semihosting, "-kernel", program], program.parent)


SECONDS = 20
"""Longest time in seconds to wait for a program's output."""


def first_line(command: Sequence[str | Path], folder: Path) -> str:
    """Run a program that never ends, and return the first line that it prints."""
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        timer = Timer(SECONDS, process.kill)
        timer.start()
        try:
            return process.stdout.readline().strip()
        finally:
            timer.cancel()
            process.kill()


RISCV_LINK = (
    "--crt0=semihost",
    *("-Wl,--defsym=__flash=0x80000000", "-Wl,--defsym=__flash_size=0x200000"),
    *("-Wl,--defsym=__ram=0x80200000", "-Wl,--defsym=__ram_size=0x200000"),
)
"""Start-up code and memory layout of picolibc for QEMU's board `virt`."""


def on_virt(program: Path) -> str:
    """Return the output of a program for RV32 on QEMU's board `virt`."""
    need("qemu-system-riscv32")
    command = ("qemu-system-riscv32", "-M", "virt", "-bios", "none", "-nographic")
    return run([*command, "-semihosting-config", "enable=on,target=native", "-kernel", program], program.parent)
