# SPDX-License-Identifier: Apache-2.0
"""Kernels of products of two activations, and of determinants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

from mcugen.hir.types import DType
from mcugen.kernels.common.loop_options import FloatLoops, Loops
from mcugen.kernels.common.specs import MatMulSpec
from mcugen.kernels.common.weighted_layers import (
    HasSignature,
    double_tensors,
    float_tensors,
    int8_tensors,
    int16_operands,
    plain_integers,
)
from mcugen.kernels.dsp.dsp_conv import GROUP, HighWord
from mcugen.kernels.helium.layer import (
    CHANNELS_PER_BLOCK,
    MAX_OUT_CHANNELS,
    VECTOR,
    Clamped,
    GemmFrame,
    LoopFlags,
    ResultOptions,
    RowJumpOption,
    Shifted,
    TailChannelsOption,
)
from mcugen.kernels.scalar.scalar_conv import ThumbOffset, ThumbOptions, choose_piece_bits, thumb1_requantization
from mcugen.lir.kernel import Call, Kernel, Options, Params, Real, Role, Site, Trained, reads, scratch, writes
from mcugen.lir.program import Wide, real_param

_FLOATS = (DType.FLOAT32, DType.FLOAT64)
_CODES = (DType.INT8, DType.INT16)


class Matrices(Params):
    """Kernel parameters of a batch of matrix products y = a · b: number of products, and sizes of the matrices."""

    batch: Annotated[int, "matrix products"]
    rows: Annotated[int, "rows of a and y"]
    depth: Annotated[int, "columns of a, and rows of b"]
    columns: Annotated[int, "columns of b and y"]


class Factor(Params):
    """Kernel parameter of matrix products with the real factor that every sum of products is multiplied by."""

    factor: Annotated[Real | None, "factor of each sum, if it is not 1"] = None


class ProductStore(Params):
    """Kernel parameters that requantize the accumulators of a matrix product.

    If the output is the accumulators themselves, only the zero points are set.
    """

    a_zero_point: Annotated[Trained | None, "zero point of a; 0 for int16"] = None
    b_zero_point: Annotated[Trained | None, "zero point of b; 0 for int16"] = None
    multiplier: Annotated[Trained | None, "requantization multiplier of sums"] = None
    requantize_offset: Annotated[
        Wide | None, "zero point of y plus one half, at the scale of products before the right shift"
    ] = None


class ScaledOptions(Options):
    """Template option of matrix products: whether sums are multiplied by a factor."""

    scaled: Annotated[bool, "whether sums have a factor"]


class ElementOptions(Options):
    """Template option of matrix products whose elements are computed one by one: the C type of the elements of y."""

    y_t: Annotated[str, "C type of the elements"]


class BlockOptions(Options):
    """Template option of float matrix products y = a · b that are computed by blocks of y: whether a has a single row.

    A block has four rows and eight columns of y; one row if a has a single row.
    """

    single_row: Annotated[bool, "whether a has one row"]


class ProductOptions(Options):
    """Template options of matrix products of quantized values: C types, and the requantization of sums."""

    a_t: Annotated[str, "C type of a"]
    b_t: Annotated[str, "C type of b"]
    y_t: Annotated[str, "C type of the output"]
    acc_t: Annotated[str, "C type of the sums"]
    shift: Annotated[int, "right shift of products with the multiplier"] = 0
    low: Annotated[int, "lowest quantized value of y"] = 0
    high: Annotated[int, "highest quantized value of y"] = 0
    fits_32_bits: Annotated[bool, "whether products fit 32 bits after the shift, before the clamp"] = False


class ColumnStrips(Params):
    """Kernel parameters of the matrix product a · b for the DSP extension: requantization, and strips of b.

    A strip is as many columns of b as fit a scratch buffer, in which they are packed; it is multiplied with all rows of
    a.
    """

    a_zero_point: Annotated[Trained, "zero point of a"]
    b_zero_point: Annotated[Trained, "zero point of b"]
    multiplier: Annotated[Trained, "requantization multiplier of sums"]
    strip_columns: Annotated[int, "columns of a strip"]
    column_pair_words: Annotated[int, "32-bit words of two packed columns"]
    inner_iterations: Annotated[int, "iterations of the inner loop: groups of four elements of a column"]


def matmul_call(spec: MatMulSpec, site: Site) -> Call:
    """Return the kernel call of a matrix product a · b, for kernels that need no packed copy of many columns of b.

    The call has the parameters, template options and scratch buffers that the site's kernel declares.

    Args:
        spec: The matrix product.
        site: Operands and CPU features of the call, and the kernel.
    """
    operands = {"a": site.input(0), "b": site.input(1), "y": site.y}
    params: list[Params] = [_matrices(spec)]
    options: list[Options] = []
    scaled = spec.factor != 1 and spec.a.quant is None
    if Factor in site.kernel.params:
        params.append(Factor(factor=real_param(spec.factor, spec.y.dtype) if scaled else None))
    if ScaledOptions in site.kernel.options:
        options.append(ScaledOptions(scaled=scaled))
    if ElementOptions in site.kernel.options:
        options.append(ElementOptions(y_t=spec.y.dtype.c))
    if BlockOptions in site.kernel.options:  # Eight packed columns of b, four rows of a.
        single = spec.rows == 1
        operands["strip"] = site.scratch(
            "strip", spec.y.dtype, 8 * (spec.depth + 1) + (0 if single else 4 * spec.depth)
        )
        options += [BlockOptions(single_row=single), FloatLoops.of(site)]
    if ProductOptions in site.kernel.options:
        operands["strip"] = site.scratch("strip", DType.INT16, _strip(spec.depth))
        if spec.a.dtype is spec.b.dtype is DType.INT8 and spec.acc is DType.INT32:
            operands["row_sums"] = site.scratch("row_sums", DType.INT32, spec.rows)
        params.append(_product_store(spec))
        options.append(_product_options(spec, site.any_size))
    return site.call(operands, params, options, overlaps=spec.overlaps(), variant="scaled" if scaled else "")


MAX_STRIP_BYTES = 2304
"""Largest size, in bytes, of a strip of packed columns of b, unless a single group of columns needs more."""


def fits_upper_word(spec: MatMulSpec) -> bool:
    """Require int8 operands and result, and results from the high word of a 64-bit product.

    Return whether a, b and y are quantized int8, accumulators fit 32 bits, and the high word of the 64-bit product of
    accumulator and multiplier is the result, without a further shift.
    """
    return _is_int8(spec) and spec.requantizer.for_high_word().shift == 32


def _is_int8(spec: MatMulSpec) -> bool:
    """Return whether all tensors are quantized int8, and sums have 32 bits."""
    codes = all(t.dtype is DType.INT8 and t.quant is not None for t in (spec.a, spec.b, spec.y))
    return codes and spec.acc is DType.INT32


def emit_strips(spec: MatMulSpec, site: Site) -> Call:
    """Return the call of a matrix product a · b for the DSP extension, which computes 2 rows by 2 columns at a time.

    Loops: batch, strips of columns of b, pairs of rows of a, pairs of columns, steps of four elements (unrolled 16
    times). A strip is as many columns of b as fit MAX_STRIP_BYTES, packed like the weights of a convolution; two rows
    of a are widened to 16 bits.
    """
    steps, requantize = -(-spec.depth // GROUP), spec.requantizer.for_high_word()
    pair = 4 * steps + 4
    width = _width(spec.columns, max(MAX_STRIP_BYTES // (2 * GROUP * pair), 1), GROUP)
    operands = {
        "a": site.input(0),
        "b": site.input(1),
        "y": site.y,
        "strip": site.scratch("strip", DType.INT32, width // 2 * pair),
        "patch": site.scratch("patch", DType.INT16, 2 * GROUP * steps),
    }
    strips = ColumnStrips(
        a_zero_point=spec.a.q.zero_point,
        b_zero_point=spec.b.q.zero_point,
        multiplier=int(requantize.multiplier[0]),
        strip_columns=width,
        column_pair_words=pair,
        inner_iterations=steps,
    )
    codes = HighWord(
        upper_word_offset=spec.y.q.zero_point, pre_saturation_offset=0, post_saturation_offset=0, second_shift=0
    )
    return site.call(operands, [_matrices(spec), codes, strips], [Loops.of(site)], overlaps=spec.overlaps())


class PlainStrips(Params):
    """Kernel parameters of matrix products a · b for Helium and Thumb-1: requantization, and division of b into strips.

    A strip is as many columns of b as fit a scratch buffer, in which they are packed as 8-bit elements; it is
    multiplied with all rows of a.
    """

    a_zero_point: Annotated[Trained, "zero point of a"]
    b_zero_point: Annotated[Trained, "zero point of b"]
    multiplier: Annotated[Trained, "requantization multiplier of sums"]
    strip_columns: Annotated[int, "columns of a strip"]

    @staticmethod
    def of(spec: MatMulSpec, width: int) -> PlainStrips:
        """Return the parameters of a matrix product a · b that packs `width` columns of b at a time (a strip)."""
        zeros = spec.a.q.zero_point, spec.b.q.zero_point
        multiplier = int(spec.requantizer.multiplier[0])
        return PlainStrips(a_zero_point=zeros[0], b_zero_point=zeros[1], multiplier=multiplier, strip_columns=width)


def fits_vectors(spec: MatMulSpec) -> bool:
    """Require int8 operands and result, accumulators of 32 bits, and at most 16384 columns.

    Return whether a, b and y are quantized int8, b has at most 16384 columns, and accumulators fit 32 bits, also after
    a left shift by 31 bits less the right shift of the requantization, as the kernel always shifts right by 31 bits.
    """
    if not _is_int8(spec) or spec.columns > MAX_OUT_CHANNELS:
        return False
    left = 31 - spec.requantizer.shift
    return left >= 0 and _largest_sum(spec) << left < 2**31


def emit_vectors(spec: MatMulSpec, site: Site) -> Call:
    """Return the call of a matrix product a · b for Helium, which computes two rows by four columns at a time.

    Loops: matrices of the batch, strips of columns of b, pairs of rows of a, four columns, vectors of 16 elements. A
    strip is as many columns of b as fit MAX_STRIP_BYTES, packed like the weights of a convolution for Helium. The
    kernel also computes the sums of rows of a, to subtract the products with the zero point of b.
    """
    depth, left = -(-spec.depth // VECTOR) * VECTOR, 31 - spec.requantizer.shift
    width = _width(spec.columns, max(MAX_STRIP_BYTES // (CHANNELS_PER_BLOCK * (depth + 8)), 1), CHANNELS_PER_BLOCK)
    vectors, tail = divmod(spec.depth, VECTOR)
    operands = {
        "a": site.input(0),
        "b": site.input(1),
        "y": site.y,
        "strip": site.scratch("strip", DType.INT8, width * depth),
        "table": site.scratch("table", DType.INT32, 2 * width),
        "sums": site.scratch("sums", DType.INT32, spec.rows + 1),
    }
    frame = GemmFrame(
        y_zero_point=spec.y.q.zero_point,
        table_bytes=0,
        x_step_bytes=2 * spec.depth,
        y_pair_stride=2 * spec.columns,
        inner_iterations=vectors,
        iteration_gap_bytes=0,
        left_shift=left,
        tail_products=tail,
        last_block_channels=0,
        counter=0,
        low=spec.y.dtype.limits[0],
        high=spec.y.dtype.limits[1],
    )
    options: list[Options] = [
        LoopFlags(unroll=int(vectors > 0), has_loop=vectors > 0, has_tail_vector=tail > 0),
        RowJumpOption(),
        TailChannelsOption(has_tail_channels=spec.columns % CHANNELS_PER_BLOCK > 0),
        Clamped(clamp=False),
        Shifted(pre_shifted=left > 0),
        ResultOptions(y_t="int8_t", post_shifted=False),
    ]
    return site.call(operands, [frame, _matrices(spec), PlainStrips.of(spec, width)], options, overlaps=spec.overlaps())


def count_vector_steps(spec: MatMulSpec) -> int:
    """Count the inner-loop steps per inference of the matrix product a · b for Helium (cost model).

    A step multiplies 16 elements of each of two rows of a with those of four columns of b.
    """
    return spec.batch * -(-spec.rows // 2) * -(-spec.columns // CHANNELS_PER_BLOCK) * -(-spec.depth // VECTOR)


COLUMNS_PER_PASS = 6
"""Number of columns of b that the Thumb-1 kernel computes together."""


def fits_32_bit_products(spec: MatMulSpec) -> bool:
    """Require int8 operands and result, and a requantization that products of 32 bits can compute.

    Return whether a, b and y are quantized int8, accumulators fit 32 bits, and the multiplier can be split into pieces
    whose products with accumulators fit 32 bits, since Thumb-1 has no multiplication with a 64-bit result.
    """
    return _is_int8(spec) and choose_piece_bits(spec.requantizer, _largest_sum(spec), spec.y.dtype.limits[0]) > 0


def _largest_sum(spec: MatMulSpec) -> int:
    return int(spec.largest_sums[0])


def emit_sixes(spec: MatMulSpec, site: Site) -> Call:
    """Return the call of a matrix product a · b for Thumb-1, which computes one row by six columns at a time.

    Loops: matrices of the batch, strips of columns of b, rows of a, six columns, elements. A strip is as many columns
    of b as fit MAX_STRIP_BYTES, packed like the weights of a dense layer: as unsigned bytes, to which an offset is
    added. The kernel also computes the sums of rows of a, to subtract the products with the offset.
    """
    width = _width(spec.columns, max(MAX_STRIP_BYTES // (COLUMNS_PER_PASS * (spec.depth + 8)), 1), COLUMNS_PER_PASS)
    operands = {
        "a": site.input(0),
        "b": site.input(1),
        "y": site.y,
        "strip": site.scratch("strip", DType.UINT8, width * spec.depth),
        "tails": site.scratch("tails", DType.INT32, 2 * width),
        "sums": site.scratch("sums", DType.INT32, spec.rows),
    }
    offset, options = thumb1_requantization(spec.requantizer, _largest_sum(spec), spec.y.dtype.limits)
    return site.call(
        operands, [_matrices(spec), offset, PlainStrips.of(spec, width)], [options], overlaps=spec.overlaps()
    )


def count_thumb1_instructions(spec: MatMulSpec) -> int:
    """Estimate the instructions per inference of the matrix product for Thumb-1, for the cost model.

    For each row of a and six columns of b, there are 81 instructions per four elements of the row, and 240 further
    ones.
    """
    return spec.batch * spec.rows * -(-spec.columns // COLUMNS_PER_PASS) * (81 * spec.depth // 4 + 240)


def _width(columns: int, max_groups: int, group: int) -> int:
    """Return the columns of a strip: up to `max_groups` whole groups, so that strips have nearly equal sizes."""
    groups = -(-columns // group)
    return -(-groups // -(-groups // max_groups)) * group


def _matrices(spec: MatMulSpec) -> Matrices:
    return Matrices(batch=spec.batch, rows=spec.rows, depth=spec.depth, columns=spec.columns)


def count_dsp_steps(spec: MatMulSpec) -> int:
    """Count the inner-loop steps per inference of the matrix product a · b for the DSP extension (cost model).

    A step multiplies four elements of each of two rows of a with those of two columns of b.
    """
    return spec.batch * -(-spec.rows // 2) * -(-spec.columns // 2) * -(-spec.depth // GROUP)


def _strip(depth: int) -> int:
    """Return the elements of the working memory for four columns of `depth` elements, enough for every CPU."""
    return 4 * (-(-depth // 8) * 8) + 16


def _product_store(spec: MatMulSpec) -> ProductStore:
    a_zero_point, b_zero_point = (t.q.zero_point if t.dtype is DType.INT8 else None for t in (spec.a, spec.b))
    store = ProductStore(a_zero_point=a_zero_point, b_zero_point=b_zero_point)
    if spec.y.dtype is DType.INT32:
        return store
    requantize = spec.requantizer.for_high_word()
    return replace(store, multiplier=int(requantize.multiplier[0]), requantize_offset=Wide(requantize.offset))


def _product_options(spec: MatMulSpec, any_size: bool) -> ProductOptions:
    types = ProductOptions(a_t=spec.a.dtype.c, b_t=spec.b.dtype.c, y_t=spec.y.dtype.c, acc_t=spec.acc.c)
    if spec.y.dtype is DType.INT32:
        return types
    requantize, (low, high) = spec.requantizer.for_high_word(), spec.y.dtype.limits
    max_product = int(spec.largest_sums[0]) * int(requantize.multiplier[0]) + abs(requantize.offset)
    bounded = max_product >> requantize.shift < 2**31 and not any_size
    return replace(types, shift=requantize.shift, low=low, high=high, fits_32_bits=bounded)


def _operands(*dtypes: DType, sums: bool = False) -> tuple[Role, ...]:
    stored = (*dtypes, DType.INT32) if sums else dtypes
    return (
        reads("a", "matrices on the left", *dtypes),
        reads("b", "matrices on the right", *dtypes),
        writes("y", "products of a and b", *stored),
    )


def is_quantized(spec: MatMulSpec) -> bool:
    """Require that both operands have a quantization scale.

    Return whether a and b are quantized, a condition of kernels (Kernel.when).
    """
    return spec.a.quant is not None and spec.b.quant is not None


def _of_codes(name: str, condition: Callable[[HasSignature], bool]) -> Kernel:
    return Kernel(
        name,
        what="products of quantized values: four columns of b are gathered at a time, in the order of the inner loop",
        operands=(
            *_operands(*_CODES, sums=True),
            scratch("strip", "four columns of b", DType.INT16),
            scratch(
                "row_sums", "sums of rows of a, if zero points are subtracted at the end", DType.INT32, optional=True
            ),
        ),
        params=(Matrices, ProductStore),
        options=(ProductOptions,),
        when=(condition, is_quantized),
        emit=matmul_call,
        extra=count_tail_products,
        any_size=True,
    )


def count_tail_products(spec: MatMulSpec) -> int:
    """Count the products per inference that do not belong to a whole group of four, for the cost model.

    The kernel adds up the products of a sum in groups of four; depth % 4 products of each sum remain.
    """
    return spec.batch * spec.rows * spec.columns * (spec.depth % GROUP)


def _example(dtype: str) -> str:
    """Return a model in ONNX's text form with products of this element type."""
    shapes = ((2, 7, 9, 6), (1, 3, 40, 5), (4, 12, 3, 8), (1, 20, 16, 12))
    inputs = ", ".join(
        f"{dtype}[{n}, {rows}, {depth}] a{n}{rows}, {dtype}[{n}, {depth}, {columns}] b{n}{rows}"
        for n, rows, depth, columns in shapes
    )
    outputs = ", ".join(f"{dtype}[{n}, {rows}, {columns}] y{n}{rows}" for n, rows, _, columns in shapes)
    nodes = " ".join(f"y{n}{rows} = MatMul(a{n}{rows}, b{n}{rows})" for n, rows, _, _ in shapes)
    return f'<ir_version: 10, opset_import: ["": 21]> net ({inputs}) => ({outputs}) {{ {nodes} }}'


MATMUL: tuple[Kernel, ...] = (
    Kernel(
        "matmul_f32",
        what="four rows by eight columns, gathered in the order of packed weights",
        operands=(*_operands(DType.FLOAT32), scratch("strip", "columns of b and rows of a", DType.FLOAT32)),
        params=(Matrices, Factor),
        options=(ScaledOptions, BlockOptions, FloatLoops),
        when=(float_tensors,),
        emit=matmul_call,
        any_size=True,
    ),
    Kernel(
        "matmul_f64",
        what="element by element",
        operands=_operands(DType.FLOAT64),
        params=(Matrices, Factor),
        options=(ScaledOptions, ElementOptions),
        when=(double_tensors,),
        emit=matmul_call,
        any_size=True,
        example=_example("double"),
    ),
    Kernel(
        "matmul_int",
        what="element by element; sums wrap around",
        operands=_operands(*(dtype for dtype in DType if dtype.is_integer)),
        params=(Matrices, Factor),
        options=(ScaledOptions, ElementOptions),
        when=(plain_integers,),
        emit=matmul_call,
        any_size=True,
        example=_example("int32"),
    ),
    _of_codes("matmul_s16", int16_operands),
    Kernel(
        "matmul_s8_dsp",
        what="two rows by two columns of int8, columns packed like weights of convolutions",
        operands=(
            *_operands(DType.INT8),
            scratch("strip", "packed columns of b", DType.INT32),
            scratch("patch", "two rows of a, widened", DType.INT16),
        ),
        params=(Matrices, HighWord, ColumnStrips),
        options=(Loops,),
        needs=frozenset({"dsp"}),
        lacks=frozenset({"mve"}),
        when=(fits_upper_word,),
        emit=emit_strips,
        extra=count_dsp_steps,
    ),
    Kernel(
        "matmul_s8_mve",
        what="two rows by four columns of int8, columns packed like weights of convolutions",
        operands=(
            *_operands(DType.INT8),
            scratch("strip", "packed columns of b", DType.INT8),
            scratch("table", "biases and multipliers of the columns", DType.INT32),
            scratch("sums", "sums of rows of a, times the zero point of b", DType.INT32),
        ),
        params=(GemmFrame, Matrices, PlainStrips),
        options=(LoopFlags, RowJumpOption, TailChannelsOption, Clamped, Shifted, ResultOptions),
        needs=frozenset({"mve"}),
        when=(fits_vectors,),
        emit=emit_vectors,
        extra=count_vector_steps,
    ),
    Kernel(
        "matmul_s8_thumb1",
        what="one row by six columns of int8, columns packed like weights of dense layers",
        operands=(
            *_operands(DType.INT8),
            scratch("strip", "packed columns of b", DType.UINT8),
            scratch("tails", "biases and multipliers of the columns", DType.INT32),
            scratch("sums", "sums of rows of a, times the offset of packed columns", DType.INT32),
        ),
        params=(Matrices, ThumbOffset, PlainStrips),
        options=(ThumbOptions,),
        needs=frozenset({"thumb1"}),
        when=(fits_32_bit_products,),
        emit=emit_sixes,
        extra=count_thumb1_instructions,
    ),
    _of_codes("matmul_s8", int8_tensors),
)
"""Kernels of matrix products of two activations, in order of preference."""


class DetParams(Params):
    """Kernel parameters of determinants: number and size of square matrices."""

    batch: Annotated[int, "matrices"]
    n: Annotated[int, "rows of a matrix, and elements of a row"]


class DetOptions(Options):
    """Template option of determinants: the element type."""

    t: Annotated[str, "C type of the elements"]


DET = Kernel(
    "det",
    what="determinants, by Gaussian elimination with pivoting in a copy",
    operands=(
        reads("x", "matrices", *_FLOATS),
        writes("y", "determinants", *_FLOATS),
        scratch("m", "copy of a matrix for the elimination", *_FLOATS),
    ),
    params=(DetParams,),
    options=(DetOptions,),
)
"""Kernel of determinants."""
