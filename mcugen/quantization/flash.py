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
from mcugen.kernels.common.weighted_layers import NIBBLES
from mcugen.quantization.qdq import stored_name


@dataclass(frozen=True)
class WeightStorage:
    """The bytes of each layer's weights, by the name of the layer's output, and the number of removed channels."""

    layers: Mapping[str, int]
    dropped: int

    @staticmethod
    def of(graph: Graph) -> WeightStorage:
        """Return the flash use of an imported model, which is optimized in place."""
        optimize(graph)
        layers = {
            node.output.name: sum(
                _bytes(data) for i in weight_axes(node.op) if (data := node.input(i).data) is not None
            )
            for node in graph.nodes
            if weight_axes(node.op)
        }
        return WeightStorage(layers, graph.dropped.channels)

    def of_layer(self, name: str) -> int:
        """Return the bytes of a layer of the float model; 0 if the layer was removed."""
        return self.layers.get(stored_name(name), self.layers.get(name, 0))

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weights of all layers."""
        return sum(self.layers.values())


def constants_of(graph: Graph, tensors: Iterable[str]) -> dict[str, Array]:
    """Return the real that each constant channel holds, else NaN, by the name of the float model's tensor.

    Tensors without constant channels are left out.

    Args:
        graph: The imported quantized model, which is changed in place.
        tensors: The names of tensors of the float model.
    """
    names = {stored_name(name): name for name in tensors}
    constants = {}
    for value, codes in find_constant_channels(graph).items():
        quant, is_last = value.type.quant, value.type.layout is Layout.CHANNELS_LAST or value.type.rank == 2
        if value.name in names and quant is not None and quant.axis is None and is_last and not np.isnan(codes).all():
            constants[names[value.name]] = (codes - quant.zero_point) * quant.scale[0]
    return constants


def _bytes(codes: Array) -> int:
    packed = codes.size and codes.min() >= NIBBLES[0] and codes.max() <= NIBBLES[1]
    return int(-(-codes.size // 2) if packed else codes.nbytes)
