# SPDX-License-Identifier: Apache-2.0
"""Upgrade of old operator sets, wherever a node stands; models that need a newer one (int16 activations, int4 weights).

The main oracle is ONNX Runtime on the model as it is. It reads no opset 6: there numpy computes what is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from onnx_models import (
    Net,
    assert_close,
    check_everywhere,
    imported,
    numpy_outputs,
    onnxruntime_outputs,
    outputs_in_c,
    random_feeds,
)
from version_cases import NEWEST, Version, official_cases, own_cases, versions

from mcugen.core.errors import ModelError, UnsupportedError, VerificationError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.frontend.onnx.load import load
from mcugen.frontend.onnx.opset_upgrade import upgrade
from mcugen.hir.types import Array, DType
from mcugen.quantization.quantize import create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme

TEXT = """
<ir_version: 8, opset_import: ["": 12]>
early (float[1, 8, 16] x) => (float[1, 8, 16] y) {
  n = LayerNormalization <axis = -1, epsilon = 0.001> (x, g, b)
  h = MatMul (n, w)
  y = Add (h, x)
}
"""
"""ONNX Runtime had LayerNormalization in ONNX's domain before ONNX did (opset 17), and exporters wrote it."""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    proto, random = parser.parse_model(TEXT), np.random.default_rng(0)
    for name, shape in (("g", (16,)), ("b", (16,)), ("w", (16, 16))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(random.normal(0, 0.5, shape).astype("f4"), name))
    return proto


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{"x": random.normal(0, 1, (1, 8, 16)).astype(np.float32)} for _ in range(12)]


def test_operators_that_came_later_are_those_of_the_newer_opset(model: onnx.ModelProto) -> None:
    found = upgrade(model, 21, "test")
    assert [(e.domain, e.version) for e in found.opset_import] == [("", 21)]
    assert {n.domain for n in found.graph.node} == {""}
    before, after = (run_onnxruntime(each, samples()) for each in (model, found))
    assert all(np.array_equal(a["y"], b["y"]) for a, b in zip(before, after, strict=True))
    assert [e.version for e in model.opset_import] == [12]


@pytest.mark.parametrize("scheme", [Scheme(weights=DType.INT4), Scheme(DType.INT16)], ids=["w4a8", "int16x8"])
def test_their_layers_are_quantized(model: onnx.ModelProto, scheme: Scheme) -> None:
    source = load(model)
    made = create_quantizer(source, import_float_model(source, CompileOptions(), scheme), scheme, samples()).quantize()
    compiled = compile_model(made)
    exact, found = run_onnxruntime(model, samples()), run_onnxruntime(made.proto, samples())
    noise = sum(float(np.square(a["y"] - b["y"]).sum()) for a, b in zip(exact, found, strict=True))
    signal = sum(float(np.square(a["y"]).sum()) for a in exact)
    assert noise < signal / 100
    assert np.allclose(compiled.simulate(samples()[:1]).outputs[0]["y"], found[0]["y"], atol=0.1)


# ------------------------------------------------------------------------------------------ places of a node


Nodes = Callable[[Net, Sequence[str]], str]
"""Adds nodes to a net, reading tensors of these names; returns the name of the result."""


@dataclass
class Part:
    """Nodes that compute one output from inputs and constants, in an operator set."""

    nodes: Nodes
    opset: int
    operands: Sequence[Array]
    result: Array
    """What is computed; its shape and type where ONNX Runtime tells the rest."""
    ir_version: int = 8

    def net(self, opset: int = 0) -> Net:
        net = Net(opset or self.opset, self.ir_version)
        for index, array in enumerate(self.operands):
            net.input(f"x{index}", *array.shape, dtype=array.dtype.type)
        return net

    @property
    def names(self) -> list[str]:
        return [f"x{index}" for index in range(len(self.operands))]

    @property
    def feeds(self) -> dict[str, Array]:
        return dict(zip(self.names, self.operands, strict=True))

    def end(self, net: Net, name: str) -> onnx.ModelProto:
        net.output(net.op("Identity", name, out="y"), dtype=self.result.dtype.type, shape=self.result.shape)
        return net.plain_model()

    def body(self, prefix: str) -> onnx.GraphProto:
        net = Net(self.opset, prefix=prefix)
        net.output(self.nodes(net, self.names), dtype=self.result.dtype.type, shape=self.result.shape)
        return net.graph(prefix)


def at_the_top(part: Part) -> onnx.ModelProto:
    net = part.net()
    return part.end(net, part.nodes(net, part.names))


def in_an_if(part: Part) -> onnx.ModelProto:
    net = part.net()
    condition = net.op("Constant", value=numpy_helper.from_array(np.asarray(True)))
    branches = {"then_branch": part.body("then."), "else_branch": part.body("else.")}
    return part.end(net, net.op("If", condition, **branches))


def in_a_loop(part: Part) -> onnx.ModelProto:
    return _in_a_loop(part, part.body("inner."))


def in_an_if_in_a_loop(part: Part) -> onnx.ModelProto:
    outer = Net(part.opset, prefix="outer.")
    condition = outer.op("Constant", value=numpy_helper.from_array(np.asarray(False)))
    branches = {"then_branch": part.body("then."), "else_branch": part.body("else.")}
    chosen = outer.op("If", condition, **branches)
    outer.output(chosen, dtype=part.result.dtype.type, shape=part.result.shape)
    return _in_a_loop(part, outer.graph("outer"))


def _in_a_loop(part: Part, graph: onnx.GraphProto) -> onnx.ModelProto:
    """One step, whose result is the state."""
    net, dtype = part.net(), part.result.dtype.type
    for name, kind, shape in (("state", dtype, part.result.shape), ("go", np.bool_, ()), ("step", np.int64, ())):
        graph.input.insert(
            0, helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), shape)
        )
    graph.node.append(helper.make_node("Identity", ["go"], ["on"]))
    graph.output.insert(0, helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, ()))
    steps, true, start = (
        net.op("Constant", value=numpy_helper.from_array(np.asarray(v)))
        for v in (np.int64(1), np.True_, np.zeros(part.result.shape, dtype))
    )
    return part.end(net, net.op("Loop", steps, true, start, body=graph))


def in_a_function(part: Part) -> onnx.ModelProto:
    return _in_a_function(part, part.opset)


def in_an_old_function_of_a_new_model(part: Part) -> onnx.ModelProto:
    return _in_a_function(part, 17)


def _in_a_function(part: Part, opset: int) -> onnx.ModelProto:
    """A function that another one calls; its types are not known."""
    inner, outer = Net(part.opset, prefix="f."), Net(part.opset, prefix="g.")
    result = part.nodes(inner, part.names)
    outer.op("Inner", *part.names, out="g.y", domain="local")
    imports = [helper.make_opsetid("", part.opset), helper.make_opsetid("local", 1)]
    net = part.net(opset)
    model = part.end(net, net.op("Outer", *part.names, domain="local"))
    model.opset_import.append(helper.make_opsetid("local", 1))
    for name, own, output in (("Inner", inner, result), ("Outer", outer, "g.y")):
        model.functions.append(helper.make_function("local", name, part.names, [output], own.nodes, imports))
    return model


PLACES = [
    at_the_top,
    in_an_if,
    in_a_loop,
    in_an_if_in_a_loop,
    in_a_function,
    in_an_old_function_of_a_new_model,
]
everywhere = pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)


def check_part(place: Callable[[Part], onnx.ModelProto], part: Part) -> None:
    assert_close(numpy_outputs(place(part), part.feeds), {"y": part.result})


def by_onnxruntime(nodes: Nodes, opset: int, *operands: Array) -> Part:
    """The part with what ONNX Runtime computes of its nodes, alone and in their own operator set."""
    part = Part(nodes, opset, operands, np.zeros(0))
    net = part.net()
    name = part.nodes(net, part.names)
    net.output(name)
    part.result = onnxruntime_outputs(net.model(), part.feeds)[name]
    return part


def node(op_type: str, **attributes: object) -> Nodes:
    return lambda net, names: net.op(op_type, *names, **attributes)


# --------------------------------------------------------------------------------------------------- opset 6

RANDOM = np.random.default_rng(0)
BINARY: Mapping[str, Callable[[Array, Array], Array]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b,
    "Pow": lambda a, b: a**b,
    "And": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "Xor": lambda a, b: a ^ b,
    "Greater": lambda a, b: a > b,
    "Less": lambda a, b: a < b,
    "Equal": lambda a, b: a == b,
    "PRelu": lambda a, b: a * b if a < 0 else a,
}
SHAPES = [
    ((2, 2, 3), (2,), 1),
    ((1, 3, 2, 2), (3,), 1),
    ((3, 3, 3), (3,), 0),
    ((2, 3, 2, 3), (2, 3), 0),
    ((2, 3, 4), (3,), -2),
    ((2, 3, 4), (3, 4), 1),
    ((2, 3), (), 0),
    ((2, 3), (1,), 1),
]
"""Of the two operands, and the axis of the first one at which the second one begins."""


def old_binary(op_type: str, shape: tuple[int, ...], operand: tuple[int, ...], axis: int) -> Part:
    """An operator with limited broadcasting; numpy computes element by element."""
    dtype = {"And": "?", "Or": "?", "Xor": "?", "Equal": "i4"}.get(op_type, "f4")
    a, b = (np.asarray(RANDOM.integers(1, 4, each), "i4") for each in (shape, operand))
    a, b = (a % 2 == 0, b % 2 == 0) if dtype == "?" else (a.astype(dtype), b.astype(dtype))
    if op_type == "PRelu":
        a, axis = a - 2, 1
    first = axis % len(shape)
    values = [
        BINARY[op_type](a[at], b[at[first : first + len(operand)] if b.size > 1 else (0,) * len(operand)])
        for at in np.ndindex(*shape)
    ]
    attributes = {} if op_type == "PRelu" else {"broadcast": 1, "axis": axis}
    return Part(node(op_type, **attributes), 6, [a, b], np.asarray(values).reshape(shape))


@everywhere
@pytest.mark.parametrize("op_type", BINARY)
def test_operands_are_aligned_to_the_axis(op_type: str, place: Callable[[Part], onnx.ModelProto]) -> None:
    for shape, operand, axis in SHAPES:
        is_slope = axis == 1 and len(operand) == 1 and len(shape) > 1
        if op_type != "PRelu" or is_slope:
            check_part(place, old_binary(op_type, shape, operand, axis))


def test_without_an_axis_the_last_ones_meet() -> None:
    a, b = RANDOM.standard_normal((2, 3, 4)).astype("f4"), RANDOM.standard_normal((3, 4)).astype("f4")
    check_part(at_the_top, Part(node("Sub", broadcast=1), 6, [a, b], a - b))


def test_an_attribute_of_a_function_sets_the_axis() -> None:
    """The axis is known at the call alone."""
    part = old_binary("Sub", (2, 2, 3), (2,), 1)
    model = in_an_old_function_of_a_new_model(part)
    inner = next(function for function in model.functions if function.name == "Inner")
    (axis,) = (a for a in inner.node[0].attribute if a.name == "axis")
    axis.Clear()
    axis.name, axis.type, axis.ref_attr_name = "axis", onnx.AttributeProto.INT, "at"
    inner.attribute.append("at")
    outer = next(function for function in model.functions if function.name == "Outer")
    outer.node[0].attribute.append(helper.make_attribute("at", 1))
    assert_close(numpy_outputs(model, part.feeds), {"y": part.result})


@pytest.mark.parametrize("dtype", ["f2", "f8", "i4", "i8", "u4", "u8"])
def test_operands_of_every_type_are_aligned(dtype: str) -> None:
    a, b = np.arange(12).reshape(2, 2, 3).astype(dtype), np.asarray([1, 3], dtype)
    check_part(in_an_if, Part(node("Mul", broadcast=1, axis=1), 6, [a, b], a * b[:, None]))


def chain(opset: int) -> Net:
    """Aligned operands, of which ranks follow from each other, and weights that are inputs, too (IR version 3)."""
    net = Net(opset, ir_version=3)
    net.input("x", 1, 2, 4, 4)
    weights, bias, slopes = (np.random.default_rng(1).standard_normal(s) for s in ((3, 2, 3, 3), 3, 3))
    attributes: dict[str, object] = {"broadcast": 1, "axis": 1} if opset < 7 else {}
    shape = (3,) if opset < 7 else (3, 1, 1)
    y = net.op("Conv", "x", net.const(weights))
    y = net.op("Add", y, net.const(bias.reshape(shape)), **attributes)
    y = net.op("PRelu", y, net.const(slopes.reshape(shape)))
    net.output(net.op("Mul", y, net.const(bias.reshape(shape)), out="y", **attributes), shape=[1, 3, 2, 2])
    net.inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in net.constants]
    return net


def test_a_file_of_opset_6_compiles_to_the_same_numbers() -> None:
    feeds = {"x": random_feeds(chain(7).plain_model())["x"]}
    expected = onnxruntime_outputs(chain(7).plain_model(), feeds)
    assert_close(outputs_in_c(compile_model(chain(6).plain_model()), feeds), expected)


@pytest.mark.parametrize("place", [at_the_top, in_an_old_function_of_a_new_model])
@pytest.mark.parametrize("scheme", [Scheme(), Scheme(DType.INT16)], ids=["int8", "int16"])
def test_a_model_of_opset_6_is_quantized(scheme: Scheme, place: Callable[[Part], onnx.ModelProto]) -> None:
    weights, bias, slopes = (np.random.default_rng(1).standard_normal(s).astype("f4") for s in ((3, 2, 3, 3), 3, 3))

    def nodes(net: Net, names: Sequence[str]) -> str:
        kept = [net.op("Constant", value=numpy_helper.from_array(a)) for a in (weights, bias, slopes)]
        shifted = net.op("Add", net.op("Conv", names[0], kept[0]), kept[1], broadcast=1, axis=1)
        return net.op("PRelu", shifted, kept[2])

    feeds = [{"x0": RANDOM.standard_normal((1, 2, 5, 5)).astype("f4")} for _ in range(8)]
    model = place(Part(nodes, 6, [feeds[0]["x0"]], np.zeros((1, 3, 3, 3), "f4")))
    exact = numpy_outputs(model, feeds[0])["y"]
    source = load(model)
    made = create_quantizer(source, import_float_model(source, CompileOptions(), scheme), scheme, feeds).quantize()
    (found,) = run_onnxruntime(made.proto, feeds[:1])
    assert np.abs(found["y"] - exact).max() < np.abs(exact).max() / 50


def test_a_function_of_an_opset_that_is_too_old_is_refused() -> None:
    model = in_an_old_function_of_a_new_model(old_binary("Add", (2, 3), (3,), 1))
    model.functions[0].opset_import[0].version = 5
    with pytest.raises(ModelError, match="the opset must be 6 or later in function 'Inner', too"):
        imported(model)


# -------------------------------------------------------------------------------------------- opsets 7 to 12


@everywhere
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize(("opset", "axes"), [(7, (None, 0, 1, 2)), (11, (0, 1, -1, -2, -3)), (12, (1,))])
def test_axes_from_one_on_are_one(
    op_type: str, opset: int, axes: Sequence[int | None], place: Callable[[Part], onnx.ModelProto]
) -> None:
    for axis in axes:
        x = RANDOM.standard_normal((2, 3, 2)).astype("f4")
        check_part(place, by_onnxruntime(node(op_type, **({} if axis is None else {"axis": axis})), opset, x))


@everywhere
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 2, 2), (3, 3, 3)])
def test_each_element_has_its_own_statistics(shape: tuple[int, ...], place: Callable[[Part], onnx.ModelProto]) -> None:
    x, *parameters = (RANDOM.uniform(0.5, 2, s).astype("f4") for s in (shape, *[shape[1:]] * 4))
    check_part(place, by_onnxruntime(node("BatchNormalization", spatial=0, epsilon=0.1), 8, x, *parameters))


RESIZED = {
    "down": (1, 1, 0.6, 0.45),
    "up": (1, 1, 1.7, 2.0),
    "both": (1, 1, 0.6, 2.3),
    "thirds": (1, 1, 1 / 3, 2 / 3),
    "channels": (1, 0.5, 2.0, 1),
}


def resize(
    op_type: str, mode: str, scales: Sequence[float], *, is_computed: bool
) -> Callable[[Net, Sequence[str]], str]:
    """Resizes by scales that are a constant, or that another node computes."""

    def nodes(net: Net, names: Sequence[str]) -> str:
        given = net.op("Constant", value=numpy_helper.from_array(np.asarray(scales, "f8" if is_computed else "f4")))
        return net.op(op_type, names[0], net.op("Cast", given, to=1) if is_computed else given, mode=mode)

    return nodes


@everywhere
@pytest.mark.parametrize("scales", RESIZED.values(), ids=RESIZED)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("is_computed", [False, True], ids=["constant", "computed"])
def test_resize_of_opset_10(
    mode: str, scales: Sequence[float], is_computed: bool, place: Callable[[Part], onnx.ModelProto]
) -> None:
    if mode == "linear" and scales[1] != 1:
        scales = (1, 1, 1.5, 0.7)  # ONNX Runtime interpolates images alone
    x = RANDOM.standard_normal((1, 4, 5, 6)).astype("f4")
    check_part(place, by_onnxruntime(resize("Resize", mode, scales, is_computed=is_computed), 10, x))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@everywhere
def test_upsample_of_opset_9(mode: str, place: Callable[[Part], onnx.ModelProto]) -> None:
    x = RANDOM.standard_normal((1, 2, 3, 4)).astype("f4")
    check_part(place, by_onnxruntime(resize("Upsample", mode, (1, 1, 1.7, 2), is_computed=False), 9, x))


@pytest.mark.parametrize("seed", range(12))
def test_nearest_elements_at_fractional_scales(seed: int) -> None:
    """Sizes and scales are random; where no size changes, ONNX Runtime copies whatever the scales are."""
    random = np.random.default_rng(seed)
    for _ in range(4):
        scales = (1, 1, *np.float32(random.uniform(0.25, 0.98, 1)), *np.float32(random.uniform(0.25, 2.5, 1)))
        x = random.standard_normal((1, 2, *random.integers(5, 12, 2))).astype("f4")
        check_part(at_the_top, by_onnxruntime(resize("Resize", "nearest", scales, is_computed=False), 10, x))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_codes_are_resized_to_the_same_elements(dtype: type) -> None:
    net = Net(10)
    x = net.quantize(net.input("x", 1, 2, 5, 6), 0.02, 3, dtype)
    net.output(net.dequantize(net.op("Resize", x, net.const([1, 1, 0.6, 1.5])), 0.02, 3, dtype, out="y"))
    check_everywhere(net.model())


def scan(batch: int, direction: int) -> Part:
    """Running sums of each sample of a batch: opset 8 scans the second axis."""

    def nodes(net: Net, names: Sequence[str]) -> str:
        body = Net(8, prefix=f"{net.prefix}scan.")
        total = body.op("Add", body.input("before", 2), body.input("row", 2))
        body.output(total, shape=[2])
        body.output(body.op("Identity", total), shape=[2])
        outs = [f"{net.prefix}last", f"{net.prefix}sums"]
        return net.ops("Scan", "", *names, outs=outs, body=body.graph("b"), num_scan_inputs=1, directions=[direction])[
            1
        ]

    first, rows = RANDOM.standard_normal((batch, 2)).astype("f4"), RANDOM.standard_normal((batch, 3, 2)).astype("f4")
    return by_onnxruntime(nodes, 8, first, rows)


@everywhere
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("direction", [0, 1])
def test_scan_of_batches(batch: int, direction: int, place: Callable[[Part], onnx.ModelProto]) -> None:
    check_part(place, scan(batch, direction))


def test_lengths_of_sequences_are_refused() -> None:
    model = at_the_top(scan(1, 0))
    model.graph.node[0].input[0] = "lengths"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([2]), "lengths"))
    with pytest.raises(UnsupportedError, match="there must be no lengths of sequences"):
        imported(model)


@everywhere
@pytest.mark.parametrize("attributes", [{"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.5}], ids=str)
def test_clip_of_opset_10(attributes: dict[str, float], place: Callable[[Part], onnx.ModelProto]) -> None:
    check_part(place, by_onnxruntime(node("Clip", **attributes), 10, RANDOM.standard_normal((2, 3)).astype("f4")))


@pytest.mark.parametrize("attributes", [{"pads": [1, 0, -1, 2]}, {"pads": [1, 2, 0, 1], "mode": "reflect"}], ids=str)
@everywhere
def test_pad_of_opset_10(attributes: dict[str, object], place: Callable[[Part], onnx.ModelProto]) -> None:
    check_part(place, by_onnxruntime(node("Pad", **attributes), 10, RANDOM.standard_normal((2, 3)).astype("f4")))


# -------------------------------------------------------------------------------------------- opsets 13 to 21

CHANGED = ["RoiAlign", "Split", "GridSample", "DFT", "ReduceSum", "ReduceMax", "ReduceLogSumExp", "Resize"]
RAISED = [version for version in versions() if version.op_type in CHANGED and 10 <= version.since <= 20]


@pytest.mark.parametrize("version", RAISED, ids=str)
@pytest.mark.parametrize("opset", [21, NEWEST])
def test_a_raised_model_computes_the_same(version: Version, opset: int) -> None:
    """ONNX Runtime runs the model before and after; what it cannot run counts not."""
    compared = 0
    for case in (*own_cases(version), *official_cases(version)[:12]):
        try:
            expected = onnxruntime_outputs(case.model, case.feeds)
        except VerificationError:
            continue
        for output in case.model.graph.output:
            number = helper.np_dtype_to_tensor_dtype(expected[output.name].dtype)
            output.CopyFrom(helper.make_tensor_value_info(output.name, number, expected[output.name].shape))
        raised = upgrade(case.model, opset, "test")
        onnx.checker.check_model(raised)
        assert_close(onnxruntime_outputs(raised, case.feeds), expected)
        compared += 1
    assert compared


@everywhere
@pytest.mark.parametrize("opset", [18, 20])
def test_group_normalization_before_it_was_corrected(opset: int, place: Callable[[Part], onnx.ModelProto]) -> None:
    """Opset 18 has a scale for each group."""
    x, scale, bias = (RANDOM.standard_normal(s).astype("f4") for s in ((1, 4, 3), (2,), (2,)))
    check_part(place, by_onnxruntime(node("GroupNormalization", num_groups=2, epsilon=0.1), opset, x, scale, bias))
