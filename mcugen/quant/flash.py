# SPDX-License-Identifier: Apache-2.0
"""What weights of 4 and of 8 bits take in flash, once channels that need not be computed are gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcugen.hir.graph import Graph
from mcugen.hir.traits import weight_axes
from mcugen.hir.types import Array
from mcugen.kernels.weighted import NIBBLES
from mcugen.pipeline import optimize
from mcugen.quant.qdq import stored_name


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


def _bytes(codes: Array) -> int:
    packed = codes.size and codes.min() >= NIBBLES[0] and codes.max() <= NIBBLES[1]
    return int(-(-codes.size // 2) if packed else codes.nbytes)
