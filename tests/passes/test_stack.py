# SPDX-License-Identifier: Apache-2.0
"""Stacking: elementwise operators in a row become one loop, where nobody else looks inside."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx_models import Net, apply, check_everywhere, check_quantized, operators

from mcugen.backends.cpu.pipeline import convert_integers
from mcugen.passes.operator_stacking import MAX_STEPS, stack_elementwise, stack_unary, tabulate


def net_of_x(*shape: int) -> Net:
    net = Net()
    net.input("x", *shape)
    return net


def test_a_chain_becomes_one_loop():
    net = net_of_x(3, 4)
    scaled = net.op("Mul", net.op("Exp", "x"), net.const([1.0, 2.0, 3.0, 4.0]))
    net.output(net.op("Add", net.op("Tanh", scaled), net.input("y", 3, 4)))
    model = net.model()
    assert operators(apply(model, stack_elementwise)) == ["exp+mul+tanh+add"]
    check_everywhere(model)


def test_both_branches_of_a_diamond_of_inputs():
    net = net_of_x(3, 4)
    net.output(net.op("Add", net.op("Exp", "x"), net.op("Neg", "x")))
    model = net.model()
    graph = apply(model, stack_elementwise)
    assert len(graph.nodes) == 1
    assert len(graph.nodes[0].inputs) == 1
    check_everywhere(model)


def test_a_value_used_twice_by_one_reader():
    net = net_of_x(3, 4)
    inner = net.op("Exp", "x")
    net.output(net.op("Mul", inner, inner))
    model = net.model()
    assert operators(apply(model, stack_elementwise)) == ["exp+mul"]
    check_everywhere(model)


def test_comparison_and_selection():
    net = net_of_x(3, 4)
    positive = net.op("Greater", "x", net.const(0.0))
    net.output(net.op("Where", positive, net.op("Exp", "x"), net.input("y", 1, 4)))
    model = net.model()
    assert len(apply(model, stack_elementwise).nodes) == 1
    check_everywhere(model)


def test_swish_of_a_broadcast_input():
    net = net_of_x(2, 3, 4)
    shifted = net.op("Add", "x", net.input("y", 1, 3, 1))
    net.output(net.op("Mul", shifted, net.op("Sigmoid", shifted)))
    model = net.model()
    check_everywhere(model)
    assert operators(apply(model, stack_elementwise)) == ["add+sigmoid+mul"]


def two_readers(net: Net) -> None:
    inner = net.op("Exp", "x")
    net.output(net.op("Neg", inner), net.op("Sin", inner))


def seen_by_the_caller(net: Net) -> None:
    inner = net.op("Exp", "x")
    net.output(inner, net.op("Neg", inner))


def smaller_inside(net: Net) -> None:
    net.output(net.op("Add", net.op("Exp", net.input("small", 1, 4)), "x"))


def moved_between(net: Net) -> None:
    net.output(net.op("Neg", net.op("Transpose", net.op("Exp", "x"), perm=[1, 0])))


@pytest.mark.parametrize("build", [two_readers, seen_by_the_caller, smaller_inside, moved_between])
def test_what_must_not_be_stacked(build: Callable[[Net], None]):
    net = net_of_x(3, 4)
    build(net)
    assert not any("+" in name for name in operators(apply(net.model(), stack_elementwise)))


def test_long_chains_are_cut():
    net = net_of_x(3)
    x = "x"
    for _ in range(MAX_STEPS + 3):
        x = net.op("Sin", x)
    net.output(x)
    graph = apply(net.model(), stack_elementwise)
    assert sorted(len(name.split("+")) for name in operators(graph)) == [3, MAX_STEPS]


def test_unary_stacks_take_scalars_only():
    net = net_of_x(3, 4)
    scaled = net.op("Mul", net.op("Exp", "x"), net.const(3.0))
    net.output(net.op("Add", scaled, net.const([1.0, 2.0, 3.0, 4.0])))
    assert operators(apply(net.model(), stack_unary)) == ["exp+mul", "add"]


def test_unary_stacks_stop_at_conversions():
    net = net_of_x(6)
    real = net.op("Exp", net.dequantize(net.quantize("x", 0.1), 0.1))
    net.output(net.quantize(net.op("Neg", real), 0.1, out="y"), dtype=np.int8)
    assert operators(apply(net.model(), stack_unary)) == ["quantize", "dequantize", "exp+neg", "quantize"]


def test_two_inputs_are_no_unary_stack():
    net = net_of_x(3)
    net.output(net.op("Add", net.op("Exp", "x"), net.input("y", 3)))
    assert operators(apply(net.model(), stack_unary)) == ["exp", "add"]


def silu(net: Net, x: str) -> str:
    return net.op("Mul", x, net.fake(net.op("Sigmoid", x), 1 / 256, -128))


def gelu(net: Net, x: str) -> str:
    """By tanh, each step rounded to 8 bits."""
    cube = net.fake(net.op("Mul", net.fake(net.op("Mul", x, x), 0.0613, -128), x), 0.473)
    inner = net.fake(net.op("Add", x, net.fake(net.op("Mul", cube, net.const(0.0447)), 0.0231)), 0.0617)
    curve = net.fake(net.op("Tanh", net.fake(net.op("Mul", inner, net.const(0.798)), 0.0511)), 0.00787)
    return net.op(
        "Mul",
        net.fake(net.op("Mul", x, net.const(0.5)), 0.0153),
        net.fake(net.op("Add", curve, net.const(1.0)), 0.0157),
    )


@pytest.mark.parametrize("activation", [silu, gelu])
def test_an_activation_that_a_quantizer_rounds_at_each_step_is_one_table(activation: Callable[[Net, str], str]):
    net = net_of_x(1, 2, 8, 8)
    x = net.fake("x", 0.03)
    net.output(net.fake(activation(net, x), 0.03))
    model = net.model()
    assert operators(apply(model, convert_integers, tabulate)) == ["quantize", "lookup", "dequantize"]
    check_quantized(model)
