# SPDX-License-Identifier: Apache-2.0
"""Files of measured runs: cycles of layers on boards, by kernel (docs/how-to/validate.md describes the format)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcugen.calibration.files import runs_text, stored_runs
from mcugen.codegen.write import write_text
from mcugen.core.errors import UsageError
from mcugen.deploy.validation.figures import ValidationReport


@dataclass(frozen=True)
class RunsFile:
    """A JSON file of measured runs, to which a new run is added.

    The file is read before the board runs, so that an invalid file is reported before the measurement.
    """

    path: Path
    """Path of the file."""
    runs: tuple[Any, ...]
    """The runs that the file holds already, as JSON data."""

    @classmethod
    def at(cls, path: Path) -> RunsFile:
        """Read the file of runs at a path; a file that does not exist has no runs.

        Raises:
            UsageError: The file holds something else.
        """
        if not path.exists():
            return cls(path, ())
        try:
            return cls(path, tuple(stored_runs(path)))
        except UsageError as error:
            rule = f"{path}: --runs must be a file of runs, or a new one"
            raise UsageError(rule, error.found, "name another") from error

    def add(self, report: ValidationReport) -> None:
        """Write the file again with the run of a validation report appended."""
        write_text(self.path, runs_text([*self.runs, _run(report)]))


def _run(report: ValidationReport) -> dict[str, Any]:
    cycles, firmware = report.cycles, report.firmware
    return {
        "board": report.board,
        "cpu": report.cpu,
        "clock_hz": None if cycles is None else cycles.clock_hz,
        "counter": firmware.counter,
        "compiler": firmware.compiler,
        "flags": firmware.flags,
        "model": report.model.name,
        "sha256": report.model.sha256,
        "options": firmware.options,
        "mcugen": firmware.version,
        "cycles": None if cycles is None else cycles.first,
        "layers": [
            {"name": r.name, "op": r.op, "kernel": r.kernel, "macs": r.macs, "cycles": r.cycles} for r in report.layers
        ],
    }
