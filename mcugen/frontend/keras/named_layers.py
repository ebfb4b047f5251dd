# SPDX-License-Identifier: Apache-2.0
"""The names of a Keras model's layers in its exported ONNX model, as `block/conv`.

PyTorch's exporter names nodes after the modules that they stem from. Layers of Keras are modules, but the model does
not list them as its parts, and a layer calls its parts by the names of Python attributes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import torch

from mcugen.frontend.onnx.module_names import SCOPES_KEY


class NamedLayers(torch.nn.Module):  # type: ignore[misc]
    """A Keras model with the PyTorch backend as a module whose parts are the layers, by their paths.

    Attributes:
        paths: The path of each layer: the names of the layers that it is in and its own, between slashes.
    """

    def __init__(self, model: Any) -> None:
        """Make a module of a model that was built."""
        super().__init__()
        self._call = model.__call__  # The model itself as a part would hide the names of its layers.
        # Without the argument, Resizing and similar layers set the layers behind them to training (Keras 3.15).
        self._mode = {"training": False} if model._call_has_training_arg else {}
        self.paths: dict[Any, str] = {}
        for path, layer in _layers_in(model, ""):
            if layer not in self.paths:
                self.add_module(f"keras_layer_{len(self.paths)}", layer)  # Paths may be names of methods, as "half".
                self.paths[layer] = path

    def forward(self, *inputs: Any) -> Any:
        """Return the outputs of the model for inference."""
        return self._call(*inputs, **self._mode)

    def complete_names(self, proto: onnx.ModelProto) -> None:
        """Write the paths of layers to the metadata of the nodes that PyTorch exported, in place."""
        for node in (node for graph in (proto.graph, *proto.functions) for node in graph.node):
            for entry in node.metadata_props:
                if entry.key == SCOPES_KEY:
                    entry.value = str(self._full_scopes(ast.literal_eval(entry.value)))

    def _full_scopes(self, scopes: Sequence[str]) -> list[str]:
        """Return nested scopes of an operation, as "mha" and "_query_dense", with paths of layers, as "mha/query"."""
        *modules, operation = scopes
        owner: Any = self
        full = []
        for scope in modules:
            owner = self._modules.get(scope) or _part(owner, scope)
            full.append(self.paths.get(owner, scope))
        return [*full, operation]


def _part(owner: Any, attribute: str) -> Any:
    """Return the part of a layer that is the value of a dotted attribute; None if there is none."""
    for name in filter(None, attribute.split(".")):
        owner = getattr(owner, name, None)
    return owner


def _layers_in(layer: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the layers in a layer or model with their paths, from the outside to the inside."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        path = prefix + inner.name
        yield path, inner
        yield from _layers_in(inner, f"{path}/")
