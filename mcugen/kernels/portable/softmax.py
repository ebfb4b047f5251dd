# SPDX-License-Identifier: Apache-2.0
"""Kernels of softmax and log-softmax along one axis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from mcugen.hir.graph import Node
from mcugen.hir.operator import Signature
from mcugen.hir.types import DType, TensorType
from mcugen.kernels.common.strided_loops import AxisWalk
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import Call, Kernel, Options, Params, Role, Trained, no_rounds, reads, scratch, writes
from mcugen.lir.program import Buffer, Instr, Wide
from mcugen.lir.traversal import Traversal, overlap
from mcugen.numerics.softmax import SOFTMAX_LOG_BITS, FixedExp, FixedLogSoftmax, FixedSoftmax
from mcugen.numerics.tflite_arithmetic import TfliteSoftmax, rounds_as_tflite


@dataclass(frozen=True, eq=False)
class SoftmaxSpec:
    """A softmax or log-softmax along one axis, as its kernels see it.

    Attributes:
        x: Type of the input.
        y: Type of the output.
        axis: Axis along which the softmax is computed: its probabilities along this axis add up to 1.
        log: Whether the layer is a log-softmax.
        mask: Type of the mask that hides elements; None without a mask.
    """

    x: TensorType
    y: TensorType
    axis: int
    log: bool
    mask: TensorType | None

    @property
    def walk(self) -> AxisWalk:
        """Return the kernel parameters of the loops: sizes before the softmax's axis, of it, and behind it."""
        return AxisWalk.of(self.x.shape, self.axis)

    @cached_property
    def fixed(self) -> FixedSoftmax | FixedLogSoftmax | None:
        """Return the formula in integers; None for floats, or if integers are not precise enough."""
        sig = Signature((self.x,), (self.y,))
        return FixedLogSoftmax.of(sig, self.axis) if self.log else FixedSoftmax.of(sig, self.axis)


class Mask(Params):
    """Kernel parameter of a softmax with a mask that hides elements: the number of rows of the mask."""

    mask_rows: Annotated[int | None, "rows of the mask, which is repeated along the outer axes"] = None


class Probabilities(Params):
    """Kernel parameters that turn integer exponentials of a softmax into quantized probabilities.

    For an exponential e and the sum of exponentials, the probability is (e · (numerator · 2^exponential_bits / sum) +
    requantize_offset) >> (32 + extra_shift).
    """

    numerator: Annotated[Trained, "1 / scale of y, with shift - exponential_bits fraction bits"]
    exponential_bits: Annotated[Trained, "fraction bits of an exponential"]
    requantize_offset: Annotated[Wide, "zero point of y plus one half, with `shift` fraction bits"]
    extra_shift: Annotated[Trained, "right shift of a product beyond 32 bits"]

    @staticmethod
    def of(fixed: FixedSoftmax) -> Probabilities:
        """Return the kernel parameters of a quantized softmax.

        Args:
            fixed: The integer formula of the softmax, with its constants.
        """
        offset, more = Wide(fixed.offset), fixed.shift - 32
        return Probabilities(
            numerator=fixed.numerator, exponential_bits=fixed.exp.bits, requantize_offset=offset, extra_shift=more
        )


class Logarithms(Params):
    """Kernel parameters that turn x − max and the logarithm of the sum of exponentials into a quantized log-softmax.

    y = ((x − max) · multiplier − l + requantize_offset) >> shift, for l = ((log2(sum) − log2_one) · log2_multiplier) >>
    log2_shift. The logarithm has 20 fraction bits; exponentials are integers in units of 2^-(log2_one / 2^20).
    """

    multiplier: Annotated[Trained, "scale of x / scale of y, with `shift` fraction bits"]
    log2_one: Annotated[Trained, "log2 of the unit of an exponential, with 20 fraction bits"]
    log2_multiplier: Annotated[Trained, "log(2) / scale of y"]
    log2_shift: Annotated[Trained, "right shift of a product with log2_multiplier to `shift` fraction bits"]
    requantize_offset: Annotated[Wide, "zero point of y plus one half, with `shift` fraction bits"]
    shift: Annotated[Trained, "fraction bits of a result before it is rounded"]

    @staticmethod
    def of(fixed: FixedLogSoftmax) -> Logarithms:
        """Return the kernel parameters of a quantized log-softmax.

        Args:
            fixed: The integer formula of the log-softmax, with its constants.
        """
        return Logarithms(
            multiplier=fixed.slope,
            log2_one=fixed.exp.bits << SOFTMAX_LOG_BITS,
            log2_multiplier=fixed.unit,
            log2_shift=fixed.unit_shift,
            requantize_offset=Wide(fixed.offset),
            shift=fixed.shift,
        )


class MaskOptions(Options):
    """Template option of a softmax: whether a mask hides elements."""

    masked: Annotated[bool, "whether a mask hides elements"]


class FloatSoftmaxOptions(MaskOptions):
    """Template options of a softmax of floats: whether a mask hides elements, and whether rows are contiguous.

    A row is the elements along the softmax's axis, which add up to 1 in y.
    """

    vectors: Annotated[bool, "whether the elements of a row are adjacent, so that Helium computes four at a time"]


class QuotientOptions(Options):
    """Template options of a quantized softmax's division of exponentials by their sum: shift, and row length.

    A row is the elements along the softmax's axis. `shift_more` says whether a product is shifted right by more than 32
    bits, that is, by more than the choice of its upper word.
    """

    shift_more: Annotated[bool, "whether products are shifted by more than 32 bits"]
    has_long_rows: Annotated[bool, "whether rows are so long that rows without a clamped element have a separate loop"]


class QuantizedSoftmaxOptions(QuotientOptions):
    """Template options of a softmax of quantized values: output type, limits, and contiguous rows.

    A row is the elements along the softmax's axis.
    """

    y_t: Annotated[str, "C type of y"]
    bits_y: Annotated[int, "bits of y"]
    low: Annotated[int, "lowest quantized value of y"]
    high: Annotated[int, "highest quantized value of y"]
    joined: Annotated[bool, "whether the elements of a row are adjacent"]


_EXP = reads("exp_table", "exponentials by the difference from the largest, or by its low byte", DType.INT32)
_HIGH = reads("exp_high", "exponentials by the difference's high byte", DType.INT32)
_VISIBLE = reads("visible", "0 where an element is hidden", DType.BOOL, optional=True)
_WIDER = {DType.INT8: (_EXP,), DType.INT16: (_EXP, _HIGH)}


def _operands(dtype: DType, masked: bool) -> tuple[Role, ...]:
    x = reads("x", "input", dtype)
    y = writes("y", "output", *((DType.INT8, DType.INT16) if dtype in _WIDER else (dtype,)))
    return (x, *(_VISIBLE,) * masked, *_WIDER.get(dtype, ()), y)


MIN_LONG_ROW = 32
"""Smallest row, in elements, for which the kernel has a separate loop for rows without clamped elements."""

_VARIES = "the time of softmax depends on the data"


def _rounds(instr: Instr) -> int:
    """Return the most iterations of the longest data-dependent loop, which shifts a sum left by up to 31 bits per row.

    The other loops of a division are shorter.
    """
    outer, inner = instr.params["outer_size"], instr.params.get("inner_size", 1)
    assert isinstance(outer, int) and isinstance(inner, int)
    return 31 * outer * inner


def _softmax(dtype: DType) -> Kernel:
    codes = dtype in _WIDER
    how = "in integers, by a table of exponentials" if codes else "in floats"
    return Kernel(
        f"softmax_{dtype.tag}",
        varies=_VARIES,
        rounds=_rounds if codes else no_rounds,
        what=f"exp(x - max) / sum of exp(x - max) along an axis, {how}; some elements may be hidden",
        operands=_operands(dtype, masked=True),
        params=(AxisWalk, Mask, Probabilities) if codes else (AxisWalk, Mask),
        options=(MaskOptions, QuantizedSoftmaxOptions) if codes else (FloatSoftmaxOptions,),
    )


_OF_DOUBLES = """<ir_version: 10, opset_import: ["" : 18]>
log_softmax (double[2, 5] x) => (double[2, 5] y) { y = LogSoftmax (x) }"""


def _log_softmax(dtype: DType) -> Kernel:
    codes = dtype in _WIDER
    how = "in integers, by a table of exponentials" if codes else "in floats"
    return Kernel(
        f"log_softmax_{dtype.tag}",
        varies=_VARIES,
        rounds=_rounds if codes else no_rounds,
        what=f"x - max - log of the sum of exp(x - max) along an axis, {how}",
        operands=_operands(dtype, masked=False),
        params=(AxisWalk, Logarithms) if codes else (AxisWalk,),
        options=(MaskOptions, QuantizedSoftmaxOptions) if codes else (),
        example=_OF_DOUBLES if dtype is DType.FLOAT64 else "",
    )


MIN_DSP_ROW, MAX_DSP_ROW = 8, 256
"""Smallest and largest row, in elements, for which the DSP kernel keeps the exponentials of a row in scratch memory."""

SOFTMAX_DSP = Kernel(
    "softmax_s8_dsp",
    varies=_VARIES,
    rounds=_rounds,
    what="exp(x - max) / sum of exp(x - max) of int8 rows, by a table of exponentials, each of which is looked up once",
    operands=(
        *_operands(DType.INT8, masked=False)[:-1],
        writes("y", "output", DType.INT8),
        scratch("e", "exponentials of a row", DType.INT32),
    ),
    params=(AxisWalk, Probabilities),
    without=frozenset({"inner_size"}),
    options=(QuotientOptions,),
    needs=frozenset({"dsp"}),
    lacks=frozenset({"mve"}),
    example="""<ir_version: 10, opset_import: ["": 21]>
net (int8[4, 16] a) => (int8[4, 16] y)
<float scale = {0.0625}, float finer = {0.00390625}, int8 zero = {0}, int8 least = {-128}> {
  x = DequantizeLinear(a, scale, zero)
  shares = Softmax(x)
  y = QuantizeLinear(shares, finer, least)
}""",
)
"""Kernel of int8 softmax that keeps the exponentials of a row, so that each is looked up once."""

SOFTMAX_TFLITE = Kernel(
    "softmax_s8_tflite",
    varies=_VARIES,
    rounds=_rounds,
    what="exp(x - max) / sum of exp(x - max) along an axis of int8, with the bits of TensorFlow Lite Micro",
    operands=(*_operands(DType.INT8, masked=False)[:-1], writes("y", "output", DType.INT8)),
    params=(AxisWalk,),
    example="""<ir_version: 10, opset_import: ["": 21], metadata_props: ["mcugen.rounding": "tflite"]>
net (int8[4, 16] a) => (int8[4, 16] y)
<float scale = {0.0625}, float finer = {0.00390625}, int8 zero = {0}, int8 least = {-128}> {
  x = DequantizeLinear(a, scale, zero)
  shares = Softmax(x)
  y = QuantizeLinear(shares, finer, least)
}""",
)
"""Kernel of int8 softmax whose result is that of TensorFlow Lite Micro (Rounding.TFLITE)."""

_TYPES = (DType.FLOAT32, DType.FLOAT64, DType.INT8, DType.INT16)
SOFTMAX = {dtype: _softmax(dtype) for dtype in _TYPES}
"""Kernels of softmax by input type."""
LOG_SOFTMAX = {dtype: _log_softmax(dtype) for dtype in _TYPES}
"""Kernels of log-softmax by input type."""


def call_softmax(node: Node, builder: Builder, spec: SoftmaxSpec) -> None:
    """Emit a softmax or log-softmax by the fastest kernel that fits.

    Args:
        node: Node to lower; input 1, if present, is the mask.
        builder: Builder that receives the instruction.
        spec: Types, axis and mask of the softmax.
    """
    if rounds_as_tflite(spec.y):
        _call_tflite(node, builder, spec)
    elif not _call_dsp(node, builder, spec):
        _call_any(node, builder, spec)


def _call_tflite(node: Node, builder: Builder, spec: SoftmaxSpec) -> None:
    x, y = spec.x, spec.y
    softmax = TfliteSoftmax.of(Signature((x,), (y,)), spec.axis)
    assert softmax is not None, "the importer checks the types"
    table = builder.const("softmax.exp_table", np.asarray(softmax.exponentials, np.int32))
    operands = {"x": builder.buffer(node.input(0)), "exp_table": table, "y": builder.buffer(node.output)}
    builder.call(node, Call(SOFTMAX_TFLITE, operands, [spec.walk], inplace=[("y", "x")]))


def _call_dsp(node: Node, builder: Builder, spec: SoftmaxSpec) -> bool:
    """Emit the DSP kernel; return False if rows are too short, too long or too few, or the kernel does not fit."""
    x, y, walk, fixed = spec.x, spec.y, spec.walk, spec.fixed
    is_wanted = isinstance(fixed, FixedSoftmax) and x.dtype is y.dtype is DType.INT8 and walk.inner_size == 1
    is_worth_it = MIN_DSP_ROW <= walk.axis_size <= min(MAX_DSP_ROW, x.count // 4) and spec.mask is None
    if not is_wanted or not is_worth_it or builder.any_size or not SOFTMAX_DSP.runs_on(builder.features):
        return False
    assert isinstance(fixed, FixedSoftmax)
    operands = {"x": builder.buffer(node.input(0)), **_tables(builder, fixed.exp), "y": builder.buffer(node.output)}
    call = Call(
        SOFTMAX_DSP,
        operands | {"e": builder.scratch(f"{node.output.name}.e", DType.INT32, walk.axis_size)},
        [walk, Probabilities.of(fixed)],
        [QuotientOptions(shift_more=fixed.shift != 32, has_long_rows=walk.axis_size >= MIN_LONG_ROW)],
        overlaps=overlap(x, y, Traversal.forward(x.count)),
    )
    builder.call(node, call)
    return True


def _call_any(node: Node, builder: Builder, spec: SoftmaxSpec) -> None:
    x, y, walk, fixed, masked = spec.x, spec.y, spec.walk, spec.fixed, spec.mask is not None
    operands, params = {"x": builder.buffer(node.input(0))}, list[Params]([walk])
    joined = walk.inner_size == 1
    vectors = joined and not masked and x.dtype is DType.FLOAT32 and "mve" in builder.features and not spec.log
    options: list[Options] = [MaskOptions(masked=masked)] if fixed is not None else []
    if fixed is None and not spec.log:
        options.append(FloatSoftmaxOptions(masked=masked, vectors=vectors))
    if masked:
        operands["visible"] = builder.buffer(node.input(1))
    if not spec.log:
        params.append(Mask(mask_rows=None if spec.mask is None else spec.mask.count // walk.axis_size))
    if fixed is not None:
        operands |= _tables(builder, fixed.exp)
        params.append(Probabilities.of(fixed) if isinstance(fixed, FixedSoftmax) else Logarithms.of(fixed))
        options.append(_code_options(y.dtype, walk, fixed))
    same = x.dtype is y.dtype
    variant = {"masked": masked, "rows": vectors, "apart": fixed is not None and not joined}
    variant[f"to_{y.dtype.tag}"] = not same
    call = Call(
        (LOG_SOFTMAX if spec.log else SOFTMAX)[x.dtype],
        operands | {"y": builder.buffer(node.output)},
        params,
        options,
        inplace=[("y", "x")] if same and not joined else [],
        overlaps=overlap(x, y, Traversal.forward(x.count)) if joined else [],
        variant="_".join(name for name, is_so in variant.items() if is_so),
    )
    builder.call(node, call)


def _tables(builder: Builder, exp: FixedExp) -> dict[str, Buffer]:
    tables = {"exp_table": exp.low} | ({"exp_high": exp.high} if exp.high else {})
    return {role: builder.const(f"softmax.{role}", np.asarray(table, np.int32)) for role, table in tables.items()}


def _code_options(dtype: DType, walk: AxisWalk, fixed: FixedSoftmax | FixedLogSoftmax) -> QuantizedSoftmaxOptions:
    low, high = dtype.limits
    more = isinstance(fixed, FixedSoftmax) and fixed.shift != 32
    return QuantizedSoftmaxOptions(
        y_t=dtype.c,
        bits_y=8 * dtype.nbytes,
        low=low,
        high=high,
        joined=walk.inner_size == 1,
        shift_more=more,
        has_long_rows=walk.axis_size >= MIN_LONG_ROW,
    )
