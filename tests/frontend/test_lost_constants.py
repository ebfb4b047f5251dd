# SPDX-License-Identifier: Apache-2.0
"""Keras' `Normalization` layer without its mean or variance, as tf2onnx may leave it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mcugen.api.compilation import Compilation
from mcugen.core.errors import ModelError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.driver.tasks import Quantizing
from mcugen.frontend.onnx.lost_constants import ConstantLoss, lost_constants

FEATURES = 6
MEAN, VARIANCE = "net/normalization/sub/y:0", "net/normalization/Sqrt/x:0"

LOSSES = ["nothing", "input", "missing", "NaN", "zero"]


def normalization(loss: str, form: str = "Div", prefix: str = "net/normalization/") -> onnx.ModelProto:
    """(x − mean) ÷ max(√variance, ε), or times its reciprocal, then a layer; one `loss` of both constants."""
    random = np.random.default_rng(0)
    mean_name, variance_name = f"{prefix}sub/y:0", f"{prefix}Sqrt/x:0"
    mean = random.normal(size=(1, FEATURES)).astype(np.float32) * (np.nan if loss == "NaN" else 1)
    variance = random.uniform(1, 4, (1, FEATURES)).astype(np.float32) * (0 if loss == "zero" else 1)
    given = {"eps": np.float32(1e-7), "weights": random.normal(size=(FEATURES, 3)).astype(np.float32)}
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, FEATURES])]
    if loss == "input":
        names = (mean_name, variance_name)
        inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, FEATURES]) for name in names]
    elif loss != "missing":
        given |= {mean_name: mean.astype(np.float32), variance_name: variance}
    reciprocal = [helper.make_node("Reciprocal", ["deviation"], ["factor"])] if form == "Mul" else []
    nodes = [
        helper.make_node("Sub", ["x", mean_name], ["centered"], name=f"{prefix}sub"),
        helper.make_node("Sqrt", [variance_name], ["root"], name=f"{prefix}Sqrt"),
        helper.make_node("Max", ["root", "eps"], ["deviation"], name=f"{prefix}Maximum"),
        *reciprocal,
        helper.make_node(
            form, ["centered", "factor" if reciprocal else "deviation"], ["normal"], name=f"{prefix}{form}"
        ),
        helper.make_node("MatMul", ["normal", "weights"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in given.items()]
    output = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])]
    graph = helper.make_graph(nodes, "net", inputs, output, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("form", ["Div", "Mul"])
@pytest.mark.parametrize("prefix", ["net/normalization/", "net/scaler/"])
@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_is_found(loss: str, prefix: str, form: str) -> None:
    found = {each.name: each.loss for each in lost_constants(normalization(loss, form, prefix).graph)}
    mean, variance = f"{prefix}sub/y:0", f"{prefix}Sqrt/x:0"
    wanted = {
        "nothing": {},
        "input": {mean: ConstantLoss.INPUT, variance: ConstantLoss.INPUT},
        "missing": {mean: ConstantLoss.MISSING, variance: ConstantLoss.MISSING},
        "NaN": {mean: ConstantLoss.NOT_FINITE},
        "zero": {variance: ConstantLoss.ZERO},
    }[loss]
    assert found == wanted


def test_a_network_of_several_inputs_may_divide_their_difference() -> None:
    nodes = [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("Div", ["d", "c"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "abcy"]
    assert lost_constants(helper.make_graph(nodes, "net", ends[:3], ends[3:])) == []


@pytest.mark.parametrize("loss", ["input", "NaN", "zero"])
def test_what_is_compiled_is_warned_of(loss: str) -> None:
    (warning,) = compile_model(normalization(loss)).report.warnings
    assert "Keras' Normalization" in warning and "keras.layers.Rescaling(1 / std, -mean / std)" in warning
    assert ("--bind" in warning) == (loss == "input")


def test_constants_that_are_there_or_given_are_not() -> None:
    assert compile_model(normalization("nothing")).report.warnings == ()
    values = {MEAN: np.zeros((1, FEATURES), np.float32), VARIANCE: np.ones((1, FEATURES), np.float32)}
    assert compile_model(normalization("input"), options=CompileOptions(bound=values)).report.warnings == ()


@pytest.mark.parametrize("loss", ["input", "missing", "NaN"])
def test_what_cannot_be_quantized_is_refused_with_the_cause(loss: str) -> None:
    samples = {"x": np.random.default_rng(1).normal(size=(20, FEATURES)).astype(np.float32)}
    with pytest.raises(ModelError, match="Keras' Normalization") as refused:
        _ = Compilation(normalization(loss), quantizing=Quantizing(calibration=samples)).quantized
    assert "Rescaling" in refused.value.remedy
