# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's pools: arm_max_pool_s8 and _s16, arm_avgpool_s8 and _s16.

The largest codes are ours. Averages are those of codes, of which ties go away from 0 whatever the zero point; ours go
to the even distance from it. The library has no other scale for them, and counts no padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import Array, Shape
from mcugen.kernels.cmsis.common import by_variant, call, emit_call
from mcugen.kernels.weighted import int8_tensors, int16_tensors
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Param
from mcugen.numerics.fixedpoint import is_quantized, same_codes
from mcugen.numerics.window import Window


class _Pool(Protocol):
    """What is read of a pool; an average says which elements of the padding it counts."""

    counted_before: tuple[int, ...]
    counted_after: tuple[int, ...]

    @property
    def window(self) -> Window: ...
    @property
    def kernel(self) -> Shape: ...
    @property
    def is_channels_last(self) -> bool: ...
    def geometry(self, sig: Signature) -> Mapping[str, Param]: ...


class _Reduce(Protocol):
    """What is read of a reduction."""

    @property
    def axes(self) -> tuple[int, ...]: ...
    def is_mean_of_images(self, sig: Signature) -> bool: ...
    def pool_geometry(self, sig: Signature) -> Mapping[str, Param]: ...


def gapless(node: Node) -> bool:
    """windows without gaps"""
    pool = cast("_Pool", node.op)
    return pool.is_channels_last and max(pool.window.dilations) == 1


def keeps_codes(node: Node) -> bool:
    """input and output of one scale"""
    x = node.sig.input(0)
    return is_quantized(x) and same_codes(x, node.sig.output)


def counts_elements(node: Node) -> bool:
    """padding does not count"""
    pool = cast("_Pool", node.op)
    return not any(pool.counted_before + pool.counted_after)


def of_images(node: Node) -> bool:
    """the mean of whole images"""
    return cast("_Reduce", node.op).is_mean_of_images(node.sig)


def average(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The library's averages under a window."""
    (x,), pool = arrays, cast("_Pool", node.op)
    taps = tuple(range(x.ndim, 2 * x.ndim - 2))
    sums, counts = (
        pool.window.patches(a, pool.kernel, 0).sum(taps) for a in (x.astype(np.int64), np.ones(x.shape, np.int64))
    )
    return (_rounded(sums, counts),)


def mean(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """The library's averages along axes."""
    (x,) = arrays
    sums = x.sum(cast("_Reduce", node.op).axes, dtype=np.int64, keepdims=True)
    return (_rounded(sums, np.asarray(x.size // sums.size)),)


def _rounded(sums: Array, counts: Array) -> Array:
    """Quotients, ties away from 0."""
    quotients: Array = np.sign(sums) * ((np.abs(sums) + counts // 2) // counts)
    return quotients


def emit_max_pool(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Without a clamp of its own."""
    _emit(node, builder, kernel, cast("_Pool", node.op).geometry(node.sig))


def emit_average_pool(node: Node, builder: Builder, kernel: Kernel) -> None:
    """Under windows."""
    _emit_average(node, builder, kernel, cast("_Pool", node.op).geometry(node.sig))


def emit_mean(node: Node, builder: Builder, kernel: Kernel) -> None:
    """One window an image, which is a row."""
    _emit_average(node, builder, kernel, cast("_Reduce", node.op).pool_geometry(node.sig))


def _emit_average(node: Node, builder: Builder, kernel: Kernel, params: Mapping[str, Param]) -> None:
    """With DSP, the library sums the channels of a pixel up in 32 bits each."""
    _emit(node, builder, kernel, params, by_variant(builder, 0, 4 * node.output.type.shape[-1], 0))


def _emit(
    node: Node, builder: Builder, kernel: Kernel, params: Mapping[str, Param], scratch: int | None = None
) -> None:
    operands = [("x", Access.IN, builder.buffer(node.input(0))), ("y", Access.OUT, builder.buffer(node.output))]
    emit_call(node, builder, kernel, operands, params, scratch=scratch)


_TYPES = (("s8", int8_tensors), ("s16", int16_tensors))

MAX_POOL: tuple[Kernel, ...] = tuple(
    call(f"cmsis_max_pool_{tag}", (of_type, gapless), emit_max_pool) for tag, of_type in _TYPES
)

AVERAGE_POOL: tuple[Kernel, ...] = tuple(
    call(f"cmsis_avgpool_{tag}", (of_type, gapless, keeps_codes, counts_elements), emit_average_pool, average)
    for tag, of_type in _TYPES
)

REDUCE: tuple[Kernel, ...] = tuple(
    call(f"cmsis_avgpool_{tag}", (of_type, of_images, keeps_codes), emit_mean, mean) for tag, of_type in _TYPES
)
