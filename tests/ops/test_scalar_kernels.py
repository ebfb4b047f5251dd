# SPDX-License-Identifier: Apache-2.0
"""int8 kernels of CPUs without DSP: the twin in C under the sanitizers, and the assembly under QEMU, equal numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from checks import share
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Net, numpy_outputs, random_feeds

from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.kernels.scalar.scalar_conv import MAX_CHUNK_INPUTS, MAX_CHUNK_WEIGHT_SUM, split_into_chunks
from mcugen.search import candidates


@dataclass(frozen=True)
class Layer:
    """An int8 layer: a convolution, or (without a kernel) a dense layer; `shape` is that of its input without N."""

    shape: tuple[int, ...]
    channels: int
    kernel: tuple[int, ...] = ()
    strides: tuple[int, ...] = (1, 1)
    dilations: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    batch: int = 1
    largest: int = 127
    """Magnitude of the weights."""
    zeros: tuple[int, int] = (3, -7)
    clamp: tuple[float, float] | None = None
    """In steps of the output."""
    gain: float = 1.0
    """More than 1 lets most results saturate."""


CONVS = {
    "3 channels": Layer((3, 7, 9), 5, (3, 3), pads=(1, 1, 1, 1)),
    "1 channel": Layer((1, 9, 6), 4, (4, 3), strides=(2, 2), pads=(1, 0, 2, 2)),
    "strided": Layer((8, 9, 8), 12, (3, 3), strides=(2, 3), pads=(1, 1, 0, 1)),
    "dilated": Layer((4, 9, 9), 3, (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3)),
    "pointwise": Layer((8, 5, 5), 16, (1, 1)),
    "pointwise strided": Layer((10, 7, 5), 6, (1, 1), strides=(2, 1)),
    "pointwise of one": Layer((1, 6, 1), 1, (1, 1)),
    "pointwise padded": Layer((5, 4, 4), 3, (1, 1), pads=(1, 0, 0, 1)),
    "six pixels": Layer((20, 3, 2), 2, (1, 1)),
    "one pixel": Layer((3, 3, 3), 9, (3, 3)),
    "five pixels": Layer((4, 1, 11), 9, (1, 2), strides=(1, 2)),
    "deep": Layer((70, 3, 3), 4, (3, 3), pads=(1, 1, 1, 1), largest=40),
    "heavy": Layer((64, 4, 4), 3, (1, 1), zeros=(-128, 127)),
    "very deep": Layer((130, 2, 3), 2, (3, 3), pads=(1, 1, 1, 1)),
    "light": Layer((96, 3, 4), 7, (1, 1), largest=2, zeros=(127, -128)),
    "zero weights": Layer((9, 3, 3), 3, (1, 1), largest=0),
    "mostly padding": Layer((2, 2, 2), 3, (5, 5), pads=(4, 4, 4, 4)),
    "line": Layer((6, 1, 19), 5, (1, 4), strides=(1, 2), pads=(0, 3, 0, 0)),
    "batch": Layer((3, 4, 3), 4, (3, 3), pads=(1, 1, 1, 1), batch=2),
    "saturated": Layer((12, 4, 5), 8, (1, 1), gain=4.0, zeros=(9, -128)),
    "clamped": Layer((12, 4, 5), 8, (1, 1), clamp=(-20, 31), gain=2.0),
    "relu": Layer((5, 5, 5), 8, (3, 3), clamp=(0, 1e9)),
}

DENSES = {
    "four": Layer((4,), 4),
    "less than four": Layer((3,), 7),
    "odd": Layer((13,), 9),
    "long": Layer((650,), 10, zeros=(-128, 5)),
    "one chunk and a rest": Layer((259,), 3),
    "wide": Layer((16,), 50, clamp=(0, 1e9)),
    "rows": Layer((21,), 6, batch=3),
    "saturated rows": Layer((40,), 5, batch=2, gain=20.0),
    "pixels": Layer((9, 1, 3), 7, (1, 1), batch=2),
    "clamped six": Layer((33,), 6, clamp=(-9, 10)),
}


def add(net: Net, name: str, layer: Layer, random: np.random.Generator) -> None:
    """The layer between an int8 input `x name` and an int8 output `name`, weights quantized by channel."""
    x = net.dequantize(net.input(f"x {name}", layer.batch, *layer.shape, dtype=np.int8), 0.05, layer.zeros[0])
    shape = (layer.channels, layer.shape[0], *layer.kernel)
    codes = random.integers(-layer.largest, layer.largest + 1, shape)
    codes.reshape(-1)[: layer.largest] = layer.largest
    scales = random.uniform(0.001, 0.02, layer.channels).astype(np.float32)
    weights = net.op(
        "DequantizeLinear", net.const(codes, np.int8), net.const(scales), net.const(0 * scales, np.int8), axis=0
    )
    bias = net.const(random.normal(0, 20, layer.channels) * scales)
    depth = int(np.prod(shape[1:]))
    step = float(0.05 * 0.01 * 75 * (layer.largest + 1) * np.sqrt(depth) / 70 / layer.gain)
    if layer.kernel:
        window = {"strides": layer.strides, "dilations": layer.dilations, "pads": layer.pads}
        y = net.op("Conv", x, weights, bias, **window)
    else:
        y = net.op("Gemm", x, weights, bias, transB=1)
    if layer.clamp:
        low, high = (net.const(v * step) for v in layer.clamp)
        y = net.op("Clip", y, low, high)
    net.output(net.quantize(y, step, layer.zeros[1], out=name), dtype=np.int8)


def network(layers: dict[str, Layer], seed: int = 7) -> Net:
    net, random = Net(), np.random.default_rng(seed)
    for name, layer in layers.items():
        add(net, name, layer, random)
    return net


ISAS = {
    "thumb2": "stm32f103",
    "thumb1": "rp2040",
    "thumb1_4": "rp2040",
    "thumb1_2": "rp2040",
    "rv32": "esp32c3",
}
"""By the ends of kernels' names."""
LAYERS = {"conv2d": CONVS, "dense": DENSES}
KERNELS = [(isa, kind) for isa in ISAS for kind in LAYERS if kind == "conv2d" or isa in ("thumb1", "thumb2")]
ON_TARGET = [pytest.param(*k, marks=pytest.mark.riscv if k[0] == "rv32" else pytest.mark.qemu) for k in KERNELS]


def board(isa: str, *, host: bool) -> Board:
    """With room for everything; on `host` the twins run."""
    found = load_board(ISAS[isa])
    roomy = replace(found, memories=tuple(replace(m, size=0x400000) for m in found.memories))
    return replace(roomy, qemu="") if host else roomy


def compiled(net: Net, isa: str, kind: str, *, host: bool) -> CompiledModel:
    options = CompileOptions(kernels=(f"{kind}_s8_{isa}",))
    return compile_model(net.model(), board(isa, host=host), options)


def check(model: CompiledModel, net: Net, *, sanitize: bool) -> None:
    """Every output equals numpy's."""
    feeds = random_feeds(net.model())
    (found,) = model.simulate([feeds], measure=False, sanitize=sanitize).outputs
    for name, wanted in numpy_outputs(net.model(), feeds).items():
        np.testing.assert_array_equal(found[name].reshape(wanted.shape), wanted, err_msg=name)


@pytest.mark.spread(6)
@pytest.mark.parametrize(("isa", "kind"), KERNELS)
def test_twin(isa: str, kind: str):
    net = network(LAYERS[kind])
    check(compiled(net, isa, kind, host=True), net, sanitize=True)


@pytest.mark.spread(6)
@pytest.mark.parametrize(("isa", "kind"), ON_TARGET)
def test_assembly(isa: str, kind: str):
    net = network(LAYERS[kind])
    check(compiled(net, isa, kind, host=False), net, sanitize=False)


@pytest.mark.parametrize("isa", ISAS)
def test_pointwise_layers_overwrite_their_input(isa: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(candidates, "staged", lambda attempt, *_: attempt.built)  # copies of weights need that place
    net, random = Net(), np.random.default_rng(1)
    x = net.dequantize(net.input("x", 1, 9, 5, 8, dtype=np.int8), 0.05)
    for (depth, channels), stride in zip(pairwise((9, 9, 8, 18, 13)), (1, 1, 2, 1), strict=True):
        codes = net.dequantize(net.const(random.integers(-90, 91, (channels, depth, 1, 1)), np.int8), 0.01)
        bias = net.const(random.normal(0, 1, channels))
        x = net.fake(net.op("Conv", x, codes, bias, strides=[stride, stride]), 0.07, 1)
    net.output(net.quantize(x, 0.07, 1, out="y"), dtype=np.int8)
    model = compiled(net, isa, "conv2d", host=True)
    assert min(share(i) for i in model.program.instrs if i.op == "conv") > 0.7
    check(model, net, sanitize=True)


def test_layers_that_do_not_fit_are_left_to_others():
    layers = {
        "too steep": Layer((8, 4, 4), 5, (3, 3), gain=5000.0),
        "too many chunks": Layer((350, 2, 3), 1, (2, 3)),
        "fits": Layer((8, 5, 2), 4, (1, 1)),
    }
    model = compiled(network(layers), "thumb2", "conv2d", host=True)
    kernels = {i.name: i.kernel for i in model.program.instrs if i.op == "conv"}
    assert sorted(kernels.values()) == [*2 * ["conv2d_s8"], "conv2d_s8_thumb2"]
    assert next(name for name, kernel in kernels.items() if kernel == "conv2d_s8_thumb2").startswith("fits")


integers = st.integers


@st.composite
def convolutions(draw: st.DrawFn) -> Layer:
    kernel = (draw(integers(1, 4)), draw(integers(1, 4)))
    strides = (draw(integers(1, 3)), draw(integers(1, 3)))
    dilations = (draw(integers(1, 2)), draw(integers(1, 2)))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = tuple(draw(integers(0, span[i % 2])) for i in range(4))
    size = [max(1, draw(integers(2, 6)) * strides[i] + span[i] - pads[i] - pads[i + 2]) for i in range(2)]
    return Layer(
        (draw(integers(1, 9)), *size),
        draw(integers(1, 6)),
        kernel,
        strides,
        dilations,
        pads,
        batch=draw(integers(1, 2)),
        largest=draw(integers(0, 127)),
        zeros=(draw(integers(-128, 127)), draw(integers(-128, 127))),
        gain=draw(st.sampled_from([0.2, 1.0, 9.0])),
    )


@st.composite
def denses(draw: st.DrawFn) -> Layer:
    return Layer(
        (draw(integers(4, 300)),),
        draw(integers(1, 14)),
        batch=draw(integers(1, 3)),
        largest=draw(integers(0, 127)),
        zeros=(draw(integers(-128, 127)), draw(integers(-128, 127))),
        gain=draw(st.sampled_from([0.2, 1.0, 9.0])),
    )


ANCHORS = {"conv2d": CONVS["pointwise"], "dense": DENSES["odd"]}
"""A layer that every kernel takes, so that asking for it is never an error."""


@pytest.mark.spread(5)
@settings(max_examples=6, deadline=None)
@given(st.data())
@pytest.mark.parametrize(("isa", "kind"), KERNELS)
def test_random_twins(isa: str, kind: str, data: st.DataObject):
    strategy = convolutions() if kind == "conv2d" else denses()
    layers = data.draw(st.lists(strategy, min_size=4, max_size=8))
    named = {"anchor": ANCHORS[kind]} | {str(number): layer for number, layer in enumerate(layers)}
    net = network(named, data.draw(integers(0, 2**16)))
    check(compiled(net, isa, kind, host=True), net, sanitize=True)


@given(st.lists(integers(-128, 127), min_size=1, max_size=200))
def test_chunks_are_as_long_as_their_sums_allow(weights: list[int]):
    parts = split_into_chunks(np.array(weights, np.int8))
    assert np.concatenate(parts).tolist() == weights
    sums = [int(np.abs(part.astype(int)).sum()) for part in parts]
    assert max(sums) <= MAX_CHUNK_WEIGHT_SUM
    for part, total, following in zip(parts, sums, parts[1:], strict=False):
        assert len(part) == MAX_CHUNK_INPUTS or total + abs(int(following[0])) > MAX_CHUNK_WEIGHT_SUM
