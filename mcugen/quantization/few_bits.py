# SPDX-License-Identifier: Apache-2.0
"""Which layers' weights take 4 bits: those that together add least noise to the outputs, within a budget of bytes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from mcugen.evaluation.samples import spread
from mcugen.evaluation.session import Session
from mcugen.hir.graph import Node, Value
from mcugen.hir.traits import Cell, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.plan import Plan
from mcugen.quantization.recurrent import rounded_weights
from mcugen.quantization.sensitivity import MOST_MACS, judged_tensors, power
from mcugen.quantization.weights import HALVINGS, in_flash, real_weights, stored_bits

WIDE_SHARE = 0.2
"""Of all weights, those that drop out, too: so many may keep 8 bits."""

STEPS = 1024
"""Sizes that are told apart where it is chosen which weights have 8 bits."""

NEAR = 2.0
"""Times the least noise, as the sum of the layers' own tells it: what they make together may differ as much."""

FINALISTS = 4
"""Ways that get weights of their own, of which that is taken which then leaves least noise: layers behind those of
4 bits make good what these lose, which no layer's own noise tells.
"""

BYTES = {DType.INT16: 2.0, DType.INT8: 1.0, DType.INT4: 0.5, DType.INT2: 0.25}
"""Of a weight, but for its share of a group's scale."""

LEAST_BITS = 2.0
"""That a code may take of a weight on average."""

MOST_SAMPLES = 32
"""By which a layer's noise is told."""


def candidates(model: FloatModel, plan: Plan) -> list[Node]:
    """The layers of 8-bit activations, recurrent ones too, that ONNX Runtime computes with these very weights."""
    stored = {t.name for t in model.proto.graph.initializer}
    layers = [n for n in model.graph.nodes if weight_axes(n.op) and plan.precision_of(n) is DType.INT8]
    return [n for n in [*layers, *cells(model, plan)] if all(v.name in stored for v in weights_of(n))]


def weights_of(node: Node) -> list[Value]:
    """The constants of a layer that may have few bits."""
    if isinstance(node.op, Cell):
        return [node.input(index) for index in node.op.matrices]
    return [node.input(index) for index in weight_axes(node.op)]


def count(node: Node) -> int:
    """Weights of a layer."""
    return sum(v.type.count for v in weights_of(node))


def cells(model: FloatModel, plan: Plan) -> list[Node]:
    """Recurrent layers of 8-bit activations, whose weights have 4 bits where that is asked for."""
    nodes = [n for n in model.graph.nodes if plan.precision_of(n) is DType.INT8]
    return [n for n in nodes if isinstance(n.op, Cell) and n.op.can_expand(n)]


def promising(
    model: FloatModel, plan: Plan, layers: Sequence[Node], samples: Sequence[Mapping[str, Array]]
) -> list[list[str]]:
    """Up to FINALISTS ways to let all but WIDE_SHARE of the layers' weights keep 4 bits, of which `plan` has the codes.

    Names of layers, the most promising first.
    """
    sizes = {n: count(n) for n in layers}
    return ways(weight_noise(model, plan, layers, samples), sizes, WIDE_SHARE * sum(sizes.values()), FINALISTS)


def ways(noise: Mapping[Node, float], sizes: Mapping[Node, int], room: float, most: int) -> list[list[str]]:
    """Names of layers that keep weights of 4 bits, of those whose `noise` is known: up to so many ways, the best first.

    So many weights as there is `room` for return to 8 bits: of those layers that together add most noise to the
    outputs, where each is thought to add what it does by itself. No way promises more than NEAR times the least noise.
    """
    layers, values = list(noise), list(noise.values())
    found = most_valuable(values, [sizes[n] for n in layers], room, most)
    left = [sum(v for i, v in enumerate(values) if i not in wide) for wide in found]
    near = [wide for wide, rest in zip(found, left, strict=True) if rest <= NEAR * left[0]]
    return [[n.outputs[0].name for i, n in enumerate(layers) if i not in wide] for wide in near]


def most_valuable(values: Sequence[float], sizes: Sequence[int], room: float, most: int = 1) -> list[set[int]]:
    """Which of the things are worth most together and have room together, in up to so many ways, the best first.

    The knapsack problem by dynamic programming, exact to a share of 1 / STEPS of the room: of all choices those are
    kept to which fewer than `most` smaller ones are equal or superior.
    """
    step = max(room / STEPS, 1.0)
    front: list[tuple[int, float, int]] = [(0, 0.0, 0)]
    for index, (value, size) in enumerate(zip(values, sizes, strict=True)):
        taken = [(s + math.ceil(size / step), v + value, way | 1 << index) for s, v, way in front]
        fitting = [*front, *(each for each in taken if each[0] * step <= room)]
        front = _superior(sorted(fitting, key=lambda each: (each[0], -each[1])), most)
    best = sorted(front, key=lambda each: -each[1])[:most]
    return [{index for index in range(len(sizes)) if way >> index & 1} for _, _, way in best]


def _superior(choices: Sequence[tuple[int, float, int]], most: int) -> list[tuple[int, float, int]]:
    """Those of the choices, by size, that are worth more than all but fewer than `most` before them."""
    kept, best = [], list[float]()
    for each in choices:
        if len(best) < most or each[1] > best[0]:
            (heapq.heappush if len(best) < most else heapq.heapreplace)(best, each[1])
            kept.append(each)
    return kept


def stored_share(model: FloatModel, plan: Plan) -> float:
    """Bytes of all layers' weights that lie in flash, relative to a byte for each of them."""
    layers = [n for n in model.graph.nodes if weights_of(n)]
    return sum(stored_bytes(n, plan) for n in layers) / max(sum(counted(n, plan) for n in layers), 1)


def stored_bytes(node: Node, plan: Plan) -> float:
    """Of a layer's weights, and of the scales of groups."""
    size, codes = counted(node, plan), plan.layers.get(node.outputs[0].name)
    if plan.precision_of(node) is DType.FLOAT32:
        return 4.0 * size
    if codes is not None and plan.code_bits_of(node) is not None:
        return size * min(1.0, stored_bits(codes) / 8)
    return size * BYTES[plan.weights_of(node)] + (4.0 * codes.scales.size if codes is not None and codes.group else 0)


def counted(node: Node, plan: Plan) -> int:
    """Weights of a layer in flash: without those that drop out, as far as the plan's codes tell."""
    codes = plan.layers.get(node.outputs[0].name)
    return count(node) if codes is None else in_flash(codes).size


def weights_in_flash(model: FloatModel, plan: Plan) -> int:
    """Of all layers."""
    return sum(counted(n, plan) for n in model.graph.nodes)


def room_for_wide(model: FloatModel, plan: Plan, share: float) -> float:
    """How many of the weights that have 4 bits in `plan` may have 8 within a share of a byte for each.

    Negative where 4 bits are too much already.
    """
    return 2 * weights_in_flash(model, plan) * (share - stored_share(model, plan))


def codable(model: FloatModel, plan: Plan) -> list[Node]:
    """The layers of 8-bit weights of which a code may take fewer bits."""
    integer = [n for n in model.graph.nodes if weight_axes(n.op) and plan.precision_of(n) is not DType.FLOAT32]
    return [n for n in integer if plan.weights_of(n) is DType.INT8]


def even_bits(model: FloatModel, plan: Plan, share: float) -> dict[str, float]:
    """Bits of a code, the same for all layers that may have one, so that weights take a share of a byte each.

    Empty where others take too much.
    """
    layers = codable(model, plan)
    coded, total = sum(counted(n, plan) for n in layers), weights_in_flash(model, plan)
    others = sum(stored_bytes(n, plan) for n in model.graph.nodes if weights_of(n) and n not in layers)
    bits = 8 * (share * total - others) / max(coded, 1)
    return {n.outputs[0].name: bits for n in layers} if bits >= LEAST_BITS else {}


def allotted(noise: Mapping[Node, float], plan: Plan) -> dict[str, float]:
    """As many bits altogether as in `plan`, so that layers add least noise, of which each adds so much with these.

    Noise of a weight falls by four with each bit, and is best the same for all layers ("reverse water-filling").
    """
    layers, sizes = list(noise), np.array([counted(n, plan) for n in noise], float)
    given = np.array([plan.code_bits[n.outputs[0].name] for n in layers])
    wanted = given + np.log2(np.maximum([noise[n] for n in layers], 1e-30) / np.maximum(sizes, 1)) / 2
    low, high = LEAST_BITS - wanted.max(), 8 - wanted.min()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_more = sizes @ np.clip(wanted + middle, LEAST_BITS, 8) > sizes @ given
        low, high = (low, middle) if is_more else (middle, high)
    found = np.clip(wanted + low, LEAST_BITS, 8)
    return dict(plan.code_bits) | {n.outputs[0].name: float(b) for n, b in zip(layers, found, strict=True)}


def narrowest(model: FloatModel, plan: Plan, samples: Sequence[Mapping[str, Array]], share: float) -> list[str]:
    """Of the layers that have 2 bits in `plan`, those that keep them: others return to 4, as many as there is room for
    within a share of a byte for each weight, of those that add most noise.
    """
    layers = [n for n in candidates(model, plan) if n.outputs[0].name in plan.two_bits]
    codes = {n: plan.layers[n.output.name] for n in layers}
    noise = weight_noise(model, plan, layers, samples)
    more = [round(c.weights.size * BYTES[DType.INT2] - 4 * c.scales.size * bool(c.group)) for c in codes.values()]
    room = weights_in_flash(model, plan) * (share - stored_share(model, plan))
    (back,) = most_valuable([noise[n] for n in layers], more, room)
    return [n.output.name for i, n in enumerate(layers) if i not in back]


def weight_noise(
    model: FloatModel, plan: Plan, layers: Sequence[Node], samples: Sequence[Mapping[str, Array]]
) -> dict[Node, float]:
    """What each layer's codes, and nothing else, add to the outputs, relative to their signal: the mean of them all."""
    outputs = judged_tensors(model)
    macs = sum(node.op.macs(node.sig) for node in model.graph.nodes) * max(len(layers), 1)
    most = int(np.clip(MOST_MACS // max(macs, 1), 1, MOST_SAMPLES))
    used = [samples[i] for i in spread(len(samples), most)]
    session = Session(_with_free_weights(model, layers, outputs), literal=False, threads=1)
    exact = [session.run(outputs, sample) for sample in used]
    signal = {name: max(sum(power(found[name]) for found in exact), 1e-300) for name in outputs}
    noise = {}
    for node in layers:
        given = _given(node, plan)
        found = [session.run(outputs, {**sample, **given}) for sample in used]
        pairs = [(n, a[n].astype(np.float64) - b[n]) for a, b in zip(found, exact, strict=True) for n in outputs]
        noise[node] = sum(power(error) / signal[n] for n, error in pairs) / max(len(outputs), 1)
    return noise


def _given(node: Node, plan: Plan) -> dict[str, Array]:
    """A layer's constants as its codes have them."""
    if isinstance(node.op, Cell):
        return rounded_weights(node, plan)
    return {v.name: real_weights(plan.layers[node.output.name]) for v in weights_of(node)}


def _with_free_weights(model: FloatModel, layers: Sequence[Node], outputs: Sequence[str]) -> onnx.ModelProto:
    """The float model, whose outputs these tensors are, and whose layers' weights a caller may give."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    given = {value.name for node in layers for value in weights_of(node)}
    for tensor in proto.graph.initializer:
        if tensor.name in given:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in outputs)
    return proto
