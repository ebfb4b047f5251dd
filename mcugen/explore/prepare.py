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

SCHEMA = 1
"""Grows when files in the cache mean something else."""

ANYWHERE = "host"
"""The board that a model is quantized on unless its precision depends on the board."""


@dataclass(frozen=True)
class Asked:
    """The subject of an exploration: a model, and the options that all combinations share.

    `quantizing` is by precision.
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
        """Files of weights outside of the model's own."""
        return sorted(self.model.parent.glob(f"{self.model.name}*[.-_]data"))

    def for_goal(self, optimize: str) -> CompileOptions:
        """Return the options for one goal; symbols are named after the model's file."""
        return replace(self.options, optimize=optimize, name=self.options.name or self.model.stem)

    def key(self, *more: object) -> str:
        """Return the key of a result that depends on model, options, samples, mcugen itself, and `more`."""
        options, judging = self.options, self.judging
        texts = [text_or_file(text) for text in (options.input_pipeline, judging.metric)]
        plugins = [Path(plugin) for plugin in options.plugins]
        return fingerprint(SCHEMA, code_digest(), self.model, self.beside, options, plugins, judging, texts, *more)


@dataclass(frozen=True)
class Prepared:
    """A model of one precision: its file (that of the user, or a quantized one), and its accuracy in ONNX Runtime.

    There is none without samples. Generated code computes the same integers.
    """

    model: Path
    sha256: str
    described: str
    notes: tuple[str, ...]
    accuracy: float | None
    yardstick: Yardstick | None
    warnings: tuple[str, ...] = ()


def prepared(asked: Asked, point: Point, store: Store) -> Prepared:
    """Return the model in a point's precision, from the store or quantized now; errors of quantization are raised."""
    board = point.board if point.precision == MIXED else ANYWHERE
    quantizing = asked.quantizing[point.precision]
    goal = point.optimize if point.precision == MIXED else asked.options.optimize
    key = asked.key("prepared", board, goal, quantizing)
    with store.locked(key):  # several processes may want it at once
        known = store.read(f"{key}.json")
        found = None if known is None else _read(known)
        if found is not None and found.model.is_file():
            return found
        made = _made(
            Compilation(asked.model, board, asked.for_goal(goal), quantizing, asked.judging), asked, key, store
        )
        store.write(f"{key}.json", json.dumps(asdict(made), default=str).encode())
        return made


def _made(net: Compilation, asked: Asked, key: str, store: Store) -> Prepared:
    sha256, model, described = net.source.sha256, asked.model, ""
    notes, warnings = tuple[str, ...](), tuple[str, ...]()
    if net.quantizing.is_wanted:
        quantized = net.quantized
        model = store.write(f"{key}.onnx", quantized.proto.SerializeToString(deterministic=True))
        described, notes, warnings = quantized.describe(), quantized.notes, quantized.warnings
    accuracy, yardstick = _scores(net, asked) if asked.samples is not None else (None, None)
    return Prepared(model.resolve(), sha256, described, notes, accuracy, yardstick, warnings)


def _read(data: bytes) -> Prepared | None:
    """Parse a stored file; return None if it is damaged."""
    try:
        return _ADAPTER.validate_json(data)
    except ValidationError:
        return None


_ADAPTER = TypeAdapter(Prepared)


def _scores(net: Compilation, asked: Asked) -> tuple[float, Yardstick]:
    """Return the quantized model's metric on the samples, and the yardstick."""
    assert asked.samples is not None, "asked before"
    compiled = net.compiled
    samples = net.samples(asked.samples, sample_endpoints(compiled))
    metric = metric_of(asked.judging.metric, samples.labels, compiled.program.outputs, compiled.program.inputs)
    stored = [as_stored(sample, compiled.program.inputs) for sample in samples.inputs]
    outputs, quantized = compiled.reference(stored), compiled.quantization
    wanted = outputs if quantized is None else quantized.model.reference(samples.inputs).outputs
    inputs = reals(stored, compiled.program.inputs)
    found = judged(compiled.program.outputs, outputs, wanted, samples.labels, inputs)
    float32 = metric.compute(replace(found, outputs=found.reference))
    return metric.compute(found), Yardstick(metric.name, float32, len(stored))
