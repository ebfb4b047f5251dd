# SPDX-License-Identifier: Apache-2.0
"""Conversion of a .tflite model to an ONNX model, operator by operator."""

from __future__ import annotations

import json
from collections.abc import Iterator

import onnx
from onnx import helper

from mcugen.core.errors import UnsupportedError, listed, shortened
from mcugen.frontend.tflite import operators as _operators  # noqa: F401 (registers the builders)
from mcugen.frontend.tflite.body import build_body, refuse_unknown, unsupported
from mcugen.frontend.tflite.matching import require_matching
from mcugen.frontend.tflite.metadata import read_metadata
from mcugen.frontend.tflite.model import TfliteModel, TfliteTensor, read_model
from mcugen.frontend.tflite.node import MAX_CONSTANTS_PER_BYTE, SPARE_CONSTANT_BYTES, OnnxBody, TfliteWriter
from mcugen.frontend.tflite.schema import (
    AS_DEFINED,
    FILE_IDENTIFIER,
    LABELS_KEY,
    NOTES_KEY,
    PREPROCESS_KEY,
    ROUNDING_KEY,
    STATES_KEY,
    TfliteReading,
)
from mcugen.hir.names import Names
from mcugen.hir.types import Rounding
from mcugen.ops.onnx_node import BUILT_IN, Refusal, Registry

TFLITE_OPSET = 21
"""Version of ONNX's operator set of the result: the first whose QuantizeLinear writes int16."""
PRODUCER = "mcugen.tflite"
"""Name of the producer in the ONNX models."""


def is_tflite(data: bytes) -> bool:
    """Return whether bytes are a .tflite file, by their identifier."""
    return data[4:8] == FILE_IDENTIFIER


def convert_tflite(
    data: bytes, place: str, registry: Registry = BUILT_IN, reading: TfliteReading = AS_DEFINED
) -> onnx.ModelProto:
    """Return the ONNX model that computes the same as a .tflite model.

    Quantized tensors are written as QuantizeLinear and DequantizeLinear around operators on floats.

    Args:
        data: The bytes of the file.
        place: Name of the file for messages.
        registry: The operators that the model may use.
        reading: What the user asks of the reader.

    Raises:
        ModelError: The file is damaged.
        UnsupportedError: Operators cannot be compiled, or not with this rounding; the message lists all of them.
        DoesNotFitError: The model exceeds a limit of `core.limits`.
    """
    model = read_model(data, place, reading.signature)
    budget = MAX_CONSTANTS_PER_BYTE * len(data) + SPARE_CONSTANT_BYTES
    writer = TfliteWriter(model, Names(), registry, budget, reading)
    refuse_unknown(model, registry)
    if reading.rounding is Rounding.TFLITE:
        require_matching(model)
    graph = model.main
    body = OnnxBody(writer, graph)
    inputs = [_declared(body, tensor, model.names.get(tensor, tensor.name)) for tensor in graph.inputs]
    outputs = _name_outputs(body, model)
    build_body(body)
    if writer.refusals:
        raise unsupported(writer.refusals)
    results = [_result(body, tensor, name) for tensor, name in outputs]
    kept = _state_outputs(body)
    results += kept.values()
    inputs += (state.declared for state in writer.states.values())
    declared = [helper.make_tensor_value_info(*declaration) for declaration in body.declared]
    constants = list(body.constants.values())
    onnx_graph = helper.make_graph(body.nodes, "model", inputs, results, constants, value_info=declared)
    opsets = [helper.make_opsetid(domain, 1) for domain in sorted(writer.domains - {""})]
    opsets.insert(0, helper.make_opsetid("", TFLITE_OPSET))
    proto = helper.make_model(onnx_graph, opset_imports=opsets, ir_version=10, producer_name=PRODUCER)
    metadata = read_metadata(data, model)
    properties = {
        STATES_KEY: json.dumps({result.name: name for name, result in kept.items()}) if kept else "",
        LABELS_KEY: json.dumps(metadata.labels) if metadata.labels else "",
        PREPROCESS_KEY: metadata.preprocess,
        ROUNDING_KEY: "" if reading.rounding is Rounding.EXACT else reading.rounding.value,
        NOTES_KEY: "\n".join(_notes(writer)),
    }
    helper.set_model_props(proto, {key: text for key, text in properties.items() if text})
    return proto


def _notes(writer: TfliteWriter) -> Iterator[str]:
    """Yield what the user may not expect of the conversion, a line each."""
    model = writer.model
    if writer.reset_layers:
        kept = "TensorFlow Lite Micro keeps them until it is reset: --keep-states does the same"
        yield f"states begin with zeros in each call: {listed(map(repr, writer.reset_layers), 3)}; {kept}"
    if model.other_signatures:
        signatures = listed(map(repr, model.other_signatures), 3)
        subgraph = f"subgraph {model.main.index}" if model.main.index else "the first subgraph"
        yield f"{subgraph} is compiled; other signatures are not: {signatures}. try: --signature"
    for tensor in model.main.inputs:
        if any(size < 0 for size in tensor.signature[1:]):
            name, sizes, shape = repr(shortened(tensor.name)), list(tensor.signature), list(tensor.shape)
            remedy = "export it with the sizes that you use"
            yield f"sizes of input {name} are open, {sizes}, and taken as {shape}: {remedy}"


def _state_outputs(body: OnnxBody) -> dict[str, onnx.ValueInfoProto]:
    """Add an output for the next value of each state; return them by the name of the state's input."""
    results: dict[str, onnx.ValueInfoProto] = {}
    for state in body.writer.states.values():
        result = onnx.ValueInfoProto()
        result.CopyFrom(state.declared)
        result.name = body.writer.names.take(f"{state.declared.name}_next")
        body.nodes.append(helper.make_node("Identity", [state.value], [result.name], result.name))
        results[state.declared.name] = result
    return results


def _declared(body: OnnxBody, tensor: TfliteTensor, name: str) -> onnx.ValueInfoProto:
    """Return the declaration of an input, whose name is used from now on."""
    name = body.values[tensor] = body.writer.names.take(name)
    return helper.make_tensor_value_info(name, _type_of(body, tensor), tensor.shape)


def _type_of(body: OnnxBody, tensor: TfliteTensor) -> int:
    try:
        return tensor.type.onnx
    except Refusal as refusal:
        raise UnsupportedError(f"{body.writer.model.place}: {refusal.rule}", refusal.found, refusal.remedy) from refusal


def _name_outputs(body: OnnxBody, model: TfliteModel) -> list[tuple[TfliteTensor, str]]:
    """Give names to the outputs, and to what operators compute; return the outputs with their names."""
    computed = {tensor for operator in body.graph.operators for tensor in operator.outputs}
    outputs: dict[TfliteTensor, str] = {}
    for tensor in body.graph.outputs:
        if tensor not in outputs:
            outputs[tensor] = body.writer.names.take(model.names.get(tensor, tensor.name))
    body.values |= {tensor: name for tensor, name in outputs.items() if tensor in computed}
    return list(outputs.items())


def _result(body: OnnxBody, tensor: TfliteTensor, name: str) -> onnx.ValueInfoProto:
    """Return the declaration of an output; inputs and constants that are outputs are copied."""
    value = body.values.get(tensor)
    if value != name:
        if value is None:
            if not tensor.is_constant:
                raise tensor.buffer.damaged(f"output '{tensor.name}' without a value")
            value = body.add_constant(tensor.name, tensor.array, tensor.type)
        body.nodes.append(helper.make_node("Identity", [value], [name], tensor.name))
    return helper.make_tensor_value_info(name, _type_of(body, tensor), tensor.shape)
