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
from mcugen.training.products import MAX_INT32_SUM, Emitter, Geometry, unscaled_integers

MAX_ERROR_MAGNITUDE = 2**15 - 1
"""Largest magnitude of a quantized gradient's elements, which are int16."""
MIN_ERROR_MAGNITUDE = 63
"""Smallest accepted upper bound of the magnitudes of a quantized gradient's elements.

With fewer levels, the gradient is too coarse to train with.
"""
MIN_MAGNITUDE = 1e-20
"""Lower bound of the divisor when a gradient is scaled by its largest element, as the gradient may be all zero."""


class UnfitError(Exception):
    """A layer or operator cannot be trained in integers; the message names it."""


@dataclass(frozen=True)
class QuantizedError:
    """A quantized gradient of the loss with respect to a tensor, called "error" in back-propagation.

    The gradient is `codes` · `unit`.

    Attributes:
        codes: The quantized elements, int16.
        unit: The scale, float32 [1], which is computed at run time.
        most: Upper bound of the magnitudes of `codes`.
    """

    codes: Value
    unit: Value
    most: int = MAX_ERROR_MAGNITUDE


def max_error_magnitude(geometry: Geometry, seen: int, *, learns: bool) -> int:
    """Return the largest magnitude of int16 gradients for which back-propagation through a layer fits in int32 sums.

    Args:
        geometry: Shapes of the layer.
        seen: Largest magnitude of the layer's quantized inputs, such as 128 for int8.
        learns: Whether the layer's weights are trained, so that the sums of their gradient must fit, too.

    Raises:
        UnfitError: The sums have too many terms: the magnitude would be below MIN_ERROR_MAGNITUDE.
    """
    max_error = min(MAX_ERROR_MAGNITUDE, MAX_INT32_SUM // (128 * geometry.fan_out))
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
        rule_of: Returns the back-propagation rule of a node without trained parameters.
        anchors: Functions that handle the error of a trained layer, by the layer's node, instead of a rule.
        varying: The values that depend on trained parameters; only these receive errors.
        pending: Errors that were received but not propagated yet, by value.
    """

    graph: Graph
    rule_of: Callable[[Node], Rule]
    anchors: Mapping[Node, Callable[[ErrorPropagation, QuantizedError], None]]
    varying: set[Value] = field(default_factory=set)
    pending: dict[Value, list[QuantizedError]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if node in self.anchors or any(v in self.varying for v in node.inputs):
                self.varying.update(node.outputs)

    def propagate(self, value: Value, error: QuantizedError) -> None:
        """Propagate the error of a value through all nodes that the value depends on, up to the trained parameters.

        An error is the quantized gradient of the loss with respect to a value.

        Args:
            value: The value, usually the model's result.
            error: Its error.
        """
        self.add_error(value, error)
        for node in reversed(list(self.graph.nodes)):
            for output in node.outputs:
                errors = self.pending.pop(output, ())
                if errors:
                    total = self._total(errors)
                    if node in self.anchors:
                        self.anchors[node](self, total)
                    else:
                        self.rule_of(node)(self, node, total)

    def add_error(self, value: Value, error: QuantizedError) -> None:
        """Record the error of a value, to be propagated later; several errors of one value are added up.

        An error is the quantized gradient of the loss with respect to a value. It is ignored if the value does not
        depend on trained parameters.
        """
        if value in self.varying:
            self.pending.setdefault(value, []).append(error)

    # --------------------------------------------------------------------------------------------- arithmetic

    @property
    def emit(self) -> Emitter:
        """Return an emitter that adds operators at the end of the graph."""
        return Emitter(self.graph)

    @property
    def call(self) -> OnnxCalls:
        """Return a callable that adds ONNX operators at the end of the graph."""
        return OnnxCalls(self.graph, "error")

    def requantize_sums(self, sums: Value, unit: Value, max_code: int = MAX_ERROR_MAGNITUDE) -> QuantizedError:
        """Return int32 sums as an int16 error whose largest element has magnitude `max_code`.

        An error is the quantized gradient of the loss with respect to a value. The new scale is computed from the sums
        at run time.

        Args:
            sums: The sums, int32.
            unit: The real value that 1 stands for in the sums, float32 [1].
            max_code: Magnitude of the largest element of the result.
        """
        call, axes = self.call, np.arange(sums.type.rank)
        high, low = (
            call(
                "Reshape",
                call("Cast", call(f"Reduce{end}", sums, axes, keepdims=1), to=TensorProto.FLOAT),
                single_element_shape(),
            )
            for end in ("Max", "Min")
        )
        top = call("Max", high, call("Neg", low), np.full(1, MIN_MAGNITUDE, np.float32))
        gain = call("Div", np.full(1, max_code, np.float32), top)
        return self.quantize(
            sums, gain, call("Mul", unit, call("Div", top, np.full(1, max_code, np.float32))), max_code
        )

    def limit_magnitude(self, error: QuantizedError, max_code: int, shares: Array | None = None) -> QuantizedError:
        """Return an error requantized so that its elements have magnitudes of at most `max_code`.

        An error is the quantized gradient of the loss with respect to a value.

        Args:
            error: The error.
            max_code: The new upper bound of the magnitudes.
            shares: Factors from 0 to 1, broadcast to the error's shape, by which the elements are multiplied as well.
        """
        less = min(1.0, max_code / error.most)
        if shares is None and less == 1:
            return error
        gain = np.full(1, less, np.float32) if shares is None else (shares * less).astype(np.float32)
        unit = error.unit if less == 1 else self.call("Mul", error.unit, np.full(1, 1 / less, np.float32))
        return self.quantize(error.codes, gain, unit, min(max_code, error.most))

    def quantize(self, numbers: Value, gain: Value | Array, unit: Value, max_code: int) -> QuantizedError:
        """Return an error whose int16 elements are round(numbers · gain).

        An error is the quantized gradient of the loss with respect to a value.

        Args:
            numbers: Integers or floats.
            gain: The factor, of one element or broadcast to `numbers`.
            unit: Scale of the result, float32 [1]: the real value that 1 stands for.
            max_code: Upper bound of the magnitudes of the elements.
        """
        call = self.call
        real = numbers if numbers.type.dtype.is_float else call("Cast", numbers, to=TensorProto.FLOAT)
        if isinstance(gain, Value):
            gain = call("Reshape", gain, np.ones(numbers.type.rank, np.int64))
        whole = call("Round", call("Mul", real, gain))
        return QuantizedError(
            self.emit(Cast(DType.INT16), whole, type_=unscaled_integers(whole.type.shape, DType.INT16)), unit, max_code
        )

    def _total(self, errors: Sequence[QuantizedError]) -> QuantizedError:
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
        return self.requantize_sums(total, largest)

    def mask_saturated(self, error: QuantizedError, seen: Value, low: float, high: float) -> QuantizedError:
        """Return the error with 0 where an activation saturated, and so has derivative 0.

        An error is the quantized gradient of the loss with respect to a value.

        Args:
            error: The error of the activation's output.
            seen: The quantized output.
            low: Elements of `seen` up to this quantized value are saturated.
            high: Elements of `seen` from this quantized value on are saturated.
        """
        emit, rank, type_ = self.emit, seen.type.rank, error.codes.type
        ends = (self.graph.constant("error.limit", np.full((1,) * rank, end, np.int32)) for end in (low, high))
        above, below = (emit(Binary(f), seen, end) for f, end in zip(("Greater", "Less"), ends, strict=True))
        none = self.graph.constant("error.none", np.zeros((1,) * rank, np.int16), type_.quant)
        kept = emit(Where(), emit(Binary("And"), above, below), error.codes, none, type_=type_)
        return QuantizedError(kept, error.unit, error.most)


Rule = Callable[[ErrorPropagation, Node, QuantizedError], None]
"""A back-propagation rule of an operator: a function that takes the error of a node's output.

It calls `ErrorPropagation.add_error` for the node's inputs.
"""


def single_element_shape() -> Array:
    """Return the array [1]: the operand of an ONNX Reshape to one element."""
    return np.asarray([1])
