# SPDX-License-Identifier: Apache-2.0
"""TopK, CumSum and CumProd: onnxruntime or onnx's reference, numpy and C agree."""

from __future__ import annotations

import numpy as np
import pytest
from checks import check_by_reference, check_model
from onnx_models import Net, operators, optimized, random_feeds

from mcugen.core.errors import McugenError


def test_largest_and_smallest_of_every_type():
    net = Net(24)
    for dtype in (np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64):
        tag = np.dtype(dtype).name
        x = net.input(f"x_{tag}", 3, 4, 5, dtype=dtype)
        for largest, k, axis in ((0, 2, 0), (0, 5, 2), (1, 1, -1), (1, 4, 1), (1, 3, 0)):
            outs = [f"{what}_{tag}_{largest}_{k}" for what in ("values", "indices")]
            net.ops("TopK", x, net.const([k], np.int64), outs=outs, axis=axis, largest=largest)
            net.output(outs[0], dtype=dtype)
            net.output(outs[1], dtype=np.int64)
    check_by_reference(net)


def test_of_equal_elements_the_first_comes_first():
    net = Net()
    net.input("x", 12)
    for largest in (0, 1):
        outs = [f"values{largest}", f"indices{largest}"]
        net.ops("TopK", "x", net.const([7], np.int64), outs=outs, largest=largest)
        net.output(outs[0])
        net.output(outs[1], dtype=np.int64)
    x = np.array([1, 3, 1, 2, 3, 3, 2, 1, np.inf, -np.inf, 3, 2], np.float32)
    check_model(net.model(), {"x": x})


def test_a_k_that_the_declared_shape_tells():
    net = Net()
    net.input("x", 2, 5)
    net.input("k", 1, dtype=np.int64)
    net.ops("TopK", net.op("Relu", "x"), "k", outs=["values", "indices"])
    net.output(net.op("Neg", "values", out="y"), shape=(2, 3))
    net.output("indices", dtype=np.int64, shape=(2, 3))
    model = net.plain_model()
    check_model(model, random_feeds(model) | {"k": np.array([3])})


def test_only_the_indices_are_wanted():
    net = Net()
    net.input("x", 2, 5)
    net.ops("TopK", "x", net.const([2], np.int64), outs=["values", "indices"])
    net.output("indices", dtype=np.int64)
    model = net.model()
    check_model(model, random_feeds(model))


def test_running_sums_and_products():
    net = Net(26)
    for dtype in (np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64):
        tag = np.dtype(dtype).name
        x = net.input(f"x_{tag}", 3, 4, 5, dtype=dtype)
        for axis, exclusive, reverse in ((0, 0, 0), (1, 0, 1), (2, 1, 0), (-2, 1, 1)):
            for op in ("CumSum", "CumProd"):
                how = {"exclusive": exclusive, "reverse": reverse, "out": f"{op}_{tag}_{axis}"}
                net.output(net.op(op, x, net.const(axis, np.int64), **how), dtype=dtype)
    check_by_reference(net)


def test_the_only_axis_needs_no_naming():
    net = Net()
    net.input("x", 5)
    net.input("axis", dtype=np.int64)
    net.output(net.op("CumSum", "x", "axis", reverse=1, out="y"))
    model = net.model()
    check_model(model, random_feeds(model) | {"axis": np.array(0)})


def test_channels_last_reaches_through():
    net = Net()
    net.input("x", 1, 3, 4, 5)
    turned = net.op("Transpose", "x", perm=[0, 2, 3, 1])
    net.output(net.op("Transpose", net.op("CumSum", turned, net.const(3, np.int64)), perm=[0, 3, 1, 2], out="y"))
    model = net.model()
    assert operators(optimized(model)) == ["cumsum"]
    check_model(model, random_feeds(model))


@pytest.mark.parametrize(
    ("op_type", "value", "attributes"),
    [
        ("TopK", [4], {}),
        ("TopK", [-1], {}),
        ("TopK", [1], {"axis": 2}),
        ("CumSum", 2, {}),
        ("CumSum", -3, {}),
        ("CumSum", [], {}),
    ],
)
def test_what_cannot_be_right_is_refused(op_type: str, value: object, attributes: dict[str, int]):
    net = Net()
    net.input("x", 2, 3)
    outs = ["y", "z"][: 2 if op_type == "TopK" else 1]
    net.ops(op_type, "x", net.const(value, np.int64), outs=outs, **attributes)
    net.output("y", shape=[2, 3])
    with pytest.raises(McugenError) as error:
        optimized(net.plain_model())
    assert error.value.exit_code in (3, 4), error.value
