# SPDX-License-Identifier: Apache-2.0
"""CMSIS-NN's elementwise functions: arm_elementwise_add_s8, arm_elementwise_mul_s8, arm_maximum_s8, arm_minimum_s8.

All of them give the same bits as mcugen's own kernels. A sum is requantized three times: each operand,
(x − zero_point) · 2^INT8_SUM_LEFT_SHIFT, by its factor · 2^(31 − INT8_SUM_LEFT_SHIFT), which is exact, then the sum of
both by 2^(31 − shift), which is the only rounding of mcugen's own kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.cmsis_nn.common import TensorScale, library_kernel
from mcugen.kernels.portable.activations import BinarySpec
from mcugen.lir.kernel import Call, Kernel, Params, Role, Site, Trained, reads, writes
from mcugen.lir.program import Buffer
from mcugen.lir.traversal import collapse
from mcugen.numerics.fixedpoint import has_same_quantization

INT8_SUM_LEFT_SHIFT = 22
"""Left shift, in bits, of the operands of a sum of int8 tensors. Shifted operands fit 32 bits even if they are doubled,
as in a Helium build with single rounding. A DSP build needs at least 16: it shifts only the lower half of a
difference."""

IN_PLACE_PAIRS = (("y", "x0"), ("y", "x1"))
"""Pairs (output, input) that may begin at the same address: the functions read and write element by element,
forward."""


# ------------------------------------------------------------------------------------------ conditions


def is_sum(spec: BinarySpec) -> bool:
    """Require a sum or difference of int8 tensors of one shape that 32 bits can compute.

    Return whether the layer meets this condition of a kernel. Neither operand may be broadcast, and both operands and
    their sum must fit 32 bits after they are scaled to a common unit.
    """
    return spec.fixed_sum is not None and spec.are(DType.INT8)


def is_product(spec: BinarySpec) -> bool:
    """Require a product of int8 tensors of one shape that fits 32 bits before its requantization.

    Return whether the layer meets this condition of a kernel: it is an elementwise product without broadcasting.
    """
    if spec.product is None or not spec.are(DType.INT8):
        return False
    return spec.largest_product << (32 - spec.product.shift) < 2**31


def is_maximum(spec: BinarySpec) -> bool:
    """Require a maximum of two int8 matrices of one scale, broadcast along rows or columns at most.

    Return whether the layer meets this condition of a kernel. Tensors of any rank are seen as matrices if adjacent axes
    can be merged.
    """
    return spec.function == "Max" and _are_matrices(spec)


def is_minimum(spec: BinarySpec) -> bool:
    """Require a minimum of two int8 matrices of one scale, broadcast along rows or columns at most.

    Return whether the layer meets this condition of a kernel. Tensors of any rank are seen as matrices if adjacent axes
    can be merged.
    """
    return spec.function == "Min" and _are_matrices(spec)


def _are_matrices(spec: BinarySpec) -> bool:
    """Return whether scales are equal, and operands are broadcast along rows or columns at most."""
    y = spec.y
    same = y.dtype is DType.INT8 and has_same_quantization(spec.x0, y) and has_same_quantization(spec.x1, y)
    return same and len(_walks(spec)[0]) <= 2


def _walks(spec: BinarySpec) -> tuple[list[int], list[list[int]]]:
    return collapse(spec.y.shape, [spec.x0.shape, spec.x1.shape])


# ------------------------------------------------------------------------------------- sums and products


class Int8Elements(Params):
    """Kernel parameters of an elementwise function of int8 tensors of one shape: size, zero points, output limits."""

    count: Annotated[int, "elements"]
    x0_zero_point: Annotated[Trained, "zero point of x0"]
    x1_zero_point: Annotated[Trained, "zero point of x1"]
    y_zero_point: Annotated[Trained, "zero point of y"]
    low: Annotated[Trained, "lowest quantized value of y"]
    high: Annotated[Trained, "highest quantized value of y"]

    @staticmethod
    def of(spec: BinarySpec) -> Int8Elements:
        """Return the number of elements, the zero points and the output limits of an elementwise layer."""
        (low, high), x0, x1, y = spec.limits, spec.x0.q, spec.x1.q, spec.y.q
        zeros = {"x0_zero_point": x0.zero_point, "x1_zero_point": x1.zero_point, "y_zero_point": y.zero_point}
        return Int8Elements(count=spec.y.count, low=low, high=high, **zeros)


class SumScales(Params):
    """Kernel parameters of a sum: CMSIS-NN requantizes each operand, then the sum of both."""

    x0_multiplier: Annotated[Trained, "multiplier of x0, Q0.31"]
    x1_multiplier: Annotated[Trained, "multiplier of x1, Q0.31"]
    left_shift: Annotated[Trained, "left shift of the operands before they are multiplied"]
    y_multiplier: Annotated[Trained, "multiplier of the sum, Q0.31"]


def operands(site: Site) -> dict[str, Buffer]:
    """Return the buffers of the operands x0, x1 and y of an elementwise layer, by operand name."""
    return {"x0": site.input(0), "x1": site.input(1), "y": site.y}


def emit_add(spec: BinarySpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's sum of int8 tensors; a difference is a sum with a negative multiplier of x1."""
    fixed = spec.fixed_sum
    assert fixed is not None
    m0, m1 = (factor << (31 - INT8_SUM_LEFT_SHIFT) for factor in fixed.factors)
    scales = SumScales(
        x0_multiplier=m0, x1_multiplier=m1, left_shift=INT8_SUM_LEFT_SHIFT, y_multiplier=1 << (31 - fixed.shift)
    )
    return site.call(operands(site), [Int8Elements.of(spec), scales], inplace=IN_PLACE_PAIRS)


def emit_mul(spec: BinarySpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's elementwise product of int8 tensors, with mcugen's own requantization multiplier."""
    requantize = spec.product
    assert requantize is not None
    scale = TensorScale(multiplier=int(requantize.multiplier[0]), shift=31 - requantize.shift)
    return site.call(operands(site), [Int8Elements.of(spec), scale], inplace=IN_PLACE_PAIRS)


# -------------------------------------------------------------------------------------------- extremes


class BroadcastMatrices(Params):
    """Kernel parameters with the sizes of the matrices x0, x1 and y; operands with one row or column are broadcast."""

    y_rows: Annotated[int, "rows of y"]
    y_columns: Annotated[int, "columns of y"]
    x0_rows: Annotated[int, "rows of x0: as many as y has, or 1"]
    x0_columns: Annotated[int, "columns of x0: as many as y has, or 1"]
    x1_rows: Annotated[int, "rows of x1: as many as y has, or 1"]
    x1_columns: Annotated[int, "columns of x1: as many as y has, or 1"]

    @staticmethod
    def of(spec: BinarySpec) -> BroadcastMatrices:
        """Return the sizes of an elementwise layer's operands x0 and x1 and its result y, each seen as a matrix."""
        dims, strides = _walks(spec)
        sizes = [dims] + [[size if stride else 1 for size, stride in zip(dims, row, strict=True)] for row in strides]
        (y_h, y_w), (x0_h, x0_w), (x1_h, x1_w) = ((rows[0] if len(rows) > 1 else 1, rows[-1]) for rows in sizes)
        return BroadcastMatrices(
            y_rows=y_h, y_columns=y_w, x0_rows=x0_h, x0_columns=x0_w, x1_rows=x1_h, x1_columns=x1_w
        )


def emit_extreme(spec: BinarySpec, site: Site) -> Call:
    """Emit a call of CMSIS-NN's elementwise maximum or minimum; y may overwrite an operand that is not broadcast."""
    whole = [pair for pair, x in zip(IN_PLACE_PAIRS, (spec.x0, spec.x1), strict=True) if x.count == spec.y.count]
    return site.call(operands(site), [BroadcastMatrices.of(spec)], inplace=whole)


# --------------------------------------------------------------------------------------------- kernels


def binary_operands(dtype: DType) -> tuple[Role, ...]:
    """Declare the operands of an elementwise function of two tensors, x0, x1 and y, all of element type `dtype`."""
    return reads("x0", "one operand", dtype), reads("x1", "the other operand", dtype), writes("y", "output", dtype)


def _extreme(name: str, which: str, condition: Callable[[BinarySpec], bool]) -> Kernel:
    function = name.replace("cmsis", "arm")
    return library_kernel(
        name,
        what=f"the {which} values of two int8 matrices, one of which may be a row, a column or a number: {function}",
        operands=binary_operands(DType.INT8),
        params=(BroadcastMatrices,),
        when=(condition,),
        emit=emit_extreme,
    )


CMSIS_SUM_S8: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_elementwise_add_s8",
        what="the sum of two int8 tensors of one shape: arm_elementwise_add_s8",
        operands=binary_operands(DType.INT8),
        params=(Int8Elements, SumScales),
        when=(is_sum,),
        emit=emit_add,
    ),
)
"""CMSIS-NN's kernels of sums and differences of two int8 tensors."""
CMSIS_PRODUCT_S8: tuple[Kernel, ...] = (
    library_kernel(
        "cmsis_elementwise_mul_s8",
        what="the product of two int8 tensors of one shape: arm_elementwise_mul_s8",
        operands=binary_operands(DType.INT8),
        params=(Int8Elements, TensorScale),
        when=(is_product,),
        emit=emit_mul,
    ),
)
"""CMSIS-NN's kernels of elementwise products of two int8 tensors."""
CMSIS_MAXIMUM_S8 = (_extreme("cmsis_maximum_s8", "larger", is_maximum),)
"""CMSIS-NN's kernels of elementwise maxima of two int8 tensors."""
CMSIS_MINIMUM_S8 = (_extreme("cmsis_minimum_s8", "smaller", is_minimum),)
"""CMSIS-NN's kernels of elementwise minima of two int8 tensors."""
