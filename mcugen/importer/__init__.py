# SPDX-License-Identifier: Apache-2.0
"""ONNX → HIR: shapes are fixed, constants known, every node either understood or refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mcugen import ops
from mcugen.errors import DoesNotFitError, ModelError, UnsupportedError, UsageError
from mcugen.hir.graph import Graph, Value
from mcugen.hir.types import Array, DType, TensorType
from mcugen.importer import fold
from mcugen.ops.onnx_node import IMPORTERS, OnnxNode, Refusal


@dataclass
class _State:
    graph: Graph
    opset: int
    env: dict[str, Value | None] = field(default_factory=dict)
    """ONNX name → value; None for outputs of refused nodes and their dependents."""
    refusals: list[str] = field(default_factory=list)
    strange: dict[str, str] = field(default_factory=dict)
    """Constants of element types that C does not have."""


def import_model(model: onnx.ModelProto, name: str, dims: Mapping[str, int] | None = None) -> Graph:
    """The HIR of a checked model. `dims` binds symbolic dimensions.

    Raises ModelError for unbound dimensions and inconsistent models, UnsupportedError listing every node that
    cannot be compiled.
    """
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    state = _State(Graph(name), int(opset))
    for tensor in model.graph.initializer:
        state.env[tensor.name] = _constant(state, tensor.name, _array(tensor))
    if model.graph.sparse_initializer:
        raise ModelError("initializers must be dense", "sparse initializers", "export dense weights")
    _import_inputs(state, model.graph, dict(dims or {}))
    for node in model.graph.node:
        _import_node(state, node)
    if state.refusals:
        count = len(state.refusals)
        listing = "\n  - " + "\n  - ".join(state.refusals)
        raise UnsupportedError(
            f"every operator must be supported; {count} node{'s are' * (count > 1) or ' is'} not:{listing}"
        )
    for output in model.graph.output:
        value = state.env.get(output.name)
        if value is None:
            raise ModelError("every model output must be computed", f"'{output.name}' is not", "repair the model")
        state.graph.add_output(output.name, value)
    if not state.graph.inputs:
        raise ModelError("a model must have an input", "none", "export the model with its inputs")
    return state.graph


def _array(tensor: onnx.TensorProto) -> Array:
    try:
        array: Array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ModelError(f"initializer '{tensor.name}' must be readable", str(error)[:200], "export again") from error
    return array


def _constant(state: _State, name: str, array: Array) -> Value | None:
    """A constant; wide floats are narrowed, types without a C counterpart are unknown."""
    if array.dtype in (np.float64, np.float16):
        array = array.astype(np.float32)
    try:
        return state.graph.constant(name, np.ascontiguousarray(array).reshape(array.shape))
    except ValueError:
        state.strange[name] = array.dtype.name
        return None


def _import_inputs(state: _State, graph: onnx.GraphProto, dims: dict[str, int]) -> None:
    unbound: dict[str, None] = {}
    known = set()
    for info in graph.input:
        if info.name in state.env:
            continue  # before IR version 4 initializers were listed as inputs
        shape = []
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            symbol = dim.dim_param or f"{info.name}:{axis}"
            if not dim.HasField("dim_value"):
                known.add(symbol)
            size = dim.dim_value if dim.HasField("dim_value") else dims.get(symbol)
            if size is None or size < 1:
                unbound[symbol] = None
            shape.append(size or 1)
        if not unbound:
            state.env[info.name] = state.graph.add_input(info.name, TensorType(tuple(shape), _dtype(info)))
    if unbound:
        names = ", ".join(f"'{u}'" for u in unbound)
        remedy = "give each a size: " + " ".join(f"--dim {u}=1" for u in unbound)
        raise ModelError("every input dimension must be a positive number", f"{names} unbound", remedy)
    unknown = sorted(set(dims) - known)
    if unknown:
        choices = ", ".join(sorted(known)) or "none"
        raise UsageError("--dim must name a symbolic dimension of the model", f"'{unknown[0]}'", f"one of: {choices}")


def _dtype(info: onnx.ValueInfoProto) -> DType:
    number = info.type.tensor_type.elem_type
    try:
        return DType(helper.tensor_dtype_to_np_dtype(number).name)
    except (ValueError, KeyError) as error:
        found = onnx.TensorProto.DataType.Name(number)
        raise UnsupportedError(
            f"input '{info.name}': unsupported element type", found, "use float32 or int8"
        ) from error


def _import_node(state: _State, node: onnx.NodeProto) -> None:
    absent = [name for name in node.input if name and name not in state.env]
    if absent:
        return _fail(state, node, f"every input must be computed. found: '{absent[0]}' is not. try: repair the model.")
    strange = [f"'{name}' is {state.strange[name]}" for name in node.input if name in state.strange]
    if strange:
        reason = f"constants must have an element type of C. found: {strange[0]}. try: export float32 weights."
        return _fail(state, node, reason)
    if any(name and state.env[name] is None for name in node.input):
        return _fail(state, node)  # a consequence of an earlier refusal: not worth a line of its own
    inputs = tuple(state.env[name] if name else None for name in node.input)
    try:
        results = _fold(state, node, inputs) or _emit(state, node, inputs)
        _check_sizes(node, results)
    except Refusal as refusal:
        return _fail(state, node, str(refusal))
    except ModelError as error:
        raise ModelError(f"{_label(node)}: {error.rule}", error.found, error.remedy) from error
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        ZeroDivisionError,
        OverflowError,
        AssertionError,
    ) as error:
        raise ModelError(
            f"{_label(node)}: attributes and shapes must be consistent", str(error)[:200], "repair the model"
        ) from error
    for name, value in zip(node.output, results, strict=False):
        if name:
            state.env[name] = value


def _check_sizes(node: onnx.NodeProto, results: Sequence[Value | None]) -> None:
    for value in results:
        if value is None or value.is_constant:
            continue
        count, name = value.type.count, value.name
        if count > fold.MAX_ELEMENTS:
            rule = f"{_label(node)}: a tensor must have at most {fold.MAX_ELEMENTS:,} elements, to fit any board"
            raise DoesNotFitError(rule, f"{count:,} in '{name}'", "use smaller shapes")
        if not count:
            raise Refusal("a tensor must have elements", f"none in '{name}'", "use larger shapes")


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} '{node.name or next(iter(node.output), '')}'"


def _fail(state: _State, node: onnx.NodeProto, reason: str = "") -> None:
    if reason:
        state.refusals.append(f"{_label(node)}: {reason}")
    state.env.update(dict.fromkeys(filter(None, node.output)))


def _emit(state: _State, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> Sequence[Value]:
    domain = "" if node.domain == "ai.onnx" else node.domain
    importer = IMPORTERS.get((domain, node.op_type))
    if importer is None:
        remedy = "replace it by supported operators (see docs/operators.md)"
        raise Refusal("operator not supported", f"domain '{domain or 'ai.onnx'}', opset {state.opset}", remedy)
    attributes = {a.name: _attribute(a) for a in node.attribute}
    outputs = tuple(node.output)
    return importer(
        OnnxNode(state.graph, domain, node.op_type, node.name, tuple(inputs), outputs, attributes, state.opset)
    )


def _attribute(attribute: onnx.AttributeProto) -> object:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _fold(state: _State, node: onnx.NodeProto, inputs: Sequence[Value | None]) -> list[Value | None] | None:
    """Outputs known at compile time: shapes, and functions of constants."""
    if node.op_type in ("Shape", "Size") and inputs[0] is not None:
        shape = np.asarray(inputs[0].type.shape, np.int64)
        span = {a.name: a.i for a in node.attribute}
        array = shape[span.get("start", 0) : span.get("end", len(shape))] if node.op_type == "Shape" else shape.prod()
        return [_constant(state, node.output[0], np.asarray(array))]
    known = all(v is None or (v.data is not None and v.type.quant is None) for v in inputs)
    if not known or node.domain not in ("", "ai.onnx") or not fold.can_fold(node.op_type):
        return None
    feeds = {name: v.data for name, v in zip(node.input, inputs, strict=True) if v is not None and v.data is not None}
    arrays = fold.evaluate(node, feeds, state.opset)
    if arrays is None:
        return None
    return [_constant(state, name, array) for name, array in zip(node.output, arrays, strict=False)]


__all__ = ["import_model", "ops"]
