# SPDX-License-Identifier: Apache-2.0
"""Kernels of elementwise functions of quantized tensors, each faster than the general elementwise loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Protocol

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call, Kernel, Options, Params, Trained, reads, scratch, writes
from mcugen.lir.program import WORD, Buffer, Overlap
from mcugen.lir.traversal import Traversal, collapse, overlap
from mcugen.numerics.fixedpoint import Range, Requantizer, clamp_range, is_quantized


def dense_int8(sig: Signature) -> bool:
    """Return whether all inputs and the output of a node are int8 tensors of one shape."""
    types = [t for t in (*sig.inputs, sig.output) if t is not None]
    return all(t.dtype is DType.INT8 and t.shape == sig.output.shape for t in types)


@dataclass(frozen=True)
class RowsOfInt8:
    """The operands of an elementwise function of two int8 tensors, seen as rows of adjacent elements.

    Attributes:
        x0: Index (0 or 1) of the node's input that has all rows; the kernel's operand x0.
        x1: Index of the other input, which has as many rows, or a single row that is used for all rows of x0.
        rows: Rows of x0; 1 if both tensors have the same shape.
        columns: Number of elements of a row.
    """

    x0: int
    x1: int
    rows: int
    columns: int

    @staticmethod
    def of(sig: Signature) -> RowsOfInt8 | None:
        """Return the two inputs of a node with this signature as rows of adjacent elements.

        None if a type is not int8, if rows have fewer than four elements, or if the shapes broadcast in another way
        than one row for all rows.
        """
        types, y = (sig.input(0), sig.input(1)), sig.output
        if not all(t.dtype is DType.INT8 for t in (*types, y)):
            return None
        dims, walks = collapse(y.shape, [t.shape for t in types])
        moved = [all(walk) for walk in walks]
        if len(dims) == 1 and all(moved):
            return RowsOfInt8(0, 1, 1, dims[0])
        if len(dims) != 2 or not any(moved) or not all(walk[-1] for walk in walks) or dims[-1] < WORD:
            return None
        first = moved.index(True)
        return RowsOfInt8(first, 1 - first, *dims)

    def operands(self, node: Node, builder: Builder) -> dict[str, Buffer]:
        """Return the kernel's operands x0, x1 and y as buffers, by role.

        Args:
            node: Node to lower.
            builder: Builder that knows the buffers of values.
        """
        read = {"x0": node.input(self.x0), "x1": node.input(self.x1)}
        return {role: builder.buffer(value) for role, value in (read | {"y": node.output}).items()}

    def overlaps(self, node: Node) -> list[Overlap]:
        """Return how far the output may overlap the inputs in memory, for the memory planner.

        The kernel processes the elements from the first to the last. The output must not overlap an input of a single
        row that is used for all rows.
        """
        y, order = node.output.type, Traversal.forward(node.output.type.count)
        dense = {"x0": self.x0} | ({"x1": self.x1} if self.rows == 1 else {})
        return [allowed for role, i in dense.items() for allowed in overlap(node.input(i).type, y, order, into=role)]


# --------------------------------------------------------------------------------------------- specs


class WeightedSum(Protocol):
    """Protocol of the sum of two quantized tensors in fixed point, as integers.

    q = (x0 · factors[0] + x1 · factors[1] + offset) >> shift, for the quantized values x0 and x1 of the inputs.
    """

    @property
    def factors(self) -> tuple[int, int]:
        """Return the integers by which the sum multiplies the quantized values of the first and second input."""

    @property
    def offset(self) -> int:
        """Return the integer that is added to both products before the right shift: zero points and rounding."""

    @property
    def shift(self) -> int:
        """Return the number of bits by which the sum is shifted right to become a quantized value of the output."""


@dataclass(frozen=True, eq=False)
class BinarySpec:
    """An elementwise function of two quantized tensors, such as Add or Mul, as its kernels see it.

    Attributes:
        function: Name of the ONNX operator, such as Add.
        x0: Type of the first operand.
        x1: Type of the second operand.
        y: Type of the output.
        clamp: Range that results are clamped to, in real numbers; None without a clamp.
        fixed_sum: The sum or difference in fixed point; None for other functions, or if 32 bits are too few.
        product: Requantization of the product of the two inputs, for multiplications; None for other functions.
        largest_product: Upper bound of the magnitude of a product of two elements (less their zero points), before the
            requantization.
    """

    function: str
    x0: TensorType
    x1: TensorType
    y: TensorType
    clamp: Range | None
    fixed_sum: WeightedSum | None = None
    product: Requantizer | None = None
    largest_product: int = 0

    @cached_property
    def limits(self) -> tuple[int, int]:
        """Return the lowest and the highest quantized value that y can have, by its type and the clamp."""
        return clamp_range(self.clamp, self.y.q, self.y.dtype)

    def are(self, dtype: DType) -> bool:
        """Return whether both operands and y are quantized with element type `dtype`, and have one shape."""
        types = (self.x0, self.x1, self.y)
        return all(is_quantized(t) and t.dtype is dtype and t.shape == self.y.shape for t in types)


@dataclass(frozen=True, eq=False)
class CurveSpec:
    """A function of one quantized tensor that is looked up in a table, such as sigmoid, as its kernels see it.

    Attributes:
        function: Name of the function, such as sigmoid.
        x: Type of the input.
        y: Type of the output.
        is_constant: Whether the lookup table is a constant of the program.
    """

    function: str
    x: TensorType
    y: TensorType
    is_constant: bool


# ----------------------------------------------------------------------------------- sums of int8 tensors


class SumParams(Params):
    """Kernel parameters of an int8 sum in fixed point: factors, offset, shift and limits.

    y = clamp((x0 · x0_multiplier + x1 · x1_multiplier + requantize_offset) >> shift), with multipliers below 2^23 and
    sums below 2^31.
    """

    count: Annotated[int, "elements; of a row, if x1 is a single row"]
    rows: Annotated[int | None, "rows of x0, if x1 is a single row that is added to each"] = None
    x0_multiplier: Annotated[Trained, "multiplier of x0: its scale / scale of y, times 2^shift"]
    x1_multiplier: Annotated[Trained, "multiplier of x1"]
    requantize_offset: Annotated[Trained, "zero points plus one half, at the scale of the sum"]
    shift: Annotated[Trained, "fraction bits of the sum: its right shift"]
    low: Annotated[Trained | None, "lowest quantized value of y, if it is not -128"] = None
    high: Annotated[Trained | None, "highest quantized value of y, if it is not 127"] = None


class SumOptions(Options):
    """Template options of an int8 sum: whether results are clamped, and whether x1 is one row for all rows of x0."""

    clamped: Annotated[bool, "whether results are limited further than by int8"]
    repeats: Annotated[bool, "whether x1 is a single row, which is added to each row of x0"]


ADD_S8 = Kernel(
    "add_s8",
    what="the sum of two int8 tensors, or of each row of one and the same row, in 32 bits: eight elements at a time"
    " with DSP, 16 with Helium",
    operands=(
        reads("x0", "one operand", DType.INT8),
        reads("x1", "the other, or a row", DType.INT8),
        writes("y", "output", DType.INT8),
    ),
    params=(SumParams,),
    options=(SumOptions,),
    baked=frozenset({"shift"}),
)
"""Kernel of sums of int8 tensors."""


def emit_sum(node: Node, builder: Builder, factors: tuple[int, int], offset: int, shift: int, limits: Range) -> bool:
    """Emit a sum of two int8 tensors in fixed point: y = clamp((x0 · m0 + x1 · m1 + offset) >> shift).

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        factors: m0 and m1, below 2^23, in the order of the node's inputs; sums stay below 2^31.
        offset: Zero points plus one half, at the scale of the sum.
        shift: Fraction bits of the sum.
        limits: Lowest and highest quantized value of y.

    Returns:
        Whether an instruction was emitted; False if the shapes do not fit the kernel.
    """
    rows = RowsOfInt8.of(node.sig)
    if rows is None or (rows.rows > 1 and builder.any_size):
        return False
    repeats, is_clamped = rows.rows > 1, limits != DType.INT8.limits
    low, high = map(int, limits) if is_clamped else (None, None)
    m0, m1 = factors[rows.x0], factors[rows.x1]
    params = SumParams(
        count=rows.columns,
        rows=rows.rows if repeats else None,
        x0_multiplier=m0,
        x1_multiplier=m1,
        requantize_offset=offset,
        shift=shift,
        low=low,
        high=high,
    )
    call = Call(
        ADD_S8,
        rows.operands(node, builder),
        [params],
        [SumOptions(clamped=is_clamped, repeats=repeats)],
        overlaps=rows.overlaps(node),
        variant="_".join(["clamped"] * is_clamped + ["rows"] * repeats),
    )
    builder.call(node, call)
    return True


# ---------------------------------------------------------------------------------- sums of int16 tensors


class SaturatingSumParams(Params):
    """Kernel parameter of a saturating sum of int16 tensors, saturate(x0 + x1): the number of elements."""

    count: Annotated[int, "elements"]


ADD_S16 = Kernel(
    "add_s16_dsp",
    what="the sum of two int16 tensors of one scale, as gates are: two elements at a time",
    operands=(
        reads("x0", "one operand", DType.INT16),
        reads("x1", "the other", DType.INT16),
        writes("y", "output", DType.INT16),
    ),
    params=(SaturatingSumParams,),
    needs=frozenset({"dsp"}),
    lacks=frozenset({"mve"}),
    example="""<ir_version: 10, opset_import: ["": 21]>
net (int16[5, 7] a, int16[5, 7] b) => (int16[5, 7] y)
<float scale = {0.001}, int16 zero = {0}> {
  x0 = DequantizeLinear(a, scale, zero)
  x1 = DequantizeLinear(b, scale, zero)
  sum = Add(x0, x1)
  y = QuantizeLinear(sum, scale, zero)
}""",
)
"""Kernel of saturating sums of int16 tensors of one scale."""


def emit_saturating_sum(node: Node, builder: Builder, sum_of: WeightedSum) -> bool:
    """Emit a saturating sum of two int16 tensors of one shape and scale: y = saturate(x0 + x1).

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        sum_of: The sum that the node computes, in fixed point.

    Returns:
        Whether an instruction was emitted; False if the factors of `sum_of` are not 1, or no kernel fits.
    """
    kernel, one, y = ADD_S16, 1 << sum_of.shift, node.output.type
    fits = kernel.runs_on(builder.features) and not builder.any_size
    alike = all(t.dtype is DType.INT16 and t.shape == y.shape for t in (*node.sig.inputs, y) if t is not None)
    if not fits or not alike or sum_of.factors != (one, one) or sum_of.offset >> sum_of.shift:
        return False
    operands = {"x0": node.input(0), "x1": node.input(1), "y": node.output}
    order = Traversal.forward(y.count)
    call = Call(
        kernel,
        {role: builder.buffer(value) for role, value in operands.items()},
        [SaturatingSumParams(count=y.count)],
        overlaps=[allowed for i in (0, 1) for allowed in overlap(node.input(i).type, y, order, into=f"x{i}")],
    )
    builder.call(node, call)
    return True


# ------------------------------------------------------------------------------- products of int8 tensors


class ProductParams(Params):
    """Kernel parameters of the elementwise product of int8 tensors: sizes, zero points and multiplier.

    y = saturate(y_zero_point + (x0 − x0_zero_point) · (x1 − x1_zero_point) · multiplier / 2^32), rounded half up.
    """

    rows: Annotated[int, "rows of x0"]
    columns: Annotated[int, "elements of a row, and of x1"]
    x0_zero_point: Annotated[Trained, "zero point of x0"]
    x1_zero_point: Annotated[Trained, "zero point of x1"]
    y_zero_point: Annotated[Trained, "zero point of y"]
    multiplier: Annotated[Trained, "scale of x0 · scale of x1 / scale of y, times 2^32"]


MUL_S8 = Kernel(
    "mul_s8_dsp",
    what="the product of two int8 tensors, or of each row of one with the same row (a gate by channel), four at a time",
    operands=(
        reads("x0", "one operand", DType.INT8),
        reads("x1", "a row", DType.INT8),
        writes("y", "output", DType.INT8),
    ),
    params=(ProductParams,),
    needs=frozenset({"dsp"}),
    lacks=frozenset({"mve"}),
    example="""<ir_version: 10, opset_import: ["": 21]>
net (int8[2, 6, 8] a, int8[1, 1, 8] b) => (int8[2, 6, 8] y)
<float scale = {0.5}, float finer = {0.00390625}, int8 zero = {0}, int8 least = {-128}> {
  x = DequantizeLinear(a, scale, zero)
  gate = DequantizeLinear(b, finer, least)
  product = Mul(x, gate)
  y = QuantizeLinear(product, scale, zero)
}""",
)
"""Kernel of elementwise products of int8 tensors."""


def emit_product(node: Node, builder: Builder, spec: BinarySpec) -> bool:
    """Emit the elementwise product of two int8 tensors, or of each row of one tensor by a single row.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        spec: The types of the product and its requantization.

    Returns:
        Whether an instruction was emitted; False if no kernel fits.
    """
    rows, kernel = RowsOfInt8.of(node.sig), MUL_S8
    requantize = spec.product.for_high_word() if spec.product else None
    fits = kernel.runs_on(builder.features) and not builder.any_size
    if requantize is None or requantize.shift != 32 or spec.limits != DType.INT8.limits or rows is None or not fits:
        return False
    (multiplier,) = requantize.multiplier
    params = ProductParams(
        rows=rows.rows,
        columns=rows.columns,
        x0_zero_point=node.input(rows.x0).type.q.zero_point,
        x1_zero_point=node.input(rows.x1).type.q.zero_point,
        y_zero_point=node.output.type.q.zero_point,
        multiplier=int(multiplier),
    )
    call = Call(kernel, rows.operands(node, builder), [params], overlaps=rows.overlaps(node))
    builder.call(node, call)
    return True


# ---------------------------------------------------------------- functions by channel, a table at a time


class PReluParams(Params):
    """Kernel parameters of PRelu on int8: sizes, zero point, multiplier and rounding.

    y = saturate((d · (slope if d < 0 else multiplier) + requantize_offset) >> fraction_bits), for d = x − x_zero_point.
    The operand `slope` is the slope of the element's channel, times `multiplier`.
    """

    pixels: Annotated[int, "pixels"]
    channels: Annotated[int, "adjacent channels of a pixel"]
    x_zero_point: Annotated[Trained, "zero point of x"]
    multiplier: Annotated[Trained, "scale of x / scale of y, times 2^fraction_bits"]
    requantize_offset: Annotated[Trained, "zero point of y plus one half, times 2^fraction_bits"]
    fraction_bits: Annotated[Trained, "fraction bits of a product"]


PRELU_S8 = Kernel(
    "prelu_s8",
    what="a line by channel for what is negative and one for all else, of int8: a table of one channel's codes, and its"
    " elements, channel after channel; eight at a time with Helium",
    operands=(
        reads("x", "input", DType.INT8),
        reads("slopes", "by channel, times factor", DType.INT32),
        writes("y", "output, which may be x", DType.INT8),
        scratch("table", "results of one channel by the codes of x, the least first", DType.INT8),
    ),
    params=(PReluParams,),
    example="""<ir_version: 10, opset_import: ["": 21]>
net (int8[1, 20, 20, 6] x) => (int8[1, 20, 20, 6] y)
<float scale = {0.03}, int8 zero = {3}, float[6] slopes = {-0.5, 0.1, 0.3, 1.2, -1, 0}> {
  reals = DequantizeLinear(x, scale, zero)
  lines = PRelu(reals, slopes)
  y = QuantizeLinear(lines, scale, zero)
}""",
)
"""Kernel of PRelu of int8 tensors with one slope per channel."""

NUM_INT8_VALUES = 256
"""Number of int8 values, and so of entries of a channel's lookup table."""

MIN_TABLE_PIXELS = 128
"""Smallest number of pixels for which a lookup table per channel is faster: building one takes as long as computing
about a hundred elements."""


def emit_prelu(node: Node, builder: Builder, factor: int, start: int, bits: int) -> bool:
    """Emit PRelu of an int8 tensor by a lookup table for each channel, if the slopes are constants by channel.

    y = saturate((d · (slope if d < 0 else factor) + start) >> bits), where d is x less its zero point. Input 1 of the
    node has `slope` for each channel: the channel's real slope times `factor`, as an integer.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        factor: scale of x / scale of y, times 2^bits.
        start: Zero point of y plus one half, times 2^bits.
        bits: Fraction bits.

    Returns:
        Whether an instruction was emitted; False if slopes are not constants by channel, or tables cost more time or
        RAM than they save.
    """
    x, slopes, y = node.input(0).type, node.input(1).type, node.output.type
    pixels, channels = y.count // y.shape[-1], y.shape[-1]
    by_channel = slopes.shape[-1] == slopes.count == channels and x.shape == y.shape
    if not by_channel or pixels < MIN_TABLE_PIXELS or builder.optimize == "ram" or builder.any_size:
        return False
    constants = node.input(1).data
    if constants is None:
        return False
    steepest = max(abs(factor), int(np.abs(constants.astype(np.int64)).max()))
    if NUM_INT8_VALUES * steepest + abs(start) >= 2**31:  # The loop adds one step beyond the last value.
        return False
    params = PReluParams(
        pixels=pixels,
        channels=channels,
        x_zero_point=x.q.zero_point,
        multiplier=factor,
        requantize_offset=start,
        fraction_bits=bits,
    )
    operands = {
        "x": builder.buffer(node.input(0)),
        "slopes": builder.buffer(node.input(1)),
        "y": builder.buffer(node.output),
        "table": builder.scratch(f"{node.output.name}.table", DType.INT8, NUM_INT8_VALUES),
    }
    builder.call(node, Call(PRELU_S8, operands, [params], inplace=[("y", "x")]))
    return True
