# SPDX-License-Identifier: Apache-2.0
"""Kernels of reductions along axes, and of the position of an extreme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from mcugen.hir.types import DType, Shape
from mcugen.kernels.common.strided_loops import AxisWalk, Nests
from mcugen.lir.kernel import Kernel, Options, Params, Real, Trained, reads, writes
from mcugen.lir.program import Wide
from mcugen.lir.traversal import Traversal, nested_positions

LoopList = list[tuple[int, int]]
"""Nested loops, each as (trip count, stride in elements), from the outermost."""


def walks_of(shape: Shape, axes: Sequence[int]) -> tuple[LoopList, LoopList]:
    """Return the loops of a reduction over a dense tensor: those over kept dimensions, and those over reduced ones.

    Adjacent dimensions of the same kind are merged; dimensions of size 1 are dropped.

    Args:
        shape: Shape of the tensor.
        axes: The reduced axes.

    Returns:
        Two lists of loops, each loop as (trip count, stride in elements), from the outermost.
    """
    merged: list[tuple[int, int, bool]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        is_reduced, stride = axis in axes, math.prod(shape[axis + 1 :])
        if merged and merged[-1][2] == is_reduced:
            size *= merged.pop()[0]
        merged.append((size, stride, is_reduced))
    kept = [(size, stride) for size, stride, is_reduced in merged if not is_reduced]
    return kept, [(size, stride) for size, stride, is_reduced in merged if is_reduced]


def nests_of(kept: LoopList, reduced: LoopList) -> Nests:
    """Return the kernel parameters of a reduction: loops over kept dimensions around loops over reduced dimensions.

    Args:
        kept: Loops over kept dimensions, as (trip count, stride in elements), from the outermost.
        reduced: Loops over reduced dimensions.
    """

    def loops(letter: str, walks: LoopList) -> dict[str, int]:
        members: dict[str, int] = {}
        for number, (size, stride) in enumerate(walks):
            members |= {f"{letter}{number}_size": size, f"{letter}{number}_stride": stride}
        return members

    return Nests(k=loops("k", kept), r=loops("r", reduced))


class FinishParams(Params):
    """Kernel parameters with which a reduction turns accumulators into elements of y: mean or requantization."""

    scale: Annotated[Real | None, "1 / elements of a mean of floats"] = None
    mean_size: Annotated[int | None, "elements of a mean of integers"] = None
    multiplier: Annotated[Trained | None, "scale of the sum / scale of y, times 2^shift"] = None
    requantize_offset: Annotated[
        Wide | None, "zero points plus one half, at the scale of a product of a sum and the multiplier"
    ] = None
    y_zero_point: Annotated[Trained | None, "zero point of y, if halves are rounded to even"] = None


class ReduceOptions(Options):
    """Template options of a reduction: numbers of loops, C types, and the C text that combines elements.

    `finish` says how an accumulator becomes an element of y: as it is (plain), times a scale, divided by a number of
    elements, or requantized: half up (requantize), half to even (average), or as a quotient half away from zero (away).
    """

    what: Annotated[str, "name of the reduction"]
    kept: Annotated[int, "loops over kept axes"]
    reduced: Annotated[int, "loops over reduced axes"]
    x_t: Annotated[str, "C type of x"]
    y_t: Annotated[str, "C type of y"]
    acc_t: Annotated[str, "C type of the accumulator"]
    start: Annotated[str, "initial value of the accumulator; empty: the first element"]
    step: Annotated[str, "C statement for each element v"]
    finish: Annotated[str, "plain, scale, divide_signed, divide_unsigned, average, requantize or away"]
    shift: Annotated[int, "fraction bits of a product"] = 0
    low: Annotated[int, "lowest quantized value of y"] = 0
    high: Annotated[int, "highest quantized value of y"] = 0


REDUCE = Kernel(
    "reduce",
    what="a sum, mean, product, extreme or norm over any axes, element by element",
    operands=(reads("x", "input"), writes("y", "output")),
    params=(Nests, FinishParams),
    options=(ReduceOptions,),
)
"""Kernel of reductions along any axes."""


# ------------------------------------------------------------------------------------ position of an extreme


class ArgOptions(Options):
    """Template options of ArgMax and ArgMin: the element type, and the comparison by which an element is better."""

    what: Annotated[str, "name of the function"]
    x_t: Annotated[str, "C type of x"]
    beats: Annotated[str, "C comparison by which an element replaces the best one before it"]


ARG = Kernel(
    "arg",
    what="the index of the largest or smallest element along an axis",
    operands=(reads("x", "input"), writes("y", "indices", DType.INT64)),
    params=(AxisWalk,),
    options=(ArgOptions,),
)
"""Kernel that computes the ONNX operators ArgMax and ArgMin."""


def arg_order(walk: AxisWalk) -> Traversal:
    """Return the order of reads and writes of ArgMax and ArgMin, from which the allowed overlap of x and y follows.

    All elements along the axis are read before their index is written.

    Args:
        walk: Sizes of the loops along the axis.
    """
    rows = np.arange(walk.outer_size) * walk.axis_size * walk.inner_size
    return Traversal.runs(nested_positions(rows, np.arange(walk.inner_size)), 1)
