# SPDX-License-Identifier: Apache-2.0
"""Tensor types of the high-level IR: shape, element type, quantization parameters and layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, cached_property
from typing import Any

import ml_dtypes  # noqa: F401  (tells numpy of bfloat16 and smaller floats)
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""A numpy array of any element type."""
Shape = tuple[int, ...]
"""The lengths of a tensor's axes, the outermost first."""

Bounds = tuple[Array, Array]
"""Least and greatest value that each element of a tensor can have, as two arrays of its shape and type."""


class DType(Enum):
    """An element type; the enum value is numpy's name of the type."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3FN = "float8_e4m3fn"
    FLOAT8_E4M3FNUZ = "float8_e4m3fnuz"
    FLOAT8_E5M2 = "float8_e5m2"
    FLOAT8_E5M2FNUZ = "float8_e5m2fnuz"
    FLOAT8_E8M0 = "float8_e8m0fnu"
    FLOAT4_E2M1 = "float4_e2m1fn"
    INT2 = "int2"
    UINT2 = "uint2"
    INT4 = "int4"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    UINT32 = "uint32"
    INT64 = "int64"
    UINT64 = "uint64"
    BOOL = "bool"

    __hash__ = object.__hash__  # members are compared by identity, and asked for millions of times

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """Return the numpy dtype that holds the elements. Types below 8 bits use one byte for each element."""
        return np.dtype(
            {"int2": "int8", "int4": "int8", "uint2": "uint8", "uint4": "uint8"}.get(self.value, self.value)
        )

    @cached_property
    def nbytes(self) -> int:
        """Return the bytes of one element, equal in numpy and C; types below 8 bits take one byte."""
        return self.numpy.itemsize

    @cached_property
    def c(self) -> str:
        """Return the C99 type of one element. A bool is one byte, 0 or 1; a narrow float is stored as its bits."""
        named: dict[DType, str] = {DType.FLOAT32: "float", DType.FLOAT64: "double", DType.BOOL: "uint8_t"}
        return named.get(self, f"uint{8 * self.nbytes}_t" if self.is_narrow_float else f"{self.numpy.name}_t")

    @cached_property
    def tag(self) -> str:
        """Return the suffix of the type in kernel names, such as f32, s8, u8, bf16 or f8e5m2."""
        if self is DType.BOOL:
            return "b8"
        short = str(self.value).replace("float", "f").replace("_", "")
        return short.replace("uint", "u").replace("int", "s")

    @cached_property
    def is_float(self) -> bool:
        """Return whether C computes with the elements as floating-point numbers."""
        return self in (DType.FLOAT32, DType.FLOAT64)

    @cached_property
    def is_narrow_float(self) -> bool:
        """Return whether elements are floats of at most 16 bits. C stores their bits and computes in float32."""
        return "float" in self.value and not self.is_float

    @cached_property
    def is_integer(self) -> bool:
        """Return whether elements are integers; bool does not count."""
        return not (self.is_float or self.is_narrow_float or self is DType.BOOL)

    @cached_property
    def limits(self) -> tuple[int, int]:
        """Return the least and the greatest integer of the type."""
        bits = int(self.value.lstrip("uint"))
        return (0, 2**bits - 1) if self.value[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    @staticmethod
    def of(array: Array) -> DType:
        """Return the element type of a numpy array; raise ValueError for types without a C counterpart."""
        return _of_numpy(array.dtype)


@cache
def _of_numpy(dtype: np.dtype[Any]) -> DType:
    """Return the element type of a numpy dtype. Cached, since numpy builds the name anew at each access."""
    return DType(dtype.name)


def as_stored(array: Array) -> Array:
    """Return the elements as C stores them: narrow floats as unsigned integers with the same bits; others unchanged."""
    return array.view(f"u{array.itemsize}") if DType.of(array).is_narrow_float else array


def are_halves(array: Array) -> bool:
    """Return whether float16 represents every element exactly."""
    with np.errstate(over="ignore"):
        return bool((array.astype(np.float16) == array).all())


INT8_LEVELS = 128
"""Largest magnitude of int8 values."""
PROBED_ELEMENTS = 8
"""Elements of a row by which most scales are ruled out."""
GRID_TOLERANCE = 2.0**-22
"""Largest relative difference between a float32 number and the product of an int8 value and a scale that it stands for:
four times the rounding error of float32, as scale and product are rounded."""


def int8_multiples(rows: Array) -> tuple[Array, Array] | None:
    """Return int8 values and a scale for each row whose products are the float rows, but for float32 rounding.

    Args:
        rows: Finite floats, [N, K].

    Returns:
        int8 [N, K], and float32 scales [N]; None if a row is no multiple of int8 values.
    """
    scales = []
    for row in rows.astype(np.float64):
        scale = _int8_scale(row)
        if scale is None:
            return None
        scales.append(scale)
    steps = np.asarray(scales)
    return np.rint(rows / steps[:, None]).astype(np.int8), steps.astype(np.float32)


def _int8_scale(row: Array) -> float | None:
    """Return a scale of which all elements of a row are multiples by int8 values; None if there is none."""
    largest = float(np.abs(row).max(initial=0))
    if largest == 0 or not math.isfinite(largest):
        return None if largest else 1.0
    scales = largest / np.arange(INT8_LEVELS, 0, -1)[:, None]
    scales = scales[row.max() < INT8_LEVELS * scales[:, 0] * (1 - GRID_TOLERANCE)]
    for elements in (row[:PROBED_ELEMENTS], row):
        errors = np.abs(np.rint(elements / scales) * scales - elements)
        scales = scales[(errors <= GRID_TOLERANCE * np.abs(elements)).all(1)]
    return float(scales[0, 0]) if len(scales) else None


class Rounding(Enum):
    """Rule by which integer operators round their results to the quantized values of a tensor."""

    EXACT = "exact"
    """The exact result is rounded once, as each operator defines it."""
    TFLITE = "tflite"
    """The result has the bits of TensorFlow Lite Micro's reference kernels, which round several times."""


@dataclass(frozen=True)
class QuantParams:
    """Affine quantization: real = scale · (q − zero_point).

    Attributes:
        scale: One number if the whole tensor has one scale, else one for each index of `axis` (per channel).
        zero_point: The quantized value that represents 0.
        axis: Axis of per-channel scales; None for one scale.
        rounding: Rule by which the operator that computes the tensor rounds its result.
    """

    scale: tuple[float, ...]
    zero_point: int
    axis: int | None = None
    rounding: Rounding = Rounding.EXACT

    @property
    def scales(self) -> Array:
        """Return the scales as a float64 vector; each is exactly a float32 number."""
        return np.asarray(self.scale, np.float64)

    def __str__(self) -> str:
        scale = f"{self.scale[0]:.6g}" if self.axis is None else f"{len(self.scale)} scales on axis {self.axis}"
        rounding = "" if self.rounding is Rounding.EXACT else f", {self.rounding.value}"
        return f"({scale}, {self.zero_point}{rounding})"


@dataclass(frozen=True)
class ModelConstant:
    """A constant tensor of the ONNX model, as the model stores it.

    Attributes:
        name: Name of the tensor in the model (untrusted text).
        shape: Shape of the tensor.
        dtype: Element type, such as "int8".
        is_initializer: Whether the tensor is an initializer; else a node of the model, such as Constant, defines it.
    """

    name: str
    shape: Shape
    dtype: str
    is_initializer: bool


class Layout(Enum):
    """Position of the channel axis of a tensor: the second axis (NCHW), the last (NHWC), or unknown ("")."""

    NONE = ""
    CHANNELS_FIRST = "NCHW"
    CHANNELS_LAST = "NHWC"


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor: shape, element type, quantization and layout, but not where the tensor is stored.

    Attributes:
        shape: Number of elements along each axis.
        dtype: Element type.
        quant: Scale and zero point of quantized elements; None for other elements.
        layout: Position of the channel axis, if it is known.
    """

    shape: Shape
    dtype: DType = DType.FLOAT32
    quant: QuantParams | None = None
    layout: Layout = Layout.NONE

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def count(self) -> int:
        """Return the number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor in bytes, without padding."""
        return self.count * self.dtype.nbytes

    @property
    def q(self) -> QuantParams:
        """Return the quantization parameters of a tensor that is known to be quantized."""
        assert self.quant is not None, f"{self} is not quantized"
        return self.quant

    def with_shape(self, shape: Shape, layout: Layout = Layout.NONE) -> TensorType:
        """Return the type of the same elements in another shape; by default without a known channel axis."""
        return replace(self, shape=shape, layout=layout)

    def with_quant(self, quant: QuantParams | None) -> TensorType:
        """Return the type with other quantization parameters, or with none."""
        return replace(self, quant=quant)

    def as_float(self) -> TensorType:
        """Return the float32 type of the same shape and layout."""
        return TensorType(self.shape, layout=self.layout)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) if self.shape else "scalar"
        parts = [shape, self.dtype.value + (str(self.quant) if self.quant else "")]
        return " ".join(parts + ([self.layout.value] if self.layout.value else []))


def required(inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    """Return the types of inputs that must all be present; raise ModelError if one of the inputs is absent."""
    types = tuple(tensor_type for tensor_type in inputs if tensor_type is not None)
    assert len(types) == len(inputs)
    return types
