# SPDX-License-Identifier: Apache-2.0
"""Channels of normalizations are evened out where that helps, and the model computes what it computed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from float_models import normal_samples, quantized, random_weights, sqnr
from onnx_models import Net, onnxruntime_outputs

from mcugen.hir.types import Array
from mcugen.quantization.normalized import equalize_normalizations
from mcugen.quantization.scheme import Scheme

SIZE = 16
LARGE = np.where(np.arange(SIZE) % 7 == 3, 30.0, 1.0).astype(np.float32)


def network(scales: Array = LARGE, kind: str = "LayerNormalization", also: str = "") -> onnx.ModelProto:
    """Two fully connected layers that read the normalized x; small weights where scales are large, as if trained.

    `also` reads it, too.
    """
    net = Net(23)
    x = net.input("x", 6, SIZE)
    affine = [net.const(scales), net.const(random_weights(1, SIZE) * scales)]
    normal = net.op(kind, x, *affine[: 2 if kind == "LayerNormalization" else 1], axis=-1, out="normal")
    parts = [net.op("MatMul", normal, net.const((random_weights(2, 8, SIZE) / scales).T))]
    parts.append(net.op("Gemm", normal, net.const(random_weights(3, 8, SIZE) / scales), transB=1))
    if also:
        parts.append(net.op(also, normal))
    net.op("Concat", *parts, axis=-1, out="y")
    net.output("y")
    return net.model()


@pytest.mark.parametrize("kind", ["LayerNormalization", "RMSNormalization"])
def test_the_result_is_the_same(kind: str):
    model = network(kind=kind)
    made = equalize_normalizations(model)
    assert made is not model
    sample = normal_samples(model, 1)[0]
    wanted, found = (onnxruntime_outputs(each, sample)["y"] for each in (model, made))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_channels_far_larger_than_others_cost_the_others_nothing():
    model, samples = network(), normal_samples(network(), 20, seed=1)
    wanted = [onnxruntime_outputs(model, s)["y"] for s in samples]
    protos = [quantized(model, scheme).proto for scheme in (Scheme(), Scheme(equalize=False))]
    evened, plain = (sqnr(wanted, [onnxruntime_outputs(proto, s)["y"] for s in samples]) for proto in protos)
    assert evened > plain + 10


@pytest.mark.parametrize(
    "model",
    [network(np.linspace(0.5, 2, SIZE, dtype=np.float32)), network(also="Relu")],
    ids=["ordinary scales", "another reader"],
)
def test_what_would_not_gain_or_cannot_be_divided_stays(model: onnx.ModelProto):
    assert equalize_normalizations(model) is model


def test_what_a_branch_reads_stays():
    model, body = network(), Net(23, prefix="branch")
    body.output(body.op("Relu", "normal", out="inner"), shape=[6, SIZE])
    graph = body.graph("body")
    node = onnx.helper.make_node("If", ["known"], ["z"], then_branch=graph, else_branch=graph)
    model.graph.node.append(node)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(True), "known"))
    assert equalize_normalizations(model) is model
