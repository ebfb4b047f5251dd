# SPDX-License-Identifier: Apache-2.0
"""The figures of a validation report."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from mcugen.deploy.validation.device import Identity
from mcugen.evaluation.accuracy import Accuracy
from mcugen.reporting.figures import ModelFigures


class Verdict(StrEnum):
    """Result of a comparison of the board with the reference, which is the generated code run on this computer."""

    EXACT = "exact"
    """All bits are equal."""
    CLOSE = "close"
    """Floats that differ within the self-test's tolerance, or quantized values that are computed from such floats."""
    DIFFERENT = "different"
    """The results differ by more than CLOSE allows."""
    UNKNOWN = ""
    """The results were not compared."""


@dataclass(frozen=True)
class LayerCheck:
    """The validation of one layer on the board; None: not measured.

    Attributes:
        name: Name of its result.
        origin: Names of its ONNX nodes.
        op: Its operator.
        kernel: Its kernel.
        macs: Number of multiply-accumulates.
        verdict: Comparison of its results with the reference (Verdict).
        cycles: Cycles on the board; instructions where the report's `cycles.unit` says so.
        instructions: Instructions in the simulator.
        cycles_estimate: Cycles that the simulator estimates.
        stack: Peak stack on the board in bytes, from the frame of the run function's caller down.
        stack_simulated: Peak stack in the simulator in bytes.
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
    """The first difference between the results on the board and the reference.

    Attributes:
        sample: Number of the sample.
        layer: Number of the layer; -1 for an output that differs although all layers are equal.
        name: Name of the layer or output.
        kernel: Kernel of the layer.
        dtype: Type of the elements.
        element: Index of the first differing element, in memory order.
        board: Value of this element on the board.
        reference: Value of this element in the reference.
        count: Number of differing elements.
        compared: Number of compared elements.
        is_repeatable: Whether a second run gave the same results.
        causes: Likely causes, the most likely first.
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


CYCLES, INSTRUCTIONS = "cycles", "instructions"
"""Unit of the counter of a board, and unit of the counter of a simulated board."""


@dataclass(frozen=True)
class CycleRange:
    """Measured cycles of an inference on the board, or instructions if a simulator stands in for the board.

    Attributes:
        unit: What the numbers are: "cycles" or "instructions".
        counter: Name of the cycle counter.
        first: Cycles for the first sample.
        least: Smallest number of cycles of all samples.
        most: Largest number of cycles of all samples.
        clock_hz: Frequency of the counter in Hz.
        milliseconds: Time for the first sample; for a simulator, at one instruction per cycle.
    """

    unit: str
    counter: str
    first: int
    least: int
    most: int
    clock_hz: int
    milliseconds: float


@dataclass(frozen=True)
class SimulatedFigures:
    """The simulator's figures for the first sample; None if it could not measure them.

    Attributes:
        instructions: Number of executed instructions.
        cycles_estimate: Estimated cycles on the board.
        cycles_note: Name of the timing model that estimates the cycles.
        stack: Peak stack in bytes.
    """

    instructions: int | None
    cycles_estimate: int | None
    cycles_note: str
    stack: int | None


@dataclass(frozen=True)
class LinkStatistics:
    """Statistics of the link to the board.

    Attributes:
        port: Name of the port.
        baud: Bits per second.
        sent: Bytes sent.
        received: Bytes received.
        frames: Number of frames.
        lost: Number of lost frames.
        damaged: Number of damaged frames.
        resets: Number of resets of the device.
        seconds: Time in seconds that all bytes take at this baud rate.
    """

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
    """The figures of a device validation; None if unknown.

    Attributes:
        model: Figures of the model.
        board: Name of the board.
        cpu: Its CPU.
        precision: Main precision of the model.
        firmware: The firmware's description of itself.
        samples: Number of samples.
        accuracy: Accuracy of the outputs.
        outputs: Verdict on the outputs of all samples.
        different_samples: Number of samples with a different output.
        layer_samples: Number of samples for which layers were compared.
        difference: The first difference.
        constants_differ: Names of arrays of constants whose checksum differs.
        cycles: Measured cycles.
        instructions_estimate: Instructions that the cost model estimates.
        stack: Peak stack of a call in bytes.
        simulated: Figures of the simulator.
        wire: Statistics of the link.
        layers: Validation of each layer.
        notes: Remarks.
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
    simulated: SimulatedFigures | None
    wire: LinkStatistics
    layers: list[LayerCheck]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        return asdict(self)
