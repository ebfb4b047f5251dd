# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on raw SysTick readings, above all where the counter wraps."""

from __future__ import annotations

import pytest

from mcugen.errors import VerificationError
from mcugen.simulate.timer import Reading, Timer, Timing

PENDING = 1 << 26
TOP = (1 << 24) - 1


@pytest.mark.parametrize(
    ("reading", "ticks"),
    [
        (Reading(TOP, 0, 0), 0),
        (Reading(1, 0, 0), TOP - 1),
        (Reading(1, 0, PENDING), TOP - 1),  # the counter reached 0 after it was read
        (Reading(0, 0, PENDING), TOP),
        (Reading(0, 1, 0), TOP),
        (Reading(TOP, 0, PENDING), TOP + 1),
        (Reading(TOP, 1, 0), TOP + 1),
        (Reading(TOP, 3, 0), 3 * (TOP + 1)),
    ],
)
def test_ticks_go_on_where_the_counter_wraps(reading: Reading, ticks: int):
    assert reading.ticks == ticks


def test_instructions_leave_out_the_interrupts():
    timer = Timer(25_000_000)  # 12.8 ticks an instruction
    assert timer.between(Reading(TOP, 0, 0), Reading(TOP - 1280, 0, 0)) == 100
    assert timer.between(Reading(TOP, 0, 0), Reading(TOP, 5, 0)) == 5 * 2**24 * 10 // 128 - 5 * 5


def test_a_timer_that_does_not_follow_instructions_is_refused():
    start = Reading(TOP, 0, 0)
    still = (start, start)
    timing = Timing(Timer(25_000_000), still, still, still, still, still, still)
    with pytest.raises(VerificationError, match="QEMU's timer must count instructions exactly"):
        timing.instructions()
