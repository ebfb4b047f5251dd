# SPDX-License-Identifier: Apache-2.0
"""Kernels that write updates at given indices; no index can lead out of the tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from mcugen.lir.kernel import ByAxis, Kernel, Options, Params, Role, reads, writes


def _operands(index: str, meaning: str) -> tuple[Role, ...]:
    return (
        reads("x", "elements that are not updated"),
        reads(index, meaning),
        reads("updates", "elements to write"),
        writes("y", "output, which may be x"),
    )


class Reduced(Options):
    """Template options of scatter operators: how an update is combined with the element that it replaces."""

    t: Annotated[str, "C type of the elements"]
    reduction: Annotated[str, "none, add, mul, max or min, for the comment"]
    step: Annotated[str, "C statement that combines *to with *from"]


class ScatterElementsParams(Params):
    """Kernel parameters of ScatterElements: elements of x, and size and stride of the axis that indices refer to."""

    x_size: Annotated[int, "elements of x"]
    axis_size: Annotated[int, "entries of the axis"]
    stride: Annotated[int, "elements from entry to entry"]


class ScatteredAxes(ByAxis):
    """Kernel parameters of ScatterElements: the loops over the indices, one set for each loop."""

    count: Annotated[Mapping[str, int], "trip count of this loop"]
    y_stride: Annotated[
        Mapping[str, int], "stride of y in this loop, in elements; 0 along the axis that indices refer to"
    ]


class ScatterElementsOptions(Reduced):
    """Template options of ScatterElements: number of loops over indices, and how updates are combined."""

    rank: Annotated[int, "loops"]


SCATTER_ELEMENTS = Kernel(
    "scatter_elements",
    what="x with an element changed for each index, which is the position along one axis",
    operands=_operands("index", "indices"),
    params=(ScatterElementsParams, ScatteredAxes),
    options=(ScatterElementsOptions,),
)
"""Kernel that computes the ONNX operator ScatterElements."""


class ScatterParams(Params):
    """Kernel parameters of ScatterND: sizes of the tensor and of the updates."""

    x_size: Annotated[int, "elements of x"]
    num_updates: Annotated[int, "updates"]
    run_size: Annotated[int, "elements of an update"]


class PlacedAxes(ByAxis):
    """Kernel parameters of ScatterND: size and stride of each axis of y along which an index selects."""

    depth: Annotated[Mapping[str, int], "entries of this axis"]
    stride: Annotated[Mapping[str, int], "elements from entry to entry"]


class ScatterOptions(Reduced):
    """Template options of ScatterND: how many axes an index selects along, and how updates are combined with y.

    Each update is the adjacent elements at one index.
    """

    depths: Annotated[int, "numbers of an index: axes that it selects along"]


SCATTER_ND = Kernel(
    "scatter_nd",
    what="x with a run changed for each index of several axes",
    operands=_operands("index", "indices"),
    params=(ScatterParams, PlacedAxes),
    options=(ScatterOptions,),
)
"""Kernel that computes the ONNX operator ScatterND."""


class TensorScatterParams(Params):
    """Kernel parameters of TensorScatter: sizes of the tensor, and of the part of its axis that is written.

    y[sample][block][first + s] = updates[sample][block][s], for the entries s of the axis in the updates; an entry is
    `run_size` adjacent elements.
    """

    x_size: Annotated[int, "elements of x"]
    batch: Annotated[int, "samples"]
    middle_size: Annotated[int, "blocks of a sample before the axis"]
    axis_size: Annotated[int, "entries of the axis of x"]
    updates_axis_size: Annotated[int, "entries of the axis of the updates"]
    run_size: Annotated[int, "elements of an entry"]


class TensorScatterOptions(Options):
    """Template option of TensorScatter: whether updates continue at the beginning of the axis after its end."""

    circular: Annotated[bool, "whether updates continue at the beginning of the axis after its end"]


TENSOR_SCATTER = Kernel(
    "tensor_scatter",
    what="x with a part of one axis replaced, from a position of each sample on, as in a key-value cache",
    operands=_operands("first", "position of the first update, by sample"),
    params=(TensorScatterParams,),
    options=(TensorScatterOptions,),
)
"""Kernel that computes the ONNX operator TensorScatter."""
