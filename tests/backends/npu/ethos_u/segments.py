# SPDX-License-Identifier: Apache-2.0
"""Small quantized networks, one for each operator that Ethos-U takes, as optimized graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx_models import Net, optimized

from mcugen.hir.graph import Graph

Build = Callable[[Net, str], str]
"""Function that adds an operator to a net, given its real input, and returns its real output."""


def one_input(
    shape: Sequence[int],
    build: Build,
    *,
    scales: tuple[float, float] = (0.05, 0.05),
    zeros: tuple[int, int] = (3, -5),
    dtype: type = np.int8,
    out_dtype: type | None = None,
) -> Graph:
    """Return the optimized graph of an operator between a Dequantize and a Quantize."""
    net = Net()
    real = net.dequantize(net.input("x", *shape, dtype=dtype), scales[0], zeros[0], dtype)
    return _finished(net, build(net, real), scales[1], zeros[1], out_dtype or dtype)


def two_inputs(
    op_type: str,
    first: Sequence[int],
    second: Sequence[int],
    scales: tuple[float, float, float],
    *,
    dtype: type = np.int8,
) -> Graph:
    """Return the optimized graph of an operator of two tensors; int16 ones have no zero points."""
    net, zeros = Net(), (7, -11, 2) if dtype is np.int8 else (0, 0, 0)
    a = net.dequantize(net.input("a", *first, dtype=dtype), scales[0], zeros[0], dtype)
    b = net.dequantize(net.input("b", *second, dtype=dtype), scales[1], zeros[1], dtype)
    return _finished(net, net.op(op_type, a, b), scales[2], zeros[2], dtype)


def _finished(net: Net, real: str, scale: float, zero: int, dtype: type) -> Graph:
    net.output(net.quantize(real, scale, zero, dtype, out="y"), dtype=dtype)
    return optimized(_inferred(net))


def _inferred(net: Net) -> onnx.ModelProto:
    return net.model()


def weights(net: Net, *shape: int, seed: int = 1) -> str:
    """Add int8 weights with a scale for each output channel, and return them as reals."""
    random = np.random.default_rng(seed)
    data = random.integers(-127, 128, shape).astype(np.int8)
    scale = net.const(random.uniform(0.001, 0.01, shape[0]).astype(np.float32))
    return net.op("DequantizeLinear", net.const(data, np.int8), scale, net.const(np.zeros(shape[0]), np.int8), axis=0)


def conv(
    out: int, kernel: Sequence[int], *, channels: int, group: int = 1, relu: bool = False, **attributes: object
) -> Build:
    """Return a function that adds a convolution."""

    def build(net: Net, x: str) -> str:
        w = weights(net, out, channels // group, *kernel)
        bias = net.const(np.random.default_rng(2).uniform(-1, 1, out).astype(np.float32))
        y = net.op("Conv", x, w, bias, group=group, **attributes)
        return net.op("Relu", y) if relu else y

    return build


def transposed(out: int, kernel: Sequence[int], *, channels: int, group: int = 1, **attributes: object) -> Build:
    """Return a function that adds a transposed convolution with one scale."""

    def build(net: Net, x: str) -> str:
        data = np.random.default_rng(3).integers(-127, 128, (channels, out // group, *kernel)).astype(np.int8)
        w = net.dequantize(net.const(data, np.int8), 0.003)
        bias = net.const(np.random.default_rng(2).uniform(-1, 1, out).astype(np.float32))
        return net.op("ConvTranspose", x, w, bias, group=group, **attributes)

    return build


def dense(out: int, depth: int) -> Build:
    """Return a function that adds a fully connected layer."""
    return lambda net, x: net.op("Gemm", x, weights(net, out, depth), transB=1)


def call(op_type: str, *constants: object, **attributes: object) -> Build:
    """Return a function that adds an operator whose further inputs are int64 constants."""
    return lambda net, x: net.op(op_type, x, *(net.const(c, np.int64) for c in constants), **attributes)


def resized(factor: float) -> Build:
    """Return a function that enlarges an image to nearest neighbours, rounded down."""

    def build(net: Net, x: str) -> str:
        scales = net.const([1, 1, factor, factor])
        return net.op(
            "Resize", x, net.const([]), scales, mode="nearest", coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )  # fmt: skip

    return build


def split_and_joined(net: Net, x: str) -> str:
    """Add a split along the channels, and a concatenation in the other order."""
    sizes = net.const([3, 5], np.int64)
    left, right = net.ops("Split", x, sizes, outs=["left", "right"], axis=1)
    return net.op("Concat", right, left, axis=1)


def halves(op_type: str) -> Build:
    """Return a function that adds an operator of the two halves of the second axis, with one quantization for all."""

    def build(net: Net, x: str) -> str:
        return net.op(op_type, *net.ops("Split", x, net.const([4, 4], np.int64), outs=["left", "right"], axis=1))

    return build


def stacked(net: Net, x: str) -> str:
    """Add several elementwise operators, which the CPU computes in one loop."""
    gate = net.fake(net.op("Sigmoid", x), 1 / 256, -128)
    product = net.fake(net.op("Mul", x, gate), 0.04, -3)
    total = net.fake(net.op("Add", product, x), 0.07, 4)
    return net.op("Tanh", total)


IMAGE = (1, 8, 13, 11)
"""An image with 8 channels."""


def _to_int16(shape: Sequence[int], build: Build) -> Callable[[], Graph]:
    return lambda: one_input(shape, build, scales=(0.05, 2**-9), zeros=(3, 0), out_dtype=np.int16)


def _int16(shape: Sequence[int], build: Build, scale: float = 0.001) -> Callable[[], Graph]:
    return lambda: one_input(shape, build, scales=(0.001, scale), zeros=(0, 0), dtype=np.int16)


SEGMENTS: dict[str, Callable[[], Graph]] = {
    "conv 1x1": lambda: one_input(IMAGE, conv(12, (1, 1), channels=8)),
    "conv 3x3, padding, relu": lambda: one_input(IMAGE, conv(5, (3, 3), channels=8, pads=[1, 1, 1, 1], relu=True)),
    "conv, stride 2 that leaves rows": lambda: one_input(IMAGE, conv(4, (2, 2), channels=8, strides=[2, 2])),
    "conv, uneven padding and stride": lambda: one_input(
        IMAGE, conv(4, (3, 2), channels=8, strides=[2, 3], pads=[0, 1, 1, 0])
    ),
    "conv, dilated": lambda: one_input(IMAGE, conv(4, (3, 3), channels=8, dilations=[2, 2], pads=[2, 2, 2, 2])),
    "conv 1D": lambda: one_input((1, 6, 20), conv(5, (3,), channels=6, pads=[1, 1])),
    "depthwise": lambda: one_input(IMAGE, conv(8, (3, 3), channels=8, group=8, pads=[1, 1, 1, 1])),
    "depthwise, multiplier 2": lambda: one_input(IMAGE, conv(16, (3, 3), channels=8, group=8, strides=[2, 2])),
    "transposed, stride 2": lambda: one_input(
        (1, 4, 5, 6), transposed(3, (3, 3), channels=4, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])
    ),
    "transposed, stride 1": lambda: one_input((1, 4, 5, 6), transposed(3, (3, 2), channels=4, pads=[1, 0, 0, 1])),
    "transposed, stride 3, output padding": lambda: one_input(
        (1, 4, 5, 6), transposed(3, (4, 2), channels=4, strides=[3, 3], output_padding=[2, 1])
    ),
    "transposed, strides 4 and 1": lambda: one_input(
        (1, 4, 5, 6), transposed(3, (7, 3), channels=4, strides=[4, 1], pads=[3, 2, 1, 0])
    ),
    "transposed, wide cut": lambda: one_input(
        (1, 4, 5, 6), transposed(3, (2, 2), channels=4, strides=[2, 2], pads=[3, 4, 3, 2])
    ),
    "transposed, dilated": lambda: one_input(
        (1, 4, 5, 6), transposed(3, (3, 2), channels=4, strides=[2, 1], dilations=[2, 3])
    ),
    "transposed, groups": lambda: one_input(
        (1, 6, 5, 4), transposed(4, (3, 3), channels=6, group=2, strides=[2, 2], pads=[1, 1, 1, 1])
    ),
    "transposed, depthwise": lambda: one_input(
        (1, 6, 5, 4), transposed(6, (2, 2), channels=6, group=6, strides=[2, 2])
    ),
    "transposed 1D": lambda: one_input((1, 6, 9), transposed(4, (4,), channels=6, strides=[2], pads=[1, 1])),
    "conv, stride 4": lambda: one_input(IMAGE, conv(8, (4, 4), channels=8, strides=[4, 4])),
    "conv, strides 5 and 1": lambda: one_input(
        IMAGE, conv(8, (7, 2), channels=8, strides=[5, 1], pads=[3, 1, 2, 0], dilations=[1, 2])
    ),
    "conv, strides 2 and 4": lambda: one_input(IMAGE, conv(3, (3, 3), channels=8, strides=[2, 4], pads=[1, 1, 1, 1])),
    "conv 1D, stride 4": lambda: one_input((1, 6, 21), conv(5, (5,), channels=6, strides=[4], pads=[2, 2])),
    "max pool, strides 1 and 4": lambda: one_input(
        IMAGE, call("MaxPool", kernel_shape=[2, 4], strides=[1, 4]), zeros=(3, 3)
    ),
    "max pool, stride 5": lambda: one_input(IMAGE, call("MaxPool", kernel_shape=[5, 5], strides=[5, 5]), zeros=(3, 3)),
    "conv, groups": lambda: one_input(IMAGE, conv(12, (3, 3), channels=8, group=2, pads=[1, 1, 1, 1], strides=[2, 1])),
    "conv 1D, groups": lambda: one_input((1, 6, 20), conv(9, (3,), channels=6, group=3, dilations=[2], relu=True)),
    "conv, groups of one channel": lambda: one_input(IMAGE, conv(1, (3, 3), channels=8)),
    "slice with steps": lambda: one_input(
        (1, 3, 10, 11), call("Slice", [0, 1], [10, 11], [2, 3], [3, 4]), zeros=(3, 3)
    ),
    "dense": lambda: one_input((1, 40), dense(7, 40)),
    "dense, rows": lambda: one_input((6, 40), dense(7, 40)),
    "dense of int8 to int16": _to_int16((6, 40), dense(7, 40)),
    "conv of int8 to int16": _to_int16(IMAGE, conv(12, (3, 3), channels=8, pads=[1, 1, 1, 1], relu=True)),
    "matmul": lambda: two_inputs("MatMul", (2, 5, 16), (2, 16, 6), (0.03, 0.02, 0.2)),
    "add": lambda: two_inputs("Add", IMAGE, IMAGE, (0.05, 0.013, 0.06)),
    "add, broadcast": lambda: two_inputs("Add", IMAGE, (1, 8, 1, 1), (0.05, 0.2, 0.1)),
    "sub": lambda: two_inputs("Sub", (3, 17), (3, 17), (0.05, 0.05, 0.05)),
    "mul": lambda: two_inputs("Mul", IMAGE, (1, 8, 1, 1), (0.05, 0.02, 0.03)),
    "int16 add, equal scales": lambda: two_inputs("Add", IMAGE, IMAGE, (0.0003,) * 3, dtype=np.int16),
    "int16 mul": lambda: two_inputs("Mul", IMAGE, (1, 8, 1, 1), (0.0003, 0.0007, 0.004), dtype=np.int16),
    "int16 requantization": lambda: one_input(
        (3, 50), lambda net, x: x, scales=(0.001, 0.0013), zeros=(0, 0), dtype=np.int16
    ),
    "int16 requantization to int8": lambda: one_input(
        (3, 50), lambda net, x: x, scales=(0.001, 0.0203), zeros=(0, -3), dtype=np.int16, out_dtype=np.int8
    ),
    "int16 relu": _int16((3, 50), call("Relu"), 0.0007),
    "int16 max pool": _int16(IMAGE, call("MaxPool", kernel_shape=[3, 3], strides=[2, 2])),
    "int16 largest": _int16((1, 6, 7, 8), call("ReduceMax", axes=[2, 3])),
    "min": lambda: one_input((3, 8, 5), halves("Min"), zeros=(3, 3)),
    "max": lambda: one_input((3, 8, 5), halves("Max"), zeros=(3, 3)),
    "int16 max": lambda: two_inputs("Max", IMAGE, IMAGE, (0.0003,) * 3, dtype=np.int16),
    "sigmoid": lambda: one_input((3, 50), call("Sigmoid"), scales=(0.05, 1 / 256), zeros=(0, -128)),
    "hard swish": lambda: one_input(IMAGE, call("HardSwish")),
    "stack": lambda: one_input((1, 7, 9), stacked, scales=(0.05, 1 / 128), zeros=(3, 0)),
    "max pool": lambda: one_input(
        IMAGE, call("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), zeros=(3, 3)
    ),
    "average pool, ties": lambda: one_input(
        (1, 8, 8, 8), call("AveragePool", kernel_shape=[4, 4], strides=[2, 2]), zeros=(3, 3)
    ),
    "average pool, no ties": lambda: one_input(IMAGE, call("AveragePool", kernel_shape=[3, 3], strides=[1, 1])),
    "global mean, ties": lambda: one_input((1, 8, 8, 8), call("GlobalAveragePool"), zeros=(-128, -128)),
    "global mean": lambda: one_input(IMAGE, call("GlobalAveragePool"), scales=(0.05, 0.01)),
    "largest": lambda: one_input((1, 6, 7, 8), call("ReduceMax", axes=[2, 3]), zeros=(3, 3)),
    "transpose": lambda: one_input((1, 3, 4, 5), call("Transpose", perm=[0, 2, 3, 1]), zeros=(3, 3)),
    "reshape": lambda: one_input((1, 3, 4, 5), call("Reshape", [5, 12]), zeros=(3, 3)),
    "pad": lambda: one_input((1, 3, 4, 5), call("Pad", [0, 1, 2, 0, 0, 0, 1, 1]), zeros=(3, 3)),
    "resize": lambda: one_input((1, 3, 4, 5), resized(2.0), zeros=(3, 3)),
    "resize by 4": lambda: one_input((1, 3, 4, 5), resized(4.0), zeros=(3, 3)),
    "split, concat": lambda: one_input(IMAGE, split_and_joined, zeros=(3, 3)),
}
"""Networks by what they compute."""


def _softmax(shape: Sequence[int], scale: float = 0.05, out: float = 1 / 256) -> Callable[[], Graph]:
    return lambda: one_input(shape, call("Softmax", axis=-1), scales=(scale, out), zeros=(3, -128))


def _normalized(shape: Sequence[int], *, bias: bool = True, axis: int = -1, scale: float = 0.03) -> Callable[[], Graph]:
    def build(net: Net, x: str) -> str:
        random, sizes = np.random.default_rng(8), shape[axis:]
        affine = [net.const(random.uniform(-2, 2, sizes).astype(np.float32))]
        affine += [net.const(random.normal(0, 1, sizes).astype(np.float32))] if bias else []
        return net.op("LayerNormalization", x, *affine, axis=axis)

    return lambda: one_input(shape, build, scales=(0.05, scale), zeros=(3, -7))


def _wide(shape: Sequence[int], build: Build, scale: float) -> Callable[[], Graph]:
    return lambda: one_input(shape, build, scales=(0.0003, scale), zeros=(0, 0), dtype=np.int16)


INT16_LAYERS: dict[str, Callable[[], Graph]] = {
    "int16 conv": _wide(IMAGE, conv(12, (3, 3), channels=8, pads=[1, 1, 1, 1], strides=[2, 1]), 0.0009),
    "int16 conv, relu, groups": _wide(IMAGE, conv(4, (3, 3), channels=8, group=2, relu=True), 0.002),
    "int16 depthwise": _wide(IMAGE, conv(8, (3, 3), channels=8, group=8, pads=[1, 1, 1, 1]), 0.0003),
    "int16 dense": _wide((6, 40), dense(7, 40), 0.0013),
    "int16 conv to int8": lambda: one_input(
        IMAGE, conv(12, (3, 3), channels=8), scales=(0.0003, 0.02), zeros=(0, -5), dtype=np.int16, out_dtype=np.int8
    ),
    "int16 transposed": _wide((1, 4, 5, 6), transposed(3, (3, 3), channels=4, strides=[2, 2]), 0.0005),
}
"""Networks by what they compute, with the CPU's results on Ethos-U55 and U65, and rounded in another way on U85."""

INT16_MEANS: dict[str, Callable[[], Graph]] = {
    "int16 average pool": _int16(IMAGE, call("AveragePool", kernel_shape=[3, 3], strides=[2, 2])),
    "int16 average pool, ties": _int16((1, 8, 8, 8), call("AveragePool", kernel_shape=[4, 4], strides=[2, 2])),
    "int16 global mean": _int16(IMAGE, call("GlobalAveragePool"), 0.0007),
    "int16 mean of one axis": _int16((2, 6, 7, 8), call("ReduceMean", axes=[2])),
}
"""Networks by what they compute, with the CPU's results on Ethos-U55 and U65; Ethos-U85 computes some of them."""

ROUNDED_SEGMENTS: dict[str, Callable[[], Graph]] = {
    "softmax of ten": _softmax((1, 10)),
    "softmax of rows": _softmax((2, 3, 9, 64), 0.11),
    "softmax of long rows": _softmax((4, 197), 0.02),
    "softmax of longest rows": _softmax((2, 512), 0.3, 0.002),
    "int16 dense of long rows": _wide((2, 2000), dense(3, 2000), 0.007),
    "int16 add": lambda: two_inputs("Add", IMAGE, (1, 8, 1, 1), (0.0003, 0.0007, 0.0009), dtype=np.int16),
    "int16 sub": lambda: two_inputs("Sub", IMAGE, IMAGE, (0.0011, 0.0003, 0.0012), dtype=np.int16),
    "normalization": _normalized((2, 5, 64)),
    "normalization without bias": _normalized((7, 33), bias=False),
    "normalization of long rows": _normalized((3, 4, 192), axis=-2, scale=0.01),
    "softmax of two": _softmax((5, 2), 0.02, 0.0031),
}
"""Networks by what they compute, whose results on the NPU differ from the CPU's by at most one step."""
