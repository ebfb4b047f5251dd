# SPDX-License-Identifier: Apache-2.0
"""Every rule of differentiation against differences, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_models import Net
from onnx_models import imported as import_onnx

from mcugen.core.errors import UnsupportedError
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph, Value
from mcugen.hir.interpreter import interpret
from mcugen.hir.operator import Operator
from mcugen.hir.types import DType, TensorType
from mcugen.hir.verify import verify_graph
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.gradient import gradients
from mcugen.ops.gradient.rule import rules
from mcugen.ops.matmul import Dense
from mcugen.ops.onnx_node import Refusal
from mcugen.ops.packed import PackedDense
from mcugen.ops.pointwise import BINARY_FUNCTIONS, UNARY_FUNCTIONS, Binary, Clamp, Unary
from mcugen.ops.training import TRAINING

STEP = 1e-6
Build = Callable[[Net], str]


@dataclass(frozen=True)
class Example:
    """A network of one result, and the shapes of what it is differentiated by."""

    build: Build
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: {"x": (2, 3, 4)})


def one(op_type: str, *constants: Sequence[int], **attributes: object) -> Build:
    """One operator of x, perhaps with lists of whole numbers behind it."""
    return lambda net: net.op(op_type, "x", *(net.const(c, np.int64) for c in constants), **attributes)


def two(op_type: str, **attributes: object) -> Build:
    return lambda net: net.op(op_type, "x", "w", **attributes)


def conv(*shapes: tuple[int, ...], **attributes: object) -> Example:
    names = ("x", "w", "b")[: len(shapes)]
    return Example(lambda net: net.op("Conv", *names, **attributes), dict(zip(names, shapes, strict=True)))


def recurrent(
    op_type: str, shapes: Mapping[str, tuple[int, ...]], outputs: Sequence[str] = ("all", "last"), **attributes: object
) -> Example:
    """All results of a layer together, each times another number."""
    order = ("x", "w", "r", "b", "lens", "h", "c", "p")
    inputs = [name if name in shapes else "" for name in order[: max(order.index(name) for name in shapes) + 1]]

    def build(net: Net) -> str:
        hidden = shapes["r"][-1]
        made = net.ops(op_type, *inputs, outs=list(outputs), hidden_size=hidden, **attributes)
        flat = [net.op("Reshape", v, net.const([-1], np.int64)) for v in made if v]
        return net.op("Concat", *flat, axis=0)

    return Example(build, shapes)


def scan(**attributes: object) -> Build:
    """s' = tanh(w·(s + x)), y = s'·x; what all steps read is of the graph around it."""

    def build(net: Net) -> str:
        body = Net()
        dtype = net.inputs[0].type.tensor_type.elem_type
        for name in ("inner_s", "inner_x"):
            body.inputs.append(onnx.helper.make_tensor_value_info(name, dtype, [3]))
        after = body.op("Tanh", body.op("MatMul", "w", body.op("Add", "inner_s", "inner_x")))
        row = body.op("Mul", after, "inner_x")
        for name in (after, row):
            body.outputs.append(onnx.helper.make_tensor_value_info(name, dtype, [3]))
        graph = onnx.helper.make_graph(body.nodes, "step", body.inputs, body.outputs)
        last, rows = net.ops("Scan", "s", "x", outs=["last", "rows"], body=graph, num_scan_inputs=1, **attributes)
        return net.op("Concat", last, net.op("Reshape", rows, net.const([-1], np.int64)), axis=0)

    return build


def resized(mode: str, *space: int) -> Build:
    """To that many rows and columns."""
    return lambda net: net.op("Resize", "x", "", "", net.const([1, 2, *space], np.int64), mode=mode)


IMAGE = {"x": (2, 3, 6, 7)}
NET = {
    "matmul": Example(two("MatMul"), {"x": (3, 4), "w": (4, 2)}),
    "matmul of batches": Example(two("MatMul"), {"x": (2, 3, 4), "w": (2, 4, 5)}),
    "matmul that broadcasts": Example(two("MatMul"), {"x": (2, 3, 4), "w": (4, 5)}),
    "vectors": Example(two("MatMul"), {"x": (4,), "w": (4,)}),
    "gemm": Example(
        lambda net: net.op("Gemm", "x", "w", "b", transB=1, alpha=0.5, beta=2.0), {"x": (3, 4), "w": (2, 4), "b": (2,)}
    ),
    "conv": conv((2, 3, 6, 7), (4, 3, 3, 3), (4,), pads=[1, 1, 1, 1]),
    "pointwise conv": conv((1, 3, 4, 5), (4, 3, 1, 1), (4,)),
    "strided conv": conv((2, 3, 8, 7), (4, 3, 3, 2), strides=[2, 3], pads=[1, 0, 0, 1]),
    "dilated conv": conv((1, 2, 9, 8), (3, 2, 3, 2), dilations=[2, 3], strides=[2, 1]),
    "depthwise conv": conv((2, 3, 6, 6), (6, 1, 3, 3), (6,), group=3, pads=[1, 1, 0, 0]),
    "grouped conv": conv((2, 4, 6, 6), (6, 2, 3, 3), group=2, strides=[2, 2]),
    "conv of sounds": conv((2, 3, 11), (4, 3, 3), (4,), strides=[3]),
    "conv of volumes": conv((1, 2, 4, 4, 4), (2, 2, 2, 2, 2)),
    "max pool": Example(one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), IMAGE),
    "max pool that overlaps": Example(one("MaxPool", kernel_shape=[3, 2]), IMAGE),
    "average pool": Example(one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), IMAGE),
    "average pool that counts": Example(
        one("AveragePool", kernel_shape=[3, 2], pads=[1, 1, 1, 0], count_include_pad=1), IMAGE
    ),
    "global average": Example(one("GlobalAveragePool"), IMAGE),
    "global maximum": Example(one("GlobalMaxPool"), IMAGE),
    "mean": Example(one("ReduceMean", axes=[1])),
    "sum": Example(one("ReduceSum", [0, 2], keepdims=0)),
    "sum of squares": Example(one("ReduceSumSquare", axes=[2])),
    "sum of magnitudes": Example(one("ReduceL1", axes=[2])),
    "norm": Example(one("ReduceL2", axes=[2])),
    "least": Example(one("ReduceMin", axes=[1])),
    "logarithm of sums": Example(one("ReduceLogSumExp", axes=[1])),
    "softmax": Example(one("Softmax", axis=1)),
    "log softmax": Example(one("LogSoftmax", axis=-1)),
    "layer normalization": Example(
        lambda net: net.op("LayerNormalization", "x", "w", "b"), {"x": (2, 3, 4), "w": (4,), "b": (4,)}
    ),
    "instance normalization": Example(
        lambda net: net.op("InstanceNormalization", "x", "w", "b"), {"x": (2, 3, 4), "w": (3,), "b": (3,)}
    ),
    "batch normalization": Example(
        lambda net: net.op("BatchNormalization", "x", "w", "b", net.const([0.1, 0.2, 0.3]), net.const([1.0, 2.0, 3.0])),
        {"x": (2, 3, 4), "w": (3,), "b": (3,)},
    ),
    "batch normalization that updates statistics": Example(
        lambda net: net.ops(
            "BatchNormalization",
            *("x", "w", "b"),
            *(net.const([0.1, 0.2, 0.3]), net.const([1.0, 2.0, 3.0])),
            outs=["y", "mean", "variance"],
            training_mode=1,
        )[0],
        {"x": (2, 3, 4), "w": (3,), "b": (3,)},
    ),
    "reshape": Example(one("Reshape", [4, 6])),
    "flatten": Example(one("Flatten")),
    "squeeze": Example(one("Squeeze", [1]), {"x": (2, 1, 4)}),
    "transpose": Example(one("Transpose", perm=[2, 0, 1])),
    "concat": Example(lambda net: net.op("Concat", "x", "w", "x", axis=1), {"x": (2, 3), "w": (2, 2)}),
    "slice": Example(one("Slice", [0, 1], [2, 3], [0, 1])),
    "slice in steps": Example(one("Slice", [3, 2], [0, -9], [2, 1], [-2, -1])),
    "pad": Example(one("Pad", [0, 1, 2, 0, 0, 1])),
    "pad by edges": Example(one("Pad", [0, 1, 2, 0, 0, 1], mode="edge")),
    "pad by mirror": Example(one("Pad", [0, 1, 2, 0, 0, 1], mode="reflect")),
    "expand": Example(one("Expand", [2, 3, 4]), {"x": (3, 1)}),
    "embedding": Example(one("Gather", [[2, 0], [2, -1]]), {"x": (4, 3)}),
    "gather of columns": Example(one("Gather", [1, 1, 0], axis=1)),
    "gather by element": Example(one("GatherElements", [[[0, 3, 3]] * 2] * 2, axis=2)),
    "gather by place": Example(one("GatherND", [[1, 2], [0, 0], [1, 2]])),
    "scatter": Example(
        lambda net: net.op("ScatterElements", "x", net.const([[2, 0, 1]], np.int64), "w"), {"x": (3, 3), "w": (1, 3)}
    ),
    "scatter that adds": Example(
        lambda net: net.op("ScatterND", "x", net.const([[2], [0], [2]], np.int64), "w", reduction="add"),
        {"x": (3, 2), "w": (3, 2)},
    ),
    "scatter by place": Example(
        lambda net: net.op("ScatterND", "x", net.const([[2, 1], [0, 0]], np.int64), "w"), {"x": (3, 2), "w": (2,)}
    ),
    "largest": Example(lambda net: net.ops("TopK", "x", net.const([2], np.int64), outs=["y", "places"], axis=1)[0]),
    "triangle": Example(one("Trilu", [0], upper=0)),
    "cumulative sum": Example(one("CumSum", [1], exclusive=1)),
    "reversed sequence": Example(one("ReverseSequence", [2, 1, 3], time_axis=0, batch_axis=1), {"x": (3, 3, 2)}),
    "nearest": Example(resized("nearest", 4, 9), {"x": (1, 2, 2, 5)}),
    "bilinear": Example(resized("linear", 5, 3), {"x": (1, 2, 3, 4)}),
    "bicubic": Example(resized("cubic", 6, 4), {"x": (1, 2, 3, 4)}),
    "transposed conv": Example(
        lambda net: net.op("ConvTranspose", "x", "w", "b", strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 2]),
        {"x": (2, 4, 3, 3), "w": (4, 3, 3, 2), "b": (3,)},
    ),
    "transposed conv of groups": Example(
        lambda net: net.op("ConvTranspose", "x", "w", group=2, dilations=[2]), {"x": (1, 4, 5), "w": (4, 1, 3)}
    ),
    "group normalization": Example(
        lambda net: net.op("GroupNormalization", "x", "w", "b", num_groups=2), {"x": (2, 4, 3), "w": (4,), "b": (4,)}
    ),
    "RMS normalization": Example(
        lambda net: net.op("RMSNormalization", "x", "w", axis=-1), {"x": (2, 3, 4), "w": (4,)}
    ),
    "pad with a number": Example(
        lambda net: net.op("Pad", "x", net.const([0, 1, 2, 0], np.int64), "v"), {"x": (2, 3), "v": ()}
    ),
    "attention of heads": Example(
        lambda net: net.op("Attention", "x", "w", "v", is_causal=1),
        {"x": (1, 2, 3, 4), "w": (1, 2, 3, 4), "v": (1, 2, 3, 2)},
    ),
    "grouped queries": Example(
        lambda net: net.op("Attention", "x", "w", "v", softcap=1.5, scale=0.3),
        {"x": (1, 4, 3, 2), "w": (1, 2, 3, 2), "v": (1, 2, 3, 2)},
    ),
    "where": Example(lambda net: net.op("Where", net.op("Greater", "x", "w"), "x", "w"), {"x": (2, 3), "w": (3,)}),
    "broadcast": Example(two("Mul"), {"x": (2, 3, 4), "w": (3, 1)}),
    "square": Example(lambda net: net.op("Mul", "x", "x")),
    "attention": Example(
        lambda net: net.op("MatMul", net.op("Softmax", net.op("MatMul", "x", "w"), axis=-1), "x"),
        {"x": (3, 4), "w": (4, 3)},
    ),
    "rnn": recurrent("RNN", {"x": (3, 2, 2), "w": (1, 4, 2), "r": (1, 4, 4), "b": (1, 8), "h": (1, 2, 4)}),
    "gru": recurrent("GRU", {"x": (3, 2, 2), "w": (1, 9, 2), "r": (1, 9, 3), "b": (1, 18)}),
    "gru that resets products": recurrent(
        "GRU",
        {"x": (3, 1, 2), "w": (2, 9, 2), "r": (2, 9, 3), "b": (2, 18), "h": (2, 1, 3)},
        direction="bidirectional",
        linear_before_reset=1,
    ),
    "lstm": recurrent("LSTM", {"x": (3, 1, 2), "w": (1, 12, 2), "r": (1, 12, 3), "b": (1, 24)}),
    "lstm of rare options": recurrent(
        "LSTM",
        {"x": (2, 3, 2), "w": (1, 12, 2), "r": (1, 12, 3), "b": (1, 24), "h": (2, 1, 3), "c": (2, 1, 3), "p": (1, 9)},
        direction="reverse",
        layout=1,
        clip=1.5,
        activations=["HardSigmoid", "Softsign", "ScaledTanh"],
        activation_alpha=[0.3, 1.2],
        activation_beta=[0.5, 0.7],
    ),
    "lstm with coupled gates": recurrent(
        "LSTM", {"x": (2, 1, 2), "w": (1, 12, 2), "r": (1, 12, 3)}, input_forget=1, outputs=("", "h_n", "c_n")
    ),
    "scan": Example(scan(), {"s": (3,), "x": (4, 3), "w": (3, 3)}),
    "scan backwards": Example(
        scan(scan_input_directions=[1], scan_output_directions=[1], scan_input_axes=[1], scan_output_axes=[1]),
        {"s": (3,), "x": (3, 4), "w": (3, 3)},
    ),
    "cross entropy": Example(
        lambda net: net.op("SoftmaxCrossEntropyLoss", "x", net.const([1, 0], np.int64)), {"x": (2, 3)}
    ),
}


def imported(example: Example, dtype: type) -> Graph:
    net = Net()
    for name, shape in example.shapes.items():
        net.input(name, *shape, dtype=dtype)
    result = example.build(net)
    for index, tensor in enumerate(net.constants):
        if tensor.data_type == 1:  # constants are of the type of what they meet
            net.constants[index] = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name)
    net.output(result, dtype=dtype)
    return import_onnx(net.model())


def backward(graph: Graph, by: Sequence[Value]) -> None:
    """Adds gradients of a sum whose terms have weights of their own, in the place of the outputs."""
    (y,) = graph.outputs
    rng = np.random.default_rng(5)
    weights = graph.constant("weights", rng.normal(size=y.type.shape).astype(y.type.dtype.numpy))
    weighted = graph.add(Binary("Mul"), [y, weights]).output
    results = [weighted, *gradients(graph, weighted, by)]
    graph.outputs, graph.output_names = [], []
    for index, value in enumerate(results):
        graph.add_output(f"result{index}", value)
    verify_graph(graph)


DIRECTIONS = 4
"""Of all elements at once, at random: one that has a wrong slope shows in each."""


def check(graph: Graph, samples: Mapping[str, np.ndarray], step: float = STEP, tolerance: float = 1e-6) -> None:
    by = [v for v in graph.inputs if v.type.dtype.is_float]
    backward(graph, by)
    found = list(interpret(graph, samples).values())[1:]
    rng = np.random.default_rng(11)
    for value, gradient in zip(by, found, strict=True):
        for _ in range(DIRECTIONS):
            direction = rng.normal(size=value.type.shape)
            moved = ({**samples, value.name: samples[value.name] + way * step * direction} for way in (1, -1))
            ends = [interpret(graph, each)["result0"].astype(np.float64).sum() for each in moved]
            slope = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose((gradient * direction).sum(), slope, tolerance, tolerance, err_msg=value.name)


def samples_of(shapes: Mapping[str, tuple[int, ...]], dtype: type = np.float64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", NET)
def test_gradients_are_what_differences_say(name: str) -> None:
    check(imported(NET[name], np.float64), samples_of(NET[name].shapes))


@pytest.mark.parametrize("name", NET)
def test_float32_has_the_same_gradients(name: str) -> None:
    results = []
    for dtype in (np.float64, np.float32):
        graph = imported(NET[name], dtype)
        backward(graph, list(graph.inputs))
        results.append(list(interpret(graph, samples_of(NET[name].shapes, dtype)).values()))
    for wide, narrow in zip(*results, strict=True):
        assert narrow.dtype == np.float32
        np.testing.assert_allclose(narrow, wide, rtol=2e-4, atol=2e-5)


DOMAINS = {"Acosh": (1.5, 3.0), "Log": (0.3, 2.0), "Sqrt": (0.3, 2.0), "Pow": (0.3, 2.0), "IsInf": (0.3, 2.0)}
"""Where functions are reals; others lie on both sides of 0."""
STEPWISE = {"Mod", "Fmod"}
"""Functions of reals that no rule is written for."""


def elementwise() -> dict[str, Operator]:
    """Every function of reals that gives a real."""
    alpha_beta = {"Selu": (1.6, 1.05), "HardSigmoid": (0.2, 0.5), "Shrink": (0.5, 0.1)}
    with_one = ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu", "Swish")
    constants = alpha_beta | dict.fromkeys(with_one, (0.4,))
    unary = {f: Unary(f, constants.get(f, ())) for f, row in UNARY_FUNCTIONS.items() if row.floats and not row.tests}
    binary = {f: Binary(f) for f, row in BINARY_FUNCTIONS.items() if row.floats and not row.tests}
    clamps = {"Relu": Clamp(0.0), "Relu6": Clamp(-0.4, 0.4), "clamped sum": Binary("Add", (-0.4, 0.4))}
    return {**unary, **binary, **clamps}


def functions_of(op: Operator, inputs: int, dtype: DType = DType.FLOAT64) -> Graph:
    graph = Graph("net")
    values = [graph.add_input(f"x{i}", TensorType((9,), dtype)) for i in range(inputs)]
    graph.add_output("y", graph.add(op, values).output)
    return graph


@pytest.mark.parametrize("name", elementwise())
def test_functions_have_the_slopes_that_differences_say(name: str) -> None:
    op = elementwise()[name]
    graph = functions_of(op, 2 if isinstance(op, Binary) else 1)
    if name in STEPWISE:
        with pytest.raises(Refusal, match="must have a derivative"):
            backward(graph, list(graph.inputs))
        return
    low, high = DOMAINS.get(name, (-0.9, 0.9))
    rng = np.random.default_rng(7)
    check(graph, {v.name: rng.uniform(low, high, 9) for v in graph.inputs}, tolerance=1e-5)


@pytest.mark.parametrize("function", ["Sigmoid", "Swish", "Softplus"])
def test_slopes_of_large_numbers_are_numbers(function: str) -> None:
    graph = functions_of(Unary(function, (1.0,) * (function == "Swish")), 1, DType.FLOAT32)
    backward(graph, list(graph.inputs))
    x = np.asarray([-1e4, -200, -90, -1, 0, 1, 90, 200, 1e4], np.float32)
    assert np.isfinite(list(interpret(graph, {"x0": x}).values())[1]).all()


def test_dense_layers_have_the_gradients_of_products() -> None:
    graph = Graph("net")
    shapes = {"x": (2, 3, 4), "w": (5, 4), "b": (5,)}
    values = [graph.add_input(name, TensorType(shape, DType.FLOAT32)) for name, shape in shapes.items()]
    graph.add_output("y", graph.add(Dense(), values).output)
    check(graph, samples_of(shapes, np.float32), step=0.5, tolerance=1e-4)  # linear in each: exact at any step


def test_layers_of_few_bits_are_differentiated_by_what_they_read() -> None:
    graph, rng = Graph("net"), np.random.default_rng(4)
    x = graph.add_input("x", TensorType((2, 3, 8), DType.FLOAT32))
    codes = graph.constant("codes", rng.integers(-8, 8, (5, 8)).astype(np.int8))
    scales = graph.constant("scales", rng.uniform(0.1, 1, (5, 2)).astype(np.float32))
    graph.add_output("y", graph.add(PackedDense(4), [x, codes, scales]).output)
    check(graph, samples_of({"x": (2, 3, 8)}, np.float32), step=0.5, tolerance=1e-4)


def test_every_rule_is_tried() -> None:
    tried: set[type[Operator]] = {Dense, Elementwise, PackedDense}
    for example in NET.values():
        for dtype in (np.float64, np.float32):
            tried |= {type(node.op) for node in imported(example, dtype).nodes}
    missing = [c for c in rules() if not any(issubclass(t, c) for t in tried)]
    assert missing == []


def test_an_operator_without_a_derivative_is_named_with_what_can_be_trained() -> None:
    net = Net()
    found = net.op("Det", net.op("Mul", net.input("x", 3, 3), net.input("w", 3, 3)))
    net.op("Mul", found, net.input("v"), out="y")
    dw, dv = net.ops("Gradient", "w", "v", outs=["dw", "dv"], domain=TRAINING, xs=["w", "v"], y="y")
    net.output(dw, shape=[3, 3])
    net.output(dv, shape=[])
    with pytest.raises(UnsupportedError, match=r"det 'Det_t1'.*train only what lies behind it: 'v'"):
        import_onnx(net.plain_model())


def test_constants_are_not_differentiated_by() -> None:
    net = Net()
    net.op("Mul", net.input("x", 3), net.const([1, 2, 3], name="w"), out="y")
    net.output(net.op("Gradient", "w", domain=TRAINING, xs=["w"], y="y"), shape=[3])
    with pytest.raises(UnsupportedError, match=r"'w' is a constant\. try: make it an input"):
        compile_model(net.plain_model())
