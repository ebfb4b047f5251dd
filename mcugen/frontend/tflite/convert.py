# SPDX-License-Identifier: Apache-2.0
"""Conversion of a .tflite model to an ONNX model, operator by operator."""

from __future__ import annotations

import json

import onnx
from onnx import helper

from mcugen.core.errors import UnsupportedError
from mcugen.frontend.tflite import operators as _operators  # Registers the builders.
from mcugen.frontend.tflite.body import build_body, refuse_unknown, unsupported
from mcugen.frontend.tflite.metadata import read_metadata
from mcugen.frontend.tflite.model import TfliteModel, TfliteTensor, read_model
from mcugen.frontend.tflite.node import MAX_CONSTANTS_PER_BYTE, SPARE_CONSTANT_BYTES, OnnxBody, TfliteWriter
from mcugen.frontend.tflite.schema import FILE_IDENTIFIER, LABELS_KEY, PREPROCESS_KEY, STATES_KEY
from mcugen.hir.names import Names
from mcugen.ops.onnx_node import Refusal

TFLITE_OPSET = 21
"""Version of ONNX's operator set of the result: the first whose QuantizeLinear writes int16."""
PRODUCER = "mcugen.tflite"
"""Name of the producer in the ONNX models."""


def is_tflite(data: bytes) -> bool:
    """Return whether bytes are a .tflite file, by their identifier."""
    return data[4:8] == FILE_IDENTIFIER


def convert_tflite(data: bytes, place: str) -> onnx.ModelProto:
    """Return the ONNX model that computes the same as a .tflite model.

    Quantized tensors are written as QuantizeLinear and DequantizeLinear around operators on floats.

    Args:
        data: The bytes of the file.
        place: Name of the file for messages.

    Raises:
        ModelError: The file is damaged.
        UnsupportedError: Operators cannot be compiled; the message lists all of them.
        DoesNotFitError: The model exceeds a limit of `core.limits`.
    """
    model = read_model(data, place)
    budget = MAX_CONSTANTS_PER_BYTE * len(data) + SPARE_CONSTANT_BYTES
    writer = TfliteWriter(model, Names(), budget)
    refuse_unknown(model)
    graph = model.graphs[0]
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
    opset = helper.make_opsetid("", TFLITE_OPSET)
    proto = helper.make_model(onnx_graph, opset_imports=[opset], ir_version=10, producer_name=PRODUCER)
    metadata = read_metadata(data, model)
    properties = {
        STATES_KEY: json.dumps({result.name: name for name, result in kept.items()}) if kept else "",
        LABELS_KEY: json.dumps(metadata.labels) if metadata.labels else "",
        PREPROCESS_KEY: metadata.preprocess,
    }
    helper.set_model_props(proto, {key: text for key, text in properties.items() if text})
    return proto


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


__all__ = ["_operators", "convert_tflite", "is_tflite"]
