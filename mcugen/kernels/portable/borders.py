# SPDX-License-Identifier: Apache-2.0
"""Kernels that quantize floats to int8 and dequantize int8 to floats, eight elements at a time."""

from __future__ import annotations

from typing import Annotated

from mcugen.hir.graph import Node
from mcugen.hir.types import DType, TensorType
from mcugen.lir.builder import Builder
from mcugen.lir.kernel import SHORT_LOOPS, Call, Kernel, Params, reads, writes
from mcugen.lir.traversal import Traversal, overlap
from mcugen.numerics.reciprocal import Reciprocal

_NEEDS, _LACKS = frozenset({"fpu", "dsp"}), frozenset({SHORT_LOOPS, "mve"})
_EXAMPLE = """<ir_version: 10, opset_import: ["": 21]>
    net (float[19] x, int8[21] c) => (int8[19] d, float[21] y) <float s = {0.02}, int8 z = {3}>
    { d = QuantizeLinear(x, s, z)  y = DequantizeLinear(c, s, z) }"""


class QuantizedTensorParams(Params):
    """Kernel parameters of QuantizeLinear and DequantizeLinear: size, scale and zero point of the quantized tensor."""

    count: Annotated[int, "elements"]
    scale: Annotated[float, "scale of quantized values"]
    zero_point: Annotated[int, "zero point of quantized values"]


class InverseScale(Params):
    """Kernel parameters with the reciprocal of a scale as a sum of two floats, so that rounding is exact."""

    inverse_scale: Annotated[float, "1 / scale, rounded down"]
    inverse_scale_remainder: Annotated[float, "1 / scale - inverse_scale"]


QUANTIZE_S8 = Kernel(
    "quantize_s8_fpu",
    what="floats to int8, eight at a time by the FPU, packed by the DSP extension",
    operands=(reads("x", "floats", DType.FLOAT32), writes("y", "quantized values", DType.INT8)),
    params=(QuantizedTensorParams, InverseScale),
    needs=_NEEDS,
    lacks=_LACKS,
    example=_EXAMPLE,
)
"""Kernel of QuantizeLinear to int8 on CPUs with FPU and DSP extension."""
DEQUANTIZE_S8 = Kernel(
    "dequantize_s8_fpu",
    what="int8 to floats, eight at a time by the FPU, unpacked by the DSP extension",
    operands=(reads("x", "quantized values", DType.INT8), writes("y", "floats", DType.FLOAT32)),
    params=(QuantizedTensorParams,),
    needs=_NEEDS,
    lacks=_LACKS,
    example=_EXAMPLE,
)
"""Kernel of DequantizeLinear from int8 on CPUs with FPU and DSP extension."""


def emit_quantization(node: Node, builder: Builder, codes: TensorType) -> bool:
    """Emit a quantization of floats to int8 (QuantizeLinear), or a dequantization of int8 to floats.

    Args:
        node: Node to lower.
        builder: Builder that receives the instruction.
        codes: Type of the quantized tensor: that of y to quantize, that of x to dequantize.

    Returns:
        Whether an instruction was emitted; False if no kernel fits.
    """
    x, y = node.input(0).type, node.output.type
    is_packed = {x.dtype, y.dtype} == {DType.INT8, DType.FLOAT32} and len(codes.q.scale) == 1
    if not is_packed or not builder.features >= _NEEDS or builder.features & _LACKS or builder.any_size:
        return False
    (scale,), zero = codes.q.scale, codes.q.zero_point
    params: list[Params] = [QuantizedTensorParams(count=y.count, scale=float(scale), zero_point=zero)]
    if codes is y:
        reciprocal = Reciprocal.of(scale, max(abs(limit - zero) for limit in y.dtype.limits))
        if reciprocal is None:
            return False
        params.append(InverseScale(inverse_scale=reciprocal.inverse, inverse_scale_remainder=reciprocal.rest))
    operands = {"x": builder.buffer(node.input(0)), "y": builder.buffer(node.output)}
    overlaps = overlap(x, y, Traversal.forward(y.count), into="x")
    builder.call(node, Call(QUANTIZE_S8 if codes is y else DEQUANTIZE_S8, operands, params, overlaps=overlaps))
    return True
