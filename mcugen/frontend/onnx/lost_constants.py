# SPDX-License-Identifier: Apache-2.0
"""Keras' `Normalization` layer whose mean and variance the exporter lost.

The layer computes (x − mean) ÷ max(√variance, ε). tf2onnx takes the two for inputs of the model, called
"…/normalization/sub/y:0" and "…/normalization/Sqrt/x:0", or leaves their names without a tensor. Where `adapt` was not
called, or its numbers were not saved, they are NaN or a variance of 0.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import onnx
from onnx import numpy_helper

from mcugen.core.errors import ModelError
from mcugen.hir.types import Array

LEAST_DIVISOR = 1e-6
"""A standard deviation up to this is none: Keras divides by 1e-7 where the variance is 0."""

_PASSING = {"Add", "Cast", "Expand", "Identity", "Max", "Reciprocal", "Reshape", "Sqrt", "Squeeze", "Unsqueeze"}
"""Operators between the variance and the division."""

_KERAS = re.compile(r"normalization[^/]*/(sub|truediv|sqrt|maximum|mul)", re.IGNORECASE)

REMEDY = (
    "export again with keras.layers.Rescaling(1 / std, -mean / std) in place of Normalization (std = variance ** 0.5)"
)
"""How to export so that the numbers are constants: those of Rescaling are."""

BINDING = "or fix both inputs: --bind NAME=FILE.npy"
"""What helps besides where they are inputs."""


class Loss(Enum):
    """How a constant is lost; the value says it."""

    INPUT = "is an input of the model"
    MISSING = "is missing"
    NOT_FINITE = "is NaN or infinite"
    ZERO = "is 0"


@dataclass(frozen=True)
class LostConstant:
    """A mean or a standard deviation that is lost, and the name of its tensor."""

    name: str
    loss: Loss


@dataclass(frozen=True)
class _Source:
    """Where an operand comes from: its name, its numbers if it is constant, and whether a square root was taken."""

    name: str
    loss: Loss | None
    data: Array | None = None
    is_root: bool = False


def lost_constants(graph: onnx.GraphProto, bound: Collection[str] = ()) -> list[LostConstant]:
    """Return the lost constants of all normalizations of a graph.

    Args:
        graph: The graph as the exporter wrote it.
        bound: Inputs that are fixed at compile time, and so are not lost.
    """
    reader = _Reader(graph, bound)
    constants = [lost for node in graph.node if node.op_type in ("Div", "Mul") for lost in reader.of_division(node)]
    return list(dict.fromkeys(constants))


def describe_lost(lost: Collection[LostConstant]) -> str:
    """Return one line that says what was lost and how to export again."""
    return f"{what_is_lost(lost)}; {remedy_of(lost)}"


def what_is_lost(lost: Collection[LostConstant]) -> str:
    """Return the first half of that line."""
    named = ", ".join(f"'{constant.name}' {constant.loss.value}" for constant in lost)
    return f"the exporter lost mean or variance of Keras' Normalization layer: {named}"


def remedy_of(lost: Collection[LostConstant]) -> str:
    """Return the other half."""
    return f"{REMEDY}, {BINDING}" if any(constant.loss is Loss.INPUT for constant in lost) else REMEDY


def require_constants(graph: onnx.GraphProto, place: str) -> None:
    """Raise a ModelError if the mean or the variance of a normalization has no tensor at all."""
    missing = [constant for constant in lost_constants(graph) if constant.loss is Loss.MISSING]
    if missing:
        named = ", ".join(f"'{constant.name}'" for constant in missing)
        rule = f"{place}: Keras' Normalization layer must have its mean and variance"
        raise ModelError(rule, f"the exporter lost them: nothing gives {named}", REMEDY)


class _Reader:
    """What tensors of a graph are."""

    def __init__(self, graph: onnx.GraphProto, bound: Collection[str]) -> None:
        self.producers = {name: node for node in graph.node for name in node.output}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {info.name for info in graph.input} - self.tensors.keys()
        self.bound = bound

    def of_division(self, node: onnx.NodeProto) -> Iterator[LostConstant]:
        """Yield what is lost of x - mean, divided by a deviation or multiplied by its reciprocal."""
        for difference, divisor in self._pairs(node):
            mean, deviation = self._source(difference.input[1]), self._source(divisor)
            if mean is None or deviation is None:
                continue
            is_keras = bool(_KERAS.search(f"{difference.name} {node.name} {mean.name} {deviation.name}"))
            is_both = mean.loss is deviation.loss and deviation.is_root
            if {mean.loss, deviation.loss} & {Loss.INPUT, Loss.MISSING} and not (is_keras or is_both):
                continue  # a network of several inputs may well compute that
            for source in (mean, self._judged(deviation, node)):
                if source.loss is not None:
                    yield LostConstant(source.name, source.loss)

    def _pairs(self, node: onnx.NodeProto) -> Iterator[tuple[onnx.NodeProto, str]]:
        """Yield differences that a node divides, and by what."""
        orders = ((0, 1),) if node.op_type == "Div" else ((0, 1), (1, 0))
        for first, second in orders:
            producer = self.producers.get(node.input[first])
            if producer is not None and producer.op_type == "Sub":
                yield producer, node.input[second]

    def _source(self, name: str) -> _Source | None:
        """Return where an operand comes from; None for what is computed from the network's data."""
        is_root = False
        for _ in range(len(self.producers) + 1):
            if name in self.tensors:
                return self._constant(name, numpy_helper.to_array(self.tensors[name]), is_root=is_root)
            producer = self.producers.get(name)
            if producer is None:
                is_input = name in self.inputs
                loss = None if name in self.bound else Loss.INPUT if is_input else Loss.MISSING
                return _Source(name, loss, None, is_root)
            if producer.op_type == "Constant":
                values = [numpy_helper.to_array(a.t) for a in producer.attribute if a.name == "value"]
                return self._constant(name, values[0], is_root=is_root) if values else None
            if producer.op_type not in _PASSING:
                return None
            is_root |= producer.op_type == "Sqrt"
            name = self._variable_input(producer)
        return None

    def _variable_input(self, node: onnx.NodeProto) -> str:
        """Return the input of a node that is no small constant, such as the ε of a maximum; else the first."""
        scalars = {n for n in node.input if n in self.tensors and not self.tensors[n].dims}
        return str(next((name for name in node.input if name not in scalars), node.input[0]))

    def _constant(self, name: str, data: Array, *, is_root: bool) -> _Source:
        is_bad = data.dtype.kind == "f" and data.size > 0 and not np.isfinite(data).all()
        return _Source(name, Loss.NOT_FINITE if is_bad else None, data, is_root)

    def _judged(self, deviation: _Source, node: onnx.NodeProto) -> _Source:
        """Return a deviation that is lost if it divides by nothing but 0."""
        data = deviation.data
        if deviation.loss or data is None or data.dtype.kind != "f" or not data.size:
            return deviation
        divisor = np.abs(data.astype(np.float64))
        if deviation.is_root:  # these are variances
            divisor = np.sqrt(divisor)
        elif node.op_type == "Mul":
            divisor = 1 / np.maximum(divisor, LEAST_DIVISOR)
        return _Source(deviation.name, Loss.ZERO if divisor.max() <= LEAST_DIVISOR else None)
