# SPDX-License-Identifier: Apache-2.0
"""Float models of ../shared, quantized by mcugen: accuracy, and the same integers in ONNX Runtime and in C."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from float_models import sqnr
from shared_models import (
    DATASETS,
    FLOAT,
    MODELS,
    dataset,
    integer_graph,
    layer_results,
    options,
    tensors_of_onnxruntime,
)

from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import compare, run_onnxruntime
from mcugen.evaluation.samples import Samples, graph_endpoints, load_samples
from mcugen.frontend.onnx.load import load
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array, DType
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.quantize import Quantization, create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme

pytestmark = pytest.mark.shared

NORMAL = 40
"""Standard normal samples for models without data."""

TFLITE_INT8 = {"ds_cnn_kws_f32": 0.9075, "resnet8_cifar10_f32": 0.8638}
"""Top-1 of the published int8 models on the evaluation split by TensorFlow Lite, the better of its two kernel sets:
../shared/models/README.md."""


def samples(name: str, model: FloatModel, split: str) -> Samples:
    endpoints = graph_endpoints(model.graph)
    if name.startswith(tuple(DATASETS)):
        return load_samples(dataset(name, split), endpoints, 1 / 255 if "vww" in name else 1.0)
    random = np.random.default_rng(0 if split == "calib" else 1)
    inputs = [{e.name: random.standard_normal(e.shape).astype(np.float32) for e in endpoints} for _ in range(NORMAL)]
    return Samples(inputs, None)


@cache
def quantized(name: str, dtype: DType = DType.INT8, count: int | None = 20) -> Quantization:
    """By the first `count` samples of the calibration split (None: all)."""
    source, scheme = load(MODELS / f"{name}.onnx"), Scheme(dtype)
    model = import_float_model(source, options(name), scheme)
    return create_quantizer(source, model, scheme, samples(name, model, "calib").inputs[:count]).quantize()


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", FLOAT)
def test_each_layer_is_within_one_step_of_onnxruntime_on_the_same_inputs(name: str) -> None:
    result = quantized(name)
    graph = integer_graph(result.proto)
    counts: dict[str, list[int]] = {}
    for tensors in tensors_of_onnxruntime(result.proto, samples(name, result.model, "eval").inputs[:10]):
        for node, (found, wanted) in layer_results(graph, tensors).items():
            difference = np.abs(found.astype(np.int64) - wanted)
            assert difference.max() <= 1, node.place
            total = counts.setdefault(node.place, [0, 0])
            total[0] += int((difference > 0).sum())
            total[1] += difference.size
    assert len(counts) >= len([n for n in result.model.graph.nodes if weight_axes(n.op)])
    shares = {place: wrong / size for place, (wrong, size) in counts.items()}
    assert max(shares.values()) < 0.01, max(shares, key=lambda place: shares[place])


def outputs(result: Quantization, inputs: list[dict[str, Array]]) -> tuple[list[Array], list[Array]]:
    """Of the float model by ONNX Runtime, and of the generated code; all outputs of a sample in one vector."""
    exact = run_onnxruntime(result.source.given, inputs)
    found = compile_model(result).simulate(inputs, measure=False).outputs
    return (
        [np.concatenate([o[n].reshape(-1) for n in sorted(o)]) for o in exact],
        [np.concatenate([o[n].reshape(-1) for n in sorted(o)]) for o in found],
    )


@pytest.mark.spread(12)
@pytest.mark.parametrize("name", [n for n in FLOAT if "_nhwc" not in n and "_legacy" not in n and "_opset8" not in n])
def test_eight_bits_keep_25_db_where_sixteen_keep_45(name: str) -> None:
    narrow, wide = quantized(name, count=100), quantized(name, DType.INT16, count=100)
    inputs = samples(name, narrow.model, "eval").inputs[:60]
    if sqnr(*outputs(wide, inputs)) >= 45:
        assert sqnr(*outputs(narrow, inputs)) > 25


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", TFLITE_INT8)
def test_accuracy_is_within_half_a_point_of_float_and_no_worse_than_tflite(name: str) -> None:
    result = quantized(name, count=None)
    evaluation = samples(name, result.model, "eval")
    compiled = compile_model(result)
    found = compiled.simulate(evaluation.inputs, measure=False).outputs
    exact = run_onnxruntime(result.source.given, evaluation.inputs)
    accuracy = compare(compiled.program.outputs, found, exact, evaluation.labels)
    assert accuracy.target is not None and accuracy.float32 is not None
    assert accuracy.target >= accuracy.float32 - 0.005
    assert accuracy.target >= TFLITE_INT8[name] - 0.00005  # as printed there, with two decimals
