# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's data movement of int8 elements: arm_pad_s8, arm_transpose_s8, arm_concatenation_s8_y.

The library is called where mcugen's own lowering would copy elements with strides. Copies of one contiguous run mostly
vanish, because the memory planner places source and target at one address; a call would take time and memory instead.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.cmsis_nn.common import library_kernel
from mcugen.kernels.common.movement_specs import ConcatSpec, PaddedAxis, PadSpec
from mcugen.kernels.portable.movement import TransposeSpec
from mcugen.lir.kernel import Call, Kernel, Options, Params, Role, Site, reads, writes
from mcugen.lir.program import Access

AXES = "nhwc"
"""Names of the axes of a tensor of up to four axes in the library's functions, outermost first: n, h, w, c."""

MAX_UINT16_AXIS = 2**16 - 1
"""Largest length of an axis that the library's functions for paddings and concatenations accept (16 bits)."""

MAX_COLUMNS = MAX_UINT16_AXIS // 7
"""Largest number of columns of a transposed matrix: with Helium, the offsets of eight rows have 16 bits."""


_X, _Y = reads("x", "input", DType.INT8), writes("y", "output", DType.INT8)
_OPERANDS: tuple[Role, ...] = (_X, _Y)


# ---------------------------------------------------------------------------------------------------- padding


def is_int8_pad(spec: PadSpec) -> bool:
    """Require int8 elements.

    Return whether a padding meets this condition of a kernel: CMSIS-NN pads no other type.
    """
    return spec.x.dtype is DType.INT8


def pads_2_to_4_axes(spec: PadSpec) -> bool:
    """Require a padding of several axes, but at most four after axes are merged.

    Return whether a padding meets this condition of a kernel. Adjacent axes without padding are merged (PadSpec.axes).
    """
    return 1 < len(spec.axes) <= len(AXES)


class PadParams(Params):
    """Kernel parameters of a padding: its value, and per axis (n, h, w, c) the size of x and the elements added."""

    pad_value: Annotated[int, "value of the added elements"]
    n: Annotated[int, "elements of x along the outermost axis"]
    pad_before_n: Annotated[int, "elements added before x along the outermost axis"]
    pad_after_n: Annotated[int, "elements added behind x along the outermost axis"]
    h: Annotated[int, "elements of x along the second axis"]
    pad_before_h: Annotated[int, "elements added before x along the second axis"]
    pad_after_h: Annotated[int, "elements added behind x along the second axis"]
    w: Annotated[int, "elements of x along the third axis"]
    pad_before_w: Annotated[int, "elements added before x along the third axis"]
    pad_after_w: Annotated[int, "elements added behind x along the third axis"]
    c: Annotated[int, "elements of x along the innermost axis"]
    pad_before_c: Annotated[int, "elements added before x along the innermost axis"]
    pad_after_c: Annotated[int, "elements added behind x along the innermost axis"]


def emit_pad(spec: PadSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's padding with a constant along up to four axes."""
    axes = [PaddedAxis(1, 0, 0)] * (len(AXES) - len(spec.axes)) + spec.axes
    sizes: dict[str, int] = {}
    for name, axis in zip(AXES, axes, strict=True):
        sizes |= {name: axis.size, f"pad_before_{name}": axis.before, f"pad_after_{name}": axis.after}
    return site.call({"x": site.x, "y": site.y}, [PadParams(pad_value=int(spec.value), **sizes)])


CMSIS_PAD: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_pad_s8",
        what="a tensor padded with a constant: arm_pad_s8",
        operands=_OPERANDS,
        params=(PadParams,),
        when=(is_int8_pad, pads_2_to_4_axes),
        emit=emit_pad,
    ),
)
"""CMSIS-NN's kernels of paddings with a constant."""

# ----------------------------------------------------------------------------------------------- transposition


def merge_transposed_axes(spec: TransposeSpec) -> tuple[list[int], list[int]]:
    """Return an equivalent transposition with the fewest axes.

    Axes that remain adjacent are merged; axes of size 1 are dropped.

    Returns:
        The sizes of the input's axes, and the input axis of each output axis.
    """
    shape = spec.x.shape
    moved = [axis for axis in spec.perm if shape[axis] != 1]
    places = [sorted(moved).index(axis) for axis in moved]
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(places), 1) if b != a + 1)]
    groups = [moved[start:end] for start, end in zip(starts, [*starts[1:], len(moved)], strict=True)]
    order = sorted(groups)
    return [math.prod(shape[axis] for axis in group) for group in order], [order.index(group) for group in groups]


def is_int8_transpose(spec: TransposeSpec) -> bool:
    """Require an int8 input.

    Return whether a transposition meets this condition of a kernel: CMSIS-NN transposes no other type.
    """
    return spec.x.dtype is DType.INT8


def permutes_2_to_4_axes(spec: TransposeSpec) -> bool:
    """Require a transposition of two to four merged axes, within the library's limits of sizes.

    Return whether a transposition meets this condition of a kernel. Axes that remain adjacent are merged.
    """
    sizes, _ = merge_transposed_axes(spec)
    return 1 < len(sizes) <= len(AXES) and max(sizes) <= MAX_UINT16_AXIS and sizes[-1] <= MAX_COLUMNS


def count_rows(spec: TransposeSpec) -> int:
    """Return the number of rows of a transposition's input, for the cost model.

    A row is the contiguous elements along the innermost axis, after axes that remain adjacent are merged
    (merge_transposed_axes).
    """
    return spec.x.count // merge_transposed_axes(spec)[0][-1]


class TransposeParams(Params):
    """Kernel parameters with the sizes of x along up to four axes, which CMSIS-NN names n, h, w and c."""

    n: Annotated[int, "elements along the outermost axis"]
    h: Annotated[int, "elements along the second axis"]
    w: Annotated[int | None, "elements along the third axis; None for matrices"] = None
    c: Annotated[int | None, "elements along the innermost axis; None for matrices"] = None


class LibraryTransposeOptions(Options):
    """Template option of a transposition: for each axis of y, the axis of x that it comes from."""

    perm: Annotated[list[int], "axis of x by axis of y"]


def emit_transpose(spec: TransposeSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's transposition, which has separate code for matrices (two axes)."""
    sizes, perm = merge_transposed_axes(spec)
    if len(sizes) > 2:
        missing = len(AXES) - len(sizes)
        sizes, perm = [1] * missing + sizes, [*range(missing), *(axis + missing for axis in perm)]
    params = TransposeParams(**dict(zip(AXES, sizes, strict=False)))
    order = "".join(AXES[axis] for axis in perm)
    return site.call({"x": site.x, "y": site.y}, [params], [LibraryTransposeOptions(perm=perm)], variant=order)


CMSIS_TRANSPOSE: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_transpose_s8",
        what="a tensor with its axes in another order: arm_transpose_s8",
        operands=_OPERANDS,
        params=(TransposeParams,),
        options=(LibraryTransposeOptions,),
        when=(is_int8_transpose, permutes_2_to_4_axes),
        emit=emit_transpose,
        extra=count_rows,
    ),
)
"""CMSIS-NN's kernels of transpositions."""

# ----------------------------------------------------------------------------------------------- concatenation


def is_int8_concat(spec: ConcatSpec) -> bool:
    """Require int8 elements.

    Return whether a concatenation meets this condition of a kernel: CMSIS-NN's functions copy bytes.
    """
    return spec.y.dtype is DType.INT8


def has_strided_parts(spec: ConcatSpec) -> bool:
    """Require parts that are not contiguous in y, and sizes of at most 65535.

    Return whether a concatenation meets this condition of a kernel. The sizes are those before, along and behind the
    axis (ConcatSpec.sizes). If the first one is 1, each part (input) is contiguous in y and needs only a copy.
    """
    return spec.sizes[0] > 1 and all(0 < size <= MAX_UINT16_AXIS for size in spec.sizes)


class PartParams(Params):
    """Kernel parameters with the sizes of one part (input) of a concatenation, and its place in y.

    "The axis" is the one along which the parts are concatenated.
    """

    outer_size: Annotated[int, "product of the sizes of the axes before the axis"]
    y_axis_size: Annotated[int, "size of the axis in y"]
    inner_size: Annotated[int, "product of the sizes of the axes behind the axis"]
    axis_size: Annotated[int, "size of the axis in the part"]
    axis_offset: Annotated[int, "index along the axis of y at which the part begins"]


def emit_concat(spec: ConcatSpec, site: Site) -> list[Call]:
    """Emit one CMSIS-NN call for each part (input) of a concatenation, which copies the part to its place in y."""
    (outer, along, inner), offset = spec.sizes, 0
    calls = []
    for index, part in enumerate(spec.parts):
        depth = part.shape[spec.axis]
        params = PartParams(outer_size=outer, y_axis_size=along, inner_size=inner, axis_size=depth, axis_offset=offset)
        access = {"y": Access.INOUT} if index else {}
        calls.append(Call(site.kernel, {"x": site.input(index), "y": site.y}, [params], access=access))
        offset += depth
    return calls


CMSIS_CONCAT: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_concatenation_s8",
        what="one part of a concatenation: arm_concatenation_s8_y",
        operands=_OPERANDS,
        params=(PartParams,),
        when=(is_int8_concat, has_strided_parts),
        emit=emit_concat,
    ),
)
"""CMSIS-NN's kernels of concatenations."""
