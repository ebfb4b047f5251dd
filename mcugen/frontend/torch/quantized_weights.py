# SPDX-License-Identifier: Apache-2.0
"""Explicit forms of the weights that torchao's `quantize_` quantized, so that they reach ONNX as integers.

PyTorch's exporter computes such weights: the integers would become float32 constants.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's documents use

OPSET = 21
"""First ONNX operator set whose DequantizeLinear has a scale per block of weights."""


def with_explicit_weights(module: Any) -> Any:
    """Return a module whose quantized weights are integers behind ONNX's DequantizeLinear.

    Only weights of `nn.Linear` change whose layer computes with real activations, or with activations that are rounded
    and computed as reals.

    Returns:
        A copy, or the module itself if it has no such weights.
    """
    if not isinstance(module, nn.Module) or not any(_quantized_layers(module)):
        return module
    copy = deepcopy(module)
    for layer in _quantized_layers(copy):
        _make_explicit(layer)
    return copy


def _quantized_layers(module: Any) -> Iterator[Any]:
    """Yield the layers whose weights can be written as DequantizeLinear."""
    for layer in module.modules():
        if type(layer) is nn.Linear and _is_quantized(layer.weight) and _is_plain(layer.weight):
            yield layer


def _is_quantized(weight: Any) -> bool:
    return any(base.__module__.startswith("torchao.") for base in type(weight).__mro__)


def _is_plain(weight: Any) -> bool:
    """Return whether integers, scales and zero points describe a weight, and activations stay real."""
    has_parts = all(isinstance(getattr(weight, name, None), torch.Tensor) for name in ("qdata", "scale"))
    is_real = getattr(weight, "act_quant_kwargs", None) is None and not getattr(weight, "activation_quantization", None)
    return has_parts and is_real and weight.qdata.dtype == torch.int8 and weight.scale.dim() == weight.qdata.dim() == 2


def _make_explicit(layer: Any) -> None:
    """Replace the weights of a linear layer by its integers, in place."""
    weight = layer.weight
    del layer.weight
    layer.__dict__.pop("extra_repr", None)  # torchao's reads the weight.
    layer.register_buffer("quantized_weight", weight.qdata.detach().clone())
    layer.register_buffer("weight_scale", weight.scale.detach().float())
    zero = getattr(weight, "zero_point", None)
    layer.register_buffer("weight_zero_point", torch.zeros_like(layer.weight_scale, dtype=torch.int8))
    if zero is not None:
        layer.weight_zero_point.copy_(zero)
    layer.forward = types.MethodType(_explicit_linear, layer)


def _explicit_linear(layer: Any, x: Any) -> Any:
    """Compute a linear layer with dequantized weights, as the `forward` of the layer."""
    codes, scale, zero = layer.quantized_weight, layer.weight_scale, layer.weight_zero_point
    blocks = scale.shape[1]
    if blocks == 1:
        scale, zero, attributes = scale[:, 0], zero[:, 0], {"axis": 0}
    else:
        attributes = {"axis": 1, "block_size": codes.shape[1] // blocks}
    weight = torch.onnx.ops.symbolic(
        "DequantizeLinear", [codes, scale, zero], attributes, dtype=torch.float32, shape=codes.shape, version=OPSET
    )
    return F.linear(x, weight, layer.bias)
