# SPDX-License-Identifier: Apache-2.0
"""The output of `mcugen quantize --json`: the facts of one quantization as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mcugen.hir.layer_names import name_nodes
from mcugen.quantization.quantize import Quantization


@dataclass(frozen=True)
class QuantizationSummary:
    """The result of `mcugen quantize`, for its JSON output.

    Attributes:
        quantization: The quantized model.
        output: Path of the ONNX file that it was written to.
        output_bytes: Size of the file in bytes.
    """

    quantization: Quantization
    output: Path
    output_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object."""
        quantized = self.quantization
        estimate = quantized.estimate
        return {
            "output": str(self.output),
            "output_bytes": self.output_bytes,
            "description": quantized.describe(),
            "precision": quantized.plan.scheme.activations.value,
            "samples": quantized.profile.samples,
            "calibration_sha256": quantized.calibration_sha256,
            "estimate": None if estimate is None else asdict(estimate),
            "layers": layer_precisions(quantized),
            "notes": list(quantized.notes),
            "warnings": list(quantized.warnings),
        }


def layer_precisions(quantized: Quantization) -> list[dict[str, str]]:
    """Return, for each layer in the network's order, a dictionary with its name, operator and precision.

    A layer of another precision than the model's main one has a reason and a remedy, too.
    """
    other_layers = {layer.name: asdict(layer) for layer in quantized.other_precisions}
    layers = []
    for node, name in name_nodes(quantized.model.graph).items():
        result = node.outputs[0].name
        if name in other_layers:
            layers.append(other_layers[name])
        elif result in quantized.assignment.precision:
            precision = quantized.assignment.precision[result].value
            layers.append({"name": name, "op": node.op.name, "precision": precision, "reason": "", "remedy": ""})
    return layers
