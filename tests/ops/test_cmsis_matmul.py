# SPDX-License-Identifier: Apache-2.0
"""Products of two activations by CMSIS-NN: the same bits as by our own kernel."""

from __future__ import annotations

import numpy as np
import pytest
from cmsis_checks import check_library
from onnx_models import Net


def product(net: Net, name: str, a: tuple[int, ...], b: tuple[int, ...], zeros: tuple[int, int], scale: float) -> None:
    x = net.dequantize(net.input(f"a{name}", *a, dtype=np.int8), 0.05, zeros[0])
    y = net.dequantize(net.input(f"b{name}", *b, dtype=np.int8), 0.03, zeros[1])
    net.output(net.quantize(net.op("MatMul", x, y), scale, 5, out=f"y{name}"), dtype=np.int8)


@pytest.mark.qemu
def test_int8() -> None:
    net = Net()
    zeros = [(3, -7), (-128, 127), (0, 0), (0, -128), (127, 0)]
    sizes = [(4, 9, 11, 10), (1, 1, 16, 3), (2, 3, 33, 5), (3, 2, 4, 1), (1, 5, 2, 7)]
    for number, ((batch, rows, depth, columns), points) in enumerate(zip(sizes, zeros, strict=True)):
        scale = 0.1 if number else 0.001  # of which the product's is more than 1
        product(net, str(number), (batch, rows, depth), (batch, depth, columns), points, scale)
    check_library(net.model(), {"cmsis_batch_matmul_s8": len(sizes)})


def test_an_attention_calls_it_twice() -> None:
    net = Net()
    q, k, v = (net.dequantize(net.input(name, 1, 2, 6, 8, dtype=np.int8), 0.05, 3) for name in "qkv")
    scores = net.fake(net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2])), 0.05, 9)
    shares = net.fake(net.op("Softmax", net.op("Mul", scores, net.const(0.35)), axis=-1), 1 / 256, -128)
    net.output(net.quantize(net.op("MatMul", shares, v), 0.04, 1, out="y"), dtype=np.int8)
    check_library(net.model(), {"cmsis_batch_matmul_s8": 2}, boards=())


def test_sums_of_64_bits_stay_ours() -> None:
    net = Net()
    product(net, "", (1, 40_000), (40_000, 2), (-128, -128), 100.0)
    check_library(net.model(), {}, boards=())
