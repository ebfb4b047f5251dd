# SPDX-License-Identifier: Apache-2.0
"""Back-propagation of quantized gradients: int16, in units by each tensor's largest element at run time.

What is real are the units: products and quotients, which IEEE 754 rounds alike everywhere; nothing real is added.
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
from mcugen.training.products import LONGEST_CODES, Emitter, Geometry, codes_of

LARGEST_ERROR = 2**15 - 1
MIN_ERROR_RANGE = 63
"""Errors that must be coarser say too little."""
MIN_MAGNITUDE = 1e-20


class UnfitError(Exception):
    """Raised if something cannot be trained in integers; the message says why."""


@dataclass(frozen=True)
class Error:
    """A gradient: codes (int16) of at most `most`, times a unit (float32 [1])."""

    codes: Value
    unit: Value
    most: int = LARGEST_ERROR


def most_errors(geometry: Geometry, seen: int, *, learns: bool) -> int:
    """Return the largest magnitude of quantized errors for which sums back through a layer fit in 32 bits.

    Args:
        geometry: Sizes of the layer.
        seen: Largest magnitude of the layer's inputs.
        learns: Whether the sums of the weights' gradient must fit, too.

    Raises:
        UnfitError: The sums have too many terms.
    """
    max_error = min(LARGEST_ERROR, LONGEST_CODES // (128 * geometry.meeting))
    if learns:
        max_error = min(max_error, LONGEST_CODES // (seen * geometry.positions))
    if max_error < MIN_ERROR_RANGE:
        raise UnfitError(f"sums of {geometry.positions} positions")
    return max_error


@dataclass
class ErrorPropagation:
    """Back-propagation of quantized errors from the loss.

    `rule_of` returns what a node does with the error of its result. `anchors` are nodes that represent parts of their
    own, which receive the error. `varying` values depend on trained parameters.
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
        """Propagate the error of a value back to all trained parameters."""
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
        """Add an error to those of a value."""
        if value in self.varying:
            self.found.setdefault(value, []).append(error)

    # --------------------------------------------------------------------------------------------- arithmetic

    @property
    def emit(self) -> Emitter:
        """Return an emitter that adds operators at the end of the graph."""
        return Emitter(self.graph)

    @property
    def call(self) -> OnnxCalls:
        """Return an emitter of ONNX operators."""
        return OnnxCalls(self.graph, "error")

    def narrowed(self, sums: Value, unit: Value, max_code: int = LARGEST_ERROR) -> Error:
        """Requantize sums so that the largest magnitude is `max_code`."""
        call, axes = self.call, np.arange(sums.type.rank)
        high, low = (
            call("Reshape", call("Cast", call(f"Reduce{end}", sums, axes, keepdims=1), to=TensorProto.FLOAT), one())
            for end in ("Max", "Min")
        )
        top = call("Max", high, call("Neg", low), np.full(1, MIN_MAGNITUDE, np.float32))
        gain = call("Div", np.full(1, max_code, np.float32), top)
        return self.coded(sums, gain, call("Mul", unit, call("Div", top, np.full(1, max_code, np.float32))), max_code)

    def within(self, error: Error, max_code: int, shares: Array | None = None) -> Error:
        """Requantize an error to magnitudes of at most `max_code`, multiplied by `shares`, none of which exceeds 1."""
        less = min(1.0, max_code / error.most)
        if shares is None and less == 1:
            return error
        gain = np.full(1, less, np.float32) if shares is None else (shares * less).astype(np.float32)
        unit = error.unit if less == 1 else self.call("Mul", error.unit, np.full(1, 1 / less, np.float32))
        return self.coded(error.codes, gain, unit, min(max_code, error.most))

    def coded(self, numbers: Value, gain: Value | Array, unit: Value, max_code: int) -> Error:
        """Return an error whose codes are numbers times a gain (one, or one for each number), rounded to int16.

        Args:
            numbers: Integers or floats.
            gain: The factor.
            unit: The unit of the codes.
            max_code: Largest magnitude of the codes.
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
        """Return the error where quantized values were within limits, else 0."""
        emit, rank, type_ = self.emit, seen.type.rank, error.codes.type
        ends = (self.graph.constant("error.limit", np.full((1,) * rank, end, np.int32)) for end in (low, high))
        above, below = (emit(Binary(f), seen, end) for f, end in zip(("Greater", "Less"), ends, strict=True))
        none = self.graph.constant("error.none", np.zeros((1,) * rank, np.int16), type_.quant)
        kept = emit(Where(), emit(Binary("And"), above, below), error.codes, none, type_=type_)
        return Error(kept, error.unit, error.most)


Rule = Callable[[ErrorPropagation, Node, Error], None]


def one() -> Array:
    """Return the shape of one element."""
    return np.asarray([1])
