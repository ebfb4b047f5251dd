# SPDX-License-Identifier: Apache-2.0
"""Kernels that move rows into and out of the row windows of line-buffer fusion."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Params, Real, reads, updates, writes


class RowsParams(Params):
    """Kernel parameters of a copy of rows from or to a row window: number of rows, and bytes of a row.

    A row window is a buffer in which a layer's latest rows wait for the next layer, if layers are computed row by row.
    """

    rows: Annotated[int, "rows"]
    bytes: Annotated[int, "bytes of a row"]


STREAM_GET = Kernel(
    "stream_get",
    what="copies the next rows out of a tensor",
    operands=(
        reads("x", "a tensor as rows"),
        updates("next", "number of the first row to take", DType.INT32),
        writes("y", "the rows"),
    ),
    params=(RowsParams,),
)
"""Kernel that copies the next rows of a tensor into the row window (line buffer) of a fused group of layers."""
STREAM_PUT = Kernel(
    "stream_put",
    what="copies rows into a tensor as its next rows",
    operands=(
        reads("x", "the rows"),
        updates("next", "number of the first row to write in y", DType.INT32),
        updates("y", "a tensor as rows"),
    ),
    params=(RowsParams,),
)
"""Kernel that copies the rows that a fused group of layers has computed to their place in the group's output tensor."""


class ShiftParams(Params):
    """Kernel parameters of a shift of a row window: its size, and the size of the oldest rows, which are dropped.

    A row window is a buffer in which a layer's latest rows wait for the next layer, if layers are computed row by row.
    """

    total_bytes: Annotated[int, "bytes of all rows"]
    shift_bytes: Annotated[int, "bytes of the rows that are dropped"]


SHIFT_ROWS = Kernel(
    "shift_rows",
    what="shifts a window of rows: the oldest rows are dropped, and the last rows remain in place too",
    operands=(updates("x", "the window"),),
    params=(ShiftParams,),
)
"""Kernel that drops the oldest rows of a row window (line buffer), and moves the other rows to its beginning."""


class FillParams(Params):
    """Kernel parameters of a fill of a row window: a range of elements, and the value that each of them is set to.

    A row window is a buffer in which a layer's latest rows wait for the next layer, if layers are computed row by row.
    """

    first_element: Annotated[int, "index of the first element"]
    count: Annotated[int, "elements"]
    fill_value: Annotated[Real, "value of each element"]


FILL_ROWS = Kernel(
    "fill_rows",
    what="sets a range of elements of a tensor to one value",
    operands=(writes("y", "the tensor"),),
    params=(FillParams,),
)
"""Kernel that sets a range of elements of a row window (line buffer) to one value, as padding."""
