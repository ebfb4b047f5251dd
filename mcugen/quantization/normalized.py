# SPDX-License-Identifier: Apache-2.0
"""Equalization of the channels behind normalizations, as transformers need it, at no run-time cost.

If some channels are far larger than the others, one scale for all serves only these. The output range of a
normalization is known without samples: mean 0 and variance 1, times its scales, plus its biases. Scales and biases are
divided by a factor per channel, and the weights of all readers are multiplied by it. The factors leave the same range
in activations and weights: SmoothQuant (Xiao et al. 2023) with equal shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mcugen.frontend.onnx.nodes import tensors_read
from mcugen.hir.types import Array

NORMALIZATIONS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
"""ONNX operators that normalize to variance 1 and then multiply by a scale per channel."""

ASSUMED_MAGNITUDE = 3.0
"""Assumed largest magnitude of the numbers behind a normalization to variance 1, in standard deviations."""

MIN_OUTLIER_RATIO = 4.0
"""Smallest ratio of the largest channel's magnitude to the median channel's for which a normalization is equalized.

The weights of its readers become harder to quantize, so smaller ratios are not worth it.
"""

MIN_CHANNEL_SIZE = 1e-6
"""Smallest magnitude of a channel, as a share of the largest channel's, for which the channel is rescaled.

The factor of a smaller channel would be a division by almost 0.
"""


def equalize_normalizations(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return an equivalent model in which the channels behind each normalization have similar ranges.

    Factors move from the normalization's scales and biases to the weights of the layers that read it. If no
    normalization has channels of very different ranges, the model itself is returned.
    """
    graph = model.graph
    constants = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    input_names = {v.name for v in graph.input}
    constants = {name: tensor for name, tensor in constants.items() if name not in input_names}
    results = {v.name for v in graph.output}
    new_constants: dict[tuple[int, int], Array] = {}
    """The new constants, by the place of the node and the index of the input."""
    for place, node in enumerate(graph.node):
        if node.op_type in NORMALIZATIONS and node.output[0] not in results:
            new_constants |= _equalize(graph.node, place, constants)
    if not new_constants:
        return model
    equalized = onnx.ModelProto()
    equalized.CopyFrom(model)
    for (place, index), array in new_constants.items():
        name = f"{equalized.graph.node[place].input[index]}.evened{place}"
        equalized.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
        equalized.graph.node[place].input[index] = name
    return equalized


def _equalize(
    nodes: Sequence[onnx.NodeProto], place: int, constants: Mapping[str, TensorProto]
) -> dict[tuple[int, int], Array]:
    """Return the new constants of a normalization and its readers, by node and input; empty if they stay unchanged."""
    affine = {i: name for i, name in enumerate(nodes[place].input) if i and name}
    readers = [i for i, node in enumerate(nodes) if nodes[place].output[0] in tensors_read(node)]
    weights = {i: _weights(nodes[i], nodes[place].output[0], constants) for i in readers}
    if 1 not in affine or not weights or any(w is None for w in weights.values()):
        return {}
    if any(name not in constants or len(constants[name].dims) != 1 for name in affine.values()):
        return {}
    arrays = {i: numpy_helper.to_array(constants[name]).astype(np.float64) for i, name in affine.items()}
    by_input = {i: w for i, w in weights.items() if w is not None}
    if any(len(a) != len(w) for a in arrays.values() for w in by_input.values()):
        return {}
    written = sum(((ASSUMED_MAGNITUDE if i == 1 else 1.0) * np.abs(a) for i, a in arrays.items()), start=np.zeros(1))
    read = np.max([np.abs(w).max(1) for w in by_input.values()], axis=0)
    if written.max() < MIN_OUTLIER_RATIO * np.median(written):
        return {}
    alive = (written > MIN_CHANNEL_SIZE * written.max()) & (read > MIN_CHANNEL_SIZE * read.max())
    factors = np.sqrt(np.where(alive, written, 1.0) / np.where(alive, read, 1.0))
    new_constants = {(place, i): array / factors for i, array in arrays.items()}
    scaled = {i: w * factors[:, None] for i, w in by_input.items()}
    return new_constants | {(i, 1): w.T if _is_transposed(nodes[i]) else w for i, w in scaled.items()}


def _weights(node: onnx.NodeProto, x: str, constants: Mapping[str, TensorProto]) -> Array | None:
    """Return the constant weights of a fully connected layer that reads `x`, [inputs, outputs]; None otherwise."""
    is_dense = node.op_type in ("MatMul", "Gemm") and list(node.input).count(x) == 1 and node.input[0] == x
    tensor = constants.get(node.input[1]) if is_dense else None
    if tensor is None or len(tensor.dims) != 2 or _attribute(node, "transA"):
        return None
    weights: Array = numpy_helper.to_array(tensor).astype(np.float64)
    return np.asarray(weights.T) if _is_transposed(node) else weights


def _is_transposed(node: onnx.NodeProto) -> bool:
    return bool(_attribute(node, "transB"))


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((int(helper.get_attribute_value(a)) for a in node.attribute if a.name == name), 0)
