# SPDX-License-Identifier: Apache-2.0
"""Import of ONNX models to HIR with fixed shapes; each node is either imported or refused with a reason."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx

from mcugen import ops
from mcugen.core.errors import ModelError, UnsupportedError, UsageError, listed, shortened
from mcugen.core.limits import check_size
from mcugen.frontend.onnx.composition import Composed, replace_composed_nodes
from mcugen.frontend.onnx.functions import short_domain
from mcugen.frontend.onnx.load import rounding_of
from mcugen.frontend.onnx.rolled import roll_up_steps
from mcugen.frontend.onnx.scope import Scope, declared_sizes, declared_types, dtype_or_none, type_number_name
from mcugen.frontend.tflite.schema import NOTES_KEY
from mcugen.hir.graph import Graph
from mcugen.hir.types import Array, DType, Rounding, TensorType
from mcugen.ops.onnx_node import BUILT_IN, Registry
from mcugen.ops.quantization import learn_quant


def import_model(
    model: onnx.ModelProto,
    name: str,
    dims: Mapping[str, int] | None = None,
    bound: Mapping[str, Array] | None = None,
    sizes: Mapping[str, int] | None = None,
    composed: Composed | None = None,
    registry: Registry = BUILT_IN,
    *,
    keeps_statistics: bool = False,
) -> Graph:
    """Return the HIR of a checked model.

    A leading dimension without a fixed size becomes 1 with an entry in `Graph.notes`, unless its name shows that it is
    not a batch of samples.

    Args:
        model: The model, as `load` returns it.
        name: Name of the graph.
        dims: Sizes of symbolic dimensions.
        bound: Values of inputs that become constants.
        sizes: Assumed lengths of dimensions that the model computes (`Graph.sizes`); each also becomes an output.
        composed: Receives, for each node that its importer expands to other ONNX operators, the nodes that it was
            expanded to; None if they are not needed.
        registry: Importers of operators.
        keeps_statistics: Whether batch normalization stays an operator (`ops.norm.BatchNormalize`).

    Raises:
        ModelError: A dimension has no size, or the model is inconsistent.
        UnsupportedError: Nodes cannot be compiled; the message lists all of them.
    """
    composed = {} if composed is None else composed
    while True:
        scope = _imported(model, name, dims, bound, sizes, composed, registry, keeps_statistics)
        whole = {name: value for name, value in scope.env.items() if scope.half(name) is None}
        layers = roll_up_steps(model, scope.graph, whole)
        if not layers:
            return scope.graph
        composed |= layers
        model = replace_composed_nodes(model, layers)


def _imported(
    model: onnx.ModelProto,
    name: str,
    dims: Mapping[str, int] | None,
    bound: Mapping[str, Array] | None,
    sizes: Mapping[str, int] | None,
    composed: Composed,
    registry: Registry,
    keeps_statistics: bool,
) -> Scope:
    """Import a model with its nodes as they are; return its graph and its values by name."""
    opsets = {"": onnx.defs.onnx_opset_version()}  # The default for models that only import other domains.
    opsets |= {short_domain(e.domain): int(e.version) for e in model.opset_import}
    scope = Scope(Graph(name), opsets, declared=declared_types(model.graph), registry=registry)
    scope.composed = composed
    scope.graph.sizes, scope.graph.assumed = {}, dict(sizes or {})
    scope.graph.keeps_statistics = keeps_statistics
    for tensor in model.graph.initializer:
        scope.env[tensor.name] = scope.initializer(tensor)
    _import_inputs(scope, model.graph, dict(dims or {}), dict(bound or {}))
    scope.import_nodes(model.graph.node)
    if scope.refusals:
        count = len(scope.refusals)
        listing = "\n  - " + listed(scope.refusals, separator="\n  - ")
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
    for value in (*scope.graph.inputs, *scope.graph.outputs):
        learn_quant(value)
    scope.graph.notes += (
        line for entry in model.metadata_props if entry.key == NOTES_KEY for line in entry.value.splitlines()
    )
    rounding = rounding_of(model)
    if rounding is not Rounding.EXACT:
        _set_rounding(scope.graph, rounding)
    return scope


def _set_rounding(graph: Graph, rounding: Rounding) -> None:
    """Set how the operators that compute quantized tensors round."""
    for node in graph.nodes:
        for value in node.outputs:
            value.type = _rounded(value.type, rounding)
    for value in graph.inputs:
        value.type = _rounded(value.type, rounding)


def _rounded(tensor: TensorType, rounding: Rounding) -> TensorType:
    return tensor if tensor.quant is None else tensor.with_quant(replace(tensor.quant, rounding=rounding))


def _distinct_outputs(graph: Graph, source: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the outputs in order, each name once; note outputs that are listed several times."""
    outputs = {output.name: output for output in reversed(source.output)}
    counts = Counter(output.name for output in source.output)
    repeated = {name: count for name, count in counts.items() if count > 1}
    graph.notes += [f"output '{name}' is listed {count} times: it is one" for name, count in repeated.items()]
    return [outputs[name] for name in counts]


def size_output(symbol: str) -> str:
    """Return the name of the model output that holds a size computed at run time.

    Args:
        symbol: Name of the symbolic dimension.
    """
    return f"{symbol}.size"


def _import_inputs(scope: Scope, graph: onnx.GraphProto, dims: dict[str, int], bound: dict[str, Array]) -> None:
    unbound: dict[str, None] = {}
    known, places = set[str](), set[str]()
    # Before IR version 4, initializers are inputs too.
    inputs = [info for info in graph.input if info.name not in scope.env]
    single = _batches(scope, [info for info in inputs if info.name not in bound], dims)
    for info in inputs:
        if not info.type.HasField("tensor_type"):
            kind = info.type.WhichOneof("value") or "no type"
            raise UnsupportedError(f"input '{info.name}': must be a tensor", kind, "export tensors")
        if info.name in bound:
            scope.env[info.name] = scope.constant(info.name, _bound_array(info, bound.pop(info.name)))
            continue
        shape = []
        for axis, (symbol, fixed) in enumerate(_dimensions(info)):
            size = fixed
            if fixed is None:
                place = _place(info, axis)
                known.add(symbol)
                places.add(place)
                size = dims.get(place, dims.get(symbol, single.get(symbol)))
            if size is None or size < 0:
                unbound[symbol] = None
            shape.append(size or 0)
        if not unbound:
            _import_input(scope, info, tuple(shape))
    unknown = sorted(set(dims) - known - places)
    if unknown:
        choices = listed(sorted(known)) or "none"
        raise UsageError("--dim must name a symbolic dimension of the model", f"'{unknown[0]}'", f"one of: {choices}")
    if bound:
        choices = listed(sorted(v.name for v in graph.input)) or "none"
        raise UsageError("--bind must name an input of the model", f"'{next(iter(bound))}'", f"one of: {choices}")
    if unbound:
        names = listed(f"'{u}'" for u in unbound)
        remedy = "give each a size: " + listed((f"--dim {shlex.quote(f'{u}=1')}" for u in unbound), separator=" ")
        raise ModelError("every input dimension must be known", f"{names} unbound", remedy)


def _dimensions(info: onnx.ValueInfoProto) -> list[tuple[str, int | None]]:
    """Return, for each axis, the name that --dim accepts, and the size if it is known.

    "?" is not a name: some exporters write it on every free axis.
    """
    dims = info.type.tensor_type.shape.dim
    names = [dim.dim_param.strip("?") or _place(info, axis) for axis, dim in enumerate(dims)]
    return list(zip(names, declared_sizes(info), strict=True))


def _place(info: onnx.ValueInfoProto, axis: int) -> str:
    """Return the name of one axis of one input, which --dim accepts too: a symbol may stand for several axes."""
    return f"{info.name}:{axis}"


_NO_BATCH = re.compile(r"(?!.*batch)(.*(seq|time|len|frame|step|token|word|char|point|node|edge|width|height)|[tlwh]$)")
"""Pattern of the names of leading dimensions that are not batches of samples, collected from exported models."""


def _batches(scope: Scope, inputs: Sequence[onnx.ValueInfoProto], dims: Mapping[str, int]) -> dict[str, int]:
    """Return size 1 for each leading dimension that is a batch without a size, and add a note on it."""
    leading: dict[str, list[str]] = {}
    for info in inputs:
        symbol = _batch(info)
        if symbol and symbol not in dims:
            leading.setdefault(symbol, []).append(info.name)
    for symbol, names in leading.items():
        more_inputs = f" and {len(names) - 1} more" * (len(names) > 1)
        where, name = f"input '{shortened(names[0])}'{more_inputs}", shortened(symbol)
        scope.graph.notes.append(f"dimension '{name}' of {where} is taken as 1: --dim {name}=SIZE makes it another")
    return dict.fromkeys(leading, 1)


def _batch(info: onnx.ValueInfoProto) -> str:
    """Return the name of an input's leading dimension if it is a batch of samples without a size, else "".

    The dimension is not a batch if its name matches _NO_BATCH, or if the input has it twice, like a matrix of
    neighbors.
    """
    symbols = [symbol for symbol, size in _dimensions(info) if size is None]
    first = next(iter(info.type.tensor_type.shape.dim), None)
    if first is None or declared_sizes(info)[0] is not None or symbols.count(symbols[0]) > 1:
        return ""
    return "" if _NO_BATCH.match(first.dim_param.lower()) else symbols[0]


def _import_input(scope: Scope, info: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    type_ = TensorType(shape, _dtype(info))
    check_size(f"input '{info.name}'", info.name, type_.count)
    if not type_.count:  # A tensor without elements is a constant.
        scope.env[info.name] = scope.constant(info.name, np.empty(shape, type_.dtype.value))
        return
    scope.env[info.name] = scope.graph.add_input(info.name, type_)
    if type_.dtype.is_narrow_float:
        scope.halves[info.name] = type_.dtype


def _bound_array(info: onnx.ValueInfoProto, array: Array) -> Array:
    """Return a value given for an input, in the input's element type.

    Raises:
        UsageError: The shape or a value does not fit the input.
    """
    sizes = declared_sizes(info)
    has_shape = info.type.tensor_type.HasField("shape")
    if has_shape and (
        len(sizes) != array.ndim or any(s not in (None, n) for s, n in zip(sizes, array.shape, strict=True))
    ):
        shapes_text = f"{array.shape}, the input is {tuple(s or '?' for s in sizes)}"
        raise UsageError(f"--bind '{info.name}': the shape must be the input's", shapes_text, "reshape the value")
    check_size(f"--bind '{info.name}'", info.name, array.size)
    dtype = _dtype(info)
    with np.errstate(all="ignore"):
        converted = array.astype(dtype.value)
    if not (dtype.is_float or dtype.is_narrow_float) and (converted != array).any():
        rule = f"--bind '{info.name}': the value must be of type {dtype.value}"
        raise UsageError(rule, str(array)[:60], "give whole numbers in its range")
    return converted


def _dtype(info: onnx.ValueInfoProto) -> DType:
    dtype = dtype_or_none(info)
    if dtype is None:
        onnx_name = type_number_name(info.type.tensor_type.elem_type)
        raise UnsupportedError(f"input '{info.name}': unsupported element type", onnx_name, "use float32 or int8")
    return dtype


__all__ = ["import_model", "ops"]
