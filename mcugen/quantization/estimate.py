# SPDX-License-Identifier: Apache-2.0
"""What quantization cost, told at once: both models on a few samples, not those of calibration if there are others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx

from mcugen.core.options import DIVERGED_DB
from mcugen.evaluation.accuracy import QuantizationEstimate, run_onnxruntime
from mcugen.evaluation.metrics import METRICS, Judged, Outputs, names_classes
from mcugen.evaluation.samples import Samples
from mcugen.hir.types import Array
from mcugen.quantization.compare import compare_layers
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.qdq import write_qdq
from mcugen.quantization.quantize import Quantization, with_states
from mcugen.quantization.samples import halves

Sample = Mapping[str, Array]

SHARE = 5
"""One sample of so many is held out,"""
LEAST_HELD, MOST_HELD = 4, 32
"""and how many at least (else none), and at most."""

LEAST_HALF = 32
"""Samples that each half must have where one is to choose precisions by, and one to judge them."""

LEAST_JUDGED, MOST_JUDGED = 4, 64
MOST_MACS = 2 * 10**9
"""Of all samples that are judged: large models get fewer."""

LEAST_AGREEMENT = 0.9
"""Below, or below an SQNR of DIVERGED_DB, the user is warned."""

COSTS_MUCH = "quantization costs much"
"""How the note begins that warns then."""

EXPLAINED, WORST = 2, 3
"""Samples that tell the layers apart (numpy computes the integers), and how many layers are named."""


def hold_out(samples: Sequence[Sample], is_stream: bool) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Those to calibrate on, and those to judge by: a fifth, spread over all (of a stream the end), or none of few."""
    count = min(len(samples) // SHARE, MOST_HELD)
    if count < LEAST_HELD:
        return samples, ()
    if is_stream:
        return samples[:-count], samples[-count:]
    held = {(2 * i + 1) * len(samples) // (2 * count) for i in range(count)}
    return [s for i, s in enumerate(samples) if i not in held], [samples[i] for i in sorted(held)]


def apart(samples: Sequence[Sample], is_stream: bool) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """Those to choose precisions by, and those to judge them by: a half each (of a stream the end), or none of few."""
    places, half = range(len(samples)), len(samples) // 2
    held, known = (places[half:], places[:half]) if is_stream else halves(samples)
    if min(len(held), len(known)) < LEAST_HALF:
        return samples, ()
    return [samples[i] for i in known], [samples[i] for i in held]


def estimated(quantized: Quantization, samples: Sequence[Sample], kind: str) -> Quantization:
    """With what the quantized model loses on some of the samples (of a `kind`), and a note where that is much.

    Unchanged where there are no samples, or no outputs that can be compared: numbers of one shape, not all 0.
    """
    model = quantized.model
    some = _some(samples, sum(n.op.macs(n.sig) for n in model.graph.nodes), bool(model.states))
    if not some:
        return quantized
    pairs, note = _output_pairs(quantized, some)
    pairs = replace(pairs, inputs=some)
    sqnr = METRICS["sqnr"].compute(pairs) if pairs.names else -math.inf
    if sqnr == -math.inf:
        return quantized
    agreement = round(METRICS["agreement"].compute(pairs), 4) if names_classes(pairs) else None
    noise = round(sqnr, 1) if math.isfinite(sqnr) else None
    estimate = QuantizationEstimate(len(some), kind, agreement, noise)
    is_much = sqnr < DIVERGED_DB or (agreement is not None and agreement < LEAST_AGREEMENT)
    warnings = [_warning(quantized, estimate, with_states(model, some[:EXPLAINED]))] if is_much else []
    notes = (*quantized.notes, *([note] if note else []), *warnings)
    return replace(quantized, estimate=estimate, notes=notes)


def _some(samples: Sequence[Sample], macs: int, is_stream: bool) -> Sequence[Sample]:
    """As many as cost little, spread over all; of a stream the first."""
    count = min(len(samples), int(np.clip(MOST_MACS // max(macs, 1), LEAST_JUDGED, MOST_JUDGED)))
    return samples[:count] if is_stream else [samples[i * len(samples) // count] for i in range(count)]


def output_sqnr(quantized: Quantization, samples: Sequence[Sample]) -> float:
    """Return the SQNR of all outputs together against the float model, in dB; infinity without comparable outputs.

    Args:
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
    found = run_onnxruntime(_between_reals(quantized), inputs, model.first_states, model.states)
    return comparable(found, real.outputs, set(model.states)), real.note


def _between_reals(quantized: Quantization) -> onnx.ModelProto:
    """The quantized model with real inputs and outputs."""
    plan, model = quantized.plan, quantized.model
    if not model.states and not plan.scheme.integer_io:
        return quantized.proto
    return write_qdq(replace(model, states={}), replace(plan, scheme=replace(plan.scheme, integer_io=False)))


def comparable(found: Sequence[Outputs], real: Sequence[Outputs], states: set[str]) -> Judged:
    """The outputs that are numbers, of one shape in both models; what is kept is seen by nobody."""
    both = [(name, [(a[name], b[name]) for a, b in zip(found, real, strict=True)]) for name in found[0]]
    names = [
        name
        for name, pairs in both
        if name not in states and all(a.shape == b.shape and a.dtype.kind in "fiu" for a, b in pairs)
    ]
    return Judged([{n: o[n] for n in names} for o in found], [{n: o[n] for n in names} for o in real])


def sqnr_of(model: FloatModel, proto: onnx.ModelProto, samples: Sequence[Sample]) -> float:
    """Of all outputs of a model without states together against the float one's, in dB."""
    pairs = comparable(run_onnxruntime(proto, samples), model.reference(samples).outputs, set())
    return METRICS["sqnr"].compute(pairs) if pairs.names else math.inf


def _warning(quantized: Quantization, estimate: QuantizationEstimate, samples: Sequence[Sample]) -> str:
    """Return one line with the worst layers; what helps is told once it was tried (mcugen.quantization.advice)."""
    layers = compare_layers(quantized, samples).worst_first[:WORST]
    worst = ", ".join(f"'{layer.name}' ({layer.quality:.1f} dB)" for layer in layers)
    return f"{COSTS_MUCH}: {estimate}; the worst layers: {worst}"


def judged_samples(
    held: Sequence[Sample], known: Sequence[Sample], data: Samples | None
) -> tuple[Sequence[Sample], str]:
    """What to judge by, and what it is: evaluation data if given, else what was held out, else what there is."""
    if data is not None:
        return data.inputs, "evaluation"
    return (held, "held out") if held else (known, "calibration")
