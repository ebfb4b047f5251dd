# SPDX-License-Identifier: Apache-2.0
"""Passes reach the bodies of If, Loop and Scan, at every depth, and do there what they do in the main graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import onnx
import pytest
from checks import check_c
from onnx_models import Net, assert_close, imported, onnxruntime_outputs, random_feeds
from test_before_and_after import AFTER, FILES, PASSES, samples

from mcugen.backends.cpu import pipeline
from mcugen.backends.cpu.pipeline import PIPELINE, Trace, optimize
from mcugen.driver.compiler import compile_model
from mcugen.hir.graph import Graph, Value
from mcugen.hir.interpreter import interpret
from mcugen.hir.parser import parse_graph
from mcugen.hir.printer import print_graph
from mcugen.hir.types import DType, TensorType
from mcugen.ops.control import STEP_COUNTER_TYPE, Branch, Repeat, Walk, plain

# ------------------------------------------------------------------------------------ each pass in each kind of body


def with_inputs(body: Graph, name: str) -> tuple[Graph, list[Value]]:
    """A graph that has the inputs of a body."""
    outer = Graph(name)
    return outer, [outer.add_input(v.name, plain(v.type)) for v in body.inputs]


def in_branches(body: Graph) -> Graph:
    outer, inputs = with_inputs(body, "branches")
    cond = outer.add_input("cond", TensorType((), DType.BOOL))
    node = outer.add(Branch(body.copy(), body.copy()), [cond, *inputs, *inputs])
    for name, value in zip(body.output_names, node.outputs, strict=True):
        outer.add_output(name, value)
    return outer


def in_steps(body: Graph) -> Graph:
    """Of a loop whose steps all see the same."""
    outer, inputs = with_inputs(body, "steps")
    inner = body.copy()
    inner.inputs.insert(0, Value(inner.fresh_name("step"), STEP_COUNTER_TYPE))
    node = outer.add(Repeat(inner, 2, 0, stacked=(Walk(),) * len(body.outputs)), inputs)
    for name, value in zip(body.output_names, node.outputs, strict=True):
        outer.add_output(name, value)
    return outer


def in_rows(body: Graph) -> Graph:
    """Of a scan."""
    outer, inner = Graph("rows"), body.copy()
    types = [v.type.with_shape(Walk().whole(v.type.shape, 2)) for v in body.inputs]
    inputs = [outer.add_input(v.name, plain(t)) for v, t in zip(body.inputs, types, strict=True)]
    inner.inputs.insert(0, Value(inner.fresh_name("step"), STEP_COUNTER_TYPE))
    walks = [(Walk(),) * len(values) for values in (body.inputs, body.outputs)]
    node = outer.add(Repeat(inner, 2, 0, *walks), inputs)
    for name, value in zip(body.output_names, node.outputs, strict=True):
        outer.add_output(name, value)
    return outer


WAYS: dict[str, tuple[Callable[[Graph], Graph], ...]] = {
    "If": (in_branches,),
    "Loop": (in_steps,),
    "Scan": (in_rows,),
    "If in Loop": (in_branches, in_steps),
    "Loop in If": (in_steps, in_branches),
    "Scan in Scan": (in_rows, in_rows),
}


def text(graph: Graph) -> list[str]:
    """Without inputs: a body has its step's number among them."""
    return [line for line in print_graph(graph).splitlines() if not line.startswith("  input ")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_pass_in_bodies(path: Path, way: str, monkeypatch: pytest.MonkeyPatch):
    """The graphs are those of the texts beside this file."""
    before = path.read_text().partition(AFTER)[0]
    plain_graph = parse_graph(before[before.index("graph ") :])
    graph = plain_graph.copy()
    for wrap in WAYS[way]:
        graph = wrap(graph)
    for part in (*graph.nested(), plain_graph):
        part.float16_weights = True
    PASSES[path.stem](plain_graph)
    feeds = samples(graph)
    expected = interpret(graph, feeds)
    monkeypatch.setattr(pipeline, "PIPELINE", ((PASSES[path.stem], "it is tested"),))
    optimize(graph)
    innermost = [part for part in graph.nested() if part.name == plain_graph.name]
    assert innermost and all(text(part) == text(plain_graph) for part in innermost)
    for name, array in interpret(graph, feeds).items():
        exact = not np.issubdtype(array.dtype, np.floating)
        np.testing.assert_allclose(array, expected[name], *((0, 1) if exact else (1e-4, 1e-4)))


# ------------------------------------------------------------------------------------ networks, beside ONNX Runtime

SHAPE = (1, 4, 6, 6)
Build = Callable[[Net, str], str]
_NUMBERS = count()


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).uniform(0.5, 1.5, shape)


def weights(net: Net, *shape: int) -> str:
    numbers = np.random.default_rng(1).integers(-127, 128, shape)
    return net.dequantize(net.const(numbers, np.int8), 0.01)


def convolutions(net: Net, x: str) -> str:
    """Pad, batch normalization, activation, a second branch, flattening and a dense layer."""
    padded = net.op("Pad", x, net.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64))
    a = net.op("Conv", padded, net.const(values(4, 4, 3, 3) / 9))
    a = net.op("BatchNormalization", a, *(net.const(values(4)) for _ in range(4)))
    b = net.op("Conv", x, net.const(values(4, 4, 1, 1)))
    joined = net.op("Concat", net.op("Add", a, b), net.op("Conv", x, net.const(values(4, 4, 1, 1))), axis=1)
    y = net.op("Relu", net.op("Mul", joined, net.const(values(8, 1, 1))))
    flat = net.op("Reshape", net.op("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), net.const([1, 72], np.int64))
    return net.op("Clip", net.op("Add", net.op("MatMul", flat, net.const(values(72, 5))), net.const(values(5))), "")


def standardized(net: Net, x: str) -> str:
    y = net.op("Div", net.op("Sub", x, net.const(values(4, 1, 1) * 100)), net.const(values(4, 1, 1)))
    return net.op("Sigmoid", net.op("Tanh", net.op("Add", y, net.const(values(4, 1, 1)))))


def biased_last(net: Net, x: str) -> str:
    """As Keras writes a convolution: the bias behind a transposition to channels last."""
    turned = net.op("Transpose", net.op("Conv", x, net.const(values(4, 4, 1, 1))), perm=[0, 2, 3, 1])
    return net.op("Transpose", net.op("Relu", net.op("Add", turned, net.const(values(4)))), perm=[0, 3, 1, 2])


def attention(net: Net, x: str) -> str:
    """Spelled-out normalization, scaled scores, a mask; groups between reshapes."""
    groups = net.op("Reshape", x, net.const([1, 2, 72], np.int64))
    scales = net.const(np.ones(2)), net.const(np.zeros(2))
    y = net.op("Reshape", net.op("InstanceNormalization", groups, *scales), net.const(SHAPE, np.int64))
    d = net.op("Sub", y, net.op("ReduceMean", y, axes=[-1]))
    variance = net.op("ReduceMean", net.op("Mul", d, d), axes=[-1])
    normal = net.op("Div", d, net.op("Sqrt", net.op("Add", variance, net.const(1e-3))))
    q = net.op("MatMul", normal, net.const(values(6, 6)))
    scores = net.op("Mul", net.op("MatMul", q, net.op("Transpose", normal, perm=[0, 1, 3, 2])), net.const(0.5))
    mask = net.const(np.triu(np.full((6, 6), -np.inf), 1))
    mixed = net.op("MatMul", net.op("Softmax", net.op("Add", scores, mask)), normal)
    return net.op("MatMul", mixed, net.op("Transpose", net.const(values(6, 6)), perm=[1, 0]))


def scaled_mean(net: Net, x: str) -> str:
    """As Keras normalizes."""
    mean = net.op("ReduceMean", x, axes=[-1])
    d = net.op("Sub", x, mean)
    root = net.op("Sqrt", net.op("Add", net.op("ReduceMean", net.op("Mul", d, d), axes=[-1]), net.const(1e-3)))
    by = net.op("Mul", net.op("Reciprocal", root), net.const(values(6)))
    return net.op("Add", net.op("Mul", x, by), net.op("Sub", net.const(values(6)), net.op("Mul", mean, by)))


def quantized(net: Net, x: str) -> str:
    """A network of codes, whose last layer gives reals; a function that exporters round between two steps."""
    a = net.fake(x, 0.05, 3)
    a = net.fake(net.op("Transpose", net.op("Transpose", a, perm=[0, 2, 3, 1]), perm=[0, 3, 1, 2]), 0.05, 3)
    b = net.fake(net.op("Relu", net.op("Conv", a, weights(net, 4, 4, 3, 3), pads=[1] * 4)), 0.1, -128)
    c = net.fake(net.op("Mul", b, net.fake(net.op("Sigmoid", b), 1 / 256, -128)), 0.1, -100)
    pooled = net.fake(
        net.op("MaxPool", net.fake(net.op("Tanh", c), 1 / 128), kernel_shape=[2, 2], strides=[2, 2]), 1 / 128
    )
    flat = net.op("Reshape", pooled, net.const([1, 36], np.int64))
    return net.op("MatMul", flat, weights(net, 36, 3))


def whole(net: Net, x: str) -> str:
    """An integer network kept in floats."""
    codes = net.op("Clip", net.op("Floor", net.op("Mul", x, net.const(16.0))), net.const(0.0), net.const(127.0))
    sums = net.op("Conv", codes, net.const(np.random.default_rng(0).integers(-9, 10, (4, 4, 3, 3))))
    by_channel = net.op("Add", net.op("Mul", sums, net.const([[[3]], [[5]], [[2]], [[7]]])), net.const(values(4, 1, 1)))
    scaled = net.op("Div", by_channel, net.const(64.0))
    codes = net.op("Clip", net.op("Floor", scaled), net.const(0.0), net.const(255.0))
    return net.op("Conv", codes, net.const(np.random.default_rng(1).integers(-9, 10, (2, 4, 1, 1))))


def few_bits(net: Net, x: str) -> str:
    """Weights alone are quantized; a matrix is applied to the rows of several axes; a row meets a computed matrix."""
    y = net.op("Conv", x, weights(net, 4, 4, 3, 3), pads=[1] * 4)
    y = net.op("Relu", net.op("Add", net.op("MatMul", y, net.const(values(6, 6) / 6)), net.const(values(6))))
    flat, codes = (
        net.op("Reshape", y, net.const([1, 144], np.int64)),
        np.random.default_rng(0).integers(-8, 8, (144, 6)),
    )
    row = net.op("MatMul", flat, net.dequantize(net.const(codes, np.int8), 0.01))
    return net.op("MatMul", row, net.op("Transpose", net.op("Reshape", y, net.const([24, 6], np.int64)), perm=[1, 0]))


def recurrent(net: Net, x: str) -> str:
    """Of all steps the last one is read."""
    rows = net.op("Reshape", x, net.const([24, 1, 6], np.int64))
    y = net.ops(
        "RNN",
        rows,
        net.const(values(1, 3, 6) / 9),
        net.const(values(1, 3, 3) / 9),
        outs=[f"{net.prefix}rnn"],
        hidden_size=3,
    )
    return net.op("Gather", y[0], net.const(-1, np.int64), axis=0)


def clamped(net: Net, x: str) -> str:
    """Bytes, of which nothing is negative, so that no sum is; a channel is constant."""
    codes = net.op(
        "Cast", net.op("Clip", net.op("Floor", x), net.const(0.0), net.const(9.0)), to=onnx.TensorProto.UINT8
    )
    a = net.fake(net.op("Cast", codes, to=onnx.TensorProto.FLOAT), 1.0, -128)
    positive = np.random.default_rng(0).integers(1, 127, (4, 4, 3, 3))
    positive[2] = 0
    first = net.op("Conv", a, net.dequantize(net.const(positive, np.int8), 0.01))
    b = net.fake(net.op("Relu", first), 0.5, 3)
    c = net.op("Conv", b, weights(net, 2, 4, 1, 1))
    return net.fake(c, 0.5, 3)


def cropped(net: Net, x: str) -> str:
    """Of the rows of a convolution one is read."""
    y = net.op("Conv", x, net.const(values(4, 4, 3, 3) / 9), pads=[1] * 4)
    return net.op("Slice", y, net.const([5], np.int64), net.const([6], np.int64), net.const([2], np.int64))


def upsampled(net: Net, x: str) -> str:
    """As Keras' exporter cuts a transposed convolution to the size that it wants."""
    y = net.op("ConvTranspose", x, net.const(values(4, 2, 3, 3) / 9), strides=[2, 2])
    return net.op("Slice", y, net.const([0, 0], np.int64), net.const([12, 12], np.int64), net.const([2, 3], np.int64))


def residual(net: Net, x: str) -> str:
    """As PyTorch's quantizers write it: rounded before and after a Clip, a layer not rounded before its sum."""
    a = net.fake(x, 0.05, 3)
    b = net.fake(net.op("Conv", a, weights(net, 4, 4, 3, 3), pads=[1] * 4), 0.05, -3)
    b = net.fake(net.op("Clip", b, net.const(0.0), net.const(6.0)), 0.05, -3)
    return net.fake(net.op("Add", net.op("Conv", b, weights(net, 4, 4, 1, 1)), a), 0.1, -3)


def decoder(net: Net, x: str) -> str:
    """One of six rows is replaced, and four heads attend to the rows up to it."""
    number = net.op(
        "Mod", net.op("Cast", net.op("ReduceMax", x, keepdims=0), to=onnx.TensorProto.INT64), net.const(6, np.int64)
    )
    place = net.op("Abs", number)
    rows = net.const(np.arange(6), np.int64)
    new = net.op("ReduceMean", x, axes=[2])
    index = net.op("Expand", net.op("Reshape", place, net.const([1, 1, 1, 1], np.int64)), net.op("Shape", new))
    cache = net.op("ScatterElements", x, index, new, axis=2)
    mask = net.op("Where", net.op("Greater", rows, place), net.const(-1e9), net.const(0.0))
    scores = net.op("MatMul", new, net.op("Transpose", cache, perm=[0, 1, 3, 2]))
    return net.op("MatMul", net.op("Softmax", net.op("Add", scores, mask)), cache)


def spectrum(net: Net, x: str) -> str:
    """Powers of frames by a matrix."""
    frames = net.op("Reshape", x, net.const([2, 72], np.int64))
    angles = 2 * np.pi * np.outer(np.arange(72), np.arange(37)) / 72
    re, im = (net.op("MatMul", frames, net.const(part)) for part in (np.cos(angles), -np.sin(angles)))
    return net.op("Add", net.op("Mul", re, re), net.op("Mul", im, im))


_FLOATS = (
    convolutions,
    biased_last,
    standardized,
    attention,
    scaled_mean,
    few_bits,
    recurrent,
    cropped,
    upsampled,
    decoder,
    spectrum,
)
_INTEGERS = (quantized, clamped, residual)
NETWORKS: dict[str, Build] = {build.__name__: build for build in (*_FLOATS, *_INTEGERS, whole)}


def body(build: Build, inner: Sequence[str], x: str, prefix: str, *, takes: bool) -> Net:
    """`build` within some more bodies: of x, which is an input of the body, or seen from outside."""
    net = Net(prefix=prefix)
    if takes:
        net.input(x, *SHAPE)
    y = wrapped(net, build, inner, x)
    net.output(y)
    return net


def wrapped(net: Net, build: Build, ways: Sequence[str], x: str) -> str:
    """What a network makes of x in a body of each kind, the outermost first."""
    if not ways:
        return build(net, x)
    way, inner, prefix = ways[0], ways[1:], f"n{next(_NUMBERS)}_"
    if way == "If":
        sides = [body(build, inner, x, f"{prefix}{side}_", takes=False).graph(f"{prefix}{side}") for side in "te"]
        cond = net.op("Greater", net.op("ReduceMax", x, keepdims=0), net.const(0.0))
        return net.op("If", cond, then_branch=sides[0], else_branch=sides[1])
    if way == "Scan":
        rows = net.op("Concat", *(net.op("Unsqueeze", x, net.const([0], np.int64)) for _ in range(2)), axis=0)
        step = body(build, inner, f"{prefix}row", prefix, takes=True)
        stacked = net.ops("Scan", rows, outs=[f"{prefix}y"], num_scan_inputs=1, body=step.graph(f"{prefix}body"))[0]
        return net.op("ReduceSum", stacked, net.const([0], np.int64), keepdims=0)
    step = Net(prefix=prefix)
    step.input(f"{prefix}i", dtype=np.int64)
    step.input(f"{prefix}on", dtype=bool)
    state = step.input(f"{prefix}s", *SHAPE)
    step.output(step.op("Identity", f"{prefix}on"), dtype=bool, shape=[])
    step.output(step.op("Mul", state, step.const(0.5)), shape=SHAPE)
    step.output(wrapped(step, build, inner, state))
    outs = [f"{prefix}last", f"{prefix}y"]
    stacked = net.ops("Loop", net.const(2, np.int64), "", x, outs=outs, body=step.graph(f"{prefix}body"))[1]
    return net.op("ReduceSum", stacked, net.const([0], np.int64), keepdims=0)


NESTED = [("If",), ("Loop",), ("Scan",), ("Loop", "If"), ("If", "Loop"), ("Scan", "Scan"), ("If", "If")]


def nested_model(name: str) -> onnx.ModelProto:
    net = Net()
    for index, ways in enumerate(NESTED):
        net.output(wrapped(net, NETWORKS[name], ways, net.input(f"x{index}", *SHAPE)))
    return net.model()


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_bodies(name: str):
    model = nested_model(name)
    feeds = random_feeds(model)
    compiled = compile_model(model)
    found = interpret(compiled.graph, feeds)
    tolerance = 0.06 if NETWORKS[name] in _INTEGERS else 1e-4
    assert_close(found, onnxruntime_outputs(model, feeds), tolerance)
    check_c(compiled, feeds, found, 1e-4)


def test_every_pass_has_work_in_some_body():
    names = {pass_.__name__ for pass_, _ in PIPELINE} - {"stream_window"}  # which is for inputs of a network
    trace = Trace(watched=sorted(names))
    for name in NETWORKS:
        graph = imported(nested_model(name))
        for part in graph.nested():
            part.float16_weights = name == "convolutions"
        optimize(graph, trace)
    at_work = {effect.name for effect in trace.effects if effect.diff and effect.graph != "net"}
    assert names == at_work
