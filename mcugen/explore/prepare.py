# SPDX-License-Identifier: Apache-2.0
"""Preparation that combinations of one precision share: the quantized model and its accuracy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcugen.api.compilation import Compilation
from mcugen.core.cache import Store, code_digest
from mcugen.core.options import MIXED, CompileOptions
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.evaluation.accuracy import judged, reals
from mcugen.evaluation.samples import as_stored
from mcugen.explore.fingerprint import file_named_by, fingerprint
from mcugen.explore.point import AccuracyBaseline, Point
from mcugen.hir.types import Array
from mcugen.measurement.evaluate import choose_metric, sample_endpoints
from mcugen.options.keywords import Keywords

CACHE_SCHEMA = 1
"""Version of the cached files; files of an older version are ignored. Increase it when their meaning changes."""

QUANTIZING_BOARD = "host"
"""Name of the board for which a model is quantized, if the result does not depend on the board.

Only mixed precision depends on it, and is chosen for the board of the combination.
"""


@dataclass(frozen=True)
class ExplorationSubject:
    """The subject of an exploration: a model, and the options that all combinations share."""

    model: Path
    """The ONNX file."""
    options: CompileOptions
    """The options of all combinations; their goal is replaced by that of the combination."""
    quantizing: Mapping[str, Quantizing]
    """How to quantize the model, by precision (PRECISIONS or MIXED)."""
    judging: Judging
    """How to measure accuracy: the samples and the metric."""

    @property
    def samples(self) -> str | Path | Mapping[str, Array] | None:
        """Return the samples to measure accuracy with: evaluation samples, else calibration samples, else None."""
        calibrations = (q.calibration for q in self.quantizing.values() if q.calibration is not None)
        return self.judging.data if self.judging.data is not None else next(calibrations, None)

    @property
    def beside(self) -> list[Path]:
        """Return the external data files of the model, such as model.onnx_data, which are in the folder of its file."""
        return sorted(self.model.parent.glob(f"{self.model.name}*[.-_]data"))

    def for_goal(self, optimize: str) -> CompileOptions:
        """Return the options with an optimization goal, and with a prefix for C symbols.

        The prefix is the name of the model's file, unless the user set one.

        Args:
            optimize: The goal, one of GOALS.
        """
        return replace(self.options, optimize=optimize, name=self.options.name or self.model.stem)

    def key(self, *more: object) -> str:
        """Return the cache key of a result that depends on model, options, samples, mcugen's code, and `more`."""
        options, judging = self.options, self.judging
        texts = [file_named_by(text) for text in (options.input_pipeline, judging.metric)]
        plugins = [Path(plugin) for plugin in options.plugins]
        return fingerprint(
            CACHE_SCHEMA, code_digest(), self.model, self.beside, options, plugins, judging, texts, *more
        )


def subject_by_keywords(model: Path, keywords: Mapping[str, Any], precisions: Iterable[str]) -> ExplorationSubject:
    """Return the subject of an exploration, by keywords of `mcugen.compile`; deadlines are checked on results.

    Args:
        model: The ONNX file.
        keywords: The options of all combinations; precision, goal and precisions of layers are left out.
        precisions: The precisions of the combinations (PRECISIONS or MIXED).

    Raises:
        UsageError: A keyword or a value is wrong.
    """
    shared = {name: value for name, value in keywords.items() if name not in ("precision", "optimize", "layer")}
    quantizing = {}
    for precision in precisions:
        if precision == "float32":
            quantizing[precision] = Quantizing(preprocess=shared.get("preprocess", ""))
        else:
            quantizing[precision] = Keywords("compile", {**shared, "precision": precision}).task.quantizing
    task = Keywords("compile", shared).task
    judging = task.judging if MIXED in quantizing else replace(task.judging, max_drop=None, min_sqnr=None)
    return ExplorationSubject(model, replace(task.options, max_latency=None, max_cycles=None), quantizing, judging)


@dataclass(frozen=True)
class Prepared:
    """A model in one precision, which several combinations share, and its accuracy."""

    model: Path
    """The file to compile: the user's, or the quantized one."""
    sha256: str
    """SHA-256 of the user's model, in hex."""
    described: str
    """Description of the quantization for the generated code; "" if the model was not quantized."""
    notes: tuple[str, ...]
    """Notes of the quantization for the report."""
    accuracy: float | None
    """Value of the metric in ONNX Runtime, which has the same results as the generated code; None without samples."""
    baseline: AccuracyBaseline | None
    """The metric and its value for the float model; None without samples."""
    warnings: tuple[str, ...] = ()
    """Warnings of the quantization for the report."""


def prepare_model(subject: ExplorationSubject, point: Point, store: Store) -> Prepared:
    """Return the model in the precision of a combination, from the cache or quantized now.

    Args:
        subject: The model and its options.
        point: The combination; board and goal matter only for mixed precision.
        store: The cache of quantized models.

    Raises:
        McugenError: If the model cannot be quantized.
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


def _made(net: Compilation, subject: ExplorationSubject, key: str, store: Store) -> Prepared:
    """Quantize the model if requested, store it, and judge its accuracy."""
    sha256, model, described = net.source.sha256, subject.model, ""
    notes, warnings = tuple[str, ...](), tuple[str, ...]()
    if net.quantizing.is_wanted:
        quantized = net.quantized
        model = store.write(f"{key}.onnx", quantized.proto.SerializeToString(deterministic=True))
        described, notes, warnings = quantized.describe(), quantized.notes, quantized.warnings
    accuracy, baseline = _scores(net, subject) if subject.samples is not None else (None, None)
    return Prepared(model.resolve(), sha256, described, notes, accuracy, baseline, warnings)


def _read(data: bytes) -> Prepared | None:
    """Parse a stored file; return None if it is damaged."""
    try:
        return _ADAPTER.validate_json(data)
    except ValidationError:
        return None


_ADAPTER = TypeAdapter(Prepared)


def _scores(net: Compilation, subject: ExplorationSubject) -> tuple[float, AccuracyBaseline]:
    """Return the quantized model's metric on the samples, and the baseline."""
    assert subject.samples is not None, "asked before"
    compiled = net.compiled
    samples = net.samples(subject.samples, sample_endpoints(compiled))
    metric = choose_metric(subject.judging.metric, samples.labels, compiled.program.outputs, compiled.program.inputs)
    stored = [as_stored(sample, compiled.program.inputs) for sample in samples.inputs]
    outputs, quantized = compiled.reference(stored), compiled.quantization
    reference = outputs if quantized is None else quantized.model.reference(samples.inputs).outputs
    inputs = reals(stored, compiled.program.inputs)
    judgement = judged(compiled.program.outputs, outputs, reference, samples.labels, inputs)
    float32 = metric.compute(replace(judgement, outputs=judgement.reference))
    return metric.compute(judgement), AccuracyBaseline(metric.name, float32, len(stored))
