# SPDX-License-Identifier: Apache-2.0
"""Choice of layers with 4-bit weights: the least noise at the outputs within a budget of flash bytes."""

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
from mcugen.quantization.sensitivity import MAX_GROUP_RUN_MACS, measured_tensors, sum_of_squares
from mcugen.quantization.weights import NUM_SCALE_HALVINGS, real_weights, stored_bits, stored_weights

MAX_WIDE_WEIGHT_SHARE = 0.2
"""Largest share of all weights, including unused ones, that may keep 8 bits in a model with 4-bit weights."""

KNAPSACK_STEPS = 1024
"""Resolution of the search for layers that keep 8-bit weights: the number of equal steps the budget is divided into."""

MAX_FINALIST_NOISE_RATIO = 2.0
"""Largest estimated noise of a finalist, a choice of 4-bit layers that is tried, divided by the least estimated noise.

The estimate adds up the layers' separate noises; their joint noise may differ by as much.
"""

NUM_FINALISTS = 4
"""Number of choices of 4-bit layers ("finalists") for which weights are rounded; the one with the least noise is taken.

The noise of all layers together must be measured: rounded weights compensate errors of earlier layers, which the noise
of a single layer does not show.
"""

BYTES_PER_WEIGHT = {DType.INT16: 2.0, DType.INT8: 1.0, DType.INT4: 0.5, DType.INT2: 0.25}
"""Bytes of flash for one weight by its type, without the scales of groups."""

MIN_AVERAGE_BITS = 2.0
"""Smallest average number of bits per weight to which weight compression is tried."""

MAX_NOISE_SAMPLES = 32
"""Largest number of samples by which a layer's noise is measured."""


def four_bit_candidates(model: FloatModel, plan: Plan) -> list[Node]:
    """Return the layers that may have 4-bit weights, recurrent layers included.

    Their activations have 8 bits, and their weights are ONNX initializers.

    Args:
        model: The float model.
        plan: The quantization plan, which says how activations are stored.
    """
    initializer_names = {t.name for t in model.proto.graph.initializer}
    layers = [n for n in model.graph.nodes if weight_axes(n.op) and plan.precision_of(n) is DType.INT8]
    return [
        n
        for n in [*layers, *recurrent_layers(model, plan)]
        if all(v.name in initializer_names for v in few_bit_constants(n))
    ]


def few_bit_constants(node: Node) -> list[Value]:
    """Return the constant inputs of a layer that may be stored in fewer than 8 bits: its weight matrices or kernels."""
    if isinstance(node.op, Cell):
        return [node.input(index) for index in node.op.matrices]
    return [node.input(index) for index in weight_axes(node.op)]


def num_weights(node: Node) -> int:
    """Return the number of weights of a layer."""
    return sum(v.type.count for v in few_bit_constants(node))


def recurrent_layers(model: FloatModel, plan: Plan) -> list[Node]:
    """Return the recurrent layers of a model that a plan computes with 8-bit activations, in their integer form."""
    nodes = [n for n in model.graph.nodes if plan.precision_of(n) is DType.INT8]
    return [n for n in nodes if isinstance(n.op, Cell) and n.op.can_expand(n)]


def choose_finalists(
    model: FloatModel, plan: Plan, layers: Sequence[Node], samples: Sequence[Mapping[str, Array]]
) -> list[list[str]]:
    """Return up to NUM_FINALISTS choices of layers that keep 4-bit weights, the one of least estimated noise first.

    The layers that are not chosen return to 8-bit weights. The caller quantizes the model by each choice ("finalist"),
    to find the one of least actual noise.

    Args:
        model: The float model.
        plan: A plan in which all of `layers` have 4-bit weights.
        layers: The layers to choose from; at most the share MAX_WIDE_WEIGHT_SHARE of their weights returns to 8 bits.
        samples: The samples by which the noise of each layer is measured.

    Returns:
        Each choice as names of the layers' outputs.
    """
    sizes = {n: num_weights(n) for n in layers}
    return choose_four_bit_layers(
        weight_noise(model, plan, layers, samples), sizes, MAX_WIDE_WEIGHT_SHARE * sum(sizes.values()), NUM_FINALISTS
    )


def choose_four_bit_layers(
    noise: Mapping[Node, float], sizes: Mapping[Node, int], room: float, max_choices: int
) -> list[list[str]]:
    """Return up to `max_choices` choices of layers that keep 4-bit weights, the best first.

    The other layers return to 8-bit weights. They have at most `room` weights in total, and are those whose 4-bit
    weights together add most noise, so that little noise remains. The noise of several layers is estimated as the sum
    of their separate noises. Choices with more than MAX_FINALIST_NOISE_RATIO times the least noise are left out.

    Args:
        noise: The noise power that 4-bit weights of each layer alone add to the outputs, relative to the signal.
        sizes: The number of weights of each layer.
        room: The number of weights that may return to 8 bits.
        max_choices: The largest number of choices.

    Returns:
        Each choice as names of the layers' outputs.
    """
    layers, values = list(noise), list(noise.values())
    subsets = best_subsets(values, [sizes[n] for n in layers], room, max_choices)
    remaining = [sum(v for i, v in enumerate(values) if i not in wide) for wide in subsets]
    finalists = [
        wide
        for wide, remaining_noise in zip(subsets, remaining, strict=True)
        if remaining_noise <= MAX_FINALIST_NOISE_RATIO * remaining[0]
    ]
    return [[n.outputs[0].name for i, n in enumerate(layers) if i not in wide] for wide in finalists]


def best_subsets(values: Sequence[float], sizes: Sequence[int], room: float, max_subsets: int = 1) -> list[set[int]]:
    """Return the subsets of greatest total value whose total size is at most `room`, the best first.

    This is the knapsack problem, solved by dynamic programming. Each size is rounded up to a multiple of
    `room` / KNAPSACK_STEPS.

    Args:
        values: The value of each item.
        sizes: The size of each item.
        room: The largest total size.
        max_subsets: The largest number of subsets to return.

    Returns:
        Each subset as indices of items.
    """
    step = max(room / KNAPSACK_STEPS, 1.0)
    front: list[tuple[int, float, int]] = [(0, 0.0, 0)]
    for index, (value, size) in enumerate(zip(values, sizes, strict=True)):
        extended = [(s + math.ceil(size / step), v + value, mask | 1 << index) for s, v, mask in front]
        fitting = [*front, *(choice for choice in extended if choice[0] * step <= room)]
        front = _superior(sorted(fitting, key=lambda choice: (choice[0], -choice[1])), max_subsets)
    best = sorted(front, key=lambda choice: -choice[1])[:max_subsets]
    return [{index for index in range(len(sizes)) if mask >> index & 1} for _, _, mask in best]


def _superior(choices: Sequence[tuple[int, float, int]], max_choices: int) -> list[tuple[int, float, int]]:
    """Return the choices, sorted by size, whose value fewer than `max_choices` choices before them reach."""
    kept, best = [], list[float]()
    for choice in choices:
        if len(best) < max_choices or choice[1] > best[0]:
            (heapq.heappush if len(best) < max_choices else heapq.heapreplace)(best, choice[1])
            kept.append(choice)
    return kept


def bytes_per_weight(model: FloatModel, plan: Plan) -> float:
    """Return the average number of bytes per weight in flash over all layers: 1.0 if all weights are plain int8.

    Args:
        model: The float model.
        plan: The plan with the quantized weights.
    """
    layers = [n for n in model.graph.nodes if few_bit_constants(n)]
    return sum(stored_bytes(n, plan) for n in layers) / max(sum(num_stored_weights(n, plan) for n in layers), 1)


def stored_bytes(node: Node, plan: Plan) -> float:
    """Return the bytes in flash that a layer's weights take in a plan, including the scales of groups."""
    size, codes = num_stored_weights(node, plan), plan.layers.get(node.outputs[0].name)
    if plan.precision_of(node) is DType.FLOAT32:
        return 4.0 * size
    if codes is not None and plan.code_bits_of(node) is not None:
        return size * min(1.0, stored_bits(codes) / 8)
    return size * BYTES_PER_WEIGHT[plan.weights_of(node)] + (
        4.0 * codes.scales.size if codes is not None and codes.group else 0
    )


def num_stored_weights(node: Node, plan: Plan) -> int:
    """Return the number of a layer's weights that are stored in flash.

    Weights of channels that are not used are not stored. They are counted nevertheless if the plan has no quantized
    weights of the layer yet.
    """
    codes = plan.layers.get(node.outputs[0].name)
    return num_weights(node) if codes is None else stored_weights(codes).size


def weights_in_flash(model: FloatModel, plan: Plan) -> int:
    """Return the number of weights of all layers that are stored in flash.

    Args:
        model: The float model.
        plan: The plan with the quantized weights.
    """
    return sum(num_stored_weights(n, plan) for n in model.graph.nodes)


def num_affordable_int8_weights(model: FloatModel, plan: Plan, share: float) -> float:
    """Return the number of weights that can go from 4 to 8 bits within a budget of bytes.

    The result is negative if `plan` exceeds the budget.

    Args:
        model: The float model.
        plan: The plan with 4-bit weights.
        share: The budget in bytes per weight, on average over all weights.
    """
    return 2 * weights_in_flash(model, plan) * (share - bytes_per_weight(model, plan))


def compressible_layers(model: FloatModel, plan: Plan) -> list[Node]:
    """Return the layers whose weights a plan stores as int8, so that they can be compressed by an entropy code.

    Args:
        model: The float model.
        plan: The quantization plan.
    """
    integer = [n for n in model.graph.nodes if weight_axes(n.op) and plan.precision_of(n) is not DType.FLOAT32]
    return [n for n in integer if plan.weights_of(n) is DType.INT8]


def uniform_bits(model: FloatModel, plan: Plan, share: float) -> dict[str, float]:
    """Return the average bits per compressed weight, equal for all layers, with which all weights meet a budget.

    Layers with int8 weights are compressed by an entropy code. All other weights stay as they are in the plan.

    Args:
        model: The float model.
        plan: The plan without compression.
        share: The budget: average number of bytes per weight, over all weights in flash.

    Returns:
        The bits by the name of the layer's output; empty if fewer than MIN_AVERAGE_BITS bits would be needed.
    """
    layers = compressible_layers(model, plan)
    coded, total = sum(num_stored_weights(n, plan) for n in layers), weights_in_flash(model, plan)
    other_bytes = sum(stored_bytes(n, plan) for n in model.graph.nodes if few_bit_constants(n) and n not in layers)
    bits = 8 * (share * total - other_bytes) / max(coded, 1)
    return {n.outputs[0].name: bits for n in layers} if bits >= MIN_AVERAGE_BITS else {}


def redistribute_bits(noise: Mapping[Node, float], plan: Plan) -> dict[str, float]:
    """Distribute the bits of all compressed layers anew so that their total noise is least.

    The noise of a weight falls by a factor of 4 with each bit, so the total is least if all layers have the same noise
    per weight ("reverse water-filling"). The total number of bits stays as in `plan`.

    Args:
        noise: The noise power that each layer adds to the outputs with the bits that it has in `plan`.
        plan: The plan with the present bits.

    Returns:
        The average bits per weight, by the name of the layer's output.
    """
    layers, sizes = list(noise), np.array([num_stored_weights(n, plan) for n in noise], float)
    present_bits = np.array([plan.code_bits[n.outputs[0].name] for n in layers])
    ideal_bits = present_bits + np.log2(np.maximum([noise[n] for n in layers], 1e-30) / np.maximum(sizes, 1)) / 2
    low, high = MIN_AVERAGE_BITS - ideal_bits.max(), 8 - ideal_bits.min()
    for _ in range(NUM_SCALE_HALVINGS):
        middle = (low + high) / 2
        is_more = sizes @ np.clip(ideal_bits + middle, MIN_AVERAGE_BITS, 8) > sizes @ present_bits
        low, high = (low, middle) if is_more else (middle, high)
    bits = np.clip(ideal_bits + low, MIN_AVERAGE_BITS, 8)
    return dict(plan.code_bits) | {n.outputs[0].name: float(b) for n, b in zip(layers, bits, strict=True)}


def choose_two_bit_layers(
    model: FloatModel, plan: Plan, samples: Sequence[Mapping[str, Array]], share: float
) -> list[str]:
    """Return the output names of the layers that keep 2-bit weights.

    The layers that add most noise return to 4 bits, as many as fit in the budget.

    Args:
        model: The float model.
        plan: A plan in which the candidate layers have 2-bit weights.
        samples: The samples by which the noise of each layer is measured.
        share: The budget in bytes per weight, on average.
    """
    layers = [n for n in four_bit_candidates(model, plan) if n.outputs[0].name in plan.two_bits]
    codes = {n: plan.layers[n.output.name] for n in layers}
    noise = weight_noise(model, plan, layers, samples)
    extra_bytes = [
        round(c.weights.size * BYTES_PER_WEIGHT[DType.INT2] - 4 * c.scales.size * bool(c.group)) for c in codes.values()
    ]
    room = weights_in_flash(model, plan) * (share - bytes_per_weight(model, plan))
    (widened,) = best_subsets([noise[n] for n in layers], extra_bytes, room)
    return [n.output.name for i, n in enumerate(layers) if i not in widened]


def weight_noise(
    model: FloatModel, plan: Plan, layers: Sequence[Node], samples: Sequence[Mapping[str, Array]]
) -> dict[Node, float]:
    """Return the noise power that each layer's quantized weights alone add to the outputs, relative to the signal.

    The value is the mean over all outputs.

    Args:
        model: The float model.
        plan: The plan with the quantized weights.
        layers: The layers to measure.
        samples: The samples to choose from; large models run on fewer.
    """
    outputs = measured_tensors(model)
    macs = sum(node.op.macs(node.sig) for node in model.graph.nodes) * max(len(layers), 1)
    num_samples = int(np.clip(MAX_GROUP_RUN_MACS // max(macs, 1), 1, MAX_NOISE_SAMPLES))
    chosen = [samples[i] for i in spread(len(samples), num_samples)]
    session = Session(_with_free_weights(model, layers, outputs), literal=False, threads=1)
    references = [session.run(outputs, sample) for sample in chosen]
    signal = {name: max(sum(sum_of_squares(tensors[name]) for tensors in references), 1e-300) for name in outputs}
    noise = {}
    for node in layers:
        constants = _real_constants(node, plan)
        tensors = [session.run(outputs, {**sample, **constants}) for sample in chosen]
        pairs = [(n, a[n].astype(np.float64) - b[n]) for a, b in zip(tensors, references, strict=True) for n in outputs]
        noise[node] = sum(sum_of_squares(error) / signal[n] for n, error in pairs) / max(len(outputs), 1)
    return noise


def _real_constants(node: Node, plan: Plan) -> dict[str, Array]:
    """Return a layer's constants as the reals that its quantized weights represent."""
    if isinstance(node.op, Cell):
        return rounded_weights(node, plan)
    return {v.name: real_weights(plan.layers[node.output.name]) for v in few_bit_constants(node)}


def _with_free_weights(model: FloatModel, layers: Sequence[Node], outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the float model with these tensors as outputs, and with the layers' weights as optional inputs."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    weight_names = {value.name for node in layers for value in few_bit_constants(node)}
    for tensor in proto.graph.initializer:
        if tensor.name in weight_names:
            proto.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in outputs)
    return proto
