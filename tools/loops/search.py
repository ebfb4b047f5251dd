# SPDX-License-Identifier: Apache-2.0
"""Search of the order of a step that takes the fewest cycles, by the timing rules of a core.

Simulated annealing moves one instruction at a time. The cost of an order is that of a step in the middle of a loop, by
the same pipeline model that estimates the cycles of whole programs, so that no second description of a core exists.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from loops.clean import Step, allocate, instruction_of, is_symbolic
from mcugen.simulation.disassembly import Instruction
from mcugen.simulation.pipelines import InOrder, Pipeline, Scoreboard, price
from mcugen.simulation.timings import TIMINGS

TRIALS = 20_000
"""Number of moves that a search tries."""
STARTS = 5
"""Number of searches, from different random numbers."""
WARMTH = 0.4
"""Increase of cycles that is accepted with a probability of 1/e at the beginning; it falls to nothing."""
PRESSURE_CYCLES = 50
"""Cost in cycles of each value for which no register is free, so that the search leaves such orders."""


def schedule(step: Step, core: str, free: Sequence[str]) -> tuple[str, ...]:
    """Return a step in the order with the fewest cycles that the search finds, with registers of the CPU.

    Args:
        step: The step.
        core: Name of the core in mcugen.simulation.timings.
        free: Registers that the step may overwrite.
    """
    search = _Search(step, core, free)
    order = min((search.anneal(seed) for seed in range(STARTS)), key=lambda found: (search.cost(found), found))
    return tuple(allocate(step.ordered(order), free))


def cycles(texts: Sequence[str], core: str) -> int:
    """Return the estimated cycles of a step that follows others of its kind."""
    return _steady_cycles(_cached(core), [instruction_of(text) for text in texts])


def _steady_cycles(pipeline: Pipeline, body: Sequence[Instruction]) -> int:
    """Return the cycles from the first instruction of a second step to that of a third."""
    return sum(pipeline.each([*body, *body, body[0]])[len(body) : 2 * len(body)])


def bound(texts: Sequence[str], core: str) -> int:
    """Return the cycles that no order of the instructions can do without.

    A core that issues several instructions a cycle is limited by its width, and by the units that instructions occupy.
    On another core each instruction takes its cycles, and loads overlap at best with one load before them.
    """
    pipeline, body = _cached(core), [instruction_of(text) for text in texts]
    if isinstance(pipeline, Scoreboard):
        busy: Counter[str] = Counter()
        for rule in map(pipeline.rule, body):
            busy.update(rule.units)
        units = (math.ceil(n / pipeline.parts.get(unit, 1)) for unit, n in busy.items())
        slots = sum(pipeline.width if pipeline.rule(i).alone else 1 for i in body)
        width = pipeline.width if any(pipeline.pairs(a, b) for a in body for b in body) else 1
        return max(math.ceil(slots / width), *units, 0)
    return sum(min(pipeline.each([before, one])[1] for before in body) for one in body)


@cache
def _cached(core: str) -> Pipeline:
    """Return the pipeline of a core, which remembers what its rules say of an instruction."""
    pipeline = TIMINGS[core].pipeline
    if isinstance(pipeline, Scoreboard):
        return replace(pipeline, rule=cache(pipeline.rule), needed=cache(pipeline.needed), pairs=cache(pipeline.pairs))
    assert isinstance(pipeline, InOrder)
    prices = pipeline.prices
    return InOrder(((r"\S+", cache(lambda instruction: price(prices, instruction))),), cache(pipeline.stall))


class _Search:
    """Simulated annealing over the orders of one step for one core."""

    def __init__(self, step: Step, core: str, free: Sequence[str]) -> None:
        self._step, self._core, self._free = step, core, len(free)
        self._pipeline = _cached(core)
        self._costs: dict[tuple[int, ...], float] = {}

    def anneal(self, seed: int) -> tuple[int, ...]:
        """Return the best order that one search finds."""
        draw = random.Random(seed)
        order = best = tuple(range(len(self._step.texts)))
        for trial in range(TRIALS):
            warmth = WARMTH * (1 - trial / TRIALS) + 1e-6
            moved = self._moved(order, draw)
            worse = self.cost(moved) - self.cost(order)
            if worse <= 0 or draw.random() < math.exp(-worse / warmth):
                order = moved
                best = min(best, order, key=self.cost)
        return best

    def cost(self, order: tuple[int, ...]) -> float:
        """Return the cycles of an order, and a penalty for values without a register."""
        if order not in self._costs:
            body = [_parsed(text) for text in self._step.ordered(order)]
            self._costs[order] = _steady_cycles(self._pipeline, body) + PRESSURE_CYCLES * self._missing(order)
        return self._costs[order]

    def _moved(self, order: tuple[int, ...], draw: random.Random) -> tuple[int, ...]:
        """Return the order with one instruction elsewhere, between those that must precede and follow it."""
        index = draw.randrange(len(order))
        number, others = order[index], order[:index] + order[index + 1 :]
        low = max((others.index(n) + 1 for n in self._step.after[number]), default=0)
        high = min((i for i, n in enumerate(others) if number in self._step.after[n]), default=len(others))
        place = draw.randint(low, high)
        return (*others[:place], number, *others[place:])

    def _missing(self, order: tuple[int, ...]) -> int:
        """Return how many more registers than are free an order needs at once."""
        left = {symbol: len(reads) for symbol, reads in self._step.last_reads.items()}
        readers = {n: [s for s, reads in self._step.last_reads.items() if n in reads] for n in order}
        alive = most = 0
        for number in order:
            for symbol in readers[number]:
                left[symbol] -= 1
                alive -= left[symbol] == 0
            alive += sum(map(is_symbolic, self._step.instructions[number].results))
            most = max(most, alive)
        return max(most - self._free, 0)


@cache
def _parsed(text: str) -> Instruction:
    return instruction_of(text)
