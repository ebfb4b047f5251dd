# SPDX-License-Identifier: Apache-2.0
"""Requantization of whole layers, in numpy and in C, against the contract in whole numbers of any size.

The sums of products are exact in int64, the multiplier is a fraction rounded once, and nothing of mcugen is asked. The
biases reach both ends of 32 bits, where a bit more or less of a multiplier changes results.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import onnx
import pytest
from onnx_models import Feeds, Net, assert_close

from mcugen.core.board import load_board
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.simulation import simulate

Array = np.ndarray
Zeros = tuple[int, ...]

CHANNELS, SIDE = 8, 6
X_SCALE, X_ZERO = np.float32(0.0173), 11
BIASES = (2**31 - 400000, -(2**31) + 400000, 2**30 + 77, -(2**28), 2**24 + 1, -(2**19), 1000, 0)
"""Of the output channels; the products of a channel stay below 300,000."""
LAYERS = ("pointwise", "depthwise", "dense")
ENDS = [(np.float32(0.05), (-17, 20, -25)), (np.float32(3.7), (127, -128, 127))]
"""Scales of results, and their zero points by layer."""


def weight_scales(y_scale: np.float32) -> Array:
    """With which the bias of each channel becomes about ±100, so that products move the result around a step."""
    reach = np.asarray([max(abs(bias), 20000) for bias in BIASES], np.float64)
    return (100.3 * float(y_scale) / (reach * float(X_SCALE))).astype(np.float32)


def contract(sums: Array, y_scale: np.float32, zero_point: int) -> Array:
    """clamp((acc · M + (zero_point << 31) + 2^30) >> 31), channels in axis 1."""
    multipliers = [
        round(Fraction(float(X_SCALE)) * Fraction(float(w)) / Fraction(float(y_scale)) * 2**31)
        for w in weight_scales(y_scale)
    ]
    found = np.empty(sums.shape, np.int8)
    for index, acc in np.ndenumerate(sums):
        q = (int(acc) * multipliers[index[1]] + (zero_point << 31) + 2**30) >> 31
        found[index] = max(-128, min(127, q))
    return found


def weights(*shape: int) -> Array:
    found = np.random.default_rng(sum(shape)).integers(-127, 128, shape).astype(np.int8)
    found[0], found[1] = 127, -127
    return found


@cache
def samples() -> Array:
    """Random codes; the least; the greatest; a ramp."""
    shape = (CHANNELS, SIDE, SIDE)
    random = np.random.default_rng(1).integers(-128, 128, shape)
    ramp = np.arange(np.prod(shape)).reshape(shape) % 256 - 128
    return np.stack([random, np.full(shape, -128), np.full(shape, 127), ramp]).astype(np.int8)


def sums_of(layer: str, x: Array) -> Array:
    """The accumulators of a layer for one sample, by channels in axis 1."""
    centered, bias = x.astype(np.int64) - X_ZERO, np.asarray(BIASES, np.int64)
    if layer == "pointwise":
        return (weights(CHANNELS, CHANNELS).astype(np.int64) @ centered.reshape(CHANNELS, -1) + bias[:, None])[None]
    if layer == "dense":
        return centered.reshape(-1, CHANNELS) @ weights(CHANNELS, CHANNELS).astype(np.int64).T + bias
    taps = weights(CHANNELS, 3, 3).astype(np.int64)
    inner = range(SIDE - 2)
    rows = [[(centered[:, r : r + 3, c : c + 3] * taps).sum((1, 2)) + bias for c in inner] for r in inner]
    return np.asarray(rows).transpose(2, 0, 1)[None]


def model(y_scale: np.float32, zeros: Zeros) -> onnx.ModelProto:
    net = Net()
    x = net.dequantize(net.input("x", 1, CHANNELS, SIDE, SIDE, dtype=np.int8), float(X_SCALE), X_ZERO)
    scales = weight_scales(y_scale)

    def constant(data: Array) -> str:
        unit = scales if data.dtype == np.int8 else X_SCALE * scales
        zeros = net.const(np.zeros(CHANNELS), data.dtype.type)
        return net.op("DequantizeLinear", net.const(data, data.dtype.type), net.const(unit), zeros, axis=0)

    bias = constant(np.asarray(BIASES, np.int32))
    reals = {
        "pointwise": net.op("Conv", x, constant(weights(CHANNELS, CHANNELS)[:, :, None, None]), bias),
        "depthwise": net.op("Conv", x, constant(weights(CHANNELS, 3, 3)[:, None]), bias, group=CHANNELS),
        "dense": net.op(
            "Gemm",
            net.op("Reshape", x, net.const([-1, CHANNELS], np.int64)),
            constant(weights(CHANNELS, CHANNELS)),
            bias,
            transB=1,
        ),
    }
    for layer, zero in zip(LAYERS, zeros, strict=True):
        net.output(net.quantize(reals[layer], float(y_scale), zero, out=layer), dtype=np.int8)
    return net.model()


def expected_outputs(x: Array, y_scale: np.float32, zeros: Zeros) -> Feeds:
    found = {layer: contract(sums_of(layer, x), y_scale, zero) for layer, zero in zip(LAYERS, zeros, strict=True)}
    return found | {"pointwise": found["pointwise"].reshape(1, CHANNELS, SIDE, SIDE)}


@pytest.mark.parametrize(("y_scale", "zeros"), ENDS)
def test_numpy_and_sanitized_c_meet_the_contract(y_scale: np.float32, zeros: Zeros):
    compiled = compile_model(model(y_scale, zeros))
    results = compiled.run({"x": samples()[:, None]}, sanitize=True)
    for number, x in enumerate(samples()):
        expected = expected_outputs(x, y_scale, zeros)
        assert_close(interpret(compiled.graph, {"x": x[None]}), expected)
        assert_close({name: array[number] for name, array in results.items()}, expected)


@pytest.mark.qemu
@pytest.mark.spread(3)
@pytest.mark.parametrize(("y_scale", "zeros"), ENDS)
@pytest.mark.parametrize("board", ["nrf52840", "rp2040", "corstone300"])
def test_a_board_meets_the_contract(board: str, y_scale: np.float32, zeros: Zeros):
    compiled = compile_model(model(y_scale, zeros), board)
    found = simulate(compiled.bundle, load_board(board), [{"x": x[None]} for x in samples()], measure=False).outputs
    for x, outputs in zip(samples(), found, strict=True):
        assert_close(outputs, expected_outputs(x, y_scale, zeros))


@pytest.mark.parametrize("layer", LAYERS)
def test_the_samples_tell_a_multiplier_of_32_bits_from_one_of_31(layer: str):
    """One more bit of fraction would change results, so that the tests above see it."""
    y_scale, zeros = ENDS[0]
    zero, sums = zeros[LAYERS.index(layer)], np.concatenate([sums_of(layer, x) for x in samples()])
    ratios = [Fraction(float(X_SCALE)) * Fraction(float(w)) / Fraction(float(y_scale)) for w in weight_scales(y_scale)]
    longer = [(int(a) * round(ratios[i[1]] * 2**32) + (zero << 32) + 2**31) >> 32 for i, a in np.ndenumerate(sums)]
    assert (np.clip(longer, -128, 127).reshape(sums.shape) != contract(sums, y_scale, zero)).any()
