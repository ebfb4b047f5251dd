# SPDX-License-Identifier: Apache-2.0
"""Float, int8, int16x8, w4a8 and auto at 60 % of the bytes beside ONNX Runtime's quantizer, on the shared models.

Calibration, and all that `auto` chooses and is judged by, is of the calibration split, all else of evaluation.
ONNX Runtime's row is that of its settings that is best there, which favours it. Intervals of 95 % are of 2,000 paired
bootstrap samples, an image and its mirror image drawn together. Flash and instructions: the code for an nRF52840 under
QEMU. Writes a table of docs/reference/figures/quantization.md; what was computed is kept, so that a run that was
interrupted goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import ort_quantizer
import quant_study
import typer
from benchmark.subjects import roomy
from markers import markdown_table, rewrite_passage
from onnxruntime.quantization import CalibrationMethod, QuantType
from quant_study import (
    DOCUMENT,
    SUBJECTS,
    Sample,
    Subject,
    cached_results,
    console,
    options,
    quantized,
    samples,
)

from mcugen.autotuning.precision import AccuracyDemand, PrecisionSearch
from mcugen.core.board import load_board
from mcugen.core.errors import ConstraintError
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.metrics import METRICS, Judged, names_classes
from mcugen.evaluation.samples import Samples
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import Array, DType
from mcugen.quantization.estimate import split_samples
from mcugen.quantization.few_bits import bytes_per_weight
from mcugen.quantization.float_model import FloatModel
from mcugen.quantization.quantize import create_quantizer, import_float_model
from mcugen.quantization.samples import sort_samples
from mcugen.quantization.scheme import Scheme

MODELS = (
    *("resnet8_cifar10_f32", "ds_cnn_kws_f32", "mnist_cntk", "mobilenet_v1_025_vww_f32", "autoencoder_ad_f32"),
    *("pt_resnet_s_dynamo", "pt_tcn_dynamo"),
)
MIRRORED = "vww"
"""Of whose few crops the mirror images are looked at, too."""

BOARD = "nrf52840"
RESAMPLED = 2000

SETTINGS = {
    "min-max": (CalibrationMethod.MinMax, {}),
    "percentile 99.99": (CalibrationMethod.Percentile, {"CalibPercentile": 99.99}),
    "percentile 99.5": (CalibrationMethod.Percentile, {"CalibPercentile": 99.5}),
    "entropy": (CalibrationMethod.Entropy, {}),
}
"""Of ONNX Runtime's quantizer: uint8 activations, int8 weights by channel."""

SCHEMES = {"int8": Scheme(), "int16x8": Scheme(DType.INT16), "w4a8": Scheme(weights=DType.INT4)}

GOALS = {"auto": "balanced", "auto for flash": "flash"}
"""What matters most to the ways that mix precisions, for which the code is measured, too."""

MAX_DROP, MIN_SQNR, SHARE = 0.3, 15.0, 0.6
"""What `auto` must reach: percentage points where outputs name classes, else dB; and its share of the bytes."""


@dataclass(frozen=True)
class Result:
    """Outputs and costs of one precision on one model; `note` names the setting, or the limit that was missed."""

    outputs: Sequence[Sample]
    note: str = ""
    share: float | None = None
    flash: int | None = None
    instructions: int | None = None


def measure_mcugen(subject: Subject, name: str, calibration: Samples, evaluation: Samples) -> Result:
    """Quantize a model by mcugen, and measure its outputs and its code."""
    note, goal = "", CompileOptions(optimize=GOALS.get(name, "balanced"))
    if name in GOALS:
        source = load(subject.path)
        model = import_float_model(source, options(subject), Scheme(), wide=True)
        given = sort_samples(calibration.inputs)
        known, held = split_samples(given, is_stream=False)
        maker = create_quantizer(source, model, Scheme(), known)
        judged = calibration.only(held or given)
        search = PrecisionSearch(maker, roomy(load_board(BOARD)), goal, judged, auto_demand(model, calibration))
        search.is_crossed = not held
        try:
            made = search.run()
        except ConstraintError:
            return Result((), "missed")
        note = made.describe().partition("samples")[2].removeprefix(", ")
    else:
        made = quantized(subject, SCHEMES[name], calibration.inputs)
    run = compile_model(made, roomy(load_board(BOARD)), goal).simulate(evaluation.inputs[:1])
    share = bytes_per_weight(made.model, made.plan)
    found = run_onnxruntime(made.proto, evaluation.inputs)
    return Result(found, note, share, run.sizes.code + run.sizes.weights, run.instructions)


def auto_demand(model: FloatModel, calibration: Samples) -> AccuracyDemand:
    """Return what `auto` must reach: a drop of labelled or predicted classes, or an SQNR for other outputs."""
    if calibration.labels is not None:
        return AccuracyDemand(METRICS["top1"], MAX_DROP, max_weights=SHARE)
    exact = run_onnxruntime(model.proto, calibration.inputs[:1])
    if names_classes(Judged(exact, exact, calibration.inputs[:1])):
        return AccuracyDemand(METRICS["agreement"], MAX_DROP, max_weights=SHARE)
    return AccuracyDemand(METRICS["sqnr"], min_sqnr=MIN_SQNR, max_weights=SHARE)


def evaluation_samples(subject: Subject) -> Samples:
    """Return the evaluation samples; for visual wake words also the mirror image of each."""
    found = samples(subject, "eval")
    if subject.data != MIRRORED:
        return found
    mirrored = [{name: array[..., ::-1].copy() for name, array in sample.items()} for sample in found.inputs]
    return Samples([*found.inputs, *mirrored], None)


def measure_float(subject: Subject, evaluation: Samples) -> Result:
    """Measure the float model."""
    model = load(subject.path)
    run = compile_model(model.proto, roomy(load_board(BOARD)), options(subject)).simulate(evaluation.inputs[:1])
    outputs = run_onnxruntime(model.given, evaluation.inputs)
    return Result(outputs, "", 4.0, run.sizes.code + run.sizes.weights, run.instructions)


def measure_onnxruntime(subject: Subject, setting: str, calibration: Samples, evaluation: Samples) -> Result:
    """Quantize a model by ONNX Runtime's quantizer, and measure its outputs."""
    method, extra = SETTINGS[setting]
    made = ort_quantizer.quantized(
        ort_quantizer.prepared(import_float_model(load(subject.path), options(subject), Scheme(equalize=False)).proto),
        calibration.inputs,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        calibrate_method=method,
        extra_options=extra,
    )
    return Result(run_onnxruntime(made, evaluation.inputs), setting, 1.0)


@dataclass(frozen=True)
class Judge:
    """A comparison of a model's outputs with the float model's or the labels, sample by sample."""

    exact: Sequence[Sample]
    labels: Array | None
    sides: int = 1
    """In how many forms each sample is there, all of a form in a row: they are drawn together."""

    @property
    def resampled(self) -> Array:
        """Return the sample indices of the bootstrap, which are the same for all comparisons."""
        count = len(self.exact) // self.sides
        drawn = np.random.default_rng(0).integers(0, count, (RESAMPLED, count))
        return np.concatenate([drawn + count * side for side in range(self.sides)], 1)

    def right(self, outputs: Sequence[Sample]) -> Array:
        """Return 1 for each sample whose class is that of the label, or without labels of the float model, else 0."""
        name = next(iter(self.exact[0]))
        found, wanted = (np.array([int(o[name].argmax()) for o in outs]) for outs in (outputs, self.exact))
        return (found == (wanted if self.labels is None else self.labels[: len(found)])).astype(float)

    def powers(self, outputs: Sequence[Sample]) -> tuple[Array, Array]:
        """Return the power of the signal and of the error for each sample."""
        pairs = [(real, found) for real, found in zip(self.exact, outputs, strict=True)]
        signal = [sum(float(np.square(r[n], dtype=float).sum()) for n in r) for r, _ in pairs]
        noise = [sum(float(np.square(r[n].astype(float) - f[n]).sum()) for n in r) for r, f in pairs]
        return np.array(signal), np.array(noise)


def points_gained(judge: Judge, outputs: Sequence[Sample], others: Sequence[Sample]) -> str:
    """Return by how many percentage points more samples are right, with its 95 % interval."""
    gain = 100 * (judge.right(outputs) - judge.right(others))
    return _interval(float(gain.mean()), gain[judge.resampled].mean(1), 2)


def decibels_gained(judge: Judge, outputs: Sequence[Sample], others: Sequence[Sample]) -> str:
    """Return by how many dB the SQNR is higher, with its 95 % interval."""
    noises = [judge.powers(each)[1] for each in (others, outputs)]
    first, second = (noise[judge.resampled].sum(1) + 1e-30 for noise in noises)
    whole = 10 * np.log10((noises[0].sum() + 1e-30) / (noises[1].sum() + 1e-30))
    return _interval(float(whole), 10 * np.log10(first / second), 1)


def _interval(value: float, found: Array, digits: int) -> str:
    low, high = np.percentile(found, [2.5, 97.5])
    return f"{value:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def model_rows(subject: Subject, remembered: Callable[[str, Callable[[], Result]], Result]) -> Iterator[list[str]]:
    """Yield the rows of a model: float32, the best setting of ONNX Runtime's quantizer, and each precision."""
    calibration, evaluation = samples(subject, "calib"), evaluation_samples(subject)
    exact = remembered("float32", lambda: measure_float(subject, evaluation))
    judge = Judge(exact.outputs, evaluation.labels, 2 if subject.data == MIRRORED else 1)
    peers = [
        remembered(name, lambda name=name: measure_onnxruntime(subject, name, calibration, evaluation))
        for name in SETTINGS
    ]
    best = min(peers, key=lambda each: judge.powers(each.outputs)[1].sum())
    found = {"float32": exact, f"ONNX Runtime, {best.note}": best}
    for name in (*SCHEMES, *GOALS):
        found[name] = remembered(name, lambda name=name: measure_mcugen(subject, name, calibration, evaluation))
    for name, each in found.items():
        if not each.outputs:
            yield [subject.model, name, each.note, *[""] * 6]
            continue
        signal, noise = (power.sum() for power in judge.powers(each.outputs))
        right = f"{100 * judge.right(each.outputs).mean():.2f} %"
        yield [
            subject.model,
            f"{name}: {each.note}" if name in GOALS and each.note else name,
            right,
            points_gained(judge, each.outputs, exact.outputs) if each is not exact else "",
            f"{10 * np.log10(signal / noise):.1f} dB" if noise else "",
            decibels_gained(judge, each.outputs, best.outputs) if each is not exact and each is not best else "",
            f"{100 * each.share:.0f} %" if each.share else "",
            f"{each.flash:,}" if each.flash else "",
            f"{each.instructions:,}" if each.instructions else "",
        ]


HEAD = ["model", "precision", "right", "points against float32", "SQNR", "dB against ONNX Runtime's best",
        "bytes of weights", f"flash on {BOARD}", "instructions"]  # fmt: skip


def main(
    only: Annotated[str, typer.Option(help="part of a model's name")] = "",
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="rewrite docs/reference/figures/quantization.md")
    ] = False,
) -> None:
    """Print the table, and write it to the document on request."""
    kept = cached_results("frontier", __file__, quant_study.__file__, ort_quantizer.__file__)
    table = [HEAD]
    for subject in (s for s in SUBJECTS if s.model in MODELS and only in s.model):

        def remembered(name: str, make: Callable[[], Result], subject: Subject = subject) -> Result:
            result: Result = kept(f"{subject.model} {name}", make)
            return result

        for row in model_rows(subject, remembered):
            table.append(row)
            console.print(" | ".join(row))
    print(markdown_table(table))
    if write_docs:
        rewrite_passage(DOCUMENT, "frontier", markdown_table(table))


if __name__ == "__main__":
    typer.run(main)
