# SPDX-License-Identifier: Apache-2.0
"""What is worth most within so many bytes."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest

from mcugen.hir.types import DType
from mcugen.lir.program import Buffer, Space, aligned
from mcugen.memory import knapsack
from mcugen.memory.knapsack import most_valuable


def buffers(*sizes: int) -> list[Buffer]:
    return [Buffer(f"b{i}", DType.INT8, nbytes, Space.CONST) for i, nbytes in enumerate(sizes)]


def bytes_of(chosen: list[Buffer]) -> int:
    return sum(aligned(b.nbytes) for b in chosen)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_choice_is_worth_more(seed: int):
    random = np.random.default_rng(seed)
    items = buffers(*(int(n) for n in random.integers(1, 200, 9)))
    values = {b: float(random.integers(-2, 50)) for b in items}
    room = int(random.integers(0, 700))
    found = most_valuable(values, room)
    every = chain.from_iterable(combinations(items, n) for n in range(len(items) + 1))
    most = max(sum(values[b] for b in choice) for choice in every if bytes_of(list(choice)) <= room)
    assert bytes_of(found) <= room
    assert sum(values[b] for b in found) == most
    assert all(values[b] > 0 for b in found)


def test_one_large_buffer_may_be_worth_more_than_what_saves_most_for_its_size():
    small, large = buffers(16, 64)
    assert most_valuable({small: 10.0, large: 30.0}, 64) == [large]


def test_many_bytes_are_told_apart_roughly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(knapsack, "MAX_DISTINCT_SIZES", 8)
    items = buffers(1000, 3000, 2000)
    found = most_valuable(dict(zip(items, (1.0, 5.0, 3.0), strict=True)), 4096)
    assert found == [items[0], items[1]] or found == [items[1]]
    assert bytes_of(found) <= 4096


def test_less_than_no_room_holds_nothing():
    assert most_valuable(dict.fromkeys(buffers(4), 1.0), -100) == []
