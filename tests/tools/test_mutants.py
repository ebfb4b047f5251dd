# SPDX-License-Identifier: Apache-2.0
"""The mutation score: what mutants there are, and that a run sees the mutant and nothing else."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import mutants
import pytest
from mutants import (
    ROOMS,
    ROOT,
    SLOW_TESTS,
    TESTS,
    Mutant,
    Reached,
    Tracer,
    fate,
    function_code,
    imported_fate,
    in_fork,
    interval,
    mutant,
    reaching,
    sampled,
    sites,
)

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
    samples = [[m.change for m in sampled(room, 3, seed)] for seed in (3, 4)]
    assert samples[0] != samples[1] and samples[0] == [m.change for m in sampled(room, 3, 3)]
    assert [name for name in (*TESTS[room], *SLOW_TESTS) if not (ROOT / "tests" / name).exists()] == []


def test_each_mutant_knows_its_function(module: Path):
    functions = {mutant(site).change: mutant(site).function for site in sites(module)}
    assert functions["`3` → `4`"] is None and functions["`True` → `False`"] is None  # which take effect at import
    assert functions["`found.sort()` → `None`"] == functions["`min` → `max`"] == "small"


def test_tests_that_reach_a_line_are_tried_quickest_first(module: Path):
    at = next(m for m in map(mutant, sites(module)) if m.change == "`found.sort()` → `None`")
    path = str(module.relative_to(mutants.ROOT))
    reached = {
        "slow": Reached(5.0, {path: [at.line]}),
        "quick": Reached(0.1, {path: [at.line - 1, at.line]}),
        "elsewhere": Reached(0.0, {path: [at.line - 1]}),
        "another file": Reached(0.0, {"mcugen/lir/other.py": [at.line]}),
    }
    assert reaching(at, reached, 60) == ["quick", "slow"]
    assert reaching(at, reached, 3) == ["quick"] and reaching(at, {"slow": reached["slow"]}, 3) == ["slow"]
    at_import = next(m for m in map(mutant, sites(module)) if m.function is None)
    assert reaching(at_import, reached, 60) == ["elsewhere", "quick", "slow"]


def test_lines_that_run_are_recorded(module: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    small = imported(module, monkeypatch, tmp_path)
    with Tracer(module.parent) as tracer:
        small.small([2, 1])
    lines = SOURCE.splitlines()
    assert {lines[line - 1].strip() for line in tracer.lines[str(module.relative_to(tmp_path))]} == {
        "if not values:",
        "found = [v for v in values if v < LIMIT and (strict or v != 0)]",
        "found.sort()",
        "return min(found) + 1",
    }


def imported(module: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mcugen_small", module)
    assert spec is not None and spec.loader is not None
    small = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(small)
    return small


def test_a_fork_has_the_mutant_in_its_functions_place(module: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    small = imported(module, monkeypatch, tmp_path)

    def result(made: Mutant) -> object:
        def run() -> int:
            small.small.__code__ = function_code(made, small.small.__code__)
            return small.small([2, 1])

        return in_fork(run)

    found = {m.change: result(m) for m in map(mutant, sites(module)) if m.function}
    assert found["`min(found) + 1` → `min(found) - 1`"] == 0
    assert found["`strict or v != 0` → `strict`"] == 2
    assert small.small([2, 1]) == 2


def test_what_dies_or_hangs_gives_nothing():
    assert in_fork(lambda: 1 // 0) is None

    def hang() -> None:
        while True:
            pass

    assert in_fork(hang, 1) is None
    assert in_fork(lambda: [1, "a"]) == [1, "a"]
    assert [fate(2, None), fate(2, "t"), fate(2, ""), fate(0, "")] == [
        "found (hangs or crashes)",
        "found by t",
        "SURVIVED 2 tests",
        "NOT REACHED",
    ]


def test_the_interval_of_a_score():
    low, high = interval(90, 100)
    assert round(low, 3) == 0.826 and round(high, 3) == 0.945  # Wilson's
    assert interval(10, 10)[1] == pytest.approx(1) and interval(10, 10)[0] == pytest.approx(0.722, abs=1e-3)


def test_a_run_sees_a_mutant_that_takes_effect_at_import(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    test = tmp_path / "test_small.py"
    test.write_text("import mcugen.lir.small as small\n\ndef test():\n    assert small.small([2, 1, 3]) == 2\n")
    for folder in (module.parent, module.parent.parent):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    reached = {str(test): Reached(0.1, {str(module.relative_to(tmp_path)): [1]})}
    every = {m.change: m for m in map(mutant, sites(module))}
    fates = [imported_fate(every[change], reached, 60) for change in ("`3` → `4`", "`True` → `False`")]
    assert fates == ["SURVIVED 1 tests", "SURVIVED 1 tests"]
    test.write_text(test.read_text() + "    assert small.LIMIT == 3\n")
    assert imported_fate(every["`3` → `4`"], reached, 60) == "found by a test"
