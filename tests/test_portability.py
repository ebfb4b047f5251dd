# SPDX-License-Identifier: Apache-2.0
"""Generated code assumes no width of int, no byte order, and no more alignment than it asks for.

The same small models, which take all kernels but those of libraries, and two that learn run on a big-endian PowerPC,
and are compiled for an AVR, whose int has 16 bits; those that fit its RAM run there too.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from bundle_batch import combine
from compilers import OTHERS, assert_accepted
from export_packages import first_line
from narrow_int import overflows
from onnx_models import Net, assert_close
from portable_models import STEPS, WEIGHTS, Portable, learning_model, models_for, portable_models
from shared_models import MODELS, options, recorded, roomy

from mcugen.core.board import load_board
from mcugen.core.errors import VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.kernels.common.declared import kernels_of
from mcugen.kernels.portable import learning
from mcugen.lir.kernel import Kernel
from mcugen.simulation import Setup, simulate

BIG_ENDIAN = "powerpc-linux-gnu-gcc -static"
HERE = Path(__file__).parent


def need(*programs: str) -> pytest.MarkDecorator:
    missing = [p for p in programs if shutil.which(p) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def test_a_kernel_that_no_model_takes_is_named():
    with pytest.raises(AssertionError, match="no small model takes idle: add a layer to the pool, or give"):
        models_for([Kernel("idle", what="nothing")])


def test_lessons_take_the_kernels_that_no_run_does():
    assert {kernel.name for kernel in kernels_of(learning)} <= set().union(
        *(learning_model(p).kernels for p in WEIGHTS)
    )


PARTS = 5


def in_parts(test: Callable[..., None]) -> Callable[..., None]:
    """Every fifth model for `make test`, the others for the sweep."""
    return pytest.mark.spread(PARTS)(pytest.mark.parametrize("part", range(PARTS))(test))


# ------------------------------------------------------------------------------------------------------- byte order


@need("powerpc-linux-gnu-gcc", "qemu-ppc")
@in_parts
def test_big_endian(part: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", BIG_ENDIAN)
    models = portable_models()[part::PARTS]
    sample = {f"{p.name}/{name}": array for p in models for name, array in p.feeds.items()}
    (found,) = simulate(
        combine([p.model.bundle for p in models]), load_board("host"), [sample], setup=Setup(sanitize=True)
    ).outputs
    wrong = []
    for portable in models:
        outputs = {name: found[f"{portable.name}/{name}"] for name in portable.expected}
        try:
            assert_close(outputs, portable.expected, 1e-4)
        except AssertionError as error:
            wrong.append(f"{portable.name}: {error}")
    assert not wrong, "\n".join(wrong)


@need("powerpc-linux-gnu-gcc", "qemu-ppc")
@pytest.mark.parametrize("precision", WEIGHTS)
def test_big_endian_lessons(precision: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", BIG_ENDIAN)
    portable = learning_model(precision)
    found = portable.model.simulate([portable.feeds] * STEPS, measure=False, sanitize=True).outputs
    assert_close(found[-1], portable.expected, 1e-4)


@need("powerpc-linux-gnu-gcc", "qemu-ppc")
def test_big_endian_refuses_the_file_of_weights(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", BIG_ENDIAN)
    net = Net()
    net.output(net.op("Add", net.input("x", 4), net.const([1, 2, 3, 4]), out="y"))
    model = compile_model(net.model(), options=CompileOptions(weights_blob=True))
    with pytest.raises(VerificationError, match=r"must return 0\. found: 6 "):
        model.simulate([{"x": np.zeros(4, np.float32)}])


# -------------------------------------------------------------------------------------------------- other compilers


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_clang_and_cpp_take_every_kernel(part: int, tmp_path: Path):
    """gcc takes them in each build; of other tests' models one of the two takes each."""
    for portable in portable_models()[part::PARTS]:
        folder = portable.model.write(tmp_path / portable.name)
        assert_accepted(folder, *(source.name for source in folder.glob("*.c")), by=OTHERS)


@pytest.mark.parametrize("precision", WEIGHTS)
def test_clang_and_cpp_take_lessons(precision: str, tmp_path: Path):
    folder = learning_model(precision).model.write(tmp_path / precision)
    assert_accepted(folder, *(source.name for source in folder.glob("*.c")), by=OTHERS)


# ----------------------------------------------------------------------------------------------------- width of int

AVR_GCC = ("avr-gcc", "-mmcu=atmega2560", "-std=c99", "-O1", "-include", str(HERE / "avr_math.h"))
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
QEMU = ("qemu-system-avr", "-M", "mega2560", "-display", "none", "-monitor", "none", "-serial", "stdio", "-bios")
RAM = 8192 - 1024
"""Bytes of the ATmega2560, for all data and constants; the rest is stack."""


def for_avr(part: int) -> list[Portable]:
    """The double of avr-gcc has 32 bits: without models that compute in float64."""
    return [p for p in portable_models() if not p.has_doubles][part::PARTS]


def compiled_for_avr(portable: Portable, folder: Path) -> list[str]:
    """What is wrong with the code of a model, whose objects are left in the folder."""
    portable.model.write(folder)
    complaints = []
    for source in sorted(folder.glob("*.c")):
        dump = source.with_suffix(".gimple")
        command = [*AVR_GCC, *WARNINGS, f"-fdump-tree-gimple-lineno={dump.name}", "-c", source.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        lines = source.read_text().splitlines()
        found = overflows(dump) if dump.exists() else []  # a file without functions leaves none
        complaints += [done.stderr] if done.returncode else []
        complaints += [f"{o.operation}: {lines[o.line - 1]}" for o in found if o.file == source.name]
    return [f"{portable.name}: {complaint}" for complaint in complaints]


def on_avr(portable: Portable, folder: Path, *more: str) -> str | None:
    """What its self-test returns, as text; None where RAM or the C library has no place for it."""
    name = portable.name
    macros = (
        *more,
        f'-DMODEL_HEADER="{name}.h"',
        f"-DSELFTEST={name}_selftest",
        f"-DARENA={name}_default_arena",
        "-I.",
    )
    objects = [path.name for path in folder.glob("*.o")]
    command = [*AVR_GCC, *macros, str(HERE / "avr_main.c"), *objects, "-lm", "-o", "avr.elf"]
    linked = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if linked.returncode:
        assert "undefined reference" in linked.stderr or "not within region" in linked.stderr, linked.stderr
        return None
    sizes = subprocess.run(["avr-size", "avr.elf"], cwd=folder, capture_output=True, text=True, check=True).stdout
    _, data, bss, *_ = map(int, sizes.splitlines()[1].split()[:3])
    return first_line([*QEMU, "avr.elf"], folder) if data + bss <= RAM else None


@need("avr-gcc", "qemu-system-avr")
@in_parts
def test_int_of_16_bits(part: int, tmp_path: Path):
    with ThreadPoolExecutor(2) as pool:
        complaints = list(pool.map(lambda p: compiled_for_avr(p, tmp_path / p.name), for_avr(part)))
        assert not any(complaints), "\n".join(text for each in complaints for text in each)
        statuses = {p.name: pool.submit(on_avr, p, tmp_path / p.name) for p in for_avr(part)}
    ran = {name: each.result() for name, each in statuses.items() if each.result() is not None}
    assert {name: status for name, status in ran.items() if status != "0"} == {}
    assert len(ran) >= 0.8 * len(statuses)


@need("avr-gcc", "qemu-system-avr")
@pytest.mark.parametrize("precision", WEIGHTS)
def test_int_of_16_bits_in_lessons(precision: str, tmp_path: Path):
    portable = learning_model(precision)
    assert compiled_for_avr(portable, tmp_path / precision) == []
    assert on_avr(portable, tmp_path / precision, "-DMAIN_ROUNDS") == "0"  # avr-libc has no rintf


def test_overflows_are_found(tmp_path: Path):
    """What gcc has no warning for: products and sums that are widened too late."""
    if shutil.which("avr-gcc") is None:
        pytest.skip("needs avr-gcc")
    lines = {
        "int32_t y = a * b;": True,
        "int32_t y = (int32_t)a * b;": False,
        "int32_t y = c * d;": False,
        "int32_t y = c * d + c * d;": True,
        "uint32_t y = (uint32_t)(u * u);": True,
        "int32_t y = (1 << (c & 15)) + a;": True,
        "int8_t y = p[a * 2 + c];": True,
        "int8_t y = p[(int32_t)a * 2 + c];": False,
    }
    for number, (line, is_wrong) in enumerate(lines.items()):
        arguments = "int16_t a, int16_t b, int8_t c, int8_t d, uint16_t u, const int8_t *p"
        used = "(void)a; (void)b; (void)c; (void)d; (void)u; (void)p;"
        body = f"{{\n{line}\n{used} return (int32_t)y;\n}}\n"
        source = f"#include <stdint.h>\nint32_t f({arguments});\nint32_t f({arguments})\n{body}"
        (tmp_path / f"f{number}.c").write_text(source)
        command = [*AVR_GCC, *WARNINGS, f"-fdump-tree-gimple-lineno=f{number}.gimple", "-c", f"f{number}.c"]
        subprocess.run(command, cwd=tmp_path, check=True)
        assert bool(overflows(tmp_path / f"f{number}.gimple")) == is_wrong, line


# -------------------------------------------------------------------------------------------------------- alignment


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.shared
@pytest.mark.parametrize("board", ["nrf52840", "stm32f746"])
@pytest.mark.parametrize("name", ["ds_cnn_kws_int8_qdq", "streaming_wakeword_int8_qdq"])
def test_no_word_at_an_odd_address(name: str, board: str):
    """The harness lets a CPU trap whose compiler must not use unaligned words."""
    target = roomy(board)
    strict = dataclasses.replace(target, cflags=(*target.cflags, "-mno-unaligned-access"))
    model = compile_model(MODELS / f"{name}.onnx", target, options(name))
    inputs, _ = recorded(name, model)
    found = simulate(model.bundle, strict, inputs[:1], measure=False).outputs[0]
    expected = model.interpret(inputs[0])
    for output, array in found.items():
        np.testing.assert_array_equal(array, expected[output])
