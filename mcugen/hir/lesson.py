# SPDX-License-Identifier: Apache-2.0
"""Description of on-device training: the inputs and outputs of a graph that exist for training only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcugen.hir.types import Array


@dataclass(frozen=True)
class Lesson:
    """The inputs and outputs of a graph that exist for on-device training; inference neither reads nor computes them.

    Attributes:
        target: Name of the input that holds the expected output.
        rate: Name of the input that holds the learning rates, one for each entry of `layers`.
        loss: Name of the output that holds the loss.
        states: For each output that is a state (weights or the optimizer's state), the name of the input that it
            becomes in the next call.
        layers: Names of the trained layers.
        first: Initial values of states, by the name of the input; other states start as zeros.
        classes: Number of classes if the target is a class index, else 0.
        what: Description of the loss, for messages.
        learning: Description of how the states are updated, for messages.
    """

    target: str
    rate: str
    loss: str
    states: Mapping[str, str]
    layers: tuple[str, ...]
    first: Mapping[str, Array] = field(default_factory=dict)
    classes: int = 0
    what: str = ""
    learning: str = ""
