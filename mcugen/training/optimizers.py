# SPDX-License-Identifier: Apache-2.0
"""Optimizers: updates of a tensor by its gradient. Optimizers with memory are ONNX's own operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array
from mcugen.ops.learning import LARGEST, Descend
from mcugen.ops.matmul import MatMul
from mcugen.ops.movement import Reshape
from mcugen.ops.training import TRAINING
from mcugen.training.onnx_calls import OnnxCalls


@dataclass(frozen=True)
class Group:
    """A tensor, its gradient and memories, the rate, and the number of updates including this one."""

    tensor: Value
    gradient: Value
    memories: Sequence[Value]
    rate: Value
    count: Value | None


@dataclass(frozen=True)
class Optimizer:
    """An update rule; `memories` are the names of the values that it remembers for each tensor."""

    update: Callable[[OnnxCalls, Group], Sequence[Value]]
    """Returns the new tensor and memories."""
    memories: tuple[str, ...] = ()
    is_descent: bool = False
    """Whether the update can be fused with a gradient that is a product, which then need not be kept."""
    counts: bool = False
    """Whether the update depends on the number of updates so far."""
    scaled: Optimizer | None = None
    """Optimizer for gradients that include the rate already, which costs nothing if all layers have one rate."""


def _scaled_sgd(call: OnnxCalls, group: Group) -> Sequence[Value]:
    """Return w − g, where g is the rate times the gradient."""
    return [call("Sub", group.tensor, group.gradient)]


def _sgd(call: OnnxCalls, group: Group) -> Sequence[Value]:
    """Return w − r·g."""
    return [call("Sub", group.tensor, call("Mul", group.gradient, group.rate))]


def _momentum(call: OnnxCalls, group: Group) -> Sequence[Value]:
    """Return w − r·v and v, where v = 0.9·v + g."""
    settings = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"}
    return call.several("Momentum", _operands(group), 2, TRAINING, **settings)


def _adam(call: OnnxCalls, group: Group) -> Sequence[Value]:
    """Add Adam, with averages over about 10 and 1000 steps and bias correction."""
    settings = {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-7, "norm_coefficient": 0.0, "norm_coefficient_post": 0.0}
    return call.several("Adam", _operands(group), 3, TRAINING, **settings)


def _operands(group: Group) -> Sequence[Value | Array]:
    count = np.ones((), np.int64) if group.count is None else group.count
    return group.rate, count, group.tensor, group.gradient, *group.memories


OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer(_sgd, is_descent=True, scaled=Optimizer(_scaled_sgd, is_descent=True)),
    "momentum": Optimizer(_momentum, ("velocity",)),
    "adam": Optimizer(_adam, ("mean", "squares"), counts=True),
}


def factors(gradient: Value) -> tuple[Value, Value] | None:
    """Return the matrices [C, P] and [P, N] whose product a gradient is; None if it is no such product."""
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


def updated(graph: Graph, optimizer: Optimizer, group: Group) -> list[Value]:
    """Return the new tensor and the optimizer's new state.

    Elements that would not be finite stay unchanged. At a rate of 0 the state stays unchanged.
    """
    call = OnnxCalls(graph, f"{group.tensor.name}.update")
    product = factors(group.gradient)
    if product is not None and optimizer.is_descent:
        step = product[0] if optimizer.scaled is None else call("Mul", product[0], group.rate)
        return [graph.add(Descend(), [group.tensor, step, product[1]]).output]
    tensor, *memories = optimizer.update(call, group)
    new = [tensor, *(_unless_frozen(call, group, *pair) for pair in zip(group.memories, memories, strict=True))]
    old = [group.tensor, *group.memories]
    return [kept_finite(call, was, value) for was, value in zip(old, new, strict=True)]


def coded(graph: Graph, group: Group, codes: Value, scales: Value, dither: Value) -> Value:
    """Return the new int8 weights from the gradient of the real weights: the step is r·g divided by the scale.

    This is quantization-aware scaling (Lin et al., "On-device training under 256KB memory", 2022). The step is rounded
    up as often as its fraction says, as `dither` goes through 0 … 1, so that small steps are not lost.
    """
    call = OnnxCalls(graph, f"{codes.name}.update")
    product = factors(group.gradient)
    if product is not None:
        left = call("Mul", product[0], call("Div", group.rate, call("Reshape", scales, np.asarray([-1, 1]))))
        return graph.add(Descend(), [codes, left, product[1], dither]).output
    old = call("Cast", codes, to=TensorProto.FLOAT)
    step = call("Div", call("Mul", group.gradient, group.rate), scales)
    moved = call("Floor", call("Add", call("Sub", old, step), dither))
    limited = call("Clip", moved, np.full((), -LARGEST, np.float32), np.full((), LARGEST, np.float32))
    return call("Cast", kept_finite(call, old, limited), to=TensorProto.INT8)


WEYL_STEP = 0x9E3779B9
"""2³² by the golden ratio: its multiples, cut to 32 bits, lie evenly however many there are (Weyl, 1916)."""


def turned(graph: Graph, count: Value) -> Value:
    """Return a uint32 [1] that depends on the number of updates, evenly distributed over all values."""
    call = OnnxCalls(graph, "dither")
    return call("Mul", call("Cast", count, to=TensorProto.UINT32), np.asarray([WEYL_STEP], np.uint32))


def dithered(graph: Graph, count: Value) -> Value:
    """Return a float32 [1] between 0 and 1 that depends on the number of updates, with the same bits on every CPU."""
    call = OnnxCalls(graph, "dither")
    whole = call("BitShift", turned(graph, count), np.asarray([8], np.uint32), direction="RIGHT")
    return call("Mul", call("Cast", whole, to=TensorProto.FLOAT), np.asarray([2.0**-24], np.float32))


def _unless_frozen(call: OnnxCalls, group: Group, old: Value, new: Value) -> Value:
    return call("Where", call("Greater", group.rate, np.zeros((), np.float32)), new, old)


@dataclass(frozen=True)
class Batch:
    """The number of samples of an update, and whether the current sample is the last of them."""

    size: int
    is_full: Value


def in_batches(graph: Graph, optimizer: Optimizer, group: Group, batch: Batch, total: Value) -> list[Value]:
    """Return the new tensor, optimizer state and sum of gradients, whose old value is `total`.

    The last sample of a batch makes a step by the mean gradient; other samples change the sum only.
    """
    call = OnnxCalls(graph, f"{group.tensor.name}.batch")
    now = _unless_frozen(call, group, total, call("Add", total, group.gradient))
    mean = call("Mul", now, np.full((), 1 / batch.size, np.float32))
    new = updated(graph, optimizer, replace(group, gradient=mean))
    old = [group.tensor, *group.memories]
    stepped = [call("Where", batch.is_full, after, before) for after, before in zip(new, old, strict=True)]
    return [*stepped, kept_finite(call, total, call("Where", batch.is_full, np.zeros((), np.float32), now))]


def kept_finite(call: OnnxCalls, old: Value, new: Value) -> Value:
    """Return the new value where it is finite, else the old one: ∞ − ∞ is NaN."""
    return call("Where", call("IsNaN", call("Sub", new, new)), old, new)
