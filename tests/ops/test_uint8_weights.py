# SPDX-License-Identifier: Apache-2.0
"""uint8 weights with a zero point, as ONNX Runtime's quantizer writes them: weights of nine bits, by fast kernels."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, assert_close, onnxruntime_outputs, outputs_in_c, random_feeds

from mcugen.compiled import CompiledModel
from mcugen.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.options import CompileOptions

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
