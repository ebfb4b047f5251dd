# SPDX-License-Identifier: Apache-2.0
"""Measures quantization for tasks beside classification, each by its own metric, next to other quantizers.

Writes the table of tasks of docs/reference/figures/quantization.md (`make quant-study`). Networks are trained and data
are made by seed (tests/quantization/task_networks.py). ONNX Runtime's row is that of its settings which is best on the
evaluation samples, so the comparison favours ONNX Runtime; the same goes for the two TensorFlow Lite quantizers, which
run in a Python environment of their own (`--tflite PYTHON`, with the packages of the extra `train-keras`, onnx and
ai-edge-quantizer); without that, their column stays as the document has it. What was computed is kept, so that a run
that was interrupted goes on.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import ort_quantizer
import typer
from markers import between_markers, markdown_table, rewrite_passage
from onnxruntime.quantization import CalibrationMethod, QuantType
from quant_study import DOCUMENT, ROOT, Sample, cached_results, console

from mcugen.api.compilation import Compilation
from mcugen.core.errors import ConstraintError
from mcugen.core.options import CompileOptions
from mcugen.driver.tasks import Judging, Quantizing
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.hir.types import Array

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "quantization")]

from task_networks import TASKS, Task, Trial  # noqa: E402

PRECISIONS = ("int8", "int16x8", "auto")
"""Columns of mcugen."""

MIN_SQNR = 30.0
"""What `auto` must reach where calibration samples have no labels, in dB; with labels, it may lose half a point."""

BOARD = "nrf52840"
"""What `auto` chooses precisions for."""

RANGE_METHODS = {
    "min-max": (CalibrationMethod.MinMax, {}),
    "percentile 99.99": (CalibrationMethod.Percentile, {"CalibPercentile": 99.99}),
    "percentile 99.9": (CalibrationMethod.Percentile, {"CalibPercentile": 99.9}),
    "entropy": (CalibrationMethod.Entropy, {}),
}
WEIGHTS = {"per channel": True, "per tensor": False}
ACTIVATIONS = {"U8S8": QuantType.QUInt8, "S8S8": QuantType.QInt8}
TFLITE = "tflite_quantizers.py"
"""The script that runs the quantizers of TensorFlow Lite."""

FLOAT, NOTHING = "float", "none"
"""The form of TensorFlow Lite without quantization, and the cell of a quantizer that gives no network."""


@dataclass(frozen=True)
class Result:
    """The result of one quantizer: the metric, the SQNR against the float network in dB, and its setting."""

    value: float
    sqnr_db: float
    setting: str = ""

    def show(self, task: Task) -> str:
        """Return the cell of the table."""
        noise = f", {self.sqnr_db:.1f} dB" if np.isfinite(self.sqnr_db) else ""
        return f"{task.show(self.value)}{noise}" + (f" ({self.setting})" if self.setting else "")


def shaped(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> list[Sample]:
    """Return one dict of inputs for each sample, in the shapes that the model takes."""
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in model.graph.input}
    count = len(next(iter(arrays.values())))
    return [{name: array[n].reshape(shapes[name]) for name, array in arrays.items()} for n in range(count)]


def first_states(trial: Trial) -> Sample:
    """Return zeros for each state of the network."""
    kept = set(trial.states.values())
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in trial.model.graph.input}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items() if name in kept}


def outputs_of(trial: Trial, model: onnx.ModelProto) -> Sample:
    """Return the outputs of a model in ONNX Runtime on the evaluation samples, with a leading axis of samples."""
    samples = shaped(trial.model, trial.evaluation)
    outputs = run_onnxruntime(model, samples, fixed=first_states(trial), states=trial.states)
    return {name: np.stack([each[name] for each in outputs]) for name in outputs[0]}


def judged(trial: Trial, outputs: Sample, setting: str = "") -> Result:
    """Return the metric and the SQNR of outputs; those that only carry states do not count."""
    exact = outputs_of(trial, trial.model)
    names = [name for name in exact if name not in trial.states]
    signal = sum(float(np.square(exact[name], dtype=float).sum()) for name in names)
    noise = sum(float(np.square(exact[name].astype(float) - outputs[name]).sum()) for name in names)
    return Result(trial.score(outputs), 10 * float(np.log10(signal / noise)) if noise else np.inf, setting)


def quantized(trial: Trial, precision: str) -> onnx.ModelProto:
    """Return the network as mcugen quantizes it, with default options; ConstraintError where `auto` finds nothing."""
    labels = {} if trial.labels is None else {"boxes" if trial.labels.dtype.kind == "f" else "labels": trial.labels}
    given = {**trial.calibration, **labels}
    judging = Judging(min_sqnr=MIN_SQNR if trial.labels is None else None)
    options, quantizing = CompileOptions(states=trial.states), Quantizing(precision=precision, calibration=given)
    is_searched = precision == "auto"
    made = Compilation(
        trial.model, BOARD if is_searched else "host", options, quantizing, judging if is_searched else Judging()
    )
    return made.quantized.proto


def own(trial: Trial, precision: str) -> Result | None:
    """Return what mcugen reaches, None if `auto` refuses its goal."""
    try:
        return judged(trial, outputs_of(trial, quantized(trial, precision)))
    except ConstraintError:
        return None


def with_states(trial: Trial) -> list[Sample]:
    """Return the calibration samples with the states that the float network passes from one to the next."""
    samples = shaped(trial.model, trial.calibration)
    if not trial.states:
        return samples
    kept = first_states(trial)
    outputs = run_onnxruntime(trial.model, samples, fixed=kept, states=trial.states)
    found = []
    for sample, each in zip(samples, outputs, strict=True):
        found.append({**sample, **kept})
        kept = {target: each[source] for source, target in trial.states.items()}
    return found


def peer(task: Task, trial: Trial) -> Result | None:
    """Return ONNX Runtime's best static quantization, None if each setting fails."""
    calibration, best = with_states(trial), None
    with redirect_stdout(None):
        prepared = ort_quantizer.prepared(trial.model)
        for method, weights, activations in product(RANGE_METHODS, WEIGHTS, ACTIVATIONS):
            kind, extra = RANGE_METHODS[method]
            try:
                made = ort_quantizer.quantized(
                    prepared,
                    calibration,
                    per_channel=WEIGHTS[weights],
                    activation_type=ACTIVATIONS[activations],
                    calibrate_method=kind,
                    extra_options=extra,
                )
                found = judged(trial, outputs_of(trial, made), f"{method}, {weights}, {activations}")
            except Exception as error:  # whatever the quantizer raises
                console.print(f"ONNX Runtime, {method}: {error}")
                continue
            best = better(task, best, found)
    return best


def better(task: Task, best: Result | None, found: Result) -> Result | None:
    """Return the better of two results by the metric of a task; one that is no number does not count."""
    if not np.isfinite(found.value):
        return best
    sign = -1 if task.lower_is_better else 1
    return found if best is None or sign * found.value > sign * best.value else best


def tflite(task: Task, trial: Trial, python: str) -> Result | None:
    """Return the best of TensorFlow Lite's converter and ai-edge-quantizer, None if both fail."""
    best = None
    parts = {"calibration": with_states(trial), "evaluation": shaped(trial.model, trial.evaluation)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(trial.model, folder / "model.onnx")
        for part, samples in parts.items():
            stacked: dict[str, Any] = {key: np.stack([each[key] for each in samples]) for key in samples[0]}
            np.savez(folder / part, **stacked)
        states = [f"{source}:{target}" for source, target in trial.states.items()]
        command = [python, str(ROOT / "tools" / TFLITE), str(folder), *states]
        done = subprocess.run(command, capture_output=True, text=True)
        console.print(done.stdout.strip() + done.stderr[-2000:] * bool(done.returncode))
        for path in sorted(folder.glob("outputs_*.npz")):
            with np.load(path) as outputs:
                found = judged(trial, dict(outputs), path.stem.removeprefix("outputs_"))
            console.print(f"{path.stem}: {found.show(task)}")
            best = best if found.setting == FLOAT else better(task, best, found)
    return best


Remembered = Callable[[str, Callable[[], Result | None]], Result | None]
"""Returns what a function gave for a name, the last time that this code ran it."""


def row(task: Task, python: str, remembered: Remembered, written: Mapping[str, str]) -> list[str]:
    """Return the cells of a task; `written` has the last ones of earlier tables by task."""
    trial = cache(task.make)
    ways: dict[str, Callable[[], Result | None]] = {
        "float32": lambda: judged(trial(), outputs_of(trial(), trial().model)),
        **{precision: partial(lambda p: own(trial(), p), precision) for precision in PRECISIONS},
        "ONNX Runtime": lambda: peer(task, trial()),
        **({"TensorFlow Lite": lambda: tflite(task, trial(), python)} if python else {}),
    }
    found = {name: remembered(f"{task.name} {name}", way) for name, way in ways.items()}
    cells = [NOTHING if each is None else each.show(task) for each in found.values()]
    return [task.name, task.metric, *cells, *([] if python else [written.get(task.name, NOTHING)])]


def written_column() -> dict[str, str]:
    """Return the last cell of each row of the table that the document has, by task."""
    lines = between_markers(DOCUMENT.read_text(), MARKER).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0]: cells[-1] for cells in rows}


MARKER = "tasks"
"""The name of the generated passage."""

HEAD = ["task", "metric", "float32", "int8", "int16x8", "auto", "ONNX Runtime's best", "TensorFlow Lite's best"]


def main(
    only: Annotated[str, typer.Option(help="part of a task's name")] = "",
    tflite_python: Annotated[str, typer.Option("--tflite", help="Python that has TensorFlow")] = "",
    write_docs: Annotated[
        bool, typer.Option("--write-docs", help="rewrite docs/reference/figures/quantization.md")
    ] = False,
) -> None:
    """Print (or write) the table of tasks."""
    logging.disable(logging.WARNING)
    tests, tools = ROOT / "tests" / "quantization", ROOT / "tools"
    sources = [tests / "task_networks.py", tests / "gradient_descent.py", tools / "ort_quantizer.py", tools / TFLITE]
    kept = cached_results("task-study", __file__, *map(str, sources))

    def remembered(name: str, make: Callable[[], Result | None]) -> Result | None:
        found: Result | None = kept(name, lambda: (make(),))[0]  # None, too, is a result to keep
        return found

    table, written = [HEAD], written_column()
    for task in (task for task in TASKS if only in task.name):
        table.append(row(task, tflite_python, remembered, written))
        console.print(" | ".join(table[-1]))
    print(markdown_table(table))
    if write_docs:
        rewrite_passage(DOCUMENT, MARKER, markdown_table(table))


if __name__ == "__main__":
    typer.run(main)
