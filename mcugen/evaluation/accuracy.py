# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the generated code's outputs, and their agreement with ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from mcugen.core.errors import VerificationError
from mcugen.evaluation.metrics import METRICS, Judged, Metric, Outputs, bounded, companion_metrics, names_classes
from mcugen.evaluation.oracle import OracleModel, run_samples, start_onnx_runtime
from mcugen.hir.types import Array
from mcugen.lir.program import Endpoint


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of the generated code over some samples, and its difference from a reference.

    Attributes:
        metric: Name of the main metric (mcugen.evaluation.metrics).
        reference: Name of the reference. For a model that mcugen quantized, it is the float model.
        samples: Number of samples.
        float32: Value of the metric for the reference; None if unknown or infinite, like the next two.
        quantized: Value of the metric for the quantized model in ONNX Runtime.
        target: Value of the metric for the generated code.
        agreement: Share (0 to 1) of samples for which the generated code and the reference give the same class; None if
            outputs are not classes.
        max_abs_error: Largest difference of an output element from the reference, in real (dequantized) units.
        sqnr_db: Signal-to-quantization-noise ratio against the reference in dB; None without any error.
        beside: Values of further metrics.
    """

    metric: str
    reference: str
    samples: int
    float32: float | None
    quantized: float | None
    target: float | None
    agreement: float | None
    max_abs_error: float
    sqnr_db: float | None
    beside: tuple[MetricValues, ...] = ()


@dataclass(frozen=True)
class MetricValues:
    """The values of a further metric, beside the main metric of an Accuracy; None if unknown or infinite.

    Attributes:
        metric: Name of the metric.
        float32: Value for the reference.
        quantized: Value for the quantized model in ONNX Runtime.
        target: Value for the generated code.
    """

    metric: str
    float32: float | None
    quantized: float | None
    target: float | None


@dataclass(frozen=True)
class QuantizationEstimate:
    """The error of a quantized model against the float model, both in ONNX Runtime, on a few samples.

    Attributes:
        samples: Number of samples.
        kind: Origin of the samples: "held out" of calibration, "evaluation" data, "calibration" (used for calibration,
            so that the result is optimistic), or "synthetic" (generated, of little meaning for real data).
        agreement: Share (0 to 1) of samples with the same class; None if outputs are not classes.
        sqnr_db: SQNR in dB; None without any error.
    """

    samples: int
    kind: str
    agreement: float | None
    sqnr_db: float | None

    def __str__(self) -> str:
        noise = "exact" if self.sqnr_db is None else f"SQNR {self.sqnr_db:.1f} dB"
        samples = f"{self.samples} sample{'s' * (self.samples != 1)} {SAMPLE_KIND_PHRASES[self.kind]}"
        same = "" if self.agreement is None else f"{100 * self.agreement:.1f} % agreement, "
        return f"{same}{noise} against float32 on {samples}"


SAMPLE_KIND_PHRASES = {
    "held out": "not calibrated on",
    "evaluation": "of --data",
    "calibration": "calibrated on",
    "synthetic": "that are synthetic",
}
"""Phrase for messages by kind of samples (QuantizationEstimate.kind)."""


def run_onnxruntime(
    model: onnx.ModelProto,
    samples: Sequence[Outputs],
    fixed: Outputs | None = None,
    states: Mapping[str, str] | None = None,
) -> list[dict[str, Array]]:
    """Run a model that mcugen wrote on samples by ONNX Runtime, without optimizations, and return its outputs.

    Args:
        model: The model; for a user's model, use `mcugen.evaluation.oracle.run_oracle`.
        samples: The inputs of each sample, by name.
        fixed: Inputs by name that are equal for all samples, and initial states.
        states: For each output that is kept, the input that takes it in the next call.

    Raises:
        VerificationError: ONNX Runtime does not run the model.
    """
    return run_samples(OracleModel(model, fixed=fixed or {}, states=states or {}), start_onnx_runtime(model), samples)


def compare(
    endpoints: Sequence[Endpoint],
    target: Sequence[Outputs],
    reference: Sequence[Outputs],
    labels: Array | None,
    against: str = "ONNX Runtime",
    metric: Metric | None = None,
    quantized: Sequence[Outputs] | None = None,
    inputs: Sequence[Outputs] = (),
) -> Accuracy:
    """Compute the metrics of all results, and compare `target` with `reference`.

    Outputs that are strings in the reference, such as class names, are skipped.

    Args:
        endpoints: The model's outputs.
        target: The outputs of the generated code, by sample.
        reference: The outputs of the reference, by sample.
        labels: Labels of the samples; None if they have none.
        against: The name of the reference.
        metric: The metric; by default top1 with labels, else sqnr.
        quantized: The outputs of the quantized model in ONNX Runtime, by sample; None if unknown.
        inputs: The inputs of the samples, for metrics that need them.

    Raises:
        VerificationError: Outputs have different computed sizes in `target` and `reference`, or no output has numbers.
    """
    _check_sizes(endpoints, target, reference, against)
    metric = metric or METRICS["sqnr" if labels is None else "top1"]
    pairs = judged(endpoints, target, reference, labels, inputs)
    twin = None if quantized is None else judged(endpoints, quantized, reference, labels, inputs)
    return Accuracy(
        reference=against,
        samples=len(target),
        **vars(_measured(metric, pairs, twin)),
        agreement=METRICS["agreement"].compute(pairs) if names_classes(pairs) else None,
        max_abs_error=_value(METRICS["max_abs_error"], pairs) or 0.0,
        sqnr_db=_value(METRICS["sqnr"], pairs),
        beside=tuple(_measured(other, pairs, twin) for other in companion_metrics(metric, pairs)),
    )


def _measured(metric: Metric, pairs: Judged, twin: Judged | None) -> MetricValues:
    """Return a metric's values for the generated code, the quantized model in ONNX Runtime, and the reference."""
    return MetricValues(
        metric.name,
        float32=None if metric.by_reference else _value(metric, replace(pairs, outputs=pairs.reference)),
        quantized=None if twin is None else _value(metric, twin),
        target=_value(metric, pairs),
    )


def _value(metric: Metric, outputs: Judged) -> float | None:
    return bounded(metric, metric.compute(outputs))


def judged(
    endpoints: Sequence[Endpoint],
    outputs: Sequence[Outputs],
    reference: Sequence[Outputs],
    labels: Array | None = None,
    inputs: Sequence[Outputs] = (),
) -> Judged:
    """Return the numeric results of a model and of its reference, dequantized, in the form that metrics take.

    Outputs of strings are left out.

    Args:
        endpoints: The model's outputs.
        outputs: The outputs of the model, by sample.
        reference: The outputs of the reference, by sample.
        labels: Labels of the samples; None if they have none.
        inputs: The inputs of the samples, for metrics that need them.

    Raises:
        VerificationError: No output has numbers.
    """
    numeric = [e for e in endpoints if e.name in outputs[0] and reference[0][e.name].dtype.kind not in "OSU"]
    if not numeric:
        raise VerificationError("some output must be numbers, to be compared", "strings alone")
    return Judged(reals(outputs, numeric), reals(reference, numeric), inputs, labels)


def _check_sizes(
    endpoints: Sequence[Endpoint], target: Sequence[Outputs], reference: Sequence[Outputs], against: str
) -> None:
    """Raise a VerificationError where an output has other sizes than the reference gives."""
    for endpoint in (e for e in endpoints if e.name in target[0]):
        for outputs, expected in zip(target, reference, strict=True):
            a, b = outputs[endpoint.name], expected[endpoint.name]
            if a.size != b.size or (endpoint.sizes and a.shape != b.shape):
                rule = f"output '{endpoint.name}' must have the shape that the reference ({against}) gives"
                raise VerificationError(rule, f"{a.shape} and {b.shape}")


def reals(samples: Sequence[Outputs], endpoints: Sequence[Endpoint]) -> list[dict[str, Array]]:
    """Return the tensors that `endpoints` describe for each sample; quantized tensors are dequantized to float64."""
    return [{e.name: _real(sample[e.name], e) for e in endpoints} for sample in samples]


def _real(array: Array, endpoint: Endpoint) -> Array:
    if endpoint.quant is None or array.dtype.kind == "f":
        return array
    return (array.astype(np.float64) - endpoint.quant.zero_point) * endpoint.quant.scale[0]
