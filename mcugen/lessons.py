# SPDX-License-Identifier: Apache-2.0
"""A model that learns on its board, as far as that is simulated: examinations, and lessons between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mcugen.codegen.bundle import Lesson
from mcugen.compiled import CompiledModel
from mcugen.errors import UsageError
from mcugen.evaluation.samples import Samples
from mcugen.hir.types import Array
from mcugen.quant.quantize import Progress
from mcugen.report.figures import Examination, LearningFigures

EXAMINATIONS = 5
"""Besides the first, as far as there are steps between them."""


@dataclass(frozen=True)
class Teaching:
    """What a model is shown: a file of samples with labels, in its order, so many times, at a learning rate."""

    lesson: Path
    rate: float = 0.01
    epochs: int = 1


Calls = list[Mapping[str, Array]]


def learn(
    compiled: CompiledModel, teaching: Teaching, lesson: Samples, exam: Samples, progress: Progress
) -> LearningFigures:
    """Runs all examinations and lessons in one simulation, then counts one step.

    UsageError unless the model learns classes, and both files have labels.
    """
    training = compiled.options.training
    if training is None or compiled.bundle.lesson is None:
        raise UsageError("--lesson is for models that learn", "no --train", "say what is trained: --train last:1")
    if not compiled.bundle.lesson.classes:
        raise UsageError("--lesson teaches classes", f"--loss {training.loss}", "--loss cross-entropy")
    if not 0 < teaching.rate < np.inf:
        raise UsageError("--rate must be a positive number", str(teaching.rate))
    if lesson.labels is None or exam.labels is None:
        raise UsageError("--lesson and --data must have labels", "none", "an array `labels` beside the inputs")
    names = compiled.bundle.lesson
    steps = _steps(names, lesson, lesson.labels, teaching)
    parts = [part for part in np.array_split(np.arange(len(steps)), EXAMINATIONS) if len(part)]
    asked: Calls = list(exam.inputs)
    calls = [*asked]
    for part in parts:
        calls += [steps[i] for i in part] + asked
    total = len(calls)
    run = compiled.simulate(calls, measure=False, progress=lambda done: progress("learning", done, total))
    step = compiled.simulate(steps[:1])
    losses = [float(o[names.loss.name][0]) for o in run.outputs if names.loss.name in o]
    found = _examinations(run.outputs, losses, exam.labels, [len(part) for part in parts])
    state = compiled.program.state_size
    return LearningFigures(training.describe(), teaching.rate, found, step.instructions, step.stack, state)


def _steps(names: Lesson, lesson: Samples, labels: Array, teaching: Teaching) -> Calls:
    """In order, as often as they are shown."""
    rate = np.asarray([teaching.rate], np.float32)
    steps: Calls = [
        {**sample, names.target.name: np.asarray([label], np.int32), names.rate.name: rate}
        for sample, label in zip(lesson.inputs, labels.reshape(-1), strict=True)
    ]
    return steps * teaching.epochs


def _examinations(
    outputs: Sequence[Mapping[str, Array]], losses: Sequence[float], labels: Array, parts: Sequence[int]
) -> list[Examination]:
    """Of outputs of an examination, and for each part its steps and another examination; `losses` of all steps."""
    count, right = len(labels.reshape(-1)), labels.reshape(-1)

    def share(first: int) -> float:
        scores = [next(iter(o.values())).reshape(-1) for o in outputs[first : first + count]]
        return float(np.mean(np.argmax(np.stack(scores), axis=1) == right))

    found, at, steps = [Examination(0, share(0), None)], count, 0
    for part in parts:
        loss = float(np.mean(losses[steps : steps + part]))
        steps, at = steps + part, at + part
        found.append(Examination(steps, share(at), loss))
        at += count
    return found
