# SPDX-License-Identifier: Apache-2.0
"""PyTorch layers that compute the integers of mcugen's operators, with straight-through gradients.

Each layer computes a differentiable real result by PyTorch and the exact integers by the numpy code that specifies the
C kernels. Its output is the integers; the gradient is that of the real result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's documents use

from mcugen.core.errors import ModelError
from mcugen.hir.graph import Graph
from mcugen.hir.operator import Operator, Signature
from mcugen.hir.types import Array, DType, QuantParams, TensorType
from mcugen.numerics.fixedpoint import Range, clamp_range, quantize
from mcugen.numerics.sums import finish, largest_sums
from mcugen.numerics.window import Window
from mcugen.ops.pointwise import Binary
from mcugen.ops.pool import AveragePool
from mcugen.ops.reduce import Reduce
from mcugen.ops.weighted import integer_weights
from mcugen.quantization.qat.onnx_graph import DequantizedTensor, OnnxGraph
from mcugen.quantization.scheme import MIN_SCALE, WEIGHT_LIMITS, Scheme, activation_params, weight_scales

_SHRINKAGES = np.linspace(0.4, 1.0, 25)
"""Scales of weights that are tried at first, as shares of the scale with which no weight is clipped."""

_MAX_BIAS = 2**30
"""Largest magnitude of a bias in units of the accumulator, so that accumulators stay within 32 bits."""


class _StraightThrough(torch.autograd.Function):  # type: ignore[misc]
    """A function that returns exact values and passes the gradient to real ones."""

    @staticmethod
    def forward(ctx: Any, real: Any, exact: Any) -> Any:
        return exact.to(real.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None]:
        return gradient, None


@dataclass(frozen=True)
class Quantized:
    """A batch of int8 activations.

    Attributes:
        steps: The integers less the zero point, as a float64 tensor.
        scale: The scale, as a float64 tensor with the value of a float32; it has a gradient.
        zero_point: The zero point.
    """

    steps: Any
    scale: Any
    zero_point: int

    @property
    def type(self) -> TensorType:
        """Return mcugen's type of the batch."""
        return TensorType(
            tuple(self.steps.shape), DType.INT8, QuantParams((float(self.scale.detach()),), self.zero_point)
        )

    @property
    def integers(self) -> Array:
        """Return the int8 values."""
        steps: Array = self.steps.detach().cpu().numpy()
        return (np.rint(steps).astype(np.int64) + self.zero_point).astype(np.int8)


class OutputRange(nn.Module):  # type: ignore[misc]
    """The scale and zero point of an activation: observed once on samples; then the scale is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.register_buffer("zero_point", torch.zeros((), dtype=torch.int64))
        self.register_buffer("is_observed", torch.zeros((), dtype=torch.bool))

    def observe(self, real: Any) -> None:
        """Set scale and zero point by the range of real values, unless they are set."""
        if bool(self.is_observed):
            return
        with torch.no_grad():
            quant = activation_params(float(real.min()), float(real.max()), DType.INT8, Scheme())
            self.log_scale.fill_(math.log(quant.scale[0]))
            self.zero_point.fill_(quant.zero_point)
            self.is_observed.fill_(True)

    @property
    def scale(self) -> Any:
        """Return the scale, as a float64 tensor with the value of a float32."""
        return _trained_scale(self.log_scale)

    @property
    def quant(self) -> QuantParams:
        """Return scale and zero point."""
        return QuantParams((float(self.scale.detach()),), int(self.zero_point))

    def store(self, real: Any, exact: Array, clamp: Range | None = None) -> Quantized:
        """Return exact integers as an activation whose gradient is that of `real`, limited to the range.

        Args:
            real: The differentiable real values.
            exact: The integers.
            clamp: Limits of the real values; None for none.
        """
        quant, scale = self.quant, self.scale
        low, high = (end - quant.zero_point for end in clamp_range(clamp, quant, DType.INT8))
        steps = torch.from_numpy(exact.astype(np.float64) - quant.zero_point).to(real.device)
        return Quantized(_StraightThrough.apply((real / scale).clamp(low, high), steps), scale, quant.zero_point)


def _trained_scale(log_scale: Any) -> Any:
    """Return a scale from its logarithm, rounded to float32 and at least MIN_SCALE."""
    return log_scale.double().exp().clamp(min=MIN_SCALE).float().double()


class QatLayer(nn.Module):  # type: ignore[misc]
    """A layer on int8 activations.

    Attributes:
        name: Name of the layer's output in ONNX.
        sources: Names of the layers that it reads.
    """

    def __init__(self, name: str, sources: Sequence[str]) -> None:
        super().__init__()
        self.name, self.sources = name, tuple(sources)

    def forward(self, *inputs: Quantized) -> Quantized:
        """Compute the layer for a batch.

        Args:
            inputs: The results of the layers in `sources`.
        """
        raise NotImplementedError

    def write(self, graph: OnnxGraph, *inputs: DequantizedTensor) -> DequantizedTensor:
        """Add the layer to an ONNX graph, and return its dequantized output.

        Args:
            graph: The graph.
            inputs: The dequantized inputs.
        """
        raise NotImplementedError


class InputLayer(QatLayer):
    """The quantization of the module's input."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ())
        self.range = OutputRange()

    def forward(self, x: Any) -> Quantized:  # type: ignore[override]
        """Quantize a batch of real samples."""
        real = x.float()
        self.range.observe(real)
        exact = quantize(real.detach().cpu().numpy(), self.range.quant, DType.INT8)
        return self.range.store(real.double(), exact)

    def write(self, graph: OnnxGraph, *inputs: DequantizedTensor) -> DequantizedTensor:
        """Add the quantization to an ONNX graph, and return the dequantized values."""
        return graph.quantize("input", self.range.quant)


@dataclass(frozen=True)
class ConvSettings:
    """The window and the groups of a convolution.

    Attributes:
        window: Strides, padding and dilations.
        groups: Number of groups of channels.
    """

    window: Window
    groups: int


class WeightedLayer(QatLayer):
    """A convolution or fully connected layer with its bias and activation.

    Attributes:
        conv: How a convolution moves; None for a fully connected layer.
        dtype: Type of the weights, INT8 or INT4.
        clamp: Limits of the real results by the activation; None for none.
    """

    def __init__(
        self,
        name: str,
        source: str,
        weights: tuple[Any, Any],
        conv: ConvSettings | None,
        dtype: DType,
        clamp: Range | None,
    ) -> None:
        super().__init__(name, (source,))
        self.conv, self.dtype, self.clamp = conv, dtype, clamp
        self.weight, self.bias = (nn.Parameter(tensor.detach().clone().float()) for tensor in weights)
        scales = _least_error_scales(self.weight.detach().cpu().numpy(), dtype)
        self.log_scales = nn.Parameter(torch.from_numpy(np.log(scales)).float().to(self.weight.device))
        self.range = OutputRange()

    def _weight_steps(self) -> tuple[Any, Any]:
        """Return the quantized weights as a float64 tensor with a gradient, and the scale of each output channel."""
        scales = _trained_scale(self.log_scales)
        low, high = WEIGHT_LIMITS[self.dtype]
        real = (self.weight.double() / scales.reshape(-1, *[1] * (self.weight.dim() - 1))).clamp(low, high)
        return _StraightThrough.apply(real, real.detach().round()), scales

    def _integer_bias(self, unit: Array) -> Array:
        """Return the bias in units of the accumulator, by output channel."""
        codes = np.rint(self.bias.detach().cpu().double().numpy() / unit)
        limited: Array = np.clip(codes, -_MAX_BIAS, _MAX_BIAS).astype(np.int32)
        return limited

    def forward(self, x: Quantized) -> Quantized:  # type: ignore[override]
        """Compute the layer for a batch; the sums of products are exact in float64."""
        steps, scales = self._weight_steps()
        products = self._multiply(x.steps, steps)
        to_channels = (-1, *[1] * (products.dim() - 2))
        real = products * (x.scale * scales).reshape(to_channels) + self.bias.double().reshape(to_channels)
        if self.clamp is not None:
            self.range.observe(real.clamp(*self.clamp))
        self.range.observe(real)
        exact = self._requantize(x.type, steps.detach(), scales.detach(), products.detach())
        return self.range.store(real, exact, self.clamp)

    def _multiply(self, x: Any, weights: Any) -> Any:
        """Return the sums of products, channels on axis 1."""
        if self.conv is None:
            return F.linear(x, weights)
        window = self.conv.window
        pads = [pad for ends in zip(window.before[::-1], window.after[::-1], strict=True) for pad in ends]
        convolve = F.conv1d if len(window.strides) == 1 else F.conv2d
        return convolve(F.pad(x, pads), weights, None, window.strides, 0, window.dilations, self.conv.groups)

    def _requantize(self, x: TensorType, steps: Any, scales: Any, products: Any) -> Array:
        """Return the integers that the layer's C kernel computes from the sums of products, channels on axis 1."""
        weights, unit_scales = (t.cpu().numpy() for t in (steps, scales))
        unit = (x.q.scales * unit_scales).astype(np.float32).astype(np.float64)
        out = TensorType(tuple(products.shape), DType.INT8, self.range.quant)
        graph = Graph(self.name)
        w_quant, b_quant = (QuantParams(tuple(map(float, scale)), 0, 0) for scale in (unit_scales, unit))
        w = graph.constant("w", weights.astype(np.int8), w_quant)
        bias = graph.constant("bias", self._integer_bias(unit), b_quant)
        inputs = [graph.add_input("x", x), w, bias]
        form = integer_weights(graph, Signature((x, w.type, bias.type), (out,)), inputs)
        if form is None or form[1] is None or form[2] is None or form[1].data is None or form[2].data is None:
            raise ModelError("a layer must have an integer form", self.name, "scale its inputs, weights and bias")
        sig = Signature(tuple(value.type if value else None for value in form), (out,))
        sums = np.moveaxis(np.rint(products.cpu().numpy()).astype(np.int64), 1, -1) + form[2].data
        exact = finish(sums, sig, self.clamp, largest_sums(x, form[1].data, form[2].data))
        return np.moveaxis(exact, -1, 1)

    def write(self, graph: OnnxGraph, *inputs: DequantizedTensor) -> DequantizedTensor:
        """Add the layer to an ONNX graph; return its dequantized output."""
        (x,), name = inputs, self.name
        steps, scales = (t.detach().cpu().numpy() for t in self._weight_steps())
        unit = (x.quant.scales * scales).astype(np.float32).astype(np.float64)
        w_quant, b_quant = (QuantParams(tuple(map(float, scale)), 0, 0) for scale in (scales, unit))
        weight = graph.dequantize(f"{name}.weight", steps.astype(np.int8), w_quant, self.dtype)
        bias = graph.dequantize(f"{name}.bias", self._integer_bias(unit), b_quant, DType.INT32)
        operands = [x.name, weight, bias]
        sums = name if self.clamp is None else f"{name}.sums"
        if self.conv is None:
            graph.add("Gemm", operands, sums, transB=1)
        else:
            w = self.conv.window
            window = {"strides": w.strides, "dilations": w.dilations, "pads": [*w.before, *w.after]}
            graph.add("Conv", operands, sums, group=self.conv.groups, **window)
        return graph.quantize(_write_clamp(graph, sums, self.clamp, name), self.range.quant)


def _write_clamp(graph: OnnxGraph, x: str, clamp: Range | None, name: str) -> str:
    """Add an activation to an ONNX graph, and return the name of its output."""
    if clamp is None:
        return x
    if math.isinf(clamp[1]):
        return graph.add("Relu", [x], name)
    ends = [
        graph.store(f"{name}.{end}", np.asarray(v, np.float32)) for end, v in zip(("low", "high"), clamp, strict=True)
    ]
    return graph.add("Clip", [x, *ends], name)


def _least_error_scales(weights: Array, dtype: DType) -> Array:
    """Return the scale of each output channel with the least squared error of the rounded weights."""
    limits = WEIGHT_LIMITS[dtype]
    rows = weights.astype(np.float64).reshape(len(weights), -1)
    largest = weight_scales(rows, 0, Scheme(), dtype)
    candidates = largest * _SHRINKAGES[:, None]
    errors = [((np.clip(np.rint(rows / s[:, None]), *limits) * s[:, None] - rows) ** 2).sum(1) for s in candidates]
    best: Array = candidates[np.argmin(errors, 0), np.arange(len(rows))]
    return best


class AverageLayer(QatLayer):
    """An average over windows or over all positions.

    Attributes:
        kernel: Spatial sizes of the window; None to average all positions.
        strides: Elements of the input from window to window.
    """

    def __init__(self, name: str, source: str, kernel: tuple[int, ...] | None, strides: tuple[int, ...]) -> None:
        super().__init__(name, (source,))
        self.kernel, self.strides = kernel, strides
        self.range = OutputRange()

    def forward(self, x: Quantized) -> Quantized:  # type: ignore[override]
        """Compute the averages of a batch."""
        op: Operator
        if self.kernel is None:
            axes = tuple(range(2, x.steps.dim()))
            op, real = Reduce("mean", axes), x.steps.mean(axes, keepdim=True) * x.scale
        else:
            none, ones = (0,) * len(self.kernel), (1,) * len(self.kernel)
            window = Window(self.strides, none, none, ones)
            op = AveragePool(window, kernel=self.kernel, counted_before=none, counted_after=none)
            average = F.avg_pool1d if len(self.kernel) == 1 else F.avg_pool2d
            real = average(x.steps, self.kernel, self.strides) * x.scale
        self.range.observe(real)
        out = TensorType(tuple(real.shape), DType.INT8, self.range.quant)
        (exact,) = op.evaluate(Signature((x.type,), (out,)), x.integers)
        return self.range.store(real, exact)

    def write(self, graph: OnnxGraph, *inputs: DequantizedTensor) -> DequantizedTensor:
        """Add the average to an ONNX graph; return its dequantized output."""
        names = [x.name for x in inputs]
        if self.kernel is None:
            real = graph.add("GlobalAveragePool", names, self.name)
        else:
            real = graph.add("AveragePool", names, self.name, kernel_shape=self.kernel, strides=self.strides)
        return graph.quantize(real, self.range.quant)


class MaxPoolLayer(QatLayer):
    """A maximum over windows; its output has the scale of its input.

    Attributes:
        kernel: Spatial sizes of the window.
        window: Strides, padding and dilations.
    """

    def __init__(self, name: str, source: str, kernel: tuple[int, ...], window: Window) -> None:
        super().__init__(name, (source,))
        self.kernel, self.window = kernel, window

    def forward(self, x: Quantized) -> Quantized:  # type: ignore[override]
        """Compute the maxima of a batch."""
        w, largest = self.window, F.max_pool1d if len(self.kernel) == 1 else F.max_pool2d
        steps = largest(x.steps, self.kernel, w.strides, w.before, w.dilations)
        return Quantized(steps, x.scale, x.zero_point)

    def write(self, graph: OnnxGraph, *inputs: DequantizedTensor) -> DequantizedTensor:
        """Add the pool to an ONNX graph; return its dequantized output."""
        (x,), w = inputs, self.window
        window = {"strides": w.strides, "dilations": w.dilations, "pads": [*w.before, *w.after]}
        return DequantizedTensor(graph.add("MaxPool", [x.name], self.name, kernel_shape=self.kernel, **window), x.quant)


class FlattenLayer(QatLayer):
    """A reshaping to one vector per sample."""

    def forward(self, x: Quantized) -> Quantized:  # type: ignore[override]
        """Flatten all axes of a batch but the first."""
        return Quantized(x.steps.flatten(1), x.scale, x.zero_point)

    def write(self, graph: OnnxGraph, *inputs: DequantizedTensor) -> DequantizedTensor:
        """Add the reshaping to an ONNX graph, and return its output."""
        (x,) = inputs
        return DequantizedTensor(graph.add("Flatten", [x.name], self.name, axis=1), x.quant)


class AddLayer(QatLayer):
    """A sum of two activations, with an activation function.

    Attributes:
        clamp: Limits of the real results by the activation function; None for none.
    """

    def __init__(self, name: str, sources: Sequence[str], clamp: Range | None) -> None:
        super().__init__(name, sources)
        self.clamp = clamp
        self.range = OutputRange()

    def forward(self, x: Quantized, y: Quantized) -> Quantized:  # type: ignore[override]
        """Add two batches."""
        real = x.steps * x.scale + y.steps * y.scale
        self.range.observe(real if self.clamp is None else real.clamp(*self.clamp))
        out = TensorType(tuple(real.shape), DType.INT8, self.range.quant)
        sig = Signature((x.type, y.type), (out,))
        (exact,) = Binary("Add", clamp=self.clamp).evaluate(sig, x.integers, y.integers)
        return self.range.store(real, exact, self.clamp)

    def write(self, graph: OnnxGraph, *inputs: DequantizedTensor) -> DequantizedTensor:
        """Add the sum to an ONNX graph; return its dequantized output."""
        sums = graph.add("Add", [x.name for x in inputs], self.name if self.clamp is None else f"{self.name}.sums")
        return graph.quantize(_write_clamp(graph, sums, self.clamp, self.name), self.range.quant)
