# SPDX-License-Identifier: Apache-2.0
"""Random layers of every kind by seed, many in one model, each between inputs and outputs of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from onnx_models import Net
from test_dsp_conv import FourBits, Layers, Tensor, TwoBits
from test_overlaps import Layer, Reals

from mcugen.hir.types import Array

Draw = np.random.Generator
"""A random number generator."""


class Halves(Reals):
    """Layers of float32 whose weights are float16 numbers."""

    def layer(self, x: Tensor, weights: np.ndarray, out: str = "", gain: float = 1.0, **attributes: object) -> Tensor:
        """Add a layer with rounded weights."""
        near = (gain * weights / 64).astype(np.float16).astype(np.float64)
        return super().layer(x, near * 64, out, **attributes)


class NineBits(Layers):
    """Layers with uint8 weights and a zero point per channel, so that weight minus zero point has nine bits."""

    def per_channel(self, codes: np.ndarray, scales: np.ndarray, dtype: type = np.int8) -> str:
        """Return dequantized integers; weights are spread over the whole range of uint8."""
        if dtype is not np.int8:
            return super().per_channel(codes, scales, dtype)
        spread = np.clip(codes.astype(np.int32) + 128, 0, 255)
        zeros = self.net.const(self.random.integers(99, 151, len(codes)), np.uint8)
        constants = self.net.const(spread, np.uint8), self.net.const(scales)
        return self.net.op("DequantizeLinear", *constants, zeros, axis=0)


WEIGHTED: dict[str, Callable[..., Layers]] = {
    "s8": Layers,
    "s16": partial(Layers, np.int16),
    "s8_to_s16": partial(Layers, np.int8, result=np.int16),
    "f32": Reals,
    "s9": NineBits,
    "s4": FourBits,
    "s4_to_s16": partial(FourBits, np.int8, result=np.int16),
    "s2": TwoBits,
    "f16": Halves,
}
"""Builders of layers with weights, by the types of activations and weights."""

CHANNELS = (*range(1, 18), 4, 8, 16, 16, 24, 32)
"""Channel counts that layers are drawn from: all up to 17, and common ones more often."""


def weighted_layers(kind: str, count: int, random: Draw) -> Net:
    """Return a network of `count` convolutions and dense layers with one kind of weights (a key of WEIGHTED)."""
    model = WEIGHTED[kind](seed=int(random.integers(1 << 30))) if kind not in ("f32", "f16") else WEIGHTED[kind]()
    for number in range(count):
        _FORMS[number % len(_FORMS)](random).add(model, f"y{number}")
    return model.net


def _pick(random: Draw, values: Sequence[int]) -> int:
    return int(random.choice(np.asarray(values)))


def _batch(random: Draw) -> int:
    return _pick(random, (1, 2, 3, 4))


def _side(random: Draw, most: int = 9) -> int:
    """Return a height or width; small ones, where ends are near, are more frequent."""
    return int(random.integers(1, _pick(random, (2, 4, most)) + 1))


def _kernel(random: Draw, most: int = 5) -> tuple[int, int]:
    return int(random.integers(1, most + 1)), int(random.integers(1, most + 1))


def _fitting(random: Draw, layer: Layer) -> Layer:
    """Return the layer with an image that is large enough for a window."""
    assert layer.kernel is not None
    spans = [d * (k - 1) + 1 for d, k in zip(layer.dilations, layer.kernel, strict=True)]
    pads = (layer.pads[0] + layer.pads[2], layer.pads[1] + layer.pads[3])
    height, width = (
        max(size, span - pad, 1) for size, span, pad in zip((layer.height, layer.width), spans, pads, strict=True)
    )
    return replace(layer, height=height, width=width)


def _windows(random: Draw) -> Layer:
    """Return any convolution."""
    kernel = _kernel(random)
    groups = _pick(random, (1, 1, 1, 2, 3))
    pads = tuple(int(random.integers(0, k)) for k in (*kernel, *kernel))
    return _fitting(
        random,
        Layer(
            _side(random),
            _side(random),
            groups * _pick(random, CHANNELS[: 8 if groups > 1 else None]),
            groups * _pick(random, CHANNELS[: 8 if groups > 1 else None]),
            kernel,
            (_pick(random, (1, 1, 2, 3)), _pick(random, (1, 1, 2, 3))),
            pads,  # type: ignore[arg-type]
            (_pick(random, (1, 1, 1, 2, 3)), _pick(random, (1, 1, 1, 2, 3))),
            groups,
            _batch(random),
        ),
    )


def _pixels(random: Draw) -> Layer:
    """Return a 1×1 convolution."""
    stride = _pick(random, (1, 1, 1, 2))
    return Layer(
        _side(random),
        _side(random),
        _pick(random, CHANNELS),
        _pick(random, CHANNELS),
        (1, 1),
        (stride, stride),
        batch=_batch(random),
    )


def _rows(random: Draw) -> Layer:
    """Return a dense layer."""
    return Layer(
        _pick(random, (1, 1, 2, 3, 4)), in_c=_pick(random, CHANNELS), out_c=_pick(random, CHANNELS), kernel=None
    )


def _filters(random: Draw) -> Layer:
    """Return a depthwise convolution of any window."""
    channels, kernel = _pick(random, CHANNELS[1:]), _kernel(random)
    pads = tuple(int(random.integers(0, k)) for k in (*kernel, *kernel))
    return _fitting(
        random,
        Layer(
            _side(random),
            _side(random, 12),
            channels,
            channels,
            kernel,
            (_pick(random, (1, 1, 2, 3)), _pick(random, (1, 1, 2, 3))),
            pads,  # type: ignore[arg-type]
            (_pick(random, (1, 1, 2)), _pick(random, (1, 1, 2, 3))),
            channels,
            _batch(random),
        ),
    )


def _filters_of_three(random: Draw) -> Layer:
    """Return a depthwise 3×3 convolution as networks have them."""
    channels, stride = _pick(random, CHANNELS[1:]), _pick(random, (1, 2))
    pads = tuple(_pick(random, (0, 1, 1)) for _ in range(4))
    size = int(random.integers(3, 10)), int(random.integers(3, 14))
    return Layer(*size, channels, channels, (3, 3), (stride, stride), pads, group=channels, batch=_batch(random))  # type: ignore[arg-type]


def _filters_of_a_line(random: Draw) -> Layer:
    """Return a depthwise convolution over time."""
    channels, taps = 4 * _pick(random, (1, 2, 3, 4)), _pick(random, (2, 3, 3, 3, 4, 5, 7))
    dilation = _pick(random, (1, 1, 2))
    left, right = (int(random.integers(0, taps)) for _ in range(2))
    return _fitting(
        random,
        Layer(
            1,
            int(random.integers(3, 25)),
            channels,
            channels,
            (1, taps),
            (1, _pick(random, (1, 1, 1, 2))),
            (0, left * dilation, 0, right * dilation),
            (1, dilation),
            channels,
            _batch(random),
        ),
    )


def _three_by_three(random: Draw) -> Layer:
    """Return a 3×3 convolution of many channels, as Winograd's method and kernels of columns take them."""
    pads = tuple(_pick(random, (0, 1, 1)) for _ in range(4))
    stride = _pick(random, (1, 1, 1, 2))
    size = int(random.integers(3, 9)), int(random.integers(4, 12))
    channels = _pick(random, (4, 8, 12, 16, 16, 16, 32)), _pick(random, (4, 8, 8, 12, 16, 20, 2, 6))
    return Layer(*size, *channels, (3, 3), (stride, stride), pads, batch=_batch(random))  # type: ignore[arg-type]


def _few_elements(random: Draw) -> Layer:
    """Return a convolution whose window has few elements, or whose output has one channel."""
    if random.integers(2):
        pads = tuple(_pick(random, (0, 1)) for _ in range(4))
        size = int(random.integers(3, 8)), int(random.integers(3, 9))
        channels = 4 * _pick(random, (1, 2, 3, 4))
        return Layer(*size, channels, _pick(random, (1, 2, 3)), (3, 3), pads=pads, batch=_batch(random))  # type: ignore[arg-type]
    size = int(random.integers(3, 8)), int(random.integers(3, 9))
    return Layer(
        *size, _pick(random, (1, 2, 3, 4)), _pick(random, CHANNELS), (3, 3), pads=(1, 1, 1, 1), batch=_batch(random)
    )


_FORMS = (
    _windows,
    _pixels,
    _filters,
    _filters_of_three,
    _three_by_three,
    _rows,
    _filters_of_a_line,
    _few_elements,
    _windows,
    _pixels,
)


@dataclass(frozen=True)
class Typed:
    """Shape and element type of an input that has another type than the node's other inputs."""

    kind: type
    shape: tuple[int, ...]


class Mixed:
    """A network of independent layers without weights."""

    def __init__(self, random: Draw) -> None:
        self.net, self.random, self.count = Net(24), random, 0

    def size(self, low: int = 1, high: int = 7) -> int:
        """Return a random length of an axis."""
        return int(self.random.integers(low, high + 1))

    def pick(self, *values: object) -> object:
        """Return one of the values at random."""
        return values[int(self.random.integers(len(values)))]

    def shape(self, rank: int, low: int = 1, high: int = 7) -> tuple[int, ...]:
        """Return a random shape of a given rank."""
        return tuple(self.size(low, high) for _ in range(rank))

    def add(
        self,
        op: str,
        *operands: tuple[int, ...] | Typed | Array | str,
        kind: type = np.float32,
        codes: bool = False,
        outputs: type | None = None,
        zero: int = 3,
        **attributes: object,
    ) -> None:
        """Add a node with inputs and outputs of its own.

        Args:
            op: The ONNX operator.
            *operands: Shapes stand for inputs of type `kind`, arrays for constants, and "" for absent operands.
            kind: Type of the inputs.
            codes: Whether inputs and outputs are quantized.
            outputs: Type of the outputs.
            zero: Zero point of quantized tensors.
            **attributes: Attributes of the node.
        """
        self.count += 1
        names = list[str]()
        for operand in operands:
            if isinstance(operand, str):
                names.append("")
            elif isinstance(operand, np.ndarray):
                names.append(self.net.const(operand, operand.dtype.type))
            elif isinstance(operand, Typed):
                names.append(self.net.input(f"x{self.count}_{len(names)}", *operand.shape, dtype=operand.kind))
            else:
                name = self.net.input(f"x{self.count}_{len(names)}", *operand, dtype=kind)
                names.append(self.net.dequantize(name, 0.02, zero, kind) if codes else name)
        y = self.net.op(op, *names, out="" if codes else f"y{self.count}", **attributes)
        result = outputs or kind
        self.net.output(self.net.quantize(y, 0.02, zero, kind, out=f"y{self.count}") if codes else y, dtype=result)


_CODES = ((np.int8, 3), (np.int8, -128), (np.int16, 0), (np.uint8, 7))
_KINDS: tuple[dict[str, Any], ...] = (
    {"kind": np.float32},
    *({"kind": dtype, "codes": True, "zero": zero} for dtype, zero in _CODES),
)


def _any_type(add: Mixed) -> dict[str, Any]:
    """Return floats, or codes of some type."""
    return _KINDS[int(add.random.integers(len(_KINDS)))]


def _elementwise(add: Mixed) -> None:
    kind = _any_type(add)
    shape = add.shape(int(add.pick(1, 2, 3, 4)), 1, 6)
    op = str(add.pick("Relu", "HardSigmoid", "Sigmoid", "Tanh", "Abs", "Neg", "Erf", "Exp", "LeakyRelu", "HardSwish"))
    add.add(op, shape, **kind)
    op = str(add.pick("Add", "Mul", "Sub", "Max", "Min"))
    other = tuple(n if add.random.integers(3) else 1 for n in shape)[int(add.random.integers(2)) * (len(shape) > 1) :]
    add.add(op, *(shape, other)[:: int(add.pick(1, -1))], **kind)
    add.add(op, shape, shape, **kind)
    add.add("PRelu", shape, (shape[-1],) if add.random.integers(2) else shape, **kind)


def _of_codes(add: Mixed) -> None:
    for dtype, zero in ((np.int8, 3), (np.int16, 0)):
        shape = (add.size(1, 5), add.size(1, 9), add.size(1, 17))
        for op in ("Add", "Mul"):
            for other in (shape, shape[1:], shape[2:], (1, shape[1], 1)):
                add.add(op, *(shape, other)[:: int(add.pick(1, -1))], kind=dtype, codes=True, zero=zero)
        for op in ("Max", "Min"):
            add.add(op, shape, shape, kind=dtype, codes=True, zero=zero)
        for op in ("Sigmoid", "Tanh"):
            add.add(op, shape, kind=dtype, codes=True, zero=zero)
    net, channels = add.net, add.size(1, 17)
    for shape in ((add.size(1, 4), add.size(1, 5), channels), (add.size(128, 150), channels)):
        add.count += 1
        slopes = net.dequantize(net.const(add.random.integers(-127, 128, channels), np.int8), 0.01)
        x = net.dequantize(net.input(f"x{add.count}", *shape, dtype=np.int8), 0.02, 3)
        net.output(net.quantize(net.op("PRelu", x, slopes), 0.02, 3, out=f"y{add.count}"), dtype=np.int8)


def _casts(add: Mixed) -> None:
    from onnx import helper

    kinds = (np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64, np.bool_)
    for _ in range(3):
        source, target = add.pick(*kinds), add.pick(*kinds)
        if source is not target:
            to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
            add.add("Cast", (add.size(1, 40),), kind=source, outputs=target, to=to)
    shape, scale = add.shape(2, 1, 9), np.array(0.02, np.float32)
    for dtype, zero in _CODES:
        add.add("DequantizeLinear", shape, scale, np.array(zero, dtype), kind=dtype, outputs=np.float32)
        add.add("QuantizeLinear", shape, scale, np.array(zero, dtype), outputs=dtype)


def _pools(add: Mixed) -> None:
    for op in ("MaxPool", "AveragePool"):
        for kind in (*_KINDS, *({"kind": d} for d in (np.int8, np.uint8) if op == "MaxPool")):
            kernel = [add.size(1, 4), add.size(1, 4)]
            dilations = [add.size(1, 2), add.size(1, 2)] if op == "MaxPool" else [1, 1]
            pads = [int(add.random.integers(0, k)) for k in (*kernel, *kernel)]
            spans = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
            low = [max(span - a - b, d) for span, a, b, d in zip(spans, pads[:2], pads[2:], dilations, strict=True)]
            space = [size + int(add.random.integers(0, 7)) for size in low]
            more = {"dilations": dilations} if op == "MaxPool" else {"count_include_pad": add.size(0, 1)}
            strides = [add.size(1, 3), add.size(1, 3)]
            shape = (add.size(1, 4), add.size(1, 17), *space)
            add.add(op, shape, kernel_shape=kernel, strides=strides, pads=pads, **more, **kind)
    add.add(
        "MaxPool",
        (add.size(1, 3), add.size(1, 5), *add.shape(3, 3, 5)),
        kernel_shape=[2, 3, 2],
        pads=[1, 1, 0, 0, 1, 1],
    )
    add.add(
        "MaxPool", (add.size(1, 3), add.size(1, 9), add.size(4, 12)), kernel_shape=[3], strides=[2], **_any_type(add)
    )
    add.add("GlobalAveragePool", (add.size(1, 4), add.size(1, 17), *add.shape(2)), **_any_type(add))
    add.add("LpPool", (add.size(1, 3), add.size(1, 5), *add.shape(2, 3, 6)), kernel_shape=[2, 3], pads=[1, 0, 0, 1])


def _norms(add: Mixed) -> None:
    for op in ("Softmax", "LogSoftmax"):
        rank = int(add.pick(2, 3))
        kinds = (
            {"kind": np.float64},
            {"kind": np.float32},
            *({"kind": d, "codes": True, "zero": z} for d, z in _CODES),
        )
        for kind in kinds:
            add.add(op, add.shape(rank, 1, 9), axis=int(add.pick(-1, -1, 0, 1)), **kind)
    shape = add.shape(3, 2, 8)
    scale = [np.linspace(0.5, 1.5, n).astype(np.float32) for n in shape]
    for kind in ({}, {"kind": np.int8, "codes": True}, {"kind": np.int16, "codes": True, "zero": 0}):
        add.add("LayerNormalization", shape, scale[-1], scale[-1] - 1, **kind)
        add.add("InstanceNormalization", shape, scale[1], scale[1], **kind)
    add.add("LpNormalization", shape, axis=int(add.pick(0, 1, 2)), p=int(add.pick(1, 2)))
    add.add("MeanVarianceNormalization", (*shape, 2), axes=[0, 2, 3])


def _reductions(add: Mixed) -> None:
    for op in ("ReduceMax", "ReduceMean", "ReduceSum", "ReduceMin", "ReduceL2", "ReduceProd"):
        shape = add.shape(int(add.pick(2, 3, 4)), 1, 6)
        axes = np.array([axis for axis in range(len(shape)) if add.random.integers(2)] or [0], np.int64)
        kind = _any_type(add) if op in ("ReduceMax", "ReduceMean", "ReduceSum", "ReduceMin") else {}
        add.add(op, shape, axes, keepdims=add.size(0, 1), **kind)
    for dtype in (np.float32, np.int8, np.int32):
        shape = add.shape(3, 1, 6)
        add.add("ArgMax", shape, kind=dtype, outputs=np.int64, axis=add.size(0, 2), keepdims=add.size(0, 1))
    add.add("CumSum", add.shape(3, 1, 6), np.array(add.size(0, 2)), exclusive=add.size(0, 1), reverse=add.size(0, 1))
    add.add("CumSum", add.shape(2, 1, 6), np.array(1))
    add.add("Trilu", add.shape(3, 1, 6), upper=add.size(0, 1))
    add.add("Trilu", add.shape(2, 1, 6), kind=np.int8)


def _moves(add: Mixed) -> None:
    for dtype in (np.float32, np.int8, np.int16):
        rank = int(add.pick(2, 3, 4, 4))
        add.add("Transpose", add.shape(rank, 1, 6), kind=dtype, perm=add.random.permutation(rank).tolist())
        n, m = add.size(2, 30), add.size(2, 30)
        add.add("Transpose", (add.size(1, 3), n, m), kind=dtype, perm=[0, 2, 1])
        add.add("Transpose", (add.size(1, 3), n, n), kind=dtype, perm=[0, 2, 1])
        planes, height, width = add.size(2, 5), 8 * add.size(1, 4), add.size(4, 17)
        add.add("Transpose", (add.size(1, 3), planes, height, width), kind=dtype, perm=[0, 2, 3, 1])
        add.add("Transpose", (add.size(1, 3), height, width, planes), kind=dtype, perm=[0, 3, 1, 2])
        shape = add.shape(3, 2, 6)
        pads = [int(add.random.integers(0, n)) for n in (*shape, *shape)]
        mode = str(add.pick("constant", "reflect", "edge", "wrap"))
        add.add("Pad", shape, np.array(pads), kind=dtype, mode=mode)
        steps = [int(add.pick(1, 1, 2, -1, -2)) for _ in shape]
        starts = [n - 1 if step < 0 else int(add.random.integers(0, n)) for n, step in zip(shape, steps, strict=True)]
        ends = [-(1 << 30) if step < 0 else 1 << 30 for step in steps]
        add.add("Slice", shape, *map(np.array, (starts, ends, [0, 1, 2], steps)), kind=dtype)
        add.add("Expand", (shape[0], 1, shape[2]), np.array(shape), kind=dtype)
        add.add("Tile", shape, np.array([add.size(1, 2) for _ in shape]), kind=dtype)
        add.add("DepthToSpace", (add.size(1, 2), 8, *add.shape(2, 1, 4)), kind=dtype, blocksize=2)
        add.add("SpaceToDepth", (add.size(1, 2), add.size(1, 3), 2 * add.size(1, 3), 4), kind=dtype, blocksize=2)
        add.add("Concat", shape, shape, kind=dtype, axis=add.size(0, 2))
        add.add("ReverseSequence", (shape[0], shape[1]), np.full(shape[1], shape[0]), kind=dtype)


def _resizes(add: Mixed) -> None:
    none = np.zeros(0, np.float32)
    for mode in ("nearest", "linear", "cubic"):
        for kind in ({}, {"kind": np.int8, "codes": True}, {"kind": np.int16, "codes": True, "zero": 0}):
            shape = (add.size(1, 4), add.size(1, 9), add.size(2, 7), add.size(2, 7))
            scales = [1.0, 1.0, float(add.pick(0.5, 1.0, 1.5, 2.0, 3.0)), float(add.pick(0.5, 1.0, 2.0, 4.0))]
            add.add("Resize", shape, none, np.array(scales, np.float32), mode=mode, **kind)
    for channels in (4, 8, 12, 20):
        shape = (add.size(1, 4), 2 * add.size(1, 4), 2 * add.size(1, 5), channels)
        scales = [1.0, float(add.pick(0.5, 1.0, 2.0, 4.0)), float(add.pick(0.5, 2.0, 4.0)), 1.0]
        add.add("Resize", shape, none, np.array(scales, np.float32), mode="linear", kind=np.int8, codes=True)
    line = (add.size(1, 3), add.size(1, 5), add.size(2, 9))
    add.add("Resize", line, none, np.array([1, 1, 2], np.float32), mode="linear")
    add.add("Resize", line[1:], none, np.array([2, 3], np.float32), mode="nearest")


def _products(add: Mixed) -> None:
    kinds = ({}, {"kind": np.float64}, *({"kind": d, "codes": True, "zero": z} for d, z in _CODES[::2]))
    for kind in kinds:
        for rows, depth, columns in ((add.size(), add.size(1, 17), add.size(1, 17)), (4, 16, 8)):
            batch = add.shape(int(add.pick(0, 1, 2)), 1, 4)
            add.add("MatMul", (*batch, rows, depth), (*batch, depth, columns), **kind)
    depth, columns = add.size(1, 17), add.size(1, 17)
    weights = add.random.integers(-127, 128, (depth, columns)).astype(np.int8)
    add.add("MatMulInteger", (add.size(1, 4), depth), weights, kind=np.int8, outputs=np.int32)
    add.add("MatMulInteger", (2, add.size(1, 4), depth), (2, depth, columns), kind=np.int8, outputs=np.int32)
    add.add("MatMul", (2, add.size(), depth), (2, depth, columns), kind=np.int32)
    for block in (16, 32):
        groups, rows = add.size(1, 3), (add.size(1, 3), add.size(3, 6))
        packed = add.random.integers(0, 256, (columns, groups, block // 2)).astype(np.uint8)
        scales = add.random.uniform(0.01, 0.1, columns * groups).astype(np.float32)
        size = {"K": groups * block, "N": columns, "bits": 4, "block_size": block}
        add.add("MatMulNBits", (*rows, groups * block), packed, scales, domain="com.microsoft", **size)


def _transposed(add: Mixed) -> None:
    net = add.net
    for _ in range(10):
        add.count += 1
        real, kernel = not add.random.integers(4), (add.size(1, 4), add.size(1, 4))
        group = int(add.pick(1, 1, 2))
        channels, out = group * int(add.pick(1, 2, 3, 4, 8, 16)), int(add.pick(1, 1, 2, 3, 5, 8))
        strides = [add.size(1, 3), add.size(1, 3)]
        pads = [int(add.random.integers(0, k)) for k in (*kernel, *kernel)]
        weights = add.random.integers(20, 127, (channels, out, *kernel)) * add.random.choice(
            [-1, 1], (channels, out, *kernel)
        )
        shape = (add.size(1, 4), channels, add.size(4, 6), add.size(4, 6))
        more = {"strides": strides, "pads": pads, "group": group, "dilations": [add.size(1, 2), add.size(1, 2)]}
        if real:
            x, w = net.input(f"x{add.count}", *shape), net.const(weights / 64)
            net.output(net.op("ConvTranspose", x, w, out=f"y{add.count}", **more))
            continue
        x = net.dequantize(net.input(f"x{add.count}", *shape, dtype=np.int8), 0.02, 3)
        y = net.op("ConvTranspose", x, net.dequantize(net.const(weights.astype(np.int8), np.int8), 0.01), **more)
        net.output(net.quantize(y, 0.05, 3, out=f"y{add.count}"), dtype=np.int8)


def _recurrent(add: Mixed) -> None:
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        depth, hidden = add.size(1, 6), add.size(1, 6)
        w, r = (add.random.standard_normal((1, gates * hidden, n)).astype(np.float32) for n in (depth, hidden))
        add.add(op, (add.size(1, 5), add.size(1, 4), depth), w, r, hidden_size=hidden)


def _scattered(add: Mixed) -> None:
    shape = add.shape(2, 2, 6)
    add.add("ScatterElements", shape, Typed(np.int64, (2, 2)), (2, 2), axis=add.size(0, 1))
    add.add("ScatterND", shape, Typed(np.int64, (2, 1)), (2, shape[1]))
    add.add("Gather", shape, Typed(np.int64, (2, 2)))
    heads = (add.size(1, 3), add.size(1, 3), add.size(4, 6), add.size(1, 5))
    added = (*heads[:2], add.size(1, 3), heads[3])
    add.add("TensorScatter", heads, added, Typed(np.int64, heads[:1]), mode=str(add.pick("linear", "circular")))
    add.add("GatherElements", shape, Typed(np.int64, (2, 2)))


def _spectra(add: Mixed) -> None:
    """Add powers of transforms of frames, plain and with mel bands; then results may lie over samples."""
    net = add.net
    for _ in range(3):
        points, step = int(add.random.integers(2, 17)), add.size(1, 9)
        x = net.input(f"x{add.count}s", add.size(1, 2), points + add.size(0, 5) * step, 1)
        window = net.const(add.random.standard_normal(points).astype(np.float32))
        y = net.op("STFT", x, net.const(step, np.int64), window)
        y = net.op("ReduceSumSquare", y, net.const([3], np.int64), keepdims=0)
        bands = np.eye(points // 2 + 1, add.size(1, 4), dtype=np.float32)
        net.output(net.op("MatMul", y, net.const(bands), out=f"y{add.count}s"))
        add.count += 1


OTHERS = (
    _elementwise,
    _of_codes,
    _casts,
    _pools,
    _norms,
    _reductions,
    _moves,
    _resizes,
    _products,
    _transposed,
    _recurrent,
    _scattered,
    _spectra,
)
"""Functions that add layers of one group of operators without weights."""


def other_layers(number: int, random: Draw) -> Net:
    """Return a network of layers of one group of operators: OTHERS[number]."""
    add = Mixed(random)
    OTHERS[number](add)
    return add.net
