# SPDX-License-Identifier: Apache-2.0
"""Kernels of padding: with an element computed at run time, or with the tensor's own elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from mcugen.hir.types import Array
from mcugen.lir.kernel import ByAxis, Kernel, Options, Params, reads, writes
from mcugen.lir.traversal import Traversal, nested


@dataclass(frozen=True, kw_only=True)
class Count(Params):
    """Number of elements."""

    count: Annotated[int, "elements of y"]


FILL_WITH = Kernel(
    "fill_with",
    what="one element for every element",
    operands=(reads("value", "what each is"), writes("y", "what is filled")),
    params=(Count,),
)


@dataclass(frozen=True, kw_only=True)
class ExtendWalk(ByAxis):
    """Loops over y; axes that do not grow are merged with their neighbours."""

    count: Annotated[Mapping[str, int], "elements of y along the axis, or of a run"]
    stride: Annotated[Mapping[str, int], "elements of x from one index along the axis to the next"]
    places: Annotated[Mapping[str, int], "entries of x along an axis that grows: other indices count as 0"]


@dataclass(frozen=True, kw_only=True)
class ExtendOptions(Options):
    """Template options of a padding with the tensor's own elements."""

    t: Annotated[str, "C type of the elements"]
    grows: Annotated[list[bool], "of each loop: whether a table says where its elements come from"]
    mode: Annotated[str, "ONNX's name of the way"]


EXTEND = Kernel(
    "extend",
    what="a tensor within its own elements: mirrored, the nearest, or from the other end",
    operands=(
        reads("x", "input"),
        reads("at", "index in x by index in y, along an axis that grows", optional=True, several=True),
        writes("y", "output"),
    ),
    params=(ExtendWalk,),
    options=(ExtendOptions,),
)


@dataclass
class Extension:
    """The loops of a padding, outermost first: trips, strides in x, and index tables of axes that grow."""

    counts: list[int] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    tables: list[Array | None] = field(default_factory=list)

    def grow(self, table: Array, stride: int) -> None:
        """Append an axis whose elements come from the indices in `table`."""
        self._append(len(table), stride, table)

    def keep(self, size: int, stride: int) -> None:
        """Append an axis that keeps its size, merged with the previous one if that does too."""
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
        """Return, for each loop, whether its axis grows."""
        return [table is not None for table in self.tables]

    @property
    def places(self) -> dict[str, int]:
        """Return, for axes that grow, the number of entries that their tables refer to."""
        return {f"places{axis}": int(table.max()) + 1 for axis, table in enumerate(self.tables) if table is not None}

    def order(self) -> Traversal:
        """Return the traversal: element by element, or by runs where the last axis does not grow."""
        loops = zip(self.counts, self.strides, self.tables, strict=True)
        walks = [(np.arange(count) if table is None else table) * stride for count, stride, table in loops]
        if self.grows[-1]:
            return Traversal.runs(nested(*walks), 1)
        return Traversal.rereading(nested(*walks[:-1]), len(walks[-1]))
