# SPDX-License-Identifier: Apache-2.0
"""ONNX's own verdict on a node that failed to import: it tells an invalid model from a bug in mcugen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx.checker
import onnx.shape_inference
from onnx import helper, numpy_helper

from mcugen.frontend.onnx.functions import type_proto
from mcugen.hir.types import Array, TensorType

MAX_ONNX_MESSAGE_CHARACTERS = 300
"""Largest number of characters of an ONNX message that an error message quotes."""


def onnx_objection(
    node: onnx.NodeProto, types: Sequence[TensorType | None], known: Sequence[Array | None], opsets: Mapping[str, int]
) -> str:
    """Return why ONNX's checker or shape inference rejects a node, as text; "" if it accepts the node.

    Nodes with subgraphs are accepted, as the nodes in these graphs are checked one by one.

    Args:
        node: The node.
        types: The type of each input; None if it is absent or unknown.
        known: The value of each input; None if it is computed at run time.
        opsets: The version of each operator domain, by name.
    """
    if any(attribute.HasField("g") for attribute in node.attribute):
        return ""
    model = _model(node, types, known, opsets)
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = model.ir_version, dict(opsets)
    try:
        onnx.checker.check_node(node, context)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:  # ONNX raises about a dozen exception types without a common base.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        return lines[-1 if lines[0].startswith("[ShapeInferenceError] Inference error") else 0][
            :MAX_ONNX_MESSAGE_CHARACTERS
        ]
    return ""


def _model(
    node: onnx.NodeProto, types: Sequence[TensorType | None], known: Sequence[Array | None], opsets: Mapping[str, int]
) -> onnx.ModelProto:
    """Return a model with only this node; the node's inputs are the model's inputs or constants."""
    inputs, constants = {}, {}
    for name, type_, array in zip(node.input, types, known, strict=True):
        if type_ is not None and array is not None and type_.dtype.numpy == array.dtype:
            constants[name] = numpy_helper.from_array(array, name)
        elif type_ is not None:
            inputs[name] = helper.make_value_info(name, type_proto(type_))
    graph = helper.make_graph([node], "judged", [*inputs.values()], [], [*constants.values()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*item) for item in opsets.items()])
