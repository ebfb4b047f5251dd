# SPDX-License-Identifier: Apache-2.0
"""Pad in all modes: onnxruntime (or onnx's reference), numpy and C agree."""

from __future__ import annotations

import numpy as np
import pytest
from checks import check_by_reference, check_model
from onnx_models import Net, check_everywhere, operators, optimized, random_feeds

from mcugen.core.errors import McugenError


def ints(net: Net, values: object) -> str:
    return net.const(values, np.int64)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_modes_that_repeat_elements(mode: str):
    net = Net(19)
    net.input("x", 3, 4, 5)
    for number, pads in enumerate(([0, 1, 2, 0, 3, 1], [2, 0, 0, 1, 0, 0], [0, 0, -1, 0, 2, 2], [0] * 6)):
        net.output(net.op("Pad", "x", ints(net, pads), mode=mode, out=f"y{number}"))
    net.output(net.op("Pad", "x", ints(net, [2, 1, 1, 0]), "", ints(net, [-1, 1]), mode=mode, out="axes"))
    net.input("q", 2, 3, dtype=np.int8)
    net.output(net.op("Pad", "q", ints(net, [1, 1, 0, 2]), mode=mode, out="codes"), dtype=np.int8)
    model = net.model()
    check_model(model, random_feeds(model))


def test_constants_of_every_type():
    net = Net(19)
    for dtype, value in (
        (np.float64, 1 / 3),
        (np.float16, 1.5),
        (np.int8, -7),
        (np.uint8, 200),
        (np.int16, -300),
        (np.int32, 2**31 - 1),
        (np.int64, 2**60 + 1),
        (np.uint64, 2**64 - 1),
        (bool, True),
    ):
        tag = np.dtype(dtype).name
        x = net.input(f"x_{tag}", 2, 3, dtype=dtype)
        net.output(net.op("Pad", x, ints(net, [1, 0, 0, 2]), net.const(value, dtype), out=f"y_{tag}"), dtype=dtype)
        net.output(net.op("Pad", x, ints(net, [0, 1, 0, 0]), out=f"z_{tag}"), dtype=dtype)
    check_by_reference(net)


def test_a_value_that_is_computed():
    net = Net(19)
    net.input("x", 2, 1, 3)
    net.input("value")
    net.output(net.op("Pad", "x", ints(net, [0, 1, 2, 1, 0, 0]), net.op("Relu", "value"), out="y"))
    turned = net.op("Transpose", "x", perm=[2, 0, 1])
    net.output(net.op("Transpose", net.op("Pad", turned, ints(net, [1] * 6), "value"), perm=[1, 2, 0], out="z"))
    empty = net.const(np.zeros((2, 0)))
    net.output(net.op("Pad", empty, ints(net, [0, 1, 0, 2]), "value", out="filled"))
    model = net.model()
    check_model(model, random_feeds(model) | {"value": np.array(2.5, np.float32)})


def test_reflection_between_convolutions_needs_no_transposition():
    """Nor does a convolution take it for padding of its own, which is zeros."""
    net = Net(19)
    net.input("x", 1, 3, 6, 6)
    random = np.random.default_rng(0)
    first = net.op("Conv", "x", net.const(random.standard_normal((4, 3, 3, 3))))
    padded = net.op("Pad", first, ints(net, [0, 0, 1, 1, 0, 0, 1, 1]), mode="reflect")
    net.output(net.op("Conv", padded, net.const(random.standard_normal((2, 4, 3, 3))), out="y"))
    model = net.model()
    assert operators(optimized(model)) == ["transpose", "conv", "extend", "conv", "transpose"]
    check_everywhere(model)


def test_reflection_of_quantized_tensors_stays_integer():
    net = Net(19)
    net.input("x", 3, 4, dtype=np.int8)
    padded = net.op("Pad", net.dequantize("x", 0.1, 5), ints(net, [0, 1, 2, 2]), mode="reflect")
    net.output(net.quantize(padded, 0.1, 5, out="y"), dtype=np.int8)
    assert operators(optimized(net.model())) == ["extend"]
    check_everywhere(net.model())


@pytest.mark.parametrize(
    ("pads", "attributes"),
    [
        ([0, 1, 1], {}),
        ([0, -3, 0, -1], {}),
        ([0, 2**62, 0, 0], {"mode": "edge"}),
        ([0, 1, 0, 0], {"mode": "sideways"}),
    ],
)
def test_what_cannot_be_right_is_refused(pads: list[int], attributes: dict[str, str]):
    net = Net(19)
    net.input("x", 2, 3)
    net.op("Pad", "x", ints(net, pads), out="y", **attributes)
    net.output("y", shape=[2, 3])
    with pytest.raises(McugenError) as error:
        optimized(net.plain_model())
    assert error.value.exit_code in (3, 4), error.value
