# SPDX-License-Identifier: Apache-2.0
"""Nodes in any order, as graph editors leave them: ONNX Runtime takes them, ONNX's checker does not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import Net, c_outputs, onnxruntime_outputs

from mcugen.core.errors import ModelError
from mcugen.driver.compiler import compile_model


def chain() -> onnx.ModelProto:
    """An If, too, whose body reads what is computed outside of it."""
    net = Net(17)
    x = net.input("x", 2, 3)
    a = net.op("Mul", x, net.const(3.0), out="a")
    b = net.op("Relu", a, out="b")
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 3])
    then, other = (
        helper.make_graph([helper.make_node(op, ["b", "x"], ["r"])], op, [], [result]) for op in ("Add", "Sub")
    )
    flag = net.op("Greater", net.op("ReduceSum", b, keepdims=0), net.const(1.0))
    net.output(net.op("If", flag, then_branch=then, else_branch=other, out="y"), shape=(2, 3))
    return net.plain_model()


def test_nodes_are_put_in_order() -> None:
    model, feeds = chain(), {"x": np.array([[1, -2, 3], [-4, 5, 6]], np.float32)}
    expected = c_outputs(model, feeds)["y"]
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    np.testing.assert_array_equal(c_outputs(model, feeds)["y"], expected)
    np.testing.assert_array_equal(onnxruntime_outputs(model, feeds)["y"], expected)


def test_a_cycle_is_told() -> None:
    nodes = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["a"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "a")]
    model = helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:]), ir_version=8)
    with pytest.raises(ModelError, match="sorted"):
        compile_model(model, "host")
