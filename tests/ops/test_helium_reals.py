# SPDX-License-Identifier: Apache-2.0
"""Functions, softmax and pools of reals by Helium, four at a time: what they give, and what they take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx_models import Net, numpy_outputs

from mcugen.api.compilation import Compilation
from mcugen.hir.types import Array

pytestmark = pytest.mark.qemu
BOARD = "corstone300"
SPECIAL = [0.0, -0.0, 1e-30, -1e-30, np.inf, -np.inf, np.nan, 88.7, 88.8, -86.8, -87, 1e5, -1e5, 1e38, -1e38]
NUMBERS = np.concatenate([np.linspace(-100, 100, 1201), np.linspace(-1, 1, 402), SPECIAL]).astype(np.float32)
NEARLY = 4e-7
"""Of results: some units in the last place."""


def found(model: onnx.ModelProto, **feeds: Array) -> Array:
    return Compilation(model, BOARD).compiled.simulate([feeds], measure=False).outputs[0]["y"]


def taken(model: onnx.ModelProto, count: int) -> float:
    """Instructions a number."""
    return (Compilation(model, BOARD).report().instructions or 0) / count


def function(op: str, count: int = len(NUMBERS), **attributes: object) -> onnx.ModelProto:
    net = Net(opset=24 if op == "Swish" else 21)
    net.output(net.op(op, net.input("x", count), out="y", **attributes))
    return net.model()


@pytest.mark.parametrize(
    ("op", "attributes", "most"),
    [
        ("Sigmoid", {}, 14),
        ("Tanh", {}, 23),
        ("Exp", {}, 10),
        ("Swish", {"alpha": 1.5}, 16),
        ("HardSwish", {}, 5),
        ("HardSigmoid", {"alpha": 0.3}, 5),
        ("LeakyRelu", {"alpha": 0.1}, 3),
        ("Abs", {}, 2),
        ("Neg", {}, 2),
        ("Gelu", {"approximate": "tanh"}, 28),
    ],
)
def test_functions_in_vectors(op: str, attributes: dict[str, object], most: float) -> None:
    """Infinities and NaNs, too; the last few elements of an odd number."""
    model = function(op, **attributes)
    y, expected = found(model, x=NUMBERS), numpy_outputs(model, {"x": NUMBERS})["y"]
    with np.errstate(invalid="ignore"):
        least = 1 if op == "Gelu" else 1e-6  # 1 + tanh(x) cancels
        error = np.abs(y - expected) / np.maximum(np.abs(expected), least)
    is_same = (y == expected) | (np.isnan(y) & np.isnan(expected))
    assert (is_same | (error < NEARLY)).all(), NUMBERS[~is_same & ~(error < NEARLY)]
    assert taken(model, len(NUMBERS)) < most


@pytest.mark.parametrize("shape", [(3, 1), (3, 3), (2, 4), (5, 9), (4, 33)])
def test_softmax_of_rows(shape: tuple[int, int]) -> None:
    net = Net()
    net.output(net.op("Softmax", net.input("x", *shape), axis=-1, out="y"))
    x = np.random.default_rng(0).normal(0, 30, shape).astype(np.float32)
    y = found(net.model(), x=x)
    assert np.allclose(y, numpy_outputs(net.model(), {"x": x})["y"], rtol=1e-6, atol=1e-30)
    assert np.allclose(y.sum(-1), 1, rtol=1e-6)
    x[1, -1] = np.nan
    y = found(net.model(), x=x)
    assert np.isnan(y[1]).all() and not np.isnan(y[[0, 2][: shape[0] - 1]]).any()


def pool(op: str, channels: int, size: int, **attributes: object) -> onnx.ModelProto:
    """Channels last, as an inner layer has them."""
    net = Net()
    x = net.op("Transpose", net.input("x", 1, size, size, channels), perm=[0, 3, 1, 2])
    y = net.op(op, x, kernel_shape=[3, 3], **attributes)
    net.output(net.op("Transpose", y, perm=[0, 2, 3, 1], out="y"))
    return net.model()


@pytest.mark.parametrize("channels", [1, 3, 4, 18, 23])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools_have_the_bits_of_plain_c(op: str, channels: int) -> None:
    for attributes in ({"strides": [2, 2], "pads": [1] * 4}, {"strides": [1, 2]}):
        model = pool(op, channels, 7, **attributes)
        x = np.random.default_rng(0).normal(0, 3, (1, 7, 7, channels)).astype(np.float32)
        host = Compilation(model, "host").compiled.run({"x": x[None]})["y"][0]
        assert np.array_equal(found(model, x=x), host)


@pytest.mark.parametrize(
    ("make", "count", "most"),
    [
        (lambda: pool("MaxPool", 16, 32, strides=[2, 2], pads=[1] * 4), 16 * 16 * 16, 20),
        (lambda: pool("AveragePool", 16, 32, strides=[2, 2], pads=[1] * 4), 16 * 16 * 16, 20),
        (lambda: _softmax(64), 64 * 64, 21),
    ],
    ids=["maximum", "average", "softmax"],
)
def test_what_they_take(make: Callable[[], onnx.ModelProto], count: int, most: float) -> None:
    """In plain C 62, 60 and 50 a result."""
    assert taken(make(), count) < most


def _softmax(size: int) -> onnx.ModelProto:
    net = Net()
    net.output(net.op("Softmax", net.input("x", size, size), axis=-1, out="y"))
    return net.model()
