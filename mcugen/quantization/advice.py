# SPDX-License-Identifier: Apache-2.0
"""Advice for a model that quantization costs much: only what was tried on some of the samples, and helped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mcugen.core.errors import McugenError
from mcugen.core.options import CompileOptions
from mcugen.evaluation.samples import spread
from mcugen.frontend.onnx.load import LoadedModel
from mcugen.hir.types import Array, DType
from mcugen.quantization.estimate import COSTS_MUCH, LEAST_JUDGED, MOST_MACS, output_sqnr
from mcugen.quantization.quantize import Progress, Quantization, float_model, no_progress, quantizer
from mcugen.quantization.scheme import Scheme

Sample = Mapping[str, Array]

BETTER_DB = 3.0
"""Gain in SQNR that a wider type must bring to be advised."""

MORE_DB = 1.0
"""Gain in SQNR by twice as many samples, from which on still more of them are advised."""

TRIED_SAMPLES = 16
"""Calibration and evaluation samples of a trial at most, as it is to take little time."""

MANY_SAMPLES = 100
"""Calibration samples from which on nobody is asked for more."""


@dataclass(frozen=True)
class Advisor:
    """What is tried: other precisions and fewer samples, with weights rounded to nearest.

    `known` are samples to calibrate on, `judged` those to compare outputs on; `is_apart`: these are other samples.
    """

    source: LoadedModel
    options: CompileOptions
    scheme: Scheme
    wanted: Mapping[str, DType]
    known: Sequence[Sample]
    judged: Sequence[Sample]
    is_apart: bool
    is_searched: bool = False
    progress: Progress = no_progress

    def advised(self, quantization: Quantization) -> Quantization:
        """Return a quantization with tried advice in the note that it costs much, if it has that note."""
        if not self.known or not self.judged or not any(note.startswith(COSTS_MUCH) for note in quantization.notes):
            return quantization
        advice = "; ".join(self._advice(quantization))
        notes = (f"{note}; {advice}" if note.startswith(COSTS_MUCH) and advice else note for note in quantization.notes)
        return replace(quantization, notes=tuple(notes))

    def _advice(self, quantization: Quantization) -> Iterator[str]:
        trials = (self._wider, self._more_samples)
        for number, trial in enumerate(trials):
            self.progress("trying other precisions and fewer samples", number, len(trials))
            try:
                yield from trial(quantization)
            except McugenError:  # this way does not exist for the model
                continue

    def _wider(self, quantization: Quantization) -> Iterator[str]:
        """Yield what int16 activations give, and what helps where they do not."""
        if self.scheme.activations is DType.INT16:
            yield "--precision float32 has no such error"
            return
        scheme = replace(self.scheme, activations=DType.INT16, weights=DType.INT8, group=0)
        now, wide = self._sqnr(quantization), self._sqnr(self._draft(scheme, self._calibration(TRIED_SAMPLES)))
        if wide < now + BETTER_DB:
            yield f"--precision int16x8 does not help ({wide:.1f} dB): --precision float32 has no such error"
            return
        raised = "" if self.is_searched else ", and --precision auto raises only the layers that need it"
        yield f"--precision int16x8 gives {wide:.1f} dB on {self._count}, not {now:.1f}{raised}"

    def _more_samples(self, _found: Quantization) -> Iterator[str]:
        """Yield that more samples help, if as many as there are help more than half of them."""
        if not self.is_apart or not 2 <= len(self.known) < MANY_SAMPLES or self.options.states:
            return
        count = min(len(self.known), TRIED_SAMPLES)
        half, whole = (self._sqnr(self._draft(self.scheme, self._calibration(n))) for n in (count // 2, count))
        if whole >= half + MORE_DB:
            yield f"more samples help: {count} of them give {whole:.1f} dB, {count // 2} give {half:.1f}"

    def _calibration(self, count: int) -> Sequence[Sample]:
        """Return some of the samples; of a stream the first, which belong together."""
        places = range(min(count, len(self.known))) if self.options.states else spread(len(self.known), count)
        return [self.known[place] for place in places]

    def _draft(self, scheme: Scheme, samples: Sequence[Sample]) -> Quantization:
        wide = scheme.activations is DType.INT16
        model = float_model(self.source, self.options, scheme, wide)
        return quantizer(self.source, model, scheme, samples, None, no_progress).draft(self.wanted)

    @property
    def _count(self) -> str:
        count = min(len(self.judged), TRIED_SAMPLES)
        return f"{count} sample{'s' * (count != 1)}"

    def _sqnr(self, quantization: Quantization) -> float:
        macs = sum(node.op.macs(node.sig) for node in quantization.model.graph.nodes)
        count = min(TRIED_SAMPLES, max(MOST_MACS // max(macs, 1), LEAST_JUDGED))
        places = range(min(count, len(self.judged))) if self.options.states else spread(len(self.judged), count)
        return output_sqnr(quantization, [self.judged[place] for place in places])
