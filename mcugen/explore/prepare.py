# SPDX-License-Identifier: Apache-2.0
"""Preparation that combinations of one precision share: the quantized model and its accuracy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mcugen.api.compilation import Compilation
from mcugen.core.cache import Store, code_digest
from mcugen.core.options import MIXED, CompileOptions
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.evaluation.accuracy import judged, reals
from mcugen.evaluation.samples import as_stored
from mcugen.explore.fingerprint import fingerprint, text_or_file
from mcugen.explore.point import Point, Yardstick
from mcugen.hir.types import Array
from mcugen.measurement.evaluate import metric_of, sample_endpoints

CACHE_SCHEMA = 1
"""Version of the cached files, increased when their meaning changes."""

QUANTIZING_BOARD = "host"
"""Board for which a model is quantized unless its precision depends on the board."""


@dataclass(frozen=True)
class Asked:
    """The subject of an exploration: a model, and the options that all combinations share.

    `quantizing` has the settings of each precision.
    """

    model: Path
    options: CompileOptions
    quantizing: Mapping[str, Quantizing]
    judging: Judging

    @property
    def samples(self) -> str | Path | Mapping[str, Array] | None:
        """Return the samples to evaluate with: evaluation samples, else calibration samples."""
        calibrations = (q.calibration for q in self.quantizing.values() if q.calibration is not None)
        return self.judging.data if self.judging.data is not None else next(calibrations, None)

    @property
    def beside(self) -> list[Path]:
        """Return the files of weights that belong to the model's file."""
        return sorted(self.model.parent.glob(f"{self.model.name}*[.-_]data"))

    def for_goal(self, optimize: str) -> CompileOptions:
        """Return the options for one goal; symbols are named after the model's file."""
        return replace(self.options, optimize=optimize, name=self.options.name or self.model.stem)

    def key(self, *more: object) -> str:
        """Return the key of a result that depends on model, options, samples, mcugen itself, and `more`."""
        options, judging = self.options, self.judging
        texts = [text_or_file(text) for text in (options.input_pipeline, judging.metric)]
        plugins = [Path(plugin) for plugin in options.plugins]
        return fingerprint(
            CACHE_SCHEMA, code_digest(), self.model, self.beside, options, plugins, judging, texts, *more
        )


@dataclass(frozen=True)
class Prepared:
    """A model of one precision: its file (the user's or a quantized one), and its accuracy in ONNX Runtime.

    Without samples, there is no accuracy. Generated code computes the same integers.
    """

    model: Path
    sha256: str
    described: str
    notes: tuple[str, ...]
    accuracy: float | None
    yardstick: Yardstick | None
    warnings: tuple[str, ...] = ()


def prepared(subject: Asked, point: Point, store: Store) -> Prepared:
    """Return the model in a point's precision, from the store or quantized now; errors of quantization are raised.

    Args:
        subject: The subject of the exploration.
        point: The combination, whose precision counts.
        store: The store with quantized models.
    """
    board = point.board if point.precision == MIXED else QUANTIZING_BOARD
    quantizing = subject.quantizing[point.precision]
    goal = point.optimize if point.precision == MIXED else subject.options.optimize
    key = subject.key("prepared", board, goal, quantizing)
    with store.locked(key):  # Several processes may need it at once.
        known = store.read(f"{key}.json")
        stored = None if known is None else _read(known)
        if stored is not None and stored.model.is_file():
            return stored
        fresh = _made(
            Compilation(subject.model, board, subject.for_goal(goal), quantizing, subject.judging), subject, key, store
        )
        store.write(f"{key}.json", json.dumps(asdict(fresh), default=str).encode())
        return fresh


def _made(net: Compilation, subject: Asked, key: str, store: Store) -> Prepared:
    """Quantize the model if requested, store it, and judge its accuracy."""
    sha256, model, described = net.source.sha256, subject.model, ""
    notes, warnings = tuple[str, ...](), tuple[str, ...]()
    if net.quantizing.is_wanted:
        quantized = net.quantized
        model = store.write(f"{key}.onnx", quantized.proto.SerializeToString(deterministic=True))
        described, notes, warnings = quantized.describe(), quantized.notes, quantized.warnings
    accuracy, yardstick = _scores(net, subject) if subject.samples is not None else (None, None)
    return Prepared(model.resolve(), sha256, described, notes, accuracy, yardstick, warnings)


def _read(data: bytes) -> Prepared | None:
    """Parse a stored file; return None if it is damaged."""
    try:
        return _ADAPTER.validate_json(data)
    except ValidationError:
        return None


_ADAPTER = TypeAdapter(Prepared)


def _scores(net: Compilation, subject: Asked) -> tuple[float, Yardstick]:
    """Return the quantized model's metric on the samples, and the yardstick."""
    assert subject.samples is not None, "asked before"
    compiled = net.compiled
    samples = net.samples(subject.samples, sample_endpoints(compiled))
    metric = metric_of(subject.judging.metric, samples.labels, compiled.program.outputs, compiled.program.inputs)
    stored = [as_stored(sample, compiled.program.inputs) for sample in samples.inputs]
    outputs, quantized = compiled.reference(stored), compiled.quantization
    reference = outputs if quantized is None else quantized.model.reference(samples.inputs).outputs
    inputs = reals(stored, compiled.program.inputs)
    judgement = judged(compiled.program.outputs, outputs, reference, samples.labels, inputs)
    float32 = metric.compute(replace(judgement, outputs=judgement.reference))
    return metric.compute(judgement), Yardstick(metric.name, float32, len(stored))
