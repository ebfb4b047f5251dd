# SPDX-License-Identifier: Apache-2.0
"""Winograd's convolutions of floats: numpy's results on every CPU with an FPU, and for whom they are taken."""

from __future__ import annotations

import numpy as np
import pytest
from checks import share
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import Feeds, numpy_outputs, optimized, random_feeds
from scipy.signal import correlate2d
from shared_models import MODELS, roomy
from test_float_kernels import CLAMPS, Layers, check_on, check_plain

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Node
from mcugen.kernels.fpu.fpu_winograd import FPU_WINOGRAD_CONV, transform_weights

KERNEL, DIRECT = "conv2d_f32_winograd", "conv2d_f32_fpu"
BOARDS = ["nrf52840", "rt1060", "nrf5340", "corstone300", "rv32imafc"]
FPU = frozenset({"fpu"})


def sizes() -> Layers:
    """Every remainder of rows and tiles, every side of padding, channels by fours."""
    layers = Layers()
    for height, width in ((1, 1), (1, 9), (2, 3), (3, 2), (5, 4), (6, 10), (4, 17), (3, 16)):
        layers.conv((1, 8, height, width), 4, 3, 3, pads=(1, 1, 1, 1))
    for index, pads in enumerate(((0, 0, 0, 0), (0, 2, 1, 0), (2, 0, 0, 1), (1, 0, 2, 2), (3, 4, 2, 3))):
        layers.conv((1 + index % 2, 12, 4, 11), 8, 3, 3, pads=pads, clamp="relu")
    layers.conv((1, 8, 1, 2), 4, 3, 3, pads=(3, 4, 2, 13))
    for inputs, outputs in ((16, 12), (20, 4), (36, 8), (64, 20)):
        layers.conv((1, inputs, 6, 9), outputs, 3, 3, pads=(1, 1, 1, 1))
    for clamp in CLAMPS:
        layers.conv((1, 8, 5, 13), 8, 3, 3, pads=(1, 1, 1, 1), clamp=clamp)
    return layers


def node_of(layers: Layers) -> Node:
    """The only convolution."""
    (node,) = (n for n in optimized(layers.net.model()).nodes if n.op.mnemonic == "conv")
    return node


def single(*sizes: int, **attributes: object) -> Layers:
    """A layer of x [N, C, H, W] with so many outputs."""
    layers = Layers()
    layers.conv(sizes[:4], sizes[4], 3, 3, **attributes)  # type: ignore[arg-type]
    return layers


def kernels_of(layers: Layers, board: str, **options: object) -> set[str]:
    program = compile_model(layers.net.model(), board, CompileOptions(**options)).program  # type: ignore[arg-type]
    return {instr.kernel for instr in program.instrs if instr.macs}


def test_plain_c_gives_what_numpy_gives():
    check_plain(BOARDS[0], sizes(), KERNEL)


@pytest.mark.spread(5)
@pytest.mark.qemu
@pytest.mark.parametrize("goal", ["balanced", "speed"])  # the latter adds products apart from them on M4 and M33
@pytest.mark.parametrize("board", BOARDS)
def test_every_cpu_gives_what_numpy_gives(board: str, goal: str):
    built = sizes()
    assert kernels_of(built, board, kernels=(KERNEL,)) == {KERNEL}
    check_on(board, built, KERNEL, goal=goal)


@settings(max_examples=5, deadline=None)
@given(st.data())
def test_any_layer(data: st.DataObject):
    layers = Layers()
    for _ in range(4):
        sizes = [data.draw(st.integers(least, most)) for least, most in ((1, 2), (2, 5), (1, 9), (1, 19), (1, 4))]
        pads = tuple(data.draw(st.integers(1, 3)) for _ in range(4))
        batch, fours, height, width, outputs = sizes
        clamp = data.draw(st.sampled_from(list(CLAMPS)))
        layers.conv((batch, 4 * fours, height, width), 4 * outputs, 3, 3, pads=pads, clamp=clamp)
    check_plain(BOARDS[0], layers, KERNEL)


def with_strangers(layers: Layers) -> Feeds:
    """Inputs with a NaN and an infinity of either sign."""
    feeds = random_feeds(layers.net.model())
    for index, x in enumerate(feeds.values()):
        x[0, 1, 2, 2 + index] = np.copysign(np.float32(np.nan), (-1) ** index)
        x[0, 3, 7, 9 - index] = np.inf * (-1) ** index
    return feeds


@pytest.mark.spread(2)
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "rt1060"])
def test_strangers_reach_the_outputs_that_read_them_alone(board: str):
    layers = Layers()
    for clamp in CLAMPS:
        layers.conv((1, 8, 10, 13), 4, 3, 3, pads=(1, 1, 1, 1), clamp=clamp)
    feeds = with_strangers(layers)
    found = layers.compile(board, KERNEL, goal="speed").simulate([feeds], measure=False).outputs[0]
    with np.errstate(invalid="ignore"):
        expected = numpy_outputs(layers.net.model(), feeds)
    for x, (name, y) in zip(feeds.values(), expected.items(), strict=True):
        strange = correlate2d((~np.isfinite(x[0])).any(0), np.ones((3, 3)), "same") > 0
        np.testing.assert_allclose(found[name][0][:, ~strange], y[0][:, ~strange], rtol=2e-5, atol=1e-4)
        assert np.isnan(found[name])[np.isnan(y)].all()
        assert np.isnan(y).any()


def test_outputs_may_overwrite_inputs():
    layers = Layers()
    x = layers.net.op("Conv", layers.input(1, 1, 32, 32), layers.constant(8, 1, 3, 3), pads=[1, 1, 1, 1])
    layers.clamped(layers.net.op("Conv", x, layers.constant(8, 8, 3, 3), layers.constant(8), pads=[1] * 4), "relu")
    compiled = layers.compile(BOARDS[0], KERNEL)
    (conv,) = (i for i in compiled.program.instrs if i.kernel == KERNEL)
    assert share(conv) > 0.8
    check_plain(BOARDS[0], layers, KERNEL)


def test_products_in_the_transformed_domain_are_the_convolution():
    random = np.random.default_rng(2)
    image, taps = random.standard_normal((4, 4)), random.standard_normal((1, 3, 3, 1))
    before = np.asarray([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    after = np.asarray([[1, 1, 1, 0], [0, 1, -1, -1]])
    product = transform_weights(taps)[0, :, :, 0] * (before @ image @ before.T)
    np.testing.assert_allclose(after @ product @ after.T, correlate2d(image, taps[0, :, :, 0], "valid"), rtol=1e-5)


@pytest.mark.parametrize(
    "layers",
    [
        single(1, 4, 6, 8, 4),
        single(1, 10, 6, 8, 4),
        single(1, 8, 6, 8, 6),
        single(1, 8, 9, 9, 8, strides=(2, 2)),
        single(1, 8, 9, 9, 8, dilations=(1, 2)),
        single(1, 16, 9, 9, 16, group=2),
    ],
)
def test_other_convolutions_are_left_to_other_kernels(layers: Layers):
    assert not FPU_WINOGRAD_CONV[0].fits(node_of(layers), FPU)
    assert FPU_WINOGRAD_CONV[0].fits(node_of(single(1, 8, 6, 8, 4)), FPU)
    assert not FPU_WINOGRAD_CONV[0].fits(node_of(single(1, 8, 6, 8, 4)), frozenset())


@pytest.mark.parametrize("number", [np.inf, np.nan, 3e38])
def test_weights_must_be_numbers_before_and_after(number: float):
    layers = Layers()
    weights = np.ones((4, 8, 3, 3), np.float32)
    weights[1] = number
    layers.clamped(layers.net.op("Conv", layers.input(1, 8, 6, 6), layers.net.const(weights)), "")
    assert not FPU_WINOGRAD_CONV[0].fits(node_of(layers), FPU)


def test_speed_takes_it_and_others_where_asked_by_name():
    layers = single(1, 16, 16, 16, 16, pads=(1, 1, 1, 1))
    assert kernels_of(layers, "nrf52840", optimize="speed") == {KERNEL}
    assert kernels_of(layers, "nrf52840") == {KERNEL}  # which has the memory four times
    for goal in ("balanced", "ram", "flash"):
        assert KERNEL not in kernels_of(layers, "stm32f411", optimize=goal)
        assert kernels_of(layers, "nrf52840", optimize=goal, kernels=(KERNEL,)) == {KERNEL}
    assert KERNEL not in kernels_of(layers, "nrf52840", optimize="speed", updatable=True)


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["nrf52840", "rt1060"])
def test_it_takes_much_less_time(board: str):
    layers = single(1, 32, 16, 16, 32, pads=(1, 1, 1, 1))
    feeds = [random_feeds(layers.net.model())]

    def cycles(kernel: str) -> int:
        found = layers.compile(board, kernel, goal="speed").simulate(feeds, cycles=True).cycles
        assert found is not None and found.without_waits is not None
        return found.without_waits

    assert cycles(KERNEL) < 0.62 * cycles(DIRECT)


@pytest.mark.shared
def test_weights_that_start_up_copies_are_not_made_too_many_for_that():
    """ResNet-8's with four layers transformed are more than two thirds of the RAM of an i.MX RT1062."""
    found = compile_model(MODELS / "resnet8_cifar10_f32.onnx", "rt1060", CompileOptions(optimize="speed"))
    assert any("start-up copies" in note for note in found.report.notes)
    assert KERNEL in {instr.kernel for instr in found.program.instrs}
    everywhere = compile_model(MODELS / "resnet8_cifar10_f32.onnx", roomy("nrf52840"), CompileOptions(optimize="speed"))
    assert found.program.weights_size < everywhere.program.weights_size
