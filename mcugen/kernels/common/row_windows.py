# SPDX-License-Identifier: Apache-2.0
"""Kernels that move rows into and out of the row windows of line-buffer fusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Params, Real, reads, updates, writes


@dataclass(frozen=True, kw_only=True)
class RowsParams(Params):
    """Size of a copy: rows, and bytes per row."""

    rows: Annotated[int, "rows"]
    bytes: Annotated[int, "bytes of a row"]


STREAM_GET = Kernel(
    "stream_get",
    what="the next rows of a tensor",
    operands=(
        reads("x", "a tensor as rows"),
        updates("next", "number of the first row to take", DType.INT32),
        writes("y", "the rows"),
    ),
    params=(RowsParams,),
)
STREAM_PUT = Kernel(
    "stream_put",
    what="rows become the next of a tensor",
    operands=(
        reads("x", "the rows"),
        updates("next", "number of the first of them in y", DType.INT32),
        updates("y", "a tensor as rows"),
    ),
    params=(RowsParams,),
)


@dataclass(frozen=True, kw_only=True)
class ShiftParams(Params):
    """Size of a row window, and of the rows that leave it."""

    total_bytes: Annotated[int, "bytes of all rows"]
    shift_bytes: Annotated[int, "bytes of the rows that are dropped"]


SHIFT_ROWS = Kernel(
    "shift_rows",
    what="a window of rows moves on: the oldest rows go, the last stay twice",
    operands=(updates("x", "the window"),),
    params=(ShiftParams,),
)


@dataclass(frozen=True, kw_only=True)
class FillParams(Params):
    """Range of elements to fill, and their value."""

    first_element: Annotated[int, "index of the first element"]
    count: Annotated[int, "elements"]
    fill_value: Annotated[Real, "value of each element"]


FILL_ROWS = Kernel(
    "fill_rows",
    what="one number for some elements of a tensor",
    operands=(writes("y", "the tensor"),),
    params=(FillParams,),
)
