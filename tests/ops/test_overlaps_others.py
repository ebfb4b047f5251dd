# SPDX-License-Identifier: Apache-2.0
"""Layers without weights, and kernels for Helium, overlap their inputs just as far as they declare."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, optimized
from overlaps import assert_exact, assert_safe
from test_overlaps import CHANNELS, PIXELS, ROWS, SAME, WINDOWS, Layer, Lowered, lowered_by

from mcugen.backends.cpu.pipeline import lowered
from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions

M4, M55 = "nrf52840", "corstone300"


class Layers:
    """Layers side by side, each between an input and an output of its own."""

    def __init__(self) -> None:
        self.net, self.count = Net(), 0

    def add(self, op: str, *shapes: tuple[int, ...], codes: bool = False, dtype: type = np.float32, **more) -> None:
        """An operator of floats, of plain elements, or, with `codes`, of int8. Arrays among `shapes` are constants."""
        self.count += 1
        rest = [self.net.const(s, s.dtype.type) for s in shapes if isinstance(s, np.ndarray)]
        shapes = [s for s in shapes if not isinstance(s, np.ndarray)]
        dtype = np.int8 if codes else dtype
        inputs = [self.net.input(f"x{self.count}_{i}", *s, dtype=dtype) for i, s in enumerate(shapes)]
        if codes:
            inputs = [self.net.dequantize(x, 0.02, 3) for x in inputs]
        out = more.pop("outputs", dtype)
        y = self.net.op(op, *inputs, *rest, out="" if codes else f"y{self.count}", **more)
        self.net.output(self.net.quantize(y, 0.02, 3, out=f"y{self.count}") if codes else y, dtype=out)

    def exact(self, fewest: int = 0) -> dict[str, int]:
        """All of them declare how far they overlap (or `fewest` do), and just so far. The leads."""
        leads = assert_exact(self.lowered(M4), samples=12)
        assert len(leads) >= (fewest or self.count)
        return leads

    def safe(self, board: str) -> None:
        """Where the planner may place them, the code of a CPU is right."""
        assert_safe(self.lowered(board), board, samples=2)

    def lowered(self, board: str) -> Lowered:
        """For a board."""
        graph = optimized(self.net.model())
        return Lowered(graph, lowered(graph, load_board(board), CompileOptions()))


def elementwise() -> Layers:
    layers = Layers()
    layers.add("Relu", (3, 7))
    layers.add("Add", (2, 9), (2, 9))
    layers.add("Mul", (4, 5, 3), (3,))
    layers.add("Add", (1, 4, 3, 6), (1, 4, 3, 6), codes=True)
    layers.add("HardSigmoid", (37,), codes=True)
    layers.add("Cast", (30,), dtype=np.int32, to=3, outputs=np.int8)
    layers.add("Cast", (30,), dtype=np.int8, to=1, outputs=np.float32)
    layers.add("Cast", (21,), dtype=np.int8, to=5, outputs=np.int16)
    layers.add(
        "DequantizeLinear", (29,), np.array(0.02, np.float32), np.array(3, np.int8), dtype=np.int8, outputs=np.float32
    )
    return layers


def test_elementwise():
    leads = elementwise().exact()
    assert (leads["y4"], leads["y6"], leads["y9"]) == (0, 1 - 4, 28 * (4 - 1))


POOLS = (
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]},
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [3, 2]},
    {"kernel_shape": [2, 2], "dilations": [3, 2], "pads": [1, 1, 1, 1]},
)


def pools() -> Layers:
    layers = Layers()
    for window in POOLS:
        for op in ("MaxPool", "AveragePool")[: 1 if "dilations" in window else 2]:
            for codes in (False, True):
                layers.add(op, (2, 5, 7, 8), codes=codes, **window)
                layers.add(op, (1, 1, 8, 7), codes=codes, **window)
    layers.add("GlobalAveragePool", (2, 9, 4, 5), codes=True)
    layers.add("GlobalAveragePool", (1, 20, 4, 5), codes=True)
    layers.add("MaxPool", (1, 2, 4, 5, 6), kernel_shape=[2, 3, 2], pads=[1, 1, 0, 0, 1, 1])
    return layers


def test_pools():
    pools().exact()


def rows() -> Layers:
    layers = Layers()
    for codes in (False, True):
        layers.add("Softmax", (5, 9), codes=codes)
        layers.add("LogSoftmax", (3, 10), codes=codes)
    layers.add("LayerNormalization", (3, 4, 6), np.ones(6, np.float32), codes=True)
    layers.add("LayerNormalization", (3, 4, 6), np.ones(6, np.float32))
    layers.add("CumSum", (4, 5), np.array(1))
    layers.add("Trilu", (2, 4, 5))
    for axes in ([0], [1], [2], [0, 2]):
        layers.add("ReduceMax", (3, 4, 5), axes=axes)
        layers.add("ReduceMean", (3, 4, 5), codes=True, axes=axes)
        layers.add("ReduceSum", (3, 4, 5), np.array(axes))
    layers.add("ArgMax", (6, 2), dtype=np.int8, axis=1, outputs=np.int64)
    layers.add("ArgMax", (5, 2, 1), dtype=np.int8, axis=1, outputs=np.int64)
    return layers


def test_rows():
    rows().exact()


def moves() -> Layers:
    layers = Layers()
    layers.add("Pad", (3, 4, 5), np.array([1, 0, 2, 1, 0, 1]), mode="reflect")
    for shape, perm in (((2, 3, 20), [0, 2, 1]), ((3, 5, 7), [2, 0, 1]), ((3, 4, 5), [2, 1, 0])):
        layers.add("Transpose", shape, perm=perm)
        layers.add("Transpose", shape, dtype=np.int8, perm=perm)
    for shape in ((2, 7, 40), (2, 20, 9)):
        layers.add("Transpose", shape, dtype=np.int8, perm=[0, 2, 1])
    layers.add("Slice", (5, 7), *map(np.array, ([0, 6], [5, 0], [0, 1], [1, -2])))
    return layers


def copies() -> Layers:
    """By memcpy, whose operands must not overlap: the sanitizer would tell. Or not all that is read counts."""
    layers = Layers()
    for shape, scales in (((1, 3, 4, 5), [1, 1, 2, 2]), ((2, 3, 6, 4), [1, 1, 0.5, 3]), ((1, 5, 9), [1, 1, 2])):
        for codes in (False, True):
            for mode in ("nearest", "linear"):
                layers.add("Resize", shape, NONE, np.array(scales, np.float32), codes=codes, mode=mode)
    for mode in ("reflect", "edge"):
        layers.add("Pad", (3, 4, 5), np.array([0, 2, 0, 1, 1, 0]), mode=mode)
        layers.add("Pad", (3, 4, 5), np.array([1, 0, 2, 1, 0, 1]), mode=mode)
    layers.add("Transpose", (3, 4, 5), perm=[1, 0, 2])
    for start, end, step in (([1, 0], [4, 6], [1, 1]), ([0, 2], [5, 7], [2, 1])):
        layers.add("Slice", (5, 7), *map(np.array, (start, end, [0, 1], step)))
    layers.add("Resize", (1, 2, 4, 5), NONE, np.array([1, 1, 2, 2], np.float32), mode="cubic")
    layers.add("Resize", (2, 3), NONE, np.array([2, 3], np.float32), mode="nearest")
    layers.add("MatMul", (4, 3, 5), (4, 5, 6))
    layers.add("MatMul", (3, 4, 9), (3, 9, 4), codes=True)
    layers.add("Expand", (3, 4, 1), np.array([3, 4, 5]))
    layers.add("Expand", (3, 1, 4), np.array([3, 5, 4]))
    return layers


def lanes() -> Layers:
    """Interpolations by weights of few bits, four or eight channels at a time."""
    layers = Layers()
    for shape, scales in (
        ((1, 4, 5, 8), [1, 2, 2, 1]),
        ((2, 3, 6, 12), [1, 4, 2, 1]),
        ((1, 6, 8, 20), [1, 0.5, 2, 1]),
        ((1, 9, 16), [1, 2, 1]),
        ((1, 8, 8, 4), [1, 0.5, 0.25, 1]),
    ):
        layers.add("Resize", shape, NONE, np.array(scales, np.float32), codes=True, mode="linear")
    return layers


NONE = np.zeros(0, np.float32)


def test_moves():
    moves().exact()


def others() -> Layers:
    layers, random = Layers(), np.random.default_rng(3)
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for depth in (3, 6):
            w, r = (random.standard_normal((1, gates * 4, n)).astype(np.float32) for n in (depth, 4))
            layers.add(op, (5, 1, depth), w, r, hidden_size=4)
            layers.add(op, (5, 2, depth), w, r, hidden_size=4)
    return layers


def test_recurrent():
    others().exact()


def transposed(channels: int, out: int, kernel: tuple[int, int] = (3, 2), **more) -> Layers:
    layers = Layers()
    weights = np.random.default_rng(2).integers(20, 127, (channels, out, *kernel)).astype(np.int8)
    w = layers.net.dequantize(layers.net.const(weights, np.int8), 0.01)
    x = layers.net.dequantize(layers.net.input("x", 2, channels, 4, 5, dtype=np.int8), 0.02, 3)
    y = layers.net.op("ConvTranspose", x, w, **more)
    layers.net.output(layers.net.quantize(y, 0.1, 3, out="y"), dtype=np.int8)
    layers.count = 1
    return layers


@pytest.mark.parametrize(
    "more", [{"strides": [2, 2]}, {"strides": [2, 2], "pads": [1, 0, 0, 1]}, {"strides": [4, 3]}, {"dilations": [2, 2]}]
)
def test_transposed_convolutions(more: dict[str, object]):
    transposed(6, 8, **more).exact()
    transposed(3, 5, **more).exact()


@pytest.mark.spread(5)
@pytest.mark.parametrize("board", [M4, M55, "rp2040"])
@pytest.mark.parametrize(
    "more",
    [
        {"strides": [2, 2], "kernel": (2, 2)},
        {"strides": [2, 2], "pads": [1, 0, 0, 1]},
        {"strides": [4, 3]},
        {"strides": [1, 1], "kernel": (3, 3), "pads": [1, 1, 1, 1]},
    ],
)
def test_transposed_convolutions_by_phases(more: dict[str, object], board: str):
    transposed(16, 8, **more).safe(board)
    transposed(6, 5, **more).safe(board)


@pytest.mark.spread(6)
@pytest.mark.parametrize("layers", [elementwise, pools, rows, moves, copies, lanes, others])
@pytest.mark.parametrize("board", ["host", M4, M55])
def test_fast_paths(layers, board: str):
    layers().safe(board)


HELIUM = {
    "conv2d_s8_mve": [*WINDOWS, *PIXELS],
    "conv2d_s8_mve_inplace": [layer for layer in PIXELS if layer.out_c <= layer.in_c and layer.strides == (1, 1)],
    "conv2d_s8_mve_columns": [Layer(pads=SAME, in_c=16, out_c=16), Layer(9, 9, 32, 8, pads=SAME, strides=(2, 2))],
    "dense_s8_mve": [Layer(1, in_c=20, out_c=n, kernel=None) for n in (1, 8, 19)],
    "depthwise_s8_mve": CHANNELS,
    "depthwise_s8_mve_4x4": [*CHANNELS, Layer(21, 9, 5, 5, group=5, pads=SAME)],
    "depthwise_s8_mve_8x8": CHANNELS,
}


@pytest.mark.spread(7)
@pytest.mark.parametrize("kernel", HELIUM)
def test_helium(kernel: str):
    model = lowered_by(HELIUM[kernel], kernel, board=M55)
    assert sum(bool(i.overlaps) for i in model.program.instrs if i.macs) >= len(HELIUM[kernel]) / 2
    for board in ("host", M55):
        assert_safe(model, board, align=1)


def test_helium_dense_layers():
    model = lowered_by(ROWS, "conv2d_s8_mve", "dense_s8_mve", board=M55)
    assert all(i.overlaps for i in model.program.instrs if i.macs)
    assert_safe(model, M55)


@pytest.mark.parametrize("kernel", ["conv2d_s8_mve_inplace", "dense_s8_mve", "depthwise_s8_mve"])
def test_helium_exact(kernel: str):
    assert_exact(lowered_by(HELIUM[kernel], kernel, board=M55))
