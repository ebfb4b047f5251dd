# SPDX-License-Identifier: Apache-2.0
"""Back-propagation rules of nodes without trained parameters, with quantized errors.

They compute integer products in int32, or single products of reals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcugen.core.errors import McugenError
from mcugen.expressions.derivative import NoDerivative
from mcugen.hir.graph import Node, Value
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.traits import clamp_of
from mcugen.hir.types import Array, DType, TensorType
from mcugen.numerics.fixedpoint import clamp_range
from mcugen.ops.conv import Conv
from mcugen.ops.conv_transpose import IntegerConvTranspose
from mcugen.ops.conversion import Dequantize, Quantize
from mcugen.ops.elementwise import Elementwise
from mcugen.ops.gradient.elementwise import Slope
from mcugen.ops.gradient.rule import Backward, derivative_for
from mcugen.ops.gradient.statistics import average_shares
from mcugen.ops.matmul import Dense
from mcugen.ops.movement import Expand, Movement
from mcugen.ops.pattern import Zeros
from mcugen.ops.pointwise import Binary, Clamp
from mcugen.ops.pool import AveragePool, DirectPool, MaxPool
from mcugen.ops.reduce import Reduce
from mcugen.ops.scatter import ScatterElements, ScatterND
from mcugen.training.coded_errors import (
    MIN_ERROR_MAGNITUDE,
    ErrorPropagation,
    QuantizedError,
    Rule,
    UnfitError,
    max_error_magnitude,
)
from mcugen.training.layers import layer_name
from mcugen.training.parameters import is_symmetric
from mcugen.training.products import MAX_INT32_SUM, Geometry, unscaled_integers


def _of_quantize(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Pass the error straight through where neither the codes nor the clamp before them saturated."""
    before, type_ = node.input(0).producer, node.output.type
    clamp = None
    if before is not None and isinstance(before.op, Clamp):
        clamp = (before.op.low, before.op.high)
    elif before is not None:
        clamp = clamp_of(before.op)
    walk.add_error(node.input(0), walk.mask_saturated(error, node.output, *clamp_range(clamp, type_.q, type_.dtype)))


def _straight(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    walk.add_error(node.input(0), error)


def _of_clamp(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Pass the error through; if the result is quantized, its codes already mask clamped elements."""
    user = walk.graph.only_user(node.output)
    if user is not None and isinstance(user.op, Quantize):
        walk.add_error(node.input(0), error)
    else:
        _of_function(walk, node, error)


def _of_binary(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Propagate through a sum or product of tensors, or a function of one tensor."""
    is_of_one = len({value for value in node.inputs if value is not None and not value.is_constant}) == 1
    assert isinstance(node.op, Binary)
    rule = _of_function if is_of_one else {"Add": _of_sum, "Mul": _of_product}.get(node.op.function)
    if rule is None:
        raise UnfitError(f"{node.op.name} '{layer_name(node)}'")
    rule(walk, node, error)


def _of_product(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Give each factor the other factor times the error, summed over broadcast axes."""
    for index, value in enumerate(node.inputs):
        if value in walk.varying and value is not None:
            other = _stored(node, node.input(1 - index))
            count = error.codes.type.count // value.type.count
            max_code = MAX_INT32_SUM // (256 * count)
            if max_code < MIN_ERROR_MAGNITUDE:
                raise UnfitError(f"sums of {count} positions")
            limited_error = walk.limit_magnitude(error, max_code)
            wide, codes = (walk.call("Cast", v, to=TensorProto.INT32) for v in (limited_error.codes, other))
            zero = np.full((1,) * codes.type.rank, other.type.q.zero_point, np.int32)
            sums = walk.call("Mul", wide, walk.call("Sub", codes, zero))
            whole = Backward(walk.graph, node).summed_to(sums, value.type.shape)
            scale = np.full(1, other.type.q.scale[0], np.float32)
            walk.add_error(value, walk.requantize_sums(whole, walk.call("Mul", limited_error.unit, scale)))


def _of_function(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Multiply the error by the slope, a table over the quantized input."""
    varying = [i for i, value in enumerate(node.inputs) if value in walk.varying]
    if len(varying) != 1:
        raise UnfitError(f"{node.op.name} '{layer_name(node)}', which reads a tensor twice")
    value, index = node.input(varying[0]), varying[0]
    stored = _stored(node, value)
    slopes = _slopes(node, index, stored.type)
    if value.type.shape != node.output.type.shape:
        raise UnfitError(f"'{layer_name(node)}', which repeats its input")
    steepest = float(np.abs(slopes).max()) or 1.0
    row = walk.call("Add", walk.call("Cast", stored, to=TensorProto.INT32), np.full((), 128, np.int32))
    gain = walk.call("Gather", (slopes / steepest).astype(np.float32), row, axis=0)
    unit = walk.call("Mul", error.unit, np.full(1, steepest, np.float32))
    real = walk.call("Mul", walk.call("Cast", error.codes, to=TensorProto.FLOAT), gain)
    walk.add_error(value, walk.quantize(real, np.ones(1, np.float32), unit, error.most))


def _slopes(node: Node, index: int, codes: TensorType) -> Array:
    """Return the derivative of a function of one tensor at each of its 256 quantized values."""
    op = node.op
    assert isinstance(op, Elementwise)
    reals = (np.arange(-128, 128) - codes.q.zero_point).astype(np.float32) * np.float32(codes.q.scale[0])
    arrays = [np.ones(256, np.float32)]
    for i, value in enumerate(node.inputs):
        data = reals if i == index else value.data if value is not None else None
        if data is None or data.size not in (1, 256) or (data.size == 256 and i != index):
            raise UnfitError(f"{op.name} '{layer_name(node)}', of several tensors")
        arrays.append(data.reshape(-1))
    dtypes = tuple(DType.of(array) for array in arrays[1:])
    slope = Slope(op, index, dtypes, tuple(range(len(dtypes))))
    types = tuple(TensorType(array.shape, DType.of(array)) for array in arrays)
    try:
        (derivative,) = slope.evaluate(Signature(types, slope.infer(*types)), *arrays)
    except (NoDerivative, McugenError):
        raise UnfitError(f"{op.name} '{layer_name(node)}'") from None
    slopes: Array = np.broadcast_to(derivative, (256,)).astype(np.float64)
    if not np.isfinite(slopes).all():
        raise UnfitError(f"{op.name} '{layer_name(node)}', whose slope is no finite number everywhere")
    return slopes


def _stored(node: Node, value: Value) -> Value:
    """Return the int8 tensor behind a value.

    Raises:
        UnfitError: The value is not dequantized from int8.
    """
    source = value.producer
    if source is not None and isinstance(source.op, Dequantize):
        codes = source.input(0)
        if codes.type.dtype is DType.INT8 and codes.type.q.axis is None:
            return codes
    raise UnfitError(f"{node.op.name} '{layer_name(node)}', whose input is no int8")


def _of_max_pool(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Give the error to the first largest element of each window."""
    op, x = node.op, node.input(0)
    assert isinstance(op, MaxPool)
    where = DirectPool(op.window, kernel=op.kernel, function="max", order="row")
    names = [f"{node.outputs[0].name}.error.{name}" for name in ("largest", "positions")]
    _, positions = walk.graph.add(where, [_stored(node, x)], node.origin, names=names).outputs
    wide = walk.call("Cast", error.codes, to=TensorProto.INT32)
    flat = (walk.emit.reshaped(v, (v.type.count,)) for v in (positions, wide))
    none = walk.emit(Zeros((x.type.count,), DType.INT32))
    sums = walk.emit.reshaped(walk.emit(ScatterElements(0, "add"), none, *flat), x.type.shape)
    walk.add_error(x, walk.requantize_sums(sums, error.unit))


def _of_average_pool(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Give equal parts of the error to all elements of a window."""
    op, x = node.op, node.input(0).type
    assert isinstance(op, AveragePool)
    shares = average_shares(node, op).astype(np.float64)
    largest_share = float(shares.max())
    shared_error = walk.limit_magnitude(error, error.most, shares / largest_share) if np.ptp(shares) else error
    ones = np.ones((x.shape[1], 1, *op.kernel), np.int8)
    filters = walk.graph.constant("error.ones", ones, unscaled_integers((1,), DType.INT8).quant)
    sums = walk.emit(IntegerConvTranspose(op.window, x.shape[2:], x.shape[1]), shared_error.codes, filters)
    unit = walk.call("Mul", shared_error.unit, np.full(1, largest_share, np.float32))
    walk.add_error(node.input(0), walk.requantize_sums(sums, unit))


def _of_sum(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Give the error to both terms."""
    for value in node.inputs:
        if value in walk.varying and value is not None:
            if value.type.shape != node.output.type.shape:
                raise UnfitError(f"'{layer_name(node)}', which repeats a term")
            walk.add_error(value, error)


def _of_mean(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Give each element its share of the error."""
    op, x = node.op, node.input(0)
    if not isinstance(op, Reduce) or op.function not in ("mean", "sum"):
        raise UnfitError(f"{op.name} '{layer_name(node)}'")
    count = x.type.count / node.output.type.count if op.function == "mean" else 1.0
    codes = walk.emit(Expand(x.type.shape), error.codes, type_=unscaled_integers(x.type.shape, DType.INT16))
    walk.add_error(
        x, QuantizedError(codes, walk.call("Mul", error.unit, np.full(1, 1 / count, np.float32)), error.most)
    )


def _of_move(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Propagate through a data movement by its derivative for reals."""
    derivative = derivative_for(node.op)
    if derivative is None:
        raise UnfitError(f"{node.op.name} '{layer_name(node)}'")
    back = Backward(walk.graph, node, walk.varying)
    for index, make in derivative.rule(back, node.op, node, [error.codes]).items():
        value = node.input(index)
        if value in walk.varying and (codes := make()) is not None:
            walk.add_error(value, QuantizedError(codes, error.unit, error.most))


def _of_layer(walk: ErrorPropagation, node: Node, error: QuantizedError) -> None:
    """Propagate through a layer with frozen weights."""
    frozen = FrozenLayer.of(node)
    rows = frozen.geometry.by_channel(walk.emit, error.codes)
    walk.add_error(node.input(0), frozen.back(walk, QuantizedError(rows, error.unit, error.most)))


@dataclass(frozen=True)
class FrozenLayer:
    """A dense layer or convolution that is not trained, through which errors are propagated.

    An error is the quantized gradient of the loss with respect to a value.

    Attributes:
        geometry: Shapes of input, output and weights.
        codes: The constant int8 weights.
        scales: Scale of the weights for each output channel, [C].
    """

    geometry: Geometry
    codes: Value
    scales: Array

    @staticmethod
    def of(node: Node) -> FrozenLayer:
        """Return the description of a node's layer for back-propagation.

        Raises:
            UnfitError: The weights are not symmetric int8 values, or the layer computes several images.
        """
        source = node.input(1).producer
        stored = source.input(0) if source is not None and isinstance(source.op, Dequantize) else None
        if stored is None or not is_symmetric(stored.type):
            raise UnfitError(f"'{layer_name(node)}', whose weights are no codes of int8")
        scales = np.broadcast_to(stored.type.q.scales, stored.type.shape[:1]).astype(np.float64)
        return FrozenLayer(geometry_of(node), stored, scales)

    def back(self, walk: ErrorPropagation, error: QuantizedError) -> QuantizedError:
        """Add the propagation of an error through the layer, and return the error of the layer's input.

        An error is the quantized gradient of the loss with respect to a value.

        Args:
            walk: The back-propagation, to whose graph the operators are added.
            error: The error of the layer's output, as a matrix [C, positions]: output channels by output positions.
        """
        g, emit = self.geometry, walk.emit
        largest = float(self.scales.max())
        shares = (self.scales / largest).reshape(-1, 1) if np.ptp(self.scales) else None
        rows = walk.limit_magnitude(error, max_error_magnitude(g, 1, learns=False), shares)
        assert self.codes.data is not None
        plain = walk.graph.constant(
            f"{self.codes.name}.back", self.codes.data, unscaled_integers((1,), DType.INT8).quant
        )
        unit = walk.call("Mul", rows.unit, np.full(1, largest, np.float32))
        return walk.requantize_sums(g.by_inputs(emit, rows.codes, plain), unit)


def geometry_of(node: Node) -> Geometry:
    """Return the shapes of input, output and weights of a layer.

    Raises:
        UnfitError: The layer is neither dense nor a convolution of one image.
    """
    op, x, y = node.op, node.input(0).type.shape, node.output.type.shape
    if not isinstance(op, Conv | Dense) or (isinstance(op, Conv) and (x[0] != 1 or op.is_channels_last)):
        raise UnfitError(f"'{layer_name(node)}', which is no dense layer nor a convolution of one image")
    return Geometry(op, x, y, node.input(1).type.shape)


def rule_of(node: Node) -> Rule:
    """Return the back-propagation rule of a node without trained parameters.

    Raises:
        UnfitError: The operator has no rule.
    """
    for kinds, rule in _RULES.items():
        if isinstance(node.op, kinds):
            return rule
    raise UnfitError(f"{node.op.name} '{layer_name(node)}'")


_RULES: Mapping[type[Operator] | tuple[type[Operator], ...], Rule] = {
    Quantize: _of_quantize,
    Dequantize: _straight,
    Clamp: _of_clamp,
    Binary: _of_binary,
    MaxPool: _of_max_pool,
    AveragePool: _of_average_pool,
    Reduce: _of_mean,
    (Movement, ScatterND): _of_move,
    (Conv, Dense): _of_layer,
    Elementwise: _of_function,
}
