# SPDX-License-Identifier: Apache-2.0
"""Training of small ONNX networks with mcugen's own derivatives, for studies that need trained weights.

The interpreter sums products in float64, so the same seed gives the same weights on every CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx_models import Net, imported

from mcugen.hir.interpreter import interpret
from mcugen.hir.types import Array
from mcugen.ops.gradient import unfuse
from mcugen.ops.gradient.reverse import gradients

BATCH = 16
"""Number of samples of a training step."""

FIRST_DECAY, SECOND_DECAY = 0.9, 0.99
"""Decay of Adam's moments."""


@dataclass
class Parameters:
    """The weights of a network by name; missing ones are drawn by seed when a network first asks for them."""

    random: np.random.Generator
    arrays: dict[str, Array] = field(default_factory=dict)

    def draw(self, name: str, shape: tuple[int, ...], fan_in: int) -> Array:
        """Return the weights of a name; new ones are normal, or zeros where `fan_in` is 0."""
        if name not in self.arrays:
            scale = np.sqrt(2 / fan_in) if fan_in else 0.0
            self.arrays[name] = (self.random.standard_normal(shape) * scale).astype(np.float32)
        return self.arrays[name]


@dataclass
class Builder:
    """A graph under construction whose weights are inputs (training) or constants (inference)."""

    net: Net
    parameters: Parameters
    is_training: bool = False

    def weight(self, name: str, *shape: int, fan_in: int = 0) -> str:
        """Return the tensor that holds some weights."""
        array = self.parameters.draw(name, shape, fan_in)
        return self.net.input(name, *shape) if self.is_training else self.net.const(array, name=name)

    def conv(self, x: str, name: str, channels: tuple[int, int], kernel: tuple[int, ...], **attributes: object) -> str:
        """Add a convolution with bias from `channels[0]` to `channels[1]` channels."""
        ins, outs = channels
        fan_in = ins * int(np.prod(kernel))
        weight, bias = self.weight(f"{name}_w", outs, ins, *kernel, fan_in=fan_in), self.weight(f"{name}_b", outs)
        return self.net.op("Conv", x, weight, bias, **attributes)

    def dense(self, x: str, name: str, ins: int, outs: int) -> str:
        """Add a fully connected layer with bias."""
        return self.net.op("Gemm", x, self.weight(f"{name}_w", ins, outs, fan_in=ins), self.weight(f"{name}_b", outs))

    def gru(self, x: str, name: str, ins: int, hidden: int, state: str = "") -> list[str]:
        """Add a GRU layer; return all hidden states and the last one."""
        w = self.weight(f"{name}_w", 1, 3 * hidden, ins, fan_in=2 * ins)
        r = self.weight(f"{name}_r", 1, 3 * hidden, hidden, fan_in=2 * hidden)
        b = self.weight(f"{name}_b", 1, 6 * hidden)
        outs = [f"{name}_all", f"{name}_last"]
        return self.net.ops("GRU", x, w, r, b, "", state, outs=outs, hidden_size=hidden, linear_before_reset=1)


Forward = Callable[[Builder, Mapping[str, str], int], str]
"""Adds a network to a graph: takes the tensors of its inputs by name and the batch size, returns its output."""

Loss = Callable[[Net, str, str], str]
"""Adds a loss: takes an output and its target, returns a scalar."""


def squared_error(net: Net, found: str, target: str) -> str:
    """Add the mean squared error."""
    difference = net.op("Sub", found, target)
    return net.op("ReduceMean", net.op("Mul", difference, difference), keepdims=0)


def cross_entropy(net: Net, logits: str, target: str) -> str:
    """Add the mean over samples and positions of the cross-entropy of axis 1; `target` is one-hot."""
    product = net.op("Mul", net.op("LogSoftmax", logits, axis=1), target)
    return net.op("Neg", net.op("ReduceMean", net.op("ReduceSum", product, net.const([1], np.int64)), keepdims=0))


def train(
    forward: Forward, inputs: Mapping[str, Array], target: Array, loss: Loss, *, steps: int, rate: float, seed: int = 0
) -> Parameters:
    """Train a network by Adam, with a rate that falls to 0 along a cosine.

    Args:
        forward: The network.
        inputs: Its inputs by name, with a leading axis of samples.
        target: Expected outputs, with the same leading axis.
        loss: The loss.
        steps: Number of batches.
        rate: Learning rate at the start.
        seed: Seed of the initial weights and of the batches.

    Returns:
        The trained weights.
    """
    random = np.random.default_rng(seed)
    parameters, net = Parameters(random), Net(18)
    fed = {name: net.input(name, BATCH, *array.shape[1:]) for name, array in inputs.items()}
    wanted = net.input("target", BATCH, *target.shape[1:])
    net.output(loss(net, forward(Builder(net, parameters, True), fed, BATCH), wanted))
    graph = imported(net.model())
    (value,) = graph.outputs
    unfuse(graph, list(graph.nodes))
    by_name = {each.name: each for each in graph.inputs}
    slopes = gradients(graph, value, [by_name[name] for name in parameters.arrays])
    graph.outputs, graph.output_names = slopes, list(parameters.arrays)
    graph.sort()
    first = {name: np.zeros(array.shape) for name, array in parameters.arrays.items()}
    second = {name: np.zeros(array.shape) for name, array in parameters.arrays.items()}
    for step in range(1, steps + 1):
        chosen = random.integers(0, len(target), BATCH)
        batch = {name: array[chosen] for name, array in inputs.items()} | {"target": target[chosen]}
        found = interpret(graph, {**batch, **parameters.arrays})
        size = rate * (1 + np.cos(np.pi * step / steps)) / 2
        for name, gradient in found.items():
            first[name] = FIRST_DECAY * first[name] + (1 - FIRST_DECAY) * gradient
            second[name] = SECOND_DECAY * second[name] + (1 - SECOND_DECAY) * np.square(gradient, dtype=float)
            mean, square = first[name] / (1 - FIRST_DECAY**step), second[name] / (1 - SECOND_DECAY**step)
            moved = parameters.arrays[name] - size * mean / (np.sqrt(square) + 1e-8)
            parameters.arrays[name] = moved.astype(np.float32)
    return parameters
