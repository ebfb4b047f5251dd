# SPDX-License-Identifier: Apache-2.0
"""Compares the MLPerf Tiny models from .tflite, also with `--match tflite`, and from ONNX with TensorFlow Lite Micro.

Accuracy and classes are those of all samples of ../shared/data: mcugen's C runs on this computer, TFLM in its Python
interpreter (package tflite-micro). Instructions and memory are measured as by tools/bench.py; those of TFLM with
CMSIS-NN were recorded. Both read the same .tflite file.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import typer
from benchmark.figures import Figures, Outcome
from benchmark.measure import guarded, measure_mcugen
from benchmark.recorded import Tflm
from benchmark.subjects import MODELS, ROOT, Subject
from markers import markdown_table, rewrite_passage

from mcugen.core.board import load_board
from mcugen.core.options import CompileOptions
from mcugen.driver.compiler import compile_model
from mcugen.hir.types import Array

TFLITE, DATA = MODELS.with_name("tflite"), MODELS.with_name("data")
DOCUMENT = ROOT / "docs" / "reference" / "figures" / "front_ends.md"
BOARDS = ("nrf52840", "corstone300")
MATCHING = ".tflite, --match tflite"
"""Title of the rows of code with the bits of TFLM."""
INT8_FLAGS = "-O2"
"""Compiler flags behind those of the board, as of tools/bench.py."""

DATA_SETS = {
    "resnet8_cifar10": "cifar10",
    "ds_cnn_kws": "kws",
    "mobilenet_v1_025_vww": "vww",
    "autoencoder_ad": "ad",
    "streaming_wakeword": "sww",
}
"""Data set of ../shared/data by model."""

HEADINGS = ("model", "from", "board", "accuracy", "class of TFLM", "instructions", "arena", "RAM", "flash", "notes")


@dataclass(frozen=True)
class Samples:
    """All samples of a model as it takes them, and what is known of the right answers.

    Attributes:
        inputs: The int8 samples, [count, …] with channels first.
        labels: The classes; None if the data have none.
    """

    inputs: Array
    labels: Array | None

    @classmethod
    def load(cls, model: str, scale: float, zero: int) -> Samples:
        """Read the samples of a model, and quantize those that are real numbers."""
        with np.load(DATA / f"{DATA_SETS[model]}_eval.npz") as data:
            if "x_uint8" in data:
                inputs = data["x_uint8"].astype(np.int16) - 128
            elif "x_int8" in data:
                inputs = data["x_int8"]
            else:
                inputs = np.clip(np.rint(data["x"] / scale) + zero, -128, 127)
            is_labelled = "y" in data and model != "autoencoder_ad" and len(np.unique(data["y"])) > 1
            return cls(inputs.astype(np.int8), data["y"] if is_labelled else None)

    def arranged(self, shape: Sequence[int], *, channels_last: bool) -> Array:
        """Return the samples in the shape of an input."""
        moves = channels_last and self.inputs.ndim == 4 and self.inputs.shape[1] in (3, 40)
        return np.ascontiguousarray(np.moveaxis(self.inputs, 1, -1) if moves else self.inputs).reshape(-1, *shape)

    def accuracy(self, outputs: Array) -> str:
        """Return the share of samples with the right class; a dash if the data have no classes."""
        if self.labels is None:
            return "-"
        return f"{np.mean(outputs.argmax(-1) == self.labels):.2%}"


@dataclass(frozen=True)
class Reference:
    """What TFLM computes: the samples, and its outputs, [count, classes]."""

    samples: Samples
    outputs: Array


def run_tflm(model: str) -> Reference:
    """Run all samples of a model in TFLM's interpreter."""
    from tflite_micro.python.tflite_micro import runtime

    interpreter = runtime.Interpreter.from_file(str(TFLITE / f"{model}_int8.tflite"), arena_size=4_000_000)
    details = interpreter.get_input_details(0)
    quantization = details["quantization_parameters"]
    samples = Samples.load(model, float(quantization["scales"][0]), int(quantization["zero_points"][0]))
    outputs = []
    for sample in samples.arranged(tuple(details["shape"]), channels_last=True):
        interpreter.set_input(sample, 0)
        interpreter.invoke()
        outputs.append(np.array(interpreter.get_output(0)).reshape(-1))
    return Reference(samples, np.stack(outputs))


def agreement(outputs: Array, reference: Array, model: str) -> str:
    """Return the share of samples with TFLM's class, where equal scores are any of these classes.

    An autoencoder has no classes: the result is the largest difference of its outputs, in quantization steps.
    """
    if model == "autoencoder_ad":
        return f"± {np.abs(outputs.astype(int) - reference).max()} steps"
    best = reference[np.arange(len(outputs)), outputs.argmax(-1)] == reference.max(-1)
    return f"{best.mean():.2%}"


def model_rows(model: str, boards: Sequence[str]) -> list[list[str]]:
    """Measure a model from both files, and return the rows of the table, TFLM's first on each board."""
    reference = run_tflm(model)
    rows = [
        [model, "TFLM", board, reference.samples.accuracy(reference.outputs), "", *_cells(_recorded(model, board))]
        for board in boards
    ]
    lite, onnx = TFLITE / f"{model}_int8.tflite", MODELS / f"{model}_int8_qdq.onnx"
    for title, path, match in ((".tflite", lite, ""), (MATCHING, lite, "tflite"), ("ONNX", onnx, "")):
        compiled = compile_model(path, options=CompileOptions(match=match))
        given, output = compiled.program.inputs[0], compiled.program.outputs[0]
        inputs = reference.samples.arranged(given.shape, channels_last=path is lite)
        outputs = compiled.run({given.name: inputs})[output.name].reshape(len(inputs), -1)
        subject = Subject(path, {given.name: inputs[0]}, {output.name: outputs[0].reshape(output.shape)})
        answers = [reference.samples.accuracy(outputs), agreement(outputs, reference.outputs, model)]
        rows += [[model, title, board, *answers, *_cells(_measured(subject, board, match))] for board in boards]
    return sorted(rows, key=lambda row: boards.index(row[2]))


def _recorded(model: str, board: str) -> Outcome:
    return Outcome(Tflm.load().figures(f"{model}_int8", load_board(board).cpu))


def _measured(subject: Subject, name: str, match: str) -> Outcome:
    known = load_board(name)
    board = replace(known, cflags=(*known.cflags, *shlex.split(INT8_FLAGS)))
    return guarded(lambda: measure_mcugen(subject, board, "balanced", match), "mcugen")


def _cells(outcome: Outcome) -> list[str]:
    """Return the costs and notes of a row."""
    figures: Figures | None = outcome.figures
    if figures is None:
        return ["", "", "", "", outcome.note]
    costs = (figures.instructions, figures.arena, figures.ram, figures.flash)
    return [*(f"{number:,}" for number in costs), outcome.note]


def main(
    models: Annotated[str, typer.Option(help="model names, by commas")] = ",".join(DATA_SETS),
    boards: Annotated[str, typer.Option(help="board names, by commas")] = ",".join(BOARDS),
    jobs: Annotated[int, typer.Option(min=1, help="how many models are measured at a time")] = 2,
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="write the table to docs/reference/figures/front_ends.md")
    ] = False,
) -> None:
    """Compare the MLPerf Tiny models from .tflite and from ONNX with TensorFlow Lite Micro."""
    names = models.split(",")
    with ProcessPoolExecutor(jobs) as pool:
        rows = [row for found in pool.map(model_rows, names, [boards.split(",")] * len(names)) for row in found]
    table = markdown_table([list(HEADINGS), *rows], 3)
    print(table)
    if write_docs:
        command = shlex.join(["tools/front_ends.py", *sys.argv[1:]])
        rewrite_passage(DOCUMENT, "front_ends", f"Made by `{command}`.\n\n{table}")


if __name__ == "__main__":
    typer.run(main)
