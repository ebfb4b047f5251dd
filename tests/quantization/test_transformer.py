# SPDX-License-Identifier: Apache-2.0
"""A transformer's encoder block, as exporters write it, becomes integers from end to end."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from checks import check_c
from float_models import check_integer_graph, normal_samples, quantized, random_weights
from onnx_models import Net, operators, optimized

from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

STEPS, WIDTH, HEADS, INNER = 12, 16, 2, 24


class Block:
    """LayerNorm, attention of two heads, LayerNorm, GELU between two layers; rank 3, weights of its own."""

    def __init__(self, spelled_out: bool, masked: bool) -> None:
        self.net = Net(17)
        self.spelled_out, self.masked, self.seed = spelled_out, masked, 0

    def model(self) -> onnx.ModelProto:
        net = self.net
        x = net.input("x", 1, STEPS, WIDTH)
        y = net.op("Add", x, self.attention(self.norm(x)))
        inner = self.gelu(self.linear(self.norm(y), WIDTH, INNER))
        net.output(net.op("Add", y, self.linear(inner, INNER, WIDTH), out="y"))
        return net.model()

    def weights(self, *shape: int) -> np.ndarray:
        self.seed += 1
        return random_weights(self.seed, *shape)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        product = self.net.op("MatMul", x, self.net.const(self.weights(outputs, inputs).T))
        return self.net.op("Add", self.net.const(self.weights(1, outputs)[0]), product)

    def norm(self, x: str) -> str:
        net = self.net
        scale, bias = net.const(1 + self.weights(1, WIDTH)[0]), net.const(self.weights(1, WIDTH)[0])
        if not self.spelled_out:
            return net.op("LayerNormalization", x, scale, bias)
        d = net.op("Sub", x, net.op("ReduceMean", x, axes=[-1]))
        variance = net.op("ReduceMean", net.op("Pow", d, net.const(2.0)), axes=[-1])
        normal = net.op("Div", d, net.op("Sqrt", net.op("Add", variance, net.const(1e-5))))
        return net.op("Add", net.op("Mul", normal, scale), bias)

    def attention(self, x: str) -> str:
        net, split = self.net, [1, STEPS, HEADS, WIDTH // HEADS]
        q, k, v = (net.op("Reshape", self.linear(x, WIDTH, WIDTH), net.const(split, np.int64)) for _ in range(3))
        q, v = (net.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
        scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 2, 3, 1]))
        scores = net.op("Div", scores, net.const(np.sqrt(WIDTH / HEADS)))
        if self.masked:
            scores = net.op("Add", scores, net.const(np.triu(np.full((STEPS, STEPS), -1e9), 1)))
        mixed = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores), v), perm=[0, 2, 1, 3])
        joined = net.op("Reshape", mixed, net.const([1, STEPS, WIDTH], np.int64))
        return self.linear(joined, WIDTH, WIDTH)

    def gelu(self, x: str) -> str:
        net = self.net
        erf = net.op("Erf", net.op("Div", x, net.const(np.sqrt(2))))
        return net.op("Mul", net.op("Mul", x, net.op("Add", erf, net.const(1.0))), net.const(0.5))


@pytest.mark.spread(2)
@pytest.mark.parametrize("spelled_out", [False, True], ids=["LayerNormalization", "spelled out"])
@pytest.mark.parametrize("masked", [False, True], ids=["all", "causal"])
def test_encoder_block(spelled_out: bool, masked: bool):
    model = Block(spelled_out, masked).model()
    quantization = quantized(model)
    assert not quantization.assignment.reasons
    graph = optimized(quantization.proto)
    layers = [name for name in operators(graph) if name not in ("reshape", "transpose")]
    assert layers[0] == "quantize" and layers[-1].endswith("dequantize")
    attention = ["dense", "dense", "dense", "matmul", "softmax", "matmul", "dense", "add"]
    assert sorted(layers[1:-1]) == sorted(["normalize", *attention, "normalize", "dense", "lookup", "dense"])
    check_integer_graph(model, quantization, graph, 28)


def test_its_code():
    """C computes the same, and no compiler warns."""
    proto = quantized(Block(True, True).model()).proto
    (sample,) = normal_samples(proto, 1, seed=7)
    check_c(compile_model(proto), sample, interpret(optimized(proto), sample))
