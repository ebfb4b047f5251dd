# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from rotation import VARIABLE, in_turn


def test_every_choice_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    turns = [in_turn("abc", bytes([number])) for number in range(20)]
    assert {tuple(turn) for turn in turns} == {("a",), ("b",), ("c",)}
    assert turns == [in_turn("abc", bytes([number])) for number in range(20)]
    assert in_turn("", b"x") == ""


def test_the_sweep_takes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    assert in_turn("abc", b"x") == "abc"
