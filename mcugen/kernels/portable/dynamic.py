# SPDX-License-Identifier: Apache-2.0
"""Kernels whose results have a size that depends on data; they store the number of entries in `count`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.lir.kernel import Kernel, Options, Params, no_rounds, reads, scratch, writes
from mcugen.lir.program import Instr

_COUNT = writes("count", "entries that were found", DType.INT32)


class NonZeroParams(Params):
    """Kernel parameters of NonZero with the size and the shape of the input."""

    total: Annotated[int, "elements of x"]
    count: Annotated[Mapping[str, int], "elements along this axis"]


class NonZeroOptions(Options):
    """Template options of NonZero: number of axes, and type of x."""

    rank: Annotated[int, "axes"]
    x_t: Annotated[str, "C type of the input"]


NONZERO = Kernel(
    "nonzero",
    varies="elements that are not 0 are counted and written",
    rounds=no_rounds,
    what="positions of the elements that are not 0",
    operands=(reads("x", "input"), writes("y", "a row of positions for each axis", DType.INT64), _COUNT),
    params=(NonZeroParams,),
    options=(NonZeroOptions,),
)
"""Kernel that computes the ONNX operator NonZero."""


class CompressParams(Params):
    """Kernel parameters of the ONNX operator Compress: sizes of x around the axis whose entries are selected.

    An entry is all elements at one index of the axis, within a block: the part of x at one index of each axis before.
    The condition may have fewer elements than the axis has entries.
    """

    outer_size: Annotated[int, "product of the sizes of the axes before the axis"]
    inner_size: Annotated[int, "elements of an entry of the axis"]
    x_outer_stride: Annotated[int, "elements of a block of x"]
    axis_size: Annotated[int, "entries for which the condition has an element"]


COMPRESS = Kernel(
    "compress",
    varies="entries for which the condition holds are copied",
    rounds=lambda instr: instr.operand("x").buffer.nbytes,
    what="the entries of an axis for which a condition holds",
    operands=(
        reads("x", "input"),
        reads("condition", "for each entry, whether it stays", DType.BOOL, DType.UINT8),
        writes("y", "output"),
        _COUNT,
    ),
    params=(CompressParams,),
)
"""Kernel that computes the ONNX operator Compress."""


class UniqueOptions(Options):
    """Template options of the ONNX operator Unique: type and order of the entries, and which results the node has.

    Entries are elements, or slices of an axis. `roles` holds the names of the results: y, indices, inverse and counts.
    """

    t: Annotated[str, "C type of the elements"]
    is_real: Annotated[bool, "whether elements may be NaN"]
    is_sorted: Annotated[bool, "whether entries are sorted, instead of in order of appearance"]
    roles: Annotated[list[str], "results that the node has"]


UNIQUE = Kernel(
    "unique",
    varies="elements are sorted and compared with adjacent ones",
    what="distinct entries of an axis, with their first index, the inverse mapping, and the number of occurrences",
    operands=(
        reads("x", "input"),
        writes("y", "distinct entries", optional=True),
        writes("indices", "first index of each distinct entry in x", DType.INT64, optional=True),
        writes("inverse", "number of the distinct entry that equals each entry of x", DType.INT64, optional=True),
        writes("counts", "number of occurrences of each distinct entry in x", DType.INT64, optional=True),
        _COUNT,
        scratch("first", "first index of each distinct entry", DType.INT32),
    ),
    params=(AxisWalk,),
    options=(UniqueOptions,),
)
"""Kernel that computes the ONNX operator Unique."""


class SuppressionParams(Params):
    """Kernel parameters of NonMaxSuppression with the numbers of boxes and classes."""

    batch: Annotated[int, "images"]
    classes: Annotated[int, "classes, each with a score for every box"]
    num_boxes: Annotated[int, "boxes of an image"]


class SuppressionOptions(Options):
    """Template options of NonMaxSuppression: the format of boxes, and whether there is a score threshold."""

    is_centered: Annotated[bool, "whether a box is its centre and extent, not two corners"]
    has_score: Annotated[bool, "whether scores must exceed a threshold"]


def _rounds(instr: Instr) -> int:
    """Return the most iterations: all boxes of a class are visited for each chosen box, and once more at the end."""
    batches, classes, boxes = (instr.params[name] for name in ("batch", "classes", "num_boxes"))
    assert isinstance(batches, int) and isinstance(classes, int) and isinstance(boxes, int)
    max_boxes = instr.operand("most").buffer.data
    chosen = boxes if max_boxes is None else min(max(int(max_boxes.max()), 0), boxes)
    return batches * classes * (chosen + 1) * boxes


NONMAXSUPPRESSION = Kernel(
    "nonmaxsuppression",
    varies="boxes are compared with the chosen ones",
    rounds=_rounds,
    what="the best boxes of each class that do not overlap a better box too much, chosen one after the other",
    operands=(
        reads("boxes", "boxes, four numbers each", DType.FLOAT32),
        reads("scores", "by class and box", DType.FLOAT32),
        reads("most", "largest number of boxes per class", DType.INT64),
        reads("overlap", "largest ratio of intersection to union", DType.FLOAT32),
        reads("least_score", "threshold that a score must exceed", DType.FLOAT32, optional=True),
        writes("y", "image, class and box of each chosen box", DType.INT64),
        _COUNT,
        scratch("left", "for each box, whether it may still be chosen", DType.UINT8),
    ),
    params=(SuppressionParams,),
    options=(SuppressionOptions,),
)
"""Kernel that computes the ONNX operator NonMaxSuppression."""
