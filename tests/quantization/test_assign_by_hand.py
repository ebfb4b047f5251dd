# SPDX-License-Identifier: Apache-2.0
"""Limits of what shares a scale and of what stays in float32, each a case of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from float_models import random_weights
from onnx_models import Net

from mcugen.frontend.onnx.load import load
from mcugen.hir.graph import Node
from mcugen.hir.types import DType
from mcugen.quantization.assign import Assignment, assign_precisions, has_integer_form, is_quantized_constant
from mcugen.quantization.float_model import FloatModel, build_float_model
from mcugen.quantization.scheme import Scheme

INT8, INT16, FLOAT32 = DType.INT8, DType.INT16, DType.FLOAT32


def fused(net: Net, **states: str) -> FloatModel:
    return build_float_model(load(net.model()).proto, "net", states=states)


def placed(
    net: Net, wanted: Mapping[str, DType] | None = None, spans: Mapping[str, float] | None = None, **states: str
) -> Assignment:
    return assign_precisions(fused(net, **states).graph, Scheme(), wanted, spans, states)


def shares(found: Assignment, *names: str) -> bool:
    return any(set(names) <= set(group) for group in found.groups)


def dense(net: Net, x: str, depth: int, width: int, out: str) -> str:
    return net.op("MatMul", x, net.const(random_weights(depth + width, depth, width)), out=out)


# ------------------------------------------------------------------------------------------------- concatenations


def joined(*, is_read: bool, moved: bool = False) -> Net:
    """Two layers' results side by side, one of them perhaps turned twice; read by a layer, or an output."""
    net = Net(17)
    x = net.input("x", 1, 4)
    a, b = dense(net, x, 4, 3, "a"), dense(net, x, 4, 5, "b")
    if moved:
        a = net.op("Reshape", net.op("Transpose", a, perm=[1, 0], out="t"), net.const([1, 3], np.int64), out="a2")
    cat = net.op("Concat", a, b, axis=1, out="cat")
    net.output(dense(net, cat, 8, 2, "y") if is_read else cat)
    return net


@pytest.mark.parametrize(
    ("spans", "is_apart"),
    [
        ({"a": 1.0, "b": 4.0, "cat": 4.0}, False),
        ({"a": 0.99, "b": 4.0, "cat": 4.0}, True),
        ({"b": 4.0, "cat": 4.0}, False),
        ({"a": 1.0, "b": 9.0}, True),
        ({"a": 3.0, "b": 9.0}, False),
        ({"a": 1.0}, False),
        ({}, False),
        ({"a": 9.0, "b": 1.0, "cat": 9.0}, True),
    ],
)
@pytest.mark.parametrize("moved", [False, True])
def test_a_quarter_of_the_range_still_shares_the_scale(spans: dict[str, float], is_apart: bool, moved: bool) -> None:
    """A range that nobody has seen is that of what was moved; what is read keeps the part apart instead."""
    found = placed(joined(is_read=False, moved=moved), spans=spans)
    assert (found.precision["cat"] is FLOAT32) is is_apart
    assert ("cat" in found.reasons) is is_apart and shares(found, "a", "b") is not is_apart
    found = placed(joined(is_read=True, moved=moved), spans=spans)
    assert found.precision["cat"] is INT8 and not found.reasons
    small = "b" if spans.get("a") == 9.0 else "a"
    assert shares(found, "cat", small) is not is_apart
    assert shares(found, "cat", "a" if small == "b" else "b")


def test_what_moves_a_single_tensor_is_never_apart() -> None:
    net = Net(17)
    y = net.op("Transpose", dense(net, net.input("x", 1, 4), 4, 3, "a"), perm=[1, 0], out="t")
    net.output(y)
    assert placed(net, spans={"a": 1.0, "t": 99.0}).precision["t"] is INT8


@pytest.mark.parametrize(("dtype", "reason"), [(FLOAT32, True), (INT8, False), (INT16, False)])
def test_wanted_moves(dtype: DType, reason: bool) -> None:
    found = placed(joined(is_read=True), {"cat": dtype})
    assert (found.precision["cat"] is FLOAT32) is reason
    assert ("cat" in found.reasons) is reason


# ------------------------------------------------------------------------------------------------- interpolation


def enlarged(readers: int = 1) -> Net:
    net = Net(17)
    a = net.op("Conv", net.input("x", 1, 2, 4, 4), net.const(random_weights(1, 2, 2, 1, 1)), out="a")
    large = net.op("Resize", a, "", net.const([1, 1, 2, 2]), mode="linear", out="large")
    for k in range(readers):
        net.output(net.op("Conv", large, net.const(random_weights(2 + k, 2, 2, 1, 1)), out=f"y{k}"))
    return net


@pytest.mark.parametrize(
    ("spans", "wanted", "is_shared"),
    [
        ({"a": 3.0, "large": 2.0}, {}, True),
        ({"a": 3.01, "large": 2.0}, {}, False),
        ({"a": 1.0, "large": 2.0}, {}, True),
        ({"a": 99.0}, {}, True),
        ({"large": 1.0}, {}, True),
        ({}, {}, True),
        ({}, {"a": INT16}, False),
        ({}, {"y1": INT16}, False),
        ({}, {"y0": FLOAT32}, False),
        ({}, dict.fromkeys(("a", "large", "y0", "y1"), INT16), True),
        ({}, {"large": FLOAT32, "a": FLOAT32, "y0": FLOAT32, "y1": FLOAT32}, False),
    ],
)
def test_interpolation_shares_scales_of_one_type(
    spans: dict[str, float], wanted: dict[str, DType], is_shared: bool
) -> None:
    """Up to a range half as long again, and where all around compute in one integer type."""
    assert shares(placed(enlarged(2), wanted, spans), "a", "large") is is_shared


# ------------------------------------------------------------------------------------------------- groups and types


def residual() -> Net:
    net = Net(17)
    x = net.input("x", 1, 2, 4, 4)
    a = net.op("Conv", x, net.const(random_weights(1, 2, 2, 1, 1)), out="a")
    p = net.op("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2], out="p")
    y = net.op("Conv", p, net.const(random_weights(2, 2, 2, 1, 1)), out="y")
    net.output(net.op("Add", p, y, out="s"))
    return net


@pytest.mark.parametrize(
    ("wanted", "types"),
    [
        ({}, {"x": INT8, "a": INT8, "p": INT8, "y": INT8, "s": INT8}),
        ({"y": INT16}, {"x": INT8, "a": INT16, "p": INT16, "y": INT16, "s": INT8}),
        ({"a": FLOAT32}, {"a": INT8, "p": INT8, "y": INT8, "s": INT8}),
        ({"s": FLOAT32, "y": FLOAT32}, {"x": INT8, "a": INT8, "p": INT8}),
        ({"a": INT16, "s": FLOAT32}, {"x": INT16, "a": INT16, "p": INT16, "y": INT8}),
    ],
)
def test_tensors_have_the_widest_type_around(wanted: dict[str, DType], types: dict[str, DType]) -> None:
    found = placed(residual(), wanted)
    assert found.dtypes == types
    assert shares(found, "a", "p") and not shares(found, "p", "y")
    assert found.precision["p"] is types["p"]
    assert {name: found.precision[name] for name in wanted} == wanted
    assert found.reasons == {name: "as requested" for name, dtype in wanted.items() if dtype is FLOAT32}
    assert {name for group in found.groups for name in group} == found.dtypes.keys()


def test_cheap_layers_are_integers_together() -> None:
    """Alone one is not worth converting, but two are; and a layer with weights always is."""
    pair = Net(17)
    pair.output(pair.op("Sigmoid", pair.op("Softmax", pair.input("x", 1, 4), out="p"), out="s"))
    assert placed(pair).precision == {"p": INT8, "s": INT8}
    assert placed(pair, {"s": FLOAT32}).precision == {"p": FLOAT32, "s": FLOAT32}
    alone = Net(17)
    alone.output(dense(alone, alone.input("x", 1, 4), 4, 3, "a"))
    assert placed(alone).precision == {"a": INT8}


def test_a_lone_activation_is_not_worth_converting() -> None:
    net = Net(17)
    net.output(net.op("Sigmoid", net.input("x", 1, 4), out="s"))
    found = placed(net)
    assert found.precision == {"s": FLOAT32} and found.reasons == {"s": "between float layers"} and not found.groups


def test_a_state_has_one_scale() -> None:
    net = Net(17)
    y = net.op("Add", dense(net, net.input("x", 1, 4), 4, 3, "a"), dense(net, net.input("h", 1, 3), 3, 3, "b"))
    net.output(net.op("Tanh", y, out="hn"))
    assert shares(placed(net, hn="h"), "hn", "h") and not shares(placed(net), "hn", "h")


def test_nodes_of_integers_have_no_precision() -> None:
    net = Net(17)
    y = dense(net, net.input("x", 1, 4), 4, 3, "a")
    net.output(net.op("ArgMax", y, axis=1, out="best"), dtype=np.int64)
    assert placed(net).precision.keys() == {"a"}


# ------------------------------------------------------------------------------------------------- integer forms


def node_of(net: Net, name: str) -> Node:
    return next(n for n in fused(net).graph.nodes if name in (v.name for v in n.outputs))


def with_constant(function: str, constant: object) -> Node:
    net = Net(17)
    net.output(net.op(function, net.input("x", 1, 3), net.const(constant), out="y"))
    return node_of(net, "y")


def layer(kind: str) -> Node:
    net = Net(17)
    if kind == "GRU":
        weights = [net.const(random_weights(s, 1, 9, n)) for s, n in ((1, 4), (2, 3))]
        net.output(net.ops("GRU", net.input("s", 2, 1, 4), *weights, outs=["y"], hidden_size=3)[0])
    elif kind == "Det":
        net.output(net.op("Det", net.input("m", 2, 2), out="y"))
    elif kind == "Mul":
        net.output(net.op("Mul", net.input("x", 1, 4), net.input("z", 1, 4), out="y"))
    elif kind == "MatMul":
        net.output(dense(net, net.input("x", 1, 4), 4, 3, "y"))
    else:
        net.output(net.op(kind, net.input("x", 1, 4), out="y"))
    return node_of(net, "y")


@pytest.mark.parametrize("dtype", [INT8, INT16])
@pytest.mark.parametrize(
    ("kind", "is_integer"),
    [("GRU", True), ("Det", False), ("Mul", True), ("MatMul", True), ("Sigmoid", True), ("Softmax", True)],
)
def test_which_layers_have_an_integer_form(kind: str, is_integer: bool, dtype: DType) -> None:
    assert has_integer_form(layer(kind), dtype) is is_integer


@pytest.mark.parametrize(
    ("function", "constant", "types"),
    [
        ("Add", [1.0, 2.0, 3.0], [INT8, INT16]),
        ("Mul", 2.0, [INT8, INT16]),
        ("Mul", [1.0, np.inf, 2.0], []),
        ("Pow", 2.5, [INT8]),
        ("Div", [1.0, 2.0, 4.0], []),
    ],
)
def test_which_constants_go_with_an_integer_form(function: str, constant: object, types: list[DType]) -> None:
    node = with_constant(function, constant)
    assert [dtype for dtype in (INT8, INT16) if has_integer_form(node, dtype)] == types


@pytest.mark.parametrize(
    ("constant", "is_stored"),
    [([1.0, 2.0, 3.0], True), (2.0, False), ([[5.0]], False), ([1.0, np.inf, 2.0], False), ([1.0, np.nan, 2.0], False)],
)
def test_constants_that_are_stored_like_activations(constant: object, is_stored: bool) -> None:
    """Finite ones of more than one number."""
    node = with_constant("Max", constant)
    places = [i for i, v in enumerate(node.inputs) if v is not None and v.is_constant]
    for place in places:
        assert is_quantized_constant(node, place) is is_stored
    assert not is_quantized_constant(node, next(i for i, v in enumerate(node.inputs) if v and not v.is_constant))


def test_weights_and_biases_are_no_such_constants() -> None:
    net = Net(17)
    weights, bias = net.const(random_weights(1, 4, 3)), net.const(np.ones(3))
    net.output(net.op("Gemm", net.input("x", 1, 4), weights, bias, out="y"))
    node = node_of(net, "y")
    assert [is_quantized_constant(node, i) for i in range(len(node.inputs))] == [False] * 3


# ------------------------------------------------------------------------------------------------- shared weights


@pytest.mark.parametrize(("precision", "shared"), [(INT8, [("a", "b")]), (INT16, [("a", "b")]), (FLOAT32, [])])
def test_equal_layers_share_scales_only_as_integers(precision: DType, shared: list[tuple[str, ...]]) -> None:
    net = Net(17)
    weights = net.const(random_weights(5, 20, 20))
    for source, result in (("p", "a"), ("q", "b")):
        net.output(net.op("MatMul", net.input(source, 1, 20), weights, out=result))
    found = placed(net, {"a": precision, "b": precision}, {"p": 1.0, "q": 1.0, "a": 1.0, "b": 1.0})
    assert [tuple(sorted(names)) for names in found.shared] == shared
