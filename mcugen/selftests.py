# SPDX-License-Identifier: Apache-2.0
"""`--self-test N`: samples of the self-test that are chosen for what they find, and how much that is.

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
from mcugen.compiled import CompiledModel
from mcugen.errors import UsageError
from mcugen.evaluation.samples import spread
from mcugen.hir.types import Array
from mcugen.kernels.library import references
from mcugen.report.figures import SelfTestFigures, SelfTestLayer, layer_title
from mcugen.simulate.flips import SAME, Flips, run_flips

GIVEN = 8
"""Samples of the user's that are candidates, of all of theirs."""

AMPLITUDES = (1.0, 1.0, 1.0, 0.25, 0.0625)
"""Of random candidates: strong ones saturate what weak ones move."""

MACS = 20_000_000_000
"""That runs with flips may take, which decides how many flips there are within these limits a layer:"""

FLIPS = (8, 48)

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
    report = replace(compiled.report, self_test=figures)
    draft = draft._replace(
        samples=tuple(candidates[i] for i in chosen),
        form=replace(draft.form, self_test=_told(figures, layers[1::2])),
        report=report.to_json(),
    )
    return replace(compiled, report=report, draft=draft)


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
