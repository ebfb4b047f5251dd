# SPDX-License-Identifier: Apache-2.0
"""The quantized model as ONNX: what ONNX Runtime computes is what the generated code computes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import conv_net, normal_samples, quantized, random_weights, sqnr
from onnx import numpy_helper
from onnx_models import Net, onnxruntime_outputs

from mcugen.core.errors import UsageError
from mcugen.core.options import RANGE_METHODS
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import DType
from mcugen.quantization.scheme import Scheme


def stored(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def test_the_model_is_standard_onnx() -> None:
    proto = quantized(conv_net()).proto
    onnx.checker.check_model(proto, full_check=True)
    assert {e.domain for e in proto.opset_import} == {""}
    assert {n.op_type for n in proto.graph.node} == {
        *("QuantizeLinear", "DequantizeLinear", "Conv", "Clip", "Relu", "Add"),
        *("GlobalAveragePool", "Reshape", "Gemm", "Softmax"),
    }


def test_weights_are_symmetric_codes_with_a_scale_a_channel() -> None:
    tensors = stored(quantized(conv_net()).proto)
    weights = tensors["pointwise.weight_quantized"]
    assert weights.dtype == np.int8 and np.abs(weights.astype(int)).max() == 127
    assert tensors["pointwise.weight_scale"].shape == (8,)
    assert not tensors["pointwise.weight_zero_point"].any()
    assert tensors["pointwise.bias_quantized"].dtype == np.int32
    unit = tensors["relu_scale"] * tensors["pointwise.weight_scale"]
    np.testing.assert_allclose(tensors["pointwise.bias_scale"], unit, rtol=1e-6)


@pytest.mark.parametrize("integer_io", [False, True])
def test_generated_code_and_onnxruntime_agree(integer_io: bool) -> None:
    model = conv_net()
    result = quantized(model, Scheme(integer_io=integer_io))
    compiled = compile_model(result)
    feeds = normal_samples(model, 10, seed=9)
    if integer_io:
        quant = compiled.program.inputs[0].quant
        assert quant is not None
        feeds = [
            {"x": np.clip(np.rint(f["x"] / quant.scale[0]) + quant.zero_point, -128, 127).astype(np.int8)}
            for f in feeds
        ]
    batch = {"x": np.stack([f["x"] for f in feeds])}
    found = compiled.run(batch, sanitize=True)["scores"]
    wanted = np.stack([onnxruntime_outputs(result.proto, f)["scores"] for f in feeds])
    step = 1 if integer_io else 1 / 256
    assert found.dtype == (np.int8 if integer_io else np.float32)
    assert np.abs(found.astype(np.float64) - wanted).max() <= 1.01 * step
    assert (found != wanted).mean() <= 0.02


def test_everything_between_the_borders_is_integer() -> None:
    program = compile_model(quantized(conv_net())).program
    inner = [i for i in program.instrs if i.op not in ("quantize", "dequantize")]
    assert {o.buffer.dtype.value for i in inner for o in i.operands if o.role in ("x", "y", "a", "b")} == {"int8"}
    assert [i.op for i in program.instrs].count("quantize") == 1
    assert [i.op for i in program.instrs].count("dequantize") == 1


@pytest.mark.parametrize("method", RANGE_METHODS)
def test_a_method_can_be_forced(method: str) -> None:
    plan = quantized(conv_net(), Scheme(method=method)).plan
    assert {s.method for name, s in plan.activations.items() if name != "scores"} == {method}
    assert plan.activations["scores"].method == "minmax"  # its greatest values tell the classes apart


def test_symmetric_and_power_of_two() -> None:
    plan = quantized(conv_net(), Scheme(symmetric=True, power_of_two=True)).plan
    assert {s.quant.zero_point for s in plan.activations.values()} == {0}
    scales = [s.quant.scale[0] for s in plan.activations.values()]
    scales += [float(scale) for codes in plan.layers.values() for scale in codes.scales]
    assert all(np.log2(s) == np.rint(np.log2(s)) for s in scales)


def test_one_scale_a_layer() -> None:
    result = quantized(conv_net(), Scheme(per_channel=False))
    assert stored(result.proto)["pointwise.weight_scale"].shape == ()
    assert compile_model(result).report.precision == "int8"


def test_a_float_layer_in_between() -> None:
    model = conv_net()
    result = quantized(model, wanted={"pointwise": DType.FLOAT32})
    ops = {n.output.name: n.op.name for n in compile_model(result).graph.nodes if n.output.type.dtype is DType.FLOAT32}
    assert "conv" in ops.values()
    feeds = normal_samples(model, 10, seed=9)
    exact = [onnxruntime_outputs(model, f)["scores"] for f in feeds]
    noisy = [onnxruntime_outputs(result.proto, f)["scores"] for f in feeds]
    assert sqnr(exact, noisy) > 20


def test_sixteen_bits_are_better_than_eight() -> None:
    model = conv_net()
    feeds = normal_samples(model, 40, seed=9)
    exact = [onnxruntime_outputs(model, f)["scores"] for f in feeds]
    narrow, wide = (quantized(model, Scheme(dtype)) for dtype in (DType.INT8, DType.INT16))
    noisy = [sqnr(exact, [onnxruntime_outputs(q.proto, f)["scores"] for f in feeds]) for q in (narrow, wide)]
    assert noisy[1] > noisy[0] + 3  # the weights are int8 in both
    assert compile_model(wide).report.precision == "int16x8"


def test_a_wide_layer_among_narrow_ones() -> None:
    """Its input is stored in 16 bits; another reader of that tensor gets 8."""
    net = Net(21)
    x = net.input("x", 1, 8)
    y = net.op("MatMul", x, net.const(random_weights(1, 8, 8)), out="y")
    a = net.op("MatMul", y, net.const(random_weights(2, 8, 8)), out="a")
    b = net.op("MatMul", y, net.const(random_weights(3, 8, 8)), out="b")
    net.op("Add", a, b, out="z")
    net.output("z")
    model = net.model()
    result = quantized(model, wanted={"a": DType.INT16})
    types = {name: s.dtype for name, s in result.plan.activations.items()}
    assert types["y"] is types["a"] is DType.INT16 and types["b"] is types["x"] is DType.INT8
    compiled = compile_model(result)
    feeds = normal_samples(model, 10, seed=9)
    found = compiled.run({"x": np.stack([f["x"] for f in feeds])}, sanitize=True)["z"]
    wanted = np.stack([onnxruntime_outputs(result.proto, f)["z"] for f in feeds])
    step = result.plan.activations["z"].quant.scale[0]
    assert np.abs(found - wanted).max() <= 1.01 * step
    assert not {i.op for i in compiled.program.instrs if i.kernel.endswith("_f32")}


def test_layers_before_a_concatenation_with_a_normalization_are_integer_layers() -> None:
    net = Net(17)
    x = net.input("x", 1, 3, 8, 8)
    parts = [net.op("Conv", x, net.const(random_weights(k, 4, 3, k, k)), pads=[k // 2] * 4) for k in (1, 3)]
    numbers = [net.const(v) for v in (np.full(8, 1.5), np.linspace(-1, 1, 8), np.zeros(8), np.ones(8))]
    normal = net.op("BatchNormalization", net.op("Concat", *parts, axis=1), *numbers)
    net.output(net.op("Conv", net.op("Relu", normal), net.const(random_weights(9, 2, 8, 1, 1)), out="y"))
    compiled = compile_model(quantized(net.model()))
    assert not {i.op for i in compiled.program.instrs if i.kernel.endswith("_f32")}
    assert sum(i.op == "conv" for i in compiled.program.instrs) == 3


def test_an_unknown_layer_is_named() -> None:
    with pytest.raises(UsageError, match="'nowhere'"):
        quantized(conv_net(), wanted={"nowhere": DType.FLOAT32})


def test_quantizing_twice_gives_the_same_bytes() -> None:
    first, second = (quantized(conv_net()).proto.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
