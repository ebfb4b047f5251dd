# SPDX-License-Identifier: Apache-2.0
"""Immutable classes whose base makes them dataclasses."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from mcugen.core.frozen import FrozenByName, FrozenByPosition


class Point(FrozenByPosition):
    x: int
    y: int = 0


class Place(Point):
    name: str = ""


class Size(FrozenByName):
    width: int = 1
    height: int


@dataclass(frozen=True)
class Decorated(FrozenByPosition):
    x: int = 3


def test_fields_are_given_by_position() -> None:
    assert Place(1, 2, "home") == Place(x=1, y=2, name="home") != Point(1, 2)


def test_fields_are_given_by_name() -> None:
    assert Size(height=2).width == 1
    with pytest.raises(TypeError):
        Size(1, 2)  # type: ignore[misc]


@pytest.mark.parametrize("value", [Point(1), Place(1), Size(height=1), Decorated()])
def test_attributes_cannot_change(value: Point | Size | Decorated) -> None:
    with pytest.raises(FrozenInstanceError):
        value.x = 5  # type: ignore[misc,union-attr]
    with pytest.raises(FrozenInstanceError):
        del value.x  # type: ignore[misc,union-attr]


def test_values_are_compared_hashed_copied_and_stored_by_their_fields() -> None:
    values = {Point(1, 2): "a", Place(1, 2): "b"}
    assert values[replace(Point(1), y=2)] == "a"
    assert pickle.loads(pickle.dumps(Place(1, 2))) == Place(1, 2)


def test_a_class_may_be_decorated_as_well() -> None:
    assert Decorated() == Decorated(3)
