# SPDX-License-Identifier: Apache-2.0
"""The two kernels that copy elements: `move`, which vanishes if source and target get one address, and `copy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import ByAxis, Kernel, Options, Params, reads, writes
from mcugen.lir.program import MOVE


class MoveParams(Params):
    """Kernel parameters of a move (a copy of bytes): the number of bytes, and the offsets of the moved part.

    A move of whole buffers has no offsets.
    """

    nbytes: Annotated[int, "bytes that are copied"]
    x_at: Annotated[int | None, "bytes from the beginning of x to the part"] = None
    y_at: Annotated[int | None, "bytes from the beginning of y to the part"] = None


class MoveOptions(Options):
    """Template options of a move (a copy of bytes): whether it moves bytes within one buffer."""

    within: Annotated[bool, "whether x and y are one buffer, whose parts may overlap"]


@dataclass(frozen=True)
class CopyRange:
    """The bytes that a move copies from one buffer to another.

    Attributes:
        source_offset: Bytes of the source before the part that is read.
        target_offset: Bytes of the target before the part that is written.
        nbytes: Number of bytes to copy; None: all bytes behind the offsets, as far as both buffers have them.
    """

    source_offset: int = 0
    target_offset: int = 0
    nbytes: int | None = None


MOVE_KERNEL = Kernel(
    MOVE,
    what="bytes as they are; no call where both sides can lie in one place",
    operands=(reads("x", "what is copied"), writes("y", "where to")),
    params=(MoveParams,),
    options=(MoveOptions,),
)
"""Kernel that copies bytes, unless memory planning gives both buffers the same address (MOVE)."""


class Offsets(Params):
    """Kernel parameters of a copy: the first elements that it reads in x and writes in y, and their change in loops."""

    x_offset: Annotated[int, "elements of x before the first that is read"]
    y_offset: Annotated[int, "elements of y before the first that is written"]
    x_step: Annotated[int | None, "elements by which x_offset grows with each step of the loop"] = None
    y_step: Annotated[int | None, "elements by which y_offset grows with each step of the loop"] = None


class CopyWalk(ByAxis):
    """Kernel parameters of the nested loops of a strided copy from x to y, one set for each loop, the outermost first.

    `count` is the number of iterations of a loop; the strides are the distances in x and y, in elements, from iteration
    to iteration. With a stride of 0, each iteration reads the same elements of x.
    """

    count: Annotated[Mapping[str, int], "trips of this loop"]
    x_stride: Annotated[Mapping[str, int], "elements of x from trip to trip; 0: the same again"]
    y_stride: Annotated[Mapping[str, int], "elements of y from trip to trip"]


class CopiedRunParams(Params):
    """Kernel parameter of a copy of contiguous runs of elements: the bytes of one run; None to copy single elements."""

    run: Annotated[int | None, "bytes that lie together"] = None


class CopyOptions(Options):
    """Template options of a copy: number of nested loops, element type, and whether it copies contiguous runs.

    A copy may be in a loop of the program. With `stepped`, each iteration of this loop copies another part of x or y.
    """

    rank: Annotated[int, "loops"]
    contiguous: Annotated[bool, "whether runs are copied instead of elements"]
    x_t: Annotated[str, "C type of the elements"]
    stepped: Annotated[bool, "whether it takes another part at each step of a loop"]


COPY_KERNEL = Kernel(
    "copy",
    what="elements, or runs of them, from one walk through memory to another",
    operands=(
        reads("x", "what is copied"),
        writes("y", "where to"),
        reads("step", "number of the loop's step", DType.INT64, optional=True),
    ),
    params=(Offsets, CopyWalk, CopiedRunParams),
    options=(CopyOptions,),
)
"""Kernel that copies elements or contiguous runs between two strided layouts."""
