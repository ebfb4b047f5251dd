# SPDX-License-Identifier: Apache-2.0
"""ONNX → HIR: shapes are fixed, constants known, every node either understood or refused with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx

from mcugen import ops
from mcugen.errors import ModelError, UnsupportedError, UsageError
from mcugen.hir.graph import Graph
from mcugen.hir.types import Array, DType, TensorType
from mcugen.importer.scope import Scope, check_size, declared_types, dtype_or_none, to_array


def import_model(
    model: onnx.ModelProto,
    name: str,
    dims: Mapping[str, int] | None = None,
    bound: Mapping[str, Array] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Graph:
    """The HIR of a checked model. `dims` fixes symbolic dimensions, `bound` inputs (by their values).

    `sizes` are assumed for lengths that the model computes (`Graph.sizes`); each of them becomes an output, too.

    Raises ModelError for unbound dimensions and inconsistent models, UnsupportedError listing every node that
    cannot be compiled.
    """
    opsets = {"": onnx.defs.onnx_opset_version()}  # of models that use other domains only
    opsets |= {"" if e.domain == "ai.onnx" else e.domain: int(e.version) for e in model.opset_import}
    scope = Scope(Graph(name), opsets, declared=declared_types(model.graph))
    scope.graph.sizes, scope.graph.assumed = {}, dict(sizes or {})
    for tensor in model.graph.initializer:
        scope.env[tensor.name] = scope.constant(tensor.name, to_array(tensor))
    if model.graph.sparse_initializer:
        raise ModelError("initializers must be dense", "sparse initializers", "export dense weights")
    _import_inputs(scope, model.graph, dict(dims or {}), dict(bound or {}))
    scope.import_nodes(model.graph.node)
    if scope.refusals:
        count = len(scope.refusals)
        listing = "\n  - " + "\n  - ".join(scope.refusals)
        raise UnsupportedError(
            f"every operator must be supported; {count} node{'s are' * (count > 1) or ' is'} not:{listing}"
        )
    if not model.graph.output:
        raise ModelError("a model must have outputs", "none", "repair the model")
    for output in _distinct_outputs(scope.graph, model.graph):
        value = scope.output(output.name, dtype_or_none(output)) if scope.knows(output.name) else None
        if value is None:
            raise ModelError("every model output must be computed", f"'{output.name}' is not", "repair the model")
        scope.graph.add_output(output.name, value)
    for symbol, size in scope.graph.sizes.items():
        scope.graph.add_output(size_output(symbol), size.value)
    return scope.graph


def _distinct_outputs(graph: Graph, source: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """The outputs by name, as callers know them: one that is listed again is the same."""
    outputs = {output.name: output for output in reversed(source.output)}
    counts = Counter(output.name for output in source.output)
    graph.notes += [f"output '{name}' is listed {count} times: it is one" for name, count in counts.items() if count > 1]
    return [outputs[name] for name in counts]


def size_output(symbol: str) -> str:
    """The name of the output that tells a computed size."""
    return f"{symbol}.size"


def _import_inputs(scope: Scope, graph: onnx.GraphProto, dims: dict[str, int], bound: dict[str, Array]) -> None:
    unbound: dict[str, None] = {}
    known = set()
    for info in graph.input:
        if info.name in scope.env:
            continue  # before IR version 4 initializers were listed as inputs
        if not info.type.HasField("tensor_type"):
            found = info.type.WhichOneof("value") or "no type"
            raise UnsupportedError(f"input '{info.name}': must be a tensor", found, "export tensors")
        if info.name in bound:
            scope.env[info.name] = scope.constant(info.name, _bound_array(info, bound.pop(info.name)))
            continue
        shape = []
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            symbol = dim.dim_param or f"{info.name}:{axis}"
            if not dim.HasField("dim_value"):
                known.add(symbol)
            size = dim.dim_value if dim.HasField("dim_value") else dims.get(symbol)
            if size is None or size < 0:
                unbound[symbol] = None
            shape.append(size or 0)
        if not unbound:
            _import_input(scope, info, tuple(shape))
    unknown = sorted(set(dims) - known)
    if unknown:
        choices = ", ".join(sorted(known)) or "none"
        raise UsageError("--dim must name a symbolic dimension of the model", f"'{unknown[0]}'", f"one of: {choices}")
    if bound:
        choices = ", ".join(sorted(v.name for v in graph.input)) or "none"
        raise UsageError("--bind must name an input of the model", f"'{next(iter(bound))}'", f"one of: {choices}")
    if unbound:
        names = ", ".join(f"'{u}'" for u in unbound)
        remedy = "give each a size: " + " ".join(f"--dim {u}=1" for u in unbound)
        raise ModelError("every input dimension must be known", f"{names} unbound", remedy)


def _import_input(scope: Scope, info: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    type_ = TensorType(shape, _dtype(info))
    check_size(f"input '{info.name}'", info.name, type_.count)
    if not type_.count:  # nothing to read: known already
        scope.env[info.name] = scope.constant(info.name, np.empty(shape, type_.dtype.value))
        return
    scope.env[info.name] = scope.graph.add_input(info.name, type_)
    if type_.dtype.is_half:
        scope.halves[info.name] = type_.dtype


def _bound_array(info: onnx.ValueInfoProto, array: Array) -> Array:
    """A value given for an input, in its element type; UsageError if its shape or value cannot be the input's."""
    sizes = [d.dim_value if d.HasField("dim_value") else None for d in info.type.tensor_type.shape.dim]
    has_shape = info.type.tensor_type.HasField("shape")
    if has_shape and (
        len(sizes) != array.ndim or any(s not in (None, n) for s, n in zip(sizes, array.shape, strict=True))
    ):
        found = f"{array.shape}, the input is {tuple(s or '?' for s in sizes)}"
        raise UsageError(f"--bind '{info.name}': the shape must be the input's", found, "reshape the value")
    check_size(f"--bind '{info.name}'", info.name, array.size)
    dtype = _dtype(info)
    with np.errstate(all="ignore"):
        converted = array.astype(dtype.value)
    if not (dtype.is_float or dtype.is_half) and (converted != array).any():
        rule = f"--bind '{info.name}': the value must be of type {dtype.value}"
        raise UsageError(rule, str(array)[:60], "give whole numbers in its range")
    return converted


def _dtype(info: onnx.ValueInfoProto) -> DType:
    dtype = dtype_or_none(info)
    if dtype is None:
        found = onnx.TensorProto.DataType.Name(info.type.tensor_type.elem_type)
        raise UnsupportedError(f"input '{info.name}': unsupported element type", found, "use float32 or int8")
    return dtype


__all__ = ["import_model", "ops"]
