# SPDX-License-Identifier: Apache-2.0
"""Cleaning: constants folded, identities dropped, equal nodes merged, dead ones removed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx_models import Net, apply, imported, operators, random_feeds, remove_dead_code

from mcugen.hir.interpreter import interpret
from mcugen.hir.types import DType
from mcugen.ops.movement import Reshape, Transpose
from mcugen.passes.simplify import fold_dequantized, merge_equal_nodes, simplify

Build = Callable[[Net], str]


def net_of_x(*shape: int) -> Net:
    net = Net()
    net.input("x", *shape)
    return net


def int8_constant(net: Net, axis: int | None = None) -> str:
    codes = net.const(np.arange(-6, 6).reshape(3, 4), np.int8)
    if axis is None:
        return net.dequantize(codes, 0.5, 1)
    count = (3, 4)[axis]
    scales, zeros = net.const(np.arange(1, count + 1) / 8), net.const([0] * count, np.int8)
    return net.op("DequantizeLinear", codes, scales, zeros, axis=axis)


# -------------------------------------------------------------------------------------------- constants


def test_a_node_of_constants_becomes_one():
    graph = imported(net_with(lambda net: net.op("Add", "x", net.const([1.0, 2.0, 3.0, 4.0]))))
    add = graph.nodes[-1]
    extra = graph.constant("k", np.ones(4, np.float32))
    doubled = graph.add(add.op, [extra, extra], before=add)
    add.set_input(1, doubled.output)
    assert simplify(graph)
    assert operators(graph) == ["add"]
    assert graph.nodes[0].input(1).data.tolist() == [2.0] * 4
    assert not simplify(graph)


def net_with(build: Build) -> onnx.ModelProto:
    net = net_of_x(3, 4)
    net.output(build(net))
    return net.model()


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_transposed_quantized_weights_stay_quantized(axis: int | None):
    model = net_with(lambda net: net.op("MatMul", "x", net.op("Transpose", int8_constant(net, axis), perm=[1, 0])))
    graph = apply(model, simplify)
    assert operators(graph) == ["dequantize", "matmul"]
    stored = graph.nodes[0].input(0)
    assert (stored.type.shape, stored.type.dtype) == ((4, 3), DType.INT8)
    assert stored.type.q.axis == (None if axis is None else 1 - axis)


def test_reshaped_quantized_weights_stay_quantized():
    def build(net: Net) -> str:
        flat = net.op("Reshape", int8_constant(net), net.const([4, 3], np.int64))
        return net.op("MatMul", "x", flat)

    assert operators(apply(net_with(build), simplify)) == ["dequantize", "matmul"]


def test_reshaping_scattered_channels_is_left():
    def build(net: Net) -> str:
        flat = net.op("Reshape", int8_constant(net, 0), net.const([4, 3], np.int64))
        return net.op("MatMul", "x", flat)

    assert operators(apply(net_with(build), simplify)) == ["dequantize", "reshape", "matmul"]


def test_slices_of_channels_with_scales_of_their_own_are_left():
    def build(net: Net) -> str:
        bounds = [net.const([value], np.int64) for value in (1, 2, 0)]
        return net.op("Add", "x", net.op("Slice", int8_constant(net, 0), *bounds))

    assert operators(apply(net_with(build), simplify)) == ["dequantize", "slice", "add"]


def test_dequantized_constants_become_floats_last():
    model = net_with(lambda net: net.op("Add", "x", int8_constant(net, 1)))
    assert operators(apply(model, simplify)) == ["dequantize", "add"]
    assert operators(apply(model, fold_dequantized)) == ["add"]


def test_computed_dequantize_is_not_folded():
    net = Net()
    net.input("q", 4, dtype=np.int8)
    net.output(net.dequantize("q", 0.5))
    assert operators(apply(net.model(), fold_dequantized, simplify)) == ["dequantize"]


# ----------------------------------------------------------------------------------------------- simplify


def test_reshapes_merge_and_vanish():
    def build(net: Net) -> str:
        there = net.op("Reshape", "x", net.const([2, 6], np.int64))
        return net.op("Relu", net.op("Reshape", there, net.const([3, 4], np.int64)))

    assert operators(apply(net_with(build), simplify)) == ["clamp"]


def test_transposes_compose():
    net = net_of_x(2, 3, 4)
    net.output(net.op("Transpose", net.op("Transpose", "x", perm=[1, 0, 2]), perm=[2, 0, 1]))
    graph = apply(net.model(), simplify)
    assert [node.op for node in graph.nodes] == [Transpose((2, 1, 0))]


def test_opposite_transposes_cancel():
    net = net_of_x(2, 3, 4, 5)
    net.output(net.op("Relu", net.op("Transpose", net.op("Transpose", "x", perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2])))
    assert operators(apply(net.model(), simplify)) == ["clamp"]


def test_transpose_of_axes_of_length_one_is_a_reshape():
    net = net_of_x(2, 1, 4)
    net.output(net.op("Transpose", "x", perm=[1, 0, 2]))
    assert [node.op for node in apply(net.model(), simplify).nodes] == [Reshape((1, 2, 4))]


def test_a_transpose_that_two_read_stays_for_both():
    net = net_of_x(2, 3, 4)
    turned = net.op("Transpose", "x", perm=[1, 0, 2])
    net.output(net.op("Relu", turned, out="a"), net.op("Transpose", turned, perm=[1, 0, 2], out="b"))
    assert operators(apply(net.model(), simplify)) == ["transpose", "clamp"]


def test_whole_slices_single_concats_and_empty_pads_vanish():
    net = net_of_x(3, 4)
    whole = net.op("Slice", "x", net.const([0], np.int64), net.const([9], np.int64))
    padded = net.op("Pad", net.op("Concat", whole, axis=0), net.const([0] * 4, np.int64))
    net.output(net.op("Relu", net.op("Expand", padded, net.const([3, 4], np.int64))))
    assert operators(apply(net.model(), simplify)) == ["clamp"]


def test_reversing_is_no_identity():
    net = net_of_x(3)
    ends = (net.const([v], np.int64) for v in (-1, -9, 0, -1))
    net.output(net.op("Slice", "x", *ends))
    assert operators(apply(net.model(), simplify)) == ["slice"]


def test_sign_flips_cancel_between_uint8_operators():
    net = Net()
    net.input("q", 4, dtype=np.uint8)
    real = net.op("Exp", net.dequantize("q", 0.01, 128, np.uint8))
    real = net.op("Neg", net.fake(real, 0.02, 100, np.uint8))
    net.output(net.quantize(real, 0.03, 200, np.uint8, out="y"), dtype=np.uint8)
    assert operators(imported(net.model())).count("flip_sign") == 4
    names = operators(apply(net.model(), simplify))
    assert [names[0], names[-1], names.count("flip_sign")] == ["flip_sign", "flip_sign", 2]


# --------------------------------------------------------------------------------------- dead and equal


def test_dead_code_goes_with_all_it_needs():
    net = net_of_x(3)
    net.op("Exp", net.op("Neg", "x"))
    net.output(net.op("Relu", "x"))
    assert operators(apply(net.model(), remove_dead_code)) == ["clamp"]


def test_output_nobody_else_reads_is_alive():
    net = net_of_x(3)
    net.output(net.op("Neg", "x"), net.op("Exp", "x"))
    assert operators(apply(net.model(), remove_dead_code)) == ["neg", "exp"]


def test_equal_nodes_merge_in_chains():
    net = net_of_x(3)
    left, right = (net.op("Add", net.op("Exp", "x"), net.const([1.0, 2.0, 3.0])) for _ in range(2))
    net.output(net.op("Mul", left, right))
    assert operators(apply(net.model(), merge_equal_nodes)) == ["exp", "add", "mul"]


def test_two_equal_outputs_become_one_value():
    net = net_of_x(3)
    net.output(net.op("Exp", "x", out="a"), net.op("Exp", "x", out="b"))
    graph = apply(net.model(), merge_equal_nodes)
    assert operators(graph) == ["exp"]
    assert graph.output_names == ["a", "b"]
    assert graph.outputs[0] is graph.outputs[1]


@pytest.mark.parametrize(
    "second",
    [
        lambda net: net.op("Elu", "x", alpha=0.6),
        lambda net: net.op("Elu", net.op("Neg", "x"), alpha=0.5),
        lambda net: net.op("Celu", "x", alpha=0.5),
    ],
    ids=["attribute", "input", "operator"],
)
def test_unequal_nodes_stay(second: Build):
    net = net_of_x(3)
    net.output(net.op("Elu", "x", alpha=0.5, out="a"), second(net))
    graph = imported(net.model())
    assert not merge_equal_nodes(graph)


def test_equal_constants_of_other_quantization_differ():
    net = net_of_x(4)
    codes = net.const([1, 2, 3, 4], np.int8)
    real = net.op("Relu", "x")
    for scale in (0.5, 0.25):
        net.output(net.op("Add", real, net.dequantize(codes, scale), out=f"y{scale}"))
    graph = apply(net.model(), merge_equal_nodes)
    assert operators(graph).count("add") == 2


def test_operands_in_another_order_are_not_equal():
    net = net_of_x(3)
    y = net.op("Exp", "x")
    net.output(net.op("Sub", "x", y, out="a"), net.op("Sub", y, "x", out="b"))
    model = net.model()
    graph = apply(model, merge_equal_nodes)
    assert operators(graph) == ["exp", "sub", "sub"]
    assert interpret(graph, random_feeds(model)).keys() == {"a", "b"}


@pytest.mark.parametrize(
    ("count", "low", "high", "expected"),
    [
        (257, -8, 7, (1028, 129)),
        (256, -9, 7, (1024, 256)),
        (256, -8, 8, (1024, 256)),
        (255, -8, 7, None),
    ],
)
def test_weights_that_become_floats_are_noted(count: int, low: int, high: int, expected: tuple[int, int] | None):
    """From 1,024 bytes on: bytes as floats, and as codes of 4 or 8 bits."""
    net = net_of_x(count)
    codes = np.resize(np.array([low, high]), count)
    net.output(net.op("Mul", "x", net.dequantize(net.const(codes, np.int8), 0.5), out="y"))
    graph = imported(net.model())
    fold_dequantized(graph)
    assert [weights[:2] for weights in graph.widened.values()] == ([] if expected is None else [expected])
