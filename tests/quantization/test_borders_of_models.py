# SPDX-License-Identifier: Apache-2.0
"""What callers pass and get: reals, codes, and codes of states; and how a quantized model is described."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from float_models import normal_samples, quantized, random_weights
from onnx_models import Net

from mcugen.core.options import CompileOptions
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import DType, QuantParams
from mcugen.quantization.float_model import build_float_model
from mcugen.quantization.plan import Plan, QuantizedWeights, Stored
from mcugen.quantization.qdq import write_qdq
from mcugen.quantization.quantize import create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme
from mcugen.quantization.weights import layer_weights


def types_of(model: onnx.ModelProto) -> dict[str, str]:
    values = (*model.graph.input, *model.graph.output)
    return {v.name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)).name for v in values}


def two_layers() -> onnx.ModelProto:
    net = Net(17)
    a = net.op("MatMul", net.input("x", 1, 6), net.const(random_weights(1, 6, 5)), out="a")
    net.output(a)
    net.output(net.op("MatMul", a, net.const(random_weights(2, 5, 4)), out="b"))
    return net.model()


@pytest.mark.parametrize(
    ("integer_io", "wanted", "types"),
    [
        (False, {}, ["float32", "float32", "float32"]),
        (True, {}, ["int8", "int8", "int8"]),
        (True, {"a": DType.FLOAT32}, ["float32", "int8", "int8"]),  # as its reader gets it
        (True, {"b": DType.FLOAT32}, ["int8", "int8", "float32"]),
        (False, {"a": DType.FLOAT32}, ["float32", "float32", "float32"]),
    ],
)
def test_results_of_integer_layers_are_codes_if_asked_for(
    integer_io: bool, wanted: dict[str, DType], types: list[str]
) -> None:
    found = types_of(quantized(two_layers(), Scheme(integer_io=integer_io), wanted).proto)
    assert [found[name] for name in ("x", "a", "b")] == types


@pytest.mark.parametrize("integer_io", [False, True])
@pytest.mark.parametrize("kept_in", ["float32", "int8"])
def test_states_are_always_codes(integer_io: bool, kept_in: str) -> None:
    """Even of a layer that computes in float32."""
    net = Net(17)
    x, h = net.input("x", 1, 6), net.input("h", 1, 5)
    new = net.op("MatMul", x, net.const(random_weights(1, 6, 5)), out="new")
    net.output(net.op("Tanh", net.op("Add", new, h, out="sum"), out="hn"))
    net.output(net.op("MatMul", "hn", net.const(random_weights(2, 5, 3)), out="y"))
    model, scheme = net.model(), Scheme(integer_io=integer_io)
    source = load(model)
    fused = import_float_model(source, CompileOptions(states={"hn": "h"}), scheme)
    samples = [{"x": s["x"]} for s in normal_samples(model, 12)]
    made = create_quantizer(source, fused, scheme, samples).quantize(
        {"hn": DType.FLOAT32} if kept_in == "float32" else {}
    )
    found = types_of(made.proto)
    assert found["h"] == found["hn"] == "int8"
    assert found["x"] == found["y"] == ("int8" if integer_io else "float32")


@pytest.mark.parametrize(
    ("bias", "times"),
    [(1.5, 1), (2 - 2.0**-23, 1), (2.0, 2), (-2.0, 2), (4 - 2.0**-22, 2), (4.0, 4), (-1000.0, 512)],
)
def test_biases_fit_32_bits(bias: float, times: int) -> None:
    """In units of 2^-30, or of a power of two times that, so that no code reaches 2^31."""
    net = Net(17)
    net.output(net.op("Gemm", net.input("x", 1, 3), net.const(random_weights(1, 3, 2)), net.const([0, 1]), out="y"))
    model = build_float_model(load(net.model()).proto, "net")
    (node,) = model.graph.nodes
    weights, axis = layer_weights(node)
    values = np.asarray([bias, -0.25], np.float32)
    codes = QuantizedWeights(np.ones(weights.shape, np.int8), np.full(2, 2.0**-10), axis, values)
    stored = Stored(DType.INT8, QuantParams((2.0**-20,), 0))
    plan = Plan(activations={"x": stored}, layers={"y": codes}, precision={"y": DType.INT8})
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in write_qdq(model, plan).graph.initializer}
    (found,) = (a for name, a in tensors.items() if a.dtype == np.int32 and a.any())
    (unit,) = (a for name, a in tensors.items() if "bias" in name and a.dtype == np.float32)
    assert unit.tolist() == [times * 2.0**-30] * 2
    assert found.tolist() == [round(float(v) / (times * 2.0**-30)) for v in values]


NONE_BELOW, FROM_ZERO = QuantParams((0.5,), -128), QuantParams((0.5,), 0)


@pytest.mark.parametrize(
    ("function", "quant", "low", "least"),
    [
        ("Sqrt", FROM_ZERO, -64.0, 0.0),
        ("Sqrt", FROM_ZERO, 0.0, 0.0),
        ("Sqrt", NONE_BELOW, 0.0, None),
        ("Log", FROM_ZERO, -64.0, 0.25),
        ("Log", NONE_BELOW, 0.0, 0.25),
        ("Reciprocal", FROM_ZERO, -64.0, None),
        ("Reciprocal", FROM_ZERO, 0.0, 0.25),
        ("Reciprocal", NONE_BELOW, 0.0, 0.25),
        ("Exp", FROM_ZERO, -64.0, None),
    ],
)
def test_arguments_stay_in_the_domain(function: str, quant: QuantParams, low: float, least: float | None) -> None:
    """At least 0, or half a step; what is negative itself may be anything but 0."""
    net = Net(17)
    net.output(net.op(function, net.input("x", 1, 3), out="y"))
    model = build_float_model(load(net.model()).proto, "net")
    activations = {"x": Stored(DType.INT8, quant, "", low, 63.5), "y": Stored(DType.INT8, QuantParams((0.1,), 0))}
    proto = write_qdq(model, Plan(activations=activations, precision={"y": DType.INT8}))
    bounds = [t for t in proto.graph.initializer if t.name.endswith("_least")]
    assert [float(onnx.numpy_helper.to_array(t)) for t in bounds] == ([] if least is None else [least])
    assert [n.op_type for n in proto.graph.node].count("Max") == len(bounds)


@pytest.mark.parametrize(
    ("few", "two", "told"),
    [
        ((), (), []),
        (("a",), (), ["1 layer with weights of 4 bits"]),
        (("a", "b"), (), ["2 layers with weights of 4 bits"]),
        ((), ("a",), ["1 layer with weights of 2 bits"]),
        (("a",), ("a", "b"), ["1 layer with weights of 4 bits", "2 layers with weights of 2 bits"]),
    ],
)
def test_a_description_counts_layers_of_few_bits(few: tuple[str, ...], two: tuple[str, ...], told: list[str]) -> None:
    made = MADE
    found = replace(made, plan=replace(made.plan, few_bits=frozenset(few), two_bits=frozenset(two))).describe()
    assert all(each in found for each in told) and found.count("with weights of") == len(told)


MADE = quantized(two_layers())
