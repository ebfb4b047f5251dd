# SPDX-License-Identifier: Apache-2.0
"""Checked loading: bytes → a valid ONNX model of a supported opset, whatever the file holds."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import onnx.checker
import onnx.inliner
import onnx.shape_inference
import onnx.version_converter
from google.protobuf.message import DecodeError, Message

from mcugen.errors import ModelError

OLDEST_OPSET = 6
CONVERTED_OPSET = 13
"""Older models are converted to it; from it on, operators differ only in attributes that became inputs."""


def load_model(path: Path) -> tuple[onnx.ModelProto, str]:
    """The model and the SHA-256 of its file. ModelError where it cannot be read or is not valid ONNX."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: the model must be a readable file", str(error.strerror), "check the path") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{path}: the file must be an ONNX model",
            "bytes that are no ONNX protobuf",
            "export the model again",
        ) from error
    if not model.HasField("graph"):
        raise ModelError(f"{path}: the file must be an ONNX model", "no graph in it", "export the model again")
    _load_external_data(model, path)
    return prepare_model(model, str(path)), hashlib.sha256(data).hexdigest()


def prepare_model(model: onnx.ModelProto, place: str) -> onnx.ModelProto:
    """Checks a model, inlines its local functions, and converts old opsets."""
    _check_text(model, place)
    opset = _opset(model, place)
    try:
        inferred = onnx.shape_inference.infer_shapes(model)  # exporters omit shapes of outputs
        onnx.checker.check_model(inferred)
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        if opset < CONVERTED_OPSET:
            model = _converted(model, opset)
    except (onnx.checker.ValidationError, RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().split("\n")[0][:300]
        raise ModelError(f"{place}: the model must be valid ONNX", reason, "export the model again") from error
    return model


def _check_text(message: Message, place: str) -> None:
    """Strings that are not UTF-8 come as bytes: only a corrupt file has them."""
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        for item in [value] if isinstance(value, str | bytes | Message) else value:
            if isinstance(item, bytes):
                raise ModelError(f"{place}: names must be UTF-8", repr(item[:40]), "export the model again")
            if isinstance(item, Message):
                _check_text(item, place)


def _converted(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model at CONVERTED_OPSET. Before opset 11 resizing was asymmetric, which the converter forgets to say."""
    scans = [n.op_type for n in model.graph.node].count("Scan") if opset < 9 else 0
    if scans:
        model = _without_batches(model)
    converted = onnx.version_converter.convert_version(model, CONVERTED_OPSET)
    if scans:
        _restore_scans(converted)
    for node in converted.graph.node if opset < 11 else ():
        if node.op_type == "Resize":
            kept = [a for a in node.attribute if a.name not in ("coordinate_transformation_mode", "nearest_mode")]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(onnx.helper.make_attribute("nearest_mode", "floor"))
    return converted


_SCAN8 = "mcugen.scan8"


def _without_batches(model: onnx.ModelProto) -> onnx.ModelProto:
    """Scan of opset 8 for samples in a batch of one: the same for one sample, and its batch axis around it.

    The converter would change the model's inputs and outputs; until it is done, Scan hides in a domain of ours.
    """
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.opset_import.append(onnx.helper.make_opsetid(_SCAN8, 1))
    nodes = []
    for number, node in enumerate(model.graph.node):
        if node.op_type != "Scan":
            nodes.append(node)
            continue
        if node.input[0]:
            raise ValueError("Scan of opset 8 with lengths of sequences")
        squeezed = [f"scan{number}.{name}" for name in node.input[1:]]
        unsqueezed = [f"scan{number}.{name}" for name in node.output]
        pairs = zip(node.input[1:], squeezed, strict=True)
        nodes += [onnx.helper.make_node("Squeeze", [x], [y], axes=[0]) for x, y in pairs]
        attributes = {"directions": "scan_input_directions"}
        for attribute in node.attribute:
            attribute.name = attributes.get(attribute.name, attribute.name)
        scan = onnx.helper.make_node("Scan", squeezed, unsqueezed, node.name, domain=_SCAN8)
        scan.attribute.extend(node.attribute)
        pairs = zip(unsqueezed, node.output, strict=True)
        nodes += [scan, *(onnx.helper.make_node("Unsqueeze", [x], [y], axes=[0]) for x, y in pairs)]
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model


def _restore_scans(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.domain == _SCAN8:
            node.domain = ""
    kept = [entry for entry in model.opset_import if entry.domain != _SCAN8]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def _opset(model: onnx.ModelProto, place: str) -> int:
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    newest = onnx.defs.onnx_opset_version()
    if not versions and model.opset_import:  # only other domains are used
        return int(newest)
    if not versions or not OLDEST_OPSET <= versions[0] <= newest:
        found = f"opset {versions[0]}" if versions else "none"
        raise ModelError(f"{place}: the opset must be {OLDEST_OPSET} to {newest}", found, "export with another opset")
    return int(versions[0])


def _load_external_data(model: onnx.ModelProto, path: Path) -> None:
    if not any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer):
        return
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        reason = str(error).strip().split("\n")[0][:300]
        raise ModelError(
            f"{path}: external weights must lie beside the model",
            reason,
            "keep the .data file in the same folder",
        ) from error
