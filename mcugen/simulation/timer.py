# SPDX-License-Identifier: Apache-2.0
"""Conversion of raw readings of a CPU's counter to retired instructions, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from mcugen.core.errors import VerificationError

Reading = tuple[int, int, int]
"""The three words of a `struct reading` of templates/harness; each Counter class says what they contain."""

_PERIOD = 1 << 24
_PENDING = 1 << 26  # ICSR.PENDSTSET
_HANDLER_INSTRUCTIONS = 5
_KNOWN_LOOP_INSTRUCTIONS = 200_002
_NOTHING_INSTRUCTIONS = 1
_UNREAD = (0, 0, 0)


class Counter(Protocol):
    """The interface of a CPU counter in the simulator from which executed instructions are computed.

    QEMU runs with `-icount shift=N`, so that virtual time follows the instructions.
    """

    @property
    def shift(self) -> int:
        """Return the shift N for QEMU: an instruction takes 2^N ns of virtual time."""

    def between(self, begin: Reading, end: Reading) -> int:
        """Return the number of instructions that were executed from one reading of the counter to a later one."""


@dataclass(frozen=True)
class SysTick:
    """The timer of an Arm M-profile CPU, as a counter of instructions.

    A reading holds the counter, the number of interrupts handled so far, and the register that shows a pending one.

    Attributes:
        clock_hz: Clock of the timer in Hz of virtual time.
    """

    clock_hz: int
    shift = 9  # several ticks an instruction: a difference of two readings, each rounded, names a whole number

    def between(self, begin: Reading, end: Reading) -> int:
        """Return the instructions executed from one reading to a later one, without the timer's interrupt handler."""
        ticks_per_instruction = Fraction(self.clock_hz << self.shift, 10**9)
        handlers = _HANDLER_INSTRUCTIONS * (end[1] - begin[1])
        return round((self.ticks(end) - self.ticks(begin)) / ticks_per_instruction) - handlers

    @staticmethod
    def ticks(reading: Reading) -> int:
        """Return the timer ticks from its start, with a counter of 2^24 - 1, to a reading, over all periods.

        The timer interrupts at 0, one tick before it reloads.
        """
        current, interrupts, icsr = reading
        came_before = current == 0 or current > _PERIOD // 2
        zeros = interrupts + (1 if icsr & _PENDING and came_before else 0)
        reloads = zeros - (1 if current == 0 else 0)
        return reloads * _PERIOD + (_PERIOD - 1 - current)


@dataclass(frozen=True)
class Minstret:
    """RISC-V's counter of retired instructions, read as upper half, lower half, and upper half again."""

    shift = 0  # QEMU lets the counter follow virtual time: a nanosecond an instruction

    def between(self, begin: Reading, end: Reading) -> int:
        """Return the number of instructions that were executed from one reading of the counter to a later one."""
        return self.count(end) - self.count(begin)

    @staticmethod
    def count(reading: Reading) -> int:
        """Return the 64-bit instruction count of a reading.

        If the upper half differs between its two reads, use the one that fits the lower half: the first if the lower
        half was read before it wrapped around, else the second.
        """
        high, low, again = reading
        return ((high if low >> 31 else again) << 32) + low


@dataclass(frozen=True)
class CCount:
    """Xtensa's counter of clock cycles, 32 bits wide, in the first word of a reading.

    Attributes:
        clock_hz: Clock of the CPU in Hz of virtual time.
    """

    clock_hz: int
    shift = 6  # 2.56 ticks an instruction at 40 MHz: a difference of two readings, each rounded, names a whole number

    def between(self, begin: Reading, end: Reading) -> int:
        """Return the instructions executed from one reading to a later one, less than a period of the counter."""
        ticks = (end[0] - begin[0]) % (1 << 32)
        return round(ticks / Fraction(self.clock_hz << self.shift, 10**9))


@dataclass(frozen=True)
class TimerReadings:
    """The counter readings that the harness printed, in pairs before and after a call."""

    counter: Counter
    nothing: Sequence[Reading]
    """Readings before and after a call of an empty function, whose difference is the measurement's overhead."""
    known_loop: Sequence[Reading]
    """Readings before and after a loop with a known number of instructions."""
    two_hooks: Sequence[Reading]
    """Readings before and after a call of a function that calls the layer hook twice."""
    hooks: Sequence[Reading]
    """The readings that the layer hook took in the two calls between the readings `two_hooks`."""
    run: Sequence[Reading]
    """Readings before and after the call of the model."""
    layers: Sequence[Reading]
    """The reading of the hook after each layer."""
    make_input: Sequence[Reading] = ()
    """Readings before and after the conversion of raw data to the model's input; empty if there is no conversion."""

    def instructions(self) -> int:
        """Return the instructions of one run, including the return.

        Raises:
            VerificationError: QEMU miscounts a loop with a known number of instructions.
        """
        known = self._call(self.known_loop)
        if known != _KNOWN_LOOP_INSTRUCTIONS:
            raise VerificationError(
                "QEMU must count instructions exactly",
                f"{known} for a loop of {_KNOWN_LOOP_INSTRUCTIONS}",
                "use another version of QEMU",
            )
        return self._call(self.run)

    def input_instructions(self) -> int | None:
        """Return the instructions that convert raw data to the input, including the return.

        The result is None if the model has no such conversion.
        """
        return self._call(self.make_input) if self.make_input else None

    def layer_instructions(self, count: int) -> tuple[int, ...]:
        """Return the retired instructions of each of `count` layers, without the hook that is called after the layer.

        Raises:
            VerificationError: A layer did not call the hook.
        """
        unseen = [i for i in range(count) if self.layers[i] == _UNREAD]
        if unseen:
            raise VerificationError("each layer must call MCUGEN_ON_LAYER", f"layer {unseen[0]} did not")
        first = self.counter.between(self.run[0], self.layers[0]) - self.counter.between(
            self.two_hooks[0], self.hooks[0]
        )
        hook = self.counter.between(self.hooks[0], self.hooks[-1])
        spans = zip(self.layers[: count - 1], self.layers[1:count], strict=True)
        return (max(first, 0), *(self.counter.between(begin, end) - hook for begin, end in spans))

    def _call(self, span: Sequence[Reading]) -> int:
        overhead = self.counter.between(*self.nothing) - _NOTHING_INSTRUCTIONS
        return self.counter.between(*span) - overhead
