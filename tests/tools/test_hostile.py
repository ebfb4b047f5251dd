# SPDX-License-Identifier: Apache-2.0
"""The corpus of tools/hostile.py, and a short run of tools/fuzz_inputs.py: no traceback, no crash, no hang."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fuzz_inputs import MAKERS, check, command
from hostile import GROUPS, corpus
from sandbox import Command, Outcome, run_all

from mcugen.cli.commands import listing

LONG = (
    *("sizes/products", "sizes/large_product", "functions/doubling_12", "plugins/swallows", "loops/count_100000"),
    *("training/cluster_escape", "structure/nested_if_11", "samples/zeros_64_mib"),
    *("boards/memories_many", "boards/for_memories_many"),
)
"""Cases that take seconds; those of the group `growth` take more."""

FUZZED = 200


def wrong(outcomes: list[Outcome]) -> list[str]:
    return [f"{o.name}: {o.wrong}: {o.message[:500]}" for o in outcomes if o.wrong]


def test_the_corpus_is_large_and_has_every_case_once(tmp_path: Path):
    names = [case.name for case in corpus(tmp_path)]
    assert len(names) == len(set(names)) >= 500
    assert set(LONG) <= set(names)


def test_the_corpus_is_the_same_each_time(tmp_path: Path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        corpus(folder, ("structure", "quantization", "samples"))
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert files
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)


@pytest.mark.parametrize("group", [name for name in GROUPS if name != "growth"])
def test_hostile_input(group: str, tmp_path: Path):
    cases = [case for case in corpus(tmp_path, (group,)) if case.name not in LONG]
    outcomes = list(run_all(cases, tmp_path))
    assert len(outcomes) == len(cases)
    assert wrong(outcomes) == []
    assert not list(tmp_path.rglob("was_run")), "what settings of somebody else's name is not run"


@pytest.mark.slow
def test_hostile_input_that_takes_long(tmp_path: Path):
    cases = [case for case in corpus(tmp_path) if case.name in LONG or case.name.startswith("growth/")]
    assert wrong(list(run_all(cases, tmp_path))) == []


def test_inputs_by_seed(tmp_path: Path):
    outcomes = check(range(FUZZED), tmp_path)
    assert wrong(outcomes) == []
    assert {o.name.split()[1] for o in outcomes} == {make.__name__ for make in MAKERS}
    assert {o.code for o in outcomes} >= {0, 2, 3}


def test_a_seed_makes_the_same_input_again(tmp_path: Path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
    for seed in range(40):
        assert command(seed, tmp_path / "a") == command(seed, tmp_path / "b")
    files = sorted(path.name for path in (tmp_path / "a").iterdir() if path.is_file())
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)


def test_what_must_not_happen_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A death, a hang and an internal error, each in a process of its own; the others run on."""

    def load_board(name: str) -> object:
        if name == "dies":
            os.abort()
        while name == "hangs":
            pass
        raise KeyError(name)

    monkeypatch.setattr(listing, "load_board", load_board)
    monkeypatch.setattr("sandbox.SECONDS", 1)
    commands = [Command(name, ("boards", "show", name)) for name in ("dies", "hangs", "fails")]
    found = list(run_all([*commands, Command("well", ("version",))], tmp_path))
    assert [o.wrong.split(",")[0] for o in found] == ["killed by SIGABRT", "1 s of CPU exceeded", "exit code 1", ""]
