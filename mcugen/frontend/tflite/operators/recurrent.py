# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: LSTMs, whose states are kept between runs of one step, and SVDF, whose state is always kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import helper

from mcugen.frontend.tflite.flatbuffer import TableBase, scalar
from mcugen.frontend.tflite.model import TensorScales, TfliteTensor
from mcugen.frontend.tflite.node import KeptState, TfliteNode, same_type, tflite_operator
from mcugen.frontend.tflite.schema import INT16, INT32, ElementType, FusedActivation
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import Refusal


@dataclass(frozen=True)
class SequenceLstmOptions(TableBase):
    """Options of UNIDIRECTIONAL_SEQUENCE_LSTM."""

    UNION = 71
    activation: int = scalar(0, "b")
    cell_clip: float = scalar(1, "f", default=0.0)
    projection_clip: float = scalar(2, "f", default=0.0)
    is_time_first: int = scalar(3, "B")


@dataclass(frozen=True)
class SvdfOptions(TableBase):
    """Options of SVDF."""

    UNION = 6
    rank: int = scalar(0)
    activation: int = scalar(1, "b")


_GATES = (0, 3, 1, 2)
"""Order of gates in ONNX (input, output, forget, cell), as places in TensorFlow's: input, forget, cell, output."""
_INPUT_WEIGHTS, _RECURRENT_WEIGHTS, _PEEPHOLES, _BIASES, _PROJECTION, _HIDDEN, _CELL, _NORMS = (
    1,
    5,
    9,
    12,
    16,
    18,
    19,
    20,
)
"""Places of the first input of each kind."""
_GATE_SCALES = TensorScales((2.0**-15,), (0,), 0)
"""Scale of the results of sigmoid and tanh in integer layers."""
_SUM_SCALES = TensorScales((2.0**-12,), (0,), 0)
"""Scale of the sums before sigmoid and tanh in integer layers."""


def _real_array(tensor: TfliteTensor) -> Array:
    """Return the real numbers of a constant."""
    scales = tensor.quantization
    if scales is None:
        return tensor.array.astype(np.float32)
    shape = [1] * len(tensor.shape)
    if len(scales.scales) > 1:
        shape[scales.axis] = -1
    zeros = np.asarray(scales.zero_points, np.float32).reshape(shape)
    return (tensor.array.astype(np.float32) - zeros) * np.asarray(scales.scales, np.float32).reshape(shape)


def _gate_tensors(node: TfliteNode, first: int) -> list[TfliteTensor]:
    """Return the constants of the four gates in ONNX's order."""
    return [node.constant_input(first + place) for place in _GATES]


def _rows(tensors: Sequence[TfliteTensor], factor: float) -> tuple[Array, TensorScales]:
    """Return the constants of all gates, below one another, with a scale for each row.

    Args:
        tensors: The constants.
        factor: What the scales are multiplied by.
    """
    scales: list[float] = []
    for tensor in tensors:
        known = tensor.quantization
        if known is None or any(known.zero_points) or known.axis:
            raise Refusal("weights of an integer LSTM must be symmetric", f"'{tensor.name}'", "quantize again")
        values = np.float32(factor) * np.asarray(known.scales, np.float32)
        scales += np.broadcast_to(values, tensor.shape[:1]).tolist()
    return np.concatenate([tensor.array for tensor in tensors]), TensorScales(tuple(scales), (0,) * len(scales), 0)


@tflite_operator(
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    becomes="LSTM, or Scan on quantized values",
    limits="no projection, no layer normalization, all four gates; runs of several steps begin with states of zeros",
)
def _build_sequence_lstm(node: TfliteNode) -> None:
    options, x, hidden = node.options(SequenceLstmOptions), node.input(0), node.input(_HIDDEN)
    for first, count, what in ((_PROJECTION, 2, "projection"), (_NORMS, 4, "layer normalization")):
        if any(node.has(first + n) for n in range(count)):
            raise Refusal("an LSTM must be a plain one", what, "use one without it")
    if not node.has(_INPUT_WEIGHTS) or not node.has(_RECURRENT_WEIGHTS):
        raise Refusal("an LSTM must have all four gates", "no input gate", "use one with all gates")
    if options.activation not in (FusedActivation.TANH, FusedActivation.NONE):
        raise Refusal("an LSTM must have tanh as its activation", f"activation {options.activation}", "use tanh")
    node.require(len(x.shape) == 3 and len(hidden.shape) == 2, f"shapes {list(x.shape)} and {list(hidden.shape)}")
    size, depth = hidden.shape[1], x.shape[2]
    for first, shape in ((_INPUT_WEIGHTS, (size, depth)), (_RECURRENT_WEIGHTS, (size, size)), (_BIASES, (size,))):
        wrong = [t.name for t in _gate_tensors(node, first) if t.shape != shape]
        node.require(not wrong, f"another shape of {wrong[:1]}")
    if x.type.is_float:
        return _build_float_lstm(node, options)
    return _build_integer_lstm(node, options)


def _kept_states(node: TfliteNode, options: SequenceLstmOptions) -> list[KeptState]:
    """Return the states that an LSTM keeps between runs, hidden state and cell; [] if each run begins with zeros.

    Converters declare the states of each LSTM as kept, also of those that read a whole sequence in each run. Those that
    read one step only are of use with their states.
    """
    steps = node.input(0).shape[0 if options.is_time_first else 1]
    states = [node.input(_HIDDEN), node.input(_CELL)]
    if steps != 1 or node.body.writer.nested or not all(state.is_variable for state in states):
        return []
    return [node.keep_tensor(state) for state in states]


def _build_float_lstm(node: TfliteNode, options: SequenceLstmOptions) -> None:
    if options.cell_clip:
        raise Refusal("an LSTM of floats must not clip its cell", f"a clip of {options.cell_clip:g}", "leave it out")
    size = node.input(_HIDDEN).shape[1]
    parts = {
        first: np.concatenate([_real_array(t) for t in _gate_tensors(node, first)])
        for first in (_INPUT_WEIGHTS, _RECURRENT_WEIGHTS, _BIASES)
    }
    bias = np.concatenate([parts[_BIASES], np.zeros_like(parts[_BIASES])])
    arrays = [parts[_INPUT_WEIGHTS], parts[_RECURRENT_WEIGHTS], bias]
    names = [node.constant(array[None], what) for array, what in zip(arrays, ("W", "R", "B"), strict=True)]
    if node.has(_PEEPHOLES):
        order = [node.constant_input(_PEEPHOLES + place) for place in (0, 2, 1)]
        names += ["", "", "", node.constant(np.concatenate([_real_array(t) for t in order])[None], "P")]
    value = node.real(0) if options.is_time_first else node.emit("Transpose", node.real(0), perm=[1, 0, 2])
    kept = _kept_states(node, options)
    if kept:
        names += [""] * (4 - len(names))
        whole = node.constant([1, *node.input(_HIDDEN).shape], "states")
        names[4:6] = [node.emit("Reshape", state.value, whole) for state in kept]
    value, *last = node.emit_all("LSTM", [value, *names], 1 + len(kept), hidden_size=size)
    for state, result in zip(kept, last, strict=True):
        state.value = node.emit("Reshape", result, node.shape_of(state.tensor))
    perm = [0, 2, 1, 3] if options.is_time_first else [2, 0, 1, 3]
    value = node.emit("Transpose", value, perm=perm)
    node.finish(node.emit("Reshape", value, node.shape_of(node.output())))


def _build_integer_lstm(node: TfliteNode, options: SequenceLstmOptions) -> None:
    """Build an LSTM on quantized values as a Scan whose body is one step, as mcugen's own quantizer writes it."""
    x, hidden, cell = node.input(0), node.input(_HIDDEN), node.input(_CELL)
    if node.has(_PEEPHOLES):
        raise Refusal("an integer LSTM must have no peepholes", "peepholes", "use one without them")
    scales = [tensor.quantization for tensor in (x, hidden, cell)]
    if None in scales or any(len(known.scales) > 1 for known in scales if known) or cell.type is not INT16:
        raise Refusal("an LSTM must be quantized to integers throughout", "floats or other types", "quantize it again")
    of_x, of_hidden, of_cell = (known for known in scales if known is not None)
    batch, size = hidden.shape
    axis = 0 if options.is_time_first else 1
    node.require(x.shape[1 - axis] == batch and cell.shape == hidden.shape, "another batch of the states")
    layers = []
    for first, of_input, kind in ((_INPUT_WEIGHTS, of_x, x.type), (_RECURRENT_WEIGHTS, of_hidden, hidden.type)):
        tensors = _gate_tensors(node, first)
        codes, rows = _rows(tensors, 1)
        constants = [(node.constant(codes, "weights"), rows, tensors[0].type)]
        if first == _INPUT_WEIGHTS:
            biases, products = _gate_tensors(node, _BIASES), _rows(tensors, of_input.scales[0])[1]
            values = np.concatenate([bias.array for bias in biases])
            limits = np.iinfo(np.int32)
            if values.min() < limits.min or values.max() > limits.max:
                raise Refusal("biases of an LSTM must have 32 bits", f"{values.max()}", "quantize it again")
            values = values.astype(np.int32)
            constants.append((node.constant(values, "bias"), products, INT32))
        layers.append((of_input, kind, constants))
    names = {what: node.new_name(what) for what in ("h", "c", "x")}
    with node.collect() as nodes:
        results = _step(node, layers, names, of_hidden, of_cell, hidden.type, options.cell_clip)
    infos = {
        "h": helper.make_tensor_value_info(names["h"], hidden.type.onnx, [batch, size]),
        "c": helper.make_tensor_value_info(names["c"], cell.type.onnx, [batch, size]),
        "x": helper.make_tensor_value_info(names["x"], x.type.onnx, [batch, x.shape[2]]),
    }
    ends = [
        helper.make_tensor_value_info(result, kind.onnx, [batch, size])
        for result, kind in zip(results, (hidden.type, cell.type, hidden.type), strict=True)
    ]
    body = helper.make_graph(nodes, "step", list(infos.values()), ends)
    kept = _kept_states(node, options)
    begins = [state.value for state in kept] or [
        node.constant(np.full((batch, size), known.zero_points[0], kind.array), "state")
        for known, kind in ((of_hidden, hidden.type), (of_cell, cell.type))
    ]
    where = {"scan_input_axes": [axis], "scan_output_axes": [axis]}
    outputs = node.emit_all("Scan", [*begins, node.stored(0)], 3, body=body, num_scan_inputs=1, **where)
    for state, result in zip(kept, outputs, strict=False):
        state.value = result
    if same_type(hidden, node.output()):
        node.finish_stored(outputs[2])
    else:
        node.finish(node.scaled(outputs[2], of_hidden, hidden.type))


def _step(
    node: TfliteNode,
    layers: Sequence[tuple[TensorScales, ElementType, Sequence[tuple[str, TensorScales, ElementType]]]],
    names: dict[str, str],
    of_hidden: TensorScales,
    of_cell: TensorScales,
    kind: ElementType,
    clip: float,
) -> list[str]:
    """Add the nodes of one step of an integer LSTM; return the next hidden state, the next cell, and the result.

    Args:
        node: The operator.
        layers: Scales and type of the input, and the constants, of the products with x and with the hidden state.
        names: Names of the states and of the input in the body.
        of_hidden: Scale of the hidden state.
        of_cell: Scale of the cell.
        kind: Element type of the hidden state.
        clip: Bound of the cell's magnitude; 0 for none.
    """

    def rounded(value: str, scales: TensorScales) -> str:
        return node.scaled(node.rounded(value, scales, INT16), scales, INT16)

    sums = []
    for (of_input, input_kind, constants), name in zip(layers, (names["x"], names["h"]), strict=True):
        factors = [node.scaled(constant, rows, element) for constant, rows, element in constants]
        product = node.emit("Gemm", node.scaled(name, of_input, input_kind), *factors, transB=1)
        sums.append(rounded(product, _SUM_SCALES))
    total = rounded(node.emit("Add", *sums), _SUM_SCALES)
    gates = node.emit_all("Split", [total], 4, axis=1, num_outputs=4)
    functions = ("Sigmoid", "Sigmoid", "Sigmoid", "Tanh")
    enter, leave, keep, new = (
        rounded(node.emit(function, gate), _GATE_SCALES) for function, gate in zip(functions, gates, strict=True)
    )
    kept = rounded(node.emit("Mul", keep, node.scaled(names["c"], of_cell, INT16)), of_cell)
    fresh = rounded(node.emit("Mul", enter, new), of_cell)
    cell = node.emit("Add", kept, fresh)
    if clip > 0:
        cell = node.emit("Clip", cell, node.constant(-float(clip), "low"), node.constant(float(clip), "high"))
    stored = node.rounded(cell, of_cell, INT16)
    seen = rounded(node.emit("Tanh", node.scaled(stored, of_cell, INT16)), _GATE_SCALES)
    hidden = node.rounded(node.emit("Mul", leave, seen), of_hidden, kind)
    return [hidden, stored, node.emit("Identity", hidden)]


@tflite_operator("SVDF", becomes="Gemm, Concat, Conv", limits="the state becomes an input and an output")
def _build_svdf(node: TfliteNode) -> None:
    options = node.options(SvdfOptions)
    x, features, times, state = node.input(0), node.input(1), node.constant_input(2), node.input(4)
    node.require(len(features.shape) == len(times.shape) == len(x.shape) == 2 and options.rank > 0, "other ranks")
    (batch, _), (filters, memory) = x.shape, times.shape
    units = filters // options.rank
    node.require(
        features.shape == (filters, x.shape[1]) and filters == units * options.rank and memory > 0, "other shapes"
    )
    node.require(
        state.shape == (batch, filters * memory) and state.is_variable, f"shape {list(state.shape)} of the state"
    )
    kept = node.keep_tensor(state, (batch, filters, memory))
    product = node.emit("Gemm", node.real(0), node.real(1), transB=1)
    new = node.rounded(product, state.quantization, state.type) if state.quantization is not None else product
    new = node.emit("Reshape", new, node.constant([batch, filters, 1], "column"))
    if memory > 1:
        bounds = [node.constant([n], what) for n, what in ((1, "begin"), (memory, "end"), (2, "axis"))]
        new = node.emit("Concat", node.emit("Slice", kept.value, *bounds), new, axis=2)
    kept.value = new
    weights = node.constant(times.array.reshape(units, options.rank, memory), "times")
    node.require(times.quantization is None or len(times.quantization.scales) == 1, f"scales of '{times.name}'")
    weights = node.dequantized(weights, times)
    factors = [weights, *(_svdf_bias(node, state, times) if node.has(3) else ())]
    value = node.emit("Conv", node.dequantized(new, state), *factors, kernel_shape=[memory], group=units)
    node.require(node.output().count == batch * units, f"shape {list(node.output().shape)} of the result")
    node.finish(value, activation=options.activation, is_reshaped=True)


def _svdf_bias(node: TfliteNode, state: TfliteTensor, times: TfliteTensor) -> list[str]:
    """Return the real numbers of the bias, whose scale is that of the products of state and weights."""
    bias = node.input(3)
    if bias.type.is_float or state.quantization is None or times.quantization is None:
        return [node.real(3)]
    scale = float(np.float32(state.quantization.scales[0]) * np.float32(times.quantization.scales[0]))
    return [node.scaled(node.constant(node.array(3), "bias"), TensorScales((scale,), (0,), 0), INT32)]
