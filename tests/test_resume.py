# SPDX-License-Identifier: Apache-2.0
"""A run of tests that goes on where it was interrupted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from resume import Passed, leave_out

TESTS = ("a.py::test_a[x y]", "a.py::test_b", "b.py::test_a")


def report(name: str, outcome: str, when: str = "call") -> pytest.TestReport:
    return pytest.TestReport(name, ("a.py", 0, name), {}, cast(Any, outcome), None, cast(Any, when))


def test_what_passed_is_left_out_the_next_time(tmp_path: Path):
    file = tmp_path / "build" / "passed"
    items = cast(list[pytest.Item], [SimpleNamespace(nodeid=name) for name in TESTS])
    assert leave_out(list(items), file) == []
    for outcome in ("failed", "passed"):
        passed = Passed(file)  # of the next run
        passed.pytest_runtest_logreport(report(TESTS[0], outcome))
        passed.pytest_runtest_logreport(report(TESTS[1], "skipped"))
        passed.pytest_runtest_logreport(report(TESTS[2], "passed", "setup"))
        left = list(items)
        done = leave_out(left, file)
        assert [item.nodeid for item in done] == list(TESTS[: outcome == "passed"])
        assert left == [item for item in items if item not in done]
