# SPDX-License-Identifier: Apache-2.0
"""Quantized operators of com.microsoft over types and attributes: within one code of ONNX Runtime; C = numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from onnx_models import (
    MICROSOFT,
    Net,
    assert_close,
    assert_within_one,
    c_outputs,
    imported,
    numpy_outputs,
    onnxruntime_outputs,
)

from mcugen.core.errors import UnsupportedError
from mcugen.hir.types import Array

RANDOM = np.random.default_rng(0)
SIGNS = [np.int8, np.uint8]


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order() -> None:
    RANDOM.bit_generator.state = np.random.default_rng(0).bit_generator.state


def codes(*shape: int, dtype: type = np.int8) -> Array:
    limits = np.iinfo(dtype)
    return RANDOM.integers(limits.min, limits.max + 1, shape).astype(dtype)


def real(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


@dataclass
class Nodes:
    """A model of many nodes, each with inputs and an output of its own."""

    net: Net = field(default_factory=Net)
    feeds: dict[str, Array] = field(default_factory=dict)

    def given(self, array: Array) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return self.net.input(name, *array.shape, dtype=array.dtype)

    def const(self, array: object, dtype: type = np.float32) -> str:
        return self.net.const(array, dtype)

    def params(self, scale: object, zero: object, dtype: type) -> list[str]:
        """Scale and zero point; the zero point is that of int8."""
        return [self.const(scale), self.const(np.asarray(zero) + 128 * (dtype is np.uint8), dtype)]

    def add(self, op_type: str, *inputs: str, dtype: type = np.float32, outputs: int = 1, **attributes: object) -> None:
        outs = [f"y{len(self.net.outputs) + i}" for i in range(outputs)]
        self.net.ops(op_type, *inputs, outs=outs, domain=MICROSOFT, **attributes)
        self.net.output(*outs, dtype=dtype)

    def check_codes(self, share: float = 0.01) -> None:
        model = self.net.plain_model()
        found = numpy_outputs(model, self.feeds)
        assert_within_one(found, onnxruntime_outputs(model, self.feeds), share)
        assert_close(c_outputs(model, self.feeds), found)

    def check_reals(self, relative: float = 1e-5) -> None:
        model = self.net.plain_model()
        found = numpy_outputs(model, self.feeds)
        assert_close(found, onnxruntime_outputs(model, self.feeds), relative)
        assert_close(c_outputs(model, self.feeds), found)


@pytest.mark.parametrize("dtype", SIGNS)
def test_functions_of_one_tensor(dtype: type) -> None:
    nodes = Nodes()
    x, y = nodes.params(0.0511, 3, dtype), nodes.params(0.0437, -5, dtype)
    shares = nodes.params(1 / 256, -128, dtype)
    image = codes(1, 3, 6, 7, dtype=dtype)
    nodes.add("QLinearSigmoid", nodes.given(image), *x, *shares, dtype=dtype)
    nodes.add("QLinearLeakyRelu", nodes.given(image), *x, *y, dtype=dtype)
    nodes.add("QLinearLeakyRelu", nodes.given(image), *x, *y, dtype=dtype, alpha=0.3)
    for opset in (11, 13):
        for axis in (1, -1):
            nodes.add("QLinearSoftmax", nodes.given(image), *x, *shares, dtype=dtype, axis=axis, opset=opset)
    nodes.add("QLinearSoftmax", nodes.given(image), *x, *shares, dtype=dtype, opset=13)
    nodes.check_codes()


@pytest.mark.parametrize("dtype", SIGNS)
def test_pools_and_means(dtype: type) -> None:
    nodes = Nodes()
    x, y = nodes.params(0.0511, 3, dtype), nodes.params(0.0437, -5, dtype)
    first, last = codes(1, 4, 7, 9, dtype=dtype), codes(1, 7, 9, 4, dtype=dtype)
    for is_last, image in ((0, first), (1, last)):
        for more in (
            {"strides": [2, 2]},
            {"pads": [1, 0, 1, 1]},
            {"pads": [1, 1, 1, 1], "count_include_pad": 1},
            {"strides": [2, 2], "ceil_mode": 1},
            {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        ):
            more = {"kernel_shape": [3, 2], "channels_last": is_last, **more}
            nodes.add("QLinearAveragePool", nodes.given(image), *x, *y, dtype=dtype, **more)
        nodes.add("QLinearGlobalAveragePool", nodes.given(image), *x, *y, dtype=dtype, channels_last=is_last)
        for pads in ([0, 0, 0, 0], [1, 1, 0, 1]):
            nodes.add(
                "NhwcMaxPool", nodes.given(image), dtype=dtype, kernel_shape=[3, 2], pads=pads, strides=[1 + is_last, 1]
            )
    nodes.check_codes()


@pytest.mark.parametrize("dtype", SIGNS)
def test_means(dtype: type) -> None:
    """ONNX Runtime has a schema, but no kernel: the mean of what is dequantized, quantized."""
    nodes, spelled = Nodes(), Nodes()
    x, y = nodes.params(0.0511, 3, dtype), nodes.params(0.0437, -5, dtype)
    spelled.net.constants = list(nodes.net.constants)
    image = codes(1, 4, 7, 9, dtype=dtype)
    for axes, keep in (([1], 0), ([2, 3], 1), ([-1], 1), ([0, 1, 2, 3], 0)):
        nodes.add("QLinearReduceMean", nodes.given(image), *x, *y, dtype=dtype, axes=axes, keepdims=keep)
        real_mean = spelled.net.op("DequantizeLinear", spelled.given(image), *x)
        real_mean = spelled.net.op("ReduceMean", real_mean, axes=axes, keepdims=keep)
        (name,) = nodes.net.nodes[-1].output
        spelled.net.output(spelled.net.op("QuantizeLinear", real_mean, *y, out=name), dtype=dtype)
    found = numpy_outputs(nodes.net.plain_model(), nodes.feeds)
    assert_within_one(found, onnxruntime_outputs(spelled.net.plain_model(), spelled.feeds), 0.02)
    assert_close(c_outputs(nodes.net.plain_model(), nodes.feeds), found)


@pytest.mark.parametrize("dtype", SIGNS)
def test_functions_of_several_tensors(dtype: type) -> None:
    nodes = Nodes()
    a, b, y = (nodes.params(*params, dtype) for params in ((0.0511, 3), (0.0307, -8), (0.0613, 0)))
    wide, row, one = codes(8, 30, 5, dtype=dtype), codes(5, dtype=dtype), codes(1, dtype=dtype)
    for op_type in ("QLinearAdd", "QLinearMul"):
        for other in (wide, row, one):
            nodes.add(op_type, nodes.given(wide), *a, nodes.given(other), *b, *y, dtype=dtype)
        nodes.add(op_type, nodes.given(wide), *a, nodes.const(row, dtype), *b, *y, dtype=dtype)
    for other in (wide, row):
        condition = nodes.given(RANDOM.random(wide.shape) < 0.5)
        nodes.add("QLinearWhere", condition, nodes.given(wide), *a, nodes.given(other), *b, *y, dtype=dtype)
    for axis in (0, 1, -1):
        operands = [nodes.given(wide), *a, nodes.given(wide), *b, nodes.const(wide, dtype), *y]
        nodes.add("QLinearConcat", *y, *operands, dtype=dtype, axis=axis)
    nodes.check_codes()


def test_absent_zero_points_are_zeros_of_the_inputs_type() -> None:
    """ONNX Runtime takes given ones alone: without, it says no, or aborts."""
    x, feeds = codes(4, 6), {}
    models = []
    for zero in ([], [np.int8]):
        nodes = Nodes()
        scale, zeros = nodes.const(0.05), [nodes.const(0, dtype) for dtype in zero] or [""]
        one, other, third = (nodes.given(x) for _ in range(3))
        nodes.add("QLinearLeakyRelu", one, scale, *zeros, scale, *zeros, dtype=np.int8)
        nodes.add("QLinearAdd", other, scale, *zeros, third, scale, *zeros, scale, *zeros, dtype=np.int8)
        models.append(nodes.net.plain_model())
        feeds = nodes.feeds
    assert_within_one(numpy_outputs(models[0], feeds), onnxruntime_outputs(models[1], feeds))


PRODUCTS = [(np.int8, np.int8), (np.uint8, np.int8), (np.uint8, np.uint8)]


@pytest.mark.parametrize("types", PRODUCTS, ids=str)
def test_qgemm(types: tuple[type, type]) -> None:
    nodes = Nodes()
    a, y = nodes.params(0.0211, 3, types[0]), nodes.params(0.917, -5, types[0])
    bias = nodes.const(RANDOM.integers(-900, 900, 5), np.int32)
    for scales, zeros in ((0.0107, 7), (RANDOM.uniform(0.005, 0.02, 5), np.zeros(5, np.int64))):
        b = nodes.params(scales, zeros, types[1])
        for flipped_a, flipped_b, alpha in ((0, 0, 1.0), (1, 0, 1.0), (0, 1, 1.0), (1, 1, 0.5)):
            left = codes(*((12, 40) if flipped_a else (40, 12)), dtype=types[0])
            right = nodes.const(codes(*((5, 12) if flipped_b else (12, 5)), dtype=types[1]), types[1])
            attributes = {"transA": flipped_a, "transB": flipped_b, "alpha": alpha}
            nodes.add("QGemm", nodes.given(left), *a, right, *b, bias, *y, dtype=types[0], **attributes)
    nodes.check_codes()


@pytest.mark.parametrize("types", PRODUCTS, ids=str)
def test_qgemm_to_reals(types: tuple[type, type]) -> None:
    nodes = Nodes()
    a, b = nodes.params(0.02, 3, types[0]), nodes.params(0.01, 7, types[1])
    bias = nodes.const(RANDOM.integers(-900, 900, 5), np.int32)
    right = nodes.const(codes(12, 5, dtype=types[1]), types[1])
    for more in ([], [bias]):
        nodes.add("QGemm", nodes.given(codes(6, 12, dtype=types[0])), *a, right, *b, *more, alpha=0.7)
    nodes.check_reals()


@pytest.mark.parametrize("types", PRODUCTS, ids=str)
def test_convolution_with_channels_last(types: tuple[type, type]) -> None:
    nodes = Nodes()
    x, w, y = nodes.params(0.0211, 3, types[0]), nodes.params(0.0107, 0, types[1]), nodes.params(0.917, -5, types[0])
    bias = nodes.const(RANDOM.integers(-900, 900, 4), np.int32)
    for groups in (1, 2):
        kernel = nodes.const(codes(4, 4 // groups, 3, 3, dtype=types[1]), types[1])
        image = nodes.given(codes(1, 17, 16, 4, dtype=types[0]))
        more = {"group": groups, "pads": [1, 1, 0, 0], "strides": [2, 1], "channels_last": 1}
        nodes.add("QLinearConv", image, *x, kernel, *w, *y, bias, dtype=types[0], **more)
    nodes.check_codes()


@pytest.mark.parametrize("types", PRODUCTS, ids=str)
def test_products_to_reals(types: tuple[type, type]) -> None:
    nodes = Nodes()
    bias, a_scale, a_zero = nodes.const(real(5)), nodes.const(0.02), nodes.const(5, types[0])
    b_scale, b_zero = nodes.const(RANDOM.uniform(0.005, 0.02, 5)), nodes.const(codes(5, dtype=types[1]), types[1])
    one_scale, one_zero = nodes.const(0.01), nodes.const(9, types[1])
    right = nodes.const(codes(12, 5, dtype=types[1]), types[1])
    for inputs in (
        [a_scale, one_scale],
        [a_scale, one_scale, a_zero, one_zero],
        [a_scale, b_scale, a_zero, b_zero, bias],
    ):
        nodes.add("MatMulIntegerToFloat", nodes.given(codes(2, 6, 12, dtype=types[0])), right, *inputs)
    given = nodes.given(codes(12, 5, dtype=types[1]))
    nodes.add("MatMulIntegerToFloat", nodes.given(codes(6, 12, dtype=types[0])), given, a_scale, one_scale, a_zero)
    nodes.check_reals()


@pytest.mark.parametrize("dtype", SIGNS)
def test_products_of_what_is_quantized_at_run_time(dtype: type) -> None:
    nodes = Nodes()
    bias = nodes.const(real(5))
    right = nodes.const(codes(12, 5, dtype=dtype), dtype)
    scales, zeros = nodes.const(RANDOM.uniform(0.005, 0.02, 5)), nodes.const(codes(5, dtype=dtype), dtype)
    one, zero = nodes.const(0.01), nodes.const(9, dtype)
    for inputs in ([one], [one, zero], [one, zero, bias], [scales, zeros, bias]):
        nodes.add("DynamicQuantizeMatMul", nodes.given(real(2, 6, 12)), right, *inputs)
    nodes.add("DynamicQuantizeMatMul", nodes.given(real(6, 12)), nodes.given(codes(12, 5, dtype=dtype)), one)
    nodes.check_reals()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_conversions(dtype: type) -> None:
    """Of 8 and 16 bits, one scale a tensor or one a channel."""
    nodes = Nodes()
    x = np.concatenate([real(2, 3, 4) * 3, np.full((2, 3, 1), 1e9, np.float32)], 2)
    span = 1.0 if np.iinfo(dtype).bits == 8 else 1 / 256
    one, zero = nodes.const(0.05 * span), nodes.const(7, dtype)
    scales, zeros = nodes.const(RANDOM.uniform(0.01, 0.1, 3) * span), nodes.const([0, 5, 9], dtype)
    nodes.add("QuantizeLinear", nodes.given(x), one, zero, dtype=dtype)
    nodes.add("QuantizeLinear", nodes.given(x), scales, zeros, dtype=dtype, axis=1)
    nodes.check_codes()
    nodes = Nodes()
    one, zero = nodes.const(0.05 * span), nodes.const(7, dtype)
    scales, zeros = nodes.const(RANDOM.uniform(0.01, 0.1, 3)), nodes.const([0, 5, 9], dtype)
    nodes.add("DequantizeLinear", nodes.given(codes(2, 3, 5, dtype=dtype)), one, zero)
    nodes.add("DequantizeLinear", nodes.given(codes(2, 3, 5, dtype=dtype)), one)
    nodes.add("DequantizeLinear", nodes.given(codes(2, 3, 5, dtype=dtype)), scales, zeros, axis=1)
    nodes.check_reals()


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_a_layer_between_conversions_of_16_bits(dtype: type) -> None:
    nodes = Nodes()
    net, zero = nodes.net, nodes.const(0 if dtype is np.int16 else 1 << 15, dtype)
    scale, small = nodes.const(8 / 2**15), nodes.const(60 / 2**15)
    codes_of_x = net.op("QuantizeLinear", nodes.given(real(3, 12)), scale, zero, domain=MICROSOFT)
    x = net.op("DequantizeLinear", codes_of_x, scale, zero, domain=MICROSOFT)
    w = net.dequantize(net.const(codes(12, 5), np.int8), 0.02)
    y = net.op("MatMul", x, w)
    nodes.add("QuantizeLinear", y, small, zero, dtype=dtype)
    nodes.check_codes(share=0.02)


@pytest.mark.parametrize("dtype", SIGNS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm(dtype: type, direction: str) -> None:
    """ONNX Runtime rounds inputs and states to 8 bits; here they stay what they are."""
    hidden, inputs, ways = 6, 5, 1 + (direction == "bidirectional")
    nodes = Nodes()
    zero = 128 if dtype is np.uint8 else 0

    def weights(depth: int) -> str:
        return nodes.const(RANDOM.integers(-100, 100, (ways, depth, 4 * hidden)) + zero, dtype)

    for size in (1, 4 * hidden):
        shape = (ways,) if size == 1 else (ways, size)
        params = [nodes.const(RANDOM.uniform(0.004, 0.008, shape)), nodes.const(np.full(shape, zero), dtype)] * 2
        x, bias = nodes.given(real(7, 2, inputs)), nodes.const(real(ways, 8 * hidden) / 4)
        start = [nodes.given(real(ways, 2, hidden) / 2) for _ in range(2)]
        operands = [x, weights(inputs), weights(hidden), bias, "", *start, "", *params]
        nodes.add("DynamicQuantizeLSTM", *operands, outputs=3, hidden_size=hidden, direction=direction)
    nodes.check_reals(0.03)


def attention_inputs(nodes: Nodes, types: Sequence[type], columns: bool = False) -> list[str]:
    x = nodes.given(codes(2, 4, 8, dtype=types[0]))
    weights, bias = nodes.const(codes(8, 24, dtype=types[1]), types[1]), nodes.const(real(24))
    scale = nodes.const(RANDOM.uniform(0.004, 0.006, 24) if columns else 0.005)
    return [x, weights, bias, nodes.const(0.03), scale]


@pytest.mark.parametrize("types", PRODUCTS[1:], ids=str)
def test_attention(types: tuple[type, type]) -> None:
    nodes = Nodes()
    zeros = [nodes.const(128 if t is np.uint8 else 0, t) for t in types]
    for columns in (False, True):
        for causal in (0, 1):
            inputs = attention_inputs(nodes, types, columns)
            nodes.add("QAttention", *inputs, "", *zeros, num_heads=2, unidirectional=causal)
    nodes.add("QAttention", *attention_inputs(nodes, types), num_heads=2)
    keys = nodes.given(np.array([[1, 1, 0, 0], [1, 1, 1, 0]], np.int32))
    nodes.add("QAttention", *attention_inputs(nodes, types), keys, *zeros, num_heads=2)
    ends = nodes.given(np.array([2, 3], np.int32))
    nodes.add("QAttention", *attention_inputs(nodes, types), ends, *zeros, num_heads=4)
    past = nodes.given(real(2, 2, 2, 3, 4))
    inputs = attention_inputs(nodes, types)
    nodes.add("QAttention", *inputs, "", *zeros, past, num_heads=2, unidirectional=1, outputs=2)
    nodes.check_reals(1e-4)


@pytest.mark.parametrize("dtype", SIGNS)
def test_embeddings(dtype: type) -> None:
    nodes = Nodes()
    ids, segments = nodes.given(whole(RANDOM.integers(0, 9, (2, 5)))), nodes.given(whole(RANDOM.integers(0, 2, (2, 5))))
    tables = [nodes.const(codes(*shape, dtype=dtype), dtype) for shape in ((9, 8), (6, 8), (2, 8), (8,), (8,))]
    scales = [nodes.const(s) for s in (0.02, 0.01, 0.03, 0.01, 0.02)]
    zeros = [nodes.const(100, dtype) for _ in tables]
    mask = nodes.given(whole([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]))
    operands = [ids, segments, *tables, mask, *scales, *zeros]
    nodes.net.ops("QEmbedLayerNormalization", *operands, outs=["y", "index"], domain=MICROSOFT)
    nodes.net.output("y")
    nodes.net.output("index", dtype=np.int32)
    nodes.check_reals()


def whole(numbers: object) -> Array:
    return np.asarray(numbers, np.int32)


def test_weights_of_a_recurrent_layer_must_be_constant() -> None:
    nodes = Nodes()
    weights = [nodes.given(codes(1, depth, 24)) for depth in (5, 6)]
    params = [nodes.const([0.01]), nodes.const([0], np.int8)] * 2
    nodes.add("DynamicQuantizeLSTM", nodes.given(real(7, 2, 5)), *weights, *[""] * 5, *params, hidden_size=6)
    with pytest.raises(UnsupportedError, match=r"weights must be constant.*--bind"):
        numpy_outputs(nodes.net.plain_model(), nodes.feeds)


EMPTY = np.zeros(0, np.float32)


@pytest.mark.parametrize(
    ("op_type", "operands", "reason"),
    [
        ("QLinearSigmoid", [0.1], "there must be a scale, and a zero point for each or for all|must be given"),
        ("QLinearSigmoid", [], "input 1 must be given"),
        ("QLinearSigmoid", [EMPTY, np.zeros(1, np.int8), 0.1, np.zeros(1, np.int8)], "one per tensor"),
        ("QLinearSigmoid", [0.1, np.zeros(0, np.int8), 0.1, np.zeros(1, np.int8)], "there must be a scale, and a zero"),
        ("QGemm", [0.1, np.int8(0), np.zeros(4, np.int8), 0.1, np.int8(0)], "input 3 must have axes"),
        ("QAttention", [codes(4, 5), EMPTY, 0.1, 0.1], "input 0 must have axes"),
        ("QLinearConcat", [0.1, np.int8(0)], "input 0 must be given"),
        ("MatMulIntegerToFloat", [codes(4, 5), 0.1, 0.1, np.zeros(0, np.int8)], "another number of elements"),
    ],
)
def test_what_is_refused(op_type: str, operands: Sequence[object], reason: str) -> None:
    net = Net()
    constants = [
        net.const(v, np.asarray(v).dtype.type if isinstance(v, np.ndarray | np.generic) else np.float32)
        for v in operands
    ]
    net.ops(op_type, net.input("x", 3, 4, dtype=np.int8), *constants, outs=["y"], domain=MICROSOFT)
    net.output("y", dtype=np.int8)
    with pytest.raises(UnsupportedError, match=reason):
        imported(net.plain_model())


@pytest.mark.parametrize("wrong", [8, 9])
def test_scales_of_lstm_must_fit(wrong: int) -> None:
    net = Net()
    params = [np.ones(24, np.float32), np.zeros(24, np.int8)] * 2
    params[wrong - 8] = params[wrong - 8][:5]
    operands = [codes(1, 4, 24), codes(1, 6, 24)]
    names = [net.const(v, v.dtype.type) for v in operands] + [""] * 5 + [net.const(v, v.dtype.type) for v in params]
    net.ops("DynamicQuantizeLSTM", net.input("x", 3, 1, 4), *names, outs=["y"], domain=MICROSOFT, hidden_size=6)
    net.output("y")
    with pytest.raises(UnsupportedError, match="a scale and a zero point a tensor or a channel"):
        imported(net.plain_model())
