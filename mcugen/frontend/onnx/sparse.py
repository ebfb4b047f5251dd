# SPDX-License-Identifier: Apache-2.0
"""Conversion of sparse tensors, of which a model stores only the nonzero elements, to dense tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NoReturn

import numpy as np
import onnx
from onnx import numpy_helper

from mcugen.core.errors import DoesNotFitError, ModelError, shortened
from mcugen.core.limits import MAX_MODEL_BYTES, check_size
from mcugen.frontend.onnx.nodes import graphs_of
from mcugen.frontend.onnx.scope import to_array
from mcugen.hir.types import Array


def make_dense(model: onnx.ModelProto, place: str) -> None:
    """Replace sparse initializers and sparse constants by dense tensors, also in bodies and functions.

    Args:
        model: The model, changed in place.
        place: Name of the model for messages.

    Raises:
        ModelError: Indices violate onnx.proto (SparseTensorProto: ascending, each once).
        DoesNotFitError: A tensor has more than MAX_ELEMENTS, or all of them more than MAX_MODEL_BYTES.
    """
    left = MAX_MODEL_BYTES

    def dense(tensor: onnx.SparseTensorProto) -> onnx.TensorProto:
        nonlocal left
        dense_tensor = _dense(tensor, place)
        left -= len(dense_tensor.raw_data)
        if left < 0:
            rule = f"{place}: sparse tensors must have at most {MAX_MODEL_BYTES:,} bytes when they are dense"
            raise DoesNotFitError(rule, "more", "use a smaller model")
        return dense_tensor

    for graph, nodes in _parts(model):
        if graph is not None:
            graph.initializer.extend(dense(tensor) for tensor in graph.sparse_initializer)
            del graph.sparse_initializer[:]
        for attribute in (a for node in nodes if node.op_type == "Constant" for a in node.attribute):
            if attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense(attribute.sparse_tensor)))


def _parts(model: onnx.ModelProto) -> Iterator[tuple[onnx.GraphProto | None, Iterable[onnx.NodeProto]]]:
    """Yield each graph with its nodes, including bodies, and the nodes of functions, which have no graph."""
    open_: list[tuple[onnx.GraphProto | None, Iterable[onnx.NodeProto]]] = [(model.graph, model.graph.node)]
    open_ += [(None, function.node) for function in model.functions]
    while open_:
        part = open_.pop()
        yield part
        bodies = [g for node in part[1] for a in node.attribute for g in graphs_of(a)]
        open_ += [(graph, graph.node) for graph in bodies]


def _dense(tensor: onnx.SparseTensorProto, place: str) -> onnx.TensorProto:
    name, shape = shortened(tensor.values.name, 80), list(tensor.dims)
    values, indices = to_array(tensor.values), to_array(tensor.indices)
    if min(shape, default=1) < 0 or values.ndim != 1 or values.dtype.hasobject:
        _refuse(place, name, f"{values.ndim}-dimensional values of {values.dtype} for a shape of {shape[:8]}")
    count = math.prod(shape)
    check_size(place, name, count)
    flat = np.zeros(count, values.dtype)
    flat[_places(indices, len(values), shape, place, name)] = values
    dense = numpy_helper.from_array(flat, tensor.values.name)
    dense.dims[:] = shape
    return dense


def _places(indices: Array, count: int, shape: list[int], place: str, name: str) -> Array:
    """Return the flat positions of the values; indices are flat, or have a column for each axis."""
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        _refuse(place, name, f"indices of {indices.dtype}, {list(indices.shape)} for {count} values")
    bounds = np.asarray(shape if indices.ndim == 2 else math.prod(shape), np.int64)
    if np.any(indices < 0) or np.any(indices >= bounds):
        _refuse(place, name, "an index outside of the tensor")
    if indices.ndim == 2:
        steps = np.cumprod([1, *shape[:0:-1]], dtype=np.int64)[::-1] if shape else np.zeros(0, np.int64)
        indices = indices @ steps
    if np.any(np.diff(indices) <= 0):
        _refuse(place, name, "indices that do not ascend")
    return indices


def _refuse(place: str, name: str, fault: str) -> NoReturn:
    raise ModelError(f"{place}: the sparse tensor '{name}' must be as ONNX has it", fault, "export dense weights")
