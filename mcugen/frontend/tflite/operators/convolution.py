# SPDX-License-Identifier: Apache-2.0
"""Layers with weights or windows: convolutions, fully connected layers and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcugen.frontend.tflite.flatbuffer import TableBase, scalar
from mcugen.frontend.tflite.model import TfliteTensor
from mcugen.frontend.tflite.node import TO_CHANNELS_FIRST, TO_CHANNELS_LAST, TfliteNode, tflite_operator
from mcugen.frontend.tflite.schema import WindowPadding
from mcugen.ops.onnx_node import Refusal


@dataclass(frozen=True)
class ConvolutionOptions(TableBase):
    """Options of CONV_2D, and with further fields those of other layers with windows."""

    UNION = 1
    ORDER = "padding stride_w stride_h activation dilation_w dilation_h"
    padding: int = scalar(0, "b")
    stride_w: int = scalar(1)
    stride_h: int = scalar(2)
    stride_d: int = scalar(3)
    activation: int = scalar(4, "b")
    dilation_w: int = scalar(5, default=1)
    dilation_h: int = scalar(6, default=1)
    dilation_d: int = scalar(7, default=1)
    width: int = scalar(8)
    height: int = scalar(9)
    multiplier: int = scalar(10)


class DepthwiseOptions(ConvolutionOptions):
    """Options of DEPTHWISE_CONV_2D."""

    UNION = 2
    ORDER = "padding stride_w stride_h multiplier activation dilation_w dilation_h"


class Convolution3dOptions(ConvolutionOptions):
    """Options of CONV_3D."""

    UNION = 106
    ORDER = "padding stride_d stride_w stride_h activation dilation_d dilation_w dilation_h"


class TransposeConvolutionOptions(ConvolutionOptions):
    """Options of TRANSPOSE_CONV."""

    UNION = 49
    ORDER = "padding stride_w stride_h activation"


class PoolOptions(ConvolutionOptions):
    """Options of pooling."""

    UNION = 5
    ORDER = "padding stride_w stride_h width height activation"


@dataclass(frozen=True)
class FullyConnectedOptions(TableBase):
    """Options of FULLY_CONNECTED."""

    UNION = 8
    activation: int = scalar(0, "b")
    weights_format: int = scalar(1, "b")
    keeps_rank: int = scalar(2, "B")


def same_pads(
    node: TfliteNode, sizes: Sequence[int], padding: int, spans: Sequence[int], strides: Sequence[int]
) -> list[int]:
    """Return ONNX's pads of windows: all rows and columns before the image, then those behind it.

    Args:
        node: The operator.
        sizes: Height and width of the image.
        padding: The kind of padding.
        spans: Height and width of the window, gaps of dilation included.
        strides: Distances of windows.
    """
    node.require(padding in {*WindowPadding}, f"padding {padding}")
    node.require(all(s > 0 for s in (*spans, *strides)) and max(*spans, *strides) < 1 << 20, "a window without size")
    if padding == WindowPadding.VALID:
        return [0] * 2 * len(sizes)
    totals = [
        max((-(-size // stride) - 1) * stride + span - size, 0)
        for size, span, stride in zip(sizes, spans, strides, strict=True)
    ]
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


def _image(node: TfliteNode, tensor: TfliteTensor) -> tuple[int, int, int, int]:
    """Return batch, height, width and channels of an image."""
    node.require(len(tensor.shape) == 4 and tensor.count > 0, f"shape {list(tensor.shape)} of '{tensor.name}'")
    batch, height, width, channels = tensor.shape
    return batch, height, width, channels


def _weights(node: TfliteNode, index: int) -> tuple[int, int, int, int]:
    """Return the sizes of weights, whose values must have 8 bits or be floats if those of the input are."""
    tensor = node.input(index)
    if not tensor.type.is_float and tensor.quantization is None:
        raise node.operator.buffer.damaged(f"weights '{tensor.name}' without scales")
    return _image(node, tensor)


@tflite_operator("CONV_2D", becomes="Conv")
def _build_convolution(node: TfliteNode) -> None:
    options = node.options(ConvolutionOptions)
    _, height, width, channels = _image(node, node.input(0))
    _, rows, columns, depth = _weights(node, 1)
    strides, dilations = [options.stride_h, options.stride_w], [options.dilation_h, options.dilation_w]
    node.require(channels % depth == 0 and min(dilations) > 0, f"{depth} channels of weights for {channels}")
    spans = [(size - 1) * gap + 1 for size, gap in zip((rows, columns), dilations, strict=True)]
    pads = same_pads(node, (height, width), options.padding, spans, strides)
    x, weights = node.real(0, TO_CHANNELS_FIRST), node.real(1, TO_CHANNELS_FIRST)
    y = node.emit(
        "Conv",
        *(x, weights, *node.bias(2, 0, 1)),
        kernel_shape=[rows, columns],
        strides=strides,
        dilations=dilations,
        pads=pads,
        group=channels // depth,
    )
    node.finish(y, activation=options.activation, perm=TO_CHANNELS_LAST)


@tflite_operator("DEPTHWISE_CONV_2D", becomes="Conv")
def _build_depthwise(node: TfliteNode) -> None:
    options = node.options(DepthwiseOptions)
    _, height, width, channels = _image(node, node.input(0))
    one, rows, columns, results = _weights(node, 1)
    strides, dilations = [options.stride_h, options.stride_w], [options.dilation_h, options.dilation_w]
    node.require(one == 1 and results % channels == 0, f"{results} channels of weights for {channels}")
    node.require(min(dilations) > 0, "a dilation of 0")
    spans = [(size - 1) * gap + 1 for size, gap in zip((rows, columns), dilations, strict=True)]
    pads = same_pads(node, (height, width), options.padding, spans, strides)
    x, weights = node.real(0, TO_CHANNELS_FIRST), node.real(1, (3, 0, 1, 2))
    y = node.emit(
        "Conv",
        *(x, weights, *node.bias(2, 0, 1)),
        kernel_shape=[rows, columns],
        strides=strides,
        dilations=dilations,
        pads=pads,
        group=channels,
    )
    node.finish(y, activation=options.activation, perm=TO_CHANNELS_LAST)


@tflite_operator("CONV_3D", becomes="Conv")
def _build_convolution_3d(node: TfliteNode) -> None:
    options, x, weights = node.options(Convolution3dOptions), node.input(0), node.input(1)
    node.require(len(x.shape) == len(weights.shape) == 5 and x.count > 0 and weights.count > 0, "other ranks than 5")
    strides = [options.stride_d, options.stride_h, options.stride_w]
    dilations = [options.dilation_d, options.dilation_h, options.dilation_w]
    node.require(min(dilations) > 0, "a dilation of 0")
    window = weights.shape[:3]
    spans = [(size - 1) * gap + 1 for size, gap in zip(window, dilations, strict=True)]
    pads = same_pads(node, x.shape[1:4], options.padding, spans, strides)
    y = node.emit(
        "Conv",
        *(node.real(0, (0, 4, 1, 2, 3)), node.real(1, (4, 3, 0, 1, 2)), *node.bias(2, 0, 1)),
        kernel_shape=list(window),
        strides=strides,
        dilations=dilations,
        pads=pads,
        group=x.shape[4] // weights.shape[3],
    )
    node.finish(y, activation=options.activation, perm=(0, 2, 3, 4, 1))


@tflite_operator("TRANSPOSE_CONV", becomes="ConvTranspose", limits="a constant shape")
def _build_transpose_convolution(node: TfliteNode) -> None:
    options = node.options(TransposeConvolutionOptions)
    _image(node, node.input(2))
    _, rows, columns, _ = _weights(node, 1)
    _, height, width, _ = _image(node, node.output())
    sizes, strides = node.input(2).shape[1:3], [options.stride_h, options.stride_w]
    pads = same_pads(node, (height, width), options.padding, (rows, columns), strides)
    whole = [(n - 1) * stride + span for n, stride, span in zip(sizes, strides, (rows, columns), strict=True)]
    extra = [
        size - (full - pads[n] - pads[n + 2]) for n, (size, full) in enumerate(zip((height, width), whole, strict=True))
    ]
    for axis, more in enumerate(extra):
        if more < 0:
            pads[axis + 2] -= more
    node.require(all(more < stride for more, stride in zip(extra, strides, strict=True)), "another output shape")
    x, weights = node.real(2, TO_CHANNELS_FIRST), node.real(1, (3, 0, 1, 2))
    y = node.emit(
        "ConvTranspose",
        *(x, weights, *node.bias(3, 2, 1)),
        kernel_shape=[rows, columns],
        strides=strides,
        pads=pads,
        output_padding=[max(more, 0) for more in extra],
    )
    node.finish(y, activation=options.activation, perm=TO_CHANNELS_LAST)


_POOLS = {"AVERAGE_POOL_2D": "AveragePool", "MAX_POOL_2D": "MaxPool", "L2_POOL_2D": "Mul, AveragePool, Sqrt"}


@tflite_operator(*_POOLS, becomes=_POOLS)
def _build_pool(node: TfliteNode) -> None:
    options = node.options(PoolOptions)
    _, height, width, _ = _image(node, node.input(0))
    window, strides = [options.height, options.width], [options.stride_h, options.stride_w]
    pads = same_pads(node, (height, width), options.padding, window, strides)
    x = node.real(0, TO_CHANNELS_FIRST)
    where = {"kernel_shape": window, "strides": strides, "pads": pads}
    if node.operator.kind == "MAX_POOL_2D":
        y = node.emit("MaxPool", x, **where)
    elif node.operator.kind == "AVERAGE_POOL_2D":
        y = node.emit("AveragePool", x, **where)
    else:
        y = node.emit("Sqrt", node.emit("AveragePool", node.emit("Mul", x, x), **where))
    node.finish(y, activation=options.activation, perm=TO_CHANNELS_LAST)


@tflite_operator("FULLY_CONNECTED", becomes="Gemm", limits="no shuffled weights")
def _build_dense(node: TfliteNode) -> None:
    options = node.options(FullyConnectedOptions)
    if options.weights_format:
        raise Refusal("weights must have the default format", "shuffled ones", "convert the model again")
    x, weights, y = node.input(0), node.input(1), node.output()
    node.require(len(weights.shape) == 2 and weights.count > 0, f"shape {list(weights.shape)} of '{weights.name}'")
    depth = weights.shape[1]
    node.require(x.count % depth == 0 and x.count > 0, f"{x.count} inputs for {depth} weights")
    rows = (x.count // depth, depth)
    value = node.stored(0)
    if x.shape != rows:
        value = node.emit("Reshape", value, node.constant(list(rows), "rows"))
    value = node.dequantized(value, x)
    value = node.emit("Gemm", value, node.real(1), *node.bias(2, 0, 1), transB=1)
    node.require(y.count == rows[0] * weights.shape[0], f"shape {list(y.shape)} of the result")
    node.finish(value, activation=options.activation, is_reshaped=y.shape != (rows[0], weights.shape[0]))
