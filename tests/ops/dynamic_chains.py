# SPDX-License-Identifier: Apache-2.0
"""Random models that are quantized at run time, over a run-time length, with a state between calls.

Every layer is a product of integers whose input is quantized by DynamicQuantizeLinear, in the forms that ONNX Runtime's
quantizer writes. Without functions such as Tanh the operations are exact or rounded once, so two programs that round as
ONNX says agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from onnx_models import MICROSOFT, Net

EXACT = ("Relu", "LeakyRelu", "Abs", "")
"""Activations that every program computes to the same bits; empty for none."""
TRANSCENDENTAL = ("Tanh", "Sigmoid")
"""Activations that programs approximate, so that the last bit may differ."""
MAX_WIDTH = 9
"""Largest number of channels of a layer."""


@dataclass(frozen=True)
class DynamicChain:
    """A model over a length T from `low` to `high`; `states` maps outputs to inputs."""

    model: onnx.ModelProto
    states: dict[str, str]
    low: int
    high: int
    approximated: tuple[str, ...]
    """Tensors that a transcendental function computes."""

    def feeds(self, length: int, seed: int) -> dict[str, np.ndarray]:
        """Return inputs of one call: of either sign or both, large, of few different values, or zero."""
        numbers, feeds = np.random.default_rng(seed), {}
        for info in self.model.graph.input:
            shape = [d.dim_value if d.HasField("dim_value") else length for d in info.type.tensor_type.shape.dim]
            x = numbers.standard_normal(shape)
            kinds = (x, np.abs(x), -np.abs(x), 100 * x, np.round(4 * x) / 4, 0 * x)
            feeds[info.name] = kinds[numbers.choice(6, p=(0.35, 0.15, 0.15, 0.15, 0.15, 0.05))].astype(np.float32)
        return feeds


def dynamic_chain(seed: int, activations: Sequence[str] = EXACT) -> DynamicChain:
    """Return the model of a seed."""
    return _Chain(seed, activations).build()


class _Chain:
    def __init__(self, seed: int, activations: Sequence[str]) -> None:
        self.random, self.numbers = Random(seed), np.random.default_rng(seed)
        self.net = Net(self.random.choice((13, 17, 18, 21)))
        self.activations = activations
        self.approximated: list[str] = []
        self.layout = self.random.choice(("rows", "batch of rows", "channels first"))
        self.batch = 1 if self.layout == "rows" else self.random.choice((1, 1, 2))

    def build(self) -> DynamicChain:
        width, hidden = self.random.randint(1, MAX_WIDTH), self.random.randint(1, MAX_WIDTH)
        y, states, outputs = self.net.input("x", *self._shape("T", width)), {}, []
        if self.random.random() < 0.6:
            state = self.net.input("h", *self._shape(1, hidden))
            y, width = self.net.op("Add", self.layer(y, width, hidden), state), hidden
            states["h_next"] = "h"
        for _ in range(self.random.randint(1, 4)):
            count = self.random.randint(1, MAX_WIDTH)
            y, width = self.activate(self.layer(y, width, count)), count
        outputs.append(self.net.op("Identity", y, out="y"))
        if states:
            last = self._last(self.layer(y, width, hidden))
            limits = (self.net.const(-2.0), self.net.const(2.0))
            halved = self.net.op("Mul", last, self.net.const(0.5))
            outputs.append(self.net.op("Clip", halved, *limits, out="h_next"))
        self.net.output(*outputs)
        low = self.random.choice((1, 2, 3))
        high = low + self.random.randint(1, 15)
        return DynamicChain(self.net.plain_model(), states, low, high, tuple(self.approximated))

    def _shape(self, length: int | str, width: int) -> tuple[int | str, ...]:
        shapes = {
            "rows": (length, width),
            "batch of rows": (self.batch, length, width),
            "channels first": (self.batch, width, length),
        }
        return shapes[self.layout]

    def _last(self, y: str) -> str:
        """The last step, or the largest value over all steps."""
        axis = {"rows": 0, "batch of rows": 1, "channels first": 2}[self.layout]
        if self.random.random() < 0.5:
            return self.net.op("Slice", y, *(self.net.const([v], np.int64) for v in (-1, 2**31 - 1, axis)))
        if self.net.opset < 18:
            return self.net.op("ReduceMax", y, axes=[axis])
        return self.net.op("ReduceMax", y, self.net.const([axis], np.int64))

    def activate(self, y: str) -> str:
        kind = self.random.choice(self.activations)
        y = self.net.op(kind, y) if kind else y
        self.approximated += [y] * (kind in TRANSCENDENTAL)
        return y

    def layer(self, x: str, depth: int, count: int) -> str:
        if self.layout == "channels first":
            return self.convolution(x, depth, count)
        return self.fused_product(x, depth, count) if self.random.random() < 0.4 else self.product(x, depth, count)

    def _weights(self, *shape: int) -> tuple[str, str, type]:
        dtype = self.random.choice((np.int8, np.uint8))
        low, high = (-127, 128) if dtype is np.int8 else (0, 256)
        zero = self.random.choice((0, 0, -9)) if dtype is np.int8 else self.random.randint(110, 140)
        return self.net.const(self.numbers.integers(low, high, shape), dtype), self.net.const(zero, dtype), dtype

    def _scale(self, count: int) -> np.ndarray:
        return self.numbers.uniform(0.005, 0.02, count if self.random.random() < 0.5 else ())

    def _quantized(self, x: str) -> list[str]:
        return self.net.ops("DynamicQuantizeLinear", x, outs=[f"{x}.{part}" for part in ("codes", "scale", "zero")])

    def _scaled(self, product: str, scale: str, weights_scale: str, bias: np.ndarray) -> str:
        real = self.net.op("Cast", product, to=onnx.TensorProto.FLOAT)
        y = self.net.op("Mul", real, self.net.op("Mul", scale, weights_scale))
        return self.net.op("Add", y, self.net.const(bias)) if self.random.random() < 0.7 else y

    def product(self, x: str, depth: int, count: int) -> str:
        weights, weights_zero, _ = self._weights(depth, count)
        codes, scale, zero = self._quantized(x)
        product = self.net.op("MatMulInteger", codes, weights, zero, weights_zero)
        return self._scaled(product, scale, self.net.const(self._scale(count)), self._bias(count))

    def convolution(self, x: str, depth: int, count: int) -> str:
        taps = self.random.choice((1, 3, 5))
        weights, weights_zero, _ = self._weights(count, depth, taps)
        codes, scale, zero = self._quantized(x)
        pads = self.random.choice(([taps // 2] * 2, [taps - 1, 0]))
        product = self.net.op("ConvInteger", codes, weights, zero, weights_zero, pads=pads)
        return self._scaled(product, scale, self.net.const(self.numbers.uniform(0.005, 0.02)), self._bias(1, count, 1))

    def fused_product(self, x: str, depth: int, count: int) -> str:
        weights, zero, dtype = self._weights(depth, count)
        scale = self._scale(count)
        if scale.ndim:
            zero = self.net.const(np.full(count, 0 if dtype is np.int8 else 128), dtype)
        operands = [weights, self.net.const(scale), zero]
        operands += [self.net.const(self._bias(count))] if self.random.random() < 0.7 else []
        return self.net.op("DynamicQuantizeMatMul", x, *operands, domain=MICROSOFT)

    def _bias(self, *shape: int) -> np.ndarray:
        return self.numbers.standard_normal(shape) * 0.3
