# SPDX-License-Identifier: Apache-2.0
"""Estimate of the accuracy loss of quantization: both models run on a few samples, if possible held-out ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from mcugen.core.options import DIVERGED_DB
from mcugen.evaluation.accuracy import QuantizationEstimate, run_onnxruntime
from mcugen.evaluation.metrics import METRICS, Judged, Outputs, names_classes
from mcugen.evaluation.samples import Samples
from mcugen.quantization.compare import compare_layers
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.qdq import write_qdq
from mcugen.quantization.quantize import Quantization, add_stream_states
from mcugen.quantization.samples import Sample, split_in_halves

HOLD_OUT_STRIDE = 5
"""Number of samples of which one is held out for evaluation: the share of held-out samples is 1 / HOLD_OUT_STRIDE."""
MIN_HELD_OUT_SAMPLES = 4
"""Smallest number of held-out samples: if there would be fewer, no sample is held out."""

MAX_HELD_OUT_SAMPLES = 32
"""Largest number of held-out samples."""

MIN_HALF_SAMPLES = 32
"""Smallest number of samples in each half, if one half chooses precisions and the other half evaluates the choice."""

MIN_EVALUATION_SAMPLES = 4
"""Smallest number of samples on which float and quantized model are compared, however large the model is."""
MAX_EVALUATION_SAMPLES = 64
"""Largest number of samples on which float and quantized model are compared."""
MAX_EVALUATION_MACS = 2 * 10**9
"""Largest number of multiply-accumulates for comparing float and quantized model: those of an inference times samples.

Large models are compared on fewer samples.
"""

MIN_CLASS_AGREEMENT = 0.9
"""Smallest share of samples with the same class in both models for which no high accuracy loss is reported.

An SQNR below DIVERGED_DB is reported as well.
"""

HIGH_LOSS_NOTE = "quantization costs much"
"""First words of the note that reports a high accuracy loss; other modules find the note by them."""

NUM_EXPLAINING_SAMPLES = 2
"""Number of samples on which the note of a high loss compares the layers: few, as numpy runs the integer model."""

NUM_NAMED_WORST_LAYERS = 3
"""Number of layers that the note of a high loss names: those of lowest SQNR."""


def hold_out(samples: Sequence[Sample], is_stream: bool) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Return the samples to calibrate on, and the held-out samples to evaluate on.

    One of HOLD_OUT_STRIDE samples is held out: they are spread over all samples or, for a stream, are its end. If there
    are too few samples, all are for calibration and none is held out.

    Args:
        samples: The samples.
        is_stream: Whether the samples are consecutive steps of one stream.
    """
    count = min(len(samples) // HOLD_OUT_STRIDE, MAX_HELD_OUT_SAMPLES)
    if count < MIN_HELD_OUT_SAMPLES:
        return samples, ()
    if is_stream:
        return samples[:-count], samples[-count:]
    held_indices = {(2 * i + 1) * len(samples) // (2 * count) for i in range(count)}
    return [s for i, s in enumerate(samples) if i not in held_indices], [samples[i] for i in sorted(held_indices)]


def split_samples(samples: Sequence[Sample], is_stream: bool) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Return the samples by which precisions are chosen, and the samples on which the choice is evaluated.

    Each part is a half of the samples; the second half of a stream is for evaluation. If there are too few samples, all
    choose precisions, and the second part is empty.

    Args:
        samples: The samples.
        is_stream: Whether the samples are consecutive steps of one stream.
    """
    indices, half = range(len(samples)), len(samples) // 2
    held_indices, known_indices = (indices[half:], indices[:half]) if is_stream else split_in_halves(samples)
    if min(len(held_indices), len(known_indices)) < MIN_HALF_SAMPLES:
        return samples, ()
    return [samples[i] for i in known_indices], [samples[i] for i in held_indices]


def estimate_loss(quantized: Quantization, samples: Sequence[Sample], kind: str) -> Quantization:
    """Return a quantization with an estimate of its accuracy loss, and a warning note if the loss is high.

    Without samples, or without outputs that can be compared (numbers of equal shape, not all 0), the quantization is
    returned unchanged.

    Args:
        quantized: The quantized model.
        samples: The samples to evaluate on; large models use some of them.
        kind: What the samples are, for messages: "evaluation", "held out" or "calibration".
    """
    model = quantized.model
    evaluated = _some(samples, sum(n.op.macs(n.sig) for n in model.graph.nodes), bool(model.states))
    if not evaluated:
        return quantized
    pairs, note = _output_pairs(quantized, evaluated)
    pairs = replace(pairs, inputs=evaluated)
    sqnr_db = METRICS["sqnr"].compute(pairs) if pairs.names else -math.inf
    if sqnr_db == -math.inf:
        return quantized
    agreement = round(METRICS["agreement"].compute(pairs), 4) if names_classes(pairs) else None
    rounded_db = round(sqnr_db, 1) if math.isfinite(sqnr_db) else None
    estimate = QuantizationEstimate(len(evaluated), kind, agreement, rounded_db)
    is_much = sqnr_db < DIVERGED_DB or (agreement is not None and agreement < MIN_CLASS_AGREEMENT)
    warnings = (
        [_warning(quantized, estimate, add_stream_states(model, evaluated[:NUM_EXPLAINING_SAMPLES]))] if is_much else []
    )
    notes = (*quantized.notes, *([note] if note else []), *warnings)
    return replace(quantized, estimate=estimate, notes=notes)


def _some(samples: Sequence[Sample], macs: int, is_stream: bool) -> Sequence[Sample]:
    """Return as many samples as can be run quickly, spread over all; of a stream, the first ones."""
    count = min(
        len(samples), int(np.clip(MAX_EVALUATION_MACS // max(macs, 1), MIN_EVALUATION_SAMPLES, MAX_EVALUATION_SAMPLES))
    )
    return samples[:count] if is_stream else [samples[i * len(samples) // count] for i in range(count)]


def output_sqnr_db(quantized: Quantization, samples: Sequence[Sample]) -> float:
    """Return the SQNR in dB of the quantized model's outputs against the float model's.

    The powers of signal and noise are summed over all outputs and samples. The result is infinity if no outputs can be
    compared.

    Args:
        quantized: The quantized model.
        samples: Inputs of both models. For a model with states, they are the consecutive steps of one stream.
    """
    pairs, _ = _output_pairs(quantized, samples)
    return METRICS["sqnr"].compute(pairs) if pairs.names else math.inf


def _output_pairs(quantized: Quantization, samples: Sequence[Sample]) -> tuple[Judged, str]:
    """Run the quantized model and the user's float model on samples, and pair the outputs that can be compared.

    A state starts at zero and is passed from each sample to the next.

    Returns:
        The pairs, and a note if another program than ONNX Runtime had to run the float model; else "".
    """
    model = quantized.model
    inputs = [{name: array for name, array in s.items() if name not in model.first_states} for s in samples]
    real = model.reference(inputs)
    quantized_outputs = run_onnxruntime(_between_reals(quantized), inputs, model.first_states, model.states)
    return comparable_outputs(quantized_outputs, real.outputs, set(model.states)), real.note


def _between_reals(quantized: Quantization) -> onnx.ModelProto:
    """Return the quantized model with real inputs and outputs."""
    plan, model = quantized.plan, quantized.model
    if not model.states and not plan.scheme.integer_io:
        return quantized.proto
    return write_qdq(replace(model, states={}), replace(plan, scheme=replace(plan.scheme, integer_io=False)))


def comparable_outputs(quantized: Sequence[Outputs], real: Sequence[Outputs], states: set[str]) -> Judged:
    """Return the outputs of both models that can be compared: those that are numbers of equal shape.

    States are left out, because the user does not see them.

    Args:
        quantized: The outputs of the quantized model, sample by sample.
        real: The outputs of the float model, sample by sample.
        states: The names of outputs that are states.
    """
    array_pairs = [(name, [(a[name], b[name]) for a, b in zip(quantized, real, strict=True)]) for name in quantized[0]]
    names = [
        name
        for name, pairs in array_pairs
        if name not in states and all(a.shape == b.shape and a.dtype.kind in "fiu" for a, b in pairs)
    ]
    return Judged([{n: o[n] for n in names} for o in quantized], [{n: o[n] for n in names} for o in real])


def model_sqnr_db(model: FloatModel, proto: onnx.ModelProto, samples: Sequence[Sample]) -> float:
    """Return the SQNR in dB of a quantized ONNX model's outputs against the float model's.

    The powers of signal and noise are summed over all outputs and samples.

    Args:
        model: The float model, without states.
        proto: The quantized model.
        samples: The inputs of both models.
    """
    pairs = comparable_outputs(run_onnxruntime(proto, samples), model.reference(samples).outputs, set())
    return METRICS["sqnr"].compute(pairs) if pairs.names else math.inf


def _warning(quantized: Quantization, estimate: QuantizationEstimate, samples: Sequence[Sample]) -> str:
    """Return one line with the worst layers. `mcugen.quantization.advice` adds remedies once they were tried."""
    layers = compare_layers(quantized, samples).worst_first[:NUM_NAMED_WORST_LAYERS]
    worst = ", ".join(f"'{layer.name}' ({layer.quality:.1f} dB)" for layer in layers)
    return f"{HIGH_LOSS_NOTE}: {estimate}; the worst layers: {worst}"


def choose_evaluation_samples(
    held: Sequence[Sample], known: Sequence[Sample], data: Samples | None
) -> tuple[Sequence[Sample], str]:
    """Return the samples to evaluate on, and their kind: "evaluation", "held out" or "calibration".

    The user's evaluation data are used if there are any, else the held-out samples, else the calibration samples.

    Args:
        held: The held-out samples; may be empty.
        known: The calibration samples.
        data: The user's evaluation data; None if there are none.
    """
    if data is not None:
        return data.inputs, "evaluation"
    return (held, "held out") if held else (known, "calibration")
