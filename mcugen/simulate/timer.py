# SPDX-License-Identifier: Apache-2.0
"""From raw SysTick readings to retired instructions, exactly.

Under `-icount shift=N` an instruction takes 2^N ns of virtual time. With N = 9 that is several timer ticks,
so that a difference of two readings, each rounded to a tick, names a whole number of instructions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mcugen.errors import VerificationError

ICOUNT_SHIFT = 9

_PERIOD = 1 << 24
_PENDING = 1 << 26  # ICSR.PENDSTSET
_HANDLER_INSTRUCTIONS = 5
_KNOWN_LOOP_INSTRUCTIONS = 200_002
_NOTHING_INSTRUCTIONS = 1


@dataclass(frozen=True)
class Reading:
    """SysTick's counter, the interrupts handled so far, and the register that tells a pending one."""

    current: int
    interrupts: int
    icsr: int

    @property
    def ticks(self) -> int:
        """Ticks since the timer was loaded with 2^24 - 1; it interrupts at 0, one tick before it reloads."""
        came_before = self.current == 0 or self.current > _PERIOD // 2
        zeros = self.interrupts + (1 if self.icsr & _PENDING and came_before else 0)
        reloads = zeros - (1 if self.current == 0 else 0)
        return reloads * _PERIOD + (_PERIOD - 1 - self.current)


@dataclass(frozen=True)
class Timer:
    """Counts instructions between readings of a SysTick that runs at `clock_hz`."""

    clock_hz: int

    def between(self, begin: Reading, end: Reading) -> int:
        """Instructions from one reading to a later one, without those of the timer's interrupts."""
        ticks_per_instruction = Fraction(self.clock_hz << ICOUNT_SHIFT, 10**9)
        handlers = _HANDLER_INSTRUCTIONS * (end.interrupts - begin.interrupts)
        return round((end.ticks - begin.ticks) / ticks_per_instruction) - handlers


@dataclass(frozen=True)
class Timing:
    """What the harness printed: readings around calls (`run` being the model's), and one per layer."""

    timer: Timer
    nothing: Sequence[Reading]
    known_loop: Sequence[Reading]
    two_hooks: Sequence[Reading]
    hooks: Sequence[Reading]
    run: Sequence[Reading]
    layers: Sequence[Reading]

    def instructions(self) -> int:
        """Instructions of one run, its return included; VerificationError if a known loop is miscounted."""
        known = self._call(self.known_loop)
        if known != _KNOWN_LOOP_INSTRUCTIONS:
            raise VerificationError(
                "QEMU's timer must count instructions exactly",
                f"{known} for a loop of {_KNOWN_LOOP_INSTRUCTIONS}",
                "another version of QEMU",
            )
        return self._call(self.run)

    def layer_instructions(self, count: int) -> tuple[int, ...]:
        """Retired instructions of each layer, without the hook behind it."""
        unseen = [i for i in range(count) if self.layers[i] == Reading(0, 0, 0)]
        if unseen:
            raise VerificationError("each layer must call MCUGEN_ON_LAYER", f"layer {unseen[0]} did not")
        first = self.timer.between(self.run[0], self.layers[0]) - self.timer.between(self.two_hooks[0], self.hooks[0])
        hook = self.timer.between(self.hooks[0], self.hooks[-1])
        spans = zip(self.layers[: count - 1], self.layers[1:count], strict=True)
        return (max(first, 0), *(self.timer.between(begin, end) - hook for begin, end in spans))

    def _call(self, span: Sequence[Reading]) -> int:
        overhead = self.timer.between(*self.nothing) - _NOTHING_INSTRUCTIONS
        return self.timer.between(*span) - overhead
