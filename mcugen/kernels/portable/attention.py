# SPDX-License-Identifier: Apache-2.0
"""Kernels of attention to a cache of keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import DType, Shape, TensorType
from mcugen.lir.kernel import Call, Kernel, Options, Params, Role, Site, Trained, reads, scratch, writes
from mcugen.lir.program import Buffer, Instr, Wide
from mcugen.numerics.attention import FixedAttention


@dataclass(frozen=True)
class CacheLayout:
    """Sizes of a cache of keys or values, and the distances of its parts in memory, in elements.

    Attributes:
        heads: Number of heads.
        positions: Number of positions.
        size: Elements of a head at one position; they are adjacent.
        head_stride: Distance from head to head.
        position_stride: Distance from position to position.
    """

    heads: int
    positions: int
    size: int
    head_stride: int
    position_stride: int

    @staticmethod
    def of(shape: Shape, by_head: bool) -> CacheLayout:
        """Return the layout of a cache with the axes (heads, positions, size), or (positions, heads, size)."""
        size = shape[2]
        if by_head:
            return CacheLayout(shape[0], shape[1], size, shape[1] * size, size)
        return CacheLayout(shape[1], shape[0], size, size, shape[1] * size)


@dataclass(frozen=True, eq=False)
class AttentionSpec:
    """Attention to a cache, as its kernels see it.

    Attributes:
        q: Type of the queries: (heads, queries, size).
        k: Type of the cache of keys.
        v: Type of the cache of values.
        y: Type of the output: (heads, queries, size of a value).
        past: Element type of the position; None if all positions are filled.
        scale: Factor of the scores.
        keys: Layout of the keys.
        values: Layout of the values.
        offset: Position of the first query, less the position that is given.
        window: Number of positions that a query sees; 0 for all.
        fixed: The attention in integers; None for floats.
    """

    q: TensorType
    k: TensorType
    v: TensorType
    y: TensorType
    past: DType | None
    scale: float
    keys: CacheLayout
    values: CacheLayout
    offset: int
    window: int
    fixed: FixedAttention | None = None

    @property
    def group(self) -> int:
        """Return the number of heads of queries for each head of the caches."""
        return self.q.shape[0] // self.keys.heads


class AttentionSizes(Params):
    """Kernel parameters of attention to a cache: sizes, and distances in the caches."""

    heads: Annotated[int, "heads of q"]
    queries: Annotated[int, "queries of each head"]
    group: Annotated[int, "heads of q for each head of the caches"]
    positions: Annotated[int, "positions of the caches"]
    size: Annotated[int, "elements of a query and of a key"]
    value_size: Annotated[int, "elements of a value"]
    key_head_stride: Annotated[int, "elements from head to head of the keys"]
    key_stride: Annotated[int, "elements from position to position of the keys"]
    value_head_stride: Annotated[int, "elements from head to head of the values"]
    value_stride: Annotated[int, "elements from position to position of the values"]

    @staticmethod
    def of(spec: AttentionSpec) -> AttentionSizes:
        """Return the parameters of a layer."""
        return AttentionSizes(
            heads=spec.q.shape[0],
            queries=spec.q.shape[1],
            group=spec.group,
            positions=spec.keys.positions,
            size=spec.keys.size,
            value_size=spec.values.size,
            key_head_stride=spec.keys.head_stride,
            key_stride=spec.keys.position_stride,
            value_head_stride=spec.values.head_stride,
            value_stride=spec.values.position_stride,
        )


class VisiblePositions(Params):
    """Kernel parameters that tell which positions of a cache a query sees."""

    past_offset: Annotated[int | None, "end of what the first query sees, less past"] = None
    window: Annotated[int | None, "positions that a query sees at most"] = None

    @staticmethod
    def of(spec: AttentionSpec) -> VisiblePositions:
        """Return the parameters of a layer."""
        return VisiblePositions(past_offset=None if spec.past is None else spec.offset + 1, window=spec.window or None)


class ScoreFactor(Params):
    """Kernel parameter of attention of floats: the factor of the scores."""

    factor: Annotated[float, "factor of the scores"]


class PositionOptions(Options):
    """Template options of attention to a cache: how the visible positions are given."""

    past_t: Annotated[str, "C type of the position; empty if all positions are filled"]
    windowed: Annotated[bool, "whether a query sees a limited number of positions"]

    @staticmethod
    def of(spec: AttentionSpec) -> PositionOptions:
        """Return the options of a layer."""
        return PositionOptions(past_t=spec.past.c if spec.past else "", windowed=spec.window > 0)


class HeadSizes(Options):
    """Template options of attention by assembly that is unrolled for the sizes of a head."""

    size: Annotated[int, "elements of a query and of a key"]
    value_size: Annotated[int, "elements of a value"]


class IntegerShares(Params):
    """Kernel parameters of attention of int8 tensors: see FixedAttention."""

    q_zero_point: Annotated[Trained, "zero point of q"]
    v_zero_point: Annotated[Trained, "zero point of v"]
    score_multiplier: Annotated[
        Trained, "256 octaves per unit of a score's difference, with 32 - score_shift fraction bits"
    ]
    score_shift: Annotated[Trained, "left shift of differences of scores"]
    numerator: Annotated[Trained, "scale of v / scale of y, with 32 + extra_shift - exponential_bits fraction bits"]
    exponential_bits: Annotated[Trained, "fraction bits of an exponential"]
    requantize_offset: Annotated[Wide, "zero point of y plus one half, with 32 + extra_shift fraction bits"]
    extra_shift: Annotated[Trained, "right shift of a product beyond 32 bits"]

    @staticmethod
    def of(fixed: FixedAttention) -> IntegerShares:
        """Return the parameters of an attention in integers."""
        return IntegerShares(
            q_zero_point=fixed.q_zero_point,
            v_zero_point=fixed.v_zero_point,
            score_multiplier=fixed.score_multiplier,
            score_shift=fixed.score_shift,
            numerator=fixed.numerator,
            exponential_bits=fixed.bits,
            requantize_offset=Wide(fixed.offset),
            extra_shift=fixed.shift - 32,
        )


def _operands(dtype: DType, *more: Role) -> tuple[Role, ...]:
    return (
        reads("q", "queries: heads, queries, elements", dtype),
        reads("k", "cache of keys", dtype),
        reads("v", "cache of values", dtype),
        reads("past", "position that `past_offset` is added to", DType.INT32, DType.INT64, optional=True),
        *more,
        writes("y", "output: heads, queries, elements of a value", dtype),
    )


_OPERANDS = _operands(DType.FLOAT32, scratch("shares", "scores of one query, then its exponentials", DType.FLOAT32))
_INTEGER_OPERANDS = _operands(
    DType.INT8,
    reads("exp_table", "exponentials of the fractions of an octave", DType.INT16),
    scratch("shares", "scores of one query, then its exponentials", DType.INT32),
    scratch("query", "elements of one query without their zero point", DType.INT16),
    scratch("sums", "sums of values times shares", DType.INT32),
)


def is_float(spec: AttentionSpec) -> bool:
    """Require float32 tensors."""
    return spec.q.dtype is DType.FLOAT32


def is_int8(spec: AttentionSpec) -> bool:
    """Require int8 tensors."""
    return spec.fixed is not None


def _inputs(spec: AttentionSpec, site: Site) -> dict[str, Buffer]:
    """Return the buffers of the inputs by role."""
    return {name: site.input(i) for i, name in enumerate(("q", "k", "v", "past")) if i < 3 or spec.past}


def _rounds(instr: Instr) -> int:
    """Return the most iterations of the loops over positions, which the filled part of the cache decides."""
    p = instr.params
    sizes = [p[name] for name in ("heads", "queries", "positions")]
    assert all(isinstance(n, int) for n in sizes)
    return 80 * math.prod(int(n) for n in sizes if isinstance(n, int))


def _emit_integer(spec: AttentionSpec, site: Site) -> Call:
    """Return the call of a kernel for int8."""
    assert spec.fixed is not None
    operands = _inputs(spec, site)
    operands["exp_table"] = site.const("exponentials", spec.fixed.exponentials)
    operands["shares"] = site.scratch("shares", DType.INT32, spec.keys.positions)
    operands["query"] = site.scratch("query", DType.INT16, -(-spec.keys.size // 8) * 8)
    operands["sums"] = site.scratch("sums", DType.INT32, -(-spec.values.size // 4) * 4)
    operands["y"] = site.y
    options: list[Options] = [PositionOptions.of(spec)]
    if HeadSizes in site.kernel.options:
        options.append(HeadSizes(size=spec.keys.size, value_size=spec.values.size))
    params = [AttentionSizes.of(spec), VisiblePositions.of(spec), IntegerShares.of(spec.fixed)]
    return site.call(operands, params, options)


def _emit(spec: AttentionSpec, site: Site) -> Call:
    """Return the call of a kernel for floats."""
    operands = _inputs(spec, site)
    operands["shares"] = site.scratch("shares", DType.FLOAT32, spec.keys.positions)
    operands["y"] = site.y
    options: list[Options] = [PositionOptions.of(spec)]
    if HeadSizes in site.kernel.options:
        options.append(HeadSizes(size=spec.keys.size, value_size=spec.values.size))
    params = [AttentionSizes.of(spec), VisiblePositions.of(spec), ScoreFactor(factor=spec.scale)]
    return site.call(operands, params, options)


_VARIES = "the time of attention depends on the number of filled positions"

EXAMPLE = """<ir_version: 10, opset_import: ["": 24]>
net (float[1, 4, 1, 8] q, float[1, 2, 16, 8] k, float[1, 2, 16, 8] v, int64[1] past) => (float[1, 4, 1, 8] y)
<int64[16] places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, int64[4] shape = {1, 1, 1, 16}> {
  row = LessOrEqual(places, past)
  mask = Reshape(row, shape)
  y = Attention(q, k, v, mask)
}"""
"""Attention of one token to a cache of 16 positions, with two heads of queries for each head of the cache."""

ATTENTION_F32 = Kernel(
    "cached_attention_f32",
    what="softmax(q · k) · v over the filled positions of a cache, one head and query at a time",
    operands=_OPERANDS,
    params=(AttentionSizes, VisiblePositions, ScoreFactor),
    options=(PositionOptions,),
    when=(is_float,),
    varies=_VARIES,
    rounds=_rounds,
    emit=_emit,
    example=EXAMPLE,
)
"""Kernel of attention to a cache of floats, in portable C."""

MAX_UNROLLED_SIZE = 64
"""Largest size of a head, in elements, for which the FPU's kernel is unrolled: its code takes 8 bytes for each."""


def has_small_heads(spec: AttentionSpec) -> bool:
    """Require heads of at most 64 elements."""
    return max(spec.keys.size, spec.values.size) <= MAX_UNROLLED_SIZE


ATTENTION_F32_FPU = Kernel(
    "cached_attention_f32_fpu",
    what="softmax(q · k) · v over the filled positions of a cache, by blocks of the FPU's registers",
    operands=_OPERANDS,
    params=(AttentionSizes, VisiblePositions, ScoreFactor),
    without=frozenset({"size", "value_size"}),
    options=(PositionOptions, HeadSizes),
    needs=frozenset({"fpu"}),
    when=(is_float, has_small_heads),
    varies=_VARIES,
    rounds=_rounds,
    emit=_emit,
    example=EXAMPLE,
)
"""Kernel of attention to a cache of floats, in assembly for FPUs with 32 registers."""

INTEGER_EXAMPLE = """<ir_version: 10, opset_import: ["": 24]>
net (int8[1, 4, 1, 8] q, int8[1, 2, 16, 8] k, int8[1, 2, 16, 8] v, int64[1] past) => (int8[1, 4, 1, 8] y)
<int64[16] places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, int64[4] shape = {1, 1, 1, 16},
 float scale = {0.03}, int8 zero = {3}> {
  row = LessOrEqual(places, past)
  mask = Reshape(row, shape)
  qr = DequantizeLinear(q, scale, zero)
  kr = DequantizeLinear(k, scale, zero)
  vr = DequantizeLinear(v, scale, zero)
  yr = Attention(qr, kr, vr, mask)
  y = QuantizeLinear(yr, scale, zero)
}"""
"""Attention of one token to an int8 cache of 16 positions."""

ATTENTION_S8 = Kernel(
    "cached_attention_s8",
    what="softmax(q · k) · v over the filled positions of an int8 cache, one head and query at a time",
    operands=_INTEGER_OPERANDS,
    params=(AttentionSizes, VisiblePositions, IntegerShares),
    options=(PositionOptions,),
    when=(is_int8,),
    varies=_VARIES,
    rounds=_rounds,
    emit=_emit_integer,
    example=INTEGER_EXAMPLE,
)
"""Kernel of attention to a cache of int8, in portable C."""


def has_groups_of_four(spec: AttentionSpec) -> bool:
    """Require heads of a multiple of four elements, at most 64."""
    return max(spec.keys.size, spec.values.size) <= MAX_UNROLLED_SIZE and not (spec.keys.size | spec.values.size) % 4


ATTENTION_S8_DSP = Kernel(
    "cached_attention_s8_dsp",
    what="softmax(q · k) · v over the filled positions of an int8 cache, four elements at a time by the DSP extension",
    operands=_INTEGER_OPERANDS,
    params=(AttentionSizes, VisiblePositions, IntegerShares),
    without=frozenset({"size", "value_size"}),
    options=(PositionOptions, HeadSizes),
    needs=frozenset({"dsp"}),
    when=(is_int8, has_groups_of_four),
    varies=_VARIES,
    rounds=_rounds,
    emit=_emit_integer,
    example=INTEGER_EXAMPLE,
)
"""Kernel of attention to a cache of int8, for the DSP extension."""

ATTENTION_S8_MVE = Kernel(
    "cached_attention_s8_mve",
    what="softmax(q · k) · v over the filled positions of an int8 cache, by vectors of Helium",
    operands=_INTEGER_OPERANDS,
    params=(AttentionSizes, VisiblePositions, IntegerShares),
    without=frozenset({"size", "value_size"}),
    options=(PositionOptions, HeadSizes),
    needs=frozenset({"mve"}),
    when=(is_int8, has_small_heads),
    varies=_VARIES,
    rounds=_rounds,
    emit=_emit_integer,
    example=INTEGER_EXAMPLE,
)
"""Kernel of attention to a cache of int8, for Helium."""

CACHED_ATTENTION = (ATTENTION_F32_FPU, ATTENTION_F32, ATTENTION_S8_MVE, ATTENTION_S8_DSP, ATTENTION_S8)
"""mcugen's own kernels of attention to a cache, the preferred ones first."""
