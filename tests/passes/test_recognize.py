# SPDX-License-Identifier: Apache-2.0
"""What exporters spell out is recognized, whatever the order of its operands, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_models import Net, apply, check_everywhere, check_quantized, operators, optimized

from mcugen.ops.norm import Normalize
from mcugen.passes.composite_operators import recognize_groups, recognize_normalization, recognize_shifted
from mcugen.passes.simplify import simplify

SHAPE = (2, 5, 8)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).uniform(0.5, 1.5, shape)


# --------------------------------------------------------------------------------------------- normalization


def mean(net: Net, x: str, axes: tuple[int, ...]) -> str:
    return net.op("ReduceMean", x, axes=list(axes), keepdims=1)


def spelled_out(
    net: Net, x: str, axes: tuple[int, ...] = (2,), centered: bool = True, reciprocal: bool = False, power: bool = True
) -> str:
    d = net.op("Sub", x, mean(net, x, axes)) if centered else x
    square = net.op("Pow", d, net.const(2.0)) if power else net.op("Mul", d, d)
    operands = [mean(net, square, axes), net.const(1e-3)]
    root = net.op("Sqrt", net.op("Add", *(operands if power else operands[::-1])))
    return net.op("Mul", net.op("Reciprocal", root), d) if reciprocal else net.op("Div", d, root)


@pytest.mark.spread(2)
@pytest.mark.parametrize("axes", [(2,), (1, 2), (1,)])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("reciprocal", [True, False])
def test_normalization(axes: tuple[int, ...], centered: bool, reciprocal: bool):
    net = Net()
    net.output(spelled_out(net, net.input("x", *SHAPE), axes, centered, reciprocal, power=centered))
    (node,) = apply(net.model(), simplify, recognize_normalization, simplify).nodes
    assert isinstance(node.op, Normalize)
    assert (node.op.axes, node.op.centered) == (axes, centered)
    assert node.op.epsilon == pytest.approx(1e-3)
    check_everywhere(net.model())


def test_sums_with_the_mean_are_not_centered():
    net = Net()
    x = net.input("x", *SHAPE)
    net.output(spelled_out(net, net.op("Add", x, mean(net, x, (2,))), centered=False))
    graph = apply(net.model(), simplify, recognize_normalization, simplify)
    (node,) = (node for node in graph.nodes if isinstance(node.op, Normalize))
    assert not node.op.centered


def shifted(net: Net, x: str, scale: bool, bias: str, of: str = "") -> str:
    """x · s + (b − mean x · s), as TensorFlow's batch_normalization by moments, and Keras' layers, have it."""
    average = mean(net, of or x, (2,))
    d = net.op("Sub", x, average)
    root = net.op("Sqrt", net.op("Add", mean(net, net.op("Mul", d, d), (2,)), net.const(1e-3)))
    by = net.op("Reciprocal", root)
    by = net.op("Mul", by, net.const(values(8))) if scale else by
    if bias == "less":
        rest = net.op("Sub", net.const(values(8)), net.op("Mul", average, by))
    else:
        rest = net.op("Mul", net.op("Neg", average), by)
        rest = net.op("Add", rest, net.const(values(8))) if bias else rest
    return net.op("Add", net.op("Mul", x, by), rest)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("bias", ["", "less", "more"])
def test_a_mean_that_is_scaled_before_it_is_taken_away(scale: bool, bias: str):
    net = Net()
    net.output(shifted(net, net.input("x", *SHAPE), scale, bias))
    (node,) = apply(net.model(), simplify, recognize_shifted, recognize_normalization, simplify).nodes
    assert isinstance(node.op, Normalize) and node.op.centered
    assert [v is not None for v in (*node.inputs, None, None)[1:3]] == [scale, bool(bias)]
    check_everywhere(net.model())


def test_the_mean_of_something_else_is_not_its_own():
    net = Net()
    x = net.input("x", *SHAPE)
    net.output(shifted(net, x, True, "less", of=net.op("Abs", x)))
    graph = apply(net.model(), recognize_shifted, recognize_normalization, simplify)
    (node,) = (n for n in graph.nodes if isinstance(n.op, Normalize))
    assert not node.op.centered
    check_everywhere(net.model())


@pytest.mark.parametrize("shape", [(8,), (1, 8), (5, 8), (1, 1, 1), ()], ids=str)
def test_its_scale_and_bias(shape: tuple[int, ...]):
    net = Net()
    normal = spelled_out(net, net.input("x", *SHAPE))
    scaled = net.op("Mul", net.const(values(*shape)), normal)
    net.output(net.op("Relu", net.op("Add", scaled, net.const(values(*shape)))))
    assert operators(apply(net.model(), simplify, recognize_normalization, simplify)) == ["normalize", "clamp"]
    check_everywhere(net.model())


def test_a_second_scale_and_what_another_reads_stay():
    net = Net()
    normal = spelled_out(net, net.input("x", *SHAPE))
    biased = net.op("Add", net.op("Mul", normal, net.const(values(8))), net.const(values(8)))
    net.output(net.op("Mul", biased, net.const(values(8))), net.op("Abs", normal))
    names = operators(apply(net.model(), recognize_normalization, simplify))
    assert names.count("mul") == 2 and names.count("normalize") == 1


def grouped(groups: int, parted: tuple[int, ...] = (), scales: np.ndarray | None = None, batch: int = 2) -> Net:
    """As PyTorch writes GroupNormalization of six channels."""
    net = Net()
    x = net.input("x", batch, 6, 4, 5)
    parts = net.op("Reshape", x, net.const(parted or (batch, groups, -1), np.int64))
    scales = np.ones(groups) if scales is None else scales
    normal = net.op("InstanceNormalization", parts, net.const(scales), net.const(scales - 1), epsilon=1e-3)
    back = net.op("Reshape", normal, net.const((batch, 6, 4, 5), np.int64))
    scaled = net.op("Mul", back, net.const(values(6, 1, 1)))
    net.output(net.op("Relu", net.op("Add", scaled, net.const(values(6, 1, 1)))))
    return net


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_groups_between_reshapes(groups: int):
    model = grouped(groups).model()
    (node, _) = apply(model, simplify, recognize_groups, simplify).nodes
    assert isinstance(node.op, Normalize) and len(node.inputs) == 3
    assert node.op.axes == (2, 3) and node.op.groups == ((1, groups) if groups < 6 else None)
    check_everywhere(model)


def test_groups_with_scales_of_their_own():
    model = grouped(2, scales=np.asarray([0.5, 1.75])).model()
    names = operators(apply(model, simplify, recognize_groups, simplify))
    assert "reshape" not in names and names[0] == "normalize"
    check_everywhere(model)


@pytest.mark.parametrize("parted", [(4, 3, 20), (1, 2, 120), (2, 4, 30)], ids=str)
def test_other_reshapes_around_a_normalization_stay(parted: tuple[int, ...]):
    model = grouped(parted[1], parted).model()
    assert operators(apply(model, simplify, recognize_groups, simplify)).count("reshape") == 2
    check_everywhere(model)


def test_quotients_of_another_kind_stay():
    net = Net()
    x, other = net.input("x", *SHAPE), net.input("other", *SHAPE)
    root = net.op("Sqrt", net.op("Add", mean(net, net.op("Mul", x, x), (2,)), net.const(1e-3)))
    net.output(net.op("Div", other, root), net.op("Div", root, x))
    off = net.op("Sub", x, mean(net, x, (1,)))  # centered along another axis
    assert "normalize" not in operators(apply(net.model(), recognize_normalization))
    deviation = net.op("Sqrt", net.op("Add", mean(net, net.op("Mul", off, off), (2,)), net.const(1e-3)))
    net.output(net.op("Div", off, deviation))
    (node,) = [n for n in apply(net.model(), recognize_normalization).nodes if isinstance(n.op, Normalize)]
    assert isinstance(node.op, Normalize) and not node.op.centered


# ---------------------------------------------------------------------------------------------------- affine


def chain(*functions: str, shape: tuple[int, ...] = (3, 1, 1), swapped: bool = False) -> Net:
    net = Net()
    y = net.input("x", 1, 3, 6, 5)
    for function in functions:
        constant = net.const(values(*shape))
        y = net.op(function, *((constant, y) if swapped else (y, constant)))
    net.output(net.op("Relu", y))
    return net


@pytest.mark.parametrize("functions", [("Mul", "Add"), ("Sub", "Div"), ("Add", "Mul"), ("Div", "Sub")], ids=str)
def test_affine(functions: tuple[str, ...]):
    net = chain(*functions)
    assert operators(optimized(net.model())) == ["affine"]
    check_everywhere(net.model())


def test_affine_of_what_is_subtracted():
    net = chain("Mul", "Sub", swapped=True)
    assert operators(optimized(net.model())) == ["affine"]
    check_everywhere(net.model())


@pytest.mark.parametrize(
    "net", [chain("Mul"), chain("Mul", "Add", shape=()), chain("Mul", "Add", shape=(3, 6, 5)), chain("Mul", "Pow")]
)
def test_other_chains_stay(net: Net):
    assert "affine" not in operators(optimized(net.model()))


@pytest.mark.parametrize("types", [(np.int8, np.int8), (np.int16, np.int16), (np.int8, np.int16), (np.int16, np.int8)])
def test_batch_normalization_of_codes_is_one_step(types: tuple[type, type]):
    net = Net(21)
    scales, zeros = ({np.int8: a, np.int16: b} for a, b in ((0.0513, 2.1e-4), (7, 0)))
    x = net.dequantize(net.input("x", 1, 8, 15, 15, dtype=types[0]), scales[types[0]], zeros[types[0]], types[0])
    statistics = [net.const(np.random.default_rng(i).uniform(0.5, 1.5, 8)) for i in range(4)]
    y = net.op("Relu", net.op("BatchNormalization", x, *statistics))
    net.output(net.quantize(y, 1.37 * scales[types[1]], zeros[types[1]], types[1], out="y"), dtype=types[1])
    model = net.model()
    assert operators(optimized(model)) == ["affine"]
    check_quantized(model)
