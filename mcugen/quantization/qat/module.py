# SPDX-License-Identifier: Apache-2.0
"""`prepare_qat`, and the module that it returns."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import onnx
import torch
from torch import nn

from mcugen.core.errors import UsageError, shortened
from mcugen.frontend.torch.program import snake_case
from mcugen.hir.types import DType, Shape
from mcugen.quantization.qat.layers import QatLayer, Quantized
from mcugen.quantization.qat.onnx_graph import DequantizedTensor, OnnxGraph
from mcugen.quantization.qat.tracing import trace_layers

_WEIGHT_TYPES = {8: DType.INT8, 4: DType.INT4}
"""Types of weights by bits."""


class QatModule(nn.Module):  # type: ignore[misc]
    """A PyTorch module that computes what its C code computes, bit for bit, and can be trained.

    Gradients are straight-through. Parameters are the weights and biases, with batch normalization folded in, and the
    logarithms of all scales. Training and evaluation mode compute the same.

    Attributes:
        layers: The layers in the order of computation.
        name: Name of the ONNX graph.
        input_shape: Shape of the input, for one sample.
    """

    def __init__(self, layers: Sequence[QatLayer], name: str, input_shape: Shape) -> None:
        super().__init__()
        self.layers, self.name, self.input_shape = nn.ModuleList(layers), name, input_shape

    def forward(self, x: Any) -> Any:
        """Return the outputs of a batch as float32, as the C code returns them."""
        input_layer, *layers = self.layers
        results: dict[str, Quantized] = {input_layer.name: input_layer(x)}
        for layer in layers:
            results[layer.name] = layer(*(results[source] for source in layer.sources))
        y = results[self.layers[-1].name]
        return y.steps.float() * y.scale.float()

    def to_onnx(self) -> onnx.ModelProto:
        """Return the module as quantized ONNX for one sample; `mcugen.compile` takes it without calibration."""
        graph = OnnxGraph()
        results: dict[str, DequantizedTensor] = {}
        for layer in self.layers:
            results[layer.name] = layer.write(graph, *(results[source] for source in layer.sources))
        with torch.no_grad():
            device = next(self.parameters()).device
            output_shape = tuple(self(torch.zeros(self.input_shape, device=device)).shape)
        return graph.model(self.name, (self.input_shape, output_shape), results[self.layers[-1].name].name)


def prepare_qat(module: Any, example_inputs: Any, *, weight_bits: int = 8) -> QatModule:
    """Return a copy of a trained PyTorch module that is fine-tuned with the integer arithmetic of the generated C.

    The copy is quantized: int8 activations with one scale and zero point each, and weights with a scale per output
    channel. Train it like any module, with an optimizer such as Adam, whose steps do not depend on the size of
    gradients, as scales are parameters too. Then compile it.

    Supported are Conv1d, Conv2d, padding by zeros before these, Linear, BatchNorm1d and BatchNorm2d behind these, ReLU
    and ReLU6 behind these or a sum, sums of two tensors, MaxPool, AvgPool, averages over all positions, Flatten, and
    Dropout, which is removed.

    Args:
        module: A trained `torch.nn.Module` with one input and one output.
        example_inputs: A tensor with a batch of typical samples: some hundred, as ranges of activations begin at the
            smallest and largest values for them.
        weight_bits: Bits of weights, 8 or 4.

    Raises:
        UsageError: `module` is no module, `example_inputs` no batch, or `weight_bits` neither 8 nor 4.
        ModelError: A part of the module is not supported.
    """
    if not isinstance(module, nn.Module):
        raise UsageError("prepare_qat takes a torch.nn.Module", shortened(repr(module), 80))
    if weight_bits not in _WEIGHT_TYPES:
        raise UsageError("weight_bits must be 8 or 4", repr(weight_bits))
    if not isinstance(example_inputs, torch.Tensor) or example_inputs.dim() < 2 or not len(example_inputs):
        remedy = "pass a batch of training samples, such as x_train[:200]"
        raise UsageError("example_inputs must be a tensor of samples", shortened(repr(example_inputs), 80), remedy)
    copy = deepcopy(module).eval()
    with torch.no_grad():
        layers = trace_layers(copy, example_inputs, _WEIGHT_TYPES[weight_bits])
        prepared = QatModule(layers, snake_case(type(module).__name__), (1, *example_inputs.shape[1:]))
        prepared.to(example_inputs.device)(example_inputs)
    return prepared
