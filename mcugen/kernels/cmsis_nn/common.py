# SPDX-License-Identifier: Apache-2.0
"""Common parts of calls of CMSIS-NN: the library's variant, its requantization, and its scratch memory.

The library requantizes by q = round(round(v · 2^left · M / 2^31) / 2^right), or, if built for single rounding, by
round(v · M / 2^(31 − shift)), both with M < 2^31 and shift = left − right. With right = 0 both round once, half up, as
our own formula does (mcugen.numerics.fixedpoint). With our multipliers and no right shift the library therefore gives
our bits on any CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np

from mcugen.core.options import CMSIS_NN
from mcugen.hir.types import Array, DType
from mcugen.kernels.common.specs import WeightedSpec
from mcugen.lir.kernel import Call, Kernel, Params, Role, Site, Trained, reads, writes
from mcugen.lir.kernel import scratch as scratch_role
from mcugen.lir.program import Buffer
from mcugen.numerics.fixedpoint import Requantizer

MAX_INT16_AXIS = 2**15 - 1
"""Largest length of an axis: the library counts positions in 16 bits, partly signed."""

MAX_FILTER_WEIGHTS = 2**16 - 1
"""Largest number of weights in the filter of one output channel: the library counts them in 16 bits."""

SHIFTED_SUM_LIMIT = 2**30
"""Exclusive bound of the magnitude of accumulators after the left shift that begins their requantization. If built for
Helium with single rounding, the library shifts them left by one bit more."""

RESULT_LIMIT = 2**30
"""Exclusive bound of the magnitude of requantized accumulators, so that adding the zero point and the rounding term
does not overflow 32 bits in the library."""


def library_kernel(name: str, *, emit: Callable[[Any, Site], Call | list[Call]], **more: Any) -> Kernel:
    """Declare a kernel that calls a function of CMSIS-NN.

    Args:
        name: Name of the kernel.
        emit: Function of the layer's spec and the call site that returns the kernel's instruction, or several.
        more: Other fields of Kernel; `evaluate` if CMSIS-NN rounds differently from the operator.
    """
    return Kernel(name, emit=emit, library=CMSIS_NN, **more)


class Scratch(Params):
    """Kernel parameter with the bytes of CMSIS-NN's scratch buffer; None if no scratch buffer is needed."""

    scratch_bytes: Annotated[int | None, "bytes of the library's scratch buffer"] = None


SCRATCH = scratch_role("scratch", "the library's working memory", DType.INT8)
"""Role of the scratch operand of the library's functions: an int8 buffer."""


class ZeroPoints(Params):
    """Kernel parameters with the zero points of a layer's input and output."""

    x_zero_point: Annotated[Trained, "zero point of x"]
    y_zero_point: Annotated[Trained, "zero point of y"]

    @staticmethod
    def of(spec: WeightedSpec) -> ZeroPoints:
        """Return the zero points of a layer's input and output as kernel parameters."""
        return ZeroPoints(x_zero_point=spec.x.q.zero_point, y_zero_point=spec.y.q.zero_point)


class TensorScale(Params):
    """Kernel parameters of CMSIS-NN's requantization with one scale for all channels: a multiplier and a shift."""

    multiplier: Annotated[Trained, "requantization multiplier, Q0.31"]
    shift: Annotated[Trained, "left shift of sums before the product; negative: right shift after it"]


def select_by_variant(features: frozenset[str], plain: int, dsp: int, mve: int) -> int:
    """Return `mve`, `dsp` or `plain`, by the variant of CMSIS-NN that is compiled for these CPU features.

    Args:
        features: CPU features.
        plain: Value for CMSIS-NN in plain C.
        dsp: Value for CMSIS-NN with the DSP extension.
        mve: Value for CMSIS-NN with Helium.
    """
    if "mve" in features:
        return mve
    return dsp if "dsp" in features else plain


def library_multipliers(requantize: Requantizer, channels: int) -> tuple[Array, Array]:
    """Return the requantization multipliers (Q0.31) and left shifts of all channels for CMSIS-NN, as int32 [channels].

    A negative left shift is a right shift after the multiplication.

    Args:
        requantize: The requantization of the layer's accumulators.
        channels: Number of output channels.
    """
    multiplier = np.broadcast_to(requantize.multiplier, channels).astype(np.int32)
    return multiplier, np.full(channels, 31 - requantize.shift, np.int32)


def layer_operands(x: DType, bias: DType) -> tuple[Role, ...]:
    """Declare the operands of a layer with weights: x, weights, bias, multiplier, shift and y.

    Args:
        x: Type of the input and the output.
        bias: Type of the bias that is allowed in addition to int32.
    """
    return (
        reads("x", "input, channels last", x),
        reads("w", "weights by output channel, in the order of the library", DType.INT8, holds=(1,)),
        reads("bias", "bias by channel", *{DType.INT32, bias}, holds=(2,)),
        reads("multiplier", "multiplier by channel", DType.INT32),
        reads("shift", "left shift of accumulators, in bits, by channel", DType.INT32),
        writes("y", "output, channels last", x),
    )


def layer_constants(
    spec: WeightedSpec, site: Site, weights: Array, bias: Array, *, per_tensor: bool = False, multiple: int = 1
) -> dict[str, Buffer]:
    """Return the constant operands of a layer: the buffers w, bias, multiplier and shift, by operand name.

    Args:
        spec: The layer.
        site: Operands and CPU features of the call.
        weights: Weights in CMSIS-NN's layout.
        bias: Bias of each output channel.
        per_tensor: Whether all channels share one multiplier.
        multiple: The number of channels is padded to a multiple of this, for functions that read beyond the last
            channel. Channels must then be the last axis of the weights.
    """
    channels = len(bias)
    beyond = -channels % multiple
    multiplier, shift = library_multipliers(spec.requantizer, 1 if per_tensor else channels)
    constants = {"w": np.pad(weights.reshape(-1), (0, beyond)), "bias": np.pad(bias.astype(np.int32), (0, beyond))}
    constants["multiplier"] = multiplier if per_tensor else np.pad(multiplier, (0, beyond))
    operands = {role: site.const(role, array) for role, array in constants.items()}
    shifts = np.pad(shift, (0, beyond if not per_tensor else 0), mode="edge")
    return operands | {"shift": site.growing_const("shift", shifts)}


def with_scratch(operands: Mapping[str, Buffer], site: Site, size: int) -> dict[str, Buffer]:
    """Return the operands of a call with a scratch buffer for CMSIS-NN added, of `size` bytes.

    Args:
        operands: Buffers by operand name.
        site: Operands and CPU features of the call.
        size: Bytes of scratch memory; may be 0.
    """
    return {**operands, "scratch": site.scratch("scratch", DType.INT8, size)}


def pack_nibbles_in_order(weights: Array) -> Array:
    """Pack 4-bit weights, int8 of any shape, two per byte in row-major order; the first one is in the lower half."""
    flat = weights.reshape(-1).astype(np.int8)
    pairs = np.pad(flat, (0, flat.size % 2)).view(np.uint8).reshape(-1, 2)
    packed: Array = (pairs[:, 0] & 0xF | pairs[:, 1] << 4).astype(np.uint8).view(np.int8)
    return packed


# ------------------------------------------------------------------------------- conditions


def is_int8_layer(spec: WeightedSpec) -> bool:
    """Require int8 tensors and weights, and accumulators of 32 bits.

    Return whether the layer meets this condition of a kernel. Accumulators must fit 32 bits after the left shift that
    CMSIS-NN applies before it multiplies by the requantization multiplier, and the requantized values must be below
    RESULT_LIMIT.
    """
    if not spec.is_int8:
        return False
    sums, requantize = spec.largest_sums, spec.requantizer
    left = 31 - requantize.shift
    largest = int((sums.astype(np.float64) * requantize.multiplier).max(initial=0)) >> requantize.shift
    return left >= 0 and spec.largest_sum << left < SHIFTED_SUM_LIMIT and largest < RESULT_LIMIT


def has_small_axes(spec: WeightedSpec) -> bool:
    """Require axes of fewer than 32768 elements, and filters of fewer than 65536 weights.

    Return whether the layer meets this condition of a kernel: CMSIS-NN counts elements in 16 bits.
    """
    shapes = (spec.x.shape, spec.weights.shape, spec.y.shape)
    is_short = all(0 < size <= MAX_INT16_AXIS for shape in shapes for size in shape)
    return is_short and spec.depth <= MAX_FILTER_WEIGHTS
