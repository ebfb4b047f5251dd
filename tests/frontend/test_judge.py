# SPDX-License-Identifier: Apache-2.0
"""An exception while a node is imported: the model's fault where ONNX says so, else a bug that looks like one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_models import Net, imported

from mcugen.core.errors import ModelError, UnsupportedError
from mcugen.frontend.onnx.judge import onnx_objection
from mcugen.hir.types import DType, TensorType
from mcugen.ops.onnx_node import BUILT_IN, OnnxNode


def relu() -> onnx.ModelProto:
    net = Net()
    net.output(net.op("Relu", net.input("x", 4), out="y"))
    return net.model()


@pytest.mark.parametrize("bug", [KeyError("axis"), TypeError("None"), AssertionError(), IndexError(), ValueError("x")])
def test_a_bug_is_no_fault_of_the_model(bug: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(node: OnnxNode) -> list[object]:
        raise bug

    monkeypatch.setitem(BUILT_IN.importers, ("", "Relu"), broken)
    with pytest.raises(type(bug)) as caught:
        imported(relu())
    assert caught.value is bug


def mismatched() -> Net:
    """Vectors of 3 and of 4 elements: ONNX's own check at loading looks at no shapes."""
    net = Net()
    net.output(net.op("Add", net.input("a", 3), net.input("b", 4), out="y"), shape=[3])
    return net


def short_weights() -> Net:
    net = Net()
    weights = net.const(np.zeros((5, 2)))
    net.output(net.op("MatMul", net.input("x", 3, 4), weights, out="y"), shape=[3, 2])
    return net


@pytest.mark.parametrize("net", [mismatched(), short_weights()], ids=["sum", "product"])
def test_a_bad_model_is_named(net: Net) -> None:
    with pytest.raises(ModelError) as caught:
        imported(net.plain_model())
    assert len(str(caught.value)) < 600
    assert caught.value.found


def test_onnx_objects_to_types_shapes_and_constants() -> None:
    node = onnx.helper.make_node("Pad", ["x", "pads"], ["y"])
    types = [TensorType((2, 3), DType.FLOAT32), TensorType((4,), DType.INT64)]
    assert onnx_objection(node, types, [None, np.asarray([0, 1, 0, 1])], {"": 18}) == ""
    few = [types[0], TensorType((3,), DType.INT64)]
    assert "pads" in onnx_objection(node, few, [None, np.asarray([0, 1, 0])], {"": 18}).lower()
    wrong = [types[0], TensorType((2,), DType.INT32)]
    assert onnx_objection(node, wrong, [None, None], {"": 18})
    halves = [TensorType((2, 3), DType.BFLOAT16), types[1]]
    assert onnx_objection(node, halves, [None, None], {"": 18}) == ""


def of_shape(value: list[float]) -> Net:
    net = Net()
    tensor = onnx.numpy_helper.from_array(np.asarray(value, np.float32))
    net.output(net.op("ConstantOfShape", net.const([2], np.int64), value=tensor, out="y"), shape=[2])
    return net


def gathered() -> Net:
    net = Net()
    x, indices = net.input("x", 3, 4), net.const([[[0, 1]]], np.int64)
    net.output(net.op("GatherElements", x, indices, out="y"), shape=[1, 1, 2])
    return net


def resized() -> Net:
    net = Net()
    x, sizes = net.input("x", 1, 1, 4, 4), net.const([1, 1, 8], np.int64)
    net.output(net.op("Resize", x, "", "", sizes, out="y"), shape=[1, 1, 8, 8])
    return net


def clipped() -> Net:
    net = Net()
    net.output(net.op("Clip", net.input("x", 2), net.const([0.0, 1.0]), out="y"), shape=[2])
    return net


@pytest.mark.parametrize(
    ("net", "rule"),
    [
        (clipped(), "min must have one element"),
        (of_shape([1.0, 2.0]), "value must have one element"),
        (gathered(), "the indices must have as many axes as the data"),
        (resized(), "sizes must be as many as axes"),
    ],
)
def test_what_onnx_does_not_look_at_is_refused_at_its_place(net: Net, rule: str) -> None:
    with pytest.raises(UnsupportedError, match=rule):
        imported(net.plain_model())
