# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms, windows and mel filters: onnxruntime, numpy and C agree."""

from __future__ import annotations

import numpy as np
import pytest
from checks import Cases, check_c
from onnx_models import Net, assert_close, check_everywhere, imported, operators, optimized, random_feeds

from mcugen.core.errors import McugenError, UnsupportedError
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 40, 64)
"""Powers of two, odd lengths and products of both."""


def whole(value: int) -> np.ndarray:
    return np.asarray(value, np.int64)


@pytest.mark.spread(6)
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("one_sided", [0, 1])
def test_transforms(inverse: int, one_sided: int):
    """Of real and complex signals, shorter and longer ones than the transform."""
    net = Net(20)
    expected = {}
    shapes = [p for p in (1, 2) if not one_sided or p == 1 + inverse]
    random = np.random.default_rng(3)
    feeds = {}
    for length in LENGTHS:
        for parts in shapes:
            for extra in (0, 3, -1):
                samples = max((length // 2 + 1 if inverse and one_sided else length) + extra, 1)
                number = len(feeds)
                x = net.input(f"x{number}", 2, samples, parts)
                feeds[x] = np.asarray(random.standard_normal((2, samples, parts)), np.float32)
                attributes = {"inverse": inverse, "onesided": one_sided}
                y = net.op("DFT", x, net.const(length, np.int64), out=f"y{number}", **attributes)
                expected[y] = by_numpy(feeds[x], length, inverse, one_sided)
                net.output(y, shape=expected[y].shape)
    compiled = compile_model(net.plain_model())
    assert_close(interpret(compiled.graph, feeds), expected)
    check_c(compiled, feeds, expected)


def by_numpy(x: np.ndarray, length: int, inverse: int, one_sided: int) -> np.ndarray:
    signal = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    if inverse and one_sided:
        return np.fft.irfft(signal, length, axis=1)[..., None].astype(np.float32)
    y = (np.fft.ifft if inverse else np.fft.fft)(signal, length, axis=1)
    y = y[:, : length // 2 + 1] if one_sided else y
    return np.stack([y.real, y.imag], -1).astype(np.float32)


def test_any_axis():
    """By numpy: onnxruntime crashes here."""
    net = Net(20)
    feeds, expected = {}, {}
    for number, axis in enumerate((0, 1, 2, -2, -3, -4)):
        x = net.input(f"x{number}", 3, 8, 6, 2)
        feeds[x] = np.asarray(np.random.default_rng(number).standard_normal((3, 8, 6, 2)), np.float32)
        y = np.fft.fft(feeds[x][..., 0] + 1j * feeds[x][..., 1], axis=axis % 4)
        name = net.op("DFT", x, "", net.const(axis, np.int64), out=f"y{number}")
        expected[name] = np.stack([y.real, y.imag], -1).astype(np.float32)
        net.output(name, shape=(3, 8, 6, 2))
    check_c(compile_model(net.plain_model()), feeds, expected)


def test_the_axis_was_an_attribute():
    cases = Cases(opset=17)
    cases.add("DFT", (2, 8, 6, 1))
    cases.add("DFT", (2, 8, 6, 1), axis=2)
    cases.add("DFT", (2, 8, 6, 1), whole(4), axis=2)
    cases.check_float()


def test_frames():
    cases = Cases(opset=17)
    window = np.hanning(16).astype(np.float32)
    cases.add("STFT", (2, 64, 1), whole(8), window)
    cases.add("STFT", (2, 64, 1), whole(8), window, onesided=0)
    cases.add("STFT", (1, 50, 1), whole(7), None, whole(12))
    cases.add("STFT", (1, 45, 1), whole(5), np.hanning(25).astype(np.float32), whole(25))
    cases.add("STFT", (1, 40, 2), whole(10), np.hanning(20).astype(np.float32), onesided=0)
    cases.check_float()


def test_the_window_may_be_computed():
    net = Net(17)
    x, window = net.input("x", 1, 32, 1), net.input("window", 8)
    net.output(net.op("STFT", x, net.const(4, np.int64), window, out="y"))
    check_everywhere(net.model())


def test_a_transform_needs_no_memory_but_its_tensors():
    net = Net(20)
    net.output(net.op("DFT", net.input("x", 1, 256, 1), out="y", onesided=1))
    compiled = compile_model(net.model())
    assert compiled.program.arena_size == 256 * 4 + 129 * 8 + 8  # and up to 16-byte alignment
    assert compiled.program.weights_size == 128 * 8


def test_transform_of_doubles():
    net = Net(20)
    net.output(net.op("DFT", net.input("x", 1, 24, 2, dtype=np.float64), out="y"), dtype=float)
    model = net.model()
    feeds = random_feeds(model)
    x = feeds["x"]
    y = np.fft.fft(x[..., 0] + 1j * x[..., 1], axis=1)
    check_c(compile_model(model), feeds, {"y": np.stack([y.real, y.imag], -1)}, 1e-12)


# ------------------------------------------------------------------------------------------- windows and filters


def test_windows_and_filters_are_constants():
    """A front end: mel energies of windowed frames."""
    net = Net(17)
    window = net.op("HannWindow", net.const(16, np.int64))
    frames = net.op("STFT", net.input("x", 1, 48, 1), net.const(8, np.int64), window)
    power = net.op("ReduceSumSquare", frames, axes=[-1], keepdims=0)
    numbers = [net.const(n, np.int64) for n in (4, 16, 8000)] + [net.const(f) for f in (0.0, 4000.0)]
    net.output(net.op("MatMul", power, net.op("MelWeightMatrix", *numbers), out="y"))
    model = net.model()
    assert "reduce_sumsquare" not in operators(optimized(model)) and "dense" not in operators(optimized(model))
    check_everywhere(model)


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_the_size_of_a_window_must_be_known(name: str):
    net = Net(17)
    net.output(net.op(name, net.input("size", dtype=np.int64), out="y"), shape=(8,))
    with pytest.raises(UnsupportedError, match="'size' is an input"):
        imported(net.plain_model())
    bound = Net(17)
    y = bound.op(name, bound.const(8, np.int64), periodic=0)
    bound.output(bound.op("Mul", bound.input("x", 8), y, out="z"))
    assert operators(optimized(bound.model())) == ["mul"]


# --------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("op_type", "shape", "constants", "attributes"),
    [
        ("DFT", (1, 8, 1), [0], {}),
        ("DFT", (1, 8, 1), [-5], {}),
        ("DFT", (1, 8, 1), [2**40], {}),
        ("DFT", (1, 8, 1), [8, 2], {}),
        ("DFT", (1, 8, 1), [8, 7], {}),
        ("DFT", (1, 8, 3), [8], {}),
        ("DFT", (1, 8, 2), [8], {"onesided": 1}),
        ("DFT", (1, 8, 1), [8], {"onesided": 1, "inverse": 1}),
        ("DFT", (1, 1, 2), [], {"onesided": 1, "inverse": 1}),
        ("DFT", (1,), [], {}),
        ("STFT", (1, 8, 1), [0], {}),
        ("STFT", (1, 8, 1), [-1], {}),
        ("STFT", (1, 8, 2), [2], {}),
        ("STFT", (1, 8), [2], {}),
        ("STFT", (1, 8, 1), [2, None, 9], {}),
        ("STFT", (1, 8, 1), [2, None, 0], {}),
    ],
)
def test_refused(op_type: str, shape: tuple[int, ...], constants: list[int | None], attributes: dict[str, int]):
    net = Net(20)
    operands = ["" if c is None else net.const(c, np.int64) for c in constants]
    net.output(net.op(op_type, net.input("x", *shape), *operands, out="y", **attributes))
    model = net.plain_model()
    with pytest.raises(McugenError):
        imported(model)


def test_a_window_of_another_length_is_refused():
    net = Net(17)
    operands = [net.const(2, np.int64), net.const(np.ones(5)), net.const(4, np.int64)]
    net.output(net.op("STFT", net.input("x", 1, 16, 1), *operands, out="y"), shape=(1, 7, 3, 2))
    with pytest.raises(McugenError, match="window"):
        imported(net.plain_model())


def test_the_length_may_follow_from_the_output():
    net = Net(20)
    x, length = net.input("x", 1, 8, 1), net.input("length", dtype=np.int64)
    net.output(net.op("DFT", x, length, out="y"), shape=(1, 12, 2))
    graph = imported(net.plain_model())
    assert graph.outputs[0].type.shape == (1, 12, 2)
