# SPDX-License-Identifier: Apache-2.0
"""Measures quantization for tasks beside classification, each by its own metric, next to other quantizers.

Writes the table of tasks of docs/quantization.md (`make quant-study`). Networks are trained and data are made by seed
(tests/quant/task_networks.py). ONNX Runtime's row is that of its settings which is best on the evaluation samples, so
the comparison favours ONNX Runtime; the same goes for the two TensorFlow Lite quantizers, which run in a Python
environment of their own (`--tflite PYTHON`, with the packages of the extra `train-keras` and ai-edge-quantizer).
What was computed is kept, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import onnx
import typer
from markers import replace_between_markers
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from quant_study import DOCUMENT, ROOT, Sample, _table, console, remembering

from mcugen.compilation import Compilation
from mcugen.errors import ConstraintError
from mcugen.evaluation.accuracy import run_onnxruntime
from mcugen.hir.types import Array
from mcugen.options import CompileOptions
from mcugen.tasks import Judging, Quantizing

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "quant")]

from task_networks import TASKS, Task, Trial  # noqa: E402

PRECISIONS = ("int8", "int16x8", "auto")
"""Columns of mcugen."""

MIN_SQNR = 30.0
"""What `auto` must reach where calibration samples have no labels, in dB; with labels, it may lose half a point."""

BOARD = "nrf52840"
"""What `auto` chooses precisions for."""

METHODS = {
    "min-max": (CalibrationMethod.MinMax, {}),
    "percentile 99.99": (CalibrationMethod.Percentile, {"CalibPercentile": 99.99}),
    "percentile 99.9": (CalibrationMethod.Percentile, {"CalibPercentile": 99.9}),
    "entropy": (CalibrationMethod.Entropy, {}),
}
WEIGHTS = {"per channel": True, "per tensor": False}
ACTIVATIONS = {"U8S8": QuantType.QUInt8, "S8S8": QuantType.QInt8}
TFLITE = "tflite_quantizers.py"
"""The script that runs the quantizers of TensorFlow Lite."""

NOTHING = "none"
"""The cell of a quantizer that refuses a network or was not run."""


@dataclass(frozen=True)
class Best:
    """The best of several settings of a quantizer: its name and its figure."""

    setting: str
    figure: float


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


def figure(trial: Trial, model: onnx.ModelProto) -> float:
    """Return the metric of a model in ONNX Runtime on the evaluation samples."""
    samples = shaped(trial.model, trial.evaluation)
    outputs = run_onnxruntime(model, samples, fixed=first_states(trial), states=trial.states)
    return trial.score({name: np.stack([each[name] for each in outputs]) for name in outputs[0]})


def quantized(trial: Trial, precision: str) -> onnx.ModelProto:
    """Return the network as mcugen quantizes it, with default options; ConstraintError where `auto` finds nothing."""
    given = dict(trial.calibration) | ({} if trial.labels is None else {"labels": trial.labels})
    judging = Judging(min_sqnr=MIN_SQNR if trial.labels is None else None)
    options, quantizing = CompileOptions(states=trial.states), Quantizing(precision=precision, calibration=given)
    is_searched = precision == "auto"
    made = Compilation(
        trial.model, BOARD if is_searched else "host", options, quantizing, judging if is_searched else Judging()
    )
    return made.quantized.proto


def own(trial: Trial, precision: str) -> float | None:
    """Return the figure of mcugen, None if `auto` refuses its goal."""
    try:
        return figure(trial, quantized(trial, precision))
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


def peer(trial: Trial, better: Callable[[float, float], bool]) -> Best | None:
    """Return ONNX Runtime's best static quantization, None if each setting fails."""
    calibration, best = with_states(trial), None

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.samples = iter(calibration)

        def get_next(self) -> Sample | None:
            return next(self.samples, None)

    with tempfile.TemporaryDirectory() as folder:
        plain, prepared, made = (str(Path(folder, f"{name}.onnx")) for name in ("plain", "prepared", "made"))
        onnx.save(trial.model, plain)
        quant_pre_process(plain, prepared, skip_symbolic_shape=True)
        for method, weights, activations in product(METHODS, WEIGHTS, ACTIVATIONS):
            kind, extra = METHODS[method]
            try:
                quantize_static(
                    prepared,
                    made,
                    Reader(),
                    per_channel=WEIGHTS[weights],
                    activation_type=ACTIVATIONS[activations],
                    weight_type=QuantType.QInt8,
                    calibrate_method=kind,
                    extra_options=extra,
                )
                found = figure(trial, onnx.load(made))
            except Exception as error:  # whatever the quantizer raises
                console.print(f"ONNX Runtime, {method}: {error}")
                continue
            if np.isfinite(found) and (best is None or better(found, best.figure)):
                best = Best(f"{method}, {weights}, {activations}", found)
    return best


def tflite(trial: Trial, python: str, better: Callable[[float, float], bool]) -> Best | None:
    """Return the best of TensorFlow Lite's converter and ai-edge-quantizer, None if both fail."""
    best = None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(trial.model, folder / "model.onnx")
        for part, samples in (
            ("calibration", with_states(trial)),
            ("evaluation", shaped(trial.model, trial.evaluation)),
        ):
            np.savez(folder / f"{part}.npz", **{key: np.stack([each[key] for each in samples]) for key in samples[0]})
        states = [f"{source}:{target}" for source, target in trial.states.items()]
        command = [python, str(ROOT / "tools" / TFLITE), str(folder), *states]
        done = subprocess.run(command, capture_output=True, text=True)
        console.print(done.stdout.strip())
        for path in sorted(folder.glob("outputs_*.npz")):
            with np.load(path) as outputs:
                found = trial.score(dict(outputs))
            console.print(f"{path.stem}: {found}")
            setting = path.stem.removeprefix("outputs_").replace("_", " ")
            if np.isfinite(found) and setting != "float" and (best is None or better(found, best.figure)):
                best = Best(setting, found)
        if done.returncode:
            console.print(done.stderr[-2000:])
    return best


def row(task: Task, python: str, remembered: Callable[[str, Callable[[], object]], object]) -> Iterator[str]:
    """Yield the cells of a task."""
    made: list[Trial] = []

    def trial() -> Trial:
        made[:] = made or [task.make()]
        return made[0]

    def better(a: float, b: float) -> bool:
        return a < b if task.lower_is_better else a > b

    yield from (task.name, task.metric)
    yield task.show(remembered(f"{task.name} float32", lambda: figure(trial(), trial().model)))  # type: ignore[arg-type]
    for precision in PRECISIONS:
        found = remembered(f"{task.name} {precision}", lambda precision=precision: (own(trial(), precision),))
        (value,) = found  # type: ignore[misc]
        yield "missed" if value is None else task.show(value)
    peers = [remembered(f"{task.name} ONNX Runtime", lambda: (peer(trial(), better),))]
    if python:
        peers.append(remembered(f"{task.name} TensorFlow Lite", lambda: (tflite(trial(), python, better),)))
    for (best,) in peers:  # type: ignore[misc]
        yield NOTHING if best is None else f"{task.show(best.figure)} ({best.setting})"


HEAD = ["task", "metric", "float32", "int8", "int16x8", "auto", "ONNX Runtime's best", "TensorFlow Lite's best"]


def main(
    only: Annotated[str, typer.Option(help="part of a task's name")] = "",
    tflite_python: Annotated[str, typer.Option("--tflite", help="Python that has TensorFlow; else no column")] = "",
    write_docs: Annotated[bool, typer.Option("--write-docs", help="rewrite docs/quantization.md")] = False,
) -> None:
    """Print (or write) the table of tasks."""
    logging.disable(logging.WARNING)
    sources = [__file__, *(str(ROOT / "tests" / "quant" / f"{n}.py") for n in ("task_networks", "gradient_descent"))]
    remembered = remembering("task-study", *sources, str(ROOT / "tools" / TFLITE))
    table = [HEAD if tflite_python else HEAD[:-1]]
    for task in (task for task in TASKS if only in task.name):
        table.append(list(row(task, tflite_python, remembered)))
        console.print(" | ".join(table[-1]))
    print(_table(table))
    if write_docs:
        DOCUMENT.write_text(replace_between_markers(DOCUMENT.read_text(), "tasks", _table(table)))


if __name__ == "__main__":
    typer.run(main)
