# SPDX-License-Identifier: Apache-2.0
"""Counters of CPUs that no board in QEMU has: an Xtensa's CCOUNT, DWT by a register that the test fakes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from command_line import mcugen
from serial_lines import on_socket
from test_wire import PATIENCE, SAMPLES, small

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.simulation.build import HARNESS_DIR, Checks, build_wire_host

XTENSA = Path(__file__).resolve().parent / "xtensa"
XTENSA_SPECS = Path("/usr/lib/xtensa-lx106-elf/picolibc.specs")
XTENSA_MACHINE = ("qemu-system-xtensa", "-M", "sim", "-cpu", "lx106", "-display", "none", "-semihosting")

FAKE = """
#include <time.h>
#include "fake.h"

/* What a Cortex-M's debug unit has; the counter of nanoseconds is near its end when it starts. */
volatile uint32_t *fake_register(uint32_t address)
{
    static uint32_t demcr, control, count, others[4], first;
    struct timespec now;
    switch (address) {
    case 0xE000EDFCu:
        return &demcr;
    case 0xE0001000u:
        return &control;
    case 0xE0001004u:
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((demcr & 1u << 24) != 0u && (control & 1u) != 0u && HAS_DWT) {
            const uint32_t ns = (uint32_t)now.tv_sec * 1000000000u + (uint32_t)now.tv_nsec;
            first = first != 0u ? first : ns;
            count = ns - first - 200000u;
        }
        return &count;
    default:
        return &others[(address >> 2) & 3u];
    }
}
"""
FAKE_HEADER = """
#include <stdint.h>
volatile uint32_t *fake_register(uint32_t address);
#define MCUGEN_REGISTER(address) (*fake_register(address))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model, samples of it, and the firmware's files for this computer."""
    folder = tmp_path_factory.mktemp("counters")
    onnx.save(small(), folder / "small.onnx")
    np.savez(folder / "data.npz", x=np.random.default_rng(1).standard_normal((SAMPLES, 1, 3, 6, 6)).astype(np.float32))
    compiled = compile_model(folder / "small.onnx", "host", CompileOptions(validation=True))
    build_wire_host(compiled.bundle, folder, Checks.NONE)
    return folder


def built(folder: Path, compiler: Sequence[str], sources: Sequence[str], program: str) -> Path:
    model = sorted(f"model/{path.name}" for path in (folder / "model").glob("*.c"))
    flags = ("-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror", "-I", "model", "-I", str(HARNESS_DIR))
    whole = [*compiler, *flags, *model, "harness/wire.c", *sources, "-lm", "-o", program]
    done = subprocess.run(whole, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:2000]
    return folder / program


def validated(folder: Path, command: Sequence[str]) -> dict:
    with on_socket(command) as port:
        arguments = ("--board", "host", "--data", folder / "data.npz", "--port", port, "--timeout", PATIENCE)
        done = mcugen("validate", folder / "small.onnx", *arguments, "--json", "-", "--quiet")
    assert done.code == 0, done.err
    found = dict(json.loads(done.out))
    assert (found["outputs"], found["layer_samples"], found["wire"]["resets"]) == ("exact", SAMPLES, 0)
    return found


def test_an_xtensa_runs_it_with_ccount_and_its_stack(folder: Path):
    programs = ("xtensa-lx106-elf-gcc", XTENSA_MACHINE[0])
    if not all(map(shutil.which, programs)) or not XTENSA_SPECS.exists():
        pytest.skip("needs gcc-xtensa-lx106, picolibc-xtensa-lx106-elf and qemu-system-xtensa")
    own = ("-include", str(HARNESS_DIR / "stack.h"), "-DSMALL_VALIDATE_STACK=stack_bottom", "-mtext-section-literals")
    linked = ("-nostartfiles", "-T", str(XTENSA / "link.ld"))
    compiler = ("xtensa-lx106-elf-gcc", f"--specs={XTENSA_SPECS}", *own, *linked)
    program = built(folder, compiler, [str(XTENSA / "wire_xtensa.c")], "xtensa.elf")
    rest = ("-kernel", str(program), "-monitor", "none", "-serial", "stdio", "-icount", "shift=0")
    found = validated(folder, [*XTENSA_MACHINE, *rest])
    assert found["firmware"]["counter"] == "CCOUNT"
    assert 0 < found["cycles"]["least"] <= found["cycles"]["most"]
    convolutions = [layer for layer in found["layers"] if "conv" in layer["kernel"]]
    others = [layer for layer in found["layers"] if layer not in convolutions]
    assert min(layer["cycles"] for layer in convolutions) > max(layer["cycles"] for layer in others)
    assert 0 < max(layer["stack"] for layer in found["layers"]) <= found["stack"] + 64
    assert len({layer["stack"] for layer in found["layers"]}) > 1


@pytest.mark.parametrize(("has_dwt", "counter"), [(1, "DWT"), (0, "SysTick")])
def test_dwt_is_taken_where_it_counts(has_dwt: int, counter: str, folder: Path):
    """It begins anew while the model runs: what is told is the time in between."""
    (folder / "fake.c").write_text(FAKE)
    (folder / "fake.h").write_text(FAKE_HEADER)
    cortex = ("-D__ARM_ARCH_PROFILE='M'", "-D__ARM_ARCH=7", f"-DHAS_DWT={has_dwt}", "-DSMALL_VALIDATE_HZ=1000000000u")
    program = built(
        folder, ("gcc", "-include", "fake.h", *cortex), ["fake.c", str(HARNESS_DIR / "wire_host.c")], f"dwt{has_dwt}"
    )
    found = validated(folder, [str(program)])
    assert found["firmware"]["counter"] == counter
    if not has_dwt:
        return
    cycles = found["cycles"]
    assert 0 < cycles["least"] <= cycles["most"] < 10**9  # nanoseconds: modulo 2**32, not near it
    assert cycles["milliseconds"] == pytest.approx(cycles["first"] / 1e6, abs=1e-3)
    assert all(layer["cycles"] is not None and layer["cycles"] < 10**9 for layer in found["layers"])
