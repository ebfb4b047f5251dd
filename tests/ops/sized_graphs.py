# SPDX-License-Identifier: Apache-2.0
"""Random float models over a length that is known at run time: layers, recurrence, products of lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from onnx_models import Net

LENGTHS = (2, 17)
"""Smallest and largest length of the dimension T."""
MAX_SIZED_STEPS = 8
"""Largest number of steps by which a model grows."""
MAX_CHANNELS = 12
"""Largest number of channels of a tensor."""


@dataclass(frozen=True)
class Sequence1D:
    """A tensor [1, channels, length]; equal lengths have equal names."""

    name: str
    channels: int
    length: str


def sized_model(seed: int) -> onnx.ModelProto:
    """Return the random model of a seed, to be compiled with `--dim T=2..17`."""
    return _Sized(seed).grown()


class _Sized:
    def __init__(self, seed: int) -> None:
        self.seed, self.random, self.numbers = seed, Random(seed), np.random.default_rng(seed)
        self.net = Net(18)
        channels = self.random.randint(1, 6)
        self.tensors = [Sequence1D(self.net.input("x", 1, channels, "T"), channels, "T")]
        self.read: set[str] = set()

    def grown(self) -> onnx.ModelProto:
        for _ in range(self.random.randint(1, MAX_SIZED_STEPS)):
            self.random.choice(_STEPS)(self)
        for tensor in self.tensors[1:]:
            if tensor.name not in self.read:
                self.net.output(self.random.choice(_ENDS)(self, tensor))
        if not self.net.outputs:
            self.net.output(self.net.op("Relu", "x"))
        return self.net.plain_model()

    def weights(self, *shape: int) -> str:
        return self.net.const(self.numbers.standard_normal(shape) * 0.4)

    def some(self) -> Sequence1D:
        tensor = self.random.choice(self.tensors[-3:])
        self.read.add(tensor.name)
        return tensor

    def made(self, name: str, channels: int, length: str) -> None:
        self.tensors.append(Sequence1D(name, channels, length))

    def conv(self) -> None:
        x, taps, channels = self.some(), self.random.choice((1, 3, 5)), self.random.randint(1, MAX_CHANNELS)
        stride = self.random.choice((1, 1, 2))
        pads = [taps // 2] * 2 if self.random.random() < 0.7 else [taps - 1, 0]
        weights = self.weights(channels, x.channels, taps)
        y = self.net.op("Conv", x.name, weights, self.weights(channels), pads=pads, strides=[stride])
        self.made(self._clamped(y), channels, x.length if stride == 1 else f"half of {x.length}")

    def depthwise(self) -> None:
        x = self.some()
        weights = self.weights(x.channels, 1, 3)
        self.made(self.net.op("Conv", x.name, weights, pads=[1, 1], group=x.channels), x.channels, x.length)

    def _clamped(self, name: str) -> str:
        return self.net.op("Relu", name) if self.random.random() < 0.5 else name

    def dense(self) -> None:
        """Over channels, of each step alone."""
        x, channels = self.some(), self.random.randint(1, MAX_CHANNELS)
        rows = self.net.op("Transpose", x.name, perm=[0, 2, 1])
        y = self.net.op("Add", self.net.op("MatMul", rows, self.weights(x.channels, channels)), self.weights(channels))
        if self.random.random() < 0.3:
            y = self.net.op("LayerNormalization", y, self.weights(channels), axis=-1)
        self.made(self.net.op("Transpose", self._clamped(y), perm=[0, 2, 1]), channels, x.length)

    def unary(self) -> None:
        x = self.some()
        op_type = self.random.choice(("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "HardSwish"))
        self.made(self.net.op(op_type, x.name), x.channels, x.length)

    def pool(self) -> None:
        x, op_type = self.some(), self.random.choice(("MaxPool", "AveragePool"))
        self.made(self.net.op(op_type, x.name, kernel_shape=[3], pads=[1, 1]), x.channels, x.length)

    def join(self) -> None:
        """Two of one length: added, multiplied, or one after the other."""
        x = self.some()
        y = self.random.choice([t for t in self.tensors if t.length == x.length])
        self.read.add(y.name)
        op_type = self.random.choice(("Add", "Mul", "Concat")) if x.channels == y.channels else "Concat"
        attributes = {"axis": 1} if op_type == "Concat" else {}
        channels = x.channels + y.channels if op_type == "Concat" else x.channels
        self.made(self.net.op(op_type, x.name, y.name, **attributes), channels, x.length)

    def attend(self) -> None:
        """Each step to each: products of two lengths."""
        x = self.some()
        rows = self.net.op("Transpose", x.name, perm=[0, 2, 1])
        scores = self.net.op("Softmax", self.net.op("MatMul", rows, x.name), axis=-1)
        y = self.net.op("MatMul", scores, rows)
        self.made(self.net.op("Transpose", y, perm=[0, 2, 1]), x.channels, x.length)

    def recur(self) -> None:
        x, hidden = self.some(), self.random.randint(1, 6)
        op_type, gates = self.random.choice((("GRU", 3), ("LSTM", 4)))
        steps = self.net.op("Transpose", x.name, perm=[2, 0, 1])
        weights = [self.weights(1, gates * hidden, x.channels), self.weights(1, gates * hidden, hidden)]
        y = self.net.op(op_type, steps, *weights, hidden_size=hidden)
        flat = self.net.op("Squeeze", y, self.net.const([1], np.int64))
        self.made(self.net.op("Transpose", flat, perm=[1, 2, 0]), hidden, x.length)

    def lengthen(self) -> None:
        x = self.some()
        if x.length.count("of") > 2:
            return
        if self.random.random() < 0.5:
            y = self.net.op("Resize", x.name, "", self.net.const([1.0, 1.0, 2.0]), mode="nearest")
            self.made(y, x.channels, f"twice of {x.length}")
        else:
            y = self.net.op("Pad", x.name, self.net.const([0, 0, 2, 0, 0, 1], np.int64))
            self.made(y, x.channels, f"more of {x.length}")

    def cut(self) -> None:
        """Something is left: ONNX Runtime 1.32 ends the process at a recurrent layer without steps."""
        x = self.some()
        bounds = [self.net.const([v], np.int64) for v in (1, 2**31 - 1, 2)]
        if x.length == "T":
            self.made(self.net.op("Slice", x.name, *bounds), x.channels, f"rest of {x.length}")

    def scan(self) -> None:
        x = self.some()
        self.made(self.net.op("CumSum", x.name, self.net.const(2, np.int64)), x.channels, x.length)


def _mean(sized: _Sized, x: Sequence1D) -> str:
    return sized.net.op("ReduceMean", x.name, sized.net.const([2], np.int64), keepdims=0)


def _top(sized: _Sized, x: Sequence1D) -> str:
    return sized.net.op("ReduceMax", x.name, sized.net.const([1, 2], np.int64), keepdims=0)


def _all(sized: _Sized, x: Sequence1D) -> str:
    return sized.net.op("Identity", x.name)


def _flat(sized: _Sized, x: Sequence1D) -> str:
    return sized.net.op("Reshape", x.name, sized.net.const([1, -1], np.int64))


_ENDS: Sequence[Callable[[_Sized, Sequence1D], str]] = (_all, _all, _mean, _top, _flat)
_STEPS: Sequence[Callable[[_Sized], None]] = (
    *[_Sized.conv] * 3,
    *[_Sized.join] * 3,
    *[_Sized.dense] * 2,
    _Sized.depthwise,
    _Sized.unary,
    _Sized.pool,
    _Sized.attend,
    _Sized.recur,
    _Sized.lengthen,
    _Sized.cut,
    _Sized.scan,
)
