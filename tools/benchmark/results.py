# SPDX-License-Identifier: Apache-2.0
"""All that a benchmark measured: as tables and as JSON."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmark import tables
from benchmark.details import by_goal, by_layer, by_unit
from benchmark.emx import EMX, EMX_OPTIONS, run
from benchmark.figures import Outcome, Row
from benchmark.recorded import TFLM, Study, Tflm
from benchmark.tables import Measure, Table, comparison, timing
from mcugen.core.version import __version__
from mcugen.simulation.toolchain import ARM, find_program

FLOAT_MEASURES = (tables.INSTRUCTIONS, tables.CYCLES, tables.FLASH, tables.RAM)
INT8_MEASURES = (tables.INSTRUCTIONS, tables.ARENA, tables.RAM_TOTAL, tables.CODE, tables.FLASH_TOTAL)
_RATIOS = {
    "instructions": tables.INSTRUCTIONS,
    "cycles": tables.CYCLES,
    "code": tables.CODE,
    "flash": tables.FLASH,
    "arena": tables.ARENA,
    "ram": tables.RAM,
}


@dataclass(frozen=True)
class Results:
    """All measurements of a benchmark, and how they were made."""

    command: str
    tools: Mapping[str, str]
    flags: str
    int8_flags: str
    float_rows: list[Row]
    int8_rows: list[Row]
    seconds: Mapping[str, Mapping[str, float | None]]
    tflm: Tflm
    study: Study

    def tables(self) -> list[Table]:
        """Return the tables that have rows: first all models, then model by model."""
        overview = [
            comparison(f"float32: mcugen and {EMX} (emx)", "emx", _first_goal(self.float_rows), FLOAT_MEASURES),
            comparison(f"int8: mcugen and {TFLM}", "TFLM", _first_goal(self.int8_rows), INT8_MEASURES),
            timing(self.seconds),
        ]
        return [table for table in (*overview, *self._details()) if table.rows]

    def _details(self) -> list[Table]:
        found = []
        for model, rows in _by_model(self.int8_rows).items():
            found.append(by_goal(model, rows, self.tflm, self.study))
            found.append(by_layer(model, _first_goal(rows), self.tflm, self.study))
            found.append(by_unit(model, _first_goal(rows)))
        for model, rows in _by_model(self.float_rows).items():
            found.append(by_layer(model, _first_goal(rows), Tflm(), Study()))
            found.append(by_unit(model, _first_goal(rows)))
        return found

    def how(self) -> str:
        """Return the command, the compiler flags and the versions of the tools."""
        tools = "\n".join(f"- {tool}: {version}" for tool, version in self.tools.items())
        flags = f"float32: `{self.flags}` for both compilers; mcugen's int8: `{self.int8_flags}`"
        return f"Made by `{self.command}` (flags of {flags}) with:\n\n{tools}\n"

    def to_json(self) -> dict[str, Any]:
        """Return all measurements as JSON data."""
        return {
            "command": self.command,
            "tools": dict(self.tools),
            "flags": {"float32": self.flags, "int8": self.int8_flags},
            "emx_options": list(EMX_OPTIONS),
            "float32": [_row_json(row, "emx", _RATIOS) for row in self.float_rows],
            "int8": [_row_json(row, "tflm", _RATIOS) for row in self.int8_rows],
            "compile_seconds": {model: dict(taken) for model, taken in self.seconds.items()},
        }


def _first_goal(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.goal == rows[0].goal]


def _by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {model: [row for row in rows if row.model == model] for model in dict.fromkeys(row.model for row in rows)}


def _row_json(row: Row, peer: str, ratios: Mapping[str, Measure]) -> dict[str, Any]:
    return {
        "model": row.model,
        "board": row.board,
        "cpu": row.cpu,
        "goal": row.goal,
        "mcugen": _outcome_json(row.mcugen),
        peer: _outcome_json(row.peer),
        "ratios": {key: row.ratio(measure.of) for key, measure in ratios.items()},
    }


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    figures = outcome.figures
    sums = {"flash": figures.flash, "ram": figures.ram, **asdict(figures)} if figures else {}
    return {**sums, "layers": [asdict(layer) for layer in outcome.layers], "note": outcome.note}


def tool_versions() -> dict[str, str]:
    """Return the versions of all tools that the figures depend on."""
    try:
        emx = importlib.metadata.version(EMX)
    except importlib.metadata.PackageNotFoundError:
        emx = "not installed"
    compilers = {tool: run([find_program(tool), "--version"]).splitlines()[0] for tool in (ARM.gcc, ARM.qemu)}
    return {"mcugen": __version__, EMX: emx, **compilers}
