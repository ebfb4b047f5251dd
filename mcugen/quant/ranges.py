# SPDX-License-Identifier: Apache-2.0
"""Stand-in: the range of an activation is what was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mcugen.hir.types import Array, DType
from mcugen.quant.float_model import FloatModel
from mcugen.quant.profile import Profile
from mcugen.quant.scheme import Scheme


@dataclass(frozen=True)
class Choice:
    """A range and the method that found it."""

    method: str
    low: float
    high: float


def choose_ranges(
    model: FloatModel,
    profile: Profile,
    groups: Sequence[tuple[str, ...]],
    dtypes: Mapping[str, DType],
    scheme: Scheme,
    samples: Sequence[Mapping[str, Array]],
    progress: Callable[[int, int], None],
) -> dict[str, Choice]:
    """By tensor, equal within each group."""
    found: dict[str, Choice] = {}
    for group in groups:
        tensors = [profile.tensors[name] for name in group]
        choice = Choice("minmax", min(t.low for t in tensors), max(t.high for t in tensors))
        found |= dict.fromkeys(group, choice)
    return found
