# SPDX-License-Identifier: Apache-2.0
"""Immutable classes whose subclasses need no decorator: operators, expressions, and declarations of kernels."""

from __future__ import annotations

from dataclasses import Field, FrozenInstanceError, dataclass, field
from typing import Any, ClassVar, dataclass_transform


class Frozen:
    """Base of classes whose instances are immutable: attributes cannot be assigned after creation."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class FrozenByPosition(Frozen):
    """Base class that turns each of its subclasses into a frozen dataclass whose fields may be given by position."""

    def __init_subclass__(cls) -> None:
        """Make the subclass a dataclass."""
        _freeze(cls, kw_only=False)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class FrozenByName(Frozen):
    """Base class that turns each of its subclasses into a frozen dataclass whose fields are given by keyword only."""

    def __init_subclass__(cls) -> None:
        """Make the subclass a dataclass."""
        _freeze(cls, kw_only=True)


def _freeze(cls: type[Frozen], *, kw_only: bool) -> None:
    """Make a class a dataclass without methods of its own that `@dataclass(frozen=True)` refuses to replace.

    Plug-ins may have that decorator, which was necessary in earlier versions.
    """
    dataclass(frozen=True, kw_only=kw_only)(cls)
    del cls.__setattr__, cls.__delattr__
