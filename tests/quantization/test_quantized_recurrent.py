# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN in integers: ONNX Runtime on the written ONNX, numpy and C against each other and against float."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from float_models import normal_samples, quantized, random_weights
from float_models import sqnr as decibels
from onnx import numpy_helper
from onnx_models import Net, assert_close, c_outputs, imported, onnxruntime_outputs, optimized, outputs_in_c
from test_recurrent import Layer, tensors

from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Graph, Node
from mcugen.hir.interpreter import interpret
from mcugen.hir.types import DType
from mcugen.numerics.fixedpoint import dequantize, quantize
from mcugen.ops.recurrent import Recurrent
from mcugen.quantization.few_bits import bytes_per_weight
from mcugen.quantization.plan import Stored
from mcugen.quantization.quantize import create_quantizer, import_float_model
from mcugen.quantization.recurrent import GraphWriter, write_recurrent_layer
from mcugen.quantization.scheme import Scheme, activation_params

INT8, INT16 = Scheme(DType.INT8), Scheme(DType.INT16)
SCHEMES = [pytest.param(INT8, id="int8"), pytest.param(INT16, id="int16x8")]
APART = {DType.INT8: 2, DType.INT16: 16}
"""Codes of results after some steps."""
LAYERS = {
    "rnn": Layer("RNN", {}),
    "lstm": Layer("LSTM", {}),
    "gru": Layer("GRU", {}),
    "gru linear": Layer("GRU", {}, linear=1),
}


def made(
    layer: Layer, direction: str = "forward", layout: int = 0, first: str = "", bias: bool = True, **sizes: int
) -> tuple[Layer, onnx.ModelProto]:
    """The layer with random tensors, and as a model; its first states are "fed", "constant" or absent."""
    absent = {"lens", "P", *(() if first else ("h0", "c0")), *(() if bias else ("B",))}
    random = tensors(layer.op, direction, layout=layout, without=tuple(absent), **sizes)
    halved = {k: (v * 0.5 if k in "WRB" else v).astype(np.float32) for k, v in random.items()}
    fed = ("X", *(k for k in ("h0", "c0") if k in halved and first == "fed"))
    layer = replace(layer, tensors=halved, fed=fed, direction=direction, layout=layout)
    net = Net(21)
    layer.add_to(net, 0)
    return layer, net.model()


def the_node(graph: Graph) -> Node:
    (node,) = [n for n in graph.nodes if isinstance(n.op, Recurrent)]
    return node


def written(model: onnx.ModelProto, feeds: dict[str, np.ndarray], scheme: Scheme) -> onnx.ModelProto | None:
    """The model with its layer in integers, by the ranges of these feeds; None where it has no integer form."""
    graph = imported(model)
    node = the_node(graph)
    ranges: dict[str, tuple[float, float]] = {}

    def observe(seen: Node, arrays: list[np.ndarray]) -> None:
        if seen is node:
            ranges.update(
                {k: (float(v.min()), float(v.max())) for k, v in node.op.internals(node.sig, *arrays).items()}
            )

    interpret(graph, feeds, observe)
    x = feeds["X0"]
    stored = Stored(scheme.activations, activation_params(x.min(), x.max(), scheme.activations, scheme))
    scope = GraphWriter("input", {"x": stored})
    (old,) = model.graph.node
    inputs = [scope.fake_quantize("X0", "x"), *old.input[1:]]
    found = write_recurrent_layer(node, inputs, [o.name for o in model.graph.output], ranges, stored, scheme)
    if found is None:
        return None
    nodes, initializers = found
    constants = [*model.graph.initializer, *scope.initializers, *initializers]
    body = onnx.helper.make_graph([*scope.nodes, *nodes], "net", model.graph.input, model.graph.output, constants)
    result = onnx.helper.make_model(body, opset_imports=model.opset_import, ir_version=model.ir_version)
    onnx.checker.check_model(result, full_check=True)
    return result


def sqnr(wanted: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> float:
    """Decibels, all outputs together."""
    return decibels(list(wanted.values()), [found[name] for name in wanted])


def assert_integer_loops(graph: Graph) -> None:
    bodies = [body for node in graph.nodes for body in node.op.bodies]
    assert bodies
    for body in bodies:
        assert not [v for v in body.values() if v.type.dtype.is_float]
        assert not [n for n in body.nodes if "quantize" in n.op.name], f"{body}"


def check(layer: Layer, model: onnx.ModelProto, scheme: Scheme) -> None:
    """Integers in the loop; numpy = C; both near onnxruntime, which rounds a tie now and then the other way.

    Such a code of h goes through R into all that follows: after some steps, into a few codes.
    """
    feeds = layer.feeds(0)
    integer = written(model, feeds, scheme)
    assert integer is not None
    graph = optimized(integer)
    found, expected = interpret(graph, feeds), onnxruntime_outputs(integer, feeds)
    assert_integer_loops(graph)
    assert_close(c_outputs(integer, feeds), found)
    for name, wanted in expected.items():
        code = activation_params(wanted.min(), wanted.max(), scheme.activations, scheme).scale[0]
        assert np.abs(found[name] - wanted).max() <= APART[scheme.activations] * code, name


# ------------------------------------------------------------------------------------------------- accuracy


def rounded(array: np.ndarray, low: float, high: float, scheme: Scheme) -> np.ndarray:
    """As it is once stored."""
    quant = activation_params(low, high, scheme.activations, scheme)
    return dequantize(quantize(array, quant, scheme.activations), quant).astype(array.dtype)


def with_rounded_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The float model with W and R as int8 stores them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name in copy.graph.node[0].input[1:3]:
            data = numpy_helper.to_array(tensor)
            scale = np.abs(data).max(axis=2, keepdims=True) / 127
            tensor.CopyFrom(numpy_helper.from_array((np.rint(data / scale) * scale).astype(np.float32), tensor.name))
    return copy


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", LAYERS)
def test_int16_costs_little_more_than_the_weights(kind: str, direction: str):
    """With int16 activations nearly all of the error is that of int8 weights."""
    layer, model = made(LAYERS[kind], direction, steps=12, batch=2, depth=6, hidden=16)
    feeds = layer.feeds(0)
    wanted = onnxruntime_outputs(model, feeds)
    integer = written(model, feeds, INT16)
    of_weights = sqnr(wanted, onnxruntime_outputs(with_rounded_weights(model), feeds))
    assert sqnr(wanted, onnxruntime_outputs(integer, feeds)) > of_weights - 0.5


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("kind", LAYERS)
def test_int8_costs_little_more_than_its_inputs(kind: str, direction: str):
    """Compared with the float layer of which only weights, X and the results are rounded to int8."""
    layer, model = made(LAYERS[kind], direction, steps=12, batch=2, depth=6, hidden=16)
    feeds = layer.feeds(0)
    wanted = onnxruntime_outputs(model, feeds)
    x = feeds["X0"]
    coarse = onnxruntime_outputs(with_rounded_weights(model), {"X0": rounded(x, x.min(), x.max(), INT8)})
    coarse = {k: rounded(v, v.min(), v.max(), INT8) for k, v in coarse.items()}
    integer = written(model, feeds, INT8)
    found = sqnr(wanted, onnxruntime_outputs(integer, feeds))
    assert found > sqnr(wanted, coarse) - 4


def test_a_state_may_move_slowly():
    """An update gate near 1: each step changes h by a fraction of a code of int8, which must not be lost."""
    layer, _ = made(LAYERS["gru"], steps=800, batch=1, depth=4, hidden=8)
    layer.tensors["B"][:, :8] = 7.0
    layer.tensors["X"][:] = layer.tensors["X"][:1]
    net = Net(21)
    layer.add_to(net, 0)
    feeds = layer.feeds(0)
    wanted = onnxruntime_outputs(net.model(), feeds)["Y0"]
    integer = written(net.model(), feeds, INT8)
    assert integer is not None
    found = onnxruntime_outputs(integer, feeds)["Y0"]
    reach = np.ptp(wanted)
    assert np.median(np.abs(np.diff(wanted, axis=0))) < reach / 255 / 2
    assert np.abs(found - wanted).max() < 0.05 * reach


# ------------------------------------------------------------------------------------------------ our own code


@pytest.mark.spread(3)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", LAYERS)
def test_both_directions_in_c(kind: str, scheme: Scheme):
    layer, model = made(LAYERS[kind], "bidirectional", steps=5, batch=2, depth=3, hidden=6)
    check(layer, model, scheme)


@pytest.mark.spread(3)
@pytest.mark.parametrize("first", ["fed", "constant"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_first_states_and_batch_first(kind: str, layout: int, first: str):
    layer, model = made(LAYERS[kind], "bidirectional", layout, first, steps=4, batch=2, depth=3, hidden=5)
    check(layer, model, INT8)
    integer = written(model, layer.feeds(0), INT8)
    assert integer is not None
    assert sqnr(layer.expected(0), onnxruntime_outputs(integer, layer.feeds(0))) > 30


@pytest.mark.parametrize("kind", LAYERS)
def test_no_bias_and_some_results(kind: str):
    layer, _ = made(replace(LAYERS[kind], results=("Y_h",)), "reverse", bias=False, steps=4, batch=1, depth=3, hidden=5)
    net = Net(21)
    layer.add_to(net, 0)
    check(layer, net.model(), INT8)


@pytest.mark.parametrize("kind", LAYERS)
def test_gates_of_four_bits(kind: str):
    """W and R are int4 in the Scan, and C that reads them two a byte gives numpy's codes."""
    layer, model = made(LAYERS[kind], hidden=6)
    feeds, narrow = layer.feeds(0), replace(INT8, weights=DType.INT4)
    integer = written(model, feeds, narrow)
    assert integer is not None
    (scan,) = [n for n in integer.graph.node if n.op_type == "Scan"]
    (body,) = [a.g for a in scan.attribute if a.name == "body"]
    stored = {t.data_type for t in body.initializer if t.name.split(".")[-2] == "weight"}
    assert stored == {onnx.TensorProto.INT4}
    compiled = compile_model(integer, options=CompileOptions(kernels=("dense_s4",)))
    assert "dense_s4" in {i.kernel for i in compiled.program.instrs}
    assert_close(outputs_in_c(compiled, feeds), interpret(optimized(integer), feeds))


@pytest.mark.parametrize(
    ("kind", "target", "kernel"),
    [("lstm", "nrf52840", "dense_s4_dsp"), ("gru", "rp2040", "dense_s4_s16_thumb1")],
)
def test_gates_of_four_bits_have_kernels_of_their_own(kind: str, target: str, kernel: str):
    """Whose sums get more bits than they have: what a gate reads is int16."""
    layer, model = made(LAYERS[kind], steps=3, batch=1, depth=5, hidden=6)
    feeds = layer.feeds(0)
    integer = written(model, feeds, replace(INT8, weights=DType.INT4))
    assert integer is not None
    compiled = compile_model(integer, target, CompileOptions(kernels=(kernel,)))
    assert {i.kernel for i in compiled.program.instrs if i.kernel.startswith("dense")} == {kernel}
    assert_close(outputs_in_c(compiled, feeds), interpret(optimized(integer), feeds))


@pytest.mark.parametrize("kind", LAYERS)
def test_sums_need_no_64_bits(kind: str):
    """Their scales are powers of two."""
    layer, model = made(LAYERS[kind], steps=3, batch=1, depth=3, hidden=6)
    integer = written(model, layer.feeds(0), INT8)
    assert integer is not None
    compiled = compile_model(integer)
    source = compiled.bundle.files[f"{compiled.bundle.name}_kernels.h"]
    assert "mcugen_saturate16(" in source and "mcugen_weighted_sum(" not in source


@pytest.mark.qemu
def test_on_a_board():
    layer, model = made(LAYERS["lstm"], "bidirectional", steps=5, batch=1, depth=3, hidden=6)
    feeds = {name: array[None] for name, array in layer.feeds(0).items()}
    integer = written(model, layer.feeds(0), INT8)
    assert integer is not None
    found = compile_model(integer, "nrf52840").run(feeds)
    assert_close({k: v[0] for k, v in found.items()}, interpret(optimized(integer), layer.feeds(0)))


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(replace(LAYERS["lstm"], clip=1.0), id="clip"),
        pytest.param(replace(LAYERS["lstm"], forget=1), id="coupled gates"),
        pytest.param(replace(LAYERS["rnn"], activations=(("Relu", 0.0, 0.0),)), id="another activation"),
        pytest.param(replace(LAYERS["rnn"], fed=("X", "lens")), id="lengths"),
        pytest.param(replace(LAYERS["lstm"], fed=("X", "P")), id="peepholes"),
        pytest.param(replace(LAYERS["gru"], fed=("X", "R")), id="computed weights"),
    ],
)
def test_what_has_no_integer_form_is_left_alone(layer: Layer):
    without = tuple(k for k in ("lens", "P", "h0", "c0") if k not in layer.fed)
    layer = replace(layer, tensors=tensors(layer.op, without=without))
    net = Net(21)
    layer.add_to(net, 0)
    assert written(net.model(), layer.feeds(0), INT8) is None


# -------------------------------------------------------------------------------------------- in a whole model


def whole_model(kind: str) -> onnx.ModelProto:
    """A layer between a convolution and a fully connected one."""
    _, single = made(LAYERS[kind], "bidirectional", steps=6, batch=1, depth=4, hidden=5)
    net = Net(21)
    x = net.input("x", 1, 3, 6)
    y = net.op("Conv", x, net.const(random_weights(1, 4, 3, 3)), pads=[1, 1])
    (old,) = single.graph.node
    arrays = {t.name: numpy_helper.to_array(t) for t in single.graph.initializer}
    weights = [net.const(arrays[name]) for name in old.input[1:4]]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in old.attribute}
    y = net.op(old.op_type, net.op("Transpose", y, perm=[2, 0, 1]), *weights, out="y", **attributes)
    y = net.op("Reshape", y, net.const([6, 10], np.int64))
    net.output(net.op("MatMul", y, net.const(random_weights(2, 10, 3)), out="z"))
    return net.model()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_in_a_model(kind: str):
    """One conversion at each border, and integers in between."""
    model = whole_model(kind)
    result = quantized(model)
    assert result.assignment.precision["y"] is DType.INT8 and not result.assignment.reasons
    compiled = compile_model(result)
    assert_integer_loops(compiled.graph)
    assert [n.op.name for n in compiled.graph.nodes].count("dequantize") == 1
    feeds = normal_samples(model, 10, seed=9)
    exact, found = ([onnxruntime_outputs(m, f)["z"] for f in feeds] for m in (model, result.proto))
    assert decibels(exact, found) > 25
    step = result.plan.activations["z"].quant.scale[0]
    for feed, wanted in zip(feeds, found, strict=True):
        assert np.abs(compiled.interpret(feed)["z"] - wanted).max() <= 2.01 * step


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gates_of_four_bits_are_rounded_by_samples(kind: str):
    model, wanted = whole_model(kind), {"y": DType.INT4}
    by_samples = quantized(model, wanted=wanted)
    nearest = quantized(model, Scheme(optimize_rounding=False, correct_bias=False), wanted)
    assert by_samples.plan.few_bits == nearest.plan.few_bits == {"y"}
    feeds = normal_samples(model, 10, seed=9)
    exact, *found = ([onnxruntime_outputs(m, f)["z"] for f in feeds] for m in (model, by_samples.proto, nearest.proto))
    assert decibels(exact, found[0]) > decibels(exact, found[1]) + 1


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_recurrent_weights_count_where_bytes_are_to_be_saved(kind: str):
    """`w4a8` gives gates 4 bits, as they are most of the weights, and a budget is one of theirs, too."""
    model = whole_model(kind)
    few = quantized(model, Scheme(weights=DType.INT4))
    assert "y" in few.plan.few_bits
    assert bytes_per_weight(few.model, few.plan) <= 0.6 < bytes_per_weight(few.model, quantized(model).plan) == 1
    kept = quantized(model, Scheme(weights=DType.INT4), {"y": DType.INT8})
    assert "y" not in kept.plan.few_bits
    source = load(model)
    maker = create_quantizer(
        source, import_float_model(source, CompileOptions(), INT8), INT8, normal_samples(model, 24, 0)
    )
    (way,) = maker.choose_narrow_layers({}, maker.four_bit_candidates(maker.quantize().plan), 0.6, 1)
    assert way["y"] is DType.INT4 and maker.weight_bytes_share(way) <= 0.6
