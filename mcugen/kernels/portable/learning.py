# SPDX-License-Identifier: Apache-2.0
"""Kernels of training: matrix updates by products that are not stored, and products with trainable int8 weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.portable.weighted import DenseSizes
from mcugen.lir.kernel import Kernel, Options, Params, reads, writes


@dataclass(frozen=True, kw_only=True)
class DescentOptions(Options):
    """Template option of the updated matrix."""

    codes: Annotated[bool, "whether it holds int8 codes, which a dither rounds"]


DESCEND = Kernel(
    "descend",
    what="a matrix less a product of two others: a step of learning, whose gradient is nowhere kept",
    operands=(
        reads("w", "the matrix, with as many rows as a", DType.FLOAT32, DType.INT8),
        reads("a", "matrix on the left", DType.FLOAT32),
        reads("b", "matrix on the right", DType.FLOAT32),
        reads("dither", "added to codes before they are cut off, 0 to 1", DType.FLOAT32, optional=True),
        writes("y", "the matrix afterwards, which may be w", DType.FLOAT32, DType.INT8),
    ),
    params=(DenseSizes,),
    options=(DescentOptions,),
)


@dataclass(frozen=True, kw_only=True)
class CodedStep(Params):
    """Zero point of a quantized operand."""

    b_zero_point: Annotated[int, "zero point of b"]


DESCEND_CODES = Kernel(
    "descend_codes",
    what="int8 weights less a product of codes, of which each sum becomes a step: no gradient is kept",
    operands=(
        reads("w", "weights, with as many rows as a", DType.INT8),
        reads("a", "errors, by output channel", DType.INT16),
        reads("b", "inputs, as many to a row as errors", DType.INT8),
        reads("gain", "of sums, by output channel", DType.FLOAT32),
        reads("fraction", "added to weights before they are cut off", DType.INT32),
        writes("y", "weights afterwards, which may be w", DType.INT8),
    ),
    params=(DenseSizes, CodedStep),
)


@dataclass(frozen=True, kw_only=True)
class ProductLoops(Options):
    """Template options of rows."""

    has_row_blocks: Annotated[bool, "whether there are four"]
    has_tail_rows: Annotated[bool, "whether some are left over"]


CODED_PRODUCT = Kernel(
    "coded_product",
    what="a product of reals by int8 codes that are learned, as they lie",
    operands=(
        reads("x", "matrix of reals", DType.FLOAT32),
        reads("w", "matrix of codes", DType.INT8),
        writes("y", "their product", DType.FLOAT32),
    ),
    params=(DenseSizes,),
    options=(ProductLoops,),
)
