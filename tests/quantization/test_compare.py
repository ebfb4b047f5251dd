# SPDX-License-Identifier: Apache-2.0
"""Float and integer side by side: held to ONNX Runtime's run of the quantized model, and to damage done on purpose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from float_models import conv_net, normal_samples, quantized, quantizer_of

from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.metrics import sqnr_db
from mcugen.frontend.onnx.load import prepare_model
from mcugen.hir.types import DType
from mcugen.quantization.compare import (
    all_tensors,
    clipped_share,
    compare_layers,
    integer_graph,
    integer_tensors,
    representable_range,
)
from mcugen.quantization.plan import Stored
from mcugen.quantization.qdq import stored_name, write_qdq
from mcugen.quantization.scheme import Scheme, activation_params

TENSORS = ["x", "relu6", "relu", "pointwise", "sum", "pool", "logits", "scores"]
LAYERS = ["x", "Conv_stem", "Conv_depthwise", "Conv_pointwise", "Add_sum"]
LAYERS += ["GlobalAveragePool_pool", "Gemm_logits", "Softmax_scores"]


def test_every_layer_has_its_figures() -> None:
    found = compare_layers(quantized(conv_net()), normal_samples(conv_net(), 3))
    assert [layer.name for layer in found.layers] == LAYERS
    assert [layer.sources for layer in found.layers if layer.name in ("Add_sum", "Gemm_logits")] == [
        ["Conv_stem", "Conv_pointwise"],
        ["GlobalAveragePool_pool"],
    ]
    assert all(layer.precision == "int8" and not layer.reason for layer in found.layers)
    assert all(layer.sqnr_db is not None and 15 < layer.sqnr_db < 80 for layer in found.layers)
    weighted = [layer.name for layer in found.layers if layer.weights_sqnr_db is not None]
    assert weighted == ["Conv_stem", "Conv_depthwise", "Conv_pointwise", "Gemm_logits"]


@pytest.mark.parametrize("integer_io", [False, True])
def test_every_tensor_is_found_again_in_the_integer_graph(integer_io: bool) -> None:
    made = quantized(conv_net(), Scheme(integer_io=integer_io))
    (sample,) = normal_samples(conv_net(), 1)
    tensors = integer_tensors(integer_graph(made), sample)
    (wanted,) = run_onnxruntime(all_tensors(made.model), [sample])
    for name in TENSORS:
        real = np.clip({**sample, **wanted}[name], *representable_range(made.plan.activations[name]))
        integer = tensors.get(stored_name(name), tensors.get(name))
        assert integer is not None and integer.shape == real.shape
        assert sqnr_db(integer.reshape(-1), real.reshape(-1)) > 15


def test_damage_is_found_where_it_is() -> None:
    whole = quantized(conv_net())
    codes = whole.plan.layers["pointwise"]
    whole.plan.layers["pointwise"] = replace(codes, weights=codes.weights // 4 * 4 + 24)
    made = replace(whole, proto=prepare_model(write_qdq(whole.model, whole.plan), "model"))
    found = compare_layers(made, normal_samples(conv_net(), 3))
    assert found.first_diverging == found.steepest_fall == "Conv_pointwise"
    before = {layer.name: layer for layer in compare_layers(whole, normal_samples(conv_net(), 3)).layers}
    after = {layer.name: layer for layer in found.layers}
    assert after["Conv_depthwise"] == before["Conv_depthwise"]


def test_float_layers_are_named_with_the_reason() -> None:
    made = quantizer_of(conv_net()).quantize({"logits": DType.FLOAT32})
    found = compare_layers(made, normal_samples(conv_net(), 2))
    assert ("Gemm_logits", "as requested") in [(layer.name, layer.reason) for layer in found.in_float]
    logits = next(layer for layer in found.layers if layer.name == "Gemm_logits")
    assert (logits.precision, logits.low, logits.clipped, logits.weights_sqnr_db) == ("float32", None, None, None)
    assert logits.sqnr_db is not None


def test_clipping_is_counted_beyond_half_a_step() -> None:
    stored = Stored(DType.INT8, activation_params(-1.28, 1.27, DType.INT8, Scheme()))
    assert representable_range(stored) == pytest.approx((-1.28, 1.27))
    real = np.array([-1.29, -1.284, 0.0, 1.274, 1.276])
    assert clipped_share(real, stored) == pytest.approx(0.4)


def test_every_float_tensor_can_be_read() -> None:
    model = quantized(conv_net()).model
    names = {o.name for o in all_tensors(model).graph.output}
    assert {v.name for v in model.tensors} - {"x"} == names
    onnx.checker.check_model(all_tensors(model))
