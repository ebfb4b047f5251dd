# SPDX-License-Identifier: Apache-2.0
"""Products of int8 matrices, where CPUs have kernels of their own: of activations, and rows to results of 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, assert_close, random_feeds

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.kernels.portable.matmul import MAX_STRIP_BYTES
from mcugen.simulation import Setup, simulate

BOARDS = {"dsp": "nrf52840", "mve": "corstone300", "thumb1": "rp2040"}
"""One for each family of kernels."""
SHAPES = (
    # batch, rows, depth, columns
    *((1, 1, 1, 1), (2, 2, 4, 4), (1, 3, 5, 2), (3, 7, 8, 9), (1, 5, 16, 6), (2, 4, 17, 33), (1, 6, 70, 7)),
    *((1, 9, 30, 3), (1, 2, 150, 21), (2, 3, 33, 13), (1, 8, 3, 70), (1, 4, 12, 1)),
)
ZEROS = ((0, 0, 0), (-128, 127, 5), (127, -128, -100), (3, -7, 127), (-1, 0, -128))
"""Of a, b and y."""
ROWS = ((64, 8), (8, 12), (37, 5), (3, 3), (128, 4), (16, 1), (70, 6), (24, 17))
"""Depth and channels."""


def check(
    net: Net,
    kernels: tuple[str, ...],
    board: str,
    samples: list[dict[str, np.ndarray]] | None = None,
    goal: str = "balanced",
) -> None:
    """Every layer takes one of the kernels; their plain C under sanitizers and the board give numpy's codes."""
    compiled = compile_model(net.model(), board, CompileOptions(kernels=kernels, optimize=goal))
    assert {i.kernel for i in compiled.program.instrs if i.macs} == set(kernels)
    samples = samples or [random_feeds(compiled.model)]
    expected = [interpret(compiled.graph, feeds) for feeds in samples]
    for where in ("host", board):
        setup = Setup(sanitize=where == "host")
        run = simulate(compiled.bundle, load_board(where), samples, measure=False, setup=setup)
        for found, codes in zip(run.outputs, expected, strict=True):
            assert_close(found, codes)


# ------------------------------------------------------------------------------------ products of activations


def products(spread: float = 1.0) -> Net:
    """Of all shapes, with zero points in turn; results fill their codes, or go beyond by `spread`."""
    net = Net()
    for number, (batch, rows, depth, columns) in enumerate(SHAPES):
        a_zero, b_zero, y_zero = ZEROS[number % len(ZEROS)]
        a = net.dequantize(net.input(f"a{number}", batch, rows, depth, dtype=np.int8), 0.05, a_zero)
        b = net.dequantize(net.input(f"b{number}", batch, depth, columns, dtype=np.int8), 0.03, b_zero)
        step = 0.05 * 0.03 * max(90 * np.sqrt(depth) / spread, 2.1)
        net.output(net.quantize(net.op("MatMul", a, b), step, y_zero, out=f"y{number}"), dtype=np.int8)
    return net


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("family", "spread"), [(f, s) for f in BOARDS for s in (1.0, 10.0, 1000.0) if s < 1000 or f != "thumb1"]
)
def test_products_of_activations(family: str, spread: float):
    check(products(spread), (f"matmul_s8_{family}",), BOARDS[family])


@pytest.mark.qemu
def test_products_with_loads_beside_them():
    """What a Cortex-M7 runs for the goal of speed."""
    check(products(), ("matmul_s8_dsp",), "rt1060", goal="speed")


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("family", BOARDS)
def test_largest_sums_of_products(family: str):
    net = products()
    feeds = random_feeds(net.model())
    ends = [(-128, -128), (-128, 127), (127, 127)]
    samples = [{n: np.full_like(array, ab[n[0] == "b"]) for n, array in feeds.items()} for ab in ends]
    check(net, (f"matmul_s8_{family}",), BOARDS[family], samples)


@pytest.mark.parametrize(("family", "size"), [("dsp", 2), ("mve", 1), ("thumb1", 1.5)])
def test_columns_are_packed_in_strips_of_bounded_size(family: str, size: float):
    """However many columns there are; four of them whatever their depth."""
    for depth, columns in ((16, 1000), (400, 40)):
        net = Net()
        a = net.dequantize(net.input("a", 1, 5, depth, dtype=np.int8), 0.05)
        b = net.dequantize(net.input("b", 1, depth, columns, dtype=np.int8), 0.05)
        net.output(net.quantize(net.op("MatMul", a, b), 2.0, out="y"), dtype=np.int8)
        compiled = compile_model(net.model(), BOARDS[family], CompileOptions(kernels=(f"matmul_s8_{family}",)))
        (product,) = [i for i in compiled.program.instrs if i.macs]
        (strip,) = [o.buffer.nbytes for o in product.operands if o.role == "strip"]
        assert strip <= max(MAX_STRIP_BYTES, 4 * size * depth + 64)


# ----------------------------------------------------------------------------------- rows to results of 16 bits


def layers(sizes: tuple[tuple[int, int], ...], rows: int, gain: float, relu: bool, bits: int = 8) -> Net:
    """Layers of int8 whose results are int16; sums are multiplied by at most `gain`. Weights have so many bits."""
    net, random = Net(21), np.random.default_rng(3)
    for number, (depth, channels) in enumerate(sizes):
        codes = net.input(f"x{number}", rows, depth, dtype=np.int8)
        x = net.dequantize(codes, 0.05, int(random.integers(-128, 128)))
        scales = random.uniform(0.005, 0.02, channels).astype(np.float32)
        weights = np.clip(np.rint(random.normal(0, 40, (channels, depth))), -127, 127) // 2 ** (8 - bits)
        w = net.op(
            "DequantizeLinear", net.const(weights, np.int8), net.const(scales), net.const(0 * scales, np.int8), axis=0
        )
        steps, zeros = net.const(random.integers(-2000, 2000, channels), np.int32), net.const([0] * channels, np.int32)
        bias = net.op("DequantizeLinear", steps, net.const(np.float32(0.05) * scales), zeros, axis=0)
        y = net.op("Gemm", x, w, bias, transB=1)
        y = net.op("Relu", y) if relu else y
        net.output(net.quantize(y, float(0.05 * scales.max()) / gain, 0, np.int16, f"y{number}"), dtype=np.int16)
    return net


GAINS = {"shifted left": 3.0, "upper word": 0.45, "shifted on": 0.1, "few codes": 0.004}


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "clamped"])
def test_rows_by_vectors(gain: str, relu: bool):
    check(layers(ROWS, 1, GAINS[gain], relu), ("dense_s8_mve",), BOARDS["mve"])


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("bits", [4, 8])
def test_several_rows_by_vectors(gain: str, bits: int):
    for rows in (2, 5):
        net = layers(ROWS, rows, GAINS[gain], gain in ("upper word", "shifted on"), bits)
        check(net, (f"conv2d_s{bits}_mve",), BOARDS["mve"])


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("gain", [g for g in GAINS if g != "shifted left"])
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "clamped"])
@pytest.mark.parametrize("kernel", ["dense_s8_dsp", "dense_s8_dsp16", "dense_s8_dsp_direct"])
def test_rows_by_pairs_of_products(kernel: str, gain: str, relu: bool):
    sizes = tuple(size for size in ROWS if size[0] % 8 == 0) if kernel == "dense_s8_dsp_direct" else ROWS
    check(layers(sizes, 1, GAINS[gain], relu), (kernel,), BOARDS["dsp"])


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("gain", [*GAINS, "far to the left"])
def test_rows_by_nibbles(gain: str):
    """Sums are raised where they get more bits, as those of gates do."""
    for rows, kernel in ((1, "dense_s4_dsp"), (5, "conv2d_s4_dsp")):
        net = layers(ROWS, rows, {**GAINS, "far to the left": 12.0}[gain], gain == "upper word", bits=4)
        check(net, (kernel,), BOARDS["dsp"])


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("kernel", ["conv2d_s8_dsp", "conv2d_s8_dsp16"])
def test_several_rows_by_pairs_of_products(kernel: str):
    for gain in ("upper word", "shifted on"):
        check(layers(ROWS[:5], 5, GAINS[gain], gain == "shifted on"), (kernel,), BOARDS["dsp"])


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_by_sixes(gain: str, rows: int):
    for bits in (4, 8):
        kernel = f"dense_s{bits}_s16_thumb1"
        check(layers(ROWS, rows, GAINS[gain], gain == "few codes", bits), (kernel,), BOARDS["thumb1"])


@pytest.mark.qemu
def test_rows_by_sixes_whose_weights_are_loaded_by_words():
    """Where each load waits for flash: of an even number of inputs, so that blocks begin at words."""
    check(layers(ROWS, 2, GAINS["upper word"], False), ("dense_s8_s16_thumb1",), "stm32g0b1")
    check(integer_products(ROWS, 2), ("dense_s8_s32_thumb1",), "stm32g0b1")


# ------------------------------------------------------------------------------------------- sums as they are


def integer_products(sizes: tuple[tuple[int, int], ...], rows: int) -> Net:
    """Products of integers by constant weights: sums are the result, as in models that are quantized dynamically.

    Weights take all codes: what two of them in 16 bits leave room for.
    """
    net, random = Net(21), np.random.default_rng(4)
    for number, (depth, channels) in enumerate(sizes):
        x = net.input(f"x{number}", rows, depth, dtype=np.int8)
        weights = random.integers(-127, 128, (depth, channels))
        weights[0, ::2], weights[-1, ::2] = -128, np.abs(weights[-1, ::2])
        weights[-1, 1::2] = -128
        zero = net.const(random.integers(-128, 128), np.int8)
        net.output(net.op("MatMulInteger", x, net.const(weights, np.int8), zero, out=f"y{number}"), dtype=np.int32)
    return net


DIRECT = tuple(size for size in ROWS if size[0] % 8 == 0)
SUMS = {
    # family, kernel: sizes of layers, rows
    ("dsp", "dense_s8_dsp"): (ROWS, 1),
    ("dsp", "dense_s8_dsp16"): (ROWS, 1),
    ("dsp", "dense_s8_dsp_direct"): (DIRECT, 1),
    ("dsp", "conv2d_s8_dsp"): (ROWS, 5),
    ("dsp", "conv2d_s8_dsp16"): (ROWS, 5),
    ("dsp", "conv2d_s8_dsp_few"): (ROWS[:4], 5),
    ("mve", "dense_s8_mve"): (ROWS, 1),
    ("mve", "conv2d_s8_mve"): (ROWS, 5),
    ("thumb1", "dense_s8_s32_thumb1"): (ROWS, 3),
}


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize(("family", "kernel"), SUMS)
def test_sums_are_the_result(family: str, kernel: str):
    net = integer_products(*SUMS[family, kernel])
    feeds = random_feeds(net.model())
    ends = [{name: np.full_like(array, code) for name, array in feeds.items()} for code in (-128, 127)]
    check(net, (kernel,), BOARDS[family], [feeds, *ends])
