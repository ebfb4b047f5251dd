# SPDX-License-Identifier: Apache-2.0
"""What all calls of CMSIS-NN share: which variant of the library, its requantization, its scratch memory.

The library requantizes by q = round(round(v · 2^left · M / 2^31) / 2^right), or, if it was built for single rounding,
round(v · M / 2^(31 − shift)), both with M < 2^31 and shift = left − right. With right = 0 both round once, half up, by
our own formula (mcugen.ops.fixedpoint): with our multipliers and no shift to the right it gives our bits, on any CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.interpreter import Reference
from mcugen.hir.types import Array, DType
from mcugen.lir.builder import Builder, Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.ops.fixedpoint import Requantizer
from mcugen.ops.weighted import largest_sums_of, requantizer, weights_of
from mcugen.options import CMSIS_NN

MOST_SIZE = 2**16 - 1
"""Of an axis: the library counts in 16 bits."""


def call(
    name: str,
    when: tuple[Callable[[Node], bool], ...],
    emit: Callable[[Node, Builder, Kernel], None],
    evaluate: Reference | None = None,
) -> Kernel:
    """A kernel of the library; with `evaluate`, it does not round as the operator does."""
    return Kernel(name, when=when, emit=emit, library=CMSIS_NN, evaluate=evaluate)


def emit_call(
    node: Node,
    builder: Builder,
    kernel: Kernel,
    operands: Sequence[tuple[str, Access, Buffer]],
    params: Mapping[str, Param],
    *,
    scratch: int | None = None,
    code: Mapping[str, object] | None = None,
    inplace: Sequence[tuple[str, str]] = (),
    variant: str = "",
) -> None:
    """Emits the call. `scratch` is the library's working memory in bytes, None where it takes none at all."""
    more: dict[str, Param] = {}
    if scratch is not None:
        buffer = builder.scratch(f"{node.output.name}.scratch", DType.INT8, scratch)
        operands = [*operands, ("scratch", Access.SCRATCH, buffer)]
        more = {"scratch_size": scratch}
    builder.emit(node, kernel, operands, {**params, **more}, code=code, inplace=inplace, variant=variant)


def by_variant(builder: Builder, plain: int, dsp: int, mve: int) -> int:
    """Of three numbers the one for the library as built for this CPU."""
    if "mve" in builder.features:
        return mve
    return dsp if "dsp" in builder.features else plain


def multipliers(requantize: Requantizer, channels: int) -> tuple[Array, Array]:
    """M and shift of each channel, int32: no shift to the right."""
    multiplier = np.broadcast_to(requantize.multiplier, channels).astype(np.int32)
    return multiplier, np.full(channels, 31 - requantize.shift, np.int32)


# ------------------------------------------------------------------------------- conditions


def int8_layer(node: Node) -> bool:
    """int8 tensors and weights, sums of 32 bits"""
    types = (node.sig.input(0), node.sig.input(1), node.sig.output)
    if any(t.dtype is not DType.INT8 or t.quant is None for t in types):
        return False
    sums = largest_sums_of(node)
    left = 31 - requantizer(node.sig, sums).shift
    return int(sums.max(initial=0)) << max(left, 0) < 2**31 and left >= 0


def small_axes(node: Node) -> bool:
    """axes below 65536"""
    shapes = (node.sig.input(0).shape, weights_of(node).shape, node.sig.output.shape)
    return all(0 < size <= MOST_SIZE for shape in shapes for size in shape)
