# SPDX-License-Identifier: Apache-2.0
"""C of elementwise arithmetic on four elements at a time by Helium: of integers int32x4_t, of reals float32x4_t."""

from __future__ import annotations

from collections.abc import Callable

from mcugen.hir.types import DType
from mcugen.lir.program import Param
from mcugen.ops.fixedpoint import Requantizer

Scalar = Callable[[Param], str]

TYPES = {DType.INT8: "int32x4_t", DType.INT16: "int32x4_t", DType.INT32: "int32x4_t", DType.FLOAT32: "float32x4_t"}
"""The vector type in which elements are computed with."""

_ACCESS = {DType.INT8: ("b", "s32"), DType.INT16: ("h", "s32"), DType.INT32: ("w", "s32"), DType.FLOAT32: ("w", "f32")}


def load(dtype: DType, pointer: str) -> str:
    """Four elements."""
    size, tag = _ACCESS[dtype]
    return f"vldr{size}q_{tag}({pointer})"


def load_few(dtype: DType, pointer: str) -> str:
    """Those of the predicate `few`; the others are 0."""
    size, tag = _ACCESS[dtype]
    return f"vldr{size}q_z_{tag}({pointer}, few)"


def store(dtype: DType, pointer: str, value: str) -> tuple[str, str]:
    """The statements that store four elements, and those of the predicate `few`."""
    size, tag = _ACCESS[dtype]
    return f"vstr{size}q_{tag}({pointer}, {value});", f"vstr{size}q_p_{tag}({pointer}, {value}, few);"


def spread(dtype: DType, value: str) -> str:
    """One element four times."""
    return f"vdupq_n_{_ACCESS[dtype][1]}({value})"


def limited(value: str, low: int, high: int, scalar: Scalar) -> str:
    """Integers within [low, high]."""
    return f"vminq_s32(vmaxq_s32({value}, vdupq_n_s32({scalar(low)})), vdupq_n_s32({scalar(high)}))"


def shifted_right(value: str, shift: int, scalar: Scalar) -> str:
    """Over 2^shift, rounded down."""
    return f"vshlq_r_s32({value}, -{scalar(shift)})" if shift else value


def weighted_sum(terms: list[tuple[str, int]], offset: int, shift: int, scalar: Scalar) -> str:
    """(Σ v · m + offset) >> shift in 32 bits."""
    (x, m), (y, n) = terms
    first = x if m == 1 else f"vmulq_n_s32({x}, {scalar(m)})"
    total = f"vaddq_s32({first}, {y})" if n == 1 else f"vmlaq_n_s32({first}, {y}, {scalar(n)})"
    return shifted_right(f"vaddq_n_s32({total}, {scalar(offset)})" if offset else total, shift, scalar)


def requantized(value: str, most: int, requantize: Requantizer, scalar: Scalar) -> str | None:
    """A requantization, before the clamp, of integers of at most that magnitude; None: 32 bits have no room for it."""
    up, multiplier = 32 - requantize.shift, int(requantize.multiplier[0])
    if up < 0:
        high = f"vmulhq_s32({value}, vdupq_n_s32({scalar(multiplier)}))"
        return shifted_right(f"vaddq_n_s32({high}, {scalar(requantize.offset >> 32)})", -up, scalar)
    if up == 0 or most << up >= 2**31:
        return None
    value = f"vshlq_n_s32({value}, {up - 1})" if up > 1 else value
    return f"vqrdmlashq_n_s32({value}, vdupq_n_s32({scalar(multiplier)}), {scalar(requantize.zero_point)})"


def looked_up(dtype: DType, table: str, index: str) -> str:
    """Elements of a table of that type; the indices are not negative."""
    if dtype is DType.INT8:
        return f"vldrbq_gather_offset_s32({table}, vreinterpretq_u32_s32({index}))"
    size = "h" if dtype is DType.INT16 else "w"
    return f"vldr{size}q_gather_shifted_offset_s32({table}, vreinterpretq_u32_s32({index}))"


def clamped_reals(value: str, low: str | None, high: str | None) -> str:
    """Reals within [low, high]; NaN stays NaN."""
    if low is not None:
        value = f"vpselq_f32(vdupq_n_f32({low}), {value}, vcmpltq_n_f32({value}, {low}))"
    if high is not None:
        value = f"vpselq_f32(vdupq_n_f32({high}), {value}, vcmpgtq_n_f32({value}, {high}))"
    return value
