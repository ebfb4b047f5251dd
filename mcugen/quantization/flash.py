# SPDX-License-Identifier: Apache-2.0
"""What weights of 4 and of 8 bits take in flash, once channels that need not be computed are gone; which these are."""

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
class Stored:
    """Bytes by layer, by the name of its output; and how many channels were dropped."""

    layers: Mapping[str, int]
    dropped: int

    @staticmethod
    def of(graph: Graph) -> Stored:
        """Of an imported model, which is optimized in place."""
        optimize(graph)
        layers = {
            node.output.name: sum(
                _bytes(data) for i in weight_axes(node.op) if (data := node.input(i).data) is not None
            )
            for node in graph.nodes
            if weight_axes(node.op)
        }
        return Stored(layers, graph.dropped.channels)

    def of_layer(self, name: str) -> int:
        """Bytes of a layer of the float model; 0 if it is gone."""
        return self.layers.get(stored_name(name), self.layers.get(name, 0))

    @property
    def nbytes(self) -> int:
        """Of all layers."""
        return sum(self.layers.values())


def constants_of(graph: Graph, tensors: Iterable[str]) -> dict[str, Array]:
    """By name of a tensor of the float model: of each channel the only real that it holds, or NaN.

    Of an imported model, which is changed in place; of tensors with no such channel nothing.
    """
    names = {stored_name(name): name for name in tensors}
    found = {}
    for value, codes in find_constant_channels(graph).items():
        quant, is_last = value.type.quant, value.type.layout is Layout.CHANNELS_LAST or value.type.rank == 2
        if value.name in names and quant is not None and quant.axis is None and is_last and not np.isnan(codes).all():
            found[names[value.name]] = (codes - quant.zero_point) * quant.scale[0]
    return found


def _bytes(codes: Array) -> int:
    packed = codes.size and codes.min() >= NIBBLES[0] and codes.max() <= NIBBLES[1]
    return int(-(-codes.size // 2) if packed else codes.nbytes)
