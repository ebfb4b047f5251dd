# SPDX-License-Identifier: Apache-2.0
"""Files of a calibration: measured runs (docs/how-to/validate.md), and the resulting board file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mcugen.calibration.fit import Calibration
from mcugen.core.board import Board, Memory, ParallelTiming
from mcugen.core.errors import UsageError, printable, shortened
from mcugen.core.limits import MAX_BOARD_BYTES, read_bounded

FORMAT, VERSION = "mcugen-runs", 1
"""Name and version of the format, in each file of runs."""
MAX_RUNS_FILE_BYTES = 64 * MAX_BOARD_BYTES
"""Largest size of a file of runs in bytes."""
_LONGEST_NAME = 60


@dataclass(frozen=True)
class RunLayer:
    """A layer of a measured run.

    Attributes:
        name: Name of the layer.
        kernel: Name of the kernel that computes the layer.
        cycles: Measured CPU cycles of the layer on the board.
    """

    name: str
    kernel: str
    cycles: int


@dataclass(frozen=True)
class BoardRun:
    """A measured inference on the board.

    Attributes:
        model: Name of the model.
        sha256: SHA-256 of the model's file, in hex.
        options: Options of the compilation, as the generated code names them.
        clock_hz: Clock of the CPU in Hz.
        cycles: Cycles of the inference.
        layers: The measured layers, in order.
    """

    model: str
    sha256: str
    options: str
    clock_hz: int
    cycles: int
    layers: tuple[RunLayer, ...]


def read_runs(path: Path) -> list[BoardRun]:
    """Read and check the measured runs of a file, which must have at least one.

    docs/how-to/validate.md describes the format.

    Raises:
        UsageError: The file is invalid.
    """
    runs = stored_runs(path)
    if not runs:
        _refuse("'runs' must be a list of at least one run", "none")
    return [_run(_Table(run, f"runs[{i}]")) for i, run in enumerate(runs)]


def runs_text(runs: Sequence[Any]) -> str:
    """Return the text of a file of runs.

    Args:
        runs: The runs as JSON data (docs/how-to/validate.md describes the format).
    """
    return json.dumps({"format": FORMAT, "version": VERSION, "runs": list(runs)}, indent=2) + "\n"


def stored_runs(path: Path) -> list[Any]:
    """Return the runs of a file as JSON data, without checks of their contents.

    Raises:
        UsageError: The file is no file of runs.
    """
    try:
        document = json.loads(read_bounded(path, MAX_RUNS_FILE_BYTES))
    except OSError as error:
        raise UsageError("a file of runs must be readable", error.strerror or "", "mcugen validate --runs") from error
    except (ValueError, RecursionError) as error:
        _refuse("a file of runs must be JSON", str(error))
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        _refuse(f"a file of runs must be of format '{FORMAT}', version {VERSION}", "something else")
    runs = document.get("runs")
    if not isinstance(runs, list):
        _refuse("'runs' must be a list of runs", shortened(repr(runs), 60))
    return runs


def _refuse(rule: str, fault: str) -> NoReturn:
    raise UsageError(rule, fault, "measure with: mcugen validate … --runs FILE")


class _Table:
    """Typed access to an object of the file."""

    def __init__(self, table: Any, where: str) -> None:
        self._table, self._where = table, where
        if not isinstance(table, dict):
            _refuse(f"{where} must be an object", shortened(repr(table), 60))

    def text(self, key: str) -> str:
        value = self._table.get(key)
        if not isinstance(value, str):
            _refuse(f"{self._where}.{key} must be a text", shortened(repr(value), 60))
        return str(value)

    def count(self, key: str) -> int:
        value = self._table.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 63:
            _refuse(f"{self._where}.{key} must be a whole number above 0", shortened(repr(value), 60))
        return int(value)

    def tables(self, key: str) -> Iterator[_Table]:
        values = self._table.get(key)
        if not isinstance(values, list) or not values:
            _refuse(f"{self._where}.{key} must be a list of at least one layer", shortened(repr(values), 60))
        return (_Table(value, f"{self._where}.{key}[{i}]") for i, value in enumerate(values))


def _run(table: _Table) -> BoardRun:
    layers = tuple(RunLayer(t.text("name"), t.text("kernel"), t.count("cycles")) for t in table.tables("layers"))
    return BoardRun(
        model=table.text("model"),
        sha256=table.text("sha256"),
        options=table.text("options"),
        clock_hz=table.count("clock_hz"),
        cycles=table.count("cycles"),
        layers=layers,
    )


def board_text(base: Board, calibration: Calibration, source: str) -> str:
    """Return the text of a board file that inherits from `base` and has the calibrated figures.

    Args:
        base: The board as it was before the calibration.
        calibration: The result of the calibration.
        source: Description of the measurements, for a comment in the file.
    """
    board = calibration.board
    lines = [
        f"# Made by mcugen calibrate-board from {_comment(source)}. Estimates of layers less what was measured,",
        f"# by the figures of {_comment(base.name)} and by these; root mean square {calibration.before:.1%}, "
        f"{calibration.after:.1%}:",
        *(
            f"# {r.before:+7.1%} {r.after:+7.1%} {r.layer.cycles:>11,} cycles  {_comment(r.layer.model)}: "
            f"{_comment(r.layer.name)}"
            for r in calibration.residuals
        ),
        *(f"# The layers do not tell what is waited for {name} from the rest: as it was." for name in calibration.kept),
        f'inherits = "{base.name}"',
        f"description = {_text(f'{base.description}; calibrated')}",
        f"clock_hz = {board.clock_hz}",
        f"core_factor = {board.core_factor:g}",
        f"sources = [{', '.join(_text(text) for text in (*base.sources, f'measured: {source}'))}]",
        "memories = [",
        *(f"    {{ {_memory(memory)} }}," for memory in board.memories),
        "]",
    ]
    return "\n".join(lines) + "\n"


def _memory(memory: Memory) -> str:
    """Return a memory in the form of board files."""
    fields = [
        f'name = "{memory.name}", kind = "{memory.kind}", origin = {memory.origin:#010x}, size = {memory.size:#x}',
        f"speed = {memory.speed}",
    ]
    if memory.banks != 1:
        fields.append(f"banks = {memory.banks}")
    access = memory.access
    if access is None:
        return ", ".join(fields)
    if memory.line_bytes != 4:
        fields.append(f"line_bytes = {memory.line_bytes}")
    if memory.prefetch:
        fields.append("prefetch = true")
    if isinstance(access, ParallelTiming):
        timing = (access.wait_states, access.burst_wait_states, access.clock_hz)
        fields.append("wait_states = {}, burst_wait_states = {}, clock_hz = {}".format(*timing))
    else:
        timing = (access.clock_hz, access.bits_per_clock, access.overhead_clocks)
        fields.append("serial = {{ clock_hz = {}, bits_per_clock = {}, overhead_clocks = {} }}".format(*timing))
    return ", ".join(fields)


def _comment(text: str) -> str:
    """On one line, of characters that may stand there."""
    return printable(shortened(text, _LONGEST_NAME)).replace("\n", "·")


def _text(value: str) -> str:
    """Return a TOML string; JSON strings are valid ones."""
    return json.dumps(printable(value).replace("\n", "·"), ensure_ascii=True)
