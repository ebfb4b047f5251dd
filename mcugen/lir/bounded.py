# SPDX-License-Identifier: Apache-2.0
"""One program for a range of sizes, merged from programs for several fixed sizes.

Shapes are fixed in both IRs. A model with a size that is known only at run time is therefore lowered for many values of
that size. The programs may differ in parameters and shapes only; each number that differs becomes a formula of the
size, which is checked at every value. Sizes at which an axis has length 1 or 0 may give simpler programs; the general
program is used for them, too, if all shapes agree with the formulas.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Protocol

import numpy as np

from mcugen.core.errors import McugenError, UnsupportedError
from mcugen.hir.types import Shape
from mcugen.lir.formula import Fitter, Formula, Polynomial, Sizes, Symbol
from mcugen.lir.layer_titles import Titles, titles_of
from mcugen.lir.program import Buffer, Endpoint, Instr, Param, Program, Space

NUM_RANGE_SIZES = 64
"""Largest number of sizes at which a run-time size with a known range is sampled; a range with fewer sizes is sampled
at each of them."""

NUM_TRIED_SIZES = 16
"""Number of values at which each computed size is sampled: a size that the model computes itself, such as a count."""

MAX_EXHAUSTIVE_RANGE = 4096
"""Largest number of sizes in a range that may be sampled one by one, if samples of the range do not suffice to find
formulas."""

MAX_SIZE_SYMBOLS = 32
"""Largest number of run-time sizes of a model, since each of them is sampled at several values."""

MIN_TRIED_SIZES = (10, 72)
"""Smallest number of values at which each run-time size is sampled, in the first and in the second attempt.

If the size's range has fewer values, values beyond the range are sampled too. A formula is accepted only with several
samples that confirm it; one with a rounded division needs samples over several periods of the rounding.
"""

_RUN_TIME = ("params", "formulas", "baked", "operands", "inplace", "overlaps")
_REPORTED = ("name", "reason", "macs", "origin", "note", "op")


class SizedModel(Protocol):
    """A model in which each run-time size has a fixed value, so that it can be lowered like a model of fixed shapes."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Return the shapes of all tensors before optimization, by name."""

    @property
    def outputs(self) -> Mapping[str, Shape]:
        """Return the shapes of the model's outputs before optimization, by the outputs' public names."""

    def lower(self) -> Program:
        """Lower the model to a program of the low-level IR, without a memory plan."""


Build = Callable[[Sizes], SizedModel]
"""Function that returns the model for given run-time sizes."""


def merge_sizes(symbols: Sequence[Symbol], build: Build) -> Program:
    """Return one program that is valid for all values of `symbols`, merged from programs for single values.

    The model is lowered for samples of the sizes. Parameters and shapes that differ between the samples become formulas
    of the sizes.

    Args:
        symbols: The run-time sizes, with their ranges.
        build: Returns the model for given sizes.

    Raises:
        UnsupportedError: The model differs between sizes by more than its parameters and shapes; the message names the
            layer.
    """
    if len(symbols) > MAX_SIZE_SYMBOLS:
        rule = f"a model must have at most {MAX_SIZE_SYMBOLS} sizes that are known at run time only"
        raise UnsupportedError(rule, f"{len(symbols)}", "split the model")
    fewest = len(symbols) * MIN_TRIED_SIZES[0]
    try:
        return _build_bounded(symbols, build, fewest)
    except _NoFormulaError:
        return _build_bounded(symbols, build, len(symbols) * MIN_TRIED_SIZES[1])


class _NoFormulaError(UnsupportedError):
    """Raised if no formula fits; more examples may help."""


def _build_bounded(symbols: Sequence[Symbol], build: Build, fewest: int) -> Program:
    reference, merged = _reference(symbols, build)
    program = merged.lower()
    samples, degenerate = _samples(symbols, reference, merged, program, build)
    for symbol in symbols:
        if not symbol.output:
            samples += _beyond(symbol, samples, build, fewest)
    fitter = Fitter(symbols, [s.sizes for s in samples], reference)
    _check_shapes(fitter, samples, degenerate)
    _merge(program, [s.program for s in samples], fitter)
    _check_without_elements(program, symbols, reference, build)
    program.symbols = list(symbols)
    return program


# -------------------------------------------------------------------------------------------------- sampling


@dataclass(frozen=True)
class _Sample:
    """A program of the reference's structure, for given sizes."""

    sizes: Sizes
    program: Program
    shapes: Mapping[str, Shape]


def _reference(symbols: Sequence[Symbol], build: Build) -> tuple[Sizes, SizedModel]:
    """Return the sizes that determine the structure: the largest ones; for computed sizes larger ones if possible."""
    highest = {s.name: s.high for s in symbols}
    general = {s.name: max(s.high, MIN_TRIED_SIZES[0]) if s.output else s.high for s in symbols}
    if general != highest:
        with suppress(McugenError):
            return general, build(general)
    return highest, _built(build, highest)


def _values(symbol: Symbol, high: int) -> list[int]:
    """Return the sizes to try up to the reference: all, or both ends and some between."""
    low, count = max(symbol.low, 1), NUM_TRIED_SIZES if symbol.output else NUM_RANGE_SIZES
    if high - low < count:
        return list(range(low, high + 1))
    ends = {*range(low, low + count // 4), *range(high - count // 8, high + 1)}
    steps = count - len(ends)
    return sorted(ends | {low + round((high - low) * (i + 1) ** 2 / (steps + 1) ** 2) for i in range(steps)})


def _points(symbols: Sequence[Symbol], reference: Sizes) -> list[dict[str, int]]:
    """Return the sizes to sample: along each symbol with the others at the reference, and some mixtures."""
    lines = [{**reference, s.name: value} for s in symbols for value in _values(s, reference[s.name])]
    small = [[v for v in _values(s, reference[s.name]) if v > 1][: MIN_TRIED_SIZES[0]] or [s.high] for s in symbols]
    mixed = [
        {s.name: small[n][(step * (3 + n) + n) % len(small[n])] for n, s in enumerate(symbols)}
        for step in range(MIN_TRIED_SIZES[0])
    ]
    return list({tuple(p.items()): p for p in [*lines, *mixed]}.values())


def _samples(
    symbols: Sequence[Symbol], reference: Sizes, merged: SizedModel, program: Program, build: Build
) -> tuple[list[_Sample], list[tuple[Sizes, Mapping[str, Shape]]]]:
    """Return the programs to merge, the reference's first, and the shapes of degenerate sizes.

    At degenerate sizes, an axis of length 1 hides the structure, so that their programs cannot be merged.

    Raises:
        UnsupportedError: The programs differ in more than parameters.
    """
    samples = [_Sample(reference, program, merged.shapes)]
    degenerate: list[tuple[Sizes, Mapping[str, Shape]]] = []
    different: dict[int, str] = {}
    first = symbols[0]
    for point in _points(symbols, reference):
        if point == reference:
            continue
        variant = _built(build, point)
        if _is_degenerate(variant.shapes, merged.shapes):
            degenerate.append((point, variant.shapes))
            continue
        other = variant.lower()
        fault = difference(program, other)
        if not fault:
            samples.append(_Sample(point, other, variant.shapes))
        elif not first.output and all(point[s.name] == reference[s.name] for s in symbols[1:]):
            different[point[first.name]] = fault
        else:
            computed = [s.name for s in symbols if s.output and point[s.name] != reference[s.name]]
            raise _refusal(f"{_text(point)}: {fault}", f"end the model at '{computed[0]}'" if computed else "")
    if different:
        value, fault = next(iter(different.items()))
        raise _refusal(f"{first.name}={value}: {fault}", _remedy(first, different, samples))
    return samples, degenerate


def _built(build: Build, point: Sizes) -> SizedModel:
    try:
        return build(point)
    except McugenError as error:
        fault = f"with {_text(point)}: {error.rule}. {error.found}"
        raise type(error)("the model must be valid for every size of the range", fault, error.remedy) from error


def _beyond(symbol: Symbol, samples: Sequence[_Sample], build: Build, fewest: int) -> list[_Sample]:
    """Return samples of sizes above a short range, which confirm formulas, as far as the model allows such sizes."""
    first, samples_beyond = samples[0], []
    for value in range(symbol.high + 1, symbol.high + 1 + max(fewest - len(samples), 0)):
        sizes = {**first.sizes, symbol.name: value}
        try:
            variant = build(sizes)
            other = variant.lower()
        except McugenError:
            break
        if not difference(first.program, other):
            samples_beyond.append(_Sample(sizes, other, variant.shapes))
    return samples_beyond


def _is_degenerate(shapes: Mapping[str, Shape], general: Mapping[str, Shape]) -> bool:
    """Return whether any axis has length 1 or 0 that is longer in the general shapes."""
    both = ((shape, general[name]) for name, shape in shapes.items() if name in general)
    return any(
        len(shape) == len(other) and any(n < 2 <= m for n, m in zip(shape, other, strict=True)) for shape, other in both
    )


def _remedy(symbol: Symbol, different: Mapping[int, str], samples: Sequence[_Sample]) -> str:
    """Return the hint. If only small sizes differ, the range may begin above them."""
    alike = [s.sizes[symbol.name] for s in samples]
    above = max(different) + 1
    if above < symbol.high and min(alike) <= above and all(v < min(a for a in alike if a > 1) for v in different):
        return (
            f"fix the dimension (--dim {symbol.name}=SIZE), or begin at {above}: {symbol.name}={above}..{symbol.high}"
        )
    return f"fix the dimension: --dim {symbol.name}=SIZE"


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name}={value}" for name, value in sizes.items())


_RULE = "a model must be the same for all sizes of a range, but for its shapes"
_REMEDY = "fix the dimension with --dim NAME=SIZE"


def _refusal(fault: str, remedy: str = "") -> UnsupportedError:
    return UnsupportedError(_RULE, fault, remedy or _REMEDY)


def _no_formula(fault: str) -> _NoFormulaError:
    return _NoFormulaError(_RULE, fault, _REMEDY)


# ------------------------------------------------------------------------------------------------ comparison


def difference(program: Program, other: Program) -> str:
    """Describe the first difference between two programs, except in values of parameters and in shapes.

    Returns:
        A phrase for an error message; "" if the programs differ in nothing else.
    """
    titles = titles_of(program)
    if len(program.instrs) != len(other.instrs) or [i.kernel for i in program.instrs] != [
        i.kernel for i in other.instrs
    ]:
        pairs = zip(program.instrs, other.instrs, strict=False)
        layer = next((a for a, b in pairs if (a.kernel, a.variant) != (b.kernel, b.variant)), None)
        where = _label(titles, layer) if layer else "the number of layers"
        return f"other kernels are needed from {where} on"
    partners: dict[Buffer, Buffer] = {}
    for a, b in zip(program.instrs, other.instrs, strict=True):
        mismatch = _instr_difference(a, b) or _operand_difference(a, b, partners)
        if mismatch:
            return f"{_label(titles, a)}: {mismatch}"
    for side in ("inputs", "outputs", "states"):
        mismatch = _endpoint_difference(getattr(program, side), getattr(other, side), partners)
        if mismatch:
            return mismatch
    return ""


def _label(titles: Titles, instr: Instr) -> str:
    return f"layer '{titles[instr.name]}' ({instr.kernel})"


def _instr_difference(a: Instr, b: Instr) -> str:
    if list(a.params) != list(b.params) or a.baked != b.baked:
        return "it has other parameters"
    for field in fields(Instr):
        if field.name not in _RUN_TIME + _REPORTED:
            mine, theirs = (_comparable(getattr(i, field.name)) for i in (a, b))
            if mine != theirs:
                return f"its {field.name} differs"
    types = [type(v) is type(b.params[k]) for k, v in a.params.items()]
    return "" if all(types) else "it has other parameters"


def _comparable(value: object) -> object:
    return json.dumps(dict(value), sort_keys=True, default=str) if isinstance(value, Mapping) else value


def _operand_difference(a: Instr, b: Instr, partners: dict[Buffer, Buffer]) -> str:
    if [(o.role, o.access) for o in a.operands] != [(o.role, o.access) for o in b.operands]:
        return "it has other operands"
    for mine, theirs in zip(a.operands, b.operands, strict=True):
        mismatch = _buffer_difference(mine.buffer, theirs.buffer, partners)
        if mismatch:
            return f"operand '{mine.role}' {mismatch}"
    return ""


def _endpoint_difference(mine: Sequence[Endpoint], theirs: Sequence[Endpoint], partners: dict[Buffer, Buffer]) -> str:
    for a, b in zip(mine, theirs, strict=True):
        place = f"'{a.name}'"
        if (a.name, a.dtype, a.quant, len(a.shape)) != (b.name, b.dtype, b.quant, len(b.shape)):
            return f"{place} has another type or rank"
        if a.buffer.space is Space.STATE and a.shape != b.shape:
            return f"{place}: state must have a fixed shape"
        mismatch = _buffer_difference(a.buffer, b.buffer, partners)
        if mismatch:
            return f"{place} {mismatch}"
    return ""


def _buffer_difference(a: Buffer, b: Buffer, partners: dict[Buffer, Buffer]) -> str:
    """Return the difference of two buffers, in words; "" if they correspond.

    Buffers must correspond one to one. A constant may be the beginning of a longer constant.
    """
    if (a.dtype, a.space) != (b.dtype, b.space):
        return "has another type"
    if a.data is not None and b.data is not None:
        short, long = sorted((a.data.reshape(-1), b.data.reshape(-1)), key=len)
        same = a.data is b.data or (
            len(short) and short.tobytes() == np.ascontiguousarray(long[: len(short)]).tobytes()
        )
        return "" if same and a.count >= b.count else f"'{a.name}' is a constant that depends on the size"
    if partners.setdefault(a, b) is not b:
        return "is another tensor"
    return ""


def _check_shapes(
    fitter: Fitter, samples: Sequence[_Sample], degenerate: Sequence[tuple[Sizes, Mapping[str, Shape]]]
) -> None:
    """Check that shapes follow the general formulas where axes of length 1 hide the structure."""
    general = samples[0].shapes
    for point, shapes in degenerate:
        for name, shape in shapes.items():
            rows = [s.shapes.get(name, ()) for s in samples]
            if name not in general or len({len(row) for row in rows}) != 1:
                continue
            formulas = [fitter.fit([row[axis] for row in rows]) for axis in range(len(general[name]))]
            expected = [f.at(point) if isinstance(f, Polynomial) else None for f in formulas]
            if len(shape) != len(expected) or any(e not in (None, n) for e, n in zip(expected, shape, strict=True)):
                expected_text = f"by the other sizes it should be {tuple(expected)}"
                raise _refusal(f"with {_text(point)} tensor '{name}' is {shape}, {expected_text}")


def _check_without_elements(program: Program, symbols: Sequence[Symbol], reference: Sizes, build: Build) -> None:
    """Check that outputs follow the formulas for a size of 0, which is never lowered, if ONNX defines them."""
    for symbol in symbols:
        point = {**reference, symbol.name: 0}
        outputs: Mapping[str, Shape] = {}
        if not symbol.low:
            with warnings.catch_warnings(), suppress(McugenError):  # A maximum of no elements may be undefined.
                warnings.simplefilter("ignore", RuntimeWarning)
                outputs = build(point).outputs
                point |= {
                    s.name: 0 for s in symbols if s.output and s.output not in outputs
                }  # These have no outputs either.
        for endpoint in program.outputs:
            shape = endpoint.shape_at(point)
            computed_shape = outputs.get(endpoint.name, shape)
            if computed_shape != shape:
                expected_text = f"by the other sizes it should be {shape}"
                message = f"with {_text(point)} output '{endpoint.name}' is {computed_shape}, {expected_text}"
                raise _refusal(message, f"end the model at '{symbol.name}'")


# --------------------------------------------------------------------------------------------------- merging


def _merge(program: Program, programs: Sequence[Program], fitter: Fitter) -> None:
    """Turn `program`, the first of `programs`, into the program for all sizes."""
    corners = _extreme_sizes(fitter.symbols)
    counts, titles = _merge_buffers(programs, fitter, corners), titles_of(program)
    for index, instr in enumerate(program.instrs):
        _merge_instr(instr, _label(titles, instr), [p.instrs[index] for p in programs], fitter, counts, corners)
    for side in (program.inputs, program.outputs):
        name = "inputs" if side is program.inputs else "outputs"
        for number, endpoint in enumerate(side):
            side[number] = _merged_endpoint(endpoint, [getattr(p, name)[number] for p in programs], fitter)


def _extreme_sizes(symbols: Sequence[Symbol]) -> list[dict[str, int]]:
    """Return sizes that include the extremes of every formula: ranges of each symbol, and the corners of a few."""
    highest = {s.name: s.high for s in symbols}
    some = symbols[:4]
    corners = [
        highest | dict(zip([s.name for s in some], values, strict=True))
        for values in product(*((s.low, s.high) for s in some))
    ]
    ends = {s.name: sorted({*range(s.low, min(s.low + MAX_EXHAUSTIVE_RANGE, s.high + 1)), s.high}) for s in symbols}
    return corners + [{**highest, name: value} for name, values in ends.items() for value in values]


def _merge_buffers(programs: Sequence[Program], fitter: Fitter, corners: Sequence[Sizes]) -> dict[Buffer, Formula]:
    """Give each buffer of the first program its largest number of elements; return the formulas of these numbers."""
    formulas: dict[Buffer, Formula] = {}
    for buffer, *other_buffers in zip(*map(_in_order, programs), strict=True):
        row = [buffer.count, *(other.count for other in other_buffers)]
        if len(set(row)) == 1:
            continue
        formula = fitter.fit(row)
        if formula is None:
            raise _no_formula(f"the size of '{buffer.name}' follows no formula: {row[:8]}")
        formulas[buffer] = formula
        _require_no_negative(f"the size of '{buffer.name}'", formula, row, corners)
        buffer.count = max(int(formula.at(sizes)) for sizes in corners)
    return formulas


def _in_order(program: Program) -> list[Buffer]:
    """Return the buffers in the order of their use, which is the same in all programs."""
    used = [e.buffer for e in (*program.states, *program.inputs)]
    used += [o.buffer for i in program.instrs for o in i.operands]
    return list(dict.fromkeys(b for b in used if b.planned or b.space.is_callers))


def _require_no_negative(what: str, formula: Formula, values: Sequence[Param], corners: Sequence[Sizes]) -> None:
    """Check that a number that was never negative where tried is nowhere negative: it may be a length or an index."""
    if isinstance(formula, Polynomial) and min(values) >= 0:
        below = next((sizes for sizes in corners if formula.at(sizes) < 0), None)
        if below is not None:
            raise _refusal(f"with {_text(below)} {what} would be {formula.at(below)}")


def _merge_instr(
    instr: Instr,
    label: str,
    variants: Sequence[Instr],
    fitter: Fitter,
    counts: Mapping[Buffer, Formula],
    corners: Sequence[Sizes],
) -> None:
    formulas: dict[str, Formula] = {}
    params = dict(instr.params)
    for key in instr.params:
        values = [v.params[key] for v in variants]
        if all(_is_same(value, values[0]) for value in values):
            continue
        formula = fitter.fit(values)
        if formula is None:
            raise _no_formula(f"{label}: parameter '{key}' follows no formula: {values[:8]}")
        _require_no_negative(f"parameter '{key}' of {label}", formula, values, corners)
        formulas[key] = formula
        params[key] = max(values, key=abs)  # The largest magnitude decides the C type.
    instr.params, instr.formulas = params, formulas
    instr.baked = instr.baked - set(formulas)
    if any(v.overlaps != instr.overlaps for v in variants):
        instr.overlaps = ()  # The distance would depend on the size.
    if formulas:
        everywhere = [pair for pair in instr.inplace if all(pair in v.inplace for v in variants)]
        instr.inplace = tuple(pair for pair in everywhere if _stay_alike(instr, pair, counts))
        instr.overlaps = ()  # Leads follow no formula in general.


def _is_same(a: Param, b: Param) -> bool:
    return a == b or (a != a and b != b)


def _stay_alike(instr: Instr, pair: tuple[str, str], counts: Mapping[Buffer, Formula]) -> bool:
    """Return whether output and input have equal element counts at every size, so that one may overwrite the other."""
    first, second = (instr.operand(role).buffer for role in pair)
    return counts.get(first) == counts.get(second) and first.count == second.count


def _merged_endpoint(endpoint: Endpoint, variants: Sequence[Endpoint], fitter: Fitter) -> Endpoint:
    sizes: dict[int, Polynomial] = {}
    shape = list(endpoint.shape)
    for axis in range(len(shape)):
        row = [v.shape[axis] for v in variants]
        if len(set(row)) > 1:
            formula = fitter.fit(row)
            if not isinstance(formula, Polynomial):
                raise _no_formula(f"axis {axis} of '{endpoint.name}' follows no formula: {row[:8]}")
            sizes[axis] = formula
            shape[axis] = formula.at({s.name: s.high for s in fitter.symbols})
    return replace(endpoint, shape=tuple(shape), sizes=sizes)
