# SPDX-License-Identifier: Apache-2.0
"""Kernels of training: updates of weights without a stored gradient, and products with trainable int8 weights."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.portable.weighted import DenseSizes
from mcugen.lir.kernel import Kernel, Options, Params, reads, writes


class DescentOptions(Options):
    """Template option of a gradient descent step: whether weights are int8 or float32.

    Int8 weights are rounded stochastically: a pseudo-random fraction (dither) is added before the fraction is dropped.
    """

    codes: Annotated[bool, "whether weights are int8, rounded with a dither"]


DESCEND = Kernel(
    "descend",
    what="subtracts a product of two matrices from weights: a step of gradient descent without a stored gradient",
    operands=(
        reads("w", "weights, with as many rows as a", DType.FLOAT32, DType.INT8),
        reads("a", "matrix on the left", DType.FLOAT32),
        reads("b", "matrix on the right", DType.FLOAT32),
        reads(
            "dither", "from 0 to 1, added to int8 weights before the fraction is dropped", DType.FLOAT32, optional=True
        ),
        writes("y", "updated weights, which may be w", DType.FLOAT32, DType.INT8),
    ),
    params=(DenseSizes,),
    options=(DescentOptions,),
)
"""Kernel of gradient descent steps of float or int8 weights, computed in floats."""


class CodedStep(Params):
    """Kernel parameter of a gradient descent step in integers: the zero point of b, the layer's quantized inputs.

    The step subtracts the scaled products of errors (a) and inputs (b) from int8 weights.
    """

    b_zero_point: Annotated[int, "zero point of b"]


DESCEND_CODES = Kernel(
    "descend_codes",
    what="subtracts scaled products of quantized errors and inputs from int8 weights, without a stored gradient",
    operands=(
        reads("w", "weights, with as many rows as a", DType.INT8),
        reads("a", "errors, by output channel", DType.INT16),
        reads("b", "inputs, with as many elements per row as errors", DType.INT8),
        reads("gain", "scale of sums, by output channel", DType.FLOAT32),
        reads("fraction", "dither that is added to weights before the fraction is dropped", DType.INT32),
        writes("y", "updated weights, which may be w", DType.INT8),
    ),
    params=(DenseSizes, CodedStep),
)
"""Kernel of gradient descent steps of int8 weights, computed in integers."""


class ProductLoops(Options):
    """Template options of products of floats and int8 weights that are trained on the device.

    The kernel computes four rows of x at a time, then the remaining rows singly; the options say which of the two
    occur.
    """

    has_row_blocks: Annotated[bool, "whether x has four rows or more"]
    has_tail_rows: Annotated[bool, "whether the number of rows is not a multiple of four"]


CODED_PRODUCT = Kernel(
    "coded_product",
    what="a product of floats and trainable int8 weights, which are not packed",
    operands=(
        reads("x", "float matrix", DType.FLOAT32),
        reads("w", "int8 matrix", DType.INT8),
        writes("y", "product of x and w", DType.FLOAT32),
    ),
    params=(DenseSizes,),
    options=(ProductLoops,),
)
"""Kernel of matrix products of float inputs and int8 weights that are trained on the device."""
