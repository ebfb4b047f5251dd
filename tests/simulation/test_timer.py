# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on raw readings of counters, above all where they wrap."""

from __future__ import annotations

import pytest

from mcugen.core.errors import VerificationError
from mcugen.simulation.timer import Minstret, Reading, SysTick, TimerReadings

PENDING = 1 << 26
TOP = (1 << 24) - 1


@pytest.mark.parametrize(
    ("reading", "ticks"),
    [
        ((TOP, 0, 0), 0),
        ((1, 0, 0), TOP - 1),
        ((1, 0, PENDING), TOP - 1),  # the counter reached 0 after it was read
        ((0, 0, PENDING), TOP),
        ((0, 1, 0), TOP),
        ((TOP, 0, PENDING), TOP + 1),
        ((TOP, 1, 0), TOP + 1),
        ((TOP, 3, 0), 3 * (TOP + 1)),
    ],
)
def test_ticks_go_on_where_the_counter_wraps(reading: Reading, ticks: int):
    assert SysTick.ticks(reading) == ticks


def test_instructions_leave_out_the_interrupts():
    timer = SysTick(25_000_000)  # 12.8 ticks an instruction
    assert timer.between((TOP, 0, 0), (TOP - 1280, 0, 0)) == 100
    assert timer.between((TOP, 0, 0), (TOP, 5, 0)) == 5 * 2**24 * 10 // 128 - 5 * 5


@pytest.mark.parametrize("count", [2, 2**32 - 1, 2**32, 2**32 + 1, 2**40 - 1])
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("after", [0, 1])
def test_a_counter_in_two_halves_is_whole_where_its_lower_half_goes_round(count: int, before: int, after: int):
    reading = ((count - before) >> 32, count % 2**32, (count + after) >> 32)
    assert Minstret.count(reading) == count
    assert Minstret().between((0, 7, 0), reading) == count - 7


def test_a_layer_whose_counter_was_not_read_is_refused():
    readings = ((0, 5, 0), (0, 9, 0))
    timing = TimerReadings(Minstret(), readings, readings, readings, readings, readings, [(0, 0, 0), (0, 9, 0)])
    with pytest.raises(VerificationError, match="layer 0 did not"):
        timing.layer_instructions(1)


def test_a_timer_that_does_not_follow_instructions_is_refused():
    start = (TOP, 0, 0)
    still = (start, start)
    timing = TimerReadings(SysTick(25_000_000), still, still, still, still, still, still)
    with pytest.raises(VerificationError, match="QEMU must count instructions exactly"):
        timing.instructions()
