# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: LSTMs, whose states are kept between runs of one step, and SVDF, whose state is always kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from mcugen.frontend.tflite.flatbuffer import TableBase, scalar
from mcugen.frontend.tflite.model import TensorScales, TfliteTensor
from mcugen.frontend.tflite.node import KeptState, TfliteNode, same_type, tflite_operator
from mcugen.frontend.tflite.schema import INT16, INT32, ElementType, FusedActivation
from mcugen.hir.types import Array
from mcugen.ops.onnx_node import Refusal


@dataclass(frozen=True)
class TfliteLstmOptions(TableBase):
    """Options of LSTM, and with further fields those of other recurrent layers."""

    UNION = 14
    ORDER = "activation cell_clip projection_clip kernel"
    activation: int = scalar(0, "b")
    cell_clip: float = scalar(1, "f", default=0.0)
    projection_clip: float = scalar(2, "f", default=0.0)
    kernel: int = scalar(3, "b")
    is_time_first: int = scalar(4, "B")
    merges: int = scalar(5, "B")


class SequenceLstmOptions(TfliteLstmOptions):
    """Options of UNIDIRECTIONAL_SEQUENCE_LSTM."""

    UNION = 71
    ORDER = "activation cell_clip projection_clip is_time_first"


@dataclass(frozen=True)
class BidirectionalLstmOptions(TfliteLstmOptions):
    """Options of BIDIRECTIONAL_SEQUENCE_LSTM.

    Attributes:
        is_time_first: Whether the first axis is time, which is so unless the file says otherwise.
    """

    UNION = 69
    ORDER = "activation cell_clip projection_clip merges is_time_first"
    is_time_first: int = scalar(4, "B", default=1)


class RnnOptions(TfliteLstmOptions):
    """Options of RNN."""

    UNION = 7
    ORDER = "activation"


class SequenceRnnOptions(TfliteLstmOptions):
    """Options of UNIDIRECTIONAL_SEQUENCE_RNN."""

    UNION = 31
    ORDER = "is_time_first activation"


class BidirectionalRnnOptions(TfliteLstmOptions):
    """Options of BIDIRECTIONAL_SEQUENCE_RNN."""

    UNION = 70
    ORDER = "is_time_first activation merges"


@dataclass(frozen=True)
class SvdfOptions(TableBase):
    """Options of SVDF."""

    UNION = 6
    rank: int = scalar(0)
    activation: int = scalar(1, "b")


_GATES = (0, 3, 1, 2)
"""Order of gates in ONNX (input, output, forget, cell), as places in TensorFlow's: input, forget, cell, output."""


@dataclass(frozen=True)
class LstmInputs:
    """The places of an LSTM's inputs: each the first of a group with one for each gate, or one alone.

    Attributes:
        weights: Weights of the input.
        recurrent: Weights of the hidden state.
        peepholes: Weights of the cell, of the gates input, forget and output.
        biases: Biases.
        projection: Weights of the projection; its bias follows.
        hidden: Hidden state.
        cell: Cell.
        norms: Factors of layer normalization; None if there is none.
    """

    weights: int
    recurrent: int
    peepholes: int
    biases: int
    projection: int
    hidden: int
    cell: int
    norms: int | None = None


_FORWARD = LstmInputs(1, 5, 9, 12, 16, 18, 19, 20)
"""Inputs of LSTMs of one direction."""
_DIRECTIONS = (LstmInputs(1, 5, 9, 12, 16, 35, 36), LstmInputs(18, 22, 26, 29, 33, 37, 38))
"""Inputs of an LSTM of both directions."""
_FIRST_NORM = 21
"""Place of the factors of layer normalization that all LSTMs with it have: those of the forget gate."""
_FIRST_AUXILIARY, _NUM_AUXILIARIES = 39, 9
"""Place of the first input of an LSTM of both directions that stands for a second sequence, and their number."""
_NORM_EPSILON = 1e-8
"""Number that layer normalization adds to the variance."""
_GATE_SCALES = TensorScales((2.0**-15,), (0,), 0)
"""Scale of the results of sigmoid and tanh in integer layers."""
_SUM_SCALES = TensorScales((2.0**-12,), (0,), 0)
"""Scale of the sums before sigmoid and tanh in integer layers."""


def _gate_tensors(node: TfliteNode, first: int) -> dict[int, TfliteTensor]:
    """Return the constants of the gates by TensorFlow's order; the input gate may be missing."""
    places = [place for place in range(4) if place or node.has(first)]
    return {place: node.constant_input(first + place) for place in places}


def _in_onnx_order(node: TfliteNode, first: int) -> list[TfliteTensor]:
    """Return the constants of all four gates in ONNX's order."""
    tensors = _gate_tensors(node, first)
    return [tensors[place] for place in _GATES]


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


def _time_first(node: TfliteNode, options: TfliteLstmOptions) -> str:
    """Return the real numbers of the input as [steps, batch, depth]."""
    x = node.input(0)
    if len(x.shape) == 2:
        return node.emit("Reshape", node.real(0), node.constant([1, *x.shape], "step"))
    return node.real(0) if options.is_time_first else node.emit("Transpose", node.real(0), perm=[1, 0, 2])


def _finish_sequence(node: TfliteNode, options: TfliteLstmOptions, value: str, index: int = 0) -> None:
    """Make real numbers [steps, batch, size] the value of an output."""
    if not options.is_time_first and len(node.output(index).shape) == 3:
        value = node.emit("Transpose", value, perm=[1, 0, 2])
    node.finish(node.emit("Reshape", value, node.shape_of(node.output(index))), index)


def _kept_states(
    node: TfliteNode, options: TfliteLstmOptions, *places: int, is_reverse: bool = False
) -> list[KeptState]:
    """Return the states that a recurrent layer keeps between runs; [] if each run begins with zeros.

    Converters declare the states of each layer as kept, also of those that read a whole sequence in each run. Those
    that read one step only are of use with their states; others keep them if the user asks for it.

    Args:
        node: The operator.
        options: Its options.
        *places: Places of the states among the inputs.
        is_reverse: Whether the layer reads the last step first.
    """
    shape, writer = node.input(0).shape, node.body.writer
    steps = 1 if len(shape) == 2 else shape[0 if options.is_time_first else 1]
    states = [node.input(place) for place in places]
    if writer.nested or not all(state.is_variable for state in states):
        return []
    if writer.reading.keeps_states or (steps == 1 and not is_reverse):
        return [node.keep_tensor(state) for state in states]
    if node.layer_name not in writer.reset_layers:
        writer.reset_layers.append(node.layer_name)
    return []


def _merge(node: TfliteNode, options: TfliteLstmOptions, results: Sequence[str]) -> None:
    """Make the results of both directions the outputs, one behind the other if they are merged."""
    if options.merges:
        return _finish_sequence(node, options, node.emit("Concat", *results, axis=2))
    for index, result in enumerate(results):
        _finish_sequence(node, options, result, index)
    return None


def _require_plain(node: TfliteNode, first: int, count: int) -> None:
    """Refuse what no recurrent layer of floats has here: other element types, and inputs from a place on."""
    if any(node.has(first + n) for n in range(count)):
        raise Refusal("a recurrent layer must read one sequence", "auxiliary inputs", "use one without them")
    if not node.input(0).type.is_float:
        raise Refusal("the layer must have inputs of floats", node.input(0).type.name, "leave it in float")


# ----------------------------------------------------------------------------------------------------------- RNN


_RNN_FUNCTIONS = {FusedActivation.TANH: "Tanh", FusedActivation.RELU: "Relu"}


@tflite_operator(
    "RNN",
    "UNIDIRECTIONAL_SEQUENCE_RNN",
    "BIDIRECTIONAL_SEQUENCE_RNN",
    becomes="RNN",
    limits="floats; tanh or relu; no auxiliary input; --keep-states for runs of several steps",
)
def _build_rnn(node: TfliteNode) -> None:
    is_sequence, both = node.operator.kind != "RNN", node.operator.kind.startswith("BI")
    options = node.options(BidirectionalRnnOptions if both else SequenceRnnOptions if is_sequence else RnnOptions)
    _require_plain(node, 9 if both else 5, 3)
    node.require(len(node.input(0).shape) == 2 + is_sequence, f"shape {list(node.input(0).shape)}")
    value = _time_first(node, options)
    results = [_rnn(node, options, value, first, first > 1) for first in ((1, 5) if both else (1,))]
    if both:
        _merge(node, options, results)
    else:
        _finish_sequence(node, options, results[0])


def _rnn(node: TfliteNode, options: TfliteLstmOptions, value: str, first: int, is_reverse: bool) -> str:
    """Return the results [steps, batch, size] of one direction, whose weights begin at a place."""
    function = _RNN_FUNCTIONS.get(FusedActivation(options.activation))
    if function is None:
        raise Refusal("an RNN must have tanh or relu as its activation", f"{options.activation}", "use one of these")
    weights, recurrent, bias = (node.constant_input(first + n).real_array for n in range(3))
    batch, size = node.input(first + 3).shape
    arrays = [weights, recurrent, np.concatenate([bias, np.zeros_like(bias)])]
    names = [node.constant(array[None], what) for array, what in zip(arrays, ("W", "R", "B"), strict=True)]
    kept = _kept_states(node, options, first + 3, is_reverse=is_reverse)
    if kept:
        names += ["", node.emit("Reshape", kept[0].value, node.constant([1, batch, size], "state"))]
    direction = "reverse" if is_reverse else "forward"
    results = node.emit_all(
        "RNN", [value, *names], 1 + len(kept), hidden_size=size, activations=[function], direction=direction
    )
    if kept:
        kept[0].value = node.emit("Reshape", results[1], node.shape_of(kept[0].tensor))
    return node.emit("Squeeze", results[0], node.constant([1], "axis"))


# ---------------------------------------------------------------------------------------------------------- LSTM


@tflite_operator(
    "LSTM",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    becomes={
        "LSTM": "LSTM, Scan",
        "UNIDIRECTIONAL_SEQUENCE_LSTM": "LSTM, Scan",
        "BIDIRECTIONAL_SEQUENCE_LSTM": "LSTM, Scan",
    },
    limits="tanh; --keep-states for runs of several steps; on integers no peepholes, no projection, no layer "
    "normalization, one direction, all four gates",
)
def _build_lstm(node: TfliteNode) -> None:
    both, is_step = node.operator.kind.startswith("BI"), node.operator.kind == "LSTM"
    options = node.options(BidirectionalLstmOptions if both else TfliteLstmOptions if is_step else SequenceLstmOptions)
    if options.activation not in (FusedActivation.TANH, FusedActivation.NONE):
        raise Refusal("an LSTM must have tanh as its activation", f"activation {options.activation}", "use tanh")
    if options.kernel:
        raise Refusal("an LSTM must have the full kernel", "the basic kernel", "convert the model again")
    node.require(len(node.input(0).shape) == 3 - is_step, f"shape {list(node.input(0).shape)}")
    for places in _DIRECTIONS if both else (_FORWARD,):
        _check_weights(node, places)
    if not both and not node.input(0).type.is_float:
        return _build_integer_lstm(node, options)
    _require_plain(node, _FIRST_AUXILIARY, _NUM_AUXILIARIES)
    value = _time_first(node, options)
    if both:
        results = [_float_lstm(node, options, value, p, p is _DIRECTIONS[1]) for p in _DIRECTIONS]
        return _merge(node, options, results)
    return _finish_sequence(node, options, _float_lstm(node, options, value, _FORWARD, False))


def _check_weights(node: TfliteNode, places: LstmInputs) -> None:
    """Raise ModelError if weights have shapes that do not fit."""
    hidden, cell = node.input(places.hidden).shape, node.input(places.cell).shape
    node.require(len(hidden) == len(cell) == 2 and hidden[0] == cell[0], f"shape {list(hidden)} of a state")
    size, depth = cell[1], node.input(0).shape[-1]
    node.require(hidden[1] == size or node.has(places.projection), f"shape {list(hidden)} of a state")
    groups = ((places.weights, (size, depth)), (places.recurrent, (size, hidden[1])), (places.biases, (size,)))
    for first, shape in groups:
        wrong = [t.name for t in _gate_tensors(node, first).values() if t.shape != shape]
        node.require(not wrong, f"another shape of {wrong[:1]}")


def _gate_arrays(node: TfliteNode, first: int) -> list[Array]:
    """Return the real numbers of the four gates in TensorFlow's order.

    A missing input gate is 1 - the forget gate, which is the sigmoid of the negative sum.
    """
    arrays = {place: tensor.real_array for place, tensor in _gate_tensors(node, first).items()}
    return [arrays[place] if place in arrays else -arrays[1] for place in range(4)]


def _peepholes(node: TfliteNode, places: LstmInputs) -> list[Array]:
    """Return the weights of the cell of the gates input, forget and output; [] if there are none."""
    first = places.peepholes
    if not node.has(first + 1):
        return []
    forget, output = (node.constant_input(first + n).real_array for n in (1, 2))
    return [node.constant_input(first).real_array if node.has(first) else -forget, forget, output]


def _float_lstm(node: TfliteNode, options: TfliteLstmOptions, value: str, places: LstmInputs, is_reverse: bool) -> str:
    """Return the results [steps, batch, size] of one direction of an LSTM of floats.

    Args:
        node: The operator.
        options: Its options.
        value: The input [steps, batch, depth].
        places: Places of its inputs.
        is_reverse: Whether it reads the last step first.
    """
    kept = _kept_states(node, options, places.hidden, places.cell, is_reverse=is_reverse)
    has_norms = places.norms is not None and node.has(places.norms + 1)
    if options.cell_clip or has_norms or node.has(places.projection):
        return _scanned_lstm(node, options, value, places, kept, is_reverse)
    size = node.input(places.cell).shape[1]
    parts = [
        np.concatenate([_gate_arrays(node, first)[place] for place in _GATES])
        for first in (places.weights, places.recurrent, places.biases)
    ]
    parts[2] = np.concatenate([parts[2], np.zeros_like(parts[2])])
    names = [node.constant(array[None], what) for array, what in zip(parts, ("W", "R", "B"), strict=True)]
    peepholes = _peepholes(node, places)
    names += ["", "", ""] * bool(kept or peepholes)
    if kept:
        whole = node.constant([1, *node.input(places.cell).shape], "states")
        names[4:6] = [node.emit("Reshape", state.value, whole) for state in kept]
    if peepholes:
        names.append(node.constant(np.concatenate([peepholes[n] for n in (0, 2, 1)])[None], "P"))
    direction = "reverse" if is_reverse else "forward"
    value, *last = node.emit_all("LSTM", [value, *names], 1 + len(kept), hidden_size=size, direction=direction)
    for state, result in zip(kept, last, strict=True):
        state.value = node.emit("Reshape", result, node.shape_of(state.tensor))
    return node.emit("Squeeze", value, node.constant([1], "axis"))


def _scanned_lstm(
    node: TfliteNode,
    options: TfliteLstmOptions,
    value: str,
    places: LstmInputs,
    kept: Sequence[KeptState],
    is_reverse: bool,
) -> str:
    """Return the results of an LSTM as a Scan whose body is one step.

    ONNX's operator lacks projections, normalization and limits.
    """
    (batch, width), size = node.input(places.hidden).shape, node.input(places.cell).shape[1]
    names = {what: node.new_name(what) for what in "hcx"}
    with node.collect() as nodes:
        results = _float_step(node, options, places, names)
    shapes = {"h": [batch, width], "c": [batch, size], "x": [batch, node.input(0).shape[-1]]}
    infos = [helper.make_tensor_value_info(names[k], TensorProto.FLOAT, shapes[k]) for k in "hcx"]
    ends = [
        helper.make_tensor_value_info(result, TensorProto.FLOAT, shape)
        for result, shape in zip(results, ([batch, width], [batch, size], [batch, width]), strict=True)
    ]
    body = helper.make_graph(nodes, "step", infos, ends)
    begins = [state.value for state in kept] or [node.constant(np.zeros(shapes[k], np.float32), "state") for k in "hc"]
    directions = {f"scan_{what}_directions": [int(is_reverse)] for what in ("input", "output")}
    outputs = node.emit_all("Scan", [*begins, value], 3, body=body, num_scan_inputs=1, **directions)
    for state, result in zip(kept, outputs, strict=False):
        state.value = result
    return outputs[2]


def _float_step(node: TfliteNode, options: TfliteLstmOptions, places: LstmInputs, names: dict[str, str]) -> list[str]:
    """Add the nodes of one step of an LSTM of floats; return the next hidden state, the next cell, and the result."""
    norms = None if places.norms is None or not node.has(places.norms + 1) else places.norms
    peepholes = {0: places.peepholes, 1: places.peepholes + 1, 3: places.peepholes + 2}

    def gate(place: int, function: str, cell: str) -> str:
        bias = node.real_constant(places.biases + place)
        total = node.emit(
            "Gemm", names["x"], node.real_constant(places.weights + place), *[bias] * (norms is None), transB=1
        )
        total = node.emit(
            "Add", total, node.emit("Gemm", names["h"], node.real_constant(places.recurrent + place), transB=1)
        )
        if place in peepholes and node.has(peepholes[place]):
            total = node.emit("Add", total, node.emit("Mul", cell, node.real_constant(peepholes[place])))
        if norms is not None:
            factors = node.real_constant(norms + place)
            total = node.emit("LayerNormalization", total, factors, bias, axis=-1, epsilon=_NORM_EPSILON)
        return node.emit(function, total)

    keep = gate(1, "Sigmoid", names["c"])
    if node.has(places.weights):
        enter = gate(0, "Sigmoid", names["c"])
    else:
        enter = node.emit("Sub", node.constant(1.0, "one"), keep)
    new = node.emit("Mul", enter, gate(2, "Tanh", names["c"]))
    cell = _clipped(node, node.emit("Add", node.emit("Mul", keep, names["c"]), new), options.cell_clip)
    hidden = node.emit("Mul", gate(3, "Sigmoid", cell), node.emit("Tanh", cell))
    if node.has(places.projection):
        factors = [node.real_constant(place) for place in (places.projection, places.projection + 1) if node.has(place)]
        hidden = _clipped(node, node.emit("Gemm", hidden, *factors, transB=1), options.projection_clip)
    return [hidden, cell, node.emit("Identity", hidden)]


def _clipped(node: TfliteNode, value: str, bound: float) -> str:
    """Return a value whose magnitude has a bound; 0 for none."""
    if bound <= 0:
        return value
    return node.emit("Clip", value, node.constant(-float(bound), "low"), node.constant(float(bound), "high"))


def _build_integer_lstm(node: TfliteNode, options: TfliteLstmOptions) -> None:
    """Build an LSTM on quantized values as a Scan whose body is one step, as mcugen's own quantizer writes it."""
    places = _FORWARD
    x, hidden, cell = node.input(0), node.input(places.hidden), node.input(places.cell)
    of_x, of_hidden, of_cell = _integer_scales(node, places)
    batch, size = hidden.shape
    axis = 0 if options.is_time_first else 1
    node.require(x.shape[1 - axis] == batch and cell.shape == hidden.shape, "another batch of the states")
    layers = []
    for first, of_input, kind in ((places.weights, of_x, x.type), (places.recurrent, of_hidden, hidden.type)):
        tensors = _in_onnx_order(node, first)
        codes, rows = _rows(tensors, 1)
        constants = [(node.constant(codes, "weights"), rows, tensors[0].type)]
        if first == places.weights:
            biases, products = _in_onnx_order(node, places.biases), _rows(tensors, of_input.scales[0])[1]
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
    kept = _kept_states(node, options, places.hidden, places.cell)
    begins = [
        # The pair tells the scale of the state, which begins with the zero point, and vanishes.
        node.rounded(node.scaled(state.value, known, kind), known, kind)
        for state, (known, kind) in zip(kept, ((of_hidden, hidden.type), (of_cell, cell.type)), strict=False)
    ] or [
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


def _integer_scales(node: TfliteNode, places: LstmInputs) -> list[TensorScales]:
    """Return the scales of the input, the hidden state and the cell state of an LSTM on quantized values.

    Raises:
        Refusal: The layer has peepholes, a projection or a normalization, lacks a gate, or computes in floats.
    """
    x, hidden, cell = node.input(0), node.input(places.hidden), node.input(places.cell)
    for first, what in (
        (places.peepholes + 1, "peepholes"),
        (places.projection, "projection"),
        (_FIRST_NORM, "layer normalization"),
    ):
        if node.has(first):
            raise Refusal("an LSTM of integers must be a plain one", what, "use one without it")
    if not node.has(places.weights) or len(x.shape) != 3:
        raise Refusal("an LSTM of integers must have all four gates", "no input gate", "use one with all gates")
    scales = [tensor.quantization for tensor in (x, hidden, cell)]
    if None in scales or any(len(known.scales) > 1 for known in scales if known) or cell.type is not INT16:
        raise Refusal("an LSTM must be quantized to integers throughout", "floats or other types", "quantize it again")
    return [known for known in scales if known is not None]


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
    cell = _clipped(node, node.emit("Add", kept, fresh), clip)
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
