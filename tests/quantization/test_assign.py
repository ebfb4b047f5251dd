# SPDX-License-Identifier: Apache-2.0
"""Which nodes become integers, and which tensors share a scale."""

from __future__ import annotations

import numpy as np
import onnx
from float_models import conv_net, random_weights
from onnx_models import Net

from mcugen.frontend.onnx.load import load
from mcugen.hir.types import DType
from mcugen.quantization.assign import Assignment, assign_precisions
from mcugen.quantization.float_model import build_float_model
from mcugen.quantization.scheme import Scheme


def placed(
    model: onnx.ModelProto, wanted: dict[str, DType] | None = None, spans: dict[str, float] | None = None
) -> Assignment:
    return assign_precisions(build_float_model(load(model).proto, "net").graph, Scheme(), wanted, spans)


def joined(assignment: Assignment, *names: str) -> bool:
    """Whether the tensors share a scale."""
    return any(set(names) <= set(group) for group in assignment.groups)


def test_every_node_of_a_convolutional_network_is_an_integer_node() -> None:
    assignment = placed(conv_net())
    assert set(assignment.precision.values()) == {DType.INT8}
    assert not assignment.reasons
    assert set(assignment.dtypes) >= {"x", "relu6", "relu", "pointwise", "sum", "pool", "flat", "logits", "scores"}


def test_a_layer_stays_float_if_wanted() -> None:
    assignment = placed(conv_net(), {"pointwise": DType.FLOAT32})
    assert assignment.precision["pointwise"] is DType.FLOAT32
    assert assignment.reasons == {"pointwise": "as requested"}
    assert assignment.dtypes["pointwise"] is DType.INT8  # the sum reads it in integers
    assert assignment.precision["sum"] is DType.INT8


def test_data_movement_shares_the_scale() -> None:
    net = Net()
    x = net.input("x", 1, 4, 8, 8)
    a = net.op("Conv", x, net.const(random_weights(1, 4, 4, 1, 1)), out="a")
    b = net.op("Conv", x, net.const(random_weights(2, 4, 4, 1, 1)), out="b")
    cat = net.op("Concat", net.op("MaxPool", a, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1], out="max"), b,
                 axis=1, out="cat")  # fmt: skip
    turned = net.op("Transpose", cat, perm=[0, 1, 3, 2], out="turned")
    net.op("Conv", turned, net.const(random_weights(3, 2, 8, 1, 1)), out="y")
    net.output("y")
    assignment = placed(net.model())
    assert joined(assignment, "a", "max", "b", "cat", "turned")
    assert not joined(assignment, "x", "a") and not joined(assignment, "cat", "y")


def upsampled() -> onnx.ModelProto:
    """A layer's result, enlarged by linear interpolation, and a layer that reads it."""
    net = Net(opset=17)
    x = net.input("x", 1, 4, 8, 8)
    a = net.op("Conv", x, net.const(random_weights(1, 4, 4, 1, 1)), out="a")
    large = net.op("Resize", a, "", net.const([1, 1, 2, 2]), mode="linear", out="large")
    net.op("Conv", large, net.const(random_weights(2, 2, 4, 1, 1)), out="y")
    net.output("y")
    return net.model()


def test_interpolation_shares_the_scale_of_ranges_much_alike() -> None:
    assert joined(placed(upsampled(), spans={"a": 4.0, "large": 3.5}), "a", "large")
    assert not joined(placed(upsampled(), spans={"a": 9.0, "large": 3.5}), "a", "large")


def test_interpolation_shares_no_scale_with_another_type() -> None:
    assignment = placed(upsampled(), {"a": DType.INT16}, {"a": 4.0, "large": 4.0})
    assert not joined(assignment, "a", "large")
    assert (assignment.dtypes["a"], assignment.dtypes["large"]) == (DType.INT16, DType.INT8)


def concatenation(*, computed: bool) -> onnx.ModelProto:
    """Scores and coordinates side by side; a layer reads them, or the caller."""
    net = Net()
    x = net.input("x", 1, 8)
    score = net.op("Sigmoid", net.op("MatMul", x, net.const(random_weights(1, 8, 4)), out="a"), out="score")
    place_ = net.op("MatMul", x, net.const(100 * random_weights(2, 8, 4)), out="place")
    cat = net.op("Concat", score, place_, axis=1, out="cat")
    if computed:
        cat = net.op("MatMul", cat, net.const(random_weights(3, 8, 3)), out="y")
    net.output(cat)
    return net.model()


def test_numbers_of_different_size_keep_their_scales() -> None:
    spans = {"score": 1.0, "place": 600.0, "cat": 600.0}
    assignment = placed(concatenation(computed=False), spans=spans)
    assert assignment.precision["cat"] is DType.FLOAT32
    assert "differ too much" in assignment.reasons["cat"]
    assert assignment.precision["score"] is DType.INT8
    assert not joined(assignment, "score", "place")


def test_a_layer_that_reads_them_gets_one_scale_though() -> None:
    assignment = placed(concatenation(computed=True), spans={"score": 1.0, "place": 600.0, "cat": 600.0})
    assert assignment.precision["cat"] is DType.INT8
    assert joined(assignment, "place", "cat") and not joined(assignment, "score", "cat")
    alike = placed(concatenation(computed=True), spans={"score": 1.0, "place": 2.0, "cat": 2.0})
    assert joined(alike, "place", "cat", "score")


def test_an_island_between_floats_stays_float() -> None:
    """Determinants have no integer form; a ReLU before one would be quantized for nothing."""
    net = Net()
    x = net.input("x", 1, 4, 4)
    y = net.op("Det", net.op("Relu", x, out="relu"), out="det")
    net.output(y)
    assignment = placed(net.model())
    assert set(assignment.precision.values()) == {DType.FLOAT32} and not assignment.groups
    assert assignment.reasons == {"det": "no integer form", "relu": "between float layers"}


def test_precisions_meet_at_the_wider_tensor() -> None:
    assignment = placed(conv_net(), {"pointwise": DType.INT16})
    if assignment.precision["pointwise"] is DType.INT16:
        assert assignment.dtypes["relu"] is DType.INT16 and assignment.dtypes["pointwise"] is DType.INT16
        assert assignment.precision["relu"] is DType.INT8 and assignment.dtypes["relu6"] is DType.INT8
    else:
        raise AssertionError("a convolution must have a 16-bit form")


def test_integers_of_the_model_are_left_alone() -> None:
    net = Net()
    x = net.input("x", 1, 8)
    at = net.input("at", 1, dtype=np.int64)
    y = net.op("MatMul", x, net.const(random_weights(1, 8, 8)), out="y")
    net.op("Gather", y, at, axis=1, out="z")
    net.output("z")
    assignment = placed(net.model())
    assert "at" not in assignment.dtypes and assignment.precision["z"] is DType.INT8


def test_what_moves_data_is_float_if_wanted() -> None:
    spans = {"score": 1.0, "place": 2.0, "cat": 2.0}
    assignment = placed(concatenation(computed=True), {"cat": DType.FLOAT32}, spans)
    assert assignment.precision["cat"] is DType.FLOAT32 and assignment.reasons == {"cat": "as requested"}
    assert assignment.precision["y"] is DType.INT8 and not joined(assignment, "place", "score")
