# SPDX-License-Identifier: Apache-2.0
"""What of a graph learns: the inputs and outputs that a call has for that alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcugen.hir.types import Array


@dataclass(frozen=True)
class Lesson:
    """Names of inputs (`target`, `rate`) and of an output (`loss`), which no run reads or computes.

    `states` maps outputs to the inputs that they become in the next call: weights, and what the optimizer remembers.
    `layers` are what is trained, of which each has its own place in the rate. `first` is what the states hold at first,
    where it is not zeros. With `classes` the target is the number of one of them.
    """

    target: str
    rate: str
    loss: str
    states: Mapping[str, str]
    layers: tuple[str, ...]
    first: Mapping[str, Array] = field(default_factory=dict)
    classes: int = 0
    what: str = ""
    """The loss, in words."""
    learning: str = ""
    """What becomes of the states, in words."""
