# SPDX-License-Identifier: Apache-2.0
"""Random float networks with the structure of published ones, by seed, for every opset from 9 on.

Each family of networks is a function that adds nodes to a `Layers` and returns the output tensors. Sizes, batch and
attributes are random; weights are scaled so that the variance of activations stays near 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import onnx
from onnx_models import Net

OLDEST_OPSET = 9
NEWEST_OPSET = 23
"""Newest opset of the networks; ONNX Runtime has kernels for all of their operators in it."""
MAX_ELEMENTS = 3000
"""Largest number of elements of a tensor: larger ones only make the tests slower."""
SYMBOL = "T"
"""Name of the free dimension of networks over a length."""


@dataclass(frozen=True)
class Tensor:
    """The name and the shape of a tensor."""

    name: str
    shape: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Return the length of axis 1."""
        return self.shape[1]


@dataclass(frozen=True)
class Network:
    """A float network and the options of a compilation that it is meant for."""

    seed: int
    family: str
    model: onnx.ModelProto
    states: Mapping[str, str] = field(default_factory=dict)
    """The input that carries a state to the next call, by the output that computes it."""
    dims: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Range of each free dimension."""


class Layers(Net):
    """A network under construction; each method adds one layer in the form that the opset defines."""

    def __init__(self, seed: int, opset: int) -> None:
        super().__init__(opset, ir_version=10 if opset < 22 else 11)
        self.random = Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.batch = self.random.choice((1, 1, 1, 2, 3, 4))
        self.states: dict[str, str] = {}
        self.exposed: list[Tensor] = []
        """Intermediate tensors that are outputs besides."""

    # ------------------------------------------------------------------------------------------------- helpers

    def coin(self, probability: float = 0.5) -> bool:
        """Return True with the given probability."""
        return self.random.random() < probability

    def image(self) -> Tensor:
        """Add an input of random size with channels, and return it."""
        channels = self.random.choice((1, 2, 3, 3, 4))
        shape = (self.batch, channels, self.random.randint(6, 15), self.random.randint(6, 15))
        return Tensor(self.input("x", *shape), shape)

    def weights(self, *shape: int, fan_in: int = 0) -> str:
        """Add normal weights of variance 1 / fan_in, by default a convolution's fan-in, and return their name."""
        fan_in = fan_in or max(int(np.prod(shape[1:])), 1)
        return self.const(self.numbers.standard_normal(shape) / np.sqrt(fan_in))

    def bias(self, *shape: int) -> str:
        """Add a random bias and return its name."""
        return self.const(self.numbers.standard_normal(shape) * 0.3)

    def ints(self, *values: int) -> str:
        """Add an int64 constant and return its name."""
        return self.const(values, np.int64)

    def add_op(
        self, op_type: str, x: Tensor, *operands: str, shape: Sequence[int] | None = None, **how: object
    ) -> Tensor:
        """Add a node with one output, which has the shape of `x` unless `shape` is given."""
        y = Tensor(self.op(op_type, x.name, *operands, **how), tuple(x.shape if shape is None else shape))
        if self.coin(0.06):
            self.exposed.append(y)
        return y

    # ------------------------------------------------------------------------------------------------ elementwise

    def activate(self, x: Tensor, kind: str = "") -> Tensor:
        """Add an activation function of the given kind, or of a random one."""
        kinds = (
            "Relu",
            "Relu",
            "Relu6",
            "HardSwish",
            "Sigmoid",
            "Tanh",
            "LeakyRelu",
            "PRelu",
            "SiLU",
            "Elu",
            "Identity",
        )
        kind = kind or self.random.choice(kinds)
        if kind == "Relu6":
            return self.clip(x, 0.0, 6.0)
        if kind == "HardSwish" and self.opset < 14:
            gate = self.clip(self.add_op("Add", x, self.const(3.0)), 0.0, 6.0)
            return self.add_op("Div", self.multiply(x, gate), self.const(6.0))
        if kind == "SiLU":
            return self.multiply(x, self.add_op("Sigmoid", x))
        if kind == "PRelu":
            shape = (x.channels, *[1] * (len(x.shape) - 2)) if len(x.shape) > 2 else (x.shape[-1],)
            return self.add_op("PRelu", x, self.const(self.numbers.uniform(0.05, 0.5, shape)))
        if kind == "Gelu":
            return self.gelu(x)
        return x if kind == "Identity" else self.add_op(kind, x)

    def clip(self, x: Tensor, low: float, high: float) -> Tensor:
        if self.opset < 11:
            return self.add_op("Clip", x, min=low, max=high)
        return self.add_op("Clip", x, self.const(low), self.const(high))

    def gelu(self, x: Tensor) -> Tensor:
        if self.opset >= 20 and self.coin():
            return self.add_op("Gelu", x, approximate=self.random.choice(("none", "tanh")))
        erf = self.add_op("Erf", self.add_op("Div", x, self.const(np.sqrt(2))))
        return self.add_op("Mul", self.multiply(x, self.add_op("Add", erf, self.const(1.0))), self.const(0.5))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        shape = np.broadcast_shapes(a.shape, b.shape)
        return self.add_op("Add", *((a, b.name) if self.coin() else (b, a.name)), shape=shape)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        return self.add_op("Mul", a, b.name, shape=np.broadcast_shapes(a.shape, b.shape))

    # -------------------------------------------------------------------------------------------- windows and layers

    def conv(
        self,
        x: Tensor,
        channels: int,
        kernel: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        group: int = 1,
        pads: Sequence[int] | None = None,
        dilation: int = 1,
    ) -> Tensor:
        """Add a convolution over all axes behind the first two, padded to keep the size unless `pads` are given."""
        axes = len(x.shape) - 2
        kernel = [kernel] * axes if isinstance(kernel, int) else list(kernel)
        stride = [stride] * axes if isinstance(stride, int) else list(stride)
        reach = [dilation * (k - 1) + 1 for k in kernel]
        chosen = [(r - 1) // 2 for r in reach] + [r // 2 for r in reach] if pads is None else list(pads)
        size = [
            (n + a + b - r) // s + 1
            for n, a, b, r, s in zip(x.shape[2:], chosen[:axes], chosen[axes:], reach, stride, strict=True)
        ]
        how: dict[str, object] = {"group": group} if group > 1 else {}
        if pads is None and self.coin(0.25) and max(stride) == 1 and dilation == 1:
            how["auto_pad"] = "SAME_UPPER"
        else:
            how["pads"] = chosen
        how |= {"strides": stride} if max(stride) > 1 or self.coin() else {}
        how |= {"dilations": [dilation] * axes} if dilation > 1 else {}
        how |= {"kernel_shape": kernel} if self.coin() else {}
        weights = [self.weights(channels, x.channels // group, *kernel)]
        weights += [self.bias(channels)] if self.coin(0.8) else []
        return self.add_op("Conv", x, *weights, shape=(x.shape[0], channels, *size), **how)

    def batch_norm(self, x: Tensor) -> Tensor:
        count = x.channels
        scale, var = self.numbers.uniform(0.5, 1.5, count), self.numbers.uniform(0.5, 2, count)
        operands = [self.const(scale), self.bias(count), self.bias(count), self.const(var)]
        return self.add_op("BatchNormalization", x, *operands)

    def conv_norm(
        self, x: Tensor, channels: int, kernel: int | Sequence[int] = 3, stride: int = 1, group: int = 1, **how: object
    ) -> Tensor:
        """Add a convolution followed by a batch normalization."""
        y = self.conv(x, channels, kernel, stride, group, **how)
        return self.batch_norm(y) if self.coin(0.4) else y

    def depthwise(self, x: Tensor, kernel: int = 3, stride: int = 1) -> Tensor:
        return self.conv_norm(x, x.channels, kernel, stride, group=x.channels)

    def pool(self, x: Tensor, kind: str = "", kernel: int = 2, stride: int = 2, padded: bool = False) -> Tensor:
        kind = kind or self.random.choice(("MaxPool", "AveragePool"))
        axes = len(x.shape) - 2
        pads = [self.random.randint(0, kernel // 2) for _ in range(2 * axes)] if padded else [0] * 2 * axes
        if padded:  # the window must fit
            missing = [kernel - n - a - b for n, a, b in zip(x.shape[2:], pads[:axes], pads[axes:], strict=True)]
            pads[axes:] = [b + max(m, 0) for b, m in zip(pads[axes:], missing, strict=True)]
        how: dict[str, object] = {"kernel_shape": [kernel] * axes, "strides": [stride] * axes}
        how |= {"pads": pads} if padded else {}
        if kind == "AveragePool" and padded:
            how["count_include_pad"] = self.random.randint(0, 1)
        size = [
            (n + a + b - kernel) // stride + 1 for n, a, b in zip(x.shape[2:], pads[:axes], pads[axes:], strict=True)
        ]
        return self.add_op(kind, x, shape=(*x.shape[:2], *size), **how)

    def global_mean(self, x: Tensor, flat: bool = False) -> Tensor:
        """Add the mean over all axes behind the first two; `flat` drops these axes."""
        axes = list(range(2, len(x.shape)))
        if self.coin():
            y = self.add_op("GlobalAveragePool", x, shape=(*x.shape[:2], *[1] * len(axes)))
            return self.flatten(y) if flat else y
        shape = x.shape[:2] if flat else (*x.shape[:2], *[1] * len(axes))
        return self.reduce("ReduceMean", x, axes, shape, keepdims=int(not flat))

    def reduce(self, op_type: str, x: Tensor, axes: Sequence[int], shape: Sequence[int], keepdims: int) -> Tensor:
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.add_op(op_type, x, self.ints(*axes), shape=shape, keepdims=keepdims)
        return self.add_op(op_type, x, shape=shape, axes=list(axes), keepdims=keepdims)

    def dense(self, x: Tensor, units: int, bias: bool = True) -> Tensor:
        """Add a fully connected layer over the last axis."""
        depth = x.shape[-1]
        if len(x.shape) == 2 and self.coin():
            how: dict[str, object] = {"transB": 1} if self.coin() else {}
            weights = self.weights(*((units, depth) if how else (depth, units)), fan_in=depth)
            operands = [weights, self.bias(units)] if bias or self.opset < 11 else [weights]
            return self.add_op("Gemm", x, *operands, shape=(x.shape[0], units), **how)
        y = self.add_op("MatMul", x, self.weights(depth, units, fan_in=depth), shape=(*x.shape[:-1], units))
        return self.add_op("Add", y, self.bias(units)) if bias else y

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return self.add_op("MatMul", a, b.name, shape=(*batch, a.shape[-2], b.shape[-1]))

    def layer_norm(self, x: Tensor) -> Tensor:
        units = x.shape[-1]
        scale, bias = self.const(self.numbers.uniform(0.5, 1.5, units)), self.bias(units)
        if self.opset >= 17 and self.coin(0.7):
            return self.add_op("LayerNormalization", x, scale, bias, axis=-1)
        one = (*x.shape[:-1], 1)
        centred = self.add_op("Sub", x, self.reduce("ReduceMean", x, [-1 % len(x.shape)], one, 1).name)
        square = self.add_op("Mul", centred, centred.name)
        variance = self.reduce("ReduceMean", square, [len(x.shape) - 1], one, 1)
        deviation = self.add_op("Sqrt", self.add_op("Add", variance, self.const(1e-5)))
        scaled = self.add_op("Mul", self.add_op("Div", centred, deviation.name), scale)
        return self.add_op("Add", scaled, bias)

    def softmax(self, x: Tensor) -> Tensor:
        """Add a Softmax over the last axis, which means the same in all opsets."""
        return self.add_op("Softmax", x, axis=len(x.shape) - 1 if self.opset < 13 or self.coin() else -1)

    def conv_transpose(self, x: Tensor, channels: int, kernel: int = 2, stride: int = 2) -> Tensor:
        axes = len(x.shape) - 2
        pads = [self.random.randint(0, (kernel - 1) // 2) for _ in range(2 * axes)]
        more = [self.random.randint(0, stride - 1) if self.coin(0.4) else 0 for _ in range(axes)]
        size = [
            (n - 1) * stride - a - b + kernel + m
            for n, a, b, m in zip(x.shape[2:], pads[:axes], pads[axes:], more, strict=True)
        ]
        how: dict[str, object] = {"strides": [stride] * axes, "pads": pads}
        how |= {"output_padding": more} if any(more) else {}
        fan_in = x.channels * max(kernel // stride, 1) ** axes
        operands = [self.weights(x.channels, channels, *[kernel] * axes, fan_in=fan_in)]
        operands += [self.bias(channels)] if self.coin(0.7) else []
        return self.add_op("ConvTranspose", x, *operands, shape=(x.shape[0], channels, *size), **how)

    def upsample(self, x: Tensor) -> Tensor:
        """Add an upsampling to twice the size, nearest-neighbor or linear."""
        axes = len(x.shape) - 2
        scales = self.const([1.0, 1.0, *[2.0] * axes])
        shape = (*x.shape[:2], *(2 * n for n in x.shape[2:]))
        if self.opset < 11:
            op_type = "Upsample" if self.opset < 10 else "Resize"
            return self.add_op(op_type, x, scales, shape=shape, mode="nearest" if self.coin() else "linear")
        how = self.random.choice(
            (
                {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
                {"mode": "nearest"},
                {"mode": "linear"},
                {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
                {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
            )
        )
        roi = self.const(np.zeros(0)) if self.opset < 13 else ""
        if self.coin():
            empty = self.const(np.zeros(0)) if self.opset < 13 else ""
            return self.add_op("Resize", x, roi, empty, self.ints(*shape), shape=shape, **how)
        return self.add_op("Resize", x, roi, scales, shape=shape, **how)

    # ------------------------------------------------------------------------------------------------- movement

    def flatten(self, x: Tensor) -> Tensor:
        shape = (x.shape[0], int(np.prod(x.shape[1:])))
        if self.coin():
            return self.add_op("Flatten", x, shape=shape)
        return self.reshape(x, shape)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        told = list(shape)
        if self.coin(0.3):
            told[self.random.randrange(len(told))] = -1
        return self.add_op("Reshape", x, self.ints(*told), shape=shape)

    def transpose(self, x: Tensor, *perm: int) -> Tensor:
        return self.add_op("Transpose", x, shape=[x.shape[a] for a in perm], perm=list(perm))

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        axis %= len(tensors[0].shape)
        shape = list(tensors[0].shape)
        shape[axis] = sum(t.shape[axis] for t in tensors)
        name = self.op("Concat", *(t.name for t in tensors), axis=axis)
        return Tensor(name, tuple(shape))

    def split(self, x: Tensor, axis: int, sizes: Sequence[int]) -> list[Tensor]:
        outs = [f"{x.name}.{len(self.nodes)}.{i}" for i in range(len(sizes))]
        if self.opset < 13:
            self.ops("Split", x.name, outs=outs, axis=axis, split=list(sizes))
        else:
            self.ops("Split", x.name, self.ints(*sizes), outs=outs, axis=axis)
        return [Tensor(o, (*x.shape[:axis], n, *x.shape[axis + 1 :])) for o, n in zip(outs, sizes, strict=True)]

    def cut(self, x: Tensor, axis: int, begin: int, end: int, step: int = 1) -> Tensor:
        """Add a Slice of one axis; steps need opset 10."""
        step = step if self.opset >= 10 else 1
        shape = (*x.shape[:axis], len(range(begin, end, step)), *x.shape[axis + 1 :])
        if self.opset < 10:
            return self.add_op("Slice", x, shape=shape, axes=[axis], starts=[begin], ends=[end])
        return self.add_op("Slice", x, *(self.ints(v) for v in (begin, end, axis, step)), shape=shape)

    def crop(self, x: Tensor, like: Tensor) -> Tensor:
        """Cut a tensor to the size of another one from the third axis on."""
        for axis in range(2, len(x.shape)):
            spare = x.shape[axis] - like.shape[axis]
            if spare > 0:
                begin = self.random.randint(0, spare)
                x = self.cut(x, axis, begin, begin + like.shape[axis])
            elif spare < 0:
                before = self.random.randint(0, -spare)
                pads = [0] * 2 * len(x.shape)
                pads[axis], pads[len(x.shape) + axis] = before, -spare - before
                x = self.pad(x, pads)
        return x

    def pad(self, x: Tensor, pads: Sequence[int], value: float = 0.0) -> Tensor:
        rank = len(x.shape)
        shape = [n + pads[a] + pads[a + rank] for a, n in enumerate(x.shape)]
        mode = self.random.choice(("constant", "constant", "edge", "reflect"))
        if mode == "reflect" and any(max(pads[a], pads[a + rank]) >= n for a, n in enumerate(x.shape)):
            mode = "constant"
        if self.opset < 11:
            return self.add_op("Pad", x, shape=shape, pads=list(pads), mode=mode, value=value)
        operands = [self.ints(*pads), *([self.const(value)] if value else [])]
        return self.add_op("Pad", x, *operands, shape=shape, mode=mode)

    def squeeze(self, x: Tensor, axis: int) -> Tensor:
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        if self.opset < 13:
            return self.add_op("Squeeze", x, shape=shape, axes=[axis])
        return self.add_op("Squeeze", x, self.ints(axis), shape=shape)

    def unsqueeze(self, x: Tensor, axis: int) -> Tensor:
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        if self.opset < 13:
            return self.add_op("Unsqueeze", x, shape=shape, axes=[axis])
        return self.add_op("Unsqueeze", x, self.ints(axis), shape=shape)

    # ------------------------------------------------------------------------------------------------- recurrence

    def recurrent(
        self, x: Tensor, hidden: int, kind: str = "", initial: Sequence[Tensor] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Add a GRU, LSTM or RNN over [steps, batch, units].

        Returns:
            All outputs as [steps, batch, directions · hidden], and the last states.
        """
        steps, batch, units = x.shape
        kind = kind or self.random.choice(("GRU", "LSTM", "GRU", "LSTM", "RNN"))
        gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[kind]
        direction = "forward" if initial else self.random.choice(("forward", "forward", "reverse", "bidirectional"))
        count = 2 if direction == "bidirectional" else 1
        how: dict[str, object] = {"hidden_size": hidden, "direction": direction}
        how |= {"linear_before_reset": 1} if kind == "GRU" and self.coin() else {}
        operands = [
            self.weights(count, gates * hidden, units, fan_in=units),
            self.weights(count, gates * hidden, hidden, fan_in=hidden),
            self.bias(count, 2 * gates * hidden) if self.coin(0.8) else "",
        ]
        operands += ["", *(t.name for t in initial)] if initial else []
        while operands[-1] == "":
            operands.pop()
        number = len(self.nodes)
        outs = [f"steps{number}", f"last{number}", *([f"cell{number}"] if kind == "LSTM" else [])]
        self.ops(kind, x.name, *operands, outs=outs, **how)
        last = [Tensor(name, (count, batch, hidden)) for name in outs[1:]]
        all_steps = Tensor(outs[0], (steps, count, batch, hidden))
        if count == 1:
            return self.squeeze(all_steps, 1), last
        return self.reshape(self.transpose(all_steps, 0, 2, 1, 3), (steps, batch, count * hidden)), last


# ----------------------------------------------------------------------------------------------------- families


def squeeze_excite(b: Layers, x: Tensor) -> Tensor:
    """Add squeeze-and-excite: each channel is scaled by a function of the means of all channels."""
    y = b.global_mean(x)
    y = b.activate(b.conv(y, max(x.channels // 2, 1), 1), "Relu")
    y = b.conv(y, x.channels, 1)
    if b.coin():
        return b.multiply(x, b.add_op("Sigmoid", y))
    return b.multiply(x, b.add_op("HardSigmoid", y, **({"alpha": 1 / 6} if b.coin() else {})))


def classify(b: Layers, x: Tensor) -> list[Tensor]:
    """Add a classifier head and return its outputs."""
    y = b.dense(b.global_mean(x, flat=True), b.random.randint(2, 10))
    return [b.softmax(y) if b.coin(0.4) else y]


def residual(b: Layers) -> list[Tensor]:
    """Add a ResNet: blocks of two or three convolutions beside a shortcut."""
    x = b.activate(b.conv_norm(b.image(), b.random.choice((4, 5, 8)), b.random.choice((3, 5))), "Relu")
    if b.coin(0.3):
        x = b.pool(x, "MaxPool", 3, 2, padded=True)
    for _ in range(b.random.randint(1, 3)):
        channels, stride = b.random.choice((x.channels, x.channels, x.channels + 3)), b.random.choice((1, 1, 2))
        y = b.activate(b.conv_norm(x, b.random.choice((4, 7, channels)), b.random.choice((1, 3)), stride))
        y = b.conv_norm(y, channels, 3)
        same = stride == 1 and channels == x.channels
        shortcut = x if same and b.coin(0.8) else b.conv_norm(x, channels, 1, stride, pads=[0] * 4)
        x = b.activate(b.add(y, b.crop(shortcut, y)))
    return classify(b, x)


def inverted_residual(b: Layers) -> list[Tensor]:
    """Add a MobileNetV2 or V3: expansion, depthwise convolution, optional squeeze-and-excite, projection, sum."""
    x = b.activate(b.conv_norm(b.image(), b.random.choice((4, 6, 8)), 3, b.random.choice((1, 2))), "Relu6")
    kind = b.random.choice(("Relu6", "HardSwish", "Relu"))
    for _ in range(b.random.randint(1, 3)):
        channels, stride = b.random.choice((x.channels, x.channels + 2)), b.random.choice((1, 1, 2))
        y = b.activate(b.conv_norm(x, x.channels * b.random.choice((2, 3)), 1), kind)
        y = b.activate(b.depthwise(y, b.random.choice((3, 5)), stride), kind)
        y = squeeze_excite(b, y) if b.coin(0.4) else y
        y = b.conv_norm(y, channels, 1)
        x = b.add(x, y) if y.shape == x.shape else y
    return classify(b, x)


def pyramid(b: Layers) -> list[Tensor]:
    """Add a feature pyramid: three sizes, from the smallest back to the largest."""
    x = b.activate(b.conv_norm(b.image(), 4, 3))
    stages = [x]
    for channels in (6, 8)[: b.random.randint(1, 2)]:
        x = b.activate(b.conv_norm(x, channels, 3, 2))
        stages.append(x)
    width = b.random.choice((4, 6))
    laterals = [b.conv(s, width, 1) for s in stages]
    top, outputs = laterals[-1], []
    for lateral in [*reversed(laterals[:-1]), None]:
        outputs.append(b.conv(top, b.random.choice((2, width)), b.random.choice((1, 3))))
        if lateral is not None:
            top = b.add(lateral, b.crop(b.upsample(top), lateral))
    return [b.add_op("Sigmoid", o) if b.coin(0.3) else o for o in outputs]


def u_net(b: Layers) -> list[Tensor]:
    """Add an encoder and a decoder with skip connections that are concatenated."""
    x, skips, channels = b.image(), [], b.random.choice((3, 4))
    for level in range(b.random.randint(1, 2)):
        x = b.activate(b.conv_norm(x, channels * (level + 1), 3), "Relu")
        skips.append(x)
        x = b.pool(x, "MaxPool") if b.coin(0.6) else b.pool(x, "", 3, 2, padded=True)
    x = b.activate(b.conv(x, channels * 3, 3))
    for skip in reversed(skips):
        up = b.conv_transpose(x, skip.channels, b.random.choice((2, 3, 4))) if b.coin() else b.upsample(x)
        x = b.concat([skip, b.crop(up, skip)], 1)
        x = b.activate(b.conv_norm(x, skip.channels, 3), "Relu")
    y = b.conv(x, b.random.choice((1, 3)), 1)
    return [b.add_op("Sigmoid", y) if b.coin() else y]


def decoder(b: Layers) -> list[Tensor]:
    """Add a generator: transposed convolutions behind a vector."""
    depth = b.random.randint(4, 12)
    x = Tensor(b.input("x", b.batch, depth), (b.batch, depth))
    channels, height, width = b.random.choice((4, 6)), b.random.randint(2, 4), b.random.randint(2, 4)
    x = b.activate(b.dense(x, channels * height * width), "Relu")
    x = b.reshape(x, (b.batch, channels, height, width))
    for _ in range(b.random.randint(1, 2)):
        x = b.conv_transpose(x, b.random.choice((3, 4)), b.random.choice((2, 3, 4)), b.random.choice((1, 2, 2)))
        x = b.activate(b.batch_norm(x) if b.coin(0.4) else x)
    return [b.activate(b.conv(x, b.random.choice((1, 3)), 3), "Tanh")]


def attend(b: Layers, x: Tensor, mask: str) -> Tensor:
    """Add multi-head self-attention over [batch, steps, units], with the mask added to the scores."""
    batch, steps, units = x.shape
    heads = b.random.choice([h for h in (1, 2, 3, 4) if units % h == 0])
    parts = []
    fused = b.split(b.dense(x, 3 * units), 2, [units] * 3) if b.coin(0.4) else [b.dense(x, units) for _ in range(3)]
    for index, part in enumerate(fused):
        part = b.reshape(part, (batch, steps, heads, units // heads))
        parts.append(b.transpose(part, 0, 2, 3, 1) if index == 1 else b.transpose(part, 0, 2, 1, 3))
    scores = b.matmul(parts[0], parts[1])
    root = np.sqrt(units // heads)
    scores = b.add_op("Div", scores, b.const(root)) if b.coin() else b.add_op("Mul", scores, b.const(1 / root))
    if mask:
        scores = b.add_op("Add", scores, mask)
    y = b.transpose(b.matmul(b.softmax(scores), parts[2]), 0, 2, 1, 3)
    return b.dense(b.reshape(y, (batch, steps, units)), units)


def attention(b: Layers) -> list[Tensor]:
    """Add Transformer blocks, with no mask, a causal one, a padding mask as input, or one computed by Where."""
    steps, units = b.random.randint(3, 9), b.random.choice((4, 6, 8, 12))
    x = Tensor(b.input("x", b.batch, steps, units), (b.batch, steps, units))
    mask, kind = "", b.random.choice(("", "causal", "padding", "where"))
    low = b.random.choice((-10.0, -1e4, float(np.finfo(np.float32).min)))
    if kind == "causal":
        mask = b.const(np.triu(np.full((steps, steps), low), 1))
    elif kind == "padding":
        mask = b.input("mask", b.batch, 1, 1, steps)
    elif kind == "where":
        kept = b.input("kept", b.batch, 1, 1, steps, dtype=np.bool_)
        mask = b.op("Where", kept, b.const(0.0), b.const(low))
    if b.coin(0.6):
        x = b.add_op("Add", x, b.bias(steps, units))
    before = b.coin()
    for _ in range(b.random.randint(1, 2)):
        y = attend(b, b.layer_norm(x) if before else x, mask)
        x = b.add(x, y) if before else b.layer_norm(b.add(x, y))
        y = b.dense(
            b.activate(b.dense(b.layer_norm(x) if before else x, 2 * units), b.random.choice(("Gelu", "Relu"))), units
        )
        x = b.add(x, y) if before else b.layer_norm(b.add(x, y))
    if b.coin():
        return [x]
    y = b.squeeze(b.cut(x, 1, 0, 1), 1) if b.coin() else b.reduce("ReduceMean", x, [1], (b.batch, units), 0)
    return [b.dense(y, b.random.randint(2, 6))]


def recurrent_stack(b: Layers) -> list[Tensor]:
    """Add one to three recurrent layers over a sequence, and a dense layer on all steps or on the last one."""
    steps, units = b.random.randint(1, 9), b.random.randint(1, 8)
    x = Tensor(b.input("x", steps, b.batch, units), (steps, b.batch, units))
    outputs = []
    for _ in range(b.random.randint(1, 3)):
        x, last = b.recurrent(x, b.random.randint(2, 8))
        outputs += last if b.coin(0.3) else []
    if b.coin():
        return [b.dense(x, b.random.randint(1, 6)), *outputs]
    return [b.dense(b.squeeze(b.cut(x, 0, steps - 1, steps), 0), b.random.randint(1, 6)), *outputs]


def recurrent_step(b: Layers) -> list[Tensor]:
    """Add one frame of a stream: a convolution or dense layer, then recurrent layers with states kept between calls."""
    units, frames = b.random.randint(2, 8), b.random.choice((1, 1, 2, 3))
    x = Tensor(b.input("x", frames, b.batch, units), (frames, b.batch, units))
    y, outputs = b.activate(b.dense(x, b.random.randint(2, 8))), []
    for layer in range(b.random.randint(1, 2)):
        kind, hidden = b.random.choice(("GRU", "LSTM")), b.random.randint(2, 7)
        names = [f"h{layer}", *([f"c{layer}"] if kind == "LSTM" else [])]
        initial = [Tensor(b.input(n, 1, b.batch, hidden), (1, b.batch, hidden)) for n in names]
        y, last = b.recurrent(y, hidden, kind, initial)
        b.states |= {t.name: n for t, n in zip(last, names, strict=True)}
        outputs += last
    return [b.dense(y, b.random.randint(1, 5)), *outputs]


def detector(b: Layers) -> list[Tensor]:
    """Add a single-shot detector: boxes and classes of several feature maps, concatenated and decoded."""
    x, classes = b.activate(b.conv_norm(b.image(), 6, 3, 2)), b.random.randint(1, 4)
    boxes, scores = [], []
    for index in range(b.random.randint(1, 2)):
        if index:
            x = b.activate(b.conv_norm(x, 8, 3, 2))
        anchors = b.random.randint(1, 3)
        for units, found in ((4, boxes), (classes, scores)):
            y = b.transpose(b.conv(x, anchors * units, b.random.choice((1, 3))), 0, 2, 3, 1)
            found.append(b.reshape(y, (b.batch, y.shape[1] * y.shape[2] * anchors, units)))
    box = b.concat(boxes, 1) if len(boxes) > 1 else boxes[0]
    score = b.concat(scores, 1) if len(scores) > 1 else scores[0]
    score = b.add_op("Sigmoid", score) if b.coin() else b.softmax(score)
    if b.coin(0.6):
        count = box.shape[1]
        center, size = b.split(box, 2, [2, 2])
        anchors_of = b.const(b.numbers.uniform(0.2, 1, (count, 2)))
        center = b.add_op("Add", b.add_op("Mul", center, anchors_of), b.const(b.numbers.uniform(0, 1, (1, count, 2))))
        size = b.add_op("Mul", b.add_op("Exp", b.add_op("Mul", size, b.const(0.2))), anchors_of)
        box = b.concat([center, size], 2)
    return [box, score]


def temporal(b: Layers) -> list[Tensor]:
    """Add a temporal convolutional network: dilated causal convolutions beside shortcuts, over one axis."""
    channels, steps = b.random.randint(1, 5), b.random.randint(8, 24)
    x = Tensor(b.input("x", b.batch, channels, steps), (b.batch, channels, steps))
    for index in range(b.random.randint(1, 3)):
        width, kernel, dilation = b.random.choice((4, 6, 8)), b.random.choice((2, 3)), 2**index
        reach = dilation * (kernel - 1)
        if b.coin():
            padded = b.pad(x, [0, 0, reach, 0, 0, 0])
            y = b.conv(padded, width, kernel, pads=[0, 0], dilation=dilation)
        else:
            y = b.conv(x, width, kernel, pads=[reach, 0], dilation=dilation)
        y = b.activate(y)
        x = b.add(y, x if x.channels == width else b.conv(x, width, 1))
    if b.coin():
        return [b.conv(x, 2, 1)]
    return [b.dense(b.squeeze(b.cut(x, 2, steps - 1, steps), 2), 3)]


def mixer(b: Layers) -> list[Tensor]:
    """Add an MLP mixer: dense layers over tokens and over channels in turn."""
    tokens, units = b.random.randint(3, 9), b.random.choice((4, 6, 8))
    if b.coin():
        image = b.image()
        y = b.conv(image, units, 3, 3, pads=[0] * 4)
        tokens = y.shape[2] * y.shape[3]
        x = b.transpose(b.reshape(y, (b.batch, units, tokens)), 0, 2, 1)
    else:
        x = Tensor(b.input("x", b.batch, tokens, units), (b.batch, tokens, units))
    for _ in range(b.random.randint(1, 2)):
        y = b.transpose(b.layer_norm(x), 0, 2, 1)
        y = b.dense(b.activate(b.dense(y, 2 * tokens), "Gelu"), tokens)
        x = b.add(x, b.transpose(y, 0, 2, 1))
        x = b.add(x, b.dense(b.activate(b.dense(b.layer_norm(x), 2 * units), "Gelu"), units))
    return [b.dense(b.reduce("ReduceMean", x, [1], (b.batch, units), 0), b.random.randint(2, 6))]


def inception(b: Layers) -> list[Tensor]:
    """Add branches of convolutions and pools whose results are concatenated, behind a standardized input."""
    x = b.image()
    if b.coin(0.6):
        mean, deviation = b.numbers.uniform(-2, 2, (x.channels, 1, 1)), b.numbers.uniform(0.5, 3, (x.channels, 1, 1))
        x = b.add_op("Sub", x, b.const(mean))
        x = b.add_op("Div", x, b.const(deviation)) if b.coin() else b.add_op("Mul", x, b.const(1 / deviation))
    for _ in range(b.random.randint(1, 2)):
        parts = [b.activate(b.conv_norm(x, b.random.choice((2, 3, 5)), 1))]
        for kernel in b.random.sample(((3, 3), (1, 5), (5, 1), (5, 5)), b.random.randint(1, 2)):
            parts.append(b.activate(b.conv_norm(x, b.random.choice((2, 4)), kernel)))
        padded = b.pad(x, [0, 0, 1, 1, 0, 0, 1, 1])
        pooled = b.pool(padded, "", 3, 1) if b.coin() else b.crop(b.pool(padded, "", 3, 1, padded=True), x)
        parts.append(b.conv(pooled, 3, 1) if b.coin() else pooled)
        x = b.concat([p for p in parts if p.shape[2:] == parts[0].shape[2:]], 1)
        x = b.pool(x, "", 2, 2) if min(x.shape[2:]) > 3 and b.coin() else x
    return classify(b, x)


def shuffled(b: Layers) -> list[Tensor]:
    """Add a ShuffleNet: halves of the channels, grouped convolutions, and a permutation of channels."""
    x = b.activate(b.conv_norm(b.image(), 8, 3, b.random.choice((1, 2))), "Relu")
    for _ in range(b.random.randint(1, 3)):
        batch, channels, height, width = x.shape
        kept, y = b.split(x, 1, [channels // 2, channels - channels // 2])
        y = b.activate(b.conv_norm(y, y.channels, 1, group=b.random.choice((1, 2))), "Relu")
        y = b.activate(b.conv_norm(b.depthwise(y), y.channels, 1, group=2), "Relu")
        y = b.concat([kept, y], 1)
        y = b.transpose(b.reshape(y, (batch, 2, channels // 2, height, width)), 0, 2, 1, 3, 4)
        x = b.reshape(y, (batch, channels, height, width))
    return classify(b, x)


FAMILIES: Mapping[str, Callable[[Layers], list[Tensor]]] = {
    f.__name__: f
    for f in (
        *(residual, inverted_residual, pyramid, u_net, decoder, attention, recurrent_stack, recurrent_step, detector),
        *(temporal, mixer, inception, shuffled),
    )
}
"""Functions that add a network of one family, by the name of the family."""


def structured_network(seed: int, opset: int = 0) -> Network:
    """Return the float network of a seed, of a random opset unless one is given."""
    random = Random(f"network {seed}")
    family = random.choice(list(FAMILIES))
    return network_of(seed, family, opset or random.randint(OLDEST_OPSET, NEWEST_OPSET))


def network_of(seed: int, family: str, opset: int) -> Network:
    """Return the network of a seed, of a given family and opset."""
    layers = Layers(seed, opset)
    outputs = FAMILIES[family](layers)
    names = {t.name for t in outputs}
    read = {name for node in layers.nodes for name in node.input}
    outputs += [t for t in {t.name: t for t in layers.exposed}.values() if t.name not in names and t.name in read]
    inputs = {value.name for value in layers.inputs}
    layers.output(*dict.fromkeys(t.name for t in outputs if t.name not in inputs))
    return Network(seed, family, layers.model(f"{family}{seed}"), layers.states)
