# SPDX-License-Identifier: Apache-2.0
"""Flash size of quantized weights after constant channels were removed, and which channels are constant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mcugen.backends.cpu.pipeline import find_constant_channels, optimize
from mcugen.hir.graph import Graph
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array, Layout
from mcugen.kernels.common.weighted_layers import INT4_RANGE
from mcugen.quantization.qdq import stored_name


@dataclass(frozen=True)
class WeightStorage:
    """The flash size of the quantized weights, after constant channels were removed.

    Attributes:
        layers: The bytes of each layer's weights, by the name of the layer's output.
        dropped: The number of removed channels in the whole model.
    """

    layers: Mapping[str, int]
    dropped: int

    @staticmethod
    def of(graph: Graph) -> WeightStorage:
        """Return the flash use of the weights of an imported quantized model, which is optimized in place."""
        optimize(graph)
        layers = {
            node.output.name: sum(
                _bytes(data) for i in weight_axes(node.op) if (data := node.input(i).data) is not None
            )
            for node in graph.nodes
            if weight_axes(node.op)
        }
        return WeightStorage(layers, graph.dropped.channels)

    def layer_bytes(self, name: str) -> int:
        """Return the bytes in flash of a layer's quantized weights; 0 if the layer was removed.

        `name` is the name of the layer's output in the float model.
        """
        return self.layers.get(stored_name(name), self.layers.get(name, 0))

    @property
    def nbytes(self) -> int:
        """Return the bytes in flash of the quantized weights of all layers."""
        return sum(self.layers.values())


def constant_channels(graph: Graph, tensors: Iterable[str]) -> dict[str, Array]:
    """Return the channels of a quantized model's tensors whose value does not depend on the model's inputs.

    Args:
        graph: The imported quantized model, which is changed in place.
        tensors: The names of tensors of the float model.

    Returns:
        An array for each tensor with constant channels, by the tensor's name in the float model. It holds the real
        value of each constant channel, and NaN for other channels.
    """
    names = {stored_name(name): name for name in tensors}
    constants = {}
    for value, codes in find_constant_channels(graph).items():
        quant, is_last = value.type.quant, value.type.layout is Layout.CHANNELS_LAST or value.type.rank == 2
        if value.name in names and quant is not None and quant.axis is None and is_last and not np.isnan(codes).all():
            constants[names[value.name]] = (codes - quant.zero_point) * quant.scale[0]
    return constants


def _bytes(codes: Array) -> int:
    packed = codes.size and codes.min() >= INT4_RANGE[0] and codes.max() <= INT4_RANGE[1]
    return int(-(-codes.size // 2) if packed else codes.nbytes)
