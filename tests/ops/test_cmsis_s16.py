# SPDX-License-Identifier: Apache-2.0
"""Layers of int16 activations by CMSIS-NN: within a step of our own kernels, to the bit by their own references."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cmsis_checks import BOARDS, check_library, linked
from onnx_models import Net
from test_conv import WINDOWS, quantized_conv

from mcugen.core.options import CMSIS_NN, CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.expressions.nodes import Argument
from mcugen.expressions.values import evaluate
from mcugen.frontend.onnx.load import load
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import DType, QuantParams, TensorType
from mcugen.kernels.cmsis_nn.s16 import MAX_LONG_SHIFT, Scaling
from mcugen.kernels.cmsis_nn.s16_activations import RoundedSum
from mcugen.kernels.portable.elementwise import Scalars
from mcugen.numerics.fixedpoint import Requantizer
from mcugen.ops.pointwise import FixedSum
from mcugen.quantization.quantize import create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"

SHORT: tuple[type, type] = (np.int16, np.int16)


class Layers:
    """A model of independent layers, each from reals of int16 codes to such."""

    def __init__(self) -> None:
        self.net = Net(opset=21)
        self.count = 0

    def input(self, *shape: int, scale: float = 1e-4) -> str:
        self.count += 1
        return self.net.dequantize(self.net.input(f"x{self.count}", *shape, dtype=np.int16), scale, 0, np.int16)

    def output(self, real: str, scale: float) -> None:
        self.count += 1
        self.net.output(self.net.quantize(real, scale, 0, np.int16, out=f"y{self.count}"), dtype=np.int16)

    def weights(self, *shape: int, scale: float | np.ndarray = 0.01, most: int = 127, axis: int = 0) -> str:
        codes = np.random.default_rng(self.count).integers(-most, most + 1, shape)
        scales = np.float32(scale)
        zeros = self.net.const(0 * scales, np.int8)
        attributes = {"axis": axis} if scales.ndim else {}
        return self.net.op(
            "DequantizeLinear", self.net.const(codes, np.int8), self.net.const(scales), zeros, **attributes
        )


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("part", range(4))
def test_windows(part: int) -> None:
    """By turns with one scale and with one a channel."""
    net, names = Net(opset=21), list(WINDOWS)[part::4]
    for index, name in enumerate(names):
        quantized_conv(net, name, WINDOWS[name], index % 2 == 1, SHORT)
    groups = [(WINDOWS[name][3].get("group", 1), WINDOWS[name][0][1]) for name in names]
    calls = {"cmsis_convolve_s16": sum(group == 1 for group, _ in groups)}
    calls["cmsis_depthwise_s16"] = sum(1 < group == channels for group, channels in groups)
    check_library(net.model(), {name: count for name, count in calls.items() if count})


@pytest.mark.qemu
def test_fully_connected() -> None:
    """One scale: sums of 64 bits. A scale a channel: a convolution, but for a long single row."""
    layers = Layers()
    shapes = [(1, 5, 7), (3, 13, 6), (1, 600, 5), (2, 521, 4)]
    for rows, depth, channels in shapes:
        for scale in (0.01, np.linspace(0.003, 0.02, channels)):
            x, w = layers.input(rows, depth), layers.weights(channels, depth, scale=scale)
            layers.output(layers.net.op("Gemm", x, w, transB=1), 2e-5 * depth**0.5)
    check_library(layers.net.model(), {"cmsis_dense_s16": len(shapes), "cmsis_convolve_s16": 3}, BOARDS[1:])


def test_sums_of_64_bits_are_aligned_as_their_type_is() -> None:
    """In flash, where a compiler would take them to lie anywhere that their declaration allows."""
    layers = Layers()
    x, w = layers.input(2, 8), layers.weights(3, 8)
    layers.output(layers.net.op("Gemm", x, w, transB=1), 1e-4)
    files = compile_model(layers.net.model(), BOARDS[1], CompileOptions(name="net", family=CMSIS_NN)).bundle.files
    declared = [line for line in files["net_weights.h"].splitlines() if "int64_t" in line]
    assert declared and all("MCUGEN_ALIGN(8) " in line for line in declared)
    assert "#define WEIGHTS MCUGEN_ALIGN(8) " in files["net_weights.c"]


def add_wide_conv(layers: Layers, size: int, shape: tuple[int, ...], most: int, bias: float) -> None:
    """A convolution of all of an image's rows whose sums have more than 30 bits."""
    net, channels = layers.net, shape[0]
    x, w = layers.input(1, shape[1], shape[2], size), layers.weights(*shape, most=most)
    b = net.op("DequantizeLinear", net.const([10**9] * channels, np.int32), net.const(bias), net.const(0, np.int32))
    layers.output(net.op("Conv", x, w, b), 5e-4)


@pytest.mark.qemu
def test_sums_of_64_bits() -> None:
    """A bias beyond 30 bits; weights beyond, for an even number of pixels only."""
    layers = Layers()
    add_wide_conv(layers, 5, (3, 2, 3, 1), 127, 1.3e-9)
    add_wide_conv(layers, 4, (4, 300, 2, 1), 127, 1e-9)
    add_wide_conv(layers, 4, (3, 300, 2, 1), 127, 1e-9)
    add_wide_conv(layers, 5, (4, 300, 2, 1), 127, 1e-9)
    add_wide_conv(layers, 4, (3, 301, 2, 1), 127, 1e-9)
    model = layers.net.model()
    check_library(model, {"cmsis_convolve_s16": 3})


@pytest.mark.qemu
def test_products_of_two_tensors() -> None:
    layers = Layers()
    shapes = [((3, 5), (5, 4)), ((2, 2, 3, 9), (2, 2, 9, 7)), ((1, 64), (64, 3))]
    for a, b in shapes:
        x0, x1 = layers.input(*a), layers.input(*b, scale=3e-4)
        layers.output(layers.net.op("MatMul", x0, x1), 3e-4 * a[-1] ** 0.5)
    check_library(layers.net.model(), {"cmsis_batch_matmul_s16": len(shapes)})


POOLS: dict[str, dict[str, object]] = {
    "plain": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "padded": {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0], "strides": [2, 1]},
    "whole": {"kernel_shape": [7, 6]},
}


@pytest.mark.qemu
def test_pools() -> None:
    """Means by the elements in the input, of one scale, channels last; maxima."""
    layers = Layers()
    for attributes in POOLS.values():
        for op in ("AveragePool", "MaxPool"):
            layers.output(layers.net.op(op, layers.input(2, 9, 7, 6), **attributes), 1e-4)
    space = layers.net.const([1, 2], np.int64)
    layers.output(layers.net.op("ReduceMean", layers.input(2, 4, 3, 5), space), 1e-4)
    layers.output(layers.net.op("MaxPool", layers.input(1, 3, 8), kernel_shape=[3]), 1e-4)
    check_library(layers.net.model(), {"cmsis_avgpool_s16": 3, "cmsis_max_pool_s16": 4})


@pytest.mark.qemu
def test_sums_and_products() -> None:
    """Sums of near and of far scales, clamped ones, constants; products."""
    layers = Layers()
    net = layers.net
    for scales in ((1e-4, 1e-4, 1e-4), (1e-4, 3.7e-3, 4e-3), (2e-2, 1e-7, 1e-4), (1e-4, 2e-4, 1.0)):
        layers.output(net.op("Add", *(layers.input(5, 41, scale=s) for s in scales[:2])), scales[2])
    layers.output(net.op("Sub", layers.input(3, 50), layers.input(3, 50)), 1.1e-4)
    layers.output(net.op("Relu", net.op("Add", layers.input(3, 5), layers.input(3, 5))), 1.3e-4)
    layers.output(
        net.op("Add", layers.input(7), net.dequantize(net.const(range(-9, 12, 3), np.int16), 0.01, 0, np.int16)), 1e-4
    )
    for scale in (1e-4, 3.3e-4, 2e-8):
        layers.output(net.op("Mul", layers.input(5, 41), layers.input(5, 41)), scale)
    check_library(net.model(), {"cmsis_elementwise_add_s16": 7, "cmsis_elementwise_mul_s16": 3})


@pytest.mark.qemu
def test_sigmoid_of_all_codes() -> None:
    """Where the argument's scale is a power of two and the result's 2^-15."""
    layers = Layers()
    for exponent in (-16, -13, -12, -10):
        layers.output(layers.net.op("Sigmoid", layers.input(4, 61, scale=2.0**exponent)), 2.0**-15)
    check_library(layers.net.model(), {"cmsis_sigmoid_s16": 4})


def scaled_both_ways(scale: float, most: int, bits: int) -> tuple[bool, int]:
    """Whether the library's scaling of sums up to `most` is said to agree with ours, and by how much they differ."""
    sums = np.asarray([most])
    wanted = Requantizer.of(scale, 0, sums=sums)
    found = Scaling.near(wanted, bits, 31 if bits == 31 else MAX_LONG_SHIFT)
    corner = min(int(33000 / scale), most)
    random = np.random.default_rng(most % 1000)
    v = np.concatenate(
        [random.integers(-corner, corner + 1, 3000), random.integers(-most, most + 1, 500), [-most, most]]
    )
    own = wanted(v[:, None], -32768, 32767)
    return found.agrees(wanted, sums), int(np.abs(own - found(v[:, None], -32768, 32767)).max())


@pytest.mark.parametrize("bits", [15, 31])
def test_scales_agree_within_a_step(bits: int) -> None:
    random, differing = np.random.default_rng(bits), 0
    for _ in range(150):
        most = int(2.0 ** random.uniform(18, 42 if bits == 15 else 30))
        agrees, difference = scaled_both_ways(2.0 ** random.uniform(-24, -1), most, bits)
        assert not agrees or difference <= 1
        differing += agrees and difference > 0
    assert differing > 5


def test_scales_between_two_multipliers_of_15_bits_do_not_agree() -> None:
    assert scaled_both_ways((2**14 + 0.25) / 2**22, 2**30, 15)[0]
    assert not scaled_both_ways((2**14 + 0.5) / 2**22, 2**30, 15)[0]
    assert not scaled_both_ways(2.0**8, 1, 15)[0]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (0.37, 1.1, 0.9), (250.0, 3.0, 1.0), (1e-4, 2e-3, 1.0)])
def test_sums_of_all_codes_are_within_a_step(scales: tuple[float, float, float], sign: int) -> None:
    types = [TensorType((), DType.INT16, QuantParams((scale,), 0)) for scale in scales]
    own, found = (kind.of(*types, (1, sign)) for kind in (FixedSum, RoundedSum))
    assert own is not None and found is not None
    x, y = np.arange(-32768, 32768)[:, None], np.asarray([-32768, -12345, -1, 0, 1, 777, 32767])
    operands = [Argument(name, DType.INT16, exact=True) for name in "xy"]
    exact = evaluate(own.expression(*operands, Scalars()), {"x": x, "y": y})
    results = [np.clip(each, -32768, 32767) for each in (exact, found(x, y))]
    assert np.abs(results[0] - results[1]).max() <= 1
    assert (results[0] != results[1]).mean() < 0.01


def test_sums_of_scales_too_far_apart_stay_our_own() -> None:
    types = [TensorType((), DType.INT16, QuantParams((scale,), 0)) for scale in (300.0, 1.0, 1.0)]
    assert RoundedSum.of(*types, (1, 1)) is None


@pytest.mark.qemu
def test_digits_are_told_as_by_our_own_kernels() -> None:
    """The example's model of int16 activations: all images alike, and the library's results to the bit."""
    source, scheme = load(DIGITS / "digits_f32.onnx"), Scheme(DType.INT16)
    images = np.load(DIGITS / "calibration.npz")["image"][:20]
    model = import_float_model(source, CompileOptions(), scheme)
    coded = create_quantizer(source, model, scheme, [{"image": image[None]} for image in images]).quantize()
    compiled = linked(compile_model(coded, "nrf52840", CompileOptions(family=CMSIS_NN)))
    assert sum(bool(i.library) for i in compiled.program.instrs) == 8
    samples = [{"image": image[None]} for image in np.load(DIGITS / "eval.npz")["image"][:60]]
    found = [compiled.interpret(sample)["scores"] for sample in samples]
    own = [interpret(compiled.graph, sample)["scores"] for sample in samples]
    assert [f.argmax() for f in found] == [o.argmax() for o in own]
    run = compiled.simulate(samples[:3], measure=False)
    assert all(np.array_equal(r["scores"], f) for r, f in zip(run.outputs, found, strict=False))
