# SPDX-License-Identifier: Apache-2.0
"""Constant folding: evaluation of single ONNX nodes with constant inputs by ONNX's reference implementation."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper, numpy_helper

from mcugen.core.limits import MAX_ELEMENTS
from mcugen.frontend.onnx.hazards import hazard
from mcugen.hir.types import Array

ALWAYS_FOLDED = {"Constant", "Shape", "Size"}
"""Names of the ONNX operators that the importer computes at compile time in all cases."""
_NOT_FOLDED = {"DequantizeLinear", "RandomNormal", "RandomUniform", "RNN", "LSTM", "GRU"}
"""Operators that are not folded.

The reference ignores lengths and activations of recurrent layers, and quantized weights must stay quantized.
"""
_RANDOM = {"RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}


def can_fold(node: onnx.NodeProto) -> bool:
    """Return whether ONNX's reference implementation can compute a node at compile time if its inputs are constant."""
    return node.op_type not in _NOT_FOLDED | _RANDOM and not any(a.HasField("g") for a in node.attribute)


def evaluate(node: onnx.NodeProto, inputs: dict[str, Array], opset: int) -> dict[str, Array] | None:
    """Compute a node's outputs at compile time by ONNX's reference implementation.

    Args:
        node: The node, of ONNX's own domain.
        inputs: Values of the inputs by name.
        opset: Version of the operator set.

    Returns:
        The outputs by name; None if the reference cannot compute them or if they would be too large.
    """
    if hazard(node, opset) or _is_far_outside(node, inputs):
        return None
    model = _single_node_model(node, inputs, opset)
    if _predicted_elements(model) > MAX_ELEMENTS:
        return None
    from onnx.reference import ReferenceEvaluator  # This import is slow: it loads all operators in numpy.

    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(model).run(None, {})
    except Exception:  # The reference raises any exception of its numpy code; the importer then refuses the node.
        return None
    return {name: np.asarray(r) for name, r in zip(filter(None, node.output), results, strict=True)}


def _is_far_outside(node: onnx.NodeProto, inputs: dict[str, Array]) -> bool:
    """Return whether GatherElements has an index far outside the data.

    The reference would step towards such an index one period at a time (`np.choose` with mode "wrap").
    """
    if node.op_type != "GatherElements" or len(node.input) != 2:
        return False
    data, indices = (np.asarray(inputs[name]) for name in node.input)
    return bool(np.any((indices < -data.size) | (indices >= data.size)))


def _single_node_model(node: onnx.NodeProto, inputs: dict[str, Array], opset: int) -> onnx.ModelProto:
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name]
    initializers = [numpy_helper.from_array(np.asarray(a), name) for name, a in inputs.items()]
    graph = helper.make_graph([node], "fold", [], outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _predicted_elements(model: onnx.ModelProto) -> int:
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # The node is invalid, and its evaluation will fail.
        return 0
    sizes = [float(np.prod([float(d.dim_value) for d in v.type.tensor_type.shape.dim])) for v in inferred.graph.output]
    return int(max(sizes, default=0))
