# SPDX-License-Identifier: Apache-2.0
"""Detection of Keras `Normalization` layers whose mean and variance the exporter lost.

The layer computes (x − mean) ÷ max(√variance, ε). tf2onnx turns mean and variance into inputs of the model, called
"…/normalization/sub/y:0" and "…/normalization/Sqrt/x:0", or leaves their names without a tensor. If `adapt` was not
called, or its results were not saved, the values are NaN, or the variance is 0.
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

MAX_ZERO_DEVIATION = 1e-6
"""Largest standard deviation that counts as 0: in place of 0, Keras divides by 1e-7."""

_PASSING = {"Add", "Cast", "Expand", "Identity", "Max", "Reciprocal", "Reshape", "Sqrt", "Squeeze", "Unsqueeze"}
"""Operators between the variance and the division."""

_KERAS = re.compile(r"normalization[^/]*/(sub|truediv|sqrt|maximum|mul)", re.IGNORECASE)

EXPORT_REMEDY = (
    "export again with keras.layers.Rescaling(1 / std, -mean / std) in place of Normalization (std = variance ** 0.5)"
)
"""Hint for the user if constants are lost: exporters keep the mean and the scale of a Rescaling layer."""

BIND_REMEDY = "or fix both inputs: --bind NAME=FILE.npy"
"""Further hint if the mean and the deviation became inputs of the model: give them a value at compile time."""


class ConstantLoss(Enum):
    """Way in which an exporter lost the mean or variance of a Keras Normalization layer; values are texts for messages.

    INPUT: the constant became an input of the model. MISSING: no tensor has its name. NOT_FINITE and ZERO: its value is
    NaN or infinite, or a variance of 0.
    """

    INPUT = "is an input of the model"
    MISSING = "is missing"
    NOT_FINITE = "is NaN or infinite"
    ZERO = "is 0"


@dataclass(frozen=True)
class LostConstant:
    """A mean or standard deviation of a Keras Normalization layer whose value the exporter did not keep.

    Attributes:
        name: Name of its tensor in the ONNX model.
        loss: How it was lost, such as by becoming an input.
    """

    name: str
    loss: ConstantLoss


@dataclass(frozen=True)
class _Source:
    """The origin of an operand: its name, its values if constant, and whether a square root follows it."""

    name: str
    loss: ConstantLoss | None
    data: Array | None = None
    is_root: bool = False


def lost_constants(graph: onnx.GraphProto, bound: Collection[str] = ()) -> list[LostConstant]:
    """Return the means and standard deviations of Keras normalizations that an exporter lost.

    Args:
        graph: The graph as the exporter wrote it.
        bound: Names of inputs that are fixed at compile time; a constant that became such an input is not lost.
    """
    reader = _Reader(graph, bound)
    constants = [lost for node in graph.node if node.op_type in ("Div", "Mul") for lost in reader.of_division(node)]
    return list(dict.fromkeys(constants))


def describe_lost(lost: Collection[LostConstant]) -> str:
    """Return one line for the user that names the lost constants and says how to export the model again.

    A lost constant is a mean or standard deviation of a Keras Normalization layer whose value the exporter did not
    keep.
    """
    return f"{list_lost_constants(lost)}; {remedy_of(lost)}"


def list_lost_constants(lost: Collection[LostConstant]) -> str:
    """Return a phrase for messages that names the lost constants and says how each was lost.

    A lost constant is a mean or standard deviation of a Keras Normalization layer whose value the exporter did not
    keep.
    """
    named = ", ".join(f"'{constant.name}' {constant.loss.value}" for constant in lost)
    return f"the exporter lost mean or variance of Keras' Normalization layer: {named}"


def remedy_of(lost: Collection[LostConstant]) -> str:
    """Return the advice for the user on how to export the model again without losing constants.

    A lost constant is a mean or standard deviation of a Keras Normalization layer whose value the exporter did not
    keep.
    """
    return (
        f"{EXPORT_REMEDY}, {BIND_REMEDY}"
        if any(constant.loss is ConstantLoss.INPUT for constant in lost)
        else EXPORT_REMEDY
    )


def require_constants(graph: onnx.GraphProto, place: str) -> None:
    """Check that each tensor that a Keras normalization reads as its mean or variance exists in the graph.

    Args:
        graph: The graph as the exporter wrote it.
        place: Name of the model for messages.

    Raises:
        ModelError: Such a tensor is neither computed, nor an input, nor an initializer.
    """
    missing = [constant for constant in lost_constants(graph) if constant.loss is ConstantLoss.MISSING]
    if missing:
        named = ", ".join(f"'{constant.name}'" for constant in missing)
        rule = f"{place}: Keras' Normalization layer must have its mean and variance"
        raise ModelError(rule, f"the exporter lost them: nothing gives {named}", EXPORT_REMEDY)


class _Reader:
    """A lookup of the tensors of a graph: producers, initializers and inputs by name."""

    def __init__(self, graph: onnx.GraphProto, bound: Collection[str]) -> None:
        self.producers = {name: node for node in graph.node for name in node.output}
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {info.name for info in graph.input} - self.tensors.keys()
        self.bound = bound

    def of_division(self, node: onnx.NodeProto) -> Iterator[LostConstant]:
        """Yield the lost constants of x - mean, divided by a deviation or multiplied by its reciprocal."""
        for difference, divisor in self._pairs(node):
            mean, deviation = self._source(difference.input[1]), self._source(divisor)
            if mean is None or deviation is None:
                continue
            is_keras = bool(_KERAS.search(f"{difference.name} {node.name} {mean.name} {deviation.name}"))
            is_both = mean.loss is deviation.loss and deviation.is_root
            if {mean.loss, deviation.loss} & {ConstantLoss.INPUT, ConstantLoss.MISSING} and not (is_keras or is_both):
                continue  # A network with several inputs may compute the same expression.
            for source in (mean, self._judged(deviation, node)):
                if source.loss is not None:
                    yield LostConstant(source.name, source.loss)

    def _pairs(self, node: onnx.NodeProto) -> Iterator[tuple[onnx.NodeProto, str]]:
        """Yield each difference that a node divides or multiplies, with the other operand."""
        orders = ((0, 1),) if node.op_type == "Div" else ((0, 1), (1, 0))
        for first, second in orders:
            producer = self.producers.get(node.input[first])
            if producer is not None and producer.op_type == "Sub":
                yield producer, node.input[second]

    def _source(self, name: str) -> _Source | None:
        """Return the origin of an operand; None if it is computed from the network's data."""
        is_root = False
        for _ in range(len(self.producers) + 1):
            if name in self.tensors:
                return self._constant(name, numpy_helper.to_array(self.tensors[name]), is_root=is_root)
            producer = self.producers.get(name)
            if producer is None:
                is_input = name in self.inputs
                loss = None if name in self.bound else ConstantLoss.INPUT if is_input else ConstantLoss.MISSING
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
        """Return the first input that is not a scalar constant, such as the ε of a maximum; else the first input."""
        scalars = {n for n in node.input if n in self.tensors and not self.tensors[n].dims}
        return str(next((name for name in node.input if name not in scalars), node.input[0]))

    def _constant(self, name: str, data: Array, *, is_root: bool) -> _Source:
        is_bad = data.dtype.kind == "f" and data.size > 0 and not np.isfinite(data).all()
        return _Source(name, ConstantLoss.NOT_FINITE if is_bad else None, data, is_root)

    def _judged(self, deviation: _Source, node: onnx.NodeProto) -> _Source:
        """Return the deviation, marked as lost if all of its divisors are 0."""
        data = deviation.data
        if deviation.loss or data is None or data.dtype.kind != "f" or not data.size:
            return deviation
        divisor = np.abs(data.astype(np.float64))
        if deviation.is_root:  # The data are variances.
            divisor = np.sqrt(divisor)
        elif node.op_type == "Mul":
            divisor = 1 / np.maximum(divisor, MAX_ZERO_DEVIATION)
        return _Source(deviation.name, ConstantLoss.ZERO if divisor.max() <= MAX_ZERO_DEVIATION else None)
