# SPDX-License-Identifier: Apache-2.0
"""The tool that tells how exploring scales: its arithmetic."""

from __future__ import annotations

import scaling
from scaling import Spent


def test_workers_on_paper_take_the_next_task_when_they_are_free() -> None:
    tasks = [4.0, 1.0, 1.0, 1.0, 3.0]
    assert scaling.on_paper(tasks, 2.0, 1) == 12.0
    assert scaling.on_paper(tasks, 2.0, 2) == 2.0 + 6.0
    assert scaling.on_paper(tasks, 2.0, 9) == 6.0


def test_the_busiest_process_counts_with_all_that_it_did() -> None:
    found = [Spent(1.0, 3.0, 7), Spent(2.0, 5.0, 7), Spent(2.5, 4.5, 8)]
    assert scaling.totals(found) == {7: 5.0, 8: 4.5}
    assert scaling.busiest(found) == 5.0


def test_a_row_for_each_number_of_workers() -> None:
    one = [Spent(1.0, 3.0 + number, 7) for number in range(8)]
    two = [Spent(1.0, 3.0 + number, pid) for number in range(4) for pid in (8, 9)]
    made = scaling.rows(one, two)
    assert [row[0] for row in made[:3]] == ["1", "2", "2, on paper"]
    assert made[1][1:] == made[2][1:] == ["6.0", f"{10 / 6:.2f}"]


def test_spent_grows() -> None:
    before = scaling.spent()
    sum(range(200_000))
    assert scaling.spent() >= before > 0
