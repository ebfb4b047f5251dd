# SPDX-License-Identifier: Apache-2.0
"""`--plausible`: ranges of plausible outputs, given by the user or measured on samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mcugen.codegen.draft import PlausibleRanges
from mcugen.core.errors import UsageError
from mcugen.core.options import SAMPLES
from mcugen.driver.compiled import CompiledModel
from mcugen.hir.types import Array, DType
from mcugen.lir.program import Endpoint
from mcugen.reporting.figures import PlausibleRange

RANGE_MARGIN = 1 / 8
"""Margin by which a measured range of outputs is extended at each end, as a share of the range's width."""

MAX_RANGE_SAMPLES = 64
"""Largest number of samples on which the ranges of plausible outputs are measured."""


def with_plausibility(compiled: CompiledModel, samples: Sequence[Mapping[str, Array]]) -> CompiledModel:
    """Return the model with the generated function NAME_check_outputs, which checks outputs against plausible ranges.

    Args:
        compiled: The model, with the requested ranges in its options.
        samples: The user's samples, as inputs of the graph. They determine the ranges that are to be measured.

    Raises:
        UsageError: If an output is unknown, if its type or size cannot be checked, or if required samples are missing.
    """
    requested, draft = compiled.options.plausible, compiled.draft
    outputs = {e.name: e for e in compiled.program.outputs}
    if compiled.program.symbols:
        raise UsageError("--plausible is for outputs of one size", f"'{compiled.bundle.name}'", "leave it out")
    for name in requested:
        if name != SAMPLES and name not in outputs:
            raise UsageError("--plausible must name outputs", f"'{name}'", f"one of: {', '.join(outputs)}")
    if SAMPLES in requested and not samples:
        raise UsageError("--plausible samples takes ranges of samples", "none", "give --data or --calibration")
    ends_by_output = _of_samples(compiled, samples[:MAX_RANGE_SAMPLES]) if SAMPLES in requested else {}
    ends_by_output |= {name: _as_stored(outputs[name], ends) for name, ends in requested.items() if name in outputs}
    ranges = {e.name: ends_by_output.get(e.name, _all(e)) for e in outputs.values() if _has_range(e)}
    origin = "those of samples, an eighth wider at both ends" if SAMPLES in requested else "as they were told"
    reals = [PlausibleRange(name, *_real(outputs[name], ends)) for name, ends in ranges.items()]
    report = replace(compiled.report, plausible=tuple(reals))
    form = replace(draft.form, plausible=PlausibleRanges(ranges, origin))
    draft = draft._replace(form=form, report=report.to_json())
    return replace(compiled, report=report, draft=draft)


def _has_range(output: Endpoint) -> bool:
    dtype = output.dtype
    if dtype is DType.BOOL or dtype.nbytes > 4 or dtype is DType.UINT32:
        return False
    return bool(np.prod(output.shape))


def _all(output: Endpoint) -> tuple[float, float]:
    """Return the range of an output of which nothing is known: all finite numbers of its type."""
    return output.dtype.limits if output.dtype.is_integer else _FINITE


_FINITE = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


def _as_stored(output: Endpoint, ends: tuple[float, float]) -> tuple[float, float]:
    """Return the ends of a range in the units of the stored output, or raise UsageError if its type has no range."""
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


def _of_samples(compiled: CompiledModel, samples: Sequence[Mapping[str, Array]]) -> dict[str, tuple[float, float]]:
    """Return the measured ranges of outputs with a margin, in units as stored."""
    ends_by_output: dict[str, tuple[float, float]] = {}
    for results in _runs(compiled, samples):
        for output in filter(_has_range, compiled.program.outputs):
            values = results[output.name].astype(np.float64)
            low, high = ends_by_output.get(output.name, (np.inf, -np.inf))
            ends_by_output[output.name] = min(low, float(values.min())), max(high, float(values.max()))
    limits = {e.name: _all(e) for e in compiled.program.outputs if e.name in ends_by_output}
    wider = {
        name: (low - RANGE_MARGIN * (high - low), high + RANGE_MARGIN * (high - low))
        for name, (low, high) in ends_by_output.items()
    }
    whole = {e.name for e in compiled.program.outputs if e.dtype.is_integer}
    rounded = {n: (np.floor(low), np.ceil(high)) if n in whole else (low, high) for n, (low, high) in wider.items()}
    return {n: (max(float(a), limits[n][0]), min(float(b), limits[n][1])) for n, (a, b) in rounded.items()}


def _runs(compiled: CompiledModel, samples: Sequence[Mapping[str, Array]]) -> Iterator[Mapping[str, Array]]:
    """Yield the outputs for the samples, which are a sequence if the model has states."""
    states = compiled.first_states
    for sample in samples:
        results = compiled.interpret({**states, **sample})
        states = {target: results[source] for source, target in compiled.options.states.items()}
        yield results
