# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolution: every kernel gives the bits of numpy, as plain C on the host and on each CPU under QEMU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from checks import share
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx_models import Net, assert_close
from two_core_boards import two_cores as with_two_cores

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.traits import partitions
from mcugen.search import core_partition
from mcugen.simulation import Setup, simulate

BOARDS = {
    "depthwise_s8_dsp": ("nrf52840", "rt1060", "nrf5340"),
    "depthwise_s8_taps_dsp": ("rt1060", "nrf52840"),
    "depthwise_s16_taps_dsp": ("nrf5340", "rt1060"),
    "depthwise_s16_mve": ("corstone300",),
    "depthwise_s8_3x3": ("rp2040", "stm32f103", "nrf52840"),
    "depthwise_s8_planes": ("rv32imc", "rp2040", "stm32f746"),
    "depthwise_s16_planes": ("rp2040", "rv32imc"),
    "depthwise_f32_fpu": ("nrf52840", "rt1060", "nrf5340"),
    "depthwise_s8_dsp_bytes": ("nrf52840", "rt1060"),
    "depthwise_s4_dsp": ("nrf52840", "rt1060"),
    "depthwise_s4_taps_dsp": ("rt1060",),
}
"""CPUs on which a kernel's assembly runs."""

SOME_CHANNELS = [
    ("depthwise_s8_dsp", "nrf5340"),
    ("depthwise_s8_taps_dsp", "nrf52840"),
    ("depthwise_s8_3x3", "rp2040"),
    ("depthwise_s8_3x3", "stm32f103"),
    ("depthwise_s8_planes", "rp2040"),
    ("depthwise_s8", "rv32imc"),
]
"""Kernels that may leave channels of pixels out, and a CPU for each of their assemblies."""


@dataclass(frozen=True)
class Layer:
    """Sizes of one layer; `zeros` are the zero points of input and output, `gain` is the spread of its results."""

    height: int = 5
    width: int = 6
    channels: int = 4
    kernel: tuple[int, int] = (3, 3)
    stride: int = 1
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    batch: int = 1
    zeros: tuple[int, int] = (-3, 5)
    gain: float = 60.0
    clip: tuple[float, float] | None = None
    dead: tuple[int, ...] = field(default=())
    """Channels without weights."""

    @property
    def is_possible(self) -> bool:
        """Whether there is an output pixel."""
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]
        sizes = (self.height + self.pads[0] + self.pads[2], self.width + self.pads[1] + self.pads[3])
        return all(size >= span for size, span in zip(sizes, spans, strict=True))

    def add(self, net: Net, name: str, dtype: type, bits: int = 8) -> None:
        """The layer in a model, from input to output, with integer weights of so many bits."""
        random = np.random.default_rng(sum("bias" not in node.name for node in net.nodes))
        shape = (self.batch, self.channels, self.height, self.width)
        codes = random.integers(-127, 128, (self.channels, 1, *self.kernel)) >> 8 - bits
        codes[list(self.dead)] = 0
        window = {"pads": self.pads, "strides": [self.stride] * 2, "dilations": self.dilations, "group": self.channels}
        x = net.input(f"x {name}", *shape, dtype=dtype)
        if dtype is np.float32:
            bias = net.const(random.standard_normal(self.channels))
            net.output(self._clipped(net, net.op("Conv", x, net.const(codes / 50), bias, **window), name))
            return
        step = 0.05 if dtype is np.int8 else 0.05 / 256
        zeros = self.zeros if dtype is np.int8 else (0, 0)
        scales = random.uniform(0.2, 1, self.channels).astype(np.float32) * 2 ** (8 - bits)
        no_zeros = net.const(np.zeros(self.channels), np.int8)
        w = net.op("DequantizeLinear", net.const(codes, np.int8), net.const(scales), no_zeros, axis=0)
        reals, units = random.uniform(-50, 50, self.channels), np.float32(step) * scales
        bias = net.const(reals)
        if self.gain > 1000:  # in the unit of the sums: rounding a real bias to it would be seen
            codes = net.const(np.rint(reals / units), np.int32)
            bias = net.op("DequantizeLinear", codes, net.const(units), out=f"bias {name}", axis=0)
        y = net.op("Conv", net.dequantize(x, step, zeros[0], dtype), w, bias, **window)
        spread = 3.0 * 60 * np.sqrt(np.prod(self.kernel))
        scale = spread / self.gain / (1 if dtype is np.int8 else 256)
        net.output(net.quantize(self._clipped(net, y, ""), scale, zeros[1], dtype, out=name), dtype=dtype)

    def _clipped(self, net: Net, x: str, name: str) -> str:
        if self.clip is None:
            return net.op("Identity", x, out=name) if name else x
        return net.op("Clip", x, *(net.const(limit) for limit in self.clip), out=name)


def compiled(layers: list[Layer], kernel: str, board: str, two_cores: bool = False) -> CompiledModel:
    net = Net(opset=21)
    dtype = {"f32": np.float32, "s16": np.int16}.get(kernel.split("_")[1], np.int8)
    for index, layer in enumerate(layers):
        layer.add(net, f"y{index}", dtype, 4 if "s4" in kernel else 8)
    goal = "speed" if board == "rt1060" else "balanced"  # for which a Cortex-M7 has loops of its own
    if two_cores:
        options = CompileOptions(kernels=(kernel,), optimize=goal, cores=2)
        found = compile_model(net.model(), with_two_cores(board), options)
        in_lanes = [i.kernel for i in found.program.instrs if i.macs and any(o.lanes for o in i.operands)]
        assert in_lanes == [kernel] * 2 * len(layers)
    else:
        found = compile_model(net.model(), board, CompileOptions(kernels=(kernel,), optimize=goal))
        assert [i.kernel for i in found.program.instrs if i.macs] == [kernel] * len(layers)
    return found


@pytest.mark.spread(2)
@pytest.mark.parametrize(("kernel", "board"), SOME_CHANNELS)
def test_some_channels_of_pixels(kernel: str, board: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions for two cores, which skip the other's channels: odd numbers of fours, padding on some sides."""
    monkeypatch.setattr(
        core_partition, "partitions", lambda *of: [d for d in partitions(*of) if d.shard(0, 1).writes.pitch]
    )
    window = (5, 3) if "taps" in kernel or "planes" in kernel else (3, 3)
    layers = [
        Layer(11, 9, 20, window),
        Layer(12, 13, 8, window, clip=(-40.0, 55.0), dead=(1, 6)),
        Layer(13, 10, 24, window, stride=2, pads=(0, 0, 1, 1)),
        Layer(14, 11, 12, window, pads=(0, 0, 0, 0)),
        Layer(4, 3, 36, window),
    ]
    for on_board in (False, True):
        check(layers, kernel, board, on_board, two_cores=True)


def check(layers: list[Layer], kernel: str, board: str, on_board: bool, two_cores: bool = False) -> None:
    """The generated C gives the bits of the reference: on the board's CPU, or on the host with sanitizers."""
    model = compiled(layers, kernel, board, two_cores)
    feeds = random_feeds_of(model)
    expected = interpret(model.graph, feeds)
    runner = load_board(board if on_board else "host")
    outputs = simulate(model.bundle, runner, [feeds], measure=False, setup=Setup(sanitize=not on_board)).outputs[0]
    assert_close(outputs, expected)


def random_feeds_of(model: CompiledModel) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.inputs:
        dtype = value.type.dtype.numpy
        if dtype.kind == "f":
            feeds[value.name] = random.standard_normal(value.type.shape).astype(np.float32)
        else:
            limits = np.iinfo(dtype)
            feeds[value.name] = random.integers(limits.min, limits.max + 1, value.type.shape).astype(dtype)
    return feeds


SAME = (1, 1, 1, 1)
THREE = [
    *(Layer(channels=c) for c in range(4, 10)),
    *(Layer(h, w, stride=s) for h, w in ((4, 4), (5, 5), (4, 7), (7, 4), (3, 8), (8, 3)) for s in (1, 2)),
    Layer(pads=(0, 0, 0, 0)),
    Layer(pads=(2, 2, 2, 2), batch=2, channels=5),
    Layer(8, 5, 10, pads=(0, 1, 2, 0), batch=3),
    Layer(9, 9, 7, pads=(0, 0, 1, 1), stride=2, batch=2),
    Layer(8, 8, 12, pads=(1, 1, 0, 0), stride=2),
    Layer(1, 9, 4),
    Layer(1, 6, 12, pads=(0, 1, 2, 0)),
    Layer(2, 3, 8),
]
VALUES = [
    *(Layer(zeros=(x, y), gain=300.0) for x in (-128, 127, 0) for y in (-128, 127)),
    *(Layer(gain=gain) for gain in (1.0, 3000.0, 30000.0, 600000.0)),
    Layer(dead=(1, 3)),
    *(
        Layer(clip=clip, zeros=zeros)
        for clip in ((0.0, 900.0), (-200.0, 100.0), (50.0, 90.0))
        for zeros in ((0, -128), (3, 90))
    ),
]
"""Zero points, multipliers and limits at their ends."""

INTEGERS = {
    "depthwise_s8_dsp": THREE + VALUES,
    "depthwise_s8_3x3": [
        *(layer for layer in THREE if (layer.width + sum(layer.pads[1::2]) - 3) // layer.stride > 1),
        *(layer for layer in VALUES if layer.gain < 5000),
        *(Layer(channels=c) for c in (2, 3)),
        Layer(9, 9, 5, dilations=(3, 1)),
    ],
}
OTHERS = [
    *(Layer(9, w, 9, (5, 5), stride=s, pads=(2, 2, 2, 2)) for w in (8, 9) for s in (1, 2)),
    *(Layer(7, 7, 8, (7, 7), pads=(3, 3, 3, 3), stride=s, batch=s) for s in (1, 2)),
    *(Layer(1, w, 5, (1, 9), pads=(0, p, 0, 4), stride=s, batch=2) for w in (20, 21) for p in (4, 3) for s in (1, 2)),
    *(Layer(20, 1, 12, (k, 1), pads=(2, 0, 1, 0)) for k in (3, 4, 8)),
    Layer(9, 9, 10, dilations=(1, 3), pads=(1, 3, 1, 3)),
    Layer(9, 9, 10, dilations=(3, 1), pads=(3, 1, 3, 1)),
    *(Layer(h, w, 5, (5, 5), stride=2, pads=(2, 2, 2, 2)) for h, w in ((5, 11), (11, 6), (12, 12))),
    Layer(16, 15, 6, (7, 7), stride=2, pads=(3, 3, 3, 3), clip=(0.0, 900.0)),
    Layer(6, 5, 4, (4, 2), pads=(0, 0, 0, 0)),
    Layer(6, 5, 4, (2, 1), pads=(0, 0, 0, 0), clip=(0.0, 90.0)),
    Layer(5, 6, 7, (1, 1), pads=(0, 0, 0, 0)),
]
FLOATS = [
    *THREE,
    *(Layer(clip=clip) for clip in ((0.0, 3.0e38), (0.0, 6.0))),
    *OTHERS,
    Layer(9, 9, 10, dilations=(2, 3), pads=(2, 3, 2, 3)),
]
STEPS = [
    *(Layer(10, 11, 6, (3, 3), stride=s, pads=(1, 2, 0, 1), batch=2) for s in (3, 4)),
    *(Layer(h, w, 5, (5, 5), stride=s, pads=(2, 2, 2, 2)) for h, w in ((13, 12), (1, 9), (9, 1)) for s in (3, 4)),
    *(Layer(11, 10, 5, dilations=(d, d), pads=(d, d, d, d), stride=s, batch=2) for d in (2, 3) for s in (1, 2, 3)),
    Layer(12, 13, 4, (5, 5), dilations=(2, 2), pads=(4, 4, 4, 4)),
    Layer(1, 40, 6, (1, 3), dilations=(1, 4), pads=(0, 4, 0, 4)),
    Layer(1, 41, 6, (1, 3), dilations=(1, 4), pads=(0, 4, 0, 4)),
    Layer(64, 1, 5, (29, 1), dilations=(2, 1), pads=(28, 0, 28, 0)),
    Layer(1, 40, 6, (1, 5), stride=3, pads=(0, 2, 0, 2)),
]
"""Steps and dilations beyond two."""
LARGE = [
    *(Layer(11, 12, 5, (9, 9), pads=(4, 4, 4, 4), stride=s) for s in (1, 2)),
    Layer(14, 3, 6, (13, 5), pads=(6, 2, 6, 2)),
    *(Layer(1, 50, 5, (1, k), pads=(0, k // 2, 0, k // 2), stride=s) for k in (31, 40) for s in (1, 2)),
    *(Layer(3, 40, 5, (1, 31), pads=(0, 15, 0, 15), stride=s) for s in (1, 2)),
    Layer(16, 17, 5, (15, 15), pads=(7, 7, 7, 7)),
]
"""Windows of many taps."""
OTHER_THAN_THREE = [
    layer
    for layer in (*OTHERS, *STEPS, *LARGE)
    if layer.kernel != (3, 3) or layer.stride > 2 or max(layer.dilations) > 1
]
ANY = [*THREE, *OTHERS, *STEPS, *VALUES, *LARGE]
CASES = {
    **INTEGERS,
    "depthwise_s8_taps_dsp": [*OTHER_THAN_THREE, *(replace(layer, kernel=(3, 2)) for layer in VALUES)],
    "depthwise_s16_taps_dsp": [layer for layer in ANY if layer.gain < 100000],  # sums need room for 7 bits more
    "depthwise_s16_mve": [layer for layer in ANY if layer.gain < 30000],
    "depthwise_s8_planes": ANY,
    "depthwise_s16_planes": [layer for layer in ANY if layer.gain < 100000],
    "depthwise_f32_fpu": FLOATS,
}
STORED_APART = {
    "depthwise_s8_dsp_bytes": [*THREE[::4], *VALUES[1::3]],
    "depthwise_s4_dsp": [*THREE[1::4], *VALUES[::3]],
    "depthwise_s4_taps_dsp": OTHER_THAN_THREE[::2],
}
ALL = CASES | STORED_APART


@pytest.mark.spread(7)
@pytest.mark.parametrize("kernel", ALL)
def test_plain_c(kernel: str):
    check(ALL[kernel], kernel, BOARDS[kernel][0], on_board=False)


@pytest.mark.spread(14)
@pytest.mark.qemu
@pytest.mark.parametrize(("kernel", "board"), [(k, board) for k in ALL for board in BOARDS[k]])
def test_on_every_cpu(kernel: str, board: str):
    check(ALL[kernel], kernel, board, on_board=True)


def layers_of(kernel: str) -> st.SearchStrategy[list[Layer]]:
    """Small layers that the kernel takes."""
    pad = st.integers(0, 2)
    three = {"height": st.integers(1, 9), "kernel": st.just((3, 3)), "stride": st.integers(1, 2)}
    sizes = st.tuples(st.integers(1, 7), st.sampled_from((1, 2, 4, 5, 6, 7)))
    dilations = st.tuples(st.integers(1, 2), st.integers(1, 2))
    other = {"height": st.integers(7, 13), "kernel": sizes, "stride": st.integers(1, 4), "dilations": dilations}
    one = st.builds(
        Layer,
        **(other if "taps" in kernel or "planes" in kernel else three),
        width=st.integers(5, 9),
        channels=st.integers(4, 17),
        pads=st.tuples(pad, pad, pad, pad),
        batch=st.integers(1, 2),
        zeros=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
        gain=st.floats(1.0, 1000.0),
    )
    return st.lists(
        one.filter(lambda layer: layer.is_possible and layer.width + sum(layer.pads[1::2]) > 6), min_size=4, max_size=8
    )


@pytest.mark.spread(5)
@pytest.mark.parametrize("kernel", CASES)
@settings(max_examples=6, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(data=st.data())
def test_random_layers(kernel: str, data: st.DataObject):
    check(data.draw(layers_of(kernel)), kernel, BOARDS[kernel][0], on_board=False)


@pytest.mark.spread(7)
@pytest.mark.qemu
@pytest.mark.parametrize("kernel", CASES)
@settings(max_examples=4, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(data=st.data())
def test_random_layers_on_cpus(kernel: str, data: st.DataObject):
    layers = data.draw(layers_of(kernel))
    for board in BOARDS[kernel][:2]:
        check(layers, kernel, board, on_board=True)


@pytest.mark.parametrize("kernel", CASES)
def test_overwrites_its_input(kernel: str):
    """A layer that keeps the shape needs no second tensor."""
    other = Layer(8, 9, 8, (5, 5), pads=(2, 2, 2, 2))
    model = compiled([other if "taps" in kernel else Layer(8, 9, 8)], kernel, BOARDS[kernel][0])
    (instr,) = (i for i in model.program.instrs if i.macs)
    assert share(instr) > 0.7
