# SPDX-License-Identifier: Apache-2.0
"""The kernel of transposed convolutions of codes: each output pixel gathers the input pixels that meet there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array, DType
from mcugen.kernels.conv_shape import ConvShape
from mcugen.kernels.direct import ChannelGroups
from mcugen.kernels.specs import ConvSpec
from mcugen.kernels.weighted import BLOCK, CodeStore, interleave
from mcugen.lir.kernel import Call, Kernel, Options, Params, Site, reads, scratch, writes
from mcugen.lir.traversal import Traversal

_CODES = (DType.INT8, DType.INT16)


@dataclass(frozen=True, kw_only=True)
class SpreadGeometry(Params):
    """Where input pixels go, channels last; of one axis there is one row."""

    in_h: Annotated[int, "rows of x"]
    in_w: Annotated[int, "pixels of a row of x"]
    out_h: Annotated[int, "rows of y"]
    out_w: Annotated[int, "pixels of a row of y"]
    k_h: Annotated[int, "rows of the window"]
    k_w: Annotated[int, "columns of the window"]
    stride_h: Annotated[int, "rows of y from window to window"]
    stride_w: Annotated[int, "pixels of y from window to window"]
    dilation_h: Annotated[int, "rows of y from tap to tap"]
    dilation_w: Annotated[int, "pixels of y from tap to tap"]
    pad_h: Annotated[int, "rows above y that the first window begins at"]
    pad_w: Annotated[int, "pixels before a row of y that the first window begins at"]

    @classmethod
    def of(cls, shape: ConvShape) -> SpreadGeometry:
        """Of a shape."""
        return cls(**{member.name: getattr(shape, member.name) for member in cls.declared()})


@dataclass(frozen=True, kw_only=True)
class SpreadTypes(Options):
    """Element types, and what becomes of the sums."""

    x_t: Annotated[str, "C type of the input"]
    w_t: Annotated[str, "C type of the weights"]
    bias_t: Annotated[str, "C type of the bias"]
    y_t: Annotated[str, "C type of the output"]
    acc_t: Annotated[str, "C type of the sums"]
    shift: Annotated[int, "of products with the multiplier to the right"]
    rest: Annotated[bool, "whether channels are left over by fours"]


CONV_TRANSPOSE_INT = Kernel(
    "conv_transpose_int",
    what="a transposed convolution of codes: the taps of a pixel are found once, then four channels at a time",
    operands=(
        reads("x", "input, channels last", *_CODES),
        reads("w", "weights by blocks of four channels, then by channel", *_CODES),
        reads("bias", "by output channel", DType.INT32, DType.INT64),
        reads("multiplier", "of sums, by output channel", DType.INT32),
        writes("y", "output, channels last", *_CODES),
        scratch("taps", "where the pixels that meet lie, and their taps", DType.INT32),
    ),
    params=(ChannelGroups, SpreadGeometry, CodeStore),
    options=(SpreadTypes,),
)


def transposed_call(spec: ConvSpec, site: Site) -> Call:
    """Two spatial axes always; four output channels at a time, their weights interleaved."""
    shape, bias = spec.shape, spec.integer_bias
    group_out = spec.channels // shape.groups
    rest = group_out % BLOCK != 0
    packed = np.concatenate([interleave(group) for group in spec.weights.reshape(shape.groups, group_out, -1)])
    operands = {
        "x": site.x,
        "w": site.const("w", packed),
        "bias": site.const("bias", bias),
        "multiplier": site.const("multiplier", spec.multipliers),
        "y": site.y,
        "taps": site.scratch("taps", DType.INT32, 2 * shape.k_h * shape.k_w),
    }
    channels = ChannelGroups(
        batch=shape.batch, groups=shape.groups, group_in=spec.weights.shape[-1], group_out=group_out
    )
    types = SpreadTypes(
        x_t=spec.x.dtype.c,
        w_t=DType.of(spec.weights).c,
        bias_t=DType.of(bias).c,
        y_t=spec.y.dtype.c,
        acc_t=spec.acc.c,
        shift=spec.high_word.shift,
        rest=rest,
    )
    variant = spec.x.dtype.tag + ("_long" if spec.acc is DType.INT64 else "")
    free = spec.overlaps(_pixels(shape, 1 if rest else BLOCK))
    params = [channels, SpreadGeometry.of(shape), CodeStore.of(spec)]
    return site.call(operands, params, [types], overlaps=free, variant=variant)


def _pixels(shape: ConvShape, last: int) -> Traversal:
    """Pixel by pixel; what meets there is read again for each few channels, of which `last` are the last."""
    rows, columns = (_first_inputs(shape, axis) for axis in "hw")
    pixels = shape.in_h * shape.in_w
    none = (rows == shape.in_h)[:, None] | (columns == shape.in_w)
    first = np.where(none, pixels, rows[:, None] * shape.in_w + columns).reshape(-1)
    image = np.arange(shape.batch)[:, None] * pixels
    reads = (image + first).reshape(-1) * shape.in_c
    ends = (np.arange(len(reads))[:, None] + 1) * shape.out_c - np.array([last, 0])
    return Traversal(np.repeat(reads, 2), ends.reshape(-1))


def _first_inputs(shape: ConvShape, axis: str) -> Array:
    """By output position along an axis: the first input that meets there, or its size if none does."""
    size, out, taps, stride, dilation, pad = shape.along(axis)
    at = np.arange(out)[:, None] + pad - np.arange(taps) * dilation
    first: Array = np.where((at >= 0) & (at % stride == 0) & (at < size * stride), at // stride, size).min(1)
    return first
