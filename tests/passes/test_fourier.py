# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms that exporters write as matrices become fast ones, and give what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from checks import check_c
from onnx_models import Net, assert_close, onnxruntime_outputs, operators, optimized, random_feeds

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array
from mcugen.numerics.fourier_matrix import find_fourier_matrices
from mcugen.pipelines.spectrum import Bands
from mcugen.simulation import simulate

SAMPLES = 600


def hann(length: int) -> Array:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)


def matrices(points: int, window: Array, first: int = 0, bins: int = 0) -> tuple[Array, Array]:
    """Return the real and imaginary parts of a transform, [bins, samples of a frame]."""
    k = first + np.arange(bins or points // 2 + 1 - first)
    angles = 2 * np.pi * (np.outer(k, np.arange(len(window))) % points) / points
    return (np.cos(angles) * window).astype(np.float32), (-np.sin(angles) * window).astype(np.float32)


def filters(points: int, count: int, kind: str = "mel") -> Array:
    """Return mel filters [bins, bands] for 16 kHz."""
    return Bands(kind, count, 0, 8000).filters(16000, points).real.T.astype(np.float32)


@dataclass(frozen=True)
class Front:
    """Sizes of a front end."""

    points: int = 64
    taps: int = 64
    hop: int = 20
    centred: str = ""

    @property
    def window(self) -> Array:
        """Return the window, which zeros surround as librosa pads it."""
        left = (self.points - self.taps) // 2
        return np.pad(hann(self.taps), (left, self.points - self.taps - left))


def signal(net: Net, front: Front) -> str:
    """Add an input [1, samples], and its padding."""
    x, half = net.input("x", 1, SAMPLES), front.points // 2
    return net.op("Pad", x, net.const([0, half, 0, half], np.int64), mode=front.centred) if front.centred else x


Parts = tuple[str, str]
"""Real and imaginary parts, [1, frames, bins]."""


def conv_pair(net: Net, front: Front, sign: int = 1) -> Parts:
    """Two convolutions, of which the second may have the other sign."""
    x = net.op("Unsqueeze", signal(net, front), net.const([1], np.int64))
    re, im = matrices(front.points, front.window)
    parts = [net.op("Conv", x, net.const(w[:, None]), strides=[front.hop]) for w in (re, sign * im)]
    return tuple(net.op("Transpose", y, perm=[0, 2, 1]) for y in parts)  # type: ignore[return-value]


def positive_sines(net: Net, front: Front) -> Parts:
    return conv_pair(net, front, -1)


def conv_joined(net: Net, front: Front) -> Parts:
    """One convolution whose channels are all real parts, then all imaginary parts."""
    x = net.op("Unsqueeze", signal(net, front), net.const([1], np.int64))
    w = net.const(np.concatenate(matrices(front.points, front.window))[:, None])
    y = net.op("Transpose", net.op("Conv", x, w, strides=[front.hop]), perm=[0, 2, 1])
    names = net.ops("Split", y, net.const([front.points // 2 + 1] * 2, np.int64), outs=["re", "im"], axis=2)
    return names[0], names[1]


def conv_swapped(net: Net, front: Front) -> Parts:
    """One convolution along the width of an image: imaginary parts, then real parts."""
    x = net.op("Unsqueeze", signal(net, front), net.const([1, 2], np.int64))
    w = net.const(np.concatenate(matrices(front.points, front.window)[::-1])[:, None, None])
    y = net.op("Squeeze", net.op("Conv", x, w, strides=[1, front.hop]), net.const([2], np.int64))
    y = net.op("Transpose", y, perm=[0, 2, 1])
    names = net.ops("Split", y, net.const([front.points // 2 + 1] * 2, np.int64), outs=["im", "re"], axis=2)
    return names[1], names[0]


def conv_alternating(net: Net, front: Front) -> Parts:
    """One convolution whose channels alternate between real and imaginary parts."""
    x = net.op("Unsqueeze", signal(net, front), net.const([1], np.int64))
    w = np.stack(matrices(front.points, front.window), 1).reshape(-1, 1, front.points)
    y = net.op("Transpose", net.op("Conv", x, net.const(w), strides=[front.hop]), perm=[0, 2, 1])
    ends = [net.const([n], np.int64) for n in (0, 1, 2**31, 2, 2)]
    return net.op("Slice", y, ends[0], ends[2], ends[3], ends[4]), net.op(
        "Slice", y, ends[1], ends[2], ends[3], ends[4]
    )


def places(net: Net, x: str, front: Front) -> Array:
    """Return the positions of the samples of each frame, [frames, samples]."""
    samples = SAMPLES + (front.points if front.centred else 0)
    count = (samples - front.points) // front.hop + 1
    return np.arange(count)[:, None] * front.hop + np.arange(front.points)


def gathered(net: Net, front: Front) -> Parts:
    """Frames by a gather, times a window, times two matrices."""
    x = signal(net, front)
    frames = net.op("Gather", x, net.const(places(net, x, front), np.int64), axis=1)
    frames = net.op("Mul", frames, net.const(front.window))
    re, im = matrices(front.points, np.ones(front.points))
    return net.op("MatMul", frames, net.const(re.T)), net.op("MatMul", frames, net.const(im.T))


def windowed_matrices(net: Net, front: Front) -> Parts:
    """Frames by a gather of parts of frames, as TensorFlow writes them; the window is in the matrices."""
    x, part = signal(net, front), int(np.gcd(front.hop, front.points))
    at = places(net, x, front)[:, ::part] // part
    whole = (at.max() + 1) * part
    x = net.op("Slice", x, *(net.const([n], np.int64) for n in (0, whole, 1)))
    parts = net.op("Reshape", x, net.const([1, -1, part], np.int64))
    frames = net.op("Gather", parts, net.const(at, np.int64), axis=1)
    frames = net.op("Reshape", frames, net.const([1, -1, front.points], np.int64))
    re, im = matrices(front.points, front.window)
    return net.op("MatMul", frames, net.const(re.T)), net.op("MatMul", frames, net.const(im.T))


def stft(net: Net, front: Front) -> Parts:
    """ONNX's operator, and its parts by gathers."""
    x = net.op("Unsqueeze", signal(net, front), net.const([2], np.int64))
    y = net.op("STFT", x, net.const(front.hop, np.int64), net.const(front.window))
    return net.op("Gather", y, net.const(0, np.int64), axis=3), net.op("Gather", y, net.const(1, np.int64), axis=3)


FORMS = (
    conv_pair,
    positive_sines,
    conv_joined,
    conv_swapped,
    conv_alternating,
    gathered,
    windowed_matrices,
    stft,
)
FRONTS = {
    "plain": Front(),
    "zeros_around_window": Front(64, 40, 16),
    "long": Front(256, 200, 100),
    "reflected": Front(64, 64, 16, "reflect"),
    "zeros_around_signal": Front(32, 32, 8, "constant"),
    "odd_factor": Front(80, 80, 40),
}


def power(net: Net, parts: Parts) -> str:
    """Return |z|²: squares by Mul and by Pow."""
    re, im = parts
    return net.op("Add", net.op("Mul", re, re), net.op("Pow", im, net.const(2.0)))


def run(model: onnx.ModelProto) -> None:
    """Compare numpy's reference and C with ONNX Runtime."""
    feeds = random_feeds(model)
    expected = onnxruntime_outputs(model, feeds)
    compiled = compile_model(model)
    assert_close(interpret(compiled.graph, feeds), expected, 2e-5)
    check_c(compiled, feeds, expected, 2e-5)


@pytest.mark.parametrize("front", FRONTS.values(), ids=FRONTS)
@pytest.mark.parametrize("form", FORMS)
def test_matrices_become_transforms(form: Callable[[Net, Front], Parts], front: Front):
    """Parts, powers, and mel bands of magnitudes equal ONNX Runtime's; no matrix is left."""
    results = []
    for kind in ("parts", "power", "bands"):
        net = Net(18)
        parts = form(net, front)
        if kind == "parts":
            net.output(*(net.op("Identity", part, out=f"{kind}{n}") for n, part in enumerate(parts)))
        elif kind == "power":
            net.output(net.op("Identity", power(net, parts), out=kind))
        else:
            bands = net.const(filters(front.points, 8))
            net.output(net.op("MatMul", net.op("Sqrt", power(net, parts)), bands, out=kind))
        model = net.model()
        graph = optimized(model)
        names = operators(graph)
        assert names.count("dft") == 1 and not {"conv", "dense", "matmul", "extend", "pad"} & set(names), names
        feeds = random_feeds(model)
        assert_close(interpret(graph, feeds), onnxruntime_outputs(model, feeds), 2e-5)
        results.append(next(node.op for node in graph.nodes if node.op.name == "dft"))
    assert [op.form for op in results] == ["half", "power", "magnitude"]


@pytest.mark.parametrize("name", FRONTS)
def test_front_ends_run_in_c(name: str):
    """Mel bands in decibels below the loudest one (`power_to_db` with `top_db`), of powers with bins before frames."""
    front = FRONTS[name]
    net = Net(18)
    spectrum = net.op("Transpose", power(net, conv_pair(net, front)), perm=[0, 2, 1])
    bands = net.op("MatMul", net.const(filters(front.points, 8, "slaney").T), spectrum)
    floor, ten = net.const(1e-10), net.const(10 / np.log(10))
    db = net.op("Mul", net.op("Log", net.op("Max", bands, floor)), ten)
    db = net.op("Sub", db, net.op("Mul", net.op("Log", net.op("Max", net.op("ReduceMax", bands), floor)), ten))
    net.output(net.op("Max", db, net.op("Sub", net.op("ReduceMax", db), net.const(80.0)), out="y"))
    run(net.model())


@pytest.mark.parametrize("form", [conv_joined, windowed_matrices])
def test_parts_and_magnitudes_run_in_c(form: Callable[[Net, Front], Parts]):
    net = Net(18)
    parts = form(net, Front(64, 48, 32, "reflect"))
    net.output(*(net.op("Identity", part, out=f"y{n}") for n, part in enumerate(parts)))
    net.output(net.op("Sqrt", power(net, parts), out="magnitude"))
    run(net.model())


@pytest.mark.parametrize(
    "front",
    [Front(256, 256, 100), Front(128, 100, 64), Front(64, 64, 16, "reflect")],
    ids=["radix_4", "radix_2", "mirrored"],
)
def test_vectors_of_helium_give_the_same(front: Front):
    """Magnitudes, and sums over bands of powers, on a Cortex-M55."""
    net = Net(18)
    values = power(net, conv_pair(net, front))
    net.output(net.op("Sqrt", values, out="magnitude"))
    check_simulated(net.model())
    net = Net(18)
    bands = net.const(filters(front.points, 8))
    net.output(net.op("MatMul", power(net, conv_pair(net, front)), bands, out="bands"))
    check_simulated(net.model())


def check_simulated(model: onnx.ModelProto) -> None:
    """Compare C for a Cortex-M55 with ONNX Runtime."""
    feeds = random_feeds(model)
    program = compile_model(model, "corstone300")
    (outputs,) = simulate(program.bundle, program.board, [feeds]).outputs
    assert_close(outputs, onnxruntime_outputs(model, feeds), 2e-5)


def test_rows_of_a_matrix_are_frames():
    net = Net(18)
    re, im = matrices(32, hann(32))
    x = net.input("x", 5, 32)
    net.output(
        net.op("Gemm", x, net.const(re), out="re", transB=1), net.op("Gemm", x, net.const(im), out="im", transB=1)
    )
    model = net.model()
    assert operators(optimized(model)).count("dft") == 1
    run(model)


def test_a_front_end_takes_the_memory_of_one_frame():
    """Half a second at 16 kHz: beside its input and output, a front end needs one spectrum."""
    net = Net(18)
    x = net.input("x", 1, 1, 8000)
    parts = [net.op("Conv", x, net.const(w[:, None]), strides=[160]) for w in matrices(512, hann(512))]
    power_values = net.op("Add", net.op("Mul", parts[0], parts[0]), net.op("Mul", parts[1], parts[1]))
    bands = net.op("MatMul", net.const(filters(512, 40).T), power_values)
    net.output(net.op("Log", net.op("Add", bands, net.const(1e-6)), out="y"))
    options = CompileOptions(external_io=True, optimize="ram")
    compiled = compile_model(net.model(), "nrf52840", options)
    assert compiled.program.arena_size <= 16_000
    assert compiled.program.weights_size <= 8_000


def random_rows(points: int) -> Array:
    return np.random.default_rng(0).standard_normal((points // 2 + 1, points))


def chirps(points: int) -> Array:
    """Return rows whose frequencies lie between bins, as constant-Q transforms have them."""
    k = np.arange(points // 2 + 1)[:, None] * 1.01
    return np.cos(2 * np.pi * k * np.arange(points) / points)


def one_wrong_element(points: int) -> Array:
    w = matrices(points, hann(points))[0].copy()
    w[7, 11] += 1e-3
    return w


def scaled_rows(points: int) -> Array:
    return matrices(points, hann(points))[0] * np.linspace(1, 2, points // 2 + 1)[:, None]


@pytest.mark.parametrize("rows", [random_rows, chirps, one_wrong_element, scaled_rows])
def test_other_matrices_stay(rows: Callable[[int], Array]):
    w = rows(64).astype(np.float32)
    assert find_fourier_matrices([w]) is None
    net = Net(18)
    net.output(net.op("Conv", net.input("x", 1, 1, SAMPLES), net.const(w[:, None]), out="y", strides=[32]))
    assert "dft" not in operators(optimized(net.model()))


def test_a_prime_length_stays_a_matrix():
    net = Net(18)
    w = matrices(31, np.ones(31))[0]
    net.output(net.op("Conv", net.input("x", 1, 1, SAMPLES), net.const(w[:, None]), out="y", strides=[32]))
    assert "dft" not in operators(optimized(net.model()))


@pytest.mark.parametrize(("first", "bins"), [(0, 12), (1, 20), (1, 32)])
def test_some_bins_are_recognized(first: int, bins: int):
    """Layers may have a part of the bins, without the constant one."""
    net = Net(18)
    x = net.input("x", 1, 1, SAMPLES)
    for name, w in zip(("re", "im"), matrices(64, hann(64), first, bins), strict=True):
        net.output(net.op("Conv", x, net.const(w[:, None]), out=name, strides=[32]))
    model = net.model()
    assert operators(optimized(model)).count("dft") == 1
    run(model)
