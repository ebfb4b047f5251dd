# SPDX-License-Identifier: Apache-2.0
"""Bytes in use at each moment, against counting them one by one."""

from __future__ import annotations

from random import Random

import pytest

from mcugen.memory.spans import Life, Span, bytes_at


def counted(spans: dict[int, Span], lives: dict[int, Life], moment: int) -> int:
    alive = [span for key, span in spans.items() if lives[key][0] <= moment <= lives[key][1]]
    return len({(region, byte) for region, start, end in alive for byte in range(start, end)})


@pytest.mark.parametrize("seed", range(30))
def test_as_many_as_counted_one_by_one(seed: int):
    random, moments = Random(seed), 6
    spans, lives = {}, {}
    for key in range(random.randint(0, 8)):
        start, first = random.randint(0, 6), random.randint(-1, moments)
        spans[key] = (random.randint(0, 1), start, start + random.randint(0, 6))
        lives[key] = (first, random.randint(first, moments))
    expected = [counted(spans, lives, moment) for moment in [*range(moments + 1), -1]]
    assert bytes_at(spans, lives, moments) == expected
