# SPDX-License-Identifier: Apache-2.0
"""A transformer's encoder block of com.microsoft's operators is quantized operator by operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import check_integer_graph, normal_samples, quantized, random_weights, sqnr
from onnx_models import MICROSOFT, Net, assert_close, c_outputs, onnxruntime_outputs, operators, optimized

from mcugen.hir.interpreter import interpret
from mcugen.hir.types import DType
from mcugen.quantization.scheme import Scheme

STEPS, WIDTH, INNER = 12, 16, 24


def block(opset: int = 17, seed: int = 0) -> onnx.ModelProto:
    """As ONNX Runtime's optimizer writes it: attention, sum and norm, two layers, sum and norm."""
    net = Net(opset)
    seeds = iter(range(seed, seed + 100))

    def weights(*shape: int) -> str:
        return net.const(random_weights(next(seeds), *shape[::-1]).T)

    def vector(size: int) -> str:
        return net.const(random_weights(next(seeds), 1, size)[0])

    def gain() -> str:
        return net.const(1 + random_weights(next(seeds), 1, WIDTH)[0])

    x = net.input("x", 1, STEPS, WIDTH)
    mask = net.const([[1] * 10 + [0] * 2], np.int32)
    mixed = net.op(
        "Attention",
        x,
        weights(WIDTH, 3 * WIDTH),
        vector(3 * WIDTH),
        mask,
        num_heads=2,
        unidirectional=1,
        domain=MICROSOFT,
    )
    mixed = net.op("MatMul", mixed, weights(WIDTH, WIDTH))
    y = net.op("SkipLayerNormalization", mixed, x, gain(), vector(WIDTH), vector(WIDTH), domain=MICROSOFT)
    inner = net.op("BiasGelu", net.op("MatMul", y, weights(WIDTH, INNER)), vector(INNER), domain=MICROSOFT)
    inner = net.op("MatMul", inner, weights(INNER, WIDTH))
    net.op("SkipLayerNormalization", inner, y, gain(), vector(WIDTH), vector(WIDTH), out="y", domain=MICROSOFT)
    net.output("y", shape=(1, STEPS, WIDTH))
    return net.plain_model()


@pytest.mark.parametrize("opset", [13, 17])
def test_encoder_block(opset: int) -> None:
    model = block(opset)
    quantization = quantized(model)
    assert not quantization.assignment.reasons
    graph = optimized(quantization.proto)
    layers = [name for name in operators(graph) if name not in ("reshape", "transpose")]
    attention = ["dense", "dense", "dense", "matmul", "softmax", "matmul", "dense"]
    block_of_two = ["add", "normalize", "dense", "lookup", "dense", "add", "normalize"]
    assert sorted(layers[1:-1]) == sorted([*attention, *block_of_two])
    check_integer_graph(model, quantization, graph, 25)


def test_its_code() -> None:
    proto = quantized(block(seed=3)).proto
    (sample,) = normal_samples(proto, 1, seed=7)
    assert_close(c_outputs(proto, sample), interpret(optimized(proto), sample))


def test_in_16_bits() -> None:
    """Which needs a later opset than the model's: normalizations stay."""
    model = block(13)
    quantization = quantized(model, Scheme(activations=DType.INT16))
    samples = normal_samples(model, 8, seed=5)
    exact = [onnxruntime_outputs(model, s)["y"] for s in samples]
    found = [interpret(optimized(quantization.proto), s)["y"] for s in samples]
    assert sqnr(exact, found) > 38


def test_a_state_from_call_to_call() -> None:
    """What is composed with a loop inside stays float, and is copied as it is."""
    net = Net(17)
    x = net.input("x", 1, 4, 8)
    parts = [net.op("MatMul", x, net.const(random_weights(i, 8, 8))) for i in range(3)]
    net.op(
        "LinearAttention", *parts, q_num_heads=2, kv_num_heads=2, update_rule="linear", out="mixed", domain=MICROSOFT
    )
    net.nodes[-1].output.append("state")
    net.op("MatMul", "mixed", net.const(random_weights(4, 8, 8)), out="y")
    net.output("y", shape=(1, 4, 8))
    model = net.plain_model()
    graph = optimized(quantized(model).proto)
    samples = normal_samples(model, 8, seed=5)
    exact = [onnxruntime_outputs(model, s)["y"] for s in samples]
    assert sqnr(exact, [interpret(graph, s)["y"] for s in samples]) > 25
