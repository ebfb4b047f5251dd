# SPDX-License-Identifier: Apache-2.0
"""The mutation score: what mutants there are, and that a run sees the mutant and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import pytest
from mutants import ROOMS, Mutant, mutant, passes, sampled, sites

SOURCE = '''"""A module."""

LIMIT: int = 3


def small(values: list[int], strict: bool = True) -> int | None:
    """Of those below the limit."""
    if not values:
        raise ValueError("none of " + str(1))
    found = [v for v in values if v < LIMIT and (strict or v != 0)]
    found.sort()
    return min(found) + 1
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    path = tmp_path / "mcugen" / "lir" / "small.py"
    path.parent.mkdir(parents=True)
    path.write_text(SOURCE)
    return path


def test_every_kind_of_mistake(module: Path):
    changes = {mutant(site).change for site in sites(module)}
    assert changes >= {
        "`3` → `4`",
        "`True` → `False`",
        "`not values` → `+bool(values)`",
        "`v < LIMIT` → `v <= LIMIT`",
        "`v != 0` → `v == 0`",
        "`strict or v != 0` → `strict and v != 0`",
        "`strict or v != 0` → `strict`",
        "`found.sort()` → `None`",
        "`min` → `max`",
        "`min(found) + 1` → `min(found) - 1`",
        "`return min(found) + 1` → `return None`",
    }
    assert "`'none of ' + str(1)` → `'none of ' - str(1)`" not in changes  # messages have no say in results


def test_each_changes_the_module_and_nothing_else(module: Path):
    plain = ast.unparse(ast.parse(SOURCE))
    for site in sites(module):
        made = mutant(site)
        assert made.source != plain and made.change.count("`") == 4
        assert (made.module, made.place) == ("mcugen.lir.small", f"lir/small.py:{made.line}")
        compile(made.source, "small.py", "exec")
    assert module.read_text() == SOURCE


@pytest.mark.parametrize("room", ROOMS)
def test_a_seed_gives_the_same_sample_and_its_tests_are_there(room: str):
    sample = sampled(room, 10, seed=3)
    assert sample == sampled(room, 10, seed=3) != sampled(room, 10, seed=4)
    paths = [path for each in sample for tests in each.tests for path in tests]
    assert [path for path in paths if not path.exists()] == []


def test_the_nearest_tests_of_every_module_are_there():
    modules = [path for room in ROOMS for path in (mutants.ROOT / "mcugen" / room).glob("*.py")]
    missing = {
        path
        for module in modules
        if module.stem != "__init__"
        for tests in Mutant(module, 1, "", "").tests
        for path in tests
        if not path.exists()
    }
    assert missing == set()


def test_a_run_sees_the_mutant(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    test = tmp_path / "test_small.py"
    test.write_text("import mcugen.lir.small as small\n\ndef test():\n    assert small.small([2, 1]) == 2\n")
    for folder in (module.parent, module.parent.parent):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    every = [mutant(site) for site in sites(module)]
    found = next(m for m in every if m.change == "`min(found) + 1` → `min(found) - 1`")
    harmless = next(m for m in every if m.change == "`strict or v != 0` → `strict`")
    options = ["-c", "/dev/null"]
    assert [passes([test], m, options) for m in (None, harmless, found)] == [True, True, False]
