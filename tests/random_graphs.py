# SPDX-License-Identifier: Apache-2.0
"""Random models of 5 to 60 nodes: images and vectors that branch, join, are cut and concatenated again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import onnx
from onnx_models import Net

MAX_ELEMENTS = 2048
"""Largest number of elements of a tensor."""
MAX_NODES = 60
"""Largest number of nodes of a model."""
FLOAT, INT8, MIXED = "float", "int8", "mixed"
KINDS = (FLOAT, INT8, INT8, MIXED)
"""Kinds of arithmetic that models are drawn from: float, int8 (twice as often), or both mixed."""


@dataclass(frozen=True)
class Tensor:
    """A float tensor of a model under construction; if it was quantized, also its quantized form."""

    name: str
    shape: tuple[int, ...]
    scale: float = 0.0
    zero: int = 0
    codes: str = ""

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class RandomModel:
    """A random model, the kind of its arithmetic, and its seed."""

    model: onnx.ModelProto
    kind: str
    seed: int


def random_model(seed: int) -> RandomModel:
    """Return the random model of a seed."""
    return Growth(seed).grown()


class Growth:
    """A graph that grows by random steps; each method is a step that reads tensors and adds some."""

    def __init__(self, seed: int, opset: int = 13) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.net = Net(opset)
        self.kind = self.random.choice(KINDS)
        self.one_scale = self.random.random() < 0.5
        """Whether all codes have one scale, so that joining takes no rounding."""
        self.tensors: list[Tensor] = []
        self.unread: list[Tensor] = []

    def grown(self) -> RandomModel:
        """Let the graph grow to its random size, and return the model."""
        for index in range(self.random.choice((1, 1, 1, 2, 3))):
            self._input(f"x{index}")
        nodes = self.random.randint(5, MAX_NODES - 8)
        for _ in range(200):
            if len(self.net.nodes) >= nodes:
                break
            self.random.choice(self.steps())(self)
        for index, tensor in enumerate(self.unread):
            self._output(tensor, index)
        if self.random.random() < 0.3:  # one that is read too
            self._output(self.random.choice(self.tensors), len(self.unread))
        return RandomModel(self.net.model(f"graph{self.seed}"), self.kind, self.seed)

    def steps(self) -> Sequence[Callable[[Growth], None]]:
        """Return the steps that may come next, all with equal probability."""
        return _STEPS

    # ------------------------------------------------------------------------------------------ ends, quantization

    def _input(self, name: str) -> None:
        shape = (1, self.random.randint(1, 6), self.random.randint(3, 9), self.random.randint(3, 9))
        if self.random.random() < 0.2:
            shape = (1, self.random.randint(4, 40))
        if self.kind == FLOAT or (self.kind == MIXED and self.random.random() < 0.5):
            self.net.input(name, *shape)
            self._add(Tensor(name, shape))
        else:
            self.net.input(name, *shape, dtype=np.int8)
            scale, zero = self._scale(), self._zero()
            self._add(Tensor(self.net.dequantize(name, scale, zero), shape, scale, zero, name))

    def _output(self, tensor: Tensor, index: int) -> None:
        name = f"y{index}"
        if tensor.codes:
            self.net.output(self.net.quantize(tensor.name, tensor.scale, tensor.zero, out=name), dtype=np.int8)
        else:
            self.net.output(self.net.op("Identity", tensor.name, out=name))

    def _scale(self) -> float:
        return 0.0317 if self.one_scale else float(np.float32(self.random.uniform(0.01, 0.05)))

    def _zero(self) -> int:
        return -7 if self.one_scale else self.random.randint(-30, 30)

    def _add(self, tensor: Tensor) -> None:
        self.tensors.append(tensor)
        self.unread.append(tensor)

    def _result(self, name: str, shape: tuple[int, ...], like: Tensor | None = None) -> None:
        """What a node gives, quantized as the kind of the model wants it; `like`: in that tensor's codes."""
        if self.kind == FLOAT or (self.kind == MIXED and self.random.random() < 0.4):
            self._add(Tensor(name, shape))
            return
        scale, zero = (like.scale, like.zero) if like and like.codes else (self._scale(), self._zero())
        codes = self.net.quantize(name, scale, zero)
        self._add(Tensor(self.net.dequantize(codes, scale, zero), shape, scale, zero, codes))

    def _read(self, *tensors: Tensor) -> None:
        self.unread = [t for t in self.unread if t not in tensors]

    def _any(self, wanted: Callable[[Tensor], bool]) -> Tensor | None:
        """Mostly one that nobody has read; sometimes any."""
        pool = [t for t in self.unread if wanted(t)] if self.random.random() < 0.7 else []
        pool = pool or [t for t in self.tensors if wanted(t)]
        if not pool:
            return None
        chosen = self.random.choice(pool[-6:])
        self._read(chosen)
        return chosen

    def _weights(self, x: Tensor, *shape: int) -> tuple[str, float]:
        """Of a layer, per output channel a row; and their scale if they are codes."""
        spread = 1.5 / np.sqrt(np.prod(shape[1:]))
        values = self.numbers.standard_normal(shape) * spread
        if not x.codes:
            return self.net.const(values), 0.0
        scale = float(np.float32(3 * spread / 127))
        return self.net.dequantize(self.net.const(np.clip(np.rint(values / scale), -127, 127), np.int8), scale), scale

    def _bias(self, x: Tensor, count: int, scale: float) -> str:
        values = self.numbers.standard_normal(count) * 0.3
        if not scale:
            return self.net.const(values)
        step = float(np.float32(x.scale) * np.float32(scale))
        return self.net.dequantize(self.net.const(np.rint(values / step), np.int32), step, 0, np.int32)

    # -------------------------------------------------------------------------------------------------------- steps

    def conv(self) -> None:
        """Add a convolution."""
        x = self._any(lambda t: len(t.shape) == 4)
        if x is None:
            return
        random, (_, channels, *size) = self.random, x.shape
        kernel = [random.choice((1, 1, 2, 3, 3, 5)) for _ in size] if random.random() < 0.5 else [3, 3]
        kernel = [1, 1] if random.random() < 0.25 else kernel
        pads = [random.randint(0, k // 2) for k in (*kernel, *kernel)]
        if random.random() < 0.5:
            pads = [(k - 1) // 2 for k in (*kernel, *kernel)]
        strides = random.choice(([1, 1], [1, 1], [2, 2], [2, 1]))
        padded = [n + pads[a] + pads[a + 2] for a, n in enumerate(size)]
        if any(p < k for p, k in zip(padded, kernel, strict=True)):
            return
        depthwise = random.random() < 0.35
        outputs = channels if depthwise else random.choice((1, 2, 3, 4, 8, 12))
        shape = (x.shape[0], outputs, *((p - k) // s + 1 for p, k, s in zip(padded, kernel, strides, strict=True)))
        if np.prod(shape) > MAX_ELEMENTS:
            return
        weights, scale = self._weights(x, outputs, 1 if depthwise else channels, *kernel)
        operands = [x.name, weights] + ([self._bias(x, outputs, scale)] if random.random() < 0.8 else [])
        attributes = {"kernel_shape": kernel, "pads": pads, "strides": strides, "group": channels if depthwise else 1}
        y = self.net.op("Conv", *operands, **attributes)
        self._result(self.net.op("Relu", y) if random.random() < 0.4 else y, shape)

    def pool(self) -> None:
        """Add a pooling."""
        x = self._any(lambda t: len(t.shape) == 4 and min(t.shape[2:]) >= 2)
        if x is None:
            return
        random = self.random
        if random.random() < 0.2:
            self._result(self.net.op("GlobalAveragePool", x.name), (*x.shape[:2], 1, 1))
            return
        strides = random.choice(([1, 1], [2, 2]))
        shape = (*x.shape[:2], *((n - 2) // s + 1 for n, s in zip(x.shape[2:], strides, strict=True)))
        op = random.choice(("MaxPool", "AveragePool"))
        y = self.net.op(op, x.name, kernel_shape=[2, 2], strides=strides)
        self._result(y, shape, x if op == "MaxPool" else None)

    def join(self) -> None:
        """Add a sum, difference or product of two tensors of one shape, often as a shortcut."""
        a = self._any(lambda t: sum(o.shape == t.shape for o in self.tensors) > 1)
        b = self._any(lambda t: a is not None and t is not a and t.shape == a.shape)
        if a is not None and b is not None:
            y = self.net.op(self.random.choice(("Add", "Add", "Add", "Sub", "Mul")), a.name, b.name)
            self._result(self.net.op("Relu", y) if self.random.random() < 0.3 else y, a.shape)

    def concat(self) -> None:
        """Add a concatenation of tensors."""
        first = self._any(lambda t: True)
        if first is None:
            return
        axis = self.random.choice([a for a in range(len(first.shape)) for _ in range(1 + 3 * (a > 0))])
        rest = first.shape[:axis] + first.shape[axis + 1 :]
        parts = [first]
        for _ in range(self.random.choice((1, 1, 2, 3))):
            part = self._any(
                lambda t: len(t.shape) == len(first.shape) and t.shape[:axis] + t.shape[axis + 1 :] == rest
            )
            parts += [part] if part is not None else []
        size = sum(t.shape[axis] for t in parts)
        shape = (*first.shape[:axis], size, *first.shape[axis + 1 :])
        names = [t.name for t in parts]
        if self.random.random() < 0.1:
            constant = self.numbers.standard_normal((*shape[:axis], 2, *shape[axis + 1 :]))
            names.insert(self.random.randint(0, len(names)), self.net.const(constant))
            shape = (*shape[:axis], size + 2, *shape[axis + 1 :])
        if axis and np.prod(shape) <= MAX_ELEMENTS:
            self._result(self.net.op("Concat", *names, axis=axis), shape, first if self.random.random() < 0.6 else None)

    def split(self) -> None:
        """Add a Split of a tensor."""
        x = self._any(lambda t: max(t.shape) > 1)
        if x is None:
            return
        axis = self.random.choice([a for a, n in enumerate(x.shape) if n > 1])
        cut = self.random.randint(1, x.shape[axis] - 1)
        sizes = [cut, x.shape[axis] - cut]
        outs = [f"t{len(self.net.nodes)}.{i}" for i in range(2)]
        names = self.net.ops("Split", x.name, self.net.const(sizes, np.int64), outs=outs, axis=axis)
        for name, size in zip(names, sizes, strict=True):
            self._result(name, (*x.shape[:axis], size, *x.shape[axis + 1 :]), x)

    def cut(self) -> None:
        """Add a Slice of a tensor."""
        x = self._any(lambda t: max(t.shape) > 2)
        if x is None:
            return
        axis = self.random.choice([a for a, n in enumerate(x.shape) if n > 2])
        start = self.random.randint(0, x.shape[axis] - 2)
        end = self.random.randint(start + 1, x.shape[axis])
        step = self.random.choice((1, 1, 1, 2))
        operands = [self.net.const([v], np.int64) for v in (start, end, axis, step)]
        y = self.net.op("Slice", x.name, *operands)
        self._result(y, (*x.shape[:axis], -(-(end - start) // step), *x.shape[axis + 1 :]), x)

    def reshape(self) -> None:
        """Add a Reshape."""
        x = self._any(lambda t: True)
        if x is None:
            return
        count = x.count
        shapes: list[tuple[int, ...]] = [(1, count)]
        shapes += [(1, c, h, count // (c * h)) for c in (1, 2, 3, 4) for h in (2, 3, 4) if count % (c * h) == 0]
        shape = self.random.choice(shapes)
        if len(shape) == 2 and self.random.random() < 0.5:
            y, shape = self.net.op("Flatten", x.name), (x.shape[0], count // x.shape[0])
        else:
            y = self.net.op("Reshape", x.name, self.net.const(shape, np.int64))
        self._result(y, shape, x)

    def dense(self) -> None:
        """Add a fully connected layer."""
        x = self._any(lambda t: len(t.shape) == 2)
        if x is None:
            return
        outputs = self.random.choice((1, 4, 10, 16, 33))
        weights, scale = self._weights(x, outputs, x.shape[1])
        y = self.net.op("Gemm", x.name, weights, self._bias(x, outputs, scale), transB=1)
        self._result(y, (x.shape[0], outputs))

    def activation(self) -> None:
        """Add an activation function."""
        x = self._any(lambda t: True)
        if x is not None:
            op = self.random.choice(("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Elu", "Neg", "Softmax"))
            self._result(self.net.op(op, x.name), x.shape)

    def turn(self) -> None:
        """Add a Transpose."""
        x = self._any(lambda t: len(t.shape) == 4)
        if x is not None:
            perm = self.random.choice(([0, 2, 3, 1], [0, 3, 1, 2], [0, 1, 3, 2]))
            y = self.net.op("Transpose", x.name, perm=perm)
            self._result(y, tuple(x.shape[a] for a in perm), x)

    def pad(self) -> None:
        """Add a Pad."""
        x = self._any(lambda t: len(t.shape) == 4)
        if x is not None and x.count < MAX_ELEMENTS // 4:
            pads = [0, 0, *(self.random.randint(0, 2) for _ in range(2))] * 2
            y = self.net.op("Pad", x.name, self.net.const(pads, np.int64))
            self._result(y, tuple(n + pads[a] + pads[a + 4] for a, n in enumerate(x.shape)), x)


_STEPS: tuple[Callable[[Growth], None], ...] = (
    *[Growth.conv] * 6,
    *[Growth.join] * 3,
    *[Growth.concat] * 3,
    *[Growth.split] * 2,
    *[Growth.cut] * 2,
    *[Growth.activation] * 2,
    Growth.pool,
    Growth.reshape,
    Growth.dense,
    Growth.turn,
    Growth.pad,
)
