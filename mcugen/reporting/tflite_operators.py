# SPDX-License-Identifier: Apache-2.0
"""The table of operators of TensorFlow Lite, which docs/reference/tflite_operators.md shows."""

from __future__ import annotations

from mcugen.frontend.tflite import operators as _operators  # noqa: F401 (registers the builders)
from mcugen.frontend.tflite.node import BUILDERS
from mcugen.frontend.tflite.schema import ELEMENT_TYPES, OPERATOR_NAMES

_NO_OPERATORS = {"CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES"}
"""Names in the schema that stand for no operator of their own."""


def tflite_operator_table() -> str:
    """Return a Markdown table of the operators that are supported, and a list of the others."""
    kinds = ", ".join(kind.name for kind in ELEMENT_TYPES.values())
    lines = [
        f"Element types: {kinds}. Quantized tensors have one scale, constants also one for each channel. Scales and "
        "layouts are converted by QuantizeLinear, DequantizeLinear and Transpose, which the compiler removes.",
        "",
        "| operator | ONNX operators | limits |",
        "|---|---|---|",
    ]
    lines += [f"| {kind} | {entry.becomes} | {entry.limits} |" for kind, entry in sorted(BUILDERS.items())]
    left = sorted(set(OPERATOR_NAMES) - set(BUILDERS) - _NO_OPERATORS)
    lines += ["", "### Not supported", "", ", ".join(left) + ", and custom operators."]
    return "\n".join(lines) + "\n"
