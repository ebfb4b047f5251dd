# SPDX-License-Identifier: Apache-2.0
"""Importer of ONNX's operator Gradient (ai.onnx.preview.training)."""

from __future__ import annotations

from mcugen.hir.graph import Value
from mcugen.hir.types import DType
from mcugen.ops.gradient.reverse import gradients
from mcugen.ops.onnx_node import COMPOSED_TEXT, FLOATS, OnnxNode, Refusal, onnx_operator
from mcugen.ops.training import TRAINING


@onnx_operator(
    "Gradient",
    domain=TRAINING,
    types=FLOATS,
    kernels=(COMPOSED_TEXT,),
    limits="where the tensors lie that it names, of operators with a derivative",
)
def _import_gradient(node: OnnxNode) -> list[Value]:
    """Import Gradient: of `y`, with respect to the tensors `xs`, which are the node's first inputs."""
    names = list(node.attr("xs", ()))
    by = [node.input(index) for index in range(len(names))]
    for name, value in zip(names, by, strict=True):
        _require(value.data is None, f"'{name}' is a constant", "make it an input, which --state can keep")
        _require(value is node.named(name), f"input '{value.name}' for '{name}'", "give it the tensors that it names")
    y = node.attr("y", "")
    of = node.named(y)
    if of is None:
        raise _misplaced(f"'{y}' is not computed before it", "put it behind what it differentiates")
    for value in (of, *by):
        node.require_dtype(value, DType.FLOAT32, DType.FLOAT64)
    return gradients(node.graph, of, by)


def _misplaced(place: str, remedy: str) -> Refusal:
    return Refusal("Gradient: tensors must be where their names are", place, remedy)


def _require(holds: bool, place: str, remedy: str) -> None:
    if not holds:
        raise _misplaced(place, remedy)
