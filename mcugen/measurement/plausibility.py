# SPDX-License-Identifier: Apache-2.0
"""`--plausible`: ranges that results must lie in, as told or as samples have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mcugen.codegen.draft import Plausible
from mcugen.core.errors import UsageError
from mcugen.core.options import SAMPLES
from mcugen.driver.compiled import CompiledModel
from mcugen.hir.types import Array, DType
from mcugen.lir.program import Endpoint
from mcugen.reporting.figures import PlausibleRange

MARGIN = 1 / 8
"""Of a range's width, that is added at both ends of what samples have."""

MOST = 64
"""Samples that ranges are taken of."""


def with_plausibility(compiled: CompiledModel, given: Sequence[Mapping[str, Array]]) -> CompiledModel:
    """The same with NAME_check_outputs; `given` are samples of the user's, as the graph's inputs.

    UsageError for unknown outputs, for types and sizes that have no range, and where samples are asked for and missing.
    """
    told, draft = compiled.options.plausible, compiled.draft
    outputs = {e.name: e for e in compiled.program.outputs}
    if compiled.program.symbols:
        raise UsageError("--plausible is for outputs of one size", f"'{compiled.bundle.name}'", "leave it out")
    for name in told:
        if name != SAMPLES and name not in outputs:
            raise UsageError("--plausible must name outputs", f"'{name}'", f"one of: {', '.join(outputs)}")
    if SAMPLES in told and not given:
        raise UsageError("--plausible samples takes ranges of samples", "none", "give --data or --calibration")
    found = _of_samples(compiled, given[:MOST]) if SAMPLES in told else {}
    found |= {name: _as_stored(outputs[name], ends) for name, ends in told.items() if name in outputs}
    ranges = {e.name: found.get(e.name, _all(e)) for e in outputs.values() if _has_range(e)}
    origin = "those of samples, an eighth wider at both ends" if SAMPLES in told else "as they were told"
    reals = [PlausibleRange(name, *_real(outputs[name], ends)) for name, ends in ranges.items()]
    report = replace(compiled.report, plausible=tuple(reals))
    form = replace(draft.form, plausible=Plausible(ranges, origin))
    draft = draft._replace(form=form, report=report.to_json())
    return replace(compiled, report=report, draft=draft)


def _has_range(output: Endpoint) -> bool:
    dtype = output.dtype
    if dtype is DType.BOOL or dtype.nbytes > 4 or dtype is DType.UINT32:
        return False
    return bool(np.prod(output.shape))


def _all(output: Endpoint) -> tuple[float, float]:
    """Of what nothing is known: any number of the type, but no infinite one."""
    return output.dtype.limits if output.dtype.is_integer else _FINITE


_FINITE = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


def _as_stored(output: Endpoint, ends: tuple[float, float]) -> tuple[float, float]:
    if not _has_range(output):
        rule = "--plausible is for floats, and for integers up to 32 bits"
        raise UsageError(rule, f"'{output.name}' is {output.dtype.value}", "leave it out")
    if not output.dtype.is_integer:
        return ends
    scale, zero = (float(output.quant.scale[0]), output.quant.zero_point) if output.quant else (1.0, 0)
    low, high = (float(np.clip(np.rint(end / scale) + zero, *output.dtype.limits)) for end in ends)
    return low, high


def _real(output: Endpoint, ends: tuple[float, float]) -> tuple[float, float]:
    if output.quant is None:
        return float(ends[0]), float(ends[1])
    scale, zero = float(output.quant.scale[0]), output.quant.zero_point
    return (ends[0] - zero) * scale, (ends[1] - zero) * scale


def _of_samples(compiled: CompiledModel, given: Sequence[Mapping[str, Array]]) -> dict[str, tuple[float, float]]:
    """What outputs are, in units as stored, and a margin."""
    found: dict[str, tuple[float, float]] = {}
    for results in _runs(compiled, given):
        for output in filter(_has_range, compiled.program.outputs):
            values = results[output.name].astype(np.float64)
            low, high = found.get(output.name, (np.inf, -np.inf))
            found[output.name] = min(low, float(values.min())), max(high, float(values.max()))
    limits = {e.name: _all(e) for e in compiled.program.outputs if e.name in found}
    wider = {name: (low - MARGIN * (high - low), high + MARGIN * (high - low)) for name, (low, high) in found.items()}
    whole = {e.name for e in compiled.program.outputs if e.dtype.is_integer}
    rounded = {n: (np.floor(low), np.ceil(high)) if n in whole else (low, high) for n, (low, high) in wider.items()}
    return {n: (max(float(a), limits[n][0]), min(float(b), limits[n][1])) for n, (a, b) in rounded.items()}


def _runs(compiled: CompiledModel, given: Sequence[Mapping[str, Array]]) -> Iterator[Mapping[str, Array]]:
    """Samples of a model with states are a sequence."""
    kept = compiled.first_states
    for sample in given:
        results = compiled.interpret({**kept, **sample})
        kept = {target: results[source] for source, target in compiled.options.states.items()}
        yield results
