# SPDX-License-Identifier: Apache-2.0
"""What is known of a model compiled by one compiler for one board."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LayerFigures:
    """Figures of a layer; `elements` counts its larger side, `channels` its output's channels."""

    name: str
    op: str
    kernel: str
    shape: tuple[int, ...]
    elements: int
    channels: int
    macs: int
    instructions: int
    cycles: int | None
    units: Mapping[str, int] = field(default_factory=dict)
    """Instructions by the part of the CPU that they occupy, where cycles are known."""


@dataclass(frozen=True)
class Figures:
    """Measurements of one compiler's code: retired instructions of a call, and bytes."""

    instructions: int
    code: int
    """Flash without weights: what the model adds to a firmware's code and constants."""
    weights: int
    arena: int
    """Inputs and outputs, and all activations that the compiler places there."""
    static: int
    stack: int
    error: float | None
    """Largest deviation from ONNX Runtime: relative for float outputs, in steps for integers; None: unknown."""
    cycles: int | None = None
    """Estimated, where there is a timing of the CPU."""

    @property
    def flash(self) -> int:
        """Return all bytes in flash."""
        return self.code + self.weights

    @property
    def ram(self) -> int:
        """Return all bytes in RAM."""
        return self.arena + self.static + self.stack


@dataclass(frozen=True)
class Outcome:
    """Figures, or a reason why there are none, with notes for the reader."""

    figures: Figures | None
    note: str = ""
    layers: tuple[LayerFigures, ...] = ()


NONE = Outcome(None)


@dataclass(frozen=True)
class Row:
    """A model on a board, compiled for a goal. `macs` and `clock_hz` are the model's and the board's."""

    model: str
    board: str
    cpu: str
    mcugen: Outcome
    peer: Outcome
    goal: str = "balanced"
    macs: int = 0
    clock_hz: int = 0

    def ratio(self, of: Callable[[Figures], float | None]) -> float | None:
        """Return mcugen's figure over the peer's: below 1, mcugen is better; None if one is unknown."""
        if self.mcugen.figures is None or self.peer.figures is None:
            return None
        return quotient(of(self.mcugen.figures), of(self.peer.figures))


def quotient(ours: float | None, theirs: float | None) -> float | None:
    """Return the ratio of two figures; None if one is unknown or the second is 0."""
    return None if ours is None or not theirs else ours / theirs
