# SPDX-License-Identifier: Apache-2.0
"""The kernel that reads rows of a streamed input by a callback of the caller."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Params, updates, writes
from mcugen.lir.program import READ_ROWS


class ReadRowsParams(Params):
    """Kernel parameters of the kernel that reads input rows by a callback: number of rows, bytes of a row, and axis."""

    rows: Annotated[int, "rows that are read at once"]
    bytes: Annotated[int, "bytes of a row"]
    axis: Annotated[int, "axis of the input that counts rows"]


READ_ROWS_KERNEL = Kernel(
    READ_ROWS,
    what="the next rows of the streamed input, written by the caller",
    operands=(updates("next", "number of the first row", DType.INT32), writes("y", "the rows")),
    params=(ReadRowsParams,),
)
"""Kernel that calls back the caller for the next rows of a streamed input (READ_ROWS)."""
