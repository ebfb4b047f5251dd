# SPDX-License-Identifier: Apache-2.0
"""Which layers' weights have few bits, against all choices; bytes and bits of layers, counted by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from float_models import normal_samples, random_weights
from onnx_models import Net

from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Node
from mcugen.hir.types import Array, DType
from mcugen.quantization import few_bits, flash
from mcugen.quantization.float_model import FloatModel, build_float_model
from mcugen.quantization.plan import Plan, QuantizedWeights
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.weights import plain_codes, real_weights

SIZES = {"a": 4 * 6, "b": 6 * 10, "c": 10 * 3}


def chain() -> FloatModel:
    """Three fully connected layers, a product of activations behind them, and a layer of an input of its own."""
    net = Net(17)
    y = net.input("x", 1, 4)
    for name, depth, width in (("a", 4, 6), ("b", 6, 10), ("c", 10, 3)):
        weights = net.const(random_weights(depth, depth, width), name=f"w{name}")
        y = net.op("Gemm", y, weights, net.const(np.zeros(width)), out=name)
    net.output(net.op("Relu", net.op("Mul", y, net.input("f", 1, 3), out="m"), out="y"))
    return build_float_model(load(net.model()).proto, "net", equalized=False)


MODEL = chain()
NODES = {node.output.name: node for node in MODEL.graph.nodes}
A, B, C = (NODES[name] for name in "abc")
INT8 = dict.fromkeys(NODES, DType.INT8)


def codes(node: Node, dtype: DType = DType.INT8) -> QuantizedWeights:
    return plain_codes(node, Scheme(), dtype)


# ------------------------------------------------------------------------------------------------- the knapsack


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_most_valuable_things_of_all_choices(seed: int, most: int) -> None:
    random = np.random.default_rng(seed)
    values, sizes = random.exponential(1, 7).tolist(), random.integers(1, 40, 7).tolist()
    room = float(sum(sizes) // (2 + seed % 3))
    choices = [set(c) for n in range(8) for c in itertools.combinations(range(7), n)]
    fitting = [c for c in choices if sum(sizes[i] for i in c) <= room]
    ordered = sorted(fitting, key=lambda c: -sum(values[i] for i in c))
    assert few_bits.best_subsets(values, sizes, room, most) == ordered[:most]


def test_things_that_just_fit() -> None:
    assert few_bits.best_subsets([1.0, 2.0], [3, 4], 7.0) == [{0, 1}]
    assert few_bits.best_subsets([1.0, 2.0], [3, 4], 6.9) == [{1}]
    assert few_bits.best_subsets([1.0, 2.0], [3, 4], 2.0) == [set()]
    assert few_bits.best_subsets([], [], 10.0) == [set()]
    large = few_bits.best_subsets([1.0, 2.0, 4.0], [10**6, 10**6, 2 * 10**6 - 3000], 3.0 * 10**6)
    assert large == [{1, 2}]


def test_large_rooms_are_divided_by_1024() -> None:
    """A thing takes whole shares: two of half the room and a little fit no more."""
    room = 1024 * 100.0
    assert few_bits.best_subsets([1.0, 1.0], [51200, 51200], room) == [{0, 1}]
    assert few_bits.best_subsets([1.0, 1.0], [51101, 51101], room) == [{0, 1}]
    assert len(few_bits.best_subsets([1.0, 1.0], [51201, 51199], room)[0]) == 1


def test_ways_to_keep_few_bits() -> None:
    """Of those whose noise is at most twice the least, as it is told layer by layer."""
    noise, sizes = {A: 5.0, B: 3.0, C: 1.0}, {A: 10, B: 10, C: 10}
    assert few_bits.choose_four_bit_layers(noise, sizes, 10.0, 4) == [["b", "c"], ["a", "c"], ["a", "b"]]
    assert few_bits.choose_four_bit_layers(noise | {B: 2.9}, sizes, 10.0, 4) == [["b", "c"], ["a", "c"]]
    assert few_bits.choose_four_bit_layers(noise, sizes, 10.0, 1) == [["b", "c"]]
    assert few_bits.choose_four_bit_layers({A: 5.0, B: 2.0, C: 1.0}, sizes, 10.0, 4) == [["b", "c"], ["a", "c"]]
    assert few_bits.choose_four_bit_layers({A: 5.0, B: 1.9, C: 1.0}, sizes, 10.0, 4) == [["b", "c"]]
    assert few_bits.choose_four_bit_layers(noise, sizes, 30.0, 1) == [[]]
    assert few_bits.choose_four_bit_layers(noise, sizes, 0.0, 3) == [["a", "b", "c"]]


# ------------------------------------------------------------------------------------------------- bytes


def test_which_layers_may_have_few_bits() -> None:
    assert [few_bits.num_weights(n) for n in (A, B, C)] == list(SIZES.values()) and few_bits.num_weights(
        NODES["y"]
    ) == 0
    assert few_bits.four_bit_candidates(MODEL, Plan(precision=INT8)) == [A, B, C]
    assert few_bits.four_bit_candidates(MODEL, Plan(precision={**INT8, "b": DType.INT16, "c": DType.FLOAT32})) == [A]
    codable = Plan(precision={**INT8, "b": DType.INT16, "c": DType.FLOAT32}, few_bits=frozenset("a"))
    assert few_bits.compressible_layers(MODEL, codable) == [B]


def test_bytes_of_a_layer() -> None:
    plan = Plan(precision={**INT8, "c": DType.FLOAT32}, few_bits=frozenset("a"), two_bits=frozenset("b"))
    assert [few_bits.stored_bytes(n, plan) for n in (A, B, C)] == [12.0, 15.0, 120.0]
    assert few_bits.weights_in_flash(MODEL, plan) == 24 + 60 + 30
    assert few_bits.bytes_per_weight(MODEL, plan) == pytest.approx((12 + 15 + 120) / (24 + 60 + 30))
    assert few_bits.num_affordable_int8_weights(MODEL, plan, 2.0) == pytest.approx(2 * (2.0 * 114 - 147))
    wide = Plan(precision=INT8)
    assert few_bits.bytes_per_weight(MODEL, wide) == 1.0
    group = replace(codes(A, DType.INT4), group=2, scales=np.ones((6, 2)))
    plan.layers["a"] = group
    assert few_bits.stored_bytes(A, plan) == 12.0 + 4 * 12
    plan.layers["a"] = codes(A, DType.INT4)
    assert few_bits.stored_bytes(A, plan) == 12.0


def test_bytes_of_a_code() -> None:
    """Less than 8 bits a weight for weights that are mostly equal, never more."""
    weights = codes(B).weights.copy()
    noisy = replace(codes(B), weights=np.random.default_rng(0).integers(-127, 128, weights.shape).astype(np.int8))
    flat = replace(codes(B), weights=np.where(weights > 60, 1, 2).astype(np.int8))
    for layer, least, most in ((noisy, 60.0, 60.0), (flat, 0.5, 30.0)):
        plan = Plan(precision=INT8, layers={"b": layer}, code_bits={"b": 3.0})
        assert least <= few_bits.stored_bytes(B, plan) <= most
        assert few_bits.stored_bytes(B, replace(plan, code_bits={})) == 60.0


def test_weights_of_channels_of_nought_are_not_counted() -> None:
    layer = codes(B)
    layer.weights[
        np.arange(3) if layer.axis == 0 else slice(None), slice(None) if layer.axis == 0 else np.arange(3)
    ] = 0
    plan = Plan(precision=INT8, layers={"b": layer})
    assert few_bits.num_stored_weights(B, plan) == 60 - 18 and few_bits.num_stored_weights(A, plan) == 24
    assert few_bits.stored_bytes(B, plan) == 42.0
    assert few_bits.bytes_per_weight(MODEL, plan) == 1.0


def test_even_bits() -> None:
    """What other layers leave of the share, evenly; none if that is less than two bits."""
    plan = Plan(precision={**INT8, "c": DType.FLOAT32}, few_bits=frozenset("a"))
    assert few_bits.uniform_bits(MODEL, plan, 2.0) == {"b": pytest.approx(8 * (2.0 * 114 - 12 - 120) / 60)}
    least = (60 * 2 / 8 + 132) / 114
    assert few_bits.uniform_bits(MODEL, plan, least * (1 + 1e-9)) == {"b": pytest.approx(2.0)}
    assert few_bits.uniform_bits(MODEL, plan, least * (1 - 1e-6)) == {}
    assert few_bits.uniform_bits(MODEL, Plan(precision=dict.fromkeys(NODES, DType.FLOAT32)), 0.5) == {}
    both = few_bits.uniform_bits(MODEL, Plan(precision=INT8), 0.5)
    assert both == dict.fromkeys("abc", pytest.approx(4.0))


@pytest.mark.parametrize(
    "noise", [(1.0, 1.0, 1.0), (0.1, 2.0, 9.0), (1e-9, 1.0, 1e3), (0.0, 0.0, 1.0), (5.0, 1e-6, 1e-6)]
)
@pytest.mark.parametrize("given", [(4.0, 4.0, 4.0), (2.0, 3.0, 7.5), (8.0, 8.0, 8.0), (2.0, 2.0, 2.0)])
def test_bits_are_allotted_so_that_no_exchange_helps(noise: tuple[float, ...], given: tuple[float, ...]) -> None:
    """As many bits in all; weights have the same noise each, but where 2 or 8 bits limit them."""
    plan = Plan(precision=INT8, code_bits={**dict(zip("abc", given, strict=True)), "other": 3.0})
    found = few_bits.redistribute_bits(dict(zip((A, B, C), noise, strict=True)), plan)
    assert found["other"] == 3.0 and found.keys() == {*"abc", "other"}
    bits, sizes = [found[name] for name in "abc"], list(SIZES.values())
    assert sum(map(math.prod, zip(sizes, bits, strict=True))) == pytest.approx(
        sum(map(math.prod, zip(sizes, given, strict=True))), abs=1e-3
    )
    assert all(2 <= b <= 8 for b in bits)
    left = [max(n, 1e-30) / s * 4.0 ** (g - b) for n, s, g, b in zip(noise, sizes, given, bits, strict=True)]
    for i, j in itertools.permutations(range(3), 2):
        if bits[i] < 8 - 1e-4 and bits[j] > 2 + 1e-4:
            assert left[i] <= left[j] * 1.01


# ------------------------------------------------------------------------------------------------- noise


def outputs_with(samples: list[dict[str, Array]], changed: dict[str, Array]) -> Array:
    def product(x: Array, node: Node) -> Array:
        weights = changed.get(node.output.name, node.input(1).data)
        assert weights is not None
        return x @ (weights.T if weights.shape[1] == x.shape[1] and weights.shape[0] != x.shape[1] else weights)

    found = [np.maximum(product(product(product(s["x"], A), B), C) * s["f"], 0) for s in samples]
    return np.stack(found).astype(np.float64)


def test_noise_of_each_layers_codes_alone() -> None:
    samples = normal_samples(MODEL.proto, 40)
    plan = Plan(precision=INT8, layers={n.output.name: codes(n, DType.INT4) for n in (A, B, C)})
    found = few_bits.weight_noise(MODEL, plan, [A, C], samples)
    used = [samples[i] for i in np.linspace(0, 39, 32).round().astype(int)]
    exact = outputs_with(used, {})
    assert list(found) == [A, C]
    for node, noise in found.items():
        quantized = outputs_with(used, {node.output.name: real_weights(plan.layers[node.output.name])})
        wanted = float(np.square(quantized - exact).sum() / np.square(exact).sum())
        assert noise == pytest.approx(wanted, rel=1e-3)
    ways = few_bits.choose_finalists(MODEL, plan, [A, B, C], samples)
    noises = few_bits.weight_noise(MODEL, plan, [A, B, C], samples)
    assert ways == few_bits.choose_four_bit_layers(noises, {A: 24, B: 60, C: 30}, 0.2 * 114, 4)


@pytest.mark.parametrize("macs", [10**9, 10**10, 4 * 10**10, 10**12])
def test_noise_of_large_models_is_told_by_fewer_samples(macs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, used = normal_samples(MODEL.proto, 40), list[int]()
    whole = sum(node.op.macs(node.sig) for node in MODEL.graph.nodes)
    monkeypatch.setattr(few_bits, "MAX_GROUP_RUN_MACS", 10**11 * whole // macs)
    monkeypatch.setattr(few_bits, "spread", lambda count, most: used.append(most) or list(range(most)))
    plan = Plan(precision=INT8, layers={"a": codes(A, DType.INT4), "b": codes(B, DType.INT4)})
    for layers in ([A, B], [A]):
        few_bits.weight_noise(MODEL, plan, layers, samples)
    assert used == [max(1, min(32, 10**11 // macs // count)) for count in (2, 1)]


def test_layers_return_to_four_bits_within_the_room() -> None:
    """Those of most noise that have room: each takes a byte for four weights more, less the scales of groups."""
    samples = normal_samples(MODEL.proto, 8)
    layers = {n.output.name: codes(n, DType.INT2) for n in (A, B, C)}
    plan = Plan(precision=INT8, layers=layers, two_bits=frozenset("abc"))
    noise = {n.output.name: v for n, v in few_bits.weight_noise(MODEL, plan, [A, B, C], samples).items()}
    more = {"a": 6, "b": 15, "c": 8}  # of 7.5, to even
    for share in (0.25, 0.3, 0.31, 0.4, 0.45, 0.5, 0.6):
        room = 114 * (share - 0.25) + 1e-9
        choices = [set(c) for n in range(4) for c in itertools.combinations("abc", n)]
        fitting = [c for c in choices if sum(more[n] for n in c) <= room]
        best = max(fitting, key=lambda c: sum(noise[n] for n in c))
        assert few_bits.choose_two_bit_layers(MODEL, plan, samples, share + 1e-9 / 114) == [
            n for n in "abc" if n not in best
        ]


@pytest.mark.parametrize(
    ("codes", "nbytes"), [([-8, 7, 0], 2), ([-8, 7], 1), ([-9, 7, 0], 3), ([-8, 8, 0], 3), ([], 0), ([1], 1)]
)
def test_codes_of_four_bits_are_two_a_byte(codes: list[int], nbytes: int) -> None:
    assert flash._bytes(np.asarray(codes, np.int8)) == nbytes
