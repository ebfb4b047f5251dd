# SPDX-License-Identifier: Apache-2.0
"""The weights of a layer as integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mcugen.core.options import TWO_BIT_GROUP_SIZES
from mcugen.hir.graph import Graph, Node
from mcugen.hir.traits import bias_input, onnx_form, takes_groups, weight_axes
from mcugen.hir.types import Array, DType
from mcugen.kernels.portable.compressed_weights import choose_remainder_bits
from mcugen.numerics.fixedpoint import dequantize
from mcugen.ops.conv import Conv
from mcugen.ops.packed import is_worth_packing
from mcugen.quantization.plan import QuantizedWeights
from mcugen.quantization.scheme import WEIGHT_LIMITS, Scheme, usable_scales, weight_scales

(TWO_BIT_GROUP_INPUTS,) = TWO_BIT_GROUP_SIZES.values()
"""Number of inputs that share a scale in fully connected layers with 2-bit weights (`--precision w2a8`).

Convolutions have a scale per channel.
"""

MIN_TWO_BIT_WEIGHTS = 1024
"""Smallest number of weights of a convolution for which 2-bit weights are used.

A smaller convolution saves less than the code of the kernel takes.
"""


def can_have_two_bits(node: Node) -> bool:
    """Return whether a layer can store 2-bit weights in flash: fully connected layers and large convolutions can."""
    if isinstance(node.op, Conv):
        return node.op.groups == 1 and layer_weights(node)[0].size >= MIN_TWO_BIT_WEIGHTS
    if not takes_groups(node.op):
        return False
    limits = np.array(WEIGHT_LIMITS[DType.INT2], np.int8)
    return is_worth_packing(np.resize(limits, layer_weights(node)[0].shape), TWO_BIT_GROUP_INPUTS)


NUM_SCALE_HALVINGS = 24
"""Number of bisection steps in the search for scales with which a layer's weights compress to a given number of bits.

The search for one number of bits per weight for all layers has as many steps.
"""


def plain_codes(
    node: Node, scheme: Scheme, dtype: DType = DType.INT8, living: Array | None = None, code_bits: float | None = None
) -> QuantizedWeights:
    """Return a layer's weights, quantized by rounding to nearest.

    Args:
        node: The layer.
        scheme: The quantization scheme.
        dtype: INT8, INT4 or INT2.
        living: The real weights with 0 for those without an effect (`effective_weights`); None to use the layer's own.
        code_bits: The average bits per weight that compressed weights may take, which enlarges the scales; None without
            compression.
    """
    weights, axis = layer_weights(node)
    weights = weights if living is None else living
    group = {DType.INT4: scheme.group, DType.INT2: TWO_BIT_GROUP_INPUTS}.get(dtype, 0)
    if group and scheme.per_channel and takes_groups(node.op):
        grouped = _grouped_codes(weights, layer_bias(node), scheme, group, dtype)
        if is_worth_packing(grouped.weights, group):
            return grouped
    scales = weight_scales(weights, axis, scheme, dtype)
    codes = QuantizedWeights(np.zeros(weights.shape, np.int8), scales, axis, layer_bias(node), dtype)
    return nearest_codes(codes, weights) if code_bits is None else _coarse_codes(codes, weights, scheme, code_bits)


def _coarse_codes(codes: QuantizedWeights, weights: Array, scheme: Scheme, bits: float) -> QuantizedWeights:
    """Return weights with the smallest scales that let compression take `bits` per weight on average.

    The scales are proportional to the square root of a channel's weights. Equal scales would give all channels the same
    error, and proportional ones the same bits.
    """
    other = tuple(a for a in range(weights.ndim) if a != codes.axis)
    size = np.square(weights, dtype=np.float64).mean(other if len(codes.scales) > 1 else None).reshape(-1) ** 0.25
    if not size.any():
        return nearest_codes(codes, weights)

    def coarser(times: float) -> QuantizedWeights:
        scales = usable_scales(np.maximum(codes.scales, times * size), scheme)
        return nearest_codes(replace(codes, scales=scales), weights)

    if stored_bits(coarser(0.0)) <= bits:
        return coarser(0.0)
    low, high = 0.0, float(np.max(codes.scales * WEIGHT_LIMITS[DType.INT8][1] / np.maximum(size, size.max() / 256)))
    for _ in range(NUM_SCALE_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if stored_bits(coarser(middle)) > bits else (low, middle)
    return coarser(high)


def stored_bits(codes: QuantizedWeights) -> float:
    """Return the average bits per weight in flash, with the entropy code that is shortest for these weights."""
    kept = stored_weights(codes)
    return choose_remainder_bits(kept)[1] / kept.size if kept.size else 0.0


def stored_weights(codes: QuantizedWeights) -> Array:
    """Return the quantized weights that are stored: without outputs and inputs whose weights are all 0."""
    by_output = np.moveaxis(codes.weights, codes.axis, 0)
    parts = by_output.reshape(len(by_output), by_output.shape[1] if by_output.ndim > 1 else 1, -1)
    kept: Array = parts[parts.any((1, 2))][:, parts.any((0, 2))]
    return kept


def _grouped_codes(weights: Array, bias: Array | None, scheme: Scheme, group: int, dtype: DType) -> QuantizedWeights:
    """Return the quantized weights of a matrix [outputs, inputs], with a scale for each group of inputs."""
    parts = [weights[:, at : at + group] for at in range(0, weights.shape[1], group)]
    scales = np.stack([weight_scales(part, 0, scheme, dtype) for part in parts], 1)
    return nearest_codes(QuantizedWeights(np.zeros(weights.shape, np.int8), scales, 0, bias, dtype, group), weights)


def nearest_codes(codes: QuantizedWeights, weights: Array) -> QuantizedWeights:
    """Quantize other real weights of a layer: round them to nearest with the scales, type and bias of `codes`.

    Args:
        codes: The quantized weights, whose scales are used.
        weights: The real weights, of the same shape.
    """
    stored = np.int16 if codes.dtype is DType.INT16 else np.int8
    rounded = np.clip(np.rint(weights / codes.steps), *WEIGHT_LIMITS[codes.dtype]).astype(stored)
    return replace(codes, weights=rounded)


def layer_weights(node: Node) -> tuple[Array, int]:
    """Return the real weights of a layer, and the axis of output channels."""
    ((index, axis),) = weight_axes(node.op).items()
    data = node.input(index).data
    assert data is not None
    return data, axis


def effective_weights(node: Node, constants: Mapping[str, Array]) -> Array:
    """Return a layer's real weights, with 0 for weights that have no effect on the varying part of its outputs.

    These are the weights of inputs that are always 0, and the weights of outputs that are constant, if the layer has a
    bias that can hold the constant.

    Args:
        node: The layer.
        constants: The real values of constant channels by tensor, as in `Plan.constants`.
    """
    weights, axis = layer_weights(node)
    outputs, inputs = constants.get(node.output.name), constants.get(node.input(0).name)
    living = np.ones(weights.shape, bool)
    if outputs is not None and layer_bias(node) is not None and len(outputs) == weights.shape[axis]:
        living &= np.isnan(np.expand_dims(outputs, [a for a in range(weights.ndim) if a != axis]))
    other = 1 - axis
    is_whole = node.op.groups == 1 if isinstance(node.op, Conv) else weights.ndim == 2
    if inputs is not None and is_whole and other in (0, 1) and len(inputs) == weights.shape[other]:
        living &= np.expand_dims(inputs != 0, [a for a in range(weights.ndim) if a != other])
    return np.where(living, weights, np.float32(0))


def layer_bias(node: Node) -> Array | None:
    """Return the real bias of a layer; None if it has none."""
    at = bias_input(node.op)
    bias = node.inputs[at] if at is not None and len(node.inputs) > at else None
    return None if bias is None else bias.data


def real_weights(codes: QuantizedWeights) -> Array:
    """Return the dequantized weights as float32."""
    if codes.group:
        return (codes.weights * codes.steps).astype(np.float32)
    return dequantize(codes.weights, codes.quant)


def add_zero_biases(graph: Graph) -> bool:
    """Add a bias of 0 to layers without bias that ONNX can write with one, so that bias correction can change it.

    A bias costs no time in integer kernels.

    Returns:
        Whether there was such a layer.
    """
    layers = [n for n in graph.nodes if bias_input(n.op) == len(n.inputs) == 2 and weight_axes(n.op) == {1: 0}]
    bare = [n for n in layers if onnx_form(n.op, n.sig) is not None]
    for node in (n for n in bare if n.input(1).is_constant):
        zeros = graph.constant(f"{node.output.name}.bias", np.zeros(node.input(1).type.shape[0], np.float32))
        graph.rewrite(node, node.op, [*node.inputs, zeros])
    return bool(bare)
