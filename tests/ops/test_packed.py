# SPDX-License-Identifier: Apache-2.0
"""Weights of few bits with a scale a group: they stay packed in flash, and results are ONNX Runtime's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from checks import assert_close, check_c
from onnx import TensorProto, helper
from onnx_models import Feeds, Net, onnxruntime_outputs, random_feeds

from mcugen.core.board import Board, load_board
from mcugen.core.options import CompileOptions, Places
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array
from mcugen.kernels.portable.packed import GroupRequantizer, PackedWeights

SMALL = CompileOptions(optimize="flash")

STORED = {4: TensorProto.INT4, 8: TensorProto.INT8}
X, Y = (0.021, 3), (0.11, -5)


@dataclass(frozen=True)
class Layer:
    """A product with weights of so many bits between -2^(b-1) and its opposite, and a bias behind it."""

    bits: int
    block: int | None = 32
    zeros: bool = False
    codes: bool = False
    """Whether the input is quantized."""
    real: bool = False
    """Whether a quantized input's result is not."""
    depth: int = 64

    @property
    def in_flash(self) -> int:
        """Bytes of the weights alone."""
        groups = [self.block or self.depth] * (self.depth // (self.block or self.depth))
        rest = self.depth - sum(groups)
        return CHANNELS * sum(-(-k * self.bits // 8) for k in [*groups, *[rest] * (rest > 0)])


CHANNELS = 24
LAYERS = {
    "int4 by 32": Layer(4),
    "int4 by 64": Layer(4, 64),
    "int4 by 128 of 200": Layer(4, 128, depth=200),
    "int4 by 32, zero points": Layer(4, zeros=True),
    "int4 by 9, odd": Layer(4, 9, depth=67),
    "int8 by 32": Layer(8),
    "int8 by 32, zero points": Layer(8, zeros=True),
    "int2 by 16": Layer(2, 16),
    "int4 by channel": Layer(4, None),
    "int8 by channel": Layer(8, None),
    "codes by int4 by 32": Layer(4, codes=True),
    "codes by int4 by 9, odd, zero points": Layer(4, 9, zeros=True, codes=True, depth=67),
    "codes by int8 by 32": Layer(8, codes=True),
    "codes by int2 by 16": Layer(2, 16, codes=True),
    "codes by int4 by 32, a real result": Layer(4, codes=True, real=True),
    "codes by int8 by 64, a real result, zero points": Layer(8, 64, zeros=True, codes=True, real=True),
}


def _weights(net: Net, name: str, layer: Layer, channels: int, random: np.random.Generator) -> str:
    kind, half = STORED.get(layer.bits, TensorProto.INT4), 1 << (layer.bits - 1)
    low, high = (-half, half) if not layer.zeros else (-half + 1, half)

    def constant(what: str, shape: tuple[int, ...]) -> str:
        numbers = random.integers(low, high, shape).reshape(-1).tolist()
        net.constants.append(helper.make_tensor(f"{name}{what}", kind, shape, numbers))
        return f"{name}{what}"

    codes = constant("codes", (layer.depth, channels))
    groups = () if layer.block is None else (-(-layer.depth // layer.block),)
    scales = net.const(random.uniform(0.01, 0.02, (*groups, channels)) * 2 ** (4 - layer.bits))
    zeros = [constant("zeros", (*groups, channels))] if layer.zeros else []
    how = {"axis": 1} if layer.block is None else {"axis": 0, "block_size": layer.block}
    return net.op("DequantizeLinear", codes, scales, *zeros, **how)


def model_of(layers: dict[str, Layer], rows: int = 6, channels: int = CHANNELS) -> tuple[Net, list[str]]:
    """All layers side by side."""
    net, results = Net(21), []
    for at, layer in enumerate(layers.values()):
        random = np.random.default_rng(at)
        x = net.input(f"x{at}", 1 if at % 3 == 2 and rows == 6 else rows, layer.depth)
        if layer.codes:
            x = net.dequantize(net.quantize(x, *X), *X)
        product = net.op("MatMul", x, _weights(net, f"w{at}", layer, channels, random))
        summed = net.op("Add", product, net.const(random.standard_normal(channels)))
        y = net.op("Relu", summed) if at % 2 else summed
        if layer.codes and not layer.real:
            y = net.dequantize(net.quantize(y, *Y), *Y)
        results.append(net.op("Identity", y, out=f"y{at}"))
        net.output(results[-1])
    return net, results


@dataclass
class Built:
    compiled: CompiledModel
    feeds: Feeds
    expected: Feeds
    found: Feeds


@pytest.fixture(scope="module")
def built() -> Built:
    net, _ = model_of(LAYERS)
    model = net.model()
    compiled, feeds = compile_model(model, options=SMALL), random_feeds(model, 5)
    return Built(compiled, feeds, onnxruntime_outputs(model, feeds), interpret(compiled.graph, feeds))


@pytest.mark.parametrize("name", LAYERS)
def test_results_are_those_of_onnxruntime(built: Built, name: str):
    at = list(LAYERS).index(name)
    off = np.abs(built.found[f"y{at}"].astype(np.float64) - built.expected[f"y{at}"])
    layer = LAYERS[name]
    assert off.max() <= (Y[0] * 1.001 if layer.codes and not layer.real else 2e-5)
    assert (off > 1e-4).mean() < 0.02
    assert np.abs(built.expected[f"y{at}"]).max() > 1


def test_c_computes_the_same(built: Built):
    """Codes to the last bit."""
    check_c(built.compiled, built.feeds, built.found)


TILED = ("int4 by 32", "int4 by 9, odd", "int4 by 32, zero points", "int8 by channel", "int2 by 16", "int8 by 32")


@pytest.fixture(scope="module")
def tiled() -> Net:
    """Of 39 rows the last three are no four, of 21 channels the last five no eight."""
    return model_of({name: LAYERS[name] for name in TILED}, rows=39, channels=21)[0]


@pytest.mark.parametrize("board", ["nrf52840", "corstone300"])
def test_many_rows_share_weights_that_become_floats_once(tiled: Net, board: str):
    """As places are told: else `balanced` has floats where memory is free and they are much faster."""
    model = tiled.model()
    told = CompileOptions(place=Places(weights=load_board(board).weights_memory))
    compiled, feeds = compile_model(model, board, told), random_feeds(model, 5)
    assert [layer.kernel for layer in compiled.report.layers] == ["dense_packed_tile"] * len(TILED)
    found = interpret(compiled.graph, feeds)
    assert_close(found, onnxruntime_outputs(model, feeds), 2e-5)
    check_c(compiled, feeds, found, 2e-5)
    assert_close(compiled.simulate([feeds], measure=False).outputs[0], found, 2e-5)


def test_tiles_are_for_cpus_with_floats_and_balanced_goals(tiled: Net):
    for board, goal in (("rp2040", "balanced"), ("nrf52840", "flash"), ("nrf52840", "ram"), ("nrf52840", "speed")):
        layers = compile_model(tiled.model(), board, CompileOptions(optimize=goal)).report.layers
        assert "dense_packed_tile" not in {layer.kernel for layer in layers}


def test_tiles_leave_flash_to_layers_of_few_rows():
    """All weights as floats would be more than a quarter of the flash, those of layers without tiles are not."""
    net, _ = model_of({"int4 by 64": LAYERS["int4 by 64"]})
    w = _weights(net, "tiled", Layer(8), 64, np.random.default_rng(1))
    net.output(net.op("MatMul", net.input("pixels", 40, 64), w, out="sums"))
    board = load_board("nrf52840")
    memories = tuple(replace(m, size=32768) if m.kind == "flash" else m for m in board.memories)
    layers = compile_model(net.model(), replace(board, memories=memories)).report.layers
    assert {layer.kernel for layer in layers} == {"dense_f32_fpu", "dense_packed_tile"}


def test_weights_have_their_own_size_in_flash(built: Built):
    layers = [instr for instr in built.compiled.program.instrs if instr.kernel == "dense_packed"]
    weights = [instr.operand("w").buffer.nbytes for instr in layers]
    assert sorted(weights) == sorted(layer.in_flash for layer in LAYERS.values())


@pytest.mark.parametrize(("bits", "zero_points"), [(2, False), (4, False), (4, True), (8, False), (8, True)])
def test_matmul_nbits_keeps_its_weights(bits: int, zero_points: bool):
    random = np.random.default_rng(bits)
    depth, block = 72, 16
    blocks = -(-depth // block)
    net = Net(21)
    packed = random.integers(0, 256, (CHANNELS, blocks, block * bits // 8)).astype(np.uint8)
    scales = random.uniform(0.01, 0.02, (CHANNELS, blocks)).astype(np.float32)
    zeros = random.integers(0, 256, (CHANNELS, -(-blocks * bits // 8))).astype(np.uint8)
    more = [net.const(zeros, np.uint8)] if zero_points else []
    operands = [net.input("x", 2, depth), net.const(packed, np.uint8), net.const(scales)]
    options = {"K": depth, "N": CHANNELS, "bits": bits, "block_size": block}
    net.output(net.op("MatMulNBits", *operands, *more, domain="com.microsoft", **options, out="y"))
    model = net.plain_model()
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    compiled, feeds = compile_model(model, options=SMALL), random_feeds(model, 1)
    expected: Array = onnxruntime_outputs(model, feeds)["y"]
    found = interpret(compiled.graph, feeds)["y"]
    assert np.abs(found - expected).max() < 2e-4 * np.abs(expected).max()
    assert [layer.kernel for layer in compiled.report.layers] == ["dense_packed"]
    if not zero_points:
        assert compiled.program.weights_size <= CHANNELS * (-(-depth * bits // 8) + 4 * blocks) + 16


def _dense_kernels(board: Board, goal: str) -> list[str]:
    layers = {name: LAYERS[name] for name in ("int4 by 32", "codes by int4 by 32")}
    net, _ = model_of(layers)
    compiled = compile_model(net.model(), board, CompileOptions(optimize=goal))
    return [layer.kernel for layer in compiled.report.layers if "dense" in layer.kernel]


def test_weights_are_floats_where_that_is_faster_and_flash_is_left():
    board = load_board("nrf52840")

    def with_flash(size: int) -> Board:
        return replace(board, memories=tuple(replace(m, size=size) if m.kind == "flash" else m for m in board.memories))

    small, tiny = with_flash(16384), with_flash(8192)
    fast, few = ["dense_f32_fpu", "dense_packed"], ["dense_packed", "dense_packed"]
    assert _dense_kernels(board, "speed") == _dense_kernels(board, "balanced") == fast
    assert _dense_kernels(board, "flash") == _dense_kernels(small, "balanced") == few
    assert _dense_kernels(small, "speed") == fast
    assert _dense_kernels(tiny, "speed") == few


def test_layers_that_could_keep_few_bits_are_told():
    net, _ = model_of({"int4 by 32": LAYERS["int4 by 32"]})
    (note,) = compile_model(net.model(), "nrf52840").report.notes
    assert note.startswith("weights of 1 layers that came in few bits are 6,144 bytes of floats in flash, for speed")
    assert compile_model(net.model(), "nrf52840", SMALL).report.notes == ()


def test_a_convolution_of_pixels_keeps_its_weights():
    random = np.random.default_rng(9)
    net = Net(21)
    codes = net.const(random.integers(-127, 128, (24, 16, 1, 1)), np.int8)
    weights = net.op("DequantizeLinear", codes, net.const(random.uniform(0.001, 0.002, 24)), axis=0)
    y = net.op("Conv", net.input("x", 1, 16, 5, 5), weights, net.const(random.standard_normal(24)))
    net.output(net.op("MaxPool", net.op("Relu", y), kernel_shape=[2, 2]))
    model = net.model()
    compiled, feeds = compile_model(model, options=SMALL), random_feeds(model, 1)
    assert [layer.kernel for layer in compiled.report.layers].count("dense_packed") == 1
    assert compiled.program.weights_size == 24 * 16 + 24 * 8
    found = interpret(compiled.graph, feeds)
    assert_close(found, onnxruntime_outputs(model, feeds), 1e-5)
    check_c(compiled, feeds, found, 1e-5)


def test_what_saves_nothing_stays_float():
    net, _ = model_of({"small": Layer(4, 4, depth=4)})
    assert [layer.kernel for layer in compile_model(net.model()).report.layers] == ["dense_f32"]


def test_packing_gives_the_numbers_back():
    random = np.random.default_rng(3)
    for low, high, bits, whole in ((-1, 1, 2, 1), (-2, 2, 2, 1), (-8, 8, 4, 1), (0, 15, 4, 1), (-128, 128, 8, 1)):
        codes = random.integers(low, high, (5, 21))
        packed = PackedWeights.of(codes, 8)
        assert packed is not None
        assert (packed.bits, packed.zeros.size) == (bits, whole)
        bytes_ = packed.data.reshape(5, -1)
        each, row = 8 // bits, []
        for start in range(0, 21, 8):
            size = min(8, 21 - start)
            taken, bytes_ = bytes_[:, : -(-size // each)], bytes_[:, -(-size // each) :]
            fields = np.stack([taken >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)], -1)
            row.append(fields.reshape(5, -1)[:, :size])
        assert (np.concatenate(row, 1).astype(int) - packed.zeros == codes).all()
    shifted = random.integers(0, 16, (4, 16)) - np.array([[0], [7], [15], [3]])
    apart = PackedWeights.of(shifted, 16)
    assert apart is not None
    assert (apart.bits, apart.zeros.size) == (4, 4)
    assert PackedWeights.of(np.array([[-200, 200]]), 2) is None


def test_totals_are_rounded_once():
    """Beside exact fractions, whatever the scales are."""
    random = np.random.default_rng(4)
    for unit in (1e-6, 1e-3, 0.4):
        factors, bias = random.uniform(0.2, 1, (6, 3)) * unit, random.uniform(-40, 40, 6)
        sums = random.integers(-3000, 3000, (50, 6, 3))
        found = GroupRequantizer.of(factors, bias, 4, np.full((6, 3), 3000.0))(sums)
        exact = (sums * factors).sum(-1) + bias + 4
        near = np.abs(exact - np.floor(exact) - 0.5) < 1e-3
        assert (found[~near] == np.floor(exact + 0.5)[~near]).all()


def test_weights_that_become_floats_are_told_with_their_cost():
    """The kernel for the FPU reads floats. A goal that saves flash takes another one, with weights as they are."""
    random = np.random.default_rng(9)
    net = Net(21)
    codes = net.const(random.integers(-127, 128, (8, 6, 3, 3)), np.int8)
    weights = net.op("DequantizeLinear", codes, net.const(np.full(8, 0.002)), axis=0, out="kernels")
    net.output(net.op("Conv", net.input("x", 1, 6, 5, 5), weights))
    (note,) = compile_model(net.model(), "nrf52840").report.notes
    assert "1,728 bytes for 432: 'kernels'" in note
    assert "--calibration" in note
    assert not compile_model(net.model(), "nrf52840", CompileOptions(optimize="flash")).report.notes
