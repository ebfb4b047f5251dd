# SPDX-License-Identifier: Apache-2.0
"""Importers of experimental ONNX operators that were removed before opset 10, such as ImageScaler and Crop."""

from __future__ import annotations

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.onnx_node import COMPOSED_TEXT, FLOAT, OnnxNode, Refusal, onnx_operator


def _times(node: OnnxNode, x: Value, key: str) -> Value:
    """x · an attribute, which is 1 unless it is given."""
    factor = float(node.attr(key, 1.0))
    return x if factor == 1.0 else node.call("Mul", x, np.float32(factor))


def _check_image(node: OnnxNode) -> None:
    shape = node.input(0).type.shape
    node.require(len(shape) == 4, "the input must be an image of four axes", f"{shape}")


@onnx_operator("Affine", types=FLOAT, kernels=(COMPOSED_TEXT,))
def _import_affine(node: OnnxNode) -> list[Value]:
    """alpha · x + beta."""
    return [node.call("Add", _times(node, node.input(0), "alpha"), np.float32(node.attr("beta", 0.0)))]


@onnx_operator("Scale", types=FLOAT, kernels=(COMPOSED_TEXT,))
def _import_scale(node: OnnxNode) -> list[Value]:
    return [node.call("Mul", node.input(0), np.float32(node.attr("scale", 1.0)))]


@onnx_operator("ImageScaler", types=FLOAT, kernels=(COMPOSED_TEXT,))
def _import_image_scaler(node: OnnxNode) -> list[Value]:
    """scale · x + a bias a channel."""
    _check_image(node)
    bias = np.asarray(node.reals("bias"), np.float32)
    if bias.size != node.input(0).type.shape[1]:
        counts = f"{bias.size} for {node.input(0).type.shape[1]} channels"
        raise Refusal("ImageScaler: there must be a bias for each channel", counts, "repair the model")
    return [node.call("Add", _times(node, node.input(0), "scale"), bias.reshape(1, -1, 1, 1))]


@onnx_operator("ParametricSoftplus", types=FLOAT, kernels=(COMPOSED_TEXT,))
def _import_softplus(node: OnnxNode) -> list[Value]:
    """alpha · ln(1 + exp(beta · x))."""
    return [_times(node, node.call("Softplus", _times(node, node.input(0), "beta")), "alpha")]


@onnx_operator("ScaledTanh", types=FLOAT, kernels=(COMPOSED_TEXT,))
def _import_tanh(node: OnnxNode) -> list[Value]:
    """alpha · tanh(beta · x)."""
    return [_times(node, node.call("Tanh", _times(node, node.input(0), "beta")), "alpha")]


@onnx_operator("Crop", types=FLOAT, kernels=(COMPOSED_TEXT,))
def _import_crop(node: OnnxNode) -> list[Value]:
    """Import Crop: remove a border (left, top, right, bottom), or keep `scale` rows and columns from its corner on."""
    _check_image(node)
    height, width = node.input(0).type.shape[2:]
    border = node.integers("border")
    node.require(len(border) == 4, "the border must have four sides", f"{len(border)}")
    left, top, right, bottom = border
    size = node.integers("scale")
    node.require(len(size) in (0, 2), "the scale must be rows and columns", f"{len(size)} numbers")
    ends = (top + size[0], left + size[1]) if size else (height - bottom, width - right)
    if not (0 <= top < ends[0] <= height and 0 <= left < ends[1] <= width):
        region = f"rows {top} to {ends[0]}, columns {left} to {ends[1]} of {height} x {width}"
        raise Refusal("Crop: what is left must lie in the image", region, "repair the model")
    starts = np.array([top, left], np.int64)
    return [node.call("Slice", node.input(0), starts, np.array(ends, np.int64), np.array([2, 3], np.int64))]


@onnx_operator("DynamicSlice", kernels=(COMPOSED_TEXT,))
def _import_dynamic_slice(node: OnnxNode) -> list[Value]:
    starts, ends = node.input(1), node.input(2)
    return [node.call("Slice", node.input(0), starts, ends, *node.inputs[3:])]
