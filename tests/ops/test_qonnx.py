# SPDX-License-Identifier: Apache-2.0
"""QONNX's operators, beside their formulas; networks of them are integer ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from checks import check_model
from onnx import helper
from onnx_models import Net

from mcugen.core.errors import McugenError
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array

DOMAIN = "qonnx.custom_op.general"
F = np.float32
ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "ROUND": np.round,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "UP": lambda x: np.sign(x) * np.ceil(np.abs(x)),
    "DOWN": np.trunc,
    "HALF_UP": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    "HALF_DOWN": lambda x: np.sign(x) * np.ceil(np.abs(x) - 0.5),
}


def quant(x: Array, scale: object, zero: float, bits: float, signed: int, narrow: int, mode: str) -> Array:
    """The formula."""
    low, high = (-(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1 - narrow)
    steps = ROUNDINGS[mode](np.asarray(x / np.asarray(scale, F) + F(zero), F))
    return np.asarray((np.clip(steps, low, high) - F(zero)) * np.asarray(scale, F), F)


def with_domain(net: Net) -> onnx.ModelProto:
    model = net.plain_model()
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return model


def test_quant_trunc_and_bipolar_are_their_formulas():
    net, expected = Net(21), {}
    x = (np.random.default_rng(1).standard_normal((4, 25)) * 2).astype(F)
    x[0, :9] = np.arange(-4, 5) * 0.25  # halves of the scale 0.5
    net.input("x", 4, 25)
    cases = [(0.5, 0.0, 4, 1, 0, "ROUND"), (0.2513, 3.0, 3, 0, 1, "ROUND"), (0.02, 0.0, 8, 1, 1, "ROUND")]
    cases += [(0.001, 0.0, 16, 1, 0, "ROUND"), (0.0001, 0.0, 20, 1, 0, "ROUND"), (0.1013, 5.0, 8, 0, 0, "ROUND")]
    cases += [(0.5, 0.0, 4, 1, 0, mode) for mode in ROUNDINGS]
    for at, (scale, zero, bits, signed, narrow, mode) in enumerate(cases):
        options = {"signed": signed, "narrow": narrow, "rounding_mode": mode}
        params = [net.const(v) for v in (scale, zero, bits)]
        net.output(net.op("Quant", "x", *params, domain=DOMAIN, out=f"y{at}", **options))
        expected[f"y{at}"] = quant(x, scale, zero, bits, signed, narrow, mode)
    net.output(net.op("BipolarQuant", "x", net.const(0.7), domain=DOMAIN, out="b"))
    expected["b"] = np.where(x >= 0, F(0.7), F(-0.7))
    net.output(net.op("Trunc", "x", *(net.const(v) for v in (0.125, 0.0, 8, 4)), domain=DOMAIN, out="t"))
    expected["t"] = np.floor(np.round(x / F(0.125)) / 16).astype(F) * F(0.125)
    net.output(net.op("Trunc", "x", *(net.const(v) for v in (0.125, 0.0, 8, 1.0, 4)), domain=DOMAIN, out="u"))
    expected["u"] = np.clip(np.floor(np.round(x / F(0.125)) / 8), -8, 7).astype(F)
    check_model(with_domain(net), {"x": x}, expected)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_network_of_them_is_an_integer_one(bits: int):
    random = np.random.default_rng(bits)
    net = Net(21)
    w = random.standard_normal((6, 3, 3, 3)).astype(F) * F(0.2)
    v = random.standard_normal((6 * 36, 4)).astype(F) * F(0.1)
    by_channel = (np.abs(w).max((1, 2, 3), keepdims=True) / (2 ** (bits - 1) - 1)).astype(F)

    def on_grid(name: str, scale: Array | float, signed: int = 1, narrow: int = 0) -> str:
        operands = [net.const(np.asarray(scale, F)), net.const(0.0), net.const(float(bits))]
        return net.op("Quant", name, *operands, domain=DOMAIN, signed=signed, narrow=narrow, rounding_mode="ROUND")

    net.input("x", 1, 3, 6, 6)
    image = on_grid("x", 2.0 ** (3 - bits))
    y = net.op("Conv", image, on_grid(net.const(w), by_channel, narrow=1), pads=[1, 1, 1, 1])
    y = on_grid(net.op("Relu", y), 2.0 ** (2 - bits), signed=0)
    y = net.op("MatMul", net.op("Flatten", y), on_grid(net.const(v), 2.0 ** (-1 - bits), narrow=1))
    net.output(on_grid(y, 2.0 ** (4 - bits)), shape=(1, 4))
    model = with_domain(net)
    compiled = compile_model(model)
    assert not any("f32" in layer.kernel for layer in compiled.report.layers)
    assert compiled.program.weights_size < w.size + v.size + 256
    x = random.standard_normal((1, 3, 6, 6)).astype(F)
    found = next(iter(interpret(compiled.graph, {"x": x}).values()))
    expected = _network(x, w, v, by_channel, bits)
    assert np.abs(found - expected).max() <= 2.0 ** (4 - bits) * 1.001
    assert (found != expected).mean() <= 0.25


def _network(x: Array, w: Array, v: Array, by_channel: Array, bits: int) -> Array:
    image, kernel = (
        quant(x, 2.0 ** (3 - bits), 0, bits, 1, 0, "ROUND"),
        quant(w, by_channel, 0, bits, 1, 1, "ROUND"),
    )
    padded = np.pad(image, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[0]
    y = quant(np.einsum("chwij,ocij->ohw", windows, kernel).clip(0), 2.0 ** (2 - bits), 0, bits, 0, 0, "ROUND")
    product = y.reshape(1, -1) @ quant(v, 2.0 ** (-1 - bits), 0, bits, 1, 1, "ROUND")
    return quant(product, 2.0 ** (4 - bits), 0, bits, 1, 0, "ROUND")


@pytest.mark.parametrize(
    ("op_type", "constants", "options", "said"),
    [
        ("Quant", (0.1, 0.0, 40.0), {}, "bit width"),
        ("Quant", (0.1, 0.0, 8.0), {"rounding_mode": "STOCHASTIC"}, "rounding_mode"),
        ("Trunc", (0.1, 0.0, 8.0, 4.0), {"rounding_mode": "x" * 900}, "rounding_mode"),
    ],
)
def test_what_is_not_known_is_refused(op_type: str, constants: tuple[float, ...], options: dict[str, str], said: str):
    net = Net(21)
    net.output(net.op(op_type, net.input("x", 4), *map(net.const, constants), domain=DOMAIN, **options))
    with pytest.raises(McugenError, match=said) as error:
        compile_model(with_domain(net))
    assert len(str(error.value)) < 600
