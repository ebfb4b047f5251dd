# SPDX-License-Identifier: Apache-2.0
"""The samples of the self-test: one of the user's, or with `--self-test N` those that find most.

Without that option the self-test runs on the sample of the user's whose outputs show most: of few samples spread over
all, the one with the most different output values that do not saturate. Random numbers take its place where there are
no samples, and where outputs depend so much on rounding that correct code could fail.

Single bits of constants are flipped, as many in each layer, and the generated code runs on this computer. One half of
the flips chooses the samples, greedily: first the one that finds most, then what finds most of the others. The other
half tells what was chosen. A flip is significant if any candidate notices it.
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
from mcugen.quantization.samples import in_own_order
from mcugen.reporting.figures import SelfTestFigures, SelfTestLayer, layer_title
from mcugen.simulation.flips import SAME, Flips, run_flips

GIVEN = 8
"""Samples of the user's that are candidates, of all of theirs."""

AMPLITUDES = (1.0, 1.0, 1.0, 0.25, 0.0625)
"""Of random candidates: strong ones saturate what weak ones move."""

MACS = 20_000_000_000
"""That runs with flips may take, which decides how many flips there are within these limits a layer:"""

FLIPS = (8, 48)

PERTURBATION = 2.0**-22
"""Relative change of real inputs, of the size of rounding in float32, that outputs must bear."""

BEARABLE = 1 / 4
"""Share of the self-test's tolerance that outputs may change by then."""

VISIBLE = 1e-3
"""Share of the largest real output that another one must have to count: the tolerance is a tenth of that."""

INTERPRETED_MACS = 40_000_000
"""Multiply-accumulates that numpy may take to compute candidates: a large model gets fewer than GIVEN."""

UNSTABLE_INPUT = "random numbers, as outputs of the given samples depend on rounding"
"""What the self-test runs on where none of the user's samples can be compared."""

Matrix = npt.NDArray[np.bool_]
"""Whether a flip (row) is found by a sample (column)."""


def with_selftest(compiled: CompiledModel, given: Sequence[Mapping[str, Array]]) -> CompiledModel:
    """The same, whose self-test has so many samples as its options ask for at most; the report tells what they find.

    `given` are samples of the user's, as the graph's inputs; others are made. UsageError for code whose constants
    cannot be flipped on this computer; ToolMissingError without a compiler.
    """
    most, draft = compiled.options.self_test, compiled.draft
    _require_plain(compiled)
    inputs = [given[i] for i in spread(len(given), GIVEN)]
    candidates = list(_candidates(compiled, inputs))
    bundle = render(draft._replace(samples=tuple(candidates)))
    layers, flips = _flips(bundle, len(candidates), compiled.report.model.macs)
    ended = run_flips(bundle, len(candidates), flips)
    found = np.array([[end != SAME for end in ends] for ends in ended], bool).reshape(len(flips), len(candidates))
    chosen = choose(found[::2], most)
    figures = _figures(compiled, layers[1::2], found[1::2], chosen, sum(i < len(inputs) for i in chosen))
    report = replace(compiled.report, self_test=figures, self_test_input="")
    draft = draft._replace(
        samples=tuple(candidates[i] for i in chosen),
        form=replace(draft.form, self_test=_told(figures, layers[1::2])),
        report=report.to_json(),
    )
    return replace(compiled, report=report, draft=draft)


def may_run_on_given(compiled: CompiledModel) -> bool:
    """Return whether the self-test may run on a sample of the user's: of one size, of a model that does not learn."""
    return not compiled.program.symbols and compiled.options.training is None


def with_given_sample(compiled: CompiledModel, given: Sequence[Mapping[str, Array]], source: str) -> CompiledModel:
    """Return the model with a self-test on one of the user's samples, where there is one that it can run on.

    Args:
        compiled: The model, whose self-test runs on random numbers.
        given: Samples of the user's, as the graph's inputs. The choice does not depend on their order.
        source: The option that they are from.
    """
    if not may_run_on_given(compiled):
        return compiled
    ordered = given if compiled.options.states else in_own_order(given)
    count = int(np.clip(INTERPRETED_MACS // max(compiled.report.model.macs, 1), 1, GIVEN))
    samples = [_given_sample(compiled, ordered[place]) for place in spread(len(ordered), count)]
    candidates = [sample for sample in samples if _is_finite(sample)]
    stable = [sample for sample in candidates if _is_stable(compiled, sample)]
    if not stable:
        return _describe_input(compiled, compiled.draft.samples, UNSTABLE_INPUT) if candidates else compiled
    chosen = max(stable, key=lambda sample: _shown(compiled, sample))
    return _describe_input(compiled, (chosen,), f"a sample of {source}")


def _describe_input(compiled: CompiledModel, samples: tuple[Sample, ...], text: str) -> CompiledModel:
    """Return the model with these samples of the self-test, and what they are in the report and in the header."""
    report = replace(compiled.report, self_test_input=text)
    description = f"runs {text}, on the target and compares."
    form = replace(compiled.draft.form, self_test=description)
    draft = compiled.draft._replace(samples=samples, form=form, report=report.to_json())
    return replace(compiled, report=report, draft=draft)


def _given_sample(compiled: CompiledModel, inputs: Mapping[str, Array]) -> Sample:
    known = references(compiled.graph, compiled.program)
    return golden_sample(compiled.graph, set(compiled.options.states.values()), references=known, given=inputs)


def _is_finite(sample: Sample) -> bool:
    return all(
        np.isfinite(array).all()
        for array in (*sample.inputs.values(), *sample.outputs.values())
        if array.dtype.kind == "f"
    )


def _is_stable(compiled: CompiledModel, sample: Sample) -> bool:
    """Return whether code that rounds differently gives outputs within the tolerance; integers are exact."""
    if not sample.steps:
        return True
    moved = {
        name: np.asarray(a * (1 + PERTURBATION), a.dtype) if a.dtype.kind == "f" else a
        for name, a in sample.inputs.items()
    }
    neighbors = _given_sample(compiled, moved).outputs
    return all(
        _is_close(neighbors[name], expected, sample.tolerance * BEARABLE) for name, expected in sample.outputs.items()
    )


def _is_close(actual: Array, expected: Array, tolerance: float) -> bool:
    """Return whether two outputs agree as the self-test asks; integers must be equal."""
    if expected.dtype.kind != "f":
        return bool(np.array_equal(actual, expected))
    allowed = tolerance * float(np.abs(expected).max(initial=0.0))
    return bool((np.abs(actual.astype(np.float64) - expected) <= allowed).all())


def _shown(compiled: CompiledModel, sample: Sample) -> tuple[int, bytes]:
    """Return how many outputs a fault can change visibly, and what orders samples with as many.

    Of integers these are the different values that do not saturate, of reals those that are not far below the largest.
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
            count += int((array >= VISIBLE * array.max(initial=0.0)).sum())
    return count, b"".join(np.ascontiguousarray(array).tobytes() for array in sample.inputs.values())


def _told(figures: SelfTestFigures, layers: Sequence[int]) -> str:
    """For the header, whose layers have numbers."""
    one = figures.samples == 1
    what = f"{figures.samples} sample{'s' * (not one)}, which find{'s' * one} {figures.coverage}"
    rows = zip(dict.fromkeys(layers), figures.layers, strict=True)
    by_layer = ", ".join(f"{row.found} of {row.significant} ({number})" for number, row in rows)
    return f"runs {what}, on the target and compares. By layer, whose number stands behind, it finds {by_layer}."


def choose(found: Matrix, most: int) -> list[int]:
    """Columns of which each finds most rows that those before it do not; one at least, and none that finds nothing.

    Then each is exchanged for another one as long as together they find more.
    """
    chosen: list[int] = []
    open_ = np.ones(len(found), bool)
    while len(chosen) < most:
        gains = found[open_].sum(0)
        best = int(gains.argmax())
        if chosen and not gains[best]:
            break
        chosen.append(best)
        open_ &= ~found[:, best]
    for place in range(len(chosen)) if len(chosen) > 1 else ():
        others = _any(found[:, chosen[:place] + chosen[place + 1 :]])
        together = (found | others[:, None]).sum(0)
        if together.max() > together[chosen[place]]:
            chosen[place] = int(together.argmax())
    return chosen


def _require_plain(compiled: CompiledModel) -> None:
    options = compiled.options
    reasons = {
        "its weights are a file": options.weights_blob or options.weights_reader,
        "its input comes row by row": options.stream_input,
        "its sizes are known at run time": bool(compiled.program.symbols),
        "it learns": options.training is not None,
        "it calls a library": bool(compiled.bundle.libraries),
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        rule = "--self-test flips constants of the code, which runs on this computer"
        raise UsageError(rule, f"'{compiled.bundle.name}': {reason}", "leave out one of the options")


def _candidates(compiled: CompiledModel, given: Sequence[Mapping[str, Array]]) -> Iterator[Sample]:
    """The user's samples, and made ones."""
    known = references(compiled.graph, compiled.program)
    kept = set(compiled.options.states.values())
    for inputs in given:
        yield golden_sample(compiled.graph, kept, references=known, given=inputs)
    for seed, amplitude in enumerate(AMPLITUDES):
        yield golden_sample(compiled.graph, kept, seed, known, amplitude=amplitude)


def _flips(bundle: Bundle, samples: int, macs: int) -> tuple[list[int], list[Flips]]:
    """Single bits of constants, as many in each layer, by their number of bytes; and the numbers of the layers."""
    arrays: dict[int, list[int]] = {}
    for number, constant in enumerate(bundle.constants):
        arrays.setdefault(constant.layer, []).append(number)
    least, most = FLIPS
    each = min(max(MACS // max(macs * samples * len(arrays), 1), least), most)
    draw = random.Random(0)
    layers, flips = [], []
    for layer, numbers in arrays.items():
        for _ in range(each):
            (array,) = draw.choices(numbers, [bundle.constants[n].nbytes for n in numbers])
            place = draw.randrange(bundle.constants[array].nbytes), 1 << draw.randrange(8)
            flips.append(Flips(((array, *place),)))
            layers.append(layer)
    return layers, flips


def _figures(
    compiled: CompiledModel, layers: Sequence[int], found: Matrix, chosen: Sequence[int], given: int
) -> SelfTestFigures:
    significant, seen = _any(found), _any(found[:, list(chosen)])
    rows = []
    for layer in dict.fromkeys(layers):
        own = np.array(layers) == layer
        known = compiled.report.layers[layer]
        counts = (int(own.sum()), int(significant[own].sum()), int(seen[own].sum()))
        rows.append(SelfTestLayer(layer_title(known.name, known.origin), *counts))
    return SelfTestFigures(len(chosen), given, len(layers), int(significant.sum()), int(seen.sum()), rows)


def _any(found: Matrix) -> Matrix:
    """Whether any sample finds a flip."""
    return np.asarray(found.any(axis=1), bool)
