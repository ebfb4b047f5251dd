# SPDX-License-Identifier: Apache-2.0
"""How the weights of each layer are stored within a budget: one knapsack of bytes, noise and time."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx
import pytest
from float_models import normal_samples, random_weights
from onnx_models import Net

from mcugen.core.options import CompileOptions
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import DType
from mcugen.quantization.few_bits import bytes_per_weight, num_stored_weights, weights_in_flash
from mcugen.quantization.quantize import Quantizer, create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.storage import (
    InstructionEstimates,
    Storage,
    StorageOption,
    StoredLayer,
    choose_storage_options,
    storage_options,
)


def network() -> onnx.ModelProto:
    """A convolution of many pixels, and a large fully connected layer."""
    net = Net(21)
    x = net.input("x", 1, 4, 8, 8)
    first = net.const(random_weights(0, 32, 4, 3, 3)), net.const(random_weights(1, 32))
    second = net.const(random_weights(2, 32, 32, 3, 3)), net.const(random_weights(3, 32))
    y = net.op("Relu", net.op("Conv", x, *first, pads=[1] * 4, out="c0"), out="r0")
    y = net.op("Relu", net.op("Conv", y, *second, pads=[1] * 4, strides=[2, 2], out="c1"), out="r1")
    rows = net.const(random_weights(4, 24, 512)), net.const(random_weights(5, 24))
    net.output(net.op("Gemm", net.op("Flatten", y, axis=1), *rows, transB=1, out="d"))
    return net.model()


@pytest.fixture(scope="module")
def maker() -> Quantizer:
    model = network()
    source, scheme = load(model), Scheme()
    fused = import_float_model(source, CompileOptions(), scheme, wide=True)
    return create_quantizer(source, fused, scheme, normal_samples(model, 24))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("price", [0.0, 1e-4])
def test_storage_is_nearly_the_best_of_all(seed: int, price: float):
    """By all choices of four layers; a layer's options are many, so that little room is left."""
    random = np.random.default_rng(seed)
    sizes = [int(s) for s in random.integers(500, 4000, 4)]
    times = InstructionEstimates(
        1e5, {str(i): float(random.uniform(-500, 4000)) for i in range(4)}, dict.fromkeys("0123", 9e3)
    )
    known = [StoredLayer(s, 7.0, 5.0, n := float(random.exponential()), 3 * n) for s in sizes]
    options = {str(i): storage_options(str(i), each, times)[:: 1 + i % 2 * 2] for i, each in enumerate(known)}
    room = 0.6 * sum(sizes)
    found = choose_storage_options(options, room, price)
    assert found is not None

    def worth(chosen: tuple[StorageOption, ...]) -> float:
        return sum(o.noise + price * o.time for o in chosen)

    coarse = [each[::4] + each[-1:] for each in options.values()]
    best = min(worth(c) for c in product(*coarse) if sum(o.nbytes for o in c) <= room)
    assert sum(o.nbytes for o in found.values()) <= room
    assert worth(tuple(found.values())) <= 1.05 * best


def test_no_storage_where_there_is_no_room():
    options = {"a": storage_options("a", StoredLayer(1000, 7.0, 5.0, 1.0, 3.0), InstructionEstimates(1.0, {}, {}))}
    assert choose_storage_options(options, 100, 0.0) is None
    assert choose_storage_options(options, 2000, 0.0)["a"].bits is None  # type: ignore[index]


def test_codes_and_four_bits_mix_where_decoding_is_dear(maker: Quantizer):
    """Of a layer of few pixels: its weights are read once, and decoding them takes as long as all else."""
    layers = maker.four_bit_candidates(maker.quantize().plan)
    dear = InstructionEstimates(1e6, dict.fromkeys(layers, 0.0), {"d": 1e6})
    free = InstructionEstimates(1e6, dict.fromkeys(layers, 0.0), {})
    mixed, coded = (maker.choose_storage({}, layers, 0.6, times, favour=4.0) for times in (dear, free))
    assert mixed is not None and coded is not None
    assert mixed.requested == {"d": DType.INT4} and {"r1"} <= mixed.bits.keys() <= {"r0", "r1"}
    assert coded.requested == {} and coded.bits.keys() >= {"r1", "d"}
    made = maker.with_code_bits(mixed.bits).quantize(mixed.requested)
    assert bytes_per_weight(made.model, made.plan) <= 0.6
    assert made.plan.few_bits == {"d"} and made.plan.code_bits.keys() == mixed.bits.keys()
    assert "1 layer with weights of 4 bits" in made.describe() and "for a code" in made.describe()
    assert dear.of(mixed) == 1e6 < dear.of(Storage({}, {"d": 5.0})) == 2e6


def test_another_quantizer_of_codes_leaves_the_first_as_it_was(maker: Quantizer):
    before = maker.quantize()
    coded = maker.with_code_bits({"r1": 4.0})
    assert coded.quantize().plan.code_bits == {"r1": 4.0}
    assert maker.quantize() is before and not before.plan.code_bits
    assert coded.profile is maker.profile


def test_weights_that_drop_out_count_for_no_share():
    """Channels that never change: neither where weights have 4 bits nor where a code holds them."""
    net = Net(21)
    weights, bias = random_weights(0, 16, 4, 3, 3), random_weights(1, 16)
    weights[8:], bias[8:] = 0, -1
    y = net.op("Relu", net.op("Conv", net.input("x", 1, 4, 6, 6), net.const(weights), net.const(bias)), out="r0")
    y = net.op("Conv", y, net.const(random_weights(2, 12, 16, 3, 3)), net.const(random_weights(3, 12)), out="c1")
    net.output(net.op("GlobalAveragePool", y, out="y"))
    model = net.model()
    source = load(model)
    scheme = Scheme()
    made = create_quantizer(
        source, import_float_model(source, CompileOptions(), scheme, wide=True), scheme, normal_samples(model, 12)
    )
    for plan in (
        made.quantize({"c1": DType.INT4}).plan,
        made.with_code_bits({"c1": 5.0}).quantize().plan,
    ):
        assert weights_in_flash(made.model, plan) == 8 * 4 * 9 + 12 * 8 * 9
        (layer,) = [n for n in made.model.graph.nodes if n.outputs[0].name == "c1"]
        assert num_stored_weights(layer, plan) == 12 * 8 * 9


@pytest.mark.parametrize("plain_bits", [7.0, 9.0])
@pytest.mark.parametrize("size", [1024, 4000])
def test_options_are_every_code_that_saves_enough(size: int, plain_bits: float):
    """Each bit less makes the noise four times; a code must be 128 bytes shorter than 8 bits a weight."""
    times = InstructionEstimates(0.0, {"a": 20.0, "b": 1.0}, {"a": 30.0, "b": 2.0})
    bits = [b / 16 for b in range(32, 16 * 10) if b / 16 < min(plain_bits, 8.0)] + [plain_bits]
    coded = [StorageOption(DType.INT8, b, size * b / 8, 0.5 * 2 ** (2 * (5 - b)), 30.0) for b in bits]
    wanted = [StorageOption(DType.INT8, None, size, 0.5 * 2 ** (2 * (5 - plain_bits)), 0.0)]
    wanted += [o for o in coded if size - o.nbytes > 128]
    assert storage_options("a", StoredLayer(size, plain_bits, 5.0, 0.5, None), times) == wanted
    few = storage_options("a", StoredLayer(size, plain_bits, 5.0, 0.5, 0.75), times)
    assert few == [*wanted, StorageOption(DType.INT4, None, size / 2, 0.75, 20.0)]


def test_time_of_a_storage():
    times = InstructionEstimates(10.0, {"a": 3.0, "b": 5.0}, {"a": 7.0, "c": 11.0, "d": 13.0})
    bits = {"a": 4.0, "c": 3.0, "d": 2.0, "e": 2.0}
    assert times.of(Storage({"a": DType.INT4, "c": DType.INT2}, bits)) == 10 + 3 + 13
    assert times.of(Storage({"a": DType.INT8, "b": DType.INT8})) == 10
    assert InstructionEstimates(-5.0, {}, {}).of(Storage()) == 1


def test_room_for_the_smallest_options_is_enough():
    small, large = StorageOption(DType.INT4, None, 100.0, 3.0, 0.0), StorageOption(DType.INT8, None, 200.0, 1.0, 0.0)
    worse = StorageOption(DType.INT4, None, 100.0, 4.0, 0.0)
    options = {"a": [large, worse, small], "b": [large, worse, small]}
    assert choose_storage_options(options, 200.0, 0.0) == {"a": small, "b": small}
    assert choose_storage_options(options, 199.0, 0.0) is None
    assert choose_storage_options(options, 400.0, 0.0) == {"a": large, "b": large}
    slow = StorageOption(DType.INT8, None, 200.0, 1.0, 10.0)
    assert choose_storage_options({"a": [slow, small]}, 400.0, 1.0) == {"a": small}
    equal = StorageOption(DType.INT8, 4.0, 150.0, 1.0, 0.0)
    assert choose_storage_options({"a": [large, equal]}, 400.0, 0.0) == {"a": equal}
