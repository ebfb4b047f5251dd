# SPDX-License-Identifier: Apache-2.0
"""Functions of single elements, comparisons, and softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcugen.frontend.tflite.flatbuffer import TableBase, numbers, scalar
from mcugen.frontend.tflite.node import TfliteNode, tflite_operator
from mcugen.frontend.tflite.schema import BOOL, FusedActivation
from mcugen.ops.onnx_node import Refusal


@dataclass(frozen=True)
class SoftmaxOptions(TableBase):
    """Options of SOFTMAX."""

    UNION = 9
    beta: float = scalar(0, "f", default=0.0)


@dataclass(frozen=True)
class AddOptions(TableBase):
    """Options of ADD."""

    UNION = 11
    activation: int = scalar(0, "b")


@dataclass(frozen=True)
class MulOptions(AddOptions):
    """Options of MUL."""

    UNION = 21


@dataclass(frozen=True)
class SubOptions(AddOptions):
    """Options of SUB."""

    UNION = 28


@dataclass(frozen=True)
class DivOptions(AddOptions):
    """Options of DIV."""

    UNION = 29


@dataclass(frozen=True)
class LeakyReluOptions(TableBase):
    """Options of LEAKY_RELU."""

    UNION = 75
    alpha: float = scalar(0, "f", default=0.0)


@dataclass(frozen=True)
class GeluOptions(TableBase):
    """Options of GELU."""

    UNION = 116
    is_approximate: int = scalar(0, "B")


@dataclass(frozen=True)
class FakeQuantOptions(TableBase):
    """Options of FAKE_QUANT."""

    UNION = 58
    low: float = scalar(0, "f", default=0.0)
    high: float = scalar(1, "f", default=0.0)
    bits: int = scalar(2)
    is_narrow: int = scalar(3, "B")


@dataclass(frozen=True)
class BucketizeOptions(TableBase):
    """Options of BUCKETIZE."""

    UNION = 115
    boundaries: tuple[float, ...] = numbers(0, "f")


_ARITHMETIC = {"ADD": AddOptions, "SUB": SubOptions, "MUL": MulOptions, "DIV": DivOptions}
_UNARY = {
    **{"ABS": "Abs", "CEIL": "Ceil", "COS": "Cos", "ELU": "Elu", "EXP": "Exp", "FLOOR": "Floor", "LOG": "Log"},
    **{"LOGISTIC": "Sigmoid", "NEG": "Neg", "ROUND": "Round", "SIGN": "Sign", "SIN": "Sin", "SQRT": "Sqrt"},
    **{"TANH": "Tanh", "RELU": "Relu", "HARD_SWISH": "HardSwish"},
}
_CLIPS = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}
_COMPARISONS = {
    **{"EQUAL": "Equal", "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual", "LESS": "Less"},
    **{"LESS_EQUAL": "LessOrEqual", "NOT_EQUAL": "Equal"},
}
_LOGICAL = {"LOGICAL_AND": "And", "LOGICAL_OR": "Or", "LOGICAL_NOT": "Not"}


@tflite_operator(*_ARITHMETIC, becomes={kind: kind.capitalize() for kind in _ARITHMETIC})
def _build_arithmetic(node: TfliteNode) -> None:
    options = node.options(_ARITHMETIC[node.operator.kind])
    value = node.emit(node.operator.kind.capitalize(), node.real(0), node.real(1))
    if node.is_real(node.output()) or options.activation == FusedActivation.NONE:
        return node.finish(value, activation=options.activation)
    if options.activation == FusedActivation.RELU:
        return node.finish(node.emit("Relu", value))
    raise Refusal("integers without scales must have no activation or Relu", "another", "leave it out")


@tflite_operator(*_UNARY, becomes=_UNARY)
def _build_unary(node: TfliteNode) -> None:
    node.finish(node.emit(_UNARY[node.operator.kind], node.real(0)))


@tflite_operator(*_CLIPS, becomes="Clip")
def _build_clip(node: TfliteNode) -> None:
    low, high = _CLIPS[node.operator.kind]
    node.finish(node.emit("Clip", node.real(0), node.constant(low, "low"), node.constant(high, "high")))


@tflite_operator("RSQRT", becomes="Sqrt, Reciprocal")
def _build_inverse_root(node: TfliteNode) -> None:
    node.finish(node.emit("Reciprocal", node.emit("Sqrt", node.real(0))))


@tflite_operator("SQUARE", becomes="Mul")
def _build_square(node: TfliteNode) -> None:
    x = node.real(0)
    node.finish(node.emit("Mul", x, x))


@tflite_operator("SQUARED_DIFFERENCE", becomes="Sub, Mul")
def _build_squared_difference(node: TfliteNode) -> None:
    difference = node.emit("Sub", node.real(0), node.real(1))
    node.finish(node.emit("Mul", difference, difference))


@tflite_operator("MAXIMUM", "MINIMUM", becomes={"MAXIMUM": "Max", "MINIMUM": "Min"})
def _build_extreme(node: TfliteNode) -> None:
    node.finish(node.emit("Max" if node.operator.kind == "MAXIMUM" else "Min", node.real(0), node.real(1)))


@tflite_operator("ADD_N", becomes="Sum")
def _build_sum_of_many(node: TfliteNode) -> None:
    total = node.real(0)
    for index in range(1, len(node.operator.inputs)):
        total = node.emit("Add", total, node.real(index))
    node.finish(total)


@tflite_operator("POW", becomes="Pow")
def _build_power(node: TfliteNode) -> None:
    node.finish(node.emit("Pow", node.real(0), node.real(1)))


@tflite_operator("FLOOR_DIV", becomes="Div, Floor, Mod")
def _build_floor_division(node: TfliteNode) -> None:
    a, b = node.real(0), node.real(1)
    if node.is_real(node.output()):
        return node.finish(node.emit("Floor", node.emit("Div", a, b)))
    remainder = node.emit("Mod", a, b)
    return node.finish(node.emit("Div", node.emit("Sub", a, remainder), b))


@tflite_operator("FLOOR_MOD", becomes="Mod")
def _build_floor_remainder(node: TfliteNode) -> None:
    a, b = node.real(0), node.real(1)
    if not node.is_real(node.output()):
        return node.finish(node.emit("Mod", a, b))
    quotient = node.emit("Floor", node.emit("Div", a, b))
    return node.finish(node.emit("Sub", a, node.emit("Mul", quotient, b)))


@tflite_operator(*_COMPARISONS, becomes={**_COMPARISONS, "NOT_EQUAL": "Equal, Not"})
def _build_comparison(node: TfliteNode) -> None:
    result = node.emit(_COMPARISONS[node.operator.kind], node.real(0), node.real(1))
    node.finish(node.emit("Not", result) if node.operator.kind == "NOT_EQUAL" else result)


@tflite_operator(*_LOGICAL, becomes=_LOGICAL)
def _build_logical(node: TfliteNode) -> None:
    node.finish(node.emit(_LOGICAL[node.operator.kind], *(node.stored(n) for n in range(len(node.operator.inputs)))))


@tflite_operator("BITWISE_XOR", becomes="BitwiseXor, Xor")
def _build_exclusive_or(node: TfliteNode) -> None:
    op_type = "Xor" if node.input(0).type is BOOL else "BitwiseXor"
    node.finish(node.emit(op_type, node.stored(0), node.stored(1)))


@tflite_operator("RIGHT_SHIFT", becomes="Mod, Div")
def _build_right_shift(node: TfliteNode) -> None:
    """Build x >> n as the floor of x / 2^n, with n from 0 to the last bit."""
    tensor = node.input(0)
    x, n = (node.emit("Cast", node.stored(place), to=TensorProto.INT64) for place in (0, 1))
    last = tensor.type.bits - 1
    bounds = [node.constant(np.asarray(bound, np.int64), what) for bound, what in ((0, "low"), (last, "high"))]
    powers = node.constant(1 << np.arange(last + 1, dtype=np.int64), "powers")
    divisor = node.emit("Gather", powers, node.emit("Clip", n, *bounds), axis=0)
    whole = node.emit("Sub", x, node.emit("Mod", x, divisor))
    node.finish_stored(node.emit("Cast", node.emit("Div", whole, divisor), to=tensor.type.onnx))


@tflite_operator("ATAN2", becomes="Div, Atan, Where")
def _build_angle(node: TfliteNode) -> None:
    """Build the angle of (x, y): atan(y / x), and half a turn more or less where x is negative."""
    y, x, zero = node.real(0), node.real(1), node.constant(0.0, "zero")
    angle = node.emit("Atan", node.emit("Div", y, x))
    is_below, is_left = node.emit("Less", y, zero), node.emit("Less", x, zero)
    half = node.emit("Where", is_below, node.constant(-math.pi, "half"), node.constant(math.pi, "half"))
    angle = node.emit("Where", is_left, node.emit("Add", angle, half), angle)
    at_origin = node.emit("And", node.emit("Equal", x, zero), node.emit("Equal", y, zero))
    node.finish(node.emit("Where", at_origin, zero, angle))


@tflite_operator("FAKE_QUANT", becomes="Clip, Mul, Floor")
def _build_fake_quantization(node: TfliteNode) -> None:
    """Build the rounding of reals to the steps of a quantized type, whose zero is one of the steps."""
    options = node.options(FakeQuantOptions)
    span = float(options.high) - float(options.low)
    node.require(2 <= options.bits <= 16 and 1e-30 < span < 1e30, f"{options.bits} bits of a range of {span:g}")
    lowest, highest = np.float32(bool(options.is_narrow)), np.float32(2**options.bits - 1)
    low, high = np.float32(options.low), np.float32(options.high)
    scale = (high - low) / (highest - lowest)
    zero = np.clip(np.floor(lowest - low / scale + np.float32(0.5)), lowest, highest)
    first, last = (lowest - zero) * scale, (highest - zero) * scale
    bounds = [node.constant(float(bound), what) for bound, what in ((first, "low"), (last, "high"))]
    value = node.emit("Sub", node.emit("Clip", node.real(0), *bounds), bounds[0])
    steps = node.emit("Mul", value, node.constant(float(np.float32(1) / scale), "steps"))
    steps = node.emit("Floor", node.emit("Add", steps, node.constant(0.5, "half")))
    node.finish(node.emit("Add", node.emit("Mul", steps, node.constant(float(scale), "scale")), bounds[0]))


@tflite_operator("BUCKETIZE", becomes="GreaterOrEqual, ReduceSum")
def _build_buckets(node: TfliteNode) -> None:
    boundaries = np.asarray(node.options(BucketizeOptions).boundaries, np.float32)
    node.require(len(boundaries) < 1 << 12 and bool((np.diff(boundaries) > 0).all()), "boundaries out of order")
    value = node.real(0)
    if not node.input(0).type.is_float:
        value = node.emit("Cast", value, to=TensorProto.FLOAT)
    value = node.emit("Unsqueeze", value, node.constant([-1], "axis"))
    is_above = node.emit("GreaterOrEqual", value, node.constant(boundaries, "boundaries"))
    counts = node.emit("Cast", is_above, to=node.output().type.onnx)
    node.finish_stored(node.emit("ReduceSum", counts, node.constant([-1], "axes"), keepdims=0))


@tflite_operator("LEAKY_RELU", becomes="LeakyRelu")
def _build_leaky_relu(node: TfliteNode) -> None:
    node.finish(node.emit("LeakyRelu", node.real(0), alpha=float(node.options(LeakyReluOptions).alpha)))


@tflite_operator("PRELU", becomes="PRelu")
def _build_prelu(node: TfliteNode) -> None:
    node.finish(node.emit("PRelu", node.real(0), node.real(1)))


@tflite_operator("GELU", becomes="Gelu")
def _build_gelu(node: TfliteNode) -> None:
    approximation = "tanh" if node.options(GeluOptions).is_approximate else "none"
    node.finish(node.emit("Gelu", node.real(0), approximate=approximation))


@tflite_operator("SOFTMAX", becomes="Softmax")
def _build_softmax(node: TfliteNode) -> None:
    beta, x = node.options(SoftmaxOptions).beta, node.real(0)
    if beta != 1:
        x = node.emit("Mul", x, node.constant(float(beta), "beta"))
    node.finish(node.emit("Softmax", x, axis=-1))


@tflite_operator("LOG_SOFTMAX", becomes="LogSoftmax")
def _build_log_softmax(node: TfliteNode) -> None:
    node.finish(node.emit("LogSoftmax", node.real(0), axis=-1))


@tflite_operator("L2_NORMALIZATION", becomes="LpNormalization")
def _build_normalization(node: TfliteNode) -> None:
    node.finish(node.emit("LpNormalization", node.real(0), axis=-1, p=2))


@tflite_operator("QUANTIZE", "DEQUANTIZE", becomes="QuantizeLinear, DequantizeLinear, Cast")
def _build_conversion(node: TfliteNode) -> None:
    if node.operator.kind == "DEQUANTIZE":
        node.mark_unpacked()
    node.finish(node.real(0))


@tflite_operator("DENSIFY", becomes="a constant")
def _build_densify(node: TfliteNode) -> None:
    node.mark_unpacked()
    (value,), finish = node.move(0)
    finish(value)


@tflite_operator("CAST", becomes="Cast", limits="no complex numbers")
def _build_cast(node: TfliteNode) -> None:
    node.finish_stored(node.emit("Cast", node.stored(0), to=node.output().type.onnx))


@tflite_operator("SELECT", "SELECT_V2", becomes="Where")
def _build_select(node: TfliteNode) -> None:
    condition, rank = node.stored(0), len(node.output().shape)
    shape = node.input(0).shape
    if node.operator.kind == "SELECT" and len(shape) == 1 and rank > 1:
        condition = node.emit("Reshape", condition, node.constant([*shape, *[1] * (rank - 1)], "shape"))
    (a, b), finish = node.move(1, 2)
    finish(node.emit("Where", condition, a, b))


@tflite_operator("ZEROS_LIKE", becomes="a constant")
def _build_zeros(node: TfliteNode) -> None:
    node.finish_stored(node.zeros(node.output()))


@tflite_operator("BROADCAST_TO", becomes="Expand")
def _build_broadcast(node: TfliteNode) -> None:
    (value,), finish = node.move(0)
    finish(node.emit("Expand", value, node.shape_of(node.output())))


@tflite_operator("FILL", becomes="Expand")
def _build_fill(node: TfliteNode) -> None:
    (value,), finish = node.move(1)
    finish(node.emit("Expand", value, node.shape_of(node.output())))


@tflite_operator("SHAPE", "RANK", becomes="a constant")
def _build_shape(node: TfliteNode) -> None:
    shape = node.input(0).shape
    values = len(shape) if node.operator.kind == "RANK" else shape
    node.finish_stored(node.constant(np.asarray(values, node.output().type.array), "shape"))


@tflite_operator("BROADCAST_ARGS", becomes="a constant", limits="constant shapes")
def _build_broadcast_shape(node: TfliteNode) -> None:
    shape = np.broadcast_shapes(tuple(node.integers(0)), tuple(node.integers(1)))
    node.finish_stored(node.constant(np.asarray(shape, node.output().type.array), "shape"))


@tflite_operator("RANGE", becomes="a constant", limits="constant bounds")
def _build_range(node: TfliteNode) -> None:
    first, limit, step = (node.array(n).reshape(-1)[0] for n in range(3))
    count = node.output().count
    node.require(step != 0 and count == max(-(-(limit - first) // step), 0), f"{count} numbers of a range")
    node.finish_stored(node.constant(np.asarray(first + step * np.arange(count), node.output().type.array), "range"))
