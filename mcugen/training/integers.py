# SPDX-License-Identifier: Apache-2.0
"""Training of layers in integers, so that the same samples give the same bits on every CPU.

The forward pass computes in int8, the backward pass in int16, and int8 weights change by fixed-point steps, as in NITI
(Wang et al., "NITI: Training integer neural networks using integer-only arithmetic", 2020). Steps are scaled to the
weights' quantization (Lin et al., "On-device training under 256KB memory", 2022). Only learning rates, scales ("units")
and single products with them are floats, which IEEE 754 rounds alike on every CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from mcugen.hir.graph import Graph, Node, Value
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.numerics.window import Window
from mcugen.ops.conv import Conv
from mcugen.ops.conversion import Cast, Dequantize, Quantize
from mcugen.ops.gather import GatherND
from mcugen.ops.learning import MAX_CODE_STEP, MAX_TRAINED_WEIGHT, STEP_BITS, DescendCodes
from mcugen.ops.matmul import Dense, MatMul
from mcugen.ops.movement import Movement, Reshape
from mcugen.ops.pointwise import Binary, Where
from mcugen.ops.scatter import ScatterND
from mcugen.ops.softmax import Softmax
from mcugen.training.coded_errors import ErrorPropagation, QuantizedError, UnfitError, max_error_magnitude
from mcugen.training.coded_rules import FrozenLayer, geometry_of, rule_of
from mcugen.training.layers import TrainableLayer, layer_name
from mcugen.training.losses import logits_of
from mcugen.training.onnx_calls import OnnxCalls
from mcugen.training.optimizers import Batch
from mcugen.training.parameters import (
    TrainedParameter,
    bias_of,
    code_scales,
    coded_weights,
    float_values,
    initial_adapter,
)
from mcugen.training.products import UNIT_QUANT, Emitter, Geometry, unscaled_integers

ERROR_FRACTION_BITS = 15
"""Fraction bits of softmax probabilities and of the gradient at the model's output, which are int16."""
MAX_STEP_PER_INPUT = 2**22
"""Largest magnitude of the fixed-point factor that is multiplied by a layer's int8 input to get a weight's update step.
"""
BIAS_BITS, MAX_TRAINED_BIAS = 8, 2**30
"""Fraction bits of a bias step, and largest magnitude of a trained bias, in units of the layer's int32 sums."""
MAX_SCALED_RATE = 1e30
"""Upper bound of the learning rate in units of the weights' scale: any larger rate saturates all steps."""
SCORE_RANGE_RATIO = 2.0
"""Quantization range of trained scores divided by their range with the initial weights; larger scores saturate."""
MAX_LAYER_INPUTS = 2**14
"""Largest number of products in the sum of one output element: more could overflow int32 together with a bias."""
MOMENTUM_DECAY = 0.9
"""Factor of the previous velocity in a momentum update, v ← 0.9·v + step."""


@dataclass(frozen=True)
class Gradient:
    """The gradient of a trained parameter with C output channels, as integer sums and float scales: sums · unit · per.

    Attributes:
        sums: int32 sums in the parameter's shape [C, …]. If `inputs` is given, the quantized gradients of the layer's
            output, [C, positions], instead.
        unit: Scale of all sums, float32 [1], computed at run time.
        per: Constant scale of each output channel, [C, 1].
        inputs: The layer's inputs [depth, positions]. If given, the gradient is the matrix product of both, which is
            computed only during the update.
    """

    sums: Value
    unit: Value
    per: Array
    inputs: Value | None = None


@dataclass
class IntegerParameter:
    """A tensor that is trained in fixed point: int8 weights or an int32 bias.

    Attributes:
        parameter: The trained tensor.
        bits: Number of fraction bits of an update step: a step of 2^bits changes an element of the integer tensor by 1.
        largest: Largest magnitude of the tensor's elements.
        gradient: The gradient; None until back-propagation sets it.
    """

    parameter: TrainedParameter
    bits: int
    largest: int
    gradient: Gradient | None = None


@dataclass(frozen=True)
class TrainedProduct:
    """A dense layer or convolution whose weights are trained in integers.

    Attributes:
        geometry: Shapes of input, output and weights.
        node: The node that the trainable layer replaces.
        source: The value that receives the error (quantized gradient) of the layer's input.
        x: The quantized input that the forward pass reads, computed from `source`.
        seen: The same input in int8, as the gradient of the weights reads it.
        scales: Scale of the weights for each output channel, [C].
        weights: The trained weights.
    """

    geometry: Geometry
    node: Node
    source: Value
    x: Value
    seen: Value
    scales: Array
    weights: IntegerParameter

    @property
    def units(self) -> Array:
        """Return the float value that 1 stands for in the layer's int32 sums, for each output channel, [C]."""
        return self.scales * self.x.type.q.scale[0]

    def sums(self, emit: Emitter) -> Value:
        """Add the product of weights and inputs to the graph, and return its int32 sums [C, positions]."""
        return self.geometry.sums(emit, self.x, self.weights.parameter.value)

    def back(self, walk: ErrorPropagation, error: QuantizedError) -> None:
        """Store the gradient of the weights, and add the error of the layer's input to `source`.

        An error is the quantized gradient of the loss with respect to a value.

        Args:
            walk: The back-propagation.
            error: The error of the layer's output, as a matrix [C, positions].
        """
        g, emit, call = self.geometry, walk.emit, walk.call
        reach = 2 ** (8 * self.seen.type.dtype.nbytes)
        rows = walk.limit_magnitude(error, max_error_magnitude(g, reach, learns=g.positions > 1))
        per = channel_column(self.seen.type.q.scale[0] / self.scales)
        if g.is_matrix:
            self.weights.gradient = Gradient(rows.codes, rows.unit, per, g.columns(emit, self.seen))
        else:
            sums_by_weight = g.by_weights(emit, self.node, rows.codes, self.seen)
            self.weights.gradient = Gradient(sums_by_weight, rows.unit, per)
        if self.source in walk.varying:
            largest = float(self.scales.max())
            shared = (
                walk.limit_magnitude(rows, rows.most, channel_column(self.scales / largest))
                if np.ptp(self.scales)
                else rows
            )
            unit = call("Mul", shared.unit, np.full(1, largest, np.float32))
            sums = g.by_inputs(emit, shared.codes, self.weights.parameter.value)
            walk.add_error(self.source, walk.requantize_sums(emit.reshaped(sums, self.source.type.shape), unit))


def channel_column(each_channel: Array) -> Array:
    """Return a vector over C channels as a float64 column [C, 1]."""
    return np.asarray(each_channel, np.float64).reshape(-1, 1)


ErrorHandler = Callable[[ErrorPropagation, QuantizedError], None]
"""A function that is called with the error of one value, and propagates the error or stores a gradient."""


@dataclass(frozen=True)
class TrainedLayer:
    """A layer of the graph in its trainable form.

    Attributes:
        name: Name of the layer.
        result: The float output of the layer.
        reach: Largest magnitude of `result` with the initial weights, which fixes its quantization range.
        learned: The trained tensors, in the order in which the training state stores them.
        backs: Functions that handle the errors (quantized gradients) of `result` and of values inside the layer, by
            value.
    """

    name: str
    result: Value
    reach: float
    learned: Sequence[IntegerParameter]
    backs: Mapping[Value, ErrorHandler]


def replace_by_trainable(graph: Graph, layer: TrainableLayer) -> TrainedLayer:
    """Replace a layer of the graph by its trainable form, and return the trainable form.

    Args:
        graph: The graph, changed in place.
        layer: The layer, and which of its weights are trained.

    Raises:
        UnfitError: The layer cannot be trained in integers.
    """
    if type(layer.node.op) not in (Conv, Dense):
        raise UnfitError(f"{layer.node.op.name} '{layer_name(layer.node)}'")
    maker = _Maker(graph, layer.node)
    return maker.whole() if layer.weights else maker.beside(layer)


@dataclass
class _Maker:
    """A builder of a trainable layer from a node."""

    graph: Graph
    node: Node
    learned: list[IntegerParameter] = field(default_factory=list)
    parts: list[ErrorHandler] = field(default_factory=list)
    """Functions that propagate errors [C, positions] of the result."""
    backs: dict[Value, ErrorHandler] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name, self.emit = layer_name(self.node), Emitter(self.graph, self.node.origin)
        self.call = OnnxCalls(self.graph, self.name)
        self.geometry, self.source = geometry_of(self.node), self.node.input(0)
        self.x, self.first = self._codes(self.source), float_values(self.node.inputs[1])
        self.bias = bias_of(self.node).astype(np.float64)
        if self.geometry.depth > MAX_LAYER_INPUTS:
            raise UnfitError(f"'{self.name}', whose sums are of {self.geometry.depth} products")

    def whole(self) -> TrainedLayer:
        """Return the trained layer (w·x + b) · unit, all of whose weights are trained."""
        scales = code_scales(self.first)
        learner = self._learner(self.geometry, "weights", _coded(self.first, scales), scales)
        total = self._with_bias(learner.sums(self.emit), learner.units)
        self.parts.append(learner.back)
        return self._trained(total, learner.units)

    def beside(self, layer: TrainableLayer) -> TrainedLayer:
        """Return the layer with frozen weights in int16, and with what is added to its result."""
        g, emit, frozen = self.geometry, self.emit, FrozenLayer.of(self.node)
        unit = np.full(1, float(np.float32(self._reach / 2**ERROR_FRACTION_BITS)) or 1.0)
        stays = self.node.inputs[:2] if layer.bias else self.node.inputs
        plain = self.graph.add(self.node.op, stays, self.node.origin, types=[self.node.output.type])
        quant = QuantParams((float(unit[0]),), 0)
        coarse = emit(Quantize(), plain.output, type_=TensorType(g.y, DType.INT16, quant))
        total = g.by_channel(emit, self.call("Cast", coarse, to=TensorProto.INT32))
        if layer.bias:
            total = self._with_bias(total, unit)
        if layer.rank:
            total = emit(Binary("Add"), total, self._adapter(layer.rank, unit))
        if layer.channels:
            total = self._with_channels(layer.channels, unit, total)
        source = self.source

        def back(walk: ErrorPropagation, error: QuantizedError) -> None:
            if source in walk.varying:
                walk.add_error(source, frozen.back(walk, error))

        self.parts.append(back)
        return self._trained(total, unit)

    def _codes(self, value: Value) -> Value:
        """Return the int8 tensor that the layer reads, moved as its input is."""
        node = value.producer
        if node is not None and isinstance(node.op, Dequantize):
            stored = node.input(0)
            if stored.type.dtype is DType.INT8 and stored.type.q.axis is None:
                return stored
        if node is not None and isinstance(node.op, Movement) and len(node.inputs) == 1:
            return self.emit(node.op, self._codes(node.input(0)))
        raise UnfitError(f"'{self.name}', whose input is no int8")

    @property
    def _reach(self) -> float:
        """Return the largest magnitude of results with the initial weights."""
        rows = np.abs(self.first).reshape(len(self.first), -1).sum(1)
        return float((rows * 255 * self.x.type.q.scale[0] + np.abs(self.bias)).max())

    def _input(self, role: str, first: Array, bits: int, largest: int) -> IntegerParameter:
        quant = UNIT_QUANT if first.dtype == np.int8 else None
        value = self.graph.add_input(f"{self.name}.{role}", TensorType(first.shape, DType.of(first), quant))
        learned = IntegerParameter(TrainedParameter(value, self.name, first), bits, largest)
        self.learned.append(learned)
        return learned

    def _learner(self, geometry: Geometry, role: str, first: Array, scales: Array) -> TrainedProduct:
        weights = self._input(role, first, STEP_BITS, MAX_TRAINED_WEIGHT)
        return TrainedProduct(geometry, self.node, self.source, self.x, self.x, scales.astype(np.float64), weights)

    def _with_bias(self, sums: Value, units: Array) -> Value:
        """Add a trained bias to sums, in their units."""
        if np.abs(self.bias / units).max(initial=0) >= MAX_TRAINED_BIAS / 2:
            raise UnfitError(f"'{self.name}', whose bias is too large")
        bias = self._input("bias", np.rint(self.bias / units).astype(np.int32), BIAS_BITS, MAX_TRAINED_BIAS)
        self.learned.insert(0, self.learned.pop())
        per = channel_column(1 / np.broadcast_to(units, self.bias.shape))

        def back(walk: ErrorPropagation, error: QuantizedError) -> None:
            bias.gradient = Gradient(_over_positions(walk, error), error.unit, per)

        self.parts.append(back)
        return self.emit(Binary("Add"), sums, self.emit(Reshape((len(self.bias), 1)), bias.parameter.value))

    def _adapter(self, rank: int, unit: Array) -> Value:
        """Return up·(down·x) in units, with int16 values between the products; the gradient sees eight bits of them."""
        g, emit = self.geometry, self.emit
        down, up = initial_adapter(g.w, rank)
        scales = code_scales(down)
        shape = (*g.y[:-1], rank) if isinstance(g.op, Dense) else (g.y[0], rank, *g.y[2:])
        down_layer = self._learner(Geometry(g.op, g.x, shape, down.shape), "adapter.down", _coded(down, scales), scales)
        real = self._real(down_layer.sums(emit), down_layer.units)
        reach = SCORE_RANGE_RATIO * float(np.abs(down).reshape(rank, -1).sum(1).max()) * 255 * self.x.type.q.scale[0]
        fine, few = (
            emit(Quantize(), real, type_=TensorType(real.type.shape, dtype, QuantParams((float(np.float32(s)),), 0)))
            for dtype, s in ((DType.INT16, reach / 2**15), (DType.INT8, reach / 2**7))
        )
        channel_peaks = np.abs(self.first).reshape(g.channels, -1).max(1)
        channel_peaks = np.maximum(channel_peaks, channel_peaks.mean() or 1.0) * math.sqrt(g.depth)
        single = Conv(Window((1,), (0,), (0,), (1,)))
        outer = Geometry(single, (1, rank, g.positions), (1, g.channels, g.positions), (g.channels, rank, 1))
        weights = self._input(
            "adapter.up", up.reshape(g.channels, rank, 1).astype(np.int8), STEP_BITS, MAX_TRAINED_WEIGHT
        )
        up_layer = TrainedProduct(outer, self.node, fine, fine, few, channel_peaks / MAX_TRAINED_WEIGHT, weights)
        self.parts.append(up_layer.back)
        self.backs[real] = down_layer.back
        whole = self.call("Round", self._real(up_layer.sums(emit), up_layer.units / unit))
        return self.call("Cast", whole, to=TensorProto.INT32)

    def _with_channels(self, channels: Sequence[int], unit: Array, total: Value) -> Value:
        """Add trained changes of some channels' weights, which are initially 0."""
        g, count = self.geometry, len(channels)
        shape = (*g.y[:-1], count) if isinstance(g.op, Dense) else (g.y[0], count, *g.y[2:])
        some, scales = Geometry(g.op, g.x, shape, (count, *g.w[1:])), code_scales(self.first)[list(channels)]
        learner = self._learner(some, "channels", np.zeros(some.w, np.int8), scales)
        index = np.asarray(channels, np.int64).reshape(-1, 1)
        where = self.graph.constant(f"{self.name}.index", index)
        more = self.call("Round", self._real(learner.sums(self.emit), learner.units / unit))
        rows = self.call("Cast", more, to=TensorProto.INT32)

        def back(walk: ErrorPropagation, error: QuantizedError) -> None:
            codes = walk.emit(
                GatherND(), error.codes, where, type_=unscaled_integers((count, g.positions), DType.INT16)
            )
            learner.back(walk, QuantizedError(codes, error.unit, error.most))

        self.parts.append(back)
        return self.emit(ScatterND("add"), total, where, rows)

    def _real(self, sums: Value, units: Array) -> Value:
        """Return sums as reals."""
        real = self.call("Cast", sums, to=TensorProto.FLOAT)
        return self.call("Mul", real, channel_column(np.broadcast_to(units, sums.type.shape[:1])).astype(np.float32))

    def _trained(self, total: Value, units: Array) -> TrainedLayer:
        """Put the trainable layer in place of the node."""
        node, g, parts = self.node, self.geometry, tuple(self.parts)
        result = g.reshape_to_output(self.emit, self._real(total, units))
        self.graph.replace(node.output, result)
        self.graph.remove(node)
        self.graph.release_name(node.output)
        self.graph.rename(result, self.name)
        self.graph.sort()

        def back(walk: ErrorPropagation, error: QuantizedError) -> None:
            rows = QuantizedError(g.by_channel(walk.emit, error.codes), error.unit, error.most)
            for part in parts:
                part(walk, rows)

        return TrainedLayer(self.name, result, self._reach, self.learned, {**self.backs, result: back})


def _coded(first: Array, scales: Array) -> Array:
    return coded_weights(first, scales.reshape(-1, *(1 for _ in first.shape[1:])))


def _over_positions(walk: ErrorPropagation, error: QuantizedError) -> Value:
    """Return the sums of errors [C, positions] over positions, int32 [C, 1]."""
    wide = walk.call("Cast", error.codes, to=TensorProto.INT32)
    return wide if wide.type.shape[1] == 1 else walk.call("ReduceSum", wide, np.asarray([1]), keepdims=1)


# ----------------------------------------------------------------------------------------------------- losses


def set_gradients(graph: Graph, trained: Sequence[TrainedLayer], result: Value, target: Value, loss: str) -> None:
    """Add integer back-propagation from the loss, and store its result in `gradient` of each trained parameter.

    Args:
        graph: The graph, changed in place.
        trained: The trainable layers.
        result: The model's float output.
        target: The input with the expected class or output.
        loss: A key of CODED_LOSSES: "cross-entropy", "mse", "mae" or "huber".
    """
    value, reach = _judged(graph, trained, logits_of(result) if loss == "cross-entropy" else result)
    backs = [(value.producer, back) for layer in trained for value, back in layer.backs.items()]
    anchors = {node: back for node, back in backs if node is not None}
    walk = ErrorPropagation(graph, rule_of, anchors)
    type_ = TensorType(
        value.type.shape, DType.INT16, QuantParams((float(np.float32(reach / 2**ERROR_FRACTION_BITS)),), 0)
    )
    scores = walk.emit(Quantize(), value, type_=type_)
    codes, unit = CODED_LOSSES[loss](walk, walk.emit.reshaped(scores, (1, value.type.count)), target)
    error = QuantizedError(
        walk.emit.reshaped(codes, value.type.shape), walk.graph.constant("error.unit", np.full(1, unit, np.float32))
    )
    walk.propagate(value, error)


def _judged(graph: Graph, trained: Sequence[TrainedLayer], scores: Value) -> tuple[Value, float]:
    """Return the trained layer's result, or a stored tensor, that the scores come from, and its largest magnitude."""
    reaches = {layer.result: layer.reach for layer in trained}
    value = scores
    while value not in reaches:
        node = value.producer
        if node is None or not isinstance(node.op, Quantize | Dequantize | Reshape):
            break
        value = node.input(0)
    if value in reaches:
        return value, SCORE_RANGE_RATIO * reaches[value]
    stored = next((user.output for user in scores.users if isinstance(user.op, Quantize)), None)
    if stored is not None:
        return graph.add(Dequantize(), [stored]).output, 256 * stored.type.q.scale[0]
    source = scores.producer
    if source is not None and isinstance(source.op, Dequantize):
        return scores, 256 * source.input(0).type.q.scale[0]
    raise UnfitError("results that are no codes")


def _of_classes(walk: ErrorPropagation, scores: Value, target: Value) -> tuple[Value, float]:
    """Return the gradient of cross-entropy: softmax(scores), less 1 at the target; and its unit."""
    emit, classes = walk.emit, scores.type.count
    type_ = TensorType((1, classes), DType.INT16, QuantParams((2.0**-ERROR_FRACTION_BITS,), 0))
    likely = emit(Softmax(axis=1), scores, type_=type_)
    one = walk.graph.constant("error.one", np.full((1, 1), 2**ERROR_FRACTION_BITS - 1, np.int16), type_.quant)
    is_target = walk.call("Equal", np.arange(classes, dtype=np.int32).reshape(1, classes), target)
    missing = emit(Binary("Sub"), likely, one, type_=type_)
    return emit(Where(), is_target, missing, likely, type_=type_), 2.0**-ERROR_FRACTION_BITS


def _difference(walk: ErrorPropagation, result: Value, target: Value) -> Value:
    """Return y − target, in the scale of y."""
    count = result.type.count
    target_codes = walk.emit.reshaped(
        walk.emit(Quantize(), target, type_=result.type.with_shape(target.type.shape)), (1, count)
    )
    return walk.emit(Binary("Sub"), result, target_codes, type_=result.type)


def _of_squares(walk: ErrorPropagation, result: Value, target: Value) -> tuple[Value, float]:
    """Return the gradient of the mean squared error: 2 · (y − target) / n, as values and their unit."""
    return _difference(walk, result, target), 2 * result.type.q.scale[0] / result.type.count


def _of_sizes(walk: ErrorPropagation, result: Value, target: Value) -> tuple[Value, float]:
    """Return the gradient of the absolute error: the sign of y − target, divided by n."""
    return _limited(walk, _difference(walk, result, target), 1), 1 / result.type.count


def _of_huber(walk: ErrorPropagation, result: Value, target: Value) -> tuple[Value, float]:
    """Return the gradient of the Huber loss: (y − target) / n with the difference limited to 1; and its unit."""
    max_code = max(1, min(2**ERROR_FRACTION_BITS - 1, round(1 / result.type.q.scale[0])))
    return _limited(walk, _difference(walk, result, target), max_code), result.type.q.scale[0] / result.type.count


def _limited(walk: ErrorPropagation, codes: Value, max_code: int) -> Value:
    """Return codes limited to the range from −`max_code` to `max_code`."""
    wide = walk.call("Cast", codes, to=TensorProto.INT32)
    limit = np.full((), max_code, np.int32)
    return walk.emit(
        Cast(DType.INT16),
        walk.call("Clip", wide, -limit, limit),
        type_=unscaled_integers(codes.type.shape, DType.INT16),
    )


CODED_LOSSES = {"cross-entropy": _of_classes, "mse": _of_squares, "mae": _of_sizes, "huber": _of_huber}
"""Functions that add the gradient of a loss to the graph, for a quantized result, by the value of `--loss`.

They return the gradient (int16) and its scale (float32 [1]).
"""


# ---------------------------------------------------------------------------------------------------- updates


@dataclass(frozen=True)
class UpdateState:
    """The states that the update of one trained tensor keeps between calls, in the tensor's shape.

    Attributes:
        total: Sum of the steps of the current batch, int32 fixed point; None if each sample makes an update.
        velocity: Velocity of momentum, int32 fixed point; None without momentum.
    """

    total: Value | None = None
    velocity: Value | None = None

    @staticmethod
    def of(graph: Graph, parameter: Value, *, in_batches: bool, has_momentum: bool) -> UpdateState:
        """Add the graph inputs for the states of a parameter's update, and return them.

        Args:
            graph: The graph, changed in place.
            parameter: The trained tensor, which gives the states their shape.
            in_batches: Whether an update follows a batch of samples, so that steps must be added up.
            has_momentum: Whether the optimizer is `momentum`.
        """
        type_ = TensorType(parameter.type.shape, DType.INT32)
        total = graph.add_input(f"{parameter.name}.sum", type_) if in_batches else None
        return UpdateState(total, graph.add_input(f"{parameter.name}.velocity", type_) if has_momentum else None)

    @property
    def states(self) -> list[Value]:
        """Return the states that exist: `total`, then `velocity`."""
        return [value for value in (self.total, self.velocity) if value is not None]


def update_integer_parameter(
    graph: Graph, learned: IntegerParameter, rate: Value, turns: Value, kept: UpdateState, batch: Batch | None
) -> list[Value]:
    """Return the new value of an integer parameter, followed by the new values of `kept.states`.

    The update is w − s, or w − v with v = 0.9·v + s, where s = r·g. At a rate of 0 nothing changes. In a batch of N
    samples, s = Σ r·g / N at the last sample, else 0; each sample counts with its own rate.

    Args:
        graph: The graph, changed in place.
        learned: The parameter with its gradient.
        rate: The learning rate r, float32 [1].
        turns: A uint32 [1] that is evenly distributed over the updates; it dithers the rounding of steps, so that small
            steps are not lost.
        kept: The states of the update.
        batch: The batch; None if each sample makes an update.
    """
    parameter, gradient, bits = learned.parameter.value, learned.gradient, learned.bits
    call = OnnxCalls(graph, f"{parameter.name}.update")
    assert gradient is not None
    gain = _gain(call, gradient, rate, bits, batch.size if batch else 1)
    fraction = call("BitShift", turns, np.asarray([32 - bits], np.uint32), direction="RIGHT")
    fraction = call("Cast", call("Reshape", fraction, np.asarray([1, 1])), to=TensorProto.INT32)
    if gradient.inputs is not None and gradient.sums.type.shape[1] > 1 and not kept.states:
        return [graph.add(DescendCodes(), [parameter, gradient.sums, gradient.inputs, gain, fraction]).output]
    step, after = _step(graph, call, gradient, gain), list[Value]()
    zero, moves = np.zeros((1, 1), np.int32), call("Greater", rate, np.zeros(1, np.float32))
    if batch is not None and kept.total is not None:
        flat = call("Reshape", kept.total, np.asarray(step.type.shape))
        step = call("Where", moves, _clipped(call, call("Add", flat, step), MAX_CODE_STEP), flat)
        after.append(_shaped(call, call("Where", batch.is_full, zero, step), parameter))
        moves = call("And", moves, batch.is_full)
        step = call("Where", moves, step, zero)
    if kept.velocity is not None:
        flat = call("Reshape", kept.velocity, np.asarray(step.type.shape))
        slower = call("Mul", call("Cast", flat, to=TensorProto.FLOAT), np.full((1, 1), MOMENTUM_DECAY, np.float32))
        slower = call("Cast", call("Round", slower), to=TensorProto.INT32)
        step = _clipped(call, call("Add", slower, step), MAX_CODE_STEP)
        after.append(call("Where", moves, _shaped(call, step, parameter), kept.velocity))
        step = call("Where", moves, step, zero)
    amount = graph.constant("update.bits", np.full((1, 1), bits, np.int32))
    old = call("Cast", call("Reshape", parameter, np.asarray(step.type.shape)), to=TensorProto.INT32)
    less = call("Sub", zero, step)
    moved = call("Add", old, graph.add(Binary("ShiftRight"), [call("Add", less, fraction), amount]).output)
    limited = _shaped(call, _clipped(call, moved, learned.largest), parameter)
    if parameter.type.dtype is DType.INT32:
        return [limited, *after]
    return [graph.add(Cast(DType.INT8), [limited], types=[parameter.type]).output, *after]


def _shaped(call: OnnxCalls, value: Value, like: Value) -> Value:
    return call("Reshape", value, np.asarray(like.type.shape))


def _gain(call: OnnxCalls, gradient: Gradient, rate: Value, bits: int, samples: int) -> Value:
    """Return the factor from sums to quantized steps with `bits` fractional bits, float32 [C, 1]."""
    scaled = call("Mul", call("Mul", rate, np.full(1, 2.0**bits / samples, np.float32)), gradient.unit)
    gain = call("Mul", call("Reshape", scaled, np.asarray([1, 1])), gradient.per.astype(np.float32))
    limit = np.full((), MAX_SCALED_RATE, np.float32)
    return call("Clip", gain, -limit, limit)


def _step(graph: Graph, call: OnnxCalls, gradient: Gradient, gain: Value) -> Value:
    """Return the rate times the gradient, int32 [C, …]. An outer product is fused with the loop that subtracts it."""
    sums, inputs = gradient.sums, gradient.inputs
    is_outer = inputs is not None and sums.type.shape[1] == 1
    if inputs is not None and not is_outer:
        emit = Emitter(graph)
        sums, inputs = emit(MatMul(), sums, emit.transposed(inputs)), None
    real = call("Mul", call("Cast", sums, to=TensorProto.FLOAT), gain)
    step = call(
        "Cast",
        call("Round", _clipped(call, real, MAX_STEP_PER_INPUT if is_outer else MAX_CODE_STEP)),
        to=TensorProto.INT32,
    )
    if inputs is None:
        return step
    zero = np.full((1, 1), inputs.type.q.zero_point, np.int32)
    row = call("Cast", call("Reshape", inputs, np.asarray([1, inputs.type.count])), to=TensorProto.INT32)
    return call("Mul", step, call("Sub", row, zero))


def _clipped(call: OnnxCalls, value: Value, max_magnitude: int) -> Value:
    limit = np.full((), max_magnitude, value.type.dtype.numpy)
    return call("Clip", value, -limit, limit)
