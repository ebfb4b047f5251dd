# SPDX-License-Identifier: Apache-2.0
"""Fusion: padding, scale, bias and activation enter the layer with weights, or stay where they must."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx_models import Net, apply, check_everywhere, check_quantized, operators, optimized

from mcugen.ops.conv import Conv
from mcugen.ops.matmul import MatMul
from mcugen.passes.fuse import (
    fold_affine,
    fold_clamp,
    fold_pad,
    fold_scale,
    fold_transpose_into_dense,
    fuse_dense,
    sink_concat,
    sink_layer_transpose,
    sink_reshape,
)
from mcugen.passes.layout import channels_last
from mcugen.passes.simplify import fold_dequantized, simplify

Build = Callable[[Net, str], str]


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).uniform(0.5, 1.5, shape)


def conv_net(before: Build | None = None, after: Build | None = None, **attributes: object) -> Net:
    """`after` (Conv (`before` x)), 3 channels to 4."""
    net = Net()
    x = net.input("x", 1, 3, 6, 6)
    conv = net.op("Conv", before(net, x) if before else x, net.const(values(4, 3, 3, 3)), out="conv", **attributes)
    net.output(after(net, conv) if after else conv)
    return net


def dense_net(after: Build, *, bias: bool = True) -> Net:
    net = Net()
    product = net.op("MatMul", net.input("x", 5, 3), net.const(values(3, 4)))
    net.output(after(net, net.op("Add", product, net.const(values(4))) if bias else product))
    return net


def pad(*widths: int, value: float = 0.0) -> Build:
    return lambda net, x: net.op("Pad", x, net.const(widths, np.int64), net.const(value))


def binary(function: str, *shape: int, first: bool = True) -> Build:
    def build(net: Net, x: str) -> str:
        operands = [x, net.const(values(*shape))]
        return net.op(function, *(operands if first else operands[::-1]))

    return build


# ---------------------------------------------------------------------------------------------- fold_pad


def test_zero_padding_enters_the_window():
    graph = apply(conv_net(pad(0, 0, 1, 2, 0, 0, 0, 3), pads=[1, 0, 0, 1]).model(), fold_pad)
    (node,) = graph.nodes
    assert isinstance(node.op, Conv)
    assert (node.op.window.before, node.op.window.after) == ((2, 2), (0, 4))


@pytest.mark.parametrize(
    "before", [pad(0, 0, 1, 1, 0, 0, 1, 1, value=0.5), pad(1, 0, 1, 1, 0, 0, 0, 0)], ids=["value", "batch"]
)
def test_other_padding_stays(before: Build):
    assert operators(apply(conv_net(before).model(), fold_pad)) == ["pad", "conv"]


def test_channel_padding_stays():
    net = Net()
    padded = pad(0, 1, 0, 0, 0, 1, 0, 0)(net, net.input("x", 1, 1, 4, 4))
    net.output(net.op("Conv", padded, net.const(values(2, 3, 3, 3))))
    assert operators(apply(net.model(), fold_pad)) == ["pad", "conv"]


def test_padding_that_another_reads_stays_for_it():
    net = conv_net(pad(0, 0, 1, 1, 0, 0, 1, 1))
    net.output(net.op("Relu", net.nodes[0].output[0]))
    assert operators(apply(net.model(), fold_pad, simplify)) == ["pad", "conv", "clamp"]


def _quantized_layer(layer: str) -> Net:
    """Two readers of a tensor that is padded, more at the right and below, between conversions of one scale."""
    net = Net()
    codes = net.quantize(net.input("x", 1, 4, 9, 8), 0.1, -128)
    relu = net.op("Relu", net.dequantize(codes, 0.1, -128))
    padded = net.fake(pad(0, 0, 0, 1, 0, 0, 1, 2)(net, net.fake(relu, 0.1, -128)), 0.1, -128)
    for number, stride in enumerate((1, 2)):
        out, attributes = f"y{number}", {"strides": [stride] * 2}
        if layer == "conv":
            w = net.dequantize(net.const(values(4, 4, 3, 3) * 50, np.int8), 0.01)
            y = net.op("Conv", padded, w, **attributes)
        elif layer == "depthwise":
            w = net.dequantize(net.const(values(4, 1, 3, 3) * 50, np.int8), 0.01)
            y = net.op("Conv", padded, w, group=4, **attributes)
        else:
            counts = {"count_include_pad": 1, "pads": [1, 1, 0, 0]} if layer == "AveragePool" else {}
            y = net.op(layer, padded, kernel_shape=[3, 3], **attributes, **counts)
        net.quantize(y, 0.1, -128, out=out)
        net.output(out, dtype=np.int8)
    return net


@pytest.mark.parametrize("layer", ["conv", "depthwise", "AveragePool", "MaxPool"])
def test_quantized_padding_enters_the_window(layer: str):
    net = _quantized_layer(layer)
    assert "pad" not in operators(optimized(net.model()))
    check_quantized(net.model())


@pytest.mark.parametrize("zero", [-128, 3])
def test_padding_enters_a_maximum_only_of_what_is_not_negative(zero: int):
    net = Net()
    x = net.fake(net.input("x", 1, 4, 9, 8), 0.1, zero)
    padded = net.fake(pad(0, 0, 1, 1, 0, 0, 0, 2)(net, x), 0.1, zero)
    net.quantize(net.op("MaxPool", padded, kernel_shape=[3, 3], strides=[2, 2]), 0.1, zero, out="y")
    net.output("y", dtype=np.int8)
    assert ("pad" in operators(optimized(net.model()))) == (zero != -128)
    check_quantized(net.model())


def test_a_window_within_the_padding_stays():
    net = Net()
    x = net.fake(net.input("x", 1, 4, 9, 8), 0.1, -128)
    padded = net.fake(pad(0, 0, 3, 0, 0, 0, 0, 0)(net, x), 0.1, -128)
    net.quantize(net.op("MaxPool", padded, kernel_shape=[3, 3]), 0.1, -128, out="y")
    net.output("y", dtype=np.int8)
    assert "pad" in operators(optimized(net.model()))
    check_quantized(net.model())


def test_padding_of_channels_last_enters_the_window():
    net = Net()
    x = net.fake(net.input("x", 1, 9, 8, 4), 0.1, 5)
    padded = net.fake(pad(0, 0, 1, 0, 0, 1, 1, 0)(net, x), 0.1, 5)
    image = net.op("Transpose", padded, perm=[0, 3, 1, 2])
    w = net.dequantize(net.const(values(4, 4, 3, 3) * 50, np.int8), 0.01)
    net.quantize(net.op("Conv", image, w, strides=[2, 2]), 0.1, out="y")
    net.output("y", dtype=np.int8)
    assert "pad" not in operators(optimized(net.model()))
    check_quantized(net.model())


# --------------------------------------------------------------------------------------------- fuse_dense


def test_product_with_a_constant_matrix_is_dense():
    graph = apply(dense_net(lambda net, x: x, bias=False).model(), fuse_dense)
    assert operators(graph) == ["dense"]
    assert graph.nodes[0].input(1).type.shape == (4, 3)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_quantized_matrix_stays_quantized(axis: int | None):
    net = Net()
    codes = net.const(np.arange(12).reshape(3, 4), np.int8)
    count = 1 if axis is None else (3, 4)[axis]
    scales = net.const(0.5 if axis is None else values(count))
    zeros = net.const(0 if axis is None else [0] * count, np.int8)
    weights = net.op("DequantizeLinear", codes, scales, zeros, axis=axis or 0)
    net.output(net.op("MatMul", net.input("x", 5, 3), weights))
    graph = apply(net.model(), fuse_dense, simplify)
    assert operators(graph) == ["dequantize", "dense"]
    stored = graph.nodes[0].input(0).type
    assert stored.shape == (4, 3)
    assert stored.q.axis == (None if axis is None else 1 - axis)


def test_product_of_two_activations_stays():
    net = Net()
    net.output(net.op("MatMul", net.input("a", 2, 3), net.input("b", 3, 4)))
    assert operators(apply(net.model(), fuse_dense)) == ["matmul"]


def test_batch_of_constant_matrices_stays():
    net = Net()
    net.output(net.op("MatMul", net.input("a", 2, 5, 3), net.const(values(2, 3, 4))))
    assert operators(apply(net.model(), fuse_dense)) == ["matmul"]


# -------------------------------------------------------------------------------------------- sink_concat


def inception(after: Build, axis: int = 1) -> Net:
    """`after` (Concat of two convolutions of one tensor), as in a block of Inception."""
    net = Net()
    x = net.input("x", 1, 3, 6, 6)
    parts = [net.op("Conv", x, net.const(values(4, 3, k, k)), pads=[k // 2] * 4) for k in (1, 3)]
    net.output(after(net, net.op("Concat", *parts, axis=axis, out="joined")))
    return net


def normalized(channels: int) -> Build:
    def build(net: Net, x: str) -> str:
        normal = net.op("BatchNormalization", x, *(net.const(values(channels)) for _ in range(4)))
        return net.op("Relu", normal)

    return build


@pytest.mark.parametrize(("axis", "channels"), [(1, 8), (3, 4)], ids=["channels", "columns"])
def test_normalization_and_activation_pass_a_concatenation(axis: int, channels: int):
    model = inception(normalized(channels), axis).model()
    graph = apply(model, simplify, sink_concat, fold_affine, fold_clamp)
    assert sorted(operators(graph)) == ["concat", "conv", "conv"]
    check_everywhere(model)


@pytest.mark.parametrize(
    "after",
    [binary("Sub", 8, 1, 1, first=False), binary("Mul", 8, 6, 1), binary("Max", 8, 1, 1), binary("Mul", 2, 8, 6, 6)],
    ids=["subtrahend", "rows", "maximum", "broadcast"],
)
def test_what_no_layer_takes_in_stays_behind_a_concatenation(after: Build):
    assert operators(apply(inception(after).model(), sink_concat))[2] == "concat"


def test_a_concatenation_that_another_reads_stays_before_both():
    net = inception(lambda net, x: net.op("Relu", x))
    net.output("joined")
    assert operators(apply(net.model(), sink_concat)) == ["conv", "conv", "concat", "clamp"]


def test_a_part_that_another_reads_keeps_its_own_result():
    net = Net()
    x = net.input("x", 1, 3, 6, 6)
    part = net.op("Conv", x, net.const(values(4, 3, 1, 1)))
    net.output(net.op("Relu", net.op("Concat", part, part, axis=1)))
    assert operators(apply(net.model(), sink_concat)) == ["conv", "concat", "clamp"]


# -------------------------------------------------------------------------------------------- fold_affine


@pytest.mark.parametrize("function", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (4, 1, 1), (1,), ()], ids=str)
def test_constant_per_channel_enters_conv(function: str, shape: tuple[int, ...]):
    graph = apply(conv_net(after=binary(function, *shape)).model(), fold_affine)
    assert operators(graph) == ["conv"]


@pytest.mark.parametrize("function", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("shape", [(1, 4), (4,), (1,), ()], ids=str)
def test_constant_per_channel_enters_dense(function: str, shape: tuple[int, ...]):
    graph = apply(dense_net(binary(function, *shape)).model(), fuse_dense, fold_affine)
    assert operators(graph) == ["dense"]


@pytest.mark.parametrize("function", ["Add", "Mul"])
def test_constant_may_come_first(function: str):
    graph = apply(conv_net(after=binary(function, 4, 1, 1, first=False)).model(), fold_affine)
    assert operators(graph) == ["conv"]


def test_batch_normalization_enters_conv():
    def normalize(net: Net, x: str) -> str:
        return net.op("BatchNormalization", x, *(net.const(values(4)) for _ in range(4)), epsilon=0.01)

    model = conv_net(after=normalize).model()
    assert operators(apply(model, fold_affine)) == ["conv"]
    check_everywhere(model)


@pytest.mark.parametrize(
    "after",
    [
        binary("Add", 1, 1, 4, 4),
        binary("Add", 1, 4, 4, 4),
        binary("Mul", 4),
        binary("Add", 1, 1, 4, 1),
        binary("Sub", 4, 1, 1, first=False),
        binary("Div", 4, 1, 1, first=False),
        binary("Add", 2, 4, 1, 1),
        binary("Add", 1, 1, 4, 1, 1),
        binary("Max", 4, 1, 1),
        lambda net, x: net.op("Add", x, x),
        lambda net, x: net.op("Add", x, net.op("Relu", net.input("y", 4, 1, 1))),
    ],
    ids=[
        "pixels",
        "everything",
        "columns as many as channels",
        "rows as many as channels",
        "constant minus conv",
        "constant over conv",
        "larger batch",
        "larger rank",
        "maximum",
        "conv with itself",
        "computed operand",
    ],
)
def test_other_operands_stay(after: Build):
    graph = apply(conv_net(after=after).model(), fold_affine)
    assert operators(graph)[0] == "conv"
    assert len(graph.nodes) > 1


def test_conv_with_two_readers_keeps_its_own_result():
    net = conv_net(after=binary("Add", 4, 1, 1))
    net.output(net.op("Exp", "conv"))
    assert operators(apply(net.model(), fold_affine)) == ["conv", "add", "exp"]


def test_conv_that_is_an_output_keeps_its_own_result():
    net = conv_net(after=binary("Add", 4, 1, 1))
    net.output("conv")
    assert operators(apply(net.model(), fold_affine)) == ["conv", "add"]


def test_constant_after_an_activation_stays():
    def build(net: Net, x: str) -> str:
        return binary("Mul", 4, 1, 1)(net, net.op("Relu", x))

    assert operators(apply(conv_net(after=build).model(), fold_clamp, fold_affine)) == ["conv", "mul"]


def test_quantized_bias_keeps_its_codes():
    def build(net: Net, x: str) -> str:
        return net.op("Add", x, net.dequantize(net.const([[1, -2, 3, 4]], np.int32), 0.25, 0, np.int32))

    graph = apply(dense_net(build, bias=False).model(), fuse_dense, fold_affine, simplify)
    assert operators(graph) == ["dequantize", "dense"]
    assert graph.nodes[0].input(0).data.tolist() == [1, -2, 3, 4]


# ------------------------------------------------------------------------------------------- fold_clamp


def clip(low: float, high: float) -> Build:
    return lambda net, x: net.op("Clip", x, net.const(low), net.const(high))


def test_activation_enters_the_layer():
    graph = apply(conv_net(after=clip(-0.5, 7.0)).model(), fold_clamp)
    (node,) = graph.nodes
    assert node.op.clamp == (-0.5, 7.0)


@pytest.mark.parametrize("function", ["Add", "Sub", "Mul", "Div"])
def test_activation_enters_arithmetic(function: str):
    net = Net()
    net.output(net.op("Relu", net.op(function, net.input("x", 3, 4), net.input("y", 1, 4))))
    assert operators(apply(net.model(), fold_clamp)) == [function.lower()]


def test_second_activation_stays():
    graph = apply(conv_net(after=lambda net, x: clip(0.0, 1.0)(net, net.op("Relu", x))).model(), fold_clamp)
    assert operators(graph) == ["conv", "clamp"]


def test_activation_of_a_layer_with_two_readers_stays():
    net = conv_net(after=lambda net, x: net.op("Relu", x))
    net.output(net.op("Exp", "conv"))
    assert operators(apply(net.model(), fold_clamp)) == ["conv", "clamp", "exp"]


@pytest.mark.parametrize("function", ["Max", "Greater"])
def test_other_operators_do_not_clamp(function: str):
    net = Net()
    result = net.op(function, net.input("x", 3), net.input("y", 3))
    real = net.op("Where", result, "x", "y") if function == "Greater" else result
    net.output(net.op("Relu", real))
    assert operators(apply(net.model(), fold_clamp))[-1] == "clamp"


def test_integer_clamp_stays():
    net = Net()
    added = net.op("Add", net.input("x", 9, dtype=np.int32), net.input("y", 9, dtype=np.int32))
    net.output(net.op("Clip", added, net.const(0, np.int32), net.const(9, np.int32)), dtype=np.int32)
    assert operators(apply(net.model(), fold_clamp)) == ["add", "clamp"]


# ---------------------------------------------------------------------------- fold_transpose_into_dense


def flattened(shape: list[int], dense_inputs: int, perm: tuple[int, ...] | None = None) -> Net:
    net = Net()
    conv = net.op("Conv", net.input("x", 2, 3, 6, 5), net.const(values(4, 3, 3, 3)))
    turned = conv if perm is None else net.op("Transpose", conv, perm=perm)
    flat = net.op("Reshape", turned, net.const(shape, np.int64))
    net.output(net.op("MatMul", flat, net.const(values(dense_inputs, 7))))
    return net


DENSE = (fuse_dense, channels_last, simplify, fold_transpose_into_dense, simplify)


def test_flattening_reads_channels_last():
    graph = apply(flattened([2, 48], 48).model(), *DENSE)
    assert operators(graph) == ["transpose", "conv", "reshape", "dense"]


def test_flattening_of_part_of_a_sample_keeps_its_transpose():
    graph = apply(flattened([8, 12], 12).model(), *DENSE)
    assert operators(graph) == ["transpose", "conv", "transpose", "reshape", "dense"]


def test_quantized_matrix_is_permuted_too():
    net = Net()
    conv = net.op("Conv", net.input("x", 1, 3, 6, 5), net.const(values(4, 3, 3, 3)))
    flat = net.op("Flatten", conv)
    codes = net.dequantize(net.const(np.arange(96).reshape(48, 2), np.int8), 0.1)
    net.output(net.op("MatMul", flat, codes))
    graph = apply(
        net.model(),
        fuse_dense,
        fold_dequantized,
        channels_last,
        simplify,
        fold_transpose_into_dense,
        simplify,
    )
    assert operators(graph) == ["transpose", "conv", "reshape", "dense"]


@pytest.mark.parametrize("group", [1, 2])
def test_normalization_enters_a_transposed_convolution(group: int):
    net = Net()
    x = net.input("x", 1, 4, 5, 5)
    y = net.op("ConvTranspose", x, net.const(values(4, 3, 2, 2)), strides=[2, 2], group=group)
    statistics = [net.const(np.sort(values(3 * group))) for _ in range(4)]
    net.output(net.op("Relu", net.op("BatchNormalization", y, *statistics)))
    assert operators(apply(net.model(), fold_affine, fold_clamp)) == ["conv_transpose"]
    check_everywhere(net.model())


# ------------------------------------------------------------------------------------- rows of several axes


def rows_net(*after: Build) -> Net:
    net = Net()
    y = net.op("MatMul", net.input("x", 2, 5, 3), net.const(values(3, 4)))
    for build in after:
        y = build(net, y)
    net.output(y)
    return net


def relu(net: Net, x: str) -> str:
    return net.op("Relu", x)


ROWS = (fuse_dense, sink_reshape, fold_affine, fold_clamp, simplify)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1, 1, 4), (), (1,)], ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_bias_scale_and_activation_of_rows_enter_the_layer(shape: tuple[int, ...], first: bool):
    net = rows_net(binary("Add", *shape, first=first), binary("Mul", *shape, first=first), relu)
    graph = apply(net.model(), *ROWS)
    assert operators(graph) == ["reshape", "dense", "reshape"]
    check_everywhere(net.model())


def test_quantized_bias_of_rows_stays_quantized():
    net = Net()
    product = net.op("MatMul", net.input("x", 2, 5, 3), net.const(values(3, 4)))
    codes, scales = net.const([1, -2, 3, 4], np.int32), net.const(values(4))
    bias = net.op("DequantizeLinear", codes, scales, net.const([0] * 4, np.int32), axis=0)
    net.output(net.op("Add", product, bias))
    graph = apply(net.model(), simplify, *ROWS)
    assert operators(graph) == ["reshape", "dequantize", "dense", "reshape"]


@pytest.mark.parametrize("shape", [(5, 1), (5, 4), (2, 1, 1)], ids=str)
def test_numbers_that_differ_from_row_to_row_stay(shape: tuple[int, ...]):
    assert operators(apply(rows_net(binary("Add", *shape)).model(), *ROWS)) == ["reshape", "dense", "reshape", "add"]


def test_rows_that_another_reads_stay():
    net = rows_net(binary("Add", 4))
    net.output(net.op("Abs", net.nodes[0].output[0]))
    assert "add" in operators(apply(net.model(), *ROWS))


# ------------------------------------------------------------------------------------ sink_layer_transpose


TURNED = (sink_layer_transpose, fold_affine, fold_clamp, simplify)


def turned_net(*after: Build) -> Net:
    """Return a convolution whose result is transposed to channels last, and what follows."""

    def build(net: Net, x: str) -> str:
        y = net.op("Transpose", x, perm=[0, 2, 3, 1])
        for step in after:
            y = step(net, y)
        return y

    return conv_net(after=build)


@pytest.mark.parametrize("shape", [(4,), (1, 1, 1, 4), (), (1,)], ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_bias_scale_and_activation_behind_a_transposition_enter_the_layer(shape: tuple[int, ...], first: bool):
    net = turned_net(binary("Add", *shape, first=first), binary("Mul", *shape, first=first), relu)
    assert operators(apply(net.model(), *TURNED)) == ["conv", "transpose"]
    check_everywhere(net.model())


@pytest.mark.parametrize("shape", [(4, 1), (4, 4, 4), (2, 1, 1, 1)], ids=str)
def test_constants_that_are_none_per_channel_stay_behind_the_transposition(shape: tuple[int, ...]):
    net = turned_net(binary("Add", *shape))
    assert operators(apply(net.model(), *TURNED)) == ["conv", "transpose", "add"]


def test_a_transposed_result_that_another_reads_stays():
    net = turned_net(binary("Add", 4))
    net.output(net.op("Abs", net.nodes[1].output[0]))
    assert "add" in operators(apply(net.model(), *TURNED))


# ---------------------------------------------------------------------------------------------- fold_scale


def product_net(before: Build | None, after: Build | None, dtype: type = np.float32) -> Net:
    net = Net()
    a, b = net.input("a", 2, 3, 4, dtype=dtype), net.input("b", 2, 4, 5, dtype=dtype)
    product = net.op("MatMul", *((before(net, a), before(net, b)) if before else (a, b)))
    net.output(after(net, product) if after else product, dtype=dtype)
    return net


def scaled(function: str, factor: float, dtype: type = np.float32, first: bool = True) -> Build:
    def build(net: Net, x: str) -> str:
        operands = [x, net.const(factor, dtype)]
        return net.op(function, *(operands if first else operands[::-1]))

    return build


@pytest.mark.parametrize(
    ("before", "after", "factor"),
    [
        (None, scaled("Mul", 0.3), 0.3),
        (None, scaled("Mul", 0.3, first=False), 0.3),
        (None, scaled("Div", 4), 0.25),
        (scaled("Mul", 3), None, 9),
        (scaled("Mul", 3), scaled("Div", 2), 4.5),
    ],
)
def test_scale_enters_the_product(before: Build | None, after: Build | None, factor: float):
    net = product_net(before, after)
    (node,) = apply(net.model(), fold_scale).nodes
    assert isinstance(node.op, MatMul)
    assert node.op.factor == pytest.approx(factor)
    check_everywhere(net.model())


@pytest.mark.parametrize(
    "after", [scaled("Mul", -0.3), scaled("Div", 2, first=False), scaled("Mul", 0.0), scaled("Mul", 1e31)]
)
def test_other_scales_stay(after: Build):
    assert len(operators(apply(product_net(None, after).model(), fold_scale))) == 2


def test_doubles_are_scaled_as_doubles():
    net = product_net(scaled("Mul", 1 / 3, np.float64), None, np.float64)
    assert operators(apply(net.model(), fold_scale)) == ["matmul"]
    check_everywhere(net.model(), relative=1e-13)


def test_a_product_that_another_reads_keeps_its_scale():
    net = product_net(None, scaled("Mul", 0.5))
    net.output(net.op("Abs", net.nodes[0].output[0]))
    assert "mul" in operators(apply(net.model(), fold_scale))


def test_a_scaled_product_of_codes_is_rounded_once():
    net = Net()
    a, b = (
        net.dequantize(net.input(n, 1, 30, 30, dtype=np.int8), s, z) for n, s, z in (("a", 0.05, 3), ("b", 0.03, -8))
    )
    net.output(net.quantize(net.op("Mul", net.op("MatMul", a, b), net.const(0.3)), 0.02, 0, out="y"), dtype=np.int8)
    model = net.model()
    assert operators(optimized(model)) == ["matmul"]
    check_quantized(model)
