# SPDX-License-Identifier: Apache-2.0
"""Winograd's convolutions are exact: the bits of the direct one, for every size, clamp and CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from checks import check_c, share
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx_models import Net, assert_close, numpy_outputs, optimized, random_feeds
from scipy.signal import correlate2d
from shared_models import roomy

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.kernels.dsp.winograd import WINOGRAD_CONV, pair_channels, transform_weights
from mcugen.lir.kernel import SHORT_LOOPS

KERNELS = [kernel.name for kernel in WINOGRAD_CONV]
FORMS = [name for name in KERNELS if "_t" not in name or name.endswith("_t8") or "_short" in name]
"""Strips of other sizes have the same code."""
DSP = [kernel.name for kernel in WINOGRAD_CONV if kernel.needs]
FEATURES = frozenset({"dsp", SHORT_LOOPS})
DSP_BOARDS = ["nrf52840", "rt1060", "nrf5340", "corstone300"]
PLAIN_BOARDS = ["stm32f103", "rp2040", "nrf52840"]


@dataclass(frozen=True)
class Layer:
    """An int8 convolution of 3×3 with its surroundings; `size` is the output scale, in typical sums."""

    height: int = 6
    width: int = 8
    in_c: int = 8
    out_c: int = 4
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    batch: int = 1
    x_zero: int = -5
    y_zero: int = 9
    clamp: tuple[float, float] | None = None
    """In units of the output scale."""
    size: float = 1.0
    extreme: bool = False
    """Whether weights are 127 or -127."""

    def fits(self) -> bool:
        """Whether a pixel remains."""
        return self.height + self.pads[0] + self.pads[2] > 2 and self.width + self.pads[1] + self.pads[3] > 2


def model(layers: Sequence[Layer], seed: int = 0):
    """Independent layers, from x{i} to y{i}."""
    net, random = Net(), np.random.default_rng(seed)
    for i, layer in enumerate(layers):
        shape = (layer.batch, layer.in_c, layer.height, layer.width)
        x = net.dequantize(net.input(f"x{i}", *shape, dtype=np.int8), 0.05, layer.x_zero)
        weights = random.integers(-127, 128, (layer.out_c, layer.in_c, 3, 3))
        codes = net.const(np.where(weights < 0, -127, 127) if layer.extreme else weights, np.int8)
        scales = random.uniform(0.005, 0.02, layer.out_c).astype(np.float32)
        w = net.op("DequantizeLinear", codes, net.const(scales), net.const(0 * scales, np.int8), axis=0)
        sums = net.const(random.integers(-2000, 2000, layer.out_c), np.int32)
        unit = [net.const(np.float32(0.05) * scales), net.const([0] * layer.out_c, np.int32)]
        y = net.op("Conv", x, w, net.op("DequantizeLinear", sums, *unit, axis=0), pads=layer.pads)
        scale = 0.05 * 0.0125 * 75 * 75 * (9 * layer.in_c) ** 0.5 / 40 * layer.size
        if layer.clamp:
            y = net.op("Clip", y, *(net.const(bound * scale) for bound in layer.clamp))
        net.output(net.quantize(y, float(scale), layer.y_zero, out=f"y{i}"), dtype=np.int8)
    return net.model()


def compiled_for(layers: Sequence[Layer], kernel: str, board: str) -> CompiledModel:
    """All layers by one kernel, on a board with memory for them."""
    goal = "speed" if board == "rt1060" else "balanced"  # for which a Cortex-M7 has loops of its own
    goal = "flash" if "_short" in kernel else goal
    compiled = compile_model(model(layers), roomy(board), CompileOptions(kernels=(kernel,), optimize=goal))
    assert [i.kernel for i in compiled.program.instrs if i.macs] == [kernel] * len(layers)
    return compiled


def check_twin(layers: Sequence[Layer], kernel: str) -> None:
    """The plain C of a kernel, under the sanitizers and all compilers."""
    compiled = replace(compiled_for(layers, kernel, "nrf52840"), board=load_board("host"))
    feeds = random_feeds(compiled.model)
    check_c(compiled, feeds, numpy_outputs(compiled.model, feeds))


SIZES = [Layer(height=h, width=w) for h, w in ((1, 1), (1, 9), (2, 3), (3, 2), (5, 4), (6, 10), (4, 17))]
CHANNELS = [
    *(Layer(in_c=c, out_c=o, width=9) for c, o in ((8, 2), (12, 3), (16, 5), (20, 7), (36, 2), (44, 3), (64, 4))),
]
CLAMPS = [
    *(Layer(clamp=clamp, y_zero=zero) for clamp in ((0.0, 1e9), (-1e9, 20.0), (-30.0, 12.0)) for zero in (-128, 3)),
]
SURROUNDINGS = [
    Layer(pads=(0, 0, 0, 0)),
    Layer(pads=(0, 2, 1, 0), batch=2),
    Layer(pads=(3, 4, 2, 3), height=1, width=2),
    Layer(batch=3, height=5, width=5, in_c=12),
    Layer(x_zero=127, y_zero=-128),
    Layer(x_zero=-128, y_zero=127, size=0.01),
]
VALID = [
    Layer(pads=(0, 0, 0, 0), height=4, width=10),
    Layer(pads=(0, 0, 0, 0), height=8, width=18, in_c=12, out_c=5, batch=2),
]
"""Blocks are all within x: they are read where it lies."""
SUMS = [
    Layer(extreme=True, in_c=64, height=4, x_zero=127),
    Layer(extreme=True, in_c=64, height=4, x_zero=-128, size=8.0),
    *(Layer(size=size) for size in (0.0018, 0.012, 1.0, 1e3)),
]
ALL = [*SIZES, *CHANNELS, *CLAMPS, *SURROUNDINGS, *VALID, *SUMS]


@pytest.mark.spread(4)
@pytest.mark.parametrize("kernel", FORMS)
def test_twins_give_the_bits_of_the_reference(kernel: str) -> None:
    check_twin(ALL, kernel)


layers = st.builds(
    Layer,
    height=st.integers(1, 9),
    width=st.integers(1, 19),
    in_c=st.integers(2, 12).map(lambda fours: 4 * fours),
    out_c=st.integers(2, 9),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    batch=st.integers(1, 2),
    x_zero=st.integers(-128, 127),
    y_zero=st.integers(-128, 127),
    clamp=st.sampled_from([None, (0.0, 1e9), (-20.0, 20.0)]),
    size=st.floats(0.1, 3.0),
).filter(Layer.fits)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(layers, min_size=6, max_size=6), st.sampled_from(KERNELS))
def test_random_layers(drawn: list[Layer], kernel: str) -> None:
    check_twin(drawn, kernel)


@pytest.mark.spread(6)
@pytest.mark.parametrize("kernel", FORMS)
def test_outputs_may_overwrite_inputs(kernel: str) -> None:
    layers = [Layer(in_c=8, out_c=8), Layer(in_c=12, out_c=9, height=5, batch=2), Layer(in_c=8, out_c=9)]
    compiled = compiled_for(layers, kernel, "nrf52840")
    convolutions = [i for i in compiled.program.instrs if i.macs]
    assert min(map(share, convolutions)) > 0.6
    check_twin([*layers, *VALID], kernel)


@pytest.mark.spread(8)
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("board", "kernel"),
    [(b, k) for b in DSP_BOARDS for k in FORMS if k in DSP]
    + [(b, k) for b in PLAIN_BOARDS for k in FORMS if k not in DSP],
)
def test_every_cpu_gives_the_bits_of_the_reference(board: str, kernel: str) -> None:
    compiled = compiled_for(ALL, kernel, board)
    feeds = random_feeds(compiled.model)
    outputs = compiled.simulate([feeds], measure=False).outputs[0]
    assert_close(outputs, numpy_outputs(compiled.model, feeds))


def test_products_in_the_transformed_domain_are_the_convolution() -> None:
    random = np.random.default_rng(2)
    image, taps = random.integers(-128, 128, (4, 4)), random.integers(-127, 128, (1, 3, 3, 1))
    before = np.asarray([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    after = np.asarray([[1, 1, 1, 0], [0, 1, -1, -1]])
    product = transform_weights(taps)[0, :, :, 0] * (before @ image @ before.T)
    assert np.array_equal(after @ product @ after.T, 4 * correlate2d(image, taps[0, :, :, 0], "valid"))


def test_transformed_values_fit_in_16_bits() -> None:
    assert np.abs(transform_weights(np.full((1, 3, 3, 4), -128))).max() == 9 * 128


@pytest.mark.parametrize("channels", range(2, 9))
def test_pairs_cover_all_channels(channels: int) -> None:
    found = pair_channels(channels)
    assert set(found.reshape(-1)) == set(range(channels))
    assert (found[:, 1] == found[:, 0] + 1).all()


@pytest.mark.parametrize(
    ("layer", "attributes"),
    [
        (Layer(in_c=4), {}),
        (Layer(in_c=10), {}),
        (Layer(out_c=1), {}),
        (Layer(size=1e-5), {}),
        (Layer(), {"strides": [2, 2]}),
        (Layer(width=9, height=9), {"dilations": [1, 2]}),
    ],
)
def test_other_convolutions_are_left_to_other_kernels(layer: Layer, attributes: dict[str, list[int]]) -> None:
    made = model([layer])
    (conv,) = (node for node in made.graph.node if node.op_type == "Conv")
    conv.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    (node,) = (n for n in optimized(made).nodes if n.op.mnemonic == "conv")
    assert not any(kernel.fits(node, FEATURES) for kernel in WINOGRAD_CONV)
    (plain,) = (n for n in optimized(model([Layer()])).nodes if n.op.mnemonic == "conv")
    assert all(kernel.fits(plain, FEATURES) for kernel in WINOGRAD_CONV)


@pytest.mark.parametrize(("height", "has_rows"), [(4, False), (6, True)])
def test_weights_come_where_the_rows_were_if_a_strip_is_all(height: int, has_rows: bool) -> None:
    """A strip of 8 tiles is 4 rows of 8 pixels."""
    compiled = compiled_for([Layer(height=height)], "conv2d_s8_winograd_fly_dsp_t8", "nrf52840")
    (call,) = (instr for instr in compiled.program.instrs if instr.macs)
    assert ("rows" in [operand.role for operand in call.operands]) is has_rows


@pytest.mark.parametrize("kernel", FORMS)
def test_no_row_is_copied_where_blocks_are_within_the_input(kernel: str) -> None:
    compiled = compiled_for([Layer(height=6), *VALID], kernel, "nrf52840")
    calls = [instr for instr in compiled.program.instrs if instr.macs]
    copied = ["rows" in [operand.role for operand in call.operands] for call in calls]
    assert not any(copied[1:])
    assert copied[0] or "fly" in kernel  # whose only strip has rows in the place of weights
