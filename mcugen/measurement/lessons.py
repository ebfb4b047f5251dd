# SPDX-License-Identifier: Apache-2.0
"""A model that learns on its board, as far as that is simulated: examinations, and lessons between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.codegen.bundle import Lesson
from mcugen.core.errors import UsageError
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.tasks import Teaching
from mcugen.evaluation.samples import Samples
from mcugen.hir.types import Array
from mcugen.quantization.quantize import Progress
from mcugen.reporting.figures import CallFigures, Examination, LearningFigures

EXAMINATIONS = 5
"""Besides the first, as far as there are steps between them."""


Calls = Sequence[Mapping[str, Array]]


def learn(
    compiled: CompiledModel,
    plain: CompiledModel,
    teaching: Teaching,
    lesson: Samples,
    exam: Samples,
    progress: Progress,
) -> LearningFigures:
    """Runs all examinations and lessons in one simulation, then counts one step, and an inference of `plain`, which is
    the model that does not learn.

    UsageError unless the model learns classes, and both files have labels.
    """
    names, labels = _taught(compiled, teaching, lesson)
    _, right = _taught(compiled, teaching, exam)
    steps = _rated(names, _steps(names, lesson, labels), teaching)
    parts = [part for part in np.array_split(np.arange(len(steps)), EXAMINATIONS) if len(part)]
    asked: Calls = list(exam.inputs)
    calls = list(asked)
    for part in parts:
        calls += [*(steps[i] for i in part), *asked]
    total = len(calls)
    run = compiled.simulate(calls, measure=False, progress=lambda done: progress("learning", done, total))
    step, inference = _figures(compiled, steps[0]), _figures(plain, lesson.inputs[0])
    losses = [float(o[names.loss.name][0]) for o in run.outputs if names.loss.name in o]
    found = _examinations(run.outputs, losses, right, [len(part) for part in parts])
    state, training = compiled.program.state_size, compiled.options.training
    assert training is not None
    return LearningFigures(training.describe(), teaching.rate, found, step, inference, state)


def _figures(compiled: CompiledModel, call: Mapping[str, Array]) -> CallFigures:
    """What one call takes."""
    run, program = compiled.simulate([call], cycles=True), compiled.program
    flash = None if run.sizes is None else run.sizes.code + run.sizes.weights
    cycles = None if run.cycles is None else run.cycles.total
    return CallFigures(run.instructions, cycles, run.stack, flash, compiled.bundle.arena_size + program.state_size)


@dataclass(frozen=True)
class Trial:
    """Layers that were trained: the share of held-out samples of which the class was told then, and bytes of RAM."""

    layers: str
    accuracy: float
    ram: int

    def __str__(self) -> str:
        return f"{self.layers}: {self.accuracy:.1%}, {self.ram:,} bytes"


HELD_OUT = 4
"""One of so many samples of a lesson judges what the others taught."""


def lengths(count: int) -> list[int]:
    """Of the ends of a model of so many layers that are tried: each is twice as long."""
    return [1 << n for n in range(count.bit_length()) if 1 << n <= count]


def candidates(count: int) -> list[str]:
    """What is tried of a model of so many layers that can be trained."""
    every = lengths(count)
    longer = every[1:]
    return [
        *(f"last:{n}" for n in every),
        *(f"bias:{n}" for n in longer),
        *(f"last:1,bias:{n}" for n in longer),
        *(f"adapter:2:{n}" for n in every),
    ]


SENSITIVE = 4
"""Of so many channels the one that the loss depends on most is trained where not all are."""
ASKED = 32
"""Samples of a lesson that say which these are, or a few more."""
GRADIENT = ".weights.velocity"
"""What the gradient of a layer's weights is kept as."""


def sensitive(compiled: CompiledModel, teaching: Teaching, lesson: Samples) -> dict[str, list[int]]:
    """By trained layer the channels whose gradients are largest on samples of a lesson, of a model that learns by
    `momentum`, whose memory is the gradient after one step.
    """
    names, labels = _taught(compiled, teaching, lesson)
    known = compiled.graph.lesson
    assert known is not None
    outputs = {state.removesuffix(GRADIENT): o for o, state in known.states.items() if state.endswith(GRADIENT)}
    sizes: dict[str, Array] = {}
    asked = _steps(names, lesson, labels)[:: max(1, len(labels) // ASKED)]
    for step in _rated(names, asked, replace(teaching, epochs=1)):
        found = compiled.interpret({**compiled.first_states, **step})
        for layer, output in outputs.items():
            gradient = np.abs(found[output])
            sizes[layer] = sizes.get(layer, 0) + gradient.reshape(len(gradient), -1).sum(1)
    most = {layer: np.argsort(-size, kind="stable")[: max(1, len(size) // SENSITIVE)] for layer, size in sizes.items()}
    return {layer: sorted(channels.tolist()) for layer, channels in most.items()}


def tried(compiled: CompiledModel, teaching: Teaching, lesson: Samples) -> Trial:
    """What a model of certain layers learns of most of a lesson, by the rest of it. UsageError as of `learn`."""
    training = compiled.options.training
    names, labels = _taught(compiled, teaching, lesson)
    assert training is not None
    is_held = np.arange(len(labels)) % HELD_OUT == HELD_OUT - 1
    steps = [step for step, held in zip(_steps(names, lesson, labels), is_held, strict=True) if not held]
    exam = [sample for sample, held in zip(lesson.inputs, is_held, strict=True) if held]
    rated = _rated(names, steps, teaching)
    outputs = compiled.simulate([*rated, *exam], measure=False).outputs[len(rated) :]
    ram = compiled.bundle.arena_size + compiled.program.state_size
    return Trial(training.layers, _share(outputs, labels[is_held]), ram)


def best(trials: Sequence[Trial]) -> Trial:
    """The one that knew most; of several, that of the least RAM."""
    return min(trials, key=lambda trial: (-trial.accuracy, trial.ram))


def _taught(compiled: CompiledModel, teaching: Teaching, samples: Samples) -> tuple[Lesson, Array]:
    """What a lesson is made of, and the classes of samples."""
    training, names = compiled.options.training, compiled.bundle.lesson
    if training is None or names is None:
        raise UsageError("--lesson is for models that learn", "no --train", "say what is trained: --train last:1")
    if not names.classes:
        raise UsageError("--lesson teaches classes", f"--loss {training.loss}", "--loss cross-entropy")
    if not 0 < teaching.rate < np.inf:
        raise UsageError("--rate must be a positive number", str(teaching.rate))
    if samples.labels is None or samples.labels.ndim != 1:
        found = "none" if samples.labels is None else str(samples.labels.shape)
        raise UsageError("--lesson and --data must have a class for each sample", found, "add an array `labels`")
    return names, samples.labels


def _steps(names: Lesson, lesson: Samples, labels: Array) -> Calls:
    """The samples with their targets, in order."""
    targets = ({names.target.name: np.asarray([label], np.int32)} for label in labels)
    return [dict(sample) | target for sample, target in zip(lesson.inputs, targets, strict=True)]


def _rated(names: Lesson, steps: Calls, teaching: Teaching) -> Calls:
    """As often as they are shown, with the rate."""
    rate = np.full(names.rate.shape, teaching.rate, np.float32)
    return [dict(step) | {names.rate.name: rate} for _ in range(teaching.epochs) for step in steps]


def _share(outputs: Sequence[Mapping[str, Array]], right: Array) -> float:
    """Of samples whose class was told."""
    scores = [next(iter(o.values())).reshape(-1) for o in outputs]
    return float(np.mean(np.argmax(np.stack(scores), axis=1) == right))


def _examinations(
    outputs: Sequence[Mapping[str, Array]], losses: Sequence[float], labels: Array, parts: Sequence[int]
) -> list[Examination]:
    """Of outputs of an examination, and for each part its steps and another examination; `losses` of all steps."""
    count = len(labels)
    found, at, steps = [Examination(0, _share(outputs[:count], labels), None)], count, 0
    for part in parts:
        loss = float(np.mean(losses[steps : steps + part]))
        steps, at = steps + part, at + part
        found.append(Examination(steps, _share(outputs[at : at + count], labels), loss))
        at += count
    return found
