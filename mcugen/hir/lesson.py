# SPDX-License-Identifier: Apache-2.0
"""Description of on-device training: the inputs and outputs of a graph that exist for training only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcugen.hir.types import Array


@dataclass(frozen=True)
class Lesson:
    """The training interface of a graph.

    `target` and `rate` name inputs and `loss` names an output, which inference neither reads nor computes. `states`
    maps each output to the input that it becomes in the next call: weights and the optimizer's state. `layers` names
    the trained layers; each has an entry in the vector of learning rates. `first` holds initial values of states; other
    states start as zeros. With `classes` above 0 the target is a class index below `classes`.
    """

    target: str
    rate: str
    loss: str
    states: Mapping[str, str]
    layers: tuple[str, ...]
    first: Mapping[str, Array] = field(default_factory=dict)
    classes: int = 0
    what: str = ""
    """Description of the loss, for messages."""
    learning: str = ""
    """Description of how the states are updated, for messages."""
