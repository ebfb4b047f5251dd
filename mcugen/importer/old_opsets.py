# SPDX-License-Identifier: Apache-2.0
"""Models of older opsets: ONNX's version converter, and what it forgets."""

from __future__ import annotations

import onnx
import onnx.defs
import onnx.shape_inference
import onnx.version_converter

from mcugen.importer.nodes import every_node

CONVERTED_OPSET = 13
"""Older models are converted to it; from it on, operators differ only in attributes that became inputs."""

_SCAN8 = "mcugen.scan8"
_LATER = "mcugen.later"


def convert(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model, which is of an older `opset`, at CONVERTED_OPSET."""
    if opset < 7:
        model = _with_slopes_by_channel(model)
    scans = [n.op_type for n in model.graph.node].count("Scan") if opset < 9 else 0
    if scans:
        model = _without_batches(model)
    converted = onnx.version_converter.convert_version(model, CONVERTED_OPSET)
    if scans:
        _restore(converted, _SCAN8)
    if opset < 11:
        _resize_asymmetrically(converted.graph)
    return converted


def raised(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The model at a newer opset; errors are those of ONNX's converter, which have no common base.

    Operators that came to ONNX after the model's own opset are as the newer one says: ONNX Runtime had some of them
    before (LayerNormalization), and models have them in ONNX's domain. The converter knows no way from there, so that
    they hide in a domain of ours until it is done.
    """
    version = next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for node in every_node(model.graph.node):
        if node.domain in ("", "ai.onnx") and not onnx.defs.has(node.op_type, version):
            node.domain = _LATER
    model.opset_import.append(onnx.helper.make_opsetid(_LATER, 1))
    converted = onnx.version_converter.convert_version(model, opset)
    _restore(converted, _LATER)
    return converted


def _resize_asymmetrically(graph: onnx.GraphProto) -> None:
    """Before opset 11 this was the only way."""
    for node in graph.node:
        if node.op_type == "Resize":
            kept = [a for a in node.attribute if a.name not in ("coordinate_transformation_mode", "nearest_mode")]
            del node.attribute[:]
            node.attribute.extend(kept)
            node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(onnx.helper.make_attribute("nearest_mode", "floor"))


def _with_slopes_by_channel(model: onnx.ModelProto) -> onnx.ModelProto:
    """Before opset 7, PRelu's slopes of shape [C] belonged to axis 1."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    inferred = onnx.shape_inference.infer_shapes(model).graph
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in (*inferred.input, *inferred.value_info)}
    nodes = []
    for number, node in enumerate(model.graph.node):
        if node.op_type == "PRelu" and ranks.get(node.input[0], 2) > 2 and ranks.get(node.input[1], 1) == 1:
            by_channel = f"prelu{number}.{node.input[1]}"
            axes = list(range(1, ranks[node.input[0]] - 1))
            nodes.append(onnx.helper.make_node("Unsqueeze", [node.input[1]], [by_channel], axes=axes))
            node.input[1] = by_channel
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


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


def _restore(model: onnx.ModelProto, domain: str) -> None:
    """Operators that hid in a domain are ONNX's again."""
    for node in every_node(model.graph.node):
        if node.domain == domain:
            node.domain = ""
    kept = [entry for entry in model.opset_import if entry.domain != domain]
    del model.opset_import[:]
    model.opset_import.extend(kept)
