# SPDX-License-Identifier: Apache-2.0
"""The kernel of matrix inversion."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.lir.kernel import Kernel, Options, Params, reads, scratch, writes

_FLOATS = (DType.FLOAT32, DType.FLOAT64)


class InverseParams(Params):
    """Kernel parameters of matrix inversion: number and size of square matrices."""

    batch: Annotated[int, "matrices"]
    n: Annotated[int, "rows of a matrix, and elements of a row"]


class InverseOptions(Options):
    """Template option of matrix inversion: the element type."""

    t: Annotated[str, "C type of the elements"]


INVERSE = Kernel(
    "inverse",
    what="inverse matrices, by Gaussian elimination with pivoting in a copy",
    operands=(
        reads("x", "matrices", *_FLOATS),
        writes("y", "inverse matrices", *_FLOATS),
        scratch("m", "copy of a matrix for the elimination", *_FLOATS),
    ),
    params=(InverseParams,),
    options=(InverseOptions,),
    example="""<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
    inverse (float[2, 3, 3] x) => (float[2, 3, 3] y) { y = com.microsoft.Inverse (x) }""",
)
"""Kernel that computes the ONNX operator Inverse."""
