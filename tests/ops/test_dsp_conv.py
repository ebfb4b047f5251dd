# SPDX-License-Identifier: Apache-2.0
"""Convolutions and dense layers of Cortex-M4, M7 and M33: their plain C on this computer, their assembly under QEMU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from checks import share
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Net, assert_close, random_feeds
from test_conv import WINDOWS, Case

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.kernels.common.conv_shape import ConvShape
from mcugen.kernels.dsp.dsp_conv import DSP_KERNELS, GROUP, SXTB16_ORDER, Runs, choose_row_source, runs_of
from mcugen.lir.program import Access
from mcugen.simulation import Setup, simulate

OTHER_BOARDS = ("rt1060", "nrf5340", "corstone300")
"""Cortex-M7, M33 and M55."""
INT8 = ("conv2d_s8_dsp", "dense_s8_dsp")
FOURS = ("conv2d_s8_dsp_fours", "dense_s8_dsp")
WIDE = ("conv2d_s8_dsp16", "dense_s8_dsp16")
INT16 = ("conv2d_s16_dsp", "dense_s16_dsp")
FEW = ("conv2d_s8_dsp_few", "dense_s8_dsp16")
CASES: dict[str, Case] = {name: case for name, case in WINDOWS.items() if "group" not in case[3]} | {
    "three channels": ((1, 3, 9, 8), 5, (3, 3), {"pads": [1, 1, 1, 1]}),
    "three channels strided": ((1, 3, 9, 8), 8, (3, 3), {"strides": [2, 2], "pads": [0, 0, 1, 1]}),
    "one channel, tall kernel": ((1, 1, 15, 10), 6, (10, 4), {"strides": [2, 2], "pads": [4, 1, 5, 1]}),
    "two channels, many rows": ((1, 2, 9, 7), 3, (7, 3), {"pads": [3, 1, 3, 1]}),
    "one channel, many rows": ((1, 1, 9, 7), 3, (5, 5), {"pads": [2, 2, 2, 2]}),
    "words": ((1, 12, 5, 6), 6, (3, 3), {"pads": [1, 1, 1, 1]}),
    "odd rows and columns": ((1, 8, 7, 5), 7, (3, 3), {"pads": [1, 1, 1, 1]}),
    "long": ((1, 40, 4, 3), 4, (3, 3), {"pads": [1, 1, 1, 1]}),
    "one channel out": ((1, 16, 5, 4), 1, (1, 1), {}),
    "loop of whole rounds": ((1, 72, 3, 3), 3, (1, 1), {}),
    "stride over rows": ((1, 4, 11, 11), 4, (2, 2), {"strides": [4, 5]}),
    "groups of words": ((2, 12, 5, 6), 12, (3, 3), {"pads": [1, 1, 1, 1], "group": 3}),
    "groups of words inside": ((1, 8, 7, 5), 6, (3, 3), {"group": 2}),
    "groups of two channels": ((1, 8, 5, 7), 8, (3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2], "group": 4}),
    "groups of three channels": ((1, 9, 6, 5), 15, (3, 2), {"pads": [1, 1, 1, 0], "group": 3}),
    "groups of pixels": ((1, 24, 3, 5), 15, (1, 1), {"group": 3}),
    "groups of single channels": ((1, 4, 6, 5), 12, (3, 3), {"pads": [1, 1, 1, 1], "dilations": [1, 2], "group": 4}),
    "groups of sixteen channels": ((1, 32, 4, 5), 10, (1, 5), {"pads": [0, 2, 0, 2], "group": 2}),
}
GROUPED_ROWS: dict[str, Case] = {
    "eight channels": ((1, 32, 3, 9), 16, (3, 3), {"pads": [0, 1, 0, 1], "group": 4}),
    "strided, of two images": ((2, 16, 3, 8), 8, (3, 3), {"pads": [0, 1, 0, 1], "strides": [1, 2], "group": 2}),
    "dilated": ((1, 8, 5, 7), 6, (3, 3), {"pads": [0, 2, 0, 2], "dilations": [2, 2], "group": 2}),
    "six channels": ((1, 12, 3, 5), 10, (3, 3), {"pads": [0, 1, 0, 1], "group": 2}),
    "windows wider than rows": ((1, 8, 1, 2), 4, (1, 7), {"pads": [0, 3, 0, 3], "group": 2}),
    "one pixel": ((1, 24, 2, 1), 12, (2, 3), {"pads": [0, 1, 0, 1], "group": 3}),
    "one dimension": ((1, 12, 10), 12, (5,), {"pads": [2, 2], "group": 3}),
}
"""One row of outputs, whose windows leave x at the sides."""
POINTWISE: dict[str, Case] = {
    "eight": ((1, 8, 9, 8), 16, (1, 1), {}),
    "eight, longer than a strip": ((2, 8, 9, 9), 3, (1, 1), {}),
    "four": ((1, 4, 5, 3), 7, (1, 1), {}),
    "few pixels": ((1, 4, 1, 2), 5, (1, 1), {}),
}
ROWS = {f"{n} of {k}": ((1, k), n) for k, n in ((64, 8), (8, 12), (37, 5), (3, 3), (128, 4), (16, 1), (70, 6))}


class Tensor(NamedTuple):
    """Codes by name."""

    name: str
    scale: float
    zero: int


class Layers:
    """Quantized layers side by side, with zero points and scales drawn from a seed."""

    def __init__(self, dtype: type = np.int8, seed: int = 7, result: type | None = None) -> None:
        self.net, self.random = Net(21), np.random.default_rng(seed)
        self.dtype, self.unit = dtype, 1.0 if dtype is np.int8 else 2.0**-8
        self.result = result or dtype
        self.zeros: list[int] = []

    def input(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Codes of the layers' type."""
        return Tensor(self.net.input(f"x {name}", *shape, dtype=self.dtype), 0.05 * self.unit, self.zero())

    def layer(
        self, x: Tensor, weights: np.ndarray, out: str = "", gain: float = 1.0, relu: bool = False, **attributes: object
    ) -> Tensor:
        """A convolution, or a dense layer for weights [N, K], whose results fill `gain` of the output's range."""
        channels, depth = len(weights), weights[0].size
        scales = self.random.uniform(0.005, 0.02, channels).astype(np.float32)
        w = self.per_channel(weights, scales)
        bias = self.per_channel(self.random.integers(-2000, 2000, channels), np.float32(x.scale) * scales, np.int32)
        is_flat = weights.ndim == 2
        real = self.net.dequantize(x.name, x.scale, x.zero, self.dtype)
        y = self.net.op("Gemm" if is_flat else "Conv", real, w, bias, **({"transB": 1} if is_flat else attributes))
        y = self.net.op("Relu", y) if relu else y
        size = x.scale * 0.012 * 75 * max(np.abs(weights).mean(), 1.0) * np.sqrt(depth)
        step, zero = float(size / 60 / gain), self.zero(self.result)
        return Tensor(self.net.quantize(y, step, zero, self.result, out=out), step, zero)

    def per_channel(self, codes: np.ndarray, scales: np.ndarray, dtype: type = np.int8) -> str:
        """Reals of codes with one scale a channel."""
        zeros = self.net.const(0 * scales, dtype)
        return self.net.op("DequantizeLinear", self.net.const(codes, dtype), self.net.const(scales), zeros, axis=0)

    def add(self, name: str, shape: tuple[int, ...], weights: np.ndarray, **more: object) -> None:
        """A layer between an input and an output."""
        self.net.output(self.layer(self.input(name, shape), weights, name, **more).name, dtype=self.result)

    def add_case(self, name: str, case: Case, **more: object) -> None:
        """With random weights, small and large."""
        shape, channels, kernel, attributes = case
        self.add(
            name, shape, self.weights(channels, shape[1] // attributes.get("group", 1), *kernel), **more, **attributes
        )

    def weights(self, *shape: int) -> np.ndarray:
        """Codes of −127 to 127, most of them small."""
        return np.clip(np.rint(self.random.normal(0, 40, shape)), -127, 127).astype(np.int8)

    def zero(self, dtype: type | None = None) -> int:
        """Given, else anything; int16 has none."""
        if (dtype or self.dtype) is np.int16:
            return 0
        return self.zeros.pop(0) if self.zeros else int(self.random.integers(-128, 128))

    def check(
        self,
        kernels: tuple[str, ...],
        boards: tuple[str, ...] = ("host", "nrf52840"),
        taken: bool = True,
        made_for: tuple[str, str] = ("nrf52840", "balanced"),
    ) -> CompiledModel:
        """Each layer takes one of the kernels (`taken`), or some do; the code gives numpy's codes everywhere."""
        model, (target, goal) = self.net.model(), made_for
        compiled = compile_model(model, target, CompileOptions(kernels=kernels, optimize=goal))
        found = {i.kernel for i in compiled.program.instrs if i.operands and any(o.role == "w" for o in i.operands)}
        assert found <= set(kernels) if taken else found & set(kernels)
        feeds = random_feeds(model)
        expected = interpret(compiled.graph, feeds)
        for board in boards:
            run = simulate(
                compiled.bundle, load_board(board), [feeds], measure=False, setup=Setup(sanitize=board == "host")
            )
            assert_close(run.outputs[0], expected)
        return compiled


class FourBits(Layers):
    """With the upper 4 bits of weights."""

    def layer(self, x: Tensor, weights: np.ndarray, *args: object, **more: object) -> Tensor:
        """Whose weights are −8 to 7."""
        return super().layer(x, weights // 16, *args, **more)  # type: ignore[arg-type]


class TwoBits(Layers):
    """With the upper 2 bits of weights."""

    def layer(self, x: Tensor, weights: np.ndarray, *args: object, **more: object) -> Tensor:
        """Whose weights are −2 to 1."""
        return super().layer(x, weights // 64, *args, **more)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- kernels


@pytest.mark.spread(6)
@pytest.mark.parametrize("kernels", [INT8, FOURS, WIDE], ids=lambda k: k[0])
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "clamped"])
def test_windows_of_int8(kernels: tuple[str, ...], relu: bool):
    layers = Layers()
    for name, case in CASES.items():
        layers.add_case(name, case, relu=relu)
    layers.check(kernels)


@pytest.mark.parametrize("board", ["host", *(pytest.param(b, marks=pytest.mark.qemu) for b in ("nrf52840", "rt1060"))])
@pytest.mark.parametrize("kernel", ["conv2d_s8_dsp_short", "conv2d_s8_dsp_fours_short"])
def test_short_loops(board: str, kernel: str):
    """Few steps are written out for the least flash: of one step to several rounds."""
    layers = Layers()
    for name in ("one channel, tall kernel", "odd rows and columns", "long", "one channel out", "loop of whole rounds"):
        layers.add_case(name, CASES[name], relu=name == "long")
    for channels in (8, 16, 24, 32, 40):
        layers.add_case(f"{channels} channels", ((1, channels, 1, 3), 3, (1, 1), {}))
    layers.check((kernel, "conv2d_s8_dsp_short"), (board,), made_for=("nrf52840", "flash"))


@pytest.mark.spread(6)
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "clamped"])
def test_windows_of_int16(relu: bool):
    layers = Layers(np.int16)
    for name, case in CASES.items():
        layers.add_case(name, case, relu=relu)
    layers.check(INT16)


@pytest.mark.qemu
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "clamped"])
def test_int16_by_helium(relu: bool):
    """Weights of a byte widen as they are read; whole vectors where they lie, others gathered, of one pixel too."""
    layers = Layers(np.int16)
    for name, case in (CASES | POINTWISE).items():
        if "group" not in case[3]:
            layers.add_case(name, case, relu=relu)
    for name, (shape, channels) in ROWS.items():
        layers.add(name, shape, layers.weights(channels, shape[1]), relu=relu)
    layers.add("several", (5, 24), layers.weights(7, 24), relu=relu, gain=30.0)
    layers.check(("conv2d_s16_mve",), ("host", "corstone300"), made_for=("corstone300", "balanced"))


@pytest.mark.spread(6)
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "clamped"])
def test_windows_of_few_elements(relu: bool):
    layers = Layers()
    for name, case in (CASES | POINTWISE).items():
        layers.add_case(name, case, relu=relu)
    layers.check(("conv2d_s8_dsp_few", *WIDE))


def test_pixels_of_four_and_eight_channels():
    layers = Layers()
    for name, case in POINTWISE.items():
        layers.add_case(name, case)
    layers.check(("pointwise_s8_dsp",))


@pytest.mark.spread(6)
@pytest.mark.parametrize("kernels", [INT8, WIDE, INT16], ids=lambda k: k[1])
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "clamped"])
def test_rows(kernels: tuple[str, ...], relu: bool):
    layers = Layers(np.int16 if kernels is INT16 else np.int8)
    for name, (shape, channels) in ROWS.items():
        layers.add(name, shape, layers.weights(channels, shape[1]), relu=relu)
    layers.add("several", (5, 20), layers.weights(7, 20), relu=relu)
    layers.check(kernels)


@pytest.mark.spread(6)
@pytest.mark.parametrize("board", OTHER_BOARDS)
def test_other_cpus(board: str):
    """All of them in one model."""
    layers = Layers()
    for name in ("three channels", "one channel, tall kernel", "odd rows and columns", "words", "long"):
        layers.add_case(name, CASES[name])
    layers.add_case("eight", POINTWISE["eight"])
    layers.add("row", (1, 70), layers.weights(6, 70))
    layers.check(INT8, (board,))
    layers.check(FOURS, (board,))
    layers.check(("conv2d_s8_dsp_few", "pointwise_s8_dsp", "conv2d_s8_dsp16", "dense_s8_dsp16"), (board,))


@pytest.mark.spread(6)
@pytest.mark.qemu
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "clamped"])
@pytest.mark.parametrize("kernels", [INT8, FOURS, WIDE, INT16, ("conv2d_s8_dsp_few", *WIDE)], ids=lambda k: k[0])
def test_loads_beside_products(kernels: tuple[str, ...], relu: bool):
    """What a Cortex-M7 runs for the goal of speed."""
    layers = Layers(np.int16 if kernels is INT16 else np.int8)
    for name, case in CASES.items():
        layers.add_case(name, case, relu=relu)
    for name, (shape, channels) in ROWS.items():
        layers.add(name, shape, layers.weights(channels, shape[1]), relu=relu)
    layers.check(kernels, ("rt1060",), made_for=("rt1060", "speed"))


def test_loads_beside_products_take_less_time():
    """On the Cortex-M7, though there are more instructions; `ram` does without these."""
    layers = Layers()
    layers.add("y", (1, 64, 5, 4), layers.weights(16, 64, 1, 1))
    layers.add("z", (1, 128), layers.weights(32, 128))
    model, found = layers.net.model(), {}
    for goal in ("ram", "speed"):
        options = CompileOptions(kernels=INT8, optimize=goal)
        compiled = compile_model(model, "stm32h7a3", options)
        run = compiled.simulate([random_feeds(model)], cycles=True)
        assert run.cycles is not None and run.cycles.total is not None and run.instructions is not None
        found[goal] = run.cycles.total, run.instructions
    assert found["speed"][0] < 0.85 * found["ram"][0]
    assert found["speed"][1] > found["ram"][1]


@pytest.mark.parametrize("kernels", [INT8, FOURS, WIDE], ids=lambda k: k[0])
def test_extreme_zero_points_and_saturation(kernels: tuple[str, ...]):
    """Results far outside the codes; the largest sums; padding by −128 and 127."""
    layers = Layers()
    case = CASES["odd rows and columns"]
    for index, (x_zero, y_zero) in enumerate([(-128, -128), (127, 127), (-128, 127), (0, 0)]):
        layers.zeros = [x_zero, y_zero]
        layers.add_case(f"wide {index}", case, gain=30.0, relu=index == 3)
        layers.zeros = [x_zero, y_zero]
        layers.add(f"all {index}", (1, 24, 2, 3), np.full((3, 24, 2, 2), 127 if index % 2 else -127, np.int8))
        layers.zeros = [x_zero, y_zero]
        layers.add(f"row {index}", (1, 40), np.full((5, 40), -127, np.int8), gain=0.1)
    layers.check(kernels)


def test_scales_from_a_half_on():
    """The widened weights take the shift; pairs of int8 weights cannot."""
    layers = Layers()
    layers.add_case("coarse", CASES["words"], gain=900.0)
    layers.add("row", (1, 24), layers.weights(5, 24), gain=900.0)
    compiled = layers.check(WIDE)
    assert not any(
        kernel.fits(node, frozenset({"dsp"}))
        for node in compiled.graph.nodes
        if node.op.name in ("conv", "dense")
        for kernel in DSP_KERNELS
        if kernel.name in INT8
    )


def test_long_sums_are_left_to_others():
    """More than 24 bits of an odd channel, but not of an even one, keep pairs of int8 weights away from pixels."""
    for channels, fits in (((127, 1, 127), True), ((1, 127, 1), False)):
        layers = Layers()
        weights = np.repeat(np.asarray(channels, np.int8)[:, None], 600, axis=1)
        layers.zeros = [-128, 0]
        layers.add("pixels", (1, 600, 1, 2), weights[:, :, None, None])
        node = next(n for n in compile_model(layers.net.model()).graph.nodes if n.op.name in ("conv", "dense"))
        kernel = next(k for k in DSP_KERNELS if k.name == "conv2d_s8_dsp")
        assert kernel.fits(node, frozenset({"dsp"})) == fits
        layers.check(("conv2d_s8_dsp",) if fits else ("conv2d_s8_dsp16",))


@pytest.mark.parametrize("kernel", ["dense_s8_dsp", "dense_s8_dsp_direct"])
def test_long_rows_are_taken_in_parts(kernel: str):
    """As behind the flattened maps of a CNN; the first part has a step, a round, or all that a part may have."""
    layers = Layers()
    for depth in (456, 512, 896, 904, 1344, 2048):
        layers.zeros = [-128, 0]
        layers.add(f"largest {depth}", (1, depth), np.full((5, depth), 127, np.int8), gain=0.2)
        layers.zeros = [127, -128]
        layers.add(f"least {depth}", (1, depth), np.full((4, depth), -127, np.int8), gain=0.2, relu=True)
    layers.add("usual", (1, 3200), layers.weights(10, 3200))
    layers.check((kernel,))


sizes = st.integers(1, 9)


@st.composite
def windows(draw: st.DrawFn) -> Case:
    """Any convolution of a few pixels."""
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilations, strides = (
        draw(st.tuples(st.integers(1, 2), st.integers(1, 3))),
        draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
    )
    pads = draw(st.tuples(*[st.integers(0, 2)] * 4))
    least = [max(1, d * (k - 1) + 1 - a - b) for d, k, a, b in zip(dilations, kernel, pads[:2], pads[2:], strict=True)]
    space = tuple(n + draw(st.integers(0, 6)) for n in least)
    shape = (draw(st.integers(1, 2)), draw(st.sampled_from([1, 2, 3, 4, 5, 8, 10, 12, 16, 24])), *space)
    return shape, draw(sizes), kernel, {"strides": list(strides), "dilations": list(dilations), "pads": list(pads)}


@settings(max_examples=4, deadline=None)
@given(
    st.lists(windows(), min_size=8, max_size=12),
    st.integers(0, 2**16),
    st.sampled_from([INT8, FOURS, WIDE, INT16, FEW]),
)
def test_any_window(cases: list[Case], seed: int, kernels: tuple[str, ...]):
    layers = Layers(np.int16 if kernels is INT16 else np.int8, seed)
    for number, case in enumerate(cases):
        layers.add_case(f"y{number}", case, relu=number % 2 == 1)
    layers.add_case("pixels", CASES["odd rows and columns"])
    layers.add("row", (1, 9), layers.weights(2, 9))
    layers.check(kernels, taken=False)


# ------------------------------------------------------------------------------------------------ in place

CHAINS: dict[str, tuple[Case, bool]] = {
    "pixels": ((1, 8, 5, 7), 8, (1, 1), {}),
    "fewer channels": ((2, 16, 3, 3), 5, (1, 1), {}),
    "padded": ((1, 12, 6, 5), 12, (3, 3), {"pads": [1, 1, 1, 1]}),
    "padded, three channels": ((1, 3, 6, 6), 3, (3, 3), {"pads": [1, 1, 1, 1]}),
    "strided": ((2, 8, 8, 8), 16, (2, 2), {"strides": [2, 2]}),
    "one above the other": ((1, 8, 8, 7), 8, (3, 3), {}),
    "four channels": ((1, 4, 9, 20), 4, (1, 1), {}),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("kernel", ["conv2d_s8_dsp", "conv2d_s8_dsp_fours", "conv2d_s8_dsp_few", "pointwise_s8_dsp"])
def test_outputs_may_overwrite_inputs(kernel: str):
    """Each layer follows another, whose result nobody else needs."""
    layers = Layers()
    for name, (shape, channels, size, attributes) in CHAINS.items():
        x = layers.layer(layers.input(name, shape), layers.weights(shape[1], shape[1], 1, 1))
        layers.net.output(
            layers.layer(x, layers.weights(channels, shape[1], *size), name, **attributes).name, dtype=np.int8
        )
    x = layers.layer(layers.input("row", (1, 30)), layers.weights(30, 30))
    layers.net.output(layers.layer(x, layers.weights(30, 30), "row").name, dtype=np.int8)
    program = layers.check((kernel, *INT8)).program
    over = {i.name for i in program.instrs if i.name in (*CHAINS, "row") and share(i) > 0.7}
    assert over >= {"row", "pixels", "fewer channels", "four channels"}
    if kernel == "conv2d_s8_dsp":
        assert over >= {"padded", "padded, three channels", "strided"}


# ------------------------------------------------------------------------------------------------- packing


@given(st.integers(1, 12), st.integers(1, 40), st.booleans())
def test_every_element_has_one_place(count: int, length: int, gathered: bool):
    runs = Runs(count, length, GROUP, gathered)
    for slots in (SXTB16_ORDER, tuple(range(GROUP))):
        elements = runs.elements(slots)
        assert elements.shape == (runs.groups, GROUP)
        assert sorted(elements[elements >= 0]) == list(range(count * length))


def test_leftovers_are_gathered_where_that_saves_groups():
    shape = ConvShape(1, 8, 8, 3, 8, 8, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1)
    assert runs_of(shape, is_unrolled=True).groups == 7
    assert runs_of(shape, is_unrolled=False).groups == 9


def test_x_is_read_where_it_lies_unless_padded():
    inside = ConvShape(1, 9, 9, 8, 4, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0, 1)
    assert not choose_row_source(inside).is_padded
    outside = ConvShape(1, 9, 9, 8, 5, 5, 4, 3, 3, 2, 2, 1, 1, 1, 1, 1)
    assert choose_row_source(outside).is_padded
    assert choose_row_source(outside).rows_per_pair == 1


@pytest.mark.parametrize("kernel", [k[0] for k in (INT8, WIDE, INT16, FEW)])
def test_rows_of_groups(kernel: str):
    layers = Layers(np.int16 if kernel in INT16 else np.int8)
    for name, case in GROUPED_ROWS.items():
        layers.add_case(name, case)
    program = layers.check((kernel,), ("host", "nrf52840", "corstone300"), taken=False).program
    edged = [i for i in program.instrs if "edged" in i.variant]
    assert edged
    assert not [o for i in edged for o in i.operands if o.role == "ring"]


@pytest.mark.parametrize("kernel", ["conv2d_s4_dsp", "conv2d_s4_dsp_fours"])
def test_rows_of_groups_by_four_bits(kernel: str):
    layers = FourBits()
    for name, case in GROUPED_ROWS.items():
        layers.add_case(name, case)
    layers.check((kernel,), taken=False)


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "corstone300"])
def test_layers_of_groups_by_rows_are_fast(board: str):
    """Which plain C computed before, in three times as many."""
    layers = Layers()
    x = layers.layer(layers.input("x", (1, 3, 48, 48)), layers.weights(32, 3, 3, 3), pads=[1] * 4)
    x = layers.layer(x, layers.weights(32, 8, 3, 3), pads=[1] * 4, group=4)
    layers.layer(x, layers.weights(3, 32, 1, 1), "y")
    layers.net.output("y", dtype=np.int8)
    model = layers.net.model()
    compiled = compile_model(model, board, CompileOptions(optimize="ram"))
    assert compiled.report.rows, "by rows"
    feeds = random_feeds(model)
    run = compiled.simulate([feeds])
    assert_close(run.outputs[0], interpret(compiled.graph, feeds))
    assert run.instructions is not None
    assert run.instructions < 1.3 * compiled.report.model.macs
    plain = compile_model(model, board, CompileOptions(optimize="ram", kernels=("conv2d_s8",)))
    assert compiled.program.arena_size < 1.02 * plain.program.arena_size, "a patch of two pixels more"


def test_windows_of_single_elements_are_read_where_they_lie():
    """EEGNet's spatial filter: channel by channel over all electrodes, whose elements the packer gathers one by one."""
    layers = Layers()
    layers.add("y", (1, 8, 22, 24), layers.weights(16, 1, 22, 1), group=8)
    program = layers.check(("conv2d_s8_dsp_few",)).program
    (conv,) = [i for i in program.instrs if i.kernel == "conv2d_s8_dsp_few"]
    assert not [o for o in conv.operands if o.role == "ring" and o.buffer.count]


def test_scratch_is_a_ring_a_patch_and_a_table():
    layers = Layers()
    layers.add("y", (1, 16, 8, 8), layers.weights(4, 16, 3, 3), pads=[1, 1, 1, 1])
    program = layers.check(("conv2d_s8_dsp16",), ("host",)).program
    (conv,) = [i for i in program.instrs if i.kernel == "conv2d_s8_dsp16"]
    scratch = {o.role: o.buffer.nbytes for o in conv.operands if o.access is Access.SCRATCH}
    assert scratch["patch"] == 2 * 2 * 16 * 9
    assert 3 * 10 * 16 <= scratch["ring"] < 3 * 11 * 16
