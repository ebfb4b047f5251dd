# SPDX-License-Identifier: Apache-2.0
"""uint8 weights with a zero point, as ONNX Runtime's quantizer writes them: weights of nine bits, by fast kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx_models import Net, assert_close, onnxruntime_outputs, outputs_in_c, random_feeds

from mcugen.api.compilation import Compilation
from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

ZEROS = {"one zero point": [117], "one a channel": [99, 128, 131, 150, 117, 128, 100, 128]}


def weights(net: Net, zeros: list[int], *shape: int) -> str:
    """Codes of the whole range: less the zero point they leave int8 at one end."""
    data = np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.uint8)
    data.reshape(len(data), -1)[:, :2] = 0, 255
    scale, zero = (0.004, zeros[0]) if len(zeros) == 1 else (np.full(shape[0], 0.004), zeros * (shape[0] // 8))
    q, params = net.const(data, np.uint8), (net.const(scale), net.const(zero, np.uint8))
    return net.op("DequantizeLinear", q, *params, axis=0)


def network(zeros: list[int], size: int = 9) -> Net:
    """A window of each kind of kernel, and a fully connected layer."""
    net = Net()
    x = net.fake(net.input("x", 1, 8, size, size), 0.01, 3, np.uint8)
    for layer, (kernel, group, stride) in enumerate([(3, 1, 1), (3, 8, 1), (1, 1, 1), (3, 1, 2)]):
        w = weights(net, zeros, 8, 8 // group, kernel, kernel)
        pads = [kernel // 2] * 4
        x = net.op("Conv", x, w, pads=pads, group=group, strides=[stride] * 2)
        x = net.fake(x, (0.09, 0.15, 0.3, 1.1)[layer], 110 + layer, np.uint8)
    flat = net.op("Flatten", x)
    w = weights(net, zeros, 8, 8 * ((size + 1) // 2) ** 2)
    net.output(net.quantize(net.op("Gemm", flat, w, transB=1), 7.0, 121, np.uint8, out="y"), dtype=np.uint8)
    return net


def check_bits(model: CompiledModel, found: dict[str, np.ndarray], feeds: dict[str, np.ndarray]) -> None:
    assert_close(found, interpret(model.graph, feeds))


def check_target_and_twins(model: CompiledModel) -> None:
    """Of the simulated board, and of plain C on this computer."""
    feeds = random_feeds(model.model)
    (found,) = model.simulate([feeds], measure=False).outputs
    check_bits(model, found, feeds)
    check_bits(model, outputs_in_c(replace(model, board=load_board("host")), feeds), feeds)


@pytest.mark.parametrize("zeros", ZEROS.values(), ids=list(ZEROS))
def test_twins_and_onnxruntime_agree(zeros: list[int]):
    model = compile_model(network(zeros).model(), "nrf52840")
    feeds = random_feeds(model.model)
    check_bits(model, outputs_in_c(model, feeds), feeds)
    expected = onnxruntime_outputs(model.model, feeds)["y"].astype(int)
    assert np.abs(interpret(model.graph, feeds)["y"].astype(int) - expected).max() <= 1


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "corstone300", "rp2040"])
def test_each_cpu_gives_the_bits_of_the_reference(board: str):
    model = compile_model(network(ZEROS["one zero point"]).model(), board)
    feeds = random_feeds(model.model)
    (found,) = model.simulate([feeds], measure=False).outputs
    check_bits(model, found, feeds)


def test_no_convolution_is_left_to_plain_c_where_there_are_two_products_an_instruction():
    model = compile_model(network(ZEROS["one zero point"], size=16).model(), "nrf52840")
    kernels = {i.kernel for i in model.program.instrs if i.macs}
    assert {"conv2d_s8", "depthwise_s8"}.isdisjoint(kernels), kernels


def test_winograd_takes_nine_bits():
    net = Net()
    x = net.fake(net.input("x", 1, 8, 12, 12), 0.01, 3, np.uint8)
    y = net.op("Conv", x, weights(net, [117], 8, 8, 3, 3), pads=[1] * 4)
    net.output(net.quantize(y, 0.09, 110, np.uint8, out="y"), dtype=np.uint8)
    for kernel in ("conv2d_s8_winograd_dsp", "conv2d_s8_winograd"):
        model = compile_model(net.model(), "nrf52840", CompileOptions(kernels=(kernel,)))
        assert kernel in {i.kernel for i in model.program.instrs}
        feeds = random_feeds(model.model)
        check_bits(model, outputs_in_c(model, feeds), feeds)


SHAPES = {
    "pixels": ((1, 16, 5, 7), (12, 16, 1, 1), {}),
    "odd pixels": ((1, 21, 3, 3), (5, 21, 1, 1), {}),
    "pixels apart": ((1, 8, 7, 7), (8, 8, 1, 1), {"strides": [2, 2]}),
    "windows": ((1, 5, 9, 6), (7, 5, 3, 3), {"pads": [1] * 4}),
    "windows apart": ((2, 16, 8, 9), (6, 16, 3, 2), {"strides": [2, 1], "pads": [1, 0, 0, 1]}),
    "dilated": ((1, 4, 9, 9), (9, 4, 3, 3), {"dilations": [2, 2], "pads": [2] * 4}),
}


def layer(name: str) -> onnx.ModelProto:
    """A convolution of each kind of reading pixels."""
    shape, filters, attributes = SHAPES[name]
    net, random = Net(), np.random.default_rng(1)
    x = net.dequantize(net.input("x", *shape, dtype=np.int8), 0.02, 5)
    codes = random.integers(0, 256, filters)
    codes.reshape(len(codes), -1)[:, :2] = 0, 255
    w = net.op("DequantizeLinear", net.const(codes, np.uint8), net.const(0.01), net.const(87, np.uint8))
    bias = net.const(random.normal(0, 1, filters[0]))
    net.output(net.quantize(net.op("Conv", x, w, bias, **attributes), 0.15, -7, out="y"), dtype=np.int8)
    return net.model()


@pytest.mark.qemu
@pytest.mark.parametrize("name", SHAPES)
def test_helium_takes_bytes_and_the_sum_of_a_pixel(name: str):
    model = compile_model(layer(name), "corstone300", CompileOptions(kernels=("conv2d_s8_mve_nine",)))
    assert "conv2d_s8_mve_nine" in {i.kernel for i in model.program.instrs}
    feeds = random_feeds(model.model)
    check_bits(model, outputs_in_c(model, feeds), feeds)
    check_bits(model, outputs_in_c(replace(model, board=load_board("host")), feeds), feeds)  # the twin in plain C


@pytest.mark.qemu
def test_on_helium_they_stay_bytes_in_flash():
    """Convolutions of eight channels and a dense layer: no kernel for two products an instruction."""
    model = network(ZEROS["one zero point"], size=24).model()
    compilation = Compilation(model, "corstone300")
    layers = [layer for layer in compilation.report().layers if layer.kernel == "conv2d_s8_mve_nine"]
    assert len(layers) == 4
    assert sum(layer.instructions or 0 for layer in layers) < 0.6 * sum(layer.macs for layer in layers)
    assert sum(array.nbytes for array in weights_of(compilation.compiled)) < 1.3 * 8 * (9 * 8 + 9 + 8 + 9 * 8 + 144 * 8)


def weights_of(model: CompiledModel) -> list[np.ndarray]:
    return [b.data for b in model.program.buffers if b.data is not None and b.name.endswith("weights")]


BYTES = {
    # board: kernels whose weights are bytes and a number of their channel
    "rp2040": ("conv2d_s8_thumb1_nine", "depthwise_s8_3x3"),
    "stm32f103rb": ("conv2d_s8_thumb2_nine", "depthwise_s8_3x3"),
    "rv32imc": ("conv2d_s8_rv32_nine", "depthwise_s8_3x3"),
    "corstone300": ("conv2d_s8_mve_nine", "depthwise_s8_mve_4x4_nine"),
}


@pytest.mark.qemu
@pytest.mark.parametrize("zeros", ZEROS.values(), ids=list(ZEROS))
@pytest.mark.parametrize("board", BYTES)
def test_bytes_and_a_number_of_their_channel(board: str, zeros: list[int]):
    model = compile_model(network(zeros).model(), board, CompileOptions(kernels=BYTES[board]))
    assert set(BYTES[board]) <= {i.kernel for i in model.program.instrs}
    check_target_and_twins(model)


COLUMNS = {
    # size, channels, results, stride: a row of whole groups of four pixels, or not; more than sixteen of them
    "one vector": (12, 16, 8, 1),
    "rest": (22, 16, 8, 1),
    "two vectors apart": (18, 32, 8, 2),
}


@pytest.mark.qemu
@pytest.mark.parametrize("zeros", ZEROS.values(), ids=list(ZEROS))
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_have_sums_of_windows(name: str, zeros: list[int]):
    size, channels, results, stride = COLUMNS[name]
    net = Net()
    x = net.fake(net.input("x", 1, channels, size, size), 0.01, 3, np.uint8)
    w = weights(net, zeros, results, channels, 3, 3)
    y = net.op("Conv", x, w, pads=[1] * 4, strides=[stride] * 2)
    net.output(net.quantize(y, 0.3, 110, np.uint8, out="y"), dtype=np.uint8)
    model = compile_model(net.model(), "corstone300", CompileOptions(kernels=("conv2d_s8_mve_columns_nine",)))
    assert "conv2d_s8_mve_columns_nine" in {i.kernel for i in model.program.instrs}
    check_target_and_twins(model)


PATCHES = {
    # channels, height, width, window, stride
    "two rows": (24, 9, 9, (3, 3), 1),
    "turned": (40, 25, 5, (3, 3), 1),
    "apart": (40, 7, 13, (3, 3), 2),
    "narrow": (16, 12, 5, (3, 2), 1),
}


@pytest.mark.qemu
@pytest.mark.parametrize("name", PATCHES)
def test_channels_beyond_bytes_are_computed_again(name: str):
    channels, height, width, window, stride = PATCHES[name]
    net = Net()
    x = net.fake(net.input("x", 1, channels, height, width), 0.01, 3, np.uint8)
    w = weights(net, ZEROS["one a channel"], channels, 1, *window)
    y = net.op("Conv", x, w, pads=[1] * 4, strides=[stride] * 2, group=channels)
    net.output(net.quantize(y, 0.05, 110, np.uint8, out="y"), dtype=np.uint8)
    model = compile_model(net.model(), "corstone300", CompileOptions(kernels=("depthwise_s8_mve_4x4_nine",)))
    assert "depthwise_s8_mve_4x4_nine" in {i.kernel for i in model.program.instrs}
    check_target_and_twins(model)


def block(zero: int) -> onnx.ModelProto:
    """Layers of a separable network, whose weights' greatest magnitude is that of one weight a layer."""
    net, random = Net(), np.random.default_rng(5)
    x = net.dequantize(net.input("x", 1, 32, 12, 12, dtype=np.int8), 0.02, -5)
    for kernel, group in ((3, 1), (3, 32), (1, 1), (3, 32), (1, 1)):
        codes = random.normal(0, 30, (32, 32 // group, kernel, kernel)).round().clip(-100, 100)
        codes.reshape(-1)[7] = 127 if zero == 0 else 255 - zero
        kind = np.int8 if zero == 0 else np.uint8
        w = net.op("DequantizeLinear", net.const(codes + zero, kind), net.const(0.004), net.const(zero, kind))
        x = net.op("Conv", x, w, pads=[kernel // 2] * 4, group=group)
        x = net.fake(x, 0.1, 3, np.int8)
    net.output(net.quantize(x, 0.1, 3, out="y"), dtype=np.int8)
    return net.model()


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", *BYTES])
def test_at_most_a_tenth_more_than_int8(board: str):
    taken = [Compilation(block(zero), board).report().instructions for zero in (0, 117)]
    assert taken[0] is not None and taken[1] is not None
    print(f"{board}: {taken[1] / taken[0]:.3f}")
    assert taken[1] <= 1.1 * taken[0]
