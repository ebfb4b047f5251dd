# SPDX-License-Identifier: Apache-2.0
"""Composite operators by the function bodies that ONNX gives them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import Net, assert_close, c_outputs, imported, numpy_outputs, operators, optimized, random_feeds

from mcugen.core.errors import UnsupportedError
from mcugen.frontend.onnx.functions import find_body
from mcugen.hir.types import DType, TensorType


def check_reference(net: Net, **feeds: np.ndarray) -> list[str]:
    """The body in numpy and in C gives what ONNX's reference does; returns the operators that are left."""
    model = net.model()
    feeds = random_feeds(model) | feeds
    names = [o.name for o in model.graph.output]
    expected = dict(zip(names, map(np.asarray, ReferenceEvaluator(model).run(names, feeds)), strict=True))
    assert_close(numpy_outputs(model, feeds), expected)
    assert_close(c_outputs(model, feeds), expected)
    return operators(optimized(model))


def attention(*extra: str, opset: int = 23, outs: tuple[str, ...] = ("y",), **attributes: object) -> Net:
    """Attention of 2 queries over 3 keys, two heads; `extra` are names of further inputs ("" to leave out)."""
    net = Net(opset)
    shapes = {"mask": (2, 3), "past_key": (1, 2, 4, 4), "past_value": (1, 2, 4, 4)}
    inputs = [net.input("q", 1, 2, 2, 4), net.input("k", 1, 2, 3, 4), net.input("v", 1, 2, 3, 4)]
    inputs += [net.input(name, *shapes[name]) if name else "" for name in extra]
    net.output(*filter(None, net.ops("Attention", *inputs, outs=list(outs), **attributes)))
    return net


# ------------------------------------------------------------------------------------------------- whole bodies


def test_a_body_that_depends_on_the_inputs():
    assert check_reference(attention()) == ["transpose", "matmul", "softmax", "matmul"]
    net = Net(23)
    rows = [net.input(name, 1, size, 8) for name, size in (("q", 2), ("k", 3), ("v", 3))]
    net.output(net.op("Attention", *rows, out="y", q_num_heads=2, kv_num_heads=2))
    check_reference(net)


@pytest.mark.parametrize("attributes", [{"scale": 0.3}, {"is_causal": 1}, {"softcap": 2.0}, {"softmax_precision": 1}])
def test_attributes_reach_the_body(attributes: dict[str, object]):
    check_reference(attention(**attributes))


def test_optional_inputs_and_outputs():
    check_reference(attention("mask"))
    check_reference(attention("", "past_key", "past_value", outs=("y", "present_key", "present_value")))
    check_reference(attention("mask", outs=("y", "", "", "scores"), qk_matmul_output_mode=1))


def test_a_constant_takes_the_type_of_a_tensor_that_is_not():
    """Attention pads a short mask by CastLike(-inf, mask): known, although the mask is not."""
    net = Net(24)
    inputs = [net.input("q", 1, 2, 2, 4), net.input("k", 1, 2, 5, 4), net.input("v", 1, 2, 5, 4)]
    net.output(net.op("Attention", *inputs, net.input("mask", 2, 3), out="y"))
    net.output(net.op("CastLike", net.const([1.5]), net.input("like", 1, dtype=np.int32), out="z"), dtype=np.int32)
    graph = optimized(net.model())
    assert "pad" in operators(graph)
    assert graph.outputs[1].data is not None
    assert graph.outputs[1].data.tolist() == [1]


def test_nested_bodies():
    net = Net(13)
    net.output(net.op("Celu", net.op("MeanVarianceNormalization", net.input("x", 2, 3, 4, 5)), out="y", alpha=2.0))
    check_reference(net)


def test_what_a_body_computes_in_vain_is_dropped():
    net = Net(17)
    x, zeros = net.input("x", 2, 3), net.const(np.zeros((1, 3)))
    y = net.op("Sub", net.op("Add", zeros, x), zeros)
    y = net.op("Div", net.op("Mul", y, net.const(1.0)), net.const([1.0]))
    y = net.op("Where", net.const([[True], [True]], np.bool_), y, net.input("other", 2, 3))
    net.output(net.op("Where", net.const(False, np.bool_), net.const(np.inf), y, out="y"))
    net.output(net.op("Add", net.input("small", 3), net.const(np.zeros((2, 3))), out="spread"))
    net.output(net.op("Sub", net.const(0.0), x, out="negative"))
    assert check_reference(net) == ["reshape", "add", "sub"]


def test_scalars_of_both_operands_of_a_product_are_one():
    net = Net(17)
    a, b = net.input("a", 2, 3, 4), net.input("b", 2, 4, 5)
    half, third = net.const(0.5), net.const([3.0])
    scaled = net.op("Mul", half, a)
    net.output(net.op("MatMul", scaled, net.op("Mul", b, third), out="y"))
    assert check_reference(net) == ["matmul"]  # in its rounding or its sums
    net.output(net.op("Relu", scaled, out="z"))  # another reader: that product stays
    assert check_reference(net) == ["mul", "matmul", "clamp"]


# --------------------------------------------------------------------------------------------------- refusals


def test_a_refusal_inside_names_the_composite():
    net = Net(22)
    net.output(net.op("Bernoulli", net.input("x", 4), out="y"))
    with pytest.raises(UnsupportedError, match=r"RandomUniformLike '.*' \(in Bernoulli 'Bernoulli_y'\)"):
        imported(net.model())


def test_a_refusal_names_the_model_inputs_to_bind():
    net = Net(18)
    shape = net.input("shape", 2, dtype=np.int64)
    net.output(net.op("CenterCropPad", net.input("x", 6, 5), shape, out="y"), shape=(4, 7))
    with pytest.raises(UnsupportedError, match="is computed from 'shape'"):
        imported(net.plain_model())


def test_declared_types_tell_halves_from_floats():
    """The mean of a layer normalization of halves is float32."""
    net = Net(17)
    x = net.input("x", 2, 4, dtype=np.float16)
    net.ops("LayerNormalization", x, net.const(np.ones(4), np.float16), outs=["y", "mean"])
    net.output("y", dtype=np.float16)
    net.output("mean")
    dtypes = [v.type.dtype for v in imported(net.model()).outputs]
    assert dtypes == [DType.FLOAT16, DType.FLOAT32]


# ------------------------------------------------------------------------------------------------- find_body


def body(op_type: str, opset: int, *types: TensorType | None, **attributes: object) -> onnx.FunctionProto | None:
    names = ["" if t is None else f"x{i}" for i, t in enumerate(types)]
    return find_body(helper.make_node(op_type, names, ["y"], **attributes), opset, types)


def test_primitives_have_no_body():
    x = TensorType((2, 3))
    assert body("MatMul", 13, x, x) is None
    assert body("NoSuchOperator", 13, x) is None
    assert find_body(helper.make_node("Softplus", ["x"], ["y"], domain="nobody.knows"), 1, [x]) is None


def test_references_to_attributes_become_their_values():
    x = TensorType((2, 3))
    given = body("Selu", 22, x, alpha=7.0)
    assert given is not None
    values = {a.name: a for node in given.node for a in node.attribute if a.ref_attr_name}
    assert not values
    floats = [a.f for node in given.node for a in node.attribute if a.name == "value_float"]
    assert 7.0 in floats
    assert any(abs(f - 1.0507) < 1e-3 for f in floats)  # the default of gamma


def test_the_body_of_the_models_opset_is_taken():
    x = TensorType((2, 3))
    old, new = body("Softplus", 13, x), body("Softplus", 22, x)
    assert old is not None
    assert new is not None
    versions = [[e.version for e in b.opset_import if not e.domain] for b in (old, new)]
    assert versions == [[18], [18]]  # the only one, and the newest that the model's opset knows
