# SPDX-License-Identifier: Apache-2.0
"""The result of all decisions: how each tensor, layer and weight is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.quantization.scheme import Scheme, activation_params


@dataclass(frozen=True)
class Stored:
    """An activation in integers, and where its range [low, high] comes from."""

    dtype: DType
    quant: QuantParams
    method: str = ""
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Codes:
    """Symmetric weights of a layer in the shape of the float ones, and the real bias that goes with them.

    Codes of INT4 and INT2 take a byte each here, too. With a `group`, scales are [outputs, groups] of so many inputs.
    """

    weights: Array
    scales: Array
    axis: int
    bias: Array | None
    dtype: DType = DType.INT8
    group: int = 0

    @property
    def steps(self) -> Array:
        """The scale of each weight, to broadcast against them."""
        if self.group:
            return np.repeat(self.scales, self.group, 1)[:, : self.weights.shape[1]]
        return self.scales.reshape([-1 if a == self.axis else 1 for a in range(self.weights.ndim)])

    @property
    def quant(self) -> QuantParams:
        """Of weights without groups: one scale for each index of `axis`, or one in all."""
        return QuantParams(tuple(map(float, self.scales)), 0, self.axis if len(self.scales) > 1 else None)


@dataclass
class Plan:
    """`activations` by tensor name, `layers` by output name; nodes in neither compute in float32.

    `precision` by the name of a node's (first) output: INT8, INT16 or FLOAT32; `few_bits` are layers, by that name,
    whose weights have 4 bits, `two_bits` those whose weights have 2, `wide_weights` those whose weights have 16.
    `compensated`: weights make good a part of what layers before have lost, though they have 8 bits.
    """

    scheme: Scheme = field(default_factory=Scheme)
    activations: dict[str, Stored] = field(default_factory=dict)
    layers: dict[str, Codes] = field(default_factory=dict)
    precision: dict[str, DType] = field(default_factory=dict)
    few_bits: frozenset[str] = frozenset()
    two_bits: frozenset[str] = frozenset()
    wide_weights: frozenset[str] = frozenset()
    compensated: bool = False
    code_bits: Mapping[str, float] = field(default_factory=dict)
    """Of layers with weights of 8 bits, by name: what a code (compressed_weights) may take on average of each."""
    shared: Mapping[str, int] = field(default_factory=dict)
    """The number of the set of layers whose weights and scales are equal, by name: they have the same codes."""
    constants: Mapping[str, Array] = field(default_factory=dict)
    """Of channels that hold one real with weights of 8 bits, that real, else NaN, by tensor name: those of fewer bits
    leave them so."""
    internals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """Ranges within layers that have such (`Cell.internals`): by name of the first output, and by role."""
    noise: float | None = None
    """Of what outputs are judged by, relative to its signal, on the samples that coarse weights were rounded by."""
    moments: dict[str, dict[str, Array]] = field(default_factory=dict)
    """Second moments of what matrices of cells with weights of 4 bits read, [1, K, K]: likewise; "x" is the input."""

    @property
    def is_coarse(self) -> bool:
        """Whether some weights have fewer than 8 bits, or take fewer by a code."""
        return bool(self.few_bits or self.two_bits or self.code_bits)

    @property
    def compensates(self) -> bool:
        """Whether weights make good a part of what layers before have lost."""
        return self.compensated or self.is_coarse

    def precision_of(self, node: Node) -> DType:
        """What a node computes in."""
        return self.precision.get(node.outputs[0].name, DType.FLOAT32)

    def weights_of(self, node: Node) -> DType:
        """Return the type of a layer's weights."""
        if node.outputs[0].name in self.two_bits:
            return DType.INT2
        if node.outputs[0].name in self.wide_weights:
            return DType.INT16
        return DType.INT4 if node.outputs[0].name in self.few_bits else DType.INT8

    def code_bits_of(self, node: Node) -> float | None:
        """What a code of a layer's weights may take on average; None: they need none."""
        return self.code_bits.get(node.outputs[0].name) if self.weights_of(node) is DType.INT8 else None

    def shares(self, node: Node) -> tuple[int, DType] | None:
        """What a layer has in common with those of the same codes; None: it has its own."""
        number = self.shared.get(node.outputs[0].name)
        return None if number is None else (number, self.weights_of(node))

    def quant(self, name: str, dtype: DType) -> QuantParams:
        """Of a stored activation as a reader that computes in `dtype` gets it."""
        stored = self.activations[name]
        return stored.quant if dtype is stored.dtype else activation_params(stored.low, stored.high, dtype, self.scheme)

    def quant_of(self, value: Value, dtype: DType) -> QuantParams:
        """The same of a tensor that may have been moved, and be unknown to the float model."""
        return self.quant(self._source(value).name, dtype)

    def stored_as(self, value: Value) -> Stored | None:
        """Return how a tensor, or what it was moved from, is stored in integers; None if it stays real."""
        return self.activations.get(self._source(value).name)

    def _source(self, value: Value) -> Value:
        """Return the tensor that another was moved from, if only that is known to the float model."""
        while value.name not in self.activations and value.producer is not None and value.producer.op.moves_data:
            value = value.producer.input(0)
        return value
