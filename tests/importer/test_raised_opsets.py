# SPDX-License-Identifier: Apache-2.0
"""Models of older opsets that need a newer one, for int16 activations and weights of 4 bits."""

import numpy as np
import onnx
import pytest
from onnx import parser

from mcugen.compiler import compile_model
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.hir.types import DType
from mcugen.importer.load import load
from mcugen.importer.old_opsets import raised
from mcugen.options import CompileOptions
from mcugen.quant.quantize import float_model, quantizer
from mcugen.quant.scheme import Scheme

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
    found = raised(model, 21)
    assert [(e.domain, e.version) for e in found.opset_import] == [("", 21)]
    assert {n.domain for n in found.graph.node} == {""}
    before, after = (run_onnxruntime(each, samples()) for each in (model, found))
    assert all(np.array_equal(a["y"], b["y"]) for a, b in zip(before, after, strict=True))
    assert [e.version for e in model.opset_import] == [12]


@pytest.mark.parametrize("scheme", [Scheme(weights=DType.INT4), Scheme(DType.INT16)], ids=["w4a8", "int16x8"])
def test_their_layers_are_quantized(model: onnx.ModelProto, scheme: Scheme) -> None:
    source = load(model)
    made = quantizer(source, float_model(source, CompileOptions(), scheme), scheme, samples()).quantize()
    compiled = compile_model(made)
    exact, found = run_onnxruntime(model, samples()), run_onnxruntime(made.proto, samples())
    noise = sum(float(np.square(a["y"] - b["y"]).sum()) for a, b in zip(exact, found, strict=True))
    signal = sum(float(np.square(a["y"]).sum()) for a in exact)
    assert noise < signal / 100
    assert np.allclose(compiled.simulate(samples()[:1]).outputs[0]["y"], found[0]["y"], atol=0.1)
