# SPDX-License-Identifier: Apache-2.0
"""The data of a validation report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from mcugen.deploy.validation.device import Identity
from mcugen.evaluation.accuracy import Accuracy
from mcugen.reporting.figures import ModelFigures


class Verdict(StrEnum):
    """Result of the comparison with the reference: the generated code, run on this computer."""

    EXACT = "exact"
    CLOSE = "close"
    """Floats, or quantized values computed from floats, within the self-test's tolerance."""
    DIFFERENT = "different"
    UNKNOWN = ""
    """Not compared."""


@dataclass(frozen=True)
class LayerCheck:
    """A layer on the board: what was compared with the reference, its cycles and stack (None: not measured).

    `instructions`, `cycles_estimate` and `stack_simulated` are the simulator's, where it was asked. Stacks are the peak
    in bytes while the layer runs, from the frame that calls the network's run function down, that function's included.
    """

    name: str
    origin: list[str]
    op: str
    kernel: str
    macs: int
    verdict: str
    cycles: int | None
    instructions: int | None
    cycles_estimate: int | None
    stack: int | None
    stack_simulated: int | None


@dataclass(frozen=True)
class Difference:
    """The first layer that differs from the reference, and its first differing element.

    `layer` is its number, -1 for an output that differs where all layers are equal. `count` of `compared` elements
    differ. `element` is the index in memory's order.
    """

    sample: int
    layer: int
    name: str
    kernel: str
    dtype: str
    element: int
    board: float
    reference: float
    count: int
    compared: int
    is_repeatable: bool
    causes: list[str]

    def __str__(self) -> str:
        where = f"layer {self.layer}, '{self.name}' ({self.kernel})" if self.layer >= 0 else f"output '{self.name}'"
        share = f"{self.count:,} of {self.compared:,} elements differ"
        return (
            f"{where}, sample {self.sample}: element {self.element:,} is {self.board:g} on the board and "
            f"{self.reference:g} here; {share}"
        )


@dataclass(frozen=True)
class CycleRange:
    """Cycles of one inference by the firmware's counter: for the first sample, and the extremes of all samples."""

    counter: str
    first: int
    least: int
    most: int
    clock_hz: int
    milliseconds: float


@dataclass(frozen=True)
class Simulated:
    """The simulator's figures for the first sample."""

    instructions: int | None
    cycles_estimate: int | None
    cycles_note: str
    stack: int | None


@dataclass(frozen=True)
class Wire:
    """Traffic over the wire. `seconds` is the time of so many bytes at this baud rate; `lost` counts frames."""

    port: str
    baud: int
    sent: int
    received: int
    frames: int
    lost: int
    damaged: int
    resets: int
    seconds: float


@dataclass(frozen=True)
class ValidationReport:
    """All figures of a validation; None for unknown ones.

    `outputs` is the verdict on all samples' outputs, `layers_samples` how many samples layers were compared on.
    """

    model: ModelFigures
    board: str
    cpu: str
    precision: str
    firmware: Identity
    samples: int
    accuracy: Accuracy | None
    outputs: str
    different_samples: int
    layer_samples: int
    difference: Difference | None
    constants_differ: list[str]
    cycles: CycleRange | None
    instructions_estimate: int | None
    stack: int | None
    simulated: Simulated | None
    wire: Wire
    layers: list[LayerCheck]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return asdict(self)
