# SPDX-License-Identifier: Apache-2.0
"""The table of operators of TensorFlow Lite, which docs/reference/tflite_operators.md shows."""

from __future__ import annotations

from mcugen.frontend.tflite import operators as _operators  # noqa: F401 (registers the builders)
from mcugen.frontend.tflite.matching import MATCHING_OPERATORS
from mcugen.frontend.tflite.schema import ELEMENT_TYPES, OPERATOR_NAMES
from mcugen.ops.onnx_node import BUILT_IN

_NO_OPERATORS = {"CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES"}
"""Names in the schema that stand for no operator of their own."""


def tflite_operator_table() -> str:
    """Return a Markdown table of the operators that are supported, and a list of the others."""
    kinds = ", ".join(kind.name for kind in ELEMENT_TYPES.values())
    lines = [
        f"Element types: {kinds}. Quantized tensors have one scale, constants also one for each channel. Scales and "
        "layouts are converted by QuantizeLinear, DequantizeLinear and Transpose, which the compiler removes.",
        "",
        "| operator | ONNX operators | limits | `--match tflite` |",
        "|---|---|---|---|",
    ]
    for kind, entry in sorted(BUILT_IN.tflite.items()):
        lines.append(f"| {kind} | {entry.becomes} | {entry.limits} | {'yes' if kind in MATCHING_OPERATORS else ''} |")
    left = sorted(set(OPERATOR_NAMES) - set(BUILT_IN.tflite) - _NO_OPERATORS)
    lines += ["", "### Not supported", "", ", ".join(left) + ", and custom operators without a plug-in."]
    return "\n".join(lines) + "\n"
