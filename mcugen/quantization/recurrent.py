# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in integers, as standard ONNX: a Scan a direction, whose body is one step.

Every tensor of a step is quantized, states included, which the Scan carries as codes: nothing in the loop is real.
W and R are int8, or int4 where that is asked for, with a scale for each row. In every scheme, only what they are
multiplied with may be int8, all else is int16: in int8, a state would be rounded anew in each step and lose changes of
less than half a code for good, and a gate of 255/256, the nearest to 1, would forget within some hundred steps what it
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
from mcugen.hir.types import Array, DType, QuantParams, Shape
from mcugen.kernels.portable.recurrent import Sizes
from mcugen.numerics.fixedpoint import quantize
from mcugen.ops.recurrent import C0, H0, STATE_ROLES, B, Gru, Lstm, R, Recurrent, Rnn, W, X
from mcugen.quantization.onnx_writer import tensor_info
from mcugen.quantization.plan import Plan, Stored
from mcugen.quantization.rounding import best_scales, nearest, round_weights
from mcugen.quantization.scheme import WEIGHT_LIMITS, Scheme, activation_params, weight_scales

Ranges = Mapping[str, tuple[float, float]]
"""Of the tensors within a layer, by role (`Recurrent.internals`)."""

OP_TYPES = ("RNN", "LSTM", "GRU")
"""ONNX's names of what needs int16, whatever the scheme."""

UNIT = Stored(DType.INT16, QuantParams((2.0**-15,), 0))
"""Results of sigmoid and tanh; 1 is the greatest code, a little less."""

SUMMED = frozenset({"projection", "recurrence", "gates", "reset"})
"""Roles that share one scale where they are int16: the sum of numbers is then that of the codes."""

HEADROOM = 2.0
"""Ranges of int16 tensors over what was seen: new inputs go further, and of 16 bits one is easily spared."""

# --------------------------------------------------------------------------------------------- writing ONNX


@dataclass
class Scope:
    """An ONNX graph while it is written. Its tensors are called `<prefix>.<number>.<what>`."""

    prefix: str
    stored: Mapping[str, Stored]
    """How tensors are stored, by role."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, what: str, array: Array) -> str:
        """A tensor of these numbers."""
        name = f"{self.prefix}.{what}.{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def outputs(self, op_type: str, inputs: Sequence[str], names: Sequence[str], **attributes: object) -> Sequence[str]:
        """A node with these outputs."""
        self.nodes.append(helper.make_node(op_type, inputs, names, f"{names[0]}/{op_type}", **attributes))
        return names

    def op(self, op_type: str, *inputs: str, out: str = "", **attributes: object) -> str:
        """A node with one output."""
        name = out or f"{self.prefix}.{len(self.nodes)}.{op_type}"
        return self.outputs(op_type, inputs, [name], **attributes)[0]

    def codes(self, real: str, role: str, out: str = "") -> str:
        """Reals → how tensors of that role are stored."""
        return self.op("QuantizeLinear", real, *self._params(role), out=out)

    def real(self, codes: str, role: str) -> str:
        """The reals behind codes."""
        return self.op("DequantizeLinear", codes, *self._params(role))

    def rounded(self, real: str, role: str) -> str:
        """Reals as they are once stored."""
        return self.real(self.codes(real, role), role)

    def weights(self, what: str, codes: Array, scales: Array) -> str:
        """Reals of constant codes, one scale for each index of the first axis."""
        scale = self.constant(f"{what}_scale", scales.astype(np.float32))
        zero = self.constant(f"{what}_zero_point", np.zeros(len(scales), codes.dtype))
        return self.op("DequantizeLinear", self.constant(what, codes), scale, zero, axis=0)

    def shaped(self, x: str, shape: Shape, out: str = "") -> str:
        """The elements of x in another shape."""
        return self.op("Reshape", x, self.constant("shape", np.asarray(shape, np.int64)), out=out)

    def split(self, x: str, sizes: Sequence[int]) -> Sequence[str]:
        """Parts of the last axis."""
        names = [f"{self.prefix}.{len(self.nodes)}.part{i}" for i in range(len(sizes))]
        return self.outputs("Split", [x, self.constant("sizes", np.asarray(sizes, np.int64))], names, axis=-1)

    def _params(self, role: str) -> list[str]:
        stored = self.stored[role]
        scale = self.constant(f"{role}_scale", np.asarray(stored.quant.scale[0], np.float32))
        return [scale, self.constant(f"{role}_zero_point", np.asarray(stored.quant.zero_point, stored.dtype.numpy))]


@dataclass(frozen=True)
class Matrix:
    """Rows of weights [N, K] in int8 or int4, their scales, and the real bias [N] that goes with them."""

    codes: Array
    scales: Array
    bias: Array | None

    @staticmethod
    def of(rows: Array, bias: Array | None, unit: QuantParams, scheme: Scheme, gram: Array | None = None) -> Matrix:
        """For inputs stored with `unit`; scales so small that the bias left int32 are raised.

        Rounded to nearest, or to least error by the moments `gram` of the inputs, [1, K, K], with scales that may clip.
        """
        limits, least = WEIGHT_LIMITS[scheme.weights], np.asarray(0.0)
        scales = np.broadcast_to(weight_scales(rows, 0, scheme, scheme.weights), len(rows))
        if gram is not None and scheme.per_channel and not scheme.power_of_two:
            scales = best_scales(rows[None], scales[None], gram, limits)[0]
        if bias is not None:
            least = np.abs(bias.astype(np.float64)) / unit.scales / 2**30
        scales = np.maximum(scales, least).astype(np.float32).astype(np.float64)
        given = (rows[None], scales[None])
        (codes,) = nearest(*given, limits) if gram is None else round_weights(*given, gram, limits)
        return Matrix(codes.astype(ml_dtypes.int4) if scheme.weights is DType.INT4 else codes, scales, bias)

    @property
    def real(self) -> Array:
        """What the codes stand for."""
        return (self.codes.astype(np.float64) * self.scales[:, None]).astype(np.float32)

    def times(self, scope: Scope, x: str, unit: QuantParams) -> str:
        """x [M, K] (reals stored with `unit`) → x Wᵀ + b [M, N]."""
        operands = [x, scope.weights("weight", self.codes, self.scales)]
        if self.bias is not None:
            scales = unit.scales * self.scales
            operands.append(scope.weights("bias", np.rint(self.bias / scales).astype(np.int32), scales))
        return scope.op("Gemm", *operands, transB=1)


# -------------------------------------------------------------------------------------------------- one step


@dataclass(frozen=True)
class Cell:
    """One direction's step while its `body` is written; `recurrent` are the matrices that a hidden state meets."""

    body: Scope
    hidden: int
    inner: Matrix
    recurrent: tuple[Matrix, ...]

    def projection(self, x: str) -> str:
        """W's product with the step's input."""
        return self.body.rounded(self.inner.times(self.body, x, self.body.stored["x"].quant), "projection")

    def product(self, index: int, h: str, role: str) -> str:
        """R's product with reals that are stored as `role`."""
        body = self.body
        return body.rounded(self.recurrent[index].times(body, h, body.stored[role].quant), "recurrence")

    def parts(self, x: str, *gates: int) -> Sequence[str]:
        """Cut into so many gates each."""
        return self.body.split(x, [n * self.hidden for n in gates])

    def sum(self, a: str, b: str) -> str:
        """What an activation sees."""
        return self.body.rounded(self.body.op("Add", a, b), "gates")

    def sigmoid(self, x: str) -> str:
        """A gate, 0 to 1."""
        return self.body.rounded(self.body.op("Sigmoid", x), "sigmoid")

    def tanh(self, x: str) -> str:
        """The hyperbolic tangent, from -1 to 1."""
        return self.body.rounded(self.body.op("Tanh", x), "tanh")

    def scaled(self, gate: str, x: str, role: str) -> str:
        """x as far as a gate lets it pass."""
        return self.body.rounded(self.body.op("Mul", gate, x), role)


def _rnn(cell: Cell, projection: str, states: Sequence[str]) -> list[str]:
    """h' = tanh(p + R h)."""
    total = cell.sum(projection, cell.product(0, states[0], "hidden"))
    return [cell.body.codes(cell.body.op("Tanh", total), "hidden")]


def _lstm(cell: Cell, projection: str, states: Sequence[str]) -> list[str]:
    """i, o, f = σ(p + R h); g = tanh(p + R h); c' = f · c + i · g; h' = o · tanh(c')."""
    body, (h, c) = cell.body, states
    i, o, f, g = cell.parts(cell.sum(projection, cell.product(0, h, "hidden")), 1, 1, 1, 1)
    kept = cell.scaled(cell.sigmoid(f), c, "cell")
    fresh = cell.scaled(cell.sigmoid(i), cell.tanh(g), "cell")
    new = body.codes(body.op("Add", kept, fresh), "cell")
    squashed = cell.tanh(body.real(new, "cell"))
    return [body.codes(body.op("Mul", cell.sigmoid(o), squashed), "hidden"), new]


def _gru(cell: Cell, projection: str, states: Sequence[str]) -> list[str]:
    """z, r = σ(p + R h); g = tanh(p + R (r · h)), or of p + r · (R h + b); h' = g + z · (h - g)."""
    body, (h,) = cell.body, states
    fed = body.rounded(h, "fed")
    p_gates, p_fresh = cell.parts(projection, 2, 1)
    linear = len(cell.recurrent) == 1
    products = cell.product(0, fed, "fed")
    r_gates, r_fresh = cell.parts(products, 2, 1) if linear else (products, "")
    z, r = (cell.sigmoid(x) for x in cell.parts(cell.sum(p_gates, r_gates), 1, 1))
    scaled = cell.scaled(r, r_fresh if linear else fed, "reset")
    fresh = cell.tanh(cell.sum(p_fresh, scaled if linear else cell.product(1, scaled, "reset")))
    difference = body.rounded(body.op("Sub", h, fresh), "difference")
    return [body.codes(body.op("Add", fresh, cell.scaled(z, difference, "difference")), "hidden")]


STEPS: dict[type[Recurrent], Callable[[Cell, str, Sequence[str]], list[str]]] = {Rnn: _rnn, Lstm: _lstm, Gru: _gru}
"""From the reals of a step's projection and states to the codes of the next states."""


# ----------------------------------------------------------------------------------------------- whole layers


def stores(op: Recurrent, ranges: Ranges, scheme: Scheme) -> dict[str, Stored]:
    """How the tensors of a step are stored, by role; "fed" is a hidden state as R reads it.

    Scales of what is int16 in every scheme are powers of two: to scale a product is then to shift it.
    """
    narrow = {"fed", *([] if isinstance(op, Gru) else ["hidden"]), *(["reset"] if _resets_first(op) else [])}
    wide = replace(scheme, activations=DType.INT16, power_of_two=True)
    summed = [bound for role in SUMMED - narrow for bound in ranges.get(role, ())]
    found = {"sigmoid": UNIT, "tanh": UNIT}
    for role, (low, high) in {**ranges, "fed": ranges["hidden"]}.items():
        if role in narrow:
            found[role] = _stored(low, high, scheme)
        else:
            low, high = (min(summed), max(summed)) if role in SUMMED else (low, high)
            found[role] = _stored(HEADROOM * low, HEADROOM * high, wide)
    if scheme.activations is DType.INT16:
        found["fed"] = found["hidden"]
    return found


def _stored(low: float, high: float, scheme: Scheme) -> Stored:
    return Stored(scheme.activations, activation_params(low, high, scheme.activations, scheme), "", low, high)


def _resets_first(op: Recurrent) -> bool:
    """Whether R is multiplied with a state that a gate has scaled."""
    return isinstance(op, Gru) and not op.linear


@dataclass(frozen=True)
class _Layer:
    """A layer on its way to ONNX; `codes` are those of X."""

    scope: Scope
    node: Node
    op: Recurrent
    sizes: Sizes
    inputs: Sequence[str]
    codes: str
    scheme: Scheme
    moments: Mapping[str, Array]

    def direction(self, d: int) -> dict[str, str]:
        """One direction as a Scan; real results by name, without the axis of directions."""
        first = [self._first_state(index, d) for index in range(len(self.op.states))]
        axis, backwards = int(self.sizes.batch_first), int(self.op.backwards[d])
        names = [f"{self.scope.prefix}.{d}.{result}" for result in (*self.op.states, "y")]
        self.scope.outputs(
            "Scan",
            [*first, self.codes],
            names,
            body=self._body(d),
            num_scan_inputs=1,
            scan_input_axes=[axis],
            scan_input_directions=[backwards],
            scan_output_axes=[axis],
            scan_output_directions=[backwards],
        )
        results = {f"Y_{s}": (name, STATE_ROLES[s]) for s, name in zip(self.op.states, names, strict=False)}
        results["Y"] = (names[-1], "hidden")
        return {r: self.scope.real(*results[r]) for r in self.op.results}

    def _bias(self, d: int) -> Array | None:
        bias = self.node.inputs[B] if len(self.node.inputs) > B else None
        return None if bias is None or bias.data is None else self.op.summed_bias(bias.data[d])

    def _first_state(self, index: int, d: int) -> str:
        """Codes of a first state [batch, hidden]; zero where the layer has none."""
        role, at = STATE_ROLES[self.op.states[index]], (H0, C0)[index]
        value = self.node.inputs[at] if len(self.node.inputs) > at else None
        axis = int(self.sizes.batch_first)
        if value is not None and value.data is None:
            number = self.scope.constant("direction", np.asarray(d, np.int64))
            return self.scope.codes(self.scope.op("Gather", self.inputs[at], number, axis=axis), role)
        shape = (self.sizes.batch, self.sizes.hidden)
        real = np.zeros(shape, np.float32) if value is None or value.data is None else value.data.take(d, axis)
        stored = self.scope.stored[role]
        return self.scope.constant(role, quantize(real, stored.quant, stored.dtype))

    def _body(self, d: int) -> onnx.GraphProto:
        """One step: codes of the states and of an input → codes of the next states, and of h once more."""
        body = Scope(f"{self.scope.prefix}.{d}", self.scope.stored)
        roles = [*(STATE_ROLES[s] for s in self.op.states), "x"]
        reals = [body.real(f"{body.prefix}.{role}", role) for role in roles]
        cell = Cell(body, self.sizes.hidden, self.inner(d), self.recurrent(d))
        after = STEPS[type(self.op)](cell, cell.projection(reals[-1]), reals[:-1])
        after.append(body.op("Identity", after[0]))

        def declared(name: str, role: str) -> onnx.ValueInfoProto:
            columns = self.sizes.depth if role == "x" else self.sizes.hidden
            return tensor_info(name, body.stored[role].dtype, (self.sizes.batch, columns))

        formal = [declared(f"{body.prefix}.{role}", role) for role in roles]
        made = [declared(name, role) for name, role in zip(after, [*roles[:-1], roles[0]], strict=True)]
        return helper.make_graph(body.nodes, body.prefix, formal, made, body.initializers)

    def inner(self, d: int) -> Matrix:
        """W with its bias."""
        weights, bias = self.node.input(W).data, self._bias(d)
        assert weights is not None
        bias = None if bias is None else bias[: weights.shape[1]]
        return Matrix.of(weights[d], bias, self.scope.stored["x"].quant, self.scheme, self.moments.get("x"))

    def recurrent(self, d: int) -> tuple[Matrix, ...]:
        """R, in the parts that a step multiplies apart, with the biases that do not belong to W's product."""
        weights, bias, fed = self.node.input(R).data, self._bias(d), self.scope.stored["fed"].quant
        assert weights is not None
        rows, first, seen = weights[d], len(weights[d]) - self.sizes.hidden, self.moments.get("hidden")
        if _resets_first(self.op):
            parts = ((rows[:first], seen), (rows[first:], self.moments.get("reset")))
            return tuple(Matrix.of(part, None, fed, self.scheme, gram) for part, gram in parts)
        if bias is None or len(bias) == len(rows):
            return (Matrix.of(rows, None, fed, self.scheme, seen),)
        late = np.concatenate([np.zeros(first, bias.dtype), bias[len(rows) :]])
        return (Matrix.of(rows, late, fed, self.scheme, seen),)


Decisions = tuple[Ranges, Stored, Scheme, Mapping[str, Array]]
"""The ranges within a layer, how its input is stored, its types, and moments of what its matrices read."""


def decisions(node: Node, plan: Plan) -> Decisions:
    """Of a plan, about a layer in integers."""
    assert isinstance(node.op, Recurrent)
    name, precision = node.outputs[0].name, plan.precision_of(node)
    ranges = dict(plan.internals[name])
    for value in node.op.alike(node)[:1]:  # all have one scale: nothing is converted
        ranges["hidden"] = (plan.activations[value.name].low, plan.activations[value.name].high)
    scheme = replace(plan.scheme, activations=precision, weights=plan.weights_of(node))
    return ranges, Stored(precision, plan.quant_of(node.input(X), precision)), scheme, plan.moments.get(name, {})


def rounded_weights(node: Node, plan: Plan) -> dict[str, Array]:
    """W and R of a layer as their codes have them, by the names of these constants."""
    ranges, x, scheme, moments = decisions(node, plan)
    assert isinstance(node.op, Recurrent)
    sizes = node.op.sizes(node.input(X).type, node.input(R).type)
    layer = _Layer(
        Scope("", {**stores(node.op, ranges, scheme), "x": x}), node, node.op, sizes, (), "", scheme, moments
    )
    inner = [layer.inner(d).real for d in range(sizes.directions)]
    recurrent = [np.concatenate([m.real for m in layer.recurrent(d)]) for d in range(sizes.directions)]
    return {node.input(W).name: np.stack(inner), node.input(R).name: np.stack(recurrent)}


def expand(
    node: Node,
    inputs: Sequence[str],
    outputs: Sequence[str],
    ranges: Ranges,
    x: Stored,
    scheme: Scheme,
    moments: Mapping[str, Array] | None = None,
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]] | None:
    """The layer as ONNX nodes and initializers between real tensors; None where it has no integer form.

    `inputs` are the tensors of the node's inputs (those of constants are not read), of which the first is stored
    as `x` says; `outputs` those of its outputs. `ranges` are those of `Recurrent.internals`, `moments` those of what
    matrices read (Plan.moments). Weights are of the scheme's type. Needs opset 21.
    """
    op = node.op
    if not isinstance(op, Recurrent) or not op.can_expand(node):
        return None
    scope = Scope(f"{outputs[0]}.integer", {**stores(op, ranges, scheme), "x": x})
    sizes = op.sizes(node.input(X).type, node.input(R).type)
    layer = _Layer(scope, node, op, sizes, inputs, scope.codes(inputs[X], "x"), scheme, moments or {})
    made = [layer.direction(d) for d in range(sizes.directions)]
    for result, name in zip(op.results, outputs, strict=True):
        shape = sizes.y_shape if result == "Y" else sizes.state_shape
        axis = int(sizes.batch_first) + (result == "Y")
        parts = [scope.shaped(found[result], (*shape[:axis], 1, *shape[axis + 1 :])) for found in made]
        scope.op("Concat", *parts, out=name, axis=axis)
    return scope.nodes, scope.initializers
