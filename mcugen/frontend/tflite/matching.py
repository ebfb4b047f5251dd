# SPDX-License-Identifier: Apache-2.0
"""Checks that operators have the bits of TensorFlow Lite Micro's reference kernels (`--match tflite`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mcugen.core.errors import UnsupportedError, listed
from mcugen.frontend.tflite.body import describe_operator
from mcugen.frontend.tflite.flatbuffer import TableT
from mcugen.frontend.tflite.model import TfliteModel, TfliteOperator, TfliteTensor
from mcugen.frontend.tflite.node import same_type
from mcugen.frontend.tflite.operators.convolution import (
    ConvolutionOptions,
    DepthwiseOptions,
    FullyConnectedOptions,
    PoolOptions,
)
from mcugen.frontend.tflite.operators.elementwise import AddOptions, MulOptions, SoftmaxOptions, SubOptions
from mcugen.frontend.tflite.schema import FLOAT32, INT8, INT32, FusedActivation
from mcugen.numerics.tflite_arithmetic import MAX_SOFTMAX_ROW

_CLAMPS = {FusedActivation.NONE, FusedActivation.RELU, FusedActivation.RELU6, FusedActivation.RELU_N1_TO_1}
"""Activations that limit quantized values."""
_PROBABILITIES = (2.0**-8, -128)
"""Scale and zero point of the results of an int8 softmax."""

Check = Callable[[TfliteOperator], str]
"""Returns why the result of an operator may differ from TensorFlow Lite Micro's; "" if it cannot differ."""


def require_matching(model: TfliteModel) -> None:
    """Raise UnsupportedError if results of operators may differ from TensorFlow Lite Micro's; it lists all of them."""
    lines = []
    for graph in model.used_graphs:
        for operator in graph.operators:
            check = MATCHING_OPERATORS.get(operator.kind)
            reason = check(operator) if check else "no kernel with the same rounding"
            if reason:
                lines.append(describe_operator(graph, operator, reason))
    if lines:
        count, listing = len(lines), "\n  - " + listed(lines, separator="\n  - ")
        rule = "--match tflite: every operator must have the bits of TensorFlow Lite Micro's kernels"
        remedy = "compile without --match, with results that differ by single quantized steps"
        raise UnsupportedError(f"{rule}; {count} node{'s have' * (count > 1) or ' has'} not:{listing}", "", remedy)


def _is_int8(tensor: TfliteTensor | None) -> bool:
    """Return whether a tensor has int8 elements with one scale."""
    scales = tensor.quantization if tensor is not None and tensor.type is INT8 else None
    return scales is not None and len(scales.scales) == 1


def _activation(operator: TfliteOperator, options: type[TableT]) -> str:
    chosen = operator.options(options).activation  # type: ignore[attr-defined]
    return "" if chosen in _CLAMPS else "its activation is not a limit"


def _weighted(options: type[TableT]) -> Check:
    """Return the check of a layer with constant symmetric int8 weights."""

    def check(operator: TfliteOperator) -> str:
        x, weights, bias = (*operator.inputs, None)[:3]
        if not _is_int8(x) or not _is_int8(operator.outputs[0]):
            return "input and output are not int8"
        if weights is None or weights.type is not INT8 or not weights.is_constant or weights.quantization is None:
            return "the weights are not constants of int8"
        if any(weights.quantization.zero_points):
            return "the weights have a zero point"
        if bias is not None and (bias.type is not INT32 or not bias.is_constant):
            return "the bias is not a constant of int32"
        return _activation(operator, options)

    return check


def _arithmetic(options: type[TableT]) -> Check:
    """Return the check of an operator on two tensors."""

    def check(operator: TfliteOperator) -> str:
        if not all(map(_is_int8, (*operator.inputs, *operator.outputs))):
            return "inputs and output are not int8"
        return _activation(operator, options)

    return check


def _check_pool(operator: TfliteOperator) -> str:
    if not _is_int8(operator.inputs[0]):
        return "the input is not int8"
    if operator.options(PoolOptions).activation != FusedActivation.NONE:
        return "it has an activation"
    return _check_move(operator)


def _check_move(operator: TfliteOperator) -> str:
    """Check an operator that copies elements; tensors without scales are shapes and indices."""
    moved = [t for t in operator.inputs if t is not None and (t.quantization is not None or t.type.is_float)]
    is_same = all(same_type(tensor, result) for tensor in moved for result in operator.outputs)
    return "" if is_same else "inputs and outputs have different scales"


def _check_softmax(operator: TfliteOperator) -> str:
    x, y = operator.inputs[0], operator.outputs[0]
    if x is None or not _is_int8(x) or not _is_int8(y):
        return "input and output are not int8"
    assert y.quantization is not None
    if (y.quantization.scales[0], y.quantization.zero_points[0]) != _PROBABILITIES:
        return "the output must have the scale 1/256 and the zero point -128"
    if operator.options(SoftmaxOptions).beta != 1:
        return "beta is not 1"
    return "" if x.shape[-1] <= MAX_SOFTMAX_ROW else f"rows have more than {MAX_SOFTMAX_ROW} elements"


def _check_function(operator: TfliteOperator) -> str:
    """Check a function of one tensor, which becomes a table."""
    x, y = operator.inputs[0], operator.outputs[0]
    return "" if _is_int8(x) and _is_int8(y) else "input and output are not int8"


def _check_curve(scale: float, zero_point: int) -> Check:
    """Return the check of a function whose output must have this scale and zero point."""

    def check(operator: TfliteOperator) -> str:
        quant = operator.outputs[0].quantization
        if quant is None or (quant.scales[0], quant.zero_points[0]) != (scale, zero_point):
            return f"the output must have the scale {scale:g} and the zero point {zero_point}"
        return _check_function(operator)

    return check


def _check_dequantize(operator: TfliteOperator) -> str:
    is_plain = _is_int8(operator.inputs[0]) and operator.outputs[0].type is FLOAT32
    return "" if is_plain else "it does not convert int8 to float32"


_MOVES = (
    *("RESHAPE", "PAD", "CONCATENATION", "TRANSPOSE", "SQUEEZE", "EXPAND_DIMS", "SLICE", "STRIDED_SLICE", "SPLIT"),
    *("SPLIT_V", "PACK", "UNPACK", "REVERSE_V2", "SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND", "GATHER"),
    *("BATCH_TO_SPACE_ND", "BROADCAST_TO", "GATHER_ND", "MIRROR_PAD", "PADV2", "TILE"),
    *("REDUCE_MAX", "REDUCE_MIN"),
)
"""Operators that copy elements."""

MATCHING_OPERATORS: Mapping[str, Check] = {
    "CONV_2D": _weighted(ConvolutionOptions),
    "DEPTHWISE_CONV_2D": _weighted(DepthwiseOptions),
    "FULLY_CONNECTED": _weighted(FullyConnectedOptions),
    "ADD": _arithmetic(AddOptions),
    "SUB": _arithmetic(SubOptions),
    "MUL": _arithmetic(MulOptions),
    "AVERAGE_POOL_2D": _check_pool,
    "MAX_POOL_2D": _check_pool,
    "SOFTMAX": _check_softmax,
    "DEQUANTIZE": _check_dequantize,
    "QUANTIZE": _check_function,
    "LOGISTIC": _check_curve(*_PROBABILITIES),
    "TANH": _check_curve(2.0**-7, 0),
    "RELU": _check_function,
    "RELU6": lambda operator: _check_function(operator) or _check_move(operator),
    "LEAKY_RELU": _check_function,
    **dict.fromkeys(_MOVES, _check_move),
}
"""The check of each operator that has the bits of TensorFlow Lite Micro's kernels, by its name."""
