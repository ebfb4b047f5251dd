# SPDX-License-Identifier: Apache-2.0
"""Simulated on-device training: alternating training steps and evaluations of a trainable model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcugen.codegen.bundle import TrainingArguments
from mcugen.core.errors import UsageError
from mcugen.driver.compiled import CompiledModel
from mcugen.driver.tasks import Teaching
from mcugen.evaluation.samples import Samples
from mcugen.hir.types import Array
from mcugen.quantization.quantize import Progress
from mcugen.reporting.figures import CallFigures, Examination, LearningFigures

NUM_LATER_EVALUATIONS = 5
"""Number of evaluations during a simulated training, after the one before its first step.

There are fewer if there are fewer training steps.
"""


Calls = Sequence[Mapping[str, Array]]
"""The inputs of each call of a model in the simulator, by name, in the order of the calls."""


def simulate_training(
    compiled: CompiledModel,
    plain: CompiledModel,
    teaching: Teaching,
    lesson: Samples,
    exam: Samples,
    progress: Progress,
) -> LearningFigures:
    """Train a model in the simulator with evaluations in between, and measure a training step and an inference.

    Args:
        compiled: The trainable model.
        plain: The same model without training, for the cost of an inference.
        teaching: Learning rate and epochs.
        lesson: Training samples with labels.
        exam: Evaluation samples with labels.
        progress: Receives the number of finished calls of the model.

    Returns:
        The results of the evaluations, and the costs of a training step and of an inference.

    Raises:
        UsageError: If the model's training target is not a class, or labels are missing.
    """
    names, labels = _require_classes(compiled, lesson)
    _, exam_labels = _require_classes(compiled, exam)
    steps = _training_calls(names, _steps(names, lesson, labels), teaching)
    parts = [part for part in np.array_split(np.arange(len(steps)), NUM_LATER_EVALUATIONS) if len(part)]
    exam_calls: Calls = list(exam.inputs)
    calls = list(exam_calls)
    for part in parts:
        calls += [*(steps[i] for i in part), *exam_calls]
    total = len(calls)
    run = compiled.simulate(calls, measure=False, progress=lambda done: progress("learning", done, total))
    step, inference = _figures(compiled, steps[0]), _figures(plain, lesson.inputs[0])
    losses = [float(o[names.loss.name][0]) for o in run.outputs if names.loss.name in o]
    examinations = _examinations(run.outputs, losses, exam_labels, [len(part) for part in parts])
    state, training = compiled.program.state_size, compiled.options.training
    assert training is not None
    return LearningFigures(training.describe(), teaching.rate, examinations, step, inference, state)


def _figures(compiled: CompiledModel, call: Mapping[str, Array]) -> CallFigures:
    """Return the cost of one call."""
    run, program = compiled.simulate([call], cycles=True), compiled.program
    flash = None if run.sizes is None else run.sizes.code + run.sizes.weights
    cycles = None if run.cycles is None else run.cycles.total
    return CallFigures(run.instructions, cycles, run.stack, flash, compiled.bundle.arena_size + program.state_size)


@dataclass(frozen=True)
class TrainingTrial:
    """The result of training one selection of layers, which `--train auto` compares with others.

    Attributes:
        layers: The selection, as `--train` takes it.
        accuracy: Share (0 to 1) of held-out samples with the correct class.
        ram: Bytes of arena and state.
    """

    layers: str
    accuracy: float
    ram: int

    def __str__(self) -> str:
        return f"{self.layers}: {self.accuracy:.1%}, {self.ram:,} bytes"


HELD_OUT_STRIDE = 4
"""Stride of held-out samples: of each HELD_OUT_STRIDE training samples, one evaluates the model trained on the others.
"""


def trial_layer_counts(count: int) -> list[int]:
    """Return the numbers N for which `--train auto` tries to train the last N layers: powers of two up to `count`.

    Args:
        count: Number of trainable layers of the model.
    """
    return [1 << n for n in range(count.bit_length()) if 1 << n <= count]


def trial_selections(count: int) -> list[str]:
    """Return the values of `--train` that `--train auto` tries for a model with `count` trainable layers."""
    every = trial_layer_counts(count)
    longer = every[1:]
    return [
        *(f"last:{n}" for n in every),
        *(f"bias:{n}" for n in longer),
        *(f"last:1,bias:{n}" for n in longer),
        *(f"adapter:2:{n}" for n in every),
    ]


TRAINED_CHANNELS_DIVISOR = 4
"""Divisor of a layer's number of output channels; the quotient is the number of channels that sparse updates train."""
NUM_GRADIENT_SAMPLES = 32
"""Approximate number of training samples whose gradients select the channels that sparse updates train."""
GRADIENT_SUFFIX = ".weights.velocity"
"""End of the name of the state that holds the gradient of a layer's weights after one step of `momentum`."""


def channels_to_train(compiled: CompiledModel, teaching: Teaching, lesson: Samples) -> dict[str, list[int]]:
    """Return the output channels of each layer whose weights have the largest gradients, by the name of the layer.

    Sparse updates train only these channels.

    Args:
        compiled: A model that learns by `momentum`: after one step, its velocity is the gradient.
        teaching: The learning rate.
        lesson: Training samples with labels.

    Returns:
        Sorted channel numbers: of each layer, its number of channels divided by TRAINED_CHANNELS_DIVISOR, at least one.
    """
    names, labels = _require_classes(compiled, lesson)
    known = compiled.graph.lesson
    assert known is not None
    outputs = {
        state.removesuffix(GRADIENT_SUFFIX): o for o, state in known.states.items() if state.endswith(GRADIENT_SUFFIX)
    }
    sizes: dict[str, Array] = {}
    sampled_steps = _steps(names, lesson, labels)[:: max(1, len(labels) // NUM_GRADIENT_SAMPLES)]
    for step in _training_calls(names, sampled_steps, replace(teaching, epochs=1)):
        results = compiled.interpret({**compiled.first_states, **step})
        for layer, output in outputs.items():
            gradient = np.abs(results[output])
            sizes[layer] = sizes.get(layer, 0) + gradient.reshape(len(gradient), -1).sum(1)
    largest = {
        layer: np.argsort(-size, kind="stable")[: max(1, len(size) // TRAINED_CHANNELS_DIVISOR)]
        for layer, size in sizes.items()
    }
    return {layer: sorted(channels.tolist()) for layer, channels in largest.items()}


def try_training(compiled: CompiledModel, teaching: Teaching, lesson: Samples) -> TrainingTrial:
    """Train a model on most of the samples in the simulator, and evaluate it on the held-out samples (HELD_OUT_STRIDE).

    Args:
        compiled: The model, with its choice of trained layers.
        teaching: Learning rate and epochs.
        lesson: Training samples with labels.

    Raises:
        UsageError: If the model's training target is not a class, or labels are missing.
    """
    training = compiled.options.training
    names, labels = _require_classes(compiled, lesson)
    assert training is not None
    held_out_mask = np.arange(len(labels)) % HELD_OUT_STRIDE == HELD_OUT_STRIDE - 1
    steps = [
        step for step, is_held_out in zip(_steps(names, lesson, labels), held_out_mask, strict=True) if not is_held_out
    ]
    exam = [sample for sample, is_held_out in zip(lesson.inputs, held_out_mask, strict=True) if is_held_out]
    rated = _training_calls(names, steps, teaching)
    outputs = compiled.simulate([*rated, *exam], measure=False).outputs[len(rated) :]
    ram = compiled.bundle.arena_size + compiled.program.state_size
    return TrainingTrial(training.layers, _share(outputs, labels[held_out_mask]), ram)


def best_trial(trials: Sequence[TrainingTrial]) -> TrainingTrial:
    """Return the trial of highest accuracy; of trials with equal accuracy, the one with the least RAM."""
    return min(trials, key=lambda trial: (-trial.accuracy, trial.ram))


def _require_classes(compiled: CompiledModel, samples: Samples) -> tuple[TrainingArguments, Array]:
    """Return the ports of a training step and the classes of the samples.

    Raises:
        UsageError: The model does not learn classes, or a sample has none.
    """
    training, names = compiled.options.training, compiled.bundle.lesson
    assert training is not None and names is not None, "checked before the model is compiled"
    if not names.classes:
        raise UsageError("--lesson teaches classes", f"--loss {training.loss}", "--loss cross-entropy")
    if samples.labels is None or samples.labels.ndim != 1:
        shape_text = "none" if samples.labels is None else str(samples.labels.shape)
        raise UsageError("--lesson and --data must have a class for each sample", shape_text, "add an array `labels`")
    return names, samples.labels


def _steps(names: TrainingArguments, lesson: Samples, labels: Array) -> Calls:
    """Return the samples with their targets, in order."""
    targets = ({names.target.name: np.asarray([label], np.int32)} for label in labels)
    return [dict(sample) | target for sample, target in zip(lesson.inputs, targets, strict=True)]


def _training_calls(names: TrainingArguments, steps: Calls, teaching: Teaching) -> Calls:
    """Return the training steps of all epochs, with the learning rate."""
    rate = np.full(names.rate.shape, teaching.rate, np.float32)
    return [dict(step) | {names.rate.name: rate} for _ in range(teaching.epochs) for step in steps]


def _share(outputs: Sequence[Mapping[str, Array]], labels: Array) -> float:
    """Return the share of samples whose class was predicted."""
    scores = [next(iter(o.values())).reshape(-1) for o in outputs]
    return float(np.mean(np.argmax(np.stack(scores), axis=1) == labels))


def _examinations(
    outputs: Sequence[Mapping[str, Array]], losses: Sequence[float], labels: Array, parts: Sequence[int]
) -> list[Examination]:
    """Return the evaluations in the outputs of a run: one, and after each part of the training steps another one.

    `losses` are those of all training steps.
    """
    count = len(labels)
    examinations, at, steps = [Examination(0, _share(outputs[:count], labels), None)], count, 0
    for part in parts:
        loss = float(np.mean(losses[steps : steps + part]))
        steps, at = steps + part, at + part
        examinations.append(Examination(steps, _share(outputs[at : at + count], labels), loss))
        at += count
    return examinations
