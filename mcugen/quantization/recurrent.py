# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in integers, as standard ONNX: one Scan per direction, whose body is one time step.

Every tensor of a step is quantized, states included, which the Scan carries as integers: nothing in the loop is real. W
and R are int8 (int4 if the user asks for it) with a scale per row. Only the left operands of the products may be int8;
all other tensors are int16 in every scheme. An int8 state would be rounded anew in each step, and lose changes of less
than half a step for good. An int8 gate of 255/256, the nearest to 1, would forget within some hundred steps what it
should keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

from mcugen.hir.graph import Node
from mcugen.hir.layer_names import main_node, source_of
from mcugen.hir.names import Names
from mcugen.hir.types import Array, DType, QuantParams, Shape
from mcugen.kernels.portable.recurrent import RecurrentSizes
from mcugen.numerics.fixedpoint import quantize
from mcugen.ops.recurrent import C0, H0, STATE_ROLES, B, Gru, Lstm, R, Recurrent, Rnn, W, X
from mcugen.quantization.onnx_writer import tensor_info
from mcugen.quantization.plan import Plan, Stored
from mcugen.quantization.rounding import best_scales, round_to_nearest, round_weights
from mcugen.quantization.scheme import WEIGHT_LIMITS, Scheme, activation_params, weight_scales

Ranges = Mapping[str, tuple[float, float]]
"""Ranges (smallest and largest value) of the tensors inside a recurrent layer, by role (`Recurrent.internals`)."""

RECURRENT_OP_TYPES = ("RNN", "LSTM", "GRU")
"""Names of the ONNX operators of recurrent layers, which use int16 for some inner tensors in every quantization scheme.
"""

GATE_STORAGE = Stored(DType.INT16, QuantParams((2.0**-15,), 0))
"""Storage of the results of sigmoid and tanh: int16 with scale 2⁻¹⁵, so that the largest value is just below 1."""

SHARED_SCALE_ROLES = frozenset({"projection", "recurrence", "gates", "reset"})
"""Roles of tensors inside a recurrent layer that share one scale if they are int16, so that integers can be added."""

INT16_RANGE_RATIO = 2.0
"""Range of an int16 tensor inside a recurrent layer, divided by the range seen in calibration.

New inputs exceed that range, and 16 bits are fine enough for twice the range.
"""

# --------------------------------------------------------------------------------------------- writing ONNX


@dataclass
class GraphWriter:
    """A builder of the ONNX graph of a quantized recurrent layer. A "role" names a kind of tensor, such as "hidden".

    Tensors with real values and tensors with quantized values both are ONNX tensors; methods take and return their
    names, which have the form `<prefix>.<what>`; a number makes further names of the same form unique.

    Attributes:
        prefix: Prefix of the names of tensors.
        stored: How tensors are stored, by role.
        nodes: The nodes written so far.
        initializers: The constants written so far.
        layer: Name of the layer that the nodes compute; each node has this name and that of its operator. Nodes without
            a layer are named after their first output.
    """

    prefix: str
    stored: Mapping[str, Stored]
    layer: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    _node_names: Names = field(default_factory=lambda: Names(separator="_"))
    _tensor_names: Names = field(default_factory=Names)

    def tensor_name(self, what: str) -> str:
        """Return a new name of a tensor: `<prefix>.<what>`, with a number if it is in use."""
        return self._tensor_names.take(f"{self.prefix}.{what}")

    def loop_name(self) -> str:
        """Return a new name of a Scan: the name of the layer, with a number for the second direction."""
        return self._node_names.take(self.layer or self.prefix)

    def constant(self, what: str, array: Array) -> str:
        """Add a constant to the graph and return its name, which is `<prefix>.<what>`.

        Args:
            what: What the constant is, as the part of the name behind the prefix.
            array: The elements.
        """
        name = self.tensor_name(what)
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def outputs(self, op_type: str, inputs: Sequence[str], names: Sequence[str], **attributes: object) -> Sequence[str]:
        """Add a node with several outputs and return the outputs' names.

        Args:
            op_type: The ONNX operator. The node is named after the layer and the operator; a Scan after the layer
                alone.
            inputs: The names of the inputs.
            names: The names of the outputs.
            attributes: The attributes of the node.
        """
        name = self._node_names.take(f"{self.layer or names[0]}/{op_type}")
        self.nodes.append(helper.make_node(op_type, inputs, names, name, **attributes))
        return names

    def op(self, op_type: str, *inputs: str, out: str = "", **attributes: object) -> str:
        """Add a node with one output and return the output's name: `out`, or a new name.

        Args:
            op_type: The ONNX operator.
            inputs: The names of the inputs.
            out: The name of the output; empty for a new name.
            attributes: The attributes of the node.
        """
        name = out or self.tensor_name(op_type)
        return self.outputs(op_type, inputs, [name], **attributes)[0]

    def quantize(self, real: str, role: str, out: str = "") -> str:
        """Add a QuantizeLinear with the scale and zero point of one kind of tensor, and return its output's name.

        Args:
            real: The name of the float tensor.
            role: The kind of tensor, a key of `stored` such as "hidden", whose scale and zero point apply.
            out: The name of the result; empty for a new name.
        """
        return self.op("QuantizeLinear", real, *self._params(role), out=out)

    def dequantize(self, codes: str, role: str) -> str:
        """Add a DequantizeLinear with the scale and zero point of one kind of tensor, and return its output's name.

        Args:
            codes: The name of the quantized tensor.
            role: The kind of tensor, a key of `stored` such as "hidden", whose scale and zero point apply.
        """
        return self.op("DequantizeLinear", codes, *self._params(role))

    def fake_quantize(self, real: str, role: str) -> str:
        """Add a QuantizeLinear and a DequantizeLinear, and return the name of the rounded float tensor.

        Args:
            real: The name of the float tensor.
            role: The kind of tensor, a key of `stored` such as "hidden", whose scale and zero point apply.
        """
        return self.dequantize(self.quantize(real, role), role)

    def weights(self, what: str, codes: Array, scales: Array) -> str:
        """Add quantized constants with one scale per index of the first axis, and return the name of their real values.

        Args:
            what: The prefix of the constants' names.
            codes: The integers.
            scales: The scales.
        """
        scale = self.constant(f"{what}_scale", scales.astype(np.float32))
        zero = self.constant(f"{what}_zero_point", np.zeros(len(scales), codes.dtype))
        return self.op("DequantizeLinear", self.constant(what, codes), scale, zero, axis=0)

    def reshape(self, x: str, shape: Shape, out: str = "") -> str:
        """Add a Reshape of the tensor named `x` to `shape`, and return the name of the result.

        Args:
            x: The name of the tensor.
            shape: The new shape.
            out: The name of the result; empty for a new name.
        """
        return self.op("Reshape", x, self.constant("shape", np.asarray(shape, np.int64)), out=out)

    def split(self, x: str, sizes: Sequence[int]) -> Sequence[str]:
        """Add a Split of the last axis into parts of the given sizes, and return the names of the parts.

        Args:
            x: The name of the tensor.
            sizes: The size of each part.
        """
        names = [self.tensor_name(f"part{i}") for i in range(len(sizes))]
        return self.outputs("Split", [x, self.constant("sizes", np.asarray(sizes, np.int64))], names, axis=-1)

    def _params(self, role: str) -> list[str]:
        stored = self.stored[role]
        scale = self.constant(f"{role}_scale", np.asarray(stored.quant.scale[0], np.float32))
        return [scale, self.constant(f"{role}_zero_point", np.asarray(stored.quant.zero_point, stored.dtype.numpy))]


@dataclass(frozen=True)
class QuantizedMatrix:
    """A quantized weight matrix whose product with the inputs is part of a recurrent layer's step.

    Attributes:
        codes: The int8 or int4 weights, [N, K].
        scales: The scale of each row, [N].
        bias: The real bias of the product, [N]; None without bias.
    """

    codes: Array
    scales: Array
    bias: Array | None

    @staticmethod
    def of(
        rows: Array, bias: Array | None, unit: QuantParams, scheme: Scheme, gram: Array | None = None
    ) -> QuantizedMatrix:
        """Quantize rows of weights.

        Scales are raised where the bias would exceed int32 in units of input scale times weight scale.

        Args:
            rows: The real weights, [N, K].
            bias: The real bias, [N].
            unit: The scale and zero point of the inputs.
            scheme: The quantization scheme, with the type of the weights.
            gram: Second moments of the inputs, [1, K, K], for weights of least error and scales that may clip; None to
                round to nearest.
        """
        limits, min_scales = WEIGHT_LIMITS[scheme.weights], np.asarray(0.0)
        scales = np.broadcast_to(weight_scales(rows, 0, scheme, scheme.weights), len(rows))
        if gram is not None and scheme.per_channel and not scheme.power_of_two:
            scales = best_scales(rows[None], scales[None], gram, limits)[0]
        if bias is not None:
            min_scales = np.abs(bias.astype(np.float64)) / unit.scales / 2**30
        scales = np.maximum(scales, min_scales).astype(np.float32).astype(np.float64)
        operands = (rows[None], scales[None])
        (codes,) = round_to_nearest(*operands, limits) if gram is None else round_weights(*operands, gram, limits)
        return QuantizedMatrix(codes.astype(ml_dtypes.int4) if scheme.weights is DType.INT4 else codes, scales, bias)

    @property
    def real(self) -> Array:
        """Return the dequantized weights, [N, K]."""
        return (self.codes.astype(np.float64) * self.scales[:, None]).astype(np.float32)

    def times(self, scope: GraphWriter, x: str, unit: QuantParams) -> str:
        """Add nodes that compute x Wᵀ + b in integers, and return the name of the real result, [M, N].

        Args:
            scope: The graph to write to.
            x: The name of a float tensor, [M, K].
            unit: The quantization parameters of x.
        """
        operands = [x, scope.weights("weight", self.codes, self.scales)]
        if self.bias is not None:
            scales = unit.scales * self.scales
            operands.append(scope.weights("bias", np.rint(self.bias / scales).astype(np.int32), scales))
        return scope.op("Gemm", *operands, transB=1)


# -------------------------------------------------------------------------------------------------- one step


@dataclass(frozen=True)
class CellWriter:
    """A builder of one time step of a recurrent layer in one direction. Its methods return names of float tensors.

    Attributes:
        body: The ONNX graph of the step, to which nodes are added.
        hidden: The size of the hidden state.
        inner: The matrix W, which is multiplied by the step's input.
        recurrent: The parts of the matrix R, which are multiplied by a hidden state.
    """

    body: GraphWriter
    hidden: int
    inner: QuantizedMatrix
    recurrent: tuple[QuantizedMatrix, ...]

    def projection(self, x: str) -> str:
        """Add the product of W with a tensor, rounded to the product's storage type, and return its name.

        Args:
            x: The name of the step's input as a float tensor.
        """
        return self.body.fake_quantize(self.inner.times(self.body, x, self.body.stored["x"].quant), "projection")

    def product(self, index: int, h: str, role: str) -> str:
        """Add the product of a part of R with a hidden state, rounded to its storage type, and return its name.

        Args:
            index: The index of the part.
            h: The name of the hidden state as a float tensor.
            role: The kind of tensor that h is stored as, such as "fed"; it gives the scale and zero point of h.
        """
        body = self.body
        return body.fake_quantize(self.recurrent[index].times(body, h, body.stored[role].quant), "recurrence")

    def parts(self, x: str, *gates: int) -> Sequence[str]:
        """Add a Split of a tensor that holds all gates side by side, and return the names of the parts.

        Args:
            x: The name of the tensor.
            *gates: The number of gates that each part has; a gate has `hidden` elements.
        """
        return self.body.split(x, [n * self.hidden for n in gates])

    def sum(self, a: str, b: str) -> str:
        """Add the sum of two tensors, rounded like the input of an activation function, and return its name.

        Args:
            a: The name of the first float tensor.
            b: The name of the second float tensor.
        """
        return self.body.fake_quantize(self.body.op("Add", a, b), "gates")

    def sigmoid(self, x: str) -> str:
        """Add the sigmoid of the float tensor named `x`, rounded to int16 like a gate (0 to 1), and return its name."""
        return self.body.fake_quantize(self.body.op("Sigmoid", x), "sigmoid")

    def tanh(self, x: str) -> str:
        """Add the hyperbolic tangent (-1 to 1) of the float tensor named `x`, rounded to int16, and return its name."""
        return self.body.fake_quantize(self.body.op("Tanh", x), "tanh")

    def scaled(self, gate: str, x: str, role: str) -> str:
        """Add the product of a gate (0 to 1) and a tensor, rounded like one kind of tensor, and return its name.

        Args:
            gate: The name of the gate as a float tensor.
            x: The name of the float tensor that is multiplied by it.
            role: The kind of tensor that the product is, such as "cell"; it gives the product's type and scale.
        """
        return self.body.fake_quantize(self.body.op("Mul", gate, x), role)


def _rnn(cell: CellWriter, projection: str, states: Sequence[str]) -> list[str]:
    """Return h' = tanh(p + R h)."""
    total = cell.sum(projection, cell.product(0, states[0], "hidden"))
    return [cell.body.quantize(cell.body.op("Tanh", total), "hidden")]


def _lstm(cell: CellWriter, projection: str, states: Sequence[str]) -> list[str]:
    """Return h' = o · tanh(c') and c' = f · c + i · g, with i, o, f = σ(p + R h) and g = tanh(p + R h)."""
    body, (h, c) = cell.body, states
    i, o, f, g = cell.parts(cell.sum(projection, cell.product(0, h, "hidden")), 1, 1, 1, 1)
    kept = cell.scaled(cell.sigmoid(f), c, "cell")
    fresh = cell.scaled(cell.sigmoid(i), cell.tanh(g), "cell")
    new = body.quantize(body.op("Add", kept, fresh), "cell")
    squashed = cell.tanh(body.dequantize(new, "cell"))
    return [body.quantize(body.op("Mul", cell.sigmoid(o), squashed), "hidden"), new]


def _gru(cell: CellWriter, projection: str, states: Sequence[str]) -> list[str]:
    """Return h' = g + z · (h - g), with z, r = σ(p + R h) and g = tanh(p + R (r · h)) or tanh(p + r · (R h + b))."""
    body, (h,) = cell.body, states
    fed = body.fake_quantize(h, "fed")
    p_gates, p_fresh = cell.parts(projection, 2, 1)
    linear = len(cell.recurrent) == 1
    products = cell.product(0, fed, "fed")
    r_gates, r_fresh = cell.parts(products, 2, 1) if linear else (products, "")
    z, r = (cell.sigmoid(x) for x in cell.parts(cell.sum(p_gates, r_gates), 1, 1))
    scaled = cell.scaled(r, r_fresh if linear else fed, "reset")
    fresh = cell.tanh(cell.sum(p_fresh, scaled if linear else cell.product(1, scaled, "reset")))
    difference = body.fake_quantize(body.op("Sub", h, fresh), "difference")
    return [body.quantize(body.op("Add", fresh, cell.scaled(z, difference, "difference")), "hidden")]


STEP_WRITERS: dict[type[Recurrent], Callable[[CellWriter, str, Sequence[str]], list[str]]] = {
    Rnn: _rnn,
    Lstm: _lstm,
    Gru: _gru,
}
"""Functions that write one time step of a recurrent layer as ONNX nodes, by type of the operator.

They take the step's builder, the projection of the input, and the states as float tensors. They return the next states
as quantized tensors.
"""


# ----------------------------------------------------------------------------------------------- whole layers


def tensor_storage(op: Recurrent, ranges: Ranges, scheme: Scheme) -> dict[str, Stored]:
    """Return the integer storage of the tensors inside a recurrent layer's step, by role.

    A role names a kind of tensor, such as "hidden"; "fed" is the hidden state that R is multiplied by. The scales of
    tensors that are int16 in every scheme are powers of two: scaling a product is then a shift.

    Args:
        op: The recurrent operator.
        ranges: The ranges of its internal tensors, by role.
        scheme: The quantization scheme.
    """
    narrow_roles = {"fed", *([] if isinstance(op, Gru) else ["hidden"]), *(["reset"] if _resets_first(op) else [])}
    wide = replace(scheme, activations=DType.INT16, power_of_two=True)
    summed = [bound for role in SHARED_SCALE_ROLES - narrow_roles for bound in ranges.get(role, ())]
    stored = {"sigmoid": GATE_STORAGE, "tanh": GATE_STORAGE}
    for role, (low, high) in {**ranges, "fed": ranges["hidden"]}.items():
        if role in narrow_roles:
            stored[role] = _storage_of(low, high, scheme)
        else:
            low, high = (min(summed), max(summed)) if role in SHARED_SCALE_ROLES else (low, high)
            stored[role] = _storage_of(INT16_RANGE_RATIO * low, INT16_RANGE_RATIO * high, wide)
    if scheme.activations is DType.INT16:
        stored["fed"] = stored["hidden"]
    return stored


def _storage_of(low: float, high: float, scheme: Scheme) -> Stored:
    return Stored(scheme.activations, activation_params(low, high, scheme.activations, scheme), "", low, high)


def _resets_first(op: Recurrent) -> bool:
    """Return whether R is multiplied by a state that a gate has scaled."""
    return isinstance(op, Gru) and not op.linear


@dataclass(frozen=True)
class _Layer:
    """A recurrent layer while it is converted to ONNX; `codes` is its quantized input X."""

    scope: GraphWriter
    node: Node
    op: Recurrent
    sizes: RecurrentSizes
    inputs: Sequence[str]
    codes: str
    scheme: Scheme
    moments: Mapping[str, Array]

    def direction(self, d: int) -> dict[str, str]:
        """Write one direction as a Scan and return its real results by name, without the axis of directions."""
        first = [self._first_state(index, d) for index in range(len(self.op.states))]
        axis, backwards = int(self.sizes.batch_first), int(self.op.backwards[d])
        names = [self.scope.tensor_name(f"{self._direction_name(d)}.{result}") for result in (*self.op.states, "y")]
        loop = self.scope.loop_name()
        scan = helper.make_node(
            "Scan",
            [*first, self.codes],
            names,
            loop,
            body=self._body(d, loop),
            num_scan_inputs=1,
            scan_input_axes=[axis],
            scan_input_directions=[backwards],
            scan_output_axes=[axis],
            scan_output_directions=[backwards],
        )
        self.scope.nodes.append(scan)
        results = {f"Y_{s}": (name, STATE_ROLES[s]) for s, name in zip(self.op.states, names, strict=False)}
        results["Y"] = (names[-1], "hidden")
        return {r: self.scope.dequantize(*results[r]) for r in self.op.results}

    def _bias(self, d: int) -> Array | None:
        bias = self.node.inputs[B] if len(self.node.inputs) > B else None
        return None if bias is None or bias.data is None else self.op.summed_bias(bias.data[d])

    def _first_state(self, index: int, d: int) -> str:
        """Return a quantized initial state [batch, hidden]; zeros if the layer has none."""
        role, at = STATE_ROLES[self.op.states[index]], (H0, C0)[index]
        value = self.node.inputs[at] if len(self.node.inputs) > at else None
        axis = int(self.sizes.batch_first)
        if value is not None and value.data is None:
            number = self.scope.constant("direction", np.asarray(d, np.int64))
            return self.scope.quantize(self.scope.op("Gather", self.inputs[at], number, axis=axis), role)
        shape = (self.sizes.batch, self.sizes.hidden)
        real = np.zeros(shape, np.float32) if value is None or value.data is None else value.data.take(d, axis)
        stored = self.scope.stored[role]
        return self.scope.constant(role, quantize(real, stored.quant, stored.dtype))

    def _direction_name(self, d: int) -> str:
        return "backward" if self.op.backwards[d] else "forward"

    def _body(self, d: int, loop: str) -> onnx.GraphProto:
        """Return one step: it maps quantized states and an input to the next states, and gives h a second time.

        Args:
            d: The direction.
            loop: The name of the Scan whose body is returned.
        """
        body = GraphWriter(f"{self.scope.prefix}.{self._direction_name(d)}", self.scope.stored, loop)
        roles = [*(STATE_ROLES[s] for s in self.op.states), "x"]
        inputs = [body.tensor_name(role) for role in roles]
        reals = [body.dequantize(name, role) for name, role in zip(inputs, roles, strict=True)]
        cell = CellWriter(body, self.sizes.hidden, self.inner(d), self.recurrent(d))
        after = STEP_WRITERS[type(self.op)](cell, cell.projection(reals[-1]), reals[:-1])
        after.append(body.op("Identity", after[0]))

        def declared(name: str, role: str) -> onnx.ValueInfoProto:
            columns = self.sizes.depth if role == "x" else self.sizes.hidden
            return tensor_info(name, body.stored[role].dtype, (self.sizes.batch, columns))

        formal = [declared(name, role) for name, role in zip(inputs, roles, strict=True)]
        declared_outputs = [declared(name, role) for name, role in zip(after, [*roles[:-1], roles[0]], strict=True)]
        return helper.make_graph(body.nodes, body.prefix, formal, declared_outputs, body.initializers)

    def inner(self, d: int) -> QuantizedMatrix:
        """Return W with its bias."""
        weights, bias = self.node.input(W).data, self._bias(d)
        assert weights is not None
        bias = None if bias is None else bias[: weights.shape[1]]
        return QuantizedMatrix.of(weights[d], bias, self.scope.stored["x"].quant, self.scheme, self.moments.get("x"))

    def recurrent(self, d: int) -> tuple[QuantizedMatrix, ...]:
        """Return R in the parts that a step multiplies separately, with the biases that are not part of W's product."""
        weights, bias, fed = self.node.input(R).data, self._bias(d), self.scope.stored["fed"].quant
        assert weights is not None
        rows, first, seen = weights[d], len(weights[d]) - self.sizes.hidden, self.moments.get("hidden")
        if _resets_first(self.op):
            parts = ((rows[:first], seen), (rows[first:], self.moments.get("reset")))
            return tuple(QuantizedMatrix.of(part, None, fed, self.scheme, gram) for part, gram in parts)
        if bias is None or len(bias) == len(rows):
            return (QuantizedMatrix.of(rows, None, fed, self.scheme, seen),)
        late = np.concatenate([np.zeros(first, bias.dtype), bias[len(rows) :]])
        return (QuantizedMatrix.of(rows, late, fed, self.scheme, seen),)


RecurrentDecisions = tuple[Ranges, Stored, Scheme, Mapping[str, Array]]
"""The decisions about a recurrent layer, as a tuple.

They are its inner ranges, the storage of its input, the quantization scheme, and the moments of its inputs.
"""


def recurrent_decisions(node: Node, plan: Plan) -> RecurrentDecisions:
    """Return how a plan quantizes a recurrent layer.

    Args:
        node: The layer.
        plan: The quantization plan.

    Returns:
        The ranges of the layer's internal tensors by role, the integer storage of its input, the scheme with its
        activation and weight types, and the second moments of its matrices' inputs by role.
    """
    assert isinstance(node.op, Recurrent)
    name, precision = node.outputs[0].name, plan.precision_of(node)
    ranges = dict(plan.internals[name])
    for value in node.op.outputs_of_one_scale(node)[:1]:  # All of these share one scale: nothing is converted.
        ranges["hidden"] = (plan.activations[value.name].low, plan.activations[value.name].high)
    scheme = replace(plan.scheme, activations=precision, weights=plan.weights_of(node))
    return ranges, Stored(precision, plan.quant_of(node.input(X), precision)), scheme, plan.moments.get(name, {})


def rounded_weights(node: Node, plan: Plan) -> dict[str, Array]:
    """Return the matrices W and R of a recurrent layer, rounded as the plan says, by the names of the constants.

    Args:
        node: The layer.
        plan: The quantization plan.

    Returns:
        The dequantized matrices.
    """
    ranges, x, scheme, moments = recurrent_decisions(node, plan)
    assert isinstance(node.op, Recurrent)
    sizes = node.op.sizes(node.input(X).type, node.input(R).type)
    layer = _Layer(
        GraphWriter("", {**tensor_storage(node.op, ranges, scheme), "x": x}),
        node,
        node.op,
        sizes,
        (),
        "",
        scheme,
        moments,
    )
    inner = [layer.inner(d).real for d in range(sizes.directions)]
    recurrent = [np.concatenate([m.real for m in layer.recurrent(d)]) for d in range(sizes.directions)]
    return {node.input(W).name: np.stack(inner), node.input(R).name: np.stack(recurrent)}


def write_recurrent_layer(
    node: Node,
    inputs: Sequence[str],
    outputs: Sequence[str],
    ranges: Ranges,
    x: Stored,
    scheme: Scheme,
    moments: Mapping[str, Array] | None = None,
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]] | None:
    """Return a recurrent layer as ONNX nodes and initializers, whose inputs and outputs are float tensors.

    The nodes need opset 21.

    Args:
        node: The layer.
        inputs: The names of the tensors of the node's inputs; those of constants are not read.
        outputs: The names of the tensors of the node's outputs.
        ranges: The ranges of its internal tensors (`Recurrent.internals`), by role.
        x: How the first input is stored.
        scheme: The quantization scheme, with the type of the weights.
        moments: The second moments of the matrices' inputs (`Plan.moments`); None to round weights to nearest.

    Returns:
        The nodes and the initializers; None if the layer has no integer form.
    """
    op = node.op
    if not isinstance(op, Recurrent) or not op.can_expand(node):
        return None
    storage = {**tensor_storage(op, ranges, scheme), "x": x}
    scope = GraphWriter(f"{outputs[0]}.step", storage, main_node(source_of(node)) or outputs[0])
    sizes = op.sizes(node.input(X).type, node.input(R).type)
    layer = _Layer(scope, node, op, sizes, inputs, scope.quantize(inputs[X], "x"), scheme, moments or {})
    directions = [layer.direction(d) for d in range(sizes.directions)]
    for result, name in zip(op.results, outputs, strict=True):
        shape = sizes.y_shape if result == "Y" else sizes.state_shape
        axis = int(sizes.batch_first) + (result == "Y")
        parts = [scope.reshape(results[result], (*shape[:axis], 1, *shape[axis + 1 :])) for results in directions]
        scope.op("Concat", *parts, out=name, axis=axis)
    return scope.nodes, scope.initializers
