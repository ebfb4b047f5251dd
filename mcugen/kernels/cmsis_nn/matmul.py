# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's product of two activations: arm_batch_matmul_s8, whose second operand must be transposed."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.cmsis_nn.common import (
    RESULT_LIMIT,
    SCRATCH,
    SHIFTED_SUM_LIMIT,
    TensorScale,
    library_kernel,
    select_by_variant,
    with_scratch,
)
from mcugen.kernels.common.specs import MatMulSpec
from mcugen.lir.kernel import Call, Kernel, Params, Role, Site, Trained, reads, writes


def is_int8_product(spec: MatMulSpec) -> bool:
    """Require int8 operands and result, and accumulators of 32 bits.

    Return whether a product of two activation matrices meets this condition of a kernel.
    """
    if any(t.dtype is not DType.INT8 or t.quant is None for t in (spec.a, spec.b, spec.y)):
        return False
    max_sum, requantize = int(spec.largest_sums[0]), spec.requantizer
    left, largest = 31 - requantize.shift, max_sum * int(requantize.multiplier[0]) >> requantize.shift
    return left >= 0 and max_sum << left < SHIFTED_SUM_LIMIT and largest < RESULT_LIMIT


class ProductSize(Params):
    """Kernel parameters with the sizes of a product of two activation matrices, y = a · b."""

    batch: Annotated[int, "number of products"]
    rows: Annotated[int, "rows of a and y"]
    depth: Annotated[int, "columns of a, rows of b"]
    columns: Annotated[int, "columns of b and y"]

    @staticmethod
    def of(spec: MatMulSpec) -> ProductSize:
        """Return the numbers of products, rows and columns of a layer that multiplies two activation matrices."""
        return ProductSize(batch=spec.batch, rows=spec.rows, depth=spec.depth, columns=spec.columns)


class ProductCodes(Params):
    """Kernel parameters of a matrix product y = a · b: zero points, and bytes of CMSIS-NN's scratch buffer.

    The scratch memory of the kernel holds the library's scratch buffer, then the transposed matrix b.
    """

    library_scratch_bytes: Annotated[int, "bytes of the library's scratch buffer, which the transposed b follows"]
    a_zero_point: Annotated[Trained, "zero point of a"]
    b_zero_point: Annotated[Trained, "zero point of b"]
    y_zero_point: Annotated[Trained, "zero point of y"]


def product_operands(dtype: DType) -> tuple[Role, ...]:
    """Declare the operands of a matrix product y = a · b, all with elements of type `dtype`."""
    return reads("a", "left operand", dtype), reads("b", "right operand", dtype), writes("y", "output", dtype)


def emit(spec: MatMulSpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's product of two activation matrices, one matrix of the batch at a time.

    Scratch memory holds one transposed matrix; with Helium, also the sums of columns.
    """
    requantize = spec.requantizer
    sums = select_by_variant(site.features, 0, 0, 4 * spec.columns)
    zeros = {
        "a_zero_point": spec.a.q.zero_point,
        "b_zero_point": spec.b.q.zero_point,
        "y_zero_point": spec.y.q.zero_point,
    }
    scale = TensorScale(multiplier=int(requantize.multiplier[0]), shift=31 - requantize.shift)
    size = sums + spec.depth * spec.columns
    return site.call(
        with_scratch({"a": site.input(0), "b": site.input(1), "y": site.y}, site, size),
        [ProductSize.of(spec), ProductCodes(library_scratch_bytes=sums, **zeros), scale],
    )


CMSIS_MATMUL_S8: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_batch_matmul_s8",
        what="the product of two int8 activations: arm_batch_matmul_s8",
        operands=(*product_operands(DType.INT8), SCRATCH),
        params=(ProductSize, ProductCodes, TensorScale),
        when=(is_int8_product,),
        emit=emit,
    ),
)
"""CMSIS-NN's kernels of matrix products of two int8 activations."""
