# SPDX-License-Identifier: Apache-2.0
"""Kernels that read elements at given indices; no index can lead out of the tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.lir.kernel import ByAxis, Kernel, Options, Params, reads, writes


class GatherParams(Params):
    """Kernel parameters of Gather and GatherND: number of blocks of x, and of indices for each block.

    A block is the part of x at one index of all axes before the indexed ones.
    """

    outer_size: Annotated[int, "blocks of x"]
    num_indices: Annotated[int, "indices of a block"]
    x_outer_stride: Annotated[int, "elements from block to block of x"]


class IndexedAxes(ByAxis):
    """Kernel parameters of Gather and GatherND: stride and size of each axis of x along which an index selects."""

    stride: Annotated[Mapping[str, int], "elements from entry to entry of this axis"]
    depth: Annotated[Mapping[str, int], "entries of this axis"]


class GatherRun(Params):
    """Kernel parameter of Gather and GatherND: size of the contiguous run that an index selects."""

    run_size: Annotated[int | None, "elements that an index selects, if more than one"] = None


class GatherOptions(Options):
    """Template options of Gather and GatherND: element type, indices, and whether an index selects one element.

    y[o][j] = x[o][index[o][j]], where block o is the part of x at one index of all axes before the indexed ones, and
    each entry is an element, or several adjacent elements. With `shared`, index[j] is used for all blocks.
    """

    t: Annotated[str, "C type of the elements"]
    index_t: Annotated[str, "C type of the indices"]
    depths: Annotated[int, "numbers of an index: axes that it selects along"]
    single_element: Annotated[bool, "whether an index selects one element"]
    shared: Annotated[bool, "whether all blocks have the same indices"]
    known: Annotated[bool, "whether indices are constants inside x"]


GATHER = Kernel(
    "gather",
    what="elements, or runs of them, at indices of one or several axes",
    operands=(reads("x", "tensor to read from"), reads("index", "indices"), writes("y", "output")),
    params=(GatherParams, IndexedAxes, GatherRun),
    options=(GatherOptions,),
)
"""Kernel that computes the ONNX operators Gather and GatherND."""


class IndexCount(Params):
    """Kernel parameter of GatherElements: the number of indices along the axis."""

    num_indices: Annotated[int, "entries of the indices along the axis"]


GATHER_ELEMENTS = Kernel(
    "gather_elements",
    what="an element for each index, which is the position along one axis",
    operands=(reads("x", "tensor to read from"), reads("index", "indices"), writes("y", "output")),
    params=(AxisWalk, IndexCount),
)
"""Kernel that computes the ONNX operator GatherElements."""


class ReverseParams(Params):
    """Kernel parameters of ReverseSequence: sizes and strides of the axis to reverse, and of the axis of sequences.

    An entry is the adjacent elements of x at one index of both axes.
    """

    axis_size: Annotated[int, "entries along the axis that is reversed"]
    batch: Annotated[int, "sequences"]
    axis_stride: Annotated[int, "elements from entry to entry of the axis"]
    batch_stride: Annotated[int, "elements from sequence to sequence"]
    run_size: Annotated[int, "elements of an entry"]


REVERSE_SEQUENCE = Kernel(
    "reverse_sequence",
    what="sequences whose first elements, up to a length each, are reversed",
    operands=(reads("x", "input"), reads("length", "reversed length of each sequence"), writes("y", "output")),
    params=(ReverseParams,),
)
"""Kernel that computes the ONNX operator ReverseSequence."""


class SliceCount(Params):
    """Kernel parameter of a slice at run-time positions: the number of axes for which a start and a step are given."""

    count: Annotated[int, "axes whose starts and steps are given"]


class SlicedAxes(ByAxis):
    """Kernel parameters of a slice at run-time positions: for each axis, its size and stride in x, and size in y."""

    size: Annotated[Mapping[str, int], "entries of this axis of x"]
    stride: Annotated[Mapping[str, int], "elements of x from entry to entry"]
    count: Annotated[Mapping[str, int], "entries of this axis of y"]


class SliceOptions(Options):
    """Template option of a slice at run-time positions: the number of axes of x."""

    rank: Annotated[int, "axes"]


SLICE_AT = Kernel(
    "slice_at",
    what="a part of x whose starts and steps are known at run time only",
    operands=(
        reads("x", "tensor to read from"),
        reads("starts", "starts"),
        reads("axes", "axes of the starts and steps"),
        reads("steps", "steps"),
        writes("y", "output"),
    ),
    params=(SliceCount, SlicedAxes),
    options=(SliceOptions,),
)
"""Kernel of slices whose starts or steps are known at run time only."""
