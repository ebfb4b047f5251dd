# SPDX-License-Identifier: Apache-2.0
"""The function bodies by which ONNX itself defines its composite operators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import zip_longest

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper

from mcugen.hir.types import DType, TensorType

MAX_CHECKED_INPUTS = 64
"""Largest number of inputs of a variadic operator whose element types are checked."""


STANDARD_DOMAINS = ("", "ai.onnx")
"""The two names of ONNX's own operator domain."""


def short_domain(domain: str) -> str:
    """Return a domain's name as importers and schemas use it: "" for ONNX's own domain, which has two names."""
    return "" if domain in STANDARD_DOMAINS else domain


def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    """Return the definition in the model's opset, or the first definition of a later standard operator."""
    standard = domain in STANDARD_DOMAINS
    try:
        return onnx.defs.get_schema(op_type, opset, "" if standard else domain)
    except onnx.defs.SchemaError:
        later = first_version(op_type) if standard else 0
        return onnx.defs.get_schema(op_type, later) if later > opset else None


@cache
def first_version(op_type: str) -> int:
    """Return the first opset that defines a standard operator and does not deprecate it; 0 if there is none."""
    return _first_versions().get(op_type, 0)


@cache
def _first_versions() -> dict[str, int]:
    versions: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain in STANDARD_DOMAINS and not schema.deprecated:
            versions[schema.name] = min(schema.since_version, versions.get(schema.name, schema.since_version))
    return versions


@cache
def restored_version(op_type: str, opset: int) -> int:
    """Return the operator set that defines an operator again which is deprecated in `opset`; 0 if there is none.

    For example, opset 18 deprecates its GroupNormalization, which opset 21 corrected and defined again. Runtimes still
    compute such deprecated operators.
    """
    if not onnx.defs.has(op_type, opset) or not onnx.defs.get_schema(op_type, opset).deprecated:
        return 0
    newest = onnx.defs.get_schema(op_type)
    return 0 if newest.deprecated else int(newest.since_version)


def unknown_attributes(node: onnx.NodeProto, opset: int) -> list[str]:
    """Return the names of a node's attributes that its operator does not have in this opset."""
    schema = _schema(node.op_type, opset, node.domain)
    return [a.name for a in node.attribute if schema is not None and a.name not in schema.attributes]


def _spread(formals: Sequence[onnx.defs.OpSchema.FormalParameter]) -> list[onnx.defs.OpSchema.FormalParameter]:
    """Return the formal parameters by position; the last one of a variadic operator is repeated."""
    variadic = bool(formals) and formals[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return [*formals, *(list(formals[-1:]) * (MAX_CHECKED_INPUTS if variadic else 0))]


def _type_parameters(formals: Sequence[onnx.defs.OpSchema.FormalParameter]) -> list[str]:
    """Return the type parameters of the formal parameters, by position."""
    return [f.type_str for f in _spread(formals)]


def outputs_like(node: onnx.NodeProto, opset: int, inputs: Sequence[int]) -> list[str]:
    """Return the names of a node's outputs whose element type must equal that of one of the given inputs.

    The operator's schema says so: it gives these outputs and inputs the same type parameter (such as T). Without a
    schema, the names of all outputs are returned.

    Args:
        node: The node.
        opset: Version of the operator set of the node's domain.
        inputs: Positions of the inputs.
    """
    schema = _schema(node.op_type, opset, node.domain)
    if schema is None:
        return [name for name in node.output if name]
    names = _type_parameters(schema.inputs)
    type_parameters = {names[index] for index in inputs if index < len(names)}
    formals = zip(node.output, _type_parameters(schema.outputs), strict=False)
    return [name for name, parameter in formals if name and parameter in type_parameters]


def data_inputs(op_type: str, opset: int, domain: str) -> list[int]:
    """Return the positions of the inputs that hold data: those with the same type parameter (T) as the output.

    If no input has it, the inputs with the type parameter of the first input count.

    Args:
        op_type: The operator.
        opset: Version of the operator set.
        domain: Domain of the operator.
    """
    schema = _schema(op_type, opset, domain)
    if schema is None:
        return [0]
    names = _type_parameters(schema.inputs)
    type_parameter = schema.outputs[0].type_str if schema.outputs[0].type_str in names else next(iter(names), "")
    return [index for index, name in enumerate(names) if name == type_parameter]


def has_body(op_type: str, opset: int, domain: str) -> bool:
    """Return whether ONNX defines an operator by a function body of simpler operators.

    Args:
        op_type: The operator.
        opset: Version of the operator set.
        domain: Domain of the operator.
    """
    schema = _schema(op_type, opset, domain)
    return schema is not None and bool(schema.has_function or schema.has_context_dependent_function)


@cache
def input_types(op_type: str, opset: int, domain: str) -> tuple[frozenset[str], ...]:
    """Return the names of the types that an operator allows for each input, in the model's opset or in the newest one.

    Args:
        op_type: The operator.
        opset: Version of the model's operator set.
        domain: Domain of the operator.

    Returns:
        A set for each input; empty if the operator is unknown.
    """
    schemas = [_schema(op_type, version, domain) for version in (opset, onnx.defs.onnx_opset_version())]
    rows = [[f.types for f in _spread(schema.inputs)] for schema in schemas if schema is not None]
    return tuple(frozenset[str]().union(*types) for types in zip_longest(*rows, fillvalue=()))


def type_name(dtype: DType) -> str:
    """Return the name of a tensor type in ONNX's schemas, such as "tensor(float)"."""
    return f"tensor({onnx.TensorProto.DataType.Name(_number(dtype)).lower()})"


def _number(dtype: DType) -> int:
    """Return ONNX's number of an element type."""
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype.value)))


def find_body(node: onnx.NodeProto, opset: int, inputs: Sequence[TensorType | None]) -> onnx.FunctionProto | None:
    """Return the ONNX function body of an operator that is defined by simpler ones, with its attributes filled in.

    Args:
        node: The node.
        opset: Version of the operator set of the node's domain.
        inputs: Type of each input; None if it is absent or not a tensor.

    Returns:
        The body; None if the operator is not defined by others.
    """
    schema = _schema(node.op_type, opset, node.domain)
    if schema is None:
        return None
    data = _plain(schema, opset) or _context_dependent(schema, node, opset, inputs)
    if not data:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(data)
    attributes = {a.name: a for a in node.attribute}
    defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    _fill_attributes(body.node, defaults | {a.name: a for a in body.attribute_proto} | attributes)
    return body


def _plain(schema: onnx.defs.OpSchema, opset: int) -> bytes:
    version = _best(schema.function_opset_versions, opset)
    return bytes(schema.get_function_with_opset_version(version)) if version else b""


def _context_dependent(
    schema: onnx.defs.OpSchema, node: onnx.NodeProto, opset: int, inputs: Sequence[TensorType | None]
) -> bytes:
    version = _best(schema.context_dependent_function_opset_versions, opset)
    if not version or any(name and type_ is None for name, type_ in zip(node.input, inputs, strict=True)):
        return b""  # ONNX's code crashes on an input without a tensor type, such as a sequence.
    types = [type_proto(t).SerializeToString() if t else b"" for t in inputs]
    try:
        body = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
    except onnx.shape_inference.InferenceError as error:
        raise ValueError(str(error)) from error
    return bytes(body)


def _best(versions: Sequence[int], opset: int) -> int:
    """Return the newest version that the model's opset includes, else the oldest; 0 if there is none."""
    known = [v for v in versions if v <= opset]
    return max(known) if known else min(versions, default=0)


def type_proto(type_: TensorType) -> onnx.TypeProto:
    """Return a tensor type as an ONNX TypeProto."""
    return helper.make_tensor_type_proto(_number(type_.dtype), type_.shape)


def _fill_attributes(nodes: Sequence[onnx.NodeProto], known: dict[str, onnx.AttributeProto]) -> None:
    """Replace references to the function's attributes by their values; drop references without a value."""
    for node in nodes:
        kept = []
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                if attribute.ref_attr_name not in known:
                    continue
                value = onnx.AttributeProto()
                value.CopyFrom(known[attribute.ref_attr_name])
                value.name = attribute.name
                kept.append(value)
                continue
            if attribute.HasField("g"):
                _fill_attributes(attribute.g.node, known)
            kept.append(attribute)
        copies = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in kept]
        del node.attribute[:]
        node.attribute.extend(copies)
