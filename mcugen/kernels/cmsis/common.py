# SPDX-License-Identifier: Apache-2.0
"""What all calls of CMSIS-NN share: which variant of the library, its requantization, its scratch memory.

The library requantizes by q = round(round(v · 2^left · M / 2^31) / 2^right), or, if it was built for single rounding,
round(v · M / 2^(31 − shift)), both with M < 2^31 and shift = left − right. With right = 0 both round once, half up, by
our own formula (mcugen.numerics.fixedpoint): with our multipliers and no right shift it gives our bits on any CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.interpreter import Reference
from mcugen.hir.types import Array, DType
from mcugen.kernels.weighted import clamp_of, largest_sums_of, weights_of
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Kernel
from mcugen.lir.program import Access, Buffer, Param
from mcugen.numerics.fixedpoint import Requantizer, clamp_range
from mcugen.numerics.sums import requantizer
from mcugen.options import CMSIS_NN

MOST_SIZE = 2**15 - 1
"""Of an axis: the library counts positions in 16 bits, some of them signed."""

MOST_WEIGHTS = 2**16 - 1
"""Of a filter: the library counts those in 16 bits, too."""

MOST_SHIFTED = 2**30
"""Sums, shifted to the left as their requantization begins, stay below: for Helium and single rounding, the library
shifts them by one bit more."""

MOST_RESULT = 2**30
"""Requantized sums stay below, so that neither a zero point nor the rounding overflows in the library."""

NIBBLES = (-8, 7)
"""What weights of 4 bits lie within."""


def call(
    name: str,
    when: tuple[Callable[[Node], bool], ...],
    emit: Callable[[Node, Builder, Kernel], None],
    evaluate: Reference | None = None,
    lacks: frozenset[str] = frozenset(),
    way: Callable[[Node], str] | None = None,
    extra: Callable[[Node], int] | None = None,
) -> Kernel:
    """A kernel of the library; with `evaluate`, it does not round as the operator does; `way` is the function's own."""
    return Kernel(name, when=when, emit=emit, library=CMSIS_NN, evaluate=evaluate, lacks=lacks, way=way, extra=extra)


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
        buffer = builder.scratch(f"{node.outputs[0].name}.scratch", DType.INT8, scratch)
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


def layer_constants(
    node: Node, builder: Builder, weights: Array, bias: Array, *, per_tensor: bool = False, multiple: int = 1
) -> list[tuple[str, Access, Buffer]]:
    """The operands w, bias, multiplier and shift of a layer.

    `per_tensor` asks for a single multiplier. `multiple` is what the number of channels is rounded up to, for
    functions that read beyond the last one, with weights in which channels are the last axis.
    """
    name, channels = node.output.name, len(bias)
    beyond = -channels % multiple
    multiplier, shift = multipliers(requantizer(node.sig, largest_sums_of(node)), 1 if per_tensor else channels)
    constants = {"w": np.pad(weights.reshape(-1), (0, beyond)), "bias": np.pad(bias.astype(np.int32), (0, beyond))}
    constants["multiplier"] = multiplier if per_tensor else np.pad(multiplier, (0, beyond))
    operands = [(role, Access.IN, builder.const(f"{name}.{role}", array)) for role, array in constants.items()]
    shifts = np.pad(shift, (0, beyond if not per_tensor else 0), mode="edge")
    return [*operands, ("shift", Access.IN, builder.growing_const(f"{name}.shift", shifts))]


def code_range(node: Node) -> dict[str, Param]:
    """Zero points and clamp."""
    y = node.output.type
    low, high = clamp_range(clamp_of(node), y.q, y.dtype)
    return {"x_zero": node.input(0).type.q.zero_point, "y_zero": y.q.zero_point, "low": low, "high": high}


def packed_nibbles(weights: Array) -> Array:
    """Two weights of 4 bits a byte, in their order, the first in the lower half; int8."""
    flat = weights.reshape(-1).astype(np.int8)
    pairs = np.pad(flat, (0, flat.size % 2)).view(np.uint8).reshape(-1, 2)
    packed: Array = (pairs[:, 0] & 0xF | pairs[:, 1] << 4).astype(np.uint8).view(np.int8)
    return packed


# ------------------------------------------------------------------------------- conditions


def int8_layer(node: Node) -> bool:
    """int8 tensors and weights, sums of 32 bits"""
    types = (node.sig.input(0), node.sig.input(1), node.sig.output)
    if any(t.dtype is not DType.INT8 or t.quant is None for t in types):
        return False
    sums = largest_sums_of(node)
    requantize = requantizer(node.sig, sums)
    left = 31 - requantize.shift
    largest = int((sums.astype(np.float64) * requantize.multiplier).max(initial=0)) >> requantize.shift
    return left >= 0 and int(sums.max(initial=0)) << left < MOST_SHIFTED and largest < MOST_RESULT


def small_weights(node: Node) -> bool:
    """weights of 4 bits"""
    weights = weights_of(node)
    return bool(weights.min(initial=0) >= NIBBLES[0] and weights.max(initial=0) <= NIBBLES[1])


def small_axes(node: Node) -> bool:
    """axes below 32768, filters of fewer than 65536 weights"""
    weights = weights_of(node)
    shapes = (node.sig.input(0).shape, weights.shape, node.sig.output.shape)
    is_short = all(0 < size <= MOST_SIZE for shape in shapes for size in shape)
    return is_short and weights[0].size <= MOST_WEIGHTS
