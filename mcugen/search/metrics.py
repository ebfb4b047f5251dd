# SPDX-License-Identifier: Apache-2.0
"""The metrics of a program: instructions, cycles, memory and energy, and how accurately each one is known."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum


class AccuracyLevel(IntEnum):
    """Source of metrics: the cost model, the compiled code, or a simulated run."""

    ESTIMATED = 0
    """Estimated by the cost model, which takes milliseconds; weights are assumed in one memory, the arena in
    another."""
    PLACED = 1
    """Estimated by the cost model, with the stall cycles of the memories that weights and arena are placed in."""
    BUILT = 2
    """Like ESTIMATED, but with the size of the compiled code; compiling takes seconds."""
    SIMULATED = 3
    """Measured by a run in the board's simulator, which takes seconds to minutes."""


@dataclass(frozen=True)
class Use:
    """The RAM and flash that a program uses, in bytes, and the bytes by which they exceed the board.

    Flash is an estimate unless the code was built. RAM is lacking if less than STACK_RESERVE_BYTES would remain.
    """

    ram: int
    """Bytes of the arena, the state and copies of weights, without the stack."""
    flash: int
    """Bytes of weights and code."""
    ram_lacking: int = 0
    """Bytes of RAM that the board lacks; 0 if the program fits."""
    flash_lacking: int = 0
    """Bytes of flash that the board lacks; 0 if the program fits."""
    lacking_in: str = ""
    """Names of the memories that lack RAM, as text, if the user chose memories; else ""."""

    @property
    def lacks(self) -> bool:
        """Return whether the board lacks RAM or flash for the program."""
        return bool(self.ram_lacking or self.flash_lacking)


@dataclass(frozen=True)
class ErrorBounds:
    """The largest relative error of each metric of a program, 0.04 for 4 %; None for a metric without a known bound.

    Attributes:
        instructions: Error of the instructions of a call.
        cycles: Error of the cycles of a call.
        stall_cycles: Error of the cycles that the core waits for memory.
        ram: Error of the bytes of RAM.
        flash: Error of the bytes of flash.
        microjoules: Error of the energy of a call.
    """

    instructions: float | None = None
    cycles: float | None = None
    stall_cycles: float | None = None
    ram: float | None = None
    flash: float | None = None
    microjoules: float | None = None


@dataclass(frozen=True)
class Metrics:
    """The cost of one call of a program, at one level of accuracy."""

    instructions: float
    """Instructions of one call; 0 if neither an estimate nor a count is known."""
    cycles: float | None
    """Cycles of one call, stall cycles included; None if only the instructions are known."""
    stall_cycles: float
    """Cycles that the core waits for memory."""
    use: Use
    """RAM and flash as the budget counts them."""
    copied_bytes: int = 0
    """Bytes of RAM for weights that start-up code copies by the compiler's choice, not by the user's request."""
    code_bytes: int | None = None
    """Bytes of code as the compiler built it; None if the code was not built."""
    step_cycles: float | None = None
    """Cycles of the longest step of a call (Bundle.steps); None if steps were not simulated."""
    microjoules: float | None = None
    """Energy of one call in microjoules; None if the board file has no power figures, or if cycles are unknown."""
    level: AccuracyLevel = AccuracyLevel.ESTIMATED
    """How the metrics were obtained."""
    errors: ErrorBounds = ErrorBounds()
    """The largest relative errors of these metrics, as far as bounds are known."""

    @property
    def time(self) -> float:
        """Return the time per call that all searches compare: cycles if known, else instructions plus stall cycles."""
        return self.instructions + self.stall_cycles if self.cycles is None else self.cycles

    @property
    def ram(self) -> int:
        """Return the bytes of the arena, the state and all copies of weights, without the stack."""
        return self.use.ram + self.copied_bytes

    @property
    def flash(self) -> int:
        """Return the bytes of weights and code."""
        return self.use.flash

    def growth(self, before: Metrics) -> float:
        """Return the relative growth of RAM plus that of time against another program: 0.3 for 10 % and 20 % more."""
        return self.ram / max(before.ram, 1) + self.time / max(before.time, 1) - 2

    def to_json(self) -> dict[str, object]:
        """Return the metrics as a dictionary for the JSON trace of the search."""
        return {
            "instructions_estimate": round(self.instructions),
            "cycles_estimate": None if self.cycles is None else round(self.cycles),
            "stall_cycles_estimate": round(self.stall_cycles),
            "ram": self.ram,
            "flash_estimate": self.flash,
            "step_cycles_estimate": self.step_cycles,
            "microjoules_estimate": self.microjoules,
            "accuracy": self.level.name.lower(),
            "error_bounds": asdict(self.errors),
        }
