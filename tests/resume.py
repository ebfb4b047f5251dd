# SPDX-License-Identifier: Apache-2.0
"""Resumption of interrupted runs: `pytest --resume FILE` leaves out the tests that the file lists as passed."""

from __future__ import annotations

from pathlib import Path

import pytest


class Passed:
    """Plug-in of the main process that appends each passed test to the file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")


def leave_out(items: list[pytest.Item], file: Path) -> list[pytest.Item]:
    """Remove the tests that passed before from the list, and return them."""
    passed = set(file.read_text().splitlines()) if file.is_file() else set()
    done = [item for item in items if item.nodeid in passed]
    items[:] = [item for item in items if item.nodeid not in passed]
    return done
