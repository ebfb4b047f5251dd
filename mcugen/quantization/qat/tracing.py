# SPDX-License-Identifier: Apache-2.0
"""Conversion of a PyTorch module to layers that are trained with integer arithmetic, by torch.fx."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's documents use
from torch.nn.utils import fusion

from mcugen.core.errors import ModelError
from mcugen.frontend.conversion import conversion_error
from mcugen.hir.types import DType, Shape
from mcugen.numerics.fixedpoint import Range
from mcugen.numerics.window import Window
from mcugen.quantization.qat.layers import (
    AddLayer,
    AverageLayer,
    ConvSettings,
    FlattenLayer,
    InputLayer,
    MaxPoolLayer,
    QatLayer,
    WeightedLayer,
)

_SUPPORTED = (
    "use Conv1d, Conv2d, padding by zeros before these, Linear, BatchNorm, ReLU, ReLU6, MaxPool, AvgPool, averages, "
    "Flatten and sums of two tensors"
)

_RELU, _RELU6 = (0.0, math.inf), (0.0, 6.0)
_CLAMPS: Mapping[Any, Range] = {
    nn.ReLU: _RELU,
    nn.ReLU6: _RELU6,
    F.relu: _RELU,
    F.relu6: _RELU6,
    torch.relu: _RELU,
    "relu": _RELU,
    "relu_": _RELU,
}
"""Limits of the results of activation functions, by type of module, function, or name of method."""

_SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")
_MEANS = (torch.mean, "mean")
_FLATTENINGS = (nn.Flatten, torch.flatten, "flatten")
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_WEIGHTED = (nn.Conv1d, nn.Conv2d, nn.Linear)
_PADDINGS = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ConstantPad1d, nn.ConstantPad2d, F.pad)
_UNCHANGED = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, F.dropout)


def trace_layers(module: Any, samples: Any, dtype: DType) -> list[QatLayer]:
    """Return the layers of a module in the order of computation; batch normalization is folded into weights.

    Args:
        module: A `torch.nn.Module` in evaluation mode.
        samples: A batch of inputs, which give the shapes.
        dtype: Type of the weights, INT8 or INT4.

    Raises:
        ModelError: torch.fx cannot trace the module, or a part has no integer layer.
    """
    try:
        graph = fx.Tracer().trace(module)
        ShapeProp(fx.GraphModule(module, graph)).propagate(samples)
    except Exception as error:  # The module's own code raises any type.
        raise conversion_error("a PyTorch module", error, "remove control flow that depends on data") from error
    return _Converter(module, graph, dtype).layers()


class _Converter:
    """A converter of the nodes of a torch.fx graph to layers."""

    def __init__(self, module: Any, graph: Any, dtype: DType) -> None:
        self.modules: Mapping[str, Any] = dict(module.named_modules())
        self.graph, self.dtype = graph, dtype
        self._layers: list[QatLayer] = []
        self._made_by: dict[Any, str] = {}
        """Name of the layer that computes the result of each node."""
        self._paddings: dict[Any, tuple[Shape, Shape]] = {}
        """Zeros before and behind each spatial axis, by node; they are added in the convolution that reads the node."""

    def layers(self) -> list[QatLayer]:
        """Return the layers; the last one computes the output."""
        for node in self.graph.nodes:
            if node.op == "output":
                (result,) = node.args
                if not isinstance(result, fx.Node) or self._made_by[result] != self._layers[-1].name:
                    raise ModelError("prepare_qat needs a module with one output", f"{result}", "return one tensor")
            elif node not in self._made_by:
                self._convert(node)
        return self._layers

    def _kind(self, node: Any) -> Any:
        """Return what a node calls: the type of a module, a function, or the name of a method."""
        return type(self.modules[node.target]) if node.op == "call_module" else node.target

    def _source(self, node: Any) -> str:
        """Return the layer whose result is the first operand of a node."""
        return self._made_by[node.all_input_nodes[0]]

    def _add(self, node: Any, layer: QatLayer) -> None:
        if any(layer.name == other.name for other in self._layers):
            raise ModelError(
                "prepare_qat needs a module of its own for each call", f"two calls of {layer.name}", "copy it"
            )
        self._layers.append(layer)
        self._made_by[node] = layer.name

    def _name(self, node: Any) -> str:
        """Return the name of a layer: that of the module, or of the function within its module."""
        if node.op == "call_module":
            return f"{node.target}_layer" if node.target == "input" else str(node.target)
        scope = ["", *node.meta.get("nn_module_stack", {})][-1]
        return f"{scope}.{node.name}" if scope else str(node.name)

    def _convert(self, node: Any) -> None:
        kind = self._kind(node)
        if node.op == "placeholder":
            if self._layers:
                raise ModelError("prepare_qat needs a module with one input", f"a second one, {node.name}", "remove it")
            self._add(node, InputLayer("input"))
        elif kind in _UNCHANGED:
            self._made_by[node] = self._source(node)
        elif kind in _PADDINGS:
            self._convert_padding(node)
        elif kind in _WEIGHTED:
            self._convert_weighted(node, self.modules[node.target])
        elif kind in _SUMS and self._adds_two(node):
            clamp, last = self._activation(node)
            sources = [self._made_by[x] for x in node.all_input_nodes]
            self._add(last, AddLayer(self._name(node), sources, clamp))
        elif kind in _FLATTENINGS and self._flattens_all(node):
            self._add(node, FlattenLayer(self._name(node), [self._source(node)]))
        elif kind in _MEANS:
            self._convert_mean(node)
        elif node.op == "call_module" and (layer := self._pool(node, self.modules[node.target])) is not None:
            self._add(node, layer)
        else:
            self._refuse(node)

    def _refuse(self, node: Any) -> None:
        what = self.modules[node.target] if node.op == "call_module" else getattr(node.target, "__name__", node.target)
        raise ModelError("prepare_qat has an integer layer for each part", f"{self._name(node)}: {what}", _SUPPORTED)

    def _only_reader(self, node: Any) -> Any:
        """Return the node that reads a result if there is no other one; else None."""
        readers = list(node.users)
        return readers[0] if len(readers) == 1 and readers[0].op != "output" else None

    def _activation(self, node: Any) -> tuple[Range | None, Any]:
        """Return the limits of the activation function behind a node, and the node that computes the limited result."""
        reader = self._only_reader(node)
        clamp = None if reader is None or reader.op == "get_attr" else _CLAMPS.get(self._kind(reader))
        if clamp is None:
            return None, node
        self._made_by[node] = ""
        return clamp, reader

    def _convert_padding(self, node: Any) -> None:
        """Keep a padding by zeros for the convolution that reads it."""
        arguments: dict[str, Any] = {"mode": "constant", "value": 0.0}
        if node.op == "call_module":
            arguments |= {"pad": self.modules[node.target].padding, "value": self.modules[node.target].value}
        else:
            arguments |= dict(zip(("pad", "mode", "value"), node.args[1:], strict=False)) | node.kwargs
        padding: Sequence[int] = arguments["pad"]
        rank = len(self._shape(node)) - 2
        reader = self._only_reader(node)
        is_folded = reader is not None and self._kind(reader) in (nn.Conv1d, nn.Conv2d)
        if (
            not is_folded
            or arguments["mode"] != "constant"
            or arguments["value"]
            or len(padding) > 2 * rank
            or min(padding) < 0
        ):
            self._refuse(node)
        pads = [0] * (2 * rank - len(padding)) + [pad for ends in _pairs(padding) for pad in ends]
        self._paddings[node] = tuple(pads[::2]), tuple(pads[1::2])
        self._made_by[node] = self._source(node)

    def _convert_weighted(self, node: Any, layer: Any) -> None:
        if isinstance(layer, nn.Linear) and len(self._shape(node)) != 2:
            self._refuse(node)
        last, reader = node, self._only_reader(node)
        if reader is not None and self._kind(reader) in _NORMS:
            norm, last = self.modules[reader.target], reader
            if norm.running_mean is None:
                self._refuse(reader)
            fuse = fusion.fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fusion.fuse_conv_bn_eval
            layer = fuse(layer, norm)
        clamp, last = self._activation(last)
        bias = layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias
        conv = None if isinstance(layer, nn.Linear) else self._conv_settings(node, layer)
        name = self._name(node)
        weighted = WeightedLayer(name, self._source(node), (layer.weight, bias), conv, self.dtype, clamp)
        self._made_by[node] = name
        self._add(last, weighted)

    def _conv_settings(self, node: Any, conv: Any) -> ConvSettings:
        if conv.padding_mode != "zeros":
            self._refuse(node)
        if conv.padding == "same":
            totals = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
            before = tuple(total // 2 for total in totals)
            after = tuple(total - total // 2 for total in totals)
        else:
            before = after = (0,) * len(conv.kernel_size) if conv.padding == "valid" else tuple(conv.padding)
        outer = self._paddings.get(node.all_input_nodes[0])
        if outer is not None:
            before, after = (
                tuple(map(sum, zip(*pads, strict=True))) for pads in zip((before, after), outer, strict=True)
            )
        return ConvSettings(Window(tuple(conv.stride), before, after, tuple(conv.dilation)), conv.groups)

    def _adds_two(self, node: Any) -> bool:
        """Return whether a sum is of two different tensors of equal shape."""
        shapes = {self._shape(x) for x in node.all_input_nodes}
        return len(node.all_input_nodes) == 2 and len(shapes) == 1 and not node.kwargs

    def _flattens_all(self, node: Any) -> bool:
        """Return whether a flattening keeps only the axis of samples."""
        if node.op == "call_module":
            flatten = self.modules[node.target]
            return (flatten.start_dim, flatten.end_dim) == (1, -1)
        start, end = (*node.args[1:], *([0, -1][len(node.args) - 1 :]))[:2]
        return bool((node.kwargs.get("start_dim", start), node.kwargs.get("end_dim", end)) == (1, -1))

    def _convert_mean(self, node: Any) -> None:
        """Convert an average over all positions: axis −1 or 2, or both axes of an image."""
        axes = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        keeps = node.kwargs.get("keepdim", node.args[2] if len(node.args) > 2 else False)
        shape = self._shape(node.all_input_nodes[0])
        rank = len(shape)
        listed = [axes] if isinstance(axes, int) else list(axes or ())
        if rank < 3 or sorted(axis % rank for axis in listed) != list(range(2, rank)):
            self._refuse(node)
        name = self._name(node)
        average = AverageLayer(name if keeps else f"{name}.average", self._source(node), None, ())
        self._add(node, average)
        if not keeps:
            self._add(node, FlattenLayer(name, [average.name]))

    def _shape(self, node: Any) -> Shape:
        """Return the shape of a node's result, as ShapeProp has found it."""
        return tuple(node.meta["tensor_meta"].shape)

    def _pool(self, node: Any, pool: Any) -> QatLayer | None:
        """Return the layer of a pooling module; None if it has none."""
        name, source = self._name(node), self._source(node)
        rank = 1 if isinstance(pool, nn.AdaptiveAvgPool1d | nn.AvgPool1d | nn.MaxPool1d) else 2

        def sizes(value: Any) -> tuple[int, ...]:
            return (value,) * rank if isinstance(value, int) else tuple(value)

        if isinstance(pool, nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool2d):
            return AverageLayer(name, source, None, ()) if set(sizes(pool.output_size)) == {1} else None
        if isinstance(pool, nn.AvgPool1d | nn.AvgPool2d):
            is_plain = (
                not any(sizes(pool.padding)) and not pool.ceil_mode and not getattr(pool, "divisor_override", None)
            )
            return AverageLayer(name, source, sizes(pool.kernel_size), sizes(pool.stride)) if is_plain else None
        if isinstance(pool, nn.MaxPool1d | nn.MaxPool2d) and not pool.ceil_mode and not pool.return_indices:
            pads = sizes(pool.padding)
            window = Window(sizes(pool.stride), pads, pads, sizes(pool.dilation))
            return MaxPoolLayer(name, source, sizes(pool.kernel_size), window)
        return None


def _pairs(padding: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the padding before and behind each axis, the first axis first; PyTorch lists the last axis first."""
    for i in range(len(padding) - 2, -1, -2):
        yield padding[i], padding[i + 1]
