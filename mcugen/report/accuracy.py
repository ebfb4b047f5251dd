# SPDX-License-Identifier: Apache-2.0
"""How near the generated code's outputs are to ONNX Runtime's, and to the labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import onnxruntime

from mcugen.errors import VerificationError
from mcugen.hir.types import Array
from mcugen.lir.program import Endpoint

Outputs = Mapping[str, Array]


@dataclass(frozen=True)
class Accuracy:
    """Comparison over `samples` samples. Errors are in real units (dequantized); SQNR in dB.

    `float32` and `target` are accuracies by the labels (of the reference and of the generated code), None
    without labels; `agreement` is the share of samples for which both name the same class. `reference` says
    whose results those of the generated code are compared with.
    """

    metric: str
    reference: str
    samples: int
    float32: float | None
    target: float | None
    agreement: float
    max_abs_error: float
    sqnr_db: float | None


def run_onnxruntime(
    model: onnx.ModelProto,
    samples: Sequence[Outputs],
    progress: Callable[[int], None] | None = None,
    fixed: Outputs | None = None,
    states: Mapping[str, str] | None = None,
) -> list[dict[str, Array]]:
    """The model's outputs for each sample, by name, computed literally: graph optimization is off.

    `fixed` are inputs that no sample has; `states` (output → input) go from each sample to the next, from `fixed`.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        results = []
        kept = dict(fixed or {})
        for count, sample in enumerate(samples, 1):
            outputs = dict(zip(names, map(_plain, session.run(None, kept | dict(sample))), strict=True))
            kept |= {target: outputs[source] for source, target in (states or {}).items()}
            results.append(outputs)
            if progress:
                progress(count)
    except Exception as error:  # onnxruntime's exceptions share no base class
        reason = str(error).split("\n")[0][:200]
        raise VerificationError("ONNX Runtime must run the model for comparison", reason) from error
    return results


def _plain(value: Any) -> Array:
    """An output as an array; of dictionaries by class (ZipMap) the numbers, a row each."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return np.asarray([list(row.values()) for row in value])
    return np.asarray(value)


def compare(
    endpoints: Sequence[Endpoint],
    target: Sequence[Outputs],
    reference: Sequence[Outputs],
    labels: Array | None,
    against: str = "ONNX Runtime",
) -> Accuracy:
    """Compares outputs sample by sample; the class is the first output if that is one integer, else its largest entry.

    Where the reference names classes by strings, the next output tells. VerificationError if sizes that the model
    computes differ, or if there are no numbers.
    """
    endpoints = [e for e in endpoints if e.name in target[0] and reference[0][e.name].dtype.kind not in "OSU"]
    if not endpoints:
        raise VerificationError("some output must be numbers, to be compared", "strings alone")
    for endpoint in endpoints:
        for found, wanted in zip(target, reference, strict=True):
            if found[endpoint.name].shape != wanted[endpoint.name].shape and endpoint.sizes:
                shapes = f"{found[endpoint.name].shape} and {wanted[endpoint.name].shape}"
                raise VerificationError(f"output '{endpoint.name}' must have the shape that ONNX Runtime gives", shapes)
    classes = [_classes(outputs, endpoints[0]) for outputs in (target, reference)]
    real = [np.concatenate([_reals(o, endpoints) for o in outputs]) for outputs in (target, reference)]
    noise, signal = float(np.square(real[0] - real[1]).sum()), float(np.square(real[1]).sum())
    right = [None, None] if labels is None else [float((c == labels).mean()) for c in classes]
    return Accuracy(
        metric="top1" if labels is not None else "agreement",
        reference=against,
        samples=len(target),
        float32=right[1],
        target=right[0],
        agreement=float((classes[0] == classes[1]).mean()),
        max_abs_error=float(np.abs(real[0] - real[1]).max(initial=0.0)),
        sqnr_db=10 * float(np.log10(signal / noise)) if noise > 0 and signal > 0 else None,
    )


def _classes(outputs: Sequence[Outputs], endpoint: Endpoint) -> Array:
    arrays = [o[endpoint.name].reshape(-1) for o in outputs]
    if prod(endpoint.shape) == 1 and endpoint.dtype.numpy.kind in "iu" and endpoint.quant is None:
        return np.array([int(a[0]) for a in arrays])
    return np.array([int(a.argmax()) if a.size else -1 for a in arrays])


def _reals(outputs: Outputs, endpoints: Sequence[Endpoint]) -> Array:
    parts = []
    for endpoint in endpoints:
        flat = outputs[endpoint.name].reshape(-1).astype(np.float64)
        if endpoint.quant is not None:
            flat = (flat - endpoint.quant.zero_point) * endpoint.quant.scale[0]
        parts.append(flat)
    return np.concatenate(parts)
