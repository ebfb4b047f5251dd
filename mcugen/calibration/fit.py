# SPDX-License-Identifier: Apache-2.0
"""Fit of a board's core factor and wait states to measured cycles.

The cycles of a layer are those of the core times a factor, plus the stall cycles of each memory. Weighted least squares
over the layers give a factor for each of these terms. Integer wait states and bus overheads follow from the factors,
and the layers are estimated again with them, until nothing changes. Terms that the layers cannot distinguish are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from mcugen.core.board import Board, Memory, ParallelTiming, SerialTiming
from mcugen.core.errors import UsageError

_ROUNDS, _STEPS, _SWEEPS = 3, 6, 400
"""Largest numbers of rounds, of steps in one direction, and of sweeps of the least-squares fit."""
_FACTORS = (0.5, 2.0)
"""Range of the core factor: timing rules that are further off cannot be corrected by a factor."""
_WAITS = (0.0, 8.0)
"""Range of the factor of a memory's stall cycles."""
_MAX_OVERHEAD_CLOCKS = 255
"""Largest number of wait states, or of overhead clocks of a serial bus."""
_LIKELY = (0.25, 4.0)
"""Allowed ratio of measured to estimated cycles of all layers; beyond it, something else was measured."""
_SMALL = 0.01
"""Share of a run below which layers count less: hooks and the clock blur them."""
_ALIKE = 30.0
"""Condition number from which on the layers do not tell the terms apart."""


@dataclass(frozen=True)
class MeasuredLayer:
    """A layer of a measured run on a board.

    Attributes:
        model: Name of the model.
        name: Name of the layer.
        cycles: Measured CPU cycles of the layer.
        share: Measured cycles of the layer divided by those of the whole run, from 0 to 1.
    """

    model: str
    name: str
    cycles: int
    share: float


@dataclass(frozen=True)
class Estimate:
    """The cycles that the simulator estimates for a layer, in parts.

    Attributes:
        core: Cycles of the core without stalls.
        waits: Stall cycles by name of the memory that causes them.
    """

    core: int
    waits: Mapping[str, int]

    def cycles(self, factor: float) -> float:
        """Return the estimated cycles of the layer: the core's cycles times `factor`, plus all stall cycles."""
        return self.core * factor + sum(self.waits.values())


Estimator = Callable[[Board], Sequence[Estimate]]
"""A function that estimates the measured layers, in order, on a board whose core factor is 1."""


@dataclass(frozen=True)
class Residual:
    """The error of a layer's estimated cycles before and after calibration.

    Attributes:
        layer: The measured layer.
        before: Estimated minus measured cycles before the calibration, as a share of the measured cycles.
        after: The same error after the calibration.
    """

    layer: MeasuredLayer
    before: float
    after: float


@dataclass(frozen=True)
class Calibration:
    """The result of fitting a board's timing to measured cycles.

    Attributes:
        board: The board with the fitted core factor (measured cycles of the CPU core divided by estimated ones) and
            memory timing.
        residuals: The error of each layer's estimate before and after the calibration.
        kept: Names of the memories whose timing stays as it was, because the layers do not show its effect separately.
    """

    board: Board
    residuals: tuple[Residual, ...]
    kept: tuple[str, ...]

    @property
    def before(self) -> float:
        """Return the root mean square, over all layers, of the estimates' relative errors before the calibration."""
        return _rms([r.before for r in self.residuals])

    @property
    def after(self) -> float:
        """Return the root mean square, over all layers, of the estimates' relative errors after the calibration."""
        return _rms([r.after for r in self.residuals])


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def calibrate(board: Board, layers: Sequence[MeasuredLayer], estimator: Estimator) -> Calibration:
    """Fit a board's core factor and memory timing to the measured cycles of layers.

    Args:
        board: The board with its present figures.
        layers: The measured layers.
        estimator: Estimates the same layers, in the same order, on a changed board.

    Raises:
        UsageError: There are too few layers, or they differ from the estimates by more than calibration allows.
    """
    first = estimator(replace(board, core_factor=1.0))
    _check(layers, first, board)
    terms, kept = _told_apart(layers, first)
    if len(layers) <= len(terms) + 1:
        rule = f"runs must have more layers than what is fitted: {', '.join(['the core', *terms])}"
        raise UsageError(rule, f"{len(layers)} layers", "run more models, or larger ones")
    best = _climbed(_jumped(_Trial.of(board, layers, first), layers, estimator, terms), layers, estimator, terms)
    residuals = [
        Residual(layer, _share(layer, a.cycles(board.core_factor)), _share(layer, b.cycles(best.board.core_factor)))
        for layer, a, b in zip(layers, first, best.estimates, strict=True)
    ]
    return Calibration(best.board, tuple(residuals), kept)


@dataclass(frozen=True)
class _Trial:
    """A board that could be the one, and the sum of squares that is to be least."""

    board: Board
    estimates: Sequence[Estimate]
    off: float

    @classmethod
    def of(cls, board: Board, layers: Sequence[MeasuredLayer], estimates: Sequence[Estimate]) -> _Trial:
        """Return the trial with the best core factor, to a thousandth, for stalls as estimated."""
        factor = round(_fit(layers, estimates, ())[0], 3)
        errors = np.array([e.cycles(factor) - layer.cycles for layer, e in zip(layers, estimates, strict=True)])
        off = float(np.sum(np.square(errors * _weights(layers))))
        return cls(replace(board, core_factor=factor), estimates, off)

    @classmethod
    def at(cls, board: Board, layers: Sequence[MeasuredLayer], estimator: Estimator) -> _Trial:
        """Return the trial with new estimates for the board."""
        return cls.of(board, layers, estimator(replace(board, core_factor=1.0)))


def _jumped(best: _Trial, layers: Sequence[MeasuredLayer], estimator: Estimator, terms: Sequence[str]) -> _Trial:
    """Move to where least squares lead, as if stalls were proportional to wait states."""
    last = best
    for _ in range(_ROUNDS):
        corrected = _with_waits(last.board, _fit(layers, last.estimates, terms)[1])
        if corrected == last.board:
            break
        last = _Trial.at(corrected, layers, estimator)
        best = min(best, last, key=lambda trial: trial.off)
    return best


def _climbed(best: _Trial, layers: Sequence[MeasuredLayer], estimator: Estimator, terms: Sequence[str]) -> _Trial:
    """Return the best trial in a neighborhood.

    Prefetching hides the first wait states, so that stalls are not proportional to wait states.
    """
    for name, step in ((name, step) for name in terms for step in (1, -1)):
        for _ in range(_STEPS):
            trial = _Trial.at(_with_step(best.board, name, step), layers, estimator)
            if trial.off >= best.off:
                break
            best = trial
    return best


def _with_step(board: Board, name: str, step: int) -> Board:
    memories = (_stepped(memory, step) if memory.name == name else memory for memory in board.memories)
    return replace(board, memories=tuple(memories))


def _stepped(memory: Memory, step: int) -> Memory:
    access = memory.access
    if access is None:
        return memory
    now = access.overhead_clocks if isinstance(access, SerialTiming) else access.wait_states
    return _with_overhead(memory, min(max(now + step, 0), _MAX_OVERHEAD_CLOCKS))


def _check(layers: Sequence[MeasuredLayer], estimates: Sequence[Estimate], board: Board) -> None:
    if not layers:
        raise UsageError("runs must have layers", "none", "measure a model with several layers")
    measured = sum(layer.cycles for layer in layers)
    estimated = sum(estimate.cycles(board.core_factor) for estimate in estimates)
    if not _LIKELY[0] <= measured / max(estimated, 1) <= _LIKELY[1]:
        rule = f"measured cycles must be of a {board.cpu} with the memories of {board.name}"
        ratio = f"{measured / max(estimated, 1):.3g} times the estimate"
        raise UsageError(
            rule, ratio, "name the board that was measured, at its clock, or write its file (docs/how-to/boards.md)"
        )


def _share(layer: MeasuredLayer, estimated: float) -> float:
    return estimated / layer.cycles - 1


def _weights(layers: Sequence[MeasuredLayer]) -> np.ndarray:
    """Errors count as shares of the layer, of small layers as shares of a hundredth of the run."""
    return np.array([1 / (layer.cycles * max(1.0, _SMALL / layer.share)) for layer in layers])


def _columns(estimates: Sequence[Estimate], terms: Sequence[str]) -> np.ndarray:
    """Return one row per layer: the core's cycles, then the stall cycles of each memory."""
    return np.array([[e.core, *(e.waits.get(term, 0) for term in terms)] for e in estimates], float)


def _told_apart(layers: Sequence[MeasuredLayer], estimates: Sequence[Estimate]) -> tuple[list[str], tuple[str, ...]]:
    """Memories whose waits the layers tell from the rest, the ones that take most first; and the others."""
    weights = _weights(layers)[:, None]
    names = dict.fromkeys(chain.from_iterable(estimate.waits for estimate in estimates))
    sizes = {name: float(np.sum(weights[:, 0] * _columns(estimates, [name])[:, 1])) for name in names}
    terms: list[str] = []
    for name in sorted(names, key=lambda name: (-sizes[name], name)):
        columns = _columns(estimates, [*terms, name]) * weights
        lengths = np.linalg.norm(columns, axis=0)
        if len(layers) > 1 and lengths.all() and np.linalg.cond(columns / lengths) < _ALIKE:
            terms.append(name)
    return terms, tuple(sorted(set(names) - set(terms)))


def _fit(
    layers: Sequence[MeasuredLayer], estimates: Sequence[Estimate], terms: Sequence[str]
) -> tuple[float, dict[str, float]]:
    """Return the core's factor, and the factor of each memory's stall cycles, by weighted least squares."""
    weights = _weights(layers)
    fixed = np.array([sum(c for name, c in e.waits.items() if name not in terms) for e in estimates], float)
    columns = _columns(estimates, terms) * weights[:, None]
    targets = (np.array([layer.cycles for layer in layers], float) - fixed) * weights
    factor, *scales = _bounded_least_squares(columns, targets, [_FACTORS, *[_WAITS] * len(terms)])
    return factor, dict(zip(terms, scales, strict=True))


def _bounded_least_squares(
    columns: np.ndarray, targets: np.ndarray, bounds: Sequence[tuple[float, float]]
) -> list[float]:
    """One unknown after the other, again and again: the problem is convex, and has a handful of unknowns."""
    unknowns = np.ones(columns.shape[1])
    squares = np.sum(columns * columns, axis=0)
    for _ in range(_SWEEPS):
        for i, (low, high) in enumerate(bounds):
            if not squares[i]:  # nothing was waited for any more: it stays as it is
                continue
            residual = targets - columns @ unknowns + columns[:, i] * unknowns[i]
            unknowns[i] = np.clip(columns[:, i] @ residual / squares[i], low, high)
    return [float(value) for value in unknowns]


def _with_waits(board: Board, scales: Mapping[str, float]) -> Board:
    """Return the board with the stall cycles of its memories scaled."""
    memories = [_scaled(board, memory, scales.get(memory.name, 1.0)) for memory in board.memories]
    return replace(board, memories=tuple(memories))


def _scaled(board: Board, memory: Memory, scale: float) -> Memory:
    """Return a memory with the integer wait states, or bus clocks, nearest to scaled stalls of a cache line."""
    before = board.cache(memory, "data") or board.cache(memory, "instructions")
    nbytes = max(before.line if before else 0, memory.line_bytes)
    now = board.wait_cycles(memory, nbytes)
    if not now or scale == 1.0:
        return memory
    candidates = [_with_overhead(memory, overhead) for overhead in range(_MAX_OVERHEAD_CLOCKS + 1)]
    return min(candidates, key=lambda m: abs((board.wait_cycles(m, nbytes) or 0) - now * scale))


def _with_overhead(memory: Memory, overhead: int) -> Memory:
    match memory.access:
        case SerialTiming() as serial:
            return replace(memory, access=replace(serial, overhead_clocks=overhead))
        case ParallelTiming() as bus:
            burst = overhead if bus.burst_wait_states == bus.wait_states else bus.burst_wait_states
            return replace(memory, access=replace(bus, wait_states=overhead, burst_wait_states=burst))
    return memory
