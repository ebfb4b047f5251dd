# SPDX-License-Identifier: Apache-2.0
"""Results that ONNX's text settles and that ONNX Runtime does not give: explicit models and exact numbers decide."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx_models import Net, assert_close, onnxruntime_outputs, outputs_in_c, random_feeds

from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

WINDOWS = [(5, 1, 3), (7, 2, 4), (5, 2, 5), (5, 1, 5), (8, 1, 4), (10, 2, 6)]
"""Size, kernel and stride of windows that leave the ends of the input out."""
AUTO = ("SAME_UPPER", "SAME_LOWER")


def add_windows(net: Net, op_type: str, is_explicit: bool) -> None:
    """Add layers by `auto_pad`, or the layers without padding that they are."""
    numbers = np.random.default_rng(1)
    for (size, kernel, stride), auto in product(WINDOWS, AUTO):
        x = net.input(f"x_{size}_{kernel}_{stride}_{auto}", 2, 3, size, 6)
        attributes = {"kernel_shape": [kernel, 1], "strides": [stride, 1]}
        weights = [net.const(numbers.normal(size=(4, 3, kernel, 1)))] if op_type == "Conv" else []
        padding = {"pads": [0] * 4} if is_explicit else {"auto_pad": auto}
        net.output(net.op(op_type, x, *weights, out=f"y{x}", **attributes, **padding))


@pytest.mark.parametrize("opset", [9, 18, 22])
@pytest.mark.parametrize("op_type", ["Conv", "MaxPool", "AveragePool", "LpPool"])
def test_no_padding_is_negative(op_type: str, opset: int):
    """Padding is at least 0, as ONNX's text and TensorFlow have it; ONNX Runtime crops the input, or refuses to."""
    nets = Net(opset), Net(opset)
    for net, is_explicit in zip(nets, (False, True), strict=True):
        add_windows(net, op_type, is_explicit)
    model, explicit = (net.plain_model() for net in nets)
    feeds = random_feeds(model)
    compiled = compile_model(model)
    assert_close(interpret(compiled.graph, feeds), onnxruntime_outputs(explicit, feeds))
    assert_close(outputs_in_c(compiled, feeds), onnxruntime_outputs(explicit, feeds))


@pytest.mark.parametrize("opset", [9, 11, 22])
@pytest.mark.parametrize("auto", AUTO)
def test_a_transposed_convolution_has_the_size_of_its_strides(auto: str, opset: int):
    """The size is input · stride: ONNX Runtime has it where `output_shape` says so, and a smaller one elsewhere."""
    nets = Net(opset), Net(opset)
    for net, is_explicit in zip(nets, (False, True), strict=True):
        numbers = np.random.default_rng(2)
        for kernel, stride, dilation in ((1, 2, 1), (1, 3, 1), (2, 3, 1), (2, 5, 1), (2, 5, 2)):
            x = net.input(f"x_{kernel}_{stride}_{dilation}", 2, 3, 4, 5)
            weights, bias = net.const(numbers.normal(size=(3, 4, kernel, 2))), net.const(numbers.normal(size=4))
            more = {"output_shape": [4 * stride, 5]} if is_explicit else {}
            attributes = {"strides": [stride, 1], "dilations": [dilation, 1], "auto_pad": auto}
            net.output(net.op("ConvTranspose", x, weights, bias, out=f"y{x}", **attributes, **more))
    model, explicit = (net.plain_model() for net in nets)
    feeds = random_feeds(model)
    compiled = compile_model(model)
    assert_close(interpret(compiled.graph, feeds), onnxruntime_outputs(explicit, feeds))
    assert_close(outputs_in_c(compiled, feeds), onnxruntime_outputs(explicit, feeds))


POWERS = [(3, 33), (-3, 33), (7, 22), (-7, 21), (2, 62), (-2, 63), (1, 1000), (-1, 999), (10, 18), (5, 0), (0, 0)]
"""Base and exponent of results that have at most 64 bits; many of them have more digits than float64."""


@pytest.mark.parametrize("exponent", [np.int32, np.int64, np.uint8, np.int8])
@pytest.mark.parametrize("base", [np.int32, np.int64])
@pytest.mark.parametrize("opset", [12, 13, 15])
def test_powers_of_integers_have_all_digits(opset: int, base: type, exponent: type):
    """ONNX Runtime computes them in float64, which has 53 bits."""
    known = [(b, e) for b, e in POWERS if abs(b**e) <= np.iinfo(base).max + (b < 0) and e <= np.iinfo(exponent).max]
    net = Net(opset)
    x, e = net.input("x", len(known), dtype=base), net.input("e", len(known), dtype=exponent)
    net.output(net.op("Pow", x, e, out="y"), dtype=base)
    feeds = {"x": np.array([b for b, _ in known], base), "e": np.array([e for _, e in known], exponent)}
    compiled = compile_model(net.plain_model())
    for outputs in (interpret(compiled.graph, feeds), outputs_in_c(compiled, feeds)):
        assert outputs["y"].tolist() == [b**e for b, e in known]
