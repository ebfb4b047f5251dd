# SPDX-License-Identifier: Apache-2.0
"""One small .tflite model for each operator, type and option, with inputs; `tflite_expected.tsv` has the outputs.

    python tests/tflite_cases.py

writes that file anew: by the kernels of TensorFlow Lite Micro, or by the reference kernels of TensorFlow Lite where the
former lack the operator or type. It needs the extra `tflite-oracle`.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
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
    flexbuffer,
    i8,
    i32,
    litert_outputs,
    tflm_outputs,
)

from mcugen.hir.types import Array

EXPECTED = Path(__file__).with_name("tflite_expected.tsv")
"""Outputs by name of the case: interpreter, element type, shape and bytes of each."""


Definition = Callable[..., Array]
"""Computes the output of an operator from its inputs."""


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
        definition: Computes the outputs by numpy if no interpreter runs the model.
    """

    data: bytes
    feeds: tuple[Array, ...]
    steps: int
    share: float
    interpreter: str
    runs: int
    definition: Definition | None = None


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
    definition: Definition | None = None,
) -> None:
    """Register a case."""
    assert name not in CASES, name

    def make() -> Case:
        model = LiteModel()
        maker = Maker(model.graph, np.random.default_rng(zlib.crc32(name.encode())), [])
        build(maker)
        return Case(model.data(), tuple(maker.feeds), steps, share, interpreter, runs, definition)

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


def state(graph: LiteGraph, *shape: int) -> int:
    """Add a tensor that keeps its value."""
    return graph.tensor(*shape, _5=Number("B", 1))


def rnn(kind: str, length: int, time_first: int, activation: int, merges: int = 0, runs: int = 1) -> None:
    """Register an RNN of floats."""
    both, is_sequence = kind.startswith("BI"), kind != "RNN"

    def build(m: Maker) -> None:
        batch, depth, size = 2, 3, 4
        steps = ((length, batch) if time_first else (batch, length)) if is_sequence else (batch,)
        inputs = [m.input(*steps, depth)]
        for _ in range(1 + both):
            parts = (m.values(size, depth), m.values(size, size) / 4, m.values(size))
            inputs += [m.graph.const(part) for part in parts] + [state(m.graph, batch, size)]
        inputs += [-1] * 3 * both
        outputs = [m.result(*steps, size * (1 + merges)) for _ in range(1 if merges or not both else 2)]
        options: dict[int, Content] = {0: i8(activation)}
        if is_sequence:
            options = {0: Number("B", time_first), 1: i8(activation), 2: Number("B", merges)}
        union = {"RNN": 7, "UNIDIRECTIONAL_SEQUENCE_RNN": 31, "BIDIRECTIONAL_SEQUENCE_RNN": 70}[kind]
        m.graph.op(kind, inputs, outputs, union, options)

    name = f"{kind.lower()}_{length}_{'time' if time_first else 'batch'}_{activation}{'_merged' * merges}"
    case(name, build, interpreter="litert", runs=runs)


rnn("RNN", 1, 0, 4, runs=3)
rnn("RNN", 1, 0, 1, runs=2)
for _time in (0, 1):
    rnn("UNIDIRECTIONAL_SEQUENCE_RNN", 4, _time, 4)
    rnn("UNIDIRECTIONAL_SEQUENCE_RNN", 1, _time, 4, runs=3)
    rnn("BIDIRECTIONAL_SEQUENCE_RNN", 4, _time, 4)
rnn("BIDIRECTIONAL_SEQUENCE_RNN", 3, 0, 1, merges=1)


def wide_lstm(
    name: str,
    kind: str = "UNIDIRECTIONAL_SEQUENCE_LSTM",
    time_first: int = 1,
    length: int = 3,
    runs: int = 1,
    merges: int = 0,
    clip: float = 0.0,
    **parts: bool,
) -> None:
    """Register an LSTM of floats with some of: coupled, peepholes, projection, its bias, norms."""
    both = kind.startswith("BI")

    def build(m: Maker) -> None:
        batch, depth, size = 2, 3, 5
        width = 4 if parts.get("projection") else size
        steps = (batch,) if kind == "LSTM" else (length, batch) if time_first else (batch, length)
        inputs = [m.input(*steps, depth)]
        is_coupled = bool(parts.get("coupled"))

        def gates(*shape: int, first: bool = not is_coupled, rest: bool = True) -> list[int]:
            return [m.graph.const(m.values(*shape) / 2) if (n and rest) or (first and not n) else -1 for n in range(4)]

        for _ in range(1 + both):
            inputs += gates(size, depth) + gates(size, width)
            has = bool(parts.get("peepholes"))
            inputs += gates(size, first=has and not is_coupled, rest=has)[:3] + gates(size)
            inputs += [m.graph.const(m.values(width, size) / 2) if parts.get("projection") else -1]
            inputs += [m.graph.const(m.values(width)) if parts.get("bias") else -1]
        for _ in range(1 + both):
            inputs += [state(m.graph, batch, width), state(m.graph, batch, size)]
        if both:
            inputs += [-1] * 9
        else:
            has = bool(parts.get("norms"))
            inputs += gates(size, first=has and not is_coupled, rest=has)
        outputs = [m.result(*steps, width * (1 + merges)) for _ in range(1 if merges or not both else 2)]
        options: dict[int, Content] = {0: i8(4), 1: f32(clip), 2: f32(clip)}
        if both:
            options |= {3: Number("B", merges), 4: Number("B", time_first)}
        elif kind != "LSTM":
            options[3] = Number("B", time_first)
        m.graph.op(kind, inputs, outputs, {"LSTM": 14}.get(kind, 69 if both else 71), options)

    case(f"lstm_wide_{name}", build, interpreter="litert", runs=runs)


for _name, _parts in {
    "coupled": {"coupled": True},
    "peepholes": {"peepholes": True},
    "coupled_peepholes": {"coupled": True, "peepholes": True},
    "projection": {"projection": True},
    "projection_bias": {"projection": True, "bias": True},
    "norms": {"norms": True},
    "all": {"norms": True, "projection": True, "bias": True, "peepholes": True, "coupled": True},
}.items():
    wide_lstm(_name, **_parts)
wide_lstm("clipped", clip=0.4, projection=True)
wide_lstm("batch_first", time_first=0, projection=True)
wide_lstm("kept", length=1, runs=3, projection=True)
wide_lstm("one_step", "LSTM", runs=3)
wide_lstm("one_step_projection", "LSTM", runs=3, projection=True, coupled=True)
for _time in (0, 1):
    wide_lstm(f"both_{_time}", "BIDIRECTIONAL_SEQUENCE_LSTM", _time)
    wide_lstm(f"both_projection_{_time}", "BIDIRECTIONAL_SEQUENCE_LSTM", _time, projection=True, peepholes=True)
wide_lstm("both_merged", "BIDIRECTIONAL_SEQUENCE_LSTM", merges=1, coupled=True)


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


def handle(graph: LiteGraph, name: str = "total") -> int:
    """Add a handle of a variable."""
    tensor = graph.tensor(dtype="resource")
    graph.op("VAR_HANDLE", [], [tensor], 111, {1: name})
    return tensor


def variable(m: Maker, first: float = 0.0) -> None:
    """Build a running sum, which begins with some number."""
    start = m.graph.model.subgraph()
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


def add_to(graph: LiteGraph, variable: int, x: int) -> None:
    """Add a tensor to a variable."""
    before, after = graph.tensor(2, 3), graph.tensor(2, 3)
    graph.op("READ_VARIABLE", [variable], [before], 112, {})
    graph.op("ADD", [before, x], [after], 11, {})
    graph.op("ASSIGN_VARIABLE", [variable, after], [], 113, {})


def declared_variable(m: Maker) -> None:
    """Let a variable begin with numbers."""
    start = m.graph.model.subgraph()
    start.op("ASSIGN_VARIABLE", [handle(start), start.const(np.full((2, 3), 1.5))], [], 113, {})
    m.graph.op("CALL_ONCE", [], [], 103, {0: i32(len(m.graph.model.graphs) - 1)})


def branch_of_variable(takes: bool, *, is_passed: bool = False) -> Callable[[Maker], None]:
    """Return what builds a choice: one body adds to a variable, the other does not."""

    def build(m: Maker) -> None:
        declared_variable(m)
        condition, x, y = m.graph.const(np.array(takes), "bool"), m.input(2, 3), m.result(2, 3)
        for is_adding in (True, False):
            graph = m.graph.model.subgraph()
            passed = [graph.input(dtype="resource")] if is_passed else []
            inner, result = graph.input(2, 3), graph.tensor(2, 3)
            if is_adding:
                add_to(graph, passed[0] if passed else handle(graph), inner)
            graph.op("NEG", [inner], [result])
            graph.output(result)
        unused = m.graph.tensor(2, 3)
        m.graph.op(
            "IF", [condition, *([handle(m.graph)] if is_passed else []), x], [unused], 92, {0: i32(2), 1: i32(3)}
        )
        total = m.graph.tensor(2, 3)
        m.graph.op("READ_VARIABLE", [handle(m.graph)], [total], 112, {})
        m.graph.op("ADD", [total, unused], [y], 11, {})

    return build


def loop_of_variable(kind: str, first: int, limit: int, change: int, swaps: bool = False) -> Callable[[Maker], None]:
    """Return what builds a loop that adds to a variable, whose handle is passed to the body or not.

    Args:
        kind: Comparison of the counter with its limit.
        first: First value of the counter.
        limit: The limit.
        change: What each step adds to the counter; a negative number is subtracted.
        swaps: Whether the limit is compared with the counter.
    """

    def build(m: Maker) -> None:
        declared_variable(m)
        count, x = m.graph.const(first, "int32"), m.input(2, 3)
        judge, body = m.graph.model.subgraph(), m.graph.model.subgraph()
        counter, _, goes_on = judge.input(dtype="int32"), judge.input(2, 3), judge.tensor(dtype="bool")
        pair = [counter, judge.const(limit, "int32")]
        judge.op(kind, pair[::-1] if swaps else pair, [goes_on])
        judge.output(goes_on)
        n, v, more = body.input(dtype="int32"), body.input(2, 3), body.tensor(dtype="int32")
        union, step = (11, change) if change > 0 else (28, -change)
        body.op("ADD" if change > 0 else "SUB", [n, body.const(step, "int32")], [more], union, {})
        add_to(body, handle(body), v)
        body.output(more, v)
        m.graph.op("WHILE", [count, x], [m.result(kind="int32"), m.result(2, 3)], 93, {0: i32(2), 1: i32(3)})
        m.graph.op("READ_VARIABLE", [handle(m.graph)], [m.result(2, 3)], 112, {})

    return build


def computed_variable(m: Maker) -> None:
    """Build a variable whose first value is computed from constants and another variable."""
    start = m.graph.model.subgraph()
    first, second, twice = (start.tensor(2, 3) for _ in range(3))
    start.op("MUL", [start.const(np.full((2, 3), 1.5)), start.const(np.full((2, 3), 2.0))], [first], 21, {})
    start.op("ASSIGN_VARIABLE", [handle(start, "other"), first], [], 113, {})
    start.op("READ_VARIABLE", [handle(start, "other")], [second], 112, {})
    start.op("ADD", [second, second], [twice], 11, {})
    start.op("ASSIGN_VARIABLE", [handle(start), twice], [], 113, {})
    m.graph.op("CALL_ONCE", [], [], 103, {0: i32(1)})
    add_to(m.graph, handle(m.graph), m.input(2, 3))
    m.graph.op("READ_VARIABLE", [handle(m.graph)], [m.result(2, 3)], 112, {})


case("variable_computed_float32", computed_variable, runs=3)
case("if_of_variable_taken", branch_of_variable(True), runs=3)
case("if_of_passed_variable", branch_of_variable(True, is_passed=True), runs=3, interpreter="litert")
case("if_of_variable_left_out", branch_of_variable(False), runs=3)
for _kind, _first, _limit, _change, _swaps in (
    ("LESS", 0, 3, 1, False),
    ("LESS_EQUAL", 0, 3, 2, False),
    ("GREATER", 5, 0, -2, False),
    ("GREATER_EQUAL", 4, 0, -2, False),
    ("GREATER", 0, 5, 2, True),
    ("LESS_EQUAL", 3, 0, -1, True),
):
    case(
        f"while_{_kind.lower()}{'_swapped' * _swaps}", loop_of_variable(_kind, _first, _limit, _change, _swaps), runs=2
    )


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


def plain(
    kind: str,
    inputs: Sequence[tuple[tuple[int, ...], str, float, float]],
    shape: Sequence[int],
    dtype: str,
    name: str,
    union: int = 0,
    options: dict[int, Content] | None = None,
    constants: Sequence[Array] = (),
    definition: Definition | None = None,
) -> None:
    """Register an operator on inputs of some ranges and on constants, which LiteRT runs or a definition computes."""

    def build(m: Maker) -> None:
        values = [m.input(*shape, kind=kind, low=low, high=high) for shape, kind, low, high in inputs]
        values += [m.graph.const(array, array.dtype.name) for array in constants]
        m.graph.op(kind, values, [m.result(*shape, kind=dtype)], union, options)

    case(f"{kind.lower()}_{name}", build, interpreter="litert", definition=definition)


def narrow_steps(x: Array) -> Array:
    """Return numbers rounded to 255 steps from 0 to 2."""
    step = np.float32(2 / 254)
    return np.floor(np.clip(x, 0, 2) / step + np.float32(0.5)).astype(np.float32) * step


def sum_of_segments(x: Array) -> Array:
    """Return the sums of the rows of each segment."""
    return np.stack([x[:2].sum(0), x[2], 0 * x[0], x[3:].sum(0)]).astype(x.dtype)


plain("ATAN2", [((3, 40), "float32", -2, 2), ((3, 40), "float32", -2, 2)], (3, 40), "float32", "float32")
plain("ATAN2", [((60,), "float32", -2, 2)], (60,), "float32", "axis", constants=[np.tile(np.float32([0, -1, 1]), 20)])
plain("ATAN2", [((3,), "float32", 0, 0)], (3,), "float32", "zeros", constants=[np.float32([0, 2, -2])])
for _dtype, _most in (("int8", 127), ("int16", 32767), ("int32", 2**31 - 1)):
    plain("RIGHT_SHIFT", [((40,), _dtype, -_most - 1, _most), ((40,), _dtype, 0, 35)], (40,), _dtype, _dtype, 126, {})
for _dtype, _most in (("uint8", 255), ("uint32", 2**32 - 1)):
    plain("RIGHT_SHIFT", [((40,), _dtype, 0, _most), ((40,), _dtype, 0, 35)], (40,), _dtype, _dtype, 126, {})
for _bits, _narrow, _low, _high in ((8, 0, -1.3, 1.1), (8, 1, 0.0, 2.0), (4, 0, -0.1, 1.9)):
    _options: dict[int, Content] = {0: f32(_low), 1: f32(_high), 2: i32(_bits), 3: Number("B", _narrow)}
    plain(
        "FAKE_QUANT",
        [((5, 20), "float32", -2, 2)],
        (5, 20),
        "float32",
        f"{_bits}_{_narrow}",
        58,
        _options,
        definition=narrow_steps if _narrow else None,
    )
for _dtype in ("float32", "int32"):
    _options = {0: Numbers("f", [-3.0, 0.0, 1.0, 5.5])}
    plain("BUCKETIZE", [((4, 9), _dtype, -7, 7)], (4, 9), "int32", _dtype, 115, _options)
for _radius, _beta in ((1, 0.5), (3, 1.0), (0, 0.75)):
    _options = {0: i32(_radius), 1: f32(1.5), 2: f32(0.7), 3: f32(_beta)}
    plain(
        "LOCAL_RESPONSE_NORMALIZATION",
        [((1, 2, 3, 8), "float32", -2, 2)],
        (1, 2, 3, 8),
        "float32",
        f"{_radius}",
        13,
        _options,
    )
for _dtype in ("float32", "int32"):
    _ids = np.array([0, 0, 1, 3, 3, 3], np.int32)
    plain("SEGMENT_SUM", [((6, 2), _dtype, -9, 9)], (4, 2), _dtype, _dtype, 100, {}, [_ids], sum_of_segments)
    for _kind, _union in (("PROD", 118), ("MAX", 119), ("MIN", 120), ("SUM", 121)):
        for _name, _ids in (
            ("all", np.array([2, 0, 1, 0, 2, 2], np.int32)),
            ("some", np.array([3, 0, -1, 3, 0, 0], np.int32)),
        ):
            plain(
                f"UNSORTED_SEGMENT_{_kind}",
                [((6, 2), _dtype, -9, 9)],
                (4, 2),
                _dtype,
                f"{_name}_{_dtype}",
                _union,
                {},
                [_ids, np.array([4], np.int32)],
            )


def transform(kind: str, height: int, width: int, size: tuple[int, int]) -> None:
    """Register a Fourier transform of an image, and a part of its results."""

    def build(m: Maker) -> None:
        bins = size[1] // 2 + 1
        spectrum = m.graph.tensor(2, size[0], bins, dtype="complex64")
        m.graph.op("RFFT2D", [m.input(2, height, width), m.graph.const(size, "int32")], [spectrum], 105, {})
        m.graph.op(kind, [spectrum], [m.result(2, size[0], bins)])

    case(f"rfft2d_{kind.lower()}_{size[0]}_{size[1]}", build, interpreter="litert", share=3e-5)


for _kind in ("REAL", "IMAG", "COMPLEX_ABS"):
    transform(_kind, 4, 8, (4, 8))
transform("REAL", 8, 16, (8, 16))
transform("IMAG", 1, 32, (1, 32))


# ------------------------------------------------------------------------------------------ operators of streams


def custom(
    kind: str,
    inputs: Sequence[tuple[tuple[int, ...], str, float, float]],
    outputs: Sequence[tuple[tuple[int, ...], str]],
    name: str = "",
    runs: int = 1,
    **options: float,
) -> None:
    """Register a custom operator.

    Args:
        kind: Name of the operator.
        inputs: Shape, element type and range of each input.
        outputs: Shape and element type of each output.
        name: End of the name of the case.
        runs: Number of runs.
        **options: The operator's options.
    """

    def build(m: Maker) -> None:
        values = [m.input(*shape, kind=kind, low=low, high=high) for shape, kind, low, high in inputs]
        results = [m.result(*shape, kind=kind) for shape, kind in outputs]
        m.graph.op(kind, values, results, _5=flexbuffer(options))

    case("_".join(filter(None, [kind.lower(), name])), build, steps=0, runs=runs, interpreter="tflm")


_SAMPLES = ("int16", -32768, 32767)
_ENERGY = ("uint32", 0, 2**32 - 1)
for _shift in (0, 12, 15):
    custom(
        "SignalWindow",
        [((2, 9), *_SAMPLES), ((9,), "int16", -4096, 4096)],
        [((2, 9), "int16")],
        f"by_{_shift}",
        shift=_shift,
    )
for _name, _low, _high in (("full", -32768, 32767), ("small", -90, 90), ("zero", 0, 0)):
    custom("SignalFftAutoScale", [((33,), "int16", _low, _high)], [((33,), "int16"), ((), "int32")], _name)
for _length, _size in ((4, 4), (8, 8), (16, 16), (64, 60), (128, 128), (512, 400)):
    for _kind, _number, _most in (("int16", 7, 32767), ("int32", 2, 2**31 - 1), ("float32", 0, 2)):
        if _kind == "float32" and _size == 400:
            continue
        custom(
            "SignalRfft",
            [((2, _size), _kind, -_most, _most)],
            [((2, _length + 2), _kind)],
            f"{_length}_{_kind}",
            T=_number,
            fft_length=_length,
        )
        if _size == _length:
            custom(
                "SignalIrfft",
                [((2, _length + 2), _kind, -_most // 8, _most // 8)],
                [((2, _length), _kind)],
                f"{_length}_{_kind}",
                T=_number,
                fft_length=_length,
            )


def filter_bank(m: Maker) -> None:
    """Build a filter bank of 3 channels, whose first group has no energies."""
    x = m.input(12, kind="uint32", low=0, high=2**32 - 1)
    weights, unweights = (m.graph.const(m.values(10, kind="int16", low=0, high=4096), "int16") for _ in range(2))
    places = [m.graph.const(numbers, "int16") for numbers in ([0, 1, 4, 8], [0, 0, 3, 6], [0, 3, 3, 4])]
    y = m.result(3, kind="uint64")
    m.graph.op("SignalFilterBank", [x, weights, unweights, *places], [y], _5=flexbuffer({"num_channels": 3}))


case("signalfilterbank", filter_bank)
custom(
    "SignalEnergy",
    [((18,), "int16", -32768, 32767)],
    [((9,), "uint32")],
    start_index=0,
    end_index=9,
)
for _name, _most in (("wide", 2**62), ("narrow", 2**32 - 1), ("small", 99)):
    custom(
        "SignalFilterBankSquareRoot",
        [((20,), "uint64", 0, _most), ((), "int32", 0, 4)],
        [((20,), "uint32")],
        _name,
    )
for _clamping in (False, True):
    custom(
        "SignalFilterBankSpectralSubtraction",
        [((11,), "uint32", 0, 2**20)],
        [((11,), "uint32"), ((11,), "uint32")],
        "clamped" if _clamping else "free",
        runs=3,
        alternate_one_minus_smoothing=16055,
        alternate_smoothing=328,
        clamping=_clamping,
        min_signal_remaining=819,
        num_channels=11,
        one_minus_smoothing=15974,
        smoothing=409,
        smoothing_bits=10,
        spectral_subtraction_bits=14,
    )
for _name, _most in (("large", 2**32 - 1), ("middle", 60000), ("small", 5)):
    custom(
        "SignalPCAN",
        [((20,), "uint32", 0, _most), ((20,), "uint32", 0, _most), ((125,), "int16", 0, 8191)],
        [((20,), "uint32")],
        _name,
        snr_shift=6,
    )
for _name, _most in (("large", 2**32 - 1), ("middle", 70000), ("small", 40)):
    custom(
        "SignalFilterBankLog",
        [((40,), "uint32", 0, _most)],
        [((40,), "int16")],
        _name,
        output_scale=1600,
        input_correction_bits=3,
    )
for _delay, _size in ((3, 5), (7, 3), (0, 4)):
    custom(
        "SignalDelay",
        [((2, _size), *_SAMPLES)],
        [((2, _size), "int16")],
        f"{_delay}_of_{_size}",
        runs=4,
        delay_length=_delay,
    )
for _name, _size, _step, _samples, _runs in (("one", 5, 2, 2, 4), ("several", 5, 2, 6, 3), ("whole", 4, 4, 8, 2)):
    for _prefill in (False, True):
        _frames = _samples // _step
        custom(
            "SignalFramer",
            [((2, _samples), *_SAMPLES)],
            [((2, _frames, _size), "int16"), ((), "bool")],
            f"{_name}{'_prefilled' * _prefill}",
            runs=_runs,
            frame_size=_size,
            frame_step=_step,
            prefill=_prefill,
        )
for _name, _left, _right, _step, _runs in (("step", 1, 1, 2, 4), ("each", 2, 0, 1, 3), ("single", 0, 0, 1, 2)):
    custom(
        "SignalStacker",
        [((3,), *_SAMPLES)],
        [((3 * (_left + _right + 1),), "int16"), ((), "bool")],
        _name,
        runs=_runs,
        num_channels=3,
        stacker_left_context=_left,
        stacker_right_context=_right,
        stacker_step=_step,
    )
for _kind, _number, _most in (("int16", 7, 32767), ("float32", 0, 2)):
    for _frames, _step in ((1, 2), (3, 2), (2, 5)):
        custom(
            "SignalOverlapAdd",
            [((2, _frames, 5), _kind, -_most, _most)],
            [((2, _frames * _step), _kind)],
            f"{_frames}_by_{_step}_{_kind}",
            runs=3,
            T=_number,
            frame_step=_step,
        )


custom("CIRCULAR_BUFFER", [((1, 1, 1, 3), "int8", -128, 127)], [((1, 5, 1, 3), "int8")], "default", runs=5)
custom("CIRCULAR_BUFFER", [((1, 1, 2, 3), "int8", -128, 127)], [((1, 4, 2, 3), "int8")], runs=4, cycles_max=1)


def detection(
    boxes: int, classes: int, background: int = 0, most: int = 4, kind: str = "float32", **more: float
) -> Callable[[Maker], None]:
    """Return what builds the choice of detections among boxes, whose anchors lie in a row."""

    def build(m: Maker) -> None:
        scale = None if kind == "float32" else 0.01
        encodings = m.input(1, boxes, 4, kind=kind, scale=scale, zero=0 if scale is None else 128, low=-1, high=1)
        scores = m.input(1, boxes, classes + background, low=0, high=1)
        centers = np.stack([np.linspace(0.3, 0.7, boxes), np.linspace(0.2, 0.8, boxes)], 1)
        anchors = m.graph.const(np.concatenate([centers, np.full((boxes, 2), 0.3)], 1))
        results = [m.result(1, most, 4), m.result(1, most), m.result(1, most), m.result(1)]
        options = {
            "max_detections": most,
            "max_classes_per_detection": 1,
            "num_classes": classes,
            "nms_score_threshold": 0.3,
            "nms_iou_threshold": 0.4,
            "y_scale": 10.0,
            "x_scale": 10.0,
            "h_scale": 5.0,
            "w_scale": 5.0,
        }
        m.graph.op("TFLite_Detection_PostProcess", [encodings, scores, anchors], results, _5=flexbuffer(options | more))

    return build


case("detection_fast", detection(30, 4))
case("detection_fast_background", detection(30, 3, 1))
case("detection_fast_one_class", detection(25, 1))
case("detection_regular", detection(20, 3, 0, use_regular_nms=True))
case("detection_regular_background", detection(20, 3, 1, 10, use_regular_nms=True, detections_per_class=2))
case("detection_regular_few", detection(6, 1, 1, 12, use_regular_nms=True, detections_per_class=50))


def packed(numbers: Sequence[int], width: int) -> bytes:
    """Return numbers of some bits, the highest of a byte first, with spare bytes."""
    bits = np.array([[n >> (width - 1 - k) & 1 for k in range(width)] for n in numbers], np.uint8)
    return np.packbits(bits.reshape(-1)).tobytes() + bytes(8)


def decode(
    kind: str,
    shape: Sequence[int],
    header: bytes,
    data: bytes,
    table: Array,
    scale: float | Sequence[float] | None = None,
    zero: int | Sequence[int] = 0,
    axis: int = 0,
) -> Callable[[Maker], None]:
    """Return what builds compressed constants, which are added to an input."""

    def build(m: Maker) -> None:
        source = m.graph.const(np.frombuffer(data, np.uint8), "uint8")
        ancillary = m.graph.const(np.frombuffer(header.ljust(16, b"\0") + table.tobytes(), np.uint8), "uint8")
        values = m.graph.tensor(*shape, dtype=kind, scale=scale, zero=zero, axis=axis)
        m.graph.op("TFLM_DECODE", [source, ancillary], [values])
        is_float, y = kind == "float32", m.result(*shape)
        if not is_float:
            unpacked = m.graph.tensor(*shape)
            m.graph.op("DEQUANTIZE", [values], [unpacked])
            values = unpacked
        m.graph.op("ADD", [values, m.input(*shape)], [y], 11, {})

    return build


_RANDOM = np.random.default_rng(61)
for _kind, _width, _count in (
    ("int8", 4, 16),
    ("int8", 3, 8),
    ("int8", 2, 4),
    ("int8", 7, 100),
    ("int8", 1, 2),
    ("float32", 5, 20),
    ("int16", 6, 50),
):
    _values = _RANDOM.integers(-99, 99, _count).astype(_kind)
    _indices = _RANDOM.integers(0, _count, 7 * 9).tolist()
    _scale = None if _kind == "float32" else 0.02
    _header = bytes([0, 1, 0, 0, 1, _width, _count])
    case(
        f"decode_table_{_width}_{_kind}",
        decode(_kind, (7, 9), _header, packed(_indices, _width), _values, _scale),
        interpreter="tflm",
    )


def compressed_layer(is_depthwise: bool) -> Callable[[Maker], None]:
    """Return what builds a layer whose weights have a table for each channel, on the first axis or the last."""
    table = _RANDOM.integers(-99, 99, (4, 8)).astype(np.int8)
    shape, axis = ((1, 2, 2, 4), 3) if is_depthwise else ((4, 6), 0)
    data = packed(_RANDOM.integers(0, 8, math.prod(shape)).tolist(), 3)

    def build(m: Maker) -> None:
        header = bytes([0, 1, 0, 0, 1, 3, 8]).ljust(16, b"\0") + table.tobytes()
        source, ancillary = (m.graph.const(np.frombuffer(part, np.uint8), "uint8") for part in (data, header))
        values = m.graph.tensor(*shape, dtype="int8", scale=[0.01, 0.02, 0.03, 0.04], zero=[0] * 4, axis=axis)
        m.graph.op("TFLM_DECODE", [source, ancillary], [values])
        bias = m.graph.const([30, -70, 500, -900], "int32", scale=[0.0002, 0.0004, 0.0006, 0.0008], zero=[0] * 4)
        if is_depthwise:
            x, y = m.input(1, 3, 3, 4, kind="int8", scale=0.02), m.result(1, 2, 2, 4, kind="int8", scale=0.1)
            options = {0: i8(1), 1: i32(1), 2: i32(1), 3: i32(1)}
            m.graph.op("DEPTHWISE_CONV_2D", [x, values, bias], [y], 2, options)
        else:
            x, y = m.input(2, 6, kind="int8", scale=0.02), m.result(2, 4, kind="int8", scale=0.1)
            m.graph.op("FULLY_CONNECTED", [x, values, bias], [y], 8, {})

    return build


case("decode_channels_first", compressed_layer(False), interpreter="tflm")
case("decode_channels_last", compressed_layer(True), interpreter="tflm")


def pruned(name: str, kind: str, scale: float | Sequence[float] | None, zero: int | Sequence[int]) -> None:
    """Register weights of which most are zero points."""
    bits = _RANDOM.integers(0, 2, 6 * 5)
    values = _RANDOM.integers(-99, 99, int(bits.sum())).astype(kind)
    header = bytes([2, 1, 0, 0, 1])
    case(
        f"decode_pruned_{name}",
        decode(kind, (6, 5), header, packed(bits.tolist(), 1), values, scale, zero),
        interpreter="tflm",
    )


pruned("int8", "int8", 0.05, 3)
pruned("float32", "float32", None, 0)
pruned("int16", "int16", 0.001, 0)


def huffman(size: int, kind: str) -> None:
    """Register weights with code words 0, 10, 110 and 111, by a table of 4 entries and one of 2."""
    symbols = [5, -7, 90, -100]
    low, top = size - 5, 1 << (size - 1)
    mask = (1 << low) - 1 if kind != "int8" else 0xFF

    def leaf(symbol: int, used: int) -> int:
        return top | used << low | symbol & mask

    table = [leaf(5, 1), leaf(5, 1), leaf(-7, 2), 0 << low | 1, leaf(90, 1), leaf(-100, 1)]
    chosen = _RANDOM.integers(0, 4, 40)
    text = "".join(("0", "10", "110", "111")[n] for n in chosen)
    data = np.packbits(np.array(list(text), np.uint8)).tobytes() + bytes(8)
    header = bytes([1, 1, 0, 0, 1, (1 << 4) | (size == 32)])
    assert len(symbols) == 4
    scale = 0.02
    case(
        f"decode_huffman_{size}_{kind}",
        decode(kind, (5, 8), header, data, np.array(table, f"uint{size}"), scale),
        interpreter="tflm",
    )


huffman(16, "int8")
huffman(32, "int8")
huffman(32, "int16")


# -------------------------------------------------------------------------------------------------------- expected


def interpreted(made: Case) -> tuple[str, list[Array]]:
    """Return the outputs by the first interpreter that runs a case, or by its definition, and the name of either."""
    if made.definition is not None:
        return "numpy", [made.definition(*made.feeds)]
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


def expected_outputs(path: Path = EXPECTED) -> dict[str, list[Array]]:
    """Return the outputs of all cases that have been written to a file."""
    found = {}
    for line in path.read_text().splitlines():
        name, _, *parts = line.split("\t")
        arrays = []
        for part in parts:
            kind, sizes, data = part.split(":")
            arrays.append(np.frombuffer(bytes.fromhex(data), kind).reshape([int(n) for n in sizes.split("x") if n]))
        found[name] = arrays
    return found


def write_expected(cases: Mapping[str, Callable[[], Case]], path: Path) -> None:
    """Write the expected outputs of cases to a file; report cases that no interpreter runs."""
    lines = []
    for name, make in cases.items():
        try:
            lines.append(f"{name}\t{stored(*interpreted(make()))}\n")
        except RuntimeError as error:
            print(f"{name}: {error}", file=sys.stderr)
    path.write_text("".join(lines))


if __name__ == "__main__":
    write_expected(CASES, EXPECTED)
