# SPDX-License-Identifier: Apache-2.0
"""What a plan says of layers and tensors; and the weights of layers as integers."""

from __future__ import annotations

import numpy as np
import pytest
from float_models import random_weights
from onnx_models import Net

from mcugen.frontend.onnx import import_model
from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Graph
from mcugen.hir.types import DType, QuantParams
from mcugen.quantization.float_model import build_float_model
from mcugen.quantization.plan import Plan, QuantizedWeights, Stored
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.weights import (
    add_zero_biases,
    can_have_two_bits,
    effective_weights,
    layer_bias,
    layer_weights,
    nearest_codes,
    plain_codes,
    real_weights,
    stored_bits,
    stored_weights,
)


def graph_of(net: Net) -> Graph:
    """As quantization gets it: layers have biases."""
    return build_float_model(load(net.model()).proto, "net", equalized=False).graph


def network() -> Net:
    """A convolution without bias, a grouped one, a movement of data, and a matrix."""
    net = Net(21)
    y = net.op("Conv", net.input("x", 1, 4, 5, 5), net.const(random_weights(1, 6, 4, 3, 3)), out="conv")
    y = net.op("Conv", y, net.const(random_weights(2, 6, 3, 1, 1)), net.const(np.arange(6)), group=2, out="grouped")
    y = net.op("Flatten", y, axis=1, out="flat")
    net.output(net.op("Gemm", y, net.const(random_weights(3, 54, 5)), net.const(np.arange(5)), out="dense"))
    return net


NODES = {node.output.name: node for node in graph_of(network()).nodes}


def test_what_a_plan_says_of_a_layer():
    conv, grouped, dense = NODES["conv"], NODES["grouped"], NODES["dense"]
    plan = Plan(
        precision={"conv": DType.INT8},
        few_bits=frozenset({"grouped"}),
        two_bits=frozenset({"dense"}),
        code_bits={"conv": 3.0, "grouped": 4.0},
        shared={"conv": 0, "dense": 7},
    )
    assert [plan.precision_of(n) for n in (conv, dense)] == [DType.INT8, DType.FLOAT32]
    assert [plan.weights_of(n) for n in (conv, grouped, dense)] == [DType.INT8, DType.INT4, DType.INT2]
    assert [plan.code_bits_of(n) for n in (conv, grouped, dense)] == [3.0, None, None]
    assert [plan.shares(n) for n in (conv, grouped, dense)] == [(0, DType.INT8), None, (7, DType.INT2)]


def test_which_plans_are_coarse():
    coarse = [Plan(few_bits=frozenset("a")), Plan(two_bits=frozenset("a")), Plan(code_bits={"a": 3.0})]
    assert all(plan.is_coarse and plan.compensates for plan in coarse)
    assert not Plan().is_coarse and not Plan().compensates and not Plan().compensated
    assert Plan(compensated=True).compensates and not Plan(compensated=True).is_coarse


def test_readers_get_tensors_in_their_own_type():
    stored = Stored(DType.INT8, QuantParams((0.5,), 3), "minmax", -1.0, 2.0)
    plan, flat, dense = Plan(activations={"grouped": stored}), NODES["flat"].output, NODES["dense"]
    assert plan.stored_as(flat) is plan.stored_as(flat.producer.input(0)) is stored  # type: ignore[union-attr]
    assert plan.stored_as(dense.output) is None
    assert plan.quant_of(flat, DType.INT8) == stored.quant
    (scale,) = plan.quant_of(flat, DType.INT16).scale
    assert scale == float(np.float32(2 / 32767)) and plan.quant("grouped", DType.INT16).zero_point == 0


def test_steps_of_codes():
    weights = np.arange(30, dtype=np.int8).reshape(2, 3, 5)
    scales = np.asarray([1.0, 2.0, 4.0])
    codes = QuantizedWeights(weights, scales, 1, None)
    assert codes.steps.shape == (1, 3, 1) and codes.quant == QuantParams((1.0, 2.0, 4.0), 0, 1)
    assert (real_weights(codes) == weights * scales[None, :, None]).all()
    assert QuantizedWeights(weights, np.asarray([0.5, 1.0]), 0, None).quant == QuantParams((0.5, 1.0), 0, 0)
    whole = QuantizedWeights(weights, np.asarray([0.5]), 1, None)
    assert whole.quant == QuantParams((0.5,), 0, None) and (real_weights(whole) == weights / 2).all()
    grouped = QuantizedWeights(weights[0], np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), 0, None, DType.INT4, 3)
    assert grouped.steps.tolist() == [[1, 1, 1, 2, 2], [3, 3, 3, 4, 4], [5, 5, 5, 6, 6]]
    assert (real_weights(grouped) == weights[0] * grouped.steps).all()


@pytest.mark.parametrize(("dtype", "limits"), [(DType.INT8, [-127, 127]), (DType.INT4, [-8, 7]), (DType.INT2, [-2, 1])])
def test_codes_saturate(dtype: DType, limits: list[int]):
    codes = QuantizedWeights(np.zeros(2, np.int8), np.ones(1), 0, None, dtype)
    assert nearest_codes(codes, np.asarray([-1000.0, 1000.0])).weights.tolist() == limits


@pytest.mark.parametrize("shape", [(5, 4, 3), (5, 4), (5, 4, 3, 2)])
@pytest.mark.parametrize("axis", [0, 1])
def test_codes_in_flash_lack_outputs_and_inputs_of_nought(axis: int, shape: tuple[int, ...]):
    weights = np.random.default_rng(0).integers(1, 9, shape).astype(np.int8)
    weights[2], weights[:, 1] = 0, 0
    weights.flat[0] = 0
    kept = np.delete(np.delete(weights, 2, 0), 1, 1)
    found = stored_weights(QuantizedWeights(np.moveaxis(weights, 0, axis), np.ones(1), axis, None))
    assert found.reshape(kept.shape).tolist() == kept.tolist()
    vector = np.asarray([0, 3, 0, -2], np.int8)
    assert stored_weights(QuantizedWeights(vector, np.ones(1), 0, None)).reshape(-1).tolist() == [3, -2]
    assert stored_bits(QuantizedWeights(vector * 0, np.ones(1), 0, None)) == 0


def test_weights_that_live():
    (conv,) = [n for n in import_model(network().model(), "net").nodes if n.output.name == "conv"]
    grouped, dense, nan = NODES["grouped"], NODES["dense"], np.nan
    few = {"x": np.asarray([0.0, 1.0, nan, 0.0]), "conv": np.asarray([0.0] * 6)}
    weights, _ = layer_weights(conv)
    wanted = weights.copy()
    wanted[:, [0, 3]] = 0  # without bias constant outputs stay, and inputs of another constant than 0
    assert (effective_weights(conv, few) == wanted).all()
    weights, _ = layer_weights(grouped)
    wanted = weights.copy()
    wanted[[1, 4]] = 0  # of a grouped one inputs stay
    constants = few | {"grouped": np.asarray([nan, 2.0, nan, nan, 0.0, nan])}
    assert (effective_weights(grouped, constants) == wanted).all()
    weights, axis = layer_weights(dense)
    wanted = np.moveaxis(weights.copy(), axis, 0)
    wanted[3], wanted[:, 7] = 0, 0
    inputs = np.full(54, nan)
    inputs[7] = 0
    constants = {"flat": inputs, "dense": np.asarray([nan, nan, nan, 1.0, nan])}
    assert (np.moveaxis(effective_weights(dense, constants), axis, 0) == wanted).all()
    short = {"flat": np.zeros(6), "dense": np.zeros(6)}
    assert (effective_weights(dense, short) == weights).all()


@pytest.mark.parametrize(("shape", "group", "is_packed"), [((32, 32, 1, 1), 1, True), ((31, 33, 1, 1), 1, False),
                                                           ((64, 32, 1, 1), 2, False)])  # fmt: skip
def test_which_convolutions_take_two_bits(shape: tuple[int, ...], group: int, is_packed: bool):
    """Of 1024 weights or more, without groups."""
    net = Net(21)
    x = net.input("x", 1, shape[1] * group, 4, 4)
    net.output(net.op("Conv", x, net.const(random_weights(1, *shape)), group=group, out="y"))
    (node,) = [n for n in graph_of(net).nodes if n.output.name == "y"]
    assert can_have_two_bits(node) == is_packed


def test_which_layers_have_a_scale_for_each_group_of_inputs():
    """Large matrices in 4 bits: each group's largest weight is 7 steps."""
    net = Net(21)
    y = net.op("Conv", net.input("x", 1, 4, 5, 5), net.const(random_weights(1, 64, 4, 3, 3)), out="conv")
    y = net.op(
        "Gemm", net.op("Flatten", y), net.const(random_weights(2, 576, 40)), net.const(np.zeros(40)), out="dense"
    )
    net.output(y)
    conv, dense = (next(n for n in graph_of(net).nodes if n.output.name == name) for name in ("conv", "dense"))
    found = plain_codes(dense, Scheme(group=64), DType.INT4)
    weights = layer_weights(dense)[0]
    assert found.group == 64 and found.scales.shape == (40, 9)
    assert found.scales[3, 8] == np.float32(np.abs(weights[3, 512:].astype(np.float64)).max() / 7)
    assert found.weights.tolist() == np.clip(np.rint(weights / found.steps), -8, 7).tolist()
    assert plain_codes(dense, Scheme(), DType.INT4).group == 0
    assert plain_codes(dense, Scheme(group=64, per_channel=False), DType.INT4).group == 0
    assert plain_codes(conv, Scheme(group=16), DType.INT4).scales.shape == (64,)
    assert plain_codes(dense, Scheme(group=64)).group == 0
    tiny = Net(21)
    tiny.output(tiny.op("Gemm", tiny.input("x", 1, 3), tiny.const(random_weights(3, 3, 2)), tiny.const(np.ones(2))))
    assert can_have_two_bits(dense) and not any(map(can_have_two_bits, graph_of(tiny).nodes))


@pytest.mark.parametrize("bits", [3.0, 4.5, 20.0])
@pytest.mark.parametrize("name", ["conv", "dense"])
def test_scales_are_as_small_as_a_code_of_so_many_bits_allows(name: str, bits: float):
    node, scheme = NODES[name], Scheme()
    plain, coarse = plain_codes(node, scheme), plain_codes(node, scheme, code_bits=bits)
    assert stored_bits(coarse) <= bits and (coarse.scales >= plain.scales).all()
    if bits == 20:
        assert (coarse.scales == plain.scales).all() and (coarse.weights == plain.weights).all()
        return
    weights, axis = layer_weights(node)
    rows = np.moveaxis(weights.astype(np.float64), axis, 0).reshape(len(plain.scales), -1)
    size = np.sqrt(np.sqrt((rows**2).mean(1)))
    times = (coarse.scales / size).max()
    np.testing.assert_allclose(coarse.scales, np.maximum(plain.scales, times * size), rtol=1e-6)
    finer = np.maximum(plain.scales, 0.97 * times * size)
    codes = np.rint(rows / finer[:, None]).astype(np.int8)
    assert stored_bits(QuantizedWeights(codes, finer, 0, None)) > bits


def test_weights_of_nought_take_no_code():
    nought = np.zeros_like(layer_weights(NODES["conv"])[0])
    found = plain_codes(NODES["conv"], Scheme(), living=nought, code_bits=3.0)
    assert found.weights.shape == nought.shape and not found.weights.any()


def test_layers_get_biases_of_nought():
    graph = import_model(network().model(), "net")
    conv, grouped = (next(n for n in graph.nodes if n.output.name == name) for name in ("conv", "grouped"))
    assert layer_bias(conv) is None and add_zero_biases(graph)
    bias, kept = (layer_bias(next(n for n in graph.nodes if n.output.name == name)) for name in ("conv", "grouped"))
    assert bias is not None and bias.tolist() == [0.0] * 6
    assert kept is not None and kept.tolist() == list(range(6))
    assert not add_zero_biases(graph) and layer_bias(grouped) is kept
