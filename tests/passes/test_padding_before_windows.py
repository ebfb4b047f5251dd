# SPDX-License-Identifier: Apache-2.0
"""Pad before a layer with a window: what Pad adds are elements, what the layer pads by itself is none."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from checks import check_c
from float_models import normal_samples, quantized
from onnx_models import Net, assert_close, onnxruntime_outputs, operators, optimized, random_feeds

from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.ops.pool import AveragePool

BATCH, CHANNELS = 2, 4
PADS = {
    1: [(1, 1), (0, 2), (2, 0), (-1, 1)],
    2: [(1, 1, 1, 1), (0, 1, 1, 0), (1, 0, 0, 2), (0, 0, 2, 2), (1, 0, 1, 0), (-1, 1, 1, -1)],
    3: [(1, 0, 0, 0, 1, 1)],
}
"""Before each axis of space, then behind each."""
WINDOWS = {
    1: [{"pads": [1, 1]}, {"pads": [0, 1], "strides": [2]}, {"auto_pad": "SAME_UPPER"}],
    2: [
        {"pads": [1, 1, 1, 1]},
        {"pads": [1, 0, 0, 1], "strides": [2, 1]},
        {"auto_pad": "SAME_LOWER"},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "VALID"},
        {"dilations": [2, 1], "pads": [1, 1, 1, 1]},
    ],
    3: [{"pads": [1, 1, 0, 0, 1, 1]}],
}
SPACE = {1: (7,), 2: (5, 6), 3: (4, 5, 4)}
LAYERS = {
    "AveragePool": {},
    "AveragePool of the padding, too": {"count_include_pad": 1},
    "AveragePool rounded up": {"ceil_mode": 1},
    "MaxPool": {},
    "LpPool": {},
    "Conv": {},
    "ConvTranspose": {},
}
CODES = {np.float32: ("", 0), np.int8: (np.int8, 3), np.uint8: (np.uint8, 120), np.int16: (np.int16, 0)}
"""Type and zero point between conversions, by the name of a case."""


def cases(layer: str, ranks: tuple[int, ...], value: float = 0.0, dtype: type = np.float32) -> Net:
    """All paddings before all windows of a layer, which read x<rank>."""
    net, op_type = Net(21), layer.partition(" ")[0]
    random = np.random.default_rng(3)
    for rank in ranks:
        x = _coded(net, net.input(f"x{rank}", BATCH, CHANNELS, *SPACE[rank]), dtype)
        kernel, weights = [3] * rank, random.standard_normal((CHANNELS, CHANNELS, *[3] * rank)) / 4
        operands, shape = [], {"kernel_shape": kernel}
        if op_type.startswith("Conv"):
            integers = net.dequantize(net.const(np.rint(weights * 60), np.int8), 1 / 60)
            operands, shape = [net.const(weights) if dtype is np.float32 else integers], {}
        for pads, window in product(PADS[rank], WINDOWS[rank]):
            if op_type == "ConvTranspose" and "auto_pad" in window:
                continue
            if "auto_pad" in window and "ceil_mode" in LAYERS[layer]:
                continue  # libraries differ in what that means
            widths = [0, 0, *pads[:rank], 0, 0, *pads[rank:]]
            padded = net.op("Pad", x, net.const(widths, np.int64), net.const(value))
            y = net.op(op_type, _coded(net, padded, dtype), *operands, **shape, **window, **LAYERS[layer])
            net.output(_coded(net, y, dtype))
    return net


def _coded(net: Net, x: str, dtype: type) -> str:
    stored, zero = CODES[dtype]
    return net.fake(x, 0.05, zero, stored) if stored else x


@pytest.mark.parametrize("layer", LAYERS)
def test_reals(layer: str):
    ranks = (1, 2) if layer == "ConvTranspose" else (1, 2, 3)
    model = cases(layer, ranks).model()
    feeds = random_feeds(model)
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    assert_close(found, onnxruntime_outputs(model, feeds))
    check_c(compiled, feeds, found)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16], ids=lambda t: t.__name__)
@pytest.mark.parametrize("layer", ["AveragePool", "MaxPool", "Conv"])
def test_codes(layer: str, dtype: type):
    model = cases(layer, (2,), dtype=dtype).model()
    feeds = random_feeds(model)
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    for name, wanted in onnxruntime_outputs(model, feeds).items():
        assert np.abs(found[name] - wanted).max() <= 0.0501, name
    check_c(compiled, feeds, found)


@pytest.mark.parametrize("value", [0.5, -1.0, -np.inf])
@pytest.mark.parametrize("layer", ["AveragePool", "MaxPool"])
def test_other_values(layer: str, value: float):
    model = cases(layer, (2,), value).model()
    feeds = random_feeds(model)
    found, wanted = interpret(optimized(model), feeds), onnxruntime_outputs(model, feeds)
    lowest = np.finfo(np.float32).min  # which ONNX Runtime has for the largest of no more than infinities
    assert_close(*({name: np.maximum(y, lowest) for name, y in ys.items()} for ys in (found, wanted)))


def test_calibrated():
    """The float model is fused before it is quantized."""
    net = Net(19)
    x = net.input("x", 1, CHANNELS, 6, 6)
    conv = net.op("Conv", x, net.const(np.random.default_rng(0).standard_normal((CHANNELS, CHANNELS, 1, 1))))
    padded = net.op("Pad", conv, net.const([0, 0, 1, 0, 0, 0, 0, 1], np.int64))
    net.output(net.op("AveragePool", padded, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
    model = net.model()
    samples = normal_samples(model, 16)
    found = quantized(model)
    compiled = compile_model(found.proto)
    assert not {"dequantize", "quantize"} & set(operators(compiled.graph)[1:-1])
    for sample in samples:
        (wanted,) = onnxruntime_outputs(model, sample).values()
        (got,) = interpret(compiled.graph, sample).values()
        assert np.abs(got - wanted).max() < 0.03 * np.abs(wanted).max()
    check_c(compiled, samples[0], interpret(compiled.graph, samples[0]))


@pytest.mark.parametrize(
    ("pads", "widths", "is_folded"),
    [
        ([0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 1, 1], True),
        ([0, 0, 1, 1], [0, 0, 1, 0, 0, 0, 0, 1], True),  # what does not count lies behind the rest
        ([1, 0, 0, 0], [0, 0, 1, 1, 0, 0, 1, 1], False),
        ([0, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0], False),
    ],
)
def test_padding_enters_an_average_where_kernels_can_tell_what_counts(
    pads: list[int], widths: list[int], is_folded: bool
):
    net = Net()
    padded = net.op("Pad", net.input("x", 1, CHANNELS, 6, 6), net.const(widths, np.int64))
    net.output(net.op("AveragePool", padded, kernel_shape=[3, 3], pads=pads))
    graph = optimized(net.model())
    assert ("pad" not in operators(graph)) == is_folded
    (pool,) = (node.op for node in graph.nodes if isinstance(node.op, AveragePool))
    assert not any(pool.counted_before) or pool.counted_before == pool.window.before
