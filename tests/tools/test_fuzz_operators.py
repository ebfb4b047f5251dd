# SPDX-License-Identifier: Apache-2.0
"""Damaged official tests: refused in order, or compiled to code that is safe and right. See tools/fuzz.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fuzz import BATCH, Finding, Mutant, attribute_strings, check_in_process, mutate, single_nodes
from onnx_tests import Case

SEEDS_OF_SWEEP = 2


def one_per_operator(tests: Sequence[Case]) -> list[Case]:
    """For each operator the shortest-named test of it alone."""
    chosen: dict[str, Case] = {}
    for case in sorted(tests, key=lambda c: (len(c.name), c.name)):
        if len(case.model.graph.node) == 1:
            chosen.setdefault(case.operators[0], case)
    return list(chosen.values())


def bugs(mutants: Sequence[Mutant]) -> list[Finding]:
    batches = [mutants[start : start + BATCH] for start in range(0, len(mutants), BATCH)]
    findings = [f for batch in batches for f in check_in_process(batch)]
    assert {f.label for f in findings} == {m.label for m in mutants}
    assert {f.state for f in findings} >= {"refused", "passed"}
    return [f for f in findings if f.is_bug]


def test_one_mutant_of_every_fourth_operator() -> None:
    tests = single_nodes()
    words = attribute_strings(tests)
    assert bugs([mutate(case, 0, words) for case in one_per_operator(tests)[::4]]) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 1 + SEEDS_OF_SWEEP))
def test_mutants_of_every_test(seed: int) -> None:
    tests = single_nodes()
    words = attribute_strings(tests)
    assert bugs([mutate(case, seed, words) for case in tests]) == []
