# SPDX-License-Identifier: Apache-2.0
"""Optimizers: updates of a trained tensor by its gradient; Momentum and Adam are ONNX training operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array
from mcugen.ops.learning import MAX_TRAINED_WEIGHT, Descend
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Reshape
from mcugen.ops.training import TRAINING
from mcugen.training.onnx_calls import OnnxCalls


@dataclass(frozen=True)
class OptimizerInputs:
    """The values that an optimizer reads to update one trained tensor.

    Attributes:
        tensor: The tensor.
        gradient: Its gradient, in the same shape.
        memories: The optimizer's states for the tensor, for example its velocity.
        rate: The learning rate, float32 [1].
        count: Number of updates including this one; None if the optimizer does not need it.
    """

    tensor: Value
    gradient: Value
    memories: Sequence[Value]
    rate: Value
    count: Value | None


@dataclass(frozen=True)
class Optimizer:
    """An update rule of training.

    Attributes:
        update: Adds an update to a graph, and returns the tensor's new value, then its states' new values.
        memories: Names of the states that the rule keeps for each tensor, such as its velocity.
        is_descent: Whether the update subtracts rate · gradient from the tensor. If the gradient is a matrix product,
            both can be fused, so that the gradient is never stored.
        counts: Whether the update depends on the number of updates so far.
        scaled: The same rule for gradients that are already multiplied by the rate, used if all layers have the same
            rate; None if the rule has no such form.
    """

    update: Callable[[OnnxCalls, OptimizerInputs], Sequence[Value]]
    memories: tuple[str, ...] = ()
    is_descent: bool = False
    counts: bool = False
    scaled: Optimizer | None = None


def _scaled_sgd(call: OnnxCalls, group: OptimizerInputs) -> Sequence[Value]:
    """Return w − g, where g is the rate times the gradient."""
    return [call("Sub", group.tensor, group.gradient)]


def _sgd(call: OnnxCalls, group: OptimizerInputs) -> Sequence[Value]:
    """Return w − r·g."""
    return [call("Sub", group.tensor, call("Mul", group.gradient, group.rate))]


def _momentum(call: OnnxCalls, group: OptimizerInputs) -> Sequence[Value]:
    """Return w − r·v and v, where v = 0.9·v + g."""
    settings = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"}
    return call.several("Momentum", _operands(group), 2, TRAINING, **settings)


def _adam(call: OnnxCalls, group: OptimizerInputs) -> Sequence[Value]:
    """Add Adam, with averages over about 10 and 1000 steps and bias correction."""
    settings = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-7, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
    return call.several("Adam", _operands(group), 3, TRAINING, **settings)


def _operands(group: OptimizerInputs) -> Sequence[Value | Array]:
    count = np.ones((), np.int64) if group.count is None else group.count
    return group.rate, count, group.tensor, group.gradient, *group.memories


OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer(_sgd, is_descent=True, scaled=Optimizer(_scaled_sgd, is_descent=True)),
    "momentum": Optimizer(_momentum, ("velocity",)),
    "adam": Optimizer(_adam, ("mean", "squares"), counts=True),
}
"""Update rules by the value of `--optimizer`."""


def product_factors(gradient: Value) -> tuple[Value, Value] | None:
    """Return the two matrices [C, P] and [P, N] that a gradient is the product of; None if it is not such a product."""
    node = gradient.producer
    while node is not None and isinstance(node.op, Reshape):
        node = node.input(0).producer
    if (
        node is None
        or node.op != MatMul()
        or node.output.type.rank != 2
        or node.output.type.shape[0] != gradient.type.shape[0]
    ):
        return None
    return node.input(0), node.input(1)


def apply_optimizer(graph: Graph, optimizer: Optimizer, group: OptimizerInputs) -> list[Value]:
    """Add an update to the graph, and return the new tensor followed by the optimizer's new states.

    Elements whose new value would be NaN or infinite stay unchanged. At a rate of 0, tensor and states stay unchanged.

    Args:
        graph: The graph, changed in place.
        optimizer: The update rule.
        group: The tensor with its gradient, states and rate.
    """
    call = OnnxCalls(graph, f"{group.tensor.name}.update")
    product = product_factors(group.gradient)
    if product is not None and optimizer.is_descent:
        step = product[0] if optimizer.scaled is None else call("Mul", product[0], group.rate)
        return [graph.add(Descend(), [group.tensor, step, product[1]]).output]
    tensor, *memories = optimizer.update(call, group)
    new = [tensor, *(_unless_frozen(call, group, *pair) for pair in zip(group.memories, memories, strict=True))]
    old = [group.tensor, *group.memories]
    return [finite_or_old(call, was, value) for was, value in zip(old, new, strict=True)]


def update_int8_weights(graph: Graph, group: OptimizerInputs, codes: Value, scales: Value, dither: Value) -> Value:
    """Return int8 weights updated by the gradient of the float weights: the step is rate · gradient / scale.

    This is quantization-aware scaling (Lin et al., "On-device training under 256KB memory", 2022).

    Args:
        graph: The graph, changed in place.
        group: The float weights with their gradient and rate.
        codes: The int8 weights.
        scales: Scale of each output channel.
        dither: A float32 [1] evenly distributed between 0 and 1 over the updates. It is added before rounding down, so
            that small steps are not lost.
    """
    call = OnnxCalls(graph, f"{codes.name}.update")
    product = product_factors(group.gradient)
    if product is not None:
        left = call("Mul", product[0], call("Div", group.rate, call("Reshape", scales, np.asarray([-1, 1]))))
        return graph.add(Descend(), [codes, left, product[1], dither]).output
    old = call("Cast", codes, to=TensorProto.FLOAT)
    step = call("Div", call("Mul", group.gradient, group.rate), scales)
    moved = call("Floor", call("Add", call("Sub", old, step), dither))
    limited = call(
        "Clip", moved, np.full((), -MAX_TRAINED_WEIGHT, np.float32), np.full((), MAX_TRAINED_WEIGHT, np.float32)
    )
    return call("Cast", finite_or_old(call, old, limited), to=TensorProto.INT8)


WEYL_STEP = 0x9E3779B9
"""2³² divided by the golden ratio: the step of a sequence that dithers rounding.

Its multiples modulo 2³² are evenly distributed (Weyl, 1916).
"""


def dither_counter(graph: Graph, count: Value) -> Value:
    """Add a number that dithers the rounding of updates to the graph, and return it as uint32 [1].

    It is count · WEYL_STEP modulo 2³². Over the updates 1, 2, 3, … the numbers are evenly distributed, and equal on
    every CPU.

    Args:
        graph: The graph, changed in place.
        count: Number of the update, one element.
    """
    call = OnnxCalls(graph, "dither")
    return call("Mul", call("Cast", count, to=TensorProto.UINT32), np.asarray([WEYL_STEP], np.uint32))


def dither_fraction(graph: Graph, count: Value) -> Value:
    """Add a number from 0 to below 1 to the graph, evenly distributed over the updates, and return it as float32 [1].

    The numbers are equal on every CPU.

    Args:
        graph: The graph, changed in place.
        count: Number of the update, one element.
    """
    call = OnnxCalls(graph, "dither")
    whole = call("BitShift", dither_counter(graph, count), np.asarray([8], np.uint32), direction="RIGHT")
    return call("Mul", call("Cast", whole, to=TensorProto.FLOAT), np.asarray([2.0**-24], np.float32))


def _unless_frozen(call: OnnxCalls, group: OptimizerInputs, old: Value, new: Value) -> Value:
    return call("Where", call("Greater", group.rate, np.zeros((), np.float32)), new, old)


@dataclass(frozen=True)
class Batch:
    """A batch of samples in training.

    Attributes:
        size: Number of samples of a batch.
        is_full: A bool value of the graph: whether the current sample is the last one of its batch.
    """

    size: int
    is_full: Value


def accumulate_batch(
    graph: Graph, optimizer: Optimizer, group: OptimizerInputs, batch: Batch, total: Value
) -> list[Value]:
    """Add an update by the mean gradient of a batch; the tensor changes only at the last sample of the batch.

    Args:
        graph: The graph, changed in place.
        optimizer: The update rule.
        group: The tensor with the gradient of the current sample.
        batch: The batch.
        total: The sum of gradients of the batch so far, a state.

    Returns:
        The new tensor, the optimizer's new states, and the new sum of gradients.
    """
    call = OnnxCalls(graph, f"{group.tensor.name}.batch")
    now = _unless_frozen(call, group, total, call("Add", total, group.gradient))
    mean = call("Mul", now, np.full((), 1 / batch.size, np.float32))
    new = apply_optimizer(graph, optimizer, replace(group, gradient=mean))
    old = [group.tensor, *group.memories]
    stepped = [call("Where", batch.is_full, after, before) for after, before in zip(new, old, strict=True)]
    return [*stepped, finite_or_old(call, total, call("Where", batch.is_full, np.zeros((), np.float32), now))]


def finite_or_old(call: OnnxCalls, old: Value, new: Value) -> Value:
    """Return `new` where it is finite, else `old`, for each element; the test is that new − new is not NaN.

    Args:
        call: Adds ONNX operators to the graph.
        old: The old value.
        new: The new value.
    """
    return call("Where", call("IsNaN", call("Sub", new, new)), old, new)
