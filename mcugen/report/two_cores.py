# SPDX-License-Identifier: Apache-2.0
"""What each of two cores does when, how much faster that is, and what keeps it from being twice as fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from mcugen.fitting.cores import BARRIER

FIRST, OTHER = 0, 1


class Timed(Protocol):
    """What of a layer is read."""

    @property
    def core(self) -> int | None: ...  # noqa: D102
    @property
    def instructions(self) -> int | None: ...  # noqa: D102
    @property
    def cycles_estimate(self) -> int | None: ...  # noqa: D102


@dataclass(frozen=True)
class Span:
    """Layer number `layer` on a core, from `begin` to `end`."""

    layer: int
    core: int
    begin: float
    end: float


@dataclass(frozen=True)
class TwoCores:
    """Of one inference on both cores, in `unit` (cycles as estimated, else instructions).

    Portions are counted on one core each, and a barrier takes as many instructions as docs/two_cores.md says; that both
    cores read the same memories is not looked at. `total` is the time from begin to end, `alone` that of the same code
    on one core, `waiting` the shares of the time in which each core waits. Twice the speed is missed by what `whole`
    layers take (which one core computes), `uneven` portions and `barriers`: shares of the time.
    """

    unit: str
    total: float
    alone: float
    waiting: list[float]
    whole: float
    uneven: float
    barriers: float
    slowest: list[int]
    """The whole layers that take longest, by their numbers."""
    spans: list[Span]

    @property
    def speedup(self) -> float:
        """How many times as fast as one core with the same code."""
        return self.alone / self.total

    @property
    def limits(self) -> str:
        """What keeps it from being 2, in words."""
        named = (("layers of one core", self.whole), ("uneven portions", self.uneven), ("barriers", self.barriers))
        parts = [f"{name} {100 * share:.1f} %" for name, share in sorted(named, key=lambda part: -part[1])]
        return f"of the time lost to {', '.join(parts)}"


MOST_NAMED = 3
"""Whole layers that are named."""


def two_cores(layers: Sequence[Timed]) -> TwoCores | None:
    """What layers, of which some are one core's portions, take; None without such, or where it is not known."""
    found = _unit(layers)
    if found is None or all(layer.core is None for layer in layers):
        return None
    unit, amount, barrier = found
    spans, whole, uneven, forks, now = list[Span](), dict[int, float](), 0.0, 0, 0.0
    for index, (first, other) in _steps(layers):
        times = [amount(layer) for layer in (first, other) if layer is not None]
        spans += [Span(index + core, core, now, now + time) for core, time in enumerate(times)]
        now += max(times)
        if len(times) == 1:
            whole[index] = times[0]
        else:
            uneven, forks, now = uneven + abs(times[0] - times[1]) / 2, forks + 1, now + barrier
    busy = [sum(span.end - span.begin for span in spans if span.core == core) for core in (FIRST, OTHER)]
    return TwoCores(
        unit=unit,
        total=now,
        alone=sum(busy),
        waiting=[1 - (time + forks * barrier) / now for time in busy],
        whole=sum(whole.values()) / 2 / now,
        uneven=uneven / now,
        barriers=forks * barrier / now,
        slowest=sorted(whole, key=lambda index: -whole[index])[:MOST_NAMED],
        spans=spans,
    )


def _unit(layers: Sequence[Timed]) -> tuple[str, Callable[[Timed], float], float] | None:
    """The unit, what a layer takes in it, and a barrier."""
    if not layers or any(layer.instructions is None for layer in layers):
        return None
    instructions = sum(layer.instructions or 0 for layer in layers)
    if any(layer.cycles_estimate is None for layer in layers):
        return "instructions", lambda layer: layer.instructions or 0, BARRIER
    cycles = sum(layer.cycles_estimate or 0 for layer in layers)
    return "cycles", lambda layer: layer.cycles_estimate or 0, BARRIER * cycles / max(instructions, 1)


def _steps(layers: Sequence[Timed]) -> Iterator[tuple[int, tuple[Timed, Timed | None]]]:
    """A layer that one core computes, or a portion and that of the other core behind it; the number of the first."""
    index = 0
    while index < len(layers):
        other = layers[index + 1] if layers[index].core == FIRST else None
        yield index, (layers[index], other)
        index += 1 if other is None else 2
