# SPDX-License-Identifier: Apache-2.0
"""Dense layers that learn in integers, so that the same samples give the same bits on every CPU.

Codes go forward, codes of errors (int16) back, and int8 weights move by steps of fixed point: integers throughout, as
NITI has them (Wang et al., "NITI: Training integer neural networks using integer-only arithmetic", 2020), with the
scaling of Lin et al. ("On-device training under 256KB memory", 2022): a step is counted in codes. What is real is each
layer's rate, times a constant and times the code of an error: two products that IEEE 754 rounds alike everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.operator import Operator
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.numerics.curves import Line
from mcugen.numerics.fixedpoint import clamp_range
from mcugen.ops.conversion import Cast, Dequantize, Quantize
from mcugen.ops.elementwise import Linear
from mcugen.ops.learning import LARGEST
from mcugen.ops.matmul import Dense, MatMul
from mcugen.ops.movement import Reshape
from mcugen.ops.pointwise import Binary, Where
from mcugen.ops.softmax import Softmax
from mcugen.training.layers import Layer, layer_name
from mcugen.training.onnx_calls import OnnxCalls
from mcugen.training.parameters import HEADROOM, Parameter, bias_of, coded_weights, numbers

FINE = 15
"""Bits of fraction of probabilities, and what codes of errors have for a sign and more."""
STEP_BITS, MOST_STEP = 20, 2**22
"""Bits of fraction of a step of weights, and its limit for each unit of an input: 32 bits hold codes and steps."""
BIAS_BITS, MOST_BIAS = 8, 2**30
"""The same of biases, whose codes are those of sums."""
ROOM = 2.0
"""Scores and errors reach so much further than first weights say; beyond, they saturate."""
LONGEST = 2**14
"""Inputs of a layer, whose sums with a bias have 32 bits."""


@dataclass(frozen=True)
class Stage:
    """A layer: codes that it reads, what becomes of its sums, and its weights and biases at first, as codes."""

    node: Node
    x: Value
    out: TensorType
    weights: Array
    scale: float
    bias: Array

    @property
    def unit(self) -> float:
        """What one of its sums stands for."""
        return self.x.type.q.scale[0] * self.scale

    @property
    def name(self) -> str:
        """As users know it."""
        return layer_name(self.node)


def stages(graph: Graph, layers: Sequence[Layer], result: Value, loss: str) -> list[Stage] | str:
    """The layers from the first trained one to the result, if they can learn in integers; else why they cannot."""
    if loss not in ("cross-entropy", "mse"):
        return f"the gradient of {loss}"
    found: list[Stage] = []
    for layer, following in zip(layers, [*layers[1:], None], strict=True):
        out = _last_codes(layer.node, result, loss) if following is None else _codes_between(graph, layer, following)
        stage = _stage(layer, out) if out is not None else "what lies between it and the next trained layer or the loss"
        if isinstance(stage, str):
            return f"'{layer_name(layer.node)}': {stage}"
        found.append(stage)
    return found


def _stage(layer: Layer, out: TensorType) -> Stage | str:
    node = layer.node
    if type(node.op) is not Dense or not layer.weights or layer.rank or layer.channels:
        return "no dense layer whose weights are trained"
    source = node.input(0).producer
    while source is not None and isinstance(source.op, Reshape):
        source = source.input(0).producer
    if source is None or not isinstance(source.op, Dequantize) or source.input(0).type.dtype is not DType.INT8:
        return "its input is not int8"
    x, first = source.input(0), numbers(node.inputs[1])
    if x.type.q.axis is not None or x.type.count != first.shape[1] or not first.shape[1] <= LONGEST:
        return "it has more than one row"
    scale = float(np.float32(HEADROOM * (np.abs(first).max() or 1.0) / LARGEST))
    unit, real = x.type.q.scale[0] * scale, bias_of(node).astype(np.float64)
    if out.quant is None:  # of scores, as far as these can be
        reach = ROOM * (np.abs(first).sum(1).max() * 255 * x.type.q.scale[0] + np.abs(real).max(initial=0))
        out = TensorType(out.shape, DType.INT16, QuantParams((float(np.float32(reach / 2**FINE)),), 0))
    if unit >= 0.5 * out.q.scale[0] or np.abs(real).max(initial=0) >= unit * MOST_BIAS:
        return "its result is too fine, or its bias too large"
    return Stage(node, x, out, coded_weights(first, scale), scale, np.rint(real / unit).astype(np.int32))


def _codes_between(graph: Graph, layer: Layer, following: Layer) -> TensorType | None:
    """The type in which a layer's result is stored, if the next one alone reads it."""
    value, stored = layer.node.output, None
    while value.users != [following.node]:
        node = graph.only_user(value)
        if node is None or graph.is_output(value) or not isinstance(node.op, Quantize | Dequantize | Reshape):
            return None
        if isinstance(node.op, Quantize):
            stored = node.output.type
        value = node.output
    fits = stored is not None and stored.dtype is DType.INT8 and stored.q.axis is None
    return stored if fits else None


def _last_codes(node: Node, result: Value, loss: str) -> TensorType | None:
    """That of scores, which is to be chosen; None: they are not what the loss is of."""
    return node.output.type if scores_of(result, loss) is node.output else None


def scores_of(result: Value, loss: str) -> Value:
    """What the loss is of, without a softmax and codes behind it."""
    last = result.producer
    if loss == "cross-entropy" and last is not None and isinstance(last.op, Softmax) and not last.op.log:
        result = last.input(0)
    for kind in (Dequantize, Quantize):
        last = result.producer
        result = last.input(0) if last is not None and isinstance(last.op, kind) else result
    return result


@dataclass(frozen=True)
class Errors:
    """The gradient by a layer's results, as codes [1, C], times a factor; `norm` is what its length is at first."""

    codes: Value
    factor: float
    norm: float

    @property
    def unit(self) -> float:
        """What a code stands for."""
        return self.codes.type.q.scale[0] * self.factor


@dataclass(frozen=True)
class Learned:
    """A stage as it is in the graph: what it learns, and the codes that it gives."""

    stage: Stage
    bias: Parameter
    weights: Parameter
    codes: Value

    @property
    def parameters(self) -> tuple[Parameter, Parameter]:
        """In the order of the state."""
        return self.bias, self.weights


def compute_integers(graph: Graph, found: Sequence[Stage]) -> list[Learned]:
    """Puts each layer's sums of codes in its place."""
    return [_compute(graph, stage) for stage in found]


def _compute(graph: Graph, stage: Stage) -> Learned:
    """clamp((w·x + b) · unit / scale): sums, biases and one rounding."""
    node, (channels, depth) = stage.node, stage.weights.shape
    type_ = TensorType(stage.weights.shape, DType.INT8, QuantParams((stage.scale,), 0))
    bias = graph.add_input(f"{stage.name}.bias", TensorType((channels,), DType.INT32))
    weights = graph.add_input(f"{stage.name}.weights", type_)
    emit = Emitter(graph, node)
    sums = emit(MatMul(), weights, emit(Reshape((depth, 1)), stage.x))
    total = emit(Binary("Add"), sums, emit(Reshape((channels, 1)), bias))
    low, high = _limits(stage)
    line = Line.of(stage.unit / stage.out.q.scale[0], stage.out.q.zero_point, low, high)
    stored = emit(Linear("requantize", line), total, type_=stage.out.with_shape((channels, 1)))
    codes = emit(Reshape(node.output.type.shape), stored)
    graph.release_name(node.output)
    real = graph.add(Dequantize(), [codes], node.origin, names=[node.output.name], before=node).output
    graph.replace(node.output, real)
    graph.remove(node)
    first = [Parameter(bias, stage.name, stage.bias), Parameter(weights, stage.name, stage.weights)]
    return Learned(stage, first[0], first[1], codes)


def _limits(stage: Stage) -> tuple[int, int]:
    """The least and the largest of its codes."""
    assert isinstance(stage.node.op, Dense)
    return clamp_range(stage.node.op.clamp, stage.out.q, stage.out.dtype)


@dataclass(frozen=True)
class Emitter:
    """Adds nodes, before one of the graph or at its end."""

    graph: Graph
    before: Node | None = None

    def __call__(self, op: Operator, *inputs: Value, type_: TensorType | None = None) -> Value:
        """The result of an operator, of that type where it is not inferred."""
        origin = self.before.origin if self.before is not None else ()
        types = [] if type_ is None else [type_]
        return self.graph.add(op, inputs, origin, types=types, before=self.before).output


def slopes(graph: Graph, learned: Sequence[Learned], target: Value, loss: str) -> list[Errors]:
    """The gradient of the loss by each layer's results, from the last layer to the first."""
    scores = learned[-1].codes
    error = (_of_classes if loss == "cross-entropy" else _of_squares)(graph, scores, target)
    found = [error]
    for layer, before in zip(reversed(learned[1:]), reversed(learned[:-1]), strict=True):
        found.append(error := _passed(graph, layer, before, error))
    return found


def _of_classes(graph: Graph, scores: Value, target: Value) -> Errors:
    """softmax(scores), less 1 at the target."""
    emit, call = Emitter(graph), OnnxCalls(graph, "error")
    classes = scores.type.count
    type_ = TensorType((1, classes), DType.INT16, QuantParams((2.0**-FINE,), 0))
    likely = emit(Softmax(axis=1), emit(Reshape((1, classes)), scores), type_=type_)
    one = graph.constant("error.one", np.full((1, 1), 2**FINE - 1, np.int16), type_.quant)
    is_target = call("Equal", np.arange(classes, dtype=np.int32).reshape(1, classes), target)
    missing = emit(Binary("Sub"), likely, one, type_=type_)
    return Errors(emit(Where(), is_target, missing, likely, type_=type_), 1.0, math.sqrt(2))


def _of_squares(graph: Graph, result: Value, target: Value) -> Errors:
    """2 · (y − target) / n."""
    emit, count = Emitter(graph), result.type.count
    type_ = result.type.with_shape((1, count))
    wanted = emit(Reshape((1, count)), emit(Quantize(), target, type_=result.type))
    error = emit(Binary("Sub"), emit(Reshape((1, count)), result), wanted, type_=type_)
    return Errors(error, 2 / count, math.sqrt(count) * 2**FINE * type_.q.scale[0] / ROOM)


def _passed(graph: Graph, layer: Learned, before: Learned, error: Errors) -> Errors:
    """wᵀ·∂y, where the result of the layer before was within its limits: these codes saturate, as gradients are clipped
    elsewhere.
    """
    emit, real = Emitter(graph), layer.stage.weights * layer.stage.scale
    longest = float(np.linalg.norm(real, axis=0).max())
    scale = ROOM * error.norm * longest / 2**FINE or 2.0**-FINE
    type_ = TensorType((1, real.shape[1]), DType.INT16, QuantParams((float(np.float32(scale)),), 0))
    passed = emit(MatMul(), error.codes, layer.weights.value, type_=type_)
    seen = emit(Reshape((1, real.shape[1])), layer.stage.x)
    low, high = (np.full((1, 1), limit, np.int32) for limit in _limits(before.stage))
    above = emit(Binary("Greater"), seen, graph.constant("error.low", low))
    below = emit(Binary("Less"), seen, graph.constant("error.high", high))
    none = graph.constant("error.none", np.zeros((1, 1), np.int16), type_.quant)
    kept = emit(Where(), emit(Binary("And"), above, below), passed, none, type_=type_)
    return Errors(kept, error.factor, error.norm * float(np.linalg.norm(real, 2)))


def steps(graph: Graph, learned: Learned, error: Errors, rate: Value, turns: Value) -> list[Value]:
    """The new bias and weights: w − r·∂y·x and b − r·∂y, in codes, rounded up as often as their fractions say while
    `turns` (uint32 [1]) goes through all numbers.
    """
    stage, call = learned.stage, OnnxCalls(graph, f"{learned.stage.name}.update")
    depth, unit = stage.weights.shape[1], stage.x.type.q.scale[0]
    row = call("Cast", Emitter(graph)(Reshape((1, depth)), stage.x), to=TensorProto.INT32)
    inputs = call("Sub", row, np.full((1, 1), stage.x.type.q.zero_point, np.int32))
    per_input = _rated(call, error, rate, unit / stage.scale, STEP_BITS, MOST_STEP)
    step = call("Mul", per_input, inputs)
    old = call(
        "Mul", call("Cast", learned.weights.value, to=TensorProto.INT32), np.full((1, 1), 2**STEP_BITS, np.int32)
    )
    weights = _floored(graph, call, call("Sub", old, step), turns, STEP_BITS)
    limited = call("Clip", weights, np.full((), -LARGEST, np.int32), np.full((), LARGEST, np.int32))
    narrow = graph.add(Cast(DType.INT8), [limited], types=[learned.weights.value.type]).output
    return [_bias_step(graph, learned, error, rate, turns), narrow]


def _bias_step(graph: Graph, learned: Learned, error: Errors, rate: Value, turns: Value) -> Value:
    call, bias = OnnxCalls(graph, f"{learned.stage.name}.update"), learned.bias.value
    step = _rated(call, error, rate, 1 / learned.stage.unit, BIAS_BITS, MOST_BIAS)
    moved = _floored(graph, call, call("Sub", np.zeros((1, 1), np.int32), step), turns, BIAS_BITS)
    flat = call("Reshape", moved, np.asarray([bias.type.count]))
    limit = np.full((), MOST_BIAS, np.int32)
    return call("Clip", call("Add", bias, flat), -limit, limit)


def _rated(call: OnnxCalls, error: Errors, rate: Value, per: float, bits: int, most: int) -> Value:
    """Each error, times the rate and times `per`, with so many bits of fraction: int32 [C, 1]."""
    factor = np.full((1, 1), error.unit * per * 2.0**bits, np.float32)
    real = call("Cast", call("Reshape", error.codes, np.asarray([-1, 1])), to=TensorProto.FLOAT)
    scaled = call("Mul", real, call("Mul", call("Reshape", rate, np.asarray([1, 1])), factor))
    limit = np.full((), most, np.float32)
    return call("Cast", call("Round", call("Clip", scaled, -limit, limit)), to=TensorProto.INT32)


def _floored(graph: Graph, call: OnnxCalls, value: Value, turns: Value, bits: int) -> Value:
    """Without its fraction, to which one was added that goes through all."""
    fraction = call("BitShift", turns, np.asarray([32 - bits], np.uint32), direction="RIGHT")
    more = call("Add", value, call("Cast", call("Reshape", fraction, np.asarray([1, 1])), to=TensorProto.INT32))
    amount = graph.constant("update.bits", np.full((1, 1), bits, np.int32))
    return graph.add(Binary("ShiftRight"), [more, amount]).output
