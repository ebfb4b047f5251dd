# SPDX-License-Identifier: Apache-2.0
"""Measures quantization on the shared models: what each technique brings, and the accuracy of the code itself.

Writes the tables of docs/reference/figures/quantization.md (`make quant-study`). Models without data of their own get
standard normal inputs, other ones for calibration than for evaluation. What was computed is kept, so that a run that
was interrupted goes on (`cached_results`).
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from benchmark.subjects import roomy
from markers import markdown_table, rewrite_passage
from rich.console import Console

from mcugen.core.board import load_board
from mcugen.core.cache import Store, cache_folder, code_digest
from mcugen.core.options import CompileOptions
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.compiler import compile_model
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.evaluation.samples import Samples, graph_endpoints, load_samples
from mcugen.frontend.onnx.load import load
from mcugen.hir.types import Array, DType
from mcugen.quantization.quantize import Quantization, create_quantizer, import_float_model
from mcugen.quantization.scheme import Scheme

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
DOCUMENT = ROOT / "docs" / "reference" / "figures" / "quantization.md"

Sample = dict[str, Array]


@dataclass(frozen=True)
class Subject:
    """A float model and its data set; `pixel_scale` converts raw pixels to the model's input."""

    model: str
    data: str = ""
    pixel_scale: float = 1.0

    @property
    def path(self) -> Path:
        """Return the path of the float model."""
        return SHARED / "models" / f"{self.model}.onnx"


SUBJECTS = (
    Subject("resnet8_cifar10_f32", "cifar10"),
    Subject("ds_cnn_kws_f32", "kws"),
    Subject("streaming_wakeword_f32", "sww"),
    Subject("mnist_cntk", "mnist"),
    Subject("mobilenet_v1_025_vww_f32", "vww", 1 / 255),
    Subject("autoencoder_ad_f32", "ad"),
    Subject("pt_resnet_s_dynamo"),
    Subject("pt_tcn_dynamo"),
    Subject("pt_mlp_dynbatch_dynamo"),
    Subject("pt_bilstm_dynamo"),
    Subject("pt_yolo_head_dynamo"),
)

PLAIN = Scheme(method="minmax", equalize=False, correct_bias=False, optimize_rounding=False)

VARIANTS = (
    ("all techniques", Scheme()),
    ("min-max ranges", Scheme(method="minmax")),
    ("no equalization", Scheme(equalize=False)),
    ("no bias correction", Scheme(correct_bias=False)),
    ("rounding to nearest", Scheme(optimize_rounding=False)),
    ("none of these", PLAIN),
    ("one scale a layer", Scheme(per_channel=False)),
    ("symmetric activations", Scheme(symmetric=True)),
    ("powers of two", Scheme(power_of_two=True)),
    ("int16x8", Scheme(DType.INT16)),
)

NORMAL_CALIBRATION, NORMAL_EVALUATION = 100, 200


def options(subject: Subject) -> CompileOptions:
    """Return the compile options, with symbolic dimensions set to 1."""
    return CompileOptions(dims={"batch": 1} if "dynbatch" in subject.model else {})


def samples(subject: Subject, split: str) -> Samples:
    """Return the samples of a split, "calib" or "eval"; random ones for models without data."""
    fused = import_float_model(load(subject.path), options(subject), Scheme())
    if subject.data:
        path = SHARED / "data" / f"{subject.data}_{split}.npz"
        return load_samples(path, graph_endpoints(fused.graph), subject.pixel_scale)
    random = np.random.default_rng(0 if split == "calib" else 1)
    count = NORMAL_CALIBRATION if split == "calib" else NORMAL_EVALUATION
    made = [
        {v.name: random.standard_normal(v.type.shape).astype(np.float32) for v in fused.graph.inputs}
        for _ in range(count)
    ]
    return Samples(made, None)


def quantized(subject: Subject, scheme: Scheme, calibration: Sequence[Sample]) -> Quantization:
    """Return the model quantized with all calibration samples."""
    source = load(subject.path)
    return create_quantizer(
        source, import_float_model(source, options(subject), scheme), scheme, calibration
    ).quantize()


@dataclass(frozen=True)
class Figures:
    """SQNR of all outputs together against the float model's (dB), and accuracy (None without labels)."""

    sqnr: float
    accuracy: float | None
    float_accuracy: float | None

    @staticmethod
    def of(found: Sequence[Sample], exact: Sequence[Sample], labels: Array | None) -> Figures:
        """Compare outputs with the float model's. The class is the largest entry of the first output."""
        names = list(exact[0])
        wanted, got = (
            np.concatenate([o[n].reshape(-1) for o in outs for n in names]).astype(float) for outs in (exact, found)
        )
        noise = max(float(np.square(wanted - got).sum()), 1e-30)
        classes = [np.array([int(o[names[0]].argmax()) for o in outs]) for outs in (found, exact)]
        shares = [None, None] if labels is None else [float((c == labels[: len(c)]).mean()) for c in classes]
        return Figures(10 * float(np.log10(np.square(wanted).sum() / noise)), shares[0], shares[1])

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f"{100 * self.accuracy:.2f} % "
        return f"{accuracy}{self.sqnr:.1f} dB"


Remembered = Callable[[str, Callable[[], Any]], Any]
"""What a function gave for a name, the last time that this code ran it."""


def cached_results(study: str, *files: str) -> Remembered:
    """Return a function that caches results of a study, keyed by mcugen's code, `files` and a name."""
    store, causes = Store(cache_folder() / study), [code_digest(), *(Path(f).read_text("utf-8") for f in files)]

    def remembered(name: str, make: Callable[[], Any]) -> Any:
        key = hashlib.sha256(" ".join([*causes, name]).encode()).hexdigest()
        kept = store.read(key)
        if kept is not None:
            return pickle.loads(kept)
        made = make()
        store.write(key, pickle.dumps(made))
        return made

    return remembered


def techniques(subjects: Sequence[Subject], remembered: Remembered) -> str:
    """Return a table of quantization techniques by model, evaluated by ONNX Runtime on all evaluation samples."""
    rows = [["model", "float32", *(name for name, _ in VARIANTS)]]
    rows += [remembered(f"techniques {s.model}", partial(_variants, s)) for s in subjects]
    return markdown_table(list(map(list, zip(*rows, strict=True))))


def _variants(subject: Subject) -> list[str]:
    calibration, evaluation = samples(subject, "calib").inputs, samples(subject, "eval")
    exact = run_onnxruntime(_fixed(subject), evaluation.inputs)
    cells = []
    for name, scheme in VARIANTS:
        proto = quantized(subject, scheme, calibration).proto
        figures = Figures.of(run_onnxruntime(proto, evaluation.inputs), exact, evaluation.labels)
        console.print(f"{subject.model}: {name}: {figures}")
        cells.append(str(figures))
    reference = "" if figures.float_accuracy is None else f"{100 * figures.float_accuracy:.2f} %"
    return [subject.model, reference, *cells]


FOUR_BIT_GROUP_SIZES = ("mnist_cntk", "ds_cnn_kws_f32", "resnet8_cifar10_f32", "mobilenet_v1_025_vww_f32")


def few_bits(subjects: Sequence[Subject], remembered: Remembered) -> str:
    """Return a table of 4-bit and 8-bit weights: outputs by ONNX Runtime, and the code on a Cortex-M4."""
    rows = [["model", "float32", "precision", "outputs", "agree with float32", "bytes of weights", "`--optimize`",
             "flash on nrf52840", "instructions"]]  # fmt: skip
    for subject in (s for s in subjects if s.model in FOUR_BIT_GROUP_SIZES):
        for name, scheme in (("int8", Scheme()), ("w4a8", Scheme(weights=DType.INT4))):
            rows += remembered(f"few bits {subject.model} {name}", partial(_by_goals, subject, name, scheme))
    return markdown_table(rows)


def _by_goals(subject: Subject, name: str, scheme: Scheme) -> list[list[str]]:
    calibration, evaluation = samples(subject, "calib").inputs, samples(subject, "eval")
    exact = run_onnxruntime(_fixed(subject), evaluation.inputs)
    made = quantized(subject, scheme, calibration)
    found = run_onnxruntime(made.proto, evaluation.inputs)
    figures, alike = (Figures.of(found, exact, labels) for labels in (evaluation.labels, _classes(exact)))
    layers = made.plan.layers.items()
    size = sum(c.weights.size // (2 if n in made.plan.few_bits else 1) for n, c in layers)
    float_share = "" if figures.float_accuracy is None else f"{100 * figures.float_accuracy:.2f} %"
    rows = []
    for goal in ("balanced", "flash"):
        compiled = compile_model(made.proto, roomy(load_board("nrf52840")), CompileOptions(optimize=goal))
        run = compiled.simulate(evaluation.inputs[:1])
        flash = run.sizes.code + run.sizes.weights
        rows.append([subject.model, float_share, name, str(figures), f"{100 * (alike.accuracy or 0):.2f} %",
                     f"{size:,}", goal, f"{flash:,}", f"{run.instructions:,}"])  # fmt: skip
        console.print(" | ".join(rows[-1]))
    return rows


def _classes(outputs: Sequence[Sample]) -> Array:
    """Return the index of the largest entry of the first output, for each sample."""
    name = next(iter(outputs[0]))
    return np.array([int(o[name].argmax()) for o in outputs])


def _fixed(subject: Subject) -> onnx.ModelProto:
    return load(subject.path).given


def accuracy(subjects: Sequence[Subject], board: str, count: int, remembered: Remembered) -> str:
    """Return a table of models in ONNX Runtime (float32 and QDQ), in C on the host, and under QEMU."""
    head = ["model", "samples", "float32", "QDQ, ONNX Runtime", "C on the host", f"C on {board}, QEMU", "samples there",
            "float32 on those", "C = QDQ", "most LSB apart"]  # fmt: skip
    each = (remembered(f"accuracy {s.model} {board} {count}", partial(_everywhere, s, board, count)) for s in subjects)
    return markdown_table([head, *each])


def _everywhere(subject: Subject, board: str, count: int) -> list[str]:
    calibration, evaluation = samples(subject, "calib").inputs, samples(subject, "eval")
    start = time.perf_counter()
    result = quantized(subject, Scheme(), calibration)
    console.print(f"{subject.model}: quantized in {time.perf_counter() - start:.1f} s")
    exact = run_onnxruntime(_fixed(subject), evaluation.inputs)
    qdq = run_onnxruntime(result.proto, evaluation.inputs)
    host = compile_model(result).simulate(evaluation.inputs, measure=False).outputs
    target_model = compile_model(result, roomy(load_board(board)))
    few = evaluation.inputs[:count]
    target = target_model.simulate(few, measure=False).outputs
    labels = evaluation.labels
    cells = [Figures.of(o, exact[: len(o)], labels) for o in (qdq, host, target)]
    same, apart = agreement(target_model, host, qdq)
    reference = Figures.of(exact, exact, labels).accuracy
    some = Figures.of(exact[: len(few)], exact[: len(few)], labels).accuracy
    shown = ["" if a is None else f"{100 * a:.2f} %" for a in (reference, some)]
    row = [subject.model, str(len(exact)), shown[0], *map(str, cells), str(len(few)), shown[1],
               f"{100 * same:.2f} %", f"{apart:.1f}"]  # fmt: skip
    console.print(" | ".join(row))
    assert all(a[n].tobytes() == b[n].tobytes() for a, b in zip(host, target, strict=False) for n in a)
    return row


def agreement(compiled: CompiledModel, found: Sequence[Sample], wanted: Sequence[Sample]) -> tuple[float, float]:
    """Return the share of outputs that equal the QDQ model's, and the largest difference in output steps."""
    same, apart = [], 0.0
    quantization = compiled.quantization
    assert quantization is not None
    for name in wanted[0]:
        a, b = (np.concatenate([o[name].reshape(-1) for o in outs]).astype(float) for outs in (found, wanted))
        stored = quantization.plan.activations.get(name)
        step = stored.quant.scale[0] if stored else float("nan")
        same.append(np.isclose(a, b, rtol=1e-6, atol=1e-9))
        apart = max(apart, float(np.abs(a - b).max() / step)) if stored else apart
    return float(np.concatenate(same).mean()), apart


console = Console(stderr=True)


def main(
    only: Annotated[str, typer.Option(help="part of a model's name")] = "",
    board: Annotated[str, typer.Option(help="where the generated code runs")] = "corstone300",
    count: Annotated[int, typer.Option(help="samples to run there")] = 100,
    wanted: Annotated[str, typer.Option("--table", help="accuracy, techniques or few-bits; else all")] = "",
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="rewrite docs/reference/figures/quantization.md")
    ] = False,
) -> None:
    """Print the tables, or one of them, and write them to the document on request."""
    subjects, remembered = [s for s in SUBJECTS if only in s.model], cached_results("quant-study", __file__)
    tables: dict[str, Callable[[], str]] = {
        "accuracy": lambda: accuracy(subjects, board, count, remembered),
        "techniques": lambda: techniques(subjects, remembered),
        "few-bits": lambda: few_bits(subjects, remembered),
    }
    for name in [wanted] if wanted else tables:
        table = tables[name]()
        print(f"{name}\n{table}\n")
        if write_docs:
            rewrite_passage(DOCUMENT, name, table)


if __name__ == "__main__":
    typer.run(main)
