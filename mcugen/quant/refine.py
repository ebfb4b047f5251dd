# SPDX-License-Identifier: Apache-2.0
"""Codes of all weights by what each layer really reads: float and integer values side by side through the graph."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.interpreter import evaluate_node
from mcugen.hir.types import Array, DType
from mcugen.ops.fixedpoint import dequantize, quantize
from mcugen.quant.float_model import FloatModel
from mcugen.quant.moments import Moments
from mcugen.quant.plan import Codes, Plan
from mcugen.quant.profile import Profile
from mcugen.quant.rounding import damped, round_weights
from mcugen.quant.scheme import Scheme, activation_params, weight_scales
from mcugen.quant.weights import along, layer_bias, layer_weights, plain_codes

X = {k: v for k, v in (p.split("=") for p in os.environ.get("X", "").split(",") if p)}


def refine(
    model: FloatModel,
    plan: Plan,
    samples: Sequence[Mapping[str, Array]],
    profile: Profile,
    progress: Callable[[int, int], None],
) -> Plan:
    """The plan with codes for every integer layer."""
    plan = replace(plan, layers={})
    walk = _Walk(model.graph, plan, samples)
    for done, node in enumerate(model.graph.nodes, 1):
        walk.step(node)
        progress(done, len(model.graph.nodes))
    return plan


class _Walk:
    def __init__(self, graph: Graph, plan: Plan, samples: Sequence[Mapping[str, Array]]) -> None:
        self.plan = plan
        self.count = len(samples)
        self.real = {v: [s[v.name].reshape(v.type.shape) for s in samples] for v in graph.inputs}
        self.seen = dict(self.real)
        self.readers = Counter(v for n in graph.nodes for v in n.inputs if v is not None)

    def step(self, node: Node) -> None:
        precision = self.plan.precision.get(node.outputs[0].name, DType.FLOAT32)
        layer = precision is not DType.FLOAT32 and node.op.weight_axes
        consts = {i: v.data for i, v in enumerate(node.inputs) if v is not None and v.data is not None}
        quantized_consts = dict(consts)
        inputs = [i for i, v in enumerate(node.inputs) if v is not None]
        if layer:
            codes = self.codes(node, precision)
            self.plan.layers[node.output.name] = codes
            ((at, axis),) = node.op.weight_axes.items()
            quantized_consts[at] = (codes.weights * along(codes.scales, axis, codes.weights.ndim)).astype(np.float32)
            if codes.bias is not None:
                quantized_consts[node.op.bias_input] = codes.bias
                if node.op.bias_input not in inputs:
                    inputs.append(node.op.bias_input)
        reals, seens = [], []
        for k in range(self.count):
            real = [consts[i] if i in consts else self.real[node.inputs[i]][k] for i in range(len(node.inputs)) if node.inputs[i] is not None]
            seen = [quantized_consts[i] if i in quantized_consts else self.view(node.inputs[i], precision, k) for i in inputs]
            reals.append(evaluate_node(node, real))
            seens.append(evaluate_node(node, seen))
        for j, v in enumerate(node.outputs):
            self.real[v] = [r[j] for r in reals]
            self.seen[v] = [s[j] for s in seens]
            st = self.plan.activations.get(v.name)
            if st is not None and precision is not DType.FLOAT32:
                self.seen[v] = [dequantize(quantize(a, st.quant, st.dtype), st.quant) for a in self.seen[v]]
        for v in node.inputs:
            if v is not None and not v.is_constant:
                self.readers[v] -= 1
                if not self.readers[v]:
                    del self.real[v], self.seen[v]

    def view(self, value: Value, precision: DType, k: int) -> Array:
        a = self.seen[value][k]
        st = self.plan.activations.get(value.name)
        if st is None or precision is DType.FLOAT32 or value.type.dtype is not DType.FLOAT32:
            return a
        q = st.quant if precision is st.dtype else activation_params(st.low, st.high, precision, self.plan.scheme)
        return dequantize(quantize(a, q, precision), q)

    def codes(self, node: Node, precision: DType) -> Codes:
        scheme = self.plan.scheme
        weights, axis = layer_weights(node)
        x = node.input(0)
        sample = node.op.unfolded(node.sig, self.real[x][0])
        if sample is None or not (scheme.correct_bias or scheme.optimize_rounding):
            return plain_codes(node, scheme)
        groups, _, depth = sample.shape
        m = Moments(groups, depth)
        for k in range(self.count):
            m.add(node.op.unfolded(node.sig, self.real[x][k]), node.op.unfolded(node.sig, self.view(x, precision, k)))
        target = w = weights.reshape(groups, -1, depth).astype(np.float64)
        if not scheme.optimize_rounding:
            codes = plain_codes(node, scheme)
        else:
            gram, error = m.square(scheme.correct_bias), m.error(scheme.correct_bias)
            alpha = float(X.get("alpha", 0))
            eye = np.eye(depth)
            if X.get("auto"):
                alpha = depth / (depth + float(X["auto"]) * self.count * (m.count / self.count) ** float(X.get("pw", 0.5)))
            gram = gram * (1 - alpha) + alpha * gram * eye
            gram = damped(gram, float(X.get("damp", 1e-6)))
            if "ridge" in X:
                target = w + w @ error @ np.linalg.inv(damped(m.square(scheme.correct_bias)*(1-alpha) + alpha*m.square(scheme.correct_bias)*eye, float(X["ridge"])))
            scales = weight_scales(target.reshape(weights.shape), axis, scheme)
            per = np.broadcast_to(scales, len(weights)).reshape(groups, -1)
            q = round_weights(target, per, gram) if not X.get("nearest") else np.clip(np.rint(target / per[..., None]), -127, 127).astype(np.int8)
            codes = Codes(q.reshape(weights.shape), scales, axis, layer_bias(node))
        if scheme.correct_bias:
            per = np.broadcast_to(codes.scales, len(weights)).reshape(groups, -1, 1)
            q = codes.weights.reshape(groups, -1, depth) * per
            shift = (w @ m.real[..., None] - q @ m.seen[..., None]).reshape(-1)
            bias = layer_bias(node)
            bias = shift if bias is None else bias.reshape(-1) + shift
            codes = replace(codes, bias=bias.astype(np.float32))
        return codes
