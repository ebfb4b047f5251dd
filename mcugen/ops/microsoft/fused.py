# SPDX-License-Identifier: Apache-2.0
"""Importers of matrix products and convolutions that ONNX Runtime's optimizer has fused with bias or activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.microsoft.common import axes, composed
from mcugen.ops.onnx_node import FLOATS, OnnxNode

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Tanh", "Sigmoid", "Softplus", "Softsign", "HardSwish"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu", "ThresholdedRelu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
}
"""The attributes of ONNX's activations that fused operators know."""


def _activated(node: OnnxNode, x: Value, name: str, parameter_values: Mapping[str, float]) -> Value:
    """`x` after the activation of that name; "" for none."""
    if not name:
        return x
    node.require(name in _PARAMETERS, "the activation must be known", f"'{name}'", "export without fusion")
    parameters: dict[str, Any] = {
        key: float(parameter_values[key]) for key in _PARAMETERS[name] if key in parameter_values
    }
    return node.call(name, x, **parameters)


@composed("FusedConv")
def _import_conv(node: OnnxNode) -> list[Value]:
    """activation(Conv + Z)."""
    bias = node.optional(2)
    total = node.call("Conv", node.input(0), node.input(1), bias, **node.attributes_of("Conv"))
    total = node.call("Add", total, node.input(3)) if node.has(3) else total
    name, activation_params = str(node.attr("activation", "")), node.reals("activation_params")
    if name == "Clip":
        node.require(len(activation_params) <= 2, "Clip has two limits", f"{len(activation_params)}")
        low, high = (np.float32(v) for v in (*activation_params, *(-np.inf, np.inf)[len(activation_params) :]))
        return [node.call("Clip", total, low, high)]
    return [_activated(node, total, name, dict(zip(("alpha", "beta"), activation_params, strict=False)))]


@composed("FusedGemm")
@axes("_ _", "_ _", "*")
def _import_gemm(node: OnnxNode) -> list[Value]:
    """activation(Gemm)."""
    total = node.call("Gemm", node.input(0), node.input(1), *node.inputs[2:3], **node.attributes_of("Gemm"))
    names = {"alpha": "activation_alpha", "beta": "activation_beta"}
    parameter_values = {short: float(node.attr(long, 0.0)) for short, long in names.items() if long in node.attributes}
    return [_activated(node, total, str(node.attr("activation", "")), parameter_values)]


@composed("FusedMatMul", "TransposeMatMul", types=FLOATS)
@axes("... _", "... _")
def _import_matmul(node: OnnxNode) -> list[Value]:
    """alpha · A · B of matrices that lie transposed, or whose rows lie before the batch."""
    a, b = (
        _turned(node, node.input(index), bool(node.attr(f"trans{side}", 0)), bool(node.attr(f"transBatch{side}", 0)))
        for index, side in enumerate("AB")
    )
    product = node.call("MatMul", a, b)
    alpha = float(node.attr("alpha", 1.0))
    return [product if alpha == 1.0 else node.call("Mul", product, np.asarray(alpha, product.type.dtype.numpy))]


def _turned(node: OnnxNode, x: Value, last: bool, batch: bool) -> Value:
    """Transpose: with `batch`, move the first axis before the last; then, with `last`, swap the last two."""
    order = list(range(x.type.rank))
    if x.type.rank < 2:
        return x
    order = [*order[1:-1], order[0], order[-1]] if batch else order
    order = [*order[:-2], order[-1], order[-2]] if last else order
    return x if order == sorted(order) else node.call("Transpose", x, perm=order)


@composed("ConvTransposeWithDynamicPads", limits="constant pads")
def _import_conv_transpose(node: OnnxNode) -> Sequence[Value]:
    attributes = node.attributes_of("ConvTranspose")
    if node.has(2):
        pads = node.ints("pads", 2)
        attributes |= {"pads": pads} if pads else {}
    return [node.call("ConvTranspose", node.input(0), node.input(1), *node.inputs[3:4], **attributes)]
