# SPDX-License-Identifier: Apache-2.0
"""Back-propagation of quantized gradients: int16 values whose scale is set by the tensor's largest element at run time.

Only the scales ("units") are floats. They are products and quotients, which IEEE 754 rounds alike on every CPU; floats
are never summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array, DType
from mcugen.ops.conversion import Cast
from mcugen.ops.pointwise import Binary, Where
from mcugen.training.onnx_calls import OnnxCalls
from mcugen.training.products import MAX_INT32_SUM, Emitter, Geometry, codes_of

LARGEST_ERROR = 2**15 - 1
"""Largest magnitude of an int16 gradient value."""
MIN_ERROR_MAGNITUDE = 63
"""Smallest maximum magnitude of int16 gradient values: with fewer steps, the gradient is too coarse to train with."""
MIN_MAGNITUDE = 1e-20
"""Lower bound of divisors, so that a gradient of only zeros causes no division by zero."""


class UnfitError(Exception):
    """Raised if a layer or operator cannot be trained in integers; the message names it."""


@dataclass(frozen=True)
class Error:
    """A quantized gradient: int16 `codes`, of magnitudes up to `most`, times the scale `unit` (float32 [1])."""

    codes: Value
    unit: Value
    most: int = LARGEST_ERROR


def max_error_magnitude(geometry: Geometry, seen: int, *, learns: bool) -> int:
    """Return the largest int16 gradient magnitude for which back-propagation through a layer fits in int32 sums.

    Args:
        geometry: Sizes of the layer.
        seen: Largest magnitude of the layer's inputs.
        learns: Whether the sums of the gradient of the layer's weights must fit, too.

    Raises:
        UnfitError: The sums have too many terms: the magnitude would be below MIN_ERROR_MAGNITUDE.
    """
    max_error = min(LARGEST_ERROR, MAX_INT32_SUM // (128 * geometry.fan_out))
    if learns:
        max_error = min(max_error, MAX_INT32_SUM // (seen * geometry.positions))
    if max_error < MIN_ERROR_MAGNITUDE:
        raise UnfitError(f"sums of {geometry.positions} positions")
    return max_error


@dataclass
class ErrorPropagation:
    """Back-propagation of quantized gradients ("errors") from the loss to the trained parameters.

    Attributes:
        graph: The graph, to which the gradient computation is added.
        rule_of: Returns the back-propagation rule of a node.
        anchors: Handlers, by node, of the errors of trained layers; they replace the node's rule.
        varying: The values that depend on trained parameters; only these receive errors.
        found: The errors received so far, by value.
    """

    graph: Graph
    rule_of: Callable[[Node], Rule]
    anchors: Mapping[Node, Callable[[ErrorPropagation, Error], None]]
    varying: set[Value] = field(default_factory=set)
    found: dict[Value, list[Error]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if node in self.anchors or any(v in self.varying for v in node.inputs):
                self.varying.update(node.outputs)

    def back(self, value: Value, error: Error) -> None:
        """Propagate the error of a value back through all nodes before it, to all trained parameters."""
        self.give(value, error)
        for node in reversed(list(self.graph.nodes)):
            for output in node.outputs:
                errors = self.found.pop(output, ())
                if errors:
                    total = self._total(errors)
                    if node in self.anchors:
                        self.anchors[node](self, total)
                    else:
                        self.rule_of(node)(self, node, total)

    def give(self, value: Value, error: Error) -> None:
        """Record an error (gradient of the loss) of a value; the errors of a value are added up.

        The error is ignored if the value does not depend on trained parameters.
        """
        if value in self.varying:
            self.found.setdefault(value, []).append(error)

    # --------------------------------------------------------------------------------------------- arithmetic

    @property
    def emit(self) -> Emitter:
        """Return an emitter that adds operators at the end of the graph."""
        return Emitter(self.graph)

    @property
    def call(self) -> OnnxCalls:
        """Return a callable that adds ONNX operators to the graph."""
        return OnnxCalls(self.graph, "error")

    def narrowed(self, sums: Value, unit: Value, max_code: int = LARGEST_ERROR) -> Error:
        """Requantize integer `sums` with scale `unit` to int16, so that the largest magnitude becomes `max_code`."""
        call, axes = self.call, np.arange(sums.type.rank)
        high, low = (
            call("Reshape", call("Cast", call(f"Reduce{end}", sums, axes, keepdims=1), to=TensorProto.FLOAT), one())
            for end in ("Max", "Min")
        )
        top = call("Max", high, call("Neg", low), np.full(1, MIN_MAGNITUDE, np.float32))
        gain = call("Div", np.full(1, max_code, np.float32), top)
        return self.coded(sums, gain, call("Mul", unit, call("Div", top, np.full(1, max_code, np.float32))), max_code)

    def within(self, error: Error, max_code: int, shares: Array | None = None) -> Error:
        """Requantize an error to magnitudes of at most `max_code`.

        With `shares`, factors from 0 to 1 that broadcast to the error's shape, the error is also multiplied by them.
        """
        less = min(1.0, max_code / error.most)
        if shares is None and less == 1:
            return error
        gain = np.full(1, less, np.float32) if shares is None else (shares * less).astype(np.float32)
        unit = error.unit if less == 1 else self.call("Mul", error.unit, np.full(1, 1 / less, np.float32))
        return self.coded(error.codes, gain, unit, min(max_code, error.most))

    def coded(self, numbers: Value, gain: Value | Array, unit: Value, max_code: int) -> Error:
        """Return an error whose int16 values are round(numbers · gain).

        Args:
            numbers: Integers or floats.
            gain: The factor, of one element or broadcast to `numbers`.
            unit: Scale of the int16 values (float32 [1]).
            max_code: Largest magnitude of the int16 values.
        """
        call = self.call
        real = numbers if numbers.type.dtype.is_float else call("Cast", numbers, to=TensorProto.FLOAT)
        if isinstance(gain, Value):
            gain = call("Reshape", gain, np.ones(numbers.type.rank, np.int64))
        whole = call("Round", call("Mul", real, gain))
        return Error(self.emit(Cast(DType.INT16), whole, type_=codes_of(whole.type.shape, DType.INT16)), unit, max_code)

    def _total(self, errors: Sequence[Error]) -> Error:
        """Return the sum of several errors, in the largest unit."""
        if len(errors) == 1:
            return errors[0]
        call = self.call
        largest = call("Max", *(e.unit for e in errors))
        positive_unit = call("Max", largest, np.full(1, MIN_MAGNITUDE, np.float32))
        wholes = []
        for e in errors:
            gain = call("Reshape", call("Div", e.unit, positive_unit), np.ones(e.codes.type.rank, np.int64))
            wholes.append(call("Round", call("Mul", call("Cast", e.codes, to=TensorProto.FLOAT), gain)))
        total = wholes[0]
        for whole in wholes[1:]:
            total = call("Add", total, whole)
        return self.narrowed(total, largest)

    def masked(self, error: Error, seen: Value, low: float, high: float) -> Error:
        """Return the error, set to 0 where the quantized value `seen` is not strictly between `low` and `high`."""
        emit, rank, type_ = self.emit, seen.type.rank, error.codes.type
        ends = (self.graph.constant("error.limit", np.full((1,) * rank, end, np.int32)) for end in (low, high))
        above, below = (emit(Binary(f), seen, end) for f, end in zip(("Greater", "Less"), ends, strict=True))
        none = self.graph.constant("error.none", np.zeros((1,) * rank, np.int16), type_.quant)
        kept = emit(Where(), emit(Binary("And"), above, below), error.codes, none, type_=type_)
        return Error(kept, error.unit, error.most)


Rule = Callable[[ErrorPropagation, Node, Error], None]
"""Back-propagation rule of a node: takes the error of its output and gives errors to its inputs."""


def one() -> Array:
    """Return [1], the shape operand of an ONNX Reshape to one element."""
    return np.asarray([1])
