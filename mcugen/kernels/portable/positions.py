# SPDX-License-Identifier: Apache-2.0
"""Kernels whose results depend on positions or order: triangles, one-hot vectors, ranges, cumulative sums, top-k."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.lir.kernel import Kernel, Options, Params, reads, writes


class TriluParams(Params):
    """Kernel parameters of Trilu: number and sizes of the matrices."""

    matrices: Annotated[int, "matrices"]
    rows: Annotated[int, "rows of a matrix"]
    columns: Annotated[int, "elements of a row"]


class TriluOptions(Options):
    """Template option of Trilu: which triangle of a matrix is kept."""

    keeps: Annotated[str, "comparison of (column - row) with the diagonal for elements that are kept: >= or <="]


TRILU = Kernel(
    "trilu",
    what="matrices with zeros above or below a diagonal",
    operands=(reads("x", "input"), reads("k", "the diagonal"), writes("y", "output")),
    params=(TriluParams,),
    options=(TriluOptions,),
)
"""Kernel that computes the ONNX operator Trilu."""


class OneHotOptions(Options):
    """Template options of the ONNX operator OneHot: the C text that compares an index with a position of the output."""

    wide_t: Annotated[str, "C type in which indices are compared"]
    hit: Annotated[str, "C text that compares index v with position d"]


ONE_HOT = Kernel(
    "one_hot",
    what="one of two values, by whether an index is the position along a new axis",
    operands=(
        reads("index", "positions"),
        reads("values", "value elsewhere, then value at the index"),
        writes("y", "output"),
    ),
    params=(AxisWalk,),
    options=(OneHotOptions,),
)
"""Kernel that computes the ONNX operator OneHot."""


class RangeParams(Params):
    """Kernel parameter of Range: the number of elements."""

    count: Annotated[int, "elements of y"]


class RangeOptions(Options):
    """Template options of Range: C types of elements and of the computation, whose integers wrap around."""

    t: Annotated[str, "C type of the elements"]
    wide_t: Annotated[str, "C type of the computation"]


RANGE = Kernel(
    "range",
    what="numbers with a constant difference",
    operands=(reads("start", "first number"), reads("delta", "difference of adjacent numbers"), writes("y", "output")),
    params=(RangeParams,),
    options=(RangeOptions,),
)
"""Kernel that computes the ONNX operator Range."""


class CumulativeOptions(Options):
    """Template options of the ONNX operators CumSum and CumProd: types, operator, direction, and exclusion.

    With `exclusive`, the result at an element is the sum (or product) of the elements before it only.
    """

    t: Annotated[str, "C type of the elements"]
    acc_t: Annotated[str, "C type of the accumulator"]
    op: Annotated[str, "+ or *"]
    start: Annotated[str, "initial value of the accumulator"]
    exclusive: Annotated[bool, "whether an element is not part of its own sum"]
    reverse: Annotated[bool, "whether elements are processed from the end"]


CUMULATIVE = Kernel(
    "cumulative",
    what="running sums or products along an axis",
    operands=(reads("x", "input"), writes("y", "output")),
    params=(AxisWalk,),
    options=(CumulativeOptions,),
)
"""Kernel that computes the ONNX operators CumSum and CumProd."""


class TopParams(Params):
    """Kernel parameter of TopK: the number of elements that are selected along the axis."""

    k: Annotated[int, "elements that are selected"]


class TopOptions(Options):
    """Template options of TopK: element type, and whether the largest or the smallest elements are selected."""

    t: Annotated[str, "C type of the elements"]
    beats: Annotated[str, "how a better element compares with another: > or <"]


TOP_K = Kernel(
    "top_k",
    varies="elements are moved as far as sorting needs",
    what="the largest or smallest elements along an axis in order, by insertion, and their positions",
    operands=(
        reads("x", "input"),
        writes("values", "selected elements"),
        writes("indices", "positions of the selected elements", DType.INT64),
    ),
    params=(AxisWalk, TopParams),
    options=(TopOptions,),
)
"""Kernel that computes the ONNX operator TopK."""
