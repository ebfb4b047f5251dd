# SPDX-License-Identifier: Apache-2.0
"""Layers that int8 does not serve: of streams, of inputs that are concatenated, of logarithms behind weights."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.api.compilation import Compilation
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.tasks import Quantizing
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.hir.types import Array
from mcugen.quantization.quantize import Quantization
from mcugen.quantization.scheme import Scheme
from mcugen.simulation import simulate

WIDTH = 16


def quantized(model: onnx.ModelProto, calibration: dict[str, Array], **states: str) -> Quantization:
    return Compilation(
        model, options=CompileOptions(states=states), quantizing=Quantizing(calibration=calibration)
    ).quantized


def outputs(model: onnx.ModelProto, samples: dict[str, Array]) -> Array:
    rows = [dict(zip(samples, (a[None] for a in row), strict=True)) for row in zip(*samples.values(), strict=True)]
    return np.concatenate([onnxruntime_outputs(model, row)["o"] for row in rows])


# ------------------------------------------------------------------------------------ inputs that meet


def table_net(parts: int, width: int, ratio: float, *, is_normalized: bool, is_joined: bool) -> onnx.ModelProto:
    """A perceptron of features with ranges up to `ratio` apart, as one input or as several that are concatenated."""
    random, net = np.random.default_rng(1), Net()
    ranges = np.repeat(np.logspace(0, np.log10(ratio), parts), width)
    count = len(ranges)
    x = net.input("x", 1, count) if is_joined else ""
    if not is_joined:
        x = net.op("Concat", *(net.input(f"x{i}", 1, width) for i in range(parts)), axis=1)
    weights = random.standard_normal((count, WIDTH)) / np.sqrt(count)
    if is_normalized:
        moments = (np.ones(count), np.zeros(count), 0.2 * ranges, ranges**2)
        x = net.op("BatchNormalization", x, *(net.const(m) for m in moments))
    else:
        weights /= ranges[:, None]
    y = net.op("Relu", net.op("Gemm", x, net.const(weights), net.const(np.zeros(WIDTH))))
    net.op("Gemm", y, net.const(random.standard_normal((WIDTH, 3)) / 4), net.const(np.zeros(3)), out="o")
    net.output("o")
    return net.model()


def table_db(parts: int, width: int, ratio: float, *, is_normalized: bool, is_joined: bool) -> float:
    model = table_net(parts, width, ratio, is_normalized=is_normalized, is_joined=is_joined)
    ranges = np.repeat(np.logspace(0, np.log10(ratio), parts), width)
    table = (np.random.default_rng(2).standard_normal((300, len(ranges))) + 0.2) * ranges
    columns = {"x": table} if is_joined else {f"x{i}": table[:, i * width : (i + 1) * width] for i in range(parts)}
    columns = {name: column.astype(np.float32) for name, column in columns.items()}
    made = quantized(model, {name: column[:200] for name, column in columns.items()})
    others = {name: column[200:] for name, column in columns.items()}
    return sqnr(outputs(model, others), outputs(made.proto, others))


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize(
    ("parts", "width", "ratio"),
    [(2, 1, 100), (3, 1, 30), (6, 1, 1e4), (20, 1, 1e7), (2, 3, 1e3), (5, 4, 1e5)],
)
def test_inputs_that_are_concatenated_are_as_good_as_one(parts: int, width: int, ratio: float, is_normalized: bool):
    joined, split = (
        table_db(parts, width, ratio, is_normalized=is_normalized, is_joined=each) for each in (True, False)
    )
    assert split >= joined - 3
    assert split >= 28


# ------------------------------------------------------------------------------------ streams


def stream_net(kind: str) -> onnx.ModelProto:
    """One step of a recurrent layer that is written out, of raw sensor values or of a logarithm."""
    random, net = np.random.default_rng(3), Net()
    x, h = net.input("x", 1, WIDTH), net.input("h", 1, WIDTH)
    if kind == "logarithm":
        x = net.op("Log", net.op("Add", x, net.const(1e-6)))
    u, w, head = (random.standard_normal((WIDTH, WIDTH)) / 4 for _ in range(3))
    total = net.op("Add", net.op("MatMul", x, net.const(w)), net.op("MatMul", h, net.const(u)))
    if kind == "gated":
        gate = net.op("Sigmoid", net.op("MatMul", x, net.const(random.standard_normal((WIDTH, WIDTH)) / 4)))
        kept = net.op("Mul", gate, h)
        new = net.op("Mul", net.op("Sub", net.const(1.0), gate), net.op("Tanh", total))
        net.op("Add", kept, new, out="hn")
    else:
        net.op("Tanh", total, out="hn")
    net.op("MatMul", "hn", net.const(head), out="o")
    net.output("o")
    net.output("hn")
    return net.model()


@pytest.mark.parametrize("kind", ["logarithm", "raw", "gated"])
def test_streams(kind: str):
    model, random = stream_net(kind), np.random.default_rng(4)
    scale = random.lognormal(0, 2, WIDTH) if kind == "raw" else 1.0
    steps = (
        random.lognormal(0, 2, (200, WIDTH)) if kind == "logarithm" else random.standard_normal((200, WIDTH)) * scale
    )
    steps = steps.astype(np.float32)
    net = Compilation(
        model, options=CompileOptions(states={"hn": "h"}), quantizing=Quantizing(calibration={"x": steps[:150]})
    )
    found = net.run({"x": steps[150:]})["o"]
    kept = {"h": np.zeros((1, WIDTH), np.float32)}
    exact = run_onnxruntime(model, [{"x": x[None]} for x in steps[150:]], fixed=kept, states={"hn": "h"})
    assert sqnr(np.stack([each["o"] for each in exact]), np.asarray(found)) > 30


@pytest.mark.parametrize("is_integer_io", [False, True])
def test_logarithms_behind_weights(is_integer_io: bool):
    """A spectrum of several decades, summed by a layer with weights before its logarithm is taken."""
    random, net = np.random.default_rng(5), Net()
    bands = np.abs(random.standard_normal((33, WIDTH))) * (random.random((33, WIDTH)) < 0.2)
    power = net.op("MatMul", net.input("x", 1, 33), net.const(bands))
    log = net.op("Log", net.op("Clip", power, net.const(1e-8), net.const(1e8)))
    net.op("Gemm", log, net.const(random.standard_normal((WIDTH, 8)) / 4), net.const(np.zeros(8)), out="o")
    net.output("o")
    model, samples = net.model(), random.lognormal(-4, 3, (200, 33)).astype(np.float32)
    quantizing = Quantizing(calibration={"x": samples[:150]}, scheme=Scheme(integer_io=is_integer_io))
    made = Compilation(model, quantizing=quantizing).quantized
    assert any("computed in float32" in note for note in made.notes)
    assert made.estimate is not None and made.estimate.sqnr_db is not None and made.estimate.sqnr_db > 30


FRAME, HOP, BINS, LENGTH = 64, 32, 20, 256


def spectral_front(logarithm: str) -> onnx.ModelProto:
    """Power spectra by convolutions with cosines and sines, a logarithm of them, and a layer that reads it."""
    random, net, times = np.random.default_rng(7), Net(18), np.arange(FRAME)
    angles = np.pi * np.arange(1, BINS + 1)[:, None] / (BINS + 2) * times
    x = net.input("x", 1, 1, LENGTH)
    parts = [
        net.op("Conv", x, net.const((function(angles) * np.hanning(FRAME))[:, None]), strides=[HOP])
        for function in (np.cos, np.sin)
    ]
    power = net.op("Add", *(net.op("Mul", part, part) for part in parts))
    if logarithm == "log1p":
        y = net.op("Log", net.op("Add", net.op("Mul", power, net.const(100.0)), net.const(1.0)))
    else:
        y = net.op("Log", net.op("Clip", power, net.const(1e-6)))
    if logarithm == "decibels":
        y = net.op("Mul", y, net.const(10 / np.log(10)))
    y = net.op("Relu", net.op("Conv", y, net.const(random.standard_normal((8, BINS, 3)) / 8), net.const(np.zeros(8))))
    frames = (LENGTH - FRAME) // HOP - 1
    net.op("MatMul", net.op("Flatten", y), net.const(random.standard_normal((8 * frames, 4)) / 6), out="o")
    net.output("o")
    return net.model()


def waves(kind: str, count: int) -> Array:
    """Noise; noise of different loudness; tones of different loudness in noise."""
    random = np.random.default_rng(1)
    noise = random.standard_normal((count, 1, LENGTH))
    if kind == "noise":
        return noise.astype(np.float32)
    if kind == "gains":
        return (random.lognormal(0, 1.5, (count, 1, 1)) * noise).astype(np.float32)
    frequencies, phases = random.uniform(0.1, 2.8, (count, 3, 1)), random.uniform(0, 6, (count, 3, 1))
    tones = random.lognormal(-2, 1.5, (count, 3, 1)) * np.sin(frequencies * np.arange(LENGTH) + phases)
    return (tones.sum(1, keepdims=True) + random.lognormal(-4, 1, (count, 1, 1)) * noise).astype(np.float32)


@pytest.mark.parametrize("kind", ["noise", "gains", "tones"])
@pytest.mark.parametrize("logarithm", ["log", "log1p", "decibels"])
def test_spectra_by_convolutions(logarithm: str, kind: str):
    """int8 leaves between -1 and 20 dB."""
    model, samples = spectral_front(logarithm), waves(kind, 300)
    made = quantized(model, {"x": samples[:200]})
    exact, found = (
        np.concatenate([each["o"] for each in run_onnxruntime(proto, [{"x": x[None]} for x in samples[200:]])])
        for proto in (model, made.proto)
    )
    assert sqnr(exact, found) >= 30


@pytest.mark.qemu
@pytest.mark.parametrize("kind", ["noise", "tones"])
@pytest.mark.parametrize("logarithm", ["log", "log1p", "decibels"])
def test_spectra_take_little_more_time_than_in_int8(logarithm: str, kind: str):
    """Instructions on a Cortex-M4; on a Cortex-M0+, the same convolutions in float32 would take seven times as many.

    Where int16 activations are too coarse, as for signals of very different loudness, convolutions stay in float32.
    """
    model, samples = spectral_front(logarithm), waves(kind, 300)
    precise = compiled_for("nrf52840", model, samples, {})
    assert precise.quantization is not None
    layers = precise.quantization.other_precisions
    assert "float32" not in {layer.precision for layer in layers if layer.op == "conv"}
    in_int8 = compiled_for("nrf52840", model, samples, {layer.name: "int8" for layer in layers})
    assert instructions(precise, samples[0]) <= 1.31 * instructions(in_int8, samples[0])
    if (logarithm, kind) == ("log", "tones"):
        times = [
            instructions(compiled_for("rp2040", model, samples, layers), samples[0])
            for layers in ({}, {layer.name: "float32" for layer in layers})
        ]
        assert 6 * times[0] < times[1]


def compiled_for(board: str, model: onnx.ModelProto, samples: Array, layers: dict[str, str]) -> CompiledModel:
    """Quantize by the first 200 samples and compile, with these precisions of single layers."""
    return Compilation(model, board, quantizing=Quantizing(calibration={"x": samples[:200]}, layers=layers)).compiled


def instructions(model: CompiledModel, sample: Array) -> int:
    """Run one sample in the simulator."""
    return simulate(model.bundle, model.board, [{"x": sample[None]}]).instructions


@pytest.mark.parametrize("layer", ["Conv", "ConvTranspose", "Gemm", "MatMul", "depthwise"])
@pytest.mark.parametrize("reader", ["float32", "int8", "none"])
def test_weights_of_16_bits(reader: str, layer: str):
    """Sums fit int32 for every input, nothing rounds them for a reader in float32, and numpy and C agree exactly."""
    random, net = np.random.default_rng(8), Net(18)
    shape = (1, 24) if layer in ("Gemm", "MatMul") else (1, 6, 7, 5)
    weights = {"Conv": (8, 6, 3, 3), "ConvTranspose": (6, 8, 3, 3), "depthwise": (6, 1, 3, 3)}.get(layer, (24, 8))
    bias = [] if layer == "MatMul" else [net.const(random.standard_normal(6 if layer == "depthwise" else 8) * 0.1)]
    op, attributes = ("Conv", {"group": 6}) if layer == "depthwise" else (layer, {})
    y = net.op(op, net.input("x", *shape), net.const(random.standard_normal(weights)), *bias, out="y", **attributes)
    if reader != "none":
        y = net.op("Mul", y, y, out="squares")
    net.output(y)
    samples = random.standard_normal((40, *shape)).astype(np.float32)
    layers = {"y": "int16x16"} | ({"squares": "float32"} if reader == "float32" else {})
    values = {"int16x16": "int32"}
    made = Compilation(
        net.model(),
        quantizing=Quantizing(
            calibration={"x": samples[:, 0]}, layers={n: values.get(v, v) for n, v in layers.items()}
        ),
    )
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in made.quantized.proto.graph.initializer}
    codes = next(t for name, t in tensors.items() if name.startswith("y.weight") and t.dtype == np.int16 and t.ndim > 1)
    axis = made.quantized.plan.layers["y"].axis
    sums = np.abs(codes.astype(np.int64)).sum(tuple(a for a in range(codes.ndim) if a != axis)) * 2**15
    assert 2**29 < sums.max() < 2**31
    stored = [o for node in made.quantized.proto.graph.node if node.op_type == "QuantizeLinear" for o in node.input[:1]]
    assert ("y" in stored) == (reader == "int8")
    (layer,) = (each for each in made.quantized.other_precisions if each.precision == "int16x16")
    assert layer.name.endswith("_y")
    compiled = made.compiled
    (expected,) = (compiled.interpret({"x": samples[0]})[name] for name in compiled.graph.output_names)
    (found,) = simulate(compiled.bundle, compiled.board, [{"x": samples[0]}]).outputs[0].values()
    assert np.array_equal(found, expected)
    if reader != "int8":
        exact = run_onnxruntime(net.model(), [{"x": samples[0]}])[0][compiled.graph.output_names[0]]
        assert sqnr(exact, expected) > 55


# ------------------------------------------------------------------------------------ constants that change nothing


@pytest.mark.parametrize("tail", ["Softmax", "Sigmoid", "Relu", ""])
@pytest.mark.parametrize("bias", ["zero", "one", "equal", "none"])
@pytest.mark.parametrize("layer", ["Gemm", "MatMul", "Conv", "ConvTranspose"])
def test_a_bias_does_not_decide_about_the_type(layer: str, bias: str, tail: str):
    """A layer whose bias is 0 was float32, because the tensor that the model names was gone with its addition."""
    random, net = np.random.default_rng(6), Net()
    values = {"zero": np.zeros(WIDTH), "one": np.ones(WIDTH), "equal": np.full(WIDTH, 0.3)}.get(bias)
    shape = (8,) if layer in ("Gemm", "MatMul") else (4, 5, 5)
    x = net.input("x", 1, *shape)
    constants = [] if values is None or layer == "MatMul" else [net.const(values)]
    kernel = {"Conv": (WIDTH, 4, 3, 3), "ConvTranspose": (4, WIDTH, 3, 3)}.get(layer, (8, WIDTH))
    y = net.op(layer, x, net.const(random.standard_normal(kernel)), *constants)
    if layer == "MatMul" and values is not None:
        y = net.op("Add", y, net.const(values))
    net.output(net.op(tail, y) if tail else y)
    samples = random.standard_normal((20, *shape)).astype(np.float32)
    compiled = Compilation(net.model(), quantizing=Quantizing(calibration={"x": samples})).compiled
    assert not [i.kernel for i in compiled.program.instrs if "f32" in i.kernel]
