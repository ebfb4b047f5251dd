# SPDX-License-Identifier: Apache-2.0
"""The schedule of a model on two cores, the speedup by the second core, and its limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mcugen.search.contention import contention_of_stalls
from mcugen.search.core_partition import BARRIER_INSTRUCTIONS

FIRST, OTHER = 0, 1
"""Numbers of the two cores."""


class MemoryStalls(Protocol):
    """The interface of stall cycles on one memory."""

    @property
    def memory(self) -> str:
        """Return the name of the memory."""

    @property
    def cycles(self) -> int:
        """Return the cycles for which the CPU stalls on accesses to the memory."""


class TimedLayer(Protocol):
    """The interface of a layer, or one core's shard of a layer, with its measured time."""

    @property
    def core(self) -> int | None:
        """Return the core that computes the layer; None for a whole layer, which is computed by the first core."""

    @property
    def instructions(self) -> int | None:
        """Return the retired instructions of the layer."""

    @property
    def cycles_estimate(self) -> int | None:
        """Return the estimated cycles of the layer, with stall cycles."""

    @property
    def stalls(self) -> Sequence[MemoryStalls] | None:
        """Return the stall cycles of the layer by memory."""


@dataclass(frozen=True)
class LayerSpan:
    """The time span in which one core computes one layer, or its shard of the layer.

    Attributes:
        layer: Number of the layer, from 0.
        core: Number of the core, 0 or 1.
        begin: Start of the span, in the unit of the schedule (TwoCores.unit).
        end: End of the span, in the same unit.
    """

    layer: int
    core: int
    begin: float
    end: float


@dataclass(frozen=True)
class TwoCores:
    """The schedule of one inference on both cores, and the causes of lost time.

    Shards of layers are measured on one core each. The instructions of a barrier are those of
    docs/reference/figures/two_cores.md. Mutual delays in memory are estimated (mcugen.search.contention). Without lost
    time, the speedup would be 1 + 1 / pace.

    Attributes:
        unit: Unit of all times: "cycles" (estimated), else "instructions"; "microseconds" for two kinds of cores.
        total: Time from start to end; for a pipeline over frames, the time from frame to frame.
        latency: Time from the start of a frame to its result; twice `total` for a pipeline over frames, else `total`.
        alone: Time of the same code on the first core.
        waiting: Share of the time for which each core waits.
        pace: Time of the second core for its shards, divided by the time of the first core for the same shards.
        whole: Share of time lost to layers that one core computes alone.
        uneven: Share of time lost to shards that take unequal times.
        barriers: Share of time lost to synchronization.
        contention: Share of time lost to mutual delays in memory.
    """

    unit: str
    total: float
    latency: float
    alone: float
    waiting: list[float]
    pace: float
    whole: float
    uneven: float
    barriers: float
    contention: float
    slowest: list[int]
    """Numbers of the slowest layers that one core computes alone."""
    spans: list[LayerSpan]
    """When each core computes which layer, or its shard of it."""

    @property
    def speedup(self) -> float:
        """Return the time of the same code on the first core divided by the time on both cores."""
        return self.alone / self.total

    @property
    def limits(self) -> str:
        """Return a text on what limits the speedup, with the share of time lost to each cause."""
        named = [("layers of one core", self.whole), ("uneven portions", self.uneven), ("barriers", self.barriers)]
        named += [("waits for each other in memory", self.contention)] * (self.contention > 0)
        parts = [f"{name} {100 * share:.1f} %" for name, share in sorted(named, key=lambda part: -part[1])]
        best = "" if self.pace == 1 else f"of at most {1 + 1 / self.pace:.3f}, "
        return f"{best}of the time lost to {', '.join(parts)}"


MAX_NAMED_LAYERS = 3
"""Largest number of undivided layers that `TwoCores.slowest` lists."""


@dataclass(frozen=True)
class CoreTimes:
    """The time of a layer or of a barrier (synchronization of both cores) on two cores.

    Attributes:
        first: Time on the first core.
        own: Time on the core that computes it in the program.
    """

    first: float
    own: float


@dataclass(frozen=True)
class SecondCoreMeasurements:
    """Measurements for a second core that has another CPU than the first.

    Attributes:
        layers: The layers as measured on the second core's CPU.
        clocks: Clocks of the first and of the second core in Hz.
    """

    layers: Sequence[TimedLayer]
    clocks: tuple[int, int]


@dataclass(frozen=True)
class Memories:
    """The data on shared memories that the estimate of delays between two cores needs.

    Attributes:
        banks: Number of banks of each memory by name.
        arena: Share of time, from 0 to 1, by which cores that both access the arena's memory are slower.
    """

    banks: Mapping[str, int]
    arena: float

    def stalled_time_share(self, first: TimedLayer, other: TimedLayer) -> float:
        """Return the share of its time (0 to 1) that each core loses to the other's memory accesses.

        Args:
            first: The layer that the first core computes at that time.
            other: The layer that the second core computes at that time.
        """
        return self.arena + contention_of_stalls(_uses(first), _uses(other), self.banks)


NO_MEMORIES = Memories({}, 0.0)
"""Memories without contention."""


def _uses(layer: TimedLayer) -> dict[str, float]:
    """Return the shares of its time that a layer waits for memories."""
    cycles = layer.cycles_estimate
    return {stall.memory: stall.cycles / cycles for stall in layer.stalls or ()} if cycles else {}


def two_cores(
    layers: Sequence[TimedLayer],
    helped: SecondCoreMeasurements | None = None,
    first_part: int | None = None,
    memories: Memories = NO_MEMORIES,
) -> TwoCores | None:
    """Return the schedule of a model whose layers are divided between two cores.

    Args:
        layers: The layers in order, as measured on the first core.
        helped: Measurements for the second core if that has another CPU; None for equal cores.
        first_part: The number of layers that the first core computes, for a pipeline over frames; else None.
        memories: The memories that both cores use.

    Returns:
        The schedule; None if no layer is divided, or if the times are not known.
    """
    timing = _costs(layers, helped)
    if timing is None or all(layer.core is None for layer in layers):
        return None
    if first_part is not None:
        share = _of_parts(layers, helped, first_part, memories)
        return _pipeline(*timing, first_part, share)
    unit, costs, barrier = timing
    spans, whole, forks, now, contended = list[LayerSpan](), dict[int, float](), list[tuple[float, float]](), 0.0, 0.0
    seen = helped.layers if helped else layers
    for step in _steps(layers):
        times = [costs[index].own for index in step]
        spans += [LayerSpan(index, core, now, now + costs[index].own) for core, index in enumerate(step)]
        now += max(times)
        if len(times) == 1:
            whole[step[0]] = times[0]
        else:
            forks.append((times[0], times[1]))
            contended += min(times) * memories.stalled_time_share(layers[step[0]], seen[step[1]])
            now += barrier
    now += contended
    busy = [sum(span.end - span.begin for span in spans if span.core == core) for core in (FIRST, OTHER)]
    pace = busy[OTHER] / (sum(costs[span.layer].first for span in spans if span.core == OTHER) or 1.0)
    uneven = sum(max(ours - theirs, pace * (theirs - ours)) for ours, theirs in forks) / (1 + pace)
    return TwoCores(
        unit=unit,
        total=now,
        latency=now,
        alone=sum(cost.first for cost in costs),
        waiting=[max(1 - (time + len(forks) * barrier + contended) / now, 0.0) for time in busy],
        pace=pace,
        whole=sum(whole.values()) / (1 + pace) / now,
        uneven=uneven / now,
        barriers=len(forks) * barrier / now,
        contention=contended / now,
        slowest=sorted(whole, key=lambda index: -whole[index])[:MAX_NAMED_LAYERS],
        spans=spans,
    )


def _of_parts(
    layers: Sequence[TimedLayer], helped: SecondCoreMeasurements | None, first_part: int, memories: Memories
) -> float:
    """Return by which share the parts of a pipeline are slower: the mean over all pairs of their layers, by time."""
    seen = (helped.layers if helped else layers)[first_part:]
    times = [[layer.cycles_estimate or 0 for layer in part] for part in (layers[:first_part], seen)]
    products = (
        a * b * memories.stalled_time_share(first, other)
        for a, first in zip(times[FIRST], layers, strict=False)
        for b, other in zip(times[OTHER], seen, strict=True)
    )
    return sum(products) / max(sum(times[FIRST]) * sum(times[OTHER]), 1)


def _pipeline(unit: str, costs: Sequence[CoreTimes], barrier: float, first_part: int, share: float) -> TwoCores:
    """Return the schedule of one frame's first layers and the remaining layers of the frame before.

    `share` is the share by which both parts are slower when they run at once.
    """
    spans, nows = list[LayerSpan](), [0.0, 0.0]
    for index, cost in enumerate(costs):
        core = OTHER if index >= first_part else FIRST
        spans.append(LayerSpan(index, core, nows[core], nows[core] + cost.own))
        nows[core] += cost.own
    ours, theirs = nows
    contended = share * min(nows)
    total = max(nows) + barrier + contended
    pace = theirs / (sum(cost.first for cost in costs[first_part:]) or 1.0)
    return TwoCores(
        unit=unit,
        total=total,
        latency=2 * total,
        alone=sum(cost.first for cost in costs),
        waiting=[max(1 - (time + barrier + contended) / total, 0.0) for time in nows],
        pace=pace,
        whole=0.0,
        uneven=max(ours - theirs, pace * (theirs - ours)) / (1 + pace) / total,
        barriers=barrier / total,
        contention=contended / total,
        slowest=[],
        spans=spans,
    )


def _costs(
    layers: Sequence[TimedLayer], helped: SecondCoreMeasurements | None
) -> tuple[str, list[CoreTimes], float] | None:
    """Return the unit, the time of each layer in it, and the time of a barrier."""
    if helped is None:
        timing = _unit(layers)
        return timing and (timing[0], [CoreTimes(time, time) for time in timing[1]], timing[2])
    ours, theirs = _unit(layers), _unit(helped.layers)
    if not ours or not theirs or not ours[0] == theirs[0] == CYCLES:
        return None
    cycle_time = [1e6 / clock for clock in helped.clocks]
    first, other = ([time * cycle_time[core] for time in timing[1]] for core, timing in enumerate((ours, theirs)))
    own = [b if layer.core == OTHER else a for layer, a, b in zip(layers, first, other, strict=True)]
    return "microseconds", [CoreTimes(a, b) for a, b in zip(first, own, strict=True)], theirs[2] * cycle_time[OTHER]


CYCLES = "cycles"
"""Name of the unit "estimated cycles" of times."""


def _unit(layers: Sequence[TimedLayer]) -> tuple[str, list[float], float] | None:
    """Return the unit, the time of each layer in it, and the time of a barrier, for one kind of core."""
    if not layers or any(layer.instructions is None for layer in layers):
        return None
    counts = [float(layer.instructions or 0) for layer in layers]
    if any(layer.cycles_estimate is None for layer in layers):
        return "instructions", counts, BARRIER_INSTRUCTIONS
    cycles = [float(layer.cycles_estimate or 0) for layer in layers]
    return CYCLES, cycles, BARRIER_INSTRUCTIONS * sum(cycles) / max(sum(counts), 1)


def _steps(layers: Sequence[TimedLayer]) -> Iterator[list[int]]:
    """Yield the number of a layer that one core computes, or the numbers of both cores' portions."""
    index = 0
    while index < len(layers):
        step = [index, index + 1] if layers[index].core == FIRST else [index]
        yield step
        index += len(step)
