# SPDX-License-Identifier: Apache-2.0
"""Kernels of padding: with a value that is computed at run time, or with the tensor's own elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array
from mcugen.lir.kernel import ByAxis, Kernel, Options, Params, reads, writes
from mcugen.lir.traversal import Traversal, nested_positions


class Count(Params):
    """Kernel parameter of a fill with a value computed at run time: the number of elements of y."""

    count: Annotated[int, "elements of y"]


FILL_WITH = Kernel(
    "fill_with",
    what="sets every element to a value computed at run time",
    operands=(reads("value", "value of each element"), writes("y", "tensor to fill")),
    params=(Count,),
)
"""Kernel that sets every element of a tensor to a value computed at run time."""


class ExtendWalk(ByAxis):
    """Kernel parameters of a padding with the tensor's own elements: loops over y, one set for each loop.

    A loop covers a padded axis, whose indices in x come from a table, or several adjacent axes without padding.
    """

    count: Annotated[Mapping[str, int], "elements of y along the axis, or of a run"]
    stride: Annotated[Mapping[str, int], "elements of x from one index along the axis to the next"]
    places: Annotated[Mapping[str, int], "entries of x along a padded axis; other indices in its table count as 0"]


class ExtendOptions(Options):
    """Template options of a padding with the tensor's own elements: element type, mode, and loops over y.

    `grows` says for each loop whether its axis is padded. The kernel then finds the element of x for each index of y in
    a table.
    """

    t: Annotated[str, "C type of the elements"]
    grows: Annotated[list[bool], "for each loop, whether its axis is padded, by an index table"]
    mode: Annotated[str, "ONNX name of the mode: reflect, edge or wrap"]


EXTEND = Kernel(
    "extend",
    what="a tensor padded with its own elements: reflected, nearest, or from the opposite end",
    operands=(
        reads("x", "input"),
        reads("at", "index in x of each index in y, along a padded axis", optional=True, several=True),
        writes("y", "output"),
    ),
    params=(ExtendWalk,),
    options=(ExtendOptions,),
)
"""Kernel of paddings with the tensor's own elements (modes reflect, edge and wrap of ONNX Pad)."""


@dataclass
class Extension:
    """The loop nest of a padding with the tensor's own elements (modes reflect, edge, wrap), from the outermost loop.

    Attributes:
        counts: Trip count of each loop.
        strides: Stride of x in each loop, in elements.
        tables: For each loop over a padded axis, the index in x of each index in y; None for axes without padding.
    """

    counts: list[int] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    tables: list[Array | None] = field(default_factory=list)

    def grow(self, table: Array, stride: int) -> None:
        """Append a loop over a padded axis.

        Args:
            table: The index in x of each index in y along the axis.
            stride: Stride of the axis in x, in elements.
        """
        self._append(len(table), stride, table)

    def keep(self, size: int, stride: int) -> None:
        """Append a loop over an axis without padding, or merge it with the previous one without padding.

        Args:
            size: Number of elements along the axis.
            stride: Stride of the axis in x, in elements.
        """
        if self.tables and self.tables[-1] is None:
            size *= self.counts.pop()
            self.strides.pop()
            self.tables.pop()
        self._append(size, stride, None)

    def _append(self, count: int, stride: int, table: Array | None) -> None:
        self.counts.append(count)
        self.strides.append(stride)
        self.tables.append(table)

    @property
    def grows(self) -> list[bool]:
        """Return, for each loop, whether its axis is padded."""
        return [table is not None for table in self.tables]

    @property
    def places(self) -> dict[str, int]:
        """Return the kernel parameters places0, places1, …: the number of elements of x along each padded axis.

        They are the bounds of the entries of the index tables, and are absent for axes without padding.
        """
        return {f"places{axis}": int(table.max()) + 1 for axis, table in enumerate(self.tables) if table is not None}

    def order(self) -> Traversal:
        """Return the order in which the kernel reads x and writes y, which tells how far y may overlap x in memory.

        Elements are copied one by one; if the last axis is not padded, all elements along this axis are copied at once.
        """
        loops = zip(self.counts, self.strides, self.tables, strict=True)
        walks = [(np.arange(count) if table is None else table) * stride for count, stride, table in loops]
        if self.grows[-1]:
            return Traversal.runs(nested_positions(*walks), 1)
        return Traversal.rereading(nested_positions(*walks[:-1]), len(walks[-1]))
