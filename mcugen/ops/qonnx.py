# SPDX-License-Identifier: Apache-2.0
"""Importers of QONNX, as Brevitas and QKeras export it: Quant, BipolarQuant, Trunc of real numbers on a grid.

A Quant of a constant becomes a quantized constant and a Dequantize; a Quant of a tensor becomes a Clip, QuantizeLinear
and DequantizeLinear, where halves are rounded before the zero point is added. So layers between them become integer
layers. Other roundings and more than 16 bits are computed in float.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mcugen.hir.graph import Value
from mcugen.hir.types import Array, QuantParams
from mcugen.ops.conversion import Dequantize
from mcugen.ops.onnx_node import COMPOSED_TEXT, FLOAT, OnnxNode, Operand, Refusal, onnx_operator

_DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
_EXACT = 24
"""Bits of whole numbers that float32 holds."""

_ROUNDINGS: dict[str, Callable[[OnnxNode, Value], Value]] = {
    "ROUND": lambda node, x: node.call("Round", x),
    "HALF_EVEN": lambda node, x: node.call("Round", x),
    "CEIL": lambda node, x: node.call("Ceil", x),
    "FLOOR": lambda node, x: node.call("Floor", x),
    "UP": lambda node, x: node.call("Mul", node.call("Sign", x), node.call("Ceil", node.call("Abs", x))),
    "DOWN": lambda node, x: _cut(node, x),
    "ROUND_TO_ZERO": lambda node, x: _cut(node, x),
    "HALF_UP": lambda node, x: _half(node, x, "Floor"),
    "HALF_DOWN": lambda node, x: _half(node, x, "Ceil"),
}


def _cut(node: OnnxNode, x: Value) -> Value:
    """Towards 0."""
    return node.call("Mul", node.call("Sign", x), node.call("Floor", node.call("Abs", x)))


def _half(node: OnnxNode, x: Value, then: str) -> Value:
    """Round to nearest; halves go away from 0 with Floor, else toward 0."""
    step = np.float32(0.5 if then == "Floor" else -0.5)
    return node.call("Mul", node.call("Sign", x), node.call(then, node.call("Add", node.call("Abs", x), step)))


def _round(node: OnnxNode, x: Value, default: str) -> Value:
    mode = str(_text(node, "rounding_mode", default)).upper()
    node.require(mode in _ROUNDINGS, f"rounding_mode must be one of {', '.join(_ROUNDINGS)}", mode[:40], "export again")
    return _ROUNDINGS[mode](node, x)


def _text(node: OnnxNode, key: str, default: str) -> str:
    value = node.attributes.get(key, default)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _limits(node: OnnxNode, at: int) -> tuple[float, float]:
    """Return the least and greatest quantized value of the bit width at input `at`."""
    width = node.const(at, "the bit width").astype(np.float64).reshape(-1)
    if width.size != 1 or not 1 <= width[0] <= _EXACT:
        widths = ", ".join(f"{w:g}" for w in width[:8])
        raise Refusal(f"{node.op_type}: the bit width must be one number of 1 to {_EXACT}", widths, "quantize again")
    is_narrow, bits = bool(node.attr("narrow", 0)), float(width[0])
    if node.attr("signed", 1):
        return float(np.ceil(-(2 ** (bits - 1)))) + is_narrow, float(np.floor(2 ** (bits - 1) - 1))
    return 0.0, float(np.floor(2**bits - 1)) - is_narrow


def _import_quant(node: OnnxNode) -> list[Value]:
    low, high = _limits(node, 3)
    grid = _grid(node, low, high)
    if grid is None:
        return [_by_reals(node, low, high)]
    x, (scale, zero) = node.input(0), grid
    if x.data is not None:
        return [_constant_codes(node, x.data, scale, zero, (low, high))]
    dtype = next(t for t in (np.int8, np.uint8, np.int16, np.uint16) if _holds(t, low, high))
    unit = np.float32(scale.reshape(()))
    ends = (np.float32((end - zero) * unit) for end in (low, high))
    limits = np.iinfo(dtype)
    clipped = x if (low, high) == (limits.min, limits.max) else node.call("Clip", x, *ends)
    code = np.asarray(zero, dtype)
    return [node.call("DequantizeLinear", node.call("QuantizeLinear", clipped, unit, code), unit, code)]


def _grid(node: OnnxNode, low: float, high: float) -> tuple[Array, int] | None:
    """Return scales and zero point for values of at most 16 bits, rounded half to even; None if impossible."""
    scale, zero, x = node.input(1).data, node.input(2).data, node.input(0)
    even = _text(node, "rounding_mode", "ROUND").upper() in ("ROUND", "HALF_EVEN")
    if scale is None or zero is None or not even or not any(_holds(t, low, high) for t in (np.int16, np.uint16)):
        return None
    if zero.size < 1 or (zero != zero.reshape(-1)[0]).any() or not (np.isfinite(scale) & (scale > 0)).all():
        return None
    offset = float(zero.reshape(-1)[0])
    apart = [axis for axis, size in enumerate(scale.shape) if size > 1]
    along = len(apart) == 1 and x.data is not None and scale.ndim == x.data.ndim
    if offset != round(offset) or not low <= offset <= high or not (scale.size == 1 or along):
        return None
    return scale.astype(np.float32), int(offset)


def _holds(kind: type, low: float, high: float) -> bool:
    limits = np.iinfo(kind)
    return bool(limits.min <= low and high <= limits.max)


def _constant_codes(node: OnnxNode, x: Array, scale: Array, zero: int, limits: tuple[float, float]) -> Value:
    """Return constant weights behind a Dequantize, where integer layers look for them."""
    codes = np.clip(np.rint(x / scale + np.float32(zero)), *limits) - zero
    fits = np.abs(codes).max(initial=0) < 128
    axis = next((a for a, size in enumerate(scale.shape) if size > 1), None)
    quant = QuantParams(tuple(map(float, scale.reshape(-1))), 0, axis)
    return node.emit(Dequantize(), node.constant("codes", codes.astype(np.int8 if fits else np.int16), quant))


def _by_reals(node: OnnxNode, low: float, high: float) -> Value:
    """Return (clip(round(x / scale + zero)) − zero) · scale, computed in float."""
    steps = node.call("Add", node.call("Div", node.input(0), node.input(1)), node.input(2))
    codes = node.call("Clip", _round(node, steps, "ROUND"), np.float32(low), np.float32(high))
    return node.call("Mul", node.call("Sub", codes, node.input(2)), node.input(1))


def _import_bipolar(node: OnnxNode) -> list[Value]:
    """scale · (1 where x is at least 0, else −1)."""
    x, scale = node.input(0), node.input(1)
    if x.data is not None and scale.data is not None and scale.data.size == 1 and scale.data.reshape(-1)[0] > 0:
        quant = QuantParams((float(scale.data.reshape(-1)[0]),), 0)
        signs = np.where(x.data >= 0, 1, -1).astype(np.int8)
        return [node.emit(Dequantize(), node.constant("signs", signs, quant))]
    zero: Operand = np.float32(0)
    positive = node.call("GreaterOrEqual", x, zero)
    return [node.call("Mul", node.call("Where", positive, np.float32(1), np.float32(-1)), scale)]


def _import_trunc(node: OnnxNode) -> list[Value]:
    """Import Trunc: keep the upper bits. With 5 inputs the scale stays; with 6 the output has its own scale."""
    x, scale, zero = node.input(0), node.input(1), node.input(2)
    codes = node.call("Round", node.call("Add", node.call("Div", x, scale), zero))
    if node.has(5):
        low, high = _limits(node, 5)
        unit = node.input(4)
        part = np.exp2(np.rint(np.log2(node.const(4, "the scale") / node.const(1, "the scale")))).astype(np.float32)
        cut = node.call("Clip", _round(node, node.call("Div", codes, part), "FLOOR"), np.float32(low), np.float32(high))
        return [node.call("Mul", node.call("Sub", cut, zero), unit)]
    bits = (node.const(i, "the bit width").astype(np.float64) for i in (3, 4))
    part = np.exp2(np.subtract(*bits)).astype(np.float32)
    cut = _round(node, node.call("Div", codes, part), "FLOOR")
    return [node.call("Mul", node.call("Sub", cut, zero), scale)]


for _domain in _DOMAINS:
    onnx_operator("Quant", domain=_domain, types=FLOAT, kernels=(COMPOSED_TEXT,))(_import_quant)
    onnx_operator("IntQuant", domain=_domain, types=FLOAT, kernels=(COMPOSED_TEXT,))(_import_quant)
    onnx_operator("BipolarQuant", domain=_domain, types=FLOAT, kernels=(COMPOSED_TEXT,))(_import_bipolar)
    onnx_operator("Trunc", domain=_domain, types=FLOAT, kernels=(COMPOSED_TEXT,))(_import_trunc)
