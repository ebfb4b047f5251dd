# SPDX-License-Identifier: Apache-2.0
"""Importers of activations, gates and mixtures of residual streams of domain com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mcugen.hir.graph import Value
from mcugen.ops.microsoft.common import axes, composed, shaped
from mcugen.ops.onnx_node import FLOAT, FLOATS, MICROSOFT, OnnxNode, onnx_operator
from mcugen.ops.pointwise import Unary

_ELEMENTWISE = ("elementwise",)


@onnx_operator("Gelu", domain=MICROSOFT, types=FLOATS, kernels=_ELEMENTWISE)
def _import_gelu(node: OnnxNode) -> list[Value]:
    return [node.emit(Unary("Gelu"), node.input(0))]


@composed("BiasGelu")
def _import_bias_gelu(node: OnnxNode) -> list[Value]:
    return [node.call("Gelu", node.call("Add", node.input(0), node.input(1)), domain=MICROSOFT)]


@onnx_operator("FastGelu", domain=MICROSOFT, types=FLOAT, kernels=_ELEMENTWISE)
def _import_fast_gelu(node: OnnxNode) -> list[Value]:
    if node.has(1):
        return [node.call("FastGelu", node.call("Add", node.input(0), node.input(1)), domain=MICROSOFT)]
    return [node.emit(Unary("GeluTanh"), node.input(0))]


@onnx_operator("QuickGelu", domain=MICROSOFT, types=FLOAT, kernels=_ELEMENTWISE)
def _import_quick_gelu(node: OnnxNode) -> list[Value]:
    return [node.emit(Unary("Swish", (float(node.attr("alpha", 1.702)),)), node.input(0))]


@composed("ScaledSiLU")
def _import_scaled_silu(node: OnnxNode) -> list[Value]:
    """z · sigmoid(z) of z = scale · x; the scale is an input or an attribute."""
    scale = node.input(1) if node.has(1) else np.float32(node.attr("alpha", 1.0))
    if isinstance(scale, Value):
        scale = node.call("Reshape", scale, np.zeros(0, np.int64))
    return [silu(node, node.call("Mul", node.input(0), scale))]


def silu(node: OnnxNode, x: Value) -> Value:
    """Return x · sigmoid(x)."""
    return node.call("QuickGelu", x, domain=MICROSOFT, alpha=1.0)


def gate(node: OnnxNode, x: Value, default: str = "") -> Value:
    """Apply the activation that attribute `activation` names ('silu', 'swish', 'sigmoid' or 'none') to x.

    Args:
        node: The node that is imported.
        x: Value to which the activation is applied.
        default: Name that applies if the attribute is absent; "" for no activation.

    Raises:
        Refusal: The name is another one.
    """
    name = str(node.attr("activation", default))
    if name in ("silu", "swish"):
        return silu(node, x)
    if name == "sigmoid":
        return node.call("Sigmoid", x)
    node.require(name in ("", "none"), "the activation must be known", f"'{name}'", "use silu or sigmoid")
    return x


@composed("GatedAdd")
def _import_gated_add(node: OnnxNode) -> list[Value]:
    return [node.call("Add", node.input(0), node.call("Mul", node.input(1), node.input(2)))]


@composed("LinearAttentionGate")
def _import_linear_attention_gate(node: OnnxNode) -> Sequence[Value | None]:
    """decay_scale · softplus(a + dt_bias), and sigmoid(b)."""
    grown = node.call("Softplus", node.call("Add", node.input(0), node.input(1)))
    decay = node.call("Mul", grown, node.input(2))
    return [decay, node.call("Sigmoid", node.input(3)) if node.has(3) else None]


# ------------------------------------------------------------------------------------------ hyper-connections


def split_branches(node: OnnxNode, x: Value) -> Value:
    """Return x reshaped from (..., C · H) to (..., C, H), where C is the attribute `num_branches`."""
    count = int(node.attr("num_branches", 0))
    if not count and x.type.rank > 1:
        return x
    width = x.type.shape[-1]
    node.require(count >= 1 and not width % count, "branches must be of equal size", f"{count} of {width}")
    return shaped(node, x, *x.type.shape[:-1], count, width // count)


def _mix(node: OnnxNode, mix: Value, streams: Value) -> Value:
    """Return gates (..., C), (..., C, 1), (..., C, H) or (..., C · H) so that they broadcast to streams (..., C, H)."""
    shape = streams.type.shape
    if mix.type.count == math.prod(shape):
        return shaped(node, mix, *shape)
    return shaped(node, mix, *shape[:-1], 1)


@composed("HyperConnectionPreMix")
@axes("... H")
def _import_pre_mix(node: OnnxNode) -> list[Value]:
    """Return the weighted sum of the streams."""
    x = split_branches(node, node.input(0))
    product = node.call("Mul", x, _mix(node, node.input(1), x))
    total = node.call("ReduceSum", product, np.array([-2], np.int64), keepdims=0)
    return [node.call("Mul", total, np.float32(node.attr("reduction_scale", 1.0)))]


@composed("HyperConnectionPostMix")
@axes("... H", "... F", "*", "... C C")
def _import_post_mix(node: OnnxNode) -> list[Value]:
    """mixᵀ · streams + gate · block, the mixture being the identity where it is not given."""
    x, block = split_branches(node, node.input(0)), node.input(1)
    mixed = x
    if node.has(3):
        rank = node.input(3).type.rank
        turned = node.call("Transpose", node.input(3), perm=[*range(rank - 2), rank - 1, rank - 2])
        mixed = node.call("MatMul", turned, x)
    wide = shaped(node, block, *block.type.shape[:-1], 1, block.type.shape[-1])
    injected = node.call("Mul", wide, _mix(node, node.input(2), x))
    return [shaped(node, node.call("Add", mixed, injected), *node.input(0).type.shape)]
