# SPDX-License-Identifier: Apache-2.0
"""Weighted layers overlap their inputs just as far as they declare: every family, on all kinds of windows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx_models import optimized
from overlaps import assert_exact, assert_safe
from shared_models import roomy
from test_dsp_conv import Layers, Tensor

from mcugen.backends.cpu.pipeline import lowered
from mcugen.core.options import CompileOptions
from mcugen.hir.graph import Graph
from mcugen.lir.program import Overlap, Program

M0, M3, M4, M55 = "rp2040", "stm32f103", "nrf52840", "corstone300"


@dataclass(frozen=True)
class Layer:
    """A convolution; without a kernel a dense layer of `height` rows."""

    height: int = 6
    width: int = 7
    in_c: int = 8
    out_c: int = 8
    kernel: tuple[int, int] | None = (3, 3)
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    group: int = 1
    batch: int = 1

    def add(self, layers: Layers, name: str) -> None:
        """Between an input and an output of codes."""
        random = layers.random
        if self.kernel is None:
            shape, weights = (self.height, self.in_c), (self.out_c, self.in_c)
        else:
            shape = (self.batch, self.in_c, self.height, self.width)
            weights = (self.out_c, self.in_c // self.group, *self.kernel)
        codes = random.integers(20, 128, weights) * random.choice([-1, 1], weights)
        window = {"strides": self.strides, "pads": self.pads, "dilations": self.dilations, "group": self.group}
        layers.add(name, shape, codes.astype(np.int8), gain=0.4, **(window if self.kernel else {}))


class Reals(Layers):
    """The same layers of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.dtype = np.float32

    def input(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Floats."""
        return Tensor(self.net.input(f"x {name}", *shape), 1.0, 0)

    def layer(self, x: Tensor, weights: np.ndarray, out: str = "", gain: float = 1.0, **attributes: object) -> Tensor:
        """Without quantization; weights of about 1."""
        w = self.net.const(gain * weights / 64)
        bias = self.net.const(self.random.standard_normal(len(weights)))
        is_flat = weights.ndim == 2
        more = {"transB": 1} if is_flat else attributes
        return Tensor(self.net.op("Gemm" if is_flat else "Conv", x.name, w, bias, out=out, **more), 1.0, 0)


class Lowered(NamedTuple):
    """Not placed in memory: that would take the planner longer than all the rest."""

    graph: Graph
    program: Program


def lowered_by(layers: list[Layer], *kernels: str, board: str = M4) -> Lowered:
    """Independent layers, each by one of the kernels."""
    kind = kernels[0].split("_")[1]
    model = Reals() if kind == "f32" else Layers(np.int16 if kind == "s16" else np.int8)
    for number, layer in enumerate(layers):
        layer.add(model, f"y{number}")
    graph = optimized(model.net.model())
    program = lowered(graph, roomy(board), CompileOptions(kernels=kernels))
    program.instrs = [i for i in program.instrs if i.macs]
    assert {i.kernel for i in program.instrs} <= set(kernels)
    return Lowered(graph, program)


def check(layers: list[Layer], *kernels: str, board: str = M4) -> None:
    """All of them declare how far they overlap, and just so far."""
    model = lowered_by(layers, *kernels, board=board)
    assert len(assert_exact(model)) == len(layers)


SAME = (1, 1, 1, 1)
WINDOWS = [
    Layer(pads=SAME),
    Layer(pads=SAME, in_c=16, out_c=17, width=5),
    Layer(pads=SAME, in_c=3, out_c=8, strides=(2, 2), height=9),
    Layer(pads=(0, 1, 2, 0), in_c=1, out_c=3),
    Layer(in_c=17, out_c=16, height=5, width=4, batch=2),
    Layer(pads=(0, 0, 1, 1), in_c=8, out_c=16, strides=(2, 2), batch=2),
    Layer(pads=(2, 2, 2, 2), kernel=(5, 5), in_c=3, out_c=5, height=7),
    Layer(pads=(1, 0, 1, 2), kernel=(5, 5), in_c=8, out_c=1, strides=(3, 3), height=11, width=13),
    Layer(pads=(4, 1, 5, 1), kernel=(10, 4), in_c=1, out_c=8, strides=(2, 2), height=15, width=10),
    Layer(strides=(3, 2), in_c=4, out_c=12, height=10, width=9),
    Layer(kernel=(3, 2), dilations=(2, 2), in_c=4, out_c=6, height=9, width=8),
    Layer(kernel=(1, 3), pads=(0, 1, 0, 1), height=1, width=23, in_c=5, out_c=7),
    Layer(kernel=(4, 4), height=4, width=4, in_c=3, out_c=6),
]
PIXELS = [
    *(Layer(kernel=(1, 1), in_c=c, out_c=o) for c, o in ((8, 8), (8, 16), (16, 8), (3, 8), (17, 3), (1, 16), (16, 32))),
    Layer(kernel=(1, 1), in_c=16, out_c=17, batch=2, width=5),
    Layer(kernel=(1, 1), in_c=8, out_c=24, strides=(2, 2), batch=2),
    Layer(kernel=(1, 1), in_c=4, out_c=4, strides=(3, 3), height=7),
    Layer(kernel=(1, 1), in_c=8, out_c=5, height=1, width=2),
    Layer(kernel=(1, 1), in_c=12, out_c=16, height=5, width=1),
]
ROWS = [Layer(n, in_c=c, out_c=o, kernel=None) for n in (1, 2, 5, 9) for c, o in ((8, 12), (17, 5), (16, 16), (20, 3))]
STACKED = [
    Layer(6, 5, 8, 16, pads=SAME),
    Layer(7, 3, 3, 8, pads=SAME),
    Layer(6, 5, 8, 8),
    Layer(8, 5, 8, 16, kernel=(1, 3)),
]
"""Pairs of pixels one above the other."""
GROUPED = [
    Layer(in_c=6, out_c=9, group=3, pads=SAME),
    Layer(in_c=8, out_c=4, group=2, kernel=(1, 1), batch=2),
    Layer(in_c=3, out_c=6, group=3, strides=(2, 2)),
]
CHANNELS = [
    *(Layer(in_c=c, out_c=c, group=c, pads=SAME) for c in (4, 8, 17)),
    *(Layer(9, 7, c, c, group=c, pads=(0, 1, 1, 0), strides=(2, 2)) for c in (5, 8)),
    *(Layer(5, w, c, c, group=c) for w, c in ((5, 4), (6, 17), (9, 9))),
    Layer(7, 9, 8, 8, group=8, strides=(2, 2)),
    Layer(in_c=8, out_c=8, group=8, batch=2, width=5),
    Layer(5, 8, 6, 6, pads=(2, 1, 2, 1), group=6, batch=2),
]
ANY_TAPS = [
    Layer(9, 9, 4, 4, (5, 5), (1, 1), (2, 2, 2, 2), group=4),
    Layer(9, 9, 8, 8, (3, 3), (3, 3), (1, 1, 1, 1), group=8),
    Layer(12, 3, 4, 4, (4, 1), (2, 1), (1, 0, 2, 0), group=4),
    Layer(11, 9, 4, 4, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), group=4),
    Layer(9, 9, 12, 12, (5, 3), dilations=(1, 2), group=12),
]
BY_THREE = [
    replace(layer, in_c=in_c, out_c=out_c)
    for in_c, out_c in ((8, 8), (12, 17), (16, 3))
    for layer in (
        Layer(pads=SAME),
        Layer(5, 19, pads=SAME),
        Layer(7, 6),
        Layer(8, 9, pads=(0, 2, 1, 0), batch=2),
        Layer(4, 3, pads=SAME),
    )
]
"""For Winograd."""


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", ["s8", "s16", "f32"])
def test_portable(kind: str):
    check([*WINDOWS, *PIXELS, *ROWS, *GROUPED], f"conv2d_{kind}", f"dense_{kind}")
    check([*CHANNELS, *ANY_TAPS], f"depthwise_{kind}")


@pytest.mark.spread(6)
@pytest.mark.parametrize("kernel", ["conv2d_s8_dsp", "conv2d_s8_dsp16", "conv2d_s16_dsp"])
def test_dsp(kernel: str):
    check([*WINDOWS, *PIXELS, *ROWS, *STACKED], kernel, kernel.replace("conv2d", "dense"))


@pytest.mark.parametrize("kernel", ["conv2d_s8_dsp", "conv2d_s8_dsp16"])
def test_rows_of_groups_that_are_read_where_they_lie(kernel: str):
    rows = Layer(3, 9, 16, 8, pads=(0, 1, 0, 1), group=2)
    check([rows, replace(rows, out_c=16), replace(rows, strides=(1, 2), batch=2, width=8)], kernel)


def test_helium_of_int16():
    check([*WINDOWS, *PIXELS, *ROWS, *STACKED], "conv2d_s16_mve", board=M55)


def test_helium_of_int16_by_channels():
    check([*CHANNELS, *ANY_TAPS], "depthwise_s16_mve", board=M55)


def test_dsp_of_few_elements():
    few = [layer for layer in WINDOWS if layer.in_c <= 4]
    check(few, "conv2d_s8_dsp_few", "conv2d_s8_dsp16")
    wide = [Layer(9, 9, c, o, (1, 1)) for c, o in ((4, 8), (8, 3), (8, 8), (8, 16))]
    check([*wide, Layer(5, 3, 4, 7, (1, 1)), Layer(9, 9, 8, 16, (1, 1), batch=2)], "pointwise_s8_dsp")


@pytest.mark.parametrize(("isa", "board"), [("thumb1", M0), ("thumb2", M3)])
def test_scalar(isa: str, board: str):
    check([*WINDOWS, *PIXELS], f"conv2d_s8_{isa}", board=board)
    check(ROWS, f"dense_s8_{isa}", board=board)


@pytest.mark.parametrize("pixels", [4, 2])
def test_fewer_pixels_at_a_time(pixels: int):
    check(WINDOWS, f"conv2d_s8_thumb1_{pixels}", board=M0)


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    "kernel", ["winograd_dsp", "winograd_fly_dsp_t8", "winograd_fly_dsp_t4", "winograd", "winograd_fly_t4"]
)
def test_winograd(kernel: str):
    check(BY_THREE, f"conv2d_s8_{kernel}")


def test_winograd_of_floats():
    check([replace(layer, out_c=4 * -(-layer.out_c // 4)) for layer in BY_THREE], "conv2d_f32_winograd")


def test_floats():
    check([*WINDOWS, *PIXELS, *ROWS], "conv2d_f32_fpu", "dense_f32_fpu")
    check([*CHANNELS, *ANY_TAPS], "depthwise_f32_fpu")
    check([*CHANNELS, *ANY_TAPS], "depthwise_f32_mve", board=M55)


def test_rows_of_three():
    check(CHANNELS, "depthwise_s8_3x3", board=M3)


def test_pixels_that_double_their_channels_take_no_more_than_their_outputs():
    model = lowered_by([Layer(8, 6, 16, 32, (1, 1))], "conv2d_s8_dsp")
    (conv,) = model.program.instrs
    assert conv.overlaps == (Overlap("y", "x", (48 - 2) * 16),)


def test_a_row_that_is_widened_first_may_lie_anywhere_in_its_input():
    model = lowered_by([Layer(1, in_c=64, out_c=8, kernel=None)], "dense_s8_dsp")
    (dense,) = model.program.instrs
    assert dense.overlaps == (Overlap("y", "x", -64),)


RUN = [*WINDOWS[:9], *PIXELS[:9], *STACKED]
ON_BOARDS = {
    "conv2d_s8_dsp": (M4, RUN),
    "conv2d_s16_dsp": (M4, RUN),
    "conv2d_s16_mve": (M55, RUN),
    "depthwise_s16_mve": (M55, [*CHANNELS, *ANY_TAPS]),
    "conv2d_s8_winograd_dsp": (M4, BY_THREE),
    "conv2d_s8_winograd_fly_dsp_t8": (M4, BY_THREE),
    "conv2d_f32_fpu": (M4, RUN),
    "conv2d_f32_winograd": (M4, [layer for layer in BY_THREE if layer.out_c % 4 == 0]),
    "dense_f32_fpu": (M4, ROWS),
    "depthwise_f32_fpu": (M4, [*CHANNELS, *ANY_TAPS]),
    "depthwise_f32_mve": (M55, [*CHANNELS, *ANY_TAPS]),
    "conv2d_s8_thumb2": (M3, RUN),
    "dense_s8_thumb2": (M3, ROWS),
    "conv2d_s8_thumb1": (M0, RUN),
    "conv2d_s8_thumb1_4": (M0, RUN),
    "conv2d_s8_thumb1_2": (M0, RUN),
    "dense_s8_thumb1": (M0, ROWS),
    "depthwise_s8_3x3": (M3, CHANNELS),
}
"""Where the assembly of a kernel runs."""


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("kernel", ON_BOARDS)
def test_assembly_keeps_to_it(kernel: str):
    board, layers = ON_BOARDS[kernel]
    assert_safe(lowered_by(layers, kernel, board=board), roomy(board), align=1 if "s8" in kernel else 16)


windows = st.builds(
    Layer,
    height=st.integers(7, 11),
    width=st.integers(7, 11),
    in_c=st.integers(1, 9),
    out_c=st.integers(1, 9),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    batch=st.integers(1, 2),
)


@pytest.mark.spread(6)
@settings(max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.lists(windows, min_size=8, max_size=8))
@pytest.mark.parametrize(
    ("kernel", "board"),
    [
        ("conv2d_s8", M4),
        ("conv2d_s8_dsp", M4),
        ("conv2d_s8_thumb1", M0),
        ("conv2d_f32_fpu", M4),
    ],
)
def test_random_windows(kernel: str, board: str, drawn: list[Layer]):
    check([WINDOWS[0], *drawn], kernel, board=board)
