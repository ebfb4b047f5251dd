# SPDX-License-Identifier: Apache-2.0
"""Layout: convolutions read pixels, and transpositions remain at the borders alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from dynamic_chains import dynamic_chain
from onnx import TensorProto
from onnx_models import Net, apply, check_everywhere, onnxruntime_outputs, operators, optimized

from mcugen.driver.compiler import compile_model
from mcugen.passes.layout import channels_last, sink_transposes
from mcugen.passes.simplify import simplify

PIPELINE = (channels_last, simplify, sink_transposes, simplify)


def conv(net: Net, x: str, channels: int = 4, inputs: int = 4, **attributes: object) -> str:
    weights = np.random.default_rng(len(net.nodes)).standard_normal((channels, inputs, 3, 3)) / 6
    return net.op("Conv", x, net.const(weights), pads=[1, 1, 1, 1], **attributes)


def net_of_convs(between: Callable[[Net, str, str], str]) -> Net:
    """conv → `between`(two convs of it) → conv."""
    net = Net()
    first = conv(net, net.input("x", 1, 3, 6, 5), inputs=3)
    joined = between(net, conv(net, first), conv(net, first))
    channels = {"Concat": 8}.get(net.nodes[-1].op_type, 4)
    net.output(conv(net, joined, inputs=channels))
    return net


def borders(graph_operators: list[str]) -> list[str]:
    assert graph_operators[0] == graph_operators[-1] == "transpose"
    return graph_operators[1:-1]


def test_one_conv_gets_a_transpose_on_either_side():
    net = Net()
    net.output(conv(net, net.input("x", 1, 3, 6, 5), inputs=3))
    assert operators(apply(net.model(), channels_last)) == ["transpose", "conv", "transpose"]


def test_convs_in_a_row_have_none_between_them():
    net = net_of_convs(lambda net, a, b: a)
    assert borders(operators(apply(net.model(), channels_last, simplify))) == ["conv", "conv", "conv"]


@pytest.mark.parametrize(
    ("between", "middle"),
    [
        (lambda net, a, b: net.op("Add", a, b), ["add"]),
        (lambda net, a, b: net.op("Concat", a, b, axis=1), ["concat"]),
        (lambda net, a, b: net.op("Relu", net.op("Mul", a, b)), ["mul", "clamp"]),
        (lambda net, a, b: net.op("Add", a, net.const(np.arange(4.0).reshape(4, 1, 1))), ["add"]),
        (lambda net, a, b: net.op("Mul", a, net.const(2.0)), ["mul"]),
        (lambda net, a, b: net.op("Mul", a, net.op("Sigmoid", net.op("Add", a, b))), ["add", "sigmoid", "mul"]),
        (lambda net, a, b: net.op("Pad", a, net.const([0, 0, 1, 0, 0, 0, 0, 2], np.int64)), ["pad"]),
        (
            lambda net, a, b: net.op("Add", *net.ops("Split", net.op("Concat", a, b, axis=1), outs=["p", "q"], axis=1)),
            ["concat", "slice", "slice", "add"],
        ),
    ],
    ids=["add", "concat", "clamped product", "per channel", "scalar", "gated", "pad", "split"],
)
def test_no_transpose_inside_the_network(between: Callable[[Net, str, str], str], middle: list[str]):
    model = net_of_convs(between).model()
    graph = apply(model, *PIPELINE)
    inner = [name for name in borders(operators(graph)) if name != "conv"]
    assert inner == middle
    assert "transpose" not in borders(operators(optimized(model)))


def test_residual_network_as_a_whole():
    net = Net()
    x = conv(net, net.input("x", 1, 3, 8, 8), inputs=3)
    for _ in range(2):
        branch = conv(net, net.op("Relu", conv(net, x)))
        x = net.op("Relu", net.op("Add", x, branch))
    x = net.op("Concat", x, conv(net, x, strides=[1, 1]), axis=1)
    net.output(net.op("Sigmoid", conv(net, x, inputs=8)))
    model = net.model()
    assert "transpose" not in borders(operators(optimized(model)))
    check_everywhere(model)


def test_line_convolutions():
    net = Net()
    weights = net.const(np.random.default_rng(1).standard_normal((3, 3, 3)))
    x = net.op("Relu", net.op("Conv", net.input("x", 1, 3, 9), weights))
    net.output(net.op("Conv", net.op("Exp", x), weights))
    assert "transpose" not in borders(operators(apply(net.model(), *PIPELINE)))


def test_a_transpose_that_the_model_wants_stays_alone():
    net = Net()
    net.output(net.op("Relu", net.op("Transpose", net.input("x", 2, 3, 4), perm=[2, 0, 1])))
    assert operators(apply(net.model(), *PIPELINE)).count("transpose") == 1


def test_sinking_never_transposes_more_bytes():
    """The sum is eight times its transposed operand: better to turn the operand."""
    net = Net()
    turned = net.op("Transpose", net.input("x", 4, 2), perm=[1, 0])
    small = net.op("Reshape", turned, net.const([1, 2, 4], np.int64))
    net.output(net.op("Add", net.op("Transpose", net.input("z", 1, 4, 2), perm=[0, 2, 1]), net.input("y", 8, 2, 4)))
    net.output(net.op("Exp", small))
    graph = apply(net.model(), *PIPELINE)
    turned_bytes = [node.output.type.nbytes for node in graph.nodes if node.op.name == "transpose"]
    assert max(turned_bytes) == 32


def test_matrix_and_its_transpose_added():
    net = Net()
    x = net.input("x", 3, 3)
    net.output(net.op("Add", x, net.op("Transpose", x, perm=[1, 0])))
    assert operators(apply(net.model(), *PIPELINE)) == ["transpose", "add"]


@pytest.mark.parametrize("joined", [("Add",), ("Mul", "Exp"), ("Concat", "Neg")], ids="-".join)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_none_around_a_join_of_codes_that_are_widened(depth: int, joined: tuple[str, ...]):
    """Two results of integer layers become floats, and their sum codes again: no transposition alone pays."""
    net, parts = Net(), []
    for number in range(2):
        turned = net.op("Transpose", net.input(f"x{number}", 1, 9, 4, dtype=np.int16), perm=[0, 2, 1])
        part = net.op("DequantizeLinear", turned, net.const(np.float32(0.1 + number)))
        for _ in range(depth):
            part = net.op("Mul", part, part)
        parts.append(part)
    total = net.op(joined[0], *parts, **({"axis": 1} if joined[0] == "Concat" else {}))
    for name in joined[1:]:
        total = net.op(name, total)
    codes = net.op("QuantizeLinear", total, net.const(np.float32(0.5)), net.const(0, np.int8))
    net.output(net.op("Transpose", codes, perm=[0, 2, 1]), dtype=np.int8)
    assert "transpose" not in operators(optimized(net.model()))


def test_a_join_with_something_else_keeps_its_transpose():
    """The other operand is not computed from transposed tensors: it would be transposed instead, as floats."""
    net = Net()
    turned = net.op("Transpose", net.input("x", 1, 9, 4, dtype=np.int16), perm=[0, 2, 1])
    part = net.op("DequantizeLinear", turned, net.const(np.float32(0.1)))
    other = net.op("Exp", net.input("y", 1, 4, 9))
    codes = net.op("QuantizeLinear", net.op("Add", part, other), net.const(np.float32(0.5)), net.const(0, np.int8))
    net.output(net.op("Transpose", codes, perm=[0, 2, 1]), dtype=np.int8)
    graph = optimized(net.model())
    moved = sum(node.output.type.nbytes for node in graph.nodes if node.op.name == "transpose")
    assert moved <= 9 * 4 * 3


def test_none_around_codes_that_are_widened():
    """As dynamically quantized convolutions read them: neither step alone pays, for the codes get wider first."""
    net = Net()
    turned = net.op("Transpose", net.input("x", 1, 4, 4, 3, dtype=np.uint8), perm=[0, 3, 1, 2])
    less = net.op("Sub", net.op("Cast", turned, to=TensorProto.INT32), net.input("zero", dtype=np.int32))
    net.output(net.op("Transpose", net.op("Cast", less, to=TensorProto.INT16), perm=[0, 2, 3, 1]), dtype=np.int16)
    assert operators(apply(net.model(), *PIPELINE)) == ["cast", "sub", "cast"]


def attention(net: Net, x: str) -> str:
    """Of channels, then of places (CBAM): both are read again by what they multiply."""
    gated = net.op("Mul", x, net.op("Sigmoid", net.op("GlobalAveragePool", x)))
    places = [net.op(f, gated, axes=[1], keepdims=1) for f in ("ReduceMean", "ReduceMax")]
    gate = net.op("Sigmoid", conv(net, net.op("Concat", *places, axis=1), channels=1, inputs=2))
    return net.op("Mul", gated, gate)


def test_a_fork_behind_one_reader_is_channels_last():
    net = Net()
    x = conv(net, net.input("x", 1, 3, 6, 5), inputs=3)
    for _ in range(2):
        x = conv(net, net.op("Add", attention(net, conv(net, x)), conv(net, x)))
    net.output(x)
    assert borders(operators(optimized(net.model()))).count("transpose") == 0
    check_everywhere(net.model())


def test_sums_of_both_orders_end():
    """Of a mixer: each order pays as much as the other, and passes must not go back and forth."""
    net = Net()
    x = net.op(
        "Transpose", net.op("Reshape", net.input("x", 1, 6, 2, 4), net.const((1, 6, 8), np.int64)), perm=[0, 2, 1]
    )
    for _ in range(2):
        tokens = net.op("MatMul", net.op("Transpose", x, perm=[0, 2, 1]), net.const(np.eye(8) / 2))
        x = net.op("Add", x, net.op("Transpose", net.op("Relu", tokens), perm=[0, 2, 1]))
        x = net.op("Add", x, net.op("MatMul", x, net.const(np.eye(6) / 3)))
    net.output(x)
    assert operators(optimized(net.model())).count("transpose") <= 4
    check_everywhere(net.model())


def test_windows_of_an_image_are_cut_at_once():
    """As a MobileViT spells it, between convolutions: each way is one movement of whole pixels."""
    net = Net()
    x = conv(net, net.input("x", 1, 3, 6, 4), inputs=3)
    steps = (((12, 2, 2, 2), (0, 2, 1, 3)), ((1, 4, 6, 4), (0, 3, 2, 1)))
    for shape, perm in steps:
        x = net.op("Transpose", net.op("Reshape", x, net.const(shape, np.int64)), perm=list(perm))
    x = net.op("MatMul", net.op("Reshape", x, net.const((4, 6, 4), np.int64)), net.const(np.eye(4) / 2))
    for shape, perm in (((1, 4, 6, 4), (0, 3, 2, 1)), ((12, 2, 2, 2), (0, 2, 1, 3))):
        x = net.op("Transpose", net.op("Reshape", x, net.const(shape, np.int64)), perm=list(perm))
    net.output(conv(net, net.op("Reshape", x, net.const((1, 4, 6, 4), np.int64))))
    turns = [node.op for node in optimized(net.model()).nodes if node.op.name == "transpose"]
    assert len(turns) == 4 and all(turn.perm[-1] == len(turn.perm) - 1 for turn in turns[1:-1])
    check_everywhere(net.model())


def test_axes_that_have_no_parts_in_common_stay():
    net = Net()
    x = net.op("Transpose", net.input("x", 4, 6), perm=[1, 0])
    net.output(net.op("Transpose", net.op("Reshape", x, net.const((8, 3), np.int64)), perm=[1, 0]))
    assert operators(optimized(net.model())) == ["transpose", "reshape", "transpose"]
    check_everywhere(net.model())


def test_what_makes_several_values_is_no_transpose():
    net = Net()
    first, second = net.ops("Split", net.input("x", 4, 6), outs=["a", "b"], axis=1)
    turned = net.op("Transpose", net.op("Reshape", first, net.const((2, 2, 3), np.int64)), perm=[2, 0, 1])
    net.output(turned, second)
    check_everywhere(net.model())


def test_passes_end_where_a_transposed_result_is_an_output():
    """One direction must not count a transposition before an output that the other direction left in a pair."""
    model = dynamic_chain(27).model
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = 4
    check_everywhere(model)


SMALL_IMAGES = [
    (batch, channels, *sides)
    for batch in (1, 2)
    for channels in (1, 2)
    for sides in ((1,), (2,), (1, 1), (2, 1), (1, 2), (1, 1, 1))
]


@pytest.mark.parametrize("is_real", [False, True], ids=["int8", "float32"])
@pytest.mark.parametrize("shape", SMALL_IMAGES, ids=lambda shape: "x".join(map(str, shape)))
def test_transpositions_of_small_images(shape: tuple[int, ...], is_real: bool) -> None:
    """Of one element an image, channels first and channels last are the same, and the transposition goes."""
    net, numbers, axes = Net(opset=17), np.random.default_rng(0), range(2, len(shape))

    def typed(value: str) -> str:
        return value if is_real else net.fake(value, 0.05, 3)

    x = typed(net.input("x", *shape))
    w = net.dequantize(net.const(numbers.integers(-9, 9, (shape[1], shape[1], *[3 for _ in axes])), np.int8), 0.01)
    y = typed(net.op("Conv", x, w, pads=[1] * 2 * len(axes)))
    last = typed(net.op("Transpose", y, perm=[0, *axes, 1]))
    net.output(net.op("Relu", last, out="last"))
    first = typed(net.op("Transpose", last, perm=[0, len(shape) - 1, *range(1, len(shape) - 1)]))
    net.output(net.op("Conv", first, w, pads=[1] * 2 * len(axes), out="y"))
    model, sample = net.model(), {"x": numbers.normal(size=shape).astype(np.float32)}
    found = compile_model(model).interpret(sample)
    for name, wanted in onnxruntime_outputs(model, sample).items():
        np.testing.assert_allclose(found[name], wanted, atol=1e-5 if is_real else 0.051)
