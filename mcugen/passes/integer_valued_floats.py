# SPDX-License-Identifier: Apache-2.0
"""Recognition of integer networks in float tensors, as NEMO, QuantLab and DORY write them.

Rounding followed by limits proves that a tensor holds whole numbers of 8 bits. It is then stored as codes of scale 1,
which every later pass understands, so that layers become integer ones. Their sums are exact, as float sums below 2²⁴
were. The arithmetic between sums and the next codes stays as the file has it, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.hir.graph import Graph, Node, Value, constant_data
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.ops.affine import Affine
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Cast, Dequantize, Quantize
from mcugen.ops.matmul import Dense
from mcugen.ops.movement import Pad
from mcugen.ops.pointwise import Binary, Clamp, Unary
from mcugen.ops.pool import AveragePool
from mcugen.ops.reduce import Reduce
from mcugen.ops.whole import ChannelCut, Cut, exact_cut, exact_steps
from mcugen.passes.rewrite import RewriteOutcome, Rewriting, pattern

_ROUNDED = (Unary("Floor"), Unary("Ceil"), Unary("Round"))
_CODES = 256
_EXACT = 2
"""Largest size in bytes of integers whose numbers are exact as float32."""
_DEEPEST = 12
"""Largest number of operators between two layers that the search for a range looks through."""
_MAX_RANGE_OPERANDS = 2
"""Largest number of operands of an operator whose range is computed: with more, the search would branch without end."""
_MAX_SEARCHED_CODES = 1 << 20
"""Largest number of codes, over all channels, whose first inputs are searched for: half a second."""
_SLACK = 2.0**-20
"""Relative error that is larger than the float rounding of as many operators."""


@dataclass(frozen=True)
class ValueRange:
    """The range of a tensor's elements.

    Attributes:
        low: Lower bound of the elements.
        high: Upper bound of the elements.
        is_whole: Whether all elements are known to be integers.
    """

    low: float = -math.inf
    high: float = math.inf
    is_whole: bool = False


@pattern(Conv, Dense)
def keep_codes(graph: Graph, node: Node) -> RewriteOutcome:
    """layer(x, integer weights), x integer-valued → layer(Dequantize(Quantize(x)), Dequantize(weights)), scale 1.

    It applies if the operators that compute the float x prove that x is always an integer and fits int8 or int16, and
    if the float32 weights are integers that fit int8. The layer can then become an integer layer.
    """
    weights, x = _codes_of(node.input(1)), _source(node.input(0))
    if weights is None:
        return False
    if not isinstance(x.producer and x.producer.op, Dequantize):
        type_ = _stored_as(x)
        if type_ is None:
            return False
        _store(graph, x, type_)
    elif x.producer is not None and x.producer.input(0).type.q.scale != (1.0,):
        return False
    stored = graph.constant(f"{node.input(1).name}.codes", weights, QuantParams((1.0,), 0), of=[node.input(1)])
    real = graph.add(Dequantize(), [stored], node.origin, types=[node.input(1).type], before=node)
    node.set_input(1, real.output)
    return True


def _codes_of(weights: Value) -> Array | None:
    """Return whole weights as int8; None if they are not whole, do not fit int8, or are quantized already."""
    data = weights.data
    if data is None or weights.type.dtype is not DType.FLOAT32 or weights.type.quant is not None:
        return None
    low, high = DType.INT8.limits
    is_whole = bool((data == np.rint(data)).all() and data.min(initial=0) >= low and data.max(initial=0) <= high)
    return data.astype(np.int8) if is_whole else None


def _source(value: Value) -> Value:
    """Return the tensor whose elements data movements bring to this one."""
    while value.producer is not None and value.producer.op.moves_data and len(value.producer.inputs) == 1:
        value = value.producer.input(0)
    return value


def _store(graph: Graph, x: Value, type_: TensorType) -> None:
    """Store a tensor as codes, and make its readers read the dequantized codes."""
    assert x.producer is not None
    behind = next(graph.nodes.behind(x.producer), None)
    codes = graph.add(Quantize(), [x], x.producer.origin, types=[type_], before=behind)
    real = graph.add(Dequantize(), [codes.output], x.producer.origin, types=[x.type], before=behind)
    graph.replace(x, real.output)
    codes.set_input(0, x)


def _stored_as(x: Value) -> TensorType | None:
    """Return the type of codes of scale 1 that hold all elements of a tensor.

    Returns:
        An int8 type if 256 codes suffice, else an int16 type; None if elements may not be whole, or are too far apart.
    """
    value_range = _range(x)
    if (
        x.type.dtype is not DType.FLOAT32
        or not value_range.is_whole
        or not np.isfinite([value_range.low, value_range.high]).all()
    ):
        return None
    lowest, highest = DType.INT8.limits
    low, high = min(int(value_range.low), 0), max(int(value_range.high), 0)
    if high - low < _CODES:
        zero = 0 if lowest <= low and high <= highest else lowest - low
        return replace(x.type, dtype=DType.INT8, quant=QuantParams((1.0,), zero))
    lowest, highest = DType.INT16.limits
    if not lowest <= low <= high <= highest:
        return None
    return replace(x.type, dtype=DType.INT16, quant=QuantParams((1.0,), 0))


def _range(value: Value, depth: int = 0) -> ValueRange:
    """Return the range of a tensor, derived from the operators that compute it."""
    if value.data is not None and value.type.quant is None and value.data.dtype.kind in "iuf" and value.data.size:
        low, high = float(value.data.min()), float(value.data.max())
        return ValueRange(low, high, bool((value.data == np.rint(value.data)).all()))
    node = value.producer
    if node is None or depth == _DEEPEST or len(node.outputs) != 1 or len(node.inputs) > _MAX_RANGE_OPERANDS:
        return _any(value)
    if isinstance(node.op, Dequantize):
        quant, dtype = node.input(0).type.q, node.input(0).type.dtype
        low, high = (limit - quant.zero_point for limit in dtype.limits)
        return ValueRange(low, high, True) if quant.scale == (1.0,) else ValueRange()
    operands = [ValueRange() if v is None else _range(v, depth + 1) for v in node.inputs]
    return _result(node, operands) if operands else _any(value)


def _any(value: Value) -> ValueRange:
    """Return the range of all numbers of a tensor's type."""
    if not value.type.dtype.is_integer:
        return ValueRange()
    low, high = value.type.dtype.limits
    return ValueRange(low, high, True)


def _result(node: Node, operands: Sequence[ValueRange]) -> ValueRange:
    """Return the range of a node's result; an integer result that may wrap around has the range of its type."""
    widest = _any(node.output)
    computed = _computed(node, operands)
    is_any = widest.is_whole and not widest.low <= computed.low <= computed.high <= widest.high
    return widest if is_any else replace(computed, is_whole=computed.is_whole or widest.is_whole)


def _computed(node: Node, operands: Sequence[ValueRange]) -> ValueRange:
    x, op, is_integer = operands[0], node.op, node.output.type.dtype.is_integer
    if isinstance(op, Clamp):
        limits = [limit for limit in (op.low, op.high) if math.isfinite(limit)]
        is_whole = x.is_whole and all(limit == round(limit) for limit in limits)
        return ValueRange(max(x.low, op.low), min(x.high, op.high), is_whole)
    if op in _ROUNDED or isinstance(op, Cast):
        is_exact = x.is_whole and isinstance(op, Cast)
        return replace(x if is_exact else _rounded(x), is_whole=x.is_whole or op in _ROUNDED)
    if op.moves_data and len(operands) == 1:
        padding = op.value if isinstance(op, Pad) else 0.0
        return ValueRange(min(x.low, padding), max(x.high, padding), x.is_whole and float(padding).is_integer())
    if isinstance(op, AveragePool) or (isinstance(op, Reduce) and op.function == "mean"):
        return ValueRange(min(x.low, 0.0), max(x.high, 0.0))
    if isinstance(op, Binary) and op.clamp is None and op.function in _ENDS and len(operands) == 2:
        y = operands[1]
        ends = [_ENDS[op.function](a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
        if np.isfinite(ends).all():
            quotient_range = ValueRange(min(ends), max(ends), x.is_whole and y.is_whole and op.function != "Div")
            return _rounded(quotient_range) if is_integer and op.function == "Div" else quotient_range
    return _any(node.output)


def _rounded(x: ValueRange) -> ValueRange:
    """Return the range of numbers after any kind of rounding; the numbers may themselves be inexact floats."""
    slack = _SLACK * max(abs(x.low), abs(x.high))
    return ValueRange(float(np.floor(x.low - slack)), float(np.ceil(x.high + slack)), x.is_whole)


_ENDS: Mapping[str, Callable[[float, float], float]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b if np.isfinite([a, b]).all() else math.nan,
    "Div": lambda a, b: a / b if b > 0 else math.nan,
}
"""Monotone operators on the ends of ranges; a quotient is monotone for divisors above 0."""


@pattern(Cut)
def cut_channels(graph: Graph, node: Node) -> RewriteOutcome:
    """Cut(Cast(int32 x) · c + d) in floats, with constants → ChannelCut(x), one multiplication per channel in integers.

    Cut rounds down and clamps to a range of integers. ChannelCut multiplies, shifts and clamps, with constants for each
    channel (or one set for all). The result is exact: the float function never decreases, so the constants only have to
    make each result value start at the same x. The rewrite is refused if no such constants exist.
    """
    op, chain = node.op, list(_growing(graph, node.input(0)))
    if not isinstance(op, Cut) or len(chain) < 2 or chain[-1].op != Cast(DType.FLOAT32):
        return False
    x = chain[-1].input(0)
    if x.type.dtype is not DType.INT32:
        return False
    shapes = [v.type.shape for link in chain for v in link.inputs[1:] if v is not None]
    shape = np.broadcast_shapes(*(s for s in shapes if len(s) in (0, x.type.rank)))
    if any(math.prod(s) > 1 and len(s) != x.type.rank for s in shapes):
        return False
    if math.prod(shape) * (op.high - op.low) > _MAX_SEARCHED_CODES:
        return "too many codes to look at each"
    zero = 0 if node.output.type.quant is None else node.output.type.q.zero_point

    def codes(numbers: Array) -> Array:
        for link in (*reversed(chain), node):
            constants = constant_data(link.inputs[1:])
            (numbers,) = link.op.evaluate(link.sig, numbers, *constants)
        return numbers.astype(np.int64) - zero

    scaling = exact_steps(codes, (1,) * (x.type.rank - len(shape)) + shape, op.low, op.high)
    if scaling is None:
        return "no multiplication gives the same"
    multiplier = graph.constant(f"{x.name}.multiplier", scaling.multipliers.astype(np.int32))
    above = graph.constant(f"{x.name}.above", (scaling.offsets >> 32).astype(np.int32))
    below = graph.constant(f"{x.name}.below", (scaling.offsets & 0xFFFFFFFF).astype(np.uint32))
    result = ChannelCut(op.low, op.high, scaling.shift)
    graph.rewrite(node, result, [x, multiplier, above, below], types=[node.output.type])
    return True


def _growing(graph: Graph, value: Value) -> Iterator[Node]:
    """Yield the nodes back to a cast that compute a value from one operand by monotonically increasing functions."""
    while graph.only_user(value) is not None and (node := value.producer) is not None:
        constants = constant_data(node.inputs[1:])
        if len(constants) != len(node.inputs) - 1 or not (isinstance(node.op, Cast) or _grows(node, constants)):
            return
        yield node
        if isinstance(node.op, Cast):
            return
        value = node.input(0)


def _grows(node: Node, constants: Sequence[Array]) -> bool:
    if not all(np.isfinite(numbers).all() for numbers in constants):
        return False
    if node.op == Unary("Floor") or node.op in (Binary("Add"), Binary("Sub")):
        return True
    if isinstance(node.op, Affine):
        factors = [number for step, number in zip(node.op.steps, constants, strict=True) if step == "Mul"]
        return all((number > 0).all() for number in factors)
    return node.op in (Binary("Mul"), Binary("Div")) and bool((constants[0] > 0).all())


recognize_whole = Rewriting("recognize_whole", keep_codes)
"""Pass that applies `keep_codes`: layers of integer-valued float tensors become candidates for integer layers."""


@pattern(Quantize)
def code_integers(graph: Graph, node: Node) -> RewriteOutcome:
    """Quantize(Cast(integers)) with scale 1 → Cut(integers): no floats in between.

    Cut clamps the integers to the range that the quantized type can represent. Their type must be small enough that
    float32 represents every integer exactly.
    """
    cast, codes = node.input(0).producer, node.output.type
    if cast is None or cast.op != Cast(DType.FLOAT32) or codes.q.scale != (1.0,):
        return False
    x = cast.input(0)
    if not x.type.dtype.is_integer or x.type.dtype.nbytes > _EXACT:
        return False
    low, high = (limit - codes.q.zero_point for limit in codes.dtype.limits)
    graph.rewrite(node, Cut(low, high), [x], types=[codes])
    return True


@pattern(Quantize, Clamp)
def recognize_cut(graph: Graph, node: Node) -> RewriteOutcome:
    """Quantize(Clamp(Floor(x))), Clamp(Cast(Cast(x) · a / b)) with integer limits → Cut(x): no 64-bit division.

    Cut (mcugen.ops.whole) rounds down, multiplies, shifts and clamps. A clamp without Floor and with a lower limit
    below 0 is left as it is, because casts and integer divisions round negative numbers toward 0.
    """
    clamp = node.input(0).producer if isinstance(node.op, Quantize) else node
    if clamp is None or not isinstance(clamp.op, Clamp) or clamp.output.type.dtype is not DType.FLOAT32:
        return False
    stores, (low, high) = node.op is not clamp.op, (clamp.op.low, clamp.op.high)
    if not all(math.isfinite(limit) and limit == round(limit) for limit in (low, high)):
        return False
    if stores and not (_holds(node.output.type, low, high) and graph.only_user(clamp.output) is node):
        return False
    if not stores and any(isinstance(user.op, Quantize) for user in clamp.output.users):
        return False  # The Quantize node is rewritten instead.
    fraction = _fraction(graph, clamp.input(0))
    if fraction is None:
        return False
    x, numerator, denominator, is_floor = fraction
    if x.type.dtype is DType.FLOAT32 and numerator == denominator == 1 and not stores:
        return False  # NaN would become a number.
    op = exact_cut(numerator, denominator, int(low), int(high)) if is_floor or low >= 0 else None
    if op is None:
        return "no multiplication gives the same"
    if stores:
        graph.rewrite(node, op, [x], types=[node.output.type])
    else:
        whole = graph.add(op, [x], node.origin, before=node)
        graph.rewrite(node, Cast(DType.FLOAT32), [whole.output], types=[node.output.type])
    return True


def _holds(codes: TensorType, low: float, high: float) -> bool:
    """Return whether codes of scale 1 hold all whole numbers from `low` to `high`."""
    lowest, highest = codes.dtype.limits
    return codes.q.scale == (1.0,) and lowest <= low + codes.q.zero_point and high + codes.q.zero_point <= highest


def _fraction(graph: Graph, value: Value) -> tuple[Value, int, int, bool] | None:
    """Return x, a, b where a value is x · a / b, and whether the quotient is rounded down below 0.

    x is cut to a whole number (towards 0) before it is multiplied, unless it is an int32.
    """
    node = value.producer
    if node is None or graph.only_user(value) is None:
        return None
    if node.op == Unary("Floor"):
        return node.input(0), 1, 1, False
    if node.op != Cast(DType.FLOAT32):
        return None
    sums, denominator = _factor(graph, node.input(0), "Div")
    x = _of_multiples(graph, sums, denominator)
    if x.type.dtype is DType.INT32:
        return x, 1, denominator, x is not sums
    x, numerator = _factor(graph, x, "Mul")
    source = x.producer
    if source is None or source.op != Cast(DType.INT64) or source.input(0).type.dtype is not DType.FLOAT32:
        return None
    return source.input(0), numerator, denominator, False


def _factor(graph: Graph, value: Value, function: str) -> tuple[Value, int]:
    """Return the operand and the factor of a product or quotient by a number above 0; else the value itself, and 1."""
    node = value.producer
    if node is None or node.op != Binary(function) or graph.only_user(value) is None:
        return value, 1
    constant = node.input(1).data
    if constant is None or constant.size != 1 or constant.reshape(-1)[0] <= 0:
        return value, 1
    return node.input(0), int(constant.reshape(-1)[0])


def _of_multiples(graph: Graph, value: Value, divisor: int) -> Value:
    """Return x if the value is x − (x mod divisor), so that its division rounds down below 0, too; else the value."""
    node = value.producer
    remainder = node.input(1).producer if node is not None and node.op == Binary("Sub") else None
    if node is None or remainder is None or remainder.op != Binary("Mod") or remainder.input(0) is not node.input(0):
        return value
    by = remainder.input(1).data
    return node.input(0) if by is not None and by.size == 1 and by.reshape(-1)[0] == divisor else value
