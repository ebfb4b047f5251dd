# SPDX-License-Identifier: Apache-2.0
"""Kernels of positions and order: triangles, one-hot vectors, ranges, cumulative sums, top-k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.lir.kernel import Kernel, Options, Params, reads, writes


@dataclass(frozen=True, kw_only=True)
class TriluParams(Params):
    """Sizes of matrices."""

    matrices: Annotated[int, "matrices"]
    rows: Annotated[int, "rows of a matrix"]
    columns: Annotated[int, "elements of a row"]


@dataclass(frozen=True, kw_only=True)
class TriluOptions(Options):
    """Template option of the half that is kept."""

    keeps: Annotated[str, "how columns less rows compare with the diagonal where elements stay: >= or <="]


TRILU = Kernel(
    "trilu",
    what="matrices with zeros above or below a diagonal",
    operands=(reads("x", "input"), reads("k", "the diagonal"), writes("y", "output")),
    params=(TriluParams,),
    options=(TriluOptions,),
)


@dataclass(frozen=True, kw_only=True)
class OneHotOptions(Options):
    """Template options of the comparison of an index."""

    wide_t: Annotated[str, "C type that indices are compared in"]
    hit: Annotated[str, "C text that compares index v with position d"]


ONE_HOT = Kernel(
    "one_hot",
    what="one of two values, by whether an index is the position along a new axis",
    operands=(reads("index", "positions"), reads("values", "elsewhere, and there"), writes("y", "output")),
    params=(AxisWalk,),
    options=(OneHotOptions,),
)


@dataclass(frozen=True, kw_only=True)
class RangeParams(Params):
    """Number of elements."""

    count: Annotated[int, "elements of y"]


@dataclass(frozen=True, kw_only=True)
class RangeOptions(Options):
    """Template options of arithmetic that wraps."""

    t: Annotated[str, "C type of the elements"]
    wide_t: Annotated[str, "C type that computes"]


RANGE = Kernel(
    "range",
    what="numbers at equal distances",
    operands=(reads("start", "the first"), reads("delta", "from one to the next"), writes("y", "output")),
    params=(RangeParams,),
    options=(RangeOptions,),
)


@dataclass(frozen=True, kw_only=True)
class CumulativeOptions(Options):
    """Template options of a cumulative operation."""

    t: Annotated[str, "C type of the elements"]
    acc_t: Annotated[str, "C type of the accumulator"]
    op: Annotated[str, "+ or *"]
    start: Annotated[str, "what it starts from"]
    exclusive: Annotated[bool, "whether an element is not part of its own sum"]
    reverse: Annotated[bool, "whether it runs from the end"]


CUMULATIVE = Kernel(
    "cumulative",
    what="running sums or products along an axis",
    operands=(reads("x", "input"), writes("y", "output")),
    params=(AxisWalk,),
    options=(CumulativeOptions,),
)


@dataclass(frozen=True, kw_only=True)
class TopParams(Params):
    """Number of results."""

    k: Annotated[int, "elements that are selected"]


@dataclass(frozen=True, kw_only=True)
class TopOptions(Options):
    """Template options of the order."""

    t: Annotated[str, "C type of the elements"]
    beats: Annotated[str, "how a better element compares with another: > or <"]


TOP_K = Kernel(
    "top_k",
    varies="elements are moved as far as their order asks for",
    what="the largest or smallest elements along an axis in order, by insertion, and their positions",
    operands=(
        reads("x", "input"),
        writes("values", "the elements"),
        writes("indices", "their positions", DType.INT64),
    ),
    params=(AxisWalk, TopParams),
    options=(TopOptions,),
)
