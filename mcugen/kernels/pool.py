# SPDX-License-Identifier: Apache-2.0
"""Kernels of pools, and of what undoes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Options, Params, reads, writes


@dataclass(frozen=True, kw_only=True)
class Geometry(Params):
    """A window that slides over rows and columns, channels last; a pool of one axis has one row."""

    batch: Annotated[int, "images"]
    channels: Annotated[int, "elements of a pixel"]
    in_h: Annotated[int, "rows of x"]
    in_w: Annotated[int, "pixels of a row of x"]
    out_h: Annotated[int, "rows of y"]
    out_w: Annotated[int, "pixels of a row of y"]
    k_h: Annotated[int, "rows of the window"]
    k_w: Annotated[int, "columns of the window"]
    stride_h: Annotated[int, "rows from window to window"]
    stride_w: Annotated[int, "pixels from window to window"]
    pad_h: Annotated[int, "rows above x that the first window begins at"]
    pad_w: Annotated[int, "pixels before a row that the first window begins at"]
    dilation_h: Annotated[int | None, "rows from tap to tap"] = None
    dilation_w: Annotated[int | None, "pixels from tap to tap"] = None


@dataclass(frozen=True, kw_only=True)
class MaxOptions(Options):
    """Of a maximum."""

    dilated: Annotated[bool, "whether taps lie apart"]
    inside: Annotated[bool, "whether no window leaves x"]
    x_t: Annotated[str, "C type of the elements"]


def _max_pool(name: str, dtype: DType) -> Kernel:
    return Kernel(
        name,
        what="the largest element under each window, channel by channel, four or more channels at a time",
        operands=(reads("x", "input, channels last", dtype), writes("y", "output, channels last", dtype)),
        params=(Geometry,),
        options=(MaxOptions,),
    )


MAX_POOL = {
    DType.FLOAT32: _max_pool("max_pool_f32", DType.FLOAT32),
    DType.INT8: _max_pool("max_pool_s8", DType.INT8),
    DType.INT16: _max_pool("max_pool_s16", DType.INT16),
    DType.UINT8: _max_pool("max_pool_u8", DType.UINT8),
}
"""By element type."""


@dataclass(frozen=True, kw_only=True)
class UnpoolParams(Params):
    """Sizes of both sides, as if they were flat."""

    count: Annotated[int, "elements of x"]
    size: Annotated[int, "elements of y"]


UNPOOL = Kernel(
    "unpool",
    what="zeros, but for elements of x at the positions that indices tell; those outside are ignored",
    operands=(reads("x", "what is placed"), reads("indices", "where it is placed", DType.INT64), writes("y", "output")),
    params=(UnpoolParams,),
)
