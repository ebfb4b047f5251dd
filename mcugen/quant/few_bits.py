# SPDX-License-Identifier: Apache-2.0
"""Which layers' weights take 4 bits: all but those that add most noise to the outputs for the bytes that they save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from mcugen.evaluation.session import Session
from mcugen.hir.graph import Node
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array, DType
from mcugen.quant.float_model import FloatModel
from mcugen.quant.plan import Codes, Plan
from mcugen.quant.sensitivity import MOST_MACS, judged_tensors, power, spread
from mcugen.quant.weights import real_weights

WIDE_SHARE = 0.2
"""Of all weights: so many may keep 8 bits."""

MOST_SAMPLES = 32
"""By which a layer's noise is told."""


def candidates(model: FloatModel, plan: Plan) -> list[Node]:
    """The layers of 8-bit activations that ONNX Runtime computes with these very weights."""
    stored = {t.name for t in model.proto.graph.initializer}
    layers = [n for n in model.graph.nodes if weight_axes(n.op) and plan.precision_of(n) is DType.INT8]
    return [n for n in layers if all(n.input(index).name in stored for index in weight_axes(n.op))]


def chosen(model: FloatModel, plan: Plan, layers: Sequence[Node], samples: Sequence[Mapping[str, Array]]) -> list[str]:
    """Names of those of the layers that keep weights of 4 bits, of which `plan` has the codes.

    Layers return to 8 bits in the order of the noise that each by itself adds to the outputs, by weight, as long as
    all that have returned are at most WIDE_SHARE of the weights.
    """
    noise = weight_noise(model, {n: plan.layers[n.output.name] for n in layers}, samples)
    size = {n: plan.layers[n.output.name].weights.size for n in layers}
    room = WIDE_SHARE * sum(size.values())
    wide = set[Node]()
    for node in sorted(layers, key=lambda n: noise[n] / size[n], reverse=True):
        if size[node] <= room:
            room -= size[node]
            wide.add(node)
    return [n.output.name for n in layers if n not in wide]


def weight_noise(
    model: FloatModel, codes: Mapping[Node, Codes], samples: Sequence[Mapping[str, Array]]
) -> dict[Node, float]:
    """What each layer's codes, and nothing else, add to the outputs, relative to their signal: the mean of them all."""
    outputs = judged_tensors(model)
    macs = sum(node.op.macs(node.sig) for node in model.graph.nodes) * max(len(codes), 1)
    used = spread(samples, int(np.clip(MOST_MACS // max(macs, 1), 1, MOST_SAMPLES)))
    session = Session(_with_free_weights(model, codes, outputs), literal=False, threads=1)
    exact = [session.run(outputs, sample) for sample in used]
    signal = {name: max(sum(power(found[name]) for found in exact), 1e-300) for name in outputs}
    noise = {}
    for node, each in codes.items():
        given = _given(node, each)
        found = [session.run(outputs, {**sample, **given}) for sample in used]
        pairs = [(n, a[n].astype(np.float64) - b[n]) for a, b in zip(found, exact, strict=True) for n in outputs]
        noise[node] = sum(power(error) / signal[n] for n, error in pairs) / max(len(outputs), 1)
    return noise


def _given(node: Node, codes: Codes) -> dict[str, Array]:
    """A layer's constants as its codes have them."""
    given = {node.input(index).name: real_weights(codes) for index in weight_axes(node.op)}
    return {name: array.astype(np.float32) for name, array in given.items()}


def _with_free_weights(model: FloatModel, layers: Mapping[Node, Codes], outputs: Sequence[str]) -> onnx.ModelProto:
    """The float model, whose outputs these tensors are, and whose layers' weights a caller may give."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    given = {node.input(index).name for node in layers for index in weight_axes(node.op)}
    for tensor in proto.graph.initializer:
        if tensor.name in given:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in outputs)
    return proto
