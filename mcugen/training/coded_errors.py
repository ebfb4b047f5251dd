# SPDX-License-Identifier: Apache-2.0
"""Gradients as codes on their way back: int16, in units that each tensor's largest element chooses while it runs.

What is real are the units: products and quotients, which IEEE 754 rounds alike everywhere; nothing real is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.traits import clamp_of
from mcugen.hir.types import Array, DType, TensorType
from mcugen.numerics.fixedpoint import clamp_range
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Cast, Dequantize, Quantize
from mcugen.ops.gradient.rule import Backward, derivative_for
from mcugen.ops.matmul import Dense
from mcugen.ops.movement import Expand, Movement
from mcugen.ops.pointwise import Binary, Clamp, Where
from mcugen.ops.reduce import Reduce
from mcugen.ops.scatter import ScatterND
from mcugen.training.layers import layer_name
from mcugen.training.onnx_calls import OnnxCalls
from mcugen.training.products import LONGEST_CODES, Emitter, Geometry, codes_of

LARGEST_ERROR = 2**15 - 1
LEAST_ERROR = 63
"""Errors that must be coarser say too little."""
TINY = 1e-20


class UnfitError(Exception):
    """What cannot be learned in integers, and why."""


@dataclass(frozen=True)
class Error:
    """A gradient: codes (int16) of at most `most`, times a unit (float32 [1])."""

    codes: Value
    unit: Value
    most: int = LARGEST_ERROR


def most_errors(geometry: Geometry, seen: int, *, learns: bool) -> int:
    """What codes of errors must stay within for sums back through a layer to have 32 bits; those by its weights too if
    it `learns`, whose inputs are up to `seen`.
    """
    most = min(LARGEST_ERROR, LONGEST_CODES // (128 * geometry.meeting))
    if learns:
        most = min(most, LONGEST_CODES // (seen * geometry.positions))
    if most < LEAST_ERROR:
        raise UnfitError(f"sums of {geometry.positions} positions")
    return most


@dataclass
class Walk:
    """From the loss back. `anchors` are nodes that stand for parts of their own, which take the error by their result;
    `varying` values depend on what is learned.
    """

    graph: Graph
    anchors: Mapping[Node, Callable[[Walk, Error], None]]
    varying: set[Value] = field(default_factory=set)
    found: dict[Value, list[Error]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if node in self.anchors or any(v in self.varying for v in node.inputs):
                self.varying.update(node.outputs)

    def back(self, value: Value, error: Error) -> None:
        """From a value, whose error this is, to all that is learned."""
        self.give(value, error)
        for node in reversed(list(self.graph.nodes)):
            for output in node.outputs:
                errors = self.found.pop(output, ())
                if errors:
                    total = self._total(errors)
                    if node in self.anchors:
                        self.anchors[node](self, total)
                    else:
                        _rule(node)(self, node, total)

    def give(self, value: Value, error: Error) -> None:
        """An error by a value, which may have others."""
        if value in self.varying:
            self.found.setdefault(value, []).append(error)

    # --------------------------------------------------------------------------------------------- arithmetic

    @property
    def emit(self) -> Emitter:
        """At the end."""
        return Emitter(self.graph)

    @property
    def call(self) -> OnnxCalls:
        """The same of ONNX's operators."""
        return OnnxCalls(self.graph, "error")

    def narrowed(self, sums: Value, unit: Value, most: int = LARGEST_ERROR) -> Error:
        """As codes of which the largest is `most`."""
        call, axes = self.call, np.arange(sums.type.rank)
        high, low = (
            call("Reshape", call("Cast", call(f"Reduce{end}", sums, axes, keepdims=1), to=TensorProto.FLOAT), one())
            for end in ("Max", "Min")
        )
        top = call("Max", high, call("Neg", low), np.full(1, TINY, np.float32))
        gain = call("Div", np.full(1, most, np.float32), top)
        return self._coded(sums, gain, call("Mul", unit, call("Div", top, np.full(1, most, np.float32))), most)

    def within(self, error: Error, most: int, shares: Array | None = None) -> Error:
        """Of at most so many; times `shares`, none of which is beyond 1."""
        less = min(1.0, most / error.most)
        if shares is None and less == 1:
            return error
        gain = np.full(1, less, np.float32) if shares is None else (shares * less).astype(np.float32)
        unit = error.unit if less == 1 else self.call("Mul", error.unit, np.full(1, 1 / less, np.float32))
        return self._coded(error.codes, gain, unit, min(most, error.most))

    def _coded(self, numbers: Value, gain: Value | Array, unit: Value, most: int) -> Error:
        call = self.call
        real = numbers if numbers.type.dtype.is_float else call("Cast", numbers, to=TensorProto.FLOAT)
        if isinstance(gain, Value):
            gain = call("Reshape", gain, np.ones(numbers.type.rank, np.int64))
        whole = call("Round", call("Mul", real, gain))
        return Error(self.emit(Cast(DType.INT16), whole, type_=codes_of(whole.type.shape, DType.INT16)), unit, most)

    def _total(self, errors: Sequence[Error]) -> Error:
        """The sum of several, in the largest unit."""
        if len(errors) == 1:
            return errors[0]
        call = self.call
        largest = call("Max", *(e.unit for e in errors))
        least = call("Max", largest, np.full(1, TINY, np.float32))
        wholes = []
        for e in errors:
            gain = call("Reshape", call("Div", e.unit, least), np.ones(e.codes.type.rank, np.int64))
            wholes.append(call("Round", call("Mul", call("Cast", e.codes, to=TensorProto.FLOAT), gain)))
        total = wholes[0]
        for whole in wholes[1:]:
            total = call("Add", total, whole)
        return self.narrowed(total, largest)

    def masked(self, error: Error, seen: Value, low: float, high: float) -> Error:
        """Where codes were within limits."""
        emit, rank, type_ = self.emit, seen.type.rank, error.codes.type
        ends = (self.graph.constant("error.limit", np.full((1,) * rank, end, np.int32)) for end in (low, high))
        above, below = (emit(Binary(f), seen, end) for f, end in zip(("Greater", "Less"), ends, strict=True))
        none = self.graph.constant("error.none", np.zeros((1,) * rank, np.int16), type_.quant)
        kept = emit(Where(), emit(Binary("And"), above, below), error.codes, none, type_=type_)
        return Error(kept, error.unit, error.most)


def one() -> Array:
    """A shape."""
    return np.asarray([1])


def _of_quantize(walk: Walk, node: Node, error: Error) -> None:
    """Straight through, where codes did not saturate, nor the clamp before them."""
    before, type_ = node.input(0).producer, node.output.type
    clamp = None
    if before is not None and isinstance(before.op, Clamp):
        clamp = (before.op.low, before.op.high)
    elif before is not None:
        clamp = clamp_of(before.op)
    walk.give(node.input(0), walk.masked(error, node.output, *clamp_range(clamp, type_.q, type_.dtype)))


def _straight(walk: Walk, node: Node, error: Error) -> None:
    walk.give(node.input(0), error)


def _of_clamp(walk: Walk, node: Node, error: Error) -> None:
    """Codes that are made of it say where it did not clamp."""
    user = walk.graph.only_user(node.output)
    if user is None or not isinstance(user.op, Quantize):
        raise UnfitError(f"'{layer_name(node)}', which clamps reals")
    walk.give(node.input(0), error)


def _of_sum(walk: Walk, node: Node, error: Error) -> None:
    """To both terms."""
    if not isinstance(node.op, Binary) or node.op.function != "Add":
        raise UnfitError(f"{node.op.name} '{layer_name(node)}'")
    for value in node.inputs:
        if value in walk.varying and value is not None:
            if value.type.shape != node.output.type.shape:
                raise UnfitError(f"'{layer_name(node)}', which repeats a term")
            walk.give(value, error)


def _of_mean(walk: Walk, node: Node, error: Error) -> None:
    """To each its share."""
    op, x = node.op, node.input(0)
    if not isinstance(op, Reduce) or op.function not in ("mean", "sum"):
        raise UnfitError(f"{op.name} '{layer_name(node)}'")
    count = x.type.count / node.output.type.count if op.function == "mean" else 1.0
    codes = walk.emit(Expand(x.type.shape), error.codes, type_=codes_of(x.type.shape, DType.INT16))
    walk.give(x, Error(codes, walk.call("Mul", error.unit, np.full(1, 1 / count, np.float32)), error.most))


def _of_move(walk: Walk, node: Node, error: Error) -> None:
    """As of reals."""
    derivative = derivative_for(node.op)
    if derivative is None:
        raise UnfitError(f"{node.op.name} '{layer_name(node)}'")
    back = Backward(walk.graph, node, walk.varying)
    for index, make in derivative.rule(back, node, [error.codes]).items():
        value = node.input(index)
        if value in walk.varying and (codes := make()) is not None:
            walk.give(value, Error(codes, error.unit, error.most))


def _of_layer(walk: Walk, node: Node, error: Error) -> None:
    """By weights that stay."""
    frozen = Frozen.of(node)
    rows = frozen.geometry.by_channel(walk.emit, error.codes)
    walk.give(node.input(0), frozen.back(walk, Error(rows, error.unit, error.most)))


@dataclass(frozen=True)
class Frozen:
    """A layer whose weights stay: constant codes, and what they stand for by channel."""

    geometry: Geometry
    codes: Value
    scales: Array

    @staticmethod
    def of(node: Node) -> Frozen:
        """UnfitError unless the weights are symmetric int8 codes, and it computes one image."""
        source = node.input(1).producer
        stored = source.input(0) if source is not None and isinstance(source.op, Dequantize) else None
        if stored is None or not is_symmetric(stored.type):
            raise UnfitError(f"'{layer_name(node)}', whose weights are no codes of int8")
        scales = np.broadcast_to(stored.type.q.scales, stored.type.shape[:1]).astype(np.float64)
        return Frozen(geometry_of(node), stored, scales)

    def back(self, walk: Walk, error: Error) -> Error:
        """The error by what it reads, of errors [C, positions]."""
        g, emit = self.geometry, walk.emit
        largest = float(self.scales.max())
        shares = (self.scales / largest).reshape(-1, 1) if np.ptp(self.scales) else None
        rows = walk.within(error, most_errors(g, 1, learns=False), shares)
        assert self.codes.data is not None
        plain = walk.graph.constant(f"{self.codes.name}.back", self.codes.data, codes_of((1,), DType.INT8).quant)
        unit = walk.call("Mul", rows.unit, np.full(1, largest, np.float32))
        return walk.narrowed(g.by_inputs(emit, rows.codes, plain), unit)


def is_symmetric(codes: TensorType) -> bool:
    """int8, with one scale or one for each output channel."""
    return codes.dtype is DType.INT8 and codes.q.zero_point == 0 and codes.q.axis in (None, 0)


def geometry_of(node: Node) -> Geometry:
    """UnfitError unless a layer computes one image, or rows."""
    op, x, y = node.op, node.input(0).type.shape, node.output.type.shape
    if not isinstance(op, Conv | Dense) or (isinstance(op, Conv) and (x[0] != 1 or op.is_channels_last)):
        raise UnfitError(f"'{layer_name(node)}', which is no dense layer nor a convolution of one image")
    return Geometry(op, x, y, node.input(1).type.shape)


def _rule(node: Node) -> Rule:
    """What a node that learns nothing does with the error by its result."""
    for kinds, rule in _RULES.items():
        if isinstance(node.op, kinds):
            return rule
    raise UnfitError(f"{node.op.name} '{layer_name(node)}'")


Rule = Callable[[Walk, Node, Error], None]

_RULES: Mapping[type[Operator] | tuple[type[Operator], ...], Rule] = {
    Quantize: _of_quantize,
    Dequantize: _straight,
    Clamp: _of_clamp,
    Binary: _of_sum,
    Reduce: _of_mean,
    (Movement, ScatterND): _of_move,
    (Conv, Dense): _of_layer,
}
