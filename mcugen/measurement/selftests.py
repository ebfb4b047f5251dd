# SPDX-License-Identifier: Apache-2.0
"""Samples of the self-test: one of the user's samples or, with `--self-test N`, those that detect most faults.

Without the option, the self-test uses one of a few of the user's samples: the one with the most different output values
that do not saturate. A random sample is used if there are no samples, or if outputs depend so much on rounding that
correct code could fail.

With the option, single bits of constants are flipped, equally many in each layer, and the generated code runs on this
computer. One half of the flips is used to choose samples greedily: each next sample detects most of the flips that are
not detected yet. The other half is used to measure the coverage of the chosen samples. A flip is significant if any
candidate sample detects it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mcugen.codegen.bundle import Bundle
from mcugen.codegen.draft import Sample
from mcugen.codegen.golden import golden_sample
from mcugen.codegen.render import render
from mcugen.core.errors import UsageError
from mcugen.driver.compiled import CompiledModel
from mcugen.evaluation.samples import spread
from mcugen.hir.types import Array
from mcugen.kernels.common.library import references
from mcugen.quantization.samples import sort_samples
from mcugen.reporting.figures import SelfTestFigures, SelfTestLayer
from mcugen.simulation.flips import SAME, Flips, run_flips

MAX_USER_SAMPLES = 8
"""Largest number of the user's samples from which the self-test's samples are chosen."""

CANDIDATE_AMPLITUDES = (1.0, 1.0, 1.0, 0.25, 0.0625)
"""Amplitudes of random candidate samples, relative to the input's range; small ones avoid saturation."""

MAX_FLIP_MACS = 20_000_000_000
"""Largest number of multiply-accumulates of all runs with flipped bits together.

It determines the number of flips per layer, within FLIPS_PER_LAYER.
"""

FLIPS_PER_LAYER = (8, 48)
"""Smallest and largest number of bits that are flipped in the constants of a layer, one at a time.

The flips measure which faults the self-test detects.
"""

PERTURBATION = 2.0**-22
"""Relative change of float inputs, as large as float32 rounding, by which the stability of outputs is tested."""

MAX_PERTURBED_CHANGE = 1 / 4
"""Largest change of the outputs of a self-test sample under PERTURBATION, as a share of the self-test's tolerance."""

MIN_VISIBLE_SHARE = 1e-3
"""Smallest magnitude of a float output, as a share of the largest output, whose changes the self-test can detect.

The tolerance of the self-test is a tenth of that magnitude.
"""

MAX_INTERPRETED_MACS = 40_000_000
"""Largest number of multiply-accumulates that numpy may take to compute all candidate samples of a self-test.

Large models get fewer candidates than MAX_USER_SAMPLES.
"""

UNSTABLE_INPUT = "random numbers, as outputs of the given samples depend on rounding"
"""Description of the self-test's input in the header if the outputs of all user samples change under PERTURBATION."""

DetectionMatrix = npt.NDArray[np.bool_]
"""A bool matrix [flips, samples]: whether flipping a bit of a constant changes the model's outputs for a sample."""


def with_selftest(compiled: CompiledModel, user_samples: Sequence[Mapping[str, Array]]) -> CompiledModel:
    """Return the model with a self-test on samples that detect most faults, and the self-test's coverage in the report.

    Faults are bits of the code's constants that are flipped.

    Args:
        compiled: The model.
        user_samples: Samples of the user's, as inputs of the graph; further candidates are generated.

    Raises:
        UsageError: If constants of the code cannot be flipped on this computer.
        ToolMissingError: If there is no compiler.
    """
    max_samples, draft = compiled.options.self_test, compiled.draft
    _require_plain(compiled)
    inputs = [user_samples[i] for i in spread(len(user_samples), MAX_USER_SAMPLES)]
    candidates = list(_candidates(compiled, inputs))
    bundle = render(draft._replace(samples=tuple(candidates)))
    layers, flips = _flips(bundle, len(candidates), compiled.report.model.macs)
    ended = run_flips(bundle, len(candidates), flips)
    detected = np.array([[end != SAME for end in ends] for ends in ended], bool).reshape(len(flips), len(candidates))
    chosen = choose_samples(detected[::2], max_samples)
    figures = _figures(compiled, layers[1::2], detected[1::2], chosen, sum(i < len(inputs) for i in chosen))
    report = replace(compiled.report, self_test=figures, self_test_input="")
    draft = draft._replace(
        samples=tuple(candidates[i] for i in chosen),
        form=replace(draft.form, self_test=_describe_found(figures, layers[1::2])),
        report=report.to_json(),
    )
    return replace(compiled, report=report, draft=draft)


def can_use_user_sample(compiled: CompiledModel) -> bool:
    """Return whether the self-test can use a user's sample: the model has no run-time sizes and is not trainable."""
    return not compiled.program.symbols and compiled.options.training is None


def use_user_sample(compiled: CompiledModel, user_samples: Sequence[Mapping[str, Array]], source: str) -> CompiledModel:
    """Return the model with a self-test on one of the user's samples; the model is unchanged if none can be used.

    Args:
        compiled: The model, whose self-test runs on random numbers.
        user_samples: Samples of the user's, as inputs of the graph. The choice does not depend on their order.
        source: Name of the option by which the user gave the samples, for the header.
    """
    if not can_use_user_sample(compiled):
        return compiled
    ordered = user_samples if compiled.options.states else sort_samples(user_samples)
    count = int(np.clip(MAX_INTERPRETED_MACS // max(compiled.report.model.macs, 1), 1, MAX_USER_SAMPLES))
    samples = [_user_sample(compiled, ordered[place]) for place in spread(len(ordered), count)]
    candidates = [sample for sample in samples if _is_finite(sample)]
    stable = [sample for sample in candidates if _is_stable(compiled, sample)]
    if not stable:
        return _describe_input(compiled, compiled.draft.samples, UNSTABLE_INPUT) if candidates else compiled
    chosen = max(stable, key=lambda sample: _shown(compiled, sample))
    return _describe_input(compiled, (chosen,), f"a sample of {source}")


def _describe_input(compiled: CompiledModel, samples: tuple[Sample, ...], text: str) -> CompiledModel:
    """Return the model with these samples of the self-test, and their description in the report and the header."""
    report = replace(compiled.report, self_test_input=text)
    description = f"runs {text}, on the target and compares."
    form = replace(compiled.draft.form, self_test=description)
    draft = compiled.draft._replace(samples=samples, form=form, report=report.to_json())
    return replace(compiled, report=report, draft=draft)


def _user_sample(compiled: CompiledModel, inputs: Mapping[str, Array]) -> Sample:
    known = references(compiled.graph, compiled.program)
    return golden_sample(compiled.graph, set(compiled.options.states.values()), references=known, fixed_inputs=inputs)


def _is_finite(sample: Sample) -> bool:
    return all(
        np.isfinite(array).all()
        for array in (*sample.inputs.values(), *sample.outputs.values())
        if array.dtype.kind == "f"
    )


def _is_stable(compiled: CompiledModel, sample: Sample) -> bool:
    """Return whether outputs stay within the tolerance if the inputs change by a rounding error; integers are exact."""
    if not sample.steps:
        return True
    moved = {
        name: np.asarray(a * (1 + PERTURBATION), a.dtype) if a.dtype.kind == "f" else a
        for name, a in sample.inputs.items()
    }
    neighbors = _user_sample(compiled, moved).outputs
    return all(
        _is_close(neighbors[name], expected, sample.tolerance * MAX_PERTURBED_CHANGE)
        for name, expected in sample.outputs.items()
    )


def _is_close(actual: Array, expected: Array, tolerance: float) -> bool:
    """Return whether two outputs agree within the self-test's tolerance; integers must be equal."""
    if expected.dtype.kind != "f":
        return bool(np.array_equal(actual, expected))
    allowed = tolerance * float(np.abs(expected).max(initial=0.0))
    return bool((np.abs(actual.astype(np.float64) - expected) <= allowed).all())


def _shown(compiled: CompiledModel, sample: Sample) -> tuple[int, bytes]:
    """Return how many outputs a fault can change visibly, and a key to order samples of equal counts.

    For integers, different values that do not saturate count. For reals, values count that are not far below the
    largest.
    """
    count = 0
    for output in compiled.program.outputs:
        if output.dtype.is_integer:
            values = np.unique(sample.outputs[output.name])
            low, high = output.dtype.limits
            values = values[(values > low) & (values < high)]
            count += len(values)
        elif output.dtype.is_float:
            array = np.abs(sample.outputs[output.name].astype(np.float64))
            count += int((array >= MIN_VISIBLE_SHARE * array.max(initial=0.0)).sum())
    return count, b"".join(np.ascontiguousarray(array).tobytes() for array in sample.inputs.values())


def _describe_found(figures: SelfTestFigures, layers: Sequence[int]) -> str:
    """Return the description for the header, which names layers by their numbers."""
    one = figures.samples == 1
    samples_text = f"{figures.samples} sample{'s' * (not one)}, which find{'s' * one} {figures.coverage}"
    rows = zip(dict.fromkeys(layers), figures.layers, strict=True)
    by_layer = ", ".join(f"{row.found} of {row.significant} ({number})" for number, row in rows)
    return (
        f"runs {samples_text}, on the target and compares. By layer, whose number stands behind, it finds {by_layer}."
    )


def choose_samples(detected: DetectionMatrix, max_samples: int) -> list[int]:
    """Choose samples that together detect most flipped bits, and return their indices.

    Samples are chosen one by one, each time the one that detects most of the flips not detected so far. Then samples
    are exchanged for others while this increases the number of detected flips.

    Args:
        detected: For each flipped bit and each sample, whether the flip changes the model's outputs: bool [flips,
            samples].
        max_samples: Largest number of samples. Fewer are chosen, but at least one, if more would detect nothing new.
    """
    chosen: list[int] = []
    undetected = np.ones(len(detected), bool)
    while len(chosen) < max_samples:
        gains = detected[undetected].sum(0)
        best = int(gains.argmax())
        if chosen and not gains[best]:
            break
        chosen.append(best)
        undetected &= ~detected[:, best]
    for place in range(len(chosen)) if len(chosen) > 1 else ():
        detected_by_others = _any(detected[:, chosen[:place] + chosen[place + 1 :]])
        joint_counts = (detected | detected_by_others[:, None]).sum(0)
        if joint_counts.max() > joint_counts[chosen[place]]:
            chosen[place] = int(joint_counts.argmax())
    return chosen


def _require_plain(compiled: CompiledModel) -> None:
    """Raise UsageError if constants of the code cannot be flipped on this computer."""
    reasons = {
        "its sizes are known at run time": bool(compiled.program.symbols),
        "it calls a library": bool(compiled.bundle.libraries),
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        rule = "--self-test flips constants of the code, which runs on this computer"
        raise UsageError(rule, f"'{compiled.bundle.name}': {reason}", "leave out one of the options")


def _candidates(compiled: CompiledModel, user_samples: Sequence[Mapping[str, Array]]) -> Iterator[Sample]:
    """Yield the user's samples, then random ones."""
    known = references(compiled.graph, compiled.program)
    state_inputs = set(compiled.options.states.values())
    for inputs in user_samples:
        yield golden_sample(compiled.graph, state_inputs, references=known, fixed_inputs=inputs)
    for seed, amplitude in enumerate(CANDIDATE_AMPLITUDES):
        yield golden_sample(compiled.graph, state_inputs, seed, known, amplitude=amplitude)


def _flips(bundle: Bundle, samples: int, macs: int) -> tuple[list[int], list[Flips]]:
    """Return single bit flips, equally many in each layer, and the layer of each flip.

    An array is drawn by its size in bytes.
    """
    arrays: dict[int, list[int]] = {}
    for number, constant in enumerate(bundle.constants):
        arrays.setdefault(constant.layer, []).append(number)
    fewest, most_flips = FLIPS_PER_LAYER
    count = min(max(MAX_FLIP_MACS // max(macs * samples * len(arrays), 1), fewest), most_flips)
    draw = random.Random(0)
    layers, flips = [], []
    for layer, numbers in arrays.items():
        for _ in range(count):
            (array,) = draw.choices(numbers, [bundle.constants[n].nbytes for n in numbers])
            place = draw.randrange(bundle.constants[array].nbytes), 1 << draw.randrange(8)
            flips.append(Flips(((array, *place),)))
            layers.append(layer)
    return layers, flips


def _figures(
    compiled: CompiledModel,
    layers: Sequence[int],
    detected: DetectionMatrix,
    chosen: Sequence[int],
    num_user_samples: int,
) -> SelfTestFigures:
    """Return the coverage of the chosen samples by layer, measured on flips that were not used to choose them."""
    significant, seen = _any(detected), _any(detected[:, list(chosen)])
    rows = []
    for layer in dict.fromkeys(layers):
        own = np.array(layers) == layer
        known = compiled.report.layers[layer]
        counts = (int(own.sum()), int(significant[own].sum()), int(seen[own].sum()))
        rows.append(SelfTestLayer(known.name, *counts))
    return SelfTestFigures(len(chosen), num_user_samples, len(layers), int(significant.sum()), int(seen.sum()), rows)


def _any(detected: DetectionMatrix) -> DetectionMatrix:
    """Return whether any sample detects a flip."""
    return np.asarray(detected.any(axis=1), bool)
