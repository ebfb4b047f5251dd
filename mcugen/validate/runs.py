# SPDX-License-Identifier: Apache-2.0
"""Files of measured layers: what boards took for which kernels (docs/validate.md has the format)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcugen.calibration.files import runs_text, stored_runs
from mcugen.codegen.write import write_text
from mcugen.validate.figures import ValidationReport


def add_run(path: Path, report: ValidationReport) -> None:
    """Adds a run to the file, which need not exist. UsageError for a file of something else."""
    runs = stored_runs(path) if path.exists() else []
    write_text(path, runs_text([*runs, _run(report)]))


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
