# SPDX-License-Identifier: Apache-2.0
"""A spread of ONNX's own tests; `make onnx-tests` runs all of them and writes docs/reference/onnx_coverage.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from onnx_tests import Case, Outcome, cases, run_suite

COVERAGE = Path(__file__).parents[1] / "docs" / "reference" / "onnx_coverage.md"
EVERY = 160
"""Of the tests beside one an operator, every so many are run. Of those, half are for the host, half for a Cortex-M4."""
LARGEST = 100_000
"""Bytes of a test that fits beside others in a simulated board's memory."""


def known_failures() -> set[str]:
    """The tests that docs/reference/onnx_coverage.md lists as failed, each with its cause."""
    _, _, failed = COVERAGE.read_text().partition("## Failed")
    return set(re.findall(r"^\| (test_\w+) \|", failed.partition("## By operator")[0], re.MULTILINE))


@cache
def suite() -> list[Case]:
    """The tests in scope that are held to pass."""
    failed = known_failures()
    return [c for c in cases() if isinstance(c, Case) and c.name not in failed]


def one_per_operator() -> list[Case]:
    """For each operator the shortest-named test of it alone."""
    chosen: dict[str, Case] = {}
    for case in sorted(suite(), key=lambda c: (len(c.name), c.name)):
        if len(case.model.graph.node) == 1:
            chosen.setdefault(case.operators[0], case)
    return list(chosen.values())


def spread() -> list[Case]:
    alone = one_per_operator()
    rest = [c for c in suite() if c not in alone]
    return alone[1::2] + rest[::EVERY]


def failures(outcomes: list[Outcome]) -> list[str]:
    return [f"{o.name}: {o.reason}" for o in outcomes if o.state != "passed"]


def test_a_spread_passes_on_the_host() -> None:
    chosen = spread()
    assert len(chosen) >= 100
    assert failures(run_suite(chosen, jobs=1, quiet=True)) == []


@pytest.mark.qemu
def test_every_second_operator_passes_on_a_cortex_m4() -> None:
    chosen = [
        c for c in one_per_operator()[::2] if sum(a.nbytes for a in (*c.inputs.values(), *c.outputs.values())) < LARGEST
    ]
    assert len(chosen) >= 30
    assert failures(run_suite(chosen, "nrf52840", jobs=1, quiet=True)) == []


def test_the_document_counts_what_it_lists() -> None:
    text = COVERAGE.read_text()
    row = re.search(r"\| \*\*all\*\* \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|", text)
    assert row is not None
    total, passed, failed, alien = map(int, row.groups())
    assert passed + failed + alien == total
    assert passed >= 1500
    assert failed == len(known_failures())
