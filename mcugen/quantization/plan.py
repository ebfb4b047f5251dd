# SPDX-License-Identifier: Apache-2.0
"""The quantization plan: how each tensor, layer and weight is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mcugen.hir.graph import Node, Value
from mcugen.hir.types import Array, DType, QuantParams
from mcugen.quantization.scheme import Scheme, activation_params


@dataclass(frozen=True)
class Stored:
    """The integer storage of an activation.

    Attributes:
        dtype: The integer type.
        quant: The scale and the zero point.
        method: The method that chose the range, one of RANGE_METHODS; empty if none did.
        low: The smallest real value of the range.
        high: The largest real value of the range.
    """

    dtype: DType
    quant: QuantParams
    method: str = ""
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class QuantizedWeights:
    """The quantized weights of a layer: real weight = scale · quantized weight, without a zero point.

    Attributes:
        weights: The quantized weights in the shape of the float weights, one array element each even if `dtype` is
            INT4 or INT2.
        scales: The scales: one per output channel or a single one; with groups, [outputs, groups].
        axis: The axis of output channels in `weights`.
        bias: The real bias; None if the layer has none.
        dtype: The type of the weights.
        group: The number of consecutive inputs that share a scale; 0 without groups.
    """

    weights: Array
    scales: Array
    axis: int
    bias: Array | None
    dtype: DType = DType.INT8
    group: int = 0

    @property
    def steps(self) -> Array:
        """Return the scale of each weight, in a shape that broadcasts to the shape of the weights."""
        if self.group:
            return np.repeat(self.scales, self.group, 1)[:, : self.weights.shape[1]]
        return self.scales.reshape([-1 if a == self.axis else 1 for a in range(self.weights.ndim)])

    @property
    def quant(self) -> QuantParams:
        """Return the quantization parameters of weights without groups: one scale for each output channel, or one."""
        return QuantParams(tuple(map(float, self.scales)), 0, self.axis if len(self.scales) > 1 else None)


@dataclass
class Plan:
    """The decisions of a quantization. Nodes without an entry in `precision` compute in float32.

    Attributes:
        scheme: The quantization scheme.
        activations: The integer storage of each activation, by tensor name.
        layers: The quantized weights, by the name of the layer's output.
        precision: INT8, INT16 or FLOAT32, by the name of a node's first output.
        few_bits: The names of the layers with 4-bit weights.
        two_bits: The names of the layers with 2-bit weights.
        wide_weights: The names of the layers with int16 weights.
        compensated: Whether 8-bit weights, too, compensate a part of the errors of earlier layers.
        code_bits: Average bits per weight that 8-bit weights may take after compression by an entropy code, by the name
            of the layer's output.
        shared: For layers with equal weights and scales, the index of their set, by the name of the layer's output.
            Layers of a set store their weights once.
        constants: The real that a channel holds if it is constant with 8-bit weights, else NaN, by tensor name. Weights
            of fewer bits keep these channels constant.
        internals: Ranges of the tensors inside recurrent layers (such as gates), by the name of the layer's first
            output and by role. A role names a kind of tensor, such as "hidden".
        noise: Noise power at the model's outputs relative to their signal, on the samples that rounded the weights. It
            is known for weights of fewer bits only.
        moments: Second moments, [1, K, K], of the inputs of recurrent layers' matrices with 4-bit weights, by the name
            of the layer's first output and by role. The role "x" is the layer's input.
    """

    scheme: Scheme = field(default_factory=Scheme)
    activations: dict[str, Stored] = field(default_factory=dict)
    layers: dict[str, QuantizedWeights] = field(default_factory=dict)
    precision: dict[str, DType] = field(default_factory=dict)
    few_bits: frozenset[str] = frozenset()
    two_bits: frozenset[str] = frozenset()
    wide_weights: frozenset[str] = frozenset()
    compensated: bool = False
    code_bits: Mapping[str, float] = field(default_factory=dict)
    shared: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)
    internals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    noise: float | None = None
    moments: dict[str, dict[str, Array]] = field(default_factory=dict)

    @property
    def is_coarse(self) -> bool:
        """Return whether some weights of the model have fewer than 8 bits, by their type or by compression."""
        return bool(self.few_bits or self.two_bits or self.code_bits)

    @property
    def compensates(self) -> bool:
        """Return whether quantized weights are chosen to cancel a part of the errors that earlier layers cause."""
        return self.compensated or self.is_coarse

    def precision_of(self, node: Node) -> DType:
        """Return the type that a node computes in: INT8, INT16 or FLOAT32."""
        return self.precision.get(node.outputs[0].name, DType.FLOAT32)

    def weights_of(self, node: Node) -> DType:
        """Return the type of a layer's weights: FLOAT32, INT16, INT8, INT4 or INT2."""
        if node.outputs[0].name in self.two_bits:
            return DType.INT2
        if node.outputs[0].name in self.wide_weights:
            return DType.INT16
        return DType.INT4 if node.outputs[0].name in self.few_bits else DType.INT8

    def code_bits_of(self, node: Node) -> float | None:
        """Return the average bits per weight of a layer's compressed weights; None if they are not compressed."""
        return self.code_bits.get(node.outputs[0].name) if self.weights_of(node) is DType.INT8 else None

    def shares(self, node: Node) -> tuple[int, DType] | None:
        """Return a key that is equal for all layers with the same quantized weights as this one.

        The key is the number of the set of layers with equal weights, and the type of the weights. It is None if the
        layer shares its weights with no other layer.
        """
        number = self.shared.get(node.outputs[0].name)
        return None if number is None else (number, self.weights_of(node))

    def quant(self, name: str, dtype: DType) -> QuantParams:
        """Return the scale and zero point of the stored activation `name` for a reader that computes in `dtype`."""
        stored = self.activations[name]
        return stored.quant if dtype is stored.dtype else activation_params(stored.low, stored.high, dtype, self.scheme)

    def quant_of(self, value: Value, dtype: DType) -> QuantParams:
        """Return the scale and zero point of a value for a reader that computes in `dtype`.

        Unlike for `quant`, the value may be the result of operators that only move data, such as Reshape. Then the
        parameters of the stored tensor whose data are moved apply.
        """
        return self.quant(self._source(value).name, dtype)

    def stored_as(self, value: Value) -> Stored | None:
        """Return the integer storage of a value; None if it is float32.

        The result of operators that only move data, such as Reshape, has the storage of the tensor whose data they
        move.
        """
        return self.activations.get(self._source(value).name)

    def _source(self, value: Value) -> Value:
        """Return the tensor that a value was moved from, if the float model has only that tensor."""
        while value.name not in self.activations and value.producer is not None and value.producer.op.moves_data:
            value = value.producer.input(0)
        return value
