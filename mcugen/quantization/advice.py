# SPDX-License-Identifier: Apache-2.0
"""Advice for a model that loses much accuracy by quantization.

Each change that is advised was tried on some of the samples first, and only changes that helped are advised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mcugen.core.errors import McugenError
from mcugen.core.options import CompileOptions
from mcugen.evaluation.samples import spread
from mcugen.frontend.onnx.load import LoadedModel
from mcugen.hir.types import DType
from mcugen.quantization.estimate import HIGH_LOSS_NOTE, MAX_EVALUATION_MACS, MIN_EVALUATION_SAMPLES, output_sqnr_db
from mcugen.quantization.quantize import Progress, Quantization, create_quantizer, import_float_model, no_progress
from mcugen.quantization.samples import Sample
from mcugen.quantization.scheme import Scheme

MIN_ADVISED_GAIN_DB = 3.0
"""Smallest gain in SQNR, in dB, for which a wider type of activations (int16) is advised."""

MIN_DOUBLING_GAIN_DB = 1.0
"""Smallest gain in SQNR, in dB, for which more samples are advised: the gain when the number of samples is doubled."""

MAX_TRIAL_SAMPLES = 16
"""Largest number of calibration samples and of evaluation samples with which the model is quantized for advice.

It limits the time that advice takes.
"""

ENOUGH_CALIBRATION_SAMPLES = 100
"""Number of calibration samples at and above which the advice never is to use more samples."""


@dataclass(frozen=True)
class Advisor:
    """A source of advice if quantization loses much accuracy.

    The advice rests on quantizing the model anew with other precisions and with fewer samples ("trials"). Trials round
    weights to nearest, to save time.

    Attributes:
        source: The float model as loaded.
        options: The options of the compilation.
        scheme: The quantization scheme that the user chose.
        requested: The precisions of single layers, by the name of the layer's output.
        calibration_samples: The samples to calibrate on.
        judged: The evaluation samples, on which the outputs of float and quantized model are compared.
        is_apart: Whether `judged` holds other samples than `calibration_samples`.
        is_searched: Whether `--precision auto` searches for the layers' precisions.
        progress: Called before each trial (mcugen.quantization.quantize.Progress).
    """

    source: LoadedModel
    options: CompileOptions
    scheme: Scheme
    requested: Mapping[str, DType]
    calibration_samples: Sequence[Sample]
    judged: Sequence[Sample]
    is_apart: bool
    is_searched: bool = False
    progress: Progress = no_progress

    def with_advice(self, quantization: Quantization) -> Quantization:
        """Return the quantization with advice appended to its note of a high accuracy loss.

        A quantization without that note is returned unchanged.
        """
        if (
            not self.calibration_samples
            or not self.judged
            or not any(note.startswith(HIGH_LOSS_NOTE) for note in quantization.notes)
        ):
            return quantization
        advice = "; ".join(self._advice(quantization))
        notes = (
            f"{note}; {advice}" if note.startswith(HIGH_LOSS_NOTE) and advice else note for note in quantization.notes
        )
        return replace(quantization, notes=tuple(notes))

    def _advice(self, quantization: Quantization) -> Iterator[str]:
        trials = (self._wider, self._more_samples)
        for number, trial in enumerate(trials):
            self.progress("trying other precisions and fewer samples", number, len(trials))
            try:
                yield from trial(quantization)
            except McugenError:  # The model cannot be quantized with the tried scheme.
                continue

    def _wider(self, quantization: Quantization) -> Iterator[str]:
        """Yield the SQNR of int16 activations if they help, else what to use instead."""
        if self.scheme.activations is DType.INT16:
            yield "--precision float32 has no such error"
            return
        scheme = replace(self.scheme, activations=DType.INT16, weights=DType.INT8, group=0)
        present_db, wider_db = (
            self._sqnr(quantization),
            self._sqnr(self._draft(scheme, self._calibration(MAX_TRIAL_SAMPLES))),
        )
        if wider_db < present_db + MIN_ADVISED_GAIN_DB:
            yield f"--precision int16x8 does not help ({wider_db:.1f} dB): --precision float32 has no such error"
            return
        raised = "" if self.is_searched else ", and --precision auto raises only the layers that need it"
        yield f"--precision int16x8 gives {wider_db:.1f} dB on {self._count}, not {present_db:.1f}{raised}"

    def _more_samples(self, _found: Quantization) -> Iterator[str]:
        """Yield advice to give more samples if all samples are clearly better than half of them."""
        if (
            not self.is_apart
            or not 2 <= len(self.calibration_samples) < ENOUGH_CALIBRATION_SAMPLES
            or self.options.states
        ):
            return
        count = min(len(self.calibration_samples), MAX_TRIAL_SAMPLES)
        half_db, whole_db = (self._sqnr(self._draft(self.scheme, self._calibration(n))) for n in (count // 2, count))
        if whole_db >= half_db + MIN_DOUBLING_GAIN_DB:
            yield f"more samples help: {count} of them give {whole_db:.1f} dB, {count // 2} give {half_db:.1f}"

    def _calibration(self, count: int) -> Sequence[Sample]:
        """Return at most `count` calibration samples: the first ones of a stream, else samples spread over all."""
        places = (
            range(min(count, len(self.calibration_samples)))
            if self.options.states
            else spread(len(self.calibration_samples), count)
        )
        return [self.calibration_samples[place] for place in places]

    def _draft(self, scheme: Scheme, samples: Sequence[Sample]) -> Quantization:
        wide = scheme.activations is DType.INT16
        model = import_float_model(self.source, self.options, scheme, wide)
        return create_quantizer(self.source, model, scheme, samples, None, no_progress).draft(self.requested)

    @property
    def _count(self) -> str:
        count = min(len(self.judged), MAX_TRIAL_SAMPLES)
        return f"{count} sample{'s' * (count != 1)}"

    def _sqnr(self, quantization: Quantization) -> float:
        macs = sum(node.op.macs(node.sig) for node in quantization.model.graph.nodes)
        count = min(MAX_TRIAL_SAMPLES, max(MAX_EVALUATION_MACS // max(macs, 1), MIN_EVALUATION_SAMPLES))
        places = range(min(count, len(self.judged))) if self.options.states else spread(len(self.judged), count)
        return output_sqnr_db(quantization, [self.judged[place] for place in places])
