# SPDX-License-Identifier: Apache-2.0
"""One small .tflite model for each operator, type and option, with inputs; `tflite_expected.tsv` has the outputs.

    python tests/tflite_cases.py

writes that file anew: by the kernels of TensorFlow Lite Micro, or by the reference kernels of TensorFlow Lite where the
former lack the operator or type. It needs the extra `tflite-oracle`.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tflite_models import (
    Content,
    LiteGraph,
    LiteModel,
    Number,
    Numbers,
    f32,
    i8,
    i32,
    litert_outputs,
    tflm_outputs,
)

from mcugen.hir.types import Array

EXPECTED = Path(__file__).with_name("tflite_expected.tsv")
"""Outputs by name of the case: interpreter, element type, shape and bytes of each."""


@dataclass(frozen=True)
class Case:
    """A model with inputs.

    Attributes:
        data: The .tflite file.
        feeds: Its inputs.
        steps: Number of quantized steps that outputs may differ from the expected ones.
        share: Relative difference of floats.
        interpreter: Name of the interpreter of the expected outputs; "" for the first that runs the model.
        runs: Number of runs with the same inputs, of which the outputs of the last count.
    """

    data: bytes
    feeds: tuple[Array, ...]
    steps: int
    share: float
    interpreter: str
    runs: int


@dataclass
class Maker:
    """What makes a case: a graph, random numbers and the inputs so far."""

    graph: LiteGraph
    random: np.random.Generator
    feeds: list[Array]

    def input(
        self,
        *shape: int,
        kind: str = "float32",
        scale: float | None = None,
        zero: int = 0,
        low: float = -2,
        high: float = 2,
    ) -> int:
        """Add an input of random numbers: of quantized types any, of others from `low` to `high`."""
        self.feeds.append(self.values(*shape, kind=kind, low=low, high=high, is_quantized=scale is not None))
        return self.graph.input(*shape, dtype=kind, scale=scale, zero=zero)

    def values(
        self, *shape: int, kind: str = "float32", low: float = -2, high: float = 2, is_quantized: bool = False
    ) -> Array:
        """Return random numbers."""
        if kind == "bool":
            return self.random.integers(0, 2, shape).astype(bool)
        if np.dtype(kind).kind == "f":
            return self.random.uniform(low, high, shape).astype(kind)
        limits = np.iinfo(kind)
        if is_quantized:
            low, high = limits.min, limits.max
        return self.random.integers(int(low), int(high) + 1, shape).astype(kind)

    def result(self, *shape: int, kind: str = "float32", scale: float | None = None, zero: int = 0) -> int:
        """Add an output."""
        number = self.graph.tensor(*shape, dtype=kind, scale=scale, zero=zero)
        self.graph.output(number)
        return number


CASES: dict[str, Callable[[], Case]] = {}
"""Makers of all cases by name."""


def case(
    name: str,
    build: Callable[[Maker], object],
    steps: int = 1,
    share: float = 1e-5,
    interpreter: str = "",
    runs: int = 1,
) -> None:
    """Register a case."""
    assert name not in CASES, name

    def make() -> Case:
        model = LiteModel()
        maker = Maker(model.graph, np.random.default_rng(zlib.crc32(name.encode())), [])
        build(maker)
        return Case(model.data(), tuple(maker.feeds), steps, share, interpreter, runs)

    CASES[name] = make


SCALES = {"int8": (0.03, 5), "uint8": (0.03, 120), "int16": (0.0001, 0), "float32": (None, 0)}
"""Scale and zero point of activations by their type."""
OUTPUTS = {"int8": (0.05, -7), "uint8": (0.05, 110), "int16": (0.0002, 0), "float32": (None, 0)}


def unary(
    kind: str,
    dtype: str,
    low: float = -2,
    high: float = 2,
    to: tuple[float | None, int] | None = None,
    union: int = 0,
    options: dict[int, Content] | None = None,
    steps: int = 1,
    shape: Sequence[int] = (2, 3, 5),
    share: float = 1e-5,
    interpreter: str = "",
    name: str = "",
) -> None:
    """Register an operator of one tensor."""

    def build(m: Maker) -> None:
        scale, zero = SCALES.get(dtype, (None, 0))
        if scale is not None and low >= 0:
            zero = np.iinfo(dtype).min + (dtype == "int8") if dtype != "int16" else 0
        x = m.input(*shape, kind=dtype, scale=scale, zero=zero, low=low, high=high)
        if scale is not None and low >= 0:
            m.feeds[-1] = np.maximum(m.feeds[-1], zero + 20).astype(dtype)
        y = m.result(
            *shape,
            kind=dtype,
            scale=(to or OUTPUTS.get(dtype, (None, 0)))[0],
            zero=(to or OUTPUTS.get(dtype, (None, 0)))[1],
        )
        m.graph.op(kind, [x], [y], union, options)

    case(f"{name or kind.lower()}_{dtype}", build, steps, share, interpreter)


for _kind in (
    "ABS",
    "CEIL",
    "COS",
    "ELU",
    "EXP",
    "FLOOR",
    "LOGISTIC",
    "NEG",
    "ROUND",
    "SIGN",
    "SIN",
    "TANH",
    "RELU",
    "HARD_SWISH",
):
    unary(_kind, "float32")
for _kind in ("RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"):
    unary(_kind, "float32", -8, 8)
for _kind in ("LOG", "SQRT", "RSQRT"):
    unary(_kind, "float32", 0.1, 4)
unary("SQUARE", "float32")
for _dtype in ("int8", "uint8", "int16"):
    unary("RELU", _dtype, interpreter="litert" if _dtype == "uint8" else "")
    unary("RELU6", _dtype, to=SCALES[_dtype], interpreter="litert" if _dtype == "uint8" else "")
unary("LOGISTIC", "int8", to=(1 / 256, -128))
unary("LOGISTIC", "int16", to=(1 / 32768, 0), steps=8)
unary("TANH", "int8", to=(1 / 128, 0))
unary("TANH", "int16", to=(1 / 32768, 0), steps=16)
unary("HARD_SWISH", "int8", steps=2)
unary("LEAKY_RELU", "int8", union=75, options={0: f32(0.2)})
unary("LEAKY_RELU", "int16", union=75, options={0: f32(0.2)})
unary("LEAKY_RELU", "float32", union=75, options={0: f32(0.2)})
unary("ELU", "int8")
unary("RSQRT", "int8", 0.1, to=(0.05, -100))
unary("ABS", "int8", to=(0.03, 0))
unary("LOG", "int8", 0.1, interpreter="litert")
unary("GELU", "float32", union=116, options={0: Number("B", 0)})
unary("GELU", "float32", union=116, options={0: Number("B", 1)}, name="gelu_tanh")
unary("SOFTMAX", "float32", union=9, options={0: f32(1.0)})
unary("SOFTMAX", "float32", union=9, options={0: f32(0.5)}, name="softmax_beta")
unary("SOFTMAX", "int8", to=(1 / 256, -128), union=9, options={0: f32(1.0)})
unary("SOFTMAX", "int8", to=(1 / 256, -128), union=9, options={0: f32(0.4)}, name="softmax_beta")
unary("SOFTMAX", "int16", to=(1 / 32768, 0), union=9, options={0: f32(1.0)}, steps=16)
unary("LOG_SOFTMAX", "float32", union=36)
unary("LOG_SOFTMAX", "int8", to=(16 / 256, 127), union=36)
unary("L2_NORMALIZATION", "float32")
unary("L2_NORMALIZATION", "int8", to=(1 / 128, 0), steps=2)
unary("ZEROS_LIKE", "float32")
unary("ZEROS_LIKE", "int32")
unary("ABS", "int32", interpreter="litert")
unary("NEG", "int32", interpreter="litert")


def binary(
    kind: str,
    dtype: str,
    union: int = 0,
    options: dict[int, Content] | None = None,
    low: float = -2,
    high: float = 2,
    shapes: tuple[Sequence[int], Sequence[int]] = ((2, 3, 4), (2, 3, 4)),
    steps: int = 1,
    to: str = "",
    name: str = "",
    is_constant: bool = False,
    interpreter: str = "",
    out: tuple[float | None, int] | None = None,
) -> None:
    """Register an operator of two tensors."""

    def build(m: Maker) -> None:
        (scale, zero), result = SCALES.get(dtype, (None, 0)), to or dtype
        a = m.input(*shapes[0], kind=dtype, scale=scale, zero=zero, low=low, high=high)
        other = None if scale is None else scale * 1.7
        if is_constant:
            values = m.values(*shapes[1], kind=dtype, low=low, high=high, is_quantized=scale is not None)
            b = m.graph.const(values, dtype, scale=other, zero=zero)
        else:
            b = m.input(*shapes[1], kind=dtype, scale=other, zero=zero, low=low, high=high)
        factor, center = (None, 0) if to else out or OUTPUTS.get(dtype, (None, 0))
        m.graph.op(
            kind,
            [a, b],
            [m.result(*np.broadcast_shapes(*map(tuple, shapes)), kind=result, scale=factor, zero=center)],
            union,
            options,
        )

    case(f"{name or kind.lower()}_{dtype}", build, steps, interpreter=interpreter)


WIDE = ((1, 3, 4, 2), (1, 1, 4, 1))
for _kind, _union in (("ADD", 11), ("SUB", 28), ("MUL", 21)):
    for _dtype in ("float32", "int8", "int16"):
        binary(_kind, _dtype, _union, out=(0.0003, 0) if _dtype == "int16" else None)
        binary(
            _kind,
            _dtype,
            _union,
            {0: i8(1)},
            shapes=WIDE,
            name=f"{_kind.lower()}_relu_broadcast",
            out=(0.0003, 0) if _dtype == "int16" else None,
        )
    binary(_kind, "int8", _union, {0: i8(3)}, shapes=WIDE, name=f"{_kind.lower()}_relu6_constant", is_constant=True)
    binary(_kind, "uint8", _union, interpreter="litert")
    binary(_kind, "int32", _union, low=-50, high=50)
binary("DIV", "float32", 29, low=0.5)
for _kind in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"):
    binary(_kind, "float32")
    binary(_kind, "float32", shapes=WIDE, name=f"{_kind.lower()}_broadcast")
binary("SQUARED_DIFFERENCE", "int8")
binary("FLOOR_DIV", "float32", low=0.5)
binary("FLOOR_MOD", "float32", low=0.5)
binary("FLOOR_DIV", "int32", low=1, high=9, interpreter="litert")
binary("FLOOR_MOD", "int32", low=1, high=9, interpreter="litert")
binary("POW", "float32", low=0.5, interpreter="litert")
for _kind in ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"):
    for _dtype in ("float32", "int32", "int8"):
        binary(_kind, _dtype, to="bool")
for _kind in ("LOGICAL_AND", "LOGICAL_OR"):
    binary(_kind, "bool")
unary("LOGICAL_NOT", "bool")
binary("BITWISE_XOR", "int32", low=-99, high=99, interpreter="litert")
binary("PRELU", "float32", shapes=((1, 3, 2, 4), (1, 1, 4)), is_constant=True)
binary("PRELU", "int8", shapes=((1, 3, 2, 4), (1, 1, 4)), is_constant=True)


def add_n(m: Maker) -> None:
    """Build a sum of three tensors."""
    m.graph.op("ADD_N", [m.input(2, 3) for _ in range(3)], [m.result(2, 3)])


case("add_n_float32", add_n)

# ---------------------------------------------------------------------------------------------- layers with weights

WEIGHT_TYPES = {"int8": "int8", "int16": "int8", "uint8": "uint8", "float32": "float32"}


def layer_constants(
    m: Maker, dtype: str, weights: Sequence[int], channels: int, axis: int, is_per_channel: bool, bits: int = 8
) -> tuple[int, int]:
    """Add weights and a bias; return their numbers."""
    if dtype == "float32":
        w = m.graph.const(m.values(*weights))
        return w, m.graph.const(m.values(channels))
    scale = SCALES[dtype][0] or 0
    scales = m.random.uniform(0.005, 0.02, channels if is_per_channel else 1).astype(np.float32)
    kind = "int4" if bits == 4 else WEIGHT_TYPES[dtype]
    limit = 7 if bits == 4 else 127
    values = m.random.integers(-limit, limit + 1, weights)
    zero = 0
    if dtype == "uint8":
        values, zero = values + 128, 131
    w = m.graph.const(values, kind, scale=scales.tolist(), zero=zero, axis=axis if is_per_channel else 0)
    bias = m.random.integers(-2000, 2001, channels)
    b = m.graph.const(bias, "int64" if dtype == "int16" else "int32", scale=(scales * np.float32(scale)).tolist())
    return w, b


def convolution(
    name: str,
    dtype: str,
    *,
    shape: Sequence[int] = (1, 5, 6, 3),
    channels: int = 4,
    kernel: tuple[int, int] = (3, 2),
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    padding: int = 0,
    activation: int = 0,
    is_per_channel: bool = True,
    has_bias: bool = True,
    depth: int = 0,
    bits: int = 8,
    interpreter: str = "",
    steps: int = 1,
) -> None:
    """Register a convolution."""

    def build(m: Maker) -> None:
        scale, zero = SCALES[dtype]
        x = m.input(*shape, kind=dtype, scale=scale, zero=zero)
        constants = layer_constants(m, dtype, (channels, *kernel, depth or shape[3]), channels, 0, is_per_channel, bits)
        sizes = image_sizes(shape, kernel, strides, dilations, padding)
        y = m.result(
            shape[0], *sizes, channels, kind=dtype, scale=(OUTPUTS[dtype][0] or 0) * 3 or None, zero=OUTPUTS[dtype][1]
        )
        options = {
            0: i8(padding),
            1: i32(strides[1]),
            2: i32(strides[0]),
            3: i8(activation),
            4: i32(dilations[1]),
            5: i32(dilations[0]),
        }
        m.graph.op("CONV_2D", [x, *constants[: 1 + has_bias]], [y], 1, options)

    case(f"conv_{name}_{dtype}", build, steps, interpreter=interpreter)


def image_sizes(
    shape: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], padding: int
) -> list[int]:
    """Return height and width of the result of a layer with a window."""
    return [
        -(-(size - (0 if padding == 0 else (span - 1) * gap)) // stride)
        for size, span, stride, gap in zip(shape[1:3], kernel, strides, dilations, strict=True)
    ]


for _dtype in ("float32", "int8", "int16"):
    convolution("same", _dtype)
    convolution("valid_stride", _dtype, padding=1, strides=(2, 1), activation=1)
    convolution("same_stride_relu6", _dtype, strides=(2, 2), kernel=(3, 3), activation=3)
    convolution("dilated", _dtype, dilations=(2, 1), kernel=(2, 3))
    convolution("pointwise_no_bias", _dtype, kernel=(1, 1), has_bias=False)
    convolution("batch", _dtype, shape=(2, 4, 3, 2), activation=2)
convolution("per_tensor", "int8", is_per_channel=False)
convolution("groups", "float32", shape=(1, 4, 4, 4), depth=2, interpreter="litert")
convolution("groups", "int8", shape=(1, 4, 4, 4), depth=2, interpreter="litert")
convolution("legacy", "uint8", is_per_channel=False, interpreter="litert")
convolution("four_bits", "int8", bits=4)


def depthwise(
    name: str,
    dtype: str,
    *,
    shape: Sequence[int] = (1, 5, 6, 3),
    multiplier: int = 1,
    kernel: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    padding: int = 0,
    activation: int = 0,
    bits: int = 8,
    is_per_channel: bool = True,
    interpreter: str = "",
) -> None:
    """Register a depthwise convolution."""

    def build(m: Maker) -> None:
        scale, zero = SCALES[dtype]
        x, channels = m.input(*shape, kind=dtype, scale=scale, zero=zero), shape[3] * multiplier
        constants = layer_constants(m, dtype, (1, *kernel, channels), channels, 3, is_per_channel, bits)
        sizes = image_sizes(shape, kernel, strides, dilations, padding)
        y = m.result(shape[0], *sizes, channels, kind=dtype, scale=OUTPUTS[dtype][0], zero=OUTPUTS[dtype][1])
        options = {
            0: i8(padding),
            1: i32(strides[1]),
            2: i32(strides[0]),
            3: i32(multiplier),
            4: i8(activation),
            5: i32(dilations[1]),
            6: i32(dilations[0]),
        }
        m.graph.op("DEPTHWISE_CONV_2D", [x, *constants], [y], 2, options)

    case(f"depthwise_{name}_{dtype}", build, interpreter=interpreter)


for _dtype in ("float32", "int8", "int16"):
    depthwise("same", _dtype)
    depthwise("multiplier_stride", _dtype, multiplier=2, strides=(2, 2), activation=3)
    depthwise("one_channel", _dtype, shape=(1, 6, 5, 1), multiplier=4, kernel=(4, 2), padding=1, activation=1)
depthwise("dilated", "int8", dilations=(2, 2))
depthwise("dilated", "float32", dilations=(2, 2))
depthwise("four_bits", "int8", bits=4)
depthwise("legacy", "uint8", is_per_channel=False, interpreter="litert")


def dense(
    name: str,
    dtype: str,
    *,
    shape: Sequence[int] = (3, 8),
    channels: int = 5,
    activation: int = 0,
    is_per_channel: bool = False,
    keeps: int = 0,
    out: Sequence[int] = (),
    bits: int = 8,
    has_bias: bool = True,
    interpreter: str = "",
) -> None:
    """Register a fully connected layer."""

    def build(m: Maker) -> None:
        scale, zero = SCALES[dtype]
        x, depth = m.input(*shape, kind=dtype, scale=scale, zero=zero), shape[-1]
        rows = int(np.prod(shape)) // depth
        constants = layer_constants(m, dtype, (channels, depth), channels, 0, is_per_channel, bits)
        y = m.result(*(out or (rows, channels)), kind=dtype, scale=OUTPUTS[dtype][0], zero=OUTPUTS[dtype][1])
        inputs = [x, *constants] if has_bias else [x, constants[0], -1]
        m.graph.op("FULLY_CONNECTED", inputs, [y], 8, {0: i8(activation), 2: Number("B", keeps)})

    case(f"dense_{name}_{dtype}", build, interpreter=interpreter)


for _dtype in ("float32", "int8", "int16"):
    dense("plain", _dtype)
    dense("relu_no_bias", _dtype, activation=1, has_bias=False)
    dense("keeps_rank", _dtype, shape=(2, 3, 6), keeps=1, out=(2, 3, 5))
    dense("flattens", _dtype, shape=(2, 1, 3, 4), channels=2, activation=3)
dense("per_channel", "int8", is_per_channel=True)
dense("four_bits", "int8", bits=4)
dense("odd_four_bits", "int8", bits=4, shape=(1, 7), channels=3)
dense("legacy", "uint8", interpreter="litert")


def narrow(m: Maker, kind: str, *shape: int) -> int:
    """Add weights of a narrow type, and the operator that unpacks them; return the tensor of floats."""
    if kind == "float32":
        return m.graph.const(m.values(*shape, low=-1, high=1))
    if kind == "int8":
        w = m.graph.const(m.random.integers(-127, 128, shape), "int8", scale=0.01)
    else:
        w = m.graph.const(m.values(*shape, low=-1, high=1), "float16")
    values = m.graph.tensor(*shape)
    m.graph.op("DEQUANTIZE", [w], [values])
    return values


def hybrid_dense(m: Maker) -> None:
    """Build a layer of floats with weights of 8 bits, as dynamic-range quantization makes it."""
    w = narrow(m, "int8", 4, 6)
    m.graph.op("FULLY_CONNECTED", [m.input(2, 6), w, m.graph.const(m.values(4))], [m.result(2, 4)], 8, {})


def half_dense(m: Maker) -> None:
    """Build a layer whose weights are float16."""
    w = narrow(m, "float16", 4, 6)
    m.graph.op("FULLY_CONNECTED", [m.input(2, 6), w, m.graph.const(m.values(4))], [m.result(2, 4)], 8, {})


case("dense_weights_int8", hybrid_dense)
case("dense_weights_float16", half_dense, interpreter="litert")


def transpose_convolution(
    name: str,
    dtype: str,
    *,
    strides: tuple[int, int] = (2, 2),
    kernel: tuple[int, int] = (3, 3),
    padding: int = 0,
    size: tuple[int, int] = (3, 4),
    has_bias: bool = True,
    more: int = 0,
    steps: int = 1,
) -> None:
    """Register a transposed convolution."""

    def build(m: Maker) -> None:
        scale, zero = SCALES[dtype]
        if padding == 0:
            out = [n * s for n, s in zip(size, strides, strict=True)]
        else:
            out = [(n - 1) * s + k + more for n, s, k in zip(size, strides, kernel, strict=True)]
        shape = m.graph.const([1, *out, 2], "int32")
        w, b = layer_constants(m, dtype, (2, *kernel, 3), 2, 0, True)
        x = m.input(1, *size, 3, kind=dtype, scale=scale, zero=zero)
        y = m.result(1, *out, 2, kind=dtype, scale=OUTPUTS[dtype][0], zero=OUTPUTS[dtype][1])
        inputs = [shape, w, x, b] if has_bias else [shape, w, x]
        m.graph.op("TRANSPOSE_CONV", inputs, [y], 49, {0: i8(padding), 1: i32(strides[1]), 2: i32(strides[0])})

    case(f"transpose_conv_{name}_{dtype}", build, steps)


for _dtype in ("float32", "int8", "int16"):
    transpose_convolution("same", _dtype)
    transpose_convolution("valid", _dtype, padding=1, kernel=(2, 3))
    transpose_convolution("short_kernel", _dtype, strides=(3, 3), kernel=(2, 2), has_bias=False)
transpose_convolution("valid_more", "float32", padding=1, more=1)


def pool(
    kind: str,
    name: str,
    dtype: str,
    *,
    shape: Sequence[int] = (1, 5, 6, 3),
    kernel: tuple[int, int] = (2, 3),
    strides: tuple[int, int] = (2, 2),
    padding: int = 0,
    activation: int = 0,
    interpreter: str = "",
) -> None:
    """Register pooling, whose result has the scale of its input."""

    def build(m: Maker) -> None:
        scale, zero = SCALES[dtype]
        x = m.input(*shape, kind=dtype, scale=scale, zero=zero)
        sizes = image_sizes(shape, kernel, strides, (1, 1), padding)
        options = {
            0: i8(padding),
            1: i32(strides[1]),
            2: i32(strides[0]),
            3: i32(kernel[1]),
            4: i32(kernel[0]),
            5: i8(activation),
        }
        m.graph.op(kind, [x], [m.result(shape[0], *sizes, shape[3], kind=dtype, scale=scale, zero=zero)], 5, options)

    case(f"{name}_{dtype}", build, interpreter=interpreter)


for _dtype in ("float32", "int8", "int16", "uint8"):
    _by = "litert" if _dtype == "uint8" else ""
    pool("AVERAGE_POOL_2D", "average_same", _dtype, interpreter=_by)
    pool("AVERAGE_POOL_2D", "average_whole", _dtype, kernel=(5, 6), padding=1, interpreter=_by)
    pool("MAX_POOL_2D", "max_same_relu", _dtype, activation=1, interpreter=_by)
    pool("MAX_POOL_2D", "max_valid", _dtype, padding=1, strides=(1, 2), interpreter=_by)
pool("L2_POOL_2D", "l2_pool", "float32")
pool("L2_POOL_2D", "l2_pool_valid", "float32", padding=1)

# ------------------------------------------------------------------------------------------------------- movements


def moved(
    name: str,
    kind: str,
    shape: Sequence[int],
    result: Sequence[int],
    constants: Sequence[tuple[object, str]] = (),
    union: int = 0,
    options: dict[int, Content] | None = None,
    dtypes: Sequence[str] = ("float32", "int8"),
    before: bool = False,
    interpreter: str = "",
    is_requantized: bool = False,
    steps: int = 1,
) -> None:
    """Register an operator that moves elements of one tensor; `before` puts the constants before it."""
    for dtype in dtypes:

        def build(m: Maker, dtype: str = dtype) -> None:
            scale, zero = SCALES.get(dtype, (None, 0))
            x = m.input(*shape, kind=dtype, scale=scale, zero=zero)
            values = [m.graph.const(value, kind) for value, kind in constants]
            target = OUTPUTS[dtype] if is_requantized else (scale, zero)
            y = m.result(*result, kind=dtype, scale=target[0], zero=target[1])
            m.graph.op(kind, [*values, x] if before else [x, *values], [y], union, options)

        case(f"{name}_{dtype}", build, interpreter=interpreter, steps=steps)


moved("reshape", "RESHAPE", (2, 3, 4), (6, 4), [([-1, 4], "int32")])
moved("squeeze", "SQUEEZE", (2, 1, 3, 1), (2, 3), union=30, options={0: Numbers("i", [1, 3])})
moved("expand_dims", "EXPAND_DIMS", (2, 3), (2, 1, 3), [([1], "int32")])
moved("transpose", "TRANSPOSE", (2, 3, 4, 5), (4, 2, 5, 3), [([2, 0, 3, 1], "int32")])
moved(
    "pad",
    "PAD",
    (1, 2, 3, 2),
    (1, 5, 4, 2),
    [([[0, 0], [1, 2], [0, 1], [0, 0]], "int32")],
    dtypes=("float32", "int8", "int16"),
)
moved("mirror_pad_reflect", "MIRROR_PAD", (3, 4), (6, 6), [([[1, 2], [0, 2]], "int32")], union=77, options={0: i8(0)})
moved("mirror_pad_symmetric", "MIRROR_PAD", (3, 4), (6, 7), [([[1, 2], [3, 0]], "int32")], union=77, options={0: i8(1)})
moved(
    "slice",
    "SLICE",
    (4, 5, 3),
    (2, 4, 3),
    [([1, 1, 0], "int32"), ([2, -1, 3], "int32")],
    dtypes=("float32", "int8", "int32"),
)
moved(
    "strided_slice",
    "STRIDED_SLICE",
    (5, 6),
    (2, 3),
    [([1, -1], "int32"), ([5, -7], "int32"), ([2, -2], "int32")],
    union=32,
    options={},
)
moved(
    "strided_slice_masks",
    "STRIDED_SLICE",
    (5, 6, 2),
    (4, 2),
    [([0, 3, 0], "int32"), ([-1, 9, 0], "int32"), ([1, 1, 1], "int32")],
    union=32,
    options={0: i32(4), 1: i32(4), 4: i32(2)},
)
moved(
    "strided_slice_ellipsis",
    "STRIDED_SLICE",
    (2, 3, 4),
    (2, 3, 2),
    [([0, 1], "int32"), ([0, 3], "int32"), ([1, 1], "int32")],
    union=32,
    options={2: i32(1)},
)
moved(
    "strided_slice_new_axis",
    "STRIDED_SLICE",
    (2, 3),
    (1, 2, 3),
    [([0, 0, 0], "int32"), ([0, 2, 3], "int32"), ([1, 1, 1], "int32")],
    union=32,
    options={3: i32(1)},
    interpreter="litert",
)
moved("reverse", "REVERSE_V2", (2, 3, 4), (2, 3, 4), [([1], "int32")])
moved("tile", "TILE", (2, 3), (4, 9), [([2, 3], "int32")], dtypes=("float32",), interpreter="litert")
moved("space_to_depth", "SPACE_TO_DEPTH", (1, 4, 6, 2), (1, 2, 3, 8), union=19, options={0: i32(2)})
moved("depth_to_space", "DEPTH_TO_SPACE", (1, 2, 3, 8), (1, 4, 6, 2), union=94, options={0: i32(2)})
moved(
    "space_to_batch",
    "SPACE_TO_BATCH_ND",
    (1, 3, 4, 2),
    (4, 2, 3, 2),
    [([2, 2], "int32"), ([[1, 0], [0, 2]], "int32")],
    interpreter="litert",
)
moved(
    "batch_to_space", "BATCH_TO_SPACE_ND", (4, 2, 3, 2), (1, 3, 5, 2), [([2, 2], "int32"), ([[1, 0], [0, 1]], "int32")]
)
moved("broadcast_to", "BROADCAST_TO", (1, 3), (2, 4, 3), [([2, 4, 3], "int32")])
moved("gather", "GATHER", (4, 3), (2, 2, 3), [([[0, 3], [2, 2]], "int32")], union=23, options={})
moved("gather_axis", "GATHER", (2, 4, 3), (2, 2, 3), [([3, 0], "int32")], union=23, options={0: i32(1)})
moved("gather_nd", "GATHER_ND", (3, 4, 2), (2, 2), [([[0, 3], [2, 1]], "int32")])
moved("embedding_lookup", "EMBEDDING_LOOKUP", (5, 3), (2, 3), [([4, 1], "int32")], before=True)
moved(
    "reverse_sequence",
    "REVERSE_SEQUENCE",
    (3, 4, 2),
    (3, 4, 2),
    [([1, 4, 2], "int32")],
    union=87,
    options={0: i32(1), 1: i32(0)},
    dtypes=("float32",),
    interpreter="litert",
)
moved(
    "resize_nearest", "RESIZE_NEAREST_NEIGHBOR", (1, 3, 4, 2), (1, 7, 6, 2), [([7, 6], "int32")], union=74, options={}
)
moved(
    "resize_nearest_half",
    "RESIZE_NEAREST_NEIGHBOR",
    (1, 3, 4, 2),
    (1, 7, 2, 2),
    [([7, 2], "int32")],
    union=74,
    options={1: Number("B", 1)},
)
moved(
    "resize_nearest_corners",
    "RESIZE_NEAREST_NEIGHBOR",
    (1, 3, 4, 2),
    (1, 7, 6, 2),
    [([7, 6], "int32")],
    union=74,
    options={0: Number("B", 1)},
)
moved("resize_bilinear", "RESIZE_BILINEAR", (1, 3, 4, 2), (1, 7, 6, 2), [([7, 6], "int32")], union=15, options={})
moved(
    "resize_bilinear_half",
    "RESIZE_BILINEAR",
    (1, 3, 4, 2),
    (1, 6, 3, 2),
    [([6, 3], "int32")],
    union=15,
    options={3: Number("B", 1)},
)
moved(
    "resize_bilinear_corners",
    "RESIZE_BILINEAR",
    (1, 3, 4, 2),
    (1, 7, 6, 2),
    [([7, 6], "int32")],
    union=15,
    options={2: Number("B", 1)},
)
KEEPS = {0: Number("B", 1)}
moved("mean_space", "MEAN", (1, 3, 4, 5), (1, 5), [([1, 2], "int32")], union=27, options={}, is_requantized=True)
moved("mean_keeps", "MEAN", (2, 3, 4), (2, 3, 1), [([-1], "int32")], union=27, options=KEEPS, is_requantized=True)
moved("sum", "SUM", (2, 3, 4), (2, 4), [([1], "int32")], union=27, options={}, is_requantized=True, steps=2)
moved("reduce_max", "REDUCE_MAX", (2, 3, 4), (2, 4), [([1], "int32")], union=27, options={})
moved("reduce_min", "REDUCE_MIN", (2, 3, 4), (2, 3, 1), [([2], "int32")], union=27, options=KEEPS)
moved(
    "reduce_prod",
    "REDUCE_PROD",
    (2, 3),
    (2,),
    [([1], "int32")],
    union=27,
    options={},
    dtypes=("float32",),
    interpreter="litert",
)
moved("reduce_all", "REDUCE_ALL", (2, 2), (2,), [([1], "int32")], union=27, options={}, dtypes=("bool",))
moved(
    "reduce_any",
    "REDUCE_ANY",
    (3, 2),
    (3,),
    [([1], "int32")],
    union=27,
    options={},
    dtypes=("bool",),
    interpreter="litert",
)
moved(
    "cumsum",
    "CUMSUM",
    (2, 4),
    (2, 4),
    [([1], "int32")],
    union=102,
    options={},
    dtypes=("float32", "int32"),
    interpreter="litert",
)
moved(
    "cumsum_flags",
    "CUMSUM",
    (2, 4),
    (2, 4),
    [([0], "int32")],
    union=102,
    options={0: Number("B", 1), 1: Number("B", 1)},
    dtypes=("float32",),
)
moved(
    "requantize", "QUANTIZE", (2, 3, 4), (2, 3, 4), union=89, options={}, dtypes=("int8", "int16"), is_requantized=True
)


def gather_of_batches(m: Maker) -> None:
    """Build a choice of rows for each of two batches."""
    x, places = m.input(2, 4, 3), m.graph.const([[0, 3], [2, 1]], "int32")
    m.graph.op("GATHER", [x, places], [m.result(2, 2, 3)], 23, {0: i32(1), 1: i32(1)})


case("gather_batches_float32", gather_of_batches)


def gather_narrow(m: Maker, kind: str) -> None:
    """Build a lookup in a table of a narrow type."""
    table, rows = narrow(m, kind, 5, 4), m.input(3, kind="int32", low=0, high=4)
    m.graph.op("GATHER", [table, rows], [m.result(3, 4)], 23, {})


case("gather_float16_float32", lambda m: gather_narrow(m, "float16"), interpreter="litert")
case("gather_int8_float32", lambda m: gather_narrow(m, "int8"))


def pad_value(m: Maker) -> None:
    """Build padding with a number of its own."""
    x = m.input(2, 3, kind="int8", scale=0.03, zero=5)
    widths, value = m.graph.const([[1, 0], [0, 2]], "int32"), m.graph.const([40], "int8", scale=0.03, zero=5)
    m.graph.op("PADV2", [x, widths, value], [m.result(3, 5, kind="int8", scale=0.03, zero=5)])


def concatenation(is_same: bool) -> Callable[[Maker], None]:
    """Return the maker of a concatenation of tensors of one scale, or of several."""

    def build(m: Maker) -> None:
        kind = "int8" if is_same else "uint8"
        parts = [m.input(2, n, 3, kind=kind, scale=0.03 if is_same else 0.02 * n, zero=5) for n in (1, 2, 3)]
        m.graph.op("CONCATENATION", parts, [m.result(2, 6, 3, kind=kind, scale=0.03, zero=5)], 10, {0: i32(1)})

    return build


def pack(m: Maker) -> None:
    """Build a stack of tensors."""
    m.graph.op("PACK", [m.input(2, 3), m.input(2, 3)], [m.result(2, 2, 3)], 59, {0: i32(2), 1: i32(1)})


def unpack(m: Maker) -> None:
    """Build a tensor that is taken apart."""
    x = m.input(2, 3, 2, kind="int8", scale=0.1)
    m.graph.op("UNPACK", [x], [m.result(2, 2, kind="int8", scale=0.1) for _ in range(3)], 64, {0: i32(3), 1: i32(1)})


def split(m: Maker) -> None:
    """Build a tensor that is cut in equal parts."""
    axis, x = m.graph.const([2], "int32"), m.input(2, 3, 4, kind="int8", scale=0.1)
    m.graph.op("SPLIT", [axis, x], [m.result(2, 3, 2, kind="int8", scale=0.1) for _ in range(2)], 35, {0: i32(2)})


def split_sizes(m: Maker) -> None:
    """Build a tensor that is cut in parts of different sizes."""
    x, sizes, axis = m.input(2, 6), m.graph.const([1, -1, 2], "int32"), m.graph.const([1], "int32")
    m.graph.op("SPLIT_V", [x, sizes, axis], [m.result(2, n) for n in (1, 3, 2)], 79, {0: i32(3)})


case("padv2_int8", pad_value)
case("concatenation_int8", concatenation(True))
case("concatenation_scales_uint8", concatenation(False), interpreter="litert")
case("pack_float32", pack)
case("unpack_int8", unpack)
case("split_int8", split)
case("split_v_float32", split_sizes)


def select(kind: str, shape: Sequence[int], name: str, interpreter: str = "") -> None:
    """Register a choice of elements."""

    def build(m: Maker) -> None:
        condition = m.input(*shape, kind="bool")
        m.graph.op(kind, [condition, m.input(2, 3), m.input(2, 3)], [m.result(2, 3)])

    case(f"{name}_float32", build, interpreter=interpreter)


select("SELECT_V2", (1, 3), "select_v2")
select("SELECT", (2,), "select_rows", "litert")


def cast(source: str, target: str, low: float = -9, high: float = 9) -> None:
    """Register a conversion of element types."""

    def build(m: Maker) -> None:
        m.graph.op("CAST", [m.input(2, 5, kind=source, low=low, high=high)], [m.result(2, 5, kind=target)], 37, {})

    case(f"cast_{source}_{target}", build)


for _pair in (
    ("float32", "int32"),
    ("int32", "float32"),
    ("int8", "float32"),
    ("bool", "float32"),
    ("float32", "int8"),
    ("int32", "int16"),
):
    cast(*_pair)


def quantize(m: Maker) -> None:
    """Build a conversion to quantized values and back."""
    q = m.graph.tensor(2, 5, dtype="int8", scale=0.02, zero=3)
    m.graph.op("QUANTIZE", [m.input(2, 5)], [q], 89, {})
    m.graph.op("DEQUANTIZE", [q], [m.result(2, 5)], 38, {})


def arg(kind: str, dtype: str, union: int) -> None:
    """Register the place of an extreme."""

    def build(m: Maker) -> None:
        x = m.input(3, 5, kind=dtype, scale=SCALES[dtype][0], zero=SCALES[dtype][1])
        m.graph.op(kind, [x, m.graph.const([1], "int32")], [m.result(3, kind="int32")], union, {0: i8(2)})

    case(f"{kind.lower()}_{dtype}", build)


case("quantize_float32", quantize, share=1e-5)
for _dtype in ("float32", "int8"):
    arg("ARG_MAX", _dtype, 40)
    arg("ARG_MIN", _dtype, 57)


def top(m: Maker) -> None:
    """Build the largest elements with their places."""
    x, count = m.input(2, 6), m.graph.const(3, "int32")
    m.graph.op("TOPK_V2", [x, count], [m.result(2, 3), m.result(2, 3, kind="int32")], 34, {})


def one_hot(m: Maker) -> None:
    """Build vectors with a single 1."""
    x = m.input(4, kind="int32", low=0, high=2)
    constants = [m.graph.const(3, "int32"), m.graph.const(1.5), m.graph.const(-0.5)]
    m.graph.op("ONE_HOT", [x, *constants], [m.result(4, 3)], 61, {0: i32(-1)})


def product(adj_x: int, adj_y: int, dtype: str) -> None:
    """Register a product of matrices."""

    def build(m: Maker) -> None:
        a = m.input(2, *((4, 3) if adj_x else (3, 4)), kind=dtype, scale=SCALES[dtype][0], zero=SCALES[dtype][1])
        b = m.input(2, *((5, 4) if adj_y else (4, 5)), kind=dtype, scale=SCALES[dtype][0], zero=SCALES[dtype][1])
        y = m.result(2, 3, 5, kind=dtype, scale=(OUTPUTS[dtype][0] or 0) * 4 or None, zero=OUTPUTS[dtype][1])
        m.graph.op("BATCH_MATMUL", [a, b], [y], 101, {0: Number("B", adj_x), 1: Number("B", adj_y)})

    case(f"batch_matmul{'_left' * adj_x}{'_right' * adj_y}_{dtype}", build)


case("topk_float32", top, interpreter="litert")
case("one_hot_float32", one_hot, interpreter="litert")
for _dtype in ("float32", "int8", "int16"):
    product(0, 0, _dtype)
    product(1, 0, _dtype)
    product(0, 1, _dtype)


def fill(m: Maker) -> None:
    """Build a tensor of equal elements."""
    m.graph.op("FILL", [m.graph.const([2, 3], "int32"), m.input()], [m.result(2, 3)])


def shape(m: Maker) -> None:
    """Build the shape of a tensor, and another tensor of that shape."""
    x, sizes = m.input(2, 3), m.result(2, kind="int32")
    m.graph.op("SHAPE", [x], [sizes], 55, {0: i8(2)})
    m.graph.op("ABS", [x], [m.result(2, 3)])


def update(m: Maker) -> None:
    """Build a tensor with a part that is replaced, at a computed place."""
    x, part = m.input(4, 5), m.input(2, 3)
    m.graph.op("DYNAMIC_UPDATE_SLICE", [x, part, m.input(2, kind="int32", low=0, high=5)], [m.result(4, 5)], 117, {})


def moving_slice(m: Maker) -> None:
    """Build a part of a tensor at a computed place."""
    x, begin = m.input(6, 5), m.input(2, kind="int32", low=0, high=2)
    m.graph.op("SLICE", [x, begin, m.graph.const([3, 2], "int32")], [m.result(3, 2)])


def scatter(m: Maker) -> None:
    """Build a tensor from single rows, of which two meet."""
    places = m.graph.const([[1], [3], [1]], "int32")
    m.graph.op("SCATTER_ND", [places, m.input(3, 2), m.graph.const([5, 2], "int32")], [m.result(5, 2)])


def conv_3d(m: Maker) -> None:
    """Build a convolution of volumes."""
    x, w, b = m.input(1, 3, 4, 4, 2), m.graph.const(m.values(2, 2, 3, 2, 3)), m.graph.const(m.values(3))
    options = {0: i8(0), 1: i32(1), 2: i32(2), 3: i32(1)}
    m.graph.op("CONV_3D", [x, w, b], [m.result(1, 3, 4, 2, 3)], 106, options)


case("fill_float32", fill)
case("shape_float32", shape, interpreter="litert")
case("dynamic_update_slice_float32", update)
case("slice_computed_float32", moving_slice)
case("scatter_nd_float32", scatter, interpreter="litert")
case("conv_3d_float32", conv_3d, interpreter="litert")


# ------------------------------------------------------------------------------------ recurrent layers and variables


def lstm(
    name: str,
    dtype: str,
    time_first: int = 0,
    share: float = 1e-5,
    steps: int = 2,
    *,
    weights: str = "float32",
    interpreter: str = "",
    length: int = 4,
    runs: int = 1,
) -> None:
    """Register an LSTM over some steps; `weights` is the type of the weights of an LSTM of floats."""

    def build(m: Maker) -> None:
        batch, depth, size = 2, 3, 5
        is_integer = dtype != "float32"
        shape = (length, batch) if time_first else (batch, length)
        x = m.input(*shape, depth, kind=dtype, scale=0.02 if is_integer else None, zero=5 if dtype == "int8" else 0)
        inputs = [x]
        for columns in (depth, size):
            for gate in range(4):
                if is_integer:
                    values = m.random.integers(-127, 128, (size, columns))
                    inputs.append(m.graph.const(values, "int8", scale=0.004 + 0.001 * gate))
                else:
                    inputs.append(narrow(m, weights, size, columns))
        inputs += [-1] * 3
        for gate in range(4):
            if is_integer:
                values = m.random.integers(-5000, 5000, size)
                kind = "int64" if dtype == "int16" else "int32"
                inputs.append(m.graph.const(values, kind, scale=0.02 * (0.004 + 0.001 * gate)))
            else:
                inputs.append(narrow(m, weights, size))
        zero, of_hidden = (-3 if dtype == "int8" else 0), {"int8": 0.008, "int16": 2.0**-15, "float32": None}[dtype]
        hidden = m.graph.tensor(batch, size, dtype=dtype, scale=of_hidden, zero=zero, _5=Number("B", 1))
        kind, of_cell = ("int16", 2.0**-11) if is_integer else ("float32", None)
        cell = m.graph.tensor(batch, size, dtype=kind, scale=of_cell, _5=Number("B", 1))
        inputs += [-1, -1, hidden, cell, -1, -1, -1, -1]
        y = m.result(*shape, size, kind=dtype, scale=of_hidden, zero=zero)
        options: dict[int, Content] = {0: i8(4), 3: Number("B", time_first)}
        m.graph.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [y], 71, options)

    case(f"lstm_{name}_{dtype}", build, steps, share, interpreter, runs)


lstm("batch_first", "float32")
lstm("time_first", "float32", 1)
lstm("float16_weights", "float32", weights="float16", interpreter="litert")
lstm("int8_weights", "float32", weights="int8", interpreter="litert")
lstm("batch_first", "int8")
lstm("time_first", "int8", 1)
lstm("batch_first", "int16", steps=80)
for _dtype in ("float32", "int8"):
    lstm("one_step", _dtype, length=1, runs=3)
    lstm("one_step_time_first", _dtype, 1, length=1, runs=3)


def svdf(name: str, dtype: str, rank: int = 1, memory: int = 4, activation: int = 0) -> None:
    """Register an SVDF over several runs."""

    def build(m: Maker) -> None:
        batch, depth, units = 2, 3, 4
        filters, is_integer = units * rank, dtype == "int8"
        x = m.input(batch, depth, kind=dtype, scale=0.02 if is_integer else None, zero=7 if is_integer else 0)
        if is_integer:
            features = m.graph.const(m.random.integers(-127, 128, (filters, depth)), "int8", scale=0.01)
            times = m.graph.const(m.random.integers(-9999, 9999, (filters, memory)), "int16", scale=0.0001)
            bias = m.graph.const(m.random.integers(-9999, 9999, units), "int32", scale=0.002 * 0.0001)
        else:
            features, times = m.graph.const(m.values(filters, depth)), m.graph.const(m.values(filters, memory))
            bias = m.graph.const(m.values(units))
        kind, scale = ("int16", 0.002) if is_integer else ("float32", None)
        state = m.graph.tensor(batch, filters * memory, dtype=kind, scale=scale, _5=Number("B", 1))
        y = m.result(
            batch,
            units,
            kind=dtype,
            scale=0.05 if is_integer else None,
            zero=(-128 if activation else -4) if is_integer else 0,
        )
        m.graph.op("SVDF", [x, features, times, bias, state], [y], 6, {0: i32(rank), 1: i8(activation)})

    case(f"svdf_{name}_{dtype}", build, runs=3)


for _dtype in ("float32", "int8"):
    svdf("plain", _dtype)
    svdf("rank", _dtype, rank=2, activation=1)


def variable(m: Maker, first: float = 0.0) -> None:
    """Build a running sum, which begins with some number."""
    start = m.graph.model.subgraph()

    def handle(graph: LiteGraph) -> int:
        tensor = graph.tensor(dtype="resource")
        graph.op("VAR_HANDLE", [], [tensor], 111, {1: "total"})
        return tensor

    begin = start.const(np.full((2, 3), first), "float32")
    start.op("ASSIGN_VARIABLE", [handle(start), begin], [], 113, {})
    m.graph.op("CALL_ONCE", [], [], 103, {0: i32(1)})
    before, y, variable = m.graph.tensor(2, 3), m.result(2, 3), handle(m.graph)
    m.graph.op("READ_VARIABLE", [variable], [before], 112, {})
    m.graph.op("ADD", [before, m.input(2, 3)], [y], 11, {})
    m.graph.op("ASSIGN_VARIABLE", [variable, y], [], 113, {})


case("variable_float32", variable, runs=3)
case("variable_initial_float32", lambda m: variable(m, 2.5), runs=3)


def branch(m: Maker) -> None:
    """Build a choice between two bodies."""
    condition, x, y = m.input(kind="bool"), m.input(2, 3), m.result(2, 3)
    for kind in ("SIN", "NEG"):
        graph = m.graph.model.subgraph()
        inner = graph.tensor(2, 3)
        graph.op(kind, [graph.input(2, 3)], [inner])
        graph.output(inner)
    m.graph.op("IF", [condition, x], [y], 92, {0: i32(1), 1: i32(2)})


def loop(m: Maker) -> None:
    """Build a loop that doubles numbers, four times at most or until one exceeds a limit."""
    count, x = m.graph.const(1, "int32"), m.input(2, 3)
    judge, body = m.graph.model.subgraph(), m.graph.model.subgraph()
    first, numbers = judge.input(dtype="int32"), judge.input(2, 3)
    is_early, is_small, goes_on = (judge.tensor(dtype="bool") for _ in range(3))
    judge.op("LESS", [first, judge.const(5, "int32")], [is_early])
    largest = judge.tensor()
    judge.op("REDUCE_MAX", [numbers, judge.const([0, 1], "int32")], [largest], 27, {})
    judge.op("LESS", [largest, judge.const(9.0)], [is_small])
    judge.op("LOGICAL_AND", [is_early, is_small], [goes_on])
    judge.output(goes_on)
    n, v = body.input(dtype="int32"), body.input(2, 3)
    more, twice = body.tensor(dtype="int32"), body.tensor(2, 3)
    body.op("ADD", [n, body.const(1, "int32")], [more], 11, {})
    body.op("ADD", [v, v], [twice], 11, {})
    body.output(more, twice)
    m.graph.op("WHILE", [count, x], [m.result(kind="int32"), m.result(2, 3)], 93, {0: i32(1), 1: i32(2)})


case("if_float32", branch)
case("while_float32", loop)


def ranks(m: Maker) -> None:
    """Build numbers that depend on shapes only."""
    x, rank, sizes, numbers = (
        m.input(2, 3),
        m.result(kind="int32"),
        m.result(2, kind="int32"),
        m.result(3, kind="int32"),
    )
    m.graph.op("RANK", [x], [rank], 86, {})
    m.graph.op("BROADCAST_ARGS", [m.graph.const([1, 3], "int32"), m.graph.const([2, 1], "int32")], [sizes])
    m.graph.op("RANGE", [m.graph.const(n, "int32") for n in (1, 7, 2)], [numbers], 73, {})
    m.graph.op("ABS", [x], [m.result(2, 3)])


def sparse(m: Maker) -> None:
    """Build a layer whose weights are sparse: blocks of 4 columns, of which a row has some."""
    dense = m.values(4, 8)
    blocks = {0: [1], 1: [], 2: [0, 1], 3: [0]}
    kept = np.zeros_like(dense)
    content, segments, places = [], [0], []
    for row, found in blocks.items():
        for block in found:
            kept[row, 4 * block : 4 * block + 4] = dense[row, 4 * block : 4 * block + 4]
            content.append(dense[row, 4 * block : 4 * block + 4])
        places += found
        segments.append(len(places))
    rows: dict[int, Content] = {0: i8(0), 1: i32(4)}
    columns = {
        0: i8(1),
        2: Number("B", 1),
        3: {0: Numbers("i", segments)},
        4: Number("B", 3),
        5: {0: Numbers("B", places)},
    }
    inner: dict[int, Content] = {0: i8(0), 1: i32(4)}
    sparsity = {0: Numbers("i", [0, 1, 2]), 1: Numbers("i", [1]), 2: [rows, columns, inner]}
    data = m.graph.model.buffer(np.concatenate(content).tobytes())
    w, expanded = m.graph.tensor(4, 8, buffer=data, _6=sparsity), m.graph.tensor(4, 8)
    m.graph.op("DENSIFY", [w], [expanded], 99, {})
    m.graph.op("FULLY_CONNECTED", [m.input(2, 8), expanded, -1], [m.result(2, 4)], 8, {})


case("ranks_float32", ranks, interpreter="litert")
case("sparse_weights_float32", sparse, interpreter="litert")


# -------------------------------------------------------------------------------------------------------- expected


def interpreted(made: Case) -> tuple[str, list[Array]]:
    """Return the outputs by the first interpreter that runs a case, and the interpreter's name."""
    wanted = [made.interpreter] if made.interpreter else ["tflm", "litert"]
    for name in wanted:
        try:
            run = tflm_outputs if name == "tflm" else litert_outputs
            return name, run(made.data, made.feeds, made.runs)
        except (RuntimeError, ValueError) as error:
            print(f"  {name}: {str(error)[:200]}", file=sys.stderr)
    raise RuntimeError("no interpreter runs the model")


def stored(interpreter: str, outputs: Sequence[Array]) -> str:
    """Return outputs as the columns of a line."""
    parts = [f"{a.dtype.name}:{'x'.join(map(str, a.shape))}:{a.tobytes().hex()}" for a in outputs]
    return "\t".join([interpreter, *parts])


def expected_outputs() -> dict[str, list[Array]]:
    """Return the outputs of all cases that have been written."""
    found = {}
    for line in EXPECTED.read_text().splitlines():
        name, _, *parts = line.split("\t")
        arrays = []
        for part in parts:
            kind, sizes, data = part.split(":")
            arrays.append(np.frombuffer(bytes.fromhex(data), kind).reshape([int(n) for n in sizes.split("x") if n]))
        found[name] = arrays
    return found


def main() -> None:
    """Write the expected outputs; report cases that no interpreter runs."""
    lines = []
    for name, make in CASES.items():
        try:
            lines.append(f"{name}\t{stored(*interpreted(make()))}\n")
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
    EXPECTED.write_text("".join(lines))


if __name__ == "__main__":
    main()
